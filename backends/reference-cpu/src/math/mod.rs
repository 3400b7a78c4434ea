//! The formulas of a decoder, each a plain function over slices.

pub mod activation;
pub mod dot;
pub mod norm;
pub mod rope;
pub mod softmax;
