//! From an image to rows of the language model: tiles, RADIO tower, pixel shuffle, projector.

mod attention;
mod encode;
mod grid;
mod image;
mod outline;
mod positions;
mod projector;
mod resize;
mod space;
mod tiles;
mod tower;

pub use self::encode::{EncoderStage, VisionEncoder, VisionWorkspace};
pub use self::grid::{grid, tokens};
pub use self::image::{DecodedImage, ImageError, ImageLimits, decode, size};
pub use self::outline::ImageEncoding;
pub use self::positions::resize as resize_positions;
pub use self::resize::resize;
pub use self::tiles::{ImageTile, PreparedImage, ResampleMode, prepare};
