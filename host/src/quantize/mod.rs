//! Dense folders become MLX affine.
