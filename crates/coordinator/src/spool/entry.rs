//! Layout of an entry in a spool file.
//!
//! ```text
//! magic "FSP1" · kind u8 · 3 zeros · step u32 · length u32 · digest [32] · crc32 u32 · payload
//! ```
//! Numbers are little-endian; the CRC covers the 48 bytes before it and the payload. The digest is
//! the sender's SHA-256 of the payload. The CRC detects a torn write, the digest a damaged message.

use std::fmt;

use bytes::Bytes;

/// Largest payload: a step is a screenshot and its trace; 64 MiB is a hundred times the largest one
/// measured.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// Bytes before the payload.
pub(super) const HEADER_BYTES: usize = 52;

pub(super) const MAGIC: &[u8; 4] = b"FSP1";
const STEP: u8 = 1;
const END: u8 = 2;
const CRC_AT: usize = 48;

/// Identifies an entry of a trajectory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKey {
    /// A step, counted from 0.
    Step(u32),
    End,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolEntry {
    pub key: EntryKey,
    /// SHA-256 of the payload.
    pub digest: [u8; 32],
    /// The message as it arrived.
    pub payload: Bytes,
}

/// The fixed part of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryHeader {
    pub key: EntryKey,
    pub length: u32,
    pub digest: [u8; 32],
    crc: u32,
    crc_of_header: u32,
}

impl SpoolEntry {
    /// The header to write in front of the payload.
    pub(super) fn header(&self) -> [u8; HEADER_BYTES] {
        let (kind, step) = match self.key {
            EntryKey::Step(step) => (STEP, step),
            EntryKey::End => (END, 0),
        };
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(MAGIC);
        header[4] = kind;
        header[8..12].copy_from_slice(&step.to_le_bytes());
        header[12..16].copy_from_slice(&(self.payload.len() as u32).to_le_bytes());
        header[16..CRC_AT].copy_from_slice(&self.digest);
        let mut crc = crc32fast::Hasher::new();
        crc.update(&header[..CRC_AT]);
        crc.update(&self.payload);
        header[CRC_AT..].copy_from_slice(&crc.finalize().to_le_bytes());
        header
    }
}

impl EntryHeader {
    /// Reads it back; `None` when these bytes cannot be a header.
    pub(super) fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let key = match (bytes[4], number(8)) {
            (STEP, step) => EntryKey::Step(step),
            (END, 0) => EntryKey::End,
            _ => return None,
        };
        let length = number(12);
        let plausible = &bytes[..4] == MAGIC && bytes[5..8] == [0; 3] && length as usize <= PAYLOAD_BYTES_MAX;
        let digest = bytes[16..CRC_AT].try_into().ok()?;
        let crc_of_header = crc32fast::hash(&bytes[..CRC_AT]);
        plausible.then_some(Self { key, length, digest, crc: number(CRC_AT), crc_of_header })
    }

    /// A running CRC that already covers the header; feed it the payload.
    pub(super) fn crc(&self) -> crc32fast::Hasher {
        crc32fast::Hasher::new_with_initial_len(self.crc_of_header, CRC_AT as u64)
    }

    /// Whether the computed CRC equals the recorded one.
    pub(super) fn agrees(&self, crc: crc32fast::Hasher) -> bool {
        crc.finalize() == self.crc
    }
}

impl fmt::Display for EntryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EntryKey::Step(step) => write!(f, "step {step}"),
            EntryKey::End => f.write_str("the ending"),
        }
    }
}
