//! Scratch memory of the vision encoder.

/// Scratch memory of the tower. It is kept between calls, so nothing is allocated once it has
/// grown.
#[derive(Debug, Default)]
pub(super) struct TowerSpace {
    /// Positions of the patches of a tile, `[patches, hidden]`.
    pub positions: Vec<f32>,
    /// The residual stream, `[tiles, prefix + patches, hidden]`.
    pub hidden: Vec<f32>,
    /// Rows of that shape, inputs and outputs of products.
    pub narrow: Vec<f32>,
    /// Rows of q, k and v, of the MLP's width, or of patches.
    pub wide: Vec<f32>,
    /// Scratch of the attention heads.
    pub heads: Vec<f32>,
}

/// Resizes a buffer to this length. It holds the previous contents or zero.
pub(super) fn resized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}
