//! Conversions of traces, the policy's account of a step.

use furrow_rollout::{
    EngineStats, FinishReason, ImageSpan, PolicyKind, PolicyVersion, RescoredToken, StateOrigin, TokenTrace,
    Trace,
};
use prost::Message;

use crate::error::{WireError, cap, capped, finite, fixed, known_value};
use crate::limits::{TOKENS_MAX, TRACE_BYTES_MAX};
use crate::v1;

/// Encodes a trace for a session's stream.
pub fn encode_trace(value: &Trace) -> bytes::Bytes {
    trace_into(value).encode_to_vec().into()
}

/// Decodes and validates a trace.
pub fn decode_trace(bytes: &[u8]) -> Result<Trace, WireError> {
    cap(bytes.len(), TRACE_BYTES_MAX, "trace")?;
    let message =
        v1::Trace::decode(bytes).map_err(|source| WireError::Malformed { what: "a trace", source })?;
    trace_from(message)
}

fn trace_from(message: v1::Trace) -> Result<Trace, WireError> {
    let kind = &message.policy_kind;
    Ok(Trace {
        policy_kind: known_value(
            PolicyKind::parse(kind),
            "trace.policy_kind",
            kind,
            "scripted, random, model or openai",
        )?,
        policy_version: message.policy_version.map(PolicyVersion),
        state_version_min: message.state_version_min.map(PolicyVersion),
        tokens: message.tokens.map(tokens_from).transpose()?,
        engine: engine_from(message.engine.unwrap_or_default())?,
        rescored: rescored_from(message.rescored)?,
    })
}

fn trace_into(value: &Trace) -> v1::Trace {
    v1::Trace {
        policy_kind: value.policy_kind.as_str().to_owned(),
        policy_version: value.policy_version.map(|version| version.0),
        state_version_min: value.state_version_min.map(|version| version.0),
        tokens: value.tokens.as_ref().map(tokens_into),
        engine: Some(engine_into(&value.engine)),
        rescored: value
            .rescored
            .iter()
            .map(|scored| v1::RescoredToken { token: scored.token, logprob: scored.logprob })
            .collect(),
    }
}

fn rescored_from(messages: Vec<v1::RescoredToken>) -> Result<Vec<RescoredToken>, WireError> {
    cap(messages.len(), TOKENS_MAX, "trace.rescored")?;
    let read = |message: v1::RescoredToken| {
        let logprob = finite(message.logprob, "trace.rescored.logprob")?;
        Ok(RescoredToken { token: message.token, logprob })
    };
    messages.into_iter().map(read).collect()
}

fn tokens_from(message: v1::TokenTrace) -> Result<TokenTrace, WireError> {
    cap(message.response_token_ids.len(), TOKENS_MAX, "trace.tokens.response_token_ids")?;
    cap(message.prompt_token_ids.len(), TOKENS_MAX, "trace.tokens.prompt_token_ids")?;
    let reason = &message.finish_reason;
    let reason = known_value(
        FinishReason::parse(reason),
        "trace.tokens.finish_reason",
        reason,
        "stop, length, grammar_cap or abort",
    )?;
    Ok(TokenTrace {
        prompt_token_ids: message.prompt_token_ids,
        image_spans: message.image_spans.iter().map(span_from).collect::<Result<_, _>>()?,
        response_token_ids: message.response_token_ids,
        response_mask: message.response_mask,
        forced: message.forced,
        commit_token_ids: message.commit_token_ids.map(|tokens| tokens.ids),
        prefix_len: message.prefix_len,
        prefix_hash: fixed(&message.prefix_hash, "trace.tokens.prefix_hash")?,
        prompt_hash: fixed(&message.prompt_hash, "trace.tokens.prompt_hash")?,
        finish_reason: reason,
        logprobs: floats_from(message.logprobs, "trace.tokens.logprobs")?,
        sampled_logprobs: floats_from(message.sampled_logprobs, "trace.tokens.sampled_logprobs")?,
        kept_count: message
            .kept_count
            .map(|list| nullable(list.values, &list.present, "trace.tokens.kept_count"))
            .transpose()?,
        kept_token_ids: message.kept_token_ids,
        kept_offsets: message.kept_offsets,
        entropy: floats_from(message.entropy, "trace.tokens.entropy")?,
        policy_versions: message.policy_versions,
    })
}

fn tokens_into(tokens: &TokenTrace) -> v1::TokenTrace {
    v1::TokenTrace {
        prompt_token_ids: tokens.prompt_token_ids.clone(),
        image_spans: tokens.image_spans.iter().map(span_into).collect(),
        response_token_ids: tokens.response_token_ids.clone(),
        response_mask: tokens.response_mask.clone(),
        forced: tokens.forced.clone(),
        commit_token_ids: tokens.commit_token_ids.clone().map(|ids| v1::Tokens { ids }),
        prefix_len: tokens.prefix_len,
        prefix_hash: tokens.prefix_hash.to_vec().into(),
        prompt_hash: tokens.prompt_hash.to_vec().into(),
        finish_reason: tokens.finish_reason.as_str().to_owned(),
        logprobs: tokens.logprobs.as_deref().map(floats_into),
        sampled_logprobs: tokens.sampled_logprobs.as_deref().map(floats_into),
        kept_count: tokens.kept_count.as_deref().map(|list| v1::Counts {
            values: list.iter().map(|value| value.unwrap_or(0)).collect(),
            present: list.iter().map(Option::is_some).collect(),
        }),
        kept_token_ids: tokens.kept_token_ids.clone(),
        kept_offsets: tokens.kept_offsets.clone(),
        entropy: tokens.entropy.as_deref().map(floats_into),
        policy_versions: tokens.policy_versions.clone(),
    }
}

fn floats_from(list: Option<v1::Floats>, key: &'static str) -> Result<Option<Vec<Option<f32>>>, WireError> {
    let Some(list) = list else { return Ok(None) };
    list.values.iter().try_for_each(|value| finite(*value, key).map(drop))?;
    nullable(list.values, &list.present, key).map(Some)
}

fn floats_into(list: &[Option<f32>]) -> v1::Floats {
    v1::Floats {
        values: list.iter().map(|value| value.unwrap_or(0.0)).collect(),
        present: list.iter().map(Option::is_some).collect(),
    }
}

fn nullable<T>(values: Vec<T>, present: &[bool], key: &'static str) -> Result<Vec<Option<T>>, WireError> {
    if values.len() != present.len() {
        return Err(WireError::TooLarge { key, size: present.len(), max: values.len() });
    }
    Ok(values.into_iter().zip(present).map(|(value, present)| present.then_some(value)).collect())
}

fn span_from(message: &v1::ImageSpan) -> Result<ImageSpan, WireError> {
    let tiles = |count: u32| {
        u16::try_from(count).map_err(|_| WireError::TooLarge {
            key: "image_span.tiles",
            size: count as usize,
            max: u16::MAX as usize,
        })
    };
    Ok(ImageSpan {
        step: message.step,
        token_start: message.token_start,
        token_len: message.token_len,
        tiles_x: tiles(message.tiles_x)?,
        tiles_y: tiles(message.tiles_y)?,
        blob_sha256: fixed(&message.blob_sha256, "image_span.blob_sha256")?,
        rgb_sha256: fixed(&message.rgb_sha256, "image_span.rgb_sha256")?,
    })
}

fn span_into(value: &ImageSpan) -> v1::ImageSpan {
    v1::ImageSpan {
        step: value.step,
        token_start: value.token_start,
        token_len: value.token_len,
        tiles_x: u32::from(value.tiles_x),
        tiles_y: u32::from(value.tiles_y),
        blob_sha256: value.blob_sha256.to_vec().into(),
        rgb_sha256: value.rgb_sha256.to_vec().into(),
    }
}

fn engine_from(message: v1::Engine) -> Result<EngineStats, WireError> {
    let origin = match &message.state_origin {
        None => None,
        Some(name) => Some(known_value(
            StateOrigin::parse(name),
            "trace.engine.state_origin",
            name,
            "resident, forked, parked or rebuilt",
        )?),
    };
    Ok(EngineStats {
        worker: capped(message.worker, 256, "trace.engine.worker")?,
        slot: message.slot,
        state_origin: origin,
        batch_size_mean: finite(message.batch_size_mean, "trace.engine.batch_size_mean")?,
        prefill_tokens: message.prefill_tokens,
        reused_tokens: message.reused_tokens,
        decode_steps: message.decode_steps,
        queue_micros: message.queue_micros,
        service_micros: message.service_micros,
        gpu_micros: message.gpu_micros,
        cost_usd: message.cost_usd.filter(|cost| cost.is_finite()),
    })
}

fn engine_into(value: &EngineStats) -> v1::Engine {
    v1::Engine {
        worker: value.worker.clone(),
        slot: value.slot,
        state_origin: value.state_origin.map(|origin| origin.as_str().to_owned()),
        batch_size_mean: value.batch_size_mean,
        prefill_tokens: value.prefill_tokens,
        reused_tokens: value.reused_tokens,
        decode_steps: value.decode_steps,
        queue_micros: value.queue_micros,
        service_micros: value.service_micros,
        gpu_micros: value.gpu_micros,
        cost_usd: value.cost_usd,
    }
}
