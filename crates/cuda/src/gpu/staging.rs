//! Copies between pageable memory and the device, through pinned memory in two halves: one is filled while the other is on its way.
//!
//! Each lane has its own, or a batch would wait for copies that wait for the tower. Small copies share a half until it is full, so they do not wait
//! for each other either.
//!
//! Floor: PCIe 5 carries some 55 GB/s; one core copies some 10 GB/s from and to pageable memory, so several do (`carry.rs`).

use std::ops::Range;

use cudarc::driver::{DriverError, result, sys};
use furrow_model::kernels::Team;

use super::carry::carry;
use super::pinned::HostBytes;
use super::stream::Event;

/// Bytes of a half: 0.3 ms of PCIe 5, long against the 10 us that a copy takes to begin.
pub(super) const HALF: usize = 16 << 20;
/// Copies begin at multiples of it.
const ALIGN: usize = 256;

pub(super) struct Staging {
    halves: [Half; 2],
    /// The half that is being filled.
    filling: usize,
}

struct Half {
    bytes: HostBytes,
    /// Taken since it was empty.
    used: usize,
    /// Passed when the device has done with all that was taken.
    idle: Event,
}

/// Bytes of a half.
#[derive(Clone)]
struct Piece {
    half: usize,
    bytes: Range<usize>,
}

impl Staging {
    pub fn new() -> Result<Self, DriverError> {
        Ok(Self { halves: [Half::new()?, Half::new()?], filling: 0 })
    }

    /// Copies bytes to the device. They have been read when this returns.
    pub fn upload(
        &mut self,
        team: &Team,
        bytes: &[u8],
        to: u64,
        stream: sys::CUstream,
    ) -> Result<(), DriverError> {
        let mut to = to;
        for chunk in bytes.chunks(HALF) {
            let piece = self.take(chunk.len())?;
            let half = &mut self.halves[piece.half];
            carry(team, chunk, half.slice(&piece.bytes));
            // SAFETY: the piece is pinned and is not written again before the half's event has passed; the device's bytes are the caller's.
            unsafe { result::memcpy_htod_async(to, half.slice(&piece.bytes), stream) }?;
            half.idle.record(stream)?;
            to += chunk.len() as u64;
        }
        Ok(())
    }

    /// Copies bytes from the device. They are there when this returns.
    pub fn download(
        &mut self,
        team: &Team,
        from: u64,
        bytes: &mut [u8],
        stream: sys::CUstream,
    ) -> Result<(), DriverError> {
        let mut under_way: Option<(Piece, &mut [u8])> = None;
        let mut from = from;
        for chunk in bytes.chunks_mut(HALF) {
            let piece = self.take(chunk.len())?;
            let half = &mut self.halves[piece.half];
            // SAFETY: the piece is pinned, is as long as the chunk and is not read before the half's event has passed.
            unsafe { result::memcpy_dtoh_async(half.slice(&piece.bytes), from, stream) }?;
            half.idle.record(stream)?;
            from += chunk.len() as u64;
            // The one before is read while this one is on its way; it lies in the other half, or beside this one.
            if let Some((piece, chunk)) = under_way.replace((piece, chunk)) {
                self.read(team, &piece, chunk)?;
            }
        }
        under_way.map_or(Ok(()), |(piece, chunk)| self.read(team, &piece, chunk))
    }

    fn read(&mut self, team: &Team, piece: &Piece, chunk: &mut [u8]) -> Result<(), DriverError> {
        let half = &mut self.halves[piece.half];
        half.idle.wait()?;
        carry(team, half.slice(&piece.bytes), chunk);
        Ok(())
    }

    /// Free bytes of the half that is being filled, or of the other one once the device has done with it.
    fn take(&mut self, len: usize) -> Result<Piece, DriverError> {
        if self.halves[self.filling].used + len > HALF {
            self.filling = 1 - self.filling;
            let half = &mut self.halves[self.filling];
            half.idle.wait()?;
            half.used = 0;
        }
        let half = &mut self.halves[self.filling];
        let bytes = half.used..half.used + len;
        half.used = bytes.end.next_multiple_of(ALIGN);
        Ok(Piece { half: self.filling, bytes })
    }
}

impl Half {
    fn new() -> Result<Self, DriverError> {
        Ok(Self { bytes: HostBytes::new(HALF)?, used: 0, idle: Event::new()? })
    }

    fn slice(&mut self, range: &Range<usize>) -> &mut [u8] {
        self.bytes.slice(range.clone())
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        // Its last copy has ended before the bytes are given back.
        self.idle.wait().ok();
    }
}
