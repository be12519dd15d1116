//! Why the engine did not complete a request.

use furrow_model::backend::DeviceLost;

use super::breaker::BrokenVersion;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EngineFault {
    /// No further session fits.
    #[error("all {sessions_max} sessions are in use")]
    Full { sessions_max: u32 },
    /// The model's logits contain NaN or infinity.
    #[error("the model's logits are not finite after {tokens} tokens; this session ends, others continue")]
    NotFinite {
        /// Tokens of the sequence.
        tokens: u32,
    },
    /// A step is longer than a session can be.
    #[error("a step of {tokens} tokens does not fit; at most {tokens_max} tokens do")]
    TooLong {
        /// Tokens, the longest reply included.
        tokens: u32,
        tokens_max: u32,
    },
    /// A reply is requested, but no token precedes it.
    #[error("the step has no token to run before its reply")]
    NoPrompt,
    /// The device refused the session's tokens or tiles.
    #[error("the device refused the step: {0}")]
    Refused(String),
    /// So many sessions had such logits that the weights or the device must be at fault.
    #[error("{0}; the session can continue on another worker, and here on other weights")]
    Broken(BrokenVersion),
    /// The device failed. The session can continue on another worker.
    #[error(transparent)]
    Device(#[from] DeviceLost),
    /// The session is not open or has failed.
    #[error("the session is not open any more")]
    Gone,
}
