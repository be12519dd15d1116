//! Decoded pixels as the policy sees them, so that a hash or a comparison does not depend on the
//! encoding.

use std::io::Cursor;

use furrow_rollout::{Screenshot, Size};
use image::{DynamicImage, ImageFormat, ImageReader, Limits};
use sha2::{Digest, Sha256};

/// Largest width and height of a screenshot that is decoded.
const SIDE_MAX: u32 = 16_384;
/// Most memory a decoder may take: 16,384 x 4,096 RGBA.
const DECODE_BYTES_MAX: u64 = 256 << 20;

/// A decoded picture with transparency over white, as the policy sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedPicture {
    /// Pixels from left to right, at most 16,384.
    pub width: u32,
    /// Pixels from top to bottom, at most 16,384.
    pub height: u32,
    /// Red, green and blue of each pixel, row by row.
    rgb: Vec<u8>,
}

/// A picture that cannot be decoded, or that claims to be larger than any screenshot.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct PictureError(#[from] image::ImageError);

impl DecodedPicture {
    /// Decodes a screenshot, within bounds on its size.
    pub fn decode(screenshot: &Screenshot) -> Result<Self, PictureError> {
        decode(&screenshot.bytes, encoded_as(screenshot))
    }

    /// The size that a screenshot itself has, without its pixels.
    pub fn size(screenshot: &Screenshot) -> Result<Size, PictureError> {
        let reader = bounded_reader(&screenshot.bytes, encoded_as(screenshot));
        let (width, height) = reader.into_dimensions()?;
        Ok(Size::new(width, height))
    }

    /// Pixels in which red, green or blue differ by more than `levels`; `None` for pictures of
    /// different sizes.
    pub fn differing(&self, other: &Self, levels: u8) -> Option<u64> {
        if (self.width, self.height) != (other.width, other.height) {
            return None;
        }
        let far = |(ours, theirs): &(&[u8; 3], &[u8; 3])| {
            ours.iter().zip(*theirs).any(|(ours, theirs)| ours.abs_diff(*theirs) > levels)
        };
        let pixels = self.rgb.as_chunks::<3>().0.iter().zip(other.rgb.as_chunks::<3>().0);
        Some(pixels.filter(far).count() as u64)
    }

    /// Red, green and blue of each pixel, row by row.
    pub fn into_rgb(self) -> Vec<u8> {
        self.rgb
    }

    /// SHA-256 over the pixels as RGB, 8 bits each, row by row.
    pub fn rgb_sha256(&self) -> [u8; 32] {
        Sha256::digest(&self.rgb).into()
    }
}

/// SHA-256 over the pixels as RGB, 8 bits each, row by row.
pub(crate) fn rgb_sha256(encoded: &[u8], format: ImageFormat) -> Result<[u8; 32], PictureError> {
    decode(encoded, format).map(|picture| picture.rgb_sha256())
}

fn decode(encoded: &[u8], format: ImageFormat) -> Result<DecodedPicture, PictureError> {
    let picture = bounded_reader(encoded, format).decode()?;
    Ok(DecodedPicture { width: picture.width(), height: picture.height(), rgb: rgb(picture) })
}

fn bounded_reader(encoded: &[u8], format: ImageFormat) -> ImageReader<Cursor<&[u8]>> {
    let mut limits = Limits::default();
    limits.max_image_width = Some(SIDE_MAX);
    limits.max_image_height = Some(SIDE_MAX);
    limits.max_alloc = Some(DECODE_BYTES_MAX);
    let mut reader = ImageReader::with_format(Cursor::new(encoded), format);
    reader.limits(limits);
    reader
}

fn encoded_as(screenshot: &Screenshot) -> ImageFormat {
    match screenshot.format {
        furrow_rollout::ImageFormat::Png => ImageFormat::Png,
        furrow_rollout::ImageFormat::Jpeg { .. } => ImageFormat::Jpeg,
    }
}

fn rgb(picture: DynamicImage) -> Vec<u8> {
    match picture.color().has_alpha() {
        true => picture.into_rgba8().as_raw().as_chunks::<4>().0.iter().flat_map(over_white).collect(),
        false => picture.into_rgb8().into_raw(),
    }
}

/// `colour a + white (1 - a)` with a in 255ths, rounded to the nearest. Separate from the policy's
/// implementation: a check that shared its arithmetic with what it checks would show less.
fn over_white([red, green, blue, alpha]: &[u8; 4]) -> [u8; 3] {
    let alpha = u32::from(*alpha);
    let white = 255 * (255 - alpha);
    // 255 is odd, so no sum is half way between two values.
    [red, green, blue].map(|colour| ((u32::from(*colour) * alpha + white + 127) / 255) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::codecs::png::PngEncoder;
    use image::{ExtendedColorType, ImageEncoder};

    #[test]
    fn a_picture_that_claims_too_much_is_refused() {
        let mut png = crate::fixtures::png(8, 8, 1).to_vec();
        assert!(rgb_sha256(&png, ImageFormat::Png).is_ok());
        // IHDR: width is at byte 16, its CRC at 29.
        png[16..20].copy_from_slice(&60_000u32.to_be_bytes());
        let crc = crc(&png[12..29]);
        png[29..33].copy_from_slice(&crc.to_be_bytes());
        assert!(rgb_sha256(&png, ImageFormat::Png).is_err());
        assert!(rgb_sha256(b"no picture", ImageFormat::Png).is_err());
    }

    #[test]
    fn pixels_differ_by_more_than_so_many_levels() {
        let picture = |rgb: &[u8]| DecodedPicture { width: 2, height: 1, rgb: rgb.to_vec() };
        let one = picture(&[10, 20, 30, 0, 0, 0]);
        for (other, levels, want) in [
            ([10, 20, 30, 0, 0, 0], 0, 0),
            ([10, 20, 31, 0, 0, 0], 0, 1),
            ([10, 20, 31, 0, 0, 0], 1, 0),
            ([10, 20, 22, 9, 0, 0], 8, 1),
            ([0, 0, 0, 255, 255, 255], 9, 2),
        ] {
            assert_eq!(one.differing(&picture(&other), levels), Some(want), "{other:?} {levels}");
        }
        assert_eq!(one.differing(&DecodedPicture { width: 1, height: 2, ..one.clone() }, 255), None);
    }

    #[test]
    fn what_is_transparent_shows_white() {
        let encoded = |pixels: &[u8], colour| {
            let mut png = Cursor::new(Vec::new());
            let width = pixels.len() as u32 / if colour == ExtendedColorType::Rgba8 { 4 } else { 3 };
            let height = 1;
            PngEncoder::new(&mut png).write_image(pixels, width, height, colour).unwrap();
            rgb_sha256(&png.into_inner(), ImageFormat::Png).unwrap()
        };
        let all = |alpha: u8| (0..=255u8).map(move |colour| (colour, alpha));
        let pixels: Vec<(u8, u8)> = (0..=255).flat_map(all).collect();
        let clear: Vec<u8> = pixels.iter().flat_map(|&(colour, alpha)| [colour, 0, 255, alpha]).collect();
        let white = |colour: u8, alpha: u8| {
            let share = f64::from(alpha) / 255.0;
            (f64::from(colour) * share + 255.0 * (1.0 - share)).round() as u8
        };
        let solid: Vec<u8> = pixels
            .iter()
            .flat_map(|&(colour, alpha)| [colour, 0, 255].map(|one| white(one, alpha)))
            .collect();
        for (clear, solid) in clear.chunks(256 * 4).zip(solid.chunks(256 * 3)) {
            let clear = encoded(clear, ExtendedColorType::Rgba8);
            let solid = encoded(solid, ExtendedColorType::Rgb8);
            assert_eq!(clear, solid);
        }
    }

    fn crc(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0u32, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                (crc >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1))
            })
        })
    }
}
