//! Browsers die, pools continue, and no process or profile is left behind.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use furrow_env::{EnvironmentError, EnvironmentFactory};

use crate::fixture::{act, assignment, click, config, fixture, fixture_with, task};

/// First processes of the browsers that this test process started.
fn browsers() -> Vec<u32> {
    let mine = format!("furrow-env-{}-", std::process::id());
    commands()
        .into_iter()
        .filter(|(_, command)| command.contains(&mine) && !command.contains("--type="))
        .map(|(pid, _)| pid)
        .collect()
}

pub(crate) fn commands() -> Vec<(u32, String)> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, fs::read_to_string(entry.path().join("cmdline")).ok()?.replace('\0', " ")))
        })
        .collect()
}

/// The processes that descend from this one: a machine may run other browsers.
fn own_processes() -> Vec<(u32, String)> {
    let parents: HashMap<u32, u32> =
        commands().iter().filter_map(|(pid, _)| Some((*pid, parent(*pid)?))).collect();
    let is_own = |pid: u32| {
        std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).any(|pid| pid == std::process::id())
    };
    commands().into_iter().filter(|(pid, _)| is_own(*pid)).collect()
}

fn parent(pid: u32) -> Option<u32> {
    status_field(pid, "PPid:")?.parse().ok()
}

/// The first value of a field of a process's status, if the process is still there.
fn status_field(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    value.split_whitespace().next().map(str::to_owned)
}

async fn wait_for(what: &str, reached: impl Fn() -> bool) {
    let began = Instant::now();
    while !reached() {
        assert!(began.elapsed() < Duration::from_secs(60), "not {what} in 60 s");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_browser_is_noticed_at_once_and_replaced() {
    let fixture = fixture().await;
    let before = browsers();
    let mut environment = fixture.page("<p>soon dead").await;
    // Tests of this binary run concurrently: only the new browser belongs to this test.
    let profile = environment.browser().to_owned();
    let mine: Vec<u32> = browsers().into_iter().filter(|pid| !before.contains(pid)).collect();
    assert!(!mine.is_empty(), "{profile} is among {before:?}");
    for pid in mine {
        let index = profile.rsplit('-').next().unwrap();
        let is_it = commands().iter().any(|(other, command)| {
            *other == pid && command.contains(&format!("furrow-env-{}-{index}-", std::process::id()))
        });
        if is_it {
            Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
        }
    }
    let began = Instant::now();
    let error = loop {
        match environment.observe().await {
            Err(error) => break error,
            Ok(_) => assert!(began.elapsed() < Duration::from_secs(5), "still observing a dead browser"),
        }
    };
    assert_eq!(error, EnvironmentError::BrowserDead);
    assert!(began.elapsed() < Duration::from_secs(5));
    environment.close().await;
    let mut next = fixture.page("<p>alive").await;
    act(&mut next, click(5.0, 5.0)).await;
    next.close().await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renderers_are_sandboxed_and_run_as_an_ordinary_user() {
    let fixture = fixture().await;
    let environment = fixture.page("<p>x").await;
    assert!(fixture.pool.health().sandbox, "the renderer has no seccomp filter: {:?}", fixture.pool.health());
    let renderers: Vec<u32> = own_processes()
        .into_iter()
        .filter(|(_, command)| command.contains("--type=renderer"))
        .map(|(pid, _)| pid)
        .collect();
    assert!(!renderers.is_empty());
    let mine = format!("furrow-env-{}-", std::process::id());
    for (pid, command) in commands().into_iter().filter(|(_, command)| command.contains(&mine)) {
        assert!(!command.contains("--no-sandbox"), "{pid}: {command}");
    }
    for pid in renderers {
        assert_ne!(status_field(pid, "Uid:").as_deref(), Some("0"), "a renderer runs as root");
    }
    environment.close().await;
    fixture.close().await;
}

/// What a browser has of its own; the rest of the worker's environment may hold keys.
const BROWSER_VARIABLES: &[&str] = &["PATH", "HOME", "TMPDIR", "LANG", "FONTCONFIG_FILE", "LD_LIBRARY_PATH"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_sees_no_variable_of_its_worker_and_can_gain_no_privilege() {
    let fixture = fixture().await;
    let environment = fixture.page("<p>x").await;
    let secrets: Vec<String> =
        std::env::vars().map(|(name, _)| name).filter(|name| !BROWSER_VARIABLES.contains(&&**name)).collect();
    assert!(
        secrets.iter().any(|name| name.starts_with("CARGO")),
        "this process has nothing to leak: {secrets:?}"
    );
    let mut looked_at = 0;
    for (pid, command) in own_processes().into_iter().filter(|(_, command)| command.contains("headless")) {
        let Ok(environ) = fs::read(format!("/proc/{pid}/environ")) else { continue };
        let names = environ
            .split(|byte| *byte == 0)
            .filter_map(|entry| Some(String::from_utf8_lossy(entry).split_once('=')?.0.to_owned()));
        for name in names {
            // The shell that becomes the browser sets PWD.
            assert!(name == "PWD" || !secrets.contains(&name), "{name} of the worker is in {command}");
        }
        assert_eq!(status_field(pid, "NoNewPrivs:").as_deref(), Some("1"), "{command}");
        looked_at += 1;
    }
    assert!(
        looked_at >= 3,
        "browser, GPU process and renderer are at least three, and {looked_at} were seen"
    );
    for pid in browsers() {
        let set = status_field(pid, "CapBnd:");
        assert!(!furrow_env::is_root() || set.as_deref() == Some("0000000000000000"), "{set:?}");
    }
    let profiles = fs::read_dir(std::env::temp_dir()).unwrap().flatten().filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with(&format!("furrow-env-{}-", std::process::id())) && !name.ends_with("files")
    });
    let modes: Vec<String> = profiles
        .filter_map(|entry| Some(format!("{:o}", entry.metadata().ok()?.permissions().mode() & 0o777)))
        .collect();
    assert!(!modes.is_empty() && modes.iter().all(|mode| mode == "700"), "{modes:?}");
    environment.close().await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contexts_share_nothing() {
    let fixture = fixture().await;
    let body = "<script>state = {seen: localStorage.getItem('mark'), cookie: document.cookie}; localStorage.setItem('mark', 'x'); document.cookie = 'a=b'</script>";
    let mut first = fixture.page(body).await;
    let mut second = fixture.page(body).await;
    for environment in [&mut first, &mut second] {
        let probed: serde_json::Value =
            serde_json::from_str(&environment.probe().await.unwrap().unwrap()).unwrap();
        assert_eq!(probed, serde_json::json!({"seen": null, "cookie": ""}));
    }
    first.close().await;
    second.close().await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contexts_are_ready_ahead_of_need_and_each_serves_once() {
    let fixture = fixture_with(|file| file.contexts_ready = 2, vec![]).await;
    let body = "<script>state = {seen: localStorage.getItem('mark'), cookie: document.cookie}; localStorage.setItem('mark', 'x'); document.cookie = 'a=b'</script>";
    assert_eq!(fixture.pool.ready_contexts(), 0, "no context was requested yet");
    for turn in 0..3 {
        let mut environment = fixture.page(body).await;
        wait_for("ready", || fixture.pool.ready_contexts() == 2).await;
        let probed: serde_json::Value =
            serde_json::from_str(&environment.probe().await.unwrap().unwrap()).unwrap();
        assert_eq!(probed, serde_json::json!({"seen": null, "cookie": ""}), "turn {turn}");
        // The next one is assigned while this one is still in use.
        let beside = fixture.page(body).await;
        assert_eq!(beside.browser(), environment.browser());
        environment.close().await;
        beside.close().await;
    }
    // Pages of another size: contexts of the old size are closed.
    let other = fixture.page_with(body, |task| task.viewport = furrow_rollout::Size::new(640, 480)).await;
    wait_for("ready again", || fixture.pool.ready_contexts() == 2).await;
    other.close().await;
    fixture.close().await;
    let none = fixture_with(|file| file.contexts_ready = 0, vec![]).await;
    none.page("<p>x").await.close().await;
    assert_eq!(none.pool.ready_contexts(), 0);
    none.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_that_served_its_time_is_replaced_when_its_last_page_closed() {
    let fixture = fixture_with(|file| file.trajectories_per_browser = 3, vec![]).await;
    let mut environments = Vec::new();
    for _ in 0..4 {
        environments.push(fixture.page("<button onclick='state = {}'>b</button>").await);
    }
    let names: Vec<String> =
        environments.iter().map(|environment| environment.browser().to_owned()).collect();
    assert!(names[0] == names[1] && names[1] == names[2] && names[2] != names[3], "{names:?}");
    let profile =
        |name: &str| format!("furrow-env-{}-{}-", std::process::id(), name.rsplit('-').next().unwrap());
    let runs = |name: &str| commands().iter().any(|(_, command)| command.contains(&profile(name)));
    let mut young = environments.pop().unwrap();
    let mut last = environments.pop().unwrap();
    for environment in environments {
        environment.close().await;
    }
    // The browser is old, but its trajectories finish.
    act(&mut last, click(5.0, 5.0)).await;
    assert!(runs(&names[0]));
    last.close().await;
    // Its prewarmed contexts are closed when the next trajectory needs one.
    let next = fixture.page("<p>x").await;
    assert_eq!(next.browser(), names[3]);
    wait_for("gone", || !runs(&names[0])).await;
    act(&mut young, click(5.0, 5.0)).await;
    young.close().await;
    next.close().await;
    fixture.close().await;
}

#[tokio::test]
async fn an_unusable_browser_is_reported_with_its_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("chromium");
    fs::write(&script, "#!/bin/sh\nexec something \"$@\"\n").unwrap();
    let cases = [
        (folder.path().join("absent"), "absent or not readable"),
        (script, "a wrapper script, whose browser would outlive it"),
        ("/etc/passwd".into(), "not an executable file"),
        ("/bin/true".into(), "did not start"),
    ];
    for (path, want) in cases {
        let config = config(|file| file.browser = Some(path.clone()));
        let sites = std::sync::Arc::new(furrow_env::SiteServer::open(&[], config.sites).unwrap());
        let error = furrow_env::ChromiumPool::start(config.browser, sites, config.egress)
            .await
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(want), "{}: {error}", path.display());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_after_closing() {
    let fixture = fixture_with(|file| file.contexts_per_browser = 1, vec![]).await;
    let mut environments = Vec::new();
    for _ in 0..2 {
        environments.push(fixture.page("<p>x").await);
    }
    let indexes: Vec<String> = environments
        .iter()
        .map(|environment| environment.browser().rsplit('-').next().unwrap().to_owned())
        .collect();
    assert_ne!(indexes[0], indexes[1], "the job asks for one context per process");
    for environment in environments {
        environment.close().await;
    }
    let refused = fixture.pool.open(&assignment(task("ftp://page.test/"))).await;
    assert!(
        matches!(refused, Err(EnvironmentError::Failed(_))),
        "a task with an invalid address opens no environment"
    );
    fixture.close().await;
    for index in indexes {
        let name = format!("furrow-env-{}-{index}-", std::process::id());
        let gone = || {
            let running = commands().iter().any(|(_, command)| command.contains(&name));
            let mut left = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
            !running && !left.any(|entry| entry.file_name().to_string_lossy().starts_with(&name))
        };
        wait_for("gone", gone).await;
    }
}
