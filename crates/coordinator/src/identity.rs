//! What identifies a job: the settings that a resumed run must not change.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

/// Settings by their dotted keys, such as `tasks.seed`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobIdentity {
    settings: BTreeMap<String, String>,
}

impl JobIdentity {
    /// An identity of these keys and values.
    pub fn new(settings: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { settings: settings.into_iter().collect() }
    }

    /// Hash over all settings, for the ledger.
    pub fn sha256(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for text in self.settings.iter().flat_map(|(key, value)| [key, value]) {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        hash.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(settings: &[(&str, &str)]) -> JobIdentity {
        JobIdentity::new(settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn the_hash_separates_key_and_value() {
        let table = [identity(&[("a", "bc")]), identity(&[("ab", "c")]), identity(&[("a", "b"), ("c", "")])];
        for (index, one) in table.iter().enumerate() {
            for other in &table[index + 1..] {
                assert_ne!(one.sha256(), other.sha256());
            }
            assert_eq!(one.sha256(), one.clone().sha256());
        }
    }
}
