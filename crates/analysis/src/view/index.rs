//! An index of every trajectory of a data set in memory, small enough for a million of them: what a
//! table shows, filters and sorts by.
//!
//! A row is an entry of 72 bytes and its id (27 bytes in a run with a short name), so a million
//! rows are about 99 MB. Strings that repeat (suites, tasks, splits, ends, kinds) are stored once.
//! Anything larger stays in its file until the row is requested.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use furrow_records::RecordsError;
use serde::Serialize;

use super::rows::ViewRow;

/// Most trajectories an index holds: 1 GB. Further ones are counted and not shown.
pub(crate) const INDEX_ROWS_MAX: usize = 10_000_000;

/// The columns that a table shows of a trajectory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrajectoryLine<'a> {
    /// Id of the trajectory.
    pub trajectory_id: &'a str,
    /// Id of its task.
    pub task_id: &'a str,
    /// Suite of its task.
    pub suite: &'a str,
    /// Split of its task.
    pub split: &'a str,
    /// Kind of policy that acted.
    pub policy_kind: &'a str,
    /// `scored` if a scorer received its end, `failed` if the farm caused it.
    pub status: &'a str,
    /// Name of its end.
    pub end: &'a str,
    /// Slot in its group.
    pub sample_index: i32,
    /// Attempt at the slot.
    pub attempt: i16,
    /// Its reward, if it has one.
    pub reward: Option<f32>,
    /// Whether it solved its task, where the scorer decides.
    pub success: Option<bool>,
    /// Number of its steps.
    pub num_steps: i32,
    /// Tokens added to its prompts.
    pub num_prompt_tokens: u32,
    /// Tokens of its responses.
    pub num_response_tokens: u32,
    /// Replies without an action.
    pub num_invalid_actions: i32,
    /// Oldest version that acted.
    pub policy_version_min: Option<i32>,
    /// Newest version that acted.
    pub policy_version_max: Option<i32>,
    /// Versions behind when it ended.
    pub staleness: Option<i32>,
    /// Device time of all its steps, in milliseconds.
    pub gpu_millis: u32,
    /// Time from its start to its end, milliseconds.
    pub life_millis: u32,
    /// Time of its end, microseconds since the Unix epoch.
    pub ended_at: i64,
}

/// Filters and order of the table. A field left empty filters nothing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TrajectoryQuery {
    /// Part of the id of a trajectory or of its task, ignoring case.
    pub text: String,
    /// Any of these suites.
    pub suites: Vec<String>,
    /// Any of these ends.
    pub ends: Vec<String>,
    /// Any of these splits.
    pub splits: Vec<String>,
    /// Any of these policy kinds.
    pub policy_kinds: Vec<String>,
    /// Only this task, by its whole id.
    pub task_id: Option<String>,
    /// Only this group, whose slots are then side by side.
    pub group_id: Option<String>,
    /// Only scored trajectories, or only failed ones.
    pub scored: Option<bool>,
    /// Only solved trajectories, or only unsolved ones, by their scorer's decision.
    pub success: Option<bool>,
    /// Range of the reward; with a bound, trajectories without a reward are left out.
    pub reward: ValueRange<f32>,
    /// Range of policy versions, at least one of which acted.
    pub version: ValueRange<i32>,
    /// Range of the number of steps.
    pub steps: ValueRange<i32>,
    /// Range of the versions behind at the end.
    pub staleness: ValueRange<i32>,
    /// The column to sort by.
    pub sort: Sort,
    /// Whether the largest comes first; rows without a value come last either way.
    pub descending: bool,
}

/// A range with inclusive bounds, either of which may be absent.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ValueRange<T> {
    /// Smallest value in the range; `None` if there is no lower bound.
    pub min: Option<T>,
    /// Largest value in the range; `None` if there is no upper bound.
    pub max: Option<T>,
}

macro_rules! sorts {
    ($($(#[$doc:meta])* $sort:ident = $column:literal),* $(,)?) => {
        /// A column to sort by.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub enum Sort { $($(#[$doc])* $sort),* }

        impl Sort {
            /// Every column, in the order in which an error lists them.
            pub const ALL: &'static [Self] = &[$(Self::$sort),*];

            /// The name of the column in a query and in `trajectories`.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$sort => $column),* }
            }
        }
    };
}

sorts! {
    /// Time of the end.
    #[default]
    EndedAt = "ended_at",
    /// Name of the suite, then id of the task, both in alphabetical order.
    TaskId = "task_id",
    /// The reward; trajectories without one come last.
    Reward = "reward",
    /// Number of recorded steps, those of failed trajectories included.
    NumSteps = "num_steps",
    /// Name of the end, in alphabetical order.
    End = "end",
    /// Newest version that acted.
    PolicyVersion = "policy_version_max",
    /// Versions behind at the end.
    Staleness = "staleness",
    /// Tokens of the responses.
    ResponseTokens = "num_response_tokens",
    /// Replies without an action.
    InvalidActions = "num_invalid_actions",
    /// Device time of the trajectory.
    GpuMillis = "gpu_millis",
    /// Time from start to end.
    LifeMillis = "life_millis",
}

/// The trajectories of some files, in the order they were added.
#[derive(Debug, Default)]
pub struct TrajectoryIndex {
    entries: Vec<IndexEntry>,
    ids: String,
    /// End offsets of the ids.
    id_ends: Vec<u32>,
    strings: StringTable,
    tasks: TaskTable,
    left_out: u64,
}

/// A row in 72 bytes; the id is stored separately.
#[derive(Debug, Clone, Copy)]
struct IndexEntry {
    group: u64,
    ended_at: i64,
    task: u32,
    sample_index: i32,
    reward: f32,
    num_steps: i32,
    num_prompt_tokens: u32,
    num_response_tokens: u32,
    num_invalid_actions: i32,
    version_min: i32,
    version_max: i32,
    staleness: i32,
    gpu_millis: u32,
    life_millis: u32,
    attempt: i16,
    policy_kind: u16,
    end: u16,
    flags: u8,
}

const _: () = assert!(size_of::<IndexEntry>() == 72);

const SCORED: u8 = 1;
const SUCCESS_KNOWN: u8 = 2;
const SOLVED: u8 = 4;
/// Represents "no version" and "unknown"; no trajectory has it as a value.
const NONE: i32 = i32::MIN;

/// Repeated strings, each stored once.
#[derive(Debug, Default)]
struct StringTable {
    list: Vec<String>,
    positions: HashMap<String, u16>,
}

/// Suite, task and split, each combination stored once.
#[derive(Debug, Default)]
struct TaskTable {
    list: Vec<[String; 3]>,
    positions: HashMap<[String; 3], u32>,
}

impl TrajectoryIndex {
    /// Adds a trajectory. Opening its file checked the types; this checks the values.
    pub(crate) fn add(&mut self, row: &ViewRow) -> Result<(), String> {
        if self.entries.len() >= INDEX_ROWS_MAX {
            self.left_out += 1;
            return Ok(());
        }
        let id_end = u32::try_from(self.ids.len() + row.trajectory_id.len())
            .map_err(|_| "the ids of all trajectories are longer than 4 GiB".to_owned())?;
        let mut flags = if row.status == "scored" { SCORED } else { 0 };
        if let Some(success) = row.score.as_ref().and_then(|score| score.success) {
            flags |= if success { SUCCESS_KNOWN | SOLVED } else { SUCCESS_KNOWN };
        }
        let entry = IndexEntry {
            group: hash(&row.group_id),
            ended_at: row.ended_at.0,
            task: self.tasks.intern([&row.suite, &row.task_id, &row.split])?,
            sample_index: row.sample_index,
            reward: row.reward.unwrap_or(f32::NAN),
            num_steps: row.num_steps,
            num_prompt_tokens: clamped(row.num_prompt_tokens),
            num_response_tokens: clamped(row.num_response_tokens),
            num_invalid_actions: row.num_invalid_actions,
            version_min: row.policy_version_min.unwrap_or(NONE),
            version_max: row.policy_version_max.unwrap_or(NONE),
            staleness: row.staleness.unwrap_or(NONE),
            gpu_millis: clamped(row.gpu_micros / 1000),
            life_millis: clamped(row.ended_at.0.saturating_sub(row.started_at.0) / 1000),
            attempt: row.attempt,
            policy_kind: self.strings.intern(&row.policy_kind)?,
            end: self.strings.intern(&row.end)?,
            flags,
        };
        self.ids.push_str(&row.trajectory_id);
        self.id_ends.push(id_end);
        self.entries.push(entry);
        Ok(())
    }

    /// Number of trajectories in the index.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the index is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of trajectories beyond [`INDEX_ROWS_MAX`].
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Memory it takes in bytes, repeated strings excluded.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<IndexEntry>()
            + self.id_ends.capacity() * size_of::<u32>()
            + self.ids.capacity()
    }

    /// The trajectory at a position; `None` beyond the last.
    pub fn line(&self, position: u32) -> Option<TrajectoryLine<'_>> {
        let at = position as usize;
        let entry = self.entries.get(at)?;
        let [suite, task_id, split] = &self.tasks.list[entry.task as usize];
        let known = |value: i32| (value != NONE).then_some(value);
        Some(TrajectoryLine {
            trajectory_id: self.id(at),
            task_id,
            suite,
            split,
            policy_kind: &self.strings.list[entry.policy_kind as usize],
            status: if entry.flags & SCORED != 0 { "scored" } else { "failed" },
            end: &self.strings.list[entry.end as usize],
            sample_index: entry.sample_index,
            attempt: entry.attempt,
            reward: (!entry.reward.is_nan()).then_some(entry.reward),
            success: (entry.flags & SUCCESS_KNOWN != 0).then_some(entry.flags & SOLVED != 0),
            num_steps: entry.num_steps,
            num_prompt_tokens: entry.num_prompt_tokens,
            num_response_tokens: entry.num_response_tokens,
            num_invalid_actions: entry.num_invalid_actions,
            policy_version_min: known(entry.version_min),
            policy_version_max: known(entry.version_max),
            staleness: known(entry.staleness),
            gpu_millis: entry.gpu_millis,
            life_millis: entry.life_millis,
            ended_at: entry.ended_at,
        })
    }

    /// Positions of the trajectories that match a query, in its order. Equal rows stay in the order
    /// they were added.
    pub fn select(&self, query: &TrajectoryQuery) -> Vec<u32> {
        let filter = QueryFilter::new(self, query);
        let order = RowOrder::new(self, query.sort);
        let passing = (0..).zip(&self.entries).filter(|(at, entry)| filter.passes(self, *at as usize, entry));
        let mut keyed: Vec<(u64, u32)> = passing
            .map(|(at, entry)| {
                let key = order.key(entry).map(|key| if query.descending { !key & LAST_KEY } else { key });
                (key.unwrap_or(u64::MAX), at)
            })
            .collect();
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, at)| at).collect()
    }

    /// Existing suites, ends, splits and policy kinds in alphabetical order: the choices of a
    /// filter.
    pub fn filter_choices(&self) -> FilterChoices<'_> {
        let of_tasks = |part: usize| sorted(self.tasks.list.iter().map(|task| task[part].as_str()).collect());
        let mut used = [vec![false; self.strings.list.len()], vec![false; self.strings.list.len()]];
        for entry in &self.entries {
            used[0][entry.end as usize] = true;
            used[1][entry.policy_kind as usize] = true;
        }
        let used_strings = |used: &[bool]| {
            sorted(
                self.strings
                    .list
                    .iter()
                    .zip(used)
                    .filter(|(_, used)| **used)
                    .map(|(text, _)| text.as_str())
                    .collect(),
            )
        };
        FilterChoices {
            suites: of_tasks(0),
            splits: of_tasks(2),
            ends: used_strings(&used[0]),
            policy_kinds: used_strings(&used[1]),
        }
    }

    fn id(&self, at: usize) -> &str {
        let begin = if at == 0 { 0 } else { self.id_ends[at - 1] as usize };
        &self.ids[begin..self.id_ends[at] as usize]
    }
}

/// The choices of a filter.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FilterChoices<'a> {
    /// Suites of the trajectories.
    pub suites: Vec<&'a str>,
    /// Splits of the trajectories.
    pub splits: Vec<&'a str>,
    /// Ends of the trajectories.
    pub ends: Vec<&'a str>,
    /// Policy kinds of the trajectories.
    pub policy_kinds: Vec<&'a str>,
}

/// Keys use 63 bits, so that inverting them leaves the last position to rows without a value.
const LAST_KEY: u64 = u64::MAX >> 1;

/// A query with its strings looked up, so that a row costs a few comparisons.
struct QueryFilter<'a> {
    query: &'a TrajectoryQuery,
    text: String,
    /// Whether each task passes the filters by suite, split and task.
    tasks: Vec<bool>,
    /// Whether the task's id alone matches the text.
    named: Vec<bool>,
    ends: Vec<bool>,
    policy_kinds: Vec<bool>,
    group: Option<u64>,
}

impl<'a> QueryFilter<'a> {
    fn new(index: &TrajectoryIndex, query: &'a TrajectoryQuery) -> Self {
        let text = query.text.to_lowercase();
        let among =
            |chosen: &[String], value: &str| chosen.is_empty() || chosen.iter().any(|one| one == value);
        let task = |[suite, task, split]: &[String; 3]| {
            among(&query.suites, suite)
                && among(&query.splits, split)
                && query.task_id.as_ref().is_none_or(|wanted| wanted == task)
        };
        let named = |[_, task, _]: &[String; 3]| text.is_empty() || task.to_lowercase().contains(&text);
        let allowed =
            |chosen: &[String]| index.strings.list.iter().map(|value| among(chosen, value)).collect();
        Self {
            query,
            tasks: index.tasks.list.iter().map(task).collect(),
            named: index.tasks.list.iter().map(named).collect(),
            ends: allowed(&query.ends),
            policy_kinds: allowed(&query.policy_kinds),
            group: query.group_id.as_deref().map(hash),
            text,
        }
    }

    fn passes(&self, index: &TrajectoryIndex, at: usize, entry: &IndexEntry) -> bool {
        let query = self.query;
        self.tasks[entry.task as usize]
            && self.ends[entry.end as usize]
            && self.policy_kinds[entry.policy_kind as usize]
            && self.group.is_none_or(|group| group == entry.group)
            && query.scored.is_none_or(|scored| scored == (entry.flags & SCORED != 0))
            && query.success.is_none_or(|solved| {
                entry.flags & SUCCESS_KNOWN != 0 && solved == (entry.flags & SOLVED != 0)
            })
            && query.reward.holds(entry.reward, |reward| !reward.is_nan())
            && query.steps.holds(entry.num_steps, |_| true)
            && query.staleness.holds(entry.staleness, |behind| behind != NONE)
            && query.version.touches(entry.version_min, entry.version_max)
            && (self.named[entry.task as usize] || index.id(at).to_lowercase().contains(&self.text))
    }
}

impl<T: PartialOrd + Copy> ValueRange<T> {
    /// Whether a value is in the range; an unknown one is only in the unbounded range.
    fn holds(&self, value: T, is_known: impl Fn(T) -> bool) -> bool {
        let open = self.min.is_none() && self.max.is_none();
        open || is_known(value)
            && self.min.is_none_or(|min| value >= min)
            && self.max.is_none_or(|max| value <= max)
    }
}

impl ValueRange<i32> {
    /// Whether two ranges overlap.
    fn touches(&self, least: i32, largest: i32) -> bool {
        let open = self.min.is_none() && self.max.is_none();
        open || least != NONE
            && self.min.is_none_or(|min| largest >= min)
            && self.max.is_none_or(|max| least <= max)
    }
}

/// The order of rows.
struct RowOrder {
    sort: Sort,
    /// Alphabetical ranks of tasks or strings.
    ranks: Vec<u32>,
}

impl RowOrder {
    fn new(index: &TrajectoryIndex, sort: Sort) -> Self {
        let ranks = match sort {
            Sort::TaskId => ranks(&index.tasks.list),
            Sort::End => ranks(&index.strings.list),
            _ => Vec::new(),
        };
        Self { sort, ranks }
    }

    /// At most [`LAST_KEY`] − 1; `None` without a value.
    fn key(&self, entry: &IndexEntry) -> Option<u64> {
        let signed = |value: i32| (value != NONE).then_some(u64::from(value as u32 ^ 0x8000_0000));
        match self.sort {
            // Microseconds before or after the epoch fit 62 bits for 146,000 years.
            Sort::EndedAt => Some((entry.ended_at.clamp(-(1 << 61), 1 << 61) + (1 << 61)) as u64),
            Sort::TaskId => Some(self.ranks[entry.task as usize].into()),
            Sort::End => Some(self.ranks[entry.end as usize].into()),
            Sort::Reward => (!entry.reward.is_nan()).then(|| ordered(entry.reward)),
            Sort::NumSteps => signed(entry.num_steps),
            Sort::PolicyVersion => signed(entry.version_max),
            Sort::Staleness => signed(entry.staleness),
            Sort::ResponseTokens => Some(entry.num_response_tokens.into()),
            Sort::InvalidActions => signed(entry.num_invalid_actions),
            Sort::GpuMillis => Some(entry.gpu_millis.into()),
            Sort::LifeMillis => Some(entry.life_millis.into()),
        }
    }
}

/// Bits of a float that compare as the float does: the order of IEEE 754 with the sign inverted.
fn ordered(value: f32) -> u64 {
    let bits = value.to_bits();
    u64::from(if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 })
}

/// Each entry's rank in the sorted list.
fn ranks<T: Ord>(list: &[T]) -> Vec<u32> {
    let mut positions: Vec<usize> = (0..list.len()).collect();
    positions.sort_by(|&a, &b| list[a].cmp(&list[b]));
    let mut ranks = vec![0; list.len()];
    (0..).zip(positions).for_each(|(rank, position)| ranks[position] = rank);
    ranks
}

fn sorted(mut texts: Vec<&str>) -> Vec<&str> {
    texts.sort_unstable();
    texts.dedup();
    texts
}

impl StringTable {
    fn intern(&mut self, text: &str) -> Result<u16, String> {
        if let Some(position) = self.positions.get(text) {
            return Ok(*position);
        }
        // Ends and kinds are closed sets of a dozen names; a file with thousands is damaged.
        let position = u16::try_from(self.list.len())
            .map_err(|_| "more than 65,536 ends and policy kinds".to_owned())?;
        self.list.push(text.to_owned());
        self.positions.insert(text.to_owned(), position);
        Ok(position)
    }
}

impl TaskTable {
    fn intern(&mut self, task: [&str; 3]) -> Result<u32, String> {
        let task = task.map(str::to_owned);
        if let Some(position) = self.positions.get(&task) {
            return Ok(*position);
        }
        let position = u32::try_from(self.list.len()).map_err(|_| "more than 2^32 tasks".to_owned())?;
        self.list.push(task.clone());
        self.positions.insert(task, position);
        Ok(position)
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Clamps: values of a damaged data set must not panic.
fn clamped(value: i64) -> u32 {
    value.clamp(0, u32::MAX.into()) as u32
}

/// A row that cannot be indexed means a damaged file.
pub(super) fn damaged(path: &std::path::Path) -> impl Fn(String) -> RecordsError {
    let path = path.to_owned();
    move |what| RecordsError::Damaged { path: path.clone(), what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_records::cell::TimestampMicros;
    use proptest::prelude::*;

    /// Six trajectories that differ in everything a query filters by.
    fn index() -> TrajectoryIndex {
        let mut index = TrajectoryIndex::default();
        let rows = [
            ("r-g1-s0-a0", "r-g1", "web", "Buy-Milk", "answered", Some(1.0), Some(true), 4, Some((1, 2)), 30),
            (
                "r-g1-s1-a0",
                "r-g1",
                "web",
                "Buy-Milk",
                "max_steps",
                Some(0.0),
                Some(false),
                9,
                Some((2, 2)),
                10,
            ),
            ("r-g2-s0-a0", "r-g2", "web", "sell", "page_crash", None, None, 2, Some((2, 3)), 20),
            ("r-g2-s0-a1", "r-g2", "web", "sell", "answered", Some(0.5), None, 5, None, 50),
            ("r-g3-s0-a0", "r-g3", "mini", "click", "done", Some(-1.0), Some(false), 1, Some((4, 4)), 40),
            ("r-g3-s1-a0", "r-g3", "mini", "click", "done", Some(0.25), Some(true), 1, Some((4, 4)), 60),
        ];
        for (id, group, suite, task, end, reward, success, steps, versions, ended) in rows {
            let row = ViewRow {
                trajectory_id: id.into(),
                group_id: group.into(),
                suite: suite.into(),
                task_id: task.into(),
                split: "train".into(),
                policy_kind: "model".into(),
                status: if reward.is_some() { "scored" } else { "failed" }.into(),
                end: end.into(),
                reward,
                score: reward.map(|_| super::super::rows::VerdictCell { success }),
                sample_index: i32::from(id.contains("-s1-")),
                attempt: i16::from(id.ends_with("-a1")),
                num_steps: steps,
                policy_version_min: versions.map(|(min, _)| min),
                policy_version_max: versions.map(|(_, max)| max),
                staleness: versions.map(|(min, max)| max - min),
                ended_at: TimestampMicros(ended * 1_000_000),
                ..ViewRow::default()
            };
            index.add(&row).unwrap();
        }
        index
    }

    #[track_caller]
    fn check(query: &TrajectoryQuery, want: &[u32]) {
        assert_eq!(index().select(query), want, "{query:?}");
    }

    #[test]
    fn a_query_lets_through_what_it_names() {
        let any = TrajectoryQuery::default;
        check(&TrajectoryQuery { text: "milk".into(), ..any() }, &[1, 0]);
        check(&TrajectoryQuery { text: "G3-S".into(), ..any() }, &[4, 5]);
        check(&TrajectoryQuery { text: "nothing".into(), ..any() }, &[]);
        check(&TrajectoryQuery { suites: vec!["mini".into(), "other".into()], ..any() }, &[4, 5]);
        check(&TrajectoryQuery { ends: vec!["answered".into()], ..any() }, &[0, 3]);
        check(&TrajectoryQuery { splits: vec!["test".into()], ..any() }, &[]);
        check(&TrajectoryQuery { policy_kinds: vec!["model".into()], ..any() }, &[1, 2, 0, 4, 3, 5]);
        check(&TrajectoryQuery { task_id: Some("sell".into()), ..any() }, &[2, 3]);
        check(&TrajectoryQuery { task_id: Some("sel".into()), ..any() }, &[]);
        check(&TrajectoryQuery { group_id: Some("r-g1".into()), ..any() }, &[1, 0]);
        check(&TrajectoryQuery { scored: Some(false), ..any() }, &[2]);
        check(&TrajectoryQuery { success: Some(true), ..any() }, &[0, 5]);
        check(&TrajectoryQuery { success: Some(false), ..any() }, &[1, 4]);
        check(
            &TrajectoryQuery { reward: ValueRange { min: Some(0.0), max: Some(0.5) }, ..any() },
            &[1, 3, 5],
        );
        check(
            &TrajectoryQuery { reward: ValueRange { min: Some(f32::MIN), max: None }, ..any() },
            &[1, 0, 4, 3, 5],
        );
        check(&TrajectoryQuery { version: ValueRange { min: Some(3), max: Some(3) }, ..any() }, &[2]);
        check(&TrajectoryQuery { version: ValueRange { min: None, max: Some(1) }, ..any() }, &[0]);
        check(&TrajectoryQuery { steps: ValueRange { min: Some(4), max: Some(5) }, ..any() }, &[0, 3]);
        check(&TrajectoryQuery { staleness: ValueRange { min: Some(1), max: None }, ..any() }, &[2, 0]);
    }

    #[test]
    fn rows_are_sorted_and_what_has_no_value_comes_last() {
        let by = |sort, descending| TrajectoryQuery { sort, descending, ..TrajectoryQuery::default() };
        check(&by(Sort::EndedAt, false), &[1, 2, 0, 4, 3, 5]);
        check(&by(Sort::EndedAt, true), &[5, 3, 4, 0, 2, 1]);
        check(&by(Sort::Reward, false), &[4, 1, 5, 3, 0, 2]);
        check(&by(Sort::Reward, true), &[0, 3, 5, 1, 4, 2]);
        check(&by(Sort::TaskId, false), &[4, 5, 0, 1, 2, 3]);
        check(&by(Sort::End, false), &[0, 3, 4, 5, 1, 2]);
        check(&by(Sort::NumSteps, true), &[1, 3, 0, 2, 4, 5]);
        check(&by(Sort::PolicyVersion, true), &[4, 5, 2, 0, 1, 3]);
        check(&by(Sort::Staleness, false), &[1, 4, 5, 0, 2, 3]);
    }

    #[test]
    fn a_line_matches_its_row() {
        let index = index();
        let line = index.line(3).unwrap();
        assert_eq!((line.trajectory_id, line.task_id), ("r-g2-s0-a1", "sell"));
        assert_eq!(
            (line.reward, line.success, line.policy_version_max, line.staleness),
            (Some(0.5), None, None, None)
        );
        assert_eq!((line.status, line.end, line.num_steps), ("scored", "answered", 5));
        assert_eq!(index.line(2).unwrap().reward, None);
        assert_eq!(index.line(6), None);
        let choices = index.filter_choices();
        assert_eq!((choices.suites, choices.splits), (vec!["mini", "web"], vec!["train"]));
        assert_eq!(choices.ends, ["answered", "done", "max_steps", "page_crash"]);
        assert_eq!(choices.policy_kinds, ["model"]);
    }

    proptest! {
        #[test]
        fn keys_compare_as_their_values_do(a: f32, b: f32) {
            prop_assume!(!a.is_nan() && !b.is_nan());
            prop_assert_eq!(ordered(a).cmp(&ordered(b)), a.total_cmp(&b));
            prop_assert!(ordered(a) < LAST_KEY);
        }
    }
}
