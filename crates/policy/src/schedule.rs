//! Which spans run next: a function of what is ready, nothing else.
//!
//! Every sequence that decodes runs in each iteration; prefill chunks fill a token budget beside them, the sequence that waited longest
//! first. The budget is paced, so that sessions do not fall into step. A chunk is run whole or not at all: where it is cut was fixed
//! from where its leg began, so neighbours and the free budget cannot move the cuts, and a session's numbers stay its own.

/// A sequence whose next span can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready<K> {
    /// Whose.
    pub key: K,
    /// Rows of the span.
    pub rows: u32,
    /// Whether the sequence decodes: a token was drawn before and another follows.
    pub decodes: bool,
    /// Whether logits of its last row are wanted.
    pub draws: bool,
    /// Smaller waited longer: when its step arrived, or, for one that decodes, when it last ran.
    pub since: u64,
}

/// What one batch may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Rows in all.
    pub rows_max: u32,
    /// Rows whose logits are wanted.
    pub logits_max: u32,
    /// Rows of prefill; one chunk runs even where it is larger.
    pub prefill_tokens: u32,
}

/// How fast prompts are read beside sequences that decode: not much faster than they have been coming.
///
/// Replies are of similar length, so sessions whose prompts are read together end together, act in their pages together, and leave the
/// device idle until they come back together. Reading a burst of prompts at the rate of all prompts takes it apart.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pace {
    /// Prompt rows a batch, in the mean over the last ones.
    mean: f64,
    /// Rows that may be read now.
    credit: f64,
}

/// Batches over which the mean is taken: a few hundred are the time of one or two replies.
const REMEMBERED: f64 = 256.0;
/// How much faster than they come prompts are read, so that what waits grows less.
const HASTE: f64 = 1.25;
/// Means that credit may grow to: more would let the next burst through as it came.
const DEPTH: f64 = 2.0;
/// Batches in which all that waits would be read, if that is faster.
const BATCHES: f64 = 16.0;

impl Pace {
    /// Prompt rows that the next batch may hold; `most` where nothing decodes and so nothing is held up.
    pub fn rows<K>(&self, ready: &[Ready<K>], most: u32) -> u32 {
        if ready.iter().all(|one| !one.decodes) {
            return most;
        }
        let waiting: u64 = ready.iter().filter(|one| !one.decodes).map(|one| u64::from(one.rows)).sum();
        let hurried = waiting as f64 / BATCHES;
        (self.credit.max(hurried) as u32).min(most)
    }

    /// A batch with so many prompt rows ran beside decode. What it left is kept for the next: chunks come whole.
    pub fn ran(&mut self, rows: u32) {
        let rows = f64::from(rows);
        self.mean += (rows - self.mean) / REMEMBERED;
        let earned = (self.credit - rows).max(0.0) + self.mean * HASTE;
        self.credit = earned.min(self.mean * DEPTH);
    }
}

/// Chooses the spans of the next batch, decodes first. Whatever is ready, at least one is chosen if its rows fit a batch at all.
pub fn plan<K: Copy>(mut ready: Vec<Ready<K>>, limits: Limits) -> Vec<K> {
    ready.sort_by_key(|ready| (!ready.decodes, ready.since));
    let (mut rows, mut logits, mut prefill) = (0, 0, 0);
    let mut chosen = Vec::new();
    for next in ready {
        let is_prefill = !next.decodes;
        let over_budget = is_prefill && prefill > 0 && prefill + next.rows > limits.prefill_tokens;
        let draws = u32::from(next.draws);
        if over_budget || rows + next.rows > limits.rows_max || logits + draws > limits.logits_max {
            if is_prefill {
                // Whoever waited longest goes first, even past a shorter one that would fit: else long prompts starve.
                break;
            }
            continue;
        }
        rows += next.rows;
        logits += draws;
        prefill += if is_prefill { next.rows } else { 0 };
        chosen.push(next.key);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits { rows_max: 100, logits_max: 8, prefill_tokens: 64 };

    fn decode(key: u32) -> Ready<u32> {
        Ready { key, rows: 1, decodes: true, draws: true, since: u64::from(key) }
    }

    fn chunk(key: u32, rows: u32) -> Ready<u32> {
        Ready { key, rows, decodes: false, draws: false, since: u64::from(key) }
    }

    #[track_caller]
    fn check(ready: &[Ready<u32>], want: &[u32]) {
        assert_eq!(plan(ready.to_vec(), LIMITS), want, "{ready:?}");
    }

    #[test]
    fn all_decode_and_prefill_fills_the_budget_in_order() {
        check(&[], &[]);
        check(&[chunk(9, 32), decode(3), decode(1)], &[1, 3, 9]);
        check(&[chunk(1, 32), chunk(2, 32), chunk(3, 1)], &[1, 2]);
        check(&[chunk(1, 40), chunk(2, 40), chunk(3, 1)], &[1]);
        check(&[chunk(1, 80), decode(7)], &[7, 1]);
        check(&[chunk(1, 80), chunk(2, 1)], &[1]);
        check(&[Ready { rows: 99, ..decode(1) }, chunk(2, 2), decode(3)], &[1, 3]);
    }

    #[test]
    fn prompts_are_read_at_the_pace_they_come() {
        let (mut pace, beside) = (Pace::default(), [decode(0), chunk(1, 32)]);
        assert_eq!(pace.rows(&[chunk(1, 32)], 64), 64, "nobody is held up");
        // A prompt of 8 rows in every other batch: 4 a batch, and a quarter more.
        for batch in 0..4000 {
            pace.ran(batch % 2 * 8);
        }
        assert!((5..=9).contains(&pace.rows(&beside, 64)), "{pace:?}");
        let many: Vec<_> = (1..=20).map(|key| chunk(key, 32)).chain([decode(0)]).collect();
        assert_eq!(pace.rows(&many, 64), 640 / 16, "a backlog is read faster");
        assert_eq!(pace.rows(&many, 30), 30);
    }

    proptest! {
        /// Whatever came before, all that waits is read while nothing comes: a batch reads a chunk at least.
        #[test]
        fn nothing_waits_for_ever(before in prop::collection::vec(0u32..65, 0..400), chunks in prop::collection::vec(1u32..65, 1..60)) {
            let mut pace = Pace::default();
            before.iter().for_each(|rows| pace.ran(*rows));
            let mut waiting: Vec<_> = (1..).zip(&chunks).map(|(key, rows)| chunk(key, *rows)).collect();
            for _ in &chunks {
                let ready: Vec<_> = waiting.iter().copied().chain([decode(0)]).collect();
                let prefill_tokens = pace.rows(&ready, LIMITS.prefill_tokens);
                let ran = plan(ready, Limits { prefill_tokens, ..LIMITS });
                let rows: u32 = waiting.iter().filter(|one| ran.contains(&one.key)).map(|one| one.rows).sum();
                prop_assert!(rows <= LIMITS.prefill_tokens.max(64));
                pace.ran(rows);
                waiting.retain(|one| !ran.contains(&one.key));
            }
            prop_assert!(waiting.is_empty(), "{:?}", waiting);
        }
    }

    #[test]
    fn logits_have_their_own_limit() {
        let many: Vec<_> = (0..10).map(decode).collect();
        check(&many, &[0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
