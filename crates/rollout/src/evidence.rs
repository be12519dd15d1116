//! What the environment saw at the end. Only a scorer turns it into a reward.

use bytes::Bytes;
use sha2::{Digest, Sha256};

/// Final state of a trajectory as reported by the environment worker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Evidence {
    /// Last screenshot, encoded.
    pub screenshot: Option<Bytes>,
    /// Address of the active tab.
    pub url: Option<String>,
    /// Its title.
    pub title: Option<String>,
    /// What the policy answered.
    pub answer: Option<String>,
    /// What the suite's probe returned, a JSON object.
    pub probe_json: Option<String>,
}

impl Evidence {
    /// SHA-256 over screenshot, url, title, answer, probe_json in this order, each preceded by its length as u64 little-endian;
    /// an absent part is the length with all bits set and nothing after it.
    pub fn sha256(&self) -> [u8; 32] {
        let text = |part: &Option<String>| part.as_ref().map(|text| text.as_bytes().to_vec());
        let parts = [
            self.screenshot.as_ref().map(|bytes| bytes.to_vec()),
            text(&self.url),
            text(&self.title),
            text(&self.answer),
            text(&self.probe_json),
        ];
        let mut hash = Sha256::new();
        for part in parts {
            match part {
                None => hash.update(u64::MAX.to_le_bytes()),
                Some(bytes) => {
                    hash.update((bytes.len() as u64).to_le_bytes());
                    hash.update(&bytes);
                }
            }
        }
        hash.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_and_empty_parts_hash_differently() {
        let absent = Evidence::default();
        let empty = Evidence { answer: Some(String::new()), ..Evidence::default() };
        let moved = Evidence { title: Some(String::new()), ..Evidence::default() };
        assert_ne!(absent.sha256(), empty.sha256());
        assert_ne!(empty.sha256(), moved.sha256());
    }
}
