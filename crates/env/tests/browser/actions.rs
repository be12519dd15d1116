//! Each action has the effect on a page that a person's hand would have.

use std::time::Duration;

use furrow_env::Environment;
use furrow_rollout::{
    Action, Modifiers, ObservationSpec, Outcome, OutcomeName, PageClock, PointerButton, ScrollDirection, Size,
};
use serde_json::{Value, json};

use crate::fixture::{BrowserFixture, act, at, click, fixture, state};

/// Executes the actions on a page and compares `window.state` afterwards and the last outcome.
async fn check(
    fixture: &BrowserFixture,
    body: &str,
    actions: Vec<Action>,
    want: Value,
    outcome: OutcomeName,
) {
    let mut environment = fixture.page(body).await;
    let mut last = Outcome::named(OutcomeName::Ok);
    for action in actions {
        // As in an attempt: an observation must not change what the action meets.
        environment.observe().await.unwrap();
        last = act(&mut environment, action).await;
    }
    assert_eq!(state(&mut environment).await, want, "{body} then {last:?}");
    assert_eq!(last.name, outcome, "{body} {last:?}");
    environment.close().await;
}

fn write(into: Option<(f32, f32)>, content: &str, press_enter: bool) -> Action {
    Action::Write { into: into.map(|(x, y)| at(x, y)), content: content.into(), press_enter }
}

fn key(key: &str) -> Action {
    Action::press(key)
}

const FIELD: &str = "<form onsubmit='state.sent = f.value; return false'><input id=f value=old style='position:absolute;left:10px;top:10px;width:200px'></form><script>state = {}; f.onkeydown = (e) => { state.keys = (state.keys ?? 0) + 1 }; f.oninput = () => { state.value = f.value }</script>";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_reaches_the_page_as_real_events() {
    let fixture = fixture().await;
    let ok = OutcomeName::Ok;
    let button = "<button onclick='state = {clicked: event.isTrusted}' style='position:absolute;left:100px;top:100px;width:80px;height:40px'>ok</button>";
    check(&fixture, button, vec![click(140.0, 120.0)], json!({"clicked": true}), ok).await;
    check(&fixture, button, vec![click(50.0, 50.0)], json!({}), ok).await;
    check(&fixture, button, vec![click(600.0, 50.0)], json!({}), OutcomeName::OutsidePage).await;

    check(
        &fixture,
        FIELD,
        vec![write(Some((50.0, 20.0)), "blue mug", true)],
        json!({"keys": 11, "value": "blue mug", "sent": "blue mug"}),
        ok,
    )
    .await;
    check(
        &fixture,
        FIELD,
        vec![write(Some((50.0, 20.0)), "žluťoučký", false)],
        json!({"keys": 7, "value": "žluťoučký"}),
        ok,
    )
    .await;
    check(
        &fixture,
        FIELD,
        vec![click(50.0, 20.0), key("End"), write(None, "er", false)],
        json!({"keys": 3, "value": "older"}),
        ok,
    )
    .await;
    check(
        &fixture,
        FIELD,
        vec![click(50.0, 20.0), key("Control+a"), key("Hyper+x")],
        json!({"keys": 2}),
        OutcomeName::InvalidAction,
    )
    .await;

    let tall = "<div style='height:3000px'></div><script>state = {}; onscroll = () => { state.y = scrollY }</script>";
    let down = Action::scroll(ScrollDirection::Down);
    check(&fixture, tall, vec![down.clone()], json!({"y": 410}), ok).await;
    check(
        &fixture,
        tall,
        vec![down.clone(), down.clone(), Action::scroll(ScrollDirection::Up)],
        json!({"y": 410}),
        ok,
    )
    .await;
    let nested = "<div id=box style='position:absolute;left:56px;top:56px;width:400px;height:400px;overflow:auto'><div style='height:2000px'></div></div><script>state = {}; box.onscroll = () => { state.inner = box.scrollTop > 300 }</script>";
    check(&fixture, nested, vec![down], json!({"inner": true}), ok).await;

    let mouse = "<script>state = {moves: 0}; onmousedown = (e) => { state.from = [e.x, e.y] }; onmousemove = (e) => { if (e.buttons === 1) state.moves++ }; onmouseup = (e) => { state.to = [e.x, e.y] }</script>";
    let drag = Action::drag(at(40.0, 50.0), at(240.0, 150.0));
    check(&fixture, mouse, vec![drag.clone()], json!({"moves": 6, "from": [40, 50], "to": [240, 150]}), ok)
        .await;
    let native = "<div draggable=true id=d style='position:absolute;left:20px;top:30px;width:60px;height:40px;background:red' ondragstart='event.dataTransfer.setData(\"text\", \"it\")'></div><div style='position:absolute;left:200px;top:100px;width:100px;height:100px;background:blue' ondragover='event.preventDefault()' ondrop='state = {dropped: event.dataTransfer.getData(\"text\")}'></div>";
    check(&fixture, native, vec![drag], json!({"dropped": "it"}), ok).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buttons_counts_and_points_are_those_of_the_action() {
    let fixture = fixture().await;
    let ok = OutcomeName::Ok;
    let box_style = "<div style='position:absolute;left:0;top:0;width:400px;height:300px'>some words here</div><script>state = {}; for (const kind of ['click', 'dblclick', 'contextmenu', 'auxclick']) addEventListener(kind, (e) => { e.preventDefault(); state[kind] = (state[kind] ?? 0) + 1; state.at = [e.x, e.y] }); onmousedown = (e) => { state.detail = e.detail; state.button = e.button }</script>";
    let pressed = |at, button, count| Action::Click { at, button, count, modifiers: Modifiers::NONE };
    let there = at(40.0, 12.0);
    check(
        &fixture,
        box_style,
        vec![pressed(Some(there), PointerButton::Left, 2)],
        json!({"click": 2, "dblclick": 1, "at": [40, 12], "detail": 2, "button": 0}),
        ok,
    )
    .await;
    check(
        &fixture,
        box_style,
        vec![pressed(Some(there), PointerButton::Right, 1)],
        json!({"contextmenu": 1, "auxclick": 1, "at": [40, 12], "detail": 1, "button": 2}),
        ok,
    )
    .await;
    // Without a point: at the mouse position of the previous action.
    check(
        &fixture,
        box_style,
        vec![Action::hover(at(90.0, 30.0)), pressed(None, PointerButton::Middle, 1)],
        json!({"auxclick": 1, "at": [90, 30], "detail": 1, "button": 1}),
        ok,
    )
    .await;

    let menu = "<div style='position:absolute;left:10px;top:10px;width:100px;height:40px' onmouseenter='state = {open: true}'>menu</div><script>state = {}</script>";
    check(&fixture, menu, vec![Action::hover(at(50.0, 30.0))], json!({"open": true}), ok).await;

    let boxes = "<div id=box style='position:absolute;left:20px;top:20px;width:100px;height:100px;overflow:auto'><div style='height:900px'></div></div><div style='height:3000px'></div><script>state = {}; box.onscroll = () => { state.inner = box.scrollTop }; onscroll = () => { state.outer = scrollY }</script>";
    let wheel = |at, pixels| Action::Scroll {
        at,
        direction: ScrollDirection::Down,
        pixels,
        modifiers: Modifiers::NONE,
    };
    check(&fixture, boxes, vec![wheel(Some(at(60.0, 60.0)), Some(150))], json!({"inner": 150}), ok).await;
    check(&fixture, boxes, vec![wheel(Some(at(300.0, 200.0)), Some(150))], json!({"outer": 150}), ok).await;

    let four = Action::PressKey { key: "x".into(), times: 4 };
    check(
        &fixture,
        FIELD,
        vec![click(50.0, 20.0), key("Control+a"), four],
        json!({"keys": 6, "value": "xxxx"}),
        ok,
    )
    .await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_actions_are_done_until_one_goes_wrong() {
    let fixture = fixture().await;
    let done = vec![click(50.0, 20.0), key("Control+a"), write(None, "mug", true)];
    let want = json!({"keys": 6, "value": "mug", "sent": "mug"});
    check(&fixture, FIELD, vec![Action::Several(done)], want, OutcomeName::Ok).await;

    let mut environment = fixture.page(FIELD).await;
    let wrong = vec![click(50.0, 20.0), key("Hyper+x"), write(None, "mug", true)];
    let outcome = act(&mut environment, Action::Several(wrong)).await;
    assert_eq!(outcome.name, OutcomeName::InvalidAction);
    assert!(
        outcome.detail.starts_with("action 2: ") && outcome.detail.ends_with("; 1 after it were skipped"),
        "{outcome:?}"
    );
    assert_eq!(state(&mut environment).await, json!({}));
    // One point is outside the page, so that none of the actions is executed.
    let outside = vec![click(50.0, 20.0), write(None, "mug", true), click(9000.0, 20.0)];
    assert_eq!(act(&mut environment, Action::Several(outside)).await.name, OutcomeName::OutsidePage);
    assert_eq!(state(&mut environment).await, json!({}));
    environment.close().await;
    fixture.close().await;
}

/// A select with these options at a position; the page reports the selected value.
fn list(style: &str, options: &str) -> String {
    format!(
        "<select id=s style='position:absolute;{style}' onchange='state = {{value: s.value}}'>{options}</select><script>state = {{}}</script>"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_click_on_a_drawn_row_of_a_native_list_chooses_it() {
    let fixture = fixture().await;
    let chosen = OutcomeName::OptionChosen;
    let six: String = (0..6).map(|index| format!("<option>Row {index}</option>")).collect();
    let value = |value: &str| json!({ "value": value });
    // Below: the field ends at 59, rows of 24 px from 60 on.
    check(
        &fixture,
        &list("left:40px;top:40px", &six),
        vec![click(60.0, 49.0), click(60.0, 132.0)],
        value("Row 3"),
        chosen,
    )
    .await;
    // 16 px: the field ends at 61, rows of 26 px.
    check(
        &fixture,
        &list("left:40px;top:40px;font-size:16px", &six),
        vec![click(60.0, 49.0), click(60.0, 205.0)],
        value("Row 5"),
        chosen,
    )
    .await;
    // No space below: rows from 308 on.
    check(
        &fixture,
        &list("left:40px;bottom:40px", &six),
        vec![click(60.0, 462.0), click(60.0, 344.0)],
        value("Row 1"),
        chosen,
    )
    .await;
    let mixed =
        "<option>one<optgroup label=G><option>two<option>three</optgroup><option disabled>no<hr><option>yes";
    check(
        &fixture,
        &list("left:40px;top:40px", mixed),
        vec![click(60.0, 49.0), click(60.0, 140.0)],
        value("three"),
        chosen,
    )
    .await;
    check(
        &fixture,
        &list("left:40px;top:40px", mixed),
        vec![click(60.0, 49.0), click(60.0, 164.0), click(60.0, 190.0)],
        value("yes"),
        chosen,
    )
    .await;
    // Upwards from a chosen option, and away from the list.
    let fifth = six.replace("<option>Row 4", "<option selected>Row 4");
    check(
        &fixture,
        &list("left:40px;top:40px", &fifth),
        vec![click(60.0, 49.0), click(60.0, 84.0)],
        value("Row 1"),
        chosen,
    )
    .await;
    check(
        &fixture,
        &list("left:40px;top:40px", &six),
        vec![click(60.0, 49.0), click(400.0, 400.0), click(60.0, 132.0)],
        json!({}),
        OutcomeName::Ok,
    )
    .await;
    fixture.close().await;
}

/// A click hits what the policy sees: with either clock, and in a picture of only a part of the
/// page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_option_of_an_open_list_can_be_chosen() {
    let fixture = fixture().await;
    let six: String = (0..6).map(|index| format!("<option>Row {index}</option>")).collect();
    let body = list("left:40px;top:40px", &six);
    let open = async |environment: &mut Box<dyn Environment>| {
        let screenshot = environment.observe().await.unwrap().screenshot;
        let screenshot = image::load_from_memory(&screenshot.bytes).unwrap().into_rgb8();
        // Beside the text of row 3; without the list the page is white there.
        screenshot.get_pixel(95, 132).0 != [255; 3]
    };
    for clock in [PageClock::Real, PageClock::Virtual { step_millis: 1000 }] {
        for clip in [None, Some(Size::new(160, 210))] {
            let mut environment = fixture
                .page_with(&body, |task| {
                    task.clock = clock;
                    task.observation = ObservationSpec { clip, square: clip.is_some(), ..task.observation };
                })
                .await;
            let case = format!("{clock:?} {clip:?}");
            assert!(!open(&mut environment).await, "{case}: open before the click");
            act(&mut environment, click(60.0, 49.0)).await;
            assert!(open(&mut environment).await, "{case}: not shown open");
            assert!(open(&mut environment).await, "{case}: the observation closed it");
            let outcome = act(&mut environment, click(60.0, 132.0)).await;
            assert_eq!(outcome.name, OutcomeName::OptionChosen, "{case}");
            assert_eq!(state(&mut environment).await, json!({"value": "Row 3"}), "{case}");
            assert!(!open(&mut environment).await, "{case}: still shown open");
            // A list that the page closed by itself is not open any more: the click goes to the
            // page.
            act(&mut environment, click(60.0, 49.0)).await;
            assert!(open(&mut environment).await, "{case}: not open again");
            environment.act(&Action::press("Escape")).await.unwrap();
            let outcome = act(&mut environment, click(60.0, 180.0)).await;
            assert_eq!(outcome.name, OutcomeName::Ok, "{case}");
            assert_eq!(state(&mut environment).await, json!({"value": "Row 3"}), "{case}");
            environment.close().await;
        }
    }
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_navigation_works_in_both_directions() {
    let fixture = fixture().await;
    std::fs::write(fixture.folder.path().join("next.html"), "<title>next</title>").unwrap();
    let link = "<a href=next.html style='position:absolute;left:10px;top:10px'>next page</a><script>state = {first: 1}</script>";
    let mut environment = fixture.page(link).await;
    act(&mut environment, click(30.0, 18.0)).await;
    let observation = environment.observe().await.unwrap();
    assert_eq!(
        (observation.title.as_str(), observation.url.as_str()),
        ("next", "http://page.test/next.html")
    );
    assert_eq!(act(&mut environment, Action::GoBack).await.name, OutcomeName::Ok);
    assert_eq!(environment.observe().await.unwrap().title, "test");
    assert_eq!(act(&mut environment, Action::GoBack).await.name, OutcomeName::NoHistory);
    assert_eq!(act(&mut environment, Action::GoForward).await.name, OutcomeName::Ok);
    assert_eq!(environment.observe().await.unwrap().title, "next");
    assert_eq!(act(&mut environment, Action::GoForward).await.name, OutcomeName::NoHistory);
    act(&mut environment, Action::Goto { url: "http://page.test/next.html".into() }).await;
    assert_eq!(environment.observe().await.unwrap().title, "next");
    act(&mut environment, Action::Refresh).await;
    assert_eq!(environment.observe().await.unwrap().title, "next");
    act(&mut environment, Action::Restart).await;
    assert_eq!(environment.observe().await.unwrap().title, "test");
    for url in [
        "file:///etc/passwd",
        "http://127.0.0.1:9222/json/list",
        "chrome://version",
        "http://elsewhere.test/",
        "http://[::1]/",
    ] {
        let outcome = act(&mut environment, Action::Goto { url: url.into() }).await;
        assert_eq!(outcome.name, OutcomeName::OffList, "{url} {outcome:?}");
        assert_eq!(environment.observe().await.unwrap().title, "test", "{url} was loaded");
    }
    environment.close().await;

    let opener = "<a href=next.html target=_blank style='position:absolute;left:10px;top:10px'>new tab</a>";
    let mut environment = fixture.page(opener).await;
    act(&mut environment, click(30.0, 18.0)).await;
    let observation = environment.observe().await.unwrap();
    let titles: Vec<_> = observation.tabs.iter().map(|tab| (tab.title.as_str(), tab.active)).collect();
    assert_eq!(titles, [("test", false), ("next", true)]);
    assert_eq!(act(&mut environment, Action::SelectTab { index: 0 }).await.name, OutcomeName::Ok);
    assert_eq!(environment.observe().await.unwrap().title, "test");
    assert_eq!(act(&mut environment, Action::SelectTab { index: 2 }).await.name, OutcomeName::NoSuchTab);
    let open = |url: &str| Action::OpenTab { url: url.into() };
    assert_eq!(act(&mut environment, open("http://page.test/next.html")).await.name, OutcomeName::Ok);
    assert_eq!(act(&mut environment, open("about:blank")).await.name, OutcomeName::Ok);
    assert_eq!(act(&mut environment, open("http://elsewhere.test/")).await.name, OutcomeName::OffList);
    let observation = environment.observe().await.unwrap();
    let titles: Vec<_> = observation.tabs.iter().map(|tab| (tab.title.as_str(), tab.active)).collect();
    assert_eq!(titles, [("test", false), ("next", false), ("next", false), ("", true)]);
    environment.close().await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_is_looked_at_when_it_is_quiet() {
    let fixture = fixture().await;
    let late = "<button style='position:absolute;left:0;top:0;width:99px;height:99px' onclick='setTimeout(async () => { const r = await fetch(\"late.txt\"); document.body.append(await r.text()); state = {late: true} }, 5)'>go</button><script>state = {}</script>";
    std::fs::write(fixture.folder.path().join("late.txt"), "here").unwrap();
    check(&fixture, late, vec![click(40.0, 40.0)], json!({"late": true}), OutcomeName::Ok).await;
    let restless =
        "<p id=p></p><script>state = {}; setInterval(() => { p.textContent = Math.random() }, 10)</script>";
    check(&fixture, restless, vec![click(40.0, 40.0)], json!({}), OutcomeName::NotSettled).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn virtual_time_stands_still_between_actions() {
    let fixture = fixture().await;
    let clock = "<button style='position:absolute;left:0;top:0;width:99px;height:99px' onclick='state.clicks++'>go</button><script>state = {clicks: 0, fired: 0}; setTimeout(() => { state.fired++ }, 60000)</script>";
    let mut environment = fixture
        .page_with(clock, |task| {
            task.clock = PageClock::Virtual { step_millis: 25_000 };
            task.hooks.probe = Some("({ ...state, now: Math.round(performance.now() / 1000) })".into());
        })
        .await;
    let began = state(&mut environment).await["now"].as_i64().unwrap();
    environment.observe().await.unwrap();
    environment.observe().await.unwrap();
    assert_eq!(state(&mut environment).await["now"], began, "an observation takes no page time");
    for _ in 0..2 {
        act(&mut environment, click(40.0, 40.0)).await;
    }
    assert_eq!(state(&mut environment).await, json!({"clicks": 2, "fired": 0, "now": began + 50}));
    act(&mut environment, click(40.0, 40.0)).await;
    assert_eq!(state(&mut environment).await, json!({"clicks": 3, "fired": 1, "now": began + 75}));
    act(&mut environment, Action::Wait { seconds: 10 }).await;
    assert_eq!(state(&mut environment).await["now"], began + 85);
    act(&mut environment, Action::drag(at(10.0, 10.0), at(60.0, 60.0))).await;
    act(&mut environment, Action::scroll(ScrollDirection::Down)).await;
    // A loading page gets its time and can be observed afterwards.
    for action in [Action::Refresh, Action::Restart, Action::GoBack] {
        act(&mut environment, action).await;
        environment.observe().await.unwrap();
        assert_eq!(state(&mut environment).await["clicks"], 0);
    }
    environment.close().await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caret_stands_still() {
    let fixture = fixture().await;
    let body = "<style>input { font-size: 60px; outline: none; border: 0 }</style><input autofocus>";
    let mut environment = fixture.page(body).await;
    let mut observation = Vec::new();
    for _ in 0..8 {
        observation.push(environment.observe().await.unwrap().screenshot.bytes);
        // A blinking caret is invisible for 500 ms after 500 ms.
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    let first = &observation[0];
    assert!(
        observation.iter().all(|bytes| bytes == first),
        "it blinks: {:?}",
        observation.iter().map(|bytes| bytes == first).collect::<Vec<_>>()
    );
    act(&mut environment, key("Tab")).await;
    assert_ne!(&environment.observe().await.unwrap().screenshot.bytes, first, "it was not there at all");
    environment.close().await;
    fixture.close().await;
}
