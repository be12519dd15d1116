//! Checkpoints of the manifest: the data set after some commit, so that a reader begins there.
//!
//! A checkpoint is a copy of what the commits say, never the only place of anything. Its first line
//! is JSON, its second one the SHA-256 of the first. One that is damaged, or whose commit is not
//! the one it was made of, is passed over for an earlier one and at last for the commits.

use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::commit::COMMIT_BYTES_MAX;
use super::snapshot::ManifestSnapshot;
use super::store::{COMMITS, create, path_of, store_error, text, versions};
use crate::RecordsError;
use crate::schema::hex;

/// Folder of the checkpoints, below the data set's.
const CHECKPOINTS: &str = "checkpoints";
/// Commits between two checkpoints: reading them takes a tenth of a second.
pub(super) const CHECKPOINT_EVERY: u64 = 1_000;
/// Checkpoints that are kept: a trainer that was away for 20,000 commits begins at one of them.
const CHECKPOINTS_KEPT: usize = 20;
/// A checkpoint of a hundred thousand files is 40 MB.
const CHECKPOINT_BYTES_MAX: u64 = 256 << 20;

/// The first line of a checkpoint.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckpointText<S> {
    /// Number of the commit it was made after.
    version: u64,
    /// SHA-256 of the text of that commit.
    commit_sha256: String,
    run_id: String,
    snapshot: S,
}

/// The newest checkpoint, of these versions at most, that can be trusted.
pub(super) async fn newest(
    store: &dyn ObjectStore,
    at_most: u64,
) -> Result<Option<ManifestSnapshot>, RecordsError> {
    for version in versions(store, CHECKPOINTS).await?.range(..=at_most).rev() {
        if let Some(snapshot) = read(store, *version).await? {
            return Ok(Some(snapshot));
        }
    }
    Ok(None)
}

async fn read(store: &dyn ObjectStore, version: u64) -> Result<Option<ManifestSnapshot>, RecordsError> {
    let Some(Ok(text)) = text(store, &path_of(CHECKPOINTS, version), CHECKPOINT_BYTES_MAX).await? else {
        return Ok(None);
    };
    let Some((commit_sha256, snapshot)) = parse(version, &text) else { return Ok(None) };
    let is_of_commit = commit_hash(store, version).await?.is_some_and(|(sha256, _)| sha256 == commit_sha256);
    Ok(is_of_commit.then_some(snapshot))
}

/// What a checkpoint says, where its text is whole.
fn parse(version: u64, text: &[u8]) -> Option<(String, ManifestSnapshot)> {
    let text = std::str::from_utf8(text).ok()?;
    let (body, sha256) = text.split_once('\n')?;
    if sha256.trim_end() != hex(&Sha256::digest(body)) {
        return None;
    }
    let parsed: CheckpointText<ManifestSnapshot> = serde_json::from_str(body).ok()?;
    let snapshot = parsed.snapshot;
    let is_sound = parsed.version == version
        && snapshot.version() == version
        && snapshot.check_parts().is_ok()
        && snapshot.replacements_are_newer()
        && snapshot.ages_are_in_order();
    is_sound.then_some((parsed.commit_sha256, snapshot))
}

/// Hash of the text of a commit, and the run it names.
async fn commit_hash(
    store: &dyn ObjectStore,
    version: u64,
) -> Result<Option<(String, String)>, RecordsError> {
    #[derive(Deserialize)]
    struct Named {
        run_id: String,
    }
    let Some(Ok(text)) = text(store, &path_of(COMMITS, version), COMMIT_BYTES_MAX).await? else {
        return Ok(None);
    };
    let named: Option<Named> = serde_json::from_slice(&text).ok();
    Ok(named.map(|named| (hex(&Sha256::digest(&text)), named.run_id)))
}

/// Writes a checkpoint, unless there is one, and removes those that are too many.
pub(super) async fn write(store: &dyn ObjectStore, snapshot: &ManifestSnapshot) -> Result<(), RecordsError> {
    let version = snapshot.version();
    let Some((commit_sha256, run_id)) = commit_hash(store, version).await? else { return Ok(()) };
    let body = serde_json::to_string(&CheckpointText { version, commit_sha256, run_id, snapshot })
        .expect("a snapshot contains only plain values");
    let sha256 = hex(&Sha256::digest(&body));
    create(store, &path_of(CHECKPOINTS, version), format!("{body}\n{sha256}\n").into_bytes()).await?;
    let all = versions(store, CHECKPOINTS).await?;
    for version in all.iter().rev().skip(CHECKPOINTS_KEPT) {
        remove(store, &path_of(CHECKPOINTS, *version)).await?;
    }
    Ok(())
}

async fn remove(store: &dyn ObjectStore, path: &Path) -> Result<(), RecordsError> {
    match store.delete(path).await {
        Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
        Err(source) => Err(store_error("remove", path)(source)),
    }
}
