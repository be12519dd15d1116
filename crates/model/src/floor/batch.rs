//! The floor of one batch: rows that decode and spans that are prefilled beside them.

use super::{Device, Part, Work, seconds};

/// Tokens of one sequence that are prefilled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prefill {
    /// Tokens.
    pub new: f64,
    /// Tokens they follow.
    pub past: f64,
}

/// Seconds of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Batch {
    /// Of the rows that decode, the weights that all rows share included.
    pub decode: f64,
    /// Of the spans, and of the weights where no row decodes.
    pub prefill: f64,
}

/// Parts of a prefill that read no weights: each span has its own.
const OWN: [&str; 4] = ["attention", "keys and values", "chunked scan", "other activations"];

impl Batch {
    /// `decodes` rows, `context` tokens before each in the mean, and some spans.
    ///
    /// Weights are read once, by the decode rows where there are any; spans beside them add the operations of their products, as in
    /// [`super::Rollout`]. A product that takes both at once would need its operations alone where it has more than `flops / bandwidth`
    /// rows, which is better than this floor.
    pub fn floor(model: &dyn Work, device: &Device, decodes: usize, context: f64, spans: &[Prefill]) -> Self {
        let [decode, prefill] = Self::parts(model, decodes, context, spans);
        Self { decode: seconds(&decode, device), prefill: seconds(&prefill, device) }
    }

    /// Parts of the rows that decode, and of the spans.
    pub fn parts(model: &dyn Work, decodes: usize, context: f64, spans: &[Prefill]) -> [Vec<Part>; 2] {
        let decode = if decodes > 0 { model.decode(decodes as f64, context) } else { Vec::new() };
        let mut prefill: Vec<Part> = Vec::new();
        for span in spans {
            join(&mut prefill, model.prefill(span.new, span.past));
        }
        if decodes > 0 {
            prefill.iter_mut().filter(|part| part.has_weights()).for_each(|part| part.bytes = 0.0);
        }
        [decode, prefill]
    }

    /// All of it.
    pub fn seconds(&self) -> f64 {
        self.decode + self.prefill
    }
}

impl Part {
    fn has_weights(&self) -> bool {
        !OWN.contains(&self.name)
    }
}

/// Adds one span's parts to those of others. A product reads its weights once; what its other rows move beside them is small against
/// their operations.
fn join(all: &mut Vec<Part>, own: Vec<Part>) {
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
