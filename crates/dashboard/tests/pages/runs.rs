//! A dashboard over a folder of runs: its list, each run below an address of its own, two runs over
//! one another, and nothing outside of the folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use chromiumoxide::Page;
use furrow_dashboard::{
    DashboardFile, DashboardServer, DashboardSubject, DeviceKind, RunFolder, RunSummary, report_html,
};
use furrow_records::fixtures::TrajectoryFixture;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::harness::{HOSTILE, TestBrowser, commit, keep_picture, script, wait_for};
use crate::http::get;
use crate::pages::{WATCH, assert_no_errors, click};
use crate::report::read_metrics;

const NAMES: [&str; 3] = ["night-before", "night-after", "night-<img src=x onerror=pwned=1>"];

struct Folder {
    dir: TempDir,
}

impl Folder {
    fn dirs(&self) -> Vec<PathBuf> {
        ["a", "b", "c"].map(|name| self.dir.path().join(name)).into()
    }
}

impl RunFolder for Folder {
    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn list(&self) -> Vec<RunSummary> {
        let summary = |(dir, name): (PathBuf, &str)| RunSummary {
            dir,
            name: name.into(),
            state: "complete".into(),
            bytes: 1_000_000,
            trajectories: Some(40),
            started: Some("2026-11-22 08:00:00".into()),
            policy: HOSTILE[0].into(),
        };
        self.dirs().into_iter().zip(NAMES).map(summary).collect()
    }

    fn subject(&self, dir: &Path) -> DashboardSubject {
        let at = self.dirs().iter().position(|known| known == dir).unwrap();
        DashboardSubject {
            name: NAMES[at].into(),
            dir: Some(dir.to_owned()),
            coordinator: None,
            identity: None,
            job: None,
            device: DeviceKind::None,
            usd_per_device_hour: None,
            planned: None,
            floor: None,
        }
    }
}

/// Ten tasks with four attempts each. The second run solves three more of each task's attempts,
/// but for one task, at which it became worse.
fn folder() -> Folder {
    let folder = Folder { dir: tempfile::tempdir().unwrap() };
    for (at, dir) in folder.dirs().iter().enumerate() {
        let attempt = |group: u64, sample: u32| {
            let solved_before = if group == 7 { 4 } else { group as u32 % 2 };
            let solved = if at == 0 {
                solved_before
            } else if group == 7 {
                1
            } else {
                solved_before + 3
            };
            let reward = if sample < solved { 1.0 } else { 0.0 };
            let plot = TrajectoryFixture { group, sample, steps: 1, reward, ..TrajectoryFixture::default() };
            let (mut record, steps) = plot.trajectory();
            record.task.task_id = format!("task-{group}");
            record.task.seed = 1;
            record.ended_at_micros += (group * 60_000_000) as i64;
            if let Some(score) = &mut record.score {
                score.success = Some(reward > 0.5);
            }
            (record, steps)
        };
        let made: Vec<_> =
            (0..10).flat_map(|group| (0..4).map(move |sample| attempt(group, sample))).collect();
        commit(&dir.join("data"), "s0", &made, &[]);
    }
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed_opened_and_laid_over_one_another() {
    let config = DashboardFile::default().check().unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let server = DashboardServer::bind_folder(any, &config, None, Arc::new(folder())).await.unwrap();
    let address = server.address();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(server.serve(stop.clone()));
    let url = |path: &str| format!("http://{address}{path}");

    // What is not in the list is no run, whatever its name; and the list is of all of them.
    for path in
        ["/run/none/api/overview", "/run/..%2f..%2fetc/api/overview", "/api/overview", "/run/a/../../etc"]
    {
        let (status, body) = get(address, path, &[]).await;
        assert_eq!(status, 404, "{path}: {body}");
    }
    assert_eq!(get(address, "/api/compare?run=a", &[]).await.0, 400);
    assert_eq!(get(address, "/api/compare?run=a&run=none", &[]).await.0, 404);

    let chrome = TestBrowser::start().await;
    let page = chrome.open("about:blank").await;
    page.evaluate_on_new_document(WATCH).await.unwrap();
    page.goto(url("/")).await.unwrap();
    wait_for(
        &page,
        "location.pathname === '/runs' && document.querySelectorAll('#table-runs tbody tr').length === 3",
    )
    .await;
    let rows: Vec<String> = script(&page, "[...document.querySelectorAll('#table-runs tbody tr')].map((row) => row.textContent.replaceAll('\\u202f', ' '))").await;
    assert!(
        rows[0].contains("night-before") && rows[0].contains("complete") && rows[0].contains("20.0 % of 40"),
        "{rows:?}"
    );
    assert!(rows[2].contains(NAMES[2]) && rows[2].contains(HOSTILE[0]), "text stays text: {rows:?}");
    keep_picture(&page, "runs").await;

    compare_two(&page).await;

    // The pages of one run below its address: links, keys and pictures stay within it.
    page.goto(url("/run/b/")).await.unwrap();
    wait_for(
        &page,
        "document.querySelector('main h1')?.textContent === 'Overview' && document.querySelector('.tiles')",
    )
    .await;
    // From a run to how it differs from another one: one click, and the other one comes first.
    click(&page, "#compare-with a[href='/compare?run=a&run=b']").await;
    wait_for(&page, "document.querySelector('.verdict')?.textContent.startsWith('night-after is better than night-before')").await;
    page.goto(url("/run/b/")).await.unwrap();
    wait_for(&page, "document.querySelectorAll('#compare-with a').length === 2").await;
    click(&page, "#nav a[href='/run/b/trajectories']").await;
    wait_for(&page, "location.pathname === '/run/b/trajectories' && document.querySelector('#row-0 img')?.naturalWidth > 0").await;
    click(&page, "#row-0").await;
    wait_for(&page, "location.pathname.startsWith('/run/b/trajectory/') && document.querySelector('#step .shot img')?.naturalWidth > 0").await;
    crate::keys::press(&page, &["4"]).await;
    wait_for(&page, "location.pathname === '/run/b/learning' && document.querySelector('main h1')?.textContent === 'Learning'").await;
    assert_no_errors(&page).await;
    click(&page, "#nav a[href='/runs']").await;
    wait_for(&page, "location.pathname === '/runs' && document.querySelector('#table-runs')").await;
    chrome.close().await;
    stop.cancel();
    serving.await.unwrap();
}

/// The first answer about a run that was not open is of the whole of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_read_before_its_first_answer() {
    let config = DashboardFile::default().check().unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let server = DashboardServer::bind_folder(any, &config, None, Arc::new(folder())).await.unwrap();
    let address = server.address();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(server.serve(stop.clone()));
    for (key, path) in [("a", "overview"), ("b", "learning"), ("c", "trajectories")] {
        let (status, body) = get(address, &format!("/run/{key}/api/{path}"), &[]).await;
        let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
        let found = match path {
            "trajectories" => &answer["total"],
            _ => &answer["head"]["trajectories"],
        };
        assert_eq!((status, found), (200, &serde_json::json!(40)), "{key}: {body}");
    }
    stop.cancel();
    serving.await.unwrap();
}

/// Which of two runs is better, and which task became worse: two choices and one click.
async fn compare_two(page: &Page) {
    assert!(script::<bool>(page, "document.querySelector('#compare').disabled").await);
    click(page, "#choose-a").await;
    click(page, "#choose-b").await;
    click(page, "#compare").await;
    wait_for(page, "document.querySelector('.verdict')").await;
    let verdict: String = script(page, "document.querySelector('.verdict').textContent").await;
    assert!(
        verdict.starts_with("night-after is better than night-before: success +60.0 points ["),
        "{verdict}"
    );
    let worst: String =
        script(page, "document.querySelector('#by-task-0 tbody tr').textContent.replaceAll('\\u202f', ' ')")
            .await;
    assert!(
        worst.starts_with("task-7")
            && worst.contains("100 % of 4")
            && worst.contains("25.0 % of 4")
            && worst.contains("-75"),
        "{worst}"
    );
    assert!(
        script::<bool>(
            page,
            "document.querySelector('#by-task-0 tbody tr .fill').classList.contains('below')"
        )
        .await
    );
    // Both runs in one plot, told apart by the parts of their names that differ.
    wait_for(page, "document.querySelectorAll('.plot').length >= 2 && document.querySelectorAll('.plot')[0].querySelectorAll('path.curve').length === 2").await;
    assert_eq!(
        script::<Vec<String>>(
            page,
            "[...document.querySelector('.plot-legend').children].map((line) => line.textContent)"
        )
        .await,
        ["…before", "…after"]
    );
    keep_picture(page, "compare").await;
    assert_no_errors(page).await;
}

/// A folder needs the token as one run does, for every path.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_keeps_the_rules_of_access() {
    let token = "a-token-of-twenty-six-letters";
    let config = DashboardFile::default().check().unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let server = DashboardServer::bind_folder(any, &config, Some(token), Arc::new(folder())).await.unwrap();
    let address = server.address();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(server.serve(stop.clone()));
    let bearer = format!("Bearer {token}");
    for path in ["/api/runs", "/api/compare?run=a&run=b", "/run/a/api/overview", "/run/a/api/events"] {
        assert_eq!(get(address, path, &[]).await.0, 401, "{path}");
        if !path.ends_with("events") {
            assert_eq!(get(address, path, &[("authorization", &bearer)]).await.0, 200, "{path}");
        }
    }
    let (status, head, _) =
        crate::http::ask(address, "GET /run/a/ HTTP/1.1", &[("authorization", &bearer)], "").await;
    assert!(status == 200 && head.contains("content-security-policy"), "{head}");
    stop.cancel();
    serving.await.unwrap();
}

/// The report over two runs begins with the same verdict.
#[test]
fn a_report_over_two_runs_begins_with_its_verdict() {
    let folder = folder();
    let dirs = folder.dirs();
    let found = furrow_analysis::compare_runs(&dirs[0], &dirs[1], &Default::default()).unwrap();
    let runs = [
        read_metrics(&dirs[0], "quickstart-scripted"),
        read_metrics(&dirs[1], "quickstart-random").compared(&found),
    ];
    let html = report_html(&runs);
    let verdict =
        html.find("quickstart-random is better than quickstart-scripted: success +60.0 points [").unwrap();
    assert!(verdict < html.find(">Metrics<").unwrap(), "it comes first");
    assert!(html.contains(">…scripted</th>") && html.contains(">…random</th>"), "heads say what differs");
    assert!(html.contains("task-7"), "the task that became worse is named");
    assert!(!report_html(&runs[..1]).contains("Verdict"));
}
