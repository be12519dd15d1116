//! Machine code kept on disk, so that a second start compiles nothing.
//!
//! A file's name is SHA-256 over all that decides its content: compiler version, options, headers, source. It holds the SHA-256 of what follows,
//! the log's length (u64, little-endian), the log, the image. It is written under another name first, and one that does not check is
//! compiled anew: nothing here is trusted because it lies there.

use std::path::{Path, PathBuf};
use std::{fs, io, process};

use sha2::{Digest, Sha256};

use crate::compile::{CompileError, Compiler, Cubin, options};
use crate::device::Target;
use crate::sources::{HEADERS, Source};

const DIGEST: usize = 32;

/// A compiler and the folder that remembers what it made.
#[derive(Debug, Clone)]
pub struct Cache {
    compiler: Compiler,
    folder: PathBuf,
}

/// Why there is no machine code.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// It could not be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// It could not be kept.
    #[error("{} could not be written", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Cache {
    /// Keeps what this compiler makes in `folder`, which is made when it is needed.
    pub fn new(compiler: Compiler, folder: impl Into<PathBuf>) -> Self {
        Self { compiler, folder: folder.into() }
    }

    /// A file's machine code: kept, or compiled and kept.
    pub fn get(&self, source: Source<'_>, target: Target) -> Result<Cubin, CacheError> {
        let path = self.path(source, target);
        if let Some(cubin) = fs::read(&path).ok().and_then(|bytes| decode(&bytes)) {
            return Ok(cubin);
        }
        let cubin = self.compiler.compile(source, target)?;
        self.keep(&path, &encode(&cubin)).map_err(|source| CacheError::Write { path, source })?;
        Ok(cubin)
    }

    /// Where a file's machine code is kept.
    pub fn path(&self, source: Source<'_>, target: Target) -> PathBuf {
        let (major, minor) = self.compiler.version();
        let mut key = Sha256::new();
        let mut part = |text: &str| {
            key.update((text.len() as u64).to_le_bytes());
            key.update(text);
        };
        part(&format!("furrow cubin 1, nvrtc {major}.{minor}"));
        options(target, (major, minor)).iter().for_each(|option| part(option));
        for Source { name, text } in HEADERS.iter().copied().chain([source]) {
            part(name);
            part(text);
        }
        let hex: String = key.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(format!("{hex}.cubin"))
    }

    fn keep(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let unfinished = path.with_extension(format!("{}.tmp", process::id()));
        fs::write(&unfinished, bytes)?;
        fs::rename(&unfinished, path)
    }
}

fn encode(cubin: &Cubin) -> Vec<u8> {
    let mut bytes = vec![0; DIGEST];
    bytes.extend((cubin.log.len() as u64).to_le_bytes());
    bytes.extend(cubin.log.as_bytes());
    bytes.extend(&cubin.image);
    let digest = Sha256::digest(&bytes[DIGEST..]);
    bytes[..DIGEST].copy_from_slice(&digest);
    bytes
}

fn decode(bytes: &[u8]) -> Option<Cubin> {
    let (digest, rest) = bytes.split_at_checked(DIGEST)?;
    if Sha256::digest(rest)[..] != *digest {
        return None;
    }
    let (length, rest) = rest.split_first_chunk()?;
    let (log, image) = rest.split_at_checked(u64::from_le_bytes(*length).try_into().ok()?)?;
    Some(Cubin { image: image.to_vec(), log: String::from_utf8(log.to_vec()).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_back_and_what_is_damaged_is_not() {
        let cubin = Cubin { image: vec![0x7f, b'E', b'L', b'F', 0], log: "Used 40 registers".to_owned() };
        let bytes = encode(&cubin);
        assert_eq!(decode(&bytes), Some(cubin));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged), None, "byte {at}");
            assert_eq!(decode(&bytes[..at]), None, "cut at {at}");
        }
        assert_eq!(decode(&[]), None);
    }
}
