//! Chooses the spans of the next batch from those that are ready. The choice depends on nothing
//! else.
//!
//! Every sequence that decodes runs in each iteration. Prefill chunks fill a token budget beside
//! them, the sequence that waited longest first. The budget is paced, so that sessions do not run
//! in lockstep. A chunk runs whole or not at all: its end was fixed when its chunk group began. So
//! neither other sessions nor the free budget move the cuts, and a session's results do not depend
//! on them.

/// A sequence whose next span can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadySpan<K> {
    pub key: K,
    /// Rows of the span.
    pub rows: u32,
    /// Whether the sequence decodes: a token was sampled before and another follows.
    pub decodes: bool,
    /// Whether logits of its last row are needed.
    pub samples: bool,
    /// The lower, the longer it waited: when its step arrived or, while it decodes, when it last
    /// ran.
    pub since: u64,
}

/// Limits of one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SchedulerLimits {
    /// Most rows in all.
    pub rows_max: u32,
    /// Most rows whose logits are needed.
    pub logits_max: u32,
    /// Most rows of prefill; one chunk runs even if it is larger.
    pub prefill_tokens: u32,
}

/// Limits the rate of prefill beside sequences that decode to slightly more than the rate at which
/// prompts arrive.
///
/// Replies have similar lengths, so sessions whose prompts run together end together, act in their
/// pages together, and leave the device idle until they return together. Prefilling a burst at
/// the mean rate of prompts spreads it out.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct PrefillPace {
    /// Prompt rows for each batch, as a mean over the last ones.
    mean: f64,
    /// Rows that may run now.
    credit: f64,
}

/// Batches over which the mean is taken: a few hundred last as long as one or two replies.
const REMEMBERED: f64 = 256.0;
/// Factor by which prefill is faster than prompts arrive, so that the backlog shrinks.
const HASTE: f64 = 1.25;
/// Most credit, in means. More would let the next burst through unchanged.
const DEPTH: f64 = 2.0;
/// Batches in which the whole backlog would run, if that is faster.
const BATCHES: f64 = 16.0;

impl PrefillPace {
    /// Most prompt rows of the next batch; `most` if nothing decodes and so nothing is delayed.
    pub(crate) fn rows<K>(&self, ready: &[ReadySpan<K>], most: u32) -> u32 {
        if ready.iter().all(|one| !one.decodes) {
            return most;
        }
        let waiting: u64 = ready.iter().filter(|one| !one.decodes).map(|one| u64::from(one.rows)).sum();
        let hurried = waiting as f64 / BATCHES;
        (self.credit.max(hurried) as u32).min(most)
    }

    /// Records a batch with this many prompt rows beside decode. Unused credit remains for the next
    /// batch, because chunks run whole.
    pub(crate) fn record_batch(&mut self, rows: u32) {
        let rows = f64::from(rows);
        self.mean += (rows - self.mean) / REMEMBERED;
        let earned = (self.credit - rows).max(0.0) + self.mean * HASTE;
        self.credit = earned.min(self.mean * DEPTH);
    }
}

/// Chooses the spans of the next batch, those that decode first. Chooses at least one if its rows
/// fit a batch at all.
pub(crate) fn plan<K: Copy>(mut ready: Vec<ReadySpan<K>>, limits: SchedulerLimits) -> Vec<K> {
    ready.sort_by_key(|ready| (!ready.decodes, ready.since));
    let mut rows = 0;
    let mut logits = 0;
    let mut prefill = 0;
    let mut chosen = Vec::new();
    for next in ready {
        let is_prefill = !next.decodes;
        let over_budget = is_prefill && prefill > 0 && prefill + next.rows > limits.prefill_tokens;
        let samples = u32::from(next.samples);
        if over_budget || rows + next.rows > limits.rows_max || logits + samples > limits.logits_max {
            if is_prefill {
                // The sequence that waited longest goes first, even before a shorter one that would
                // fit; otherwise long prompts starve.
                break;
            }
            continue;
        }
        rows += next.rows;
        logits += samples;
        prefill += if is_prefill { next.rows } else { 0 };
        chosen.push(next.key);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: SchedulerLimits = SchedulerLimits { rows_max: 100, logits_max: 8, prefill_tokens: 64 };

    fn decode(key: u32) -> ReadySpan<u32> {
        ReadySpan { key, rows: 1, decodes: true, samples: true, since: u64::from(key) }
    }

    fn chunk(key: u32, rows: u32) -> ReadySpan<u32> {
        ReadySpan { key, rows, decodes: false, samples: false, since: u64::from(key) }
    }

    #[track_caller]
    fn check(ready: &[ReadySpan<u32>], want: &[u32]) {
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
        check(&[ReadySpan { rows: 99, ..decode(1) }, chunk(2, 2), decode(3)], &[1, 3]);
    }

    #[test]
    fn prompts_are_read_at_the_pace_they_come() {
        let mut pace = PrefillPace::default();
        let beside = [decode(0), chunk(1, 32)];
        assert_eq!(pace.rows(&[chunk(1, 32)], 64), 64, "no session is delayed");
        // A prompt of 8 rows in every second batch: 4 rows a batch, and a quarter more.
        for batch in 0..4000 {
            pace.record_batch(batch % 2 * 8);
        }
        assert!((5..=9).contains(&pace.rows(&beside, 64)), "{pace:?}");
        let many: Vec<_> = (1..=20).map(|key| chunk(key, 32)).chain([decode(0)]).collect();
        assert_eq!(pace.rows(&many, 64), 640 / 16, "a backlog runs faster");
        assert_eq!(pace.rows(&many, 30), 30);
    }

    proptest! {
        /// Whatever came before, a backlog is prefilled while nothing arrives: each batch runs at
        /// least one chunk.
        #[test]
        fn no_ready_span_waits_forever(before in prop::collection::vec(0u32..65, 0..400), chunks in prop::collection::vec(1u32..65, 1..60)) {
            let mut pace = PrefillPace::default();
            before.iter().for_each(|rows| pace.record_batch(*rows));
            let mut waiting: Vec<_> = (1..).zip(&chunks).map(|(key, rows)| chunk(key, *rows)).collect();
            for _ in &chunks {
                let ready: Vec<_> = waiting.iter().copied().chain([decode(0)]).collect();
                let prefill_tokens = pace.rows(&ready, LIMITS.prefill_tokens);
                let ran = plan(ready, SchedulerLimits { prefill_tokens, ..LIMITS });
                let rows: u32 = waiting.iter().filter(|one| ran.contains(&one.key)).map(|one| one.rows).sum();
                prop_assert!(rows <= LIMITS.prefill_tokens.max(64));
                pace.record_batch(rows);
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
