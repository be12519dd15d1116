//! From an image to rows of the language model: tiles, RADIO tower, pixel shuffle, projector.

mod attention;
mod encode;
mod grid;
mod image;
mod outline;
mod positions;
mod projector;
mod resize;
mod tiles;
mod tower;

pub use self::encode::{Encoder, Stage, Workspace};
pub use self::grid::{grid, tokens};
pub use self::image::{ImageError, ImageLimits, Rgb, decode, size};
pub use self::outline::Encoding;
pub use self::positions::resize as resize_positions;
pub use self::resize::resize;
pub use self::tiles::{Prepared, Resample, Tile, prepare};
