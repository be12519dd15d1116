//! What is wrong with a message, told by its key.

use tonic::{Code, Status};

/// A message that cannot be a noun.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// A field that must be there is not.
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
        /// What it has.
        size: usize,
        /// What it may have.
        max: usize,
    },
    /// A field holds something that means nothing here.
    #[error("{key} is {value:?}; expected {expected}")]
    Unknown {
        /// Path of the field.
        key: &'static str,
        /// What it holds, cut to 60 characters.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
    /// The bytes are no such message.
    #[error("{what} cannot be decoded")]
    Malformed {
        /// Which message.
        what: &'static str,
        /// Why.
        source: prost::DecodeError,
    },
}

impl From<WireError> for Status {
    fn from(error: WireError) -> Self {
        Status::new(Code::InvalidArgument, error.to_string())
    }
}

/// Why a call failed and whether trying again can help, in one place for all clients.
pub fn refusal(status: &Status) -> Refusal {
    match status.code() {
        Code::FailedPrecondition => Refusal::Stale,
        Code::InvalidArgument
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::AlreadyExists
        | Code::NotFound => Refusal::Wrong,
        _ => Refusal::TryAgain,
    }
}

/// What to do about a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The caller's token or version is out of date: give up what it holds.
    Stale,
    /// The call itself is wrong and will stay so.
    Wrong,
    /// The other side is away, busy or full: the same call may succeed later.
    TryAgain,
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

pub(crate) fn word<T>(
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

pub(crate) fn fixed<const N: usize>(bytes: &[u8], key: &'static str) -> Result<[u8; N], WireError> {
    bytes
        .try_into()
        .map_err(|_| unknown(key, &format!("{} bytes", bytes.len()), "a hash of the right length"))
}
