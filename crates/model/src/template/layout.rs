//! One turn's layout: marks and fixed text as ids, runs of text to be filled in.

use crate::tokenizer::Tokenizer;

/// What is filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    Instructions,
    Task,
    Outcome,
    Image,
}

impl Slot {
    const ALL: [Self; 4] = [Self::Instructions, Self::Task, Self::Outcome, Self::Image];

    fn name(self) -> &'static str {
        match self {
            Self::Instructions => "{instructions}",
            Self::Task => "{task}",
            Self::Outcome => "{outcome}",
            Self::Image => "{image}",
        }
    }
}

/// The parts before and after the image.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    sides: [Vec<Part>; 2],
    chunks: Vec<Chunk>,
}

#[derive(Debug, Clone)]
enum Part {
    /// Marks, and text that is always the same.
    Ids(Vec<u32>),
    /// Text between two marks, or between a mark and the image.
    Run(Vec<Chunk>),
}

/// A piece of a layout.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Chunk {
    Text(String),
    Slot(Slot),
    Mark(u32),
}

impl Layout {
    /// Reads a layout that must hold each slot once and no other.
    pub(super) fn check(
        key: &str,
        text: &str,
        slots: &[Slot],
        tokenizer: &Tokenizer,
        problems: &mut Vec<String>,
    ) -> Self {
        let chunks = chunks(text, tokenizer);
        for slot in Slot::ALL {
            let found = chunks.iter().filter(|chunk| **chunk == Chunk::Slot(slot)).count();
            let wanted = usize::from(slots.contains(&slot));
            if found != wanted {
                problems.push(format!(
                    "template: {key} holds {} {found} times; it must hold it {wanted} times",
                    slot.name()
                ));
            }
        }
        let mut sides = chunks.splitn(2, |chunk| *chunk == Chunk::Slot(Slot::Image));
        let sides = std::array::from_fn(|_| parts(sides.next().unwrap_or_default(), tokenizer));
        Self { sides, chunks }
    }

    /// Its pieces in order.
    pub(super) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Ids before and after the image.
    pub(super) fn ids<'a>(&self, tokenizer: &Tokenizer, fill: impl Fn(Slot) -> &'a str) -> [Vec<u32>; 2] {
        self.sides.each_ref().map(|parts| {
            let ids = parts.iter().map(|part| match part {
                Part::Ids(ids) => ids.clone(),
                Part::Run(chunks) => tokenizer.encode(&filled(chunks, &fill)),
            });
            ids.collect::<Vec<_>>().concat()
        })
    }
}

fn filled<'a>(chunks: &[Chunk], fill: impl Fn(Slot) -> &'a str) -> String {
    let mut text = String::new();
    for chunk in chunks {
        match chunk {
            Chunk::Text(fixed) => text.push_str(fixed),
            Chunk::Slot(slot) => text.push_str(fill(*slot)),
            Chunk::Mark(_) => {}
        }
    }
    text
}

/// Cuts a layout at its slots and at the longest name of a mark wherever one begins.
fn chunks(mut text: &str, tokenizer: &Tokenizer) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    while let Some(char) = text.chars().next() {
        let slot = Slot::ALL.into_iter().find(|slot| text.starts_with(slot.name()));
        let marks = tokenizer.specials().filter(|(name, _)| !name.is_empty() && text.starts_with(name));
        let mark = marks.max_by_key(|(name, _)| name.len());
        let (chunk, len) = match (slot, mark) {
            (Some(slot), _) => (Chunk::Slot(slot), slot.name().len()),
            (None, Some((name, id))) => (Chunk::Mark(id), name.len()),
            (None, None) => (Chunk::Text(char.into()), char.len_utf8()),
        };
        match (chunks.last_mut(), chunk) {
            (Some(Chunk::Text(before)), Chunk::Text(more)) => before.push_str(&more),
            (_, chunk) => chunks.push(chunk),
        }
        text = &text[len..];
    }
    chunks
}

fn parts(chunks: &[Chunk], tokenizer: &Tokenizer) -> Vec<Part> {
    chunks.chunk_by(|left, right| is_mark(left) == is_mark(right)).map(|run| part(run, tokenizer)).collect()
}

fn part(run: &[Chunk], tokenizer: &Tokenizer) -> Part {
    match run {
        [Chunk::Text(fixed)] => Part::Ids(tokenizer.encode(fixed)),
        [Chunk::Mark(_), ..] => Part::Ids(run.iter().filter_map(mark).collect()),
        _ => Part::Run(run.to_vec()),
    }
}

fn is_mark(chunk: &Chunk) -> bool {
    mark(chunk).is_some()
}

fn mark(chunk: &Chunk) -> Option<u32> {
    if let Chunk::Mark(id) = chunk { Some(*id) } else { None }
}
