//! Looking inside: the residual stream as it passes, and the states that are left. For tests and for finding the first wrong layer.

use super::Cpu;
use crate::backend::{PAGE_TOKENS, Page, Slot};
use crate::config::LayerKind;
use crate::layers::attention;

/// Something seen in passing. Rows are the tokens of the batch, spans in the order of their slots.
#[derive(Debug)]
pub enum Probe<'a> {
    /// The residual stream `[rows, H]` as it enters a layer; what enters layer 0 are the embeddings.
    Entering {
        /// Which.
        layer: usize,
        /// `[rows, H]`.
        rows: &'a [f32],
    },
    /// Where an expert layer sends each row.
    Routed {
        /// Which.
        layer: usize,
        /// `[rows, experts]`.
        logits: &'a [f32],
        /// `[rows, k]`, ascending.
        experts: &'a [u32],
        /// `[rows, k]`, normalised and scaled.
        weights: &'a [f32],
    },
    /// The wanted rows after the last norm, `[wanted, H]`, in the order of the logits.
    FinalNorm {
        /// `[wanted, H]`.
        rows: &'a [f32],
    },
}

/// Who is told.
pub type Observer = Box<dyn FnMut(Probe<'_>) + Send>;

impl Cpu {
    /// Tells `observer` of everything from the next batch on; `None` ends it.
    pub fn observe(&mut self, observer: Option<Observer>) {
        self.observer = observer;
    }

    /// The convolution state `[kernel - 1, W]`, oldest input first, and the SSM state `[heads, head size, N]` of a layer in a slot;
    /// `None` when the layer is no Mamba-2 layer.
    pub fn state(&self, layer: usize, slot: Slot) -> Option<(&[f32], &[f32])> {
        let index = self.index_of(layer, LayerKind::Ssm)?;
        Some(self.arena.state(index, slot))
    }

    /// Keys and values, each `[kv heads, tokens, head size]`, of an attention layer in some pages; `None` when the layer is none.
    pub fn keys_values(&self, layer: usize, pages: &[Page], tokens: usize) -> Option<(Vec<f32>, Vec<f32>)> {
        let index = self.index_of(layer, LayerKind::Attention)?;
        let config = &self.weights.config.text.attention;
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for kv_head in 0..config.kv_heads {
            for position in 0..tokens {
                let page = self.arena.keys_values(index, pages[position / PAGE_TOKENS]);
                let (key, value) = attention::load(config, page, position % PAGE_TOKENS, kv_head);
                keys.extend(key);
                values.extend(value);
            }
        }
        Some((keys, values))
    }

    /// Which of the layers of its kind it is.
    fn index_of(&self, layer: usize, kind: LayerKind) -> Option<usize> {
        self.weights.config.text.layers_of(kind).position(|own| own == layer)
    }
}
