//! The position table at the size of a tile: bilinear, without antialiasing.

use crate::config::VisionConfig;

/// Rows of the table `[side^2, width]` for the patches of a tile, row-major, into `out`.
pub fn resize(config: &VisionConfig, table: &[f32], out: &mut Vec<f32>) {
    let (side, patches) = (config.positions_side, config.patches_side());
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
            let (above, below) = (
                (row(y.first, x.first), row(y.first, x.second)),
                (row(y.second, x.first), row(y.second, x.second)),
            );
            let across =
                |(left, right): (&[f32], &[f32]), i: usize| (1.0 - x.share) * left[i] + x.share * right[i];
            out.extend((0..width).map(|i| (1.0 - y.share) * across(above, i) + y.share * across(below, i)));
        }
    }
}

/// A place between two neighbours of an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Between {
    first: usize,
    second: usize,
    /// Of the second one.
    share: f32,
}

/// Where sample k of `outputs` lies among `inputs`. With aligned corners the first and last samples of both coincide; without, both cover
/// the same length, and what lies before the first sample takes the first.
fn between(align_corners: bool, inputs: usize, outputs: usize, k: usize) -> Between {
    let place = if align_corners {
        let step = (inputs - 1) as f32 / outputs.saturating_sub(1).max(1) as f32;
        step * k as f32
    } else {
        let step = inputs as f32 / outputs as f32;
        (step * (k as f32 + 0.5) - 0.5).max(0.0)
    };
    let first = (place as usize).min(inputs - 1);
    Between { first, second: (first + 1).min(inputs - 1), share: (place - first as f32).min(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(align_corners: bool, inputs: usize, outputs: usize, k: usize, want: f32) {
        let Between { first, second, share } = between(align_corners, inputs, outputs, k);
        let place = first as f32 + share * (second - first) as f32;
        assert!((place - want).abs() < 1e-5, "{place} for {want}");
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
