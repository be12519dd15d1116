//! What a batch is computed in, allocated once for the largest one.

use super::OpenError;
use super::batch::Piece;
use super::values::Values;
use crate::backend::Room;
use crate::config::{AttentionConfig, LayerKind, TextConfig};
use crate::layers::moe;

/// Rows of the batch in several widths.
#[derive(Debug)]
pub(super) struct Work {
    /// The residual stream, `[rows, H]`.
    pub hidden: Values,
    /// The same after a layer's norm.
    pub normed: Values,
    /// What a mixer adds.
    pub delta: Values,
    /// What a mixer's first product gives: the widest there is.
    pub wide: Values,
    /// x | B | C after the convolution, `[rows, W]`.
    pub conv: Values,
    /// What heads give, span by span and head by head.
    pub by_head: Values,
    /// The same by row.
    pub by_row: Values,
    /// dt and decay of every head, `[rows, 2 heads]`.
    pub steps: Values,
    /// Routing of one expert layer.
    pub routed: Routed,
    /// The wanted rows after the last norm, `[wanted, H]`.
    pub last: Values,
    /// Their logits, `[wanted, V]`.
    pub logits: Values,
    /// Lists of what threads shall do.
    pub jobs: Jobs,
}

/// What routing and experts need.
#[derive(Debug)]
pub(super) struct Routed {
    pub scores: Values,
    pub logits: Values,
    pub experts: Vec<u32>,
    pub weights: Values,
    pub latent: Values,
    pub gathered: Values,
    pub answered: Values,
    pub sum: Values,
    pub shared: Values,
    pub rows: Vec<u32>,
}

/// Some neighbouring heads of one Mamba-2 layer over one span.
pub(super) struct ScanJob<'a> {
    pub piece: Piece,
    /// The first of them.
    pub head: usize,
    /// Their states.
    pub states: &'a mut [f32],
    /// Their outputs, `[heads, rows, head size]`.
    pub y: &'a mut [f32],
}

/// One KV head of one attention layer over some tokens of a span.
pub(super) struct AttendJob<'a> {
    pub piece: Piece,
    pub kv_head: usize,
    /// The first token, counted from the span's.
    pub first: usize,
    /// `[tokens, query heads of the group, head size]`.
    pub out: &'a mut [f32],
}

/// Emptied lists that keep their memory from layer to layer.
#[derive(Default)]
pub(super) struct Jobs {
    pub scan: Vec<ScanJob<'static>>,
    pub attend: Vec<AttendJob<'static>>,
}

impl std::fmt::Debug for Jobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jobs").finish_non_exhaustive()
    }
}

/// Query rows, tokens by heads of a group, that one thread attends for at a time: as many as the kernel takes through a page together.
const ATTEND_ROWS: usize = 96;

/// Tokens of a span in a job.
pub(super) fn attend_tokens(config: &AttentionConfig) -> usize {
    (ATTEND_ROWS / config.group()).max(1)
}

/// The list again, empty, for borrows of another length. The standard library collects a vector's own iterator in its own memory.
pub(super) fn emptied<A, B>(mut list: Vec<A>) -> Vec<B> {
    list.clear();
    list.into_iter().map(|_| unreachable!("the list is empty")).collect()
}

/// Values a row takes in each buffer.
struct Widths {
    hidden: usize,
    wide: usize,
    conv: usize,
    by_head: usize,
    steps: usize,
    experts: usize,
    chosen: usize,
    latent: usize,
    shared: usize,
}

impl Widths {
    fn of(text: &TextConfig) -> Self {
        let has = |kind| text.layers.contains(&kind);
        let only = |kind, width: usize| if has(kind) { width } else { 0 };
        let [q, _, qkv] = text.attention.widths();
        let inner = only(LayerKind::Ssm, text.ssm.inner()).max(only(LayerKind::Attention, q));
        let moe = text.moe.as_ref().filter(|_| has(LayerKind::Moe));
        let wide = [
            only(LayerKind::Ssm, text.ssm.in_proj_width()),
            only(LayerKind::Attention, qkv),
            only(LayerKind::Mlp, text.intermediate),
            moe.map_or(0, |moe| moe.intermediate.max(moe.shared_intermediate)),
        ];
        Self {
            hidden: text.hidden,
            wide: wide.into_iter().max().unwrap_or(0),
            conv: only(LayerKind::Ssm, text.ssm.conv_width()),
            by_head: inner,
            steps: only(LayerKind::Ssm, 2 * text.ssm.heads),
            experts: moe.map_or(0, |moe| moe.experts),
            chosen: moe.map_or(0, |moe| moe.experts_per_token),
            latent: moe.map_or(0, |moe| moe.latent.unwrap_or(text.hidden)),
            shared: moe.map_or(0, |_| text.hidden),
        }
    }

    /// All buffers of a row together; an index counts as a value.
    fn row(&self) -> usize {
        let moe =
            self.experts + 2 * self.chosen + 4 * self.latent + self.shared + usize::from(self.experts > 0);
        3 * self.hidden + self.wide + self.conv + 2 * self.by_head + self.steps + moe
    }
}

/// Values of all buffers that one row takes, an index counting as one; a wanted row takes H and V more.
pub(super) fn row_values(text: &TextConfig) -> u64 {
    Widths::of(text).row() as u64
}

impl Work {
    /// Allocates everything for the largest batch.
    pub fn new(text: &TextConfig, room: &Room, threads: usize) -> Result<Self, OpenError> {
        let (rows, widths) = (room.rows_max as usize, Widths::of(text));
        let buffer = |width| Values::zeros("the workspace of a batch", rows, width);
        Ok(Self {
            hidden: buffer(widths.hidden)?,
            normed: buffer(widths.hidden)?,
            delta: buffer(widths.hidden)?,
            wide: buffer(widths.wide)?,
            conv: buffer(widths.conv)?,
            by_head: buffer(widths.by_head)?,
            by_row: buffer(widths.by_head)?,
            steps: buffer(widths.steps)?,
            routed: Routed::new(text, rows, &widths)?,
            last: Values::zeros("the workspace of a batch", room.logits_max as usize, text.hidden)?,
            logits: Values::zeros("the logits of a batch", room.logits_max as usize, text.vocabulary)?,
            jobs: Jobs::new(text, room, threads),
        })
    }
}

impl Routed {
    fn new(text: &TextConfig, rows: usize, widths: &Widths) -> Result<Self, OpenError> {
        const PART: &str = "the workspace of the experts";
        let buffer = |width| Values::zeros(PART, rows, width);
        let scores = text.moe.as_ref().map_or(0, moe::scratch_values);
        Ok(Self {
            scores: Values::zeros(PART, 1, scores)?,
            logits: buffer(widths.experts)?,
            experts: vec![0; rows * widths.chosen],
            weights: buffer(widths.chosen)?,
            latent: buffer(widths.latent)?,
            gathered: buffer(widths.latent)?,
            answered: buffer(widths.latent)?,
            sum: buffer(widths.latent)?,
            shared: buffer(widths.shared)?,
            rows: vec![0; rows * usize::from(widths.experts > 0)],
        })
    }
}

impl Jobs {
    fn new(text: &TextConfig, room: &Room, threads: usize) -> Self {
        let spans = room.slots.min(room.rows_max) as usize;
        let blocks = room.rows_max as usize / attend_tokens(&text.attention) + spans;
        Self {
            // `heads_per_job` makes at most twice the jobs it aims at, and one more a span.
            scan: Vec::with_capacity(2 * SCAN_JOBS * threads + spans),
            attend: Vec::with_capacity(text.attention.kv_heads * blocks),
        }
    }
}

/// Jobs a thread: enough that the last one to finish is not waited for long.
const SCAN_JOBS: usize = 8;

/// How many heads go into a job, for so many spans.
pub(super) fn heads_per_job(heads: usize, spans: usize, threads: usize) -> usize {
    (heads * spans / (SCAN_JOBS * threads)).clamp(1, heads)
}
