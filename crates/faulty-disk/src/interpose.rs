//! The C functions that a program calls instead of the C library's: each passes its arguments on to
//! the function of the same name in `calls`, or to the system where no disk is in use.
#![expect(unsafe_code, reason = "functions that C code calls")]

use std::ffi::CStr;
use std::slice;

use libc::{c_char, c_int, c_uint, c_void, iovec, mode_t, off64_t, size_t, ssize_t};

use crate::calls;
use crate::raw::{self, Outcome, failure};
use crate::shared::WriteAt;

/// Refers to every function below, so that a linker that takes what is needed takes them all.
pub(crate) fn keep() {
    let functions: [*const (); 21] = [
        open as *const (),
        open64 as *const (),
        openat as *const (),
        openat64 as *const (),
        write as *const (),
        writev as *const (),
        pwrite as *const (),
        pwrite64 as *const (),
        fsync as *const (),
        fdatasync as *const (),
        ftruncate as *const (),
        ftruncate64 as *const (),
        mkdir as *const (),
        mkdirat as *const (),
        rmdir as *const (),
        unlink as *const (),
        unlinkat as *const (),
        link as *const (),
        linkat as *const (),
        rename as *const (),
        renameat as *const (),
    ];
    std::hint::black_box(functions);
}

fn code(outcome: Outcome<()>) -> c_int {
    outcome.map_or_else(failure, |()| 0)
}

fn count(outcome: Outcome<usize>) -> ssize_t {
    outcome.map_or_else(|error| failure(error) as ssize_t, |count| count as ssize_t)
}

/// Runs a call with a path; a null pointer is an error of the caller.
///
/// # Safety
/// As for [`raw::text`].
unsafe fn with_path(path: *const c_char, call: impl FnOnce(&CStr) -> c_int) -> c_int {
    // SAFETY: the caller vouches for the path.
    unsafe { raw::text(path) }.map_or_else(|| failure(libc::EFAULT), call)
}

/// # Safety
/// As for [`raw::text`], for both paths.
unsafe fn with_paths(
    from: *const c_char,
    to: *const c_char,
    call: impl FnOnce(&CStr, &CStr) -> c_int,
) -> c_int {
    // SAFETY: the caller vouches for the paths.
    unsafe { with_path(from, |from| with_path(to, |to| call(from, to))) }
}

// The mode is the third of variable arguments. It is passed as any third argument is, on every
// system that this crate supports; without it the value is not used.

#[unsafe(no_mangle)]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the same arguments.
    unsafe { openat(libc::AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the same arguments.
    unsafe { openat(libc::AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the same arguments.
    unsafe { openat(folder, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let call = |path: &CStr| calls::open(folder, path, flags, mode).unwrap_or_else(failure);
    // SAFETY: C code passes a string.
    unsafe { with_path(path, call) }
}

/// The bytes of a call.
///
/// # Safety
/// `bytes` must lead to `length` bytes that outlive the result, where `length` is not 0.
unsafe fn memory<'a>(bytes: *const c_void, length: size_t) -> &'a [u8] {
    match length {
        0 => &[],
        // SAFETY: the caller vouches for the memory.
        _ => unsafe { slice::from_raw_parts(bytes.cast(), length) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(descriptor: c_int, bytes: *const c_void, length: size_t) -> ssize_t {
    // SAFETY: C code passes that many bytes.
    let bytes = unsafe { memory(bytes, length) };
    count(calls::write(descriptor, WriteAt::Position, bytes))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(descriptor: c_int, bytes: *const c_void, length: size_t, at: off64_t) -> ssize_t {
    // SAFETY: C code passes that many bytes.
    let bytes = unsafe { memory(bytes, length) };
    count(calls::write(descriptor, WriteAt::Offset(at), bytes))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(
    descriptor: c_int,
    bytes: *const c_void,
    length: size_t,
    at: off64_t,
) -> ssize_t {
    // SAFETY: the same arguments.
    unsafe { pwrite(descriptor, bytes, length, at) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn writev(descriptor: c_int, pieces: *const iovec, pieces_count: c_int) -> ssize_t {
    if !calls::is_on_disk(descriptor) {
        // SAFETY: the same arguments.
        return count(unsafe { raw::write_pieces(descriptor, pieces, pieces_count) });
    }
    // SAFETY: C code passes that many pieces, each with its bytes.
    let pieces = unsafe { slice::from_raw_parts(pieces, usize::try_from(pieces_count).unwrap_or(0)) };
    let mut bytes = Vec::new();
    for piece in pieces {
        // SAFETY: as above.
        bytes.extend_from_slice(unsafe { memory(piece.iov_base, piece.iov_len) });
    }
    count(calls::write(descriptor, WriteAt::Position, &bytes))
}

#[unsafe(no_mangle)]
extern "C" fn fsync(descriptor: c_int) -> c_int {
    code(calls::sync(descriptor, false))
}

#[unsafe(no_mangle)]
extern "C" fn fdatasync(descriptor: c_int) -> c_int {
    code(calls::sync(descriptor, true))
}

#[unsafe(no_mangle)]
extern "C" fn ftruncate(descriptor: c_int, length: off64_t) -> c_int {
    code(calls::truncate(descriptor, length))
}

#[unsafe(no_mangle)]
extern "C" fn ftruncate64(descriptor: c_int, length: off64_t) -> c_int {
    code(calls::truncate(descriptor, length))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the same arguments.
    unsafe { mkdirat(libc::AT_FDCWD, path, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdirat(folder: c_int, path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: C code passes a string.
    unsafe { with_path(path, |path| code(calls::make_folder(folder, path, mode))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rmdir(path: *const c_char) -> c_int {
    // SAFETY: the same arguments.
    unsafe { unlinkat(libc::AT_FDCWD, path, libc::AT_REMOVEDIR) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: the same arguments.
    unsafe { unlinkat(libc::AT_FDCWD, path, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: C code passes a string.
    unsafe { with_path(path, |path| code(calls::unlink(folder, path, flags))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn link(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the same arguments.
    unsafe { linkat(libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn linkat(
    from_folder: c_int,
    from: *const c_char,
    to_folder: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    let call = |from: &CStr, to: &CStr| code(calls::link((from_folder, from), (to_folder, to), flags));
    // SAFETY: C code passes strings.
    unsafe { with_paths(from, to, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the same arguments.
    unsafe { renameat2(libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn renameat(
    from_folder: c_int,
    from: *const c_char,
    to_folder: c_int,
    to: *const c_char,
) -> c_int {
    // SAFETY: the same arguments.
    unsafe { renameat2(from_folder, from, to_folder, to, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn renameat2(
    from_folder: c_int,
    from: *const c_char,
    to_folder: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    let call = |from: &CStr, to: &CStr| code(calls::rename((from_folder, from), (to_folder, to), flags));
    // SAFETY: C code passes strings.
    unsafe { with_paths(from, to, call) }
}
