//! The server's side: parses requests of `/chat/completions` and formats the answers.
//!
//! Authentication, deadlines and the model are the caller's part. Keys that are not supported are
//! refused by name and never ignored, because a client that requests `n` = 4 would not notice that
//! it got one reply.

mod answer;
mod request;

pub use answer::{
    ApiError, ChatCompletion, ChatDelta, ChatEnvelope, ChatFinishReason, DONE, TokenLogprob, TokenUsage,
    models,
};
pub use request::{ChatLimits, ChatMessage, ChatRequest, MessagePart, RequestSampling, ResponseFormat};
