//! Validation errors of messages, which name the field.

use std::error::Error as _;
use std::ops::RangeInclusive;

use tonic::{Code, Status};

/// A message that fails validation.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// A required field is absent.
    #[error("{key} is missing")]
    Missing {
        /// Path of the field.
        key: &'static str,
    },
    /// A field is larger than allowed.
    #[error("{key} has {size}, at most {max} are allowed")]
    TooLarge {
        /// Path of the field.
        key: &'static str,
        /// Size of the field.
        size: usize,
        /// Largest size that is accepted, in the unit of `size`.
        max: usize,
    },
    /// A field has a value that is not allowed.
    #[error("{key} is {value:?}; expected {expected}")]
    Unknown {
        /// Path of the field.
        key: &'static str,
        /// The value, cut to 60 characters.
        value: String,
        /// Description of the allowed values.
        expected: &'static str,
    },
    /// The bytes do not decode as the message.
    #[error("{what} cannot be decoded")]
    Malformed {
        /// Name of the message.
        what: &'static str,
        /// What the protobuf decoder found wrong in the bytes.
        source: prost::DecodeError,
    },
}

impl From<WireError> for Status {
    fn from(error: WireError) -> Self {
        Status::new(Code::InvalidArgument, error.to_string())
    }
}

/// Classifies a failed call for all clients: its cause, and whether a retry can help.
pub fn refusal(status: &Status) -> RefusalKind {
    match status.code() {
        Code::FailedPrecondition => RefusalKind::Stale,
        Code::InvalidArgument
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::AlreadyExists
        | Code::NotFound
        | Code::PermissionDenied
        | Code::Unauthenticated => RefusalKind::Wrong,
        _ => RefusalKind::Retry,
    }
}

/// Describes a status in one sentence: its message, and the messages of the transport errors that
/// caused it.
pub fn describe_status(status: &Status) -> String {
    let mut text = format!("{:?}: {}", status.code(), status.message());
    let mut source = status.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// What a client should do about a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// The caller's token or version is out of date: the caller gives up its leases or sessions.
    Stale,
    /// The call itself is invalid, and a retry fails in the same way.
    Wrong,
    /// The peer is unreachable, busy or full: the same call may succeed later.
    Retry,
}

pub(crate) fn need<T>(value: Option<T>, key: &'static str) -> Result<T, WireError> {
    value.ok_or(WireError::Missing { key })
}

pub(crate) fn cap(size: usize, max: usize, key: &'static str) -> Result<(), WireError> {
    if size > max { Err(WireError::TooLarge { key, size, max }) } else { Ok(()) }
}

pub(crate) fn capped(text: String, max: usize, key: &'static str) -> Result<String, WireError> {
    cap(text.len(), max, key)?;
    Ok(text)
}

pub(crate) fn unknown(key: &'static str, value: &str, expected: &'static str) -> WireError {
    WireError::Unknown { key, value: value.chars().take(60).collect(), expected }
}

pub(crate) fn known_value<T>(
    parsed: Option<T>,
    key: &'static str,
    value: &str,
    expected: &'static str,
) -> Result<T, WireError> {
    parsed.ok_or_else(|| unknown(key, value, expected))
}

pub(crate) fn finite(value: f32, key: &'static str) -> Result<f32, WireError> {
    if value.is_finite() { Ok(value) } else { Err(unknown(key, &value.to_string(), "a finite number")) }
}

pub(crate) fn within(
    value: f32,
    range: RangeInclusive<f32>,
    key: &'static str,
    expected: &'static str,
) -> Result<f32, WireError> {
    if range.contains(&value) { Ok(value) } else { Err(unknown(key, &value.to_string(), expected)) }
}

pub(crate) fn fixed<const N: usize>(bytes: &[u8], key: &'static str) -> Result<[u8; N], WireError> {
    bytes
        .try_into()
        .map_err(|_| unknown(key, &format!("{} bytes", bytes.len()), "a hash of the right length"))
}
