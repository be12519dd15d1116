//! How far recorded log-probs lie from those of the prefill path, and where a file of steps keeps that: in its footer.

use serde::{Deserialize, Serialize};

use crate::schema::key;

/// Gaps a footer holds at most: 10,000 of some 12 bytes are 120 kB. Beyond that every second one is left out, again and again.
const GAPS_MAX: usize = 10_000;

/// How far log-probs lie apart, in nats: recorded minus computed again.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// Tokens compared.
    pub tokens: usize,
    /// Mean of the absolute gaps.
    pub mean_abs: f64,
    /// Half of the absolute gaps are at most this.
    pub p50: f64,
    /// 99 in 100 are.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Gap {
    /// Of signed gaps; `None` of none. Percentiles are values that occur: the smallest with at least that share at or below it.
    pub fn of(gaps: &[f64]) -> Option<Self> {
        let mut sizes: Vec<f64> = gaps.iter().map(|gap| gap.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (share * sizes.len() as f64).ceil() as usize;
            sizes.get(rank.saturating_sub(1)).copied()
        };
        Some(Self {
            tokens: sizes.len(),
            mean_abs: sizes.iter().sum::<f64>() / sizes.len() as f64,
            p50: at(0.5)?,
            p99: at(0.99)?,
            max: *sizes.last()?,
        })
    }
}

/// What a footer says under `furrow.prefill_gap`: the sum, and the gaps it is of, so that merged files add up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Footer {
    #[serde(flatten)]
    gap: Gap,
    gaps: Vec<f64>,
}

/// Name and value for a footer; `None` where nothing was scored again.
pub(crate) fn footer(gaps: &[f64]) -> Option<(&'static str, String)> {
    let mut kept = gaps.to_vec();
    while kept.len() > GAPS_MAX {
        let mut is_kept = false;
        kept.retain(|_| {
            is_kept = !is_kept;
            is_kept
        });
    }
    let footer = Footer { gap: Gap::of(gaps)?, gaps: kept };
    // Numbers of a struct of numbers cannot fail to be written.
    Some((key::PREFILL_GAP, serde_json::to_string(&footer).unwrap_or_default()))
}

/// The gaps a footer's value holds; none of a value that cannot be read.
pub(crate) fn gaps(value: &str) -> Vec<f64> {
    serde_json::from_str::<Footer>(value).map(|footer| footer.gaps).unwrap_or_default()
}

/// What a footer's value says.
pub(crate) fn gap(value: &str) -> Option<Gap> {
    serde_json::from_str::<Footer>(value).ok().map(|footer| footer.gap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occur() {
        assert_eq!(Gap::of(&[]), None);
        let signed = |gap: i32| if gap % 2 == 0 { f64::from(gap) } else { -f64::from(gap) };
        let gaps: Vec<f64> = (1..=200).map(signed).collect();
        let want = Gap { tokens: 200, mean_abs: 100.5, p50: 100.0, p99: 198.0, max: 200.0 };
        assert_eq!(Gap::of(&gaps), Some(want));
        let one = Gap { tokens: 1, mean_abs: 0.25, p50: 0.25, p99: 0.25, max: 0.25 };
        assert_eq!(Gap::of(&[-0.25]), Some(one));
    }

    #[test]
    fn a_footer_is_read_back_and_has_a_bound() {
        assert_eq!(footer(&[]), None);
        let (name, value) = footer(&[0.5, -0.25]).unwrap();
        assert_eq!(name, "furrow.prefill_gap");
        assert_eq!((gaps(&value), gap(&value)), (vec![0.5, -0.25], Gap::of(&[0.5, -0.25])));
        let many = vec![0.125; 50_000];
        let (_, value) = footer(&many).unwrap();
        assert_eq!((gap(&value).unwrap().tokens, gaps(&value).len()), (50_000, 6_250));
        for torn in ["", "{}", "{\"tokens\":1}"] {
            assert_eq!((gap(torn), gaps(torn).len()), (None, 0));
        }
    }
}
