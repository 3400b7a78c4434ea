//! Empty: this package exists to pin the IREE runtime source. See `Cargo.toml`.
