//! Opening a model on a backend, and generating.
