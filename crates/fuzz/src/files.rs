//! Inputs that are several files: each after a line with its name.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::OnceLock;

/// Folder for the files of the input that runs, which the caller removes.
const SCRATCH: &str = "FURROW_FUZZ_SCRATCH";
const HEAD: &[u8] = b"=== ";

/// The files of an input by name, in its order. Bytes before the first name are no file.
pub(crate) fn split(input: &[u8]) -> Vec<(&str, &[u8])> {
    let mut files: Vec<(&str, &[u8])> = Vec::new();
    let mut rest = input;
    while let Some(at) = head(rest) {
        if let Some((_, last)) = files.last_mut() {
            *last = &rest[..at.saturating_sub(1)];
        }
        let named = &rest[at + HEAD.len()..];
        let end = named.iter().position(|byte| *byte == b'\n').unwrap_or(named.len());
        let name = std::str::from_utf8(&named[..end]).unwrap_or("");
        rest = named.get(end + 1..).unwrap_or_default();
        files.push((name, rest));
    }
    files
}

/// Where a line with a name begins.
fn head(bytes: &[u8]) -> Option<usize> {
    let mut windows = bytes.windows(HEAD.len()).enumerate();
    windows.find(|(at, window)| *window == HEAD && (*at == 0 || bytes[at - 1] == b'\n')).map(|(at, _)| at)
}

/// An input of these files, with a line feed between two.
pub(crate) fn join<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let mut input: Vec<u8> = Vec::new();
    for (name, bytes) in files {
        if !input.is_empty() {
            input.push(b'\n');
        }
        input.extend([HEAD, name.as_bytes(), b"\n", bytes].concat());
    }
    input
}

/// A folder of this process that stays from one input to the next.
pub(crate) fn beside(name: &str) -> PathBuf {
    let parent = env::var_os(SCRATCH).map_or_else(env::temp_dir, PathBuf::from);
    parent.join(format!("furrow-fuzz-{}-{name}", process::id()))
}

/// An empty folder for the files of one input.
pub(crate) fn scratch() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| beside("input"));
    if folder.exists() {
        fs::remove_dir_all(folder).expect("its own folder can be removed");
    }
    fs::create_dir_all(folder).expect("a folder in FURROW_FUZZ_SCRATCH can be made");
    folder
}

/// Writes those files of an input that have one of these names.
pub(crate) fn write(folder: &Path, input: &[u8], names: &[&str]) {
    for (name, bytes) in split(input) {
        if names.contains(&name) {
            put(folder, name, bytes);
        }
    }
}

pub(crate) fn put(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).expect("a folder can be made in the scratch folder");
    }
    fs::write(&path, bytes).expect("a file can be written in the scratch folder");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_joined_and_split() {
        let files: [(&str, &[u8]); 3] = [("a", b"one\n"), ("b/c", b""), ("d", b"x=== y\n\xff")];
        let input = join(files);
        assert_eq!(split(&input), files);
        assert_eq!(split(b"no name"), []);
        assert_eq!(split(b"=== \xff"), [("", &b""[..])]);
    }
}
