//! The header of a Parquet page, in Thrift's compact form: the library that reads the pages keeps
//! its own to itself.

/// What a header says of its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageHeader {
    pub kind: PageKind,
    /// Whether the page is an index, which readers skip.
    pub is_index: bool,
    /// Bytes of the page in the file.
    pub packed: u64,
    pub unpacked: u64,
    /// Values, nulls included; of a dictionary its entries.
    pub values: u64,
    /// Whether values are indices of the dictionary's entries.
    pub is_dictionary_coded: bool,
    /// Whether a value may be a part of the one before it.
    pub is_prefix_coded: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageKind {
    Dictionary,
    Values,
}

/// Kinds of pages, as the format numbers them.
const INDEX_PAGE: i64 = 1;
const DICTIONARY_PAGE: i64 = 2;
/// How values are written, as the format numbers it.
const PLAIN_DICTIONARY: i64 = 2;
const DELTA_BYTE_ARRAY: i64 = 7;
const RLE_DICTIONARY: i64 = 8;
/// Structures within structures; the format has three.
const DEPTH_MAX: usize = 8;

impl PageHeader {
    /// The header at the start of some bytes, and its length; `None` where they end too early or
    /// are none.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let mut reader = CompactReader { rest: bytes };
        let mut kind = None;
        let mut unpacked = None;
        let mut packed = None;
        let mut values = 0;
        let mut encodings = Vec::new();
        let mut last = 0;
        while let Some(field) = reader.field(&mut last)? {
            match (field.id, field.kind) {
                (1, INT) => kind = Some(reader.int()?),
                (2, INT) => unpacked = Some(reader.int()?),
                (3, INT) => packed = Some(reader.int()?),
                (5 | 7 | 8, STRUCT) => {
                    let encoding_id = if field.id == 8 { 4 } else { 2 };
                    let mut last = 0;
                    while let Some(inner) = reader.field(&mut last)? {
                        match (inner.id, inner.kind) {
                            (1, INT) => values = values.max(u64::try_from(reader.int()?).ok()?),
                            (id, INT) if id == encoding_id => encodings.push(reader.int()?),
                            (_, kind) => reader.skip(kind, 1)?,
                        }
                    }
                }
                (_, kind) => reader.skip(kind, 0)?,
            }
        }
        let is_coded = |codes: &[i64]| encodings.iter().any(|encoding| codes.contains(encoding));
        let header = Self {
            kind: if kind? == DICTIONARY_PAGE { PageKind::Dictionary } else { PageKind::Values },
            is_index: kind? == INDEX_PAGE,
            packed: u64::try_from(packed?).ok()?,
            unpacked: u64::try_from(unpacked?).ok()?,
            values,
            is_dictionary_coded: is_coded(&[PLAIN_DICTIONARY, RLE_DICTIONARY]),
            is_prefix_coded: is_coded(&[DELTA_BYTE_ARRAY]),
        };
        Some((header, bytes.len() - reader.rest.len()))
    }
}

/// Types of the compact form.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const INT16: u8 = 4;
const INT: u8 = 5;
const INT64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const STRUCT: u8 = 12;

struct CompactReader<'a> {
    rest: &'a [u8],
}

struct CompactField {
    id: i64,
    kind: u8,
}

impl CompactReader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn int(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// The next field; `Some(None)` at the end of a structure.
    fn field(&mut self, last: &mut i64) -> Option<Option<CompactField>> {
        let head = self.byte()?;
        let kind = head & 0x0f;
        if kind == 0 {
            return Some(None);
        }
        let step = i64::from(head >> 4);
        *last = if step == 0 { self.int()? } else { *last + step };
        Some(Some(CompactField { id: *last, kind }))
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        match kind {
            _ if depth > DEPTH_MAX => return None,
            TRUE | FALSE => {}
            BYTE => drop(self.byte()?),
            INT16 | INT | INT64 => drop(self.varint()?),
            DOUBLE => self.rest = self.rest.get(8..)?,
            BINARY => {
                let length = usize::try_from(self.varint()?).ok()?;
                self.rest = self.rest.get(length..)?;
            }
            LIST | SET => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                for _ in 0..count {
                    // A truth value in a list takes a byte.
                    match head & 0x0f {
                        TRUE | FALSE => drop(self.byte()?),
                        kind => self.skip(kind, depth + 1)?,
                    }
                }
            }
            STRUCT => {
                let mut last = 0;
                while let Some(field) = self.field(&mut last)? {
                    self.skip(field.kind, depth + 1)?;
                }
            }
            _ => return None,
        }
        Some(())
    }
}
