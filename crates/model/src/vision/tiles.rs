//! Makes normalised tiles from an image: resizes to the grid, cuts, adds the thumbnail, hashes each
//! tile.

use sha2::{Digest, Sha256};

use super::grid::{grid, has_thumbnail};
use super::image::DecodedImage;
use super::resize::{PixelSize, resample};
use crate::config::VisionConfig;

/// One tile: normalised pixels `[3, tile, tile]`, channel-major, and the hash that identifies them.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageTile {
    /// Values normalised by mean and standard deviation.
    pub pixels: Vec<f32>,
    /// SHA-256 over the tile before normalisation and over the preprocessing: equal hashes mean
    /// equal pixels.
    pub hash: [u8; 32],
}

/// An image ready for the tower.
#[derive(Debug, Clone, PartialEq)]
pub struct PreparedImage {
    /// Columns and rows of tiles.
    pub grid: (usize, usize),
    /// Tiles row by row, then the thumbnail if there is one.
    pub tiles: Vec<ImageTile>,
}

/// The published preprocessing to follow. The two differ by up to 0.7 in normalised units at hard
/// edges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ResampleMode {
    /// Resizes bytes, then scales them, as serving and training code does.
    #[default]
    U8,
    /// Resizes float32 values, which may leave 0..1, as the checkpoint's own image processor does.
    Float,
}

/// Cuts an image into normalised tiles on the caller's thread: screenshots of many sessions are
/// processed in parallel.
pub fn prepare(image: &DecodedImage, config: &VisionConfig, resampling: ResampleMode) -> PreparedImage {
    let grid = grid(image.width, image.height, config.tile, config.tiles_max);
    let from = (image.width, image.height);
    let tiles = match resampling {
        ResampleMode::U8 => TileCutter::bytes(config).tiles(&image.pixels, from, grid),
        ResampleMode::Float => {
            let scaled: Vec<f32> = image.pixels.iter().map(|value| f32::from(*value) / 255.0).collect();
            TileCutter::floats(config).tiles(&scaled, from, grid)
        }
    };
    PreparedImage { grid, tiles }
}

/// Makes tiles from resized values of one type.
struct TileCutter<'a, S, N> {
    config: &'a VisionConfig,
    /// State of the hash after the preprocessing parameters, before any pixel.
    seed: Sha256,
    /// Adds values to a hash.
    digest: fn(&mut Sha256, &[S]),
    /// Normalised value of a channel.
    normalise: N,
}

impl<'a> TileCutter<'a, u8, ()> {
    fn bytes(config: &'a VisionConfig) -> TileCutter<'a, u8, impl Fn(usize, u8) -> f32> {
        // 256 values a channel: a table instead of a division a pixel.
        let table: [[f32; 256]; 3] = std::array::from_fn(|channel| {
            std::array::from_fn(|value| normalised(config, channel, value as f32 / 255.0))
        });
        TileCutter {
            config,
            seed: seed(config, "furrow tile of bytes"),
            digest: |hash, values| hash.update(values),
            normalise: move |channel: usize, value: u8| table[channel][usize::from(value)],
        }
    }
}

impl<'a> TileCutter<'a, f32, ()> {
    fn floats(config: &'a VisionConfig) -> TileCutter<'a, f32, impl Fn(usize, f32) -> f32> {
        TileCutter {
            config,
            seed: seed(config, "furrow tile of floats"),
            digest: |hash, values| values.iter().for_each(|value| hash.update(value.to_le_bytes())),
            normalise: move |channel, value| normalised(config, channel, value),
        }
    }
}

impl<S: super::resize::ResizeSample, N: Fn(usize, S) -> f32> TileCutter<'_, S, N> {
    /// All tiles of an image, thumbnail last. The thumbnail is resized from the image, not from the
    /// canvas.
    fn tiles(&self, pixels: &[S], from: PixelSize, grid: (usize, usize)) -> Vec<ImageTile> {
        let tile = self.config.tile;
        let (columns, rows) = grid;
        let canvas = resample(pixels, from, (columns * tile, rows * tile));
        let cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (column, row)));
        let mut tiles: Vec<ImageTile> = cells.map(|cell| self.cut(&canvas, columns, cell)).collect();
        if has_thumbnail(self.config, grid) {
            tiles.push(self.cut(&resample(pixels, from, (tile, tile)), 1, (0, 0)));
        }
        tiles
    }

    /// The tile at `(column, row)` of a canvas that is `columns` tiles wide.
    fn cut(&self, canvas: &[S], columns: usize, (column, row): (usize, usize)) -> ImageTile {
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
        ImageTile { pixels, hash: hash.finalize().into() }
    }
}

/// (x - mean) / std, in this order of operations.
fn normalised(config: &VisionConfig, channel: usize, value: f32) -> f32 {
    (value - config.mean[channel]) / config.std[channel]
}

/// A hash of everything that determines a tile's pixels from its values.
fn seed(config: &VisionConfig, kind: &str) -> Sha256 {
    let mut hash = Sha256::new_with_prefix(kind);
    hash.update((config.tile as u64).to_le_bytes());
    for value in config.mean.iter().chain(&config.std) {
        hash.update(value.to_le_bytes());
    }
    hash
}
