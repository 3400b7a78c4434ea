//! Structured operations over extents that are known only when the graph runs.
//!
//! StableHLO's own operations on dynamic shapes do not all lower; a `linalg.generic` does, on every
//! target, and its dimensions have names. Used where the live context is a dimension; everything
//! else is plain StableHLO.

use super::builder::{Builder, Index, Scalar, Value, float};
use super::tiling::Tiling;
use super::types::{Dim, Elem, TensorType};

/// The body of a structured operation: scalar arithmetic on one element of each operand.
pub struct Body {
    lines: Vec<String>,
    next: u32,
}

/// A scalar inside a body.
#[derive(Clone, Debug)]
pub struct Element(String);

impl Body {
    fn push(&mut self, text: &str) -> Element {
        let name = format!("%e{}", self.next);
        self.next += 1;
        self.lines.push(format!("{name} = {text}"));
        Element(name)
    }

    /// An operation by its name, operands and type (`arith.ori`, `i32`; `arith.truncf`, `f32 to bf16`).
    pub fn op(&mut self, name: &str, operands: &[&Element], ty: &str) -> Element {
        let names: Vec<&str> = operands.iter().map(|e| e.0.as_str()).collect();
        self.push(&format!("{name} {} : {ty}", names.join(", ")))
    }

    /// An i32 constant.
    pub fn int(&mut self, value: i32) -> Element {
        self.push(&format!("arith.constant {value} : i32"))
    }

    /// Position along a dimension.
    pub fn index(&mut self, dim: usize) -> Element {
        self.push(&format!("linalg.index {dim} : index"))
    }

    /// A constant position.
    pub fn constant_index(&mut self, value: usize) -> Element {
        self.push(&format!("arith.constant {value} : index"))
    }

    /// The element of a tensor at these positions, which the caller knows to be inside it.
    pub fn extract(&mut self, x: &Value, at: &[&Element]) -> Element {
        assert_eq!(at.len(), x.ty().rank());
        let at: Vec<&str> = at.iter().map(|e| e.0.as_str()).collect();
        self.push(&format!(
            "tensor.extract {x}[{}] : {}",
            at.join(", "),
            x.ty()
        ))
    }

    /// An f32 operation of two operands (`mulf`, `addf`, `maximumf`, ...).
    pub fn arith(&mut self, op: &str, x: &Element, y: &Element) -> Element {
        self.push(&format!("arith.{op} {}, {} : f32", x.0, y.0))
    }

    /// An f32 function (`exp`, `tanh`, `erf`, ...).
    pub fn math(&mut self, op: &str, x: &Element) -> Element {
        self.push(&format!("math.{op} {} : f32", x.0))
    }

    /// An f32 constant.
    pub fn constant(&mut self, value: f32) -> Element {
        self.push(&format!("arith.constant {} : f32", float(value)))
    }

    /// Widens an element to f32.
    pub fn widen(&mut self, x: &Element, from: Elem) -> Element {
        match from {
            Elem::F32 => x.clone(),
            Elem::F16 | Elem::BF16 => self.push(&format!("arith.extf {} : {from} to f32", x.0)),
            other => panic!("{other} is no float"),
        }
    }

    /// Position along a dimension, plus a scalar if given, as i32.
    pub fn position(&mut self, dim: usize, plus: Option<Scalar>) -> Element {
        let index = self.push(&format!("linalg.index {dim} : index"));
        let int = self.push(&format!("arith.index_cast {} : index to i32", index.0));
        match plus {
            None => int,
            Some(scalar) => self.push(&format!("arith.addi {}, {scalar} : i32", int.0)),
        }
    }

    /// `x - y` on i32.
    pub fn minus(&mut self, x: &Element, y: &Element) -> Element {
        self.push(&format!("arith.subi {}, {} : i32", x.0, y.0))
    }

    /// Whether `low <= x <= high`; without a bound on high, whether `low <= x`.
    pub fn within(&mut self, x: &Element, low: i64, high: Option<i64>) -> Element {
        let bound = self.push(&format!("arith.constant {low} : i32"));
        let above = self.push(&format!("arith.cmpi sge, {}, {} : i32", x.0, bound.0));
        let Some(high) = high else {
            return above;
        };
        let bound = self.push(&format!("arith.constant {high} : i32"));
        let below = self.push(&format!("arith.cmpi sle, {}, {} : i32", x.0, bound.0));
        self.push(&format!("arith.andi {}, {} : i1", above.0, below.0))
    }

    /// `condition ? x : y`.
    pub fn select(&mut self, condition: &Element, x: &Element, y: &Element) -> Element {
        self.push(&format!(
            "arith.select {}, {}, {} : f32",
            condition.0, x.0, y.0
        ))
    }
}

/// An operand and the loop dimensions it is indexed by.
pub struct Operand<'a> {
    /// The tensor.
    pub value: &'a Value,
    /// Loop dimension of each of its dimensions.
    pub dims: &'a [usize],
}

/// A structured operation but for its body; see [`Builder::generic`].
pub struct Structure<'a> {
    /// Tile sizes, where the target's compiler is told.
    pub tiling: Option<Tiling>,
    /// Extents of the loop dimensions.
    pub loops: &'a [Dim],
    /// What is read.
    pub operands: &'a [Operand<'a>],
    /// Loop dimensions that the result keeps, in its order.
    pub out: &'a [usize],
    /// Element type of the result.
    pub elem: Elem,
    /// What the result starts as where it is folded over a dimension.
    pub initial: f32,
}

impl Builder {
    /// A structured operation with an f32 result. `loops` are the extents of the loop dimensions,
    /// `out` those of them that the result keeps, in its order; the others are summed (or otherwise
    /// folded) over. The body sees one element of each operand and, last, the result so far, which
    /// starts as `initial`.
    pub fn generic(
        &mut self,
        loops: &[Dim],
        operands: &[Operand<'_>],
        out: &[usize],
        initial: f32,
        body: impl FnOnce(&mut Body, &[Element]) -> Element,
    ) -> Value {
        self.tiled(None, loops, operands, out, initial, body)
    }

    /// [`Self::generic`] with a tiling for the target's compiler.
    pub fn tiled(
        &mut self,
        tiling: Option<Tiling>,
        loops: &[Dim],
        operands: &[Operand<'_>],
        out: &[usize],
        initial: f32,
        body: impl FnOnce(&mut Body, &[Element]) -> Element,
    ) -> Value {
        let structure = Structure {
            tiling,
            loops,
            operands,
            out,
            elem: Elem::F32,
            initial,
        };
        self.structured(structure, body)
    }

    /// [`Self::generic`] in full, with a result of any element type, which the body gives.
    pub fn structured(
        &mut self,
        structure: Structure<'_>,
        body: impl FnOnce(&mut Body, &[Element]) -> Element,
    ) -> Value {
        let Structure {
            tiling,
            loops,
            operands,
            out,
            elem,
            initial,
        } = structure;
        for operand in operands {
            let dims: Vec<Dim> = operand.dims.iter().map(|&d| loops[d]).collect();
            assert_eq!(operand.value.dims(), dims, "operand of a generic");
        }
        let out_dims: Vec<Dim> = out.iter().map(|&d| loops[d]).collect();
        let ty = TensorType::new(elem, &out_dims);
        let reduces = (0..loops.len()).any(|d| !out.contains(&d));
        let target = self.init(&ty, reduces.then_some(initial));
        let loop_names: Vec<_> = (0..loops.len()).map(|d| format!("d{d}")).collect();
        let map = |dims: &[usize]| {
            let results: Vec<_> = dims.iter().map(|d| format!("d{d}")).collect();
            format!(
                "affine_map<({}) -> ({})>",
                loop_names.join(", "),
                results.join(", ")
            )
        };
        let maps: Vec<_> = operands
            .iter()
            .map(|o| map(o.dims))
            .chain([map(out)])
            .collect();
        let kinds: Vec<_> = (0..loops.len())
            .map(|d| {
                if out.contains(&d) {
                    "\"parallel\""
                } else {
                    "\"reduction\""
                }
            })
            .collect();
        let names: Vec<_> = operands.iter().map(|o| o.value.to_string()).collect();
        let types: Vec<_> = operands.iter().map(|o| o.value.ty().to_string()).collect();
        let block: Vec<_> = operands
            .iter()
            .enumerate()
            .map(|(i, o)| format!("%i{i}: {}", o.value.elem()))
            .chain([format!("%out: {elem}")])
            .collect();
        let mut inner = Body {
            lines: Vec::new(),
            next: 0,
        };
        let elements: Vec<_> = (0..operands.len())
            .map(|i| Element(format!("%i{i}")))
            .chain([Element("%out".into())])
            .collect();
        let result = body(&mut inner, &elements);
        let ins = if operands.is_empty() {
            String::new()
        } else {
            format!("ins({} : {}) ", names.join(", "), types.join(", "))
        };
        let tiling = tiling.map_or(String::new(), |t| t.to_string());
        let text = format!(
            "linalg.generic {{indexing_maps = [{}], iterator_types = [{}]}} {ins}outs({target} : {ty}) {tiling}{{\n    ^bb0({}):\n      {}\n      linalg.yield {} : {elem}\n    }} -> {ty}",
            maps.join(", "),
            kinds.join(", "),
            block.join(", "),
            inner.lines.join("\n      "),
            result.0,
        );
        self.emit(ty, format_args!("{text}"))
    }

    /// An element-wise function of f32 tensors of one static shape.
    pub fn map(
        &mut self,
        operands: &[&Value],
        body: impl FnOnce(&mut Body, &[Element]) -> Element,
    ) -> Value {
        let loops = operands[0].dims().to_vec();
        let all: Vec<usize> = (0..loops.len()).collect();
        let operands: Vec<_> = operands
            .iter()
            .map(|value| Operand { value, dims: &all })
            .collect();
        self.generic(&loops, &operands, &all, 0.0, body)
    }

    /// Zeros to accumulate onto.
    pub(super) fn zeros(&mut self, ty: &TensorType) -> Value {
        self.init(ty, Some(0.0))
    }

    fn init(&mut self, ty: &TensorType, fill: Option<f32>) -> Value {
        let sizes = self.dynamic_sizes(ty);
        let empty = self.emit(ty.clone(), format_args!("tensor.empty({sizes}) : {ty}"));
        let Some(value) = fill else {
            return empty;
        };
        let elem = ty.elem;
        let scalar = self.fresh(TensorType::fixed(elem, &[]));
        let literal = match elem.is_float() {
            true => float(value),
            false => (value as i32).to_string(),
        };
        self.line(format_args!("{scalar} = arith.constant {literal} : {elem}"));
        let text = format!("linalg.fill ins({scalar} : {elem}) outs({empty} : {ty}) -> {ty}");
        self.emit(ty.clone(), format_args!("{text}"))
    }

    /// Keeps what comes before and after in different kernels.
    pub fn barrier(&mut self, x: &Value) -> Value {
        let ty = x.ty().clone();
        let text = format!("util.optimization_barrier {x} : {ty}");
        self.emit(ty, format_args!("{text}"))
    }

    /// A kernel of what `inner` adds, and of nothing else.
    pub fn dispatch(&mut self, inner: impl FnOnce(&mut Self) -> Value) -> Value {
        let (inside, result) = self.nested(inner);
        let ty = result.ty().clone();
        let sizes = self.braced_sizes(&ty);
        let text = format!(
            "flow.dispatch.region -> ({ty}{sizes}) {{\n{inside}      flow.return {result} : {ty}\n    }}"
        );
        self.emit(ty, format_args!("{text}"))
    }

    /// The same bytes as a tensor of another shape or element type; extents may be dynamic.
    pub fn view(&mut self, x: &Value, elem: Elem, dims: &[Dim]) -> Value {
        let ty = TensorType::new(elem, dims);
        if ty == *x.ty() {
            return x.clone();
        }
        let op = match elem == x.elem() {
            true => "reshape",
            false => "bitcast",
        };
        let (from, to) = (self.braced_sizes(x.ty()), self.braced_sizes(&ty));
        let text = format!("flow.tensor.{op} {x} : {}{from} -> {ty}{to}", x.ty());
        self.emit(ty, format_args!("{text}"))
    }

    fn braced_sizes(&self, ty: &TensorType) -> String {
        let sizes = self.dynamic_sizes(ty);
        match sizes.is_empty() {
            true => sizes,
            false => format!("{{{sizes}}}"),
        }
    }

    /// `x` and then `y`, along the first dimension, whose extents are static.
    pub fn stack(&mut self, x: &Value, y: &Value) -> Value {
        let (Dim::Static(first), Dim::Static(second)) = (x.dims()[0], y.dims()[0]) else {
            panic!("{} before {}", x.ty(), y.ty());
        };
        assert!(x.dims()[1..] == y.dims()[1..] && x.elem() == y.elem());
        let mut dims = x.dims().to_vec();
        dims[0] = (first + second).into();
        let ty = TensorType::new(x.elem(), &dims);
        let text = format!(
            "tensor.concat dim(0) {x}, {y} : ({}, {}) -> {ty}",
            x.ty(),
            y.ty()
        );
        self.emit(ty, format_args!("{text}"))
    }

    /// An extent as an operand.
    fn size(&self, dim: Dim) -> String {
        match dim {
            Dim::Static(n) => n.to_string(),
            Dim::Dynamic(_) => self.dynamic_sizes(&TensorType::new(Elem::F32, &[dim])),
        }
    }

    /// `extent` rows of `x` from row `start` (0 where there is none).
    ///
    /// The caller of the function sees to it that the rows are there: nothing is clamped.
    pub fn rows(&mut self, x: &Value, start: Option<Index>, extent: Dim) -> Value {
        let mut dims = x.dims().to_vec();
        dims[0] = extent;
        let ty = TensorType::new(x.elem(), &dims);
        let first = self.size(extent);
        let rest: Vec<String> = dims[1..].iter().map(ToString::to_string).collect();
        let text = format!(
            "tensor.extract_slice {x}{} : {} to {ty}",
            window(start, &first, &rest),
            x.ty()
        );
        self.emit(ty, format_args!("{text}"))
    }

    /// The part of `x` that begins at `first` along dimension `dim`, at 0 along the others, and has these
    /// extents. Nothing is clamped, as in [`Self::rows`].
    pub fn part(&mut self, x: &Value, extents: &[Dim], dim: usize, first: usize) -> Value {
        let ty = TensorType::new(x.elem(), extents);
        let sizes: Vec<String> = extents
            .iter()
            .map(|&extent| match extent {
                Dim::Static(n) => n.to_string(),
                Dim::Dynamic(_) => self.dynamic_sizes(&TensorType::new(Elem::F32, &[extent])),
            })
            .collect();
        let starts: Vec<String> = (0..extents.len())
            .map(|d| if d == dim { first } else { 0 }.to_string())
            .collect();
        let ones = vec!["1"; extents.len()].join(", ");
        let text = format!(
            "tensor.extract_slice {x}[{}] [{}] [{ones}] : {} to {ty}",
            starts.join(", "),
            sizes.join(", "),
            x.ty()
        );
        self.emit(ty, format_args!("{text}"))
    }

    /// `into` with `rows` written from row `start` on, in place where `into` is an argument. Nothing
    /// is clamped, as in [`Self::rows`].
    pub fn write_rows(&mut self, rows: &Value, into: &Value, start: Index) -> Value {
        assert_eq!(rows.dims()[1..], into.dims()[1..]);
        assert_eq!(rows.elem(), into.elem());
        let first = self.size(rows.dims()[0]);
        let rest: Vec<String> = rows.dims()[1..].iter().map(ToString::to_string).collect();
        let ty = into.ty().clone();
        let text = format!(
            "tensor.insert_slice {rows} into {into}{} : {} into {ty}",
            window(Some(start), &first, &rest),
            rows.ty()
        );
        self.emit(ty, format_args!("{text}"))
    }

    /// The scalar as a tensor of one element and rank 0.
    pub fn tensor_of(&mut self, scalar: Scalar) -> Value {
        let ty = TensorType::fixed(Elem::I32, &[]);
        let text = format!("tensor.from_elements {scalar} : {ty}");
        self.emit(ty, format_args!("{text}"))
    }
}

/// Offsets, sizes and strides of a window that is whole but for its rows.
fn window(start: Option<Index>, first: &str, rest: &[String]) -> String {
    let start = start.map_or("0".to_string(), |i| i.to_string());
    let zeros = ", 0".repeat(rest.len());
    let ones = ", 1".repeat(rest.len());
    let rest: String = rest.iter().map(|n| format!(", {n}")).collect();
    format!("[{start}{zeros}] [{first}{rest}] [1{ones}]")
}
