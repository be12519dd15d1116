//! Copies between pageable memory and the device, through pinned memory in two halves: one is
//! filled while the other is transferred.
//!
//! Each lane has its own buffers; otherwise a batch would wait for copies that wait for the tower.
//! Small copies share a half until it is full, so they do not wait for each other either.
//!
//! Lower bound: PCIe 5 transfers about 55 GB/s; one core copies about 10 GB/s from and to pageable
//! memory, so several do (`host_copy.rs`).

use std::ops::Range;

use cudarc::driver::{DriverError, result, sys};
use furrow_model::kernels::ThreadPool;

use super::host_copy::copy_parallel;
use super::pinned::HostBytes;
use super::stream::GpuEvent;

/// Bytes of a half: 0.3 ms of PCIe 5, long compared with the 10 us that a copy takes to start.
pub(super) const HALF: usize = 16 << 20;
/// Copies begin at multiples of this.
const ALIGN: usize = 256;

pub(super) struct StagingBuffers {
    halves: [StagingHalf; 2],
    /// Index of the half that is being filled.
    filling: usize,
}

struct StagingHalf {
    bytes: HostBytes,
    /// Bytes used since it was empty.
    used: usize,
    /// Signalled when the device has finished with all used bytes.
    idle: GpuEvent,
}

/// A range of a half.
#[derive(Clone)]
struct StagingPiece {
    half: usize,
    bytes: Range<usize>,
}

impl StagingBuffers {
    pub(super) fn new() -> Result<Self, DriverError> {
        Ok(Self { halves: [StagingHalf::new()?, StagingHalf::new()?], filling: 0 })
    }

    /// Copies bytes to the device. They have been read when this returns.
    pub(super) fn upload(
        &mut self,
        team: &ThreadPool,
        bytes: &[u8],
        to: u64,
        stream: sys::CUstream,
    ) -> Result<(), DriverError> {
        let mut to = to;
        for chunk in bytes.chunks(HALF) {
            let piece = self.take(chunk.len())?;
            let half = &mut self.halves[piece.half];
            copy_parallel(team, chunk, half.slice(&piece.bytes));
            // SAFETY: the piece is pinned and is not written again before the half's event; the
            // device's bytes are the caller's.
            unsafe { result::memcpy_htod_async(to, half.slice(&piece.bytes), stream) }?;
            half.idle.record(stream)?;
            to += chunk.len() as u64;
        }
        Ok(())
    }

    /// Copies bytes from the device. They are complete when this returns.
    pub(super) fn download(
        &mut self,
        team: &ThreadPool,
        from: u64,
        bytes: &mut [u8],
        stream: sys::CUstream,
    ) -> Result<(), DriverError> {
        let mut under_way: Option<(StagingPiece, &mut [u8])> = None;
        let mut from = from;
        for chunk in bytes.chunks_mut(HALF) {
            let piece = self.take(chunk.len())?;
            let half = &mut self.halves[piece.half];
            // SAFETY: the piece is pinned, is as long as the chunk and is not read before the
            // half's event.
            unsafe { result::memcpy_dtoh_async(half.slice(&piece.bytes), from, stream) }?;
            half.idle.record(stream)?;
            from += chunk.len() as u64;
            // The previous piece is read while this one is transferred; it is in the other half, or
            // in another range of this one.
            if let Some((piece, chunk)) = under_way.replace((piece, chunk)) {
                self.read(team, &piece, chunk)?;
            }
        }
        under_way.map_or(Ok(()), |(piece, chunk)| self.read(team, &piece, chunk))
    }

    fn read(&mut self, team: &ThreadPool, piece: &StagingPiece, chunk: &mut [u8]) -> Result<(), DriverError> {
        let half = &mut self.halves[piece.half];
        half.idle.wait()?;
        copy_parallel(team, half.slice(&piece.bytes), chunk);
        Ok(())
    }

    /// Free bytes of the half that is being filled, or of the other one after the device has
    /// finished with it.
    fn take(&mut self, len: usize) -> Result<StagingPiece, DriverError> {
        if self.halves[self.filling].used + len > HALF {
            self.filling = 1 - self.filling;
            let half = &mut self.halves[self.filling];
            half.idle.wait()?;
            half.used = 0;
        }
        let half = &mut self.halves[self.filling];
        let bytes = half.used..half.used + len;
        half.used = bytes.end.next_multiple_of(ALIGN);
        Ok(StagingPiece { half: self.filling, bytes })
    }
}

impl StagingHalf {
    fn new() -> Result<Self, DriverError> {
        Ok(Self { bytes: HostBytes::new(HALF)?, used: 0, idle: GpuEvent::new()? })
    }

    fn slice(&mut self, range: &Range<usize>) -> &mut [u8] {
        self.bytes.slice(range.clone())
    }
}

impl Drop for StagingHalf {
    fn drop(&mut self) {
        // Its last copy must end before the memory is freed.
        self.idle.wait().ok();
    }
}
