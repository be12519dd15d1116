//! Offline sites: the folder or archive that is served under each host name, and the check that it
//! is the right one.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use zip::ZipArchive;

use crate::PictureSet;

/// SHA-256 of the MiniWoB++ wheel that this farm was tested with (`miniwob` 1.1.0): other pages
/// would be other tasks under the same names.
pub(crate) const WHEEL_SHA256: &str = "297006e84219d56ad037e843527ed773a4a82509dc43b6031ec4a3ad3e3e61d9";

/// The served root inside the wheel.
const WHEEL_PREFIX: &str = "miniwob/html/";

/// The wheel has 1.9 MB; a file of this size is something else and is not read to its end.
const WHEEL_BYTES_MAX: u64 = 64 << 20;

/// The longest page of the wheel has 60 kB.
const PAGE_BYTES_MAX: u64 = 1 << 20;

/// A static site that an environment worker serves itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteSpec {
    /// Host name, such as `starter.test`. The domain `.test` is reserved: it never leaves the
    /// machine.
    pub host: String,
    /// The files that are served under it.
    pub root: SiteRoot,
}

/// Location of a site's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SiteRoot {
    Folder(PathBuf),
    /// Overlaid folders: the first that has a file serves it.
    Layers(Vec<PathBuf>),
    /// The same of a single-page application, whose `index.html` draws every path that is no file.
    SinglePage(Vec<PathBuf>),
    /// A part of a zip archive.
    Wheel {
        path: PathBuf,
        /// Prefix of the served files' names, ending in `/`.
        prefix: String,
    },
    /// Pictures of a grounding set, each with a generated page.
    Pictures(Arc<PictureSet>),
}

/// The MiniWoB++ pages: the pinned wheel, or a folder with all `files` in it.
pub(crate) fn miniwob_root(path: &Path, files: &[&str]) -> Result<SiteRoot, String> {
    if path.is_dir() { folder_root(path, files) } else { wheel_root(path, WHEEL_SHA256, files) }
}

/// Every MiniWoB++ page under a root, in the order of their names, each with the time limit that it
/// sets itself, in milliseconds.
pub(crate) fn miniwob_pages(root: &SiteRoot) -> io::Result<Vec<(String, Option<u64>)>> {
    let mut pages = match root {
        SiteRoot::Wheel { path, prefix } => pages_of_wheel(path, prefix)?,
        SiteRoot::Folder(folder) => pages_of_folder(folder)?,
        SiteRoot::Layers(_) | SiteRoot::SinglePage(_) | SiteRoot::Pictures(_) => Vec::new(),
    };
    pages.sort();
    Ok(pages)
}

fn pages_of_wheel(path: &Path, prefix: &str) -> io::Result<Vec<(String, Option<u64>)>> {
    let mut archive = ZipArchive::new(File::open(path)?)?;
    let mut pages = Vec::new();
    for index in 0..archive.len() {
        let entry = archive.by_index(index)?;
        let name = entry.name()?.into_owned();
        if let Some(file) = name.strip_prefix(prefix).filter(|file| is_page(file)) {
            pages.push((file.to_owned(), limit_of(entry)?));
        }
    }
    Ok(pages)
}

fn pages_of_folder(root: &Path) -> io::Result<Vec<(String, Option<u64>)>> {
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(root.join("miniwob"))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let file = format!("miniwob/{name}");
        if is_page(&file) {
            pages.push((file, limit_of(File::open(&path)?)?));
        }
    }
    Ok(pages)
}

/// Pages are directly in the folder `miniwob`.
fn is_page(file: &str) -> bool {
    file.strip_prefix("miniwob/").and_then(|name| name.strip_suffix(".html")).is_some_and(|name| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
    })
}

/// The value that a page assigns to `core.EPISODE_MAX_TIME`, if it does.
fn limit_of(page: impl Read) -> io::Result<Option<u64>> {
    let mut html = Vec::new();
    page.take(PAGE_BYTES_MAX).read_to_end(&mut html)?;
    let html = String::from_utf8_lossy(&html);
    let Some((_, after)) = html.split_once("core.EPISODE_MAX_TIME") else { return Ok(None) };
    let value = after.trim_start().strip_prefix('=').unwrap_or_default().trim_start();
    let digits: String = value.chars().take_while(char::is_ascii_digit).collect();
    Ok(digits.parse().ok())
}

/// An unpacked wheel, or its `miniwob/html` folder itself.
fn folder_root(path: &Path, files: &[&str]) -> Result<SiteRoot, String> {
    let inner = path.join(WHEEL_PREFIX);
    let root = if inner.is_dir() { inner } else { path.to_owned() };
    let missing: Vec<_> = files.iter().copied().filter(|file| !root.join(file).is_file()).collect();
    check_complete(&root, &missing)?;
    Ok(SiteRoot::Folder(root))
}

fn wheel_root(path: &Path, pin: &str, files: &[&str]) -> Result<SiteRoot, String> {
    let got = file_sha256(path).map_err(|e| format!("{}: cannot be read: {e}", path.display()))?;
    if got != pin {
        return Err(format!(
            "{}: its SHA-256 is {got}, not {pin} of miniwob 1.1.0; \
             get that wheel with `pip download --no-deps miniwob==1.1.0`",
            path.display()
        ));
    }
    let names =
        names_in(path).map_err(|e| format!("{}: is not a readable zip archive: {e}", path.display()))?;
    let missing: Vec<_> =
        files.iter().copied().filter(|file| !names.contains(&format!("{WHEEL_PREFIX}{file}"))).collect();
    check_complete(path, &missing)?;
    Ok(SiteRoot::Wheel { path: path.to_owned(), prefix: WHEEL_PREFIX.to_owned() })
}

fn check_complete(root: &Path, missing: &[&str]) -> Result<(), String> {
    let Some(first) = missing.first() else { return Ok(()) };
    Err(format!(
        "{}: {} of the listed pages are missing, the first is {first}; \
         point `pages` at the miniwob 1.1.0 wheel or its unpacked folder",
        root.display(),
        missing.len()
    ))
}

fn names_in(path: &Path) -> zip::result::ZipResult<HashSet<String>> {
    let archive = ZipArchive::new(File::open(path)?)?;
    archive.file_names().map(|name| name.map(std::borrow::Cow::into_owned)).collect()
}

fn file_sha256(path: &Path) -> io::Result<String> {
    let file = File::open(path)?;
    if file.metadata()?.len() > WHEEL_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {WHEEL_BYTES_MAX} bytes"),
        ));
    }
    let mut hash = Sha256::new();
    io::copy(&mut file.take(WHEEL_BYTES_MAX), &mut hash)?;
    Ok(hex(&hash.finalize()))
}

/// Bytes as lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use zip::write::{SimpleFileOptions, ZipWriter};

    /// A zip archive with these files, and its hash.
    fn wheel(folder: &Path, names: &[&str]) -> (PathBuf, String) {
        let path = folder.join("tiny.whl");
        let mut zip = ZipWriter::new(File::create(&path).unwrap());
        for name in names {
            zip.start_file(*name, SimpleFileOptions::default()).unwrap();
            zip.write_all(b"<!doctype html>").unwrap();
        }
        zip.finish().unwrap();
        let hash = file_sha256(&path).unwrap();
        (path, hash)
    }

    #[test]
    fn a_wheel_must_be_the_pinned_one_and_hold_the_pages() {
        let folder = tempfile::tempdir().unwrap();
        let (path, hash) =
            wheel(folder.path(), &["miniwob/html/miniwob/a.html", "miniwob/html/core/core.js"]);
        let root = SiteRoot::Wheel { path: path.clone(), prefix: "miniwob/html/".to_owned() };
        assert_eq!(wheel_root(&path, &hash, &["miniwob/a.html"]), Ok(root));

        let other = miniwob_root(&path, &["miniwob/a.html"]).unwrap_err();
        assert!(
            other.contains(&hash) && other.contains(WHEEL_SHA256) && other.contains("pip download"),
            "{other}"
        );
        let lacking = wheel_root(&path, &hash, &["miniwob/a.html", "miniwob/b.html"]).unwrap_err();
        assert!(
            lacking.contains("1 of the listed pages are missing, the first is miniwob/b.html"),
            "{lacking}"
        );
    }

    #[test]
    fn an_unreadable_archive_is_reported_as_such() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.whl");
        std::fs::write(&path, "<html>").unwrap();
        let hash = file_sha256(&path).unwrap();
        assert!(wheel_root(&path, &hash, &[]).unwrap_err().contains("is not a readable zip archive"));
        assert!(wheel_root(&folder.path().join("none"), &hash, &[]).unwrap_err().contains("cannot be read"));
        let sparse = File::create(folder.path().join("huge.whl")).unwrap();
        sparse.set_len(WHEEL_BYTES_MAX + 1).unwrap();
        assert!(miniwob_root(&folder.path().join("huge.whl"), &[]).unwrap_err().contains("larger than"));
    }

    #[test]
    fn a_folder_may_be_the_wheels_or_its_html_part() {
        let folder = tempfile::tempdir().unwrap();
        let html = folder.path().join("miniwob/html");
        std::fs::create_dir_all(html.join("miniwob")).unwrap();
        std::fs::write(html.join("miniwob/a.html"), "").unwrap();
        for given in [folder.path(), html.as_path()] {
            assert_eq!(miniwob_root(given, &["miniwob/a.html"]), Ok(SiteRoot::Folder(html.clone())));
        }
        assert!(miniwob_root(folder.path(), &["miniwob/b.html"]).is_err());
    }
}
