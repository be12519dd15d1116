//! Lower bound of one batch: rows that decode, and spans that are prefilled in the same batch.

use super::{DeviceSpec, ModelWork, WorkPart, seconds};
use crate::backend::SequenceSpan;
use crate::config::Config;

/// Tokens of one sequence that are prefilled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillSpan {
    pub new: f64,
    pub past: f64,
}

/// Seconds of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BatchFloor {
    /// Seconds of the rows that decode, including the weights that all rows share.
    pub decode: f64,
    /// Seconds of the spans, including the weights if no row decodes.
    pub prefill: f64,
}

/// Parts of a prefill that read no weights: each span has its own.
const OWN: [&str; 4] = ["attention", "keys and values", "chunked scan", "other activations"];

impl BatchFloor {
    /// Lower bound for `decodes` rows with `context` tokens before each on average, and some spans.
    ///
    /// Weights are read once, by the decode rows if there are any; spans in the same batch add the
    /// operations of their products, as in the floor of a rollout. A product that processes both
    /// at once would need only its operations when it has more than `flops / bandwidth` rows, which
    /// is better than this bound.
    pub fn floor(
        model: &dyn ModelWork,
        device: &DeviceSpec,
        decodes: usize,
        context: f64,
        spans: &[PrefillSpan],
    ) -> Self {
        let [decode, prefill] = Self::parts(model, decodes, context, spans);
        Self { decode: seconds(&decode, device), prefill: seconds(&prefill, device) }
    }

    /// Parts of the rows that decode, and parts of the spans.
    pub fn parts(
        model: &dyn ModelWork,
        decodes: usize,
        context: f64,
        spans: &[PrefillSpan],
    ) -> [Vec<WorkPart>; 2] {
        let decode = if decodes > 0 { model.decode(decodes as f64, context) } else { Vec::new() };
        let mut prefill: Vec<WorkPart> = Vec::new();
        for span in spans {
            join(&mut prefill, model.prefill(span.new, span.past));
        }
        if decodes > 0 {
            prefill.iter_mut().filter(|part| part.has_weights()).for_each(|part| part.bytes = 0.0);
        }
        [decode, prefill]
    }

    /// Splits a batch into the work of its decode rows and that of its other spans. A span of one
    /// token counts as decode, whether the token was sampled or not.
    pub fn span_parts(batch: &[SequenceSpan<'_>], model: &Config) -> [Vec<WorkPart>; 2] {
        let (decodes, prefills): (Vec<&SequenceSpan<'_>>, Vec<&SequenceSpan<'_>>) =
            batch.iter().partition(|span| span.tokens.len() == 1);
        let past: f64 = decodes.iter().map(|span| f64::from(span.start)).sum();
        let prefill =
            |span: &&SequenceSpan<'_>| PrefillSpan { new: span.tokens.len() as f64, past: span.start.into() };
        let prefills: Vec<PrefillSpan> = prefills.iter().map(prefill).collect();
        Self::parts(model, decodes.len(), past / decodes.len().max(1) as f64, &prefills)
    }

    pub fn seconds(&self) -> f64 {
        self.decode + self.prefill
    }
}

impl WorkPart {
    fn has_weights(&self) -> bool {
        !OWN.contains(&self.name)
    }
}

/// Adds one span's parts to those of others. A product reads its weights once; the bytes that its
/// other rows move are small compared with their operations.
fn join(all: &mut Vec<WorkPart>, own: Vec<WorkPart>) {
    for part in own {
        match all.iter_mut().find(|one| one.name == part.name) {
            Some(one) => {
                one.bytes =
                    if part.has_weights() { one.bytes.max(part.bytes) } else { one.bytes + part.bytes };
                one.flops += part.flops;
            }
            None => all.push(part),
        }
    }
}
