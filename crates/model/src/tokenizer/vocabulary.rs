//! Every id of a tokenizer with the bytes it stands for: what constrained decoding walks over.

/// What an id is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// A piece of text: the only kind that encoding text gives.
    Text,
    /// An added token that is shown when decoding, such as a `<think>` of some checkpoints.
    Added,
    /// An added token that marks structure and is left out when decoding.
    Special,
}

/// Bytes and kind of each id, from 0 to the highest one; an id in between may be unused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    bytes: Vec<u8>,
    /// Id i's bytes are `bytes[ends[i - 1]..ends[i]]`.
    ends: Vec<u32>,
    kinds: Vec<Option<TokenKind>>,
}

impl Vocabulary {
    /// From the entry of each id in order; `None` for an unused one.
    pub(super) fn new(entries: &[Option<(TokenKind, Vec<u8>)>]) -> Self {
        let mut vocabulary = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(entries.len()),
            kinds: Vec::with_capacity(entries.len()),
        };
        for entry in entries {
            vocabulary.bytes.extend(entry.iter().flat_map(|(_, bytes)| bytes));
            vocabulary.ends.push(vocabulary.bytes.len() as u32);
            vocabulary.kinds.push(entry.as_ref().map(|(kind, _)| *kind));
        }
        vocabulary
    }

    /// The highest id plus one.
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Never: all 256 bytes are in it.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// What an id is; `None` where it is unused or too high.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied().flatten()
    }

    /// Whether an id marks structure.
    pub fn is_special(&self, id: u32) -> bool {
        self.kind(id) == Some(TokenKind::Special)
    }

    /// Bytes an id stands for, a mark's being its name; `None` where the id is unused or too high.
    pub fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.kind(id)?;
        let id = id as usize;
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start as usize..self.ends[id] as usize])
    }

    /// Bytes of an id that is a piece of text; never empty.
    pub fn text(&self, id: u32) -> Option<&[u8]> {
        if self.kind(id)? == TokenKind::Text { self.bytes(id) } else { None }
    }

    /// All pieces of text in ascending order of id.
    pub fn texts(&self) -> impl Iterator<Item = (u32, &[u8])> {
        (0..self.len() as u32).filter_map(|id| Some((id, self.text(id)?)))
    }
}
