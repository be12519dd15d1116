//! The modifier keys that are down during an action of the mouse.

use std::fmt;

/// A key that changes the meaning of others and of clicks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Modifier {
    Alt,
    Control,
    Meta,
    Shift,
}

/// A set of modifier keys.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Modifiers(u8);

impl Modifier {
    /// Every modifier, in the order of declaration, in which a set is written.
    pub const ALL: [Modifier; 4] = [Modifier::Alt, Modifier::Control, Modifier::Meta, Modifier::Shift];

    /// The key's name as in `KeyboardEvent.key`, on the wire and in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Modifier::Alt => "Alt",
            Modifier::Control => "Control",
            Modifier::Meta => "Meta",
            Modifier::Shift => "Shift",
        }
    }

    /// The modifier of a name as policies write it: `ctrl`, `SHIFT`, `cmd`.
    pub fn of_alias(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "alt" | "option" => Modifier::Alt,
            "control" | "ctrl" => Modifier::Control,
            "meta" | "cmd" | "command" | "super" | "win" => Modifier::Meta,
            "shift" => Modifier::Shift,
            _ => return None,
        })
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl Modifiers {
    /// The empty set, a constant so that patterns can name it.
    pub const NONE: Self = Self(0);

    /// The set with this modifier in it.
    #[must_use]
    pub fn with(self, modifier: Modifier) -> Self {
        Self(self.0 | modifier.bit())
    }

    /// Whether no modifier is in it.
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }

    /// Whether this modifier is in it.
    pub fn contains(self, modifier: Modifier) -> bool {
        self.0 & modifier.bit() != 0
    }

    /// The modifiers in it, in the order of [`Modifier::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Modifier> {
        Modifier::ALL.into_iter().filter(move |modifier| self.contains(*modifier))
    }

    /// Parses what `Display` writes; an empty text is the empty set.
    pub fn parse(text: &str) -> Option<Self> {
        let mut names = text.split('+').filter(|_| !text.is_empty());
        names.try_fold(Self::NONE, |set, name| {
            let modifier = Modifier::ALL.into_iter().find(|modifier| modifier.as_str() == name)?;
            (!set.contains(modifier)).then(|| set.with(modifier))
        })
    }

    /// The set of these names as policies write them; `None` if one is not a modifier.
    pub fn of_aliases<'a>(mut names: impl Iterator<Item = &'a str>) -> Option<Self> {
        names.try_fold(Self::NONE, |set, name| Some(set.with(Modifier::of_alias(name)?)))
    }
}

/// The names joined by a plus: `Control+Shift`.
impl fmt::Display for Modifiers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.iter().map(Modifier::as_str).collect();
        formatter.write_str(&names.join("+"))
    }
}

impl fmt::Debug for Modifiers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_empty() {
            true => formatter.write_str("none"),
            false => fmt::Display::fmt(self, formatter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_read_as_it_is_written() {
        for bits in 0..16 {
            let set = Modifiers(bits);
            assert_eq!(Modifiers::parse(&set.to_string()), Some(set));
            assert_eq!(Modifiers::of_aliases(set.iter().map(Modifier::as_str)), Some(set));
        }
        assert_eq!(Modifiers(0b1010).to_string(), "Control+Shift");
        for wrong in ["control", "Shift+Shift", "+", "Shift+", "Hyper"] {
            assert_eq!(Modifiers::parse(wrong), None, "{wrong}");
        }
        let written = Modifiers::of_aliases(["SHIFT", "cmd", "shift"].into_iter());
        assert_eq!(written, Some(Modifiers::NONE.with(Modifier::Shift).with(Modifier::Meta)));
        assert_eq!(Modifiers::of_aliases(["a"].into_iter()), None);
    }
}
