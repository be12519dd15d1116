//! Pictures of a grounding set: their locations, their sizes, and the pages that show them.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

use furrow_rollout::Size;

use super::parquet;

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

/// All pictures of a set and their pages, as a site serves them: `000007.html` shows `000007.png`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PictureSet {
    pictures: Vec<(PictureFile, Size)>,
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

impl PictureSet {
    /// Adds a picture, to be shown in this size.
    pub(super) fn add(&mut self, picture: PictureFile, shown: Size) {
        self.pictures.push((picture, shown));
    }

    /// A file of the site, `None` if there is none of that name. Blocks.
    pub fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let Some((number, ending)) = name.split_once('.') else { return Ok(None) };
        let index = number.parse::<usize>().ok().filter(|index| format!("{index:06}") == number);
        let Some((picture, shown)) = index.and_then(|index| self.pictures.get(index)) else {
            return Ok(None);
        };
        match ending {
            "html" => Ok(Some(page(number, picture.ending, *shown).into_bytes())),
            ending if ending == picture.ending => Ok(Some(match &picture.at {
                PictureLocation::File(path) => read_capped(path)?,
                PictureLocation::Row { path, row_group, row } => {
                    parquet::picture(path, *row_group, *row).map_err(io::Error::other)?
                }
            })),
            _ => Ok(None),
        }
    }

    pub fn len(&self) -> usize {
        self.pictures.len()
    }

    /// Whether there are no pictures.
    pub fn is_empty(&self) -> bool {
        self.pictures.is_empty()
    }
}

/// The page shows the picture from the top left corner, pixel for pixel. It records the first click
/// and has no other reaction.
fn page(number: &str, ending: &str, shown: Size) -> String {
    let Size { width, height } = shown;
    format!(
        "<!doctype html><meta charset=\"utf-8\"><title>Picture</title>\
         <style>html,body{{margin:0;overflow:hidden;background:#fff}}img{{display:block;width:{width}px;height:{height}px}}</style>\
         <img src=\"{number}.{ending}\" alt=\"\" draggable=\"false\">\
         <script>window.grounding={{click:null}};addEventListener('click',(event)=>{{\
         window.grounding.click??={{x:event.pageX,y:event.pageY}};event.preventDefault()}},true)</script>"
    )
}

fn read_capped(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {BYTES_MAX} bytes")));
    }
    Ok(bytes)
}
