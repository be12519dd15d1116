//! Why the farm failed at attempts: the most frequent reasons of a data set.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

/// Most reasons in a report.
const REASONS_MAX: usize = 5;

/// Most different reasons that are counted: a reason may contain text of a page.
const COUNTED_MAX: usize = 10_000;

/// Longest reason in a report; longer ones are cut, and those that begin alike are one.
const REASON_CHARS_MAX: usize = 300;

/// Why the farm failed at some attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailureReason {
    /// How these attempts ended.
    pub end: String,
    /// The reason in a sentence.
    pub reason: String,
    /// Attempts that failed for it, of all tasks.
    pub count: u64,
}

/// Attempts by end and reason.
#[derive(Debug, Default)]
pub(crate) struct ReasonTally(BTreeMap<(String, String), u64>);

impl ReasonTally {
    /// Counts a failed attempt. One whose end says everything has no reason, and is not counted.
    pub(crate) fn add(&mut self, end: &str, reason: &str) {
        if reason.is_empty() {
            return;
        }
        let key = (end.to_owned(), reason.chars().take(REASON_CHARS_MAX).collect());
        if self.0.len() < COUNTED_MAX || self.0.contains_key(&key) {
            *self.0.entry(key).or_default() += 1;
        }
    }

    /// The most frequent reasons; of equally frequent ones in the order of their text.
    pub(crate) fn most_frequent(self) -> Vec<FailureReason> {
        let reasons = self.0.into_iter();
        let mut all: Vec<FailureReason> =
            reasons.map(|((end, reason), count)| FailureReason { end, reason, count }).collect();
        all.sort_by_key(|reason| Reverse(reason.count));
        all.truncate(REASONS_MAX);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_reasons_are_kept() {
        let mut tally = ReasonTally::default();
        for index in 0..20 {
            tally.add("page_hang", "");
            tally.add("env_crash", "app.test cannot be reached at 127.0.0.1:3000: connection refused");
            tally.add("page_crash", &format!("{}{index}", "x".repeat(REASON_CHARS_MAX)));
            tally.add("env_crash", &format!("once: {index}"));
        }
        let got = tally.most_frequent();
        let counts: Vec<(&str, u64)> = got.iter().map(|reason| (&*reason.end, reason.count)).collect();
        let once = ("env_crash", 1);
        assert_eq!(counts, [("env_crash", 20), ("page_crash", 20), once, once, once]);
        assert!(got[0].reason.contains("127.0.0.1:3000") && got[1].reason.len() == REASON_CHARS_MAX);
    }
}
