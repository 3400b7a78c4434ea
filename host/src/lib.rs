//! Halfhitch's host: checkpoints, tokenizer, chat, plugins, sampling, command line.
//!
//! The binary is a thin shell around this library. The host reads and distrusts every file, turns a
//! checkpoint into a [`ModelSpec`](halfhitch_seam::ModelSpec) and
//! [`Weights`](halfhitch_seam::Weights), negotiates a plan with a backend and drives its session. It
//! names no backend crate but the built-in reference.
//!
//! | module | what for |
//! | --- | --- |
//! | [`checkpoint`] | a model folder: configuration, safetensors, quantisation, names |
//! | [`import`] | GGUF files become folders |
//! | [`quantize`] | dense folders become MLX affine |
//! | [`text`] | tokenizer, streaming decoder, chat template |
//! | [`sampling`] | from logits to a token |
//! | [`engine`] | opening a model on a backend and generating |
//! | [`gate`] | a backend's logits against a trusted one's |
//! | [`conformance`] | any backend against the suite |
//! | [`mod@bench`] | how fast models run, and how near that is to what memory allows |
//! | [`isolate`] | backends in processes of their own |
//! | [`plugins`] | backends in dynamic libraries: discovery, trust, loading |
//! | [`files`] | files written where a user says |
//! | [`cli`] | the command line |

pub mod bench;
pub mod checkpoint;
pub mod cli;
pub mod conformance;
pub mod engine;
pub mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod gate;
pub mod import;
pub mod isolate;
pub mod plugins;
pub mod quantize;
pub mod sampling;
pub mod text;
