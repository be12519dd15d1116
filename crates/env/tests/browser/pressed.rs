//! Keys and buttons that stay down: what later actions are under them, and when they are released.

use furrow_env::Environment;
use furrow_rollout::*;
use serde_json::{Value, json};

use crate::fixture::{BrowserFixture, act, at, click, fixture, state};

/// Writes down keys and clicks as `+Shift`, `-Shift`, `click s`, with the modifiers of the event.
const LISTENER: &str = "<script>state = []; \
    const mods = (e) => (e.shiftKey ? 's' : '') + (e.ctrlKey ? 'c' : '') + (e.altKey ? 'a' : '') + (e.metaKey ? 'm' : ''); \
    onkeydown = (e) => state.push('+' + e.key + (e.repeat ? '*' : '')); onkeyup = (e) => state.push('-' + e.key); \
    onclick = (e) => state.push(('click ' + mods(e)).trim()); \
    onmousedown = (e) => state.push('down' + e.button); onmouseup = (e) => state.push('up' + e.button); \
    onmousemove = (e) => { if (e.buttons) state.moves = (state.moves ?? 0) + 1 }</script>";

const LEFT: PointerButton = PointerButton::Left;

fn down(key: &str) -> Action {
    Action::KeyDown { key: key.into() }
}

fn up(key: &str) -> Action {
    Action::KeyUp { key: key.into() }
}

fn press(key: &str) -> Action {
    Action::press(key)
}

fn goto(url: &str) -> Action {
    Action::Goto { url: url.into() }
}

fn write(content: &str) -> Action {
    Action::Write { into: None, content: content.into(), press_enter: false }
}

/// Each action with the detail of its outcome.
async fn run(environment: &mut Box<dyn Environment>, actions: Vec<(Action, &str)>) {
    for (action, detail) in actions {
        environment.observe().await.unwrap();
        let outcome = act(environment, action.clone()).await;
        assert_eq!(outcome.detail, detail, "{action:?} {outcome:?}");
    }
}

#[track_caller]
fn check(got: &Value, want: &[&str]) {
    assert_eq!(*got, json!(want));
}

const REAL: PageClock = PageClock::Real;
const VIRTUAL: PageClock = PageClock::Virtual { step_millis: 1000 };

async fn page(fixture: &BrowserFixture, body: &str, clock: PageClock) -> Box<dyn Environment> {
    fixture.page_with(&format!("{body}{LISTENER}"), |task| task.clock = clock).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_buttons_stay_down_from_step_to_step() {
    let fixture = fixture().await;
    for clock in [REAL, VIRTUAL] {
        let mut environment = page(&fixture, "", clock).await;
        let steps = vec![
            (down("Shift"), ""),
            (down("shift"), "Shift was already down"),
            (click(50.0, 50.0), ""),
            (press("a"), ""),
            (up("Shift"), ""),
            (up("Shift"), "Shift was not down"),
            (click(50.0, 50.0), ""),
            (Action::MouseDown { at: Some(at(60.0, 60.0)), button: LEFT }, ""),
            (Action::MouseDown { at: None, button: LEFT }, "the left button was already down"),
            (Action::hover(at(90.0, 90.0)), ""),
            (Action::MouseUp { at: Some(at(120.0, 60.0)), button: LEFT }, ""),
            (Action::MouseUp { at: None, button: LEFT }, "the left button was not down"),
        ];
        run(&mut environment, steps).await;
        let want = [
            "+Shift", "down0", "up0", "click s", "+A", "-A", "-Shift", "down0", "up0", "click", "down0",
            "up0", "click",
        ];
        check(&state(&mut environment).await, &want);
        environment.close().await;
    }
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_document_or_tab_finds_nothing_down() {
    let fixture = fixture().await;
    let next = format!("<!doctype html><title>next</title>{LISTENER}");
    std::fs::write(fixture.folder.path().join("next.html"), next).unwrap();
    let url = "http://page.test/next.html";
    for clock in [REAL, VIRTUAL] {
        let mut environment = page(&fixture, "", clock).await;
        let steps = vec![
            (down("Control"), ""),
            (Action::MouseDown { at: Some(at(60.0, 60.0)), button: LEFT }, ""),
            (goto(url), "Control, the left button released, because the page changed"),
            (click(50.0, 50.0), ""),
            (up("Control"), "Control was not down"),
        ];
        run(&mut environment, steps).await;
        // The new document hears the releases, as it would from hardware.
        check(&state(&mut environment).await, &["up0", "-Control", "down0", "up0", "click"]);
        environment.close().await;

        // The tab in the background hears them where it is.
        let mut environment = page(&fixture, "", clock).await;
        let steps = vec![
            (down("Shift"), ""),
            (Action::OpenTab { url: url.into() }, "Shift released, because the page changed"),
            (click(50.0, 50.0), ""),
        ];
        run(&mut environment, steps).await;
        check(&state(&mut environment).await, &["down0", "up0", "click"]);
        run(&mut environment, vec![(Action::SelectTab { index: 0 }, "")]).await;
        check(&state(&mut environment).await, &["+Shift", "-Shift"]);

        // Within a document, keys stay down.
        let steps =
            vec![(down("Shift"), ""), (goto(&format!("{}#part", current(&mut environment).await)), "")];
        run(&mut environment, steps).await;
        run(&mut environment, vec![(up("Shift"), "")]).await;
        environment.close().await;
    }
    fixture.close().await;
}

async fn current(environment: &mut Box<dyn Environment>) -> String {
    environment.observe().await.unwrap().url
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_stops_half_way_releases_what_it_meant_to() {
    let fixture = fixture().await;
    for clock in [REAL, VIRTUAL] {
        let mut environment = page(&fixture, "", clock).await;
        let steps = vec![
            down("Shift"),
            Action::MouseDown { at: Some(at(9.0, 9.0)), button: LEFT },
            press("Hyper+a"),
            press("b"),
            Action::MouseUp { at: Some(at(300.0, 300.0)), button: LEFT },
            up("Shift"),
        ];
        let detail = "action 3: there is no key \"Hyper+a\"; use names such as Enter, Tab, ArrowDown or Control+a; \
                      3 after it were skipped, and the left button, Shift released";
        run(&mut environment, vec![(down("Alt"), ""), (Action::Several(steps), detail)]).await;
        // The mouse stays where it was: nothing is dragged to a point that a skipped action named.
        let released = ["+Alt", "+Shift", "down0", "up0", "click sa", "-Shift"];
        check(&state(&mut environment).await, &released);
        run(&mut environment, vec![(up("Alt"), "")]).await;
        // Details of single actions are kept.
        let steps = vec![down("Shift"), down("Shift"), up("Shift")];
        let detail = "action 2: Shift was already down";
        run(&mut environment, vec![(Action::Several(steps), detail)]).await;
        environment.close().await;
    }
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_so_many_keys_stay_down() {
    let fixture = fixture().await;
    let mut environment = page(&fixture, "", REAL).await;
    for key in ["q", "w", "e", "r", "t", "y", "u", "i"] {
        assert_eq!(act(&mut environment, down(key)).await.name, OutcomeName::Ok);
    }
    let outcome = act(&mut environment, down("o")).await;
    assert_eq!(outcome.name, OutcomeName::InvalidAction);
    let why = "at most 8 keys stay down; release one of q, w, e, r, t, y, u, i first";
    assert_eq!(outcome.detail, why);
    assert_eq!(act(&mut environment, down("Hyper")).await.name, OutcomeName::InvalidAction);
    environment.close().await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_under_a_modifier_is_what_a_keyboard_types() {
    let fixture = fixture().await;
    for clock in [REAL, VIRTUAL] {
        let field =
            "<input id=f style='position:absolute;left:10px;top:10px' oninput='state.value = f.value'>";
        let body = format!("{field}<script>state = {{}}</script>");
        let mut environment = fixture.page_with(&body, |task| task.clock = clock).await;
        let steps = vec![
            (click(20.0, 20.0), ""),
            (down("Shift"), ""),
            (write("ab1é"), "it was typed while Shift was down"),
            (up("Shift"), ""),
            (write("c"), ""),
        ];
        run(&mut environment, steps).await;
        assert_eq!(state(&mut environment).await, json!({"value": "AB!éc"}));
        environment.close().await;
    }
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_kept_down_repeats() {
    let fixture = fixture().await;
    for clock in [REAL, VIRTUAL] {
        let body = "<script>state = {repeats: 0}; onkeydown = (e) => { if (e.repeat) state.repeats++; else state.began = performance.now() }; \
            onkeyup = () => { state.millis = Math.round((performance.now() - state.began) / 100) * 100 }</script>";
        let mut environment = fixture.page_with(body, |task| task.clock = clock).await;
        let hold = |key: &str, millis| Action::HoldKey { key: key.into(), millis };
        act(&mut environment, hold("w", 725)).await;
        let got = state(&mut environment).await;
        assert_eq!(got["repeats"], 5, "{clock:?} {got}");
        assert!(got["millis"].as_u64().unwrap() >= 700, "{clock:?} {got}");
        act(&mut environment, hold("Shift", 300)).await;
        let got = state(&mut environment).await;
        assert_eq!(got["repeats"], 5, "{clock:?} {got}");
        assert!(got["millis"].as_u64().unwrap() >= 300, "{clock:?} {got}");
        environment.close().await;
    }
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn modifiers_change_what_a_click_does() {
    let fixture = fixture().await;
    std::fs::write(fixture.folder.path().join("next.html"), "<!doctype html><title>next</title>").unwrap();
    let with = |x, y, modifier| Action::Click {
        at: Some(at(x, y)),
        button: LEFT,
        count: 1,
        modifiers: Modifiers::NONE.with(modifier),
    };
    let link = "<a href=next.html style='position:absolute;left:10px;top:10px'>next page</a>";
    let mut environment = fixture.page(link).await;
    act(&mut environment, with(30.0, 18.0, Modifier::Control)).await;
    let titles = |observation: Observation| -> Vec<String> {
        observation.tabs.into_iter().map(|tab| tab.title).collect()
    };
    assert_eq!(titles(environment.observe().await.unwrap()), ["test", "next"]);
    environment.close().await;

    // The selection is extended from the first click to the second.
    let text = "<p style='position:absolute;left:10px;top:10px;margin:0;font:20px monospace'>0123456789</p>\
        <script>document.onselectionchange = () => { state = {text: String(getSelection())} }</script>";
    let mut environment = fixture.page(text).await;
    act(&mut environment, click(12.0, 20.0)).await;
    act(&mut environment, with(70.0, 20.0, Modifier::Shift)).await;
    assert_eq!(state(&mut environment).await, json!({"text": "01234"}));
    environment.close().await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drag_over_several_steps_is_one_drag() {
    let fixture = fixture().await;
    let native = "<div draggable=true style='position:absolute;left:20px;top:30px;width:60px;height:40px;background:red' ondragstart='event.dataTransfer.setData(\"text\", \"it\")'></div><div style='position:absolute;left:200px;top:100px;width:100px;height:100px;background:blue' ondragover='event.preventDefault()' ondrop='state = {dropped: event.dataTransfer.getData(\"text\")}'></div><script>state = {}</script>";
    let slider = "<input type=range id=r min=0 max=100 value=0 style='position:absolute;left:10px;top:10px;width:200px;margin:0' oninput='state = {value: r.value > 30}'><script>state = {}</script>";
    for (body, from, to, want) in [
        (native, at(40.0, 50.0), at(240.0, 150.0), json!({"dropped": "it"})),
        (slider, at(15.0, 18.0), at(120.0, 18.0), json!({"value": true})),
    ] {
        for clock in [REAL, VIRTUAL] {
            let mut environment = fixture.page_with(body, |task| task.clock = clock).await;
            let steps = vec![
                (Action::MouseDown { at: Some(from), button: LEFT }, ""),
                (Action::hover(at(100.0, 90.0)), ""),
                (Action::hover(to), ""),
                (Action::MouseUp { at: None, button: LEFT }, ""),
            ];
            run(&mut environment, steps).await;
            assert_eq!(state(&mut environment).await, want, "{clock:?} {body}");
            environment.close().await;
        }
    }
    fixture.close().await;
}
