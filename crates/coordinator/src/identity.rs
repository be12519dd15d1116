//! What makes a job the same job: the settings a resumed run must not change.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

/// Settings by their dotted keys, such as `tasks.seed`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    settings: BTreeMap<String, String>,
}

impl Identity {
    /// An identity of these keys and values.
    pub fn new(settings: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { settings: settings.into_iter().collect() }
    }

    /// Hash over all of them, for the ledger.
    pub fn sha256(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for text in self.settings.iter().flat_map(|(key, value)| [key, value]) {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        hash.finalize().into()
    }

    /// What differs from the job that began the run, a sentence a key.
    pub fn differences(&self, began: &Identity) -> Vec<String> {
        let keys: std::collections::BTreeSet<_> = self.settings.keys().chain(began.settings.keys()).collect();
        let differs = |key: &&String| self.settings.get(*key) != began.settings.get(*key);
        let told = |value: Option<&String>| value.map_or("not set", |value| value.as_str()).to_owned();
        keys.into_iter()
            .filter(differs)
            .map(|key| {
                format!(
                    "{key}: {} now, {} when the run began; set it back, or start a new run",
                    told(self.settings.get(key)),
                    told(began.settings.get(key))
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(settings: &[(&str, &str)]) -> Identity {
        Identity::new(settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn differences_are_named_by_their_keys() {
        let began = identity(&[("tasks.group_size", "4"), ("tasks.seed", "1"), ("policy.kind", "random")]);
        let now = identity(&[("tasks.group_size", "8"), ("tasks.seed", "1"), ("tasks.groups", "3")]);
        assert_eq!(
            now.differences(&began),
            [
                "policy.kind: not set now, random when the run began; set it back, or start a new run",
                "tasks.group_size: 8 now, 4 when the run began; set it back, or start a new run",
                "tasks.groups: 3 now, not set when the run began; set it back, or start a new run",
            ]
        );
        assert_eq!(began.differences(&began), Vec::<String>::new());
    }

    #[test]
    fn the_hash_tells_key_from_value() {
        let table = [identity(&[("a", "bc")]), identity(&[("ab", "c")]), identity(&[("a", "b"), ("c", "")])];
        for (index, one) in table.iter().enumerate() {
            for other in &table[index + 1..] {
                assert_ne!(one.sha256(), other.sha256());
            }
            assert_eq!(one.sha256(), one.clone().sha256());
        }
    }
}
