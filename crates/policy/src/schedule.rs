//! Which spans run next: a function of what is ready, nothing else.
//!
//! Every sequence that decodes runs in each iteration; prefill chunks fill what a token budget leaves, the sequence that waited longest
//! first. A chunk is run whole or not at all: where it is cut was fixed from where its leg began, so neighbours and the free budget
//! cannot move the cuts, and a session's numbers stay its own.

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
    fn logits_have_their_own_limit() {
        let many: Vec<_> = (0..10).map(decode).collect();
        check(&many, &[0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
