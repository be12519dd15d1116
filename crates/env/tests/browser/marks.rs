//! Marks name what a person could act on, nothing else, and pages cannot detect them.

use std::collections::BTreeMap;

use furrow_env::Environment;
use furrow_rollout::{ImageFormat, Mark, Observation, ObservationSpec, OutcomeName, PageClock, Size};
use serde_json::json;

use crate::fixture::{BrowserFixture, act, click, fixture_with, state};

async fn fixture() -> BrowserFixture {
    fixture_with(|file| file.marks = true, vec![]).await
}

fn marks(observation: &Observation) -> &[Mark] {
    let marks = observation.marks.as_deref().unwrap();
    assert_eq!(Mark::problem(marks, observation.screenshot.size), None, "{marks:?}");
    marks
}

/// Role and text of each mark, in order.
fn mark_texts(observation: &Observation) -> Vec<String> {
    marks(observation).iter().map(|mark| format!("{} {}", mark.role, mark.text)).collect()
}

async fn check(fixture: &BrowserFixture, body: &str, want: &[&str]) {
    let mut environment = fixture.page(body).await;
    let observation = environment.observe().await.unwrap();
    assert_eq!(mark_texts(&observation), want, "{body}");
    keep(&observation, &format!("{:x}", body.len()));
    environment.close().await;
}

/// Saves the picture for inspection if FURROW_KEEP names a folder.
fn keep(observation: &Observation, name: &str) {
    if let Some(folder) = std::env::var_os("FURROW_KEEP") {
        let folder = std::path::PathBuf::from(folder);
        std::fs::write(folder.join(format!("marks-{name}.png")), &observation.screenshot.bytes).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_to_act_on_is_marked_once() {
    let fixture = fixture().await;
    let form = "<style>body > * { position: absolute; left: 20px }</style>
        <h1 style='top:0'>Settings</h1>
        <a href=/x style='top:60px'>Read <b>more</b></a>
        <label style='top:60px;left:200px'>Name <input placeholder=Ada></label>
        <button style='top:100px'>Save <span>all</span></button>
        <button style='top:100px;left:200px' aria-label='Close window'>x</button>
        <select style='top:140px' title=Colour><option>red<option>green</select>
        <textarea style='top:140px;left:200px' aria-labelledby=about></textarea><p id=about style='top:180px;left:200px;margin:0'>About you</p>
        <input type=checkbox style='top:220px' title=Agree>
        <label style='top:250px'><input type=checkbox style='opacity:0;position:absolute'>Dressed up</label>
        <div role=tab style='top:280px'>Tab one</div>
        <div onclick='0' style='top:310px'>Old style</div>
        <div tabindex=0 style='top:340px'>Focusable</div>
        <div style='top:370px;cursor:pointer'><i>Leaf</i></div>
        <div contenteditable style='top:400px;width:90px'>Write here</div>
        <input type=submit style='top:430px'>
        <a href=/y style='top:430px;left:200px'><img alt=Logo width=30 height=30></a>
        <select multiple size=2 style='top:470px'><option>one<option>two</select>
        <svg width=30 height=30 style='top:470px;left:200px'><circle cx=15 cy=15 r=12 style='cursor:pointer'/></svg>";
    let want = [
        "link Read more",
        "textbox Name",
        "button Save all",
        "button Close window",
        "combobox Colour",
        "textbox About you",
        "checkbox Agree",
        "checkbox Dressed up",
        "tab Tab one",
        "div Old style",
        "div Focusable",
        "i Leaf",
        "textbox Write here",
        "button submit",
        "link Logo",
        "option one",
        "circle ",
        "option two",
    ];
    check(&fixture, form, &want).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_acted_on_is_not_marked() {
    let fixture = fixture().await;
    let hidden = "<style>button { position: absolute; left: 20px; width: 90px }</style>
        <button style='top:10px'>seen</button>
        <button style='top:40px;display:none'>none</button>
        <button style='top:70px;visibility:hidden'>hidden</button>
        <button style='top:100px;opacity:0'>glass</button>
        <button style='top:130px' disabled>disabled</button>
        <button style='top:160px' aria-disabled=true>said to be</button>
        <button style='top:190px'>covered</button><div style='position:absolute;top:185px;width:300px;height:40px;background:silver'></div>
        <button style='top:-60px'>above</button><button style='top:600px'>below</button><button style='left:600px;top:10px'>beside</button>
        <button style='top:250px;width:0;height:0;padding:0;border:0;overflow:hidden'>no size</button>
        <button style='top:280px;pointer-events:none'>out of reach</button>
        <div inert><button style='top:310px'>inert</button></div>
        <input type=hidden value=x><p tabindex=-1>not by keys</p><div role=presentation>words</div><p>words</p>
        <div style='position:absolute;left:200px;top:10px;width:100px;height:50px;overflow:hidden'>
          <button style='left:0;top:0'>in the box</button><button style='left:0;top:40px;height:60px'>half</button><button style='left:0;top:80px'>scrolled away</button></div>
        <div onclick='0' style='position:absolute;left:200px;top:100px;width:200px;height:80px'><a href=/x style='position:absolute;left:0;top:0;width:200px;height:80px'>inner</a></div>";
    check(&fixture, hidden, &["button seen", "button in the box", "button half", "link inner"]).await;
    check(&fixture, "<p>nothing</p>", &[]).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shadow_roots_and_frames_are_looked_into() {
    let fixture = fixture().await;
    std::fs::write(
        fixture.folder.path().join("frame.html"),
        "<body style='margin:0'><button>framed</button><button style='position:absolute;top:150px'>cut off",
    )
    .unwrap();
    let body = "<div id=host></div><div id=lined style='position:absolute;top:60px'>slotted</div>
        <iframe src=frame.html style='position:absolute;left:100px;top:100px;width:200px;height:100px;border:7px solid;padding:3px'></iframe>
        <form style='position:absolute;top:300px'><input name=children title=one><input name=getClientRects title=two><input name=parentNode title=three></form>
        <img name=createTreeWalker><img name=elementFromPoint>
        <script>host.attachShadow({mode: 'open'}).innerHTML = '<button>shadowed</button>';
        lined.attachShadow({mode: 'open'}).innerHTML = '<button><slot></slot></button>'</script>";
    let mut environment = fixture.page(body).await;
    let observation = environment.observe().await.unwrap();
    let found: BTreeMap<_, _> =
        marks(&observation).iter().map(|mark| (mark.text.as_str(), (mark.x, mark.y))).collect();
    keep(&observation, "shadow");
    assert_eq!(found["framed"], (110.0, 110.0), "{found:?}");
    let names: Vec<_> = found.into_keys().collect();
    assert_eq!(names, ["framed", "one", "shadowed", "slotted", "three", "two"]);
    environment.close().await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_page_notices_its_marks() {
    let fixture = fixture().await;
    let body = "<button style='position:absolute;left:40px;top:40px'>go</button><script>
        state = {changes: 0, resized: 0, before: document.documentElement.outerHTML.length};
        new MutationObserver((all) => { state.changes += all.length }).observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
        addEventListener('resize', () => { state.resized++ }); addEventListener('scroll', () => { state.resized++ });
        Document.prototype.elementFromPoint = Element.prototype.getClientRects = () => { state.asked = true; return [] };
        </script>";
    for clock in [PageClock::Real, PageClock::Virtual { step_millis: 1000 }] {
        let mut environment = fixture
            .page_with(body, |task| {
                task.clock = clock;
                task.hooks.probe = Some(
                    "({ ...state, before: document.documentElement.outerHTML.length - state.before })".into(),
                );
            })
            .await;
        let before = state(&mut environment).await;
        let observation = environment.observe().await.unwrap();
        environment.observe().await.unwrap();
        assert_eq!(mark_texts(&observation), ["button go"], "{clock:?}");
        let picture = image::load_from_memory(&observation.screenshot.bytes).unwrap().into_rgb8();
        // The colour of number 1, on its label and on its frame; the page has no such colour.
        for (x, y) in [(40, 23), (41, 45)] {
            assert_eq!(picture.get_pixel(x, y).0, [20, 90, 180], "{clock:?} at {x}, {y}");
        }
        assert_eq!(state(&mut environment).await, before, "{clock:?}");
        assert_eq!((before["changes"].as_u64(), before["resized"].as_u64()), (Some(0), Some(0)));
        let evidence = environment.evidence().await.unwrap();
        let plain = image::load_from_memory(&evidence.screenshot.unwrap()).unwrap().into_rgb8();
        assert_eq!(plain.get_pixel(40, 23).0, [255; 3], "the evidence has no marks");
        environment.close().await;
    }
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_buttons_are_marked_as_far_as_the_limit() {
    let fixture = fixture().await;
    let body = "<style>button{width:7px;height:7px;padding:0;margin:0;border:1px solid gray;float:left}</style><script>
        for (let i = 0; i < 5000; i++) document.write(`<button aria-label='${'\\u{1f600}'.repeat(300)}'></button>`)</script>";
    let mut environment = fixture.page(body).await;
    let observation = environment.observe().await.unwrap();
    let marks = marks(&observation);
    assert_eq!(marks.len(), 1000);
    assert!(marks.iter().all(|mark| mark.text.chars().count() == 200), "{:?}", marks[0]);
    // The first rows of the page, 73 buttons each.
    assert!(marks.iter().all(|mark| mark.y < 14.0 * 7.0), "{:?}", marks.last());
    assert_eq!((marks[73].x, marks[73].y), (0.0, 7.0));
    environment.close().await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_an_open_list_are_marked_and_can_be_clicked() {
    let fixture = fixture().await;
    let body = "<select id=s style='position:absolute;left:40px;top:40px' onchange='state = {value: s.value}'><option>red<option>green<option disabled>none<option>blue</select>
        <button style='position:absolute;left:44px;top:100px'>under it</button><script>state = {}</script>";
    let clip = Some(Size::new(160, 210));
    let mut environment = fixture
        .page_with(body, |task| {
            task.clock = PageClock::Virtual { step_millis: 1000 };
            task.observation =
                ObservationSpec { clip, square: true, format: ImageFormat::Jpeg { quality: 80 } };
        })
        .await;
    let observation = environment.observe().await.unwrap();
    assert_eq!(mark_texts(&observation), ["combobox red", "button under it"]);
    act(&mut environment, click(60.0, 49.0)).await;
    let observation = environment.observe().await.unwrap();
    assert_eq!(observation.screenshot.format, ImageFormat::Jpeg { quality: 80 });
    assert_eq!(image::guess_format(&observation.screenshot.bytes).unwrap(), image::ImageFormat::Jpeg);
    keep(&observation, "list");
    assert_eq!(mark_texts(&observation), ["combobox red", "option red", "option green", "option blue"]);
    let blue = &marks(&observation)[3];
    let outcome = act(&mut environment, click(blue.x + blue.width / 2.0, blue.y + blue.height / 2.0)).await;
    assert_eq!(outcome.name, OutcomeName::OptionChosen);
    assert_eq!(state(&mut environment).await, json!({"value": "blue"}));
    environment.close().await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_marks_are_drawn_unless_requested() {
    let fixture = crate::fixture::fixture().await;
    let mut environment: Box<dyn Environment> = fixture.page("<button>go</button>").await;
    let observation = environment.observe().await.unwrap();
    assert_eq!(observation.marks, None);
    environment.close().await;
    fixture.close().await;
}
