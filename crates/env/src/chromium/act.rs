//! Actions as real input events: a page receives what a person's mouse and keyboard would send.

use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::input::{
    DispatchDragEventParams, DispatchDragEventType, DispatchKeyEventParams, DispatchKeyEventType,
    DispatchMouseEventParams, DispatchMouseEventType, EventDragIntercepted, InsertTextParams, MouseButton,
    SetInterceptDragsParams,
};
use chromiumoxide::keys::{KeyDefinition, USKEYBOARD_LAYOUT};
use furrow_rollout::{PagePoint, PointerButton, ScrollDirection, Size};
use futures::StreamExt;
use futures::future::try_join_all;

use super::link::listen;
use super::tab::BrowserTab;
use crate::environment::EnvironmentError;

/// Longer texts are inserted at once instead of key by key: 200 keys are 400 events.
const TYPED_CHARS_MAX: usize = 200;

/// Intermediate mouse positions of a drag; with fewer, a page takes the drag for a click.
const DRAG_STOPS: u8 = 6;

/// Share of a screen that a scroll without a distance moves: a fifth stays in view.
const SCROLL_SCREEN_SHARE: f64 = 0.8;

/// Time a page gets to report the start of a native drag.
const DRAG_BEGINS: Duration = Duration::from_millis(120);

/// Moves, presses and releases a number of times. The events are sent together and delivered in
/// order: one round trip instead of three. The second press of a double click carries its click
/// count, as from a mouse driver.
pub(super) async fn click(
    tab: &BrowserTab,
    at: PagePoint,
    button: PointerButton,
    count: u8,
) -> Result<(), EnvironmentError> {
    let button = match button {
        PointerButton::Left => MouseButton::Left,
        PointerButton::Middle => MouseButton::Middle,
        PointerButton::Right => MouseButton::Right,
    };
    let pair = |nth| {
        [DispatchMouseEventType::MousePressed, DispatchMouseEventType::MouseReleased].map(|kind| {
            let mut event = mouse(kind, at, button.clone());
            event.click_count = Some(i64::from(nth));
            event
        })
    };
    let moved = mouse(DispatchMouseEventType::MouseMoved, at, MouseButton::None);
    let events = std::iter::once(moved).chain((1..=count).flat_map(pair));
    try_join_all(events.map(|event| tab.call(event, tab.deadlines.input, "a click"))).await.map(drop)
}

/// Moves the mouse and leaves it there.
pub(super) async fn hover(tab: &BrowserTab, at: PagePoint) -> Result<(), EnvironmentError> {
    let moved = mouse(DispatchMouseEventType::MouseMoved, at, MouseButton::None);
    tab.call(moved, tab.deadlines.input, "moving the mouse").await.map(drop)
}

/// Replaces the content of the field at a point, or types at the current focus.
pub(super) async fn write(
    tab: &BrowserTab,
    into: Option<PagePoint>,
    content: &str,
    press_enter: bool,
) -> Result<(), EnvironmentError> {
    if let Some(at) = into {
        click(tab, at, PointerButton::Left, 1).await?;
        select_all(tab).await?;
        if content.is_empty() {
            press(tab, "Delete").await?;
        }
    }
    match content.chars().map(key_for_char).collect::<Option<Vec<_>>>() {
        Some(keys) if keys.len() <= TYPED_CHARS_MAX => {
            let events = keys.into_iter().flat_map(|key| {
                [
                    key_event(DispatchKeyEventType::KeyDown, key, 0),
                    key_event(DispatchKeyEventType::KeyUp, key, 0),
                ]
            });
            try_join_all(events.map(|event| tab.call(event, tab.deadlines.input, "typing"))).await?;
        }
        _ => {
            tab.call(InsertTextParams::new(content), tab.deadlines.input, "typing").await?;
        }
    }
    if press_enter { press(tab, "Enter").await } else { Ok(()) }
}

/// Turns the mouse wheel at a point, or at the centre, which scrolls whatever scrolls there: the
/// page or a box in it. The distance is in pixels and defaults to most of a screen.
pub(super) async fn scroll(
    tab: &BrowserTab,
    at: Option<PagePoint>,
    direction: ScrollDirection,
    pixels: Option<u32>,
    viewport: Size,
) -> Result<(), EnvironmentError> {
    let far = |side: u32| pixels.map_or(SCROLL_SCREEN_SHARE * f64::from(side), f64::from);
    let width = far(viewport.width);
    let height = far(viewport.height);
    let (x, y) = match direction {
        ScrollDirection::Down => (0.0, height),
        ScrollDirection::Up => (0.0, -height),
        ScrollDirection::Right => (width, 0.0),
        ScrollDirection::Left => (-width, 0.0),
    };
    let centre = PagePoint { x: viewport.width as f32 / 2.0, y: viewport.height as f32 / 2.0 };
    let mut wheel = mouse(DispatchMouseEventType::MouseWheel, at.unwrap_or(centre), MouseButton::None);
    (wheel.delta_x, wheel.delta_y) = (Some(x), Some(y));
    tab.call(wheel, tab.deadlines.input, "scrolling").await.map(drop)
}

/// Presses at one point, moves, and releases at another. Works for pages that follow the mouse and
/// for those that use native dragging: the latter is intercepted, because headless Chromium has no
/// desktop to drag over.
pub(super) async fn drag(tab: &BrowserTab, from: PagePoint, to: PagePoint) -> Result<(), EnvironmentError> {
    let mut intercepted = listen::<EventDragIntercepted>(&tab.page).await?;
    let send = |event: DispatchMouseEventParams| tab.call(event, tab.deadlines.input, "a drag");
    tab.call(SetInterceptDragsParams::new(true), tab.deadlines.input, "a drag").await?;
    send(mouse(DispatchMouseEventType::MouseMoved, from, MouseButton::None)).await?;
    send(mouse(DispatchMouseEventType::MousePressed, from, MouseButton::Left)).await?;
    let mut native = None;
    for stop in 1..=DRAG_STOPS {
        let at = interpolate(from, to, f32::from(stop) / f32::from(DRAG_STOPS));
        // Once a native drag begins, the page receives drag events instead of mouse events.
        let moved = send(with_left_button(mouse(DispatchMouseEventType::MouseMoved, at, MouseButton::Left)));
        tokio::select! {
            moved = moved => { moved?; }
            Some(event) = intercepted.next() => native = Some(event.data.clone()),
        }
        if native.is_none() && stop == 2 {
            native = tokio::time::timeout(DRAG_BEGINS, intercepted.next())
                .await
                .ok()
                .flatten()
                .map(|event| event.data.clone());
        }
        if native.is_some() {
            break;
        }
    }
    if let Some(data) = native {
        for kind in
            [DispatchDragEventType::DragEnter, DispatchDragEventType::DragOver, DispatchDragEventType::Drop]
        {
            let event = DispatchDragEventParams::new(kind, f64::from(to.x), f64::from(to.y), data.clone());
            tab.call(event, tab.deadlines.input, "a drag").await?;
        }
    }
    send(mouse(DispatchMouseEventType::MouseReleased, to, MouseButton::Left)).await?;
    tab.call(SetInterceptDragsParams::new(false), tab.deadlines.input, "a drag").await.map(drop)
}

/// Presses a key with its modifiers, such as `Control+a`.
pub(super) async fn press(tab: &BrowserTab, name: &str) -> Result<(), EnvironmentError> {
    let Some((modifiers, key)) = key_named(name) else {
        return Err(EnvironmentError::Failed(format!("there is no key {name:?}")));
    };
    press_times(tab, key, modifiers, 1).await
}

/// Presses a key several times.
pub(super) async fn press_times(
    tab: &BrowserTab,
    key: KeyboardKey,
    modifiers: i64,
    times: u64,
) -> Result<(), EnvironmentError> {
    let writes = key.text.is_some() && modifiers & !SHIFT == 0;
    let kind = if writes { DispatchKeyEventType::KeyDown } else { DispatchKeyEventType::RawKeyDown };
    let mut down = key_event(kind, key, modifiers);
    down.commands = editing_command(key, modifiers).map(|command| vec![command.to_owned()]);
    let up = key_event(DispatchKeyEventType::KeyUp, key, modifiers);
    for _ in 0..times {
        let events = [down.clone(), up.clone()];
        try_join_all(events.map(|event| tab.call(event, tab.deadlines.input, "a key"))).await?;
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyboardKey {
    pub key: &'static str,
    pub code: &'static str,
    pub number: i64,
    pub text: Option<&'static str>,
}

const ALT: i64 = 1;
const CONTROL: i64 = 2;
const META: i64 = 4;
const SHIFT: i64 = 8;

/// Parses a key name as in `KeyboardEvent.key`, with modifiers before it: returns the modifiers'
/// bits and the key.
pub(super) fn key_named(name: &str) -> Option<(i64, KeyboardKey)> {
    // The last plus may be the key itself: `Control++`.
    let (before, last) = match name.strip_suffix("++") {
        Some(before) => (before, "+"),
        None if name == "+" => ("", "+"),
        None => name.rsplit_once('+').unwrap_or(("", name)),
    };
    let mut modifiers = 0;
    for modifier in before.split('+').filter(|part| !part.is_empty()) {
        modifiers |= match modifier.to_ascii_lowercase().as_str() {
            "alt" | "option" => ALT,
            "control" | "ctrl" => CONTROL,
            "meta" | "cmd" | "command" => META,
            "shift" => SHIFT,
            _ => return None,
        };
    }
    let alias = match last.to_ascii_lowercase().as_str() {
        "return" => "Enter",
        "esc" => "Escape",
        "space" | "spacebar" => " ",
        "del" => "Delete",
        "up" => "ArrowUp",
        "down" => "ArrowDown",
        "left" => "ArrowLeft",
        "right" => "ArrowRight",
        "pgup" => "PageUp",
        "pgdn" => "PageDown",
        _ => last,
    };
    let same = |definition: &&KeyDefinition| definition.key == alias;
    let like = |definition: &&KeyDefinition| definition.key.eq_ignore_ascii_case(alias) && alias.len() > 1;
    let found = keyboard().find(same).or_else(|| keyboard().find(like))?;
    Some((modifiers, KeyboardKey::from_definition(found)))
}

impl KeyboardKey {
    fn from_definition(definition: &'static KeyDefinition) -> Self {
        let text = match definition.key {
            "Enter" => Some("\r"),
            "Tab" => None,
            key if key.chars().count() == 1 => Some(definition.text.unwrap_or(key)),
            _ => definition.text,
        };
        Self { key: definition.key, code: definition.code, number: definition.key_code, text }
    }
}

/// All keys, with those of the number pad last: the library lists its arrows and digits before the
/// others.
fn keyboard() -> impl Iterator<Item = &'static KeyDefinition> {
    let on_the_block = |definition: &&KeyDefinition| definition.code.starts_with("Numpad");
    let others = USKEYBOARD_LAYOUT.iter().filter(move |definition| !on_the_block(definition));
    others.chain(USKEYBOARD_LAYOUT.iter().filter(on_the_block))
}

/// The key that types a character, if the keyboard has one. A line feed is Enter.
fn key_for_char(character: char) -> Option<KeyboardKey> {
    let mut text = [0; 4];
    let text: &str = if character == '\n' { "Enter" } else { character.encode_utf8(&mut text) };
    keyboard().find(|definition| definition.key == text).map(KeyboardKey::from_definition)
}

async fn select_all(tab: &BrowserTab) -> Result<(), EnvironmentError> {
    press(tab, "Control+a").await
}

/// The editing command of a shortcut. A desktop would supply it, but headless Chromium has none.
fn editing_command(key: KeyboardKey, modifiers: i64) -> Option<&'static str> {
    match (modifiers, key.key) {
        (CONTROL | META, "a") => Some("selectAll"),
        (CONTROL | META, "c") => Some("copy"),
        (CONTROL | META, "v") => Some("paste"),
        (CONTROL | META, "x") => Some("cut"),
        (CONTROL | META, "z") => Some("undo"),
        (CONTROL | META, "y") => Some("redo"),
        _ => None,
    }
}

fn key_event(kind: DispatchKeyEventType, key: KeyboardKey, modifiers: i64) -> DispatchKeyEventParams {
    let text = (kind == DispatchKeyEventType::KeyDown).then_some(key.text).flatten().map(str::to_owned);
    let mut event = DispatchKeyEventParams::new(kind);
    event.modifiers = Some(modifiers);
    event.unmodified_text = text.clone();
    event.text = text;
    event.key = Some(key.key.to_owned());
    event.code = Some(key.code.to_owned());
    event.windows_virtual_key_code = Some(key.number);
    event
}

fn mouse(kind: DispatchMouseEventType, at: PagePoint, button: MouseButton) -> DispatchMouseEventParams {
    let clicks = i64::from(button != MouseButton::None);
    let mut event = DispatchMouseEventParams::new(kind, f64::from(at.x), f64::from(at.y));
    event.button = Some(button);
    event.click_count = Some(clicks);
    event
}

/// The same event with the left button down.
fn with_left_button(mut event: DispatchMouseEventParams) -> DispatchMouseEventParams {
    (event.buttons, event.click_count) = (Some(1), Some(0));
    event
}

fn interpolate(from: PagePoint, to: PagePoint, share: f32) -> PagePoint {
    PagePoint { x: from.x + (to.x - from.x) * share, y: from.y + (to.y - from.y) * share }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, want: Option<(i64, &str, &str)>) {
        let got = key_named(name).map(|(modifiers, key)| (modifiers, key.key, key.code));
        assert_eq!(got, want, "{name}");
    }

    #[test]
    fn keys_are_called_as_pages_call_them() {
        check("Enter", Some((0, "Enter", "Enter")));
        check("enter", Some((0, "Enter", "Enter")));
        check("Return", Some((0, "Enter", "Enter")));
        check("Control+a", Some((CONTROL, "a", "KeyA")));
        check("ctrl+shift+ArrowDown", Some((CONTROL | SHIFT, "ArrowDown", "ArrowDown")));
        check("Esc", Some((0, "Escape", "Escape")));
        check("Control++", Some((CONTROL, "+", "NumpadAdd")));
        check("Hyper+a", None);
        check("Launch", None);
        check("", None);
    }

    #[test]
    fn texts_of_the_keyboard_are_typed_and_others_inserted() {
        assert_eq!(key_for_char('A').map(|key| key.code), Some("KeyA"));
        assert_eq!(key_for_char('\n').map(|key| key.text), Some(Some("\r")));
        assert_eq!(key_for_char('é'), None);
    }
}
