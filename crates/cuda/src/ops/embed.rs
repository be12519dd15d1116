//! The rows a batch begins with: `kernels/embed.cu`.

use super::in_packs;
use crate::launch::{Launch, Stored, View, size};

/// Where a row comes from, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Row of the embedding table.
    Token(u32),
    /// Row of the tile features.
    Feature(u32),
}

impl Source {
    /// As the kernel reads it: the top bit names the features.
    pub fn word(self) -> u32 {
        let (Self::Token(row) | Self::Feature(row)) = self;
        assert!(row >> 31 == 0, "row {row} takes the bit that names the features");
        match self {
            Self::Token(row) => row,
            Self::Feature(row) => row | 1 << 31,
        }
    }
}

/// Gathers embeddings and image rows.
#[derive(Debug, Clone, Copy)]
pub struct Embed<T, R> {
    /// `[ids, width]`.
    pub table: View<T>,
    /// Rows of all tiles, `[rows, width]`.
    pub features: View<T>,
    /// A word a row, see `Source`.
    pub sources: View<u32>,
    /// The residual stream, `[m, width]`.
    pub out: View<R>,
    /// Width.
    pub width: usize,
}

impl<T: Stored, R: Stored> Embed<T, R> {
    /// The launch. A residual stream is stored as the table is, or in float32.
    pub fn launch(&self) -> Launch {
        in_packs(self.width, "width");
        assert!(self.out.len() >= self.sources.len() * self.width, "an output for each source");
        let kernel = T::pick(R::pick(Some("embed_f32"), None), Some(R::pick("embed_bf16_f32", "embed_bf16")));
        Launch {
            file: "embed.cu",
            kernel: kernel.expect("a float32 table has a float32 residual stream"),
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
