//! Copies between pageable memory and the device, through pinned memory in two halves: one is filled while the other is on its way.
//!
//! Floor: PCIe 5 carries some 55 GB/s, one core copies some 10 GB/s from and to pageable memory: that core is the bound of loading and parking. The words that
//! describe a decode batch are a few kB, and a half is free whenever they come.

use cudarc::driver::{DriverError, result, sys};

use super::stream::Event;

/// Bytes of a half: 0.3 ms of PCIe 5, long against the 10 us that a copy takes to begin.
const HALF: usize = 16 << 20;

pub(super) struct Staging {
    halves: [Half; 2],
    next: usize,
}

struct Half {
    bytes: *mut u8,
    /// Passed when nobody reads or writes it any more.
    idle: Event,
}

impl Staging {
    pub fn new() -> Result<Self, DriverError> {
        Ok(Self { halves: [Half::new()?, Half::new()?], next: 0 })
    }

    /// Copies bytes to the device. They have been read when this returns.
    pub fn upload(&mut self, bytes: &[u8], to: u64, stream: sys::CUstream) -> Result<(), DriverError> {
        let mut to = to;
        for chunk in bytes.chunks(HALF) {
            let half = self.turn();
            half.idle.wait()?;
            half.slice(chunk.len()).copy_from_slice(chunk);
            // SAFETY: the half is pinned and is not written before its event has passed; the device's bytes are the caller's.
            unsafe { result::memcpy_htod_async(to, half.slice(chunk.len()), stream) }?;
            half.idle.record(stream)?;
            to += chunk.len() as u64;
        }
        Ok(())
    }

    /// Copies bytes from the device. They are there when this returns.
    pub fn download(
        &mut self,
        from: u64,
        bytes: &mut [u8],
        stream: sys::CUstream,
    ) -> Result<(), DriverError> {
        let mut under_way: Option<(usize, &mut [u8])> = None;
        let mut from = from;
        for chunk in bytes.chunks_mut(HALF) {
            let number = self.next;
            let half = self.turn();
            half.idle.wait()?;
            // SAFETY: the half is pinned, has room for the chunk and is not read before its event has passed.
            unsafe { result::memcpy_dtoh_async(half.slice(chunk.len()), from, stream) }?;
            half.idle.record(stream)?;
            from += chunk.len() as u64;
            if let Some(last) = under_way.replace((number, chunk)) {
                self.take(last)?;
            }
        }
        under_way.map_or(Ok(()), |last| self.take(last))
    }

    fn take(&mut self, (number, chunk): (usize, &mut [u8])) -> Result<(), DriverError> {
        let half = &mut self.halves[number];
        half.idle.wait()?;
        chunk.copy_from_slice(half.slice(chunk.len()));
        Ok(())
    }

    /// The halves by turns.
    fn turn(&mut self) -> &mut Half {
        let number = self.next;
        self.next = 1 - number;
        &mut self.halves[number]
    }
}

impl Half {
    fn new() -> Result<Self, DriverError> {
        // SAFETY: the context is bound; the bytes are made zeros before anybody sees them.
        let bytes: *mut u8 = unsafe { result::malloc_host(HALF, 0) }?.cast();
        // SAFETY: so many bytes were just allocated.
        unsafe { bytes.write_bytes(0, HALF) };
        Ok(Self { bytes, idle: Event::new()? })
    }

    /// Its first bytes.
    fn slice(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= HALF, "{len} bytes of a half");
        // SAFETY: the bytes were allocated and written by `new`; `&mut self` keeps the slice the only one on this side, and events the device away.
        unsafe { std::slice::from_raw_parts_mut(self.bytes, len) }
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        self.idle.wait().ok();
        // SAFETY: it was allocated by `new`, its last copy has ended, and it is freed once.
        unsafe { result::free_host(self.bytes.cast()) }.ok();
    }
}
