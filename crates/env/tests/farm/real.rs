//! The same worker with real browsers: how pages end trajectories, and what evidence remains.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use furrow_env::{ChromiumPool, EnvFile, FileRoot, SiteServer, StaticSite};
use furrow_rollout::*;

use crate::farm::*;
use crate::standin::*;

/// One page, and how the trajectory of a policy that clicks in its middle ends on it.
struct PageCase {
    name: &'static str,
    /// The effect of a click.
    script: &'static str,
    end: EndKind,
    steps: u32,
    last: OutcomeName,
    probe_json: Option<&'static str>,
}

const CASES: [PageCase; 6] = [
    PageCase {
        name: "the second click is the last",
        script: "if (++state.clicks == 2) state.done = true",
        end: EndKind::Done,
        steps: 2,
        last: OutcomeName::Ok,
        probe_json: Some(r#"{"clicks":2,"done":true}"#),
    },
    PageCase {
        name: "clicks go on for ever",
        script: "state.clicks++",
        end: EndKind::MaxSteps,
        steps: 3,
        last: OutcomeName::Ok,
        probe_json: Some(r#"{"clicks":3}"#),
    },
    PageCase {
        name: "another page knows no probe",
        script: "location = '/bare.html'",
        end: EndKind::MaxSteps,
        steps: 3,
        last: OutcomeName::Ok,
        probe_json: None,
    },
    PageCase {
        name: "the page computes without end",
        script: "state.clicks++; for (;;);",
        end: EndKind::ScriptLoop,
        steps: 1,
        last: OutcomeName::PageHang,
        probe_json: Some(r#"{"clicks":1}"#),
    },
    PageCase {
        name: "a dialog is in the way",
        script: "state.clicks++; alert('hello')",
        end: EndKind::MaxSteps,
        steps: 3,
        last: OutcomeName::DialogDismissed,
        probe_json: Some(r#"{"clicks":3}"#),
    },
    PageCase {
        name: "a way out that is shut",
        script: "location = 'http://other.test/'",
        end: EndKind::MaxSteps,
        steps: 3,
        last: OutcomeName::Ok,
        probe_json: None,
    },
];

fn page(script: &str) -> String {
    let button = "position:absolute;left:0;top:0;width:160px;height:160px";
    format!(
        "<!doctype html><title>t</title><script>state = {{clicks: 0}}</script><button style='{button}' onclick=\"{script}\">b</button>"
    )
}

async fn pool(folder: &Path) -> Arc<ChromiumPool> {
    pool_with(folder, EnvFile::default()).await
}

async fn pool_with(folder: &Path, file: EnvFile) -> Arc<ChromiumPool> {
    let browser = std::env::var_os("FURROW_BROWSER").map(PathBuf::from);
    let file = EnvFile { browser, input_millis: 3_000, screenshot_millis: 5_000, ..file };
    let config = file.check(Path::new("/")).unwrap();
    let site = StaticSite { host: "page.test".into(), root: FileRoot::Folder(folder.to_owned()) };
    let sites = Arc::new(SiteServer::open(&[site], config.sites).unwrap());
    let pool = ChromiumPool::start(config.browser, sites, config.egress).await;
    Arc::new(pool.unwrap_or_else(|error| panic!("{error}")))
}

fn on_page(index: u64, file: &str, policy: &LocalServer) -> Assignment {
    let mut assigned = assignment(index, policy.address);
    assigned.task.start_url = format!("http://page.test/{file}");
    assigned.task.max_steps = 3;
    assigned.task.hooks.start = Some("'click it, seed {seed}'".into());
    assigned.task.hooks.probe = Some("state".into());
    assigned
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_end_trajectories() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bare.html"), "<!doctype html><p>bare").unwrap();
    for (index, case) in CASES.iter().enumerate() {
        std::fs::write(folder.path().join(format!("{index}.html")), page(case.script)).unwrap();
    }
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    let server = policy.serve(0);
    let assigned =
        (0..CASES.len()).map(|index| on_page(index as u64, &format!("{index}.html"), &server)).collect();
    let farm = Farm::start(config(), pool(folder.path()).await, assigned);
    farm.finished(CASES.len()).await;
    farm.book.read(|book| {
        for (index, case) in CASES.iter().enumerate() {
            let trajectory = name(index as u64);
            let ending = book.ending(&trajectory).unwrap();
            let steps = book.recorded(&trajectory);
            let what = format!("{}: {:?} {}", case.name, ending.end, ending.reason);
            assert_eq!(
                (ending.end, ending.steps, steps.len() as u32),
                (case.end, case.steps, case.steps),
                "{what}"
            );
            assert_eq!(steps.last().unwrap().outcome.name, case.last, "{what}");
            assert_eq!(ending.goal, "click it, seed 7", "{what}");
            let evidence = ending.evidence.as_ref().expect(&what);
            assert_eq!(evidence.probe_json.as_deref(), case.probe_json, "{what}");
            assert!(evidence.screenshot.as_ref().unwrap().starts_with(b"\x89PNG"), "{what}");
            assert!(evidence.url.as_ref().unwrap().starts_with("http://"), "{what}");
            assert!(ending.environment.browser.contains("Chrom"), "{what}: {:?}", ending.environment);
            every_microsecond_has_a_cause(&steps, &ending);
        }
    });
    assert_eq!(farm.end().await.acknowledged, CASES.len() as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_page_that_is_not_there_is_the_farms_fault() {
    let folder = tempfile::tempdir().unwrap();
    let policy = StubPolicy::new(PolicyBehaviour::Click).serve(0);
    let mut nowhere = on_page(0, "x.html", &policy);
    nowhere.task.start_url = "http://nowhere.test/".into();
    let farm =
        Farm::start(config(), pool(folder.path()).await, vec![nowhere, on_page(1, "missing.html", &policy)]);
    farm.finished(2).await;
    farm.book.read(|book| {
        for index in 0..2 {
            let ending = book.ending(&name(index)).unwrap();
            assert_eq!((ending.end, ending.steps), (EndKind::EnvCrash, 0), "{index}: {}", ending.reason);
            let why =
                ["requests refused: 1 (1 to \"nowhere.test\" because no site answers", "HTTP status 404"];
            assert!(ending.reason.contains(why[index as usize]), "{index}: {}", ending.reason);
        }
    });
    assert_eq!(farm.end().await.acknowledged, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_takes_all_memory_is_a_failure_that_names_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let greedy = "const eat = []; for (;;) eat.push(new Uint8Array(8 << 20).fill(7))";
    std::fs::write(folder.path().join("greedy.html"), page(greedy)).unwrap();
    let file = EnvFile { browser_memory_bytes_max: 300 << 20, ..EnvFile::default() };
    let policy = StubPolicy::new(PolicyBehaviour::Click).serve(0);
    let assigned = vec![on_page(0, "greedy.html", &policy)];
    let farm = Farm::start(config(), pool_with(folder.path(), file).await, assigned);
    farm.finished(1).await;
    let ending = farm.book.read(|book| book.ending(&name(0)).unwrap());
    assert_eq!((ending.end, ending.evidence), (EndKind::PageCrash, None), "{}", ending.reason);
    assert!(ending.reason.contains("env.browser_memory_bytes_max is 314572800"), "{}", ending.reason);
    assert_eq!(farm.end().await.acknowledged, 1);
}
