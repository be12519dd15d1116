//! Every trajectory of a data set in memory, small enough for a million of them: what a table shows, filters and sorts by.
//!
//! A row is an entry of 72 bytes and its id (27 bytes in a run of a short name), so a million are about 99 MB. Words that repeat
//! (suites, tasks, splits, ends, kinds) are kept once. Anything larger stays in its file until somebody asks for the row.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Serialize;

use super::ViewRow;
use crate::RecordsError;

/// Most trajectories an index holds: 1 GB. Those beyond it are counted and not shown.
pub const INDEX_ROWS_MAX: usize = 10_000_000;

/// What a table shows of a trajectory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line<'a> {
    /// Its id.
    pub trajectory_id: &'a str,
    /// Its task.
    pub task_id: &'a str,
    /// Its suite.
    pub suite: &'a str,
    /// Share of the tasks.
    pub split: &'a str,
    /// What acted.
    pub policy_kind: &'a str,
    /// `scored` or `failed`.
    pub status: &'a str,
    /// How it ended.
    pub end: &'a str,
    /// Slot in its group.
    pub sample_index: i32,
    /// Attempt at the slot.
    pub attempt: i16,
    /// The reward.
    pub reward: Option<f32>,
    /// Whether it solved its task, where the scorer says.
    pub success: Option<bool>,
    /// Its steps.
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
    /// Device time, milliseconds.
    pub gpu_millis: u32,
    /// From its start to its end, milliseconds.
    pub life_millis: u32,
    /// When it ended, microseconds since the Unix epoch.
    pub ended_at: i64,
}

/// What is asked of the table. Everything left out lets everything through.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Query {
    /// Part of a trajectory's id or of its task's, letters of either case.
    pub text: String,
    /// Suites, any of them.
    pub suites: Vec<String>,
    /// Ends, any of them.
    pub ends: Vec<String>,
    /// Splits, any of them.
    pub splits: Vec<String>,
    /// Policy kinds, any of them.
    pub policy_kinds: Vec<String>,
    /// One task, whole name.
    pub task_id: Option<String>,
    /// One group: its slots side by side.
    pub group_id: Option<String>,
    /// Only scored ones, or only failed ones.
    pub scored: Option<bool>,
    /// Only solved ones, or only those that a scorer says are not.
    pub success: Option<bool>,
    /// Least and largest reward; a trajectory without one is left out where either is given.
    pub reward: Span<f32>,
    /// Policy versions: it acted, in part at least, under one of these.
    pub version: Span<i32>,
    /// Steps.
    pub steps: Span<i32>,
    /// Versions behind.
    pub staleness: Span<i32>,
    /// What the rows are sorted by.
    pub sort: Sort,
    /// Largest first; what has no value comes last either way.
    pub descending: bool,
}

/// From the least to the largest, both of them included and either left out.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Span<T> {
    /// The least.
    pub min: Option<T>,
    /// The largest.
    pub max: Option<T>,
}

macro_rules! sorts {
    ($($(#[$doc:meta])* $sort:ident = $word:literal),* $(,)?) => {
        /// A column to sort by.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub enum Sort { $($(#[$doc])* $sort),* }

        impl Sort {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$sort),*];

            /// The column's name.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$sort => $word),* }
            }
        }
    };
}

sorts! {
    /// When it ended.
    #[default]
    EndedAt = "ended_at",
    /// Suite, then task.
    TaskId = "task_id",
    /// Reward.
    Reward = "reward",
    /// Steps.
    NumSteps = "num_steps",
    /// How it ended, in the order of the alphabet.
    End = "end",
    /// Newest version that acted.
    PolicyVersion = "policy_version_max",
    /// Versions behind.
    Staleness = "staleness",
    /// Tokens of its responses.
    ResponseTokens = "num_response_tokens",
    /// Replies without an action.
    InvalidActions = "num_invalid_actions",
    /// Device time.
    GpuMillis = "gpu_millis",
    /// From start to end.
    LifeMillis = "life_millis",
}

/// The trajectories of some files, in the order they were added.
#[derive(Debug, Default)]
pub struct Index {
    entries: Vec<Entry>,
    ids: String,
    /// Where the ids end.
    id_ends: Vec<u32>,
    words: Words,
    tasks: Tasks,
    left_out: u64,
}

/// 72 bytes; the id stands elsewhere.
#[derive(Debug, Clone, Copy)]
struct Entry {
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

const _: () = assert!(size_of::<Entry>() == 72);

const SCORED: u8 = 1;
const JUDGED: u8 = 2;
const SOLVED: u8 = 4;
/// Stands for "no version" and "not known", which no trajectory of ours has as a value.
const NONE: i32 = i32::MIN;

/// Words that repeat, each kept once.
#[derive(Debug, Default)]
struct Words {
    list: Vec<String>,
    places: HashMap<String, u16>,
}

/// Suite, task and split.
#[derive(Debug, Default)]
struct Tasks {
    list: Vec<[String; 3]>,
    places: HashMap<[String; 3], u32>,
}

impl Index {
    /// Adds a trajectory; the file's door has looked at its types, this one looks at its values.
    pub(crate) fn add(&mut self, row: &ViewRow) -> Result<(), String> {
        if self.entries.len() >= INDEX_ROWS_MAX {
            self.left_out += 1;
            return Ok(());
        }
        let id_end = u32::try_from(self.ids.len() + row.trajectory_id.len())
            .map_err(|_| "the ids of all trajectories are longer than 4 GiB".to_owned())?;
        let mut flags = if row.status == "scored" { SCORED } else { 0 };
        if let Some(success) = row.score.as_ref().and_then(|score| score.success) {
            flags |= if success { JUDGED | SOLVED } else { JUDGED };
        }
        let entry = Entry {
            group: hash(&row.group_id),
            ended_at: row.ended_at.0,
            task: self.tasks.place([&row.suite, &row.task_id, &row.split])?,
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
            policy_kind: self.words.place(&row.policy_kind)?,
            end: self.words.place(&row.end)?,
            flags,
        };
        self.ids.push_str(&row.trajectory_id);
        self.id_ends.push(id_end);
        self.entries.push(entry);
        Ok(())
    }

    /// Trajectories it holds.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Trajectories beyond [`INDEX_ROWS_MAX`].
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Bytes it takes, the words that repeat left out.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.id_ends.capacity() * size_of::<u32>()
            + self.ids.capacity()
    }

    /// The trajectory at a place. `None` beyond the last.
    pub fn line(&self, place: u32) -> Option<Line<'_>> {
        let at = place as usize;
        let entry = self.entries.get(at)?;
        let [suite, task_id, split] = &self.tasks.list[entry.task as usize];
        let known = |value: i32| (value != NONE).then_some(value);
        Some(Line {
            trajectory_id: self.id(at),
            task_id,
            suite,
            split,
            policy_kind: &self.words.list[entry.policy_kind as usize],
            status: if entry.flags & SCORED != 0 { "scored" } else { "failed" },
            end: &self.words.list[entry.end as usize],
            sample_index: entry.sample_index,
            attempt: entry.attempt,
            reward: (!entry.reward.is_nan()).then_some(entry.reward),
            success: (entry.flags & JUDGED != 0).then_some(entry.flags & SOLVED != 0),
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

    /// Places of the trajectories that a query lets through, sorted as it says. Rows that are equal stay in the order they were added.
    pub fn select(&self, query: &Query) -> Vec<u32> {
        let filter = Filter::new(self, query);
        let order = Order::new(self, query.sort);
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

    /// Suites, ends, splits and policy kinds there are, each in the order of the alphabet: what a filter offers.
    pub fn words(&self) -> Choices<'_> {
        let of_tasks = |part: usize| sorted(self.tasks.list.iter().map(|task| task[part].as_str()).collect());
        let mut used = [vec![false; self.words.list.len()], vec![false; self.words.list.len()]];
        for entry in &self.entries {
            used[0][entry.end as usize] = true;
            used[1][entry.policy_kind as usize] = true;
        }
        let of_words = |used: &[bool]| {
            sorted(
                self.words
                    .list
                    .iter()
                    .zip(used)
                    .filter(|(_, used)| **used)
                    .map(|(word, _)| word.as_str())
                    .collect(),
            )
        };
        Choices {
            suites: of_tasks(0),
            splits: of_tasks(2),
            ends: of_words(&used[0]),
            policy_kinds: of_words(&used[1]),
        }
    }

    fn id(&self, at: usize) -> &str {
        let begin = if at == 0 { 0 } else { self.id_ends[at - 1] as usize };
        &self.ids[begin..self.id_ends[at] as usize]
    }
}

/// Words that a filter offers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Choices<'a> {
    /// Suites.
    pub suites: Vec<&'a str>,
    /// Splits.
    pub splits: Vec<&'a str>,
    /// Ends.
    pub ends: Vec<&'a str>,
    /// Policy kinds.
    pub policy_kinds: Vec<&'a str>,
}

/// Keys use 63 bits, so that turning them round leaves the last place to what has no value.
const LAST_KEY: u64 = u64::MAX >> 1;

/// A query with its words looked up, so that a row costs a few comparisons.
struct Filter<'a> {
    query: &'a Query,
    text: String,
    /// Whether each task passes, text and all.
    tasks: Vec<bool>,
    /// Whether the task alone answers the text.
    named: Vec<bool>,
    ends: Vec<bool>,
    policy_kinds: Vec<bool>,
    group: Option<u64>,
}

impl<'a> Filter<'a> {
    fn new(index: &Index, query: &'a Query) -> Self {
        let text = query.text.to_lowercase();
        let among = |chosen: &[String], word: &str| chosen.is_empty() || chosen.iter().any(|one| one == word);
        let task = |[suite, task, split]: &[String; 3]| {
            among(&query.suites, suite)
                && among(&query.splits, split)
                && query.task_id.as_ref().is_none_or(|wanted| wanted == task)
        };
        let named = |[_, task, _]: &[String; 3]| text.is_empty() || task.to_lowercase().contains(&text);
        let words = |chosen: &[String]| index.words.list.iter().map(|word| among(chosen, word)).collect();
        Self {
            query,
            tasks: index.tasks.list.iter().map(task).collect(),
            named: index.tasks.list.iter().map(named).collect(),
            ends: words(&query.ends),
            policy_kinds: words(&query.policy_kinds),
            group: query.group_id.as_deref().map(hash),
            text,
        }
    }

    fn passes(&self, index: &Index, at: usize, entry: &Entry) -> bool {
        let query = self.query;
        self.tasks[entry.task as usize]
            && self.ends[entry.end as usize]
            && self.policy_kinds[entry.policy_kind as usize]
            && self.group.is_none_or(|group| group == entry.group)
            && query.scored.is_none_or(|scored| scored == (entry.flags & SCORED != 0))
            && query
                .success
                .is_none_or(|solved| entry.flags & JUDGED != 0 && solved == (entry.flags & SOLVED != 0))
            && query.reward.holds(entry.reward, |reward| !reward.is_nan())
            && query.steps.holds(entry.num_steps, |_| true)
            && query.staleness.holds(entry.staleness, |behind| behind != NONE)
            && query.version.touches(entry.version_min, entry.version_max)
            && (self.named[entry.task as usize] || index.id(at).to_lowercase().contains(&self.text))
    }
}

impl<T: PartialOrd + Copy> Span<T> {
    /// Whether a value lies inside; one that is not known lies in the open span alone.
    fn holds(&self, value: T, is_known: impl Fn(T) -> bool) -> bool {
        let open = self.min.is_none() && self.max.is_none();
        open || is_known(value)
            && self.min.is_none_or(|min| value >= min)
            && self.max.is_none_or(|max| value <= max)
    }
}

impl Span<i32> {
    /// Whether two spans have a value in common.
    fn touches(&self, least: i32, largest: i32) -> bool {
        let open = self.min.is_none() && self.max.is_none();
        open || least != NONE
            && self.min.is_none_or(|min| largest >= min)
            && self.max.is_none_or(|max| least <= max)
    }
}

/// How rows compare.
struct Order {
    sort: Sort,
    /// Places of tasks and of words in the alphabet.
    ranks: Vec<u32>,
}

impl Order {
    fn new(index: &Index, sort: Sort) -> Self {
        let ranks = match sort {
            Sort::TaskId => ranks(&index.tasks.list),
            Sort::End => ranks(&index.words.list),
            _ => Vec::new(),
        };
        Self { sort, ranks }
    }

    /// At most [`LAST_KEY`] − 1; `None` where there is no value.
    fn key(&self, entry: &Entry) -> Option<u64> {
        let signed = |value: i32| (value != NONE).then_some(u64::from(value as u32 ^ 0x8000_0000));
        match self.sort {
            // Microseconds since the epoch, either side of it, fit 62 bits for 146,000 years.
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

/// Bits of a float that compare as the float does: IEEE 754's own order, the sign turned round.
fn ordered(value: f32) -> u64 {
    let bits = value.to_bits();
    u64::from(if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 })
}

/// Each entry's place among the sorted ones.
fn ranks<T: Ord>(list: &[T]) -> Vec<u32> {
    let mut places: Vec<usize> = (0..list.len()).collect();
    places.sort_by(|&a, &b| list[a].cmp(&list[b]));
    let mut ranks = vec![0; list.len()];
    (0..).zip(places).for_each(|(rank, place)| ranks[place] = rank);
    ranks
}

fn sorted(mut words: Vec<&str>) -> Vec<&str> {
    words.sort_unstable();
    words.dedup();
    words
}

impl Words {
    fn place(&mut self, word: &str) -> Result<u16, String> {
        if let Some(place) = self.places.get(word) {
            return Ok(*place);
        }
        // Ends and kinds are closed sets of a dozen words; a file with thousands is not ours.
        let place = u16::try_from(self.list.len())
            .map_err(|_| "more than 65,536 ends and policy kinds".to_owned())?;
        self.list.push(word.to_owned());
        self.places.insert(word.to_owned(), place);
        Ok(place)
    }
}

impl Tasks {
    fn place(&mut self, task: [&str; 3]) -> Result<u32, String> {
        let task = task.map(str::to_owned);
        if let Some(place) = self.places.get(&task) {
            return Ok(*place);
        }
        let place = u32::try_from(self.list.len()).map_err(|_| "more than 2^32 tasks".to_owned())?;
        self.list.push(task.clone());
        self.places.insert(task, place);
        Ok(place)
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Figures of a damaged data set must not be a panic.
fn clamped(value: i64) -> u32 {
    value.clamp(0, u32::MAX.into()) as u32
}

/// A row that cannot be indexed is a damaged file.
pub(super) fn damaged(path: &std::path::Path) -> impl Fn(String) -> RecordsError {
    let path = path.to_owned();
    move |what| RecordsError::damaged(&path, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Micros;
    use proptest::prelude::*;

    /// Six trajectories that differ in everything a query asks for.
    fn index() -> Index {
        let mut index = Index::default();
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
                score: reward.map(|_| super::super::VerdictCell { success }),
                sample_index: i32::from(id.contains("-s1-")),
                attempt: i16::from(id.ends_with("-a1")),
                num_steps: steps,
                policy_version_min: versions.map(|(min, _)| min),
                policy_version_max: versions.map(|(_, max)| max),
                staleness: versions.map(|(min, max)| max - min),
                ended_at: Micros(ended * 1_000_000),
                ..ViewRow::default()
            };
            index.add(&row).unwrap();
        }
        index
    }

    #[track_caller]
    fn check(query: &Query, want: &[u32]) {
        assert_eq!(index().select(query), want, "{query:?}");
    }

    #[test]
    fn a_query_lets_through_what_it_names() {
        let any = Query::default;
        check(&Query { text: "milk".into(), ..any() }, &[1, 0]);
        check(&Query { text: "G3-S".into(), ..any() }, &[4, 5]);
        check(&Query { text: "nothing".into(), ..any() }, &[]);
        check(&Query { suites: vec!["mini".into(), "other".into()], ..any() }, &[4, 5]);
        check(&Query { ends: vec!["answered".into()], ..any() }, &[0, 3]);
        check(&Query { splits: vec!["test".into()], ..any() }, &[]);
        check(&Query { policy_kinds: vec!["model".into()], ..any() }, &[1, 2, 0, 4, 3, 5]);
        check(&Query { task_id: Some("sell".into()), ..any() }, &[2, 3]);
        check(&Query { task_id: Some("sel".into()), ..any() }, &[]);
        check(&Query { group_id: Some("r-g1".into()), ..any() }, &[1, 0]);
        check(&Query { scored: Some(false), ..any() }, &[2]);
        check(&Query { success: Some(true), ..any() }, &[0, 5]);
        check(&Query { success: Some(false), ..any() }, &[1, 4]);
        check(&Query { reward: Span { min: Some(0.0), max: Some(0.5) }, ..any() }, &[1, 3, 5]);
        check(&Query { reward: Span { min: Some(f32::MIN), max: None }, ..any() }, &[1, 0, 4, 3, 5]);
        check(&Query { version: Span { min: Some(3), max: Some(3) }, ..any() }, &[2]);
        check(&Query { version: Span { min: None, max: Some(1) }, ..any() }, &[0]);
        check(&Query { steps: Span { min: Some(4), max: Some(5) }, ..any() }, &[0, 3]);
        check(&Query { staleness: Span { min: Some(1), max: None }, ..any() }, &[2, 0]);
    }

    #[test]
    fn rows_are_sorted_and_what_has_no_value_comes_last() {
        let by = |sort, descending| Query { sort, descending, ..Query::default() };
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
    fn a_line_says_what_its_row_said() {
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
        let choices = index.words();
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
