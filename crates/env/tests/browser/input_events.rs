//! A page hears of our actions what it hears of Playwright's keyboard and mouse, event by event.
//!
//! `input_events/playwright.json` is what Playwright's events were, with its version and the
//! browser's. `tests/peers/playwright_input.mjs` writes it anew; tests/peers/README.md has the
//! command.

use furrow_env::{Environment, EnvironmentFactory};
use furrow_rollout::*;
use serde_json::{Map, Value};

use crate::fixture::{BrowserFixture, act, assignment, at, click, fixture, task};

const PAGE: &str = include_str!("input_events/page.html");
const PLAYWRIGHT: &str = include_str!("input_events/playwright.json");

/// What differs and why. `-` is an event that only Playwright's page hears, `+` one that only ours
/// does; both with the case in which they do.
const DIFFERENCES: &[(&str, &[&str], &str)] = &[
    (
        "press Shift+a",
        &[
            "- keydown field key=a code=KeyA keyCode=65 location=0 repeat=false modifiers=shift",
            "- keypress field key=a code=KeyA keyCode=97 location=0 repeat=false modifiers=shift",
            "- beforeinput field inputType=insertText data=a isComposing=false",
            "- input field inputType=insertText data=a isComposing=false",
            "- keyup field key=a code=KeyA keyCode=65 location=0 repeat=false modifiers=shift",
            "+ keydown field key=A code=KeyA keyCode=65 location=0 repeat=false modifiers=shift",
            "+ keypress field key=A code=KeyA keyCode=65 location=0 repeat=false modifiers=shift",
            "+ beforeinput field inputType=insertText data=A isComposing=false",
            "+ input field inputType=insertText data=A isComposing=false",
            "+ keyup field key=A code=KeyA keyCode=65 location=0 repeat=false modifiers=shift",
        ],
        "A key types what it does with Shift on a keyboard; Playwright types what the key is called.",
    ),
    (
        "press Shift+1",
        &[
            "- keydown field key=1 code=Digit1 keyCode=49 location=0 repeat=false modifiers=shift",
            "- keypress field key=1 code=Digit1 keyCode=49 location=0 repeat=false modifiers=shift",
            "- beforeinput field inputType=insertText data=1 isComposing=false",
            "- input field inputType=insertText data=1 isComposing=false",
            "- keyup field key=1 code=Digit1 keyCode=49 location=0 repeat=false modifiers=shift",
            "+ keydown field key=! code=Digit1 keyCode=49 location=0 repeat=false modifiers=shift",
            "+ keypress field key=! code=Digit1 keyCode=33 location=0 repeat=false modifiers=shift",
            "+ beforeinput field inputType=insertText data=! isComposing=false",
            "+ input field inputType=insertText data=! isComposing=false",
            "+ keyup field key=! code=Digit1 keyCode=49 location=0 repeat=false modifiers=shift",
        ],
        "A key types what it does with Shift on a keyboard; Playwright types what the key is called.",
    ),
    (
        "key held over other actions",
        &[
            "- keydown field key=a code=KeyA keyCode=65 location=0 repeat=false modifiers=shift",
            "- keypress field key=a code=KeyA keyCode=97 location=0 repeat=false modifiers=shift",
            "- beforeinput field inputType=insertText data=a isComposing=false",
            "- input field inputType=insertText data=a isComposing=false",
            "- keyup field key=a code=KeyA keyCode=65 location=0 repeat=false modifiers=shift",
            "+ keydown field key=A code=KeyA keyCode=65 location=0 repeat=false modifiers=shift",
            "+ keypress field key=A code=KeyA keyCode=65 location=0 repeat=false modifiers=shift",
            "+ beforeinput field inputType=insertText data=A isComposing=false",
            "+ input field inputType=insertText data=A isComposing=false",
            "+ keyup field key=A code=KeyA keyCode=65 location=0 repeat=false modifiers=shift",
        ],
        "A key types what it does with Shift on a keyboard; Playwright types what the key is called.",
    ),
    (
        "key pressed twice",
        &[
            "- keydown field key=w code=KeyW keyCode=87 location=0 repeat=true modifiers=",
            "- keypress field key=w code=KeyW keyCode=119 location=0 repeat=true modifiers=",
            "- beforeinput field inputType=insertText data=w isComposing=false",
            "- input field inputType=insertText data=w isComposing=false",
        ],
        "A key that is down cannot be pressed; the outcome says so, and nothing is sent.",
    ),
    (
        "drag what the page drags",
        &[
            "- dragenter  x=275 y=100 button=0 buttons=0 detail=0 modifiers=",
            "- dragover  x=280 y=120 button=0 buttons=0 detail=0 modifiers=",
            "- dragover  x=285 y=140 button=0 buttons=0 detail=0 modifiers=",
            "- dragenter target x=290 y=160 button=0 buttons=0 detail=0 modifiers=",
            "- dragleave  x=290 y=160 button=0 buttons=0 detail=0 modifiers=",
            "- dragover target x=295 y=180 button=0 buttons=0 detail=0 modifiers=",
            "+ dragenter target x=300 y=200 button=0 buttons=0 detail=0 modifiers=",
            "+ pointerup target x=300 y=200 button=0 buttons=0 detail=0 pressure=0 pointerType=mouse modifiers=",
            "+ mouseup target x=300 y=200 button=0 buttons=0 detail=0 modifiers=",
        ],
        "A native drag goes to its end at once, and the button is released there after the drop.",
    ),
];

fn press(key: &str) -> Vec<Action> {
    vec![click(100.0, 25.0), Action::press(key)]
}

fn on_pad(button: PointerButton, count: u8, modifiers: Modifiers) -> Vec<Action> {
    vec![Action::Click { at: Some(at(60.0, 300.0)), button, count, modifiers }]
}

fn wheel(pixels: u32, modifiers: Modifiers) -> Action {
    let at = Some(at(100.0, 200.0));
    Action::Scroll { at, direction: ScrollDirection::Down, pixels: Some(pixels), modifiers }
}

fn write(content: &str) -> Action {
    Action::Write { into: None, content: content.into(), press_enter: false }
}

fn down(key: &str) -> Action {
    Action::KeyDown { key: key.into() }
}

fn up(key: &str) -> Action {
    Action::KeyUp { key: key.into() }
}

fn mouse_down(x: f32, y: f32) -> Action {
    Action::MouseDown { at: Some(at(x, y)), button: PointerButton::Left }
}

/// Our actions of a case of the same name.
fn actions(case: &str) -> Vec<Action> {
    let control = Modifiers::NONE.with(Modifier::Control);
    let shift = Modifiers::NONE.with(Modifier::Shift);
    let release = Action::MouseUp { at: None, button: PointerButton::Left };
    let hover = |x, y| Action::hover(at(x, y));
    if let Some(key) = case.strip_prefix("press ") {
        return press(key);
    }
    match case {
        "type composed characters" => vec![click(100.0, 25.0), write("aB é ñ 日本!")],
        "type lines" => vec![click(100.0, 90.0), write("a\nb")],
        "write into a field" => {
            vec![Action::Write { into: Some(at(100.0, 25.0)), content: "new".into(), press_enter: true }]
        }
        "hover" => vec![hover(300.0, 25.0)],
        "click" => on_pad(PointerButton::Left, 1, Modifiers::NONE),
        "double click" => on_pad(PointerButton::Left, 2, Modifiers::NONE),
        "triple click" => on_pad(PointerButton::Left, 3, Modifiers::NONE),
        "right click" => on_pad(PointerButton::Right, 1, Modifiers::NONE),
        "middle click" => on_pad(PointerButton::Middle, 1, Modifiers::NONE),
        "Control click" => on_pad(PointerButton::Left, 1, control),
        "Control+Shift click" => on_pad(PointerButton::Left, 1, control.with(Modifier::Shift)),
        "Shift hover" => vec![Action::Move { at: at(300.0, 25.0), modifiers: shift }],
        "wheel" => vec![hover(100.0, 200.0), wheel(150, Modifiers::NONE)],
        "Shift wheel" => vec![hover(100.0, 200.0), wheel(150, shift)],
        "drag" => vec![Action::drag(at(40.0, 300.0), at(100.0, 360.0))],
        "drag what the page drags" => vec![Action::drag(at(270.0, 80.0), at(300.0, 200.0))],
        "button held over other actions" => vec![
            mouse_down(40.0, 300.0),
            hover(100.0, 360.0),
            Action::press("x"),
            Action::MouseUp { at: Some(at(160.0, 300.0)), button: PointerButton::Left },
        ],
        "two buttons" => {
            let right = PointerButton::Right;
            let both =
                [Action::MouseDown { at: None, button: right }, Action::MouseUp { at: None, button: right }];
            [vec![mouse_down(40.0, 300.0)], both.into(), vec![release]].concat()
        }
        "key held over other actions" => vec![
            click(100.0, 25.0),
            down("Shift"),
            Action::press("a"),
            Action::press("ArrowLeft"),
            hover(60.0, 300.0),
            click(60.0, 300.0),
            Action::Scroll {
                at: Some(at(60.0, 300.0)),
                direction: ScrollDirection::Down,
                pixels: Some(90),
                modifiers: Modifiers::NONE,
            },
            up("Shift"),
        ],
        "two keys held" => vec![click(100.0, 25.0), down("w"), down("d"), up("w"), up("d")],
        "key pressed twice" => vec![click(100.0, 25.0), down("w"), down("w"), up("w")],
        other => panic!("playwright.json has a case {other:?} without actions"),
    }
}

/// What the page heard of these actions.
async fn heard(fixture: &BrowserFixture, actions: &[Action]) -> Vec<Value> {
    std::fs::write(fixture.folder.path().join("events.html"), PAGE).unwrap();
    let mut task = task("http://page.test/events.html");
    task.hooks.probe = Some("events".into());
    let mut environment: Box<dyn Environment> = fixture.pool.open(&assignment(task)).await.unwrap();
    environment.begin().await.unwrap();
    for action in actions {
        // As in an attempt: an observation must add nothing.
        environment.observe().await.unwrap();
        let outcome = act(&mut environment, action.clone()).await;
        assert_eq!(outcome.name, OutcomeName::Ok, "{action:?} {outcome:?}");
    }
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let events = environment.probe().await.unwrap().unwrap();
    environment.close().await;
    serde_json::from_str(&events).unwrap()
}

/// Lines of a difference: the longest common part is left out.
fn differences(theirs: &[String], ours: &[String]) -> Vec<String> {
    let mut common = vec![vec![0; ours.len() + 1]; theirs.len() + 1];
    for (i, their) in theirs.iter().enumerate().rev() {
        for (j, our) in ours.iter().enumerate().rev() {
            common[i][j] = match their == our {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let mut lines = Vec::new();
    let mut i = 0;
    let mut j = 0;
    while i < theirs.len() || j < ours.len() {
        if i < theirs.len() && j < ours.len() && theirs[i] == ours[j] {
            (i, j) = (i + 1, j + 1);
        } else if j == ours.len() || (i < theirs.len() && common[i + 1][j] >= common[i][j + 1]) {
            lines.push(format!("- {}", theirs[i]));
            i += 1;
        } else {
            lines.push(format!("+ {}", ours[j]));
            j += 1;
        }
    }
    lines
}

/// An event in one line: `keydown field key=A code=KeyA … modifiers=shift`.
fn line(event: &Value) -> String {
    let fields = event.as_object().unwrap();
    let value = |key: &str| match &fields[key] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let rest = fields.keys().filter(|key| !["type", "on"].contains(&key.as_str()));
    let rest: Vec<String> = rest.map(|key| format!(" {key}={}", value(key))).collect();
    format!("{} {}{}", value("type"), value("on"), rest.concat())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_hears_what_it_hears_of_playwright() {
    let peer: Value = serde_json::from_str(PLAYWRIGHT).unwrap();
    let cases: &Map<String, Value> = peer["cases"].as_object().unwrap();
    assert!(cases.len() >= 35, "{} cases", cases.len());
    for (case, _, _) in DIFFERENCES {
        assert!(cases.contains_key(*case), "a difference is of {case:?}, which is no case");
    }
    let fixture = fixture().await;
    let mut wrong = Vec::new();
    for (case, theirs) in cases {
        let theirs: Vec<String> = theirs.as_array().unwrap().iter().map(line).collect();
        let ours: Vec<String> = heard(&fixture, &actions(case)).await.iter().map(line).collect();
        let found = differences(&theirs, &ours);
        let named = DIFFERENCES.iter().find(|(of, _, _)| of == case).map_or(&[][..], |(_, lines, _)| *lines);
        if found != named {
            wrong.push(format!("{case}:\n  {}\ninstead of\n  {}", found.join("\n  "), named.join("\n  ")));
        }
    }
    fixture.close().await;
    assert!(
        wrong.is_empty(),
        "{} with Playwright {}:\n{}",
        peer["chromium"],
        peer["playwright"],
        wrong.join("\n")
    );
}
