//! The workspace of a batch, allocated once for the largest one.

use super::batch::SpanRows;
use super::error::CpuOpenError;
use super::values::FloatBuffer;
use crate::backend::BackendCapacity;
use crate::config::{AttentionConfig, LayerKind, TextConfig};
use crate::layers::moe;

/// Rows of the batch in several widths.
#[derive(Debug)]
pub(super) struct BatchWorkspace {
    /// The residual stream, `[rows, H]`.
    pub hidden: FloatBuffer,
    /// The residual stream after a layer's norm.
    pub normed: FloatBuffer,
    /// Output of a mixer.
    pub delta: FloatBuffer,
    /// Output of a mixer's first product: the widest buffer.
    pub wide: FloatBuffer,
    /// x | B | C after the convolution, `[rows, W]`.
    pub conv: FloatBuffer,
    /// Outputs of heads, span by span and head by head.
    pub by_head: FloatBuffer,
    /// Outputs of heads by row.
    pub by_row: FloatBuffer,
    /// dt and decay of every head, `[rows, 2 heads]`.
    pub steps: FloatBuffer,
    /// Routing of one expert layer.
    pub routed: ExpertWorkspace,
    /// Rows whose logits are needed, after the last norm, `[rows, H]`.
    pub last: FloatBuffer,
    /// Their logits, `[rows, V]`.
    pub logits: FloatBuffer,
    /// Lists of work for the threads.
    pub jobs: JobLists,
}

/// Buffers for routing and experts.
#[derive(Debug)]
pub(super) struct ExpertWorkspace {
    pub scores: FloatBuffer,
    pub logits: FloatBuffer,
    pub experts: Vec<u32>,
    pub weights: FloatBuffer,
    pub latent: FloatBuffer,
    pub gathered: FloatBuffer,
    pub answered: FloatBuffer,
    pub sum: FloatBuffer,
    pub shared: FloatBuffer,
    pub rows: Vec<u32>,
}

/// Neighbouring heads of one Mamba-2 layer over one span.
pub(super) struct ScanJob<'a> {
    pub piece: SpanRows,
    /// The first of these heads.
    pub head: usize,
    pub states: &'a mut [f32],
    /// Their outputs, `[heads, rows, head size]`.
    pub y: &'a mut [f32],
}

/// One KV head of one attention layer over some tokens of a span.
pub(super) struct AttendJob<'a> {
    pub piece: SpanRows,
    pub kv_head: usize,
    /// The first token, counted from the start of the span.
    pub first: usize,
    /// `[tokens, query heads of the group, head size]`.
    pub out: &'a mut [f32],
}

/// Empty lists that keep their memory from layer to layer.
#[derive(Default)]
pub(super) struct JobLists {
    pub scan: Vec<ScanJob<'static>>,
    pub attend: Vec<AttendJob<'static>>,
}

impl std::fmt::Debug for JobLists {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobLists").finish_non_exhaustive()
    }
}

/// Query rows, tokens times heads of a group, of one job: as many as the kernel processes together
/// for a page.
const ATTEND_ROWS: usize = 96;

/// Tokens of a span in one job.
pub(super) fn attend_tokens(config: &AttentionConfig) -> usize {
    (ATTEND_ROWS / config.group()).max(1)
}

/// The list, emptied, for borrows of another lifetime. The standard library collects a vector's
/// own iterator in the same memory.
pub(super) fn emptied<A, B>(mut list: Vec<A>) -> Vec<B> {
    list.clear();
    list.into_iter().map(|_| unreachable!("the list is empty")).collect()
}

/// Values a row takes in each buffer.
struct RowWidths {
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

impl RowWidths {
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

    /// Values of all buffers for one row; an index counts as a value.
    fn row(&self) -> usize {
        let moe =
            self.experts + 2 * self.chosen + 4 * self.latent + self.shared + usize::from(self.experts > 0);
        3 * self.hidden + self.wide + self.conv + 2 * self.by_head + self.steps + moe
    }
}

/// Values of all buffers for one row, an index counting as one; a row whose logits are needed takes
/// H and V more.
pub(super) fn row_values(text: &TextConfig) -> u64 {
    RowWidths::of(text).row() as u64
}

impl BatchWorkspace {
    /// Allocates everything for the largest batch.
    pub(super) fn new(
        text: &TextConfig,
        capacity: &BackendCapacity,
        threads: usize,
    ) -> Result<Self, CpuOpenError> {
        let rows = capacity.rows_max as usize;
        let widths = RowWidths::of(text);
        let buffer = |width| FloatBuffer::zeros("the workspace of a batch", rows, width);
        Ok(Self {
            hidden: buffer(widths.hidden)?,
            normed: buffer(widths.hidden)?,
            delta: buffer(widths.hidden)?,
            wide: buffer(widths.wide)?,
            conv: buffer(widths.conv)?,
            by_head: buffer(widths.by_head)?,
            by_row: buffer(widths.by_head)?,
            steps: buffer(widths.steps)?,
            routed: ExpertWorkspace::new(text, rows, &widths)?,
            last: FloatBuffer::zeros("the workspace of a batch", capacity.logits_max as usize, text.hidden)?,
            logits: FloatBuffer::zeros(
                "the logits of a batch",
                capacity.logits_max as usize,
                text.vocabulary,
            )?,
            jobs: JobLists::new(text, capacity, threads),
        })
    }
}

impl ExpertWorkspace {
    fn new(text: &TextConfig, rows: usize, widths: &RowWidths) -> Result<Self, CpuOpenError> {
        const PART: &str = "the workspace of the experts";
        let buffer = |width| FloatBuffer::zeros(PART, rows, width);
        let scores = text.moe.as_ref().map_or(0, moe::scratch_values);
        Ok(Self {
            scores: FloatBuffer::zeros(PART, 1, scores)?,
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

impl JobLists {
    fn new(text: &TextConfig, capacity: &BackendCapacity, threads: usize) -> Self {
        let spans = capacity.slots.min(capacity.rows_max) as usize;
        let blocks = capacity.rows_max as usize / attend_tokens(&text.attention) + spans;
        Self {
            // `heads_per_job` makes at most twice as many jobs as it aims for, and one more a span.
            scan: Vec::with_capacity(2 * SCAN_JOBS * threads + spans),
            attend: Vec::with_capacity(text.attention.kv_heads * blocks),
        }
    }
}

/// Jobs a thread: enough that the others do not wait long for the last one.
const SCAN_JOBS: usize = 8;

/// Heads in a job, for this many spans.
pub(super) fn heads_per_job(heads: usize, spans: usize, threads: usize) -> usize {
    (heads * spans / (SCAN_JOBS * threads)).clamp(1, heads)
}
