//! The system's own calls, below the C functions that this crate replaces.
#![expect(unsafe_code, reason = "calls of the system")]

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;

use libc::{c_char, c_int, c_long, c_uint, iovec, mode_t, off64_t, stat64};

/// A call's result: a number, or the error of the system.
pub(crate) type Outcome<T> = Result<T, c_int>;

/// What is known of a file or a folder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileFacts {
    pub number: u64,
    pub length: u64,
    pub is_file: bool,
    pub is_folder: bool,
}

/// Sets `errno` and returns what a C function returns then.
pub(crate) fn failure(error: c_int) -> c_int {
    // SAFETY: the location is this thread's own, and lives as long as the thread.
    unsafe { *libc::__errno_location() = error };
    -1
}

fn outcome(result: c_long) -> Outcome<c_long> {
    // SAFETY: the location is this thread's own, and lives as long as the thread.
    if result < 0 { Err(unsafe { *libc::__errno_location() }) } else { Ok(result) }
}

pub(crate) fn open(folder: c_int, path: &CStr, flags: c_int, mode: mode_t) -> Outcome<c_int> {
    // SAFETY: the path ends in a zero and lives until the call returns.
    let result = unsafe { libc::syscall(libc::SYS_openat, folder, path.as_ptr(), flags, c_uint::from(mode)) };
    outcome(result).map(|descriptor| descriptor as c_int)
}

pub(crate) fn close(descriptor: c_int) {
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_close, descriptor) };
}

pub(crate) fn write(descriptor: c_int, bytes: &[u8]) -> Outcome<usize> {
    // SAFETY: the bytes live until the call returns.
    let result = unsafe { libc::syscall(libc::SYS_write, descriptor, bytes.as_ptr(), bytes.len()) };
    outcome(result).map(|count| count as usize)
}

pub(crate) fn write_at(descriptor: c_int, bytes: &[u8], at: off64_t) -> Outcome<usize> {
    // SAFETY: the bytes live until the call returns.
    let result = unsafe { libc::syscall(libc::SYS_pwrite64, descriptor, bytes.as_ptr(), bytes.len(), at) };
    outcome(result).map(|count| count as usize)
}

/// Writes several pieces of memory.
///
/// # Safety
/// `pieces` must point to `count` valid pieces.
pub(crate) unsafe fn write_pieces(descriptor: c_int, pieces: *const iovec, count: c_int) -> Outcome<usize> {
    // SAFETY: the caller vouches for the pieces.
    let result = unsafe { libc::syscall(libc::SYS_writev, descriptor, pieces, count) };
    outcome(result).map(|count| count as usize)
}

pub(crate) fn sync(descriptor: c_int, is_data_only: bool) -> Outcome<()> {
    let call = if is_data_only { libc::SYS_fdatasync } else { libc::SYS_fsync };
    // SAFETY: no memory is passed.
    outcome(unsafe { libc::syscall(call, descriptor) }).map(drop)
}

pub(crate) fn truncate(descriptor: c_int, length: off64_t) -> Outcome<()> {
    // SAFETY: no memory is passed.
    outcome(unsafe { libc::syscall(libc::SYS_ftruncate, descriptor, length) }).map(drop)
}

pub(crate) fn make_folder(folder: c_int, path: &CStr, mode: mode_t) -> Outcome<()> {
    // SAFETY: the path ends in a zero and lives until the call returns.
    let result = unsafe { libc::syscall(libc::SYS_mkdirat, folder, path.as_ptr(), c_uint::from(mode)) };
    outcome(result).map(drop)
}

pub(crate) fn unlink(folder: c_int, path: &CStr, flags: c_int) -> Outcome<()> {
    // SAFETY: the path ends in a zero and lives until the call returns.
    outcome(unsafe { libc::syscall(libc::SYS_unlinkat, folder, path.as_ptr(), flags) }).map(drop)
}

pub(crate) fn link(from: (c_int, &CStr), to: (c_int, &CStr), flags: c_int) -> Outcome<()> {
    // SAFETY: the paths end in a zero and live until the call returns.
    let result =
        unsafe { libc::syscall(libc::SYS_linkat, from.0, from.1.as_ptr(), to.0, to.1.as_ptr(), flags) };
    outcome(result).map(drop)
}

pub(crate) fn rename(from: (c_int, &CStr), to: (c_int, &CStr), flags: c_uint) -> Outcome<()> {
    // SAFETY: the paths end in a zero and live until the call returns.
    let result =
        unsafe { libc::syscall(libc::SYS_renameat2, from.0, from.1.as_ptr(), to.0, to.1.as_ptr(), flags) };
    outcome(result).map(drop)
}

/// Where the next write of a descriptor goes.
pub(crate) fn position(descriptor: c_int) -> u64 {
    // SAFETY: no memory is passed.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    if flags & libc::O_APPEND != 0 {
        return facts(descriptor).map_or(0, |facts| facts.length);
    }
    // SAFETY: no memory is passed.
    let position = unsafe { libc::lseek64(descriptor, 0, libc::SEEK_CUR) };
    u64::try_from(position).unwrap_or(0)
}

pub(crate) fn facts(descriptor: c_int) -> Option<FileFacts> {
    let mut found = MaybeUninit::<stat64>::uninit();
    // SAFETY: the buffer has the size of the structure.
    let result = unsafe { libc::fstat64(descriptor, found.as_mut_ptr()) };
    // SAFETY: a call that succeeds has filled the buffer.
    (result == 0).then(|| facts_of(unsafe { &*found.as_ptr() }))
}

/// The same of a name; a link is not followed.
pub(crate) fn facts_of_path(path: &CStr) -> Option<FileFacts> {
    let mut found = MaybeUninit::<stat64>::uninit();
    // SAFETY: the path ends in a zero, and the buffer has the size of the structure.
    let result = unsafe { libc::lstat64(path.as_ptr(), found.as_mut_ptr()) };
    // SAFETY: a call that succeeds has filled the buffer.
    (result == 0).then(|| facts_of(unsafe { &*found.as_ptr() }))
}

fn facts_of(found: &stat64) -> FileFacts {
    let kind = found.st_mode & libc::S_IFMT;
    FileFacts {
        number: found.st_ino,
        length: u64::try_from(found.st_size).unwrap_or(0),
        is_file: kind == libc::S_IFREG,
        is_folder: kind == libc::S_IFDIR,
    }
}

/// A C string of a call's argument; `None` for a null pointer.
///
/// # Safety
/// A pointer that is not null must lead to a string that ends in a zero and outlives the result.
pub(crate) unsafe fn text<'a>(path: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller vouches for the string.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
}

pub(crate) fn c_path(path: &[u8]) -> CString {
    CString::new(path).unwrap_or_default()
}
