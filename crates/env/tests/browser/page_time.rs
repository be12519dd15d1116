//! The page time of a step: always the time of one step, whatever it did, and for a `wait` the
//! seconds that it names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use furrow_env::{ChromiumPool, Environment, EnvironmentFactory, FileRoot, StaticSite};
use furrow_rollout::*;
use futures::StreamExt;
use serde_json::{Value, json};

use crate::fixture::{act, assignment, at, click, fixture, fixture_with, task};
use crate::live::{HOST, LiveServer, page, url as pinned};

/// Page time of a step, as in `crates/tasks/src/miniwob.rs`.
const STEP_MILLIS: u32 = 1000;

/// A page whose timers measure whether they fire on time. Like a task, it ends after a minute of
/// its time.
const MEASURED: &str = "<div style='height:9px'></div><script>
  born = performance.now(); state = { ended: false, clicks: 0 };
  setTimeout(() => { state.ended = true }, 60000);
  onclick = () => { state.clicks++ };
</script>";

const PROBE: &str = "({ ...window.state, now: performance.now(), age: performance.now() - window.born, title: document.title })";

pub(crate) fn on_virtual_time(task: &mut Task) {
    task.clock = PageClock::Virtual { step_millis: STEP_MILLIS };
    task.hooks.probe = Some(PROBE.into());
}

pub(crate) async fn probed(environment: &mut Box<dyn Environment>) -> Value {
    serde_json::from_str(&environment.probe().await.unwrap().unwrap()).unwrap()
}

fn goto(url: &str) -> Action {
    Action::Goto { url: url.into() }
}

fn named(outcome: &Outcome) -> &'static str {
    outcome.name.as_str()
}

/// An action without effect on the page: its name in a failure, the action, and its outcome.
type Ineffective = (&'static str, Action, OutcomeName);

/// The last three depend on each other.
fn ineffective(url: &str) -> Vec<Ineffective> {
    use OutcomeName::{InvalidAction, NoHistory, NoSuchTab, OffList, Ok, OutsidePage};
    // A point on the task's instruction, above all controls.
    let still = at(150.0, 3.0);
    let bottom = || Action::scroll(ScrollDirection::Down);
    let open = |url: &str| Action::OpenTab { url: url.into() };
    vec![
        ("go_back", Action::GoBack, NoHistory),
        ("go_forward", Action::GoForward, NoHistory),
        ("goto another host", goto("http://elsewhere.test/"), OffList),
        ("goto a file", goto("file:///etc/passwd"), OffList),
        ("open_tab another host", open("http://elsewhere.test/"), OffList),
        ("select_tab unknown", Action::SelectTab { index: 7 }, NoSuchTab),
        ("click outside", click(9000.0, 9000.0), OutsidePage),
        ("drag outside", Action::drag(still, at(9000.0, 9000.0)), OutsidePage),
        ("unknown key", Action::press("Hyper+x"), InvalidAction),
        ("look again", Action::Wait { seconds: 0 }, Ok),
        ("move", Action::hover(still), Ok),
        ("key without focus", Action::press("F8"), Ok),
        (
            "empty text without focus",
            Action::Write { into: None, content: String::new(), press_enter: false },
            Ok,
        ),
        ("scroll at the top", Action::scroll(ScrollDirection::Up), Ok),
        ("scroll", bottom(), Ok),
        ("scroll at the end", bottom(), Ok),
        ("several scrolls", Action::Several(vec![bottom(); SEVERAL_MAX]), Ok),
        ("several, without history", Action::Several(vec![Action::hover(still), Action::GoBack]), NoHistory),
        ("several looks", Action::Several(vec![Action::Wait { seconds: 0 }; 3]), Ok),
        ("goto where it is", goto(&format!("{url}#here")), Ok),
        ("go_back within the page", Action::GoBack, Ok),
        ("go_forward within the page", Action::GoForward, Ok),
    ]
}

/// Executes actions without effect in order and reports those that cost another time than that of a
/// step or ended the task.
async fn wrong_costs(environment: &mut Box<dyn Environment>, actions: &[Ineffective]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut before = probed(environment).await;
    for (name, action, want) in actions {
        let began = Instant::now();
        let outcome = match environment.act(action).await {
            Ok(outcome) => environment.settle(outcome).await,
            Err(error) => Err(error),
        };
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                return wrong;
            }
        };
        let after = probed(environment).await;
        let cost = after["now"].as_f64().unwrap() - before["now"].as_f64().unwrap();
        if (cost - f64::from(STEP_MILLIS)).abs() > 1.0 {
            wrong.push(format!("{name}: {cost:.0} ms of page time in {:?}", began.elapsed()));
        }
        if outcome.name != *want {
            wrong.push(format!("{name}: {} instead of {}", named(&outcome), want.as_str()));
        }
        if after["done"] == true || after["ended"] == true {
            wrong.push(format!("{name}: the task ended, {after}"));
            return wrong;
        }
        before = after;
    }
    wrong
}

fn miniwob() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../envs/miniwob")
}

/// The MiniWoB++ pages, from its wheel.
pub(crate) fn miniwob_site() -> StaticSite {
    let wheel = miniwob().join("../../.cache/miniwob-1.1.0-py3-none-any.whl");
    assert!(wheel.exists(), "{} is missing: run deploy/quickstart.sh, or tests/run.sh", wheel.display());
    StaticSite {
        host: "miniwob.test".into(),
        root: FileRoot::Zip { path: wheel, prefix: "miniwob/html".into() },
    }
}

/// The tasks of the manifest's pages, made as in `crates/tasks/src/miniwob.rs`.
pub(crate) fn miniwob_tasks() -> Vec<Task> {
    let hooks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tasks/src/hooks");
    let script = |name: &str| std::fs::read_to_string(hooks.join(name)).unwrap();
    let start = script("miniwob_start.js");
    let probe = script("miniwob_probe.js");
    let rows = std::fs::read_to_string(miniwob().join("tasks.jsonl")).unwrap();
    let rows = rows.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.map(|row| {
        let steps = ineffective("").len() as u64;
        let limit = row["page_time_limit_ms"].as_u64().unwrap().max(steps * u64::from(STEP_MILLIS) + 15_000);
        let url = format!("http://miniwob.test/{}", row["file"].as_str().unwrap());
        Task {
            task_id: row["task_id"].as_str().unwrap().into(),
            viewport: Size::new(500, 320),
            observation: ObservationSpec {
                format: ImageFormat::Png,
                clip: Some(Size::new(160, 210)),
                square: true,
            },
            hooks: PageHooks {
                start: Some(start.replace("{limit_millis}", &limit.to_string())),
                probe: Some(format!("({{ ...({probe}), now: performance.now() }})")),
                solve: None,
            },
            clock: PageClock::Virtual { step_millis: STEP_MILLIS },
            ..task(&url)
        }
    })
    .collect()
}

/// Opens a task's page and tells what ineffective steps did wrong in it.
async fn wrong_in(pool: &ChromiumPool, task: Task) -> Vec<String> {
    let name = task.task_id.clone();
    let url = task.start_url.clone();
    let mut environment = pool.open(&assignment(task)).await.unwrap();
    environment.begin().await.unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut wrong = wrong_costs(&mut environment, &ineffective(&url)).await;
    // The final page can be observed.
    if wrong.is_empty()
        && let Err(error) = environment.observe().await
    {
        wrong.push(format!("the picture: {error}"));
    }
    environment.close().await;
    wrong
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_ineffective_step_ends_a_task_or_costs_more_than_a_step_on_any_miniwob_page() {
    let fixture = fixture_with(|_| {}, vec![miniwob_site()]).await;
    let tasks = miniwob_tasks();
    assert_eq!(tasks.len(), 70);
    let began = Instant::now();
    let wrong: BTreeMap<String, Vec<String>> = futures::stream::iter(tasks)
        .map(|task| {
            let pool = &fixture.pool;
            async move {
                let name = task.task_id.clone();
                let first = wrong_in(pool, task.clone()).await;
                if first.is_empty() {
                    return (name, first);
                }
                // A step of 1,006 ms was seen once in some thousand pages and never twice: what a
                // page itself causes comes back in a new one.
                println!("{name}, which is opened once more: {first:#?}");
                (name, wrong_in(pool, task).await)
            }
        })
        .buffer_unordered(4)
        .collect()
        .await;
    println!("70 pages in {:?}", began.elapsed());
    let wrong: BTreeMap<_, _> = wrong.into_iter().filter(|(_, wrong)| !wrong.is_empty()).collect();
    let ended =
        wrong.values().filter(|wrong| wrong.iter().any(|line| line.contains("the task ended"))).count();
    assert!(wrong.is_empty(), "{} pages of 70, {ended} of them ended: {wrong:#?}", wrong.len());
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_action_without_effect_costs_the_time_of_a_step() {
    let fixture = fixture().await;
    let mut environment = fixture.page_with(MEASURED, on_virtual_time).await;
    let url = environment.observe().await.unwrap().url;
    let all = ineffective(&url);
    let (alone, together) = all.split_at(all.len() - 3);
    let mut wrong = Vec::new();
    for actions in alone.chunks(1).chain([together]) {
        let mut environment = fixture.page_with(MEASURED, on_virtual_time).await;
        wrong.extend(wrong_costs(&mut environment, actions).await);
        environment.close().await;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // A reply without an action is only settled.
    let before = probed(&mut environment).await["now"].as_f64().unwrap();
    environment.settle(Outcome::named(OutcomeName::InvalidAction)).await.unwrap();
    assert_eq!((probed(&mut environment).await["now"].as_f64().unwrap() - before).round(), 1000.0);
    environment.close().await;
    fixture.close().await;
}

/// A requested document that does not come leaves the current page's time unchanged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_does_not_come_costs_the_page_that_stays_the_time_of_a_step() {
    let server = LiveServer::start(|path, _| match path {
        "/" => page("200 OK", "", MEASURED),
        "/204" => b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n".to_vec(),
        "/file" => page("200 OK", "content-disposition: attachment; filename=a.bin\r\n", "a"),
        _ => page("404 Not Found", "", "<title>none</title>none"),
    })
    .await;
    let pins = vec![format!("{HOST}={}", server.address)];
    let fixture = fixture_with(|file| (file.pins, file.navigation_millis) = (pins, 4_000), vec![]).await;
    let mut task = task(&pinned("/"));
    on_virtual_time(&mut task);
    let mut environment = fixture.pool.open(&assignment(task)).await.unwrap();
    environment.begin().await.unwrap();
    let mut before = probed(&mut environment).await["now"].as_f64().unwrap();
    for path in ["/204", "/file", "/never", "/204"] {
        let outcome = act(&mut environment, goto(&pinned(path))).await;
        let after = probed(&mut environment).await;
        let now = after["now"].as_f64().unwrap();
        assert_eq!((now - before).round(), 1000.0, "{path}: {outcome:?}, {after}");
        assert_eq!(after["ended"], false, "{path}: {outcome:?}");
        let observation = environment.observe().await.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(observation.url, pinned("/"), "{path}");
        before = now;
    }
    act(&mut environment, click(40.0, 40.0)).await;
    assert_eq!(probed(&mut environment).await["clicks"], 1, "the page that stayed is alive");
    environment.close().await;
    fixture.close().await;
}

/// A start page whose picture is late or missing is used as it is. An address within it is not
/// another page: no state may be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fragment_of_a_page_that_loaded_late_costs_the_time_of_a_step_and_keeps_the_page() {
    let server = LiveServer::start(|path, _| match path {
        "/loaded" => page("200 OK", "", &format!("<img src=/late.png>{MEASURED}")),
        "/loading" => page("200 OK", "", &format!("<img src=/never.png>{MEASURED}")),
        "/204" => b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n".to_vec(),
        _ => page("404 Not Found", "", "none"),
    })
    .await;
    let pins = vec![format!("{HOST}={}", server.address)];
    let fixture = fixture_with(|file| (file.pins, file.navigation_millis) = (pins, 4_000), vec![]).await;
    for (path, real_clock) in [("/loaded", false), ("/loading", false), ("/loaded", true), ("/loading", true)]
    {
        let mut task = task(&pinned(path));
        on_virtual_time(&mut task);
        if real_clock {
            task.clock = PageClock::Real;
        }
        let mut environment = fixture.pool.open(&assignment(task)).await.unwrap();
        environment.begin().await.unwrap();
        let case = format!("{path}, real clock: {real_clock}");
        let mut addresses = vec![format!("{}#here", pinned(path)), format!("{}#", pinned(path))];
        if path == "/loaded" {
            addresses.push(pinned("/204"));
        }
        for address in addresses {
            let before = probed(&mut environment).await["now"].as_f64().unwrap();
            let outcome = act(&mut environment, goto(&address)).await;
            let after = probed(&mut environment).await;
            if !real_clock {
                let cost = (after["now"].as_f64().unwrap() - before).round();
                assert_eq!(cost, 1000.0, "{case}, {address}: {outcome:?}, {after}");
            }
        }
        act(&mut environment, click(40.0, 4.0)).await;
        let after = probed(&mut environment).await;
        assert_eq!((&after["clicks"], &after["ended"]), (&json!(1), &json!(false)), "{case}: {after}");
        let observation = environment.observe().await.unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(observation.url, format!("{}#", pinned(path)), "{case}");
        environment.close().await;
    }
    fixture.close().await;
}

/// After a history action the page loads, is drawn and gets the time of a step, independent of its
/// first timer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_comes_is_loaded_and_gets_the_time_of_a_step() {
    let fixture = fixture().await;
    let picture = "<svg xmlns='http://www.w3.org/2000/svg' width='50' height='50'><rect width='50' height='50' fill='red'/></svg>";
    std::fs::write(fixture.folder.path().join("red.svg"), picture).unwrap();
    let next = format!(
        "<!doctype html><title>next</title><body style='margin:0'><img id=red src=red.svg onload='state.loaded = true'>{MEASURED}"
    );
    // The image is parsed before the script that creates the page's state.
    std::fs::write(
        fixture.folder.path().join("next.html"),
        next.replace("<body", "<script>state = {}</script><body")
            .replace("state = { ended", "state = { ...state, ended"),
    )
    .unwrap();
    let mut environment = fixture.page_with(MEASURED, on_virtual_time).await;
    let went = [
        (goto("http://page.test/next.html"), "next"),
        (Action::GoBack, "test"),
        (Action::GoForward, "next"),
        (Action::Refresh, "next"),
        (Action::Restart, "test"),
        (Action::OpenTab { url: "http://page.test/next.html".into() }, "next"),
        (Action::Refresh, "next"),
        (Action::SelectTab { index: 0 }, "test"),
        (Action::GoBack, "next"),
    ];
    for (action, title) in went {
        let outcome = act(&mut environment, action.clone()).await;
        assert_eq!(outcome.name, OutcomeName::Ok, "{action:?} {outcome:?}");
        let after = probed(&mut environment).await;
        assert_eq!(after["title"], title, "{action:?}");
        assert_eq!(after["ended"], false, "{action:?}: {after}");
        let age = after["age"].as_f64().unwrap();
        let most = if action == (Action::SelectTab { index: 0 }) { 3100.0 } else { 1100.0 };
        assert!((500.0..most).contains(&age), "{action:?}: the page lived for {age} ms");
        let observation = environment.observe().await.unwrap();
        assert_eq!(observation.title, title);
        if title == "next" {
            assert_eq!(after["loaded"], true, "{action:?}: {after}");
            let observation = image::load_from_memory(&observation.screenshot.bytes).unwrap().into_rgb8();
            assert_eq!(observation.get_pixel(25, 25).0, [255, 0, 0], "{action:?}: its picture is not there");
        }
        // Its next step is a normal one.
        act(&mut environment, click(40.0, 80.0)).await;
        let later = probed(&mut environment).await;
        let elapsed = later["age"].as_f64().unwrap() - age;
        let clicks = later["clicks"].as_i64().unwrap() - after["clicks"].as_i64().unwrap();
        assert_eq!((clicks, elapsed.round()), (1, 1000.0), "{action:?}: {later}");
    }
    environment.close().await;
    fixture.close().await;
}

/// A document's resources may never arrive: it is shown as far as it loaded, within the time of a
/// step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_comes_by_half_gets_no_more_than_the_time_of_a_step() {
    let server = LiveServer::start(|path, _| match path {
        "/" => page("200 OK", "", MEASURED),
        "/picture" => {
            page("200 OK", "", &format!("<title>picture</title><p>words<img src=/never.png>{MEASURED}"))
        }
        "/drips" => format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<title>drips</title><p>words{MEASURED}"
        )
        .into_bytes(),
        _ => page("404 Not Found", "", "<title>none</title>none"),
    })
    .await;
    let pins = vec![format!("{HOST}={}", server.address)];
    let fixture = fixture_with(|file| (file.pins, file.navigation_millis) = (pins, 3_000), vec![]).await;
    let mut task = task(&pinned("/"));
    on_virtual_time(&mut task);
    let mut environment = fixture.pool.open(&assignment(task)).await.unwrap();
    environment.begin().await.unwrap();
    for (action, title) in [
        (goto(&pinned("/picture")), "picture"),
        (goto(&pinned("/drips")), "drips"),
        (Action::GoBack, "picture"),
        (Action::Refresh, "picture"),
    ] {
        let outcome = act(&mut environment, action.clone()).await;
        assert_eq!(outcome.name, OutcomeName::NotSettled, "{action:?}: {outcome:?}");
        let after = probed(&mut environment).await;
        assert_eq!((&after["title"], &after["ended"]), (&json!(title), &json!(false)), "{action:?}: {after}");
        assert!(after["age"].as_f64().unwrap() < 1100.0, "{action:?}: {after}");
        environment.observe().await.unwrap();
    }
    let outcome = act(&mut environment, Action::Restart).await;
    assert_eq!(outcome.name, OutcomeName::Ok, "{outcome:?}");
    act(&mut environment, click(40.0, 40.0)).await;
    let after = probed(&mut environment).await;
    assert_eq!((&after["clicks"], &after["ended"]), (&json!(1), &json!(false)), "{after}");
    environment.close().await;
    fixture.close().await;
}

/// A hung page is stopped to collect evidence, which must describe the moment at which it hung.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evidence_of_a_page_that_hung_is_of_the_time_at_which_it_hung() {
    let fixture = fixture_with(|file| (file.input_millis, file.screenshot_millis) = (800, 800), vec![]).await;
    let hangs = |path: &str, script: &str| {
        let html = format!("<!doctype html><title>{path}</title><body>{MEASURED}<script>{script}</script>");
        std::fs::write(fixture.folder.path().join(path), html).unwrap();
        goto(&format!("http://page.test/{path}"))
    };
    let cases = [
        (
            "a timer that loops, in an ordinary step",
            MEASURED.to_owned() + "<script>setTimeout(() => { for (;;); }, 1500)</script>",
            vec![Action::hover(at(9.0, 9.0)); 2],
        ),
        ("a document that loops while it loads", MEASURED.to_owned(), vec![hangs("loads.html", "for (;;);")]),
        (
            "a document that loops soon after",
            MEASURED.to_owned(),
            vec![hangs("later.html", "setTimeout(() => { for (;;); }, 300)")],
        ),
    ];
    for (name, body, actions) in cases {
        let mut environment = fixture.page_with(&body, on_virtual_time).await;
        let mut hung = None;
        for action in actions {
            let done = environment.act(&action).await;
            let done = match done {
                Ok(outcome) => environment.settle(outcome).await,
                Err(error) => Err(error),
            };
            hung = hung.or(done.err());
        }
        assert!(hung.is_some(), "{name}: it did not hang");
        let evidence =
            environment.evidence().await.unwrap_or_else(|| panic!("{name}: no evidence after {hung:?}"));
        let probe: Value = serde_json::from_str(&evidence.probe_json.unwrap()).unwrap();
        assert_eq!(probe["ended"], false, "{name}: {probe}");
        assert!(probe["age"].as_f64().unwrap() < 2_100.0 + 60.0, "{name}: {probe}");
        // No page time passes afterwards.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(probed(&mut environment).await["now"], probe["now"], "{name}: time goes on");
        environment.close().await;
    }
    fixture.close().await;
}

/// The actions of a step share its time, and the reaction to the last one gets a share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_actions_share_the_time_of_a_step() {
    let fixture = fixture().await;
    let body = "<div style='height:3000px'></div><script>born = performance.now(); state = {}; onclick = () => setTimeout(() => { state.reacted = true }, 300)</script>";
    let scroll = Action::Scroll {
        at: None,
        direction: ScrollDirection::Down,
        pixels: Some(100),
        modifiers: Modifiers::NONE,
    };
    let wait = |seconds| Action::Wait { seconds };
    for (actions, cost, want) in [
        (vec![scroll.clone(), click(40.0, 40.0)], 1000.0, json!(true)),
        (vec![scroll.clone(), scroll.clone(), scroll], 1000.0, json!(null)),
        (vec![click(40.0, 40.0), wait(3)], 3667.0, json!(true)),
        (vec![wait(3), click(40.0, 40.0)], 3667.0, json!(true)),
    ] {
        let mut environment = fixture.page_with(body, on_virtual_time).await;
        let before = probed(&mut environment).await["now"].as_f64().unwrap();
        let outcome = act(&mut environment, Action::Several(actions.clone())).await;
        let after = probed(&mut environment).await;
        assert_eq!(outcome.name, OutcomeName::Ok, "{actions:?}: {outcome:?}");
        assert_eq!((after["now"].as_f64().unwrap() - before).round(), cost, "{actions:?}");
        assert_eq!(after["reacted"], want, "{actions:?}");
        environment.close().await;
    }
    fixture.close().await;
}
