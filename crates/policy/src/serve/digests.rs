//! Hashes of messages, by which a session recognises a chat that goes on.

use furrow_openai::Role;
use furrow_openai::server::{ChatMessage, MessagePart};
use sha2::{Digest as _, Sha256};

use super::residents::{MessageDigest, Sha256Digest};
use crate::tool_text;

pub(super) fn digest_message(message: &ChatMessage, stop: u32) -> MessageDigest {
    let ids = message.token_ids.as_deref().map(|ids| digest_of_ids(ids, stop));
    MessageDigest { text_digest: digest(message), ids }
}

/// Hash of ids without the stop id at their end, so that a reply is equal with and without it.
pub(super) fn digest_of_ids(ids: &[u32], stop: u32) -> Sha256Digest {
    let ids = ids.strip_suffix(&[stop]).unwrap_or(ids);
    let mut hash = Sha256::new();
    ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
    hash.finalize().into()
}

/// Hash of a reply of these parts.
pub(super) fn digest_of_reply(parts: &[MessagePart]) -> Sha256Digest {
    digest_of(Role::Assistant, [tool_text::message_text(parts).as_bytes()].into_iter())
}

fn digest(message: &ChatMessage) -> Sha256Digest {
    match message.role {
        Role::Assistant => digest_of_reply(&message.parts),
        role => {
            let bytes = |part: &'_ MessagePart| -> Vec<u8> {
                match part {
                    MessagePart::Image(encoded) => [b"\0image\0", &Sha256::digest(encoded)[..]].concat(),
                    text => tool_text::part_text(text).into_bytes(),
                }
            };
            let parts: Vec<Vec<u8>> = message.parts.iter().map(bytes).collect();
            digest_of(role, parts.iter().map(Vec::as_slice))
        }
    }
}

/// Hashes each part after its length, so that two lists of parts are never the same bytes.
fn digest_of<'a>(role: Role, parts: impl Iterator<Item = &'a [u8]>) -> Sha256Digest {
    let mut hash = Sha256::new();
    hash.update([role as u8]);
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
