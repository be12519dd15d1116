//! What a browser is shut off from, at each level of walls that this machine offers: the kernel's
//! view from outside, planted secrets, and probes from inside.
//!
//! A level depends on the user that a worker runs as and on what the machine grants it, so the
//! checks run in children of this test: as this user, as an ordinary one, and as one that may not
//! make user namespaces.

mod probes;

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use furrow_env::{EnvironmentFactory, is_root};
use furrow_rollout::{Size, WallsLevel};
use serde_json::{Value, json};

use crate::fixture::{BrowserFixture, fixture, fixture_with, state};
use crate::life::commands;
use crate::limits::first_process;

/// Arguments with which this program is the helper of a network namespace.
pub(crate) const HELPER: &[&str] =
    &["walls::helper_of_a_namespace", "--exact", "--include-ignored", "--nocapture"];

const SECRET: &str = "FURROW_TEST_SECRET_";
const SECRETS: usize = 20;

/// Whether browsers of a child have Chromium's sandbox.
const SANDBOX: &str = "FURROW_TEST_SANDBOX";

/// Precedes a child's report in its output.
const REPORT: &str = "report of the walls: ";

#[test]
#[ignore = "runs only as a child of the other tests"]
fn helper_of_a_namespace() {
    furrow_env::serve_namespace_helper();
}

/// What the descriptors of a process refer to: `socket:[1]`, `pipe:[2]`, paths.
fn descriptors(pid: u32) -> HashSet<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some(fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned()))
        .collect()
}

/// TCP ports with a listener in the network of a process, and the listeners' sockets.
fn listeners(pid: u32) -> Vec<(u16, String)> {
    let tables = ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("/proc/{pid}/net/{table}")));
    let rows = tables.into_iter().flatten().collect::<String>();
    let listens = rows.lines().filter_map(|row| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        let port = u16::from_str_radix(fields.get(1)?.rsplit(':').next()?, 16).ok()?;
        (*fields.get(3)? == "0A").then_some((port, format!("socket:[{}]", fields.get(9)?)))
    });
    listens.collect()
}

/// TCP ports on which a process listens.
fn listening_ports(pid: u32) -> Vec<u16> {
    let own = descriptors(pid);
    listeners(pid).into_iter().filter(|(_, socket)| own.contains(socket)).map(|(port, _)| port).collect()
}

/// The processes of a browser, by the process id of the first: they share its group.
fn processes_of(first: u32) -> Vec<u32> {
    let is_member = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // After the name in parentheses: state, parent, group.
        let fields = stat.rsplit(") ").next().unwrap_or_default();
        fields.split(' ').nth(2).is_some_and(|group| group == first.to_string())
    };
    commands().into_iter().map(|(pid, _)| pid).filter(is_member).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_process_of_a_browser_listens_and_only_the_first_has_the_devtools_pipe() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    assert!(listening_ports(std::process::id()).contains(&port), "a listening port is not seen");

    let fixture = fixture().await;
    let environment = fixture.page("<p>x").await;
    let first = first_process(&*environment);
    let pipes: HashSet<String> = [3, 4]
        .map(|end| fs::read_link(format!("/proc/{first}/fd/{end}")).unwrap().to_string_lossy().into_owned())
        .into();
    assert!(pipes.len() == 2 && pipes.iter().all(|pipe| pipe.starts_with("pipe:")), "{pipes:?}");
    let processes = processes_of(first);
    assert!(processes.len() >= 3, "browser, GPU process and renderer are at least three: {processes:?}");
    for pid in processes {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(listening_ports(pid).is_empty(), "{command}");
        assert!(pid == first || descriptors(pid).is_disjoint(&pipes), "{command}");
    }
    environment.close().await;
    fixture.close().await;
}

/// A page that reports whether it believes to have a network: a browser without any link says no.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_behind_walls_are_online() {
    let fixture = fixture().await;
    let mut environment = fixture.page("<script>state = {online: navigator.onLine}</script>").await;
    assert_eq!(state(&mut environment).await, json!({"online": true}));
    environment.close().await;
    fixture.close().await;
}

/// A browser whose helper is gone cannot get another filter: it is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_whose_helper_was_killed_is_replaced() {
    let fixture = fixture_with(|file| file.contexts_ready = 0, vec![]).await;
    if fixture.pool.health().walls.level == WallsLevel::Basic {
        return fixture.close().await;
    }
    let mut first = fixture.page("<script>state = {a: 1}</script>").await;
    let network = fs::read_link(format!("/proc/{}/ns/net", first_process(&*first))).unwrap();
    let is_helper = |pid: u32, command: &str| {
        command.contains(HELPER[0])
            && fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|other| other == network)
    };
    let helpers: Vec<u32> = commands()
        .into_iter()
        .filter(|(pid, command)| is_helper(*pid, command))
        .map(|(pid, _)| pid)
        .collect();
    assert_eq!(helpers.len(), 1, "{helpers:?}");
    assert!(Command::new("kill").args(["-9", &helpers[0].to_string()]).status().unwrap().success());
    // What runs goes on: its filter is the worker's.
    assert_eq!(state(&mut first).await, json!({"a": 1}));
    let task = crate::fixture::task("http://page.test/none");
    let refused = fixture.pool.open(&crate::fixture::assignment(task)).await;
    assert!(refused.is_err(), "a context without a filter was opened");
    let browser = first.browser().to_owned();
    first.close().await;
    let next = fixture.page("<p>x").await;
    assert_ne!(next.browser(), browser);
    next.close().await;
    fixture.close().await;
}

/// Who runs a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChildUser {
    /// The user of these tests.
    Same,
    /// A user without privileges of its own.
    Ordinary,
    /// An ordinary user that may make no namespaces.
    WithoutNamespaces,
}

/// Becomes a program (`$@`) whose user may make no further namespaces, nor anything with this one.
const NO_NAMESPACES: &str = "echo 0 > /proc/sys/user/max_user_namespaces && \
    exec setpriv --ambient-caps=-all --inh-caps=-all -- \"$@\"";

/// Runs a program as this user.
fn command_as(user: ChildUser) -> Command {
    let mut argv: Vec<&str> = Vec::new();
    if user != ChildUser::Same && is_root() {
        argv.extend(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    }
    if user == ChildUser::WithoutNamespaces {
        argv.extend(["unshare", "--user", "--map-current-user", "--keep-caps", "--"]);
        argv.extend(["/bin/sh", "-c", NO_NAMESPACES, "sh"]);
    }
    argv.push("env");
    let mut command = Command::new(argv[0]);
    command.args(&argv[1..]).current_dir("/");
    command
}

/// The level that this machine offers a worker of this user, found out with the system's own tools.
fn offered(user: ChildUser) -> WallsLevel {
    let works = |user, argv: &[&str]| {
        let output = command_as(user).args(argv).stdout(Stdio::null()).stderr(Stdio::null()).status();
        output.is_ok_and(|status| status.success())
    };
    let is_own_root = user == ChildUser::Same && is_root();
    match is_own_root {
        true if works(ChildUser::Ordinary, &["unshare", "--user", "true"])
            && works(user, &["unshare", "--net", "true"]) =>
        {
            WallsLevel::Full
        }
        false if works(user, &["unshare", "--user", "--net", "true"]) => WallsLevel::Namespaces,
        _ => WallsLevel::Basic,
    }
}

/// Runs [`behind_walls`] as this user with planted secrets, and returns its report.
fn report_of(user: ChildUser) -> Value {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // The folder of the build may be closed to others. Copied by another process: a program that
    // this one holds open, for however short a time, may not be started.
    let program = folder.path().join("tests");
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status().unwrap();
    assert!(copied.success());
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    // Profiles of earlier runs belong to other users.
    let scratch = folder.path().join("scratch");
    fs::create_dir(&scratch).unwrap();
    fs::set_permissions(&scratch, fs::Permissions::from_mode(0o1777)).unwrap();
    let mut command = command_as(user);
    command.arg(&program).args(["walls::behind_walls", "--exact", "--include-ignored", "--nocapture"]);
    command.env("TMPDIR", &scratch).env("RUST_BACKTRACE", "0");
    command.env(SANDBOX, if user == ChildUser::WithoutNamespaces { "off" } else { "on" });
    for secret in 0..SECRETS {
        command.env(format!("{SECRET}{secret}"), format!("planted-{:032x}", rand_like(secret)));
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let report = text.lines().find_map(|line| line.split_once(REPORT)).map(|(_, report)| report);
    let report = report.unwrap_or_else(|| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)));
    serde_json::from_str(report).unwrap()
}

/// Texts that occur nowhere by chance.
fn rand_like(seed: usize) -> u128 {
    let half = |salt: u64| (seed as u64 + salt).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
    (u128::from(half(u64::from(std::process::id()))) << 64) | u128::from(half(77))
}

/// Holds the bar of a level: no secret visible, no probe answered, and both would have been seen.
fn check(user: ChildUser) {
    let level = offered(user);
    let report = report_of(user);
    assert_eq!(report["level"], level.as_str(), "{user:?}: {report}");
    assert_eq!(report["secrets_visible"], json!([]), "{user:?}: {report}");
    assert_eq!(report["secrets_of_the_worker"], SECRETS, "the search finds nothing: {report}");
    assert!(report["processes"].as_u64().unwrap() >= 4 && report["files"].as_u64().unwrap() > 5, "{report}");
    assert_eq!(report["page"], "control", "{user:?}: {report}");
    let answered = report["answered"].as_array().unwrap();
    assert!(report["probes"].as_u64().unwrap() >= 40, "{report}");
    let outside = report["answered_outside"].as_array().unwrap();
    assert!(outside.len() >= 10, "the probes reach nothing that is there: {report}");
    match level {
        WallsLevel::Basic => assert!(!answered.is_empty(), "more walls than the level says: {report}"),
        WallsLevel::Namespaces | WallsLevel::Full => {
            assert_eq!(answered, &Vec::<Value>::new(), "{user:?}: {report}");
            assert_eq!(report["filter"], true, "the filter did not answer: {report}");
        }
    }
    let missing = report["missing"].as_array().unwrap();
    assert_eq!(missing.is_empty(), level == WallsLevel::Full, "{report}");
    let refused = report["refused"].as_str().unwrap_or_default();
    assert_eq!(refused.contains("env.walls = \"full\""), level != WallsLevel::Full, "{report}");
}

#[test]
fn walls_stand_around_the_browsers_of_this_user() {
    check(ChildUser::Same);
}

#[test]
fn walls_stand_around_the_browsers_of_an_ordinary_user() {
    check(ChildUser::Ordinary);
}

#[test]
fn without_namespaces_the_level_says_so_and_browsers_run() {
    check(ChildUser::WithoutNamespaces);
}

/// Prints what is visible and reachable from inside the walls that this process can build.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs only as a child of the other tests"]
async fn behind_walls() {
    let sandbox = std::env::var(SANDBOX).is_ok_and(|value| value == "on");
    let settings = |file: &mut furrow_env::EnvFile| (file.sandbox, file.contexts_ready) = (sandbox, 0);
    let fixture = fixture_with(settings, vec![]).await;
    let walls = fixture.pool.health().walls.clone();
    let mut environment = fixture.page("<script>state = {page: 'control'}</script>").await;
    // Another browser, whose filter is in another network.
    let other = fixture.page_with("<p>x", |task| task.viewport = Size::new(640, 480)).await;
    let page = state(&mut environment).await["page"].clone();
    let first = first_process(&*environment);
    let (visible, searched) = secrets_visible(first);
    let probes = probes::Probes::new(first, first_process(&*other));
    let request = format!("GET http://page.test/{} HTTP/1.1", only_page(&fixture));
    let inside = probes.run(&probes::inside(first, walls.level), &request);
    let outside = probes.run(&[], "");
    let report = json!({
        "level": walls.level.as_str(),
        "missing": walls.missing.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "secrets_visible": visible,
        "secrets_of_the_worker": found_in(&fs::read("/proc/self/environ").unwrap()).len(),
        "processes": searched.processes,
        "files": searched.files,
        "page": page,
        "probes": probes.len(),
        "answered": inside["answered"],
        "filter": inside["filter"],
        "answered_outside": outside["answered"],
        "refused": refused_by_full(sandbox).await,
    });
    println!("\n{REPORT}{report}");
    environment.close().await;
    other.close().await;
    fixture.close().await;
}

/// A file that the fixture serves.
fn only_page(fixture: &BrowserFixture) -> String {
    let entry = fs::read_dir(fixture.folder.path()).unwrap().flatten().next().unwrap();
    entry.file_name().to_string_lossy().into_owned()
}

/// The error of a worker whose job asks for everything.
async fn refused_by_full(sandbox: bool) -> Option<String> {
    let config = crate::fixture::config(|file| (file.walls, file.sandbox) = ("full".into(), sandbox));
    let sites = std::sync::Arc::new(furrow_env::SiteServer::open(&[], config.sites).unwrap());
    let started = furrow_env::ChromiumPool::start(config.browser, sites, config.egress).await;
    started.err().map(|error| error.to_string())
}

/// How much was searched for secrets.
#[derive(Debug, Default)]
struct SearchCounts {
    processes: usize,
    files: usize,
}

/// The planted secrets that the processes of a browser and their files have, with where.
fn secrets_visible(first: u32) -> (Vec<String>, SearchCounts) {
    let mut searched = SearchCounts::default();
    let mut visible = Vec::new();
    let network = fs::read_link(format!("/proc/{first}/ns/net")).unwrap();
    // The helper is in no group of the browser.
    let is_near = |pid: u32| {
        let is_inside = fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|other| other == network);
        is_inside && fs::read_link("/proc/self/ns/net").is_ok_and(|own| own != network)
    };
    let beside = commands().into_iter().map(|(pid, _)| pid).filter(|pid| is_near(*pid));
    let all: HashSet<u32> = processes_of(first).into_iter().chain(beside).collect();
    for pid in all {
        for file in ["environ", "cmdline"] {
            // Sandboxed processes are closed to others of the same user, too.
            let Ok(bytes) = fs::read(format!("/proc/{pid}/{file}")) else { continue };
            searched.processes += usize::from(file == "cmdline");
            visible.extend(found_in(&bytes).into_iter().map(|secret| format!("{secret} in {file} of {pid}")));
        }
    }
    let mut folders = vec![std::env::temp_dir()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() => {
                    let Ok(bytes) = fs::read(entry.path()) else { continue };
                    searched.files += 1;
                    let found = found_in(&bytes).into_iter();
                    visible.extend(found.map(|secret| format!("{secret} in {}", entry.path().display())));
                }
                _ => {}
            }
        }
    }
    (visible, searched)
}

/// The names of the planted secrets whose values are among these bytes.
fn found_in(bytes: &[u8]) -> Vec<String> {
    let planted = std::env::vars().filter(|(name, _)| name.starts_with(SECRET));
    planted
        .filter(|(_, value)| bytes.windows(value.len()).any(|part| part == value.as_bytes()))
        .map(|(name, _)| name)
        .collect()
}
