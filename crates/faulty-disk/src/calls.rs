//! Finds the disk that a call is about. Other calls go to the system as they are.

use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use libc::{c_int, c_uint, mode_t, off64_t};

use crate::raw::{self, Outcome};
use crate::shared::{Node, SharedDisk, WriteAt};

/// The disks in use.
static DISKS: RwLock<Vec<Arc<SharedDisk>>> = RwLock::new(Vec::new());
static DISKS_COUNT: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn register(disk: &Arc<SharedDisk>) {
    let mut disks = DISKS.write().unwrap_or_else(PoisonError::into_inner);
    disks.push(Arc::clone(disk));
    DISKS_COUNT.store(disks.len(), Ordering::Release);
}

pub(crate) fn unregister(disk: &Arc<SharedDisk>) {
    let mut disks = DISKS.write().unwrap_or_else(PoisonError::into_inner);
    disks.retain(|other| !Arc::ptr_eq(other, disk));
    DISKS_COUNT.store(disks.len(), Ordering::Release);
}

/// The first disk for which `look` finds something.
fn find<T>(look: impl Fn(&SharedDisk) -> Option<T>) -> Option<(Arc<SharedDisk>, T)> {
    if DISKS_COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let disks = DISKS.read().unwrap_or_else(PoisonError::into_inner);
    disks.iter().find_map(|disk| Some((Arc::clone(disk), look(disk)?)))
}

/// The disk and the name of a path, which must be absolute.
fn of_path(folder: c_int, path: &CStr) -> Option<(Arc<SharedDisk>, String)> {
    let path = path.to_bytes();
    if folder != libc::AT_FDCWD && !path.starts_with(b"/") {
        return None;
    }
    find(|disk| {
        let below = Path::new(std::ffi::OsStr::from_bytes(path)).strip_prefix(&disk.root).ok()?;
        let parts = below.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
        Some(parts.collect::<Vec<_>>().join("/"))
    })
}

fn of_descriptor(descriptor: c_int) -> Option<(Arc<SharedDisk>, Node)> {
    if DISKS_COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let facts = raw::facts(descriptor).filter(|facts| facts.is_file || facts.is_folder)?;
    find(|disk| disk.node(facts.number))
}

pub(crate) fn is_on_disk(descriptor: c_int) -> bool {
    of_descriptor(descriptor).is_some()
}

pub(crate) fn open(folder: c_int, path: &CStr, flags: c_int, mode: mode_t) -> Outcome<c_int> {
    let changes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & (libc::O_CREAT | libc::O_TRUNC) != 0;
    match of_path(folder, path).filter(|_| changes) {
        Some((disk, name)) => disk.open(&name, path, flags, mode),
        None => raw::open(folder, path, flags, mode),
    }
}

pub(crate) fn write(descriptor: c_int, to: WriteAt, bytes: &[u8]) -> Outcome<usize> {
    match (of_descriptor(descriptor), to) {
        (Some((disk, Node::File(file))), _) => disk.write(file, descriptor, to, bytes),
        (_, WriteAt::Position) => raw::write(descriptor, bytes),
        (_, WriteAt::Offset(at)) => raw::write_at(descriptor, bytes, at),
    }
}

pub(crate) fn truncate(descriptor: c_int, length: off64_t) -> Outcome<()> {
    match of_descriptor(descriptor) {
        Some((disk, Node::File(file))) => disk.truncate(file, descriptor, length),
        _ => raw::truncate(descriptor, length),
    }
}

pub(crate) fn sync(descriptor: c_int, is_data_only: bool) -> Outcome<()> {
    match of_descriptor(descriptor) {
        Some((disk, node)) => disk.sync(&node),
        None => raw::sync(descriptor, is_data_only),
    }
}

pub(crate) fn make_folder(folder: c_int, path: &CStr, mode: mode_t) -> Outcome<()> {
    match of_path(folder, path).filter(|(_, name)| !name.is_empty()) {
        Some((disk, name)) => disk.make_folder(&name, path, mode),
        None => raw::make_folder(folder, path, mode),
    }
}

pub(crate) fn unlink(folder: c_int, path: &CStr, flags: c_int) -> Outcome<()> {
    match of_path(folder, path).filter(|(_, name)| !name.is_empty()) {
        Some((disk, name)) => disk.unlink(&name, path, flags),
        None => raw::unlink(folder, path, flags),
    }
}

pub(crate) fn link(from: (c_int, &CStr), to: (c_int, &CStr), flags: c_int) -> Outcome<()> {
    match (of_path(from.0, from.1), of_path(to.0, to.1)) {
        (Some((disk, old)), Some((_, new))) => disk.link((&old, from.1), (&new, to.1)),
        _ => raw::link(from, to, flags),
    }
}

pub(crate) fn rename(from: (c_int, &CStr), to: (c_int, &CStr), flags: c_uint) -> Outcome<()> {
    match (of_path(from.0, from.1), of_path(to.0, to.1)) {
        (Some((disk, old)), Some((_, new))) => disk.rename((&old, from.1), (&new, to.1), flags),
        _ => raw::rename(from, to, flags),
    }
}
