//! Which rows of a data set expire: the oldest ones, a trajectory always with its steps.
//!
//! Whole files leave, in the order of their commits. A merge may have put rows of several commits
//! into one file of one table, so only some commits can be the last whose rows leave: those after
//! which no file of trajectories or steps has rows from before. They end the *ranges* of commits
//! that leave or stay as one. Merges keep within parts of what is kept, so ranges stay small.
//!
//! Rows of the other tables may be older than every trajectory: a group's row leaves with its file.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::manifest::{FileAge, ManifestSnapshot};
use crate::{Table, WrittenFile};

/// Parts of what is kept that merges stay within: so much more than its limit is kept at most, and
/// so many files a table at least.
const PARTS: u32 = 16;
/// Files that one commit may remove.
const FILES_MAX: usize = 10_000;

/// How much of a data set is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RetentionConfig {
    /// Most bytes of its files.
    pub bytes: Option<u64>,
    /// How long rows are kept after their commit.
    pub age: Option<Duration>,
}

/// Files whose rows expire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiryPlan {
    /// The newest commit whose rows expire.
    pub up_to: u64,
    /// Paths of the files, in the order of their newest rows.
    pub removed: Vec<String>,
    /// How many rows they hold, by table.
    pub rows: BTreeMap<Table, u64>,
    /// How long they are together.
    pub bytes: u64,
}

/// Commits whose rows leave the data set together or not at all.
#[derive(Debug)]
struct CommitRange {
    /// The newest of them.
    to: u64,
    /// When their newest rows were committed.
    at_micros: i64,
    /// Files of all tables whose newest rows are of these commits.
    files: usize,
    bytes: u64,
}

/// A trajectory is in the data set with its steps, or neither is.
fn leaves_with_others(table: Table) -> bool {
    matches!(table, Table::Trajectories | Table::Steps)
}

impl RetentionConfig {
    /// Whether nothing ever expires.
    pub fn keeps_all(&self) -> bool {
        self.bytes.is_none() && self.age.is_none()
    }

    /// What expires now; `None` where nothing does. The newest range of commits stays, however
    /// large and old it is.
    pub fn plan(&self, snapshot: &ManifestSnapshot, now_micros: i64) -> Option<ExpiryPlan> {
        if self.keeps_all() {
            return None;
        }
        let ages = by_newest_rows(snapshot);
        let ranges = ranges(&ages);
        let (_, older) = ranges.split_last()?;
        let mut left: u64 = ages.iter().fold(0, |sum, age| sum.saturating_add(age.file.bytes));
        let mut files = 0;
        let mut newest_at = i64::MIN;
        let mut up_to = None;
        for range in older {
            files += range.files;
            newest_at = newest_at.max(range.at_micros);
            if !(self.is_over(left) || self.is_past(newest_at, now_micros)) || files > FILES_MAX {
                break;
            }
            left = left.saturating_sub(range.bytes);
            up_to = Some(range.to);
        }
        Some(ExpiryPlan::of(up_to?, &ages))
    }

    fn is_over(&self, bytes: u64) -> bool {
        self.bytes.is_some_and(|most| bytes > most)
    }

    fn is_past(&self, at_micros: i64, now_micros: i64) -> bool {
        let age = |age: Duration| i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        self.age.is_some_and(|most| now_micros.saturating_sub(at_micros) >= age(most))
    }

    /// The last commits of the parts that merges stay within, in order; what is newer is one more
    /// part. Without a limit there is one part alone.
    pub(crate) fn merge_parts(&self, snapshot: &ManifestSnapshot) -> MergeParts {
        let mut ends = Vec::new();
        if self.keeps_all() {
            return MergeParts { ends };
        }
        let ranges = ranges(&by_newest_rows(snapshot));
        let part = Self {
            bytes: self.bytes.map(|most| most / u64::from(PARTS)),
            age: self.age.map(|age| age / PARTS),
        };
        let mut current: Option<CommitRange> = None;
        for range in ranges {
            let Some(so_far) = &mut current else {
                current = Some(range);
                continue;
            };
            let bytes = so_far.bytes.saturating_add(range.bytes);
            if part.is_over(bytes) || part.is_past(so_far.at_micros, range.at_micros) {
                ends.push(so_far.to);
                current = Some(range);
            } else {
                // It keeps the time of its first range.
                (so_far.to, so_far.bytes) = (range.to, bytes);
            }
        }
        MergeParts { ends }
    }
}

/// The parts of a data set that merges stay within.
#[derive(Debug)]
pub(crate) struct MergeParts {
    /// The last commit of each but the newest.
    ends: Vec<u64>,
}

impl MergeParts {
    /// The part that holds all rows of a file; `None` for a file with rows of several.
    pub(crate) fn of(&self, age: &FileAge<'_>) -> Option<usize> {
        let part = |commit: u64| self.ends.partition_point(|end| *end < commit);
        (part(age.from) == part(age.to)).then(|| part(age.to))
    }
}

impl ExpiryPlan {
    fn of(up_to: u64, ages: &[FileAge<'_>]) -> Self {
        let expired = ages.iter().filter(|age| age.to <= up_to).map(|age| age.file);
        let mut plan = Self { up_to, removed: Vec::new(), rows: BTreeMap::new(), bytes: 0 };
        for WrittenFile { table, path, rows, bytes, .. } in expired {
            let sum = plan.rows.entry(*table).or_default();
            *sum = sum.saturating_add(*rows);
            plan.bytes = plan.bytes.saturating_add(*bytes);
            plan.removed.push(path.clone());
        }
        plan
    }
}

fn by_newest_rows(snapshot: &ManifestSnapshot) -> Vec<FileAge<'_>> {
    let mut ages: Vec<FileAge<'_>> = snapshot.file_ages().collect();
    ages.sort_by_key(|age| (age.to, &age.file.path));
    ages
}

/// The ranges of commits that leave or stay as one, the oldest first.
fn ranges(ages: &[FileAge<'_>]) -> Vec<CommitRange> {
    let mut bound: Vec<_> = ages.iter().filter(|age| leaves_with_others(age.file.table)).collect();
    bound.sort_by_key(|age| age.from);
    let mut ranges: Vec<CommitRange> = Vec::new();
    for age in bound {
        match ranges.last_mut() {
            Some(last) if age.from <= last.to => last.to = last.to.max(age.to),
            _ => ranges.push(CommitRange { to: age.to, at_micros: i64::MIN, files: 0, bytes: 0 }),
        }
    }
    for age in ages {
        let at = ranges.partition_point(|range| range.to < age.to);
        // What is newer than every trajectory stays.
        let Some(range) = ranges.get_mut(at) else { continue };
        range.at_micros = range.at_micros.max(age.at_micros);
        range.files += 1;
        range.bytes = range.bytes.saturating_add(age.file.bytes);
    }
    ranges
}
