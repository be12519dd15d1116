//! An expert layer over a batch: routing, then the experts.

use super::Pass;
use crate::cpu::probe::Probe;
use crate::cpu::work::{Routed, Work};
use crate::layers::moe::{self, Routes, Scratch};
use crate::weights::MoeWeights;

impl Pass<'_> {
    /// From the normed rows to what is added to the residual stream. `layer` counts all layers.
    pub(super) fn moe(&mut self, layer: usize, weights: &MoeWeights) {
        let config =
            self.text.moe.as_ref().expect("a model with expert layers says how many experts there are");
        let (rows, all) = (self.layout.rows(), self.all(self.text.hidden));
        let (chosen, latent) =
            (self.all(config.experts_per_token), config.latent.unwrap_or(self.text.hidden));
        let Work { normed, delta, wide, routed, .. } = &mut *self.work;
        let Routed { scores, logits, experts, weights: counts, .. } = routed;
        let mut routes = Routes {
            logits: &mut logits[..rows * config.experts],
            experts: &mut experts[..chosen],
            weights: &mut counts[..chosen],
        };
        moe::route(self.crew, config, weights, &normed[..all], scores, &mut routes);
        if let Some(observer) = &mut self.observer {
            let Routes { logits, experts, weights } = &routes;
            observer(Probe::Routed { layer, logits, experts, weights });
        }
        let scratch = Scratch {
            latent: &mut routed.latent[..rows * latent],
            gathered: &mut routed.gathered[..rows * latent],
            answered: &mut routed.answered[..rows * latent],
            sum: &mut routed.sum[..rows * latent],
            wide,
            shared: &mut routed.shared[..all],
            rows: &mut routed.rows[..rows],
        };
        moe::forward(self.crew, weights, &routes, &normed[..all], scratch, &mut delta[..all]);
    }
}
