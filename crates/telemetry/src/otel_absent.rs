//! Replaces `otel.rs` in builds without the feature `otel`: nothing is traced, and a job with an
//! endpoint is refused earlier.

use tokio_util::sync::CancellationToken;

use crate::config::TelemetryConfig;
use crate::export::ExportError;
use crate::origin::ProcessOrigin;

/// Cannot be created in this build.
#[derive(Debug)]
pub enum OtlpExporter {}

impl OtlpExporter {
    /// Always `None`: [`crate::TelemetryFile::check`] has refused every endpoint.
    pub fn open(_: &TelemetryConfig, _: &ProcessOrigin) -> Result<Option<Self>, ExportError> {
        Ok(None)
    }

    pub async fn export(self, _: CancellationToken) {
        match self {}
    }
}

pub(crate) fn trace<E>(_: &E) {}
