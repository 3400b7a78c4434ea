//! GGUF files become model folders.
