//! What the requests of all routes have in common: the model, how tokens are sampled, how many, and
//! the form in which the answer arrives.

use serde_json::Value;

use super::ApiError;
use super::keys::{ApiResult, IgnoredForm, IgnoredKey, RequestKeys};

/// Limits of a request. Its bytes were counted before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChatLimits {
    pub messages_max: usize,
    /// Most images in all messages.
    pub images_max: usize,
    /// Most bytes of one image.
    pub image_bytes_max: usize,
    /// Most tokens of a reply.
    pub max_tokens: u32,
    /// Most replies to one request.
    pub choices_max: u32,
}

/// What a request of any route asks for beside its prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationOptions {
    /// Name of the requested model.
    pub model: String,
    /// How tokens are sampled.
    pub sampling: RequestSampling,
    /// Most tokens of the reply, if the request sets a limit.
    pub max_tokens: Option<u32>,
    /// Texts that end the reply and are not part of it.
    pub stop: Vec<String>,
    /// How many of the likeliest tokens to report beside each, with all their log-probs; `None`: no
    /// log-probs.
    pub logprobs: Option<u32>,
    /// How many replies to each prompt.
    pub choices: u32,
    /// Whether to return token ids, as in vLLM's protocol.
    pub return_token_ids: bool,
    /// Whether to stream the reply.
    pub stream: bool,
    /// Whether a stream ends with the counts of tokens.
    pub include_usage: bool,
    /// Name under which the state is kept for the next request. An extension.
    pub session_id: Option<String>,
    /// Paths of keys that were accepted and have no effect.
    pub ignored: Vec<String>,
}

/// How tokens are sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestSampling {
    pub temperature: f32,
    /// Nucleus sampling; 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all. An extension.
    pub top_k: u32,
    /// 0 keeps all. An extension.
    pub min_p: f32,
    /// Equal seeds give equal samples.
    pub seed: Option<u64>,
}

const PENALTY: IgnoredForm = IgnoredForm::Number { from: -2.0, to: 2.0, neutral: 0.0 };

/// Keys of all routes that are accepted and ignored.
pub(super) const IGNORED: [IgnoredKey; 14] = [
    IgnoredKey { name: "user", form: IgnoredForm::Any },
    IgnoredKey { name: "metadata", form: IgnoredForm::Any },
    IgnoredKey { name: "safety_identifier", form: IgnoredForm::Any },
    IgnoredKey { name: "prompt_cache_key", form: IgnoredForm::Any },
    IgnoredKey { name: "prompt_cache_retention", form: IgnoredForm::Text },
    IgnoredKey { name: "prompt_cache_options", form: IgnoredForm::Any },
    IgnoredKey { name: "frequency_penalty", form: PENALTY },
    IgnoredKey { name: "presence_penalty", form: PENALTY },
    IgnoredKey {
        name: "repetition_penalty",
        form: IgnoredForm::Number { from: 0.0, to: 10.0, neutral: 1.0 },
    },
    IgnoredKey { name: "reasoning_effort", form: IgnoredForm::TextBut(&["none"]) },
    IgnoredKey { name: "verbosity", form: IgnoredForm::TextBut(&["medium"]) },
    IgnoredKey { name: "store", form: IgnoredForm::Flag },
    IgnoredKey { name: "service_tier", form: IgnoredForm::TextBut(&["auto", "default"]) },
    // A guess at the reply, to answer sooner.
    IgnoredKey { name: "prediction", form: IgnoredForm::Any },
];
/// Keys of all routes that may have one value, or null.
pub(super) const FIXED: [(&str, &str); 1] = [("modalities", "[\"text\"]")];
/// The limit of OpenAI's API.
pub(super) const TOP_LOGPROBS_MAX: i64 = 20;
const STOPS_MAX: usize = 4;
const STOP_BYTES_MAX: usize = 256;
const SESSION_CHARS_MAX: usize = 128;

impl GenerationOptions {
    /// Takes the keys that all routes have. `limit_keys` are the names of the limit of tokens.
    pub(super) fn take(keys: &mut RequestKeys, limits: &ChatLimits, limit_keys: &[&str]) -> ApiResult<Self> {
        let model = keys.needed_text("model")?;
        let sampling = RequestSampling {
            temperature: keys.number("temperature", 0.0, 100.0)?.unwrap_or(1.0) as f32,
            top_p: top_p(keys)?,
            top_k: top_k(keys)?,
            min_p: keys.number("min_p", 0.0, 1.0)?.unwrap_or(0.0) as f32,
            seed: keys.whole("seed", i64::MIN, i64::MAX)?.map(|seed| seed as u64),
        };
        let max_tokens = max_tokens(keys, limits.max_tokens, limit_keys)?;
        let stop = stop(keys)?;
        let choices = choices(keys, limits)?;
        let stream = keys.flag("stream")?.unwrap_or(false);
        let session_id = session_id(keys)?;
        if session_id.is_some() && choices > 1 {
            let why = "a session continues with one reply; leave n or session_id out";
            return Err(ApiError::unsupported("n", why));
        }
        Ok(Self {
            model,
            sampling,
            max_tokens,
            stop,
            logprobs: None,
            choices,
            return_token_ids: keys.flag("return_token_ids")?.unwrap_or(false),
            stream,
            include_usage: include_usage(keys, stream)?,
            session_id,
            ignored: Vec::new(),
        })
    }

    /// Refuses what cannot be combined with a reply of a form that is forced.
    pub(super) fn check_constrained(&self, form: &str) -> ApiResult<()> {
        if self.logprobs.is_some() {
            let why = format!(
                "tokens that {form} forces are not sampled and have no log-prob; use one or the other"
            );
            return Err(ApiError::unsupported("logprobs", why));
        }
        if !self.stop.is_empty() {
            let why =
                format!("a stop text could end the reply before it matches {form}; use one or the other");
            return Err(ApiError::unsupported("stop", why));
        }
        Ok(())
    }
}

fn include_usage(keys: &mut RequestKeys, stream: bool) -> ApiResult<bool> {
    match keys.object("stream_options")? {
        None => Ok(false),
        Some(_) if !stream => Err(ApiError::invalid("stream_options", "stream_options need stream = true")),
        Some(mut options) => {
            let included = options.flag("include_usage")?.unwrap_or(false);
            // Parts are never padded to hide their lengths.
            let padding = IgnoredKey { name: "include_obfuscation", form: IgnoredForm::Flag };
            keys.ignored.extend(options.finish(&[padding], &[])?);
            Ok(included)
        }
    }
}

fn choices(keys: &mut RequestKeys, limits: &ChatLimits) -> ApiResult<u32> {
    let most = limits.choices_max;
    match keys.whole("n", 1, i64::from(u32::MAX))?.unwrap_or(1) {
        count if count > i64::from(most) => {
            let why = format!("n is {count}; use at most {most}, or raise policy.serve.requests_max");
            Err(ApiError::invalid("n", why))
        }
        count => Ok(count as u32),
    }
}

fn top_p(keys: &mut RequestKeys) -> ApiResult<f32> {
    match keys.number("top_p", 0.0, 1.0)?.map(|p| p as f32) {
        Some(p) if p < f32::MIN_POSITIVE => Err(keys.wrong("top_p", "a number above 0 and at most 1")),
        p => Ok(p.unwrap_or(1.0)),
    }
}

/// In vLLM's protocol -1 keeps all.
fn top_k(keys: &mut RequestKeys) -> ApiResult<u32> {
    Ok(keys.whole("top_k", -1, 1 << 30)?.map_or(0, |k| k.max(0) as u32))
}

fn max_tokens(keys: &mut RequestKeys, most: u32, names: &[&str]) -> ApiResult<Option<u32>> {
    let mut limit: Option<(&str, u32)> = None;
    for name in names {
        let Some(value) = keys.whole(name, 1, i64::from(u32::MAX))? else { continue };
        if value > i64::from(most) {
            let why = format!("{name} is {value}; use at most {most}, or raise policy.serve.max_tokens");
            return Err(ApiError::invalid(*name, why));
        }
        let value = value as u32;
        match limit {
            Some((other, earlier)) if earlier != value => {
                let why = format!("{other} is {earlier} and {name} {value}; they mean the same, use one");
                return Err(ApiError::invalid(other, why));
            }
            _ => limit = Some((name, value)),
        }
    }
    Ok(limit.map(|(_, value)| value))
}

fn stop(keys: &mut RequestKeys) -> ApiResult<Vec<String>> {
    let wrong = || {
        ApiError::invalid(
            "stop",
            format!("stop must be a text or up to {STOPS_MAX} of them, each of 1 to {STOP_BYTES_MAX} bytes"),
        )
    };
    let texts = match keys.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(list)) => list
            .into_iter()
            .map(|text| if let Value::String(text) = text { Ok(text) } else { Err(wrong()) })
            .collect::<ApiResult<Vec<String>>>()?,
        Some(_) => return Err(wrong()),
    };
    let is_right = |text: &String| (1..=STOP_BYTES_MAX).contains(&text.len());
    if texts.len() <= STOPS_MAX && texts.iter().all(is_right) { Ok(texts) } else { Err(wrong()) }
}

fn session_id(keys: &mut RequestKeys) -> ApiResult<Option<String>> {
    let Some(name) = keys.text("session_id")? else { return Ok(None) };
    let is_right = (1..=SESSION_CHARS_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte));
    if is_right {
        return Ok(Some(name));
    }
    let right = format!("session_id must have 1 to {SESSION_CHARS_MAX} letters, digits and . _ : -");
    Err(ApiError::invalid("session_id", right))
}
