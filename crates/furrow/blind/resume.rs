//! The file of finished replays, by which a check goes on where it was stopped: one JSON object a
//! line, appended in one write each.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::Path;

use furrow_tasks::TaskSpec;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A file of replays has some megabytes: 150 bytes a replay.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The result of executing the recorded actions under one seed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ReplayLine {
    pub success: bool,
    /// `None` without a verdict.
    pub reward: Option<f32>,
    pub end: String,
    pub steps: u32,
    /// Milliseconds from opening to closing its page.
    pub millis: u64,
}

/// A line as it is stored, with what it belongs to.
#[derive(Debug, Serialize, Deserialize)]
struct StoredLine {
    task: String,
    /// Beginning of a hash of the task, its scorer and its demonstration.
    spec: String,
    /// Seed of the check, which decides what was recorded.
    check: u64,
    seed: u64,
    #[serde(flatten)]
    replay: ReplayLine,
}

/// Finished replays, and the file that new ones are appended to. Without a file none is kept.
#[derive(Debug, Default)]
pub(super) struct ResumeFile {
    file: Option<File>,
    check: u64,
    /// By the hash of the task and the seed.
    known: HashMap<(String, u64), ReplayLine>,
}

impl ResumeFile {
    /// Opens or creates the file of a check with this seed. A last line without its end is
    /// dropped; any other line that is none of a replay's is an error.
    pub(super) fn open(path: &Path, check: u64) -> Result<Self, String> {
        let shown = path.display();
        let failed = |what: &str, why: std::io::Error| format!("{shown}: cannot be {what}: {why}");
        let mut text = String::new();
        match File::open(path) {
            Ok(file) => {
                file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(|why| failed("read", why))?;
            }
            Err(why) if why.kind() == ErrorKind::NotFound => {}
            Err(why) => return Err(failed("read", why)),
        }
        let known = known_lines(&text, check).map_err(|why| format!("{shown}: {why}"))?;
        let mut options = OpenOptions::new();
        let file =
            options.create(true).append(true).open(path).map_err(|why| failed("opened to write", why))?;
        if !text.is_empty() && !text.ends_with('\n') {
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            file.set_len(whole as u64).map_err(|why| failed("cut to its last whole line", why))?;
        }
        Ok(Self { file: Some(file), check, known })
    }

    /// The replay of this task under a seed, if it is there.
    pub(super) fn find(&self, spec: &TaskSpec, seed: u64) -> Option<ReplayLine> {
        self.known.get(&(hash_of(spec), seed)).cloned()
    }

    /// Appends a replay, durably.
    pub(super) fn append(&mut self, spec: &TaskSpec, seed: u64, line: &ReplayLine) -> Result<(), String> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let stored = StoredLine {
            task: spec.name(),
            spec: hash_of(spec),
            check: self.check,
            seed,
            replay: line.clone(),
        };
        let mut text = serde_json::to_string(&stored).map_err(|why| why.to_string())?;
        text.push('\n');
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
        written.map_err(|why| format!("--resume: the replay cannot be appended: {why}"))
    }
}

/// The replays of the check with this seed.
fn known_lines(text: &str, check: u64) -> Result<HashMap<(String, u64), ReplayLine>, String> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut known = HashMap::new();
    for (number, line) in whole.lines().enumerate() {
        let stored: StoredLine = serde_json::from_str(line).map_err(|why| {
            format!(
                "line {}: is not a replay: {why}; name a file of an earlier --resume, or a new one",
                number + 1
            )
        })?;
        if stored.check == check {
            known.insert((stored.spec, stored.seed), stored.replay);
        }
    }
    Ok(known)
}

fn hash_of(spec: &TaskSpec) -> String {
    let text = format!("{:?}\0{}", spec.task, spec.json);
    Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replays_are_found_again_and_a_torn_line_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let pages = folder.path().join("pages");
        std::fs::create_dir(&pages).unwrap();
        std::fs::write(pages.join("a.html"), "").unwrap();
        std::fs::write(
            pages.join("tasks.jsonl"),
            r#"{"task_id":"a","start_url":"/a.html","score":{"kind":"probe"}}"#,
        )
        .unwrap();
        let source = furrow_tasks::SourceFile { suite: "toy".to_owned(), path: pages, ..Default::default() };
        let file = furrow_tasks::TasksFile { source: vec![source], ..Default::default() };
        let set = furrow_tasks::load(&file.check(folder.path()).unwrap()).unwrap();
        let spec = &set.specs()[0];
        let line =
            |steps| ReplayLine { success: true, reward: Some(1.0), end: "done".to_owned(), steps, millis: 5 };

        let path = folder.path().join("replays.jsonl");
        let mut kept = ResumeFile::open(&path, 3).unwrap();
        kept.append(spec, 8, &line(1)).unwrap();
        kept.append(spec, 9, &line(2)).unwrap();
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 7]).unwrap();

        let mut again = ResumeFile::open(&path, 3).unwrap();
        assert_eq!((again.find(spec, 8), again.find(spec, 9)), (Some(line(1)), None));
        again.append(spec, 9, &line(2)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), whole);
        assert_eq!(ResumeFile::open(&path, 4).unwrap().find(spec, 8), None, "another check");

        std::fs::write(&path, "{}\n").unwrap();
        assert!(ResumeFile::open(&path, 3).unwrap_err().contains("line 1: is not a replay"));
    }
}
