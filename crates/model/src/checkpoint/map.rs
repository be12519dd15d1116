//! The only memory map: a shard, read-only. A checkpoint larger than memory can be inspected, and
//! no weights are copied twice.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use memmap2::Mmap;

pub(super) fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is never written through. This code cannot prove that the file does not
    // change or shrink while it is mapped: `Checkpoint::open` requires that of its caller, and a
    // checkpoint that is published under a new name, never over an old one, satisfies it.
    unsafe { Mmap::map(file) }
}
