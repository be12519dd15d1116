//! The harness of the tests: a data set, a dashboard that shows it, a browser.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use chromiumoxide::browser::{Browser, BrowserConfig};
use chromiumoxide::handler::viewport::Viewport;
use chromiumoxide::page::ScreenshotParams;
use chromiumoxide::{Handler, Page};
use furrow_dashboard::{DashboardFile, DashboardServer, DashboardSubject, DeviceKind, PlannedWork};
use furrow_records::fixtures::{self, TrajectoryFixture};
use furrow_records::{CommitDraft, Manifest, ShardWriter};
use furrow_rollout::{
    EndKind, GroupRecord, PolicyKind, PolicyVersion, RescoredToken, Size, Split, StepRecord, TrajectoryRecord,
};
use futures::StreamExt as _;
use futures::executor::block_on;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Text of hostile pages and models. Each would set `window.pwned` if a page made markup or a URL
/// of it.
pub(crate) const HOSTILE: [&str; 5] = [
    "<img src=x onerror=\"window.pwned=1\">",
    "</script><script>window.pwned=1</script>",
    "javascript:window.pwned=1",
    "\"><svg onload=window.pwned=1>",
    "${window.pwned=1}{{constructor.constructor('window.pwned=1')()}}\u{202e}\u{0}",
];

/// The run of most tests, written once: a debug build takes seconds for its pictures.
static NIGHT_RUN: LazyLock<TempDir> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path());
    dir
});

/// Paths of the browser in Debian and other distributions, as `env.browser` searches them.
const BROWSERS: [&str; 4] = [
    "/usr/lib/chromium/chromium-headless-shell",
    "/usr/lib/chromium-browser/headless_shell",
    "/usr/lib/chromium/headless_shell",
    "/opt/chromium/chrome-headless-shell",
];

pub(crate) struct TestDashboard {
    pub dir: TempDir,
    pub address: SocketAddr,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

/// A browser that ends with the test.
pub(crate) struct TestBrowser {
    browser: Browser,
    driving: tokio::task::JoinHandle<()>,
    _profile: TempDir,
}

impl TestDashboard {
    /// Serves a dashboard over a directory, on a free port of loopback.
    pub(crate) async fn serve(dir: TempDir, token: Option<&str>) -> Self {
        let config = DashboardFile::default().check().unwrap();
        let subject = DashboardSubject {
            name: "night-run".into(),
            dir: Some(dir.path().to_owned()),
            coordinator: None,
            identity: None,
            job: Some(format!("[run]\nname = \"night-run\"\n# {}\n", HOSTILE[1])),
            device: DeviceKind::Gpu,
            usd_per_device_hour: Some(2.5),
            planned: Some(PlannedWork { trajectories: Some(244), sessions: 8, tokens_max: Some(64) }),
            floor: None,
        };
        let any = "127.0.0.1:0".parse().unwrap();
        let dashboard = DashboardServer::bind(any, &config, token, subject).await.unwrap();
        let address = dashboard.address();
        let stop = CancellationToken::new();
        let serving = tokio::spawn(dashboard.serve(stop.clone()));
        Self { dir, address, stop, serving }
    }

    /// Serves a dashboard over the whole run, read to its end.
    pub(crate) async fn night_run() -> Self {
        let dashboard = Self::serve(night_run(), None).await;
        dashboard.wait_until(|head| head["trajectories"] == 244 && head["step_files_left"] == 0).await;
        dashboard
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, body) = super::http::get(self.address, path, &[]).await;
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    pub(crate) async fn wait_until(&self, is_there: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let head = self.get("/api/choices").await["head"].clone();
            if is_there(&head) {
                return;
            }
            assert!(Instant::now() < deadline, "the expected state did not come: {head}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn close(self) {
        self.stop.cancel();
        self.serving.await.unwrap();
    }
}

impl TestBrowser {
    pub(crate) async fn start() -> Self {
        let named = std::env::var_os("FURROW_BROWSER").map(PathBuf::from);
        let program = named.or_else(|| BROWSERS.iter().map(PathBuf::from).find(|path| path.exists()));
        let program = program.expect(
            "no Chromium headless shell: apt-get install chromium-headless-shell, or set FURROW_BROWSER",
        );
        let profile = tempfile::tempdir().unwrap();
        let viewport = Viewport { width: 1280, height: 860, ..Viewport::default() };
        // Only the dashboard's pages are opened, by the user of the tests, often root: so no
        // sandbox.
        let config =
            BrowserConfig::builder().chrome_executable(program).no_sandbox().user_data_dir(profile.path());
        let config = config.viewport(viewport).window_size(1280, 860).arg("--disable-dev-shm-usage");
        let (browser, handler) = Browser::launch(config.build().unwrap()).await.unwrap();
        Self { browser, driving: tokio::spawn(drive(handler)), _profile: profile }
    }

    pub(crate) async fn open(&self, url: &str) -> Page {
        let page = self.browser.new_page("about:blank").await.unwrap();
        page.goto(url).await.unwrap();
        page
    }

    pub(crate) async fn close(mut self) {
        self.browser.close().await.unwrap();
        self.browser.wait().await.unwrap();
        self.driving.abort();
    }
}

async fn drive(mut handler: Handler) {
    while handler.next().await.is_some() {}
}

/// A copy of the run of most tests.
pub(crate) fn night_run() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy(NIGHT_RUN.path(), dir.path());
    dir
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let from = entry.as_ref().unwrap().path();
        let to = to.join(entry.unwrap().file_name());
        if from.is_dir() {
            std::fs::create_dir_all(&to).unwrap();
            copy(&from, &to);
        } else {
            std::fs::copy(&from, &to).unwrap();
        }
    }
}

/// The result of a script on the page.
pub(crate) async fn script<T: serde::de::DeserializeOwned>(page: &Page, text: &str) -> T {
    let result = page.evaluate_expression(text).await;
    result.unwrap_or_else(|error| panic!("{text}: {error}")).into_value().unwrap()
}

/// Waits until an expression is true on the page.
#[track_caller]
pub(crate) fn wait_for<'a>(page: &'a Page, condition: &'a str) -> impl Future<Output = ()> + 'a {
    let caller = std::panic::Location::caller();
    async move {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            // A page during navigation answers with an error, and so does one without the queried
            // element.
            let answer = page.evaluate_expression(format!("Boolean({condition})")).await;
            if answer.is_ok_and(|answer| answer.into_value::<bool>().unwrap_or(false)) {
                return;
            }
            if Instant::now() > deadline {
                let text: String = script(page, "document.body.innerText").await;
                panic!(
                    "{caller}: {condition} did not become true on {:?}; the page's text:\n{text}",
                    page.url().await
                );
            }
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
    }
}

/// Saves a screenshot if `FURROW_SCREENSHOTS` names a directory.
pub(crate) async fn keep_picture(page: &Page, name: &str) {
    let Some(folder) = std::env::var_os("FURROW_SCREENSHOTS") else { return };
    let picture = page.screenshot(ScreenshotParams::builder().full_page(false).build()).await.unwrap();
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(Path::new(&folder).join(format!("{name}.png")), picture).unwrap();
}

/// 61 groups of 4 in three shards, with every kind of end, two policies, four versions, one hostile
/// trajectory, and the metrics of the run.
pub(crate) fn write_run(dir: &Path) {
    for shard in 0..3 {
        let groups: Vec<u64> = (0..61).filter(|group| group % 3 == shard).collect();
        let made: Vec<_> =
            groups.iter().flat_map(|&group| (0..4).map(move |sample| attempt(group, sample))).collect();
        let of_group = |group: u64| {
            let records = made.iter().map(|(record, _)| record);
            records.filter(|record| record.task.seed == group).cloned().collect::<Vec<_>>()
        };
        let closed: Vec<GroupRecord> =
            groups.iter().map(|&group| fixtures::group(&of_group(group))).collect();
        commit(&dir.join("data"), &format!("shard-{shard}"), &made, &closed);
    }
    std::fs::write(dir.join("metrics.jsonl"), metrics()).unwrap();
}

/// Closes a shard and commits it.
pub(crate) fn commit(
    data: &Path,
    shard: &str,
    made: &[(TrajectoryRecord, Vec<StepRecord>)],
    groups: &[GroupRecord],
) {
    std::fs::create_dir_all(data).unwrap();
    let plan = fixtures::plan(data, shard);
    let mut writer = ShardWriter::create(plan.clone());
    made.iter().for_each(|(record, steps)| writer.add_trajectory(record, steps).unwrap());
    groups.iter().for_each(|group| writer.add_group(group).unwrap());
    let files = writer.finish(|_, _| {}).unwrap();
    let draft = CommitDraft::append(files, plan.run_id, 1, plan.shard_id, fixtures::STARTED);
    let mut manifest = block_on(Manifest::open(Manifest::local_store(data).unwrap())).unwrap();
    block_on(manifest.commit(&draft)).unwrap();
}

/// A trajectory whose values follow from its numbers.
pub(crate) fn attempt(group: u64, sample: u32) -> (TrajectoryRecord, Vec<StepRecord>) {
    let mix = (group * 7 + u64::from(sample) * 13) % 23;
    let end = match mix {
        0 => EndKind::BrowserDead,
        1 => EndKind::Blocked,
        2..6 => EndKind::MaxSteps,
        6 => EndKind::Unparsable,
        _ => EndKind::Answered,
    };
    let reward = if group % 5 == 4 { 0.0 } else { [0.0, 0.25, 1.0, 1.0][(mix % 4) as usize] };
    let plot = TrajectoryFixture {
        group,
        sample,
        steps: 1 + (mix % 7) as u32,
        end,
        reward,
        kind: if group % 8 == 7 { PolicyKind::Random } else { PolicyKind::Model },
        // Two groups of an evaluation inside the job.
        split: if group % 30 == 29 { Split::Eval } else { Split::Train },
        size: Size::new(96, 64),
        ..TrajectoryFixture::default()
    };
    let (mut record, mut steps) = plot.trajectory();
    record.task.seed = group;
    record.task.task_id = ["book-a-table", "change-address", "find-the-invoice"][(group % 3) as usize].into();
    record.task.suite = if group.is_multiple_of(3) { "mini" } else { "web" }.into();
    record.ended_at_micros += (group * 120_000_000) as i64;
    if record.policy_kind == PolicyKind::Model {
        let version = (group / 16) as i32;
        record.policy_versions = Some((version, version));
        record.staleness = Some(sample as i32 % 3);
        for step in &mut steps {
            step.trace.policy_version = Some(PolicyVersion(version));
            // Some steps have recomputed log-probs, slightly below the recorded -0.75.
            if (group + u64::from(step.step)).is_multiple_of(4) {
                let rescored =
                    |token| RescoredToken { token, logprob: -0.75 - 0.001 * (1 + group % 7) as f32 };
                step.trace.rescored = vec![rescored(1), rescored(3)];
            }
            step.trace.tokens.iter_mut().for_each(|tokens| tokens.policy_versions.fill(version));
        }
    }
    if let Some(score) = &mut record.score {
        score.success = (group % 9 != 8).then_some(reward > 0.5);
    }
    if (group, sample) == (0, 1) {
        poison(&mut record, &mut steps);
    }
    (record, steps)
}

/// Puts hostile text into every field that a page or a model can fill.
pub(crate) fn poison(record: &mut TrajectoryRecord, steps: &mut [StepRecord]) {
    let text = HOSTILE.concat();
    record.task.start_url = HOSTILE[2].into();
    record.task.task_id = HOSTILE[0].into();
    record.ending.goal.clone_from(&text);
    record.ending.reason.clone_from(&text);
    if let Some(evidence) = &mut record.ending.evidence {
        evidence.title = Some(text.clone());
        evidence.url = Some(HOSTILE[2].into());
        evidence.answer = Some(text.clone());
        evidence.probe_json = Some(json!({ "say": text }).to_string());
    }
    if let (Some(score), Some(evidence)) = (&mut record.score, &record.ending.evidence) {
        score.rationale.clone_from(&text);
        score.evidence_sha256 = evidence.sha256();
    }
    for step in steps {
        step.observation.title.clone_from(&text);
        step.observation.url = HOSTILE[2].into();
        step.reply.raw_text = json!({ "thought": text, "action": text }).to_string();
        step.reply.name = HOSTILE[3].into();
        step.outcome.detail.clone_from(&text);
    }
}

/// Lines of two processes, one of them resumed.
fn metrics() -> String {
    let line = |pid: u64, at: u64, uptime: u64, factor: u64| {
        let mut line = json!({
            "time": format!("2026-11-22T08:{:02}:{:02}Z", at / 60, at % 60), "role": "run", "pid": pid,
            "uptime_seconds": uptime as f64, "final": false,
        });
        let totals = [
            ("rollout/scored", 3),
            ("rollout/failed", 1),
            ("rollout/successes", 2),
            ("rollout/steps", 11),
            ("policy/device_micros/decode", 3_100_000),
            ("policy/device_micros/prefill", 2_000_000),
            ("policy/device_micros/vision", 900_000),
            ("policy/device_micros/copy", 40_000),
            ("policy/device_micros/weights", 10_000),
            ("policy/device_micros/no_work", 2_950_000),
            ("policy/device_micros/no_room", 400_000),
            ("policy/device_micros/host", 600_000),
            ("env/slot_micros/busy", 61_000_000),
            ("env/slot_micros/no_assignment", 12_000_000),
            ("env/slot_micros/starting", 3_000_000),
            ("env/session_micros/policy", 30_000_000),
            ("env/session_micros/settle", 31_000_000),
            ("tree/cpu_micros", 14_000_000),
        ];
        totals.into_iter().for_each(|(name, value)| line[name] = json!(value * factor * uptime / 10));
        format!("{line}\n")
    };
    let first = (1..=120).map(|tick| line(7, tick * 10, tick * 10, 1));
    let resumed = (121..=180).map(|tick| line(7, tick * 10, (tick - 120) * 10, 2));
    first.chain(resumed).collect()
}
