//! Samples a token from logits: temperature, allowed ids, top-k, top-p, min-p, and both
//! log-probabilities.
//!
//! Three distributions, each a function of the logits `[V]` alone:
//!
//! 1. *whole*: softmax(logits / T) over the vocabulary; for greedy sampling (T = 0) with T = 1.
//!    `logprob` comes from it.
//! 2. *left*: the ids that pass the filters, in this order: temperature → grammar → top-k → top-p →
//!    min-p (the order of Hugging Face's logits warpers). Each filter sees the distribution
//!    renormalised over the ids that the previous one left. All of them cut in one total order, the
//!    higher logit first and of equal ones the lower id first, so the result does not depend on how
//!    it is computed. min-p keeps equal ones together.
//! 3. *sampled from*: `left`, renormalised; for greedy sampling all of it on the likeliest id of
//!    `left`, the lowest of equal ones. `sampled_logprob`, `kept_count`, `kept_ids` and `entropy`
//!    describe it, so greedy sampling gives 0, 1, that id and 0: `sampled_logprob` is always
//!    log-softmax over the kept ids, and a record can be recomputed without knowing how it was
//!    sampled.
//!
//! A logit of minus infinity is an id of probability 0: never kept, never sampled. NaN or plus
//! infinity anywhere makes the row invalid.
//!
//! Lower bound: a row of 131,072 logits is 512 KiB; it is read twice (maximum, sum) and its weights
//! are written and read once, all in the second-level cache. So exponentials are the main cost:
//! about 20 plain operations each, in lanes that the compiler vectorises.

mod allowed;
#[cfg(test)]
mod tests;

pub use allowed::AllowedTokens;

/// Parameters for sampling one token.
#[derive(Debug, Clone, Copy)]
pub struct SampleRequest<'a> {
    /// Row of the newest batch, counted over the rows whose logits are available.
    pub row: u32,
    /// 0 takes the likeliest allowed id.
    pub temperature: f32,
    /// Keeps the k likeliest; 0 keeps all.
    pub top_k: u32,
    /// Keeps the likeliest ids until their sum reaches p, at least one; 1 keeps all.
    pub top_p: f32,
    /// Keeps ids whose probability is at least this share of the likeliest one's; 0 keeps all.
    pub min_p: f32,
    /// Ids that the grammar allows; `None`: all.
    pub allowed: Option<&'a AllowedTokens>,
    /// Uniform number in [0, 1) that selects the token.
    pub uniform: f64,
}

/// Result of sampling one token.
#[derive(Debug, Clone, PartialEq)]
pub enum SampleOutcome {
    Token(SampledToken),
    /// The row has a NaN, plus infinity or no finite allowed logit: its session cannot continue.
    NotFinite,
}

/// A token and its probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct SampledToken {
    pub id: u32,
    /// log-softmax(logits / T) over the whole vocabulary; T = 1 when greedy. Finite and at most 0.
    pub logprob: f32,
    /// log-probability after the grammar, top-k, top-p and min-p; 0 when greedy. Finite and at most
    /// 0.
    pub sampled_logprob: f32,
    /// Number of ids that were left; `None` when nothing was cut, 1 when greedy.
    pub kept_count: Option<u32>,
    /// These ids in ascending order, if something was cut and at most `KEPT_MAX` were left.
    pub kept_ids: Vec<u32>,
    /// Entropy in nats of the distribution sampled from: after all filters, 0 when greedy.
    pub entropy: f32,
}

/// How likely an id is, and which ids are the likeliest: of softmax(logits), whatever distribution
/// was sampled from.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenRanking {
    /// log-softmax(logits) of the id. Finite and at most 0.
    pub logprob: f32,
    /// The likeliest ids and their log-probabilities, the likeliest first and of equal ones the
    /// lower id. Ids of probability 0 are not included.
    pub likeliest: Vec<(u32, f32)>,
}

/// Longest list of kept ids that is recorded.
pub const KEPT_MAX: usize = 512;

/// Numbers summed in parallel. Fixed, so that a sum is the same on every machine.
const LANES: usize = 16;
/// Weights summed in float32 before they are added to a float64: 16 additions a lane keep the
/// relative error of the sum within 1e-6.
const BLOCK: usize = 16 * LANES;

/// Samples tokens. Holds the scratch memory (20 bytes an id at most), so that sampling several rows
/// allocates only the results.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Ids that are left, ascending; unused while nothing is cut.
    ids: Vec<u32>,
    /// Their logits, then their weights e^((logit - highest) / T), padded to whole lanes with
    /// weights of 0.
    weights: Vec<f32>,
    /// Scratch for weights while the logits are still needed.
    spare: Vec<f32>,
    /// Sum of each block of weights.
    sums: Vec<f64>,
    /// Keys of a cut's candidates in the total order.
    order: Vec<u64>,
}

/// Samples a token from one row. For several rows use one `Sampler`.
pub fn sample_token(logits: &[f32], pick: &SampleRequest<'_>) -> SampleOutcome {
    Sampler::default().sample(logits, pick)
}

impl Sampler {
    /// Samples a token from logits `[V]`. Ids of `pick.allowed` that are not below V are ignored.
    pub fn sample(&mut self, logits: &[f32], pick: &SampleRequest<'_>) -> SampleOutcome {
        let Some(highest) = highest(logits) else { return SampleOutcome::NotFinite };
        let sampled = if pick.temperature > 0.0 {
            self.sample_at_temperature(logits, highest, pick)
        } else {
            self.sample_greedy(logits, highest, pick)
        };
        sampled.map_or(SampleOutcome::NotFinite, SampleOutcome::Token)
    }

    /// Ranks the `count` likeliest ids of logits `[V]`, and gives the log-probability of `id`,
    /// which was sampled from them. `None` for logits that nothing can be sampled from.
    pub fn rank(&mut self, logits: &[f32], id: u32, count: usize) -> Option<TokenRanking> {
        let whole = self.weigh_all(logits, highest(logits)?, 1.0);
        let logprob = whole.logprob(*logits.get(id as usize).filter(|logit| is_finite(**logit))?);
        self.order.clear();
        let finite = logits.iter().zip(0..).filter(|(logit, _)| is_finite(**logit));
        self.order.extend(finite.map(|(logit, id)| order_key(*logit, id)));
        if count < self.order.len() {
            self.order.select_nth_unstable(count);
            self.order.truncate(count);
        }
        self.order.sort_unstable();
        let likeliest = self.order.iter().map(|at| (*at as u32, whole.logprob(logit_at(*at)))).collect();
        Some(TokenRanking { logprob, likeliest })
    }

    fn sample_greedy(
        &mut self,
        logits: &[f32],
        highest: f32,
        pick: &SampleRequest<'_>,
    ) -> Option<SampledToken> {
        let id = match pick.allowed {
            None => first_of(logits, highest)?,
            Some(allowed) => likeliest(logits, allowed)?,
        };
        let whole = self.weigh_all(logits, highest, 1.0);
        Some(SampledToken {
            id,
            logprob: whole.logprob(logits[id as usize]),
            sampled_logprob: 0.0,
            kept_count: Some(1),
            kept_ids: vec![id],
            entropy: 0.0,
        })
    }

    fn sample_at_temperature(
        &mut self,
        logits: &[f32],
        highest: f32,
        pick: &SampleRequest<'_>,
    ) -> Option<SampledToken> {
        let whole = self.weigh_all(logits, highest, pick.temperature);
        if pick.keeps_all() {
            let id = self.invert(pick.uniform)? as u32;
            let logprob = whole.logprob(logits[id as usize]);
            let entropy = whole.entropy();
            let kept_count = None;
            let kept_ids = Vec::new();
            return Some(SampledToken {
                id,
                logprob,
                sampled_logprob: logprob,
                kept_count,
                kept_ids,
                entropy,
            });
        }
        self.cut(logits, pick)?;
        let left = self.weigh_left(pick.temperature)?;
        let id = *self.ids.get(self.invert(pick.uniform)?)?;
        let cut = self.ids.len() < logits.iter().filter(|logit| is_finite(**logit)).count();
        Some(SampledToken {
            id,
            logprob: whole.logprob(logits[id as usize]),
            sampled_logprob: left.logprob(logits[id as usize]),
            kept_count: cut.then_some(self.ids.len() as u32),
            kept_ids: if cut && self.ids.len() <= KEPT_MAX { self.ids.clone() } else { Vec::new() },
            entropy: left.entropy(),
        })
    }

    /// Computes the weights of the whole vocabulary.
    fn weigh_all(&mut self, logits: &[f32], highest: f32, temperature: f32) -> WeightSums {
        self.weights.clear();
        self.weights.extend_from_slice(logits);
        self.weigh(highest, temperature)
    }

    /// Computes the weights of the logits that are left; `None` if there are none.
    fn weigh_left(&mut self, temperature: f32) -> Option<WeightSums> {
        let highest = highest(&self.weights)?;
        Some(self.weigh(highest, temperature))
    }

    /// Turns logits into weights and sums them, block by block.
    fn weigh(&mut self, highest: f32, temperature: f32) -> WeightSums {
        self.weights.resize(self.weights.len().next_multiple_of(LANES), f32::NEG_INFINITY);
        self.sums.clear();
        let mut mass = WeightSums { highest, temperature, total: 0.0, lift: 0.0 };
        for block in self.weights.chunks_mut(BLOCK) {
            let [sum, lift] = weigh_block(block, highest, temperature);
            self.sums.push(sum);
            mass.total += sum;
            mass.lift += lift;
        }
        mass
    }

    /// Leaves in `ids` and `weights` the ids and logits that pass every filter; `None` if none
    /// does.
    fn cut(&mut self, logits: &[f32], pick: &SampleRequest<'_>) -> Option<()> {
        self.take_allowed(logits, pick.allowed);
        if pick.top_k > 0 && (pick.top_k as usize) < self.ids.len() {
            self.keep_top_k(pick.top_k as usize);
        }
        if pick.top_p < 1.0 {
            self.keep_top_p(pick.top_p, pick.temperature)?;
        }
        if pick.min_p > 0.0 {
            self.keep_min_p(pick.min_p, pick.temperature)?;
        }
        Some(())
    }

    /// Starts a cut with the allowed ids that have finite logits.
    fn take_allowed(&mut self, logits: &[f32], allowed: Option<&AllowedTokens>) {
        self.ids.clear();
        self.weights.clear();
        let mut take = |id: u32| {
            if let Some(&logit) = logits.get(id as usize).filter(|logit| is_finite(**logit)) {
                self.ids.push(id);
                self.weights.push(logit);
            }
        };
        match allowed {
            Some(allowed) => allowed.iter().for_each(&mut take),
            None => (0..logits.len() as u32).for_each(&mut take),
        }
    }

    /// top-k: `k` is below the number of ids left.
    fn keep_top_k(&mut self, k: usize) {
        self.order.clear();
        self.order.extend(self.weights.iter().zip(&self.ids).map(|(logit, id)| order_key(*logit, *id)));
        let (_, last, _) = self.order.select_nth_unstable(k - 1);
        let last = *last;
        self.keep_to(last);
    }

    fn keep_top_p(&mut self, p: f32, temperature: f32) -> Option<()> {
        let highest = highest(&self.weights)?;
        let logits = std::mem::replace(&mut self.weights, std::mem::take(&mut self.spare));
        let mass = self.weigh_all(&logits, highest, temperature);
        let target = f64::from(p) * mass.total;
        // n ids below (1 - p) / n of the whole together weigh less than 1 - p, so the cut is above
        // them. Half of that leaves a margin for rounding.
        let slight = 0.5 * (1.0 - f64::from(p)) * mass.total / self.ids.len() as f64;
        self.order.clear();
        for ((logit, id), weight) in logits.iter().zip(&self.ids).zip(&self.weights) {
            if f64::from(*weight) >= slight {
                self.order.push(order_key(*logit, *id));
            }
        }
        let weight = |key: u64| f64::from(weight(logit_at(key), highest, temperature));
        let last = last_to_reach(&mut self.order, target, weight)?;
        self.spare = std::mem::replace(&mut self.weights, logits);
        self.keep_to(last);
        Some(())
    }

    /// min-p. A share of the likeliest corresponds to a distance from the highest logit: w >= p
    /// w_max if (logit - highest) / T >= ln p.
    fn keep_min_p(&mut self, p: f32, temperature: f32) -> Option<()> {
        let highest = f64::from(highest(&self.weights)?);
        let least = f64::from(p).ln();
        self.keep_if(|logit, _| (f64::from(logit) - highest) / f64::from(temperature) >= least);
        Some(())
    }

    /// Keeps the ids up to `last` in the total order.
    fn keep_to(&mut self, last: u64) {
        self.keep_if(|logit, id| order_key(logit, id) <= last);
    }

    fn keep_if(&mut self, keep: impl Fn(f32, u32) -> bool) {
        let mut kept = 0;
        for index in 0..self.ids.len() {
            let id = self.ids[index];
            let logit = self.weights[index];
            if keep(logit, id) {
                (self.ids[kept], self.weights[kept]) = (id, logit);
                kept += 1;
            }
        }
        self.ids.truncate(kept);
        self.weights.truncate(kept);
    }

    /// The index at which the running sum of the weights, in order, first exceeds `uniform` of
    /// their total.
    fn invert(&self, uniform: f64) -> Option<usize> {
        let total: f64 = self.sums.iter().sum();
        let block = first_beyond(self.sums.iter().copied(), uniform * total)?;
        let weights = self.weights.chunks(BLOCK).nth(block.index)?;
        // The block's sum was computed in lanes; the search inside the block uses its own sum, so
        // that the last weight keeps its share.
        let within: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
        let share = ((uniform * total - block.before) / self.sums[block.index]).clamp(0.0, 1.0);
        let found = first_beyond(weights.iter().map(|weight| f64::from(*weight)), share * within)?;
        Some(block.index * BLOCK + found.index)
    }
}

impl SampleRequest<'_> {
    /// Whether there is no filter.
    fn keeps_all(&self) -> bool {
        self.allowed.is_none() && self.top_k == 0 && self.top_p >= 1.0 && self.min_p <= 0.0
    }
}

/// Sums over weights e^x, x = (logit - highest) / T.
#[derive(Debug, Clone, Copy)]
struct WeightSums {
    highest: f32,
    temperature: f32,
    total: f64,
    /// Sum of x e^x.
    lift: f64,
}

impl WeightSums {
    /// ln p = x - ln(sum of e^x), in float64 from the logit itself. If T is so small that the
    /// result leaves the range of float32, returns the lowest float32.
    fn logprob(&self, logit: f32) -> f32 {
        let x = (f64::from(logit) - f64::from(self.highest)) / f64::from(self.temperature);
        ((x - self.total.ln()).min(0.0) as f32).max(f32::MIN)
    }

    /// -sum of p ln p, with ln p as above.
    fn entropy(&self) -> f32 {
        (self.total.ln() - self.lift / self.total).max(0.0) as f32
    }
}

/// The point where a running sum exceeds a target.
struct SumCrossing {
    index: usize,
    /// The sum before it.
    before: f64,
}

/// The first index where the running sum exceeds the target; its weight is therefore not zero. If
/// rounding keeps the sum from exceeding it, the last index with a weight above zero.
fn first_beyond(weights: impl Iterator<Item = f64>, target: f64) -> Option<SumCrossing> {
    let mut before = 0.0;
    let mut last = None;
    for (index, weight) in weights.enumerate() {
        if weight > 0.0 {
            last = Some(SumCrossing { index, before });
        }
        if before + weight > target {
            break;
        }
        before += weight;
    }
    last
}

/// The order key at which the weights, in ascending order of keys, first sum to the target; the
/// last key if they never do. Halves the candidates until one is left, so it takes linear time
/// however flat the distribution is.
fn last_to_reach(keys: &mut [u64], target: f64, weight: impl Fn(u64) -> f64) -> Option<u64> {
    let mut before = 0.0;
    let mut rest = keys;
    while rest.len() > 1 {
        let half = rest.len() / 2;
        rest.select_nth_unstable(half);
        let (low, high) = rest.split_at_mut(half);
        let sum: f64 = low.iter().map(|key| weight(*key)).sum();
        if before + sum >= target {
            rest = low;
        } else {
            before += sum;
            rest = high;
        }
    }
    rest.first().copied()
}

/// The highest logit; `None` if it is not finite or a logit is NaN.
fn highest(logits: &[f32]) -> Option<f32> {
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut spoilt = [false; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = if chunk[lane] > lanes[lane] { chunk[lane] } else { lanes[lane] };
            spoilt[lane] |= chunk[lane].is_nan();
        }
    }
    let spoilt = spoilt.contains(&true) || rest.iter().any(|logit| logit.is_nan());
    let highest = lanes.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, f32::max);
    (!spoilt && highest.is_finite()).then_some(highest)
}

/// The lowest id that has this logit.
fn first_of(logits: &[f32], logit: f32) -> Option<u32> {
    logits.iter().position(|other| *other == logit).map(|index| index as u32)
}

/// The likeliest allowed id, the lowest of equal ones; `None` if none has a finite logit.
fn likeliest(logits: &[f32], allowed: &AllowedTokens) -> Option<u32> {
    let mut best = (None, f32::NEG_INFINITY);
    for id in allowed.iter() {
        if let Some(&logit) = logits.get(id as usize).filter(|logit| **logit > best.1) {
            best = (Some(id), logit);
        }
    }
    best.0
}

/// Turns a block of logits into weights; returns its sums of e^x and x e^x.
fn weigh_block(block: &mut [f32], highest: f32, temperature: f32) -> [f64; 2] {
    let mut sums = [0.0f32; LANES];
    let mut lifts = [0.0f32; LANES];
    let (chunks, _) = block.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let x = ((chunk[lane] - highest) / temperature).max(LOWEST);
            let weight = exp(x);
            chunk[lane] = weight;
            sums[lane] += weight;
            lifts[lane] += weight * x;
        }
    }
    [sums, lifts].map(|lanes| lanes.iter().map(|lane| f64::from(*lane)).sum())
}

/// One weight, bit for bit as `weigh_block` computes it.
fn weight(logit: f32, highest: f32, temperature: f32) -> f32 {
    exp(((logit - highest) / temperature).max(LOWEST))
}

/// Below this e^x is taken as 0: e^-87 = 1.6e-38 is near the smallest normal float32.
const LOWEST: f32 = -87.0;

/// e^x for `LOWEST` <= x <= 0, 0 at `LOWEST` itself, 1 at 0; relative error within 2e-7. With x = n
/// ln 2 + r and |r| <= 0.35, e^r is its Taylor series up to r^7; the next term is 0.35^8 / 8! =
/// 6e-9. It has no branch, no call and no fused operation: the compiler can vectorise it, and it
/// gives the same bits on every machine.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Adding 1.5 x 2^23 rounds to a whole number and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts; the first has so few bits that n times it is exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (x - n * LN_2[0]) - n * LN_2[1];
    let mut series = 1.0 / 5040.0;
    for factor in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = series * r + factor;
    }
    let power = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    if x > LOWEST { series * power } else { 0.0 }
}

/// Key in the total order: higher logits first, of equal ones the lower id. The bits of a float32
/// sort as an integer once those of negative numbers are inverted; -0 becomes 0, its equal.
fn order_key(logit: f32, id: u32) -> u64 {
    let bits = (logit + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!ascending) << 32 | u64::from(id)
}

/// The logit of an order key.
fn logit_at(key: u64) -> f32 {
    let ascending = !((key >> 32) as u32);
    f32::from_bits(if ascending >> 31 == 1 { ascending & !(1 << 31) } else { !ascending })
}

/// Whether an id of this logit can be sampled; NaN and plus infinity were refused before.
fn is_finite(logit: f32) -> bool {
    logit > f32::NEG_INFINITY
}
