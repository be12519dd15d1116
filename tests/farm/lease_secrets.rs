//! The secrets of leases are in no file, no output and no answer, and a living worker goes on with
//! its own after the coordinator was killed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use furrow_coordinator::{SecretDigest, SecretSource};
use furrow_records::DataSet;
use furrow_rollout::LeaseSecret;

use crate::dashboard::ServingProcess;
use crate::farm::{FarmBrowser, FarmHarness, FarmRole, simulated_tasks};

/// Secrets of each start that are looked for: more than it leases.
const DRAWN: usize = 60;

/// The secrets that a start of a coordinator draws with the planted bug.
fn secrets_of(epoch: u64) -> Vec<LeaseSecret> {
    let mut source = SecretSource::seeded(epoch);
    (0..DRAWN).map(|_| source.draw()).collect()
}

/// How bytes may be written: as they are, in hexadecimal, in base64, and as Rust and JSON print
/// them.
fn forms(bytes: &[u8]) -> Vec<Vec<u8>> {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let list: Vec<String> = bytes.iter().map(ToString::to_string).collect();
    let escaped = format!("{:?}", bytes::Bytes::copy_from_slice(bytes));
    let escaped = escaped.trim_start_matches("b\"").trim_end_matches('"').to_owned();
    let texts = [
        hex.to_uppercase(),
        hex,
        STANDARD_NO_PAD.encode(bytes),
        URL_SAFE_NO_PAD.encode(bytes),
        list.join(", "),
        list.join(","),
        escaped.replace('\\', "\\\\"),
        escaped,
    ];
    texts.into_iter().map(String::into_bytes).chain([bytes.to_vec()]).collect()
}

/// Needles by their first two bytes, so that a file is read once.
struct Needles {
    by_start: Vec<Vec<Vec<u8>>>,
}

fn start_of(text: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([text[0], text[1]]))
}

impl Needles {
    fn of<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut by_start = vec![Vec::new(); 1 << 16];
        for form in values.into_iter().flat_map(forms) {
            by_start[start_of(&form)].push(form);
        }
        Self { by_start }
    }

    fn count_in(&self, text: &[u8]) -> usize {
        let found = |at: usize| {
            let needles = &self.by_start[start_of(&text[at..])];
            needles.iter().any(|needle: &Vec<u8>| text[at..].starts_with(needle))
        };
        (0..text.len().saturating_sub(1)).filter(|at| found(*at)).count()
    }
}

/// All files below a folder, however deep.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The files in which a needle is, and how many files were read.
fn search(folder: &Path, needles: &Needles) -> (Vec<PathBuf>, usize) {
    let all = files(folder);
    let read = all.len();
    let found = all.into_iter().filter(|path| needles.count_in(&fs::read(path).unwrap_or_default()) > 0);
    (found.collect(), read)
}

/// What the dashboard answers about a run with leases.
fn answers(root: &Path) -> Vec<u8> {
    let dashboard = ServingProcess::start(&["dashboard", "run", "--listen", "127.0.0.1:0"], root);
    let get = |path: &str| {
        let (status, body) = dashboard.ask("GET", path);
        assert_eq!(status, 200, "{path}: {}", String::from_utf8_lossy(&body));
        body
    };
    let sessions = get("/api/sessions");
    let parsed: serde_json::Value = serde_json::from_slice(&sessions).unwrap();
    let listed = parsed["sessions"].as_array().unwrap().iter();
    let ids: Vec<&str> = listed.filter_map(|session| session["trajectory_id"].as_str()).collect();
    assert!(!ids.is_empty(), "no session runs");
    let overview = [get("/api/overview"), get("/api/job")].concat();
    // One that has ended meanwhile is not found.
    let each = ids.iter().flat_map(|id| dashboard.ask("GET", &format!("/api/sessions/{id}")).1);
    [sessions.clone(), overview, each.collect()].concat()
}

/// Rows of a data set as text: its files are compressed.
fn rows(run: &Path) -> (usize, String) {
    let data = DataSet::open(run).unwrap();
    let mut text = String::new();
    let mut trajectories = 0;
    for row in data.trajectories() {
        trajectories += 1;
        text.push_str(&format!("{:?}\n", row.unwrap()));
    }
    for row in data.steps().chain(data.failed_steps()) {
        text.push_str(&format!("{:?}\n", row.unwrap()));
    }
    (trajectories, text)
}

#[test]
fn no_secret_of_a_lease_is_in_a_file_an_output_or_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let job = simulated_tasks(folder.path(), 8, 2)
        + "[policy]\nkind = \"random\"\nthink_millis = 200\n[env]\nsessions_max = 4\n[limits]\nlease_millis = 30000\n"
        + "[telemetry]\nlog_level = \"trace\"\nstderr_level = \"trace\"\n";
    let mut farm = FarmHarness::new(FarmBrowser::Simulated(2_000), &job);
    farm.environment("FAILPOINTS", "bug.seeded_secrets=return");
    let root = farm.run_dir().parent().unwrap().to_owned();
    farm.start_all();
    farm.wait_until("under way", Duration::from_secs(60), |now| now.steps > 6 && now.assigned > 2);
    let answered = answers(&root);
    // Killed with leases and a spool; the workers live on with their secrets.
    farm.kill(FarmRole::Coordinator);
    let secrets: Vec<LeaseSecret> = (1..=2).flat_map(secrets_of).collect();
    let needles = Needles::of(secrets.iter().map(|secret| &secret.reveal()[..]));
    let (found, read) = search(&root, &needles);
    assert!(read > 10 && !files(&farm.run_dir().join("spool")).is_empty(), "{read} files");
    assert_eq!(found, Vec::<PathBuf>::new(), "while it runs");

    farm.start(FarmRole::Coordinator);
    farm.finish(Duration::from_secs(120));
    println!("{}", farm.check(8, 2).unwrap());
    let (trajectories, rows) = rows(&farm.run_dir());
    assert_eq!(trajectories, 16, "a lease was lost when the coordinator started again");
    let (found, read) = search(&root, &needles);
    assert_eq!(found, Vec::<PathBuf>::new(), "in {read} files of a finished run");
    assert_eq!(needles.count_in(rows.as_bytes()), 0, "in its rows");
    assert_eq!(needles.count_in(&answered), 0, "in answers of the dashboard");
    check_that_it_would_be_found(&root, &farm.run_dir(), &secrets, &needles, trajectories);
}

/// The search finds what is there: the digest of every lease, and a secret that is planted in any
/// form.
fn check_that_it_would_be_found(
    root: &Path,
    run: &Path,
    secrets: &[LeaseSecret],
    needles: &Needles,
    leases: usize,
) {
    let ledger: Vec<u8> = files(run)
        .iter()
        .filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ledger.sqlite"))
        })
        .flat_map(|path| fs::read(path).unwrap())
        .collect();
    let has_digest = |secret: &&LeaseSecret| {
        let digest = SecretDigest::of(secret);
        ledger.windows(32).any(|bytes| bytes == digest.bytes())
    };
    let digests = secrets.iter().filter(has_digest).count();
    assert_eq!(digests, leases, "these are not the secrets that the run's leases had");
    let mut planted = BTreeSet::new();
    for (number, form) in forms(secrets[3].reveal()).into_iter().enumerate() {
        let path = run.join("logs").join(format!("planted-{number}"));
        fs::write(&path, [b"an error: ".as_slice(), &form, b"\n"].concat()).unwrap();
        planted.insert(path);
    }
    let found: BTreeSet<PathBuf> = search(root, needles).0.into_iter().collect();
    assert_eq!(found, planted);
}
