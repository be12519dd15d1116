//! One turn's layout: marks and fixed text as ids, and text with fields to fill in.

use crate::tokenizer::Tokenizer;

/// A field that is filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TemplateField {
    Instructions,
    Task,
    Outcome,
    Image,
}

impl TemplateField {
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
pub(super) struct TurnLayout {
    sides: [Vec<LayoutPart>; 2],
    chunks: Vec<LayoutChunk>,
}

#[derive(Debug, Clone)]
enum LayoutPart {
    /// Marks, and fixed text.
    Ids(Vec<u32>),
    /// Text between two marks, or between a mark and the image.
    Run(Vec<LayoutChunk>),
}

/// A piece of a layout.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LayoutChunk {
    Text(String),
    Slot(TemplateField),
    Mark(u32),
}

/// Ids around an image, and of each of its rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct ImageMarkIds {
    pub open: u32,
    pub row: u32,
    pub close: u32,
}

impl ImageMarkIds {
    /// An image of this many rows between its marks.
    pub(super) fn around(self, rows: usize) -> Vec<u32> {
        let rows = std::iter::repeat_n(self.row, rows);
        std::iter::once(self.open).chain(rows).chain([self.close]).collect()
    }
}

impl TurnLayout {
    /// Reads a layout that must have each of these fields once and no other.
    pub(super) fn check(
        key: &str,
        text: &str,
        slots: &[TemplateField],
        tokenizer: &Tokenizer,
        problems: &mut Vec<String>,
    ) -> Self {
        let chunks = chunks(text, tokenizer);
        for slot in TemplateField::ALL {
            let found = chunks.iter().filter(|chunk| **chunk == LayoutChunk::Slot(slot)).count();
            let wanted = usize::from(slots.contains(&slot));
            if found != wanted {
                problems.push(format!(
                    "template: {key} has {} {found} times; it must have it {wanted} times",
                    slot.name()
                ));
            }
        }
        let mut sides = chunks.splitn(2, |chunk| *chunk == LayoutChunk::Slot(TemplateField::Image));
        let sides = std::array::from_fn(|_| parts(sides.next().unwrap_or_default(), tokenizer));
        Self { sides, chunks }
    }

    /// Its pieces in order.
    pub(super) fn chunks(&self) -> &[LayoutChunk] {
        &self.chunks
    }

    /// Ids before and after the image.
    pub(super) fn ids<'a>(
        &self,
        tokenizer: &Tokenizer,
        fill: impl Fn(TemplateField) -> &'a str,
    ) -> [Vec<u32>; 2] {
        self.sides.each_ref().map(|parts| {
            let ids = parts.iter().map(|part| match part {
                LayoutPart::Ids(ids) => ids.clone(),
                LayoutPart::Run(chunks) => tokenizer.encode(&filled(chunks, &fill)),
            });
            ids.collect::<Vec<_>>().concat()
        })
    }
}

fn filled<'a>(chunks: &[LayoutChunk], fill: impl Fn(TemplateField) -> &'a str) -> String {
    let mut text = String::new();
    for chunk in chunks {
        match chunk {
            LayoutChunk::Text(fixed) => text.push_str(fixed),
            LayoutChunk::Slot(slot) => text.push_str(fill(*slot)),
            LayoutChunk::Mark(_) => {}
        }
    }
    text
}

/// Splits a layout at its fields, and at the longest name of a mark wherever one begins.
fn chunks(mut text: &str, tokenizer: &Tokenizer) -> Vec<LayoutChunk> {
    let mut chunks = Vec::new();
    while let Some(char) = text.chars().next() {
        let slot = TemplateField::ALL.into_iter().find(|slot| text.starts_with(slot.name()));
        let marks = tokenizer.specials().filter(|(name, _)| !name.is_empty() && text.starts_with(name));
        let mark = marks.max_by_key(|(name, _)| name.len());
        let (chunk, len) = match (slot, mark) {
            (Some(slot), _) => (LayoutChunk::Slot(slot), slot.name().len()),
            (None, Some((name, id))) => (LayoutChunk::Mark(id), name.len()),
            (None, None) => (LayoutChunk::Text(char.into()), char.len_utf8()),
        };
        match (chunks.last_mut(), chunk) {
            (Some(LayoutChunk::Text(before)), LayoutChunk::Text(more)) => before.push_str(&more),
            (_, chunk) => chunks.push(chunk),
        }
        text = &text[len..];
    }
    chunks
}

fn parts(chunks: &[LayoutChunk], tokenizer: &Tokenizer) -> Vec<LayoutPart> {
    chunks.chunk_by(|left, right| is_mark(left) == is_mark(right)).map(|run| part(run, tokenizer)).collect()
}

fn part(run: &[LayoutChunk], tokenizer: &Tokenizer) -> LayoutPart {
    match run {
        [LayoutChunk::Text(fixed)] => LayoutPart::Ids(tokenizer.encode(fixed)),
        [LayoutChunk::Mark(_), ..] => LayoutPart::Ids(run.iter().filter_map(mark).collect()),
        _ => LayoutPart::Run(run.to_vec()),
    }
}

fn is_mark(chunk: &LayoutChunk) -> bool {
    mark(chunk).is_some()
}

fn mark(chunk: &LayoutChunk) -> Option<u32> {
    if let LayoutChunk::Mark(id) = chunk { Some(*id) } else { None }
}
