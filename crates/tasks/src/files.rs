//! The files of a task: reads what its line offers for uploads, once, when the suite is loaded.
//!
//! A file that changes afterwards changes no assignment. Its hash is added to the task's line, so
//! that records name the content and a resumed run notices another one.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use furrow_rollout::{TaskFiles, UploadFile, is_file_name};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::sites::hex;
use crate::{SourceConfig, TaskSpec};

/// Most bytes of all distinct files of a job's tasks: a response that leases tasks contains each
/// once, and has 16 MiB.
const FILES_BYTES_MAX: usize = 4 << 20;

/// Most distinct files of a job's tasks.
const FILES_MAX: usize = 1000;

/// The files of a task set, each read and kept once.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileStore {
    by_path: HashMap<PathBuf, Bytes>,
    by_hash: HashMap<[u8; 32], Bytes>,
}

impl FileStore {
    /// Bytes of all distinct contents.
    pub(crate) fn bytes(&self) -> usize {
        self.by_hash.values().map(Bytes::len).sum()
    }

    /// Reads what a task's keys name and adds the hashes to its line.
    pub(crate) fn fill(&mut self, spec: &mut TaskSpec, source: &SourceConfig, problems: &mut Vec<String>) {
        let keys = std::mem::take(&mut spec.file_keys);
        let location = spec.name();
        if spec.scorer.needs_downloads() && keys.download_bytes_max.is_none() {
            problems.push(format!(
                "{location}: downloads: is missing, but the scorer asks for a download; set downloads = true"
            ));
        }
        spec.files.download_bytes_max = keys.download_bytes_max;
        let own = if source.path.is_dir() { Some(source.path.as_path()) } else { source.path.parent() };
        let folder = keys.folder.as_deref().or(own).unwrap_or(Path::new("."));
        match self.read_all(folder, &keys.files) {
            Ok(uploads) if uploads.is_empty() => {}
            Ok(uploads) => {
                spec.json = with_hashes(&spec.json, &uploads);
                spec.files = TaskFiles { uploads, ..spec.files.clone() };
            }
            Err(problem) => problems.push(format!("{location}: files: {problem}")),
        }
    }

    fn read_all(&mut self, folder: &Path, paths: &[String]) -> Result<Vec<UploadFile>, String> {
        let mut uploads: Vec<UploadFile> = Vec::new();
        for path in paths {
            let file = self.read(folder, path)?;
            if uploads.iter().any(|other| other.name == file.name) {
                let name = file.name;
                return Err(format!("two files are called {name:?}; a page sees only the name, rename one"));
            }
            uploads.push(file);
        }
        Ok(uploads)
    }

    fn read(&mut self, folder: &Path, path: &str) -> Result<UploadFile, String> {
        let relative = Path::new(path);
        let is_plain = |part: Component| matches!(part, Component::Normal(name) if name.to_str().is_some_and(is_file_name));
        if !relative.components().all(is_plain) {
            return Err(format!(
                "{path:?} is not a path below {}; use names without a leading dot, joined by /",
                folder.display()
            ));
        }
        let name = relative.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let whole = folder.join(relative);
        if let Some(content) = self.by_path.get(&whole) {
            return Ok(UploadFile { name, content: content.clone() });
        }
        refuse_links(folder, relative)?;
        let left = FILES_BYTES_MAX.saturating_sub(self.bytes());
        let content = read_file(&whole, left)?;
        if self.by_path.len() >= FILES_MAX {
            return Err(format!("the tasks name more than {FILES_MAX} files; use fewer"));
        }
        let content = self.by_hash.entry(Sha256::digest(&content).into()).or_insert(content).clone();
        self.by_path.insert(whole, content.clone());
        Ok(UploadFile { name, content })
    }
}

/// A link could lead out of the folder, and its target change without notice.
fn refuse_links(folder: &Path, relative: &Path) -> Result<(), String> {
    let mut path = folder.to_owned();
    for part in relative.components() {
        path.push(part);
        let shown = path.display();
        let found = fs::symlink_metadata(&path).map_err(|why| format!("{shown}: cannot be read: {why}"))?;
        if found.is_symlink() {
            return Err(format!("{shown}: is a link; put the file itself there"));
        }
    }
    Ok(())
}

fn read_file(path: &Path, bytes_max: usize) -> Result<Bytes, String> {
    let shown = path.display();
    let unreadable = |why: std::io::Error| format!("{shown}: cannot be read: {why}");
    // Asked before it is opened: opening a pipe waits for its writer.
    if !fs::symlink_metadata(path).map_err(unreadable)?.is_file() {
        return Err(format!("{shown}: is not a file"));
    }
    let file = OpenOptions::new().read(true).open(path).map_err(unreadable)?;
    let mut content = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut content).map_err(unreadable)?;
    if content.len() > bytes_max {
        return Err(format!(
            "{shown}: with it, the files of all tasks have more than {FILES_BYTES_MAX} bytes; use smaller or fewer files"
        ));
    }
    Ok(content.into())
}

/// The task's line with the hash of each file.
fn with_hashes(line: &str, uploads: &[UploadFile]) -> String {
    let Ok(mut record) = serde_json::from_str::<Map<String, Value>>(line) else { return line.to_owned() };
    let hashes: Map<String, Value> =
        uploads.iter().map(|file| (file.name.clone(), json!(hex(&file.sha256())))).collect();
    record.insert("file_sha256".to_owned(), hashes.into());
    Value::Object(record).to_string()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::{SourceFile, TaskSet, TasksFile};

    fn suite(keys: &str, score: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let line = format!(r#"{{"task_id":"a","start_url":"/a.html","score":{score}{keys}}}"#);
        fs::write(folder.path().join("tasks.jsonl"), line).unwrap();
        fs::write(folder.path().join("a.html"), "").unwrap();
        fs::create_dir_all(folder.path().join("docs")).unwrap();
        fs::write(folder.path().join("docs/cv.pdf"), "resume").unwrap();
        fs::write(folder.path().join("cv.pdf"), "another").unwrap();
        folder
    }

    fn loaded(folder: &Path) -> Result<TaskSet, Vec<String>> {
        let path = folder.to_owned();
        let source = SourceFile { suite: "mine".to_owned(), path, ..SourceFile::default() };
        let file = TasksFile { source: vec![source], ..TasksFile::default() };
        crate::load(&file.check(folder)?)
    }

    fn with(keys: &str) -> (tempfile::TempDir, Result<TaskSet, Vec<String>>) {
        let folder = suite(keys, r#"{"kind":"probe"}"#);
        let set = loaded(folder.path());
        (folder, set)
    }

    #[test]
    fn a_task_offers_the_files_of_its_folder_with_their_hashes() {
        let (folder, set) = with(r#","files":["docs/cv.pdf"],"downloads":true"#);
        let set = set.unwrap();
        let spec = &set.specs()[0];
        let cv = UploadFile { name: "cv.pdf".into(), content: Bytes::from_static(b"resume") };
        let hash = hex(&cv.sha256());
        assert_eq!(spec.files.uploads, [cv]);
        assert_eq!(spec.files.download_bytes_max, Some(16 << 20));
        assert!(spec.json.contains(&format!(r#""file_sha256":{{"cv.pdf":"{hash}"}}"#)), "{}", spec.json);
        assert_eq!(set.file_bytes(), 6);
        // A content that changes is another set for a resumed run, and no other one for this set.
        let before = set.fingerprint();
        fs::write(folder.path().join("docs/cv.pdf"), "forged").unwrap();
        assert_eq!(&spec.files.uploads[0].content[..], b"resume");
        assert_ne!(loaded(folder.path()).unwrap().fingerprint(), before);
    }

    #[test]
    fn a_task_without_the_keys_allows_nothing_and_keeps_its_line() {
        let (_folder, set) = with("");
        let set = set.unwrap();
        assert_eq!(set.specs()[0].files, TaskFiles::default());
        assert!(!set.specs()[0].json.contains("sha256"));
    }

    #[test]
    fn paths_that_leave_the_folder_and_other_wrong_values_are_refused() {
        for (keys, problem) in [
            (r#","files":["../tasks.jsonl"]"#, "\"../tasks.jsonl\" is not a path below"),
            (r#","files":["/etc/passwd"]"#, "\"/etc/passwd\" is not a path below"),
            (r#","files":["docs/../cv.pdf"]"#, "is not a path below"),
            (r#","files":["."]"#, "is not a path below"),
            (r#","files":["docs"]"#, "docs: is not a file"),
            (r#","files":["none.pdf"]"#, "none.pdf: cannot be read"),
            (r#","files":["cv.pdf","docs/cv.pdf"]"#, "two files are called \"cv.pdf\""),
            (r#","files":[]"#, "has 0 entries"),
            (r#","files":[7]"#, "is not a list of strings"),
            (r#","files":["a\u0000b"]"#, "is not a list of strings"),
            (r#","downloads":0"#, "downloads: "),
            (r#","downloads":1e12"#, "downloads: "),
            (r#","downloads":"yes""#, "downloads: "),
        ] {
            let problems = with(keys).1.unwrap_err();
            assert!(problems.iter().any(|text| text.contains(problem)), "{keys}: {problems:?}");
        }
        let long = "n".repeat(300);
        assert!(with(&format!(r#","files":["{long}"]"#)).1.is_err());
        let many = vec!["\"cv.pdf\""; 17].join(",");
        assert!(with(&format!(r#","files":[{many}]"#)).1.is_err());
    }

    #[test]
    fn links_are_refused_wherever_they_lead() {
        for link in ["docs/link.pdf", "link"] {
            let path = if link == "link" { "link/cv.pdf" } else { link };
            let folder = suite(&format!(r#","files":["{path}"]"#), r#"{"kind":"probe"}"#);
            let target = if link == "link" { "docs" } else { "cv.pdf" };
            symlink(folder.path().join(target), folder.path().join(link)).unwrap();
            let problems = loaded(folder.path()).unwrap_err();
            assert!(problems[0].contains("is a link"), "{problems:?}");
        }
    }

    #[test]
    fn all_files_together_have_a_limit() {
        let folder = suite(r#","files":["cv.pdf","big.bin"]"#, r#"{"kind":"probe"}"#);
        let big = folder.path().join("big.bin");
        fs::write(&big, vec![7; FILES_BYTES_MAX - 7]).unwrap();
        assert_eq!(loaded(folder.path()).unwrap().file_bytes(), FILES_BYTES_MAX);
        fs::write(&big, vec![7; FILES_BYTES_MAX - 6]).unwrap();
        let problems = loaded(folder.path()).unwrap_err();
        assert!(problems[0].contains("more than 4194304 bytes"), "{problems:?}");
    }

    #[test]
    fn a_scorer_of_downloads_needs_the_permission() {
        let score = r#"{"kind":"all","of":[{"kind":"probe"},{"kind":"download","name":"*.csv"}]}"#;
        let problems = loaded(suite("", score).path()).unwrap_err();
        assert!(problems[0].contains("set downloads = true"), "{problems:?}");
        loaded(suite(r#","downloads":true"#, score).path()).unwrap();
    }
}
