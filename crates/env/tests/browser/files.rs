//! Files that pages take and give: uploads by name, downloads as evidence, their limits, and what
//! is left of them.

use std::path::PathBuf;

use bytes::Bytes;
use furrow_env::{Environment, EnvironmentFactory};
use furrow_rollout::*;
use serde_json::json;

use crate::fixture::{BrowserFixture, act, assignment, click, fixture, state, task};

const FIELD: &str = "<input type=file id=f MULTIPLE style='position:absolute;left:0;top:0;width:300px;height:60px'>\
    <script>state = { files: [] }; f.onchange = async () => { for (const file of f.files) \
    state.files.push(file.name + '=' + await file.text()) }</script>";

fn file(name: &str, content: &'static str) -> UploadFile {
    UploadFile { name: name.into(), content: Bytes::from_static(content.as_bytes()) }
}

fn uploads(files: &[(&str, &'static str)]) -> TaskFiles {
    let uploads = files.iter().map(|(name, content)| file(name, content)).collect();
    TaskFiles { uploads, download_bytes_max: None }
}

fn downloads(bytes_max: u64) -> TaskFiles {
    TaskFiles { uploads: Vec::new(), download_bytes_max: Some(bytes_max) }
}

async fn page(
    fixture: &BrowserFixture,
    body: &str,
    files: TaskFiles,
    change: impl FnOnce(&mut Assignment),
) -> Box<dyn Environment> {
    let name =
        format!("{:x}.html", body.bytes().fold(9u64, |sum, byte| sum.wrapping_mul(31) ^ u64::from(byte)));
    let html = format!("<!doctype html><meta charset=utf-8><body style='margin:0'>{body}");
    std::fs::write(fixture.folder.path().join(&name), html).unwrap();
    let mut assignment = assignment(task(&format!("http://page.test/{name}")));
    assignment.files = files;
    assignment.session.grammar.extra = vec![ExtraAction::Upload];
    change(&mut assignment);
    let mut environment = fixture.pool.open(&assignment).await.unwrap();
    environment.begin().await.unwrap();
    environment
}

fn upload(names: &[&str]) -> Action {
    Action::Upload { names: names.iter().map(|name| (*name).to_owned()).collect() }
}

/// The tests count the session folders of their process.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The session folders of this process.
fn folders() -> Vec<PathBuf> {
    let prefix = format!("furrow-env-{}-", std::process::id());
    let entries = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    let of_browsers = entries.filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with(&prefix) && name.ends_with("-files")
    });
    // A browser that ends meanwhile takes its folder along.
    let sessions = of_browsers.filter_map(|folder| std::fs::read_dir(folder.path()).ok()).flatten();
    sessions.flatten().map(|session| session.path()).collect()
}

/// The page's state once it has read so many files, which takes a busy machine more than a step.
async fn files_read(environment: &mut Box<dyn Environment>, count: usize) -> serde_json::Value {
    for _ in 0..20 {
        act(environment, Action::Wait { seconds: 0 }).await;
        if state(environment).await["files"].as_array().is_some_and(|files| files.len() >= count) {
            break;
        }
    }
    state(environment).await
}

#[track_caller]
fn check(outcome: &Outcome, name: OutcomeName, detail: &str) {
    assert!(outcome.name == name && outcome.detail.contains(detail), "{outcome:?}; want {name:?}: {detail}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_uploads_files_of_the_task_by_name() {
    let _alone = ALONE.lock().await;
    let fixture = fixture().await;
    let offered = uploads(&[("cv.pdf", "resume"), ("Foto 1.png", "pixels")]);
    for clock in [PageClock::Real, PageClock::Virtual { step_millis: 1000 }] {
        let body = FIELD.replace("MULTIPLE", "multiple");
        let mut several = page(&fixture, &body, offered.clone(), |of| of.task.clock = clock).await;
        let early = act(&mut several, upload(&["cv.pdf"])).await;
        check(&early, OutcomeName::InvalidAction, "no file chooser is open");
        let opened = act(&mut several, click(50.0, 30.0)).await;
        check(&opened, OutcomeName::FileChooser, r#"upload one of "cv.pdf", "Foto 1.png" or several"#);
        for wrong in ["../cv.pdf", "/etc/passwd", "", "cv.pdf\0", &"n".repeat(300)] {
            let refused = act(&mut several, upload(&["cv.pdf", wrong])).await;
            check(&refused, OutcomeName::InvalidAction, "there is no file");
        }
        let done = act(&mut several, upload(&["cv.pdf", "Foto 1.png"])).await;
        check(&done, OutcomeName::Ok, "");
        let read = files_read(&mut several, 2).await;
        assert_eq!(read, json!({"files": ["cv.pdf=resume", "Foto 1.png=pixels"]}));
        // The chooser is closed; a click and the choice may be one step.
        let again = act(&mut several, upload(&["cv.pdf"])).await;
        check(&again, OutcomeName::InvalidAction, "no file chooser is open");
        let step = Action::of_several(vec![click(50.0, 30.0), upload(&["cv.pdf"])]).unwrap();
        let done = act(&mut several, step).await;
        assert_ne!(done.name, OutcomeName::InvalidAction, "{done:?}");
        assert_eq!(files_read(&mut several, 3).await["files"][2], "cv.pdf=resume", "{clock:?}");
        several.close().await;
    }

    let one = FIELD.replace("MULTIPLE", "");
    let mut single = page(&fixture, &one, offered, |_| {}).await;
    act(&mut single, click(50.0, 30.0)).await;
    let refused = act(&mut single, upload(&["cv.pdf", "Foto 1.png"])).await;
    check(&refused, OutcomeName::InvalidAction, "the page takes one file, and 2 are named");
    check(&act(&mut single, upload(&["Foto 1.png"])).await, OutcomeName::Ok, "");
    assert_eq!(files_read(&mut single, 1).await, json!({"files": ["Foto 1.png=pixels"]}));
    // A page that was left no longer waits.
    act(&mut single, click(50.0, 30.0)).await;
    act(&mut single, Action::Refresh).await;
    check(&act(&mut single, upload(&["cv.pdf"])).await, OutcomeName::InvalidAction, "");
    assert_eq!(state(&mut single).await, json!({"files": []}));
    single.close().await;
    fixture.close().await;
    assert_eq!(folders(), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chooser_without_a_file_or_a_name_for_it() {
    let _alone = ALONE.lock().await;
    let fixture = fixture().await;
    let body = FIELD.replace("MULTIPLE", "");
    // No permission.
    let mut none = page(&fixture, &body, TaskFiles::default(), |_| {}).await;
    let denied = act(&mut none, click(50.0, 30.0)).await;
    check(&denied, OutcomeName::UploadDenied, "this task offers none");
    check(&act(&mut none, upload(&["cv.pdf"])).await, OutcomeName::UploadDenied, "this task offers none");
    assert_eq!(state(&mut none).await, json!({"files": []}));
    none.close().await;

    // A grammar that cannot name a file: the only one is chosen, none of several is.
    let silent = |of: &mut Assignment| of.session.grammar.extra.clear();
    let mut only = page(&fixture, &body, uploads(&[("cv.pdf", "resume")]), silent).await;
    let chosen = act(&mut only, click(50.0, 30.0)).await;
    check(&chosen, OutcomeName::Ok, r#"the page asked for a file and got "cv.pdf""#);
    assert_eq!(files_read(&mut only, 1).await, json!({"files": ["cv.pdf=resume"]}));
    only.close().await;
    let mut two = page(&fixture, &body, uploads(&[("a", "1"), ("b", "2")]), silent).await;
    let denied = act(&mut two, click(50.0, 30.0)).await;
    check(&denied, OutcomeName::UploadDenied, "cannot name one of 2");
    two.close().await;
    fixture.close().await;
}

const ANCHOR: &str = "style='position:absolute;left:0;width:300px;height:40px;top:";

async fn report(environment: &mut Box<dyn Environment>) -> Vec<DownloadedFile> {
    environment.downloads().await.unwrap().files
}

/// Clicks, and waits until so many files are there. Returns what the outcomes said: a busy machine
/// begins a download after the page has settled, and the next step reports it.
async fn download(environment: &mut Box<dyn Environment>, y: f32, count: usize) -> String {
    let mut details = act(environment, click(50.0, y)).await.detail;
    for _ in 0..20 {
        if report(environment).await.len() >= count {
            break;
        }
        details += &act(environment, Action::Wait { seconds: 0 }).await.detail;
    }
    details + &act(environment, Action::Wait { seconds: 0 }).await.detail
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn downloads_of_every_kind_are_evidence() {
    let _alone = ALONE.lock().await;
    let fixture = fixture().await;
    std::fs::write(fixture.folder.path().join("report.csv"), "day,sum\n1,42\n").unwrap();
    let long = "n".repeat(300);
    let body = format!(
        "<a {ANCHOR}0' href=report.csv download>file</a>\
         <a {ANCHOR}50px' download='../../a\\b.txt' id=blob>blob</a>\
         <a {ANCHOR}100px' href='data:text/plain,hello' download='{long}.txt'>data</a>\
         <a {ANCHOR}150px' id=popup>popup</a>\
         <script>blob.href = URL.createObjectURL(new Blob(['bl', 'ob']));\
         popup.onclick = () => {{ const w = open('about:blank'); const a = w.document.createElement('a'); \
         a.href = '/report.csv'; a.download = 'from-popup.csv'; w.document.body.append(a); a.click() }}</script>"
    );
    let mut allowed = page(&fixture, &body, downloads(1 << 20), |_| {}).await;
    let mut details = Vec::new();
    for (y, count) in [(20.0, 1), (70.0, 2), (120.0, 3), (170.0, 4)] {
        details.push(download(&mut allowed, y, count).await);
    }
    assert!(details[0].contains(r#"downloaded "report.csv" of 13 bytes"#), "{details:?}");
    let files = report(&mut allowed).await;
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names.len(), 4, "{names:?}");
    assert_eq!((names[0], names[3]), ("report.csv", "from-popup.csv"), "{names:?}");
    for name in &names {
        assert!(name.chars().count() <= 200 && !name.contains(['/', '\\', '\0']), "{name:?}");
    }
    let texts: Vec<&str> = files.iter().filter_map(DownloadedFile::text).collect();
    assert_eq!(texts, ["day,sum\n1,42\n", "blob", "hello", "day,sum\n1,42\n"]);
    assert_eq!(files[0].sha256, files[3].sha256);
    assert_eq!(folders().len(), 1);
    allowed.close().await;
    assert_eq!(folders(), Vec::<PathBuf>::new());

    let mut denied = page(&fixture, &body, TaskFiles::default(), |_| {}).await;
    let outcome = act(&mut denied, click(50.0, 20.0)).await;
    check(&outcome, OutcomeName::DownloadDenied, r#"the page offered the file "report.csv""#);
    assert!(denied.downloads().await.is_none());
    denied.close().await;

    // An environment that is dropped without being closed leaves no folder either.
    let dropped = page(&fixture, &body, downloads(1), |_| {}).await;
    assert_eq!(folders().len(), 1);
    drop(dropped);
    assert_eq!(folders(), Vec::<PathBuf>::new());
    fixture.close().await;
}

/// Bytes on the disk that the sessions of this process take.
fn bytes_on_disk() -> u64 {
    let inside = folders().into_iter().flat_map(|folder| std::fs::read_dir(folder.join("downloads")));
    inside.flatten().flatten().filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_cannot_download_without_end() {
    let _alone = ALONE.lock().await;
    let fixture = fixture().await;
    // Two gigabytes from one blob, a part of it two thousand times.
    let huge = "<script>state = {}; onclick = () => { const part = new Uint8Array(1 << 20); \
        const blob = new Blob(Array(2048).fill(part)); const a = document.createElement('a'); \
        a.href = URL.createObjectURL(blob); a.download = 'huge.bin'; a.click() }</script>";
    // Ten thousand small ones.
    let many = "<script>state = {}; onclick = () => { for (let n = 0; n < 10000; n++) { const a = document.createElement('a'); \
        a.href = 'data:text/plain,' + n; a.download = n + '.txt'; a.click() } }</script>";
    for (body, limit) in [(huge, 4u64 << 20), (many, 1 << 20)] {
        let mut environment = page(&fixture, body, downloads(limit), |_| {}).await;
        // What the action itself becomes depends on how far the page got.
        if let Ok(outcome) = environment.act(&click(50.0, 20.0)).await {
            environment.settle(outcome).await.ok();
        }
        let mut most = 0;
        for _ in 0..30 {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            most = most.max(bytes_on_disk());
        }
        assert!(most < 512 << 20, "{most} bytes for a limit of {limit}");
        let files = report(&mut environment).await;
        assert!(files.len() <= 16, "{}", files.len());
        assert!(files.iter().map(|file| file.bytes).sum::<u64>() <= limit);
        environment.close().await;
        assert_eq!(folders(), Vec::<PathBuf>::new());
    }
    // The worker's browser still serves the next task.
    let mut next = page(&fixture, FIELD, TaskFiles::default(), |_| {}).await;
    assert_eq!(state(&mut next).await, json!({"files": []}));
    next.close().await;
    fixture.close().await;
}
