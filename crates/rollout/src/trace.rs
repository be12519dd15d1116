//! The policy's account of a step: tokens, log-probs, versions, costs. The environment worker
//! passes it on unread.

use sha2::{Digest, Sha256};

/// A monotonically increasing number that names a set of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyVersion(pub i32);

/// Kind of policy that made a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// Writes the actions of the tasks' own demonstrations.
    Scripted,
    /// Samples actions from a fixed distribution, as a baseline.
    Random,
    /// A model in Furrow's own engine.
    Model,
    /// Any endpoint compatible with OpenAI's API.
    Openai,
}

/// Why a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// The model sampled the stop token.
    Stop,
    /// The response reached the token limit.
    Length,
    /// A length limit inside the grammar closed the response.
    GrammarCap,
    /// The engine aborted the response.
    Abort,
}

/// Origin of the state from which a step was decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StateOrigin {
    /// The state stayed on the device.
    Resident,
    /// Copied from the state of another session of the group.
    Forked,
    /// Restored from host memory.
    Offloaded,
    /// Prefilled again from recorded traces.
    Rebuilt,
}

/// One image inside a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSpan {
    /// Step that took the screenshot.
    pub step: u32,
    /// Index of its first placeholder in the prompt K_t ++ prompt_token_ids_t.
    pub token_start: u32,
    /// Number of placeholder tokens.
    pub token_len: u32,
    /// Number of tiles across.
    pub tiles_x: u16,
    /// Number of tiles down.
    pub tiles_y: u16,
    /// SHA-256 of the encoded image.
    pub blob_sha256: [u8; 32],
    /// SHA-256 of the decoded RGB pixels.
    pub rgb_sha256: [u8; 32],
}

/// Token-level account. Lists that are present have one entry per response token.
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
    /// Whether the grammar allowed only this token.
    pub forced: Vec<bool>,
    /// Tokens that the session keeps: `None` is prompt ++ response, an empty list is nothing.
    pub commit_token_ids: Option<Vec<u32>>,
    /// Length of the kept tokens before this step.
    pub prefix_len: u32,
    /// Hash of the kept tokens before this step.
    pub prefix_hash: [u8; 16],
    /// Hash of the whole prompt of this step.
    pub prompt_hash: [u8; 16],
    /// Why the response ended.
    pub finish_reason: FinishReason,
    /// log-softmax(logits / T) over the whole vocabulary; an entry is `None` for forced and
    /// appended tokens.
    pub logprobs: Option<Vec<Option<f32>>>,
    /// The same after grammar, top-k, top-p and min-p; 0 for forced tokens, `None` for appended
    /// ones.
    pub sampled_logprobs: Option<Vec<Option<f32>>>,
    /// Number of allowed ids; an entry of `None` means that nothing was cut.
    pub kept_count: Option<Vec<Option<u32>>>,
    /// The allowed ids of all tokens with at most 512 of them, concatenated.
    pub kept_token_ids: Vec<u32>,
    /// Offset of each token's allowed ids in `kept_token_ids`, with one entry more than tokens;
    /// empty if none are kept.
    pub kept_offsets: Vec<u32>,
    /// Entropy of the sampled distribution in nats.
    pub entropy: Option<Vec<Option<f32>>>,
    /// Version of the weights that produced each token.
    pub policy_versions: Vec<i32>,
}

/// The engine's work for the step; zero for a policy without an engine.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EngineStats {
    /// Policy worker that made the step.
    pub worker: String,
    /// State slot of the session.
    pub slot: Option<u32>,
    /// Origin of the state.
    pub state_origin: Option<StateOrigin>,
    /// Mean number of sessions decoded together.
    pub batch_size_mean: f32,
    /// Tokens prefilled for this step.
    pub prefill_tokens: u32,
    /// Tokens taken from resident state.
    pub reused_tokens: u32,
    /// Number of decode iterations.
    pub decode_steps: u32,
    /// Time spent waiting to enter a batch.
    pub queue_micros: u64,
    /// Time from reading the observation to sending the reply.
    pub service_micros: u64,
    /// The step's share of the device's time.
    pub gpu_micros: u64,
    /// Price of the endpoint's call in US dollars, if its prices are known. The trajectory's row
    /// contains the sum.
    pub cost_usd: Option<f64>,
}

/// The policy's account of one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// Kind of policy that made the step.
    pub policy_kind: PolicyKind,
    /// Version of the weights, if the policy has weights.
    pub policy_version: Option<PolicyVersion>,
    /// Oldest version that wrote any state this step reads.
    pub state_version_min: Option<PolicyVersion>,
    /// Token-level account, if the policy has tokens.
    pub tokens: Option<TokenTrace>,
    /// The engine's work for the step.
    pub engine: EngineStats,
    /// Response tokens that the drift audit computed again by the prefill path. Not a column: the
    /// footer of a file of steps contains their sums.
    pub rescored: Vec<RescoredToken>,
}

/// A response token that the drift audit computed again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RescoredToken {
    /// Index of the token in the response.
    pub token: u32,
    /// Its log-prob by the prefill path over the whole vocabulary.
    pub logprob: f32,
}

impl Trace {
    /// Recorded log-probs minus those of the prefill path, in nats, for the tokens that the drift
    /// audit computed again.
    pub fn prefill_gaps(&self) -> impl Iterator<Item = f64> {
        let logprobs = self.tokens.as_ref().and_then(|tokens| tokens.logprobs.as_ref());
        let gap = move |scored: &RescoredToken| {
            let recorded = logprobs?.get(scored.token as usize).copied().flatten()?;
            Some(f64::from(recorded) - f64::from(scored.logprob))
        };
        self.rescored.iter().filter_map(gap)
    }
}

/// First 16 bytes of SHA-256 over ids as u32 little-endian, each image run followed by its
/// `rgb_sha256`.
///
/// `spans` are sorted by start and lie inside `ids`; the hash of the pixels follows the last
/// placeholder of its run.
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

macro_rules! string_enum {
    ($type:ident { $($variant:ident = $text:literal),* $(,)? }) => {
        impl $type {
            /// Every value, in the order of declaration.
            pub const ALL: &'static [$type] = &[$($type::$variant),*];

            /// The value's name in columns and on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $($type::$variant => $text),* }
            }

            /// Parses what `as_str` returns.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some($type::$variant),)* _ => None }
            }
        }
    };
}

string_enum!(PolicyKind { Scripted = "scripted", Random = "random", Model = "model", Openai = "openai" });
string_enum!(FinishReason { Stop = "stop", Length = "length", GrammarCap = "grammar_cap", Abort = "abort" });
string_enum!(StateOrigin { Resident = "resident", Forked = "forked", Offloaded = "parked", Rebuilt = "rebuilt" });

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
        let hash = token_hash(&ids, &[span(1, 7)]);
        assert_ne!(plain, hash);
        assert_ne!(hash, token_hash(&ids, &[span(1, 8)]));
        assert_ne!(hash, token_hash(&ids, &[span(0, 7)]));
        let mut by_hand = Sha256::new();
        for id in [5u32, 9, 9] {
            by_hand.update(id.to_le_bytes());
        }
        by_hand.update([7; 32]);
        by_hand.update(6u32.to_le_bytes());
        assert_eq!(hash[..], by_hand.finalize()[..16]);
    }
}
