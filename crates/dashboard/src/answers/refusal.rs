//! The answer to a refused request.

use serde::{Deserialize, Serialize};

/// The body of a response that refuses a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Refusal {
    pub error: String,
}
