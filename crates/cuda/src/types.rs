//! Types in which a model is stored and computed: one of a few combinations that kernels support.

use bytemuck::Pod;
use half::bf16;

use crate::launch::StoredElement;

pub trait ModelTypes: Send + 'static {
    /// Weights, activations, keys and values.
    type Value: WeightElement;
    type Residual: StoredElement;
    /// States of the recurrence.
    type State: StoredElement;
}

/// A type that weights are stored in.
pub trait WeightElement: StoredElement + Pod {
    /// The nearest value to a float32.
    fn nearest(value: f32) -> Self;
}

impl WeightElement for f32 {
    fn nearest(value: f32) -> Self {
        value
    }
}

impl WeightElement for bf16 {
    fn nearest(value: f32) -> Self {
        Self::from_f32(value)
    }
}

/// Everything in float32: for small models and for checking the effect of rounding.
#[derive(Debug)]
pub struct Float32Types;

/// Everything in bfloat16 except the states of the recurrence, as in transformers and vLLM.
#[derive(Debug)]
pub struct Bfloat16Types;

/// As `Bfloat16Types`, with a residual stream in float32: 62 roundings fewer, for 4 bytes more a
/// value and layer.
#[derive(Debug)]
pub struct WideResidual;

/// As `Bfloat16Types`, with bfloat16 states too: half their bytes, 3.4 ms less for a decode step of
/// the 12B at 100 sessions.
#[derive(Debug)]
pub struct NarrowState;

impl ModelTypes for Float32Types {
    type Value = f32;
    type Residual = f32;
    type State = f32;
}

impl ModelTypes for Bfloat16Types {
    type Value = bf16;
    type Residual = bf16;
    type State = f32;
}

impl ModelTypes for WideResidual {
    type Value = bf16;
    type Residual = f32;
    type State = f32;
}

impl ModelTypes for NarrowState {
    type Value = bf16;
    type Residual = bf16;
    type State = bf16;
}
