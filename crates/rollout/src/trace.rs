//! The policy's account of a step: tokens, log-probs, versions, costs. Opaque to the environment worker.

use sha2::{Digest, Sha256};

/// A monotone number naming a set of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyVersion(pub i32);

/// What kind of policy made a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// Demonstrations.
    Scripted,
    /// Untrained baseline.
    Random,
    /// A model of ours.
    Model,
    /// Any OpenAI-compatible endpoint.
    Openai,
}

/// Why a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// The stop token.
    Stop,
    /// The token limit.
    Length,
    /// A cap inside the grammar closed it.
    GrammarCap,
    /// The engine gave up.
    Abort,
}

/// Where the state a step was decoded from came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StateOrigin {
    /// It never left the device.
    Resident,
    /// Copied from a sibling's.
    Forked,
    /// Brought back from host memory.
    Parked,
    /// Prefilled again from traces.
    Rebuilt,
}

/// One image inside a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSpan {
    /// Step whose screenshot it is.
    pub step: u32,
    /// Index of its first placeholder in the prompt K_t ++ prompt_token_ids_t.
    pub token_start: u32,
    /// Number of placeholders.
    pub token_len: u32,
    /// Tiles across.
    pub tiles_x: u16,
    /// Tiles down.
    pub tiles_y: u16,
    /// SHA-256 of the encoded image.
    pub blob_sha256: [u8; 32],
    /// SHA-256 of the decoded RGB pixels.
    pub rgb_sha256: [u8; 32],
}

/// Token-level account. Lists that are there have one entry a response token.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenTrace {
    /// Tokens added to the prompt at this step.
    pub prompt_token_ids: Vec<u32>,
    /// Images of the prompt.
    pub image_spans: Vec<ImageSpan>,
    /// Tokens of the response, forced and appended ones included.
    pub response_token_ids: Vec<u32>,
    /// Whether the policy sampled the token.
    pub response_mask: Vec<bool>,
    /// Whether the grammar allowed just this token.
    pub forced: Vec<bool>,
    /// What the session keeps: `None` is prompt ++ response, an empty list is nothing.
    pub commit_token_ids: Option<Vec<u32>>,
    /// Length of the kept tokens before this step.
    pub prefix_len: u32,
    /// Hash of the kept tokens before this step.
    pub prefix_hash: [u8; 16],
    /// Hash of the whole prompt of this step.
    pub prompt_hash: [u8; 16],
    /// Why the response ended.
    pub finish_reason: FinishReason,
    /// log-softmax(logits / T) over the whole vocabulary; `None` inside for forced and appended tokens.
    pub logprobs: Option<Vec<Option<f32>>>,
    /// After grammar, top-k, top-p and min-p; 0 for forced tokens, `None` for appended ones.
    pub sampled_logprobs: Option<Vec<Option<f32>>>,
    /// How many ids were allowed; `None` inside means uncut.
    pub kept_count: Option<Vec<Option<u32>>>,
    /// The allowed ids of all tokens where at most 512 were allowed, one after another.
    pub kept_token_ids: Vec<u32>,
    /// Where each token's allowed ids begin; one entry more than tokens, empty when none are kept.
    pub kept_offsets: Vec<u32>,
    /// Entropy of the sampled distribution in nats.
    pub entropy: Option<Vec<Option<f32>>>,
    /// Version of the weights that made each token.
    pub policy_versions: Vec<i32>,
}

/// What the engine did for the step. Zero where a policy has no engine.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Engine {
    /// Policy worker that made the step.
    pub worker: String,
    /// State slot.
    pub slot: Option<u32>,
    /// Where the state came from.
    pub state_origin: Option<StateOrigin>,
    /// Mean number of sessions decoded together.
    pub batch_size_mean: f32,
    /// Tokens prefilled for this step.
    pub prefill_tokens: u32,
    /// Tokens taken from resident state.
    pub reused_tokens: u32,
    /// Decode iterations.
    pub decode_steps: u32,
    /// Waiting for a place in a batch.
    pub queue_micros: u64,
    /// From the observation read to the reply sent.
    pub service_micros: u64,
    /// Share of the device's time.
    pub gpu_micros: u64,
    /// What an endpoint was paid, US dollars, where its prices are known. Summed up in the trajectory's row.
    pub cost_usd: Option<f64>,
}

/// The policy's account of one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// What made the step.
    pub policy_kind: PolicyKind,
    /// Version of the weights, when the policy has weights.
    pub policy_version: Option<PolicyVersion>,
    /// Oldest version that wrote any state this step reads.
    pub state_version_min: Option<PolicyVersion>,
    /// Tokens, when the policy has tokens.
    pub tokens: Option<TokenTrace>,
    /// What the engine did.
    pub engine: Engine,
    /// Tokens of the response that were scored again by the prefill path. No column: a file of steps sums them up in its footer.
    pub scored_again: Vec<ScoredAgain>,
}

/// A token that was scored again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoredAgain {
    /// Index in the response.
    pub token: u32,
    /// Its log-prob by the prefill path, whole vocabulary.
    pub logprob: f32,
}

impl Trace {
    /// Recorded log-probs minus those of the prefill path, in nats, of the tokens that were scored again.
    pub fn prefill_gaps(&self) -> impl Iterator<Item = f64> {
        let logprobs = self.tokens.as_ref().and_then(|tokens| tokens.logprobs.as_ref());
        let gap = move |scored: &ScoredAgain| {
            let recorded = logprobs?.get(scored.token as usize).copied().flatten()?;
            Some(f64::from(recorded) - f64::from(scored.logprob))
        };
        self.scored_again.iter().filter_map(gap)
    }
}

/// First 16 bytes of SHA-256 over ids as u32 little-endian, each image run followed by its `rgb_sha256`.
///
/// `spans` are sorted by start and lie inside `ids`; the hash of the pixels follows the last placeholder of its run.
pub fn token_hash(ids: &[u32], spans: &[ImageSpan]) -> [u8; 16] {
    let mut hash = Sha256::new();
    let mut spans = spans.iter().peekable();
    for (index, id) in ids.iter().enumerate() {
        hash.update(id.to_le_bytes());
        if let Some(span) = spans.next_if(|span| (span.token_start + span.token_len) as usize == index + 1) {
            hash.update(span.rgb_sha256);
        }
    }
    let mut first = [0; 16];
    first.copy_from_slice(&hash.finalize()[..16]);
    first
}

macro_rules! words {
    ($type:ident { $($variant:ident = $word:literal),* $(,)? }) => {
        impl $type {
            /// All of them.
            pub const ALL: &'static [$type] = &[$($type::$variant),*];

            /// The word in columns and on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $($type::$variant => $word),* }
            }

            /// Reads the word back.
            pub fn parse(word: &str) -> Option<Self> {
                match word { $($word => Some($type::$variant),)* _ => None }
            }
        }
    };
}

words!(PolicyKind { Scripted = "scripted", Random = "random", Model = "model", Openai = "openai" });
words!(FinishReason { Stop = "stop", Length = "length", GrammarCap = "grammar_cap", Abort = "abort" });
words!(StateOrigin { Resident = "resident", Forked = "forked", Parked = "parked", Rebuilt = "rebuilt" });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_enter_the_hash_where_their_run_ends() {
        let span = |start, pixel| ImageSpan {
            step: 0,
            token_start: start,
            token_len: 2,
            tiles_x: 1,
            tiles_y: 1,
            blob_sha256: [0; 32],
            rgb_sha256: [pixel; 32],
        };
        let ids = [5, 9, 9, 6];
        let plain = token_hash(&ids, &[]);
        let seen = token_hash(&ids, &[span(1, 7)]);
        assert_ne!(plain, seen);
        assert_ne!(seen, token_hash(&ids, &[span(1, 8)]));
        assert_ne!(seen, token_hash(&ids, &[span(0, 7)]));
        let mut by_hand = Sha256::new();
        for id in [5u32, 9, 9] {
            by_hand.update(id.to_le_bytes());
        }
        by_hand.update([7; 32]);
        by_hand.update(6u32.to_le_bytes());
        assert_eq!(seen[..], by_hand.finalize()[..16]);
    }
}
