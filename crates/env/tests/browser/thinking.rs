//! A policy that computes longer than a step's page time: the page waits for it and shows the
//! effect of its action.

use std::time::{Duration, Instant};

use furrow_env::EnvironmentFactory;
use furrow_rollout::*;
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::fixture::{BrowserFixture, act, assignment, at, click, fixture, fixture_with, task};
use crate::live::{HOST, LiveServer, page, url as pinned};
use crate::page_time::{miniwob_site, miniwob_tasks, on_virtual_time, probed};

/// Counts the events it receives and shows the last one in a corner.
const HEARS: &str = "<div style='height:30000px'></div>
<input style='position:fixed;left:100px;top:200px;width:200px;height:30px'>
<div id=shown style='position:fixed;left:0;top:0;width:60px;height:60px'></div>
<script>
  state = {};
  const hear = (kind, colour) => {
    state[kind] = (state[kind] ?? 0) + 1;
    shown.style.background = `rgb(${colour}, ${state[kind]})`;
  };
  let from = 0;
  onmousedown = (event) => { from = event.clientX };
  onmouseup = (event) => Math.abs(event.clientX - from) > 50 ? hear('drag', '10, 200') : hear('click', '200, 10');
  onscroll = () => hear('scroll', '10, 10');
  oninput = () => hear('input', '90, 90');
  onkeydown = (event) => { if (event.key === 'F8') hear('key', '90, 10') };
</script>";

/// An action, the page's name for its event, and the first two colour values that the page shows
/// for it.
fn actions() -> Vec<(Action, &'static str, [u8; 2])> {
    vec![
        (click(300.0, 100.0), "click", [200, 10]),
        (Action::drag(at(300.0, 100.0), at(400.0, 120.0)), "drag", [10, 200]),
        (
            Action::Scroll {
                at: None,
                direction: ScrollDirection::Down,
                pixels: Some(100),
                modifiers: Modifiers::NONE,
            },
            "scroll",
            [10, 10],
        ),
        (
            Action::Write { into: Some(at(150.0, 215.0)), content: "a".into(), press_enter: false },
            "input",
            [90, 90],
        ),
        (Action::press("F8"), "key", [90, 10]),
    ]
}

fn corner(observation: &Observation) -> [u8; 3] {
    image::load_from_memory(&observation.screenshot.bytes).unwrap().into_rgb8().get_pixel(5, 5).0
}

/// Observes, pauses, acts and observes again for each action; returns what was wrong.
async fn thinks(
    fixture: &BrowserFixture,
    think: Duration,
    actions: Vec<(Action, &'static str, [u8; 2])>,
) -> Vec<String> {
    let mut environment = fixture.page_with(HEARS, on_virtual_time_of_state).await;
    let mut wrong = Vec::new();
    for (round, (action, kind, colour)) in (1..).zip(actions) {
        let name = format!("{think:?}, round {round}, {kind}");
        let before = probed(&mut environment).await;
        sleep(think).await;
        let began = Instant::now();
        let after = async {
            let outcome = environment.act(&action).await?;
            let outcome = environment.settle(outcome).await?;
            let observation = environment.observe().await?;
            Ok::<_, furrow_env::EnvironmentError>((outcome, observation))
        };
        let (outcome, observation) = match after.await {
            Ok(after) => after,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                break;
            }
        };
        let after = probed(&mut environment).await;
        let cost = after["now"].as_f64().unwrap() - before["now"].as_f64().unwrap();
        let count = after["state"][kind].as_u64().unwrap_or(0);
        let had = before["state"][kind].as_u64().unwrap_or(0);
        if outcome.name != OutcomeName::Ok || count != had + 1 || (cost - 1000.0).abs() > 1.0 {
            wrong.push(format!("{name}: {outcome:?}, {cost} ms of page time, {before} became {after}"));
        }
        let want = [colour[0], colour[1], count as u8];
        if corner(&observation) != want {
            wrong.push(format!("{name}: {:?} is shown instead of {want:?}", corner(&observation)));
        }
        if began.elapsed() > Duration::from_secs(4) {
            wrong.push(format!("{name}: {:?} for one step", began.elapsed()));
        }
    }
    environment.close().await;
    wrong
}

fn on_virtual_time_of_state(task: &mut Task) {
    on_virtual_time(task);
    task.hooks.probe = Some("({ state: window.state, now: performance.now() })".into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_what_an_action_did_however_long_the_policy_thought() {
    let fixture = fixture().await;
    let millis = Duration::from_millis;
    let all = actions();
    let twice = || [all.clone(), all.clone()].concat();
    let mut cases = vec![(millis(0), twice()), (millis(500), twice()), (millis(1500), twice())];
    // The longest pauses are distributed over the actions, so that the test takes as long as a few
    // of them.
    cases.extend(all.chunks(2).map(|some| (millis(3000), [some, some].concat())));
    cases.extend(all.chunks(2).map(|some| (millis(8000), some.to_vec())));
    let wrong = join_all(cases.into_iter().map(|(think, actions)| thinks(&fixture, think, actions))).await;
    let wrong: Vec<String> = wrong.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    fixture.close().await;
}

/// Pages that request frames without end or change nothing in them: a frame without changes does
/// not prevent later frames from being drawn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_asks_for_frames_is_shown_however_long_the_policy_thought() {
    let fixture = fixture().await;
    let asks = "const frame = () => requestAnimationFrame(frame); frame();";
    let bodies = [
        format!("{HEARS}<script>{asks}</script>"),
        format!("{HEARS}<script>onmousemove = () => requestAnimationFrame(() => {{}})</script>"),
        format!(
            "{HEARS}<style>@keyframes turn {{ to {{ rotate: 1turn }} }} input {{ animation: turn 9s infinite }}</style>"
        ),
    ];
    let shared = &fixture;
    let looks = bodies.iter().map(|body| async move {
        let mut environment = shared.page_with(body, on_virtual_time_of_state).await;
        for round in 1..=3_u8 {
            sleep(Duration::from_millis(1500)).await;
            act(&mut environment, click(300.0, 100.0)).await;
            let observation =
                environment.observe().await.unwrap_or_else(|error| panic!("round {round}, {body}: {error}"));
            assert_eq!(corner(&observation), [200, 10, round], "{body}");
        }
        environment.close().await;
    });
    join_all(looks).await;
    fixture.close().await;
}

/// The screenshots after each action on a MiniWoB++ page, whose clock is also checked.
async fn observations_on(fixture: &BrowserFixture, task: Task, thinks: bool) -> Vec<Observation> {
    let name = task.start_url.clone();
    let mut environment = fixture.pool.open(&assignment(task)).await.unwrap();
    environment.begin().await.unwrap();
    // Points above all controls, then the page's own controls.
    let steps = [
        Action::hover(at(150.0, 3.0)),
        Action::drag(at(60.0, 90.0), at(90.0, 120.0)),
        Action::scroll(ScrollDirection::Down),
        click(40.0, 80.0),
        Action::hover(at(60.0, 90.0)),
    ];
    let mut shown = Vec::new();
    for (action, think) in steps.into_iter().zip([1500, 3000, 500, 3000, 1500]) {
        if thinks {
            sleep(Duration::from_millis(think)).await;
        }
        let before = probed(&mut environment).await["now"].as_f64().unwrap();
        act(&mut environment, action.clone()).await;
        let cost = probed(&mut environment).await["now"].as_f64().unwrap() - before;
        assert_eq!(cost.round(), 1000.0, "{name}, {action:?}");
        let observation = environment.observe().await;
        shown.push(
            observation.unwrap_or_else(|error| panic!("{name}, {action:?}, thinks: {thinks}: {error}")),
        );
    }
    environment.close().await;
    shown
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn miniwob_pages_look_the_same_however_long_the_policy_thought() {
    let fixture = fixture_with(|_| {}, vec![miniwob_site()]).await;
    let names = ["click-button", "click-checkboxes", "drag-box", "enter-text", "scroll-text", "use-slider"];
    let mut tasks = miniwob_tasks();
    tasks.retain(|task| names.iter().any(|name| task.start_url.ends_with(&format!("{name}.html"))));
    assert!(tasks.len() >= 4, "{} pages", tasks.len());
    let looks = tasks.into_iter().map(|task| async {
        let name = task.start_url.clone();
        let (quick, slow) = tokio::join!(
            observations_on(&fixture, task.clone(), false),
            observations_on(&fixture, task, true)
        );
        for (step, (quick, slow)) in quick.iter().zip(&slow).enumerate() {
            assert!(quick.screenshot.bytes == slow.screenshot.bytes, "{name}, step {step}");
        }
    });
    join_all(looks).await;
    fixture.close().await;
}

/// Like the suites' probes, it reports whether it runs in an error page.
const PROBE: &str = "({ ...window.state, now: performance.now(), age: performance.now() - window.born, away: location.protocol })";

/// A page with one element to click on that covers it.
fn leads(inner: &str) -> String {
    format!(
        "<title>first</title><body style='margin:0'>{inner}<script>state = {{ ended: false }}; born = performance.now(); setTimeout(() => {{ state.ended = true }}, 60000)</script>"
    )
}

const BUTTON: &str = "style='display:block;width:400px;height:200px'";

fn answers(path: &str, _: &str) -> Vec<u8> {
    let next = "<title>next</title><body style='margin:0;background:rgb(1, 2, 3)'>next<script>born = performance.now(); state = { ended: false }; setTimeout(() => { state.later = true }, 400); setTimeout(() => { state.ended = true }, 60000); fetch('/slow-data').then((answer) => answer.text()).then((text) => { state.data = text })</script>";
    match path.split('?').next().unwrap_or_default() {
        "/link" => page("200 OK", "", &leads(&format!("<a href=/next {BUTTON}>go</a>"))),
        "/get" => {
            page("200 OK", "", &leads(&format!("<form action=/next><button {BUTTON}>go</button></form>")))
        }
        "/post" => page(
            "200 OK",
            "",
            &leads(&format!("<form action=/slow method=post><button {BUTTON}>go</button></form>")),
        ),
        "/script" => page(
            "200 OK",
            "",
            &leads(&format!(
                "<button {BUTTON} onclick=\"setTimeout(() => {{ location = '/slow' }}, 900)\">go</button>"
            )),
        ),
        "/missing" => page("200 OK", "", &leads(&format!("<a href=/404 {BUTTON}>go</a>"))),
        "/elsewhere" => {
            page("200 OK", "", &leads(&format!("<a href=http://elsewhere.test/ {BUTTON}>go</a>")))
        }
        "/refused" => page("200 OK", "", &leads(&format!("<a href=http://{HOST}:1/ {BUTTON}>go</a>"))),
        "/tls" => page("200 OK", "", &leads(&format!("<a href=https://{HOST}/ {BUTTON}>go</a>"))),
        "/error" => page("200 OK", "", &leads(&format!("<a href=https://page.test/ {BUTTON}>go</a>"))),
        "/twice" => page("200 OK", "", &leads(&format!("<a href=/once {BUTTON}>go</a>"))),
        "/once" => page(
            "200 OK",
            "",
            "<title>once</title><script>setTimeout(() => { location = '/slow' }, 300)</script>",
        ),
        "/empty" => page("200 OK", "", &leads(&format!("<a href=/204 {BUTTON}>go</a>"))),
        "/hangs" => page("200 OK", "", &leads(&format!("<a href=/never {BUTTON}>go</a>"))),
        "/within" => page("200 OK", "", &leads(&format!("<a href='#here' {BUTTON}>go</a>"))),
        "/204" => b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n".to_vec(),
        "/next" | "/404" => page(if path == "/404" { "404 Not Found" } else { "200 OK" }, "", next),
        "/slow" => page("200 OK", "", next),
        "/slow-data" => page("200 OK", "", "data"),
        _ => page("404 Not Found", "", "<title>none</title>none"),
    }
}

/// A page that an action navigates to is present after the step and can be observed, whether it
/// loads or fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_document_that_an_action_leads_to_is_loaded_and_shown() {
    let server = LiveServer::start(answers).await;
    let pins = vec![format!("{HOST}={}", server.address)];
    let fixture = fixture_with(|file| (file.pins, file.navigation_millis) = (pins, 3_000), vec![]).await;
    // The path that is clicked, and the title of the page after it; none for a page of the browser
    // itself.
    let cases: [(&str, Option<&str>); 13] = [
        ("/link", Some("next")),
        ("/get", Some("next")),
        ("/post", Some("next")),
        ("/script", Some("next")),
        ("/missing", Some("next")),
        ("/twice", Some("next")),
        ("/elsewhere", Some("403 Forbidden")),
        ("/refused", Some("")),
        ("/tls", Some("first")),
        ("/error", None),
        ("/empty", Some("first")),
        ("/hangs", Some("504 Gateway Timeout")),
        ("/within", Some("first")),
    ];
    let looks = cases.iter().flat_map(|case| [(case, 0), (case, 1500)]).map(|((path, title), think)| {
        let fixture = &fixture;
        async move {
            let name = format!("{path} after {think} ms");
            let mut task = task(&pinned(path));
            on_virtual_time(&mut task);
            task.hooks.probe = Some(PROBE.into());
            let mut environment = fixture.pool.open(&assignment(task)).await.unwrap();
            environment.begin().await.unwrap();
            environment.observe().await.unwrap();
            sleep(Duration::from_millis(think)).await;
            let after = async {
                let outcome = environment.act(&click(40.0, 40.0)).await?;
                let outcome = environment.settle(outcome).await?;
                Ok::<_, furrow_env::EnvironmentError>((outcome, environment.observe().await?))
            };
            let after = after.await;
            let mut wrong = Vec::new();
            match &after {
                Err(error) => wrong.push(format!("{name}: {error}")),
                Ok((_, observation)) if title.is_some_and(|title| observation.title != title) => {
                    wrong.push(format!("{name}: {:?} is shown", observation.title));
                }
                Ok((_, observation))
                    if *title == Some("next") && corner_of(observation, 300, 300) != [1, 2, 3] =>
                {
                    wrong.push(format!("{name}: its page is not painted"));
                }
                Ok(_) => {}
            }
            match environment.evidence().await {
                None => wrong.push(format!("{name}: no evidence")),
                Some(evidence) => wrong.extend(evidence_is_wrong(&name, *title, &evidence)),
            }
            // The current page takes part in the next step.
            if wrong.is_empty() {
                sleep(Duration::from_millis(think)).await;
                act(&mut environment, Action::hover(at(500.0, 500.0))).await;
                if let Err(error) = environment.observe().await {
                    wrong.push(format!("{name}, one step later: {error}"));
                }
            }
            environment.close().await;
            wrong
        }
    });
    let wrong: Vec<String> = join_all(looks).await.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    fixture.close().await;
}

fn corner_of(observation: &Observation, x: u32, y: u32) -> [u8; 3] {
    image::load_from_memory(&observation.screenshot.bytes).unwrap().into_rgb8().get_pixel(x, y).0
}

fn evidence_is_wrong(name: &str, title: Option<&str>, evidence: &Evidence) -> Option<String> {
    let probe: Value = serde_json::from_str(evidence.probe_json.as_deref().unwrap_or("null")).unwrap();
    let is_right = match title {
        // A new document was loaded and got the time of a step at most twice.
        Some("next") => {
            let age = probe["age"].as_f64().unwrap_or_default();
            (probe["data"].as_str(), &probe["later"]) == (Some("data"), &json!(true))
                && (500.0..2100.0).contains(&age)
                && probe["ended"] == false
        }
        Some("first") => probe["ended"] == false && evidence.title.as_deref() == title,
        // A page of the egress filter.
        Some(_) => evidence.title.as_deref() == title,
        None => probe.as_object().is_some_and(ErrorPage::is_reported),
    };
    (!is_right).then(|| format!("{name}: {probe}, {:?}", evidence.title))
}
