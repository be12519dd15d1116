//! Reads the structure of a PNG or a JPEG before it is decoded: its size, and that its end is
//! present.
//!
//! Decoders invent the rest of a truncated picture; a policy would then see grey instead of the
//! page.

/// Encodings that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageEncoding {
    Png,
    Jpeg,
}

/// Size and structure of an encoded image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ImageOutline {
    pub width: usize,
    pub height: usize,
}

const PNG_SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

impl ImageEncoding {
    /// Detects the encoding from the first bytes.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        if bytes.starts_with(PNG_SIGNATURE) {
            Some(Self::Png)
        } else if bytes.starts_with(&[0xff, 0xd8, 0xff]) {
            Some(Self::Jpeg)
        } else {
            None
        }
    }

    /// Follows the parts up to the end mark; `None` if the end is missing or no part has the size.
    pub(super) fn outline(self, bytes: &[u8]) -> Option<ImageOutline> {
        match self {
            Self::Png => png(bytes),
            Self::Jpeg => jpeg(bytes),
        }
    }
}

/// Chunks of `length, type, data, CRC`; the first is IHDR, the last IEND.
fn png(bytes: &[u8]) -> Option<ImageOutline> {
    let mut rest = bytes.get(PNG_SIGNATURE.len()..)?;
    let mut outline = None;
    loop {
        let (length, chunk) = rest.split_first_chunk::<4>()?;
        let length = u32::from_be_bytes(*length) as usize;
        let (data, after) = chunk.get(4..)?.split_at_checked(length)?;
        rest = after.get(4..)?;
        match &chunk[..4] {
            b"IHDR" => {
                outline = outline.or(Some(ImageOutline { width: be32(data, 0)?, height: be32(data, 4)? }));
            }
            b"IEND" => return outline,
            _ => {}
        }
    }
}

/// Markers of `ff, kind`, most followed by a length and data; after a scan header come data without
/// a length.
fn jpeg(bytes: &[u8]) -> Option<ImageOutline> {
    let mut rest = bytes.get(2..)?;
    let mut outline = None;
    loop {
        let kind;
        (kind, rest) = next_marker(rest)?;
        if kind == EOI {
            return outline;
        }
        let length = be16(rest, 0)?;
        let segment = rest.get(..length)?;
        rest = &rest[length..];
        if is_frame_header(kind) {
            outline = outline.or(Some(ImageOutline { width: be16(segment, 5)?, height: be16(segment, 3)? }));
        }
    }
}

const EOI: u8 = 0xd9;

/// Kind of the next marker and the bytes after it. Skips coded data (where ff is followed by 0),
/// restart marks and fill bytes.
fn next_marker(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let is_marker = |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0x00 | 0x01 | 0xd0..=0xd7 | 0xff);
    let at = bytes.windows(2).position(is_marker)?;
    Some((bytes[at + 1], &bytes[at + 2..]))
}

/// SOF0 to SOF15 without the tables and marks that share their range.
fn is_frame_header(kind: u8) -> bool {
    matches!(kind, 0xc0..=0xcf) && !matches!(kind, 0xc4 | 0xc8 | 0xcc)
}

fn be16(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?)))
}

fn be32(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?) as usize)
}
