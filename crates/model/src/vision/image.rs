//! Decodes screenshots to RGB pixels, or returns an error that names the problem.

use std::io::{BufRead, Cursor, Seek};

use image::{DynamicImage, ImageDecoder, ImageReader, Limits};
use sha2::{Digest, Sha256};

use super::outline::{ImageEncoding, ImageOutline, without_metadata};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedImage {
    /// Pixels across, at least 1.
    pub width: usize,
    /// Pixels down, at least 1.
    pub height: usize,
    /// Red, green, blue, 8 bits each, `[height, width, 3]`.
    pub pixels: Vec<u8>,
    /// SHA-256 over `pixels`; it does not depend on the encoding.
    pub sha256: [u8; 32],
}

/// Limits of accepted images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageLimits {
    pub bytes_max: usize,
    /// Shortest side in pixels.
    pub side_min: usize,
    /// Longest side in pixels.
    pub side_max: usize,
    pub pixels_max: usize,
}

impl Default for ImageLimits {
    /// From the 32 x 32 that the published model needs up to an 8K screen (7680 x 4320 = 33.2
    /// million pixels, 100 MB decoded).
    fn default() -> Self {
        Self { bytes_max: 64 << 20, side_min: 32, side_max: 16_384, pixels_max: 1 << 25 }
    }
}

/// Why an image was refused.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// More encoded bytes than allowed.
    #[error("the image has {bytes} bytes, at most {bytes_max} are accepted; send a smaller screenshot")]
    TooManyBytes { bytes: usize, bytes_max: usize },
    /// Neither PNG nor JPEG nor WebP.
    #[error("the image begins with {start:02x?}, which is neither PNG nor JPEG nor WebP; send one of them")]
    UnknownEncoding {
        /// First bytes, at most eight.
        start: Vec<u8>,
    },
    /// More encoded bytes than a picture of its sides has.
    #[error(
        "the {encoding:?} of {width} x {height} pixels has {bytes} bytes, at most {bytes_max} are accepted for its \
         sides; remove its metadata, or encode it with a lower quality"
    )]
    TooManyForSides { encoding: ImageEncoding, width: usize, height: usize, bytes: usize, bytes_max: usize },
    /// It ends too early, or its parts do not match.
    #[error(
        "the {encoding:?} of {bytes} bytes is truncated or broken: its end mark cannot be reached from its header; send the whole file"
    )]
    CutOff { encoding: ImageEncoding, bytes: usize },
    /// Several pictures in one.
    #[error("the {encoding:?} is animated; send one picture")]
    Animated { encoding: ImageEncoding },
    /// Sides out of bounds.
    #[error(
        "the image is {width} x {height} pixels; sides from {} to {} and at most {} pixels are accepted",
        limits.side_min, limits.side_max, limits.pixels_max
    )]
    Size { width: usize, height: usize, limits: ImageLimits },
    #[error("the {encoding:?} cannot be decoded")]
    Broken { encoding: ImageEncoding, source: image::ImageError },
}

/// Bytes that a file may have, and a decoder take, besides what its pixels explain: profiles,
/// texts and tables.
const EXTRA_BYTES_MAX: usize = 4 << 20;

/// Decodes a PNG, a JPEG or a WebP of one picture. Every limit is checked on the header, before
/// pixels are allocated, and no more is allocated than four times the decoded pixels and 16 MiB.
/// 16 bits become 8, grey and palettes become RGB, and transparent pixels are blended with white.
pub fn decode(bytes: &[u8], limits: ImageLimits) -> Result<DecodedImage, ImageError> {
    let (encoding, outline) = read_outline(bytes, limits)?;
    let broken = |source| ImageError::Broken { encoding, source };
    let image = limits.decode(encoding, outline, bytes).map_err(broken)?;
    let ImageOutline { width, height } = outline;
    Ok(DecodedImage::new(width, height, rgb_of(image)))
}

/// Width and height in pixels from the header of an image, checked against the limits. Nothing is
/// decoded.
pub fn size(bytes: &[u8], limits: ImageLimits) -> Result<(usize, usize), ImageError> {
    read_outline(bytes, limits).map(|(_, ImageOutline { width, height })| (width, height))
}

fn read_outline(bytes: &[u8], limits: ImageLimits) -> Result<(ImageEncoding, ImageOutline), ImageError> {
    if bytes.len() > limits.bytes_max {
        return Err(ImageError::TooManyBytes { bytes: bytes.len(), bytes_max: limits.bytes_max });
    }
    let unknown = || ImageError::UnknownEncoding { start: bytes[..bytes.len().min(8)].to_vec() };
    let encoding = ImageEncoding::of(bytes).ok_or_else(unknown)?;
    if encoding.is_animated(bytes) {
        return Err(ImageError::Animated { encoding });
    }
    let cut_off = || ImageError::CutOff { encoding, bytes: bytes.len() };
    let outline = encoding.outline(bytes).ok_or_else(cut_off)?;
    limits.check(outline)?;
    let ImageOutline { width, height } = outline;
    let bytes_max = encoding.bytes_max(width * height);
    if bytes.len() > bytes_max {
        return Err(ImageError::TooManyForSides { encoding, width, height, bytes: bytes.len(), bytes_max });
    }
    Ok((encoding, outline))
}

impl ImageEncoding {
    /// Most bytes of a file with this many pixels. Decoders of lossy pictures copy the file. A JPEG
    /// has at most a byte a pixel: photographs of the highest quality have less.
    fn bytes_max(self, pixels: usize) -> usize {
        let of_pixel = match self {
            Self::Jpeg => 1,
            // Four channels that do not compress, of 8 bits and of 16.
            Self::WebP => 4,
            Self::Png => 9,
        };
        of_pixel * pixels + EXTRA_BYTES_MAX
    }
}

impl DecodedImage {
    /// Takes pixels `[height, width, 3]`.
    pub fn new(width: usize, height: usize, pixels: Vec<u8>) -> Self {
        assert!(
            width > 0 && height > 0 && pixels.len() == 3 * width * height,
            "an RGB image of {width} x {height}"
        );
        let sha256 = Sha256::digest(&pixels).into();
        Self { width, height, pixels, sha256 }
    }
}

impl ImageLimits {
    fn check(self, ImageOutline { width, height }: ImageOutline) -> Result<(), ImageError> {
        let sides = self.side_min.max(1)..=self.side_max;
        if sides.contains(&width)
            && sides.contains(&height)
            && width.saturating_mul(height) <= self.pixels_max
        {
            return Ok(());
        }
        Err(ImageError::Size { width, height, limits: self })
    }

    /// Decodes with the decoder's own limits as well: a file may hold a second header, and a few
    /// bytes of a profile may unpack to any number.
    fn decode(
        self,
        encoding: ImageEncoding,
        outline: ImageOutline,
        bytes: &[u8],
    ) -> image::ImageResult<DynamicImage> {
        let format = match encoding {
            ImageEncoding::Png => image::ImageFormat::Png,
            ImageEncoding::Jpeg => {
                let picture = Cursor::new(without_metadata(bytes));
                return self
                    .decode_from(ImageReader::with_format(picture, image::ImageFormat::Jpeg), outline);
            }
            ImageEncoding::WebP => image::ImageFormat::WebP,
        };
        self.decode_from(ImageReader::with_format(Cursor::new(bytes), format), outline)
    }

    fn decode_from<R: BufRead + Seek>(
        self,
        mut reader: ImageReader<R>,
        outline: ImageOutline,
    ) -> image::ImageResult<DynamicImage> {
        let mut limits = Limits::default();
        limits.max_image_width = u32::try_from(self.side_max).ok();
        limits.max_image_height = u32::try_from(self.side_max).ok();
        // Besides pixels: two rows of RGBA of 16 bits, and what is no picture.
        limits.max_alloc = Some((16 * outline.width + EXTRA_BYTES_MAX) as u64);
        reader.limits(limits);
        let decoder = reader.into_decoder()?;
        let (width, height) = decoder.dimensions();
        if (width as usize, height as usize) != (outline.width, outline.height) {
            let kind = image::error::LimitErrorKind::DimensionError;
            return Err(image::ImageError::Limits(image::error::LimitError::from_kind(kind)));
        }
        DynamicImage::from_decoder(decoder)
    }
}

fn rgb_of(image: DynamicImage) -> Vec<u8> {
    if image.color().has_alpha() {
        return image.into_rgba8().as_raw().as_chunks::<4>().0.iter().flat_map(over_white).collect();
    }
    image.into_rgb8().into_raw()
}

/// `colour a + white (1 - a)`, rounded to the nearest: for 0 <= x <= 255^2,
/// `(x + 128 + ((x + 128) >> 8)) >> 8` is x / 255 rounded.
fn over_white([red, green, blue, alpha]: &[u8; 4]) -> [u8; 3] {
    [red, green, blue].map(|colour| {
        let sum = u32::from(*colour) * u32::from(*alpha) + 255 * (255 - u32::from(*alpha)) + 128;
        ((sum + (sum >> 8)) >> 8) as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_white_rounds_to_the_nearest() {
        for alpha in 0..=255u8 {
            for colour in 0..=255u8 {
                let exact = (f64::from(colour) * f64::from(alpha) + 255.0 * f64::from(255 - alpha)) / 255.0;
                assert_eq!(
                    over_white(&[colour, 0, 255, alpha])[0],
                    exact.round() as u8,
                    "{colour} at {alpha}"
                );
            }
        }
    }
}
