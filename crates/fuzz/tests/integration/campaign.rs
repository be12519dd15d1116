//! Every target: its kept inputs, then some seconds of changed ones, two targets at a time.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use furrow_fuzz::{FuzzTarget, TARGETS};

use crate::corpus::folder;

/// Seconds of changed inputs for each target: 1; 0 tries the kept inputs alone.
const SECONDS: &str = "FURROW_FUZZ_SECONDS";
/// Seed of the changes; else another one each time, which is printed.
const SEED: &str = "FURROW_FUZZ_SEED";
/// Only targets whose names contain this.
const ONLY: &str = "FURROW_FUZZ_ONLY";
/// Targets that run at the same time.
const AT_ONCE: usize = 2;
/// Seconds after which an input counts as one that does not end.
const INPUT_SECONDS: u32 = 60;
/// Lines of the output of a failed target that are shown.
const LINES_SHOWN: usize = 30;

struct Campaign {
    seconds: u32,
    seed: u32,
    scratch: PathBuf,
    /// Where inputs are kept that break a promise.
    findings: PathBuf,
}

#[test]
fn no_input_breaks_a_promise() {
    let scratch = tempfile::tempdir_in(in_memory()).unwrap();
    let findings = Path::new(env!("CARGO_TARGET_TMPDIR")).join("findings");
    fs::create_dir_all(&findings).unwrap();
    let campaign = Campaign {
        seconds: number(SECONDS).unwrap_or(1),
        seed: number(SEED).unwrap_or_else(of_clock),
        scratch: scratch.path().to_owned(),
        findings,
    };
    println!("{SEED}={} {SECONDS}={}", campaign.seed, campaign.seconds);
    let only = env::var(ONLY).unwrap_or_default();
    let mut chosen: Vec<&FuzzTarget> = TARGETS.iter().filter(|target| target.name.contains(&only)).collect();
    chosen.reverse();
    let queue = Mutex::new(chosen);
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(target) = next(&queue) {
                    match campaign.run(target) {
                        Ok(line) => println!("{line}"),
                        Err(report) => failed.lock().unwrap().push(report),
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn next(queue: &Mutex<Vec<&'static FuzzTarget>>) -> Option<&'static FuzzTarget> {
    queue.lock().unwrap().pop()
}

impl Campaign {
    /// What the target did, or how it failed.
    fn run(&self, target: &FuzzTarget) -> Result<String, String> {
        let found = self.scratch.join(target.name);
        fs::create_dir_all(&found).unwrap();
        let time =
            if self.seconds == 0 { "-runs=0".into() } else { format!("-max_total_time={}", self.seconds) };
        let mut command = Command::new(env!("CARGO_BIN_EXE_furrow-fuzz"));
        command.env("FURROW_FUZZ_TARGET", target.name).env("FURROW_FUZZ_SCRATCH", &self.scratch);
        command.env("FURROW_FUZZ_KEPT", folder(target));
        command.arg(time).arg(format!("-seed={}", self.seed)).arg(format!("-max_len={}", target.bytes_max));
        command.args(["-reload=0", "-len_control=0", "-print_final_stats=1", "-rss_limit_mb=4096"]);
        command.arg(format!("-timeout={INPUT_SECONDS}"));
        command.arg(format!("-artifact_prefix={}/{}-", self.findings.display(), target.name));
        let dictionary = dictionary(target);
        if dictionary.is_file() {
            command.arg(format!("-dict={}", dictionary.display()));
        }
        command.arg(found).arg(folder(target)).stdin(Stdio::null());
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            let runs = text.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
            return Ok(format!("{}: {} inputs", target.name, runs.unwrap_or("some").trim()));
        }
        let lines: Vec<&str> = text.lines().collect();
        let shown = lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n");
        let file =
            text.lines().find_map(|line| line.split_once("Test unit written to ")).map(|(_, file)| file);
        Err(format!(
            "{shown}\n{}: {}\n{}",
            target.name,
            output.status,
            remedy(target, file.unwrap_or("FILE"))
        ))
    }
}

/// How to repeat an input, and to keep it.
fn remedy(target: &FuzzTarget, file: &str) -> String {
    let name = target.name;
    format!(
        "Repeat it: FURROW_FUZZ_TARGET={name} cargo run -p furrow-fuzz -- {file}\n\
         Once it is corrected, keep it: cp {file} {}/found-WHAT",
        folder(target).display()
    )
}

fn dictionary(target: &FuzzTarget) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("dictionaries").join(format!("{}.txt", target.name))
}

fn number(variable: &str) -> Option<u32> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}; set it to a whole number")))
}

fn of_clock() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos().max(1)
}

/// A folder whose files need no disk, where there is one.
fn in_memory() -> PathBuf {
    let shared = PathBuf::from("/dev/shm");
    if shared.is_dir() { shared } else { env::temp_dir() }
}
