//! The rows that a batch begins with: `kernels/embed.cu`.

use super::assert_in_packs;
use crate::launch::{DeviceView, KernelLaunch, StoredElement, size};

/// Source of a row, encoded in 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowSource {
    /// Row of the embedding table.
    Token(u32),
    /// Row of the tile features.
    Feature(u32),
}

impl RowSource {
    /// In the kernel's form: the top bit selects the features.
    pub fn encoded(self) -> u32 {
        let (Self::Token(row) | Self::Feature(row)) = self;
        assert!(row >> 31 == 0, "row {row} needs the bit that selects the features");
        match self {
            Self::Token(row) => row,
            Self::Feature(row) => row | 1 << 31,
        }
    }
}

/// Gathers embeddings and image rows.
#[derive(Debug, Clone, Copy)]
pub struct EmbedLaunch<T, R> {
    pub table: DeviceView<T>,
    /// Rows of all tiles, `[rows, width]`.
    pub features: DeviceView<T>,
    /// One encoded source for each row, see `RowSource`.
    pub sources: DeviceView<u32>,
    /// The residual stream, `[m, width]`.
    pub out: DeviceView<R>,
    pub width: usize,
}

impl<T: StoredElement, R: StoredElement> EmbedLaunch<T, R> {
    /// The launch. The residual stream has the type of the table, or float32.
    pub fn launch(&self) -> KernelLaunch {
        assert_in_packs(self.width, "width");
        assert!(self.out.len() >= self.sources.len() * self.width, "one output for each source");
        let kernel = T::pick(R::pick(Some("embed_f32"), None), Some(R::pick("embed_bf16_f32", "embed_bf16")));
        KernelLaunch {
            file: "embed.cu",
            kernel: kernel.expect("a float32 table needs a float32 residual stream"),
            grid: [size(self.sources.len()), 1, 1],
            threads: size((self.width / 8).next_multiple_of(32)).min(256),
            shared_bytes: 0,
            arguments: vec![
                self.table.into(),
                self.features.into(),
                self.sources.into(),
                self.out.into(),
                size(self.width).into(),
            ],
        }
    }
}
