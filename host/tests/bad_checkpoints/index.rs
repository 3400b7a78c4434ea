//! Indexes that lead elsewhere.

use super::*;

#[test]
fn indexes_that_lead_elsewhere() {
    fn index(f: &mut Folder, tensor: &str, shard: Value) {
        let mut map = f.weight_map();
        map.insert(tensor.into(), shard);
        f.split(Some(json!({ "weight_map": map })));
    }
    run(&[
        (
            "above the folder",
            |f| index(f, "lm_head.weight", json!("../a.safetensors")),
            InvalidModel,
            &["index.json", "`../a.safetensors`", "plain file name"],
        ),
        (
            "absolute",
            |f| index(f, "lm_head.weight", json!("/etc/a.safetensors")),
            InvalidModel,
            &["`/etc/a.safetensors`"],
        ),
        (
            "below",
            |f| index(f, "lm_head.weight", json!("x/a.safetensors")),
            InvalidModel,
            &["`x/a.safetensors`"],
        ),
        (
            "no safetensors",
            |f| index(f, "lm_head.weight", json!("config.json")),
            InvalidModel,
            &["`config.json`"],
        ),
        (
            "a number",
            |f| index(f, "lm_head.weight", json!(7)),
            InvalidModel,
            &["`lm_head.weight` is 7"],
        ),
        (
            "absent",
            |f| index(f, "lm_head.weight", json!("c.safetensors")),
            NotFound,
            &["c.safetensors", "no such file"],
        ),
        (
            "the other shard",
            |f| index(f, "lm_head.weight", json!("a.safetensors")),
            InvalidModel,
            &["`lm_head.weight` is not in a.safetensors", "b.safetensors"],
        ),
        (
            "no such tensor",
            |f| index(f, "ghost.weight", json!("a.safetensors")),
            InvalidModel,
            &["`ghost.weight` is not in a.safetensors", "none"],
        ),
        (
            "no map",
            |f| f.split(Some(json!({}))),
            InvalidModel,
            &["index.json", "weight_map is missing"],
        ),
        (
            "empty map",
            |f| f.split(Some(json!({"weight_map": {}}))),
            InvalidModel,
            &["weight_map is empty"],
        ),
        (
            "a list",
            |f| f.split(Some(json!({"weight_map": []}))),
            InvalidModel,
            &["weight_map is a list"],
        ),
        (
            "not JSON",
            |f| f.write("model.safetensors.index.json", "x"),
            InvalidModel,
            &["model.safetensors.index.json", "not JSON"],
        ),
        (
            "both",
            |f| {
                let single = f.read("model.safetensors");
                f.split(None);
                f.write("model.safetensors", single);
            },
            InvalidModel,
            &["both model.safetensors and an index"],
        ),
        (
            "in two shards",
            |f| {
                f.split(None);
                let mut tensors = checkpoint_support::Tensors::new();
                tensors.insert("lm_head.weight".into(), f32s(&[48, 32], 0.0));
                f.write("c.safetensors", serialize(&tensors));
                let mut map = f.weight_map();
                map.insert("other".into(), json!("c.safetensors"));
                f.write(
                    "model.safetensors.index.json",
                    json!({"weight_map": map}).to_string(),
                );
            },
            InvalidModel,
            &["`lm_head.weight` is in both b.safetensors and c.safetensors"],
        ),
        (
            "a damaged shard",
            |f| {
                f.split(None);
                f.write("b.safetensors", with_header("{}", 3));
            },
            InvalidModel,
            &["b.safetensors"],
        ),
    ]);
}
