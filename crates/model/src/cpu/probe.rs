//! What an observer of a running model receives: the residual stream at each layer, the routing,
//! the last norm.

/// An observed event. Rows are the tokens of the batch, spans in the order of their slots.
#[derive(Debug)]
pub enum ProbeEvent<'a> {
    /// The residual stream `[rows, H]` at the input of a layer; the input of layer 0 are the
    /// embeddings.
    Entering { layer: usize, rows: &'a [f32] },
    /// Routing of an expert layer.
    Routed {
        layer: usize,
        logits: &'a [f32],
        experts: &'a [u32],
        /// `[rows, k]`, normalised and scaled.
        weights: &'a [f32],
    },
    /// Rows whose logits are needed, after the last norm, `[rows, H]`, in the order of the logits.
    FinalNorm { rows: &'a [f32] },
}

/// Callback that receives the events.
pub type ProbeObserver = Box<dyn FnMut(ProbeEvent<'_>) + Send>;
