//! Actions as real input events: a page receives what a person's mouse and keyboard would send.

use std::time::Duration;

use chromiumoxide::cdp::browser_protocol::input::{
    DispatchDragEventParams, DispatchDragEventType, DragData, EventDragIntercepted, InsertTextParams,
    SetInterceptDragsParams,
};
use chromiumoxide::listeners::EventStream;
use furrow_rollout::{Modifiers, PagePoint, PointerButton, ScrollDirection, Size};
use futures::StreamExt;
use futures::future::try_join_all;

use super::drag_start::DragStartWatch;
use super::input::{InputEvent, InputState};
use super::keyboard::{KeyChord, KeyboardKey};
use super::link::listen;
use super::tab::BrowserTab;
use crate::environment::EnvironmentError;

/// Longer texts are inserted at once instead of key by key: 200 keys are 400 events.
const TYPED_CHARS_MAX: usize = 200;

/// Mouse positions of a move with a button down; with fewer, a page takes a drag for a click.
const DRAG_STOPS: u8 = 6;

/// Share of a screen that a scroll without a distance moves: a fifth stays in view.
const SCROLL_SCREEN_SHARE: f64 = 0.8;

/// Time for the report of a native drag that the page's own event did not announce: one in a frame
/// of another site.
const DRAG_BEGINS: Duration = Duration::from_millis(120);

/// Sends events together; they are delivered in order. One round trip instead of one for each.
pub(super) async fn send(
    tab: &BrowserTab,
    events: Vec<InputEvent>,
    what: &'static str,
) -> Result<(), EnvironmentError> {
    let deadline = tab.deadlines.input;
    let one = async |event| match event {
        InputEvent::Key(event) => tab.call(*event, deadline, what).await.map(drop),
        InputEvent::Mouse(event) => tab.call(*event, deadline, what).await.map(drop),
        InputEvent::Text(text) => tab.call(text, deadline, what).await.map(drop),
    };
    try_join_all(events.into_iter().map(one)).await.map(drop)
}

/// Moves, presses and releases a number of times.
pub(super) async fn click(
    tab: &BrowserTab,
    input: &mut InputState,
    at: PagePoint,
    button: PointerButton,
    count: u8,
    modifiers: Modifiers,
) -> Result<(), EnvironmentError> {
    let mut events = Vec::new();
    let pressed = press_modifiers(input, modifiers, &mut events);
    // A button that is down cannot be pressed.
    if input.is_button_down(button) {
        send(tab, std::mem::take(&mut events), "a click").await?;
        release_button(tab, input, button).await?;
    }
    if input.has_button_down() {
        send(tab, std::mem::take(&mut events), "a click").await?;
        move_mouse(tab, input, at).await?;
    } else {
        events.push(input.move_mouse(at));
    }
    for number in 1..=count {
        events.push(input.press_button(button, number));
        events.push(input.release_button(button, number));
    }
    input.release_all(&pressed, &mut events);
    send(tab, events, "a click").await
}

/// Moves the mouse and leaves it there.
pub(super) async fn hover(
    tab: &BrowserTab,
    input: &mut InputState,
    at: PagePoint,
    modifiers: Modifiers,
) -> Result<(), EnvironmentError> {
    let mut events = Vec::new();
    let pressed = press_modifiers(input, modifiers, &mut events);
    if input.has_button_down() {
        send(tab, std::mem::take(&mut events), "moving the mouse").await?;
        move_mouse(tab, input, at).await?;
    } else {
        events.push(input.move_mouse(at));
    }
    input.release_all(&pressed, &mut events);
    send(tab, events, "moving the mouse").await
}

/// Clicks a field and selects its content, which the next input replaces.
pub(super) async fn select_field(
    tab: &BrowserTab,
    input: &mut InputState,
    at: PagePoint,
) -> Result<(), EnvironmentError> {
    click(tab, input, at, PointerButton::Left, 1, Modifiers::NONE).await?;
    press(tab, input, "Control+a").await
}

/// Replaces the content of the field at a point, or types at the current focus.
pub(super) async fn write(
    tab: &BrowserTab,
    input: &mut InputState,
    into: Option<PagePoint>,
    content: &str,
    press_enter: bool,
) -> Result<(), EnvironmentError> {
    if let Some(at) = into {
        select_field(tab, input, at).await?;
        if content.is_empty() {
            press(tab, input, "Delete").await?;
        }
    }
    let is_short = content.chars().nth(TYPED_CHARS_MAX).is_none();
    let events = match is_short {
        true => content.chars().flat_map(|character| input.type_char(character)).collect(),
        false => vec![InputEvent::Text(InsertTextParams::new(content))],
    };
    send(tab, events, "typing").await?;
    if press_enter { press(tab, input, "Enter").await } else { Ok(()) }
}

/// Turns the mouse wheel at a point, or at the centre, which scrolls whatever scrolls there: the
/// page or a box in it. The distance is in pixels and defaults to most of a screen.
pub(super) async fn scroll(
    tab: &BrowserTab,
    input: &mut InputState,
    at: Option<PagePoint>,
    (direction, pixels): (ScrollDirection, Option<u32>),
    viewport: Size,
    modifiers: Modifiers,
) -> Result<(), EnvironmentError> {
    let far = |side: u32| pixels.map_or(SCROLL_SCREEN_SHARE * f64::from(side), f64::from);
    let width = far(viewport.width);
    let height = far(viewport.height);
    let delta = match direction {
        ScrollDirection::Down => (0.0, height),
        ScrollDirection::Up => (0.0, -height),
        ScrollDirection::Right => (width, 0.0),
        ScrollDirection::Left => (-width, 0.0),
    };
    let centre = PagePoint { x: viewport.width as f32 / 2.0, y: viewport.height as f32 / 2.0 };
    let mut events = Vec::new();
    let pressed = press_modifiers(input, modifiers, &mut events);
    events.push(input.turn_wheel(at.unwrap_or(centre), delta));
    // A page hears of the wheel later than of keys that are sent with it.
    send(tab, events, "scrolling").await?;
    let mut events = Vec::new();
    input.release_all(&pressed, &mut events);
    send(tab, events, "scrolling").await
}

/// Presses the left button at one point, moves, and releases it at another.
pub(super) async fn drag(
    tab: &BrowserTab,
    input: &mut InputState,
    from: PagePoint,
    to: PagePoint,
    modifiers: Modifiers,
) -> Result<(), EnvironmentError> {
    let mut events = Vec::new();
    let pressed = press_modifiers(input, modifiers, &mut events);
    send(tab, events, "a drag").await?;
    press_button(tab, input, Some(from), PointerButton::Left).await?;
    move_mouse(tab, input, to).await?;
    release_button(tab, input, PointerButton::Left).await?;
    let mut events = Vec::new();
    input.release_all(&pressed, &mut events);
    send(tab, events, "a drag").await
}

/// Presses a button at a point, or where the mouse is, and leaves it down.
pub(super) async fn press_button(
    tab: &BrowserTab,
    input: &mut InputState,
    at: Option<PagePoint>,
    button: PointerButton,
) -> Result<(), EnvironmentError> {
    if input.is_button_down(button) {
        release_button(tab, input, button).await?;
    }
    if let Some(at) = at {
        move_mouse(tab, input, at).await?;
    }
    let event = input.press_button(button, 1);
    send(tab, vec![event], "pressing a button").await
}

/// Releases a button where the mouse is; what the page drags natively is dropped there.
pub(super) async fn release_button(
    tab: &BrowserTab,
    input: &mut InputState,
    button: PointerButton,
) -> Result<(), EnvironmentError> {
    let end = (button == PointerButton::Left).then(|| input.dragged.take()).flatten();
    if let Some(data) = end {
        let PagePoint { x, y } = input.mouse();
        let drop =
            DispatchDragEventParams::new(DispatchDragEventType::Drop, f64::from(x), f64::from(y), data);
        tab.call(drop, tab.deadlines.input, "a drag").await?;
    }
    let was_decided = input.drag_decided;
    let event = input.release_button(button, 1);
    send(tab, vec![event], "releasing a button").await?;
    if button == PointerButton::Left && was_decided {
        intercept_drags(tab, false).await?;
    }
    Ok(())
}

/// Moves the mouse with whatever is down. With a button down the page gets positions on the way.
/// Works for pages that follow the mouse and for those that use native dragging: the latter is
/// intercepted, because headless Chromium has no desktop to drag over.
pub(super) async fn move_mouse(
    tab: &BrowserTab,
    input: &mut InputState,
    to: PagePoint,
) -> Result<(), EnvironmentError> {
    if !input.has_button_down() {
        let event = input.move_mouse(to);
        return send(tab, vec![event], "moving the mouse").await;
    }
    if input.dragged.is_some() {
        input.set_mouse(to);
        return drag_over(tab, input, &[DispatchDragEventType::DragOver]).await;
    }
    if !input.is_button_down(PointerButton::Left) || input.drag_decided {
        return move_by_stops(tab, input, to, None).await;
    }
    let reports = listen::<EventDragIntercepted>(&tab.page).await?;
    intercept_drags(tab, true).await?;
    input.drag_decided = true;
    let mut begin = DragBegin { watch: DragStartWatch::begin(tab).await?, reports };
    move_by_stops(tab, input, to, Some(&mut begin)).await?;
    if input.dragged.is_none() {
        return Ok(());
    }
    input.set_mouse(to);
    drag_over(tab, input, &[DispatchDragEventType::DragEnter, DispatchDragEventType::DragOver]).await
}

/// How a native drag shows.
struct DragBegin {
    watch: DragStartWatch,
    reports: EventStream<EventDragIntercepted>,
}

impl DragBegin {
    /// Waits for the report of a drag if one has begun. At the second movement, which is far enough
    /// from the press, one may have begun unseen.
    async fn report(&mut self, tab: &BrowserTab, stop: u8) -> Result<Option<DragData>, EnvironmentError> {
        let limit = match self.watch.has_begun(tab).await? {
            true => tab.deadlines.input,
            false if stop == 2 => DRAG_BEGINS,
            false => return Ok(None),
        };
        let event = tokio::time::timeout(limit, self.reports.next()).await.ok().flatten();
        Ok(event.map(|event| event.data.clone()))
    }
}

/// Moves in steps. Once a native drag begins, the page receives drag events instead of mouse
/// events, so the rest of the steps is left out.
async fn move_by_stops(
    tab: &BrowserTab,
    input: &mut InputState,
    to: PagePoint,
    mut begin: Option<&mut DragBegin>,
) -> Result<(), EnvironmentError> {
    let from = input.mouse();
    for stop in 1..=DRAG_STOPS {
        let event = input.move_mouse(interpolate(from, to, f32::from(stop) / f32::from(DRAG_STOPS)));
        let moved = send(tab, vec![event], "a drag");
        let Some(begin) = begin.as_deref_mut() else {
            moved.await?;
            continue;
        };
        tokio::select! {
            moved = moved => moved?,
            Some(event) = begin.reports.next() => input.dragged = Some(event.data.clone()),
        }
        if input.dragged.is_none() {
            input.dragged = begin.report(tab, stop).await?;
        }
        if input.dragged.is_some() {
            break;
        }
    }
    Ok(())
}

/// Tells the page where the mouse is with what it drags.
async fn drag_over(
    tab: &BrowserTab,
    input: &InputState,
    kinds: &[DispatchDragEventType],
) -> Result<(), EnvironmentError> {
    let Some(data) = &input.dragged else { return Ok(()) };
    let PagePoint { x, y } = input.mouse();
    for kind in kinds {
        let mut event = DispatchDragEventParams::new(kind.clone(), f64::from(x), f64::from(y), data.clone());
        event.modifiers = Some(input.modifier_bits());
        tab.call(event, tab.deadlines.input, "a drag").await?;
    }
    Ok(())
}

async fn intercept_drags(tab: &BrowserTab, enabled: bool) -> Result<(), EnvironmentError> {
    tab.call(SetInterceptDragsParams::new(enabled), tab.deadlines.input, "a drag").await.map(drop)
}

/// Presses a key with its modifiers, such as `Control+a`.
pub(super) async fn press(
    tab: &BrowserTab,
    input: &mut InputState,
    name: &str,
) -> Result<(), EnvironmentError> {
    let Some(chord) = KeyChord::named(name) else {
        return Err(EnvironmentError::Failed(format!("there is no key {name:?}")));
    };
    press_chord(tab, input, &chord, 1).await
}

/// Presses a combination of keys several times.
pub(super) async fn press_chord(
    tab: &BrowserTab,
    input: &mut InputState,
    chord: &KeyChord,
    times: u64,
) -> Result<(), EnvironmentError> {
    for press in input.press_chord(chord, times) {
        send(tab, press, "a key").await?;
    }
    Ok(())
}

/// Releases everything that is down: what the page drags natively is not dropped.
pub(super) async fn release_everything(
    tab: &BrowserTab,
    input: &mut InputState,
) -> Result<(), EnvironmentError> {
    if input.dragged.is_some() {
        drag_over(tab, input, &[DispatchDragEventType::DragCancel]).await?;
        input.dragged = None;
    }
    for button in input.buttons() {
        release_button(tab, input, button).await?;
    }
    let events = input.release_keys();
    send(tab, events, "releasing the keys").await
}

/// Presses the keys of these modifiers that are up, and returns them.
fn press_modifiers(
    input: &mut InputState,
    modifiers: Modifiers,
    events: &mut Vec<InputEvent>,
) -> Vec<KeyboardKey> {
    let keys: Vec<KeyboardKey> = modifiers.iter().filter_map(KeyboardKey::of_modifier).collect();
    input.press_missing(&keys, events)
}

fn interpolate(from: PagePoint, to: PagePoint, share: f32) -> PagePoint {
    PagePoint { x: from.x + (to.x - from.x) * share, y: from.y + (to.y - from.y) * share }
}
