//! The `[records]` section of a job: when shards close, how they are packed, how much disk stays
//! free.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::RetentionConfig;

/// `[records]` as written in a job file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecordsFile {
    /// Whether a trainer follows the data set: shards close after 2 s instead of 60 s.
    pub follow: bool,
    /// Longest time in milliseconds that an ended trajectory waits before its shard closes; 60,000,
    /// or 2,000 with `follow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_delay_millis: Option<u64>,
    /// Total size of a shard's files at which it closes. Larger shards read faster, smaller ones
    /// come sooner.
    pub max_shard_bytes: u64,
    /// Most bytes of a row group, which is also what the writer buffers for each table.
    pub row_group_bytes: u64,
    /// Compression level of zstd, 1 to 22, for everything but pictures.
    pub compression_level: i32,
    /// Free bytes on the run directory's disk below which no trajectory is admitted.
    pub disk_reserve_bytes: u64,
    /// Size in bytes below which files are merged into larger ones; half of `max_shard_bytes` where
    /// it is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_below_bytes: Option<u64>,
    /// Number of small files of a table that triggers a merge.
    pub merge_files_min: u32,
    /// How long files that left the data set, merged or expired, stay on disk for readers that
    /// opened an older version.
    pub merge_grace_millis: u64,
    /// Most bytes of the data set's files. While there are more, the rows that were committed first
    /// expire: they are removed for good. Absent: all are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_bytes: Option<u64>,
    /// Hours that rows are kept after their commit; then they expire. Absent: for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_hours: Option<u64>,
}

/// Checked settings of `[records]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordsConfig {
    /// Longest time that an ended trajectory waits before its shard closes.
    pub max_delay: Duration,
    /// Total size at which a shard closes.
    pub max_shard_bytes: u64,
    /// Most bytes of a row group.
    pub row_group_bytes: usize,
    /// Compression level of zstd.
    pub compression_level: i32,
    /// Free disk space below which admission stops.
    pub disk_reserve_bytes: u64,
    /// Size below which files are merged.
    pub merge_below_bytes: u64,
    /// Number of small files that triggers a merge.
    pub merge_files_min: usize,
    /// How long files stay that left the data set.
    pub merge_grace: Duration,
    /// How much of the data set is kept.
    pub retention: RetentionConfig,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Fewer would expire before a trainer has read them.
const SHARDS_KEPT_MIN: u64 = 4;

impl Default for RecordsFile {
    fn default() -> Self {
        Self {
            follow: false,
            max_delay_millis: None,
            // 600 screenshots of 200 KB, about 20 trajectories: large enough to read fast, small
            // enough to cost little time.
            max_shard_bytes: 128 * MIB,
            row_group_bytes: 32 * MIB,
            compression_level: 3,
            disk_reserve_bytes: 2 * GIB,
            merge_below_bytes: None,
            merge_files_min: 8,
            merge_grace_millis: 3_600_000,
            retention_bytes: None,
            retention_hours: None,
        }
    }
}

impl RecordsFile {
    /// Checks every key and reports all problems.
    pub fn check(self) -> Result<RecordsConfig, Vec<String>> {
        let mut wrong = Vec::new();
        let mut within = |key: &str, value: u64, least: u64, most: u64| {
            if !(least..=most).contains(&value) {
                wrong.push(format!("records.{key}: {value} is out of range, use {least} to {most}"));
            }
        };
        let max_delay_millis = self.max_delay_millis.unwrap_or(if self.follow { 2_000 } else { 60_000 });
        within("max_delay_millis", max_delay_millis, 100, 86_400_000);
        within("max_shard_bytes", self.max_shard_bytes, MIB, 8 * GIB);
        within("row_group_bytes", self.row_group_bytes, 256 * KIB, GIB);
        within("compression_level", u64::try_from(self.compression_level).unwrap_or(0), 1, 22);
        within("disk_reserve_bytes", self.disk_reserve_bytes, 16 * MIB, 1 << 50);
        // Two such files are a full shard.
        let merge_below_bytes = self.merge_below_bytes.unwrap_or(self.max_shard_bytes / 2);
        within("merge_below_bytes", merge_below_bytes, 0, 8 * GIB);
        within("merge_files_min", self.merge_files_min.into(), 2, 1_000);
        within("merge_grace_millis", self.merge_grace_millis, 0, 30 * 86_400_000);
        self.retention_bytes.iter().for_each(|bytes| within("retention_bytes", *bytes, 4 * MIB, 1 << 60));
        self.retention_hours.iter().for_each(|hours| within("retention_hours", *hours, 1, 876_000));
        wrong.extend(self.contradictions());
        if !wrong.is_empty() {
            return Err(wrong);
        }
        Ok(RecordsConfig {
            max_delay: Duration::from_millis(max_delay_millis),
            max_shard_bytes: self.max_shard_bytes,
            row_group_bytes: self.row_group_bytes as usize,
            compression_level: self.compression_level,
            disk_reserve_bytes: self.disk_reserve_bytes,
            merge_below_bytes,
            merge_files_min: self.merge_files_min as usize,
            merge_grace: Duration::from_millis(self.merge_grace_millis),
            retention: RetentionConfig {
                bytes: self.retention_bytes,
                age: self.retention_hours.map(|hours| Duration::from_secs(hours * 3_600)),
            },
        })
    }

    fn contradictions(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let Self { row_group_bytes, max_shard_bytes, merge_below_bytes, retention_bytes, .. } = self;
        if row_group_bytes > max_shard_bytes {
            wrong.push(format!(
                "records.row_group_bytes: {row_group_bytes} is larger than a shard, use at most records.max_shard_bytes ({max_shard_bytes})"
            ));
        }
        if let Some(merge_below_bytes) = merge_below_bytes.filter(|below| below > max_shard_bytes) {
            wrong.push(format!(
                "records.merge_below_bytes: {merge_below_bytes} would merge full shards, use at most records.max_shard_bytes ({max_shard_bytes})"
            ));
        }
        let least = max_shard_bytes.saturating_mul(SHARDS_KEPT_MIN);
        if let Some(retention_bytes) = retention_bytes.filter(|bytes| *bytes < least) {
            wrong.push(format!(
                "records.retention_bytes: {retention_bytes} is less than {SHARDS_KEPT_MIN} shards, use at least {least} ({SHARDS_KEPT_MIN} times records.max_shard_bytes)"
            ));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(change: impl Fn(&mut RecordsFile), want: &str) {
        let mut file = RecordsFile::default();
        change(&mut file);
        let wrong = file.check().unwrap_err();
        assert!(wrong.iter().any(|line| line.starts_with(want)), "{wrong:?} lacks {want:?}");
    }

    #[test]
    fn what_cannot_work_is_refused_by_key() {
        refused(|f| f.max_delay_millis = Some(5), "records.max_delay_millis: 5 is out of range, use 100 to");
        refused(|f| f.compression_level = -1, "records.compression_level: 0 is out of range, use 1 to 22");
        refused(|f| f.compression_level = 23, "records.compression_level: 23");
        refused(|f| f.max_shard_bytes = 0, "records.max_shard_bytes: 0");
        refused(|f| f.row_group_bytes = GIB, "records.row_group_bytes: 1073741824 is larger than a shard");
        refused(|f| f.merge_files_min = 1, "records.merge_files_min: 1");
        refused(
            |f| f.merge_below_bytes = Some(GIB),
            "records.merge_below_bytes: 1073741824 would merge full shards",
        );
        refused(|f| f.disk_reserve_bytes = 0, "records.disk_reserve_bytes: 0");
        refused(
            |f| f.retention_bytes = Some(0),
            "records.retention_bytes: 0 is out of range, use 4194304 to",
        );
        refused(
            |f| f.retention_bytes = Some(511 * MIB),
            "records.retention_bytes: 535822336 is less than 4 shards, use at least 536870912 (4 times",
        );
        refused(
            |f| f.retention_hours = Some(0),
            "records.retention_hours: 0 is out of range, use 1 to 876000",
        );
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        let file = RecordsFile { max_shard_bytes: 0, compression_level: 99, ..RecordsFile::default() };
        assert_eq!(file.check().unwrap_err().len(), 3);
    }

    #[test]
    fn a_followed_job_commits_sooner() {
        let delay = |file: RecordsFile| file.check().unwrap().max_delay.as_millis();
        assert_eq!(delay(RecordsFile::default()), 60_000);
        assert_eq!(delay(RecordsFile { follow: true, ..RecordsFile::default() }), 2_000);
        assert_eq!(
            delay(RecordsFile { follow: true, max_delay_millis: Some(500), ..RecordsFile::default() }),
            500
        );
    }
}
