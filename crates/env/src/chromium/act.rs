//! Actions as real input events: what a page sees is what a person's mouse and keyboard would send.

use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::input::{
    DispatchDragEventParams, DispatchDragEventType, DispatchKeyEventParams, DispatchKeyEventType,
    DispatchMouseEventParams, DispatchMouseEventType, EventDragIntercepted, InsertTextParams, MouseButton,
    SetInterceptDragsParams,
};
use chromiumoxide::keys::{KeyDefinition, USKEYBOARD_LAYOUT};
use furrow_rollout::{Button, Direction, PagePoint, Size};
use futures::StreamExt;
use futures::future::try_join_all;

use super::tab::{Tab, listen};
use crate::stage::StageError;

/// Longer texts are inserted at once instead of being typed key by key: 200 keys are 400 events.
const TYPED_CHARS_MAX: usize = 200;

/// Stops between the two ends of a drag; fewer and a page takes it for a click.
const DRAG_STOPS: u8 = 6;

/// Share of a screen that a scroll without a distance moves: a fifth stays in view.
const MOST_OF_A_SCREEN: f64 = 0.8;

/// Time a page gets to say that a native drag began.
const DRAG_BEGINS: Duration = Duration::from_millis(120);

/// Moves, presses and releases so many times. Sent together and delivered in order: one round trip instead of three. The second press of a
/// double click says that it is the second, as a mouse driver would.
pub(super) async fn click(tab: &Tab, at: PagePoint, button: Button, count: u8) -> Result<(), StageError> {
    let button = match button {
        Button::Left => MouseButton::Left,
        Button::Middle => MouseButton::Middle,
        Button::Right => MouseButton::Right,
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

/// Moves the mouse and leaves it.
pub(super) async fn hover(tab: &Tab, at: PagePoint) -> Result<(), StageError> {
    let moved = mouse(DispatchMouseEventType::MouseMoved, at, MouseButton::None);
    tab.call(moved, tab.deadlines.input, "moving the mouse").await.map(drop)
}

/// Replaces what the field at a point holds, or types where the focus is.
pub(super) async fn write(
    tab: &Tab,
    into: Option<PagePoint>,
    content: &str,
    press_enter: bool,
) -> Result<(), StageError> {
    if let Some(at) = into {
        click(tab, at, Button::Left, 1).await?;
        select_all(tab).await?;
        if content.is_empty() {
            press(tab, "Delete").await?;
        }
    }
    match content.chars().map(typed).collect::<Option<Vec<_>>>() {
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

/// Turns the wheel at a point, or at the centre: what scrolls there scrolls, be it the page or a box in it. So many pixels, or most of a
/// screen.
pub(super) async fn scroll(
    tab: &Tab,
    at: Option<PagePoint>,
    direction: Direction,
    pixels: Option<u32>,
    viewport: Size,
) -> Result<(), StageError> {
    let far = |side: u32| pixels.map_or(MOST_OF_A_SCREEN * f64::from(side), f64::from);
    let (width, height) = (far(viewport.width), far(viewport.height));
    let (x, y) = match direction {
        Direction::Down => (0.0, height),
        Direction::Up => (0.0, -height),
        Direction::Right => (width, 0.0),
        Direction::Left => (-width, 0.0),
    };
    let centre = PagePoint { x: viewport.width as f32 / 2.0, y: viewport.height as f32 / 2.0 };
    let mut wheel = mouse(DispatchMouseEventType::MouseWheel, at.unwrap_or(centre), MouseButton::None);
    (wheel.delta_x, wheel.delta_y) = (Some(x), Some(y));
    tab.call(wheel, tab.deadlines.input, "scrolling").await.map(drop)
}

/// Presses at one point, moves, releases at another. Works for pages that follow the mouse and for those that use native dragging: the
/// latter is intercepted, because headless Chromium has no desktop to drag over.
pub(super) async fn drag(tab: &Tab, from: PagePoint, to: PagePoint) -> Result<(), StageError> {
    let mut intercepted = listen::<EventDragIntercepted>(&tab.page).await?;
    let send = |event: DispatchMouseEventParams| tab.call(event, tab.deadlines.input, "a drag");
    tab.call(SetInterceptDragsParams::new(true), tab.deadlines.input, "a drag").await?;
    send(mouse(DispatchMouseEventType::MouseMoved, from, MouseButton::None)).await?;
    send(mouse(DispatchMouseEventType::MousePressed, from, MouseButton::Left)).await?;
    let mut native = None;
    for stop in 1..=DRAG_STOPS {
        let at = between(from, to, f32::from(stop) / f32::from(DRAG_STOPS));
        // Once a native drag begins, the page hears of it instead of the mouse.
        let moved = send(held(mouse(DispatchMouseEventType::MouseMoved, at, MouseButton::Left)));
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
pub(super) async fn press(tab: &Tab, name: &str) -> Result<(), StageError> {
    let Some((modifiers, key)) = key_named(name) else {
        return Err(StageError::Failed(format!("there is no key {name:?}")));
    };
    press_times(tab, key, modifiers, 1).await
}

/// The same so many times.
pub(super) async fn press_times(tab: &Tab, key: Key, modifiers: i64, times: u64) -> Result<(), StageError> {
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

/// A key of the keyboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    pub key: &'static str,
    pub code: &'static str,
    pub number: i64,
    pub text: Option<&'static str>,
}

const ALT: i64 = 1;
const CONTROL: i64 = 2;
const META: i64 = 4;
const SHIFT: i64 = 8;

/// A key by its name in `KeyboardEvent.key`, with modifiers before it: their bits and the key.
pub(super) fn key_named(name: &str) -> Option<(i64, Key)> {
    // The last plus may be the key itself: `Control++`.
    let (before, last) = match name.strip_suffix("++") {
        Some(before) => (before, "+"),
        None if name == "+" => ("", "+"),
        None => name.rsplit_once('+').unwrap_or(("", name)),
    };
    let mut modifiers = 0;
    for modifier in before.split('+').filter(|word| !word.is_empty()) {
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
    Some((modifiers, Key::of(found)))
}

impl Key {
    fn of(definition: &'static KeyDefinition) -> Self {
        let text = match definition.key {
            "Enter" => Some("\r"),
            "Tab" => None,
            key if key.chars().count() == 1 => Some(definition.text.unwrap_or(key)),
            _ => definition.text,
        };
        Self { key: definition.key, code: definition.code, number: definition.key_code, text }
    }
}

/// All keys, those of the number block last: the library lists its arrows and digits before the others.
fn keyboard() -> impl Iterator<Item = &'static KeyDefinition> {
    let on_the_block = |definition: &&KeyDefinition| definition.code.starts_with("Numpad");
    let others = USKEYBOARD_LAYOUT.iter().filter(move |definition| !on_the_block(definition));
    others.chain(USKEYBOARD_LAYOUT.iter().filter(on_the_block))
}

/// The key that writes a character, if the keyboard has one. A line's end is Enter.
fn typed(character: char) -> Option<Key> {
    let mut text = [0; 4];
    let text: &str = if character == '\n' { "Enter" } else { character.encode_utf8(&mut text) };
    keyboard().find(|definition| definition.key == text).map(Key::of)
}

async fn select_all(tab: &Tab) -> Result<(), StageError> {
    press(tab, "Control+a").await
}

/// What a shortcut does to text. The desktop would know it, which headless Chromium has not.
fn editing_command(key: Key, modifiers: i64) -> Option<&'static str> {
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

fn key_event(kind: DispatchKeyEventType, key: Key, modifiers: i64) -> DispatchKeyEventParams {
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

/// The same with the left button down.
fn held(mut event: DispatchMouseEventParams) -> DispatchMouseEventParams {
    (event.buttons, event.click_count) = (Some(1), Some(0));
    event
}

fn between(from: PagePoint, to: PagePoint, share: f32) -> PagePoint {
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
        assert_eq!(typed('A').map(|key| key.code), Some("KeyA"));
        assert_eq!(typed('\n').map(|key| key.text), Some(Some("\r")));
        assert_eq!(typed('é'), None);
    }
}
