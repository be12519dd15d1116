//! A picture takes at most four times its own decoded size and 16 MiB, whatever its file holds.
//!
//! A binary of its own, because its allocator counts what every thread of the process allocates.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Cursor;

use furrow_model::vision::{ImageError, ImageLimits, decode};
use image::{DynamicImage, ImageBuffer, ImageFormat, Rgb, Rgba};
use peak_alloc::PeakAlloc;

#[global_allocator]
static COUNTED: PeakAlloc = PeakAlloc;

const MIB: usize = 1 << 20;
const SLACK: usize = 16 * MIB;
/// What a hostile chunk unpacks to.
const UNPACKED: usize = 500 * MIB;

struct HostilePicture {
    name: &'static str,
    file: Vec<u8>,
    pixels: usize,
    /// Whether it is read; `None`: either will do.
    is_read: Option<bool>,
}

#[test]
fn a_picture_takes_no_more_than_its_own_size_explains() {
    // Tables that a decoder builds once.
    decode(&encoded(&noise(64, 64), ImageFormat::Jpeg), ImageLimits::default()).unwrap();
    for case in [png_chunks(), jpeg_segments(), webp_chunks(), honest()].into_iter().flatten() {
        let HostilePicture { name, file, pixels, is_read } = case;
        let before = COUNTED.current_usage();
        COUNTED.reset_peak_usage();
        let decoded = decode(&file, ImageLimits::default());
        let taken = COUNTED.peak_usage() - before;
        let most = 4 * 3 * pixels + SLACK;
        assert!(taken <= most, "{name}: {taken} bytes, at most {most}: {:?}", decoded.map(|_| ()));
        if let Some(is_read) = is_read {
            assert_eq!(decoded.is_ok(), is_read, "{name}: {:?}", decoded.map(|_| ()));
        }
        if let Err(error) = decoded {
            let is_known = matches!(error, ImageError::Broken { .. } | ImageError::TooManyForSides { .. });
            assert!(is_known, "{name}: {error}");
        }
    }
}

fn case(name: &'static str, file: Vec<u8>, pixels: usize, is_read: Option<bool>) -> HostilePicture {
    HostilePicture { name, file, pixels, is_read }
}

fn png_chunks() -> Vec<HostilePicture> {
    let bomb = deflated_zeros(UNPACKED);
    let whole = encoded(&noise(64, 64), ImageFormat::Png);
    let with = |kind: &[u8; 4], data: &[&[u8]], count: usize| {
        // After the signature and IHDR.
        let (head, rest) = whole.split_at(8 + 25);
        let mut file = head.to_vec();
        (0..count).for_each(|_| chunk(&mut file, kind, &data.concat()));
        file.extend(rest);
        file
    };
    // A second stream of pixels after the first.
    let (before_end, end) = whole.split_at(whole.len() - 12);
    let mut data = before_end.to_vec();
    chunk(&mut data, b"IDAT", &bomb);
    data.extend(end);
    let mut sole = whole[..8 + 25].to_vec();
    chunk(&mut sole, b"IDAT", &bomb);
    sole.extend(end);
    let text = vec![b'a'; 1000];
    vec![
        case("a profile of 500 MiB", with(b"iCCP", &[b"p\0\0", &bomb], 1), 4096, None),
        case("a Latin-1 text of 500 MiB", with(b"zTXt", &[b"k\0\0", &bomb], 1), 4096, None),
        case("a text of 500 MiB", with(b"iTXt", &[b"k\0\x01\0\0\0", &bomb], 1), 4096, None),
        case("a long text", with(b"tEXt", &[b"k\0", &vec![b'a'; 50 * MIB]], 1), 4096, Some(false)),
        case("many texts", with(b"tEXt", &[b"k\0", &text], 50_000), 4096, Some(false)),
        case("an unknown chunk", with(b"abCd", &[&vec![b'a'; 3 * MIB]], 1), 4096, Some(true)),
        case("more pixels than it has", data, 4096, None),
        case("pixels of zeros without an end", sole, 4096, Some(true)),
    ]
}

fn jpeg_segments() -> Vec<HostilePicture> {
    let whole = encoded(&noise(64, 64), ImageFormat::Jpeg);
    let with = |kind: u8, head: &[u8], count: usize| {
        let mut file = whole[..2].to_vec();
        for _ in 0..count {
            file.extend([0xff, kind]);
            file.extend(60_000u16.to_be_bytes());
            file.extend(head);
            file.extend(vec![b'a'; 60_000 - 2 - head.len()]);
        }
        file.extend(&whole[2..]);
        file
    };
    vec![
        case("3 MB of profiles", with(0xe2, b"ICC_PROFILE\0\x01\x01", 50), 4096, Some(true)),
        case("60 MB of profiles", with(0xe2, b"ICC_PROFILE\0\x01\x01", 1000), 4096, Some(false)),
        case("3 MB of metadata", with(0xe1, b"Exif\0\0", 50), 4096, Some(true)),
        case("60 MB of comments", with(0xfe, b"", 1000), 4096, Some(false)),
        case("a progressive picture with one scan", progressive(&whole, 4096), 4096 * 4096, None),
    ]
}

/// The file with other sides, and a first scan of the average colours alone.
fn progressive(baseline: &[u8], side: u16) -> Vec<u8> {
    let mut file = baseline.to_vec();
    let marker = |file: &[u8], kind: u8| file.windows(2).position(|two| two == [0xff, kind]).unwrap();
    let frame = marker(&file, 0xc0);
    file[frame + 1] = 0xc2;
    file[frame + 5..frame + 7].copy_from_slice(&side.to_be_bytes());
    file[frame + 7..frame + 9].copy_from_slice(&side.to_be_bytes());
    let scan = marker(&file, 0xda);
    file[scan + 12] = 0;
    file
}

fn webp_chunks() -> Vec<HostilePicture> {
    let lossy = include_bytes!("webp/lossy.webp");
    let with = |bytes: usize| {
        let mut file = lossy.to_vec();
        file.extend(b"EXIF");
        file.extend((bytes as u32).to_le_bytes());
        file.resize(file.len() + bytes, b'a');
        let length = (file.len() - 8) as u32;
        file[4..8].copy_from_slice(&length.to_le_bytes());
        file
    };
    vec![
        case("3 MiB of metadata in a WebP", with(3 * MIB), 48 * 32, Some(true)),
        case("60 MiB of metadata in a WebP", with(60 * MIB), 48 * 32, Some(false)),
    ]
}

/// Pictures that do not compress, in each form.
fn honest() -> Vec<HostilePicture> {
    const SIDE: u32 = 1024;
    let pixels = (SIDE * SIDE) as usize;
    let deep = |x: u32, y: u32| random(x, y).map(|value| u16::from_le_bytes([value, value ^ 0x5a]));
    let rgba = ImageBuffer::from_fn(SIDE, SIDE, |x, y| Rgba(deep(x, y)));
    let rgb = ImageBuffer::from_fn(SIDE, SIDE, |x, y| Rgb([deep(x, y)[0], deep(x, y)[1], 7]));
    let png = |image: DynamicImage| encoded(&image, ImageFormat::Png);
    vec![
        case("RGBA of 16 bits", png(rgba.into()), pixels, Some(true)),
        case("RGB of 16 bits", png(rgb.into()), pixels, Some(true)),
        case("RGB", png(noise(SIDE, SIDE)), pixels, Some(true)),
        case("RGBA", png(noise(SIDE, SIDE).into_rgba8().into()), pixels, Some(true)),
        case("JPEG", encoded(&noise(SIDE, SIDE), ImageFormat::Jpeg), pixels, Some(true)),
        case("WebP", encoded(&noise(SIDE, SIDE), ImageFormat::WebP), pixels, Some(true)),
    ]
}

fn noise(width: u32, height: u32) -> DynamicImage {
    let pixel = |x, y| Rgb([random(x, y)[0], random(x, y)[1], random(x, y)[2]]);
    ImageBuffer::from_fn(width, height, pixel).into()
}

fn random(x: u32, y: u32) -> [u8; 4] {
    let mixed = u64::from(x * 65_537 + y).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let [.., a, b, c, d] = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes();
    [a, b, c, d]
}

fn encoded(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

fn chunk(file: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    file.extend((data.len() as u32).to_be_bytes());
    let begins = file.len();
    file.extend(kind);
    file.extend(data);
    let sum = crc32(&file[begins..]);
    file.extend(sum.to_be_bytes());
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    };
    !bytes.iter().fold(!0, step)
}

/// A zlib stream of this many zeros: one literal, then matches of 258 bytes at distance 1, in the
/// fixed code.
fn deflated_zeros(count: usize) -> Vec<u8> {
    let matches = (count - 1) / 258;
    // Codes are written from their first bit on. Literal 0 is 00110000, length 258 is 11000101,
    // distance 1 is 00000, the end of the block 0000000.
    let literal = [0, 0, 1, 1, 0, 0, 0, 0];
    let repeated = [1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0];
    // The last block, in the fixed code.
    let mut bits = vec![1u8, 1, 0];
    bits.extend(literal);
    let mut stream = vec![0x78, 0x01];
    let flush = |bits: &mut Vec<u8>, stream: &mut Vec<u8>| {
        let whole = bits.len() / 8 * 8;
        let bytes = bits[..whole].chunks(8);
        stream.extend(bytes.map(|bits| bits.iter().rev().fold(0, |byte, bit| byte << 1 | bit)));
        bits.drain(..whole);
    };
    for _ in 0..matches {
        bits.extend(repeated);
        flush(&mut bits, &mut stream);
    }
    bits.extend([0; 7]);
    bits.resize(bits.len().next_multiple_of(8), 0);
    flush(&mut bits, &mut stream);
    // Adler-32 of zeros.
    let length = (1 + 258 * matches) as u32;
    stream.extend(((length % 65_521) << 16 | 1).to_be_bytes());
    stream
}
