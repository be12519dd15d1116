//! Reads the entries of one spool file back and checks each against its CRC and its digest.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use furrow_rollout::{Id, Trajectory};
use sha2::{Digest, Sha256};

use super::entry::{EntryHeader, EntryKey, HEADER_BYTES, SpoolEntry};
use super::error::{SpoolError, storage};
use super::files::path_of;

/// The entries of a trajectory in the order they were acknowledged.
#[derive(Debug)]
pub struct SpoolReader {
    path: PathBuf,
    file: Option<BufReader<File>>,
    offset: u64,
    extent: u64,
}

impl SpoolReader {
    /// Opens the first `extent` bytes: what was durable when they were measured.
    pub(super) fn open(dir: &Path, trajectory: &Id<Trajectory>, extent: u64) -> Result<Self, SpoolError> {
        let path = path_of(dir, trajectory);
        let file = match extent {
            0 => None,
            _ => {
                let opened = furrow_storage::open(&path, OpenOptions::new().read(true));
                Some(opened.map_err(|error| storage("open", &path, error))?)
            }
        };
        Ok(Self { path, file: file.map(BufReader::new), offset: 0, extent })
    }

    /// Bytes of all entries, headers included.
    pub fn bytes(&self) -> u64 {
        self.extent
    }

    /// The newest step: the last entry, or the one before the ending.
    pub(super) fn last_step(mut self) -> Result<Option<SpoolEntry>, SpoolError> {
        let mut last = None;
        while self.offset < self.extent {
            let at = self.offset;
            let header = self.header()?;
            if matches!(header.key, EntryKey::Step(_)) {
                last = Some(at);
            }
            self.pass_over(&header)?;
        }
        let Some(at) = last else { return Ok(None) };
        if let Some(file) = &mut self.file {
            file.seek(SeekFrom::Start(at)).map_err(|error| storage("read", &self.path, error))?;
        }
        self.offset = at;
        let header = self.header()?;
        self.payload(&header).map(Some)
    }

    fn header(&mut self) -> Result<EntryHeader, SpoolError> {
        let mut bytes = [0; HEADER_BYTES];
        self.fill(&mut bytes)?;
        EntryHeader::parse(&bytes).ok_or_else(|| self.damaged("no entry begins here"))
    }

    fn pass_over(&mut self, header: &EntryHeader) -> Result<(), SpoolError> {
        let Some(file) = &mut self.file else { return Err(self.damaged("the file is gone")) };
        file.seek_relative(i64::from(header.length)).map_err(|error| storage("read", &self.path, error))?;
        self.offset += HEADER_BYTES as u64 + u64::from(header.length);
        Ok(())
    }

    fn payload(&mut self, header: &EntryHeader) -> Result<SpoolEntry, SpoolError> {
        // A torn entry claims any length: nothing is allocated for what is not there.
        if self.offset + HEADER_BYTES as u64 + u64::from(header.length) > self.extent {
            return Err(self.damaged("the file is cut"));
        }
        let mut payload = vec![0; header.length as usize];
        self.fill(&mut payload)?;
        let mut crc = header.crc();
        crc.update(&payload);
        if !header.agrees(crc) {
            return Err(self.damaged("the CRC is another"));
        }
        if <[u8; 32]>::from(Sha256::digest(&payload)) != header.digest {
            return Err(self.damaged("the digest is another"));
        }
        self.offset += (HEADER_BYTES + payload.len()) as u64;
        Ok(SpoolEntry { key: header.key, digest: header.digest, payload: Bytes::from(payload) })
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), SpoolError> {
        let Some(file) = &mut self.file else { return Err(self.damaged("the file is gone")) };
        match file.read_exact(bytes) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.damaged("the file is cut"))
            }
            Err(error) => Err(storage("read", &self.path, error)),
        }
    }

    fn damaged(&self, why: &'static str) -> SpoolError {
        SpoolError::Damaged { path: self.path.clone(), offset: self.offset, why }
    }
}

impl Iterator for SpoolReader {
    type Item = Result<SpoolEntry, SpoolError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.extent {
            return None;
        }
        let entry = self.header().and_then(|header| self.payload(&header));
        if entry.is_err() {
            self.extent = self.offset; // nothing after an unreadable entry can be located
        }
        Some(entry)
    }
}
