//! Free text inside a JSON string: which ids may come next so that the string stays valid and can
//! still be closed.
//!
//! A state is what the bytes so far leave open: nothing, part of a UTF-8 character, or part of an
//! escape. An id is legal if all its bytes are. A raw quote never is, so no id spans the end of the
//! text. Of the long escapes only those that JSON requires are accepted, the control characters
//! `\u0000` to `\u001f`; all other characters are written as themselves.

use furrow_model::sample::AllowedTokens;

use super::lexicon::TokenLexicon;

/// The open part of the bytes so far. The UTF-8 states are those of table 3-7 of the Unicode
/// standard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum TextState {
    /// Nothing is open: the text may end here.
    Plain,
    /// One continuation byte must follow, 80 to BF.
    One,
    /// Two continuation bytes must follow.
    Two,
    /// After E0: A0 to BF, then one more (80 to 9F would be an overlong form).
    TwoHigh,
    /// After ED: 80 to 9F, then one more (A0 to BF would be a surrogate).
    TwoLow,
    /// Three continuation bytes must follow.
    Three,
    /// After F0: 90 to BF, then two more.
    ThreeHigh,
    /// After F4: 80 to 8F, then two more.
    ThreeLow,
    Escape,
    Unicode,
    Unicode0,
    Unicode00,
    /// After `\u000` or `\u001`.
    Unicode00x,
}

/// All states, each at its own index.
const STATES: [TextState; TextState::COUNT] = [
    TextState::Plain,
    TextState::One,
    TextState::Two,
    TextState::TwoHigh,
    TextState::TwoLow,
    TextState::Three,
    TextState::ThreeHigh,
    TextState::ThreeLow,
    TextState::Escape,
    TextState::Unicode,
    TextState::Unicode0,
    TextState::Unicode00,
    TextState::Unicode00x,
];

/// The state after each id, for each state before it.
#[derive(Debug)]
pub(super) struct TextTransitions {
    /// Row i: the state after id i, by the state before it; `None` if the id is illegal or leads to
    /// a state that no ids leave. 13 bytes for each id.
    ends: Vec<[Option<TextState>; TextState::COUNT]>,
    /// Fewest ids from each state to `Plain`; `None` if no ids lead there.
    ways_out: [Option<u32>; TextState::COUNT],
}

impl TextState {
    pub(super) const COUNT: usize = 13;

    /// The state after one more byte; `None` if the byte is illegal.
    fn after(self, byte: u8) -> Option<TextState> {
        use TextState::*;
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

    fn after_all(self, bytes: &[u8]) -> Option<TextState> {
        bytes.iter().try_fold(self, |state, byte| state.after(*byte))
    }
}

impl TextTransitions {
    /// Runs every id of the tokenizer through every state.
    pub(super) fn new(lexicon: &TokenLexicon<'_>) -> Self {
        let row = |id| match lexicon.text(id) {
            Some(bytes) => STATES.map(|state| state.after_all(bytes)),
            None => [None; TextState::COUNT],
        };
        let mut texts =
            Self { ends: (0..lexicon.rows as u32).map(row).collect(), ways_out: [None; TextState::COUNT] };
        texts.find_ways_out();
        texts.drop_dead_ends();
        texts
    }

    /// The state after an id; `None` if it is illegal.
    pub(super) fn after(&self, state: TextState, id: u32) -> Option<TextState> {
        self.ends.get(id as usize)?[state as usize]
    }

    /// Number of budgets with different masks: with this many ids left or more, every legal id is
    /// allowed.
    pub(super) fn budgets(&self) -> u32 {
        self.ways_out.iter().flatten().max().map_or(1, |longest| longest + 1)
    }

    /// Legal ids after which `budget - 1` more suffice to return to `Plain`.
    pub(super) fn allowed(&self, state: TextState, budget: u32) -> AllowedTokens {
        let mut allowed = AllowedTokens::new(self.ends.len());
        let fits = |end: &TextState| self.ways_out[*end as usize].is_some_and(|ids| ids < budget);
        let legal =
            self.ends.iter().zip(0..).filter(|(row, _)| row[state as usize].as_ref().is_some_and(fits));
        allowed.extend(legal.map(|(_, id)| id));
        allowed
    }

    /// States that ids can leave, `Plain` among them.
    pub(super) fn states(&self) -> impl Iterator<Item = TextState> + '_ {
        STATES.into_iter().filter(|state| self.ways_out[*state as usize].is_some())
    }

    /// Computes the shortest ways to `Plain`, length by length.
    fn find_ways_out(&mut self) {
        self.ways_out[TextState::Plain as usize] = Some(0);
        for length in 1..TextState::COUNT as u32 {
            for state in STATES {
                let leads = |row: &[Option<TextState>; TextState::COUNT]| {
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
impl TextTransitions {
    /// Breaks the transition of an id from `Plain`, so that a test can check that walks detect it.
    pub(super) fn plant(&mut self, id: u32, end: TextState) {
        self.ends[id as usize][TextState::Plain as usize] = Some(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of up to four of these bytes, which are the limits of every rule.
    const BYTES: [u8; 26] = [
        0x00, 0x1F, b' ', b'"', b'\\', b'n', b'u', b'0', b'1', b'2', b'f', 0x7F, 0x80, 0x8F, 0x90, 0x9F,
        0xA0, 0xBF, 0xC1, 0xC2, 0xE0, 0xED, 0xEE, 0xF0, 0xF4, 0xF5,
    ];

    #[track_caller]
    fn check(bytes: &[u8]) {
        let plain = TextState::Plain.after_all(bytes) == Some(TextState::Plain);
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
                let digits = (0..length).map(|index| number / BYTES.len().pow(index) % BYTES.len());
                check(&digits.map(|digit| BYTES[digit]).collect::<Vec<_>>());
            }
        }
        for text in [r"\u0000", r"\u001F", r"a\u0009b"] {
            check(text.as_bytes());
        }
        // JSON allows these; here the character itself must be written.
        for text in [r"\u0020", r"\u00e9", r"\ud83d\ude00"] {
            assert_eq!(TextState::Plain.after_all(text.as_bytes()), None, "{text}");
        }
    }
}
