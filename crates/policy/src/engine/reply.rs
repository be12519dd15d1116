//! A reply in progress, and how it extends its sequence.

use furrow_model::sample::{SampledToken, TokenRanking};
use furrow_rollout::PolicyVersion;

use crate::constrain::IllegalToken;
use crate::response::{PartialResponse, ResponseState, TokenColumns};
use crate::sequence::Sequence;

/// The reply of a step.
pub(super) struct Reply {
    response: PartialResponse,
    tokens_max: u32,
    has_sampled: bool,
}

impl Reply {
    /// A reply without a token. `tokens_max` is the most that it can get, appended ones included.
    pub(super) fn new(response: PartialResponse, tokens_max: u32) -> Self {
        Self { response, tokens_max, has_sampled: false }
    }

    /// Advances to where a token must be sampled: forced tokens join the chunk group, which then
    /// ends.
    pub(super) fn proceed(
        &mut self,
        sequence: &mut Sequence,
        chunk: u32,
        version: PolicyVersion,
    ) -> ResponseState {
        self.response.append_forced(version.0).iter().for_each(|id| sequence.push(*id));
        let state = self.response.state();
        if state == ResponseState::Sample {
            sequence.end_chunk_group(chunk);
        }
        state
    }

    /// Adds a sampled token. [`Reply::proceed`] continues from it.
    pub(super) fn take(
        &mut self,
        sequence: &mut Sequence,
        token: &SampledToken,
        ranking: Option<TokenRanking>,
        version: PolicyVersion,
    ) -> Result<(), IllegalToken> {
        sequence.push(token.id);
        self.has_sampled = true;
        self.response.rank(ranking);
        self.response.take(token, version.0)
    }

    /// Whether a token was sampled already.
    pub(super) fn has_sampled(&self) -> bool {
        self.has_sampled
    }

    /// Most tokens that the reply can still get.
    pub(super) fn tokens_left(&self) -> u32 {
        self.tokens_max.saturating_sub(self.response.columns().ids.len() as u32)
    }

    pub(super) fn response(&self) -> &PartialResponse {
        &self.response
    }

    pub(super) fn into_columns(self) -> TokenColumns {
        self.response.into_columns()
    }
}
