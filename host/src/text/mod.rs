//! Text in and out of a model: tokenizer, streaming decoder, stop strings, chat template.
//!
//! All of it comes from files of the model folder, and none of those is trusted: sizes are bounded,
//! failures of the tokenizer are errors, templates run in a sandbox.
//!
//! | type | what for |
//! | --- | --- |
//! | [`Tokenizer`] | `tokenizer.json`: text to ids and back |
//! | [`DecodeStream`] | ids to text one token at a time, whole characters only |
//! | [`StopMatcher`] | ends a text at the first stop string, wherever tokens split it |
//! | [`ChatTemplate`] | a conversation to the text that the model was trained on |

mod bounds;
mod files;
mod quiet;
mod special;
mod stop;
mod stream;
mod template;
mod tokenizer;

pub use special::SpecialTokens;
pub use stop::StopMatcher;
pub use stream::DecodeStream;
pub use template::{ChatTemplate, Message, RenderOptions};
pub use tokenizer::Tokenizer;
