//! Snapshots, forks and parking: `kernels/copy.cu`.

use crate::launch::{Launch, Move, View, size};

/// Bytes of a move that a block copies.
const BLOCK_BYTES: usize = 256 * 4 * 16;

/// Places of memory.
#[derive(Debug, Clone, Copy)]
pub struct Places {
    /// From place 0 on.
    pub bytes: View<u8>,
    /// From one place to the next.
    pub stride: usize,
}

/// Copies many places at once; no place is both read and written.
#[derive(Debug, Clone, Copy)]
pub struct CopyPlaces {
    /// Read from; `None` writes zeros.
    pub from: Option<Places>,
    /// Written to.
    pub to: Places,
    /// Which goes where.
    pub moves: View<Move>,
    /// Of a place.
    pub bytes: usize,
}

impl CopyPlaces {
    /// The launch.
    pub fn launch(&self) -> Launch {
        for places in self.from.iter().chain([&self.to]) {
            assert!(self.bytes <= places.stride, "places of {} bytes overlap", self.bytes);
            assert!(places.stride.is_multiple_of(16), "places {} bytes apart", places.stride);
        }
        assert!(self.bytes.is_multiple_of(16), "{} bytes a place", self.bytes);
        Launch {
            file: "copy.cu",
            kernel: "copy_places",
            grid: [size(self.bytes.div_ceil(BLOCK_BYTES)), size(self.moves.len()), 1],
            threads: 256,
            shared_bytes: 0,
            arguments: vec![
                self.from.map(|from| from.bytes).into(),
                self.from.map_or(0, |from| from.stride as u64).into(),
                self.to.bytes.into(),
                (self.to.stride as u64).into(),
                self.moves.into(),
                (self.bytes as u64).into(),
            ],
        }
    }
}
