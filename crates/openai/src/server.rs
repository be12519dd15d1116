//! The server's side: parses requests of `/chat/completions`, `/completions` and `/responses` and
//! formats the answers.
//!
//! Authentication, deadlines and the model are the caller's part. A key that would change the reply
//! and is not supported is refused by name, because a client that asks for a suffix would not
//! notice that it got none. Keys that clients send by default and that change nothing of the
//! reply's form are accepted; [`GenerationOptions::ignored`] names those that have no effect.

mod answer;
mod chat_answer;
mod completion_answer;
mod completions;
mod format;
mod keys;
mod messages;
mod options;
mod picture;
mod request;
mod response_answer;
mod responses;
mod tool_call;
mod tools;
mod writer;

pub use answer::{
    AnswerHead, ApiError, ChatCompletion, ChatDelta, ChatFinishReason, CompletedChoice, TokenLogprob,
    TokenUsage, models,
};
pub use completions::{CompletionRequest, Prompt};
pub use format::{RequestedSchema, ResponseFormat};
pub use messages::{ChatMessage, MessagePart};
pub use options::{ChatLimits, GenerationOptions, RequestSampling};
pub use request::ChatRequest;
pub use responses::{RepeatedKeys, ResponsesRequest};
pub use tool_call::ToolCall;
pub use tools::{FunctionTool, ToolChoice, ToolUse};
pub use writer::{AnswerForm, AnswerWriter};
