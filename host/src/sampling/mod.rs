//! From logits to a token.
//!
//! # Order of operations
//!
//! That of Hugging Face transformers (logits processors, then warpers, as `generate` builds them):
//!
//! 1. **repetition penalty**: the logit of each token seen so far, prompt and generated, counted
//!    once: divided by the penalty where positive, multiplied where negative;
//! 2. **greedy** where the temperature is 0: the highest logit, of equals the lowest id; end;
//! 3. **temperature**: logits are divided by it;
//! 4. **top-k**: the k highest remain, 0 means all;
//! 5. **top-p**: of the softmax of what remains, in descending order, a token remains as long as
//!    those before it sum up to less than p; the first always remains;
//! 6. **min-p**: a token remains if its probability is at least p times that of the most probable;
//! 7. **draw** from the softmax of what remains, walked in ascending id.
//!
//! Of equal logits, those with lower ids come first in 4 and 5, and exactly k remain.
//!
//! Logits of negative infinity mean impossible. NaN and positive infinity are errors, never a token.
//!
//! # Reproducible
//!
//! Numbers come from ChaCha8, its key the seed in little-endian bytes, then zeros; one is drawn for each token that is not greedy.
//! Arithmetic is f64 with an exponential that is the same on every platform, so the same logits and
//! seed give the same tokens everywhere.

mod params;
mod sampler;

pub use params::SamplingParams;
pub use sampler::Sampler;
