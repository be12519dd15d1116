//! The version of a suite: a hash of its tasks' lines and of the files that its pages consist of.
//!
//! Rates under two versions are rates of two different benchmarks: every record names its version,
//! and no report mixes two.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::sites::hex;
use crate::{SiteRoot, SiteSpec, TaskSpec};

/// Of a longer file, such as a video, this much and its length count.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Most files that are read of one folder; a folder with more is a mirror rather than a suite.
const FILES_MAX: usize = 100_000;
/// Most folders in one another.
const DEPTH_MAX: usize = 32;

/// Hexadecimal digits of a version: 64 bits, which tell a million versions apart.
const DIGITS: usize = 16;

/// The version of tasks as they were loaded, whatever a job selects of them, and of their sites.
pub(crate) fn suite_version(specs: &[TaskSpec], sites: &[SiteSpec]) -> io::Result<String> {
    let mut hash = Sha256::new();
    for spec in specs {
        add(&mut hash, spec.json.as_bytes());
    }
    for site in sites {
        add(&mut hash, site.host.as_bytes());
        match &site.root {
            SiteRoot::Folder(folder) => add_folder(&mut hash, folder)?,
            SiteRoot::Layers(folders) | SiteRoot::SinglePage(folders) => {
                for folder in folders {
                    add_folder(&mut hash, folder)?;
                }
            }
            // Pinned by its own hash.
            SiteRoot::Wheel { .. } => add(&mut hash, crate::sites::WHEEL_SHA256.as_bytes()),
            // The lines name each picture.
            SiteRoot::Pictures(_) => {}
        }
    }
    let mut version = hex(&hash.finalize());
    version.truncate(DIGITS);
    Ok(version)
}

/// Length-prefixed, so that no two lists have the same bytes.
fn add(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

/// Names and contents of a folder's files, in the order of their names. Links are not followed, as
/// they are not served.
fn add_folder(hash: &mut Sha256, folder: &Path) -> io::Result<()> {
    let mut files = Vec::new();
    list_files(folder, DEPTH_MAX, &mut files)?;
    files.sort();
    for path in files {
        let name = path.strip_prefix(folder).unwrap_or(&path);
        add(hash, name.as_os_str().as_encoded_bytes());
        let file = File::open(&path)?;
        hash.update(file.metadata()?.len().to_le_bytes());
        io::copy(&mut file.take(FILE_BYTES_MAX), hash)?;
    }
    Ok(())
}

fn list_files(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
    let too_large = |what: String| io::Error::new(io::ErrorKind::FileTooLarge, what);
    if depth == 0 {
        return Err(too_large(format!("{}: more than {DEPTH_MAX} folders in one another", folder.display())));
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        // An editor's and a version control's files are no part of a site.
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if kind.is_dir() {
            list_files(&entry.path(), depth - 1, files)?;
        } else if kind.is_file() {
            if files.len() == FILES_MAX {
                return Err(too_large(format!("more than {FILES_MAX} files")));
            }
            files.push(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SourceFile, TaskSet, TasksFile};

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let line = |id: &str, split: &str| {
            format!(
                r#"{{"task_id":"{id}","start_url":"/a.html","split":"{split}","score":{{"kind":"probe"}}}}"#
            )
        };
        fs::write(folder.path().join("tasks.jsonl"), [line("a", "train"), line("b", "test")].join("\n"))
            .unwrap();
        fs::write(folder.path().join("a.html"), "one").unwrap();
        fs::create_dir(folder.path().join("pictures")).unwrap();
        fs::write(folder.path().join("pictures/b.png"), "two").unwrap();
        folder
    }

    fn loaded(folder: &Path, exclude: &[&str]) -> TaskSet {
        let exclude = exclude.iter().map(ToString::to_string).collect();
        let path = folder.to_owned();
        let source = SourceFile { suite: "mine".into(), path, exclude, ..SourceFile::default() };
        let file = TasksFile { source: vec![source], ..TasksFile::default() };
        crate::load(&file.check(folder).unwrap()).unwrap()
    }

    fn versions(folder: &Path, exclude: &[&str]) -> Vec<String> {
        let set = loaded(folder, exclude);
        set.specs().iter().map(|spec| spec.suite_version.clone().unwrap()).collect()
    }

    #[test]
    fn a_version_changes_with_every_byte_of_the_suite_and_with_nothing_else() {
        let suite = folder();
        let path = suite.path();
        let all = versions(path, &[]);
        assert_eq!((all.len(), all[0].len()), (2, DIGITS));
        assert_eq!(all[0], all[1]);
        assert_eq!(versions(folder().path(), &[]), all, "it does not depend on where the suite lies");
        let selected = versions(path, &["a"]);
        assert_eq!(selected, all[..1], "nor on what a job selects");
        fs::write(path.join(".a.html.swp"), "an editor's").unwrap();
        assert_eq!(versions(path, &[]), all);
        let mut earlier = vec![all[0].clone()];
        let changes: [(&str, &str); 4] = [
            ("a.html", "One"),
            ("pictures/b.png", "twO"),
            ("c.html", ""),
            ("tasks.jsonl", r#"{"task_id":"a","start_url":"/a.html","score":{"kind":"miniwob"}}"#),
        ];
        for (name, content) in changes {
            fs::write(path.join(name), content).unwrap();
            let now = versions(path, &[]).remove(0);
            assert!(!earlier.contains(&now), "{name}");
            earlier.push(now);
        }
        fs::rename(path.join("c.html"), path.join("d.html")).unwrap();
        assert!(!earlier.contains(&versions(path, &[])[0]), "a name is a part of it");
    }

    #[test]
    fn a_record_names_its_version() {
        let suite = folder();
        let set = loaded(suite.path(), &[]);
        let spec = &set.specs()[0];
        let record: serde_json::Value = serde_json::from_str(&spec.record()).unwrap();
        assert_eq!(record["suite_version"].as_str(), spec.suite_version.as_deref());
        assert_eq!(record["task_id"], "a");
        assert!(!spec.json.contains("suite_version"), "a resumed run compares the lines of old and new");
    }
}
