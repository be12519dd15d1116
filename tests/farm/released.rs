//! Run directories of earlier releases: they are resumed, verified and read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use furrow_records::{DataSet, Table};

use crate::farm::{FURROW, browser_setting, furrow, pause};

/// Directory of the fixture's job: a resumed run is compared by its tasks, paths included.
const HOME: &str = "/tmp/furrow-v0.1.0";

/// A run directory of the release, in a separate folder.
struct ReleasedRun {
    folder: tempfile::TempDir,
    name: &'static str,
}

impl ReleasedRun {
    fn new(name: &'static str) -> Self {
        let fixture = Path::new("tests/fixtures/v0.1.0");
        put_tasks(&fixture.join("tasks"));
        let folder = tempfile::tempdir().unwrap();
        copy(&fixture.join(name), &folder.path().join("runs").join(name));
        let job = fs::read_to_string(fixture.join("job.toml")).unwrap();
        let job = job.replace("path = \"tasks\"", &format!("path = \"{HOME}/tasks\""));
        fs::write(folder.path().join("job.toml"), job).unwrap();
        Self { folder, name }
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("runs").join(self.name)
    }

    fn resumed(&self, settings: &[&str]) -> Command {
        let mut command = Command::new(FURROW);
        command.args(["run", "job.toml", "--resume", "--set", &format!("run.name={}", self.name)]);
        for setting in settings.iter().map(|setting| (*setting).to_owned()).chain(browser_setting()) {
            command.args(["--set", &setting]);
        }
        command.args(["--set", "dashboard.listen=127.0.0.1:0"]);
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// Committed files with their bytes.
    fn committed(&self) -> BTreeMap<String, Vec<u8>> {
        let set = DataSet::open(&self.dir()).unwrap();
        let files =
            Table::ALL.into_iter().flat_map(|table| set.snapshot().files(table)).map(|file| &file.path);
        files.map(|path| (path.clone(), fs::read(self.dir().join("data").join(path)).unwrap())).collect()
    }

    /// Files of both releases are opened side by side by other programs, as the card says.
    #[track_caller]
    fn assert_opens(&self) {
        let python = std::env::var("FURROW_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
        let arguments = ["tests/read_back.py", "--opens", &self.dir().display().to_string()];
        let output = Command::new(python).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
    }

    #[track_caller]
    fn assert_sound(&self) {
        let output = furrow(&["records", "verify", &self.dir().display().to_string()], self.folder.path());
        assert!(output.status.success(), "{}", text(&output));
        assert!(text(&output).contains("0 breaches"), "{}", text(&output));
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Puts the tasks at their original path, completely or not at all. The first test to come does it.
fn put_tasks(from: &Path) {
    let there = Path::new(HOME).join("tasks");
    if there.is_dir() {
        return;
    }
    fs::create_dir_all(HOME).unwrap();
    let own = tempfile::tempdir_in(HOME).unwrap();
    copy(from, &own.path().join("tasks"));
    // Another test may have been faster; its copy is equal.
    fs::rename(own.path().join("tasks"), &there).ok();
    assert!(there.is_dir());
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let from = entry.path();
        let to = to.join(entry.file_name());
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).unwrap();
        }
    }
}

#[test]
fn a_finished_run_of_v0_1_0_is_resumed_verified_and_scored_again() {
    let run = ReleasedRun::new("finished");
    run.assert_sound();
    let before = run.committed();
    let output = run.resumed(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(text(&output).contains("10 trajectories scored, mean reward 1.00"), "{}", text(&output));
    assert_eq!(run.committed(), before, "resuming a finished run changed its data");
    run.assert_sound();
    let dir = run.dir().display().to_string();
    let scored = furrow(&["score", &dir], run.folder.path());
    assert!(text(&scored).contains("10 scored, 0 with another reward"), "{}", text(&scored));
    run.assert_sound();
    run.assert_opens();
}

/// Its ledger is only in the write-ahead log; the spool holds one scored trajectory and three
/// unfinished ones.
#[test]
fn a_killed_run_of_v0_1_0_goes_on() {
    let run = ReleasedRun::new("killed");
    let before = run.committed();
    let checkpoint = run.folder.path().join("tiny-7");
    let made = furrow(
        &["checkpoint", "init", "--size", "tiny", "--seed", "7", &checkpoint.display().to_string()],
        run.folder.path(),
    );
    assert!(made.status.success(), "{}", text(&made));
    let log = fs::File::create(run.folder.path().join("out")).unwrap();
    let checkpoint = format!("policy.checkpoint={}", checkpoint.display());
    let mut command =
        run.resumed(&["policy.kind=model", "tasks.groups=10", &checkpoint, "records.max_delay_millis=200"]);
    let mut child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
    let printed = || fs::read_to_string(run.folder.path().join("out")).unwrap_or_default();
    let manifest = run.dir().join("data/manifest");
    let commits = || fs::read_dir(&manifest).unwrap().count();
    let began = Instant::now();
    let had = commits();
    while commits() == had {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it committed anything\n{}", printed());
        assert!(began.elapsed() < Duration::from_secs(120), "nothing was committed\n{}", printed());
        pause();
    }
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{}", printed());
    let after = run.committed();
    for (path, bytes) in &before {
        assert_eq!(after.get(path), Some(bytes), "{path} changed");
    }
    let set = DataSet::open(&run.dir()).unwrap();
    let scored: Vec<_> =
        set.trajectories().map(Result::unwrap).filter(|record| record.score.is_some()).collect();
    assert!(scored.len() >= 2, "the trajectory that was scored before the kill is not in the data set");
    run.assert_sound();
    let commits = commits();
    let of_version = |version: &str| {
        let text = |number| fs::read_to_string(manifest.join(format!("{number:020}.json"))).unwrap();
        (1..=commits)
            .filter(|number| text(*number).contains(&format!("\"schema_version\": {version}")))
            .count()
    };
    assert_eq!(of_version("1"), 1, "the commit of the release");
    assert_eq!(of_version(&furrow_rollout::SCHEMA_VERSION.to_string()), commits - 1);
    run.assert_opens();
    assert!(!run.dir().join("lost+found").exists(), "the card and the job were taken for strays");
}
