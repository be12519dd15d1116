//! Chooses the grid of tiles for an image: the one whose aspect ratio is closest to the image's.

use crate::config::VisionConfig;

/// Columns and rows for an image of `width` x `height` pixels, at most `tiles_max` tiles of side
/// `tile`.
///
/// Of all grids, in order of their number of tiles, the one with the smallest difference between
/// both ratios of width to height wins; of grids with the same ratio the larger one only if the
/// image covers more than half of it.
pub fn grid(width: usize, height: usize, tile: usize, tiles_max: usize) -> (usize, usize) {
    let ratio = width as f64 / height as f64;
    let area = width as f64 * height as f64;
    let mut best = (1, 1);
    let mut best_difference = f64::INFINITY;
    for (columns, rows) in candidates(tiles_max) {
        let difference = (ratio - columns as f64 / rows as f64).abs();
        let covers_half = || area > 0.5 * (tile * tile * columns * rows) as f64;
        if difference < best_difference || (difference == best_difference && covers_half()) {
            (best, best_difference) = ((columns, rows), difference);
        }
    }
    best
}

/// Language-model rows of an image on this grid, including its thumbnail.
pub fn tokens(config: &VisionConfig, grid: (usize, usize)) -> usize {
    tiles(config, grid) * config.rows_per_tile()
}

/// Tiles of an image on this grid; an image of more than one tile also gets a thumbnail.
pub(super) fn tiles(config: &VisionConfig, (columns, rows): (usize, usize)) -> usize {
    columns * rows + usize::from(has_thumbnail(config, (columns, rows)))
}

pub(super) fn has_thumbnail(config: &VisionConfig, grid: (usize, usize)) -> bool {
    config.thumbnail && grid != (1, 1)
}

/// All grids by their number of tiles. The order within one number differs from the original's,
/// which does not matter: two grids tie if the image's ratio is theirs or is midway between
/// neighbouring ratios, and neighbours never have the same number of tiles.
fn candidates(tiles_max: usize) -> impl Iterator<Item = (usize, usize)> {
    (1..=tiles_max).flat_map(|tiles| {
        (1..=tiles).filter(move |columns| tiles % columns == 0).map(move |columns| (columns, tiles / columns))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_ratios_never_have_as_many_tiles() {
        for tiles_max in 1..=64 {
            let mut grids: Vec<_> = candidates(tiles_max).collect();
            grids.sort_by_key(|(columns, rows)| (columns * 1_000_000 / rows, columns * rows));
            for (i, a) in grids.iter().enumerate() {
                let same_ratio = |b: &&(usize, usize)| a.0 * b.1 == b.0 * a.1;
                let next = grids[i..].iter().find(|b| !same_ratio(b));
                let next_ratio = |b: &&(usize, usize)| next.is_some_and(|n| n.0 * b.1 == b.0 * n.1);
                assert!(
                    grids.iter().filter(next_ratio).all(|b| a.0 * a.1 != b.0 * b.1),
                    "{a:?} of {tiles_max}"
                );
            }
        }
    }

    #[test]
    fn one_candidate_a_shape() {
        assert_eq!(candidates(12).count(), 35);
        assert_eq!(
            candidates(4).collect::<Vec<_>>(),
            [(1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (1, 4), (2, 2), (4, 1)]
        );
    }
}
