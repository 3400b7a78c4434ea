//! Ways to be wrong, and their names.

/// One way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// None: the wrapper alone.
    None,
    /// Tokens after a cut stand one position too early.
    PositionAfterTruncate,
    /// A cut changes the length that is told, not the cache.
    TruncateDoesNothing,
    /// In a batch, the first two sequences get each other's token.
    OtherSequence,
    /// A step returns what the step before it should have.
    StaleLogits,
    /// The last token of a prompt's first chunk is lost.
    DroppedToken,
    /// Where logits are not finite, token 0.
    TokenFromNan,
    /// Where logits are not finite, they are returned.
    NanLogits,
    /// Greedy is off by one.
    SecondBestToken,
    /// Logits in place of log-probabilities.
    RawLogprobs,
    /// Every position's logits are the first one's.
    FirstRowForAll,
    /// Logits come unasked.
    LogitsUnasked,
    /// A cancelled prompt leaves a token.
    CancelLeavesTokens,
    /// A prompt cannot be cancelled.
    IgnoresCancel,
    /// A prompt that is too long fills the context before it is refused.
    FillsContext,
    /// A new sequence gets a released one's id.
    ReusesIds,
    /// Tokens outside the vocabulary become the last one.
    ClampsTokens,
    /// A sequence twice in a step grows twice.
    AcceptsDuplicates,
    /// An empty prompt is nothing.
    AcceptsEmpty,
    /// Every refusal is the backend's own fault.
    WrongCode,
    /// Progress is not passed on.
    NoProgress,
    /// A precision that is not there is advertised.
    ClaimsHalf,
    /// A sampler that works is not advertised.
    DeniesSampler,
    /// Logits change a little from session to session.
    Drifts,
    /// A cut panics.
    Panics,
    /// Intermediate results that are advertised are refused.
    HidesTaps,
    /// Intermediate results are those of other tokens.
    TapsOtherTokens,
    /// Memory of a session's is never given back.
    Leaks,
    /// A long prompt holds on to memory, and where there is none the process ends.
    AbortsWithoutMemory,
    /// A session works on the thread alone that it was opened on.
    OneThread,
    /// A step's token lies where those of all sessions do.
    SharesState,
}

impl Fault {
    /// Every fault that can be asked for, by name.
    pub const NAMED: &[(&str, Self)] = &[
        ("position-after-truncate", Self::PositionAfterTruncate),
        ("truncate-does-nothing", Self::TruncateDoesNothing),
        ("other-sequence", Self::OtherSequence),
        ("stale-logits", Self::StaleLogits),
        ("dropped-token", Self::DroppedToken),
        ("token-from-nan", Self::TokenFromNan),
        ("nan-logits", Self::NanLogits),
        ("second-best-token", Self::SecondBestToken),
        ("raw-logprobs", Self::RawLogprobs),
        ("first-row-for-all", Self::FirstRowForAll),
        ("logits-unasked", Self::LogitsUnasked),
        ("cancel-leaves-tokens", Self::CancelLeavesTokens),
        ("ignores-cancel", Self::IgnoresCancel),
        ("fills-context", Self::FillsContext),
        ("reuses-ids", Self::ReusesIds),
        ("clamps-tokens", Self::ClampsTokens),
        ("accepts-duplicates", Self::AcceptsDuplicates),
        ("accepts-empty", Self::AcceptsEmpty),
        ("wrong-code", Self::WrongCode),
        ("no-progress", Self::NoProgress),
        ("claims-half", Self::ClaimsHalf),
        ("denies-sampler", Self::DeniesSampler),
        ("drifts", Self::Drifts),
        ("panics", Self::Panics),
        ("hides-taps", Self::HidesTaps),
        ("taps-other-tokens", Self::TapsOtherTokens),
        ("leaks", Self::Leaks),
        ("aborts-without-memory", Self::AbortsWithoutMemory),
        ("one-thread", Self::OneThread),
        ("shares-state", Self::SharesState),
    ];
}
