//! The run directories below a folder, each described from its own files. Nothing in them changes.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use furrow_coordinator::RunLock;
use furrow_records::{DataSet, Table as RecordsTable};
use furrow_telemetry::{Role, log_path};
use serde::Serialize;
use serde_json::Value;

use crate::job::stored;
use crate::run_dir;

/// A run directory, as far as its files say.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ListedRun {
    pub dir: PathBuf,
    /// `run.name` of its job.
    pub name: String,
    pub state: RunState,
    /// The process that runs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Trajectories in the data set, failed ones included; `None` if it cannot be read.
    pub trajectories: Option<u64>,
    /// Wall clock of its first start.
    pub started: Option<String>,
    /// Kind of the policy, and its checkpoint or model.
    pub policy: String,
}

/// What became of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RunState {
    /// A process has its lock.
    Running,
    /// Every group is closed.
    Complete,
    /// It was stopped, or stopped over its failures; `--resume` goes on.
    Stopped,
    /// Its process died; `--resume` goes on.
    CutOff,
}

impl RunState {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Stopped => "stopped",
            Self::CutOff => "cut off",
        }
    }
}

/// Folders inside folders that are searched: `runs/project/run`.
const DEPTH_MAX: u32 = 3;
/// Directories that are searched: a folder with more is not one of runs.
const FOLDERS_MAX: usize = 20_000;
/// The end of a log in which its last event is.
const LOG_TAIL_BYTES: u64 = 256 << 10;
/// A line of `metrics.jsonl` has 8 kB.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// All run directories below a folder, by path; the folder may be one itself. Links are not
/// followed.
pub(crate) fn runs_below(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = VecDeque::from([(folder.to_owned(), 0)]);
    let mut searched = 0;
    while let Some((dir, depth)) = left.pop_front() {
        if run_dir::is_run(&dir) {
            found.push(dir);
            continue;
        }
        searched += 1;
        if depth == DEPTH_MAX || searched > FOLDERS_MAX {
            continue;
        }
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(why) if depth == 0 => return Err(why),
            // A folder among the runs that belongs to another program.
            Err(_) => continue,
        };
        let folders = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        left.extend(folders.map(|entry| (entry.path(), depth + 1)));
    }
    found.sort();
    Ok(found)
}

/// Describes a run directory.
pub(crate) fn describe(dir: &Path) -> ListedRun {
    let job = stored::read(dir).ok().flatten().map(|job| job.table).unwrap_or_default();
    let text = |section: &str, key: &str| job.get(section)?.get(key)?.as_str();
    let last = |path: &str| Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned());
    let kind = text("policy", "kind").unwrap_or("unknown");
    let model = match kind {
        "model" => text("policy", "checkpoint").and_then(last),
        "openai" => {
            let remote = job.get("policy").and_then(|policy| policy.get("remote"));
            remote.and_then(|remote| remote.get("model")?.as_str().map(str::to_owned))
        }
        _ => None,
    };
    let holder = RunLock::holder(dir);
    ListedRun {
        dir: dir.to_owned(),
        name: text("run", "name")
            .map_or_else(|| last(&dir.to_string_lossy()).unwrap_or_default(), str::to_owned),
        state: if holder.is_some() { RunState::Running } else { last_state(dir) },
        holder,
        bytes: bytes_below(dir),
        trajectories: trajectories(dir),
        started: started(dir),
        policy: model.map_or_else(|| kind.to_owned(), |model| format!("{kind} {model}")),
    }
}

fn trajectories(dir: &Path) -> Option<u64> {
    let set = DataSet::open(dir).ok()?;
    Some(set.snapshot().files(RecordsTable::Trajectories).map(|file| file.rows).sum())
}

/// What the log of the last start says at its end. A process that was killed says nothing.
fn last_state(dir: &Path) -> RunState {
    let logs = [Role::Run, Role::Coordinator].map(|role| log_path(dir, role));
    let newest =
        logs.into_iter().filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path))).max();
    let ended = newest.and_then(|(_, path)| last_event(&path, &["run.started", "run.ended"]));
    match ended {
        Some(event) if event["event"] == "run.ended" && event["complete"] == true => RunState::Complete,
        Some(event) if event["event"] == "run.ended" => RunState::Stopped,
        _ => RunState::CutOff,
    }
}

/// The last line of a log with one of these events.
fn last_event(log: &Path, names: &[&str]) -> Option<Value> {
    let mut file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES))).ok()?;
    let mut tail = Vec::new();
    file.take(LOG_TAIL_BYTES).read_to_end(&mut tail).ok()?;
    let lines = tail.split(|&byte| byte == b'\n').rev();
    let events = lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let is_one = |event: &Value| event["event"].as_str().is_some_and(|name| names.contains(&name));
    events.into_iter().find(is_one)
}

/// The start of the first process that wrote metrics, else of nothing.
fn started(dir: &Path) -> Option<String> {
    let oldest = furrow_telemetry::kept_files(&dir.join("metrics.jsonl"), &dir.join("logs")).last()?;
    let file = File::open(oldest).ok()?;
    let mut line = String::new();
    BufReader::new(file.take(LINE_BYTES_MAX)).read_line(&mut line).ok()?;
    let line: Value = serde_json::from_str(&line).ok()?;
    // `2026-11-23T03:28:37.860441Z`, to the second.
    let started = line["started"].as_str()?.get(..19)?;
    Some(started.replace('T', " "))
}

/// Bytes of all files below a directory. Links count as themselves.
fn bytes_below(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(dir: &Path, name: &str) -> PathBuf {
        let run = dir.join(name);
        fs::create_dir_all(run.join("logs")).unwrap();
        fs::write(run.join("ledger.sqlite"), "").unwrap();
        let job = format!("{}\n[run]\nname = {name:?}\n[policy]\nkind = \"random\"\n", stored::HEADER);
        fs::write(run.join("job.toml"), job).unwrap();
        run
    }

    #[test]
    fn runs_are_found_below_folders_and_not_behind_links() {
        let home = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let wanted = [run(home.path(), "a"), run(&home.path().join("project"), "b")];
        // A folder inside a run is no run of its own.
        run(&wanted[0].join("data"), "inside");
        run(&home.path().join("one/two/three"), "too-deep");
        let linked = run(elsewhere.path(), "linked");
        std::os::unix::fs::symlink(linked, home.path().join("link")).unwrap();
        fs::create_dir(home.path().join("empty")).unwrap();
        assert_eq!(runs_below(home.path()).unwrap(), wanted);
        assert_eq!(runs_below(&wanted[0]).unwrap(), wanted[..1]);
        assert!(runs_below(&home.path().join("none")).is_err());
    }

    #[test]
    fn a_run_is_described_by_its_own_files() {
        let home = tempfile::tempdir().unwrap();
        let dir = run(home.path(), "night");
        let before = describe(&dir);
        assert_eq!((before.name.as_str(), before.policy.as_str()), ("night", "random"));
        assert_eq!((before.state, before.trajectories, before.started), (RunState::CutOff, None, None));
        let log = log_path(&dir, Role::Run);
        let event = |name: &str, complete| format!("{{\"event\":{name:?},\"complete\":{complete}}}\n");
        let started = event("run.started", false);
        for (text, want) in [
            (started.clone(), RunState::CutOff),
            (started.clone() + &event("run.ended", true), RunState::Complete),
            (started.clone() + &event("run.ended", false), RunState::Stopped),
            (event("run.ended", true) + &started, RunState::CutOff),
        ] {
            fs::write(&log, &text).unwrap();
            assert_eq!(describe(&dir).state, want, "{text}");
        }
        fs::write(dir.join("metrics.jsonl"), "{\"started\":\"2026-11-23T03:28:37.860441Z\"}\n").unwrap();
        let lock = RunLock::take(&dir).unwrap();
        let running = describe(&dir);
        assert_eq!(running.state, RunState::Running);
        assert!(running.holder.unwrap().contains(&std::process::id().to_string()));
        assert_eq!(running.started.as_deref(), Some("2026-11-23 03:28:37"));
        assert!(running.bytes > before.bytes);
        drop(lock);
        assert_eq!(describe(&dir).state, RunState::CutOff);
    }

    #[test]
    fn a_run_of_an_older_release_is_described() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v0.1.0/finished");
        let listed = describe(&dir);
        assert_eq!(listed.trajectories, Some(16));
        assert_eq!(listed.started.as_deref(), Some("2026-11-23 03:28:37"));
    }
}
