//! What stands in for `otel.rs` in builds without the feature `otel`: nothing is traced, and no job with an endpoint comes this far.

use tokio_util::sync::CancellationToken;

use crate::config::TelemetryConfig;
use crate::export::ExportError;
use crate::origin::Origin;

/// Whether this build can export.
pub(crate) const BUILT_IN: bool = false;

/// Cannot be made in this build.
#[derive(Debug)]
pub enum Otlp {}

impl Otlp {
    /// Always `None`: [`crate::TelemetryFile::check`] has refused every endpoint.
    pub fn open(_: &TelemetryConfig, _: &Origin) -> Result<Option<Self>, ExportError> {
        Ok(None)
    }

    /// Never called.
    pub async fn export(self, _: CancellationToken) {
        match self {}
    }
}

/// Does nothing.
pub(crate) fn trace<E>(_: &E) {}
