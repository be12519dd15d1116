//! The data set's card follows each commit.

use std::error::Error;
use std::path::Path;

use furrow_records::CommitDraft;

/// Writes the commit into the card. Readers do without it, so a commit does not fail for it.
pub(crate) fn renew_card(data_dir: &Path, commit: &CommitDraft, version: u64) {
    if let Err(error) = furrow_records::renew_card(data_dir, commit, version) {
        tracing::warn!(error = &error as &dyn Error, "the card of the data set was not renewed");
    }
}
