//! Parses query strings: every parameter has one meaning, a limit, and an error that names the
//! valid values.

use std::str::FromStr;

use furrow_analysis::view::{Sort, TrajectoryQuery};
use furrow_rollout::Split;

/// One window of the table.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct TableWindow {
    /// The selection and its order.
    pub query: TrajectoryQuery,
    /// Number of rows before the first.
    pub offset: u32,
    pub limit: u32,
}

/// Most rows of one answer; about 500 bytes each.
const LIMIT_MAX: u32 = 500;
/// Most characters of one value.
const VALUE_CHARS_MAX: usize = 256;
/// Most values of one list.
const VALUES_MAX: usize = 64;

/// Reads `step=N`; `None` without one.
pub(crate) fn step(text: &str) -> Result<Option<i32>, String> {
    let read = |text: &str| text.strip_prefix("step=")?.parse().ok().filter(|step| *step >= 0);
    match (text, read(text)) {
        ("", _) => Ok(None),
        (_, Some(step)) => Ok(Some(step)),
        _ => {
            let text: String = text.chars().take(80).collect();
            Err(format!("{text:?}: use step=0, step=1 and so on, or no parameter for everything"))
        }
    }
}

impl TableWindow {
    /// Reads a query string; reports the first wrong parameter.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut window = Self { limit: 100, ..Self::default() };
        window.query.descending = true;
        let mut given = 0;
        for (key, value) in url::form_urlencoded::parse(text.as_bytes()) {
            given += 1;
            if given > VALUES_MAX {
                return Err(format!("more than {VALUES_MAX} parameters; use fewer"));
            }
            if value.chars().count() > VALUE_CHARS_MAX {
                return Err(format!("{key}: longer than {VALUE_CHARS_MAX} characters"));
            }
            window.set(&key, &value)?;
        }
        Ok(window)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let query = &mut self.query;
        let text = || value.to_owned();
        match key {
            // An empty field of a form sets no filter.
            _ if value.is_empty() => {}
            "offset" => self.offset = number(key, value, 0, u32::MAX)?,
            "limit" => self.limit = number(key, value, 1, LIMIT_MAX)?,
            "text" => query.text = text(),
            "suite" => query.suites.push(text()),
            "end" => query.ends.push(text()),
            "split" => match Split::parse(value) {
                Some(_) => query.splits.push(text()),
                None => return Err(format!("split: {value:?}; use train, validation, test or eval")),
            },
            "policy_kind" => query.policy_kinds.push(text()),
            "task_id" => query.task_id = Some(text()),
            "group_id" => query.group_id = Some(text()),
            "status" => query.scored = Some(one_of(key, value, "scored", "failed")?),
            "success" => query.success = Some(one_of(key, value, "yes", "no")?),
            "reward_min" => query.reward.min = Some(number(key, value, f32::MIN, f32::MAX)?),
            "reward_max" => query.reward.max = Some(number(key, value, f32::MIN, f32::MAX)?),
            "version_min" => query.version.min = Some(whole(key, value)?),
            "version_max" => query.version.max = Some(whole(key, value)?),
            "steps_min" => query.steps.min = Some(whole(key, value)?),
            "steps_max" => query.steps.max = Some(whole(key, value)?),
            "staleness_min" => query.staleness.min = Some(whole(key, value)?),
            "staleness_max" => query.staleness.max = Some(whole(key, value)?),
            "sort" => {
                let names = || Sort::ALL.iter().map(|sort| sort.as_str()).collect::<Vec<_>>().join(", ");
                let sort = Sort::ALL.iter().find(|sort| sort.as_str() == value);
                query.sort = *sort.ok_or_else(|| format!("sort: {value:?}; use one of {}", names()))?;
            }
            "order" => query.descending = one_of(key, value, "desc", "asc")?,
            _ => return Err(format!("{key:?}: unknown parameter")),
        }
        Ok(())
    }
}

fn whole(key: &str, value: &str) -> Result<i32, String> {
    number(key, value, 0, i32::MAX)
}

fn number<T>(key: &str, value: &str, least: T, largest: T) -> Result<T, String>
where
    T: FromStr + PartialOrd + Copy + std::fmt::Display,
{
    let read = value.parse::<T>().ok().filter(|number| *number >= least && *number <= largest);
    read.ok_or_else(|| format!("{key}: {value:?}; use {least} to {largest}"))
}

/// Parses one of two words; whether it is the first.
fn one_of(key: &str, value: &str, yes: &str, no: &str) -> Result<bool, String> {
    match value {
        _ if value == yes => Ok(true),
        _ if value == no => Ok(false),
        _ => Err(format!("{key}: {value:?}; use {yes} or {no}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, want: impl Fn(&mut TableWindow)) {
        let mut wanted = TableWindow { limit: 100, ..TableWindow::default() };
        wanted.query.descending = true;
        want(&mut wanted);
        assert_eq!(TableWindow::parse(text), Ok(wanted), "{text}");
    }

    #[track_caller]
    fn refused(text: &str, want: &str) {
        let error = TableWindow::parse(text).unwrap_err();
        assert!(error.contains(want), "{text}: {error}");
    }

    #[test]
    fn parameters_are_read() {
        check("", |_| ());
        check("text=&suite=&reward_min=", |_| ());
        check("offset=7&limit=500", |window| (window.offset, window.limit) = (7, 500));
        check("suite=a&suite=b%26c&text=%C3%A9+x", |window| {
            window.query.suites = vec!["a".into(), "b&c".into()];
            window.query.text = "é x".into();
        });
        check("status=failed&success=no", |window| {
            (window.query.scored, window.query.success) = (Some(false), Some(false));
        });
        check("reward_min=-0.5&steps_max=9&version_min=3", |window| {
            window.query.reward.min = Some(-0.5);
            window.query.steps.max = Some(9);
            window.query.version.min = Some(3);
        });
        check("sort=reward&order=asc", |window| {
            (window.query.sort, window.query.descending) = (Sort::Reward, false);
        });
    }

    #[test]
    fn what_is_wrong_is_named() {
        refused("limit=501", "limit: \"501\"; use 1 to 500");
        refused("offset=-1", "offset: \"-1\"");
        refused("reward_min=NaN", "reward_min: \"NaN\"");
        refused("sort=size", "use one of ended_at, task_id, reward");
        refused("order=up", "use desc or asc");
        refused("split=all", "train, validation, test or eval");
        refused("colour=red", "\"colour\": unknown parameter");
        refused(&format!("text={}", "x".repeat(257)), "text: longer than 256");
        refused(&"suite=a&".repeat(65), "more than 64");
    }

    proptest! {
        #[test]
        fn no_text_is_a_panic(text in ".{0,300}") {
            drop(TableWindow::parse(&text));
        }
    }
}
