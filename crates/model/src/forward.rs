//! Runs one whole sequence through a backend: logits of every token, log-probabilities, a greedy
//! continuation.

use std::ops::Range;

use crate::backend::{
    Backend, BackendCapacity, BackendError, ImageInset, LogitRows, PAGE_TOKENS, Page, SequenceSpan, Slot,
    TileFeature,
};
use crate::config::Config;
use crate::vision::ImageTile;

#[derive(Debug, Clone, Copy, Default)]
pub struct ForwardRequest<'a> {
    /// Token ids, image placeholders already expanded.
    pub input_ids: &'a [u32],
    /// Tiles whose rows replace the placeholders, in order.
    pub tiles: &'a [ImageTile],
    /// Lengths of the pieces that the prefill is cut into; empty: one piece.
    pub segments: &'a [usize],
    /// Tokens to decode greedily after the input.
    pub decode: usize,
}

/// Results of a run. V is the vocabulary.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ForwardOutputs {
    /// `[T, V]`, of every input token.
    pub logits: Vec<f32>,
    /// `[T - 1]`, of the next input token, at temperature 1.
    pub logprobs: Vec<f32>,
    /// `[N]`, each the first of the likeliest of its row of `decode_logits`.
    pub decode_tokens: Vec<u32>,
    /// `[N, V]`; row 0 follows the prompt.
    pub decode_logits: Vec<f32>,
}

/// Why a sequence was not run.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// There is nothing to run.
    #[error("no input ids: give at least one")]
    NoTokens,
    /// The segments do not cover the input.
    #[error(
        "segments {segments:?} add up to {sum}, but there are {tokens} input ids; each must be at least 1"
    )]
    Segments {
        segments: Vec<usize>,
        /// Sum of their lengths.
        sum: usize,
        tokens: usize,
    },
    /// Tiles and placeholders do not match.
    #[error(
        "{placeholders} image placeholders for {tiles} tiles of {rows} rows each: expand each image to tiles x {rows} placeholders"
    )]
    Placeholders {
        /// Placeholders among the input ids.
        placeholders: usize,
        tiles: usize,
        /// Rows of a tile.
        rows: usize,
    },
    /// The logits do not fit into memory.
    #[error("{rows} rows of {vocabulary} logits do not fit into memory")]
    TooLong { rows: usize, vocabulary: usize },
    #[error("the backend refused")]
    Backend(#[from] BackendError),
}

/// Capacity for one sequence. Pieces longer than 512 rows run in several calls: on the CPU the cuts
/// change nothing.
pub fn capacity_for(tokens: usize, tiles: usize, decode: usize) -> BackendCapacity {
    let rows = tokens.clamp(1, 512) as u32;
    let pages = (tokens + decode).div_ceil(PAGE_TOKENS).max(1) as u32;
    BackendCapacity {
        slots: 1,
        pages,
        rows_max: rows,
        logits_max: rows,
        features: tiles as u32,
        offload_bytes: 0,
    }
}

/// Runs a sequence in slot 0 and the first pages of the backend.
pub fn forward(
    backend: &mut dyn Backend,
    request: &ForwardRequest<'_>,
) -> Result<ForwardOutputs, ForwardError> {
    check_segments(request)?;
    let images = ImagePositions::locate(backend.config(), request)?;
    let vocabulary = backend.config().text.vocabulary;
    let mut outputs = ForwardOutputs::with_capacity(request, vocabulary)?;
    check_positions(backend, request)?;
    let features = if request.tiles.is_empty() { Vec::new() } else { backend.encode(request.tiles)? };
    let done = run(backend, request, &images, &features, &mut outputs);
    backend.release(&features);
    done?;
    let rows = outputs.logits.chunks_exact(vocabulary);
    outputs.logprobs = rows.zip(&request.input_ids[1..]).map(|(row, id)| logprob(row, *id)).collect();
    Ok(outputs)
}

fn run(
    backend: &mut dyn Backend,
    request: &ForwardRequest<'_>,
    images: &ImagePositions,
    features: &[TileFeature],
    outputs: &mut ForwardOutputs,
) -> Result<(), BackendError> {
    let mut sequence = Sequence::at_start(backend, request.input_ids.len() + request.decode);
    let whole = [request.input_ids.len()];
    let segments = if request.segments.is_empty() { &whole } else { request.segments };
    let capacity = backend.capacity();
    let rows_max = capacity.rows_max.min(capacity.logits_max) as usize;
    for segment in segments {
        let end = sequence.len() + segment;
        while sequence.len() < end {
            let rows = sequence.len()..end.min(sequence.len() + rows_max);
            let insets = images.insets(rows.clone(), features);
            sequence.run(backend, &request.input_ids[rows.clone()], &insets, LogitRows::All)?;
            for row in 0..rows.len() {
                outputs.logits.extend_from_slice(backend.logits(row as u32)?);
            }
        }
    }
    decode(backend, &mut sequence, request.decode, outputs)
}

fn decode(
    backend: &mut dyn Backend,
    sequence: &mut Sequence,
    count: usize,
    outputs: &mut ForwardOutputs,
) -> Result<(), BackendError> {
    let width = backend.config().text.vocabulary;
    for step in 0..count {
        let at = outputs.decode_logits.len();
        if step == 0 {
            let last = outputs.logits.len() - width;
            outputs.decode_logits.extend_from_slice(&outputs.logits[last..]);
        } else {
            sequence.run(backend, &outputs.decode_tokens[step - 1..], &[], LogitRows::Last)?;
            outputs.decode_logits.extend_from_slice(backend.logits(0)?);
        }
        outputs.decode_tokens.push(likeliest(&outputs.decode_logits[at..]));
    }
    Ok(())
}

/// A sequence, and the slot and pages of its state.
#[derive(Debug, Clone)]
pub struct Sequence {
    slot: Slot,
    pages: Vec<Page>,
    len: usize,
}

impl Sequence {
    /// A sequence without tokens, in this slot and on these pages.
    pub fn new(slot: Slot, pages: Vec<Page>) -> Self {
        Self { slot, pages, len: 0 }
    }

    /// A sequence in slot 0, on as many of the backend's pages as its tokens need, or on all.
    fn at_start(backend: &dyn Backend, tokens: usize) -> Self {
        let pages = tokens.div_ceil(PAGE_TOKENS).min(backend.capacity().pages as usize) as u32;
        Self::new(Slot(0), (0..pages).map(Page).collect())
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Slot of its recurrent state.
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Pages of its keys and values.
    pub fn pages(&self) -> &[Page] {
        &self.pages
    }

    /// These tokens as a span of a batch; call `advance` after it has run.
    pub fn span<'a>(
        &'a self,
        tokens: &'a [u32],
        insets: &'a [ImageInset],
        want: LogitRows,
    ) -> SequenceSpan<'a> {
        SequenceSpan { slot: self.slot, pages: &self.pages, start: self.len as u32, tokens, insets, want }
    }

    /// Counts tokens that have run.
    pub fn advance(&mut self, tokens: usize) {
        self.len += tokens;
    }

    /// Runs more tokens of this sequence alone.
    pub fn run(
        &mut self,
        backend: &mut dyn Backend,
        tokens: &[u32],
        insets: &[ImageInset],
        want: LogitRows,
    ) -> Result<(), BackendError> {
        backend.run(&[self.span(tokens, insets, want)])?;
        self.advance(tokens.len());
        Ok(())
    }
}

/// Positions of image rows among the input ids.
struct ImagePositions {
    /// Positions of the placeholders, ascending.
    positions: Vec<usize>,
    rows_per_tile: usize,
}

impl ImagePositions {
    fn locate(config: &Config, request: &ForwardRequest<'_>) -> Result<Self, ForwardError> {
        let Some(vision) = &config.vision else {
            return if request.tiles.is_empty() {
                Ok(Self { positions: Vec::new(), rows_per_tile: 1 })
            } else {
                Err(BackendError::NoVision.into())
            };
        };
        let ids = request.input_ids.iter().enumerate();
        let positions: Vec<_> = ids.filter(|(_, id)| **id == vision.image_token).map(|(at, _)| at).collect();
        let placeholders = positions.len();
        let tiles = request.tiles.len();
        let rows = vision.rows_per_tile();
        if placeholders != tiles * rows {
            return Err(ForwardError::Placeholders { placeholders, tiles, rows });
        }
        Ok(Self { positions, rows_per_tile: rows })
    }

    /// Image rows in a range of tokens, as runs of consecutive rows of one tile.
    fn insets(&self, tokens: Range<usize>, features: &[TileFeature]) -> Vec<ImageInset> {
        let first = self.positions.partition_point(|at| *at < tokens.start);
        let mut insets: Vec<ImageInset> = Vec::new();
        for (row, at) in self.positions.iter().enumerate().skip(first).take_while(|(_, at)| **at < tokens.end)
        {
            let tile = row / self.rows_per_tile;
            let row = (row % self.rows_per_tile) as u32;
            let at = (at - tokens.start) as u32;
            let feature = features[tile];
            match insets.last_mut() {
                Some(run) if run.feature == feature && run.at + run.len == at => run.len += 1,
                _ => insets.push(ImageInset { at, len: 1, feature, row }),
            }
        }
        insets
    }
}

impl ForwardOutputs {
    fn with_capacity(request: &ForwardRequest<'_>, vocabulary: usize) -> Result<Self, ForwardError> {
        let mut outputs = Self::default();
        for (values, rows) in
            [(&mut outputs.logits, request.input_ids.len()), (&mut outputs.decode_logits, request.decode)]
        {
            let size = rows.checked_mul(vocabulary);
            size.and_then(|size| values.try_reserve_exact(size).ok())
                .ok_or(ForwardError::TooLong { rows, vocabulary })?;
        }
        Ok(outputs)
    }
}

fn check_segments(request: &ForwardRequest<'_>) -> Result<(), ForwardError> {
    let segments = request.segments;
    let tokens = request.input_ids.len();
    if tokens == 0 {
        return Err(ForwardError::NoTokens);
    }
    let sum = segments.iter().fold(0_usize, |sum, segment| sum.saturating_add(*segment));
    if !segments.is_empty() && (sum != tokens || segments.contains(&0)) {
        return Err(ForwardError::Segments { segments: segments.to_vec(), sum, tokens });
    }
    Ok(())
}

fn check_positions(backend: &dyn Backend, request: &ForwardRequest<'_>) -> Result<(), BackendError> {
    // The last decoded token is not run.
    let requested = request.input_ids.len() + request.decode.saturating_sub(1);
    let capacity = backend.capacity().pages as usize * PAGE_TOKENS;
    if requested > capacity {
        return Err(BackendError::OverCapacity { what: "positions of all pages", requested, capacity });
    }
    Ok(())
}

/// log-softmax of a row at `id`, summed in float64.
fn logprob(logits: &[f32], id: u32) -> f32 {
    // A placeholder outside the vocabulary is never sampled: its probability is 0.
    let Some(logit) = logits.get(id as usize) else { return f32::NEG_INFINITY };
    let highest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - highest).exp()).sum();
    (f64::from(*logit) - highest - sum.ln()) as f32
}

/// The first of the highest logits.
fn likeliest(logits: &[f32]) -> u32 {
    let best = logits
        .iter()
        .enumerate()
        .fold((0, f32::NEG_INFINITY), |best, (id, logit)| if *logit > best.1 { (id, *logit) } else { best });
    best.0 as u32
}
