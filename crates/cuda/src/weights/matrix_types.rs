//! Chooses the types of a checkpoint's matrices on the device: the stored ones, wherever products
//! support them.

use std::collections::BTreeSet;

use furrow_model::checkpoint::{Checkpoint, CheckpointError, required_tensors};

use super::TOWER;

/// Types of a checkpoint's matrices.
#[derive(Debug)]
pub(crate) struct MatrixTypes {
    /// Whether everything is computed in float32.
    pub of_f32: bool,
    /// Names of float32 matrices of a model that is computed in bfloat16: their products are in
    /// float32.
    pub wide: BTreeSet<String>,
}

impl MatrixTypes {
    /// A model is computed in the type that most values of its matrices are stored in. A float32
    /// matrix does not turn a whole bfloat16 model into float32 if a product of the language model
    /// uses it alone; a float32 matrix of the tower or the experts does. A float32 embedding table
    /// is rounded, as its rows would be at the input of the first layer.
    pub(crate) fn of(checkpoint: &Checkpoint) -> Result<Self, CheckpointError> {
        let mut narrow_values = 0;
        let mut wide_values = 0;
        let mut wide = BTreeSet::new();
        let mut is_apart = true;
        for matrix in
            required_tensors(checkpoint.config()).into_iter().filter(|wanted| wanted.shape.len() == 2)
        {
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

/// Whether one product of the language model uses only this matrix.
fn is_product(name: &str) -> bool {
    let of_layers = name.starts_with("backbone.layers.") && !name.contains(".experts.");
    !name.starts_with(TOWER) && (of_layers || name == "lm_head.weight")
}
