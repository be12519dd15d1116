//! The hash of what a policy saw: decoded pixels, so that it holds whatever the encoding.

use std::io::Cursor;

use image::{DynamicImage, ImageFormat, ImageReader, Limits};
use sha2::{Digest, Sha256};

/// Widest and highest screenshot that is decoded.
const SIDE_MAX: u32 = 16_384;
/// Most memory a decoder may take: 16,384 x 4,096 RGBA.
const DECODE_BYTES_MAX: u64 = 256 << 20;

/// SHA-256 over the pixels as RGB, 8 bits each, row by row; what is transparent shows white behind it, as the policy sees it.
pub(crate) fn rgb_sha256(encoded: &[u8], format: ImageFormat) -> Result<[u8; 32], String> {
    let mut limits = Limits::default();
    limits.max_image_width = Some(SIDE_MAX);
    limits.max_image_height = Some(SIDE_MAX);
    limits.max_alloc = Some(DECODE_BYTES_MAX);
    let mut reader = ImageReader::with_format(Cursor::new(encoded), format);
    reader.limits(limits);
    let picture = reader.decode().map_err(|error| error.to_string())?;
    Ok(Sha256::digest(rgb(picture)).into())
}

fn rgb(picture: DynamicImage) -> Vec<u8> {
    match picture.color().has_alpha() {
        true => picture.into_rgba8().as_raw().as_chunks::<4>().0.iter().flat_map(over_white).collect(),
        false => picture.into_rgb8().into_raw(),
    }
}

/// `colour a + white (1 - a)` with a in 255ths, rounded to the nearest. Written apart from the policy's own: a proof that shared its sum
/// with what it proves would prove less.
fn over_white([red, green, blue, alpha]: &[u8; 4]) -> [u8; 3] {
    let (alpha, white) = (u32::from(*alpha), 255 * (255 - u32::from(*alpha)));
    // 255 is odd, so no sum lies half way between two.
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
    fn what_is_transparent_shows_white() {
        let encoded = |pixels: &[u8], colour| {
            let mut png = Cursor::new(Vec::new());
            let (width, height) =
                (pixels.len() as u32 / if colour == ExtendedColorType::Rgba8 { 4 } else { 3 }, 1);
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
            let (clear, solid) =
                (encoded(clear, ExtendedColorType::Rgba8), encoded(solid, ExtendedColorType::Rgb8));
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
