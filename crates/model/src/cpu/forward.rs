//! One batch through all layers.
//!
//! Lower bound: every weight is read once a batch (24.6 GB in bfloat16 for the 12B), and every row
//! takes two operations a weight; states, keys and values are read and written once a row.
//! Everything else here is small in comparison.

mod attention;
mod moe;
mod ssm;

use super::arena::StateArena;
use super::batch::BatchLayout;
use super::features::FeatureStore;
use super::probe::{ProbeEvent, ProbeObserver};
use super::work::BatchWorkspace;
use crate::backend::SequenceSpan;
use crate::config::TextConfig;
use crate::kernels::{ConvKernel, math};
use crate::layers::{ComputeContext, add, embed, mlp, norm};
use crate::weights::{MixerWeights, MlpWeights, TextWeights};

/// Everything a batch needs.
pub(super) struct ForwardPass<'a> {
    pub text: &'a TextConfig,
    pub weights: &'a TextWeights,
    /// The convolution of each Mamba-2 layer.
    pub convs: &'a [ConvKernel],
    pub crew: ComputeContext<'a>,
    pub batch: &'a [SequenceSpan<'a>],
    pub layout: &'a BatchLayout,
    pub features: &'a FeatureStore,
    pub arena: &'a mut StateArena,
    pub work: &'a mut BatchWorkspace,
    pub observer: Option<&'a mut ProbeObserver>,
}

impl ForwardPass<'_> {
    /// Embeds, runs the layers, and leaves the logits of the requested rows in the workspace.
    pub(super) fn run(mut self) {
        let weights = self.weights;
        let mut ssm = 0;
        let mut attention = 0;
        self.embed();
        for (index, layer) in weights.layers.iter().enumerate() {
            self.enter(index, &layer.norm);
            match &layer.mixer {
                MixerWeights::Ssm(weights) => {
                    self.ssm(ssm, weights);
                    ssm += 1;
                }
                MixerWeights::Attention(weights) => {
                    self.attention(attention, weights);
                    attention += 1;
                }
                MixerWeights::Mlp(weights) => self.mlp(weights),
                MixerWeights::Moe(weights) => self.moe(index, weights),
            }
            self.leave();
        }
        self.head();
    }

    /// Values of all rows of this width.
    fn all(&self, width: usize) -> usize {
        self.layout.rows() * width
    }

    fn embed(&mut self) {
        let width = self.text.hidden;
        let hidden = &mut self.work.hidden;
        for piece in &self.layout.pieces {
            let span = &self.batch[piece.span];
            let rows = &mut hidden[piece.base * width..(piece.base + piece.len) * width];
            for (token, row) in span.tokens.iter().zip(rows.chunks_exact_mut(width)) {
                // A placeholder may be outside the table: `validate.rs` has checked that an inset
                // covers it.
                if (*token as usize) < self.weights.embeddings.rows {
                    embed::row(&self.weights.embeddings, *token, row);
                }
            }
            for inset in span.insets {
                let rows = rows.chunks_exact_mut(width).skip(inset.at as usize).take(inset.len as usize);
                for (row, of_tile) in rows.zip(inset.row as usize..) {
                    row.copy_from_slice(self.features.row(inset.feature, of_tile));
                }
            }
        }
    }

    /// Applies the norm before a layer's mixer.
    fn enter(&mut self, layer: usize, weight: &[f32]) {
        let all = self.all(self.text.hidden);
        let hidden = &self.work.hidden[..all];
        if let Some(observer) = &mut self.observer {
            observer(ProbeEvent::Entering { layer, rows: hidden });
        }
        norm::rms(self.crew, hidden, weight, self.text.norm_epsilon, &mut self.work.normed[..all]);
    }

    /// Adds the mixer's output to the residual stream.
    fn leave(&mut self) {
        let all = self.all(self.text.hidden);
        add(self.crew, &mut self.work.hidden[..all], &self.work.delta[..all], self.text.hidden);
    }

    fn mlp(&mut self, weights: &MlpWeights) {
        let all = self.all(self.text.hidden);
        let all_wide = self.all(weights.up.out());
        let BatchWorkspace { normed, wide, delta, .. } = &mut *self.work;
        mlp::forward(self.crew, weights, &normed[..all], &mut wide[..all_wide], &mut delta[..all]);
    }

    /// Applies the last norm and the output head, only to rows whose logits are needed.
    fn head(&mut self) {
        let width = self.text.hidden;
        let wanted = &self.layout.wanted;
        let BatchWorkspace { hidden, last, logits, .. } = &mut *self.work;
        let last = &mut last[..wanted.len() * width];
        for (row, last) in wanted.iter().zip(last.chunks_exact_mut(width)) {
            let hidden = &hidden[*row as usize * width..][..width];
            math::rms_norm(hidden, &self.weights.final_norm, self.text.norm_epsilon, last);
        }
        if let Some(observer) = &mut self.observer {
            observer(ProbeEvent::FinalNorm { rows: last });
        }
        if !wanted.is_empty() {
            let logits = &mut logits[..wanted.len() * self.text.vocabulary];
            self.crew.product(&self.weights.head, last, logits);
        }
    }
}
