//! Who may come in where HTTP is spoken: the token of a file, and the names by which this machine calls itself.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// A word that opens a door. Only its SHA-256 is kept and compared, so that lengths and common beginnings tell nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word([u8; 32]);

/// Why a file gives no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It cannot be read.
    #[error("{} cannot be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What it holds is no token.
    #[error("{} holds {length} characters; a token has {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} printable ones", path.display())]
    Weak {
        /// The file.
        path: PathBuf,
        /// Its characters.
        length: usize,
    },
}

/// 16 letters of base 64 are 96 bits; shorter ones can be tried out.
const TOKEN_CHARS_MIN: usize = 16;
const TOKEN_CHARS_MAX: usize = 512;

impl Word {
    /// Of a token, or of what stands for one.
    pub fn new(word: &str) -> Self {
        Self(Sha256::digest(word).into())
    }

    /// Whether this is the word. Takes the same time whatever was brought.
    pub fn is(&self, brought: &str) -> bool {
        let other = Self::new(brought).0;
        let different = self.0.iter().zip(&other).fold(0, |different, (a, b)| different | (a ^ b));
        std::hint::black_box(different) == 0
    }
}

/// Reads a token file: its text without what is blank around it.
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

/// Whether a `Host` is loopback, by name or by number. Who listens without a token asks this: or a page of a stranger could have its own name
/// resolved to 127.0.0.1 and read everything (DNS rebinding).
pub fn names_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
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
    fn this_machine_has_few_names() {
        for host in ["127.0.0.1:7380", "localhost:7380", "LOCALHOST", "[::1]:7380", "127.8.8.8"] {
            assert!(names_loopback(host), "{host}");
        }
        for host in ["evil.test:7380", "127.0.0.1.evil.test", "10.0.0.1:7380", "", "[::2]:1"] {
            assert!(!names_loopback(host), "{host}");
        }
    }

    #[test]
    fn only_the_word_is_the_word() {
        let word = Word::new("correct-horse-battery");
        assert!(word.is("correct-horse-battery"));
        for wrong in ["", "correct-horse-batterz", "correct-horse", "correct-horse-battery "] {
            assert!(!word.is(wrong), "{wrong:?}");
        }
    }
}
