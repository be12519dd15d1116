//! What a fuzz target is.

/// Restores lengths and checksums of a changed input.
pub type RepairFn = fn(&[u8]) -> Vec<u8>;

/// A parser of what comes from outside.
#[derive(Debug)]
pub struct FuzzTarget {
    pub name: &'static str,
    /// Parses an input. Panics where an accepted input breaks a promise.
    pub run: fn(&[u8]),
    /// So that changes reach beyond lengths and checksums.
    pub repair: Option<RepairFn>,
    /// Most bytes that are allocated at once for an input.
    pub memory_max: fn(&[u8]) -> usize,
    /// Longest input that is tried.
    pub bytes_max: usize,
    /// Whether the parser catches panics of a library and reports them as errors.
    pub catches_panics: bool,
    /// First inputs, made by this program's own writers. Files in the target's folder of `corpus/`
    /// whose names begin with `seed-` are these.
    pub seeds: fn() -> Vec<Seed>,
}

/// An input to begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seed {
    pub name: String,
    pub bytes: Vec<u8>,
}

impl Seed {
    pub fn new(name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        Self { name: name.to_owned(), bytes: bytes.into() }
    }
}

impl FuzzTarget {
    /// The input with its lengths and checksums restored.
    pub fn repaired(&self, input: &[u8]) -> Vec<u8> {
        self.repair.map_or_else(|| input.to_vec(), |repair| repair(input))
    }
}
