//! The site of a grounding set: its pictures, and the pages that show them.

use std::io;

use furrow_rollout::Size;

use super::parquet;
use super::picture::{PictureFile, PictureLocation, read_capped};

/// All pictures of a set and their pages, as a site serves them: `000007.html` shows `000007.png`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PictureSet {
    pictures: Vec<(PictureFile, Size)>,
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
