//! A session's sequence together with the tokens it holds, so that a common prefix is kept.

use halfhitch_seam::{
    Control, DecodeStep, ErrorCode, OutputRequest, SeamError, SeamResult, SequenceId, Session,
    StepOutput, TokenId,
};

/// One sequence of a session and what is in its cache.
#[derive(Debug)]
pub struct CachedSequence {
    id: SequenceId,
    tokens: Vec<TokenId>,
}

impl CachedSequence {
    /// Makes an empty sequence.
    ///
    /// # Errors
    /// What [`Session::create_sequence`] says.
    pub fn create(session: &mut dyn Session) -> SeamResult<Self> {
        Ok(Self {
            id: session.create_sequence()?,
            tokens: Vec::new(),
        })
    }

    /// The sequence's id in its session.
    pub const fn id(&self) -> SequenceId {
        self.id
    }

    /// The tokens in the cache.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Makes the sequence hold exactly `prompt` and returns what follows its last token, and how
    /// many tokens had to be run: those after the prefix that was there already, but at least one.
    /// Where it fails or is cancelled, the sequence holds the common prefix.
    ///
    /// # Errors
    /// What [`Session::prefill`] and [`Session::truncate`] say.
    pub fn prefill(
        &mut self,
        session: &mut dyn Session,
        prompt: &[TokenId],
        output: OutputRequest,
        control: &Control<'_>,
    ) -> SeamResult<(StepOutput, usize)> {
        let common = self
            .tokens
            .iter()
            .zip(prompt)
            .take_while(|(a, b)| a == b)
            .count();
        let keep = common.min(prompt.len().saturating_sub(1));
        if keep < self.tokens.len() {
            session.truncate(self.id, keep)?;
            self.tokens.truncate(keep);
        }
        let rest = &prompt[keep..];
        let result = session.prefill(self.id, rest, output, control)?;
        self.tokens.extend_from_slice(rest);
        Ok((result, rest.len()))
    }

    /// Appends one token and returns what follows it.
    ///
    /// # Errors
    /// What [`Session::decode`] says; `Backend` where it gives no answer.
    pub fn step(
        &mut self,
        session: &mut dyn Session,
        token: TokenId,
        output: OutputRequest,
    ) -> SeamResult<StepOutput> {
        let step = DecodeStep {
            sequence: self.id,
            token,
        };
        let result = session.decode(&[step], output)?.into_iter().next();
        self.tokens.push(token);
        result.ok_or_else(|| {
            SeamError::new(
                ErrorCode::Backend,
                "the backend returned nothing for a step",
            )
        })
    }
}
