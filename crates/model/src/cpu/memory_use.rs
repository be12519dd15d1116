//! How much memory a backend takes.

use std::fmt;

/// Bytes of a backend, by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    pub weights: u64,
    /// SSM states of all slots.
    pub ssm: u64,
    /// Convolution states of all slots.
    pub conv: u64,
    /// Keys and values of all pages.
    pub kv: u64,
    /// Workspace of a batch.
    pub workspace: u64,
    /// Logits of the newest batch.
    pub logits: u64,
    /// Rows of encoded tiles.
    pub features: u64,
}

impl MemoryUse {
    /// Bytes of all parts.
    pub fn total(&self) -> u64 {
        self.parts().iter().fold(0, |total, (_, bytes)| total.saturating_add(*bytes))
    }

    /// Name and bytes of each part.
    pub fn parts(&self) -> [(&'static str, u64); 7] {
        [
            ("weights", self.weights),
            ("SSM states", self.ssm),
            ("convolution states", self.conv),
            ("keys and values", self.kv),
            ("workspace", self.workspace),
            ("logits", self.logits),
            ("tile features", self.features),
        ]
    }
}

impl fmt::Display for MemoryUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, bytes) in self.parts().iter().filter(|(_, bytes)| *bytes > 0) {
            write!(f, "{name} {:.1} MB, ", *bytes as f64 / 1e6)?;
        }
        write!(f, "total {:.1} MB", self.total() as f64 / 1e6)
    }
}
