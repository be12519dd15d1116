//! The stages of a shard's commit, and the fail point after each.

use furrow_records::ShardStage;

use crate::crash;

/// A stage that a shard has passed. The first and the last four concern the shard, those between
/// concern each of its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommitStage {
    /// The ledger knows the shard's id and its rows.
    Open,
    /// All rows of a file are written under its temporary name.
    Temp,
    /// Its footer is written.
    Footer,
    /// Its bytes are durable.
    Fsync,
    /// Its final name exists.
    Link,
    /// Its final name is durable.
    DirSync,
    /// Its temporary name is gone.
    TempRemoved,
    /// It was reopened; rows, columns and hash are correct.
    Check,
    /// The ledger knows the files.
    Written,
    /// The manifest names them.
    Manifest,
    /// The files that leave the data set with it are out of their tables' folders.
    Aside,
    /// The ledger records the manifest commit.
    Committed,
    /// The spool deleted one of its trajectories.
    Delete,
}

impl CommitStage {
    /// All stages in order.
    pub const ALL: [CommitStage; 13] = [
        CommitStage::Open,
        CommitStage::Temp,
        CommitStage::Footer,
        CommitStage::Fsync,
        CommitStage::Link,
        CommitStage::DirSync,
        CommitStage::TempRemoved,
        CommitStage::Check,
        CommitStage::Written,
        CommitStage::Manifest,
        CommitStage::Aside,
        CommitStage::Committed,
        CommitStage::Delete,
    ];

    /// Name of the fail point after this stage.
    pub fn fail_point(self) -> &'static str {
        match self {
            CommitStage::Open => "commit.after_open",
            CommitStage::Temp => "commit.after_temp",
            CommitStage::Footer => "commit.after_footer",
            CommitStage::Fsync => "commit.after_fsync",
            CommitStage::Link => "commit.after_link",
            CommitStage::DirSync => "commit.after_dir_sync",
            CommitStage::TempRemoved => "commit.after_temp_removed",
            CommitStage::Check => "commit.after_check",
            CommitStage::Written => "commit.after_written",
            CommitStage::Manifest => "commit.after_manifest",
            CommitStage::Aside => "commit.after_aside",
            CommitStage::Committed => "commit.after_committed",
            CommitStage::Delete => "commit.after_delete",
        }
    }
}

impl From<ShardStage> for CommitStage {
    fn from(stage: ShardStage) -> Self {
        match stage {
            ShardStage::TempWritten => CommitStage::Temp,
            ShardStage::FooterClosed => CommitStage::Footer,
            ShardStage::Fsynced => CommitStage::Fsync,
            ShardStage::Linked => CommitStage::Link,
            ShardStage::DirFsynced => CommitStage::DirSync,
            ShardStage::TempRemoved => CommitStage::TempRemoved,
            ShardStage::Checked => CommitStage::Check,
        }
    }
}

/// The fail points after the stages of an expiry, which has no files of its own.
pub(crate) const EXPIRY_FAIL_POINTS: [&str; 5] = [
    "expire.after_open",
    "expire.after_written",
    "expire.after_manifest",
    "expire.after_aside",
    "expire.after_committed",
];

/// Passes the fail point of an expiry after this stage.
pub(super) fn pass_expiry(stage: CommitStage) {
    let [open, written, manifest, aside, committed] = EXPIRY_FAIL_POINTS;
    match stage {
        CommitStage::Open => crash::point(open),
        CommitStage::Written => crash::point(written),
        CommitStage::Manifest => crash::point(manifest),
        CommitStage::Aside => crash::point(aside),
        CommitStage::Committed => crash::point(committed),
        _ => {}
    }
}

/// Without a test callback, stages are fail points only.
pub(super) fn pass(stage: CommitStage) {
    crash::point(stage.fail_point());
}
