//! What the HTTP servers of the farm share: tokens, and a deadline of writes.

mod token;
mod write_timeout;

pub use token::{TokenDigest, TokenError, is_loopback_host, read_token};
pub use write_timeout::WriteTimeout;
