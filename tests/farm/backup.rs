//! Backups of a run under load, cut off and continued, restored, verified and run to their end.

use std::fs;
use std::path::Path;
#[cfg(feature = "failpoints")]
use std::process::{Command, Output};

#[cfg(feature = "failpoints")]
use crate::farm::FURROW;
use crate::farm::{furrow, pause};
use crate::small_run::{SmallRun, entries, text};

/// Backups of one run: 4, or as many as `FURROW_BACKUPS` says.
fn backups() -> u32 {
    std::env::var("FURROW_BACKUPS").ok().and_then(|text| text.parse().ok()).unwrap_or(4)
}

/// Every so many restored backups one is run to its end.
const FINISHED_EVERY: u32 = 4;

#[track_caller]
fn succeeds(args: &[&str], here: &Path) -> String {
    let output = furrow(args, here);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {text}");
    text
}

fn commits_in(run_dir: &Path) -> usize {
    let names = entries(&run_dir.join("data/manifest"));
    names.iter().filter(|path| path.extension().is_some_and(|extension| extension == "json")).count()
}

#[test]
fn backups_under_load_restore_and_verify() {
    let wanted = backups();
    // Three groups a second, and a backup takes less than one.
    let run = SmallRun::new(20 + 3 * wanted);
    let here = run.folder.path();
    let settings = ["policy.think_millis=60", "records.merge_files_min=6", "records.merge_grace_millis=0"];
    let mut child = run.start(&settings.map(|setting| ["--set", setting]).concat());
    while commits_in(&run.dir()) < 2 {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before the first backup");
        pause();
    }
    let mut under_load = 0;
    let mut commits_before = Vec::new();
    for index in 0..wanted {
        commits_before.push(commits_in(&run.dir()));
        succeeds(&["backup", "run", &format!("backup-{index}")], here);
        under_load += u32::from(child.try_wait().unwrap().is_none());
    }
    for (index, before) in (0..).zip(commits_before) {
        let backup = format!("backup-{index}");
        let folder = here.join(format!("restored-{index}"));
        fs::create_dir(&folder).unwrap();
        let restored = folder.join("run").display().to_string();
        succeeds(&["restore", &backup, &restored], here);
        succeeds(&["records", "verify", &restored], here);
        succeeds(&["doctor", "--run", &restored], here);
        let after = commits_in(&folder.join("run"));
        assert!(after >= before, "{backup}: {after} commits, and {before} were there when it began");
        if index % FINISHED_EVERY == 0 {
            let resume = ["--resume", "--set", "policy.think_millis=1"];
            let output = run.command_in(&folder, &resume).output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{backup}: {}", text(&output));
            assert_eq!(run.breaches_in(&folder.join("run")), Vec::<String>::new(), "{backup}");
        }
        fs::remove_dir_all(folder).unwrap();
        fs::remove_dir_all(here.join(&backup)).unwrap();
    }
    println!("{under_load} of {wanted} backups were complete before the run ended");
    assert!(under_load * 2 >= wanted, "only {under_load} of {wanted} backups were taken under load");
    let status = child.wait().unwrap();
    assert!(status.success(), "{}", fs::read_to_string(here.join("out")).unwrap());
    assert_eq!(run.breaches(), Vec::<String>::new(), "a backup disturbed the run");
}

/// Runs `furrow` with a fail point that kills it.
#[cfg(feature = "failpoints")]
fn killed_at(point: &str, args: &[&str], here: &Path) -> Output {
    let mut command = Command::new(FURROW);
    command.args(args).current_dir(here).env("FAILPOINTS", format!("{point}=return"));
    let output = command.output().unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!(signal, Some(9), "{point} was not passed: {}", text(&output));
    output
}

#[cfg(feature = "failpoints")]
#[test]
fn a_backup_and_a_restore_that_were_killed_are_repeated() {
    let run = SmallRun::new(12);
    run.run_and_kill_when(&crate::small_run::SLOW, |dir| {
        commits_in(dir) >= 3 && !entries(&dir.join("spool")).is_empty()
    });
    let here = run.folder.path();
    for point in ["backup.after_snapshot", "backup.before_list"] {
        let backup = format!("of-{point}");
        killed_at(point, &["backup", "run", &backup], here);
        let refused = furrow(&["restore", &backup, "never/run"], here);
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
        assert!(text(&refused).contains("the backup is incomplete"), "{}", text(&refused));
        succeeds(&["backup", "run", &backup], here);
    }
    let backup = "of-backup.before_list";
    fs::create_dir(here.join("again")).unwrap();
    killed_at("restore.before_rename", &["restore", backup, "again/run"], here);
    assert!(!here.join("again/run").exists());
    succeeds(&["restore", backup, "again/run"], here);
    assert_eq!(entries(&here.join("again")), [here.join("again/run")], "a killed restore left something");
    let output = run.command_in(&here.join("again"), &["--resume"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_eq!(run.breaches_in(&here.join("again/run")), Vec::<String>::new());
}

/// A run directory on one file system, its backup on another.
#[test]
fn a_backup_may_lie_on_another_file_system() {
    let Ok(elsewhere) = tempfile::tempdir_in("/dev/shm") else {
        println!("no second file system here");
        return;
    };
    let run = SmallRun::new(2);
    run.completes(&[]);
    let here = run.folder.path();
    let backup = elsewhere.path().join("backup").display().to_string();
    let restored = elsewhere.path().join("run").display().to_string();
    succeeds(&["backup", "run", &backup], here);
    succeeds(&["restore", &backup, &restored], here);
    succeeds(&["records", "verify", &restored], here);
    let refused = furrow(&["restore", &backup, &restored], here);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains("exists and is not empty"), "{}", text(&refused));
}
