//! A page that loads resources in every way is recorded, then replayed where only the archive
//! answers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use furrow_env::{
    ArchiveLimits, ArchiveMode, ChromiumPool, Environment, EnvironmentFactory, SiteServer, StaticSite,
};
use furrow_rollout::*;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::fixture::*;

const LIMITS: ArchiveLimits =
    ArchiveLimits { response_bytes_max: 100_000, trajectory_bytes_max: 1 << 20, bytes_max: None };

/// Files that the page and its workers request: name and content.
const FILES: [(&str, &str); 8] = [
    ("style.css", "body { background: rgb(0, 99, 66) }"),
    ("script.js", "window.state.script = 'ran';"),
    ("frame.html", "<script>parent.state.frame = 'shown'</script>"),
    ("data.json", r#"{"from":"the site"}"#),
    ("folder/index.html", "inside"),
    (
        "shared.js",
        "onconnect = async (e) => e.ports[0].postMessage(await (await fetch('/shared.json')).text());",
    ),
    ("shared.json", "told by a shared worker"),
    ("popup.html", "<title>popup</title><body style='background: orange'>a popup"),
];

const PAGE: &str = r#"<!doctype html><meta charset=utf-8><title>all</title><link rel=stylesheet href=/style.css>
<body style="margin:0"><button style="width:200px;height:40px" onclick="window.open('/popup.html?x=1')">open</button>
<button style="width:200px;height:40px" onclick="fetch('/never.json').catch(() => { state.never = 'failed' })">never</button>
<script>window.state = {};</script><script src=/script.js></script><iframe src=/frame.html></iframe>
<script>
(async () => {
  const text = async (...asked) => (await fetch(...asked)).text();
  state.clock = await text('/data.json?q=1&_=' + Math.random() + '&at=' + Date.now());
  state.refused = (await fetch('/data.json', { method: 'POST', body: 'draw ' + Math.random() })).status;
  state.missing = (await fetch('/none')).status;
  state.moved = (await fetch('/folder')).url;
  const worker = new Worker(URL.createObjectURL(new Blob(["fetch('http://page.test/data.json?w').then((r) => postMessage(r.status))"])));
  state.worker = await new Promise((done) => { worker.onmessage = (e) => done(e.data) });
  const shared = new SharedWorker('/shared.js');
  state.shared = await new Promise((done) => { shared.port.onmessage = (e) => done(e.data); shared.port.start() });
  const socket = new WebSocket('ws://page.test/socket');
  state.socket = await new Promise((done) => { socket.onclose = () => done('closed') });
  state.colour = getComputedStyle(document.body).backgroundColor;
  state.whole = true;
})();
</script>"#;

async fn pool(sites: &[StaticSite], archives: ArchiveMode) -> ChromiumPool {
    let config = config(|_| {});
    let sites = Arc::new(SiteServer::open(sites, config.sites).unwrap());
    let pool = ChromiumPool::start_archived(config.browser, sites, config.egress, archives).await;
    pool.unwrap_or_else(|error| panic!("{error}"))
}

/// The page's state once everything has loaded.
async fn whole(environment: &mut Box<dyn Environment>) -> Value {
    let began = Instant::now();
    loop {
        let state = state(environment).await;
        if state["whole"] == true {
            return state;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{state:#} {:?}", environment.unrecorded());
        sleep(Duration::from_millis(50)).await;
    }
}

/// Opens the page and its popup; returns the page's state and the popup's appearance.
async fn visit(environment: &mut Box<dyn Environment>) -> (Value, Observation) {
    environment.begin().await.unwrap();
    let known = whole(environment).await;
    act(environment, click(100.0, 20.0)).await;
    let popup = environment.observe().await.unwrap();
    (known, popup)
}

fn index(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("r-g000000-s0-a0.jsonl")).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_a_page_loads_is_recorded_and_replayed_from_the_archive() {
    let home = tempfile::tempdir().unwrap();
    let www = home.path().join("www");
    let archive = home.path().join("archive");
    std::fs::create_dir_all(www.join("folder")).unwrap();
    std::fs::write(www.join("index.html"), PAGE).unwrap();
    FILES.iter().for_each(|(name, content)| std::fs::write(www.join(name), content).unwrap());
    let site = StaticSite { host: "page.test".into(), root: furrow_env::FileRoot::Folder(www.clone()) };
    let task = task("http://page.test/?access_token=hunter2");

    let recording = pool(&[site], ArchiveMode::Record { folder: archive.clone(), limits: LIMITS }).await;
    let mut environment = recording.open(&assignment(task.clone())).await.unwrap();
    let (known, popup) = visit(&mut environment).await;
    assert_eq!((popup.title.as_str(), popup.tabs.len()), ("popup", 2), "{popup:?}");
    assert_eq!(environment.unrecorded(), Vec::<String>::new());
    environment.close().await;
    recording.close().await;
    let index = index(&archive);
    for (name, _) in FILES {
        let url = format!("http://page.test/{}", name.trim_end_matches("index.html"));
        assert!(index.contains(&url), "{url} is not in\n{index}");
    }
    assert!(
        index.contains(r#""url":"http://page.test/popup.html?x=1","resource":"Document","status":200"#),
        "{index}"
    );
    assert!(!index.contains("hunter2"), "{index}");
    assert_eq!(known["refused"], 405);

    // Nothing is served any more, and every address contains another timestamp and another random
    // number.
    std::fs::remove_dir_all(&www).unwrap();
    let acting = pool(&[], ArchiveMode::Replay { folder: archive.clone() }).await;
    let mut environment = acting.open(&assignment(task.clone())).await.unwrap();
    let (replayed, popup_replayed) = visit(&mut environment).await;
    assert_eq!(replayed, known);
    assert_eq!(popup_replayed, popup);
    assert_eq!(environment.unrecorded(), Vec::<String>::new());
    // A request that was never recorded fails now, and is reported.
    act(&mut environment, Action::SelectTab { index: 0 }).await;
    act(&mut environment, click(300.0, 20.0)).await;
    assert_eq!(state(&mut environment).await["never"], "failed");
    assert_eq!(environment.unrecorded(), ["GET http://page.test/never.json"]);
    let gone = act(&mut environment, Action::Goto { url: "http://page.test/elsewhere".into() }).await;
    assert_eq!(
        (gone.name, gone.detail.as_str()),
        (OutcomeName::NavigationFailed, "net::ERR_BLOCKED_BY_CLIENT")
    );
    assert_eq!(environment.unrecorded(), ["GET http://page.test/elsewhere"]);
    environment.close().await;

    // The same browser runs the next trajectory, whose archive is missing.
    let mut other = assignment(task);
    other.ancestry.trajectory_id = Id::new("r-g000009-s0-a0").unwrap();
    let error = acting.open(&other).await.err().unwrap();
    assert!(error.to_string().contains("r-g000009-s0-a0.jsonl"), "{error}");
    acting.close().await;
}
