//! The hash of what a policy saw: decoded pixels, so that it holds whatever the encoding.

use std::io::Cursor;

use image::{ImageFormat, ImageReader, Limits};
use sha2::{Digest, Sha256};

/// Widest and highest screenshot that is decoded.
const SIDE_MAX: u32 = 16_384;
/// Most memory a decoder may take: 16,384 x 4,096 RGBA.
const DECODE_BYTES_MAX: u64 = 256 << 20;

/// SHA-256 over the pixels as RGB, 8 bits each, row by row.
pub(crate) fn rgb_sha256(encoded: &[u8], format: ImageFormat) -> Result<[u8; 32], String> {
    let mut limits = Limits::default();
    limits.max_image_width = Some(SIDE_MAX);
    limits.max_image_height = Some(SIDE_MAX);
    limits.max_alloc = Some(DECODE_BYTES_MAX);
    let mut reader = ImageReader::with_format(Cursor::new(encoded), format);
    reader.limits(limits);
    let pixels = reader.decode().map_err(|error| error.to_string())?.into_rgb8();
    Ok(Sha256::digest(pixels.as_raw()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn crc(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0u32, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                (crc >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1))
            })
        })
    }
}
