//! What a power cut leaves: all that is durable, and any part of what was pending.

use std::collections::BTreeMap;

use rand::RngExt;
use rand::rngs::ChaCha12Rng;

use crate::model::{DataChange, DiskModel, FileContent, Target, parent};

/// The system writes whole pages, a disk whole sectors.
const PAGE: u64 = 4096;
const SECTOR: u64 = 512;

/// Losses, by what was lost: names, pages, parts of pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    pub pages: u64,
    pub torn: u64,
    pub truncations: u64,
}

/// How much of the pending changes a crash keeps, in percent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mercy(u32);

impl Mercy {
    /// Nothing, all, or any share between.
    pub(crate) fn draw(chance: &mut ChaCha12Rng) -> Self {
        match chance.random_range(0..6) {
            0 | 1 => Mercy(0),
            2 => Mercy(100),
            _ => Mercy(chance.random_range(10..95)),
        }
    }

    pub(crate) fn keeps(self, chance: &mut ChaCha12Rng) -> bool {
        chance.random_range(0..100) < self.0
    }
}

/// Content of a file after a power cut.
pub(crate) fn surviving_content(
    content: &FileContent,
    mercy: Mercy,
    chance: &mut ChaCha12Rng,
) -> (Vec<u8>, Losses) {
    let mut kept = content.durable.clone();
    let mut losses = Losses::default();
    let mut length = kept.len();
    for change in &content.pending {
        match change {
            DataChange::Write { at, bytes } => {
                length = length.max(*at as usize + bytes.len());
                for (at, page) in pieces(*at, bytes, PAGE) {
                    write_page(&mut kept, (at, page), mercy, &mut losses, chance);
                }
            }
            DataChange::Truncate(to) if mercy.keeps(chance) => {
                change.apply(&mut kept);
                length = *to as usize;
            }
            DataChange::Truncate(_) => losses.truncations += 1,
        }
    }
    // The length is kept apart from the content: a file may be longer than what arrived of it.
    if kept.len() < length && chance.random_range(0..3) == 0 {
        kept.resize(length, 0);
    }
    (kept, losses)
}

fn write_page(
    kept: &mut Vec<u8>,
    (at, page): (u64, &[u8]),
    mercy: Mercy,
    losses: &mut Losses,
    chance: &mut ChaCha12Rng,
) {
    let write = |kept: &mut Vec<u8>, at: u64, bytes: &[u8]| {
        DataChange::Write { at, bytes: bytes.to_vec() }.apply(kept);
    };
    if mercy.keeps(chance) {
        return write(kept, at, page);
    }
    if page.len() as u64 > SECTOR && chance.random_range(0..3) == 0 {
        losses.torn += 1;
        for (at, sector) in pieces(at, page, SECTOR) {
            if chance.random() {
                write(kept, at, sector);
            }
        }
    } else {
        losses.pages += 1;
    }
}

/// Parts of a write that lie in one block each.
fn pieces(at: u64, bytes: &[u8], block: u64) -> impl Iterator<Item = (u64, &[u8])> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let start = at + from as u64;
        let left = (block - start % block) as usize;
        let piece = &bytes[from..bytes.len().min(from + left)];
        from += piece.len();
        (!piece.is_empty()).then_some((start, piece))
    })
}

/// Names after a power cut, and how many changes were lost of each first name.
pub(crate) fn surviving_names(
    model: &DiskModel,
    mercy: Mercy,
    chance: &mut ChaCha12Rng,
) -> (BTreeMap<String, Target>, Vec<String>) {
    let mut names = model.durable.clone();
    let mut lost = Vec::new();
    for change in &model.pending {
        if mercy.keeps(chance) {
            change.apply(&mut names);
        } else {
            lost.extend(change.sets.first().map(|(name, _)| name.clone()));
        }
    }
    // Without its folder a name leads nowhere. Names are in order, so a folder is looked at first.
    let mut reachable: BTreeMap<String, Target> = BTreeMap::new();
    for (name, target) in names {
        let folder = parent(&name);
        if folder.is_empty() || reachable.get(folder) == Some(&Target::Folder) {
            reachable.insert(name, target);
        }
    }
    (reachable, lost)
}
