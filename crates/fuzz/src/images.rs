//! Chunks of encoded pictures.

const PNG_SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// The picture with the checksums of a PNG or the length of a WebP corrected.
pub(crate) fn repaired(picture: &[u8]) -> Vec<u8> {
    if picture.starts_with(PNG_SIGNATURE) {
        return png(picture);
    }
    let mut repaired = picture.to_vec();
    if picture.starts_with(b"RIFF") && picture.len() >= 12 {
        let length = (picture.len() - 8) as u32;
        repaired[4..8].copy_from_slice(&length.to_le_bytes());
    }
    repaired
}

/// Chunks of `length, type, data, CRC`. A length beyond the end becomes what is there.
fn png(picture: &[u8]) -> Vec<u8> {
    let mut repaired = PNG_SIGNATURE.to_vec();
    let mut rest = &picture[PNG_SIGNATURE.len()..];
    while rest.len() >= 12 {
        let claimed = u32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
        let length = claimed.min(rest.len() - 12);
        let typed = &rest[4..8 + length];
        repaired.extend((length as u32).to_be_bytes());
        repaired.extend(typed);
        repaired.extend(crc32fast::hash(typed).to_be_bytes());
        rest = &rest[12 + length..];
    }
    repaired
}
