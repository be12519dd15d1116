//! Parses requests of `/completions`: prompts that no layout is put around.

use serde_json::Value;

use super::ApiError;
use super::keys::{ApiResult, RequestKeys};
use super::options::{ChatLimits, FIXED, GenerationOptions, IGNORED, TOP_LOGPROBS_MAX};

#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    pub prompts: Vec<Prompt>,
    pub options: GenerationOptions,
}

/// What a reply continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// A text, never searched for marks.
    Text(String),
    /// Token ids, used as they are.
    Ids(Vec<u32>),
}

/// Most tokens of a reply if the request sets no limit, as in OpenAI's API.
const TOKENS_USUAL: u32 = 16;

impl CompletionRequest {
    /// Parses the body of a request and returns the first error in it.
    pub fn read(body: &[u8], limits: &ChatLimits) -> ApiResult<Self> {
        let mut keys = RequestKeys::of_body(body)?;
        let mut options = GenerationOptions::take(&mut keys, limits, &["max_tokens"])?;
        options.max_tokens = options.max_tokens.or(Some(TOKENS_USUAL.min(limits.max_tokens)));
        options.logprobs = keys.whole("logprobs", 0, TOP_LOGPROBS_MAX)?.map(|count| count as u32);
        if options.session_id.is_some() {
            let why = "sessions hold chats; use /v1/chat/completions";
            return Err(ApiError::unsupported("session_id", why));
        }
        let prompts = prompts(&mut keys)?;
        let replies = prompts.len().saturating_mul(options.choices as usize);
        if replies > limits.choices_max as usize {
            let most = limits.choices_max;
            let why = format!(
                "{replies} replies are asked for; use at most {most}, or raise policy.serve.requests_max"
            );
            return Err(ApiError::invalid("prompt", why));
        }
        if let Some(suffix) = keys.text("suffix")?.filter(|suffix| !suffix.is_empty()) {
            let bytes = suffix.len();
            let why = format!("suffix has {bytes} bytes; a reply cannot be made to fit before a text");
            return Err(ApiError::unsupported("suffix", why));
        }
        let fixed = [&FIXED[..], &[("echo", "false"), ("best_of", "1")]].concat();
        options.ignored = keys.finish(&IGNORED, &fixed)?;
        Ok(Self { prompts, options })
    }
}

/// A text, token ids, or a list of either.
fn prompts(keys: &mut RequestKeys) -> ApiResult<Vec<Prompt>> {
    let wrong = |keys: &RequestKeys| {
        keys.wrong("prompt", "a text, a list of token ids, or a list of those, none of them empty")
    };
    let prompts = match keys.take("prompt") {
        None => return Err(keys.missing("prompt")),
        Some(Value::Array(list)) if list.iter().all(Value::is_u64) => {
            prompt(Value::Array(list)).map(|one| vec![one])
        }
        Some(Value::Array(list)) => list.into_iter().map(prompt).collect(),
        Some(one) => prompt(one).map(|one| vec![one]),
    };
    prompts.ok_or_else(|| wrong(keys))
}

fn prompt(value: Value) -> Option<Prompt> {
    match value {
        Value::String(text) if !text.is_empty() => Some(Prompt::Text(text)),
        Value::Array(ids) if !ids.is_empty() => {
            serde_json::from_value(Value::Array(ids)).ok().map(Prompt::Ids)
        }
        _ => None,
    }
}
