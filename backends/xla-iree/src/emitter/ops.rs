//! The operations of StableHLO that the emitter uses, with their types checked.

use super::builder::{Builder, Value};
use super::types::{Elem, TensorType};

/// A reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// Sum, from 0.
    Add,
    /// Largest, from minus infinity.
    Max,
    /// Smallest i32.
    Min,
}

/// A contraction of two tensors over dimensions named in pairs; see [`Builder::dot`].
#[derive(Clone, Copy, Debug)]
pub struct DotDims<'a> {
    /// Dimensions that both have and that are kept, first in the result.
    pub batch: (&'a [usize], &'a [usize]),
    /// Dimensions that are summed over.
    pub contract: (&'a [usize], &'a [usize]),
}

impl Builder {
    /// An operation of one operand that keeps its type.
    pub fn unary(&mut self, op: &str, x: &Value) -> Value {
        self.emit(x.ty.clone(), format_args!("stablehlo.{op} {x} : {}", x.ty))
    }

    /// An operation of two operands of one type.
    pub fn binary(&mut self, op: &str, x: &Value, y: &Value) -> Value {
        assert_eq!(x.ty, y.ty, "{op}");
        self.emit(
            x.ty.clone(),
            format_args!("stablehlo.{op} {x}, {y} : {}", x.ty),
        )
    }

    /// `x + y`.
    pub fn add(&mut self, x: &Value, y: &Value) -> Value {
        self.binary("add", x, y)
    }

    /// `x * y`.
    pub fn mul(&mut self, x: &Value, y: &Value) -> Value {
        self.binary("multiply", x, y)
    }

    /// `x * factor`; `x` itself where the factor is 1.
    pub fn scale(&mut self, x: &Value, factor: f32) -> Value {
        if factor == 1.0 {
            return x.clone();
        }
        let factor = self.splat(factor, x.elem(), &x.sizes());
        self.mul(x, &factor)
    }

    /// Converts elements; `x` itself where it has the type.
    ///
    /// # Panics
    /// From packed integers to anything but floats: the compiler sign-extends nibbles there.
    pub fn convert(&mut self, x: &Value, elem: Elem) -> Value {
        if x.elem() == elem {
            return x.clone();
        }
        let packed = matches!(x.elem(), Elem::U4 | Elem::U8);
        assert!(!packed || elem.is_float(), "{} to {elem}", x.elem());
        let ty = TensorType::new(elem, x.dims());
        let text = format!("stablehlo.convert {x} : ({}) -> {ty}", x.ty);
        self.emit(ty, format_args!("{text}"))
    }

    /// The same elements in another shape.
    pub fn reshape(&mut self, x: &Value, dims: &[usize]) -> Value {
        let from = x.sizes();
        assert_eq!(
            from.iter().product::<usize>(),
            dims.iter().product::<usize>(),
            "reshape of {} to {dims:?}",
            x.ty
        );
        if from == dims {
            return x.clone();
        }
        let ty = TensorType::fixed(x.elem(), dims);
        let text = format!("stablehlo.reshape {x} : ({}) -> {ty}", x.ty);
        self.emit(ty, format_args!("{text}"))
    }

    /// Repeats `x` over new dimensions: dimension `i` of `x` becomes dimension `map[i]`.
    pub fn broadcast(&mut self, x: &Value, map: &[usize], dims: &[usize]) -> Value {
        let from = x.sizes();
        assert_eq!(from.len(), map.len(), "broadcast of {}", x.ty);
        assert!(map.is_sorted() && map.iter().all(|&d| d < dims.len()));
        for (&size, &d) in from.iter().zip(map) {
            assert_eq!(size, dims[d], "broadcast of {} to {dims:?}", x.ty);
        }
        if from == dims {
            return x.clone();
        }
        let ty = TensorType::fixed(x.elem(), dims);
        let text = format!(
            "stablehlo.broadcast_in_dim {x}, dims = {map:?} : ({}) -> {ty}",
            x.ty
        );
        self.emit(ty, format_args!("{text}"))
    }

    /// Permutes dimensions: dimension `i` of the result is `order[i]` of `x`.
    pub fn transpose(&mut self, x: &Value, order: &[usize]) -> Value {
        let from = x.sizes();
        let mut seen = order.to_vec();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..from.len()), "order {order:?}");
        let dims: Vec<_> = order.iter().map(|&d| from[d]).collect();
        let ty = TensorType::fixed(x.elem(), &dims);
        let text = format!(
            "stablehlo.transpose {x}, dims = {order:?} : ({}) -> {ty}",
            x.ty
        );
        self.emit(ty, format_args!("{text}"))
    }

    /// Mirrors one dimension.
    pub fn reverse(&mut self, x: &Value, dim: usize) -> Value {
        assert!(dim < x.ty.rank());
        self.emit(
            x.ty.clone(),
            format_args!("stablehlo.reverse {x}, dims = [{dim}] : {}", x.ty),
        )
    }

    /// `start..end` of one dimension.
    pub fn slice(&mut self, x: &Value, dim: usize, start: usize, end: usize) -> Value {
        let from = x.sizes();
        assert!(start < end && end <= from[dim], "slice of {}", x.ty);
        if end - start == from[dim] {
            return x.clone();
        }
        let mut dims = from.clone();
        dims[dim] = end - start;
        let ranges: Vec<_> = from
            .iter()
            .enumerate()
            .map(|(d, &n)| {
                if d == dim {
                    format!("{start}:{end}")
                } else {
                    format!("0:{n}")
                }
            })
            .collect();
        let ty = TensorType::fixed(x.elem(), &dims);
        let text = format!(
            "stablehlo.slice {x} [{}] : ({}) -> {ty}",
            ranges.join(", "),
            x.ty
        );
        self.emit(ty, format_args!("{text}"))
    }

    /// Joins tensors along one dimension.
    pub fn concatenate(&mut self, parts: &[Value], dim: usize) -> Value {
        if let [one] = parts {
            return one.clone();
        }
        let mut dims = parts[0].sizes();
        dims[dim] = 0;
        for part in parts {
            let sizes = part.sizes();
            assert_eq!(part.elem(), parts[0].elem());
            for (d, &n) in sizes.iter().enumerate() {
                assert!(d == dim || n == dims[d], "concatenation with {}", part.ty);
            }
            dims[dim] += sizes[dim];
        }
        let ty = TensorType::fixed(parts[0].elem(), &dims);
        let names: Vec<_> = parts.iter().map(ToString::to_string).collect();
        let types: Vec<_> = parts.iter().map(|p| p.ty.to_string()).collect();
        let text = format!(
            "stablehlo.concatenate {}, dim = {dim} : ({}) -> {ty}",
            names.join(", "),
            types.join(", ")
        );
        self.emit(ty, format_args!("{text}"))
    }

    /// Appends `count` elements of `value` to the last dimension.
    pub fn pad_last(&mut self, x: &Value, value: f32, count: usize) -> Value {
        if count == 0 {
            return x.clone();
        }
        let mut dims = x.sizes();
        let rank = dims.len();
        dims[rank - 1] += count;
        let fill = self.splat(value, x.elem(), &[]);
        let zeros = vec![0; rank];
        let mut high = zeros.clone();
        high[rank - 1] = count;
        let ty = TensorType::fixed(x.elem(), &dims);
        let text = format!(
            "stablehlo.pad {x}, {fill}, low = {zeros:?}, high = {high:?}, interior = {zeros:?} : ({}, {}) -> {ty}",
            x.ty, fill.ty
        );
        self.emit(ty, format_args!("{text}"))
    }

    /// Reduces over dimensions.
    pub fn reduce(&mut self, kind: Reduce, x: &Value, over: &[usize]) -> Value {
        let (op, initial) = match kind {
            Reduce::Add if x.elem().is_float() => ("add", "0.000000e+00"),
            Reduce::Add => ("add", "0"),
            Reduce::Max => {
                assert_eq!(x.elem(), Elem::F32);
                ("maximum", "0xFF800000")
            }
            Reduce::Min => {
                assert_eq!(x.elem(), Elem::I32);
                ("minimum", "2147483647")
            }
        };
        let initial = self.constant(initial, TensorType::fixed(x.elem(), &[]));
        let from = x.sizes();
        let dims: Vec<_> = (0..from.len())
            .filter(|d| !over.contains(d))
            .map(|d| from[d])
            .collect();
        let ty = TensorType::fixed(x.elem(), &dims);
        let text = format!(
            "stablehlo.reduce({x} init: {initial}) applies stablehlo.{op} across dimensions = {over:?} : ({}, {}) -> {ty}",
            x.ty, initial.ty
        );
        self.emit(ty, format_args!("{text}"))
    }

    /// Sums products over the contracted dimensions, accumulating in f32. The result has the batch
    /// dimensions, then the left operand's others, then the right one's.
    pub fn dot(&mut self, x: &Value, y: &Value, dims: DotDims<'_>) -> Value {
        assert_eq!(x.elem(), y.elem(), "dot");
        let (sx, sy) = (x.sizes(), y.sizes());
        let mut out = Vec::new();
        for (&i, &j) in dims.batch.0.iter().zip(dims.batch.1) {
            assert_eq!(sx[i], sy[j], "batch of {} and {}", x.ty, y.ty);
            out.push(sx[i]);
        }
        for (&i, &j) in dims.contract.0.iter().zip(dims.contract.1) {
            assert_eq!(sx[i], sy[j], "contraction of {} and {}", x.ty, y.ty);
        }
        for (sizes, batch, contract) in [
            (&sx, dims.batch.0, dims.contract.0),
            (&sy, dims.batch.1, dims.contract.1),
        ] {
            out.extend(
                (0..sizes.len())
                    .filter(|d| !batch.contains(d) && !contract.contains(d))
                    .map(|d| sizes[d]),
            );
        }
        let ty = TensorType::fixed(Elem::F32, &out);
        let batching = if dims.batch.0.is_empty() {
            String::new()
        } else {
            format!("batching_dims = {:?} x {:?}, ", dims.batch.0, dims.batch.1)
        };
        let text = format!(
            "stablehlo.dot_general {x}, {y}, {batching}contracting_dims = {:?} x {:?} : ({}, {}) -> {ty}",
            dims.contract.0, dims.contract.1, x.ty, y.ty
        );
        self.emit(ty, format_args!("{text}"))
    }
}
