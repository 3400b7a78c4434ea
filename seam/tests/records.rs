//! The index of decision records is complete and in order.

use std::fs;
use std::path::Path;

#[test]
fn the_index_names_every_record_by_its_title() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../adr");
    let index = fs::read_to_string(folder.join("README.md")).unwrap();
    let mut names: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n != "README.md")
        .collect();
    names.sort();
    let rows: Vec<String> = names
        .iter()
        .enumerate()
        .map(|(i, name)| {
            let text = fs::read_to_string(folder.join(name)).unwrap();
            let number = format!("{:04}", i + 1);
            let title = text
                .lines()
                .next()
                .and_then(|l| l.strip_prefix(&format!("# {number}: ")))
                .unwrap_or_else(|| panic!("{name} does not begin with `# {number}: `"));
            assert!(text.contains("\nStatus: "), "{name} has no status");
            format!("| [{number}]({name}) | {title} |")
        })
        .collect();
    let listed: Vec<&str> = index.lines().filter(|l| l.starts_with("| [")).collect();
    assert_eq!(listed, rows);
}
