//! Every id of a tokenizer and its bytes, for constrained decoding.

/// What an id is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// A piece of text: the only kind that encoding produces.
    Text,
    /// An added token that decoding writes, such as `<think>` in some checkpoints.
    Added,
    /// An added token that marks structure and that decoding omits.
    Special,
}

/// Bytes and kind of each id from 0 to the highest; ids between may be unused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    bytes: Vec<u8>,
    /// Id i's bytes are `bytes[ends[i - 1]..ends[i]]`.
    ends: Vec<u32>,
    kinds: Vec<Option<TokenKind>>,
}

impl Vocabulary {
    /// Builds it from the entries in order of id; `None` for an unused one.
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

    /// Always false: all 256 bytes are in it.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Kind of an id; `None` if it is unused or too high.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied().flatten()
    }

    /// Whether an id marks structure.
    pub fn is_special(&self, id: u32) -> bool {
        self.kind(id) == Some(TokenKind::Special)
    }

    /// Bytes of an id, for a mark its name; `None` if the id is unused or too high.
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

    /// Bytes of the longest piece of text.
    pub(super) fn text_bytes_max(&self) -> usize {
        self.texts().map(|(_, text)| text.len()).max().unwrap_or(1)
    }

    /// Bytes of the longest entry.
    pub(super) fn bytes_max(&self) -> usize {
        (0..self.len() as u32).filter_map(|id| self.bytes(id)).map(<[u8]>::len).max().unwrap_or(1)
    }

    /// All pieces of text in ascending order of id.
    pub fn texts(&self) -> impl Iterator<Item = (u32, &[u8])> {
        (0..self.len() as u32).filter_map(|id| Some((id, self.text(id)?)))
    }
}
