//! The dashboard of a real run: a hundred live sessions, drained from the page, and its metrics
//! compared with the files.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::farm::{FURROW, furrow, simulated_tasks};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A process that serves a dashboard; killed when dropped.
pub(crate) struct ServingProcess {
    child: Child,
    address: String,
    reading: Option<std::thread::JoinHandle<()>>,
}

impl ServingProcess {
    pub(crate) fn start(arguments: &[&str], folder: &Path) -> Self {
        let mut command = Command::new(FURROW);
        command
            .args(arguments)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = lines.by_ref().map(Result::unwrap).find_map(|line| {
            let address = line.strip_prefix("dashboard: http://")?;
            Some(address.trim_end_matches('/').to_owned())
        });
        // Later output must be read, or the process would block.
        let reading = std::thread::spawn(move || lines.for_each(drop));
        Self { child, address: address.expect("it prints the dashboard's address"), reading: Some(reading) }
    }

    pub(crate) fn ask(&self, method: &str, path: &str) -> (u16, Vec<u8>) {
        self.ask_over(TcpStream::connect(&self.address).unwrap(), method, path).expect("an answer")
    }

    /// `None` if the process ended before it answered.
    fn ask_over(&self, mut stream: TcpStream, method: &str, path: &str) -> Option<(u16, Vec<u8>)> {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            self.address
        );
        let mut answer = Vec::new();
        stream.write_all(head.as_bytes()).and_then(|()| stream.read_to_end(&mut answer)).ok()?;
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
        let status = String::from_utf8_lossy(&answer[9..12]).parse().unwrap();
        Some((status, answer.split_off(end + 4)))
    }

    fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path);
        assert_eq!(status, 200, "{path}: {}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    }

    #[track_caller]
    fn until(&self, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let answer = self.get(path);
            if is_so(&answer) {
                return answer;
            }
            assert!(Instant::now() < deadline, "{path} did not reach the expected state: {answer:#}");
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }

    /// Waits until the run reports draining. If it has ended before the request, it has drained.
    fn until_drained(&self) {
        let deadline = Instant::now() + TIMEOUT;
        while let Ok(stream) = TcpStream::connect(&self.address) {
            let Some((_, body)) = self.ask_over(stream, "GET", "/api/job") else { return };
            let job: Value = serde_json::from_slice(&body).unwrap();
            if job["live"]["admission"] != "open" {
                return;
            }
            assert!(Instant::now() < deadline, "it did not drain: {job:#}");
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }

    /// Waits for its end.
    fn wait(mut self) -> std::process::ExitStatus {
        let status = self.child.wait().unwrap();
        self.reading.take().unwrap().join().unwrap();
        status
    }
}

impl Drop for ServingProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn a_hundred_sessions_are_watched_drained_and_accounted_for() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let job = here.join("job.toml");
    let more = "[policy]\nkind = \"scripted\"\nthink_millis = 400\nsessions_max = 128\n[env]\nsessions_max = 100\n\
                [records]\nmax_delay_millis = 300\n[telemetry]\nmetrics_interval_millis = 200\n[dashboard]\nlisten = \"127.0.0.1:0\"\n";
    std::fs::write(
        &job,
        format!("[run]\nname = \"run\"\noutput_dir = \".\"\n{}{more}", simulated_tasks(here, 400, 2)),
    )
    .unwrap();
    let job = job.display().to_string();

    let run = ServingProcess::start(&["run", &job, "--simulate-browser", "20000"], here);
    let overview = run.until("/api/overview", |overview| overview["live"]["running"].as_u64() >= Some(90));
    assert_eq!(
        (&overview["live"]["groups_planned"], &overview["live"]["env_workers"]),
        (&400.into(), &1.into())
    );
    let sessions = run.until("/api/sessions", |answer| {
        let list = answer["sessions"].as_array().unwrap();
        list.len() >= 90 && list.iter().any(|session| session["steps"].as_u64() > Some(0))
    });
    // A trajectory may end between two requests: some with a step must still be there.
    let with_step =
        sessions["sessions"].as_array().unwrap().iter().filter(|session| session["steps"].as_u64() > Some(0));
    let with_picture = with_step.take(20).filter(|session| {
        let base = format!("/api/sessions/{}", session["trajectory_id"].as_str().unwrap());
        let (status, body) = run.ask("GET", &base);
        let (picture_status, picture) = run.ask("GET", &format!("{base}/screenshot"));
        let body: Value = serde_json::from_slice(&body).unwrap();
        status == 200 && body["outcome"].is_string() && picture_status == 200 && picture.len() >= 10_000
    });
    assert!(with_picture.count() > 0, "no tile has data");
    // Metrics arrive while it runs, and with them the time left.
    run.until("/api/overview", |overview| {
        overview["counts"]["scored"].as_u64() > Some(0)
            && overview["slot_parts"].is_array()
            && overview["live"]["eta_seconds"].is_number()
    });
    watch_live(&run, here);
    assert_eq!(run.ask("POST", "/api/drain").0, 200);
    run.until_drained();
    assert!(run.wait().success());

    // The same pages over the finished run, and an independent script over the files.
    let view = ServingProcess::start(&["view", "run", "--listen", "127.0.0.1:0"], here);
    let mut files = Vec::new();
    for name in ["overview", "learning", "job"] {
        let answer = view.until(&format!("/api/{name}"), |answer| {
            answer["head"]["trajectories"].as_u64() > Some(0) && answer["head"]["step_files_left"] == 0
        });
        assert!(answer["live"].is_null(), "nothing runs: {}", answer["live"]);
        let path = here.join(format!("{name}.json"));
        std::fs::write(&path, answer.to_string()).unwrap();
        files.push(path);
    }
    let python = std::env::var("FURROW_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let summary = Command::new(python)
        .arg("tests/dashboard_metrics.py")
        .arg(here.join("run"))
        .args(&files)
        .output()
        .unwrap();
    println!("{}{}", String::from_utf8_lossy(&summary.stdout), String::from_utf8_lossy(&summary.stderr));
    assert!(summary.status.success());
    check_hours(&view.get("/api/job"), &view.get("/api/overview"));
    assert_eq!(view.ask("POST", "/api/drain").0, 409, "there is no coordinator");
    check_reports(here);
}

/// A report of the run with a picture of each plot, and a report of the run beside itself, both
/// compared with the script.
fn check_reports(folder: &Path) {
    let written = furrow(&["report", "run", "--png"], folder);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    assert!(String::from_utf8_lossy(&written.stdout).starts_with("tasks of"), "the table stays");
    let pictures: Vec<_> =
        std::fs::read_dir(folder.join("run/report")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(pictures.len() >= 4, "{pictures:?}");
    for picture in pictures {
        let bytes = std::fs::read(&picture).unwrap();
        // The PNG's head gives the width: 800 pixels of the page, at twice the density.
        assert!(
            bytes.starts_with(b"\x89PNG") && bytes[16..20] == 1600u32.to_be_bytes(),
            "{}",
            picture.display()
        );
        assert!(bytes.len() > 6_000, "{} is empty", picture.display());
    }
    let beside = furrow(&["report", "run", "run", "--html", "both.html", "--json"], folder);
    assert!(beside.status.success(), "{}", String::from_utf8_lossy(&beside.stderr));
    let evaluations: Value = serde_json::from_slice(&beside.stdout).unwrap();
    assert_eq!(evaluations.as_array().map(Vec::len), Some(2));
    for (page, runs) in [("run/report.html", &["run"][..]), ("both.html", &["run", "run"])] {
        let python = std::env::var("FURROW_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
        let mut script = Command::new(python);
        script
            .arg("tests/dashboard_metrics.py")
            .arg("--report")
            .arg(folder.join(page))
            .args(runs.iter().map(|run| folder.join(run)));
        let output = script.output().unwrap();
        assert!(
            output.status.success(),
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let refused = furrow(&["report", "run", "--html", "absent/report.html"], folder);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("use another path with --html FILE"));
}

/// The same run in a terminal, and printed.
fn watch_live(run: &ServingProcess, folder: &Path) {
    let address = format!("http://{}/", run.address);
    let once = furrow(&["watch", &address, "--once"], folder);
    let text = String::from_utf8_lossy(&once.stdout).into_owned();
    assert!(
        once.status.success() && text.contains(" run   running ") && text.contains("Success rate, live"),
        "{text}"
    );
    // The memory of a worker is known from the first line of its metrics on.
    let deadline = Instant::now() + Duration::from_secs(60);
    let overview = loop {
        let overview = furrow(&["watch", "run", "--json"], folder);
        let overview: Value = serde_json::from_slice(&overview.stdout).unwrap();
        let workers = overview["job"]["workers"].as_array().unwrap();
        if workers.iter().all(|worker| worker["memory_bytes"].is_u64()) || Instant::now() > deadline {
            break overview;
        }
    };
    assert!(
        overview["overview"]["live"]["running"].as_u64() > Some(0),
        "the coordinator is found through the run directory: {overview:#}"
    );
    let workers = overview["job"]["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 2, "{workers:?}");
    for worker in workers {
        assert!(
            worker["heard_seconds"].as_f64() < Some(30.0) && worker["memory_bytes"].as_u64() > Some(10 << 20),
            "{worker}"
        );
    }
    let refused = furrow(&["watch", &address], folder);
    assert_eq!(refused.status.code(), Some(2), "a pipe is not a terminal");
    // `script` provides a terminal, which has no size until it is set.
    let command = format!("stty rows 40 columns 120; exec {FURROW} watch {address}");
    let mut watched = Command::new("timeout")
        .args(["--foreground", "60", "script", "-qec", &command, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keys = watched.stdin.take().unwrap();
    let mut screen = watched.stdout.take().unwrap();
    let mut printed = Vec::new();
    let mut part = [0; 4096];
    while !String::from_utf8_lossy(&printed).contains("running") {
        let read = screen.read(&mut part).unwrap();
        assert!(read > 0, "it ended: {}", String::from_utf8_lossy(&printed));
        printed.extend_from_slice(&part[..read]);
    }
    keys.write_all(b"2q").unwrap();
    screen.read_to_end(&mut printed).unwrap();
    assert!(watched.wait().unwrap().success());
    let printed = String::from_utf8_lossy(&printed).into_owned();
    // The alternate screen is entered and left: the terminal is restored.
    let entered = printed.find("\u{1b}[?1049h");
    let left = printed.rfind("\u{1b}[?1049l");
    assert!(entered.is_some() && left > entered, "{printed:?}");
}

/// The time in the metrics equals the time in the rows: each trajectory's time is in a row, except
/// that of trajectories which the drain cancelled or revoked.
fn check_hours(job: &Value, overview: &Value) {
    let sum = |parts: &Value, group: &str| -> u64 {
        let parts =
            parts.as_array().unwrap().iter().filter(|part| group.is_empty() || part["group"] == group);
        parts.map(|part| part["micros"].as_u64().unwrap()).sum()
    };
    let ledger = &job["ledger"];
    for name in ["slots", "sessions"] {
        assert_eq!(sum(&ledger[name]["parts"], ""), ledger[name]["micros"].as_u64().unwrap(), "{name}");
    }
    let busy = sum(&overview["slot_parts"], "busy") as f64;
    let parts = &overview["session_parts"];
    let in_slots = ["browser", "policy", "record"].map(|group| sum(parts, group)).iter().sum::<u64>() as f64;
    assert!(
        in_slots <= busy * 1.01 && in_slots >= busy * 0.8,
        "rows hold {in_slots} us of {busy} us of busy slots"
    );
}
