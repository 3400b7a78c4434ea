//! What each kernel of a module reads and writes of its arguments.

use std::collections::BTreeMap;

use super::mlir::{Numbers, bracketed, elements, list, without_location};

/// One read or write of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Access {
    argument: String,
    sizes: Vec<String>,
    write: bool,
    /// The name of what was read.
    value: Option<String>,
}

/// A kernel's body, as far as it says what is touched.
#[derive(Clone, Debug, Default)]
pub struct Kernel<'a> {
    /// Its arguments' names and types.
    arguments: Vec<(&'a str, &'a str)>,
    lines: Vec<&'a str>,
}

/// What a kernel does with one argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Elements read, at most; `None` where it cannot be told.
    pub read: Option<u64>,
    /// Elements written, at most; `None` where it cannot be told.
    pub written: Option<u64>,
    /// Whether single elements are picked by indices that the kernel computes.
    pub picked: bool,
}

/// The kernels of a module at the `flow` phase, by name.
pub fn kernels(flow: &str) -> BTreeMap<&str, Kernel<'_>> {
    let mut all = BTreeMap::new();
    let mut current: Option<(&str, Kernel<'_>)> = None;
    for line in flow.lines() {
        let text = line.trim_start();
        if let Some(rest) = text.strip_prefix("func.func @") {
            let end = rest.find('(').unwrap_or(rest.len());
            let arguments = bracketed(&rest[end..]).map_or("", |(list, _)| list);
            let arguments = list(arguments)
                .into_iter()
                .filter_map(|a| a.split_once(": "))
                .map(|(name, ty)| (name.trim(), without_location(ty)));
            let kernel = Kernel {
                arguments: arguments.collect(),
                lines: Vec::new(),
            };
            all.extend(current.replace((&rest[..end], kernel)));
        } else if text.starts_with("util.func") || text.starts_with("flow.executable ") {
            all.extend(current.take());
        } else if let Some((_, kernel)) = &mut current {
            kernel.lines.push(text);
        }
    }
    all.extend(current);
    all
}

impl Kernel<'_> {
    /// What is done with each argument, given what the caller knows of them.
    pub fn touched(&self, given: &[Option<u64>]) -> Vec<Touched> {
        let mut numbers = Numbers::default();
        for ((name, _), value) in self.arguments.iter().zip(given) {
            if let Some(value) = value {
                numbers.set(name, *value);
            }
        }
        let mut accesses: Vec<Access> = Vec::new();
        let mut other_names: BTreeMap<&str, &str> = BTreeMap::new();
        for line in &self.lines {
            numbers.learn(line, 0);
            let text = without_location(line);
            if let Some((name, rest)) = text.split_once(" = flow.dispatch.tie_shape ") {
                let tied = rest.split_whitespace().next().unwrap_or("");
                other_names.insert(name, tied);
            } else if let Some(access) = access(text, &other_names) {
                accesses.push(access);
            }
        }
        let picked = |value: &str| {
            let mut uses = self.lines.iter().filter(|l| uses(l, value)).peekable();
            uses.peek().is_some() && uses.all(|l| l.contains(" = tensor.extract "))
        };
        let argument = |name: &str| {
            let mut touched = Touched {
                read: Some(0),
                written: Some(0),
                picked: false,
            };
            for access in accesses.iter().filter(|a| a.argument == name) {
                let sizes = access.sizes.iter().map(String::as_str);
                let more = elements(sizes, &numbers);
                let sum = if access.write {
                    &mut touched.written
                } else {
                    &mut touched.read
                };
                *sum = sum.zip(more).and_then(|(a, b)| a.checked_add(b));
                touched.picked |= access.value.as_deref().is_some_and(picked);
            }
            touched
        };
        self.arguments
            .iter()
            .map(|(name, _)| argument(name))
            .collect()
    }
}

/// A load or store of a dispatch's tensor.
fn access(text: &str, other_names: &BTreeMap<&str, &str>) -> Option<Access> {
    let (head, rest) = text.split_once("iree_tensor_ext.dispatch.tensor.")?;
    let (kind, rest) = rest.split_once(' ')?;
    let write = match kind {
        "load" => false,
        "store" => true,
        _ => return None,
    };
    let (operands, _) = rest.split_once(", offsets = ")?;
    let argument = operands.rsplit(',').next()?.trim();
    let argument = other_names.get(argument).copied().unwrap_or(argument);
    let (_, sizes) = rest.split_once(", sizes = ")?;
    let (sizes, _) = bracketed(sizes)?;
    let value = head.split_once(" = ").map(|(name, _)| name.to_owned());
    Some(Access {
        argument: argument.to_owned(),
        sizes: list(sizes).into_iter().map(ToOwned::to_owned).collect(),
        write,
        value,
    })
}

/// Whether an operation's text has `value` as an operand.
fn uses(line: &str, value: &str) -> bool {
    let mut rest = without_location(line);
    if let Some((result, operation)) = rest.split_once(" = ")
        && !result.contains(' ')
    {
        rest = operation;
    }
    let ends = |after: &str| !after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    rest.match_indices(value)
        .any(|(at, _)| ends(&rest[at + value.len()..]))
}

/// Elements of `touched` that count, of a tensor of `whole` elements, in a kernel whose largest result
/// has `largest`. Several reads of a place count once, and picked elements are no more than results.
pub fn counted(touched: Option<u64>, picked: bool, whole: u64, largest: u64) -> u64 {
    let most = touched.map_or(whole, |n| n.min(whole));
    if picked { most.min(largest) } else { most }
}
