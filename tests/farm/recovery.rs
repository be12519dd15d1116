//! Run directories that are damaged, partly restored, locked by another process or full of links:
//! no committed row is lost, and no file outside of the run is changed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::farm::{furrow, pause, simulated_tasks};
use crate::small_run::{DEADLINE, SLOW, SmallRun, entries, length, text};

/// Parquet files of a run with their bytes.
fn shards(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let tables = ["trajectories", "steps", "failed_steps", "groups"];
    let files = tables.into_iter().flat_map(|table| entries(&dir.join("data").join(table)));
    files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// The last commits are missing, as after a backup that saved the manifest earlier than the ledger.
#[test]
fn resuming_without_the_last_manifest_commits_removes_no_committed_file() {
    let run = SmallRun::new(20);
    run.run_and_kill_when(&SLOW, |dir| entries(&dir.join("data/manifest")).len() >= 5);
    let commits = run.commits();
    let committed = shards(&run.dir());
    commits[commits.len() - 3..].iter().for_each(|path| fs::remove_file(path).unwrap());
    run.completes(&["--resume"]);
    let after = shards(&run.dir());
    for (path, bytes) in &committed {
        // A shard that was being written at the kill is removed; shards that a commit named are
        // unchanged.
        let named = commits.iter().any(|_| after.contains_key(path));
        assert!(!named || after[path] == *bytes, "{} changed", path.display());
    }
    assert_eq!(run.breaches(), Vec::<String>::new());
}

/// Scoring commits to the same manifest: with missing commits it would take another shard's number.
#[test]
fn scoring_is_refused_with_missing_commits_and_removes_nothing() {
    let run = SmallRun::new(12);
    run.completes(&[]);
    let score = || furrow(&["score", "run", "--json"], run.folder.path());
    let stray = run.dir().join("data/scores/mine.parquet");
    fs::create_dir_all(stray.parent().unwrap()).unwrap();
    fs::write(&stray, "mine").unwrap();
    let newest = run.commits().pop().unwrap();
    let commit = fs::read(&newest).unwrap();
    fs::remove_file(&newest).unwrap();
    let refused = score();
    assert_ne!(refused.status.code(), Some(0), "{}", text(&refused));
    assert!(
        text(&refused).contains("1 commits of the manifest are missing or damaged"),
        "{}",
        text(&refused)
    );
    assert!(!newest.exists() && stray.exists(), "a refused scoring changed something");
    run.completes(&["--resume"]);
    assert_eq!(fs::read(&newest).unwrap().len(), commit.len(), "the commit was restored");
    assert!(score().status.success());
    let listed = furrow(&["doctor", "--run", "run"], run.folder.path());
    assert!(text(&listed).contains("data/scores/mine.parquet"), "{}", text(&listed));
    assert_eq!(run.breaches(), Vec::<String>::new());
}

#[test]
fn resuming_restores_a_missing_manifest() {
    let run = SmallRun::new(12);
    run.run_and_kill_when(&SLOW, |dir| entries(&dir.join("data/manifest")).len() >= 4);
    let commits = run.commits().len();
    fs::remove_dir_all(run.dir().join("data/manifest")).unwrap();
    let output = run.completes(&["--resume"]);
    assert!(output.contains("restoring a missing manifest commit from the ledger"), "{output}");
    assert!(run.commits().len() > commits);
    assert_eq!(run.breaches(), Vec::<String>::new());
}

/// One bit of one spool file is flipped while the run is stopped.
#[test]
fn a_flipped_bit_in_the_spool_costs_one_trajectory() {
    let run = SmallRun::new(12);
    let trajectory =
        |dir: &Path| entries(&dir.join("spool")).into_iter().filter(|path| length(path) > 5_000).count();
    run.run_and_kill_when(&[], |dir| trajectory(dir) >= 3);
    let files = entries(&run.dir().join("spool"));
    let longest = files.iter().max_by_key(|path| length(path)).unwrap();
    let mut bytes = fs::read(longest).unwrap();
    bytes[300] ^= 0x10;
    fs::write(longest, &bytes).unwrap();
    let id = longest.file_stem().unwrap().to_string_lossy().into_owned();
    let output = run.run(&["--resume"]);
    let message = text(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains(&format!("1 acknowledged trajectories lost their record ({id})")), "{message}");
    let breaches = run.breaches();
    let (about_it, others): (Vec<_>, Vec<_>) = breaches.iter().partition(|line| line.contains(&id));
    assert!(!about_it.is_empty(), "the checker found no lost step: was the file damaged?");
    assert!(
        about_it.iter().all(|line| line.contains("was acknowledged and is not in the data")),
        "{about_it:?}"
    );
    assert!(others.iter().all(|line| !line.contains("run-g")), "{others:?}");
    let listed = furrow(&["doctor", "--run", "run", "--json"], run.folder.path());
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let kept = run.dir().join(listed["lost_and_found"][0]["kept_as"].as_str().unwrap());
    assert_eq!(fs::read(kept).unwrap(), bytes, "the damaged file is kept unchanged: {listed}");
    let verified = furrow(&["records", "verify", "run"], run.folder.path());
    assert!(verified.status.success(), "{}", text(&verified));
}

/// If a file that a run writes is a link to another file, that file stays unchanged, and the run
/// names the link.
#[test]
fn nothing_is_written_through_a_link() {
    let run = SmallRun::new(12);
    run.run_and_kill_when(&[], |dir| {
        entries(&dir.join("data/manifest")).len() >= 2 && !entries(&dir.join("spool")).is_empty()
    });
    let users = run.folder.path().join("users");
    fs::write(&users, "root:x:0:0\n").unwrap();
    let spool = entries(&run.dir().join("spool"))[0].clone();
    let names = ["lock", "metrics.jsonl", "logs/run.jsonl", "ledger.sqlite", "job.toml.tmp"];
    for path in names.iter().map(|name| run.dir().join(name)).chain([spool]) {
        for hard in [false, true] {
            let aside = run.folder.path().join("aside");
            let there = path.exists();
            if there {
                fs::rename(&path, &aside).unwrap();
            }
            match hard {
                true => fs::hard_link(&users, &path).unwrap(),
                false => std::os::unix::fs::symlink(&users, &path).unwrap(),
            }
            let output = run.run(&["--resume"]);
            let message = text(&output);
            assert_ne!(output.status.code(), Some(0), "{}: {message}", path.display());
            let why = if hard { "2 names (hard links)" } else { "symbolic link" };
            assert!(message.contains(why), "{}: {message}", path.display());
            assert_eq!(fs::read_to_string(&users).unwrap(), "root:x:0:0\n", "{}", path.display());
            fs::remove_file(&path).unwrap();
            if there {
                fs::rename(&aside, &path).unwrap();
            }
        }
    }
    for name in ["spool", "data", "data/steps", "data/manifest", "lost+found"] {
        let path = run.dir().join(name);
        let aside = run.folder.path().join("aside");
        let there = path.exists();
        if there {
            fs::rename(&path, &aside).unwrap();
        } else {
            fs::create_dir(&aside).unwrap();
        }
        std::os::unix::fs::symlink(&aside, &path).unwrap();
        let output = run.run(&["--resume"]);
        assert_ne!(output.status.code(), Some(0), "{name}");
        assert!(text(&output).contains("a symbolic link, not a folder"), "{name}: {}", text(&output));
        fs::remove_file(&path).unwrap();
        if there {
            fs::rename(&aside, &path).unwrap();
        } else {
            fs::remove_dir(&aside).unwrap();
        }
    }
    run.completes(&["--resume"]);
    assert_eq!(run.breaches(), Vec::<String>::new());
}

/// A run that is over goes on with more groups; what it collected before stays as it is.
#[test]
fn a_finished_run_is_lengthened() {
    let run = SmallRun::new(6);
    run.completes(&[]);
    let before = shards(&run.dir());
    let fewer = run.run(&["--resume", "--set", "tasks.groups=5"]);
    assert_eq!(fewer.status.code(), Some(2), "{}", text(&fewer));
    assert!(
        text(&fewer).contains("tasks.groups: 5 now, not set when the run began; use 6 or more"),
        "{}",
        text(&fewer)
    );
    run.completes(&["--resume", "--set", "tasks.groups=12"]);
    let after = shards(&run.dir());
    assert!(before.iter().all(|(path, bytes)| after.get(path) == Some(bytes)), "an earlier file changed");
    assert_eq!(run.breaches_of(12, &run.dir()), Vec::<String>::new());
    // The longer job is the run's from now on.
    let again = run.completes(&["--resume"]);
    assert!(again.contains("tasks.groups: 12, as when the run began"), "{again}");
    let shorter = run.run(&["--resume", "--set", "tasks.groups=11"]);
    assert!(
        text(&shorter).contains("tasks.groups: 11 now, 12 when the run began; use 12 or more"),
        "{}",
        text(&shorter)
    );
}

/// After a power cut a run directory must still have its name, and every folder above it.
#[test]
fn the_names_of_a_new_run_directory_are_made_durable() {
    if std::process::Command::new("strace").arg("-V").output().is_err() {
        println!("no strace here");
        return;
    }
    let run = SmallRun::new(1);
    let here = run.folder.path().canonicalize().unwrap();
    let furrow = run.command_in(&here.join("new/inside"), &[]);
    let mut traced = std::process::Command::new("strace");
    traced.args(["-f", "-y", "-e", "trace=fsync", "-o", "trace"]).arg(furrow.get_program());
    let output = traced.args(furrow.get_args()).current_dir(&here).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let trace = fs::read_to_string(here.join("trace")).unwrap();
    let above = [here.clone(), here.join("new"), here.join("new/inside"), here.join("new/inside/run")];
    for folder in above.iter().map(|folder| folder.display()) {
        assert!(trace.contains(&format!("<{folder}>)")), "{folder} was not synced");
    }
}

/// `timeout` and some supervisors signal a process and its group: that is one wish, not two.
#[test]
fn two_signals_at_once_drain_and_a_later_one_ends() {
    for (pause_millis, want) in [(0, 0), (1_300, 130)] {
        let run = SmallRun::new(12);
        let mut child = run.start(&["--set", "policy.think_millis=500"]);
        let began = Instant::now();
        while entries(&run.dir().join("spool")).is_empty() {
            assert!(began.elapsed() < DEADLINE && child.try_wait().unwrap().is_none());
            pause();
        }
        let signal = || {
            let sent = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
            assert!(sent.unwrap().success());
        };
        signal();
        let since = Instant::now();
        while since.elapsed() < std::time::Duration::from_millis(pause_millis) {
            pause();
        }
        signal();
        let status = child.wait().unwrap();
        let out = fs::read_to_string(run.folder.path().join("out")).unwrap();
        assert_eq!(status.code(), Some(want), "{out}");
    }
}

/// A second start of the same run is refused, and other programs still find the first one.
#[test]
fn a_second_starter_changes_nothing_of_the_living_run() {
    let run = SmallRun::new(12);
    let mut first = run.start(&["--set", "policy.think_millis=200"]);
    let began = Instant::now();
    let files = ["coordinator.address", "job.toml", "lock"].map(|name| run.dir().join(name));
    let scored = || !entries(&run.dir().join("data/manifest")).is_empty();
    while !(files.iter().all(|path| path.exists()) && scored()) {
        assert!(began.elapsed() < DEADLINE);
        pause();
    }
    let before = files.each_ref().map(|path| fs::read(path).unwrap());
    let inode = |path: &PathBuf| std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap());
    let inodes = files.each_ref().map(inode);
    for more in [&["--resume"][..], &["--clean"], &["--resume", "--set", "env.sessions_max=2"]] {
        let refused = run.run(more);
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
        assert!(text(&refused).contains("in use by pid"), "{}", text(&refused));
    }
    assert!(first.try_wait().unwrap().is_none(), "the first run ended too early for this test");
    assert_eq!(files.each_ref().map(|path| fs::read(path).unwrap()), before);
    assert_eq!(files.each_ref().map(inode), inodes, "a file was replaced by one with the same bytes");
    first.kill().unwrap();
    first.wait().unwrap();
}

/// A task whose page never starts: every attempt fails, and the run fails.
#[test]
fn a_run_in_which_nothing_was_scored_is_no_success() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let tasks = simulated_tasks(here, 1, 1);
    let line = fs::read_to_string(here.join("simulated/tasks.jsonl")).unwrap();
    // A score that the evidence of a simulated page never matches: the scorer gives no verdict.
    let line = line.replace("\"pointer\":\"/reward\"", "\"pointer\":\"/absent\"");
    fs::write(here.join("simulated/tasks.jsonl"), line).unwrap();
    let job = format!(
        "[run]\nname = \"run\"\noutput_dir = \".\"\n{tasks}\n[dashboard]\nlisten = \"127.0.0.1:0\"\n[policy]\nkind = \"scripted\"\n"
    );
    fs::write(here.join("job.toml"), job).unwrap();
    let output = furrow(&["run", "job.toml", "--simulate-browser", "3000"], here);
    let message = text(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("0 trajectories scored, mean reward –,"), "{message}");
    assert!(message.contains("nothing was scored: all 3 attempts failed (3 scorer_error)"), "{message}");
    let output = furrow(&["run", "job.toml", "--simulate-browser", "3000", "--clean", "--json"], here);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"reward_mean\":null"), "{}", text(&output));
}
