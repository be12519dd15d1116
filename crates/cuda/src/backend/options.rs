//! How a model is opened: its precision, whether results may depend on neighbours, graphs, and
//! memory for a second set of weights.

/// How a model is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendOptions {
    /// Precision of bfloat16 checkpoints, whose float32 matrices stay so; a checkpoint that is
    /// mostly float32 is computed in float32 throughout.
    pub precision: ModelPrecision,
    /// Whether a session's tokens must not depend on its neighbours: then every decode batch is
    /// padded to the largest, and every other span and every tile runs alone.
    pub deterministic: bool,
    /// Whether decode batches are recorded as graphs and replayed.
    pub graphs: bool,
    /// Memory for a second set of weights, so that new ones can be loaded while batches run.
    pub stage: StagingMode,
}

/// Where a second set of weights is stored until the swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StagingMode {
    /// Nowhere: weights change only by [`replace_weights`](super::DeviceBackend::replace_weights).
    #[default]
    None,
    /// On the device, which leaves less memory for sessions; the swap takes 12 ms.
    Device,
    /// In pinned memory of this machine, as large as the weights; the swap takes half a second.
    Host,
}

/// Precision in which a bfloat16 checkpoint is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ModelPrecision {
    /// States of the recurrence in float32, all else in bfloat16.
    #[default]
    Usual,
    /// The residual stream in float32 as well.
    WideResidual,
    /// States in bfloat16 as well.
    NarrowState,
}

impl Default for BackendOptions {
    fn default() -> Self {
        Self {
            precision: ModelPrecision::Usual,
            deterministic: false,
            graphs: true,
            stage: StagingMode::None,
        }
    }
}
