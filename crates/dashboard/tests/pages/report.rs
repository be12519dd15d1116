//! A report in a real Chromium and compared with the script: its metrics, one run and two, hostile
//! names, and that it loads nothing.

use std::path::{Path, PathBuf};
use std::process::Command;

use chromiumoxide::Page;
use chromiumoxide::cdp::browser_protocol::emulation::{MediaFeature, SetEmulatedMediaParams};
use chromiumoxide::cdp::browser_protocol::network::{EnableParams, EventRequestWillBeSent};
use furrow_dashboard::{DashboardSubject, DeviceKind, ReportTable, RunMetrics, report_html, report_pictures};
use futures::StreamExt as _;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{HOSTILE, TestBrowser, TestDashboard, attempt, commit, keep_picture, night_run, script};
use crate::pages::{CONTRAST, LABELS, WATCH};

pub(crate) fn read_metrics(dir: &Path, name: &str) -> RunMetrics {
    let subject = DashboardSubject {
        name: name.into(),
        dir: Some(dir.to_owned()),
        coordinator: None,
        identity: None,
        job: Some(format!("[run]\nname = {:?}\n", HOSTILE[1])),
        device: DeviceKind::Gpu,
        usd_per_device_hour: Some(2.5),
        planned: None,
        floor: None,
    };
    let table = ReportTable {
        title: HOSTILE[0].into(),
        header: vec![HOSTILE[1].into(), "success".into()],
        rows: vec![vec![HOSTILE[3].into(), "12 %".into()]],
        notes: vec![HOSTILE[2].into(), HOSTILE[4].into()],
    };
    RunMetrics::read(subject).unwrap().with(table)
}

fn check_against_script(report: &Path, runs: &[&Path]) {
    let python = std::env::var("FURROW_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/dashboard_metrics.py");
    let output = Command::new(python).arg(script).arg("--report").arg(report).args(runs).output().unwrap();
    let texts = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{}", texts.concat());
}

pub(crate) fn write(folder: &TempDir, name: &str, html: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, html).unwrap();
    path
}

/// Opens a file, and records the requested URLs.
pub(crate) async fn open(chrome: &TestBrowser, file: &Path) -> (Page, Vec<String>) {
    let page = chrome.open("about:blank").await;
    page.execute(EnableParams::default()).await.unwrap();
    page.evaluate_on_new_document(WATCH).await.unwrap();
    let mut requests = page.event_listener::<EventRequestWillBeSent>().await.unwrap();
    page.goto(format!("file://{}", file.display())).await.unwrap();
    crate::harness::wait_for(&page, "document.readyState === 'complete'").await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let mut requested_urls = Vec::new();
    while let Ok(Some(request)) =
        tokio::time::timeout(std::time::Duration::from_millis(50), requests.next()).await
    {
        requested_urls.push(request.request.url.clone());
    }
    (page, requested_urls)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_says_what_the_script_says_and_asks_for_nothing() {
    let run = night_run();
    let folder = tempfile::tempdir().unwrap();
    let chrome = TestBrowser::start().await;
    let figures = read_metrics(run.path(), HOSTILE[0]);
    let html = report_html(std::slice::from_ref(&figures));
    assert_eq!(html, report_html(std::slice::from_ref(&figures)), "the same data gives the same file");
    let file = write(&folder, "one.html", &html);
    check_against_script(&file, &[run.path()]);

    let (page, requested_urls) = open(&chrome, &file).await;
    assert_eq!(requested_urls, [format!("file://{}", file.display())], "it loads only itself");
    for dark in [false, true] {
        let scheme = MediaFeature::new("prefers-color-scheme", if dark { "dark" } else { "light" });
        page.emulate_media_features(vec![scheme]).await.unwrap();
        let paper: String = script(&page, "getComputedStyle(document.body).backgroundColor").await;
        assert_eq!(paper == "rgb(19, 23, 21)", dark, "{paper}");
        assert!(script::<bool>(&page, CONTRAST).await, "{}", script::<String>(&page, "window.faint").await);
        keep_picture(&page, &format!("report-{}", if dark { "dark" } else { "light" })).await;
        script::<bool>(&page, "(document.querySelector('#drift-success').scrollIntoView(), true)").await;
        keep_picture(&page, &format!("report-plots-{}", if dark { "dark" } else { "light" })).await;
        script::<bool>(&page, "(scrollTo(0, 0), true)").await;
    }
    assert!(script::<bool>(&page, LABELS).await, "{}", script::<String>(&page, "window.nameless").await);
    let overflow: i64 = script(&page, "document.documentElement.scrollWidth - innerWidth").await;
    assert!(overflow <= 0, "{overflow} pixels too wide");
    // Every plot has something to show for this run, and untrusted text stays text.
    let empty: Vec<String> = script(&page, "[...document.querySelectorAll('figure')].filter((plot) => !plot.querySelector('svg')).map((plot) => plot.id)").await;
    assert!(empty.is_empty(), "{empty:?}");
    assert_eq!(script::<i64>(&page, "document.querySelectorAll('figure svg').length").await, 14);
    let text: String = script(&page, "document.documentElement.textContent").await;
    for part in &HOSTILE[..4] {
        assert!(text.contains(part), "{part} is missing");
    }
    let made: i64 = script(&page, "document.querySelectorAll('img, iframe, object, link, a, [onerror], [onload], [href], [src], script:not(#figures)').length").await;
    assert_eq!(made, 0);
    assert_eq!(script::<Vec<String>>(&page, "window.wrong").await, Vec::<String>::new());
    assert!(script::<bool>(&page, "window.pwned === undefined").await);

    // On paper: light, complete, and without what cannot be opened there.
    let scheme = MediaFeature::new("prefers-color-scheme", "light");
    let paper = SetEmulatedMediaParams::builder().media("print").feature(scheme).build();
    page.execute(paper).await.unwrap();
    assert_eq!(
        script::<String>(&page, "getComputedStyle(document.body).backgroundColor").await,
        "rgba(0, 0, 0, 0)"
    );
    assert!(!script::<bool>(&page, "document.querySelector('details').checkVisibility()").await);
    keep_picture(&page, "report-print").await;

    // A report and the pages format a value in the same way.
    let cells: Value = script(&page, "[...document.querySelectorAll('[data-form]')].map((cell) => [cell.dataset.form, JSON.parse(cell.dataset.value), cell.textContent])").await;
    assert!(cells.as_array().unwrap().len() >= 25, "{cells}");
    let dashboard = TestDashboard::serve(tempfile::tempdir().unwrap(), None).await;
    let pages = chrome.open(&dashboard.url("/")).await;
    let differ = format!(
        "import('/assets/format.js').then((f) => {cells}.filter(([form, value, text]) => (form === 'seconds' ? f.duration(value === null ? null : value * 1e6) : f[form](value)) !== text))"
    );
    assert_eq!(script::<Value>(&pages, &differ).await, json!([]));
    chrome.close().await;
    dashboard.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_runs_stand_side_by_side() {
    let one = night_run();
    let folder = tempfile::tempdir().unwrap();
    let chrome = TestBrowser::start().await;
    // Another run with other tasks, without metrics: unknown values are dashes beside those of the
    // first run.
    let other = tempfile::tempdir().unwrap();
    let made: Vec<_> = (20..40).flat_map(|group| (0..2).map(move |sample| attempt(group, sample))).collect();
    commit(&other.path().join("data"), "s0", &made, &[]);
    let runs = [read_metrics(one.path(), "night"), read_metrics(other.path(), "day")];
    let file = write(&folder, "two.html", &report_html(&runs));
    check_against_script(&file, &[one.path(), other.path()]);

    let (page, _) = open(&chrome, &file).await;
    keep_picture(&page, "report-two").await;
    let header: Vec<String> = script(
        &page,
        "[...document.querySelectorAll('.figures-table thead th')].map((cell) => cell.textContent)",
    )
    .await;
    assert_eq!(header, ["metric", "night", "day"]);
    let row = |name: &str| {
        format!(
            "[...document.querySelectorAll('.figures-table tbody tr')].find((row) => row.cells[0].textContent === {name:?})?.innerText.split('\\t')"
        )
    };
    let measured: Vec<String> = script(&page, &row("Trajectories per GPU-hour")).await;
    assert!(measured[1] != "–" && measured[2] == "–", "{measured:?}");
    let scored: Vec<String> = script(&page, &row("Scored")).await;
    assert!(scored[1] != scored[2], "{scored:?}");
    // Both runs are in each plot, by name: per hour of wall clock, since one run has no device
    // time.
    let missing: Vec<String> = script(&page, "[...document.querySelectorAll('figure svg')].filter((plot) => !['night', 'day'].every((name) => [...plot.querySelectorAll('text')].some((text) => text.firstChild?.data === name))).map((plot) => plot.parentElement.id)").await;
    assert!(missing.is_empty(), "{missing:?}");
    assert!(
        script::<bool>(
            &page,
            "document.querySelector('#throughput h2').textContent === 'Trajectories per hour over time'"
        )
        .await
    );
    assert_eq!(script::<Vec<String>>(&page, "window.wrong").await, Vec::<String>::new());

    // A run beside itself: the names are distinct.
    let twice = report_html(&[runs[0].clone(), runs[0].clone()]);
    assert!(twice.contains(">night (1)<") && twice.contains(">night (2)<"));
    // Pictures fill their window, without scrolling or gap.
    for picture in report_pictures(&runs) {
        let file = write(&folder, "plot.html", &picture.html);
        let page = chrome.open(&format!("file://{}", file.display())).await;
        let tall: f64 = script(&page, "document.documentElement.getBoundingClientRect().height").await;
        assert!(
            (tall - f64::from(picture.height)).abs() < 8.0,
            "{}: {tall} for {}",
            picture.name,
            picture.height
        );
        page.close().await.unwrap();
    }
    chrome.close().await;
}

#[test]
fn an_empty_data_set_has_a_report() {
    let dir = tempfile::tempdir().unwrap();
    let figures = read_metrics(dir.path(), "nothing");
    let html = report_html(std::slice::from_ref(&figures));
    assert!(html.contains("No trajectory has a verdict.") && html.contains("Report of nothing"), "{html}");
    assert!(report_pictures(&[figures]).is_empty());
}
