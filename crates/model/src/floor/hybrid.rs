//! The work of this model: Mamba-2, attention, MLP and experts, and a RADIO tower.

use super::{BF16, F32, ModelWork, STATES, WorkPart, product};
use crate::config::{Config, LayerKind, TextConfig, VisionConfig};
use crate::vision;

/// Prefix tokens of the tower. The checkpoint's tensor decides; 10 of 1,034 rows are within one
/// percent of every published number.
const PREFIX: f64 = 10.0;

impl ModelWork for Config {
    fn decode(&self, batch: f64, context: f64) -> Vec<WorkPart> {
        let text = &self.text;
        let ssm = layers(text, LayerKind::Ssm);
        let attention = layers(text, LayerKind::Attention);
        let mut parts = products(text, batch);
        let state = batch * text.ssm_values() as f64;
        let conv = batch * text.conv_values() as f64;
        // Before its first token a sequence has no state to read.
        let ways = if context > 0.0 { 2.0 } else { 1.0 };
        parts.push(WorkPart { name: STATES, bytes: ways * state * F32, flops: 6.0 * state });
        parts.push(WorkPart {
            name: "convolution state, read and written",
            bytes: ways * conv * BF16,
            flops: 2.0 * batch * ssm * (text.ssm.conv_width() * text.ssm.conv_kernel) as f64,
        });
        parts.push(activations(text, batch));
        let kv = text.kv_values() as f64 * BF16;
        let queries = (text.attention.heads * text.attention.head_dim) as f64;
        parts.push(WorkPart {
            name: "keys and values",
            bytes: batch * (context + 1.0) * kv,
            flops: 4.0 * batch * context * attention * queries,
        });
        parts.push(head(text, batch));
        parts
    }

    fn prefill(&self, new: f64, past: f64) -> Vec<WorkPart> {
        let text = &self.text;
        let ssm = layers(text, LayerKind::Ssm);
        let attention = layers(text, LayerKind::Attention);
        let mut parts = products(text, new);
        parts.push(activations(text, new));
        let kv = text.kv_values() as f64 * BF16;
        let queries = (text.attention.heads * text.attention.head_dim) as f64;
        parts.push(WorkPart {
            name: "attention",
            bytes: (past + new) * kv,
            flops: 4.0 * new * (past + new / 2.0) * queries * attention,
        });
        // For each token of a chunk of Q: C B^T over half the chunk, its product with x, the
        // chunk's state, and the output of the carried state.
        let scan = text.ssm.groups * text.ssm.chunk * text.ssm.state
            + text.ssm.inner() * (text.ssm.chunk + 4 * text.ssm.state);
        parts.push(WorkPart {
            name: "chunked scan",
            bytes: 2.0 * text.ssm_values() as f64 * F32
                + new * ssm * BF16 * 2.0 * text.ssm.conv_width() as f64,
            flops: new * ssm * scan as f64,
        });
        parts.push(head(text, 1.0));
        parts
    }

    fn vision(&self, width: usize, height: usize) -> Vec<WorkPart> {
        self.vision.as_ref().map_or(Vec::new(), |vision| self.tower(tiles(vision, width, height) as f64))
    }

    fn screenshot_tokens(&self, width: usize, height: usize) -> usize {
        self.vision.as_ref().map_or(0, |vision| tiles(vision, width, height) * vision.rows_per_tile())
    }

    fn weight_bytes(&self) -> f64 {
        self.parameters() as f64 * BF16
    }

    fn session_bytes(&self, context: f64) -> f64 {
        let text = &self.text;
        text.ssm_values() as f64 * F32
            + text.conv_values() as f64 * BF16
            + context * text.kv_values() as f64 * BF16
    }
}

impl Config {
    /// Encodes this many tiles together and reads the weights once.
    pub fn tower(&self, tiles: f64) -> Vec<WorkPart> {
        let Some(vision) = &self.vision else { return Vec::new() };
        let rows = tiles * ((vision.patches_side() as f64).powi(2) + PREFIX);
        let blocks = vision.blocks as f64;
        let d = vision.hidden as f64;
        let mut parts = vec![
            product("patch embedding", 1.0, rows, 3 * vision.patch * vision.patch, vision.hidden),
            product("tower q, k, v", blocks, rows, vision.hidden, 3 * vision.hidden),
            product("tower attention out", blocks, rows, vision.hidden, vision.hidden),
            product("tower MLP up", blocks, rows, vision.hidden, vision.intermediate),
            product("tower MLP down", blocks, rows, vision.intermediate, vision.hidden),
        ];
        parts.push(WorkPart {
            name: "tower attention",
            bytes: 0.0,
            flops: 4.0 * rows * (rows / tiles) * d * blocks,
        });
        let projected = tiles * vision.rows_per_tile() as f64;
        let shuffled = vision.hidden * vision.shuffle * vision.shuffle;
        parts.push(product("projector up", 1.0, projected, shuffled, vision.projector_hidden));
        parts.push(product("projector down", 1.0, projected, vision.projector_hidden, self.text.hidden));
        parts
    }
}

fn layers(text: &TextConfig, kind: LayerKind) -> f64 {
    text.layers_of(kind).count() as f64
}

fn tiles(vision: &VisionConfig, width: usize, height: usize) -> usize {
    let (cols, rows) = vision::grid(width, height, vision.tile, vision.tiles_max);
    cols * rows + usize::from(cols * rows > 1 && vision.thumbnail)
}

/// Every product with weights except the output head's.
fn products(text: &TextConfig, rows: f64) -> Vec<WorkPart> {
    let of = |kind| layers(text, kind);
    let attention = &text.attention;
    let queries = attention.heads * attention.head_dim;
    let kv = attention.kv_heads * attention.head_dim;
    let mut parts = vec![
        product("Mamba in", of(LayerKind::Ssm), rows, text.hidden, text.ssm.in_proj_width()),
        product("Mamba out", of(LayerKind::Ssm), rows, text.ssm.inner(), text.hidden),
        product("MLP up", of(LayerKind::Mlp), rows, text.hidden, text.intermediate),
        product("MLP down", of(LayerKind::Mlp), rows, text.intermediate, text.hidden),
        product("attention q, k, v", of(LayerKind::Attention), rows, text.hidden, queries + 2 * kv),
        product("attention out", of(LayerKind::Attention), rows, queries, text.hidden),
    ];
    if let Some(moe) = &text.moe {
        let width = moe.latent.unwrap_or(text.hidden);
        // Every expert that some row chose is read once; with many rows all are.
        let read = (rows * moe.experts_per_token as f64).min(moe.experts as f64);
        let expert = (2 * width * moe.intermediate) as f64;
        let shared = (2 * text.hidden * moe.shared_intermediate) as f64;
        parts.push(WorkPart {
            name: "experts",
            bytes: of(LayerKind::Moe) * BF16 * (read * expert + shared),
            flops: of(LayerKind::Moe) * 2.0 * rows * (moe.experts_per_token as f64 * expert + shared),
        });
    }
    parts.retain(|part| part.flops > 0.0);
    parts
}

/// What fused kernels still move between each other: residual and norm of a layer, convolution,
/// gate and scan of a Mamba layer.
fn activations(text: &TextConfig, rows: f64) -> WorkPart {
    let ssm = layers(text, LayerKind::Ssm) * (text.ssm.conv_width() + 4 * text.ssm.inner()) as f64;
    let values = (text.layers.len() * 4 * text.hidden) as f64 + ssm;
    WorkPart { name: "other activations", bytes: rows * values * BF16, flops: 0.0 }
}

fn head(text: &TextConfig, rows: f64) -> WorkPart {
    let mut head = product("output head", 1.0, rows, text.hidden, text.vocabulary);
    // Logits are float32 and are read once more for sampling.
    head.bytes += rows * text.vocabulary as f64 * (2.0 * F32 - BF16);
    head
}
