//! The value of a secret: it is never printed and does not outlive its owner in memory.

use std::ffi::OsString;
use std::fmt;

use zeroize::Zeroizing;

/// Shorter values occur in texts by chance and could not be distinguished from them.
const CHARS_MIN: usize = 6;

/// Longer values are files, not something that is typed.
const BYTES_MAX: usize = 4 << 10;

/// A value that was read from the environment. Its text is overwritten when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SecretValue(Zeroizing<String>);

impl SecretValue {
    /// Validates a value; the error completes a sentence that begins with the name of its variable,
    /// and never contains the value.
    pub(super) fn parse(value: Option<OsString>) -> Result<Self, String> {
        let Some(value) = value.filter(|value| !value.is_empty()) else {
            return Err("is not set in this process; export it where the environment worker starts".into());
        };
        let text = value.into_string().map_err(|_| "is not UTF-8; use a value that can be typed")?;
        let value = Self(Zeroizing::new(text));
        let text = value.text();
        let chars = text.chars().count();
        let bytes = text.len();
        if bytes > BYTES_MAX {
            return Err(format!("has {bytes} bytes; use at most {BYTES_MAX}"));
        }
        if chars < CHARS_MIN {
            return Err(format!(
                "has {chars} characters; use at least {CHARS_MIN}, fewer cannot be found in texts"
            ));
        }
        if text.chars().any(char::is_control) {
            return Err("has a control character, such as a line break; remove it".into());
        }
        if text.trim().len() != bytes {
            return Err("begins or ends with white space; remove it".into());
        }
        Ok(value)
    }

    /// A value that is no secret.
    pub(super) fn public(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn a_value_that_cannot_be_kept_out_of_records_is_refused_without_being_printed() {
        let text = |text: &str| Some(OsString::from(text));
        for (value, want) in [
            (None, "is not set in this process"),
            (text(""), "is not set in this process"),
            (text("abcde"), "has 5 characters; use at least 6"),
            (text("äöüäö"), "has 5 characters"),
            (text("secret\n"), "has a control character"),
            (text(" secret"), "begins or ends with white space"),
            (text(&"s".repeat(4097)), "has 4097 bytes; use at most 4096"),
            (Some(OsString::from_vec(vec![0xff; 8])), "is not UTF-8"),
        ] {
            let why = SecretValue::parse(value).unwrap_err();
            assert!(why.starts_with(want), "{why}");
            assert!(!why.contains("secret") && !why.contains("abcde"), "{why}");
        }
        for good in ["hunter", "correct horse", "pässwörd", &"s".repeat(4096)] {
            let value = SecretValue::parse(text(good)).unwrap();
            assert_eq!((value.text(), format!("{value:?}").contains(good)), (good, false));
        }
    }
}
