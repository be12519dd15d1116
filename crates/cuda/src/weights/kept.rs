//! What a checkpoint's matrices are kept as on the device: as they are stored, wherever products can take that.

use std::collections::BTreeSet;

use furrow_model::checkpoint::{Checkpoint, CheckpointError, wanted};

use super::TOWER;

/// Types of a checkpoint's matrices.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Whether all is computed in float32.
    pub of_f32: bool,
    /// Matrices in float32 of a model that is computed in bfloat16, by name: their products are in float32.
    pub wide: BTreeSet<String>,
}

impl Kept {
    /// A model is computed in what most of its matrices' values are stored in. A matrix in float32 does not make all of a model in bfloat16 float32, as long
    /// as it is one that a product of the language model has to itself; one of the tower's or the experts' does. An embedding table in float32 is
    /// rounded: so would its rows be on their way into the first layer.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self, CheckpointError> {
        let (mut narrow_values, mut wide_values) = (0, 0);
        let (mut wide, mut is_apart) = (BTreeSet::new(), true);
        for matrix in wanted(checkpoint.config()).into_iter().filter(|wanted| wanted.shape.len() == 2) {
            let values: usize = matrix.shape.iter().product();
            if checkpoint.tensor(&matrix.name)?.is_bf16() {
                narrow_values += values;
                continue;
            }
            wide_values += values;
            is_apart &= is_product(&matrix.name) || matrix.name == EMBEDDINGS;
            if is_product(&matrix.name) {
                wide.insert(matrix.name);
            }
        }
        let of_f32 = wide_values > narrow_values || !is_apart;
        Ok(Self { of_f32, wide: if of_f32 { BTreeSet::new() } else { wide } })
    }
}

const EMBEDDINGS: &str = "backbone.embeddings.weight";

/// Whether one product of the language model has this matrix alone.
fn is_product(name: &str) -> bool {
    let of_layers = name.starts_with("backbone.layers.") && !name.contains(".experts.");
    !name.starts_with(TOWER) && (of_layers || name == "lm_head.weight")
}
