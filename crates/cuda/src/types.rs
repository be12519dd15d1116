//! What a model is stored and computed in: one of a few combinations that kernels are made for.

use bytemuck::Pod;
use half::bf16;

use crate::launch::Stored;

/// A combination.
pub trait Types: Send + 'static {
    /// Weights, activations, keys and values.
    type Value: Value;
    /// The residual stream.
    type Residual: Stored;
    /// States of the recurrence.
    type State: Stored;
}

/// A type that weights are stored in.
pub trait Value: Stored + Pod {
    /// The nearest to a float32.
    fn nearest(value: f32) -> Self;
}

impl Value for f32 {
    fn nearest(value: f32) -> Self {
        value
    }
}

impl Value for bf16 {
    fn nearest(value: f32) -> Self {
        Self::from_f32(value)
    }
}

/// Everything in float32: for small models and for finding out what rounding does.
#[derive(Debug)]
pub struct Float32;

/// Everything in bfloat16 but the states of the recurrence, as transformers and vLLM have it.
#[derive(Debug)]
pub struct Bfloat16;

/// The same with a residual stream in float32: 62 roundings of it less, for 4 bytes more a value and layer.
#[derive(Debug)]
pub struct WideResidual;

/// As `Bfloat16`, the states of the recurrence too: half their bytes, 3.4 ms less of a decode step of the 12B at 100 sessions.
#[derive(Debug)]
pub struct NarrowState;

impl Types for Float32 {
    type Value = f32;
    type Residual = f32;
    type State = f32;
}

impl Types for Bfloat16 {
    type Value = bf16;
    type Residual = bf16;
    type State = f32;
}

impl Types for WideResidual {
    type Value = bf16;
    type Residual = f32;
    type State = f32;
}

impl Types for NarrowState {
    type Value = bf16;
    type Residual = bf16;
    type State = bf16;
}
