//! The only memory maps: weight files, read-only. A checkpoint larger than memory can be inspected,
//! and no weights are copied twice.
//!
//! Reading a mapped page that its file no longer has raises SIGBUS, which ends a process. A trainer
//! that truncates a published file, or a disk that fails, must not end the sessions of a policy
//! worker. So the first map installs a handler: where the address lies in one of these maps, it
//! maps zeros over the rest of the map and marks it as damaged. Code that has read weights asks
//! [`MappedFile::is_damaged`] before it uses them. Every other SIGBUS acts as before.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use memmap2::Mmap;

/// Most maps at once. The handler walks the table, because it may not lock or allocate.
pub(super) const MAPS_MAX: usize = 8192;

static MAPS: [MapEntry; MAPS_MAX] = [const { MapEntry::empty() }; MAPS_MAX];

/// A map that the handler knows. `start` is 0 in a free entry and is set last.
struct MapEntry {
    taken: AtomicBool,
    start: AtomicUsize,
    bytes: AtomicUsize,
    damaged: AtomicBool,
}

impl MapEntry {
    const fn empty() -> Self {
        Self {
            taken: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            damaged: AtomicBool::new(false),
        }
    }
}

/// A weight file whose bytes are read from its pages on demand.
#[derive(Debug)]
pub(super) struct MappedFile {
    map: Mmap,
    entry: usize,
}

impl MappedFile {
    /// Maps a file as long as it is now.
    pub(super) fn new(file: &File) -> io::Result<Self> {
        install_handler()?;
        let free = |entry: &MapEntry| !entry.taken.swap(true, Ordering::AcqRel);
        let entry = MAPS.iter().position(free);
        let entry = entry.ok_or_else(|| io::Error::other(format!("{MAPS_MAX} files are mapped already")))?;
        // SAFETY: the map is never written through. Should the file shrink, the handler keeps
        // every address of the map readable; its bytes are then refused by `is_damaged`.
        let map = match unsafe { Mmap::map(file) } {
            Ok(map) => map,
            Err(error) => {
                MAPS[entry].taken.store(false, Ordering::Release);
                return Err(error);
            }
        };
        MAPS[entry].damaged.store(false, Ordering::Relaxed);
        MAPS[entry].bytes.store(map.len(), Ordering::Relaxed);
        MAPS[entry].start.store(map.as_ptr() as usize, Ordering::Release);
        Ok(Self { map, entry })
    }

    /// Whether some byte that was read so far was not the file's.
    pub(super) fn is_damaged(&self) -> bool {
        MAPS[self.entry].damaged.load(Ordering::Acquire)
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // The addresses are still those of this map: it is unmapped after this.
        MAPS[self.entry].start.store(0, Ordering::Release);
        MAPS[self.entry].taken.store(false, Ordering::Release);
    }
}

/// Installs the handler once. SIGBUS acts on the thread that read the page, on its own stack.
fn install_handler() -> io::Result<()> {
    static INSTALLED: OnceLock<Option<i32>> = OnceLock::new();
    let failed = INSTALLED.get_or_init(|| {
        // SAFETY: `action` is all zeros but for the fields set, which is a valid value of it; the
        // handler calls nothing but mmap and atomics.
        let status = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut())
        };
        (status != 0).then(|| io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))
    });
    failed.map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(code)))
}

/// The smallest page of the supported processors. Where pages are larger, mmap refuses an address
/// between two of them, and the signal acts as before.
const PAGE_BYTES: usize = 4096;

extern "C" fn on_bus_error(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `info` to a handler with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() } as usize;
    let page = address & !(PAGE_BYTES - 1);
    for entry in &MAPS {
        let start = entry.start.load(Ordering::Acquire);
        let bytes = entry.bytes.load(Ordering::Relaxed);
        if start == 0 || address < start || address - start >= bytes {
            continue;
        }
        entry.damaged.store(true, Ordering::Release);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: from this page to the end of a map that exists and that only `MappedFile` reads;
        // its drop unmaps the same addresses.
        let zeros = unsafe {
            libc::mmap(page as *mut libc::c_void, start + bytes - page, libc::PROT_READ, flags, -1, 0)
        };
        if zeros != libc::MAP_FAILED {
            return;
        }
    }
    // SAFETY: resetting an action is allowed in a handler; the instruction faults again and ends
    // the process as it would have without a handler.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file_of(pages: usize) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; pages * PAGE_BYTES + 100]).unwrap();
        file
    }

    #[test]
    fn a_file_that_is_cut_while_mapped_is_damaged_and_ends_nothing() {
        let file = file_of(64);
        let other = MappedFile::new(&file_of(2)).unwrap();
        let map = MappedFile::new(&file).unwrap();
        assert_eq!(map[40 * PAGE_BYTES], 7);
        assert!(!map.is_damaged());
        file.set_len(10 * PAGE_BYTES as u64).unwrap();
        assert_eq!(map[9 * PAGE_BYTES], 7);
        assert!(!map.is_damaged(), "no byte was read that is gone");
        let sum: u64 = map.iter().map(|byte| u64::from(*byte)).sum();
        assert_eq!(sum, 7 * 10 * PAGE_BYTES as u64, "zeros stand for what is gone");
        assert!(map.is_damaged());
        assert!(!other.is_damaged());
        assert_eq!(other[0], 7);
        drop(map);
        let again = MappedFile::new(&file_of(64)).unwrap();
        assert_eq!(again[63 * PAGE_BYTES], 7);
        assert!(!again.is_damaged(), "the entry was used before");
    }

    #[test]
    fn threads_may_meet_the_cut_together() {
        let file = file_of(256);
        let map = MappedFile::new(&file).unwrap();
        file.set_len(1).unwrap();
        std::thread::scope(|scope| {
            for first in 0..8 {
                let map = &map;
                scope.spawn(move || {
                    let sum: u64 =
                        map.iter().skip(first * 32 * PAGE_BYTES).map(|byte| u64::from(*byte)).sum();
                    assert!(sum <= 7 * PAGE_BYTES as u64);
                });
            }
        });
        assert!(map.is_damaged());
    }
}
