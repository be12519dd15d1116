//! How a character may be written in a text: as itself, percent-encoded in an address or a form,
//! escaped in JSON and scripts, or as an entity of HTML, also twice.

/// Most readings of one position.
const READINGS_MAX: usize = 24;

/// Most backslashes before a character: JSON in JSON in JSON.
const BACKSLASHES_MAX: usize = 8;

/// Longest name of an entity, in characters.
const ENTITY_CHARS_MAX: usize = 10;

/// How often an ampersand may be escaped again.
const ENTITY_DEPTH_MAX: u8 = 2;

/// The characters that a position of a text may stand for, each with the position behind it.
#[derive(Debug, Default)]
pub(super) struct Readings(Vec<(char, usize)>);

/// The code under the escapes of scripts and HTML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layer {
    Raw,
    Percent,
    /// The percent signs are encoded themselves.
    PercentTwice,
}

impl Readings {
    /// Reads one position; none where the bytes are not UTF-8.
    pub(super) fn read(&mut self, text: &[u8], at: usize) -> &[(char, usize)] {
        self.0.clear();
        match text.get(at) {
            None => {}
            Some(b'+') => self.0.extend([('+', at + 1), (' ', at + 1)]),
            Some(b'%') => {
                for layer in [Layer::Raw, Layer::Percent, Layer::PercentTwice] {
                    self.read_layer(text, at, layer);
                }
            }
            Some(_) => self.read_layer(text, at, Layer::Raw),
        }
        &self.0
    }

    fn read_layer(&mut self, text: &[u8], at: usize, layer: Layer) {
        let Some((character, end)) = next(text, at, layer) else { return };
        self.add(character, end);
        match character {
            '\\' => self.read_escape(text, end, layer),
            '&' => self.read_entity(text, end, layer, 0),
            _ => {}
        }
    }

    fn add(&mut self, character: char, end: usize) {
        if self.0.len() < READINGS_MAX && !self.0.contains(&(character, end)) {
            self.0.push((character, end));
        }
    }

    /// What follows a backslash: more of them, which stand for fewer, and the escaped character.
    fn read_escape(&mut self, text: &[u8], mut at: usize, layer: Layer) {
        let mut count = 1;
        let escaped = loop {
            let Some((character, end)) = next(text, at, layer) else { return };
            if character != '\\' || count == BACKSLASHES_MAX {
                break (character, end);
            }
            (count, at) = (count + 1, end);
            if usize::is_power_of_two(count) {
                self.add('\\', at);
            }
        };
        match escaped {
            ('u', end) => self.read_unicode(text, end, layer, count),
            ('x', end) => {
                if let Some((code, end)) = hex(text, end, layer, 2) {
                    self.add_code(code, end);
                }
            }
            (letter, _) if letter.is_alphanumeric() => {}
            (character, end) => self.add(character, end),
        }
    }

    /// `\u0041`, `\u{41}`, or two surrogates.
    fn read_unicode(&mut self, text: &[u8], at: usize, layer: Layer, backslashes: usize) {
        if let Some(('{', start)) = next(text, at, layer) {
            for digits in 1..=6 {
                if let Some((code, end)) = hex(text, start, layer, digits)
                    && let Some(('}', end)) = next(text, end, layer)
                {
                    return self.add_code(code, end);
                }
            }
            return;
        }
        let Some((code, end)) = hex(text, at, layer, 4) else { return };
        if !(0xd800..0xdc00).contains(&code) {
            return self.add_code(code, end);
        }
        let mut low_at = end;
        for _ in 0..backslashes {
            let Some(('\\', end)) = next(text, low_at, layer) else { return };
            low_at = end;
        }
        let Some(('u', low_at)) = next(text, low_at, layer) else { return };
        if let Some((low, end)) = hex(text, low_at, layer, 4)
            && (0xdc00..0xe000).contains(&low)
        {
            self.add_code(0x1_0000 + ((code - 0xd800) << 10) + (low - 0xdc00), end);
        }
    }

    /// What follows an ampersand: the name or number of a character.
    fn read_entity(&mut self, text: &[u8], mut at: usize, layer: Layer, depth: u8) {
        let mut name = String::new();
        while name.len() < ENTITY_CHARS_MAX
            && let Some((character, end)) = next(text, at, layer)
        {
            at = end;
            if character == ';' {
                break;
            }
            if !character.is_ascii_alphanumeric() && character != '#' {
                return;
            }
            name.push(character);
        }
        if name == "amp" && depth < ENTITY_DEPTH_MAX {
            self.read_entity(text, at, layer, depth + 1);
        }
        let named = match name.as_str() {
            "amp" => Some('&'),
            "lt" => Some('<'),
            "gt" => Some('>'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            "nbsp" => Some(' '),
            _ => None,
        };
        let numbered = || {
            let number = name.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(digits) => u32::from_str_radix(digits, 16),
                None => number.parse(),
            };
            char::from_u32(code.ok()?)
        };
        if let Some(character) = named.or_else(numbered) {
            self.add(character, at);
        }
    }

    fn add_code(&mut self, code: u32, end: usize) {
        if let Some(character) = char::from_u32(code) {
            self.add(character, end);
        }
    }
}

/// Whether the rest of a text is an escape that was cut.
pub(super) fn is_cut_escape(text: &[u8], at: usize) -> bool {
    let Some((first, rest)) = text.get(at..).and_then(<[u8]>::split_first) else { return false };
    let consists_of =
        |others: &[u8]| rest.iter().all(|byte| byte.is_ascii_hexdigit() || others.contains(byte));
    match first {
        // Of two digits, or of several bytes of one character.
        b'%' => {
            let is_ascii = matches!(rest.first(), Some(b'0'..=b'7'));
            let is_twice = rest.starts_with(b"25") && rest.len() < 4;
            rest.len() < 2 || is_twice || (!is_ascii && rest.len() < 11 && consists_of(b"%"))
        }
        b'\\' => rest.len() < 5 && consists_of(b"\\ux{"),
        b'&' => {
            rest.len() < ENTITY_CHARS_MAX
                && rest.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'#')
        }
        _ => false,
    }
}

/// The character at a position in a layer, and the position behind it.
fn next(text: &[u8], at: usize, layer: Layer) -> Option<(char, usize)> {
    if layer == Layer::Raw || text.get(at) != Some(&b'%') {
        return raw(text, at);
    }
    let (first, mut end) = percent_byte(text, at, layer)?;
    let length = utf8_length(first)?;
    let mut bytes = [first, 0, 0, 0];
    for byte in &mut bytes[1..length] {
        (*byte, end) = percent_byte(text, end, layer)?;
    }
    let character = std::str::from_utf8(&bytes[..length]).ok()?.chars().next()?;
    Some((character, end))
}

fn raw(text: &[u8], at: usize) -> Option<(char, usize)> {
    let first = *text.get(at)?;
    if first.is_ascii() {
        return Some((char::from(first), at + 1));
    }
    let end = at + utf8_length(first)?;
    let character = std::str::from_utf8(text.get(at..end)?).ok()?.chars().next()?;
    Some((character, end))
}

fn percent_byte(text: &[u8], at: usize, layer: Layer) -> Option<(u8, usize)> {
    let prefix: &[u8] = if layer == Layer::PercentTwice { b"%25" } else { b"%" };
    let start = at + prefix.len();
    let digits = text.get(at..start + 2)?.strip_prefix(prefix)?;
    let digit = |digit: u8| char::from(digit).to_digit(16);
    Some(((digit(digits[0])? * 16 + digit(digits[1])?) as u8, start + 2))
}

fn utf8_length(first: u8) -> Option<usize> {
    match first {
        0..=0x7f => Some(1),
        0xc2..=0xdf => Some(2),
        0xe0..=0xef => Some(3),
        0xf0..=0xf4 => Some(4),
        _ => None,
    }
}

/// A number of so many hexadecimal digits.
fn hex(text: &[u8], mut at: usize, layer: Layer, digits: usize) -> Option<(u32, usize)> {
    let mut code = 0;
    for _ in 0..digits {
        let (digit, end) = next(text, at, layer)?;
        (code, at) = (code * 16 + digit.to_digit(16)?, end);
    }
    Some((code, at))
}
