//! A typed builder of StableHLO functions.
//!
//! Every value carries its element type and shape, and every operation checks its operands' before
//! it writes a line, so that a wrong graph fails in a Rust test and not in the compiler. A failed
//! check is a mistake of the emitter: it panics, and no input reaches it (specs and plans are
//! validated before a graph is built).
//!
//! Text is deterministic: values are numbered in the order of their making, constants are shared.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::types::{Dim, Elem, TensorType};

/// A tensor in a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    name: String,
    pub(super) ty: TensorType,
}

impl Value {
    /// Its type.
    pub const fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Its element type.
    pub const fn elem(&self) -> Elem {
        self.ty.elem
    }

    /// Its extents.
    pub fn dims(&self) -> &[Dim] {
        &self.ty.dims
    }

    /// Its extents, all static.
    pub fn sizes(&self) -> Vec<usize> {
        self.ty.sizes()
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// An i32 that the host passes by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scalar(u32);

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// A size or offset that is known when the graph runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index(u32);

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// Builds one function.
pub struct Builder {
    name: String,
    arguments: Vec<String>,
    body: String,
    section: String,
    next: u32,
    next_symbol: u32,
    extents: BTreeMap<u32, Index>,
    constants: BTreeMap<String, Value>,
}

impl Builder {
    /// Starts a function.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            arguments: Vec::new(),
            body: String::new(),
            section: String::new(),
            next: 0,
            next_symbol: 0,
            extents: BTreeMap::new(),
            constants: BTreeMap::new(),
        }
    }

    /// Adds a tensor argument.
    pub fn argument(&mut self, ty: TensorType) -> Value {
        let value = self.fresh(ty);
        self.arguments.push(format!("{value}: {}", value.ty));
        value
    }

    /// Adds an i32 argument that is passed by value.
    pub fn scalar_argument(&mut self) -> Scalar {
        let scalar = Scalar(self.fresh_id());
        self.arguments.push(format!("{scalar}: i32"));
        scalar
    }

    /// A dynamic extent of arguments, equal to no other.
    pub fn symbol(&mut self) -> Dim {
        self.next_symbol += 1;
        Dim::Dynamic(self.next_symbol - 1)
    }

    /// A dynamic extent with this value.
    pub fn extent(&mut self, size: Index) -> Dim {
        let dim = self.symbol();
        if let Dim::Dynamic(symbol) = dim {
            self.extents.insert(symbol, size);
        }
        dim
    }

    /// The scalar as an index.
    pub fn index(&mut self, scalar: Scalar) -> Index {
        let index = Index(self.fresh_id());
        self.line(format_args!(
            "{index} = arith.index_cast {scalar} : i32 to index"
        ));
        index
    }

    /// `index + n`.
    pub fn index_add(&mut self, index: Index, n: usize) -> Index {
        let (constant, sum) = (Index(self.fresh_id()), Index(self.fresh_id()));
        self.line(format_args!("{constant} = arith.constant {n} : index"));
        self.line(format_args!(
            "{sum} = arith.addi {index}, {constant} : index"
        ));
        sum
    }

    /// `x + y`.
    pub fn index_sum(&mut self, x: Index, y: Index) -> Index {
        let sum = Index(self.fresh_id());
        self.line(format_args!("{sum} = arith.addi {x}, {y} : index"));
        sum
    }

    /// `index * n`.
    pub fn index_mul(&mut self, index: Index, n: usize) -> Index {
        self.index_by("muli", index, n)
    }

    /// `index / n`, rounded up.
    pub fn index_div_up(&mut self, index: Index, n: usize) -> Index {
        self.index_by("ceildivui", index, n)
    }

    fn index_by(&mut self, op: &str, index: Index, n: usize) -> Index {
        let (constant, result) = (Index(self.fresh_id()), Index(self.fresh_id()));
        self.line(format_args!("{constant} = arith.constant {n} : index"));
        self.line(format_args!(
            "{result} = arith.{op} {index}, {constant} : index"
        ));
        result
    }

    /// What `inner` adds, as text by itself, with its result. Constants that it makes are known to it
    /// alone.
    pub(super) fn nested(&mut self, inner: impl FnOnce(&mut Self) -> Value) -> (String, Value) {
        let outside = std::mem::take(&mut self.body);
        let constants = self.constants.clone();
        let result = inner(self);
        self.constants = constants;
        (std::mem::replace(&mut self.body, outside), result)
    }

    /// A constant of one value.
    pub fn splat(&mut self, value: f32, elem: Elem, dims: &[usize]) -> Value {
        assert!(elem.is_float(), "a {elem} splat of a float");
        self.constant(&float(value), TensorType::fixed(elem, dims))
    }

    /// An integer constant of one value.
    pub fn splat_int(&mut self, value: i64, elem: Elem, dims: &[usize]) -> Value {
        assert!(!elem.is_float(), "a {elem} splat of an integer");
        self.constant(&value.to_string(), TensorType::fixed(elem, dims))
    }

    /// Integers along one dimension.
    pub fn constant_ints(&mut self, values: &[i64], elem: Elem) -> Value {
        let list: Vec<_> = values.iter().map(ToString::to_string).collect();
        let ty = TensorType::fixed(elem, &[values.len()]);
        self.constant(&format!("[{}]", list.join(", ")), ty)
    }

    /// Floats along one dimension.
    pub fn constant_floats(&mut self, values: &[f32]) -> Value {
        let list: Vec<_> = values.iter().map(|&v| float(v)).collect();
        let ty = TensorType::fixed(Elem::F32, &[values.len()]);
        self.constant(&format!("[{}]", list.join(", ")), ty)
    }

    pub(super) fn constant(&mut self, literal: &str, ty: TensorType) -> Value {
        let key = format!("dense<{literal}> : {ty}");
        if let Some(value) = self.constants.get(&key) {
            return value.clone();
        }
        let value = self.emit(ty, format_args!("stablehlo.constant {key}"));
        self.constants.insert(key, value.clone());
        value
    }

    /// `0, 1, 2, ...` along a dimension.
    pub fn iota(&mut self, elem: Elem, dims: &[usize], dim: usize) -> Value {
        assert!(dim < dims.len());
        let ty = TensorType::fixed(elem, dims);
        let text = format!("stablehlo.iota dim = {dim} : {ty}");
        self.emit(ty, format_args!("{text}"))
    }

    /// A fresh value defined by the text of an operation of this type.
    pub(super) fn emit(&mut self, ty: TensorType, text: fmt::Arguments<'_>) -> Value {
        let value = self.fresh(ty);
        self.line(format_args!("{value} = {text}"));
        value
    }

    /// Says, as a comment, to which part of the model what follows belongs. Whoever reads the graph, or
    /// counts what was made of it, tells parts by that.
    pub fn section(&mut self, name: &str) {
        if self.section != name {
            name.clone_into(&mut self.section);
            self.line(format_args!("// {name}"));
        }
    }

    /// [`Self::section`] in a layer.
    pub fn layer_section(&mut self, layer: usize, part: &str) {
        self.section(&format!("layer {layer}: {part}"));
    }

    pub(super) fn line(&mut self, text: fmt::Arguments<'_>) {
        writeln!(self.body, "    {text}").expect("a String takes any text");
    }

    pub(super) fn fresh(&mut self, ty: TensorType) -> Value {
        Value {
            name: format!("%{}", self.fresh_id()),
            ty,
        }
    }

    /// Values of an operation with two results; `text` is what follows the `=`.
    pub(super) fn emit_pair(
        &mut self,
        types: [TensorType; 2],
        text: fmt::Arguments<'_>,
    ) -> (Value, Value) {
        let mut values = self.emit_all(types.to_vec(), text).into_iter();
        match (values.next(), values.next()) {
            (Some(first), Some(second)) => (first, second),
            _ => unreachable!("two types make two values"),
        }
    }

    /// Values of an operation with these results; `text` is what follows the `=`.
    pub(super) fn emit_all(
        &mut self,
        types: Vec<TensorType>,
        text: fmt::Arguments<'_>,
    ) -> Vec<Value> {
        if let [ty] = &types[..] {
            return vec![self.emit(ty.clone(), text)];
        }
        let name = format!("%{}", self.fresh_id());
        self.line(format_args!("{name}:{} = {text}", types.len()));
        types
            .into_iter()
            .enumerate()
            .map(|(i, ty)| Value {
                name: format!("{name}#{i}"),
                ty,
            })
            .collect()
    }

    /// [`Self::emit_all`] as a kernel of its own from the start, where it has several results: their
    /// readers would otherwise be fused into it, which its tiling does not survive.
    pub(super) fn emit_alone(
        &mut self,
        types: Vec<TensorType>,
        text: fmt::Arguments<'_>,
    ) -> Vec<Value> {
        if types.len() == 1 {
            return self.emit_all(types, text);
        }
        let name = format!("%{}", self.fresh_id());
        let list: Vec<_> = types.iter().map(ToString::to_string).collect();
        let names: Vec<_> = (0..types.len()).map(|i| format!("{name}#{i}")).collect();
        let (count, list, names) = (types.len(), list.join(", "), names.join(", "));
        self.emit_all(
            types,
            format_args!(
                "flow.dispatch.region -> ({list}) {{\n      {name}:{count} = {text}\n      flow.return {names} : {list}\n    }}"
            ),
        )
    }

    /// The run-time sizes of a type's dynamic extents, in order, as operands.
    ///
    /// # Panics
    /// Where an extent was made by [`Self::symbol`] and has no known size.
    pub(super) fn dynamic_sizes(&self, ty: &TensorType) -> String {
        let sizes: Vec<_> = ty
            .dims
            .iter()
            .filter_map(|d| match d {
                Dim::Dynamic(symbol) => Some(self.extents[symbol].to_string()),
                Dim::Static(_) => None,
            })
            .collect();
        sizes.join(", ")
    }

    fn fresh_id(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    /// Ends the function with its results; the text of the whole.
    pub fn finish(self, results: &[Value]) -> String {
        let names: Vec<_> = results.iter().map(ToString::to_string).collect();
        let types: Vec<_> = results.iter().map(|r| r.ty.to_string()).collect();
        let (names, types) = (names.join(", "), types.join(", "));
        format!(
            "  func.func public @{}({}) -> ({types}) {{\n{}    return {names} : {types}\n  }}\n",
            self.name,
            self.arguments.join(", "),
            self.body
        )
    }
}

/// A float as an MLIR literal that reads back to the same bits.
pub(super) fn float(value: f32) -> String {
    if value.is_finite() {
        format!("{value:.9e}")
    } else {
        format!("0x{:08X}", value.to_bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_shape_is_a_panic_with_the_types() {
        let failed = std::panic::catch_unwind(|| {
            let mut b = Builder::new("f");
            let x = b.argument(TensorType::fixed(Elem::F32, &[2, 3]));
            let y = b.argument(TensorType::fixed(Elem::F32, &[3, 2]));
            b.add(&x, &y)
        });
        assert!(failed.is_err());
    }

    #[test]
    fn nibbles_never_widen_to_integers() {
        let failed = std::panic::catch_unwind(|| {
            let mut b = Builder::new("f");
            let x = b.argument(TensorType::fixed(Elem::U4, &[8]));
            b.convert(&x, Elem::I32)
        });
        assert!(failed.is_err());
    }

    #[test]
    fn constants_are_shared_and_exact() {
        let mut b = Builder::new("f");
        let x = b.splat(0.1, Elem::F32, &[2]);
        assert_eq!(x, b.splat(0.1, Elem::F32, &[2]));
        assert_ne!(x, b.splat(0.1, Elem::F32, &[3]));
        for v in [0.1f32, f32::MIN_POSITIVE, 1.0e30, -3.5] {
            assert_eq!(float(v).parse::<f32>().unwrap(), v);
        }
        assert_eq!(float(f32::NEG_INFINITY), "0xFF800000");
    }
}
