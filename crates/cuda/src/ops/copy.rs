//! Copies for snapshots, forks and offloading: `kernels/copy.cu`.

use crate::launch::{CopyMove, DeviceView, KernelLaunch, size};

/// Bytes of one copy that a block handles.
const BLOCK_BYTES: usize = 256 * 4 * 16;

/// Indexed ranges of memory.
#[derive(Debug, Clone, Copy)]
pub struct CopyRegion {
    /// Starting at range 0.
    pub bytes: DeviceView<u8>,
    /// Bytes from one range to the next.
    pub stride: usize,
}

/// Copies many ranges in one launch; no range is both read and written.
#[derive(Debug, Clone, Copy)]
pub struct CopyLaunch {
    /// Source; `None` writes zeros.
    pub from: Option<CopyRegion>,
    pub to: CopyRegion,
    /// Pairs of source and destination.
    pub moves: DeviceView<CopyMove>,
    /// Bytes of a range.
    pub bytes: usize,
}

impl CopyLaunch {
    pub fn launch(&self) -> KernelLaunch {
        for region in self.from.iter().chain([&self.to]) {
            assert!(self.bytes <= region.stride, "ranges of {} bytes overlap", self.bytes);
            assert!(region.stride.is_multiple_of(16), "ranges {} bytes apart", region.stride);
        }
        assert!(self.bytes.is_multiple_of(16), "{} bytes a range", self.bytes);
        KernelLaunch {
            file: "copy.cu",
            kernel: "copy_ranges",
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
