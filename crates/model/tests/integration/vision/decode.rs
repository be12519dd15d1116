//! Images that are accepted, and images that are refused.

use std::io::Cursor;
use std::sync::OnceLock;

use furrow_model::vision::{DecodedImage, ImageError, ImageLimits, decode};
use image::{DynamicImage, ImageBuffer, ImageFormat, Luma, LumaA, Rgb as Pixel, Rgba};
use proptest::prelude::*;

fn encoded(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.into().write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// A picture with an edge, a slope and a checkerboard.
fn picture(width: u32, height: u32) -> image::RgbImage {
    ImageBuffer::from_fn(width, height, |x, y| {
        Pixel([(x * 5) as u8, (y * 7) as u8, ((x + y) % 2 * 255) as u8])
    })
}

fn read(bytes: &[u8]) -> DecodedImage {
    decode(bytes, ImageLimits::default()).unwrap()
}

#[track_caller]
fn check_pixel(image: impl Into<DynamicImage>, want: [u8; 3]) {
    let rgb = read(&encoded(image, ImageFormat::Png));
    assert_eq!((rgb.width, rgb.height), (40, 33));
    assert!(
        rgb.pixels.as_chunks::<3>().0.iter().all(|pixel| *pixel == want),
        "{:?}, not {want:?}",
        &rgb.pixels[..3]
    );
}

#[test]
fn every_kind_of_pixel_becomes_rgb() {
    check_pixel(image::RgbImage::from_pixel(40, 33, Pixel([1, 2, 3])), [1, 2, 3]);
    check_pixel(image::RgbaImage::from_pixel(40, 33, Rgba([1, 2, 3, 255])), [1, 2, 3]);
    check_pixel(image::RgbaImage::from_pixel(40, 33, Rgba([1, 2, 3, 0])), [255, 255, 255]);
    check_pixel(image::RgbaImage::from_pixel(40, 33, Rgba([0, 100, 255, 128])), [127, 177, 255]);
    check_pixel(image::GrayImage::from_pixel(40, 33, Luma([77])), [77, 77, 77]);
    check_pixel(image::GrayAlphaImage::from_pixel(40, 33, LumaA([0, 51])), [204, 204, 204]);
    check_pixel(ImageBuffer::from_pixel(40, 33, Pixel([0u16, 0x8000, 0xffff])), [0, 128, 255]);
    check_pixel(ImageBuffer::from_pixel(40, 33, Rgba([0u16, 0x8000, 0xffff, 0])), [255, 255, 255]);
    check_pixel(ImageBuffer::from_pixel(40, 33, Luma([0x4040u16])), [64, 64, 64]);
}

/// Two bits a pixel, three colours: index 2 is transparent.
#[test]
fn palettes_become_rgb() {
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    chunk(&mut png, b"IHDR", &[0, 0, 0, 32, 0, 0, 0, 32, 2, 3, 0, 0, 0]);
    chunk(&mut png, b"PLTE", &[10, 20, 30, 40, 50, 60, 70, 80, 90]);
    chunk(&mut png, b"tRNS", &[255, 255, 0]);
    let rows: Vec<u8> = (0..32).flat_map(|_| [0, 0b00_01_10_00, 0, 0, 0, 0, 0, 0, 0]).collect();
    chunk(&mut png, b"IDAT", &stored(&rows));
    chunk(&mut png, b"IEND", &[]);
    let rgb = read(&png);
    assert_eq!(rgb.pixels[..12], [10, 20, 30, 40, 50, 60, 255, 255, 255, 10, 20, 30]);
}

#[test]
fn a_jpeg_comes_near_its_picture() {
    let smooth = image::RgbImage::from_fn(64, 48, |x, y| Pixel([(x * 3) as u8, (y * 4) as u8, 128]));
    let rgb = read(&encoded(smooth.clone(), ImageFormat::Jpeg));
    let far = rgb.pixels.iter().zip(smooth.as_raw()).filter(|(a, b)| a.abs_diff(**b) > 24).count();
    assert!(far == 0, "{far} of {} values are far off", rgb.pixels.len());
    let grey = read(&encoded(image::GrayImage::from_pixel(40, 40, Luma([90])), ImageFormat::Jpeg));
    assert!(grey.pixels.iter().all(|value| value.abs_diff(90) <= 2));
}

#[track_caller]
fn check_refused(bytes: &[u8], limits: ImageLimits, want: &str) {
    let error = decode(bytes, limits).unwrap_err();
    assert!(error.to_string().contains(want), "{error}");
}

#[test]
fn what_is_out_of_bounds_is_named() {
    let limits = ImageLimits::default();
    let png = encoded(picture(100, 40), ImageFormat::Png);
    let jpeg = encoded(picture(100, 40), ImageFormat::Jpeg);
    for bytes in [&png, &jpeg] {
        let size = "100 x 40 pixels";
        check_refused(bytes, ImageLimits { side_max: 99, ..limits }, size);
        check_refused(bytes, ImageLimits { side_min: 41, ..limits }, size);
        check_refused(bytes, ImageLimits { pixels_max: 3999, ..limits }, size);
        let few = ImageLimits { bytes_max: bytes.len() - 1, ..limits };
        check_refused(bytes, few, "send a smaller screenshot");
        let exact = ImageLimits { bytes_max: bytes.len(), side_min: 40, side_max: 100, pixels_max: 4000 };
        assert_eq!(decode(bytes, exact).unwrap().width, 100);
    }
    check_refused(b"", limits, "neither PNG nor JPEG");
    check_refused(b"GIF89a..........", limits, "[47, 49, 46, 38, 39, 61, 2e, 2e]");
    check_refused(&encoded(picture(31, 40), ImageFormat::Png), limits, "sides from 32");
}

/// A header of 4 billion pixels in 60 bytes is refused for its size, before any allocation.
#[test]
fn a_header_that_claims_too_much_is_refused() {
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    chunk(&mut png, b"IHDR", &[0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff, 8, 2, 0, 0, 0]);
    chunk(&mut png, b"IDAT", &stored(&[0; 16]));
    chunk(&mut png, b"IEND", &[]);
    check_refused(&png, ImageLimits::default(), "65535 x 65535 pixels");
    let within = ImageLimits { side_max: 1 << 20, ..ImageLimits::default() };
    check_refused(&png, within, "65535 x 65535 pixels");
    let frame = [0xff, 0xd8, 0xff, 0xc0, 0, 11, 8, 0xff, 0xff, 0xff, 0xff, 1, 1, 0x11, 0, 0xff, 0xd9];
    check_refused(&frame, ImageLimits::default(), "65535 x 65535 pixels");
}

/// Fewer pixels than the header says.
#[test]
fn too_little_data_is_refused() {
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    chunk(&mut png, b"IHDR", &[0, 0, 0, 64, 0, 0, 0, 64, 8, 2, 0, 0, 0]);
    chunk(&mut png, b"IDAT", &stored(&[0; 193 * 63]));
    chunk(&mut png, b"IEND", &[]);
    let error = decode(&png, ImageLimits::default()).unwrap_err();
    assert!(matches!(error, ImageError::Broken { .. }), "{error}");
}

const LOSSY: &[u8] = include_bytes!("../../webp/lossy.webp");

/// 48 x 32 pixels, red on the left and blue on the right, written by Pillow.
#[test]
fn every_kind_of_webp_is_read_but_animations() {
    let limits = ImageLimits::default();
    let lossless = include_bytes!("../../webp/lossless.webp");
    // Half transparent, over white.
    let alpha = include_bytes!("../../webp/alpha.webp");
    for (bytes, red, blue, within) in [
        (&lossless[..], [200, 30, 40], [10, 120, 220], 0),
        (LOSSY, [200, 30, 40], [10, 120, 220], 12),
        (alpha, [227, 142, 147], [132, 187, 237], 12),
    ] {
        let rgb = read(bytes);
        assert_eq!((rgb.width, rgb.height), (48, 32));
        for (at, want) in [(4, red), (43, blue)] {
            let pixel = &rgb.pixels[3 * (16 * 48 + at)..][..3];
            let is_near = pixel.iter().zip(want).all(|(got, want): (&u8, u8)| got.abs_diff(want) <= within);
            assert!(is_near, "{pixel:?}, not {want:?}");
        }
        check_refused(bytes, ImageLimits { side_max: 47, ..limits }, "48 x 32 pixels");
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len], limits).is_err(), "cut to {len}");
        }
    }
    check_refused(include_bytes!("../../webp/animated.webp"), limits, "animated");
    // A canvas of another size than its picture.
    let mut lying = alpha.to_vec();
    lying[24] = 63;
    check_refused(&lying, limits, "truncated or broken");
    // A header that claims too much.
    let mut large = lossless.to_vec();
    large[21..25].fill(0xff);
    assert!(decode(&large, limits).is_err());
    check_refused(&large, ImageLimits { pixels_max: 1 << 20, ..limits }, "16384 x 16384 pixels");
}

/// No prefix of a picture is accepted as a picture.
#[test]
fn whatever_is_cut_off_is_refused() {
    for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP] {
        let whole = encoded(picture(48, 40), format);
        for len in 0..whole.len() {
            assert!(
                decode(&whole[..len], ImageLimits::default()).is_err(),
                "{format:?} cut to {len} of {}",
                whole.len()
            );
        }
        let trailed = [whole.as_slice(), b"what follows the end mark does not count"].concat();
        assert_eq!(read(&trailed), read(&whole));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Broken bytes give an image or an error, never a panic.
    #[test]
    fn broken_bytes_never_panic(
        kind in 0usize..4,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        static WHOLE: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
        let whole = || {
            let formats = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP];
            let encoded = formats.map(|format| encoded(picture(48, 40), format));
            encoded.into_iter().chain([LOSSY.to_vec()]).collect()
        };
        let mut bytes = WHOLE.get_or_init(whole)[kind].clone();
        for (at, value) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let limits = ImageLimits { pixels_max: 1 << 20, ..ImageLimits::default() };
        if let Ok(rgb) = decode(&bytes, limits) {
            prop_assert_eq!(rgb.pixels.len(), 3 * rgb.width * rgb.height);
        }
    }

    #[test]
    fn any_bytes_never_panic(start in 0usize..3, rest in prop::collection::vec(any::<u8>(), 0..300)) {
        let starts: [&[u8]; 3] = [b"", b"\x89PNG\r\n\x1a\n", &[0xff, 0xd8, 0xff]];
        prop_assert!(decode(&[starts[start], &rest].concat(), ImageLimits::default()).is_err());
    }
}

/// Length, type, data, CRC.
fn chunk(png: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    png.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
    png.extend(kind);
    png.extend(data);
    let covered = [kind.as_slice(), data].concat();
    let crc = !covered.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1)))
    });
    png.extend(crc.to_be_bytes());
}

/// A zlib stream that stores its data uncompressed.
fn stored(data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(data.len()).unwrap();
    let (a, b) = data.iter().fold((1u32, 0u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65_521;
        (a, (a + b) % 65_521)
    });
    let mut stream = vec![0x78, 0x01, 0x01];
    stream.extend(len.to_le_bytes());
    stream.extend((!len).to_le_bytes());
    stream.extend(data);
    stream.extend((b << 16 | a).to_be_bytes());
    stream
}
