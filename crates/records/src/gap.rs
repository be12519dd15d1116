//! The gap between recorded log-probs and those of the prefill path, and its storage in the footer
//! of a file of steps.

use serde::{Deserialize, Serialize};

use crate::schema::key;

/// Most gaps in a footer: 10,000 of some 12 bytes are 120 kB. Beyond that every second one is
/// dropped, repeatedly.
const GAPS_MAX: usize = 10_000;

/// Distribution of log-prob gaps, in nats: recorded minus recomputed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LogprobGap {
    /// Number of tokens compared.
    pub tokens: usize,
    /// Mean of the absolute gaps.
    pub mean_abs: f64,
    /// Median of the absolute gaps.
    pub p50: f64,
    /// 99th percentile of the absolute gaps.
    pub p99: f64,
    /// Largest absolute gap, in nats.
    pub max: f64,
}

impl LogprobGap {
    /// The distribution of signed gaps; `None` without any. Percentiles are values that occur: the
    /// smallest with at least that share at or below it.
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

/// The footer's value under `furrow.prefill_gap`: the sum, and gaps for percentiles of merged
/// files, each of which represents an equal number of tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct GapFooter {
    #[serde(flatten)]
    gap: LogprobGap,
    gaps: Vec<f64>,
}

/// The gaps of a file being written, for its footer.
#[derive(Debug, Default)]
pub(crate) struct FooterGaps {
    own: Vec<f64>,
    /// Footers of the files it is merged from.
    parts: Vec<GapFooter>,
}

impl FooterGaps {
    /// Adds the gaps of tokens in its rows.
    pub(crate) fn extend(&mut self, gaps: impl IntoIterator<Item = f64>) {
        self.own.extend(gaps);
    }

    /// Adds the footer value of a file whose rows are copied into it; an unreadable one adds
    /// nothing.
    pub(crate) fn add_footer(&mut self, value: &str) {
        self.parts.extend(serde_json::from_str::<GapFooter>(value).ok());
    }

    /// Name and value for a footer; `None` where no token was rescored.
    pub(crate) fn footer(&self) -> Option<(&'static str, String)> {
        let mut parts = self.parts.clone();
        parts.extend(GapFooter::of(&self.own));
        let footer = GapFooter::merged(parts)?;
        // Serializing a struct of numbers cannot fail.
        Some((key::PREFILL_GAP, serde_json::to_string(&footer).unwrap_or_default()))
    }
}

/// Gaps of several files as if they were one. Tokens, mean and maximum are exact; percentiles are
/// those of the kept gaps.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GapSum(Option<GapFooter>);

impl GapSum {
    /// Adds the footer value of a file; an unreadable one adds nothing.
    pub(crate) fn add_footer(&mut self, value: &str) {
        let parts = self.0.take().into_iter().chain(serde_json::from_str::<GapFooter>(value));
        self.0 = GapFooter::merged(parts.collect());
    }

    /// The distribution over all files; `None` where no token was rescored.
    pub fn gap(&self) -> Option<LogprobGap> {
        self.0.as_ref().map(|footer| footer.gap)
    }
}

impl GapFooter {
    fn of(gaps: &[f64]) -> Option<Self> {
        let mut kept = gaps.to_vec();
        while kept.len() > GAPS_MAX {
            let mut is_kept = false;
            kept.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
        }
        Some(Self { gap: LogprobGap::of(gaps)?, gaps: kept })
    }

    /// How many tokens each of its gaps represents.
    fn weight(&self) -> f64 {
        self.gap.tokens as f64 / self.gaps.len() as f64
    }

    /// Tokens, mean and maximum are exact. Percentiles are those of the kept gaps, each weighted by
    /// the tokens it represents: exact as long as all were kept.
    fn merged(mut parts: Vec<Self>) -> Option<Self> {
        parts.retain(|part| part.gap.tokens > 0 && !part.gaps.is_empty());
        if parts.len() < 2 {
            return parts.pop();
        }
        let tokens = parts.iter().fold(0_usize, |sum, part| sum.saturating_add(part.gap.tokens));
        let mean = |part: &Self| part.gap.mean_abs * (part.gap.tokens as f64 / tokens as f64);
        let weighed = |part: &Self| {
            let weight = part.weight();
            part.gaps.iter().map(|gap| (gap.abs(), weight)).collect::<Vec<_>>()
        };
        let mut sizes: Vec<(f64, f64)> = parts.iter().flat_map(weighed).collect();
        sizes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let at = |share: f64| {
            let mut below = 0.0;
            let reaches = |(_, weight): &&(f64, f64)| {
                below += weight;
                below >= share * tokens as f64
            };
            sizes.iter().find(reaches).or(sizes.last()).map(|(size, _)| *size)
        };
        let gap = LogprobGap {
            tokens,
            mean_abs: parts.iter().map(mean).sum(),
            p50: at(0.5)?,
            p99: at(0.99)?,
            max: parts.iter().map(|part| part.gap.max).fold(0.0, f64::max),
        };
        // Thinned to one weight, the largest or the one the bound requires: the next merge treats
        // all gaps of a file as equal.
        let heaviest = parts.iter().map(Self::weight).fold(tokens as f64 / GAPS_MAX as f64, f64::max);
        let thinned = |part: &Self| {
            let kept = (part.gap.tokens as f64 / heaviest) as usize;
            let middle = |at: usize| (2 * at + 1) * part.gaps.len() / (2 * kept);
            (0..kept).filter_map(|at| part.gaps.get(middle(at)).copied()).collect::<Vec<_>>()
        };
        let mut gaps: Vec<f64> = parts.iter().flat_map(thinned).collect();
        if gaps.is_empty() {
            gaps.push(gap.p50);
        }
        Some(Self { gap, gaps })
    }
}

/// The gap in a footer's value.
pub(crate) fn gap(value: &str) -> Option<LogprobGap> {
    serde_json::from_str::<GapFooter>(value).ok().map(|footer| footer.gap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occur() {
        assert_eq!(LogprobGap::of(&[]), None);
        let signed = |gap: i32| if gap % 2 == 0 { f64::from(gap) } else { -f64::from(gap) };
        let gaps: Vec<f64> = (1..=200).map(signed).collect();
        let want = LogprobGap { tokens: 200, mean_abs: 100.5, p50: 100.0, p99: 198.0, max: 200.0 };
        assert_eq!(LogprobGap::of(&gaps), Some(want));
        let one = LogprobGap { tokens: 1, mean_abs: 0.25, p50: 0.25, p99: 0.25, max: 0.25 };
        assert_eq!(LogprobGap::of(&[-0.25]), Some(one));
    }

    fn footer(gaps: &[f64]) -> Option<(&'static str, String)> {
        let mut file = FooterGaps::default();
        file.extend(gaps.iter().copied());
        file.footer()
    }

    fn kept(value: &str) -> Vec<f64> {
        serde_json::from_str::<GapFooter>(value).map(|footer| footer.gaps).unwrap_or_default()
    }

    fn merged(values: &[&str]) -> String {
        let mut file = FooterGaps::default();
        values.iter().for_each(|value| file.add_footer(value));
        file.footer().unwrap().1
    }

    #[test]
    fn a_footer_is_read_back_and_has_a_bound() {
        assert_eq!(footer(&[]), None);
        let (name, value) = footer(&[0.5, -0.25]).unwrap();
        assert_eq!(name, "furrow.prefill_gap");
        assert_eq!((kept(&value), gap(&value)), (vec![0.5, -0.25], LogprobGap::of(&[0.5, -0.25])));
        let many = vec![0.125; 50_000];
        let (_, value) = footer(&many).unwrap();
        assert_eq!((gap(&value).unwrap().tokens, kept(&value).len()), (50_000, 6_250));
        for torn in ["", "{}", "{\"tokens\":1}"] {
            assert_eq!((gap(torn), kept(torn).len()), (None, 0));
            let mut file = FooterGaps::default();
            file.add_footer(torn);
            assert_eq!(file.footer(), None);
        }
    }

    #[test]
    fn small_files_merge_as_if_they_had_been_one() {
        let all: Vec<f64> = (1..=200).map(f64::from).collect();
        let parts = [&all[..7], &all[7..100], &all[100..]].map(|part| footer(part).unwrap().1);
        let value = merged(&[&parts[0], "torn", &parts[1], &parts[2]]);
        let want = LogprobGap::of(&all).unwrap();
        let got = gap(&value).unwrap();
        assert!((got.mean_abs - want.mean_abs).abs() < 1e-9, "{got:?}");
        assert_eq!(LogprobGap { mean_abs: want.mean_abs, ..got }, want);
        assert_eq!(kept(&value), all);
        let mut sum = GapSum::default();
        assert_eq!(sum.gap(), None);
        [&*parts[2], "torn", &parts[0], &parts[1]].into_iter().for_each(|part| sum.add_footer(part));
        let summed = sum.gap().unwrap();
        assert!((summed.mean_abs - want.mean_abs).abs() < 1e-9, "{summed:?}");
        assert_eq!(LogprobGap { mean_abs: want.mean_abs, ..summed }, want);
        assert_eq!(gap(&merged(&[&parts[1]])), gap(&parts[1]), "a single part stays unchanged");
    }

    /// More tokens than a footer keeps: merged repeatedly, in every order of sizes.
    #[test]
    fn merging_loses_no_token_and_no_maximum() {
        let spread = |from: i32, to: i32| (from..to).map(|at| f64::from(at) / 1000.0).collect::<Vec<_>>();
        let mut large = spread(0, 40_000);
        // Every second gap is dropped: this is one of those.
        large[101] = 90.0;
        let small = spread(40_000, 42_000);
        let middle = spread(42_000, 54_000);
        let all: Vec<f64> = [&large[..], &small, &middle].concat();
        let want = LogprobGap::of(&all).unwrap();
        let [large, small, middle] = [large, small, middle].map(|gaps| footer(&gaps).unwrap().1);
        let table = [
            merged(&[&large, &small, &middle]),
            merged(&[&merged(&[&large, &small]), &middle]),
            merged(&[&small, &merged(&[&middle, &large])]),
        ];
        for value in table {
            let got = gap(&value).unwrap();
            assert_eq!((got.tokens, got.max), (54_000, 90.0));
            assert!((got.mean_abs / want.mean_abs - 1.0).abs() < 1e-9, "{got:?} {want:?}");
            let near = |got: f64, want: f64| (got - want).abs() < 0.1;
            assert!(near(got.p50, want.p50) && near(got.p99, want.p99), "{got:?} {want:?}");
            assert!((1..=GAPS_MAX).contains(&kept(&value).len()), "{}", kept(&value).len());
        }
    }
}
