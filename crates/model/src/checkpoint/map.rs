//! The one memory map: a shard, read-only, so that a checkpoint larger than memory can be looked at and is never copied twice.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// Maps a whole file.
pub(super) fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is never written through. That nobody changes or shortens the file while it is mapped cannot be proved here: it is
    // what `Checkpoint::open` asks of its caller, and what publishing a checkpoint under a new name, never over an old one, gives.
    unsafe { Mmap::map(file) }
}
