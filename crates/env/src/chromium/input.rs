//! The keyboard and the mouse of a context: what is down, where the mouse is, and the events that
//! say so to a page.
//!
//! Nothing is sent here. A builder changes the state, and the caller sends its events in order.

use chromiumoxide::cdp::browser_protocol::input::{
    DispatchKeyEventParams, DispatchKeyEventType, DispatchMouseEventParams, DispatchMouseEventType, DragData,
    InsertTextParams, MouseButton,
};
use furrow_rollout::{Modifier, PagePoint, PointerButton};

use super::keyboard::{KeyChord, KeyboardKey};

/// Most keys that stay down from one action to the next: more than a person has fingers for.
pub(super) const KEYS_DOWN_MAX: usize = 8;

/// Pressure of the mouse while a button is down, as from any device without a sensor for it.
const PRESSURE: f64 = 0.5;

/// One command of input.
#[derive(Debug, Clone)]
pub(super) enum InputEvent {
    Key(Box<DispatchKeyEventParams>),
    Mouse(Box<DispatchMouseEventParams>),
    Text(InsertTextParams),
}

/// What is down, and where the mouse is.
#[derive(Debug)]
pub(super) struct InputState {
    mouse: PagePoint,
    /// Keys that are down, in the order in which they were pressed.
    keys: Vec<KeyboardKey>,
    /// Buttons that are down, in the order in which they were pressed.
    buttons: Vec<PointerButton>,
    /// What the page drags natively, from the moment it says so to the release.
    pub dragged: Option<DragData>,
    /// Whether the page was asked since the last press if it drags natively.
    pub drag_decided: bool,
}

impl InputState {
    pub(super) fn new() -> Self {
        let mouse = PagePoint { x: 0.0, y: 0.0 };
        Self { mouse, keys: Vec::new(), buttons: Vec::new(), dragged: None, drag_decided: false }
    }

    pub(super) fn mouse(&self) -> PagePoint {
        self.mouse
    }

    /// An action that sends no event of the mouse left it here.
    pub(super) fn set_mouse(&mut self, at: PagePoint) {
        self.mouse = at;
    }

    pub(super) fn is_idle(&self) -> bool {
        self.keys.is_empty() && self.buttons.is_empty()
    }

    pub(super) fn has_button_down(&self) -> bool {
        !self.buttons.is_empty()
    }

    pub(super) fn is_button_down(&self, button: PointerButton) -> bool {
        self.buttons.contains(&button)
    }

    pub(super) fn is_key_down(&self, key: &KeyboardKey) -> bool {
        self.keys.iter().any(|down| down.is_same_key(key))
    }

    pub(super) fn keys_down(&self) -> usize {
        self.keys.len()
    }

    /// Modifiers that are down, as text: `Control+Shift`.
    pub(super) fn modifier_names(&self) -> Option<String> {
        let names: Vec<&str> =
            self.keys.iter().filter_map(KeyboardKey::modifier).map(Modifier::as_str).collect();
        (!names.is_empty()).then(|| names.join("+"))
    }

    /// All that is down, for a text: `Control, the left button`.
    pub(super) fn names(&self) -> String {
        let keys = self.keys.iter().map(|key| key.key(false).to_owned());
        let buttons = self.buttons.iter().map(|button| format!("the {} button", button.as_str()));
        keys.chain(buttons).collect::<Vec<_>>().join(", ")
    }

    /// The bits of the modifiers that are down, as the protocol numbers them.
    pub(super) fn modifier_bits(&self) -> i64 {
        let bit = |modifier| match modifier {
            Modifier::Alt => 1,
            Modifier::Control => 2,
            Modifier::Meta => 4,
            Modifier::Shift => 8,
        };
        self.keys.iter().filter_map(KeyboardKey::modifier).fold(0, |bits, modifier| bits | bit(modifier))
    }

    fn has_modifier(&self, wanted: Modifier) -> bool {
        self.keys.iter().any(|key| key.modifier() == Some(wanted))
    }

    /// Presses a key. One that is down repeats, as a key that is not released does.
    pub(super) fn press_key(&mut self, key: KeyboardKey) -> InputEvent {
        let repeats = self.is_key_down(&key);
        if !repeats {
            self.keys.push(key);
        }
        let shift = self.has_modifier(Modifier::Shift);
        let is_shortcut = [Modifier::Alt, Modifier::Control, Modifier::Meta]
            .into_iter()
            .any(|modifier| self.has_modifier(modifier));
        let text = key.text(shift).filter(|_| !is_shortcut).map(str::to_owned);
        let kind =
            if text.is_some() { DispatchKeyEventType::KeyDown } else { DispatchKeyEventType::RawKeyDown };
        let mut event = self.key_event(kind, key);
        event.unmodified_text = text.clone();
        event.text = text;
        event.auto_repeat = Some(repeats);
        event.commands = self.editing_command(key).map(|command| vec![command.to_owned()]);
        InputEvent::Key(Box::new(event))
    }

    pub(super) fn release_key(&mut self, key: KeyboardKey) -> InputEvent {
        self.keys.retain(|down| !down.is_same_key(&key));
        InputEvent::Key(Box::new(self.key_event(DispatchKeyEventType::KeyUp, key)))
    }

    /// Presses and releases a key.
    pub(super) fn tap_key(&mut self, key: KeyboardKey) -> [InputEvent; 2] {
        [self.press_key(key), self.release_key(key)]
    }

    /// Presses a combination: those of its keys that were up go down around the presses of the last
    /// one, and stay down between them. Returns the events of each press.
    pub(super) fn press_chord(&mut self, chord: &KeyChord, times: u64) -> Vec<Vec<InputEvent>> {
        let Some((last, before)) = chord.keys().split_last() else { return Vec::new() };
        let mut events = Vec::new();
        let pressed = self.press_missing(before, &mut events);
        let mut presses = Vec::new();
        for _ in 0..times {
            events.extend(self.tap_key(*last));
            presses.push(std::mem::take(&mut events));
        }
        self.release_all(&pressed, &mut events);
        match presses.last_mut() {
            Some(last) => last.extend(events),
            None => presses.push(events),
        }
        presses
    }

    /// Presses those of the keys that are up, and returns them.
    pub(super) fn press_missing(
        &mut self,
        keys: &[KeyboardKey],
        events: &mut Vec<InputEvent>,
    ) -> Vec<KeyboardKey> {
        let missing: Vec<KeyboardKey> = keys.iter().copied().filter(|key| !self.is_key_down(key)).collect();
        for key in &missing {
            events.push(self.press_key(*key));
        }
        missing
    }

    /// Releases those of the keys that are down, in reverse order.
    pub(super) fn release_all(&mut self, keys: &[KeyboardKey], events: &mut Vec<InputEvent>) {
        for key in keys.iter().rev() {
            if self.is_key_down(key) {
                events.push(self.release_key(*key));
            }
        }
    }

    /// Releases all keys, in reverse order.
    pub(super) fn release_keys(&mut self) -> Vec<InputEvent> {
        let mut events = Vec::new();
        self.release_all(&self.keys.clone(), &mut events);
        events
    }

    /// Types a character: with its key, or without one where the keyboard has none.
    pub(super) fn type_char(&mut self, character: char) -> Vec<InputEvent> {
        match KeyboardKey::of_char(character) {
            Some(key) => self.tap_key(key).into(),
            None => vec![InputEvent::Text(InsertTextParams::new(character.to_string()))],
        }
    }

    /// Moves the mouse with the buttons that are down.
    pub(super) fn move_mouse(&mut self, at: PagePoint) -> InputEvent {
        self.mouse = at;
        let button = self.buttons.last().map_or(MouseButton::None, |button| named(*button));
        let mut event = self.mouse_event(DispatchMouseEventType::MouseMoved, button);
        event.click_count = Some(0);
        InputEvent::Mouse(Box::new(event))
    }

    /// Presses a button. The second press of a double click is number 2, as from a mouse driver.
    pub(super) fn press_button(&mut self, button: PointerButton, number: u8) -> InputEvent {
        if !self.is_button_down(button) {
            self.buttons.push(button);
        }
        self.drag_decided = false;
        let mut event = self.mouse_event(DispatchMouseEventType::MousePressed, named(button));
        event.click_count = Some(number.into());
        InputEvent::Mouse(Box::new(event))
    }

    pub(super) fn release_button(&mut self, button: PointerButton, number: u8) -> InputEvent {
        self.buttons.retain(|down| *down != button);
        let mut event = self.mouse_event(DispatchMouseEventType::MouseReleased, named(button));
        event.force = Some(0.0);
        event.click_count = Some(number.into());
        InputEvent::Mouse(Box::new(event))
    }

    /// Turns the wheel at a point, without moving the mouse there.
    pub(super) fn turn_wheel(&self, at: PagePoint, (x, y): (f64, f64)) -> InputEvent {
        let mut event = self.mouse_event(DispatchMouseEventType::MouseWheel, MouseButton::None);
        (event.x, event.y) = (f64::from(at.x), f64::from(at.y));
        (event.delta_x, event.delta_y) = (Some(x), Some(y));
        InputEvent::Mouse(Box::new(event))
    }

    /// Takes everything as released, where no page is left that could hear it.
    pub(super) fn forget_pressed(&mut self) {
        self.keys.clear();
        self.buttons.clear();
        self.dragged = None;
        self.drag_decided = false;
    }

    pub(super) fn buttons(&self) -> Vec<PointerButton> {
        self.buttons.clone()
    }

    fn key_event(&self, kind: DispatchKeyEventType, key: KeyboardKey) -> DispatchKeyEventParams {
        let mut event = DispatchKeyEventParams::new(kind);
        event.modifiers = Some(self.modifier_bits());
        event.key = Some(key.key(self.has_modifier(Modifier::Shift)).to_owned());
        event.code = Some(key.code().to_owned());
        event.windows_virtual_key_code = Some(key.number());
        event.location = Some(key.location());
        event.is_keypad = Some(key.location() == 3);
        event
    }

    fn mouse_event(&self, kind: DispatchMouseEventType, button: MouseButton) -> DispatchMouseEventParams {
        let bit = |button: &PointerButton| match button {
            PointerButton::Left => 1,
            PointerButton::Right => 2,
            PointerButton::Middle => 4,
        };
        let mut event = DispatchMouseEventParams::new(kind, f64::from(self.mouse.x), f64::from(self.mouse.y));
        event.button = Some(button);
        event.buttons = Some(self.buttons.iter().map(bit).sum());
        event.modifiers = Some(self.modifier_bits());
        event.force = Some(if self.has_button_down() { PRESSURE } else { 0.0 });
        event
    }

    /// The editing command of a shortcut. A desktop would supply it, headless Chromium has none.
    fn editing_command(&self, key: KeyboardKey) -> Option<&'static str> {
        let is_shortcut = self.has_modifier(Modifier::Control) != self.has_modifier(Modifier::Meta);
        if !is_shortcut || self.has_modifier(Modifier::Alt) {
            return None;
        }
        match (self.has_modifier(Modifier::Shift), key.key(false)) {
            (false, "a") => Some("selectAll"),
            (false, "c") => Some("copy"),
            (false, "v") => Some("paste"),
            (false, "x") => Some("cut"),
            (false, "z") => Some("undo"),
            (false, "y") | (true, "z" | "Z") => Some("redo"),
            _ => None,
        }
    }
}

fn named(button: PointerButton) -> MouseButton {
    match button {
        PointerButton::Left => MouseButton::Left,
        PointerButton::Middle => MouseButton::Middle,
        PointerButton::Right => MouseButton::Right,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each event as `down Control 2`: what it is of, and the bits of the modifiers.
    fn read(events: &[InputEvent]) -> Vec<String> {
        let one = |event: &InputEvent| match event {
            InputEvent::Key(event) => {
                let kind = if event.r#type == DispatchKeyEventType::KeyUp { "up" } else { "down" };
                let text = event.text.as_deref().map(|text| format!(" types {text}")).unwrap_or_default();
                let again = if event.auto_repeat == Some(true) { " again" } else { "" };
                format!("{kind} {} {}{text}{again}", event.key.as_deref().unwrap(), event.modifiers.unwrap())
            }
            InputEvent::Mouse(event) => {
                format!("{:?} {} {}", event.r#type, event.buttons.unwrap(), event.modifiers.unwrap())
            }
            InputEvent::Text(text) => format!("insert {}", text.text),
        };
        events.iter().map(one).collect()
    }

    fn chord(name: &str) -> KeyChord {
        KeyChord::named(name).unwrap()
    }

    #[test]
    fn modifiers_go_down_before_a_key_and_up_after_it() {
        let mut input = InputState::new();
        let events = input.press_chord(&chord("Shift+a"), 1).concat();
        assert_eq!(read(&events), ["down Shift 8", "down A 8 types A", "up A 8", "up Shift 0"]);
        let events = input.press_chord(&chord("Control+Shift+Tab"), 2).concat();
        let twice = [
            "down Control 2",
            "down Shift 10",
            "down Tab 10",
            "up Tab 10",
            "down Tab 10",
            "up Tab 10",
            "up Shift 2",
            "up Control 0",
        ];
        assert_eq!(read(&events), twice);
        assert_eq!(read(&input.press_chord(&chord("shift"), 1).concat()), ["down Shift 8", "up Shift 0"]);
        assert!(input.is_idle());
    }

    #[test]
    fn what_is_down_stays_down_and_marks_other_events() {
        let mut input = InputState::new();
        let shift = KeyboardKey::named("Shift").unwrap();
        input.press_key(shift);
        let events = input.press_chord(&chord("Shift+ArrowLeft"), 1).concat();
        assert_eq!(read(&events), ["down ArrowLeft 8", "up ArrowLeft 8"]);
        assert_eq!(read(&input.type_char('a')), ["down A 8 types A", "up A 8"]);
        assert_eq!(read(&input.type_char('é')), ["insert é"]);
        assert_eq!(read(&[input.press_key(shift)]), ["down Shift 8 again"]);
        input.press_button(PointerButton::Left, 1);
        input.press_button(PointerButton::Middle, 1);
        let moved = input.move_mouse(PagePoint { x: 1.0, y: 2.0 });
        assert_eq!(read(&[moved]), ["MouseMoved 5 8"]);
        assert_eq!(input.names(), "Shift, the left button, the middle button");
        assert_eq!(read(&[input.release_button(PointerButton::Left, 1)]), ["MouseReleased 4 8"]);
        assert_eq!(read(&input.release_keys()), ["up Shift 0"]);
    }

    #[test]
    fn a_shortcut_types_nothing_and_carries_its_command() {
        let mut input = InputState::new();
        for (name, want) in [
            ("Control+a", Some("selectAll")),
            ("Meta+v", Some("paste")),
            ("Control+Shift+Z", Some("redo")),
            ("Control+Alt+a", None),
            ("Shift+a", None),
            ("Control+b", None),
        ] {
            let events = input.press_chord(&chord(name), 1).concat();
            let command = events.iter().find_map(|event| match event {
                InputEvent::Key(event) => event.commands.as_ref()?.first().cloned(),
                _ => None,
            });
            assert_eq!(command.as_deref(), want, "{name}");
            assert_eq!(
                read(&events).iter().any(|event| event.contains("types")),
                name == "Shift+a",
                "{name}"
            );
        }
    }
}
