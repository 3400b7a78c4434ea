//! A model folder, read and distrusted.
