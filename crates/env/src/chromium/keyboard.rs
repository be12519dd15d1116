//! Keys by the names that policies and pages use, and what each of them types.

mod layout;

use furrow_rollout::Modifier;

use layout::{KEYS, PhysicalKey};

/// Most keys of a combination.
const CHORD_KEYS_MAX: usize = 5;

/// A key by one of its names: `A` is the key of `a` with its upper letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyboardKey {
    physical: &'static PhysicalKey,
    is_shifted: bool,
}

/// Keys that are pressed together, such as `Control+Shift+t`: pressed in order, released in
/// reverse order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyChord(Vec<KeyboardKey>);

impl KeyChord {
    /// Parses names of keys, joined by a plus. `None` if one is no key, or twice in it.
    pub(super) fn named(name: &str) -> Option<Self> {
        // The last plus may be the key itself: `Control++`.
        let (before, last) = match name.strip_suffix("++") {
            Some(before) => (before, "+"),
            None if name == "+" => ("", "+"),
            None => name.rsplit_once('+').unwrap_or(("", name)),
        };
        let before = before.split('+').filter(|part| !part.is_empty());
        let keys: Option<Vec<KeyboardKey>> = before.chain([last]).map(KeyboardKey::named).collect();
        let keys = keys.filter(|keys| keys.len() <= CHORD_KEYS_MAX)?;
        let twice = |(at, key): (usize, &KeyboardKey)| keys[..at].iter().any(|other| other.is_same_key(key));
        (!keys.iter().enumerate().any(twice)).then_some(Self(keys))
    }

    /// The keys in the order in which they are pressed.
    pub(super) fn keys(&self) -> &[KeyboardKey] {
        &self.0
    }

    /// The key that is pressed while the others are down.
    pub(super) fn last(&self) -> Option<KeyboardKey> {
        self.0.last().copied()
    }
}

impl KeyboardKey {
    /// Parses the name of a key: `KeyboardEvent.key` or `code`, or an alias.
    pub(super) fn named(name: &str) -> Option<Self> {
        let alias = alias(name);
        let name = alias.unwrap_or(name);
        let exact = KEYS.iter().find_map(|physical| Self::typing(physical, name));
        let like = || {
            let named = |physical: &&PhysicalKey| {
                // `Page_Down` is the name in X11.
                let bare = name.replace('_', "");
                [physical.plain, physical.code].iter().any(|own| own.eq_ignore_ascii_case(&bare))
            };
            let physical = KEYS.iter().find(named).filter(|_| name.chars().count() > 1)?;
            Some(Self { physical, is_shifted: false })
        };
        exact.or_else(like)
    }

    pub(super) fn of_modifier(modifier: Modifier) -> Option<Self> {
        KEYS.iter().find_map(|physical| Self::typing(physical, modifier.as_str()))
    }

    /// The key that types a character, if the keyboard has one. A line feed is Enter.
    pub(super) fn of_char(character: char) -> Option<Self> {
        let mut text = [0; 4];
        let text: &str = if character == '\n' { "Enter" } else { character.encode_utf8(&mut text) };
        KEYS.iter().find_map(|physical| Self::typing(physical, text))
    }

    fn typing(physical: &'static PhysicalKey, key: &str) -> Option<Self> {
        let is_shifted = match key {
            key if physical.plain == key => false,
            key if physical.shifted == key => true,
            _ => return None,
        };
        Some(Self { physical, is_shifted })
    }

    /// Whether both are one key of the keyboard.
    pub(super) fn is_same_key(&self, other: &Self) -> bool {
        self.physical.code == other.physical.code
    }

    /// `KeyboardEvent.key`, given whether Shift is down.
    pub(super) fn key(&self, shift: bool) -> &'static str {
        if shift || self.is_shifted { self.physical.shifted } else { self.physical.plain }
    }

    pub(super) fn code(&self) -> &'static str {
        self.physical.code
    }

    /// The deprecated `keyCode`, which pages still read.
    pub(super) fn number(&self) -> i64 {
        self.physical.number
    }

    /// `KeyboardEvent.location`: left and right modifiers are 1 and 2, the number pad is 3.
    pub(super) fn location(&self) -> i64 {
        match self.physical.code {
            code if code.starts_with("Numpad") => 3,
            _ if self.modifier().is_none() => 0,
            code if code.ends_with("Right") => 2,
            _ => 1,
        }
    }

    /// The text that the key types, given whether Shift is down.
    pub(super) fn text(&self, shift: bool) -> Option<&'static str> {
        match self.key(shift) {
            "Enter" => Some("\r"),
            key if key.chars().count() == 1 => Some(key),
            _ => None,
        }
    }

    pub(super) fn modifier(&self) -> Option<Modifier> {
        Modifier::ALL.into_iter().find(|modifier| modifier.as_str() == self.physical.plain)
    }
}

/// Other names of keys, of X11 and of common libraries.
fn alias(name: &str) -> Option<&'static str> {
    if let Some(modifier) = Modifier::of_alias(name) {
        return Some(modifier.as_str());
    }
    Some(match name.to_ascii_lowercase().as_str() {
        "return" => "Enter",
        "esc" => "Escape",
        "space" | "spacebar" => " ",
        "del" => "Delete",
        "ins" => "Insert",
        "up" => "ArrowUp",
        "down" => "ArrowDown",
        "left" => "ArrowLeft",
        "right" => "ArrowRight",
        "pgup" | "prior" => "PageUp",
        "pgdn" | "next" => "PageDown",
        "plus" => "+",
        "minus" => "-",
        "equal" => "=",
        "comma" => ",",
        "period" => ".",
        "slash" => "/",
        "menu" => "ContextMenu",
        "shift_l" | "shiftleft" => "ShiftLeft",
        "shift_r" | "shiftright" => "ShiftRight",
        "control_l" | "ctrlleft" => "ControlLeft",
        "control_r" | "ctrlright" => "ControlRight",
        "alt_l" | "altleft" => "AltLeft",
        "alt_r" | "altright" => "AltRight",
        "super_l" | "winleft" => "MetaLeft",
        "super_r" | "winright" => "MetaRight",
        "kp_enter" => "NumpadEnter",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codes of a combination, and the key that the last of them is by itself.
    #[track_caller]
    fn check(name: &str, want: Option<(&[&str], &str)>) {
        let chord = KeyChord::named(name);
        let codes: Option<Vec<&str>> =
            chord.as_ref().map(|chord| chord.keys().iter().map(KeyboardKey::code).collect());
        assert_eq!(codes.as_deref(), want.map(|(codes, _)| codes), "{name}");
        let key = chord.and_then(|chord| chord.last()).map(|key| key.key(false));
        assert_eq!(key, want.map(|(_, key)| key), "{name}");
    }

    #[test]
    fn keys_are_called_as_pages_call_them() {
        check("Enter", Some((&["Enter"], "Enter")));
        check("enter", Some((&["Enter"], "Enter")));
        check("Return", Some((&["Enter"], "Enter")));
        check("Control+a", Some((&["ControlLeft", "KeyA"], "a")));
        check("ctrl+shift+ArrowDown", Some((&["ControlLeft", "ShiftLeft", "ArrowDown"], "ArrowDown")));
        check("Shift+A", Some((&["ShiftLeft", "KeyA"], "A")));
        check("Esc", Some((&["Escape"], "Escape")));
        check("Control++", Some((&["ControlLeft", "Equal"], "+")));
        check("+", Some((&["Equal"], "+")));
        check("shift", Some((&["ShiftLeft"], "Shift")));
        check("ShiftRight", Some((&["ShiftRight"], "Shift")));
        check("Page_Down", Some((&["PageDown"], "PageDown")));
        check("KeyW", Some((&["KeyW"], "w")));
        check("numpad1", Some((&["Numpad1"], "1")));
        check("1", Some((&["Digit1"], "1")));
        check("_", Some((&["Minus"], "_")));
        check("a+s", Some((&["KeyA", "KeyS"], "s")));
        for wrong in ["Hyper+a", "Launch", "", "é", "a+a", "Shift+ctrl+SHIFT", "a+b+c+d+e+f"] {
            check(wrong, None);
        }
    }

    #[test]
    fn shift_changes_what_a_key_is_and_types() {
        let key = |name| KeyboardKey::named(name).unwrap();
        assert_eq!((key("a").key(true), key("a").text(true)), ("A", Some("A")));
        assert_eq!((key("1").key(true), key("1").text(false)), ("!", Some("1")));
        assert_eq!((key("Tab").text(false), key("Enter").text(true)), (None, Some("\r")));
        assert_eq!(key("Shift").location(), 1);
        assert_eq!(key("ControlRight").location(), 2);
        assert_eq!(key("Numpad1").location(), 3);
        assert_eq!(key("ArrowRight").location(), 0);
    }

    #[test]
    fn texts_of_the_keyboard_are_typed_and_others_inserted() {
        assert_eq!(KeyboardKey::of_char('A').map(|key| key.code()), Some("KeyA"));
        assert_eq!(KeyboardKey::of_char('\n').and_then(|key| key.text(false)), Some("\r"));
        assert_eq!(KeyboardKey::of_char('é'), None);
        for modifier in Modifier::ALL {
            assert_eq!(KeyboardKey::of_modifier(modifier).and_then(|key| key.modifier()), Some(modifier));
        }
    }
}
