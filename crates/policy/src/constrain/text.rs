//! Free text inside a JSON string: which ids may come next so that the string stays valid and can still be closed.
//!
//! A state is what the bytes so far leave open: nothing, part of a UTF-8 character, part of an escape. An id is legal where all its
//! bytes are. A raw quote never is, so no id reaches across the end of the text. Of the long escapes only those that JSON cannot do
//! without are taken, control characters `\u0000` to `\u001f`; everything else is written as itself.

use furrow_model::sample::Allowed;

use super::Lexicon;

/// What the bytes so far leave open. The UTF-8 states are those of the Unicode standard's table 3-7.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// Nothing: the text may end here.
    Plain,
    /// One continuation byte, 80 to BF.
    One,
    /// Two of them.
    Two,
    /// After E0: A0 to BF, then one more (80 to 9F would be an overlong form).
    TwoHigh,
    /// After ED: 80 to 9F, then one more (A0 to BF would be a surrogate).
    TwoLow,
    /// Three continuation bytes.
    Three,
    /// After F0: 90 to BF, then two more.
    ThreeHigh,
    /// After F4: 80 to 8F, then two more.
    ThreeLow,
    /// A backslash.
    Escape,
    /// `\u`.
    Unicode,
    /// `\u0`.
    Unicode0,
    /// `\u00`.
    Unicode00,
    /// `\u000` or `\u001`.
    Unicode00x,
}

/// All states, each at its own number.
const STATES: [State; State::COUNT] = [
    State::Plain,
    State::One,
    State::Two,
    State::TwoHigh,
    State::TwoLow,
    State::Three,
    State::ThreeHigh,
    State::ThreeLow,
    State::Escape,
    State::Unicode,
    State::Unicode0,
    State::Unicode00,
    State::Unicode00x,
];

/// Where each id leads from each state.
#[derive(Debug)]
pub(super) struct Texts {
    /// Row i: the state after id i, by the state before it; `None` where it is illegal or leads where no ids lead out. 13 bytes an id.
    ends: Vec<[Option<State>; State::COUNT]>,
    /// Fewest ids from each state to `Plain`; `None` where none lead there.
    ways_out: [Option<u32>; State::COUNT],
}

impl State {
    /// How many there are.
    pub const COUNT: usize = 13;

    /// The state after one more byte; `None` where it may not come.
    fn after(self, byte: u8) -> Option<State> {
        use State::*;
        Some(match (self, byte) {
            (Plain, b'"' | 0..0x20) => return None,
            (Plain, b'\\') => Escape,
            (Plain, 0x20..0x80) => Plain,
            (Plain, 0xC2..=0xDF) => One,
            (Plain, 0xE0) => TwoHigh,
            (Plain, 0xED) => TwoLow,
            (Plain, 0xE1..=0xEF) => Two,
            (Plain, 0xF0) => ThreeHigh,
            (Plain, 0xF4) => ThreeLow,
            (Plain, 0xF1..=0xF3) => Three,
            (One, 0x80..=0xBF) => Plain,
            (Two, 0x80..=0xBF) | (TwoHigh, 0xA0..=0xBF) | (TwoLow, 0x80..=0x9F) => One,
            (Three, 0x80..=0xBF) | (ThreeHigh, 0x90..=0xBF) | (ThreeLow, 0x80..=0x8F) => Two,
            (Escape, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Plain,
            (Escape, b'u') => Unicode,
            (Unicode, b'0') => Unicode0,
            (Unicode0, b'0') => Unicode00,
            (Unicode00, b'0' | b'1') => Unicode00x,
            (Unicode00x, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => Plain,
            _ => return None,
        })
    }

    fn after_all(self, bytes: &[u8]) -> Option<State> {
        bytes.iter().try_fold(self, |state, byte| state.after(*byte))
    }
}

impl Texts {
    /// Runs every id of the tokenizer through every state.
    pub fn new(lexicon: &Lexicon<'_>) -> Self {
        let row = |id| match lexicon.text(id) {
            Some(bytes) => STATES.map(|state| state.after_all(bytes)),
            None => [None; State::COUNT],
        };
        let mut texts =
            Self { ends: (0..lexicon.rows as u32).map(row).collect(), ways_out: [None; State::COUNT] };
        texts.find_ways_out();
        texts.drop_dead_ends();
        texts
    }

    /// The state after an id; `None` where it is illegal.
    pub fn after(&self, state: State, id: u32) -> Option<State> {
        self.ends.get(id as usize)?[state as usize]
    }

    /// Rooms that differ: with this many ids left or more, everything legal is allowed.
    pub fn rooms(&self) -> u32 {
        self.ways_out.iter().flatten().max().map_or(1, |longest| longest + 1)
    }

    /// Legal ids after which `room - 1` more are enough to come back to `Plain`.
    pub fn allowed(&self, state: State, room: u32) -> Allowed {
        let mut allowed = Allowed::new(self.ends.len());
        let fits = |end: &State| self.ways_out[*end as usize].is_some_and(|ids| ids < room);
        let legal =
            self.ends.iter().zip(0..).filter(|(row, _)| row[state as usize].as_ref().is_some_and(fits));
        allowed.extend(legal.map(|(_, id)| id));
        allowed
    }

    /// States that ids lead out of, `Plain` among them.
    pub fn states(&self) -> impl Iterator<Item = State> + '_ {
        STATES.into_iter().filter(|state| self.ways_out[*state as usize].is_some())
    }

    /// Shortest ways, found length by length.
    fn find_ways_out(&mut self) {
        self.ways_out[State::Plain as usize] = Some(0);
        for length in 1..State::COUNT as u32 {
            for state in STATES {
                let leads = |row: &[Option<State>; State::COUNT]| {
                    row[state as usize].is_some_and(|end| self.ways_out[end as usize] == Some(length - 1))
                };
                if self.ways_out[state as usize].is_none() && self.ends.iter().any(leads) {
                    self.ways_out[state as usize] = Some(length);
                }
            }
        }
    }

    fn drop_dead_ends(&mut self) {
        for end in self.ends.iter_mut().flatten() {
            *end = end.filter(|state| self.ways_out[*state as usize].is_some());
        }
    }
}

#[cfg(test)]
impl Texts {
    /// Breaks an id: it seems to lead from plain to some state, whatever its bytes are.
    pub fn plant(&mut self, id: u32, end: State) {
        self.ends[id as usize][State::Plain as usize] = Some(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of up to four of these bytes: every edge of every rule.
    const BYTES: [u8; 26] = [
        0x00, 0x1F, b' ', b'"', b'\\', b'n', b'u', b'0', b'1', b'2', b'f', 0x7F, 0x80, 0x8F, 0x90, 0x9F,
        0xA0, 0xBF, 0xC1, 0xC2, 0xE0, 0xED, 0xEE, 0xF0, 0xF4, 0xF5,
    ];

    #[track_caller]
    fn check(bytes: &[u8]) {
        let plain = State::Plain.after_all(bytes) == Some(State::Plain);
        let quoted = [b"\"", bytes, b"\""].concat();
        let json = serde_json::from_slice::<String>(&quoted).is_ok();
        assert_eq!(plain, json, "{:?}", String::from_utf8_lossy(bytes));
    }

    #[test]
    fn a_text_that_may_end_is_a_json_string() {
        for (number, state) in STATES.into_iter().enumerate() {
            assert_eq!(state as usize, number);
        }
        for length in 0..=4 {
            for number in 0..BYTES.len().pow(length) {
                let digits = (0..length).map(|place| number / BYTES.len().pow(place) % BYTES.len());
                check(&digits.map(|digit| BYTES[digit]).collect::<Vec<_>>());
            }
        }
        for text in [r"\u0000", r"\u001F", r"a\u0009b"] {
            check(text.as_bytes());
        }
        // JSON would have these; we write the character itself.
        for text in [r"\u0020", r"\u00e9", r"\ud83d\ude00"] {
            assert_eq!(State::Plain.after_all(text.as_bytes()), None, "{text}");
        }
    }
}
