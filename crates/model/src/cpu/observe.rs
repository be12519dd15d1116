//! Observes a running model: the residual stream at each layer, and the states afterwards. For
//! tests and for finding the first wrong layer.

use super::CpuBackend;
use super::probe::ProbeObserver;
use crate::backend::{PAGE_TOKENS, Page, Slot};
use crate::config::LayerKind;
use crate::layers::attention;

impl CpuBackend {
    /// Calls `observer` for every event from the next batch on; `None` ends this.
    pub fn observe(&mut self, observer: Option<ProbeObserver>) {
        self.observer = observer;
    }

    /// The convolution state `[kernel - 1, W]`, oldest input first, and the SSM state
    /// `[heads, head size, N]` of a layer in a slot; `None` if the layer is not a Mamba-2 layer.
    pub fn state(&self, layer: usize, slot: Slot) -> Option<(&[f32], &[f32])> {
        let index = self.index_of(layer, LayerKind::Ssm)?;
        Some(self.arena.state(index, slot))
    }

    /// Keys and values, each `[kv heads, tokens, head size]`, of an attention layer in some pages;
    /// `None` if it is not an attention layer.
    pub fn keys_values(&self, layer: usize, pages: &[Page], tokens: usize) -> Option<(Vec<f32>, Vec<f32>)> {
        let index = self.index_of(layer, LayerKind::Attention)?;
        let config = &self.weights.config.text.attention;
        let mut keys = Vec::new();
        let mut values = Vec::new();
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

    /// Index of a layer among the layers of its kind.
    fn index_of(&self, layer: usize, kind: LayerKind) -> Option<usize> {
        self.weights.config.text.layers_of(kind).position(|own| own == layer)
    }
}
