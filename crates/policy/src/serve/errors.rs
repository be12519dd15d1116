//! The engine's faults in the protocol's form.

use furrow_openai::server::ApiError;

use crate::constrain::ConstraintError;
use crate::engine::EngineFault;

pub(super) type ApiResult<T> = Result<T, ApiError>;

/// Runs work of milliseconds on a blocking thread.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    let working = tokio::task::spawn_blocking(work);
    working.await.unwrap_or_else(|why| Err(broken(&why.to_string())))
}

pub(super) fn broken(why: &str) -> ApiError {
    ApiError::of(500, "server_error", "failed", why)
}

pub(super) fn too_long(message: String) -> ApiError {
    let error = ApiError::of(400, "invalid_request_error", "context_length_exceeded", message);
    ApiError { param: Some("messages".into()), ..error }
}

pub(super) fn failed(fault: &EngineFault) -> ApiError {
    let message = fault.to_string();
    match fault {
        EngineFault::TooLong { .. } => {
            ApiError::of(400, "invalid_request_error", "context_length_exceeded", message)
        }
        EngineFault::Full { .. } => ApiError::of(503, "server_error", "no_capacity", message),
        EngineFault::Broken(_) | EngineFault::Device(_) | EngineFault::Gone => {
            ApiError::of(503, "server_error", "engine_gone", message)
        }
        EngineFault::NotFinite { .. } | EngineFault::NoPrompt | EngineFault::Refused(_) => {
            ApiError::of(500, "server_error", "failed", message)
        }
    }
}

/// Why replies cannot have the form that the key `param` asks for.
pub(super) fn unconstrained(why: ConstraintError, param: &str) -> ApiError {
    match why {
        ConstraintError::TooFew { max_tokens, least } => ApiError::invalid(
            "max_tokens",
            format!("max_tokens is {max_tokens}; a reply of this form takes at least {least} tokens"),
        ),
        ConstraintError::Ambiguous => ApiError::unsupported(
            param,
            "two alternatives of this schema begin with the same text; give them different types",
        ),
        ConstraintError::Broken { why } => broken(&why),
        other => ApiError::unsupported(param, other.to_string()),
    }
}

pub(super) fn late() -> ApiError {
    let why = "the request was not answered in time; ask for less, or raise policy.serve.deadline_millis";
    ApiError::of(503, "server_error", "deadline_exceeded", why)
}

pub(super) fn draining() -> ApiError {
    ApiError::of(503, "server_error", "draining", "this worker is stopping; use another")
}
