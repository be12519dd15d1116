//! Pictures of a grounding set: their locations and their sizes.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

use furrow_rollout::Size;

/// Largest picture file: the default limit of a site's files (`env.site_file_bytes_max`).
pub(super) const BYTES_MAX: u64 = 32 << 20;

/// Most pixels: a decoded pixel takes four bytes in the browser and three at the model, so 40
/// million take 280 MB.
const PIXELS_MAX: u64 = 40_000_000;

/// A picture whose header was read; its bytes are not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PictureFile {
    pub(super) at: PictureLocation,
    pub(super) size: Size,
    /// File extension, `png` or `jpeg`.
    pub(super) ending: &'static str,
}

/// Location of a picture's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PictureLocation {
    /// A file of its own.
    File(PathBuf),
    /// A row of a Parquet file.
    Row { path: PathBuf, row_group: usize, row: usize },
}

impl PictureFile {
    /// A picture in a file below a folder; no file outside it is opened, whatever the name is.
    pub(super) fn from_file(folder: &Path, named: &str) -> Result<Self, String> {
        let quoted = || format!("{:?}", crate::fields::short(named));
        let root = folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?;
        let path = folder
            .join(named)
            .canonicalize()
            .map_err(|error| format!("{} cannot be read: {error}", quoted()))?;
        if !path.starts_with(&root) {
            return Err(format!("{} lies outside the file's folder; put the picture below it", quoted()));
        }
        let bytes = read_capped(&path).map_err(|error| format!("{} cannot be read: {error}", quoted()))?;
        Self::from_bytes(PictureLocation::File(path), &bytes)
    }

    /// Reads the header of a picture.
    pub(super) fn from_bytes(at: PictureLocation, bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() as u64 > BYTES_MAX {
            return Err(format!("has {} bytes; use at most {BYTES_MAX}", bytes.len()));
        }
        let reader = image::ImageReader::new(Cursor::new(bytes)).with_guessed_format();
        let reader = reader.map_err(|error| format!("is not a picture: {error}"))?;
        let ending = match reader.format() {
            Some(image::ImageFormat::Png) => "png",
            Some(image::ImageFormat::Jpeg) => "jpeg",
            _ => return Err("is not a picture of a supported format; use PNG or JPEG".to_owned()),
        };
        let (width, height) =
            reader.into_dimensions().map_err(|error| format!("is not a complete picture: {error}"))?;
        let pixels = u64::from(width) * u64::from(height);
        if pixels == 0 || pixels > PIXELS_MAX {
            return Err(format!("has {width} x {height} pixels; use 1 to {PIXELS_MAX} in all"));
        }
        Ok(Self { at, size: Size::new(width, height), ending })
    }
}

/// Reads a picture file of at most [`BYTES_MAX`] bytes.
pub(super) fn read_capped(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {BYTES_MAX} bytes")));
    }
    Ok(bytes)
}
