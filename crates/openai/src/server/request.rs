//! Parses requests of `/chat/completions`: what a request asks for, or which of its keys is wrong
//! and what to use instead.

use super::ApiError;
use super::format::ResponseFormat;
use super::keys::{ApiResult, RequestKeys};
use super::messages::{self, ChatMessage};
use super::options::{ChatLimits, FIXED, GenerationOptions, IGNORED, TOP_LOGPROBS_MAX};
use super::tools::{ToolChoice, ToolForm, ToolUse};

#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    /// The messages. They begin with a user's message, or a system message before it, and end with
    /// a user's.
    pub messages: Vec<ChatMessage>,
    /// Functions that the model may call.
    pub tools: Option<ToolUse>,
    /// The form of the reply.
    pub format: ResponseFormat,
    pub options: GenerationOptions,
}

impl ChatRequest {
    /// Parses the body of a request and returns the first error in it.
    pub fn read(body: &[u8], limits: &ChatLimits) -> ApiResult<Self> {
        let mut keys = RequestKeys::of_body(body)?;
        let mut options =
            GenerationOptions::take(&mut keys, limits, &["max_tokens", "max_completion_tokens"])?;
        options.logprobs = logprobs(&mut keys)?;
        let messages = messages::take(&mut keys, limits)?;
        let tools = ToolUse::take(&mut keys, ToolForm::Nested)?;
        let format = ResponseFormat::take(&mut keys)?;
        options.ignored = keys.finish(&IGNORED, &FIXED)?;
        Self { messages, tools, format, options }.checked("response_format")
    }

    /// Refuses what cannot be combined with a form that is forced.
    pub(super) fn checked(self, format_key: &str) -> ApiResult<Self> {
        if self.format != ResponseFormat::Text {
            self.options.check_constrained(format_key)?;
        }
        if let Some(ToolUse { choice: ToolChoice::Required(_), .. }) = &self.tools {
            self.options.check_constrained("tool_choice")?;
        }
        Ok(self)
    }
}

fn logprobs(keys: &mut RequestKeys) -> ApiResult<Option<u32>> {
    let is_requested = keys.flag("logprobs")?.unwrap_or(false);
    match keys.whole("top_logprobs", 0, TOP_LOGPROBS_MAX)? {
        Some(1..) if !is_requested => {
            Err(ApiError::invalid("top_logprobs", "top_logprobs needs logprobs = true"))
        }
        count => Ok(is_requested.then_some(count.unwrap_or(0) as u32)),
    }
}

#[cfg(test)]
mod tests;
