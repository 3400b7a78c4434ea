//! Dispatches and their results, read from the compiler's text after dispatches were formed.

use std::fmt;

/// What a function dispatches.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Dispatches in it.
    pub dispatches: usize,
    /// Dispatches that read packed words: three extents of 32 bits, rows first.
    pub packed: usize,
    /// The largest result that is not an argument updated in place: bytes and type. Extents that are
    /// known when it runs count as 1.
    pub largest: (usize, String),
}

impl Flow {
    /// Of a function in a module's text.
    pub fn of(text: &str, function: &str) -> Self {
        let start = format!("@{function}(");
        let body = text
            .split("util.func ")
            .find(|part| part.contains(&start))
            .unwrap_or_else(|| panic!("no function {function} in the compiler's text"));
        let mut flow = Self::default();
        for line in body.lines() {
            let Some((_, call)) = line.split_once("= flow.dispatch @") else {
                continue;
            };
            flow.dispatches += 1;
            let (inputs, results) = call.rsplit_once("->").unwrap_or((call, ""));
            flow.packed += usize::from(inputs.split("tensor<").any(packed));
            let mut parts = results.split("tensor<");
            let mut before = parts.next().unwrap_or_default();
            for part in parts {
                let ty = part.split('>').next().unwrap_or_default();
                // An argument that the dispatch updates.
                let tied = std::mem::replace(&mut before, part).ends_with(" as ");
                if tied {
                    continue;
                }
                flow.largest = flow.largest.max((bytes(ty), ty.to_owned()));
            }
        }
        flow
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, ty) = &self.largest;
        write!(f, "{} dispatches", self.dispatches)?;
        if self.packed > 0 {
            write!(f, " ({} read packed words)", self.packed)?;
        }
        write!(f, ", largest result {ty} ({bytes} bytes)")
    }
}

/// Whether `16x4x8xi32>...` is three extents of 32-bit words.
fn packed(part: &str) -> bool {
    let ty = part.split('>').next().unwrap_or_default();
    let mut parts = ty.split('x');
    parts.next_back() == Some("i32") && parts.filter(|p| p.parse::<usize>().is_ok()).count() == 3
}

/// Bytes of `16x64xf32`.
fn bytes(ty: &str) -> usize {
    let mut parts: Vec<&str> = ty.split('x').collect();
    let elem = parts.pop().unwrap_or_default();
    let bits: usize = elem
        .trim_start_matches(|c: char| c.is_ascii_alphabetic())
        .parse()
        .unwrap_or(32);
    let count: usize = parts.iter().map(|p| p.parse().unwrap_or(1)).product();
    count * bits.div_ceil(8)
}

#[test]
fn dispatches_and_their_largest_result_are_read() {
    let text = "util.func public @other(%a) {\n %0 = flow.dispatch @o(%a) : (tensor<9xf32>) -> tensor<9xf32>\n}\n\
        util.func public @step(%a) {\n %1 = flow.dispatch @d[%c](%a) : (tensor<8x4x2xi32>) -> tensor<8xf16>\n \
        %2:2 = flow.dispatch @e(%1, %a) : (tensor<8xf16>) -> (%a as tensor<?x64xf32>{%c}, tensor<?x5xi32>{%c})\n \
        %3 = flow.dispatch.tie_shape %a : tensor<99xf32>\n}\n";
    let flow = Flow::of(text, "step");
    assert_eq!((flow.dispatches, flow.packed), (2, 1));
    assert_eq!(flow.largest, (20, "?x5xi32".into()));
}
