//! Every kind of file and folder of a run, damaged in every way: a start goes on and names what was
//! lost, or names a command after which it does.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::farm::furrow;
use crate::small_run::{SLOW, SmallRun, copy_tree, entries, length, text};

/// What is damaged, by its path below the run directory. `*` is the first file of the folder, `+`
/// the longest.
const KINDS: [&str; 14] = [
    "ledger.sqlite",
    "ledger.sqlite-wal",
    "ledger.sqlite-shm",
    "spool",
    "spool/+",
    "data",
    "data/manifest",
    "data/manifest/*",
    "data/steps",
    "data/steps/*",
    "data/jobs/*",
    "data/README.md",
    "job.toml",
    "metrics.jsonl",
];

const BLOCK: u64 = 4096;

/// Nobody renews the leases of a killed run.
const RESUME: [&str; 5] =
    ["--resume", "--set", "limits.lease_millis=1500", "--set", "limits.heartbeat_millis=300"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Missing,
    Empty,
    /// Only this many bytes, or entries of a folder, are left.
    Cut(u64),
    /// One bit of this byte is another.
    Bit(u64),
    Older,
    Foreign,
}

/// A run that was killed, an earlier state of its directory, and a backup.
struct KilledRun {
    run: SmallRun,
    base: PathBuf,
    older: PathBuf,
}

impl KilledRun {
    fn new() -> Self {
        let run = SmallRun::new(12);
        run.run_and_kill_when(&SLOW, |dir| entries(&dir.join("data/manifest")).len() >= 2);
        let older = run.folder.path().join("older");
        copy_tree(&run.dir(), &older);
        let mut child = run.start(&["--resume", SLOW[0], SLOW[1]]);
        let is_far = || {
            entries(&run.dir().join("data/manifest")).len() >= 5
                && entries(&run.dir().join("spool")).iter().any(|path| length(path) > 10_000)
        };
        while !is_far() {
            assert!(child.try_wait().unwrap().is_none(), "the run ended before it was killed");
            crate::farm::pause();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let base = run.folder.path().join("base");
        fs::rename(run.dir(), &base).unwrap();
        let backup = furrow(&["backup", "base", "backup"], run.folder.path());
        assert_eq!(backup.status.code(), Some(0), "{}", text(&backup));
        Self { run, base, older }
    }

    /// The damages of a kind: one of each, or at every block with `FURROW_DAMAGE_ALL`.
    fn damages(&self, kind: &str) -> Vec<Damage> {
        let target = resolve(&self.base, kind);
        let parts = if target.is_dir() { entries(&target).len() as u64 } else { length(&target) };
        let mut damages = vec![Damage::Missing, Damage::Empty, Damage::Older, Damage::Foreign];
        let every = std::env::var_os("FURROW_DAMAGE_ALL").is_some();
        if target.is_dir() {
            damages.push(Damage::Cut(parts / 2));
        } else if every {
            damages.extend((1..parts.div_ceil(BLOCK)).map(|block| Damage::Cut(block * BLOCK)));
            damages.extend((0..parts.div_ceil(BLOCK)).map(|block| Damage::Bit(block * BLOCK + 100)));
        } else {
            let block = (parts / 2).next_multiple_of(BLOCK);
            damages.push(Damage::Cut(if block < parts { block } else { parts / 2 }));
            damages.push(Damage::Bit(parts / 2));
        }
        damages
    }

    /// Damages a copy of the run directory, starts it, and describes what is wrong with the
    /// outcome.
    fn problem_of(&self, kind: &str, damage: Damage, index: usize) -> Option<String> {
        let folder = self.run.folder.path().join(format!("cell-{index}"));
        let dir = folder.join("run");
        copy_tree(&self.base, &dir);
        inflict(&dir, &self.older, kind, damage);
        let outcome = self.follow(&folder, &dir, kind);
        fs::remove_dir_all(&folder).unwrap();
        outcome.err()
    }

    fn follow(&self, folder: &Path, dir: &Path, kind: &str) -> Result<(), String> {
        let resume = || self.run.command_in(folder, &RESUME).output().unwrap();
        let mut output = resume();
        let mut message = text(&output);
        if is_refused(&output) {
            // A refused start changes no byte that the next one needs; then its own remedy helps.
            if message.contains("move the file away") {
                fs::remove_file(dir.join(kind)).map_err(|error| format!("{error}: {message}"))?;
            } else if message.contains("furrow restore") {
                fs::remove_dir_all(dir).unwrap();
                let backup = self.run.folder.path().join("backup");
                let to = dir.display().to_string();
                let restored = furrow(&["restore", &backup.display().to_string(), &to], folder);
                if restored.status.code() != Some(0) {
                    return Err(format!("restore failed: {}", text(&restored)));
                }
            } else {
                return Err(format!("refused without a remedy: {message}"));
            }
            output = resume();
            message = text(&output);
            if output.status.code() != Some(0) {
                return Err(format!("the remedy did not help: {message}"));
            }
        }
        let doctor = furrow(&["doctor", "--run", &dir.display().to_string()], folder);
        let named = message.clone() + &text(&doctor);
        let mut breaches = self.run.breaches_in(dir);
        // The last line counts them.
        breaches.retain(|breach| {
            breach.starts_with("BREACH") || breach.contains("Error") || breach.contains("Invalid")
        });
        let unnamed: Vec<&String> =
            breaches.iter().filter(|breach| !is_named(breach, &named, output.status.code())).collect();
        if !unnamed.is_empty() {
            return Err(format!("unnamed losses {unnamed:?} after: {message}"));
        }
        // The ledger does not count the steps of a trajectory that has not ended (decision 22):
        // where its spool file is cut, or gone with the folder, it fails by name and its slot is
        // tried again, like any lost lease.
        let is_of_spool = ["spool", "spool/+"].contains(&kind);
        if !is_of_spool
            && !breaches.is_empty()
            && output.status.code() == Some(0)
            && doctor.status.code() == Some(0)
        {
            return Err(format!("losses, and both commands succeeded: {breaches:?}"));
        }
        match output.status.code() {
            Some(0 | 1) => Ok(()),
            other => Err(format!("status {other:?}: {message}")),
        }
    }
}

/// Whether the run did not begin: nothing says how many trajectories it has.
fn is_refused(output: &Output) -> bool {
    output.status.code() != Some(0) && !text(output).contains("trajectories scored")
}

/// Whether a breach is about something that the run or `furrow doctor` named as damaged.
fn is_named(breach: &str, named: &str, status: Option<i32>) -> bool {
    let names = breach.split(|c: char| !(c.is_alphanumeric() || "-_./".contains(c)));
    let ids: Vec<&str> = names
        .filter(|name| [".parquet", ".toml", "run-", "notes.txt"].iter().any(|part| name.contains(part)))
        .collect();
    let is_id_named = |id: &&str| named.contains(id.trim_end_matches(['.', ':']));
    // Rows of a damaged file are named by the file; the checker cannot read them.
    let file_is_named = named.contains(".parquet") && (status != Some(0) || named.contains("BAD"));
    ids.iter().any(is_id_named) || file_is_named
}

fn resolve(dir: &Path, kind: &str) -> PathBuf {
    let path = dir.join(kind);
    match path.file_name().unwrap().to_str().unwrap() {
        "*" => entries(path.parent().unwrap()).remove(0),
        "+" => entries(path.parent().unwrap()).into_iter().max_by_key(|path| length(path)).unwrap(),
        _ => path,
    }
}

fn inflict(dir: &Path, older: &Path, kind: &str, damage: Damage) {
    let target = resolve(dir, kind);
    let is_folder = target.is_dir();
    let remove = |path: &Path| {
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { drop(fs::remove_file(path)) }
    };
    match damage {
        Damage::Missing => remove(&target),
        Damage::Empty if is_folder => entries(&target).iter().for_each(|path| remove(path)),
        Damage::Empty => fs::write(&target, "").unwrap(),
        Damage::Cut(kept) if is_folder => {
            entries(&target).iter().skip(kept as usize).for_each(|path| remove(path));
        }
        Damage::Cut(kept) => {
            let bytes = fs::read(&target).unwrap();
            fs::write(&target, &bytes[..(kept as usize).min(bytes.len())]).unwrap();
        }
        Damage::Bit(at) => {
            let mut bytes = fs::read(&target).unwrap();
            let at = (at as usize).min(bytes.len().saturating_sub(1));
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 0x10;
            }
            fs::write(&target, bytes).unwrap();
        }
        Damage::Older => {
            let before = older.join(target.strip_prefix(dir).unwrap());
            remove(&target);
            if before.is_dir() {
                copy_tree(&before, &target);
            } else if before.exists() {
                fs::copy(&before, &target).unwrap();
            }
        }
        Damage::Foreign if is_folder => fs::write(target.join("notes.txt"), "mine").unwrap(),
        Damage::Foreign => fs::write(&target, "a foreign file, which is none of the run's\n").unwrap(),
    }
}

#[test]
fn whatever_is_damaged_a_start_goes_on_or_names_what_helps() {
    let killed = KilledRun::new();
    let mut cells = Vec::new();
    for kind in KINDS {
        cells.extend(killed.damages(kind).into_iter().map(|damage| (kind, damage)));
    }
    // All cells take minutes: without the variable each kind has one or two damages, each damage
    // some kinds.
    if std::env::var_os("FURROW_DAMAGE_ALL").is_none() {
        let mut index = 0;
        cells.retain(|_| {
            index += 1;
            index % 5 == 1
        });
    }
    let next = AtomicUsize::new(0);
    let problems = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((kind, damage)) = cells.get(index) else { break };
                    let problem = killed.problem_of(kind, *damage, index);
                    println!("{kind} {damage:?}: {}", problem.as_deref().unwrap_or("ok"));
                    if let Some(problem) = problem {
                        problems.lock().unwrap().insert(format!("{kind} {damage:?}"), problem);
                    }
                }
            });
        }
    });
    let problems = problems.into_inner().unwrap();
    println!("{} cells of {} kinds, {} with a problem", cells.len(), KINDS.len(), problems.len());
    let listed: Vec<String> = problems.iter().map(|(cell, problem)| format!("{cell}: {problem}")).collect();
    assert!(listed.is_empty(), "{}", listed.join("\n\n"));
}
