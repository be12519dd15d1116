//! Resizes the position table to a tile: bilinear, without antialiasing.

use crate::config::VisionConfig;

/// Writes the rows of the table `[side^2, width]` for the patches of a tile, row-major, to `out`.
pub fn resize(config: &VisionConfig, table: &[f32], out: &mut Vec<f32>) {
    let side = config.positions_side;
    let patches = config.patches_side();
    let width = table.len() / side.pow(2);
    out.clear();
    if side == patches {
        return out.extend_from_slice(table);
    }
    let row = |y: usize, x: usize| &table[(y * side + x) * width..][..width];
    for y in 0..patches {
        let y = between(config.align_corners, side, patches, y);
        for x in 0..patches {
            let x = between(config.align_corners, side, patches, x);
            let above = (row(y.first, x.first), row(y.first, x.second));
            let below = (row(y.second, x.first), row(y.second, x.second));
            let across =
                |(left, right): (&[f32], &[f32]), i: usize| (1.0 - x.share) * left[i] + x.share * right[i];
            out.extend((0..width).map(|i| (1.0 - y.share) * across(above, i) + y.share * across(below, i)));
        }
    }
}

/// A position between two neighbours of an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
struct AxisSample {
    first: usize,
    second: usize,
    /// Of the second one.
    share: f32,
}

/// Position of sample k of `outputs` among `inputs`. With aligned corners the first and last
/// samples of both coincide; without, both cover the same length, and positions before the first
/// sample take the first.
fn between(align_corners: bool, inputs: usize, outputs: usize, k: usize) -> AxisSample {
    let position = if align_corners {
        let step = (inputs - 1) as f32 / outputs.saturating_sub(1).max(1) as f32;
        step * k as f32
    } else {
        let step = inputs as f32 / outputs as f32;
        (step * (k as f32 + 0.5) - 0.5).max(0.0)
    };
    let first = (position as usize).min(inputs - 1);
    AxisSample { first, second: (first + 1).min(inputs - 1), share: (position - first as f32).min(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(align_corners: bool, inputs: usize, outputs: usize, k: usize, want: f32) {
        let AxisSample { first, second, share } = between(align_corners, inputs, outputs, k);
        let position = first as f32 + share * (second - first) as f32;
        assert!((position - want).abs() < 1e-5, "{position} for {want}");
    }

    #[test]
    fn the_published_table_is_averaged_or_stretched() {
        for k in 0..32 {
            check(false, 128, 32, k, 4.0 * k as f32 + 1.5);
            check(true, 128, 32, k, k as f32 * 127.0 / 31.0);
        }
    }

    #[test]
    fn edges_take_the_edge() {
        check(false, 4, 8, 0, 0.0);
        check(false, 4, 8, 7, 3.0);
        check(true, 4, 8, 7, 3.0);
        check(true, 17, 1, 0, 0.0);
        check(false, 1, 6, 5, 0.0);
        check(true, 1, 6, 5, 0.0);
        check(true, 17, 6, 5, 16.0);
    }
}
