//! Names and texts in the store of a manifest.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{
    Error as StoreError, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};

use crate::{InvalidCommit, RecordsError};

/// Folder of the commits.
pub(super) const COMMITS: &str = "manifest";

/// The path of a numbered file in a folder.
pub(super) fn path_of(folder: &str, version: u64) -> Path {
    Path::from(format!("{folder}/{version:020}.json"))
}

/// Numbers from here on are none of a manifest's: those after them could not be counted.
const VERSIONS_END: u64 = u64::MAX / 2;

/// The number in the name of such a file.
pub(super) fn version_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".json")?;
    let is_number = digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|version| is_number && *version < VERSIONS_END)
}

/// Numbers of the files in a folder. Other names are ignored.
pub(super) async fn versions(store: &dyn ObjectStore, folder: &str) -> Result<BTreeSet<u64>, RecordsError> {
    let listed = store.list(Some(&Path::from(folder)));
    let number = |meta: ObjectMeta| async move { Ok(meta.location.filename().and_then(version_of)) };
    listed.try_filter_map(number).try_collect().await.map_err(store_error("list", &folder))
}

/// The text of a file, unless it is longer than `most`; `None` where the file does not exist.
pub(super) async fn text(
    store: &dyn ObjectStore,
    path: &Path,
    most: u64,
) -> Result<Option<Result<Bytes, InvalidCommit>>, RecordsError> {
    let got = match store.get(path).await {
        Ok(got) => got,
        Err(StoreError::NotFound { .. }) => return Ok(None),
        Err(source) => return Err(store_error("read", path)(source)),
    };
    let bytes = got.meta.size;
    if bytes > most {
        return Ok(Some(Err(InvalidCommit::TooLong { bytes, most })));
    }
    Ok(Some(Ok(got.bytes().await.map_err(store_error("read", path))?)))
}

/// Creates a file; `false` where one exists.
pub(super) async fn create(
    store: &dyn ObjectStore,
    path: &Path,
    text: Vec<u8>,
) -> Result<bool, RecordsError> {
    let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    match store.put_opts(path, PutPayload::from(text), options).await {
        Ok(_) => Ok(true),
        Err(StoreError::AlreadyExists { .. }) => Ok(false),
        Err(source) => Err(store_error("create", path)(source)),
    }
}

pub(super) fn store_error(
    doing: &'static str,
    path: &impl ToString,
) -> impl FnOnce(StoreError) -> RecordsError {
    let path = path.to_string();
    move |source| RecordsError::Store { doing, path, source }
}
