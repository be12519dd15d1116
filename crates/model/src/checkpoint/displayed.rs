//! Names from files and hashes as errors and reports display them.

/// Characters of a name from a file that an error repeats.
pub(super) const NAME_CHARS_MAX: usize = 120;

/// Formats a name from a file for an error: shortened, with control characters escaped.
pub(super) fn displayed_name(name: &str) -> String {
    let mut text: String = name.escape_debug().take(NAME_CHARS_MAX + 1).collect();
    if let Some((end, _)) = text.char_indices().nth(NAME_CHARS_MAX) {
        text.replace_range(end.., "…");
    }
    text
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
