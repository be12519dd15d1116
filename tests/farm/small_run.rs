//! A run of simulated pages that takes seconds, whose directory a test kills, damages and copies.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::farm::{FURROW, pause, simulated_tasks};

pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// A policy that takes four times as long, so that a run has time for several commits even where
/// writing one takes long.
pub(crate) const SLOW: [&str; 2] = ["--set", "policy.think_millis=60"];

/// A job in a folder, with shards so small that a few seconds make many.
pub(crate) struct SmallRun {
    pub folder: tempfile::TempDir,
    groups: u32,
    screenshot_bytes: u32,
}

impl SmallRun {
    pub(crate) fn new(groups: u32) -> Self {
        Self::with_screenshots(groups, 3000)
    }

    /// The same with screenshots of this size.
    pub(crate) fn with_screenshots(groups: u32, screenshot_bytes: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tasks = simulated_tasks(folder.path(), groups, 2);
        let job = format!(
            "[run]\nname = \"run\"\noutput_dir = \".\"\n{tasks}\n[records]\nmax_delay_millis = 150\nmerge_files_min = 1000\n\
             [policy]\nkind = \"scripted\"\nthink_millis = 15\n[env]\nsessions_max = 4\n[dashboard]\nlisten = \"127.0.0.1:0\"\n"
        );
        fs::write(folder.path().join("job.toml"), job).unwrap();
        Self { folder, groups, screenshot_bytes }
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    pub(crate) fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(FURROW);
        command
            .args(["run", "job.toml", "--simulate-browser", &self.screenshot_bytes.to_string()])
            .args(more)
            .current_dir(self.folder.path());
        command.stdin(Stdio::null());
        command
    }

    /// The same run in another folder, which holds its run directory.
    pub(crate) fn command_in(&self, folder: &Path, more: &[&str]) -> Command {
        let mut command = self.command(more);
        command.args(["--set", &format!("run.output_dir={:?}", folder.display().to_string())]);
        command
    }

    /// Runs to the end.
    pub(crate) fn run(&self, more: &[&str]) -> Output {
        self.command(more).output().unwrap()
    }

    #[track_caller]
    pub(crate) fn completes(&self, more: &[&str]) -> String {
        let output = self.run(more);
        let text = text(&output);
        assert_eq!(output.status.code(), Some(0), "{text}");
        text
    }

    pub(crate) fn start(&self, more: &[&str]) -> Child {
        let log = fs::File::create(self.folder.path().join("out")).unwrap();
        self.command(more).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
    }

    /// Starts the run with more options and kills it once its directory satisfies a condition.
    pub(crate) fn run_and_kill_when(&self, more: &[&str], reached: impl Fn(&Path) -> bool) {
        let mut child = self.start(more);
        let began = Instant::now();
        while !reached(&self.dir()) {
            let out = || fs::read_to_string(self.folder.path().join("out")).unwrap_or_default();
            assert!(child.try_wait().unwrap().is_none(), "the run ended before it was killed\n{}", out());
            assert!(began.elapsed() < DEADLINE, "not in {DEADLINE:?}\n{}", out());
            pause();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn commits(&self) -> Vec<PathBuf> {
        let mut commits = entries(&self.dir().join("data/manifest"));
        commits.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        commits
    }

    /// The breaches that the independent checker finds, one per line.
    pub(crate) fn breaches(&self) -> Vec<String> {
        self.breaches_in(&self.dir())
    }

    /// The same in a copy of the run directory.
    pub(crate) fn breaches_in(&self, run_dir: &Path) -> Vec<String> {
        self.breaches_of(self.groups, run_dir)
    }

    /// The same for a run with another number of groups.
    pub(crate) fn breaches_of(&self, groups: u32, run_dir: &Path) -> Vec<String> {
        let python = std::env::var("FURROW_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
        let output = Command::new(python)
            .arg("tests/check.py")
            .arg(run_dir)
            .args(["--groups", &groups.to_string(), "--group-size", "2"])
            .output()
            .unwrap();
        if output.status.success() {
            return Vec::new();
        }
        let failure = String::from_utf8_lossy(&output.stderr).into_owned();
        if failure.contains(".parquet") {
            // It reads every file and stops at one that is damaged.
            return failure.lines().last().map(str::to_owned).into_iter().collect();
        }
        assert!(failure.is_empty(), "the checker failed: {}", text(&output));
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    }
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

pub(crate) fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> =
        fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}

pub(crate) fn length(path: &Path) -> u64 {
    path.metadata().map_or(0, |metadata| metadata.len())
}

pub(crate) fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_tree(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), &to).unwrap()),
        }
    }
}
