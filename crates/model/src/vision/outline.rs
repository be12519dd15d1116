//! Reads the structure of a PNG, a JPEG or a WebP before it is decoded: its size, and that its end
//! is present.
//!
//! Decoders invent the rest of a truncated picture; a policy would then see grey instead of the
//! page.

/// Encodings that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageEncoding {
    Png,
    Jpeg,
    WebP,
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
        } else if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
            Some(Self::WebP)
        } else {
            None
        }
    }

    /// Follows the parts up to the end mark; `None` if the end is missing or no part has the size.
    pub(super) fn outline(self, bytes: &[u8]) -> Option<ImageOutline> {
        match self {
            Self::Png => png(bytes),
            Self::Jpeg => jpeg(bytes),
            Self::WebP => webp(bytes),
        }
    }

    /// Whether it holds several pictures, of which none is the page.
    pub(super) fn is_animated(self, bytes: &[u8]) -> bool {
        // The extended header, whose flags have a bit for it.
        self == Self::WebP
            && bytes.get(12..16) == Some(b"VP8X")
            && bytes.get(20).is_some_and(|flags| flags & 0x02 != 0)
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

/// A JPEG without its metadata, which decoders copy and join, and which changes no pixel. The
/// segments that name the colours stay. `bytes` has an outline.
pub(super) fn without_metadata(bytes: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(bytes.len());
    let mut from = 0;
    let mut at = 2;
    while let Some((kind, rest)) = bytes.get(at..).and_then(next_marker) {
        let data = bytes.len() - rest.len();
        if kind == EOI {
            break;
        }
        at = data + be16(rest, 0).unwrap_or(0);
        // Comments, and application data but for JFIF's and Adobe's.
        if matches!(kind, 0xfe | 0xe1..=0xed | 0xef) {
            kept.extend_from_slice(&bytes[from..data - 2]);
            from = at;
        }
    }
    kept.extend_from_slice(bytes.get(from..).unwrap_or_default());
    kept
}

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

/// Chunks of `kind, length, data`, padded to even lengths, up to the length in the first header.
/// One holds the picture. An extended header before it repeats its size.
fn webp(bytes: &[u8]) -> Option<ImageOutline> {
    let length = le32(bytes, 4)?;
    let mut rest = bytes.get(12..length.checked_add(8)?)?;
    let mut canvas = None;
    let mut picture = None;
    while !rest.is_empty() {
        let (head, after) = rest.split_at_checked(8)?;
        let length = le32(head, 4)?;
        let data = after.get(..length)?;
        match &head[..4] {
            b"VP8X" if canvas.is_none() => {
                canvas = Some(ImageOutline { width: le24(data, 4)? + 1, height: le24(data, 7)? + 1 });
            }
            b"VP8 " if picture.is_none() => picture = Some(lossy(data)?),
            b"VP8L" if picture.is_none() => picture = Some(lossless(data)?),
            _ => {}
        }
        // The last chunk may lack its padding.
        rest = after.get(length + length % 2..).unwrap_or_default();
    }
    picture.filter(|picture| canvas.is_none_or(|canvas| canvas == *picture))
}

/// The header of a key frame: three bytes, a mark, and sides of 14 bits.
fn lossy(data: &[u8]) -> Option<ImageOutline> {
    let is_key_frame = data.first()? & 1 == 0 && data.get(3..6)? == [0x9d, 0x01, 0x2a];
    let side = |at| Some(usize::from(u16::from_le_bytes(*data.get(at..)?.first_chunk()?) & 0x3fff));
    Some(ImageOutline { width: side(6)?, height: side(8)? }).filter(|_| is_key_frame)
}

/// A mark, and sides less one of 14 bits.
fn lossless(data: &[u8]) -> Option<ImageOutline> {
    let sides = le32(data, 1)?;
    let outline = ImageOutline { width: (sides & 0x3fff) + 1, height: (sides >> 14 & 0x3fff) + 1 };
    Some(outline).filter(|_| data.first() == Some(&0x2f))
}

fn le24(bytes: &[u8], at: usize) -> Option<usize> {
    let [low, middle, high] = *bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes([low, middle, high, 0]) as usize)
}

fn le32(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?) as usize)
}

fn be16(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?)))
}

fn be32(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?) as usize)
}
