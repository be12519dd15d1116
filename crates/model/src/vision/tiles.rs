//! From an image to normalised tiles: resize to the grid, cut, add the thumbnail, name each tile by a hash.

use sha2::{Digest, Sha256};

use super::grid::{grid, has_thumbnail};
use super::image::Rgb;
use super::resize::{Size, resample};
use crate::config::VisionConfig;

/// One tile: normalised pixels `[3, tile, tile]`, channel-major, and the hash that names them.
#[derive(Debug, Clone, PartialEq)]
pub struct Tile {
    /// Values after mean and standard deviation.
    pub pixels: Vec<f32>,
    /// SHA-256 over the tile before normalisation and over what the preprocessing did: equal hashes, equal pixels.
    pub hash: [u8; 32],
}

/// An image ready for the tower.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// Columns and rows of tiles.
    pub grid: (usize, usize),
    /// Tiles row by row, then the thumbnail when there is one.
    pub tiles: Vec<Tile>,
}

/// Which published preprocessing is followed. They differ by up to 0.7 in normalised units at hard edges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Resample {
    /// Bytes are resized, then scaled: what serving and training code does.
    #[default]
    U8,
    /// float32 values are resized, and may overshoot 0..1: what the checkpoint's own image processor does.
    Float,
}

/// Cuts an image into normalised tiles. It stays on the caller's thread: screenshots of many sessions arrive side by side.
pub fn prepare(image: &Rgb, config: &VisionConfig, resampling: Resample) -> Prepared {
    let grid = grid(image.width, image.height, config.tile, config.tiles_max);
    let from = (image.width, image.height);
    let tiles = match resampling {
        Resample::U8 => Cutter::bytes(config).tiles(&image.pixels, from, grid),
        Resample::Float => {
            let scaled: Vec<f32> = image.pixels.iter().map(|value| f32::from(*value) / 255.0).collect();
            Cutter::floats(config).tiles(&scaled, from, grid)
        }
    };
    Prepared { grid, tiles }
}

/// What turns resized values of one kind into tiles.
struct Cutter<'a, S, N> {
    config: &'a VisionConfig,
    /// Hash state after the preprocessing, before any pixel.
    seed: Sha256,
    /// Adds values to a hash.
    digest: fn(&mut Sha256, &[S]),
    /// Normalised value of a channel.
    normalise: N,
}

impl<'a> Cutter<'a, u8, ()> {
    fn bytes(config: &'a VisionConfig) -> Cutter<'a, u8, impl Fn(usize, u8) -> f32> {
        // 256 values a channel: a table instead of a division a pixel.
        let table: [[f32; 256]; 3] = std::array::from_fn(|channel| {
            std::array::from_fn(|value| normalised(config, channel, value as f32 / 255.0))
        });
        Cutter {
            config,
            seed: seed(config, "furrow tile of bytes"),
            digest: |hash, values| hash.update(values),
            normalise: move |channel: usize, value: u8| table[channel][usize::from(value)],
        }
    }
}

impl<'a> Cutter<'a, f32, ()> {
    fn floats(config: &'a VisionConfig) -> Cutter<'a, f32, impl Fn(usize, f32) -> f32> {
        Cutter {
            config,
            seed: seed(config, "furrow tile of floats"),
            digest: |hash, values| values.iter().for_each(|value| hash.update(value.to_le_bytes())),
            normalise: move |channel, value| normalised(config, channel, value),
        }
    }
}

impl<S: super::resize::Weigh, N: Fn(usize, S) -> f32> Cutter<'_, S, N> {
    /// All tiles of an image, thumbnail last. The thumbnail is resized from the image, not from the canvas.
    fn tiles(&self, pixels: &[S], from: Size, grid: (usize, usize)) -> Vec<Tile> {
        let (tile, (columns, rows)) = (self.config.tile, grid);
        let canvas = resample(pixels, from, (columns * tile, rows * tile));
        let cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (column, row)));
        let mut tiles: Vec<Tile> = cells.map(|cell| self.cut(&canvas, columns, cell)).collect();
        if has_thumbnail(self.config, grid) {
            tiles.push(self.cut(&resample(pixels, from, (tile, tile)), 1, (0, 0)));
        }
        tiles
    }

    /// The tile at `(column, row)` of a canvas that is `columns` tiles wide.
    fn cut(&self, canvas: &[S], columns: usize, (column, row): (usize, usize)) -> Tile {
        let tile = self.config.tile;
        let mut hash = self.seed.clone();
        let mut pixels = vec![0.0; 3 * tile * tile];
        let (red, rest) = pixels.split_at_mut(tile * tile);
        let (green, blue) = rest.split_at_mut(tile * tile);
        let lines = canvas.chunks_exact(3 * tile).skip(row * tile * columns + column).step_by(columns);
        let planes =
            red.chunks_exact_mut(tile).zip(green.chunks_exact_mut(tile)).zip(blue.chunks_exact_mut(tile));
        for (line, ((red, green), blue)) in lines.zip(planes) {
            (self.digest)(&mut hash, line);
            let colours = red.iter_mut().zip(green).zip(blue);
            for ([r, g, b], ((red, green), blue)) in line.as_chunks::<3>().0.iter().zip(colours) {
                *red = (self.normalise)(0, *r);
                *green = (self.normalise)(1, *g);
                *blue = (self.normalise)(2, *b);
            }
        }
        Tile { pixels, hash: hash.finalize().into() }
    }
}

/// (x - mean) / std, in this order of operations.
fn normalised(config: &VisionConfig, channel: usize, value: f32) -> f32 {
    (value - config.mean[channel]) / config.std[channel]
}

/// A hash that has taken in everything that turns a tile's values into its pixels.
fn seed(config: &VisionConfig, kind: &str) -> Sha256 {
    let mut hash = Sha256::new_with_prefix(kind);
    hash.update((config.tile as u64).to_le_bytes());
    for value in config.mean.iter().chain(&config.std) {
        hash.update(value.to_le_bytes());
    }
    hash
}
