//! Evidence states who caused the browser's error page, whichever way led to it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use furrow_env::{Environment, EnvironmentFactory, FileMaker, FileRoot, SharedMaker, StaticSite};
use furrow_rollout::{Action, EndKind, ErrorPage, FaultOwner, PageClock, ScrollDirection};

use crate::fixture::{BrowserFixture, act, assignment, at, click, fixture_with, task};

/// The same probe as the suites'.
const PROBE: &str = "window.furrow ? window.furrow.probe() : { done: false, away: location.protocol }";

const BODY: &str = "<script>window.furrow = { probe: () => ({ done: false, correct: true }) }</script>
<style>a, button { position: absolute; left: 10px; width: 200px; height: 20px }</style>
<a style='top:10px' href='https://page.test/x'>tls</a>
<a style='top:40px' href='http://u:p@page.test/'>user name</a>
<a style='top:70px' href='https://page.test/new' target=_blank>new tab</a>
<form action='https://page.test/form'><button style='top:100px'>send</button></form>
<form method=post action='/posted'><button style='top:130px'>post</button></form>
<a style='top:160px' href='/file.zip' download>file</a>
<a style='top:190px' href='http://page.test:25/'>port</a>
<a style='top:220px' href='foo:bar'>scheme</a>
<a style='top:250px' href='https://u:p@page.test/'>user name, tls</a>
<button style='top:280px' onclick=\"setTimeout(() => { location.href = 'https://page.test/late' }, 20)\">later</button>
<a style='top:310px' href='http://elsewhere.test/'>off the list</a>";

/// A click on a link of the page, by its index.
fn link(index: u16) -> Action {
    click(20.0, 20.0 + 30.0 * f32::from(index))
}

fn goto(url: &str) -> Action {
    Action::Goto { url: url.into() }
}

/// The expected final page.
#[derive(Debug, Clone)]
enum ExpectedPage {
    /// The page of the task.
    Task,
    /// A page that is not the task's.
    Other,
    /// The error page of an address, and who caused it.
    Error(&'static str, FaultOwner),
}

async fn check(name: &str, environment: &mut Box<dyn Environment>, want: &ExpectedPage) {
    let evidence = environment.evidence().await.unwrap_or_else(|| panic!("{name}: no evidence"));
    let json = evidence.probe_json.unwrap_or_else(|| panic!("{name}: no report"));
    let want = match want {
        ExpectedPage::Task => r#"{"done":false,"correct":true}"#.to_owned(),
        ExpectedPage::Other => r#"{"done":false,"away":"http:"}"#.to_owned(),
        ExpectedPage::Error(url, fault) => ErrorPage { fault: *fault, url: (*url).to_owned() }.report(),
    };
    assert_eq!(json, want, "{name}");
}

async fn page(fixture: &BrowserFixture, clock: PageClock) -> Box<dyn Environment> {
    let change = |task: &mut furrow_rollout::Task| {
        task.hooks.probe = Some(PROBE.into());
        task.clock = clock;
    };
    fixture.page_with(BODY, change).await
}

const TLS: &str = "https://page.test/";
/// An address of the task's site.
const OWN: &str = "http://page.test/file.txt";

/// A name, actions on the page of the task, and the page that they lead to.
type ErrorPageCase = (&'static str, Vec<Action>, ExpectedPage);

fn by_policy(url: &'static str) -> ExpectedPage {
    ExpectedPage::Error(url, FaultOwner::Policy)
}

fn addresses() -> Vec<ErrorPageCase> {
    let long = format!("http://page.test/?q={}", "x".repeat(100_000));
    vec![
        ("an address over tls", vec![goto(TLS)], by_policy(TLS)),
        ("tls of a page's path", vec![goto("https://page.test/a?b#c")], by_policy("https://page.test/a?b#c")),
        ("http to the port of tls", vec![goto("http://page.test:443/")], ExpectedPage::Other),
        ("tls to the port of http", vec![goto("https://page.test:80/")], by_policy("https://page.test:80/")),
        ("a dead port", vec![goto("http://page.test:81/")], ExpectedPage::Other),
        (
            "a port that browsers refuse",
            vec![goto("http://page.test:25/")],
            by_policy("http://page.test:25/"),
        ),
        ("a page that is not there", vec![goto("http://page.test/nowhere")], ExpectedPage::Other),
        ("a user name", vec![goto("http://u:p@page.test/")], ExpectedPage::Task),
        ("an address that is too long", vec![goto(&long)], ExpectedPage::Other),
    ]
}

/// The links and forms of the page, and its script.
fn links() -> Vec<ErrorPageCase> {
    let several = vec![link(0), Action::Wait { seconds: 1 }];
    vec![
        ("a download", vec![link(5)], ExpectedPage::Task),
        ("a link over tls", vec![link(0)], by_policy("https://page.test/x")),
        ("a link with a user name", vec![link(1)], ExpectedPage::Other),
        ("a link with a user name, over tls", vec![link(8)], by_policy("https://u:p@page.test/")),
        ("a link to a port", vec![link(6)], by_policy("http://page.test:25/")),
        ("a link of another scheme", vec![link(7)], ExpectedPage::Task),
        ("a link off the list", vec![link(10)], ExpectedPage::Other),
        ("a form over tls", vec![link(3)], by_policy("https://page.test/form?")),
        (
            "a script that goes later",
            vec![link(9), Action::Wait { seconds: 1 }],
            by_policy("https://page.test/late"),
        ),
        ("one of several actions", vec![Action::Several(several)], by_policy("https://page.test/x")),
    ]
}

/// Tabs, the history, and actions on an error page.
fn tabs_and_history() -> Vec<ErrorPageCase> {
    let tab = |url: &str| Action::OpenTab { url: url.into() };
    let acted_on = vec![
        goto(TLS),
        link(0),
        Action::scroll(ScrollDirection::Down),
        Action::Write { into: Some(at(50.0, 50.0)), content: "a".into(), press_enter: true },
        Action::press("Enter".to_owned()),
        Action::drag(at(40.0, 50.0), at(240.0, 150.0)),
        Action::Wait { seconds: 1 },
        Action::Refresh,
    ];
    vec![
        ("a new tab", vec![link(2)], by_policy("https://page.test/new")),
        ("a tab of its own", vec![tab("https://page.test/tab")], by_policy("https://page.test/tab")),
        ("another tab than the one", vec![tab(TLS), Action::SelectTab { index: 0 }], ExpectedPage::Task),
        (
            "the tab again",
            vec![tab(TLS), Action::SelectTab { index: 0 }, Action::SelectTab { index: 1 }],
            by_policy(TLS),
        ),
        ("back to it", vec![goto(TLS), goto(OWN), Action::GoBack], by_policy(TLS)),
        ("back from it", vec![goto(TLS), Action::GoBack], ExpectedPage::Task),
        ("forward to it", vec![goto(TLS), Action::GoBack, Action::GoForward], by_policy(TLS)),
        ("acting on it", acted_on, by_policy(TLS)),
        ("from it to the task", vec![goto(TLS), Action::Restart], ExpectedPage::Task),
        // The farm answers this address with a page; the browser alone would not send a form again.
        (
            "back to a form that was sent",
            vec![link(4), goto(OWN), Action::GoBack],
            by_policy("http://page.test/posted"),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_page_that_the_policy_led_to_is_its_own_doing() {
    // With marks and accessibility text, so that both are also queried on error pages.
    let fixture = fixture_with(
        |file| {
            file.marks = true;
            file.axtree = true;
        },
        vec![],
    )
    .await;
    for (name, text) in [("file.zip", "zip"), ("file.txt", "text")] {
        std::fs::write(fixture.folder.path().join(name), text).unwrap();
    }
    let cases = [addresses(), links(), tabs_and_history()].concat();
    for (name, actions, want) in &cases {
        let mut environment = page(&fixture, PageClock::Real).await;
        for action in actions {
            // As in an attempt: the policy also observes the error page.
            environment.observe().await.unwrap_or_else(|error| panic!("{name}: {error}"));
            act(&mut environment, action.clone()).await;
        }
        check(name, &mut environment, want).await;
        environment.close().await;
    }
    // With controlled page time, by every navigation that the worker itself makes.
    for (name, actions, want) in &cases {
        let by_page = |action: &Action| matches!(action, Action::Click { .. } | Action::Several(_));
        if actions.iter().any(by_page) {
            continue;
        }
        let mut environment = page(&fixture, PageClock::Virtual { step_millis: 100 }).await;
        for action in actions {
            act(&mut environment, action.clone()).await;
        }
        check(name, &mut environment, want).await;
        environment.close().await;
    }
    // The end comes while the page still loads.
    let mut environment = page(&fixture, PageClock::Real).await;
    environment.act(&goto(TLS)).await.unwrap();
    check("before it settles", &mut environment, &by_policy(TLS)).await;
    environment.close().await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_leaves_by_itself_before_the_policy_acted_is_not_the_policys_doing() {
    let fixture = fixture_with(|_| {}, vec![]).await;
    // A task does not begin if its start page does not load at all.
    let mut environment = fixture.pool.open(&assignment(task("https://page.test/"))).await.unwrap();
    let error = environment.begin().await.unwrap_err();
    assert_eq!(error.end(), EndKind::EnvCrash);
    assert!(error.to_string().starts_with("the start page did not load: net::"), "{error}");
    environment.close().await;

    let body = "<script>window.furrow = { probe: () => ({ done: false }) }; setTimeout(() => { location.href = 'https://page.test/gone' }, 300)</script>";
    let mut environment = fixture.page_with(body, |task| task.hooks.probe = Some(PROBE.into())).await;
    tokio::time::sleep(Duration::from_millis(1000)).await;
    environment.observe().await.unwrap();
    check("at once", &mut environment, &ExpectedPage::Error("https://page.test/gone", FaultOwner::Farm))
        .await;
    // The wait does not cause the error page, but from now on the policy is responsible for staying
    // there.
    act(&mut environment, Action::Wait { seconds: 1 }).await;
    check(
        "after a step",
        &mut environment,
        &ExpectedPage::Error("https://page.test/gone", FaultOwner::Policy),
    )
    .await;
    environment.close().await;
    fixture.close().await;
}

/// A site that serves files slowly.
#[derive(Debug)]
struct SlowMaker(Duration);

impl FileMaker for SlowMaker {
    #[expect(clippy::disallowed_methods, reason = "a slow read of a file blocks")]
    fn make_file(&self, _: &str) -> io::Result<Option<Vec<u8>>> {
        std::thread::sleep(self.0);
        Ok(Some(b"late".to_vec()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_of_ours_that_does_not_answer_is_the_farms_doing() {
    let slow = StaticSite {
        host: "slow.test".into(),
        root: FileRoot::Made(SharedMaker(Arc::new(SlowMaker(Duration::from_secs(12))))),
    };
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("index.html"), "other").unwrap();
    let other = StaticSite { host: "other.test".into(), root: FileRoot::Folder(other.path().to_owned()) };
    let fixture = fixture_with(|file| file.connections_max = 6, vec![slow, other]).await;
    // Pending files take every connection of the filter, so that the next page's connection is
    // dropped. That page opens in its own tab, so that the waiting page stays.
    let body = "<script>window.furrow = { probe: () => ({ done: false }) }</script>
        <a style='position:absolute;left:10px;top:10px' target=_blank href='http://other.test/'>other</a>
        <button style='position:absolute;left:10px;top:50px' onclick=\"for (let i = 0; i < 6; i++) fetch('http://slow.test/' + i, { mode: 'no-cors' })\">all</button>";
    let change = |task: &mut furrow_rollout::Task| {
        task.hooks.probe = Some(PROBE.into());
        task.allow_hosts = vec!["slow.test".into(), "other.test".into()];
    };
    let mut environment = fixture.page_with(body, change).await;
    act(&mut environment, click(20.0, 60.0)).await;
    act(&mut environment, click(20.0, 20.0)).await;
    check(
        "every connection is taken",
        &mut environment,
        &ExpectedPage::Error("http://other.test/", FaultOwner::Farm),
    )
    .await;
    environment.close().await;
    fixture.close().await;
}
