//! As much of MLIR's text as counting needs: operations a line, types, locations, and the arithmetic
//! of sizes.
//!
//! The text comes from the pinned compiler, but nothing here trusts it: what is not understood is
//! `None`, never a guess and never a panic.

use std::collections::BTreeMap;

/// Deepest chain of named locations that is followed.
const DEEPEST: usize = 16;

/// The named locations at the end of a module: `#loc12 = loc(...)`.
pub struct Locations<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Locations<'a> {
    /// Those of a module's text.
    pub fn new(text: &'a str) -> Self {
        let named = text.lines().filter_map(|line| {
            let rest = line.strip_prefix("#loc")?;
            let (number, content) = rest.split_once(" = loc(")?;
            Some((number, content))
        });
        Self(named.collect())
    }

    /// The line of the source that an operation's text says it comes from.
    pub fn line(&self, operation: &str) -> Option<usize> {
        let (_, location) = operation.rsplit_once(" loc(")?;
        self.resolve(location, DEEPEST)
    }

    /// The first place that is named: of a call its own, of several the first.
    fn resolve(&self, location: &str, depth: usize) -> Option<usize> {
        let named = location.find("#loc");
        let file = location.find("\":");
        match (named, file) {
            (Some(named), file) if file.is_none_or(|file| named < file) && depth > 0 => {
                let rest = &location[named + 4..];
                let end = rest.find(|c: char| !c.is_ascii_digit());
                let number = &rest[..end.unwrap_or(rest.len())];
                let inner = self.0.get(number).and_then(|l| self.resolve(l, depth - 1));
                inner.or_else(|| self.resolve(&rest[number.len()..], depth - 1))
            }
            (_, Some(file)) => leading_number(&location[file + 2..]),
            _ => None,
        }
    }
}

fn leading_number(text: &str) -> Option<usize> {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text[..end.unwrap_or(text.len())].parse().ok()
}

/// An operation's text without its location.
pub fn without_location(line: &str) -> &str {
    let line = line.trim();
    line.rsplit_once(" loc(").map_or(line, |(text, _)| text)
}

/// Numbers that are known of a function's values.
#[derive(Clone, Debug, Default)]
pub struct Numbers(BTreeMap<String, u64>);

impl Numbers {
    /// Says what a value is.
    pub fn set(&mut self, name: &str, value: u64) {
        self.0.insert(name.to_owned(), value);
    }

    /// What an operand is: a value's name or a number.
    pub fn get(&self, operand: &str) -> Option<u64> {
        let operand = operand.trim();
        match operand.parse() {
            Ok(number) => Some(number),
            Err(_) => self.0.get(operand).copied(),
        }
    }

    /// Learns what an operation's result is, where it is arithmetic of known numbers. An extent that
    /// only the caller's buffers know is taken to be `extent`.
    pub fn learn(&mut self, line: &str, extent: u64) {
        let Some((name, text)) = without_location(line).split_once(" = ") else {
            return;
        };
        let (op, operands) = text.split_once([' ', '<']).unwrap_or((text, ""));
        let list = operands.split([' ', ',']).filter(|o| !o.is_empty());
        let mut values = list.map_while(|o| self.get(o));
        let pair = |f: fn(u64, u64) -> Option<u64>| {
            let mut values = operands.split(',').map(|o| self.get(first_word(o)));
            f(values.next()??, values.next()??)
        };
        let value = match op {
            "arith.constant"
            | "arith.index_cast"
            | "arith.index_castui"
            | "arith.extui"
            | "arith.extsi"
            | "arith.trunci"
            | "iree_tensor_ext.dispatch.workload.ordinal" => {
                match operands.strip_suffix(": index") {
                    _ if operands.starts_with("true") => Some(1),
                    Some(rest) if op.ends_with("ordinal") => {
                        self.get(first_word(rest).trim_end_matches(','))
                    }
                    _ => values.next(),
                }
            }
            "arith.addi" => pair(u64::checked_add),
            "arith.subi" => pair(u64::checked_sub),
            "arith.muli" => pair(u64::checked_mul),
            "arith.divui" | "arith.divsi" => pair(u64::checked_div),
            "arith.remui" | "arith.remsi" => pair(u64::checked_rem),
            "arith.ceildivui" | "arith.ceildivsi" => {
                pair(|a, b| if b == 0 { None } else { Some(a.div_ceil(b)) })
            }
            "arith.maxui" | "arith.maxsi" => pair(|a, b| Some(a.max(b))),
            "arith.minui" | "arith.minsi" => pair(|a, b| Some(a.min(b))),
            "hal.buffer_view.dim" => Some(extent),
            _ => None,
        };
        if let Some(value) = value {
            self.set(name.trim(), value);
        }
    }
}

fn first_word(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or("")
}

/// Parts of a list, split at commas outside of any brackets.
pub fn list(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0usize, 0);
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            // The head of an arrow closes nothing.
            '>' if before == '-' => {}
            ')' | ']' | '}' | '>' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
        before = c;
    }
    let last = text[start..].trim();
    if !last.is_empty() {
        parts.push(last);
    }
    parts
}

/// What stands in the brackets that `text` begins with, and what follows them.
pub fn bracketed(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let mut depth = 0usize;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            '>' if before == '-' => {}
            ')' | ']' | '}' | '>' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some((&text[1..at], &text[at + c.len_utf8()..]));
                }
            }
            _ if depth == 0 => return None,
            _ => {}
        }
        before = c;
    }
    None
}

/// A tensor's type: `tensor<2x?xf32>{%4}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Extents, or the names of those that are not static.
    pub dims: Vec<String>,
    /// Bits of an element.
    pub bits: u64,
    /// The name of the element's type.
    pub elem: String,
}

impl Tensor {
    /// From a type's text; `None` where it is no tensor of numbers.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.trim().strip_prefix("tensor")?;
        let (content, after) = bracketed(rest)?;
        let content = content.split(',').next()?;
        let mut parts: Vec<&str> = content.split('x').collect();
        let elem = parts.pop()?.trim();
        let bits = match elem {
            "i1" => 8,
            "index" => 64,
            _ => leading_number(elem.trim_start_matches(|c: char| !c.is_ascii_digit()))? as u64,
        };
        let mut names = bracketed(after)
            .map(|(names, _)| list(names))
            .unwrap_or_default();
        names.reverse();
        let dims = parts
            .iter()
            .map(|&dim| match dim {
                "?" => names.pop().unwrap_or("?").to_owned(),
                dim => dim.to_owned(),
            })
            .collect();
        Some(Self {
            dims,
            bits,
            elem: elem.to_owned(),
        })
    }

    /// Number of elements, where every extent is known.
    pub fn elements(&self, numbers: &Numbers) -> Option<u64> {
        elements(self.dims.iter().map(String::as_str), numbers)
    }

    /// Bytes of so many elements.
    pub const fn bytes(&self, elements: u64) -> u64 {
        elements.saturating_mul(self.bits).div_ceil(8)
    }

    /// `2x65xf32`.
    pub fn shape(&self, numbers: &Numbers) -> String {
        let dims = self.dims.iter().map(|d| match numbers.get(d) {
            Some(n) => format!("{n}x"),
            None => "?x".to_owned(),
        });
        dims.chain([self.elem.clone()]).collect()
    }
}

/// The product of extents.
pub fn elements<'a>(dims: impl Iterator<Item = &'a str>, numbers: &Numbers) -> Option<u64> {
    dims.map(|d| numbers.get(d))
        .try_fold(1u64, |all, n| all.checked_mul(n?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_lead_to_the_first_place_they_name() {
        let text = "#loc = loc(unknown)\n#loc3 = loc(\"g.mlir\":7:11)\n#loc4 = loc(callsite(#loc3 at #loc5))\n#loc5 = loc(\"g.mlir\":2:3)\n#loc6 = loc(fused[#loc, #loc4])\n#loc7 = loc(#loc7)\n";
        let locations = Locations::new(text);
        for (op, line) in [
            ("a loc(#loc3)", Some(7)),
            ("a loc(#loc4)", Some(7)),
            ("a loc(#loc6)", Some(7)),
            (
                "a loc(callsite(\"x.mlir\":12:1 at \"x.mlir\":2:3))",
                Some(12),
            ),
            ("a loc(unknown)", None),
            ("a loc(#loc7)", None),
            ("a loc(#loc99)", None),
            ("a", None),
        ] {
            assert_eq!(locations.line(op), line, "{op}");
        }
    }

    #[test]
    fn sizes_are_computed_as_far_as_they_are_known() {
        let mut numbers = Numbers::default();
        numbers.set("%arg1", 128);
        for line in [
            "%c16 = arith.constant 16 : index loc(unknown)",
            "%c5_i32 = arith.constant 5 : i32",
            "%0 = arith.index_cast %arg1 : i32 to index loc(#loc1)",
            "%1 = arith.addi %0, %c16 overflow<nsw> : index",
            "%2 = arith.ceildivsi %1, %c5_i32 : index",
            "%3 = hal.buffer_view.dim<%arg2 : !hal.buffer_view>[0] : index",
            "%4 = iree_tensor_ext.dispatch.workload.ordinal %1, 0 : index",
            "%5 = arith.addi %0, %unknown : index",
            "%6 = arith.divui %0, %7 : index",
        ] {
            numbers.learn(line, 256);
        }
        for (name, value) in [
            ("%c16", Some(16)),
            ("%c5_i32", Some(5)),
            ("%0", Some(128)),
            ("%1", Some(144)),
            ("%2", Some(29)),
            ("%3", Some(256)),
            ("%4", Some(144)),
            ("%5", None),
            ("%6", None),
            ("12", Some(12)),
        ] {
            assert_eq!(numbers.get(name), value, "{name}");
        }
    }

    #[test]
    fn tensors_have_bytes() {
        let mut numbers = Numbers::default();
        numbers.set("%4", 10);
        for (text, shape, bytes) in [
            ("tensor<300x2x32xi4>", "300x2x32xi4", Some(9600)),
            ("tensor<f32>", "f32", Some(4)),
            ("tensor<?x2xbf16>{%4}", "10x2xbf16", Some(40)),
            ("tensor<3x?xui8>{%5}", "3x?xui8", None),
            ("tensor<5xi1>", "5xi1", Some(5)),
            ("tensor<4x4xf16, #encoding<a, [b]>>", "4x4xf16", Some(32)),
        ] {
            let tensor = Tensor::parse(text).unwrap();
            assert_eq!(tensor.shape(&numbers), shape);
            let elements = tensor.elements(&numbers);
            assert_eq!(elements.map(|n| tensor.bytes(n)), bytes, "{text}");
        }
        for wrong in [
            "index",
            "tensor<",
            "tensor<4x",
            "!hal.buffer_view",
            "tensor<4x%>",
        ] {
            assert_eq!(Tensor::parse(wrong), None, "{wrong}");
        }
        let huge = Tensor::parse("tensor<18446744073709551615x4xf32>").unwrap();
        assert_eq!(huge.elements(&numbers), None);
    }

    #[test]
    fn lists_are_split_outside_of_brackets() {
        assert_eq!(
            list("a, b<c, d>, (e, f) -> g"),
            ["a", "b<c, d>", "(e, f) -> g"]
        );
        assert_eq!(list(" "), Vec::<&str>::new());
        assert_eq!(bracketed(" (a (b), c) : d"), Some(("a (b), c", " : d")));
        assert_eq!(bracketed("a (b)"), None);
        assert_eq!(bracketed("(a"), None);
        assert_eq!(bracketed(")"), None);
    }
}
