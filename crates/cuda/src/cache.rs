//! Stores machine code on disk, so that a second start compiles nothing.
//!
//! A file's name is the SHA-256 of everything that determines its contents: compiler version,
//! options, headers, source. The file has the SHA-256 of the rest, the log's length (u64,
//! little-endian), the log and the image. It is first written under another name. A file whose hash
//! does not match is compiled anew: no file is trusted because of its name.

use std::path::{Path, PathBuf};
use std::{fs, io, process};

use sha2::{Digest, Sha256};

use crate::compile::{CompileError, Cubin, KernelCompiler, options};
use crate::device::CompileTarget;
use crate::sources::{HEADERS, KernelSource};

const DIGEST: usize = 32;

/// A compiler and the folder that stores its output.
#[derive(Debug, Clone)]
pub struct KernelCache {
    compiler: KernelCompiler,
    folder: PathBuf,
}

/// Why there is no machine code.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// It could not be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// It could not be stored.
    #[error("{} could not be written", path.display())]
    Write { path: PathBuf, source: io::Error },
}

impl KernelCache {
    /// Stores the output of this compiler in `folder`, which is created when needed.
    pub fn new(compiler: KernelCompiler, folder: impl Into<PathBuf>) -> Self {
        Self { compiler, folder: folder.into() }
    }

    /// A file's machine code: stored, or compiled and then stored.
    pub fn get(&self, source: KernelSource<'_>, target: CompileTarget) -> Result<Cubin, CacheError> {
        let path = self.path(source, target);
        if let Some(cubin) = fs::read(&path).ok().and_then(|bytes| decode(&bytes)) {
            return Ok(cubin);
        }
        let cubin = self.compiler.compile(source, target)?;
        self.keep(&path, &encode(&cubin)).map_err(|source| CacheError::Write { path, source })?;
        Ok(cubin)
    }

    /// Path of a file's stored machine code.
    pub fn path(&self, source: KernelSource<'_>, target: CompileTarget) -> PathBuf {
        let (major, minor) = self.compiler.version();
        let mut key = Sha256::new();
        let mut part = |text: &str| {
            key.update((text.len() as u64).to_le_bytes());
            key.update(text);
        };
        part(&format!("furrow cubin 1, nvrtc {major}.{minor}"));
        options(target, (major, minor)).iter().for_each(|option| part(option));
        for KernelSource { name, text } in HEADERS.iter().copied().chain([source]) {
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
    fn cached_code_is_read_back_and_damaged_code_is_compiled_anew() {
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
