//! What a step costs in page time: the time of a step, whatever it did, and a `wait` the seconds it names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use furrow_env::{Root, Site, Stage, Stages};
use furrow_rollout::*;
use futures::StreamExt;
use serde_json::{Value, json};

use crate::ground::{act, assignment, at, click, ground, ground_with, task};
use crate::live::{HOST, Server, page, url as pinned};

/// Page time of a step, as in `crates/tasks/src/miniwob.rs`.
const STEP_MILLIS: u32 = 1000;

/// What can be measured of a page whose timers are to fire when they are due. It ends, as a task does, after a minute of its time.
const MEASURED: &str = "<div style='height:9px'></div><script>
  born = performance.now(); state = { ended: false, clicks: 0 };
  setTimeout(() => { state.ended = true }, 60000);
  onclick = () => { state.clicks++ };
</script>";

const PROBE: &str = "({ ...window.state, now: performance.now(), age: performance.now() - window.born, title: document.title })";

pub fn on_virtual_time(task: &mut Task) {
    task.clock = Clock::Virtual { step_millis: STEP_MILLIS };
    task.hooks.probe = Some(PROBE.into());
}

pub async fn probed(stage: &mut Box<dyn Stage>) -> Value {
    serde_json::from_str(&stage.probe().await.unwrap().unwrap()).unwrap()
}

fn goto(url: &str) -> Action {
    Action::Goto { url: url.into() }
}

fn named(outcome: &Outcome) -> &'static str {
    outcome.name.as_str()
}

/// An action that leaves the page as it is, by its name in a failure, and the outcome that says so.
type Ineffective = (&'static str, Action, OutcomeName);

/// The last three need one another.
fn ineffective(url: &str) -> Vec<Ineffective> {
    use OutcomeName::{InvalidAction, NoHistory, NoSuchTab, OffList, Ok, OutsidePage};
    // On the task's instruction, above everything that reacts.
    let still = at(150.0, 3.0);
    let bottom = || Action::scroll(Direction::Down);
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
        ("move", Action::Move { at: still }, Ok),
        ("key without focus", Action::press("F8"), Ok),
        (
            "empty text without focus",
            Action::Write { into: None, content: String::new(), press_enter: false },
            Ok,
        ),
        ("scroll at the top", Action::scroll(Direction::Up), Ok),
        ("scroll", bottom(), Ok),
        ("scroll at the end", bottom(), Ok),
        ("several scrolls", Action::Several(vec![bottom(); SEVERAL_MAX]), Ok),
        (
            "several, without history",
            Action::Several(vec![Action::Move { at: still }, Action::GoBack]),
            NoHistory,
        ),
        ("several looks", Action::Several(vec![Action::Wait { seconds: 0 }; 3]), Ok),
        ("goto where it is", goto(&format!("{url}#here")), Ok),
        ("go_back within the page", Action::GoBack, Ok),
        ("go_forward within the page", Action::GoForward, Ok),
    ]
}

/// Does what has no effect, one after another, and says what cost something else than the time of a step or ended the task.
async fn wrong_costs(stage: &mut Box<dyn Stage>, actions: &[Ineffective]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut before = probed(stage).await;
    for (name, action, want) in actions {
        let began = Instant::now();
        let outcome = match stage.act(action).await {
            Ok(outcome) => stage.settle(outcome).await,
            Err(error) => Err(error),
        };
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                return wrong;
            }
        };
        let after = probed(stage).await;
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

/// Its pages, out of their wheel.
pub fn miniwob_site() -> Site {
    let wheel = miniwob().join("../../.cache/miniwob-1.1.0-py3-none-any.whl");
    assert!(wheel.exists(), "{} is missing: run deploy/quickstart.sh, or tests/run.sh", wheel.display());
    Site { host: "miniwob.test".into(), root: Root::Zip { path: wheel, prefix: "miniwob/html".into() } }
}

/// The pages of the manifest as `crates/tasks/src/miniwob.rs` makes tasks of them.
pub fn miniwob_tasks() -> Vec<Task> {
    let hooks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tasks/src/hooks");
    let script = |name: &str| std::fs::read_to_string(hooks.join(name)).unwrap();
    let (start, probe) = (script("miniwob_start.js"), script("miniwob_probe.js"));
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
            clock: Clock::Virtual { step_millis: STEP_MILLIS },
            ..task(&url)
        }
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_ineffective_step_ends_a_task_or_costs_more_than_a_step_on_any_miniwob_page() {
    let ground = ground_with(|_| {}, vec![miniwob_site()]).await;
    let tasks = miniwob_tasks();
    assert_eq!(tasks.len(), 70);
    let began = Instant::now();
    let wrong: BTreeMap<String, Vec<String>> = futures::stream::iter(tasks)
        .map(|task| {
            let pool = &ground.pool;
            async move {
                let (name, url) = (task.task_id.clone(), task.start_url.clone());
                let mut stage = pool.open(&assignment(task)).await.unwrap();
                stage.begin().await.unwrap_or_else(|error| panic!("{name}: {error}"));
                let mut wrong = wrong_costs(&mut stage, &ineffective(&url)).await;
                // The page that is left is one that can be seen.
                if wrong.is_empty()
                    && let Err(error) = stage.observe().await
                {
                    wrong.push(format!("the picture: {error}"));
                }
                stage.close().await;
                (name, wrong)
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
    ground.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_action_without_effect_costs_the_time_of_a_step() {
    let ground = ground().await;
    let mut stage = ground.page_with(MEASURED, on_virtual_time).await;
    let url = stage.observe().await.unwrap().url;
    let all = ineffective(&url);
    let (alone, together) = all.split_at(all.len() - 3);
    let mut wrong = Vec::new();
    for actions in alone.chunks(1).chain([together]) {
        let mut stage = ground.page_with(MEASURED, on_virtual_time).await;
        wrong.extend(wrong_costs(&mut stage, actions).await);
        stage.close().await;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // A reply without an action is settled and not acted.
    let before = probed(&mut stage).await["now"].as_f64().unwrap();
    stage.settle(Outcome::named(OutcomeName::InvalidAction)).await.unwrap();
    assert_eq!((probed(&mut stage).await["now"].as_f64().unwrap() - before).round(), 1000.0);
    stage.close().await;
    ground.close().await;
}

/// What is asked for and does not come leaves the page that is there at its time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_does_not_come_costs_the_page_that_stays_the_time_of_a_step() {
    let server = Server::start(|path, _| match path {
        "/" => page("200 OK", "", MEASURED),
        "/204" => b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n".to_vec(),
        "/file" => page("200 OK", "content-disposition: attachment; filename=a.bin\r\n", "a"),
        _ => page("404 Not Found", "", "<title>none</title>none"),
    })
    .await;
    let pins = vec![format!("{HOST}={}", server.address)];
    let ground = ground_with(|file| (file.pins, file.navigation_millis) = (pins, 2_000), vec![]).await;
    let mut task = task(&pinned("/"));
    on_virtual_time(&mut task);
    let mut stage = ground.pool.open(&assignment(task)).await.unwrap();
    stage.begin().await.unwrap();
    let mut before = probed(&mut stage).await["now"].as_f64().unwrap();
    for path in ["/204", "/file", "/never", "/204"] {
        let outcome = act(&mut stage, goto(&pinned(path))).await;
        let after = probed(&mut stage).await;
        let now = after["now"].as_f64().unwrap();
        assert_eq!((now - before).round(), 1000.0, "{path}: {outcome:?}, {after}");
        assert_eq!(after["ended"], false, "{path}: {outcome:?}");
        let seen = stage.observe().await.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(seen.url, pinned("/"), "{path}");
        before = now;
    }
    act(&mut stage, click(40.0, 40.0)).await;
    assert_eq!(probed(&mut stage).await["clicks"], 1, "the page that stayed is alive");
    stage.close().await;
    ground.close().await;
}

/// A start page whose picture takes long, or never comes, is acted on as it is. A place in it is no other page: nothing of it may be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_in_a_page_that_loaded_late_costs_the_time_of_a_step_and_nothing_of_the_page() {
    let server = Server::start(|path, _| match path {
        "/loaded" => page("200 OK", "", &format!("<img src=/late.png>{MEASURED}")),
        "/loading" => page("200 OK", "", &format!("<img src=/never.png>{MEASURED}")),
        "/204" => b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n".to_vec(),
        _ => page("404 Not Found", "", "none"),
    })
    .await;
    let pins = vec![format!("{HOST}={}", server.address)];
    let ground = ground_with(|file| (file.pins, file.navigation_millis) = (pins, 4_000), vec![]).await;
    for (path, real_clock) in [("/loaded", false), ("/loading", false), ("/loaded", true), ("/loading", true)]
    {
        let mut task = task(&pinned(path));
        on_virtual_time(&mut task);
        if real_clock {
            task.clock = Clock::Real;
        }
        let mut stage = ground.pool.open(&assignment(task)).await.unwrap();
        stage.begin().await.unwrap();
        let case = format!("{path}, real clock: {real_clock}");
        let mut addresses = vec![format!("{}#here", pinned(path)), format!("{}#", pinned(path))];
        if path == "/loaded" {
            addresses.push(pinned("/204"));
        }
        for address in addresses {
            let before = probed(&mut stage).await["now"].as_f64().unwrap();
            let outcome = act(&mut stage, goto(&address)).await;
            let after = probed(&mut stage).await;
            if !real_clock {
                let cost = (after["now"].as_f64().unwrap() - before).round();
                assert_eq!(cost, 1000.0, "{case}, {address}: {outcome:?}, {after}");
            }
        }
        act(&mut stage, click(40.0, 4.0)).await;
        let after = probed(&mut stage).await;
        assert_eq!((&after["clicks"], &after["ended"]), (&json!(1), &json!(false)), "{case}: {after}");
        let seen = stage.observe().await.unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(seen.url, format!("{}#", pinned(path)), "{case}");
        stage.close().await;
    }
    ground.close().await;
}

/// With history the page comes, is loaded and drawn, and lives for a step: not until its first timer, whenever that is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_comes_is_loaded_and_gets_the_time_of_a_step() {
    let ground = ground().await;
    let picture = "<svg xmlns='http://www.w3.org/2000/svg' width='50' height='50'><rect width='50' height='50' fill='red'/></svg>";
    std::fs::write(ground.folder.path().join("red.svg"), picture).unwrap();
    let next = format!(
        "<!doctype html><title>next</title><body style='margin:0'><img id=red src=red.svg onload='state.loaded = true'>{MEASURED}"
    );
    // The image is parsed before the script that makes its state.
    std::fs::write(
        ground.folder.path().join("next.html"),
        next.replace("<body", "<script>state = {}</script><body")
            .replace("state = { ended", "state = { ...state, ended"),
    )
    .unwrap();
    let mut stage = ground.page_with(MEASURED, on_virtual_time).await;
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
        let outcome = act(&mut stage, action.clone()).await;
        assert_eq!(outcome.name, OutcomeName::Ok, "{action:?} {outcome:?}");
        let after = probed(&mut stage).await;
        assert_eq!(after["title"], title, "{action:?}");
        assert_eq!(after["ended"], false, "{action:?}: {after}");
        let age = after["age"].as_f64().unwrap();
        let most = if action == (Action::SelectTab { index: 0 }) { 3100.0 } else { 1100.0 };
        assert!((500.0..most).contains(&age), "{action:?}: the page lived for {age} ms");
        let seen = stage.observe().await.unwrap();
        assert_eq!(seen.title, title);
        if title == "next" {
            assert_eq!(after["loaded"], true, "{action:?}: {after}");
            let seen = image::load_from_memory(&seen.screenshot.bytes).unwrap().into_rgb8();
            assert_eq!(seen.get_pixel(25, 25).0, [255, 0, 0], "{action:?}: its picture is not there");
        }
        // Its own next step is one like any other.
        act(&mut stage, click(40.0, 80.0)).await;
        let later = probed(&mut stage).await;
        let lived = later["age"].as_f64().unwrap() - age;
        let clicks = later["clicks"].as_i64().unwrap() - after["clicks"].as_i64().unwrap();
        assert_eq!((clicks, lived.round()), (1, 1000.0), "{action:?}: {later}");
    }
    stage.close().await;
    ground.close().await;
}

/// What a document asks for may never come: it is shown as far as it came, at no more than the time of a step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_comes_by_half_gets_no_more_than_the_time_of_a_step() {
    let server = Server::start(|path, _| match path {
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
    let ground = ground_with(|file| (file.pins, file.navigation_millis) = (pins, 3_000), vec![]).await;
    let mut task = task(&pinned("/"));
    on_virtual_time(&mut task);
    let mut stage = ground.pool.open(&assignment(task)).await.unwrap();
    stage.begin().await.unwrap();
    for (action, title) in [
        (goto(&pinned("/picture")), "picture"),
        (goto(&pinned("/drips")), "drips"),
        (Action::GoBack, "picture"),
        (Action::Refresh, "picture"),
    ] {
        let outcome = act(&mut stage, action.clone()).await;
        assert_eq!(outcome.name, OutcomeName::NotSettled, "{action:?}: {outcome:?}");
        let after = probed(&mut stage).await;
        assert_eq!((&after["title"], &after["ended"]), (&json!(title), &json!(false)), "{action:?}: {after}");
        assert!(after["age"].as_f64().unwrap() < 1100.0, "{action:?}: {after}");
        stage.observe().await.unwrap();
    }
    let outcome = act(&mut stage, Action::Restart).await;
    assert_eq!(outcome.name, OutcomeName::Ok, "{outcome:?}");
    act(&mut stage, click(40.0, 40.0)).await;
    let after = probed(&mut stage).await;
    assert_eq!((&after["clicks"], &after["ended"]), (&json!(1), &json!(false)), "{after}");
    stage.close().await;
    ground.close().await;
}

/// A page that hangs is stopped for its evidence; that must be of the moment at which it hung.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evidence_of_a_page_that_hung_is_of_the_time_at_which_it_hung() {
    let ground = ground_with(|file| (file.input_millis, file.screenshot_millis) = (800, 800), vec![]).await;
    let hangs = |path: &str, script: &str| {
        let html = format!("<!doctype html><title>{path}</title><body>{MEASURED}<script>{script}</script>");
        std::fs::write(ground.folder.path().join(path), html).unwrap();
        goto(&format!("http://page.test/{path}"))
    };
    let cases = [
        (
            "a timer that loops, in an ordinary step",
            MEASURED.to_owned() + "<script>setTimeout(() => { for (;;); }, 1500)</script>",
            vec![Action::Move { at: at(9.0, 9.0) }; 2],
        ),
        ("a document that loops while it loads", MEASURED.to_owned(), vec![hangs("loads.html", "for (;;);")]),
        (
            "a document that loops soon after",
            MEASURED.to_owned(),
            vec![hangs("later.html", "setTimeout(() => { for (;;); }, 300)")],
        ),
    ];
    for (name, body, actions) in cases {
        let mut stage = ground.page_with(&body, on_virtual_time).await;
        let mut hung = None;
        for action in actions {
            let done = stage.act(&action).await;
            let done = match done {
                Ok(outcome) => stage.settle(outcome).await,
                Err(error) => Err(error),
            };
            hung = hung.or(done.err());
        }
        assert!(hung.is_some(), "{name}: it did not hang");
        let evidence = stage.evidence().await.unwrap_or_else(|| panic!("{name}: no evidence after {hung:?}"));
        let probe: Value = serde_json::from_str(&evidence.probe_json.unwrap()).unwrap();
        assert_eq!(probe["ended"], false, "{name}: {probe}");
        assert!(probe["age"].as_f64().unwrap() < 2_100.0 + 60.0, "{name}: {probe}");
        // Nothing passes afterwards.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(probed(&mut stage).await["now"], probe["now"], "{name}: time goes on");
        stage.close().await;
    }
    ground.close().await;
}

/// The time of a step is shared by the actions in it, and the last one's reaction has its part.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_actions_share_the_time_of_a_step() {
    let ground = ground().await;
    let body = "<div style='height:3000px'></div><script>born = performance.now(); state = {}; onclick = () => setTimeout(() => { state.reacted = true }, 300)</script>";
    let scroll = Action::Scroll { at: None, direction: Direction::Down, pixels: Some(100) };
    let wait = |seconds| Action::Wait { seconds };
    for (actions, cost, want) in [
        (vec![scroll.clone(), click(40.0, 40.0)], 1000.0, json!(true)),
        (vec![scroll.clone(), scroll.clone(), scroll], 1000.0, json!(null)),
        (vec![click(40.0, 40.0), wait(3)], 3667.0, json!(true)),
        (vec![wait(3), click(40.0, 40.0)], 3667.0, json!(true)),
    ] {
        let mut stage = ground.page_with(body, on_virtual_time).await;
        let before = probed(&mut stage).await["now"].as_f64().unwrap();
        let outcome = act(&mut stage, Action::Several(actions.clone())).await;
        let after = probed(&mut stage).await;
        assert_eq!(outcome.name, OutcomeName::Ok, "{actions:?}: {outcome:?}");
        assert_eq!((after["now"].as_f64().unwrap() - before).round(), cost, "{actions:?}");
        assert_eq!(after["reacted"], want, "{actions:?}");
        stage.close().await;
    }
    ground.close().await;
}
