//! Pictures of the chat endpoint and of a page: PNG, JPEG and WebP.

use std::io::Cursor;

use furrow_model::vision::{ImageLimits, ResampleMode, decode, prepare, size};
use image::{DynamicImage, ImageFormat, RgbImage, RgbaImage};

use crate::{FuzzTarget, Seed, accept, images, models};

pub(super) const PICTURE: FuzzTarget = FuzzTarget {
    name: "picture",
    run,
    repair: Some(images::repaired),
    memory_max,
    bytes_max: 16 << 10,
    catches_panics: false,
    seeds,
};

const MIB: usize = 1 << 20;

/// As the endpoint's, but for pictures that are decoded in little time.
fn limits() -> ImageLimits {
    ImageLimits { pixels_max: 1 << 20, ..ImageLimits::default() }
}

/// Four times the decoded size and 16 MiB; the tiles that are cut from it come after.
fn memory_max(input: &[u8]) -> usize {
    let pixels = size(input, limits()).map_or(0, |(width, height)| width * height);
    4 * 3 * pixels + 16 * MIB
}

/// The header has the size of what is decoded.
fn run(input: &[u8]) {
    let sides = size(input, limits()).ok();
    let Ok(picture) = decode(input, limits()) else { return };
    accept();
    assert_eq!(sides, Some((picture.width, picture.height)), "the header has another size");
    let Some(vision) = &models::config().vision else { return };
    let prepared = prepare(&picture, vision, ResampleMode::U8);
    assert!(!prepared.tiles.is_empty(), "a picture has a tile");
}

fn seeds() -> Vec<Seed> {
    let rgb = RgbImage::from_fn(40, 33, |x, y| image::Rgb([(x * 6) as u8, (y * 7) as u8, (x ^ y) as u8]));
    let rgba = RgbaImage::from_fn(32, 32, |x, y| image::Rgba([x as u8, 200, y as u8, (x * y) as u8]));
    let rgb = DynamicImage::from(rgb);
    let pictures = [
        ("rgb.png", rgb.clone(), ImageFormat::Png),
        ("rgba.png", rgba.clone().into(), ImageFormat::Png),
        ("grey.png", rgb.to_luma8().into(), ImageFormat::Png),
        ("deep.png", rgb.to_luma16().into(), ImageFormat::Png),
        ("rgb.jpeg", rgb.clone(), ImageFormat::Jpeg),
        ("grey.jpeg", rgb.to_luma8().into(), ImageFormat::Jpeg),
        ("rgba.webp", rgba.into(), ImageFormat::WebP),
    ];
    pictures.map(|(name, picture, format)| Seed::new(name, encoded(&picture, format))).into()
}

fn encoded(picture: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut encoded = Cursor::new(Vec::new());
    picture.write_to(&mut encoded, format).expect("a picture is written to memory");
    encoded.into_inner()
}
