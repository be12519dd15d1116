//! The alphabet of byte-level vocabularies: a printable character for each byte.
//!
//! Bytes that are printable in Latin-1 are themselves; the other 68 have the characters from U+0100
//! on, in ascending order. So a space is written "Ġ" (U+0120).

/// Highest character of the alphabet, plus one: 256 + 68.
const END: usize = 0x144;

/// Character of each byte.
const CHARS: [char; 256] = chars();

/// Byte of each character; `None` for characters that have none.
const BYTES: [Option<u8>; END] = bytes();

/// The character of a byte.
pub(crate) fn char_of(byte: u8) -> char {
    CHARS[byte as usize]
}

/// The byte of a character.
pub(super) fn byte_of(char: char) -> Option<u8> {
    BYTES.get(char as usize).copied().flatten()
}

/// Bytes of a vocabulary entry; `None` if one of its characters is not in the alphabet.
pub(super) fn bytes_of(entry: &str) -> Option<Vec<u8>> {
    entry.chars().map(byte_of).collect()
}

const fn prints(byte: usize) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

const fn chars() -> [char; 256] {
    let mut chars = ['\0'; 256];
    let mut byte = 0;
    let mut above = 0;
    while byte < 256 {
        let code = if prints(byte) { byte } else { 0x100 + above };
        above += !prints(byte) as usize;
        chars[byte] = match char::from_u32(code as u32) {
            Some(char) => char,
            None => panic!("not a character below U+0144"),
        };
        byte += 1;
    }
    chars
}

const fn bytes() -> [Option<u8>; END] {
    let mut bytes = [None; END];
    let mut byte = 0;
    while byte < 256 {
        bytes[CHARS[byte] as usize] = Some(byte as u8);
        byte += 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    use super::*;

    #[test]
    fn it_is_the_alphabet_of_the_library() {
        let ours: std::collections::HashSet<char> = (0..=255).map(char_of).collect();
        assert_eq!(ours, ByteLevel::alphabet().into_iter().collect());
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(0xff)), ('Ġ', 'Ċ', 'ÿ'));
        assert!((0..=255).all(|byte| byte_of(char_of(byte)) == Some(byte)));
        assert_eq!(bytes_of("Ġa"), Some(b" a".to_vec()));
        assert_eq!(bytes_of("▁a"), None);
    }
}
