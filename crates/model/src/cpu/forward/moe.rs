//! An expert layer over a batch: routing, then the experts.

use super::ForwardPass;
use crate::cpu::probe::ProbeEvent;
use crate::cpu::work::{BatchWorkspace, ExpertWorkspace};
use crate::layers::moe::{self, ExpertRoutes, ExpertScratch};
use crate::weights::MoeWeights;

impl ForwardPass<'_> {
    /// Computes the addition to the residual stream from the normed rows. `layer` counts all
    /// layers.
    pub(super) fn moe(&mut self, layer: usize, weights: &MoeWeights) {
        let config =
            self.text.moe.as_ref().expect("the configuration of a model with expert layers has their sizes");
        let rows = self.layout.rows();
        let all = self.all(self.text.hidden);
        let chosen = self.all(config.experts_per_token);
        let latent = config.latent.unwrap_or(self.text.hidden);
        let BatchWorkspace { normed, delta, wide, routed, .. } = &mut *self.work;
        let ExpertWorkspace { scores, logits, experts, weights: counts, .. } = routed;
        let mut routes = ExpertRoutes {
            logits: &mut logits[..rows * config.experts],
            experts: &mut experts[..chosen],
            weights: &mut counts[..chosen],
        };
        moe::route(self.crew, config, weights, &normed[..all], scores, &mut routes);
        if let Some(observer) = &mut self.observer {
            let ExpertRoutes { logits, experts, weights } = &routes;
            observer(ProbeEvent::Routed { layer, logits, experts, weights });
        }
        let scratch = ExpertScratch {
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
