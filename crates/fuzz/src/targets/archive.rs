//! Traffic archives: the responses that a trajectory is replayed with.

use std::path::Path;

use furrow_env::{
    ArchiveLimits, ArchiveMetadata, ArchiveRecorder, ArchiveRequest, HttpExchange, TrajectoryArchive,
};
use furrow_rollout::{Id, Trajectory};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{FuzzTarget, Seed, accept, files, models};

pub(super) const ARCHIVE: FuzzTarget = FuzzTarget {
    name: "archive",
    run,
    repair: None,
    memory_max: |_| 16 << 20,
    bytes_max: 8 << 10,
    catches_panics: false,
    seeds,
};

const INDEX: &str = "index";
const BODY: &str = "body";
const LIMITS: ArchiveLimits =
    ArchiveLimits { response_bytes_max: 1 << 20, trajectory_bytes_max: 1 << 20, bytes_max: None };

fn id() -> Id<Trajectory> {
    Id::new("t").expect("the name of a trajectory")
}

/// A file `index`, and files `body` under the names of their hashes.
///
/// Each exchange of an index that is accepted answers its own request; recorded again, it has no
/// other secret to replace.
fn run(input: &[u8]) {
    let folder = files::scratch();
    let mut index: &[u8] = b"";
    for (name, bytes) in files::split(input) {
        match name {
            INDEX => index = bytes,
            BODY => files::put(folder, &blob(bytes), bytes),
            _ => {}
        }
    }
    files::put(folder, "t.jsonl", index);
    let Ok(mut archive) = TrajectoryArchive::open(folder, &id()) else { return };
    accept();
    let lines = index.split(|byte| *byte == b'\n').skip(1);
    let exchanges: Vec<HttpExchange> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
    for exchange in &exchanges {
        let body_sha256 = exchange.request_sha256.as_ref().map(|text| Sha256::digest(text).into());
        let request =
            ArchiveRequest { method: exchange.method.clone(), url: exchange.url.clone(), body_sha256 };
        drop(archive.find_response(&request));
    }
    let once = recorded(folder, &exchanges);
    let again: Vec<HttpExchange> =
        once.lines().skip(1).filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!(again.len(), exchanges.len(), "each exchange is recorded");
    assert_eq!(recorded(folder, &again), once, "nothing is left to replace");
}

/// The index of these exchanges.
fn recorded(folder: &Path, exchanges: &[HttpExchange]) -> String {
    let folder = folder.join("again");
    let trajectory = id();
    let about =
        ArchiveMetadata { trajectory: &trajectory, task_id: "a", start_url: "http://a.test/", browser: "b" };
    let mut recorder = ArchiveRecorder::create(&folder, about, LIMITS).expect("a folder that can be written");
    for exchange in exchanges {
        recorder.add(exchange.clone(), None).expect("a folder that can be written");
    }
    recorder.finish().expect("a folder that can be written");
    let text = std::fs::read_to_string(folder.join("t.jsonl")).expect("the index was written");
    TrajectoryArchive::open(&folder, &trajectory).expect("what was recorded is read");
    std::fs::remove_dir_all(&folder).expect("its own folder can be removed");
    text
}

fn blob(body: &[u8]) -> String {
    let name = models::hex(&Sha256::digest(body));
    format!("blobs/{}/{name}", &name[..2])
}

fn seeds() -> Vec<Seed> {
    let body = b"<p>hello";
    let head = json!({
        "furrow_archive": 1, "trajectory_id": "t", "task_id": "a", "start_url": "http://a.test/",
        "browser": "b",
    });
    let page = json!({
        "method": "GET", "url": "https://me:pw@a.test/x?access_token=1&q=a&_=17#f", "resource": "Document",
        "status": 200, "headers": [["Content-Type", "text/html"], ["Set-Cookie", "sid=1; Path=/\nb=2"],
        ["Location", "/next?session=3&page=2"]],
        "body_sha256": models::hex(&Sha256::digest(body)), "body_bytes": body.len(),
    });
    let post = json!({
        "method": "POST", "url": "http://a.test/log?t=1700000000", "resource": "Fetch", "status": 0,
        "request_sha256": "ab".repeat(32), "headers": [], "missing": "TimedOut",
    });
    let index = format!("{head}\n{page}\n{post}\n");
    vec![Seed::new("index", files::join([(BODY, &body[..]), (INDEX, index.as_bytes())]))]
}
