//! The trace of a step: the tokens that were shown and sampled, as the records store them.

use furrow_rollout::TokenTrace;

use crate::context::StepPrompt;
use crate::engine::StepOutput;

/// Builds the token columns of a step.
pub(crate) fn token_trace(
    prompt: StepPrompt,
    reply: StepOutput,
    commit_token_ids: Option<Vec<u32>>,
) -> TokenTrace {
    let columns = reply.columns;
    // Without a single kept token the offsets carry no information.
    let kept_offsets = if columns.kept_token_ids.is_empty() { Vec::new() } else { columns.kept_offsets };
    TokenTrace {
        prompt_token_ids: prompt.token_ids,
        image_spans: prompt.image_spans,
        response_token_ids: columns.ids,
        response_mask: columns.mask,
        forced: columns.forced,
        commit_token_ids,
        prefix_len: prompt.prefix_len,
        prefix_hash: prompt.prefix_hash,
        prompt_hash: prompt.prompt_hash,
        finish_reason: reply.finish_reason,
        logprobs: Some(columns.logprobs),
        sampled_logprobs: Some(columns.sampled_logprobs),
        kept_count: Some(columns.kept_count),
        kept_token_ids: columns.kept_token_ids,
        kept_offsets,
        entropy: Some(columns.entropy),
        policy_versions: columns.policy_versions,
    }
}
