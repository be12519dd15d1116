//! The token of an HTTP server: read from its file, kept and compared as a digest.

use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq as _;

/// The digest of a token. Only the SHA-256 is kept and compared, so that the comparison reveals
/// neither the token's length nor a common prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenDigest([u8; 32]);

/// The reason why a file yields no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("{} cannot be read", path.display())]
    Unreadable {
        /// Path of the token file.
        path: PathBuf,
        /// Why the operating system could not read it.
        source: io::Error,
    },
    /// The file's content is not a valid token.
    #[error("{} holds {length} characters; a token has {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} printable ones", path.display())]
    Weak {
        /// Path of the token file.
        path: PathBuf,
        /// Number of characters in the file, without surrounding white space.
        length: usize,
    },
}

/// 16 characters of base64 are 96 bits; shorter tokens can be guessed by trial.
const TOKEN_CHARS_MIN: usize = 16;
const TOKEN_CHARS_MAX: usize = 512;

impl TokenDigest {
    /// Hashes a token or a placeholder for one.
    pub(crate) fn new(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }

    /// Whether a presented token is this one, compared in constant time.
    pub(crate) fn matches(&self, presented: &str) -> bool {
        self.0.ct_eq(&Self::new(presented).0).into()
    }
}

/// Reads a token file and removes surrounding white space.
pub fn read_token(path: &Path) -> Result<String, TokenError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| TokenError::Unreadable { path: path.to_owned(), source })?;
    let token = text.trim();
    let length = token.chars().count();
    let printable = token.chars().all(|letter| letter.is_ascii_graphic());
    if !(TOKEN_CHARS_MIN..=TOKEN_CHARS_MAX).contains(&length) || !printable {
        return Err(TokenError::Weak { path: path.to_owned(), length });
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_can_be_tried_out_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_token(&path)
        };
        assert_eq!(read(" 0123456789abcdef\n").unwrap(), "0123456789abcdef");
        for weak in ["", "short", "with a blank inside it", &"x".repeat(513)] {
            assert!(read(weak).unwrap_err().to_string().contains("16 to 512"), "{weak}");
        }
        assert!(matches!(read_token(&folder.path().join("none")), Err(TokenError::Unreadable { .. })));
    }

    #[test]
    fn only_the_token_itself_matches() {
        let digest = TokenDigest::new("correct-horse-battery");
        assert!(digest.matches("correct-horse-battery"));
        for wrong in ["", "correct-horse-batterz", "correct-horse", "correct-horse-battery "] {
            assert!(!digest.matches(wrong), "{wrong:?}");
        }
    }
}
