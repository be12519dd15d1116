//! Drawing a token from logits: temperature, allowed ids, top-k, top-p, min-p, and both log-probabilities.
//!
//! Three distributions, each a function of the logits `[V]` alone:
//!
//! 1. *whole*: softmax(logits / T) over the vocabulary; greedy (T = 0) takes T = 1 here. `logprob` is read from it.
//! 2. *left*: what the filters leave, in this order: temperature → grammar → top-k → top-p → min-p (the order of Hugging Face's logits
//!    warpers). Each sees the distribution renormalised over what the one before it left. All of them cut in one total order, the higher
//!    logit first and of equal ones the lower id first, so what is left does not depend on how it was found. min-p keeps equals together.
//! 3. *drawn from*: `left`, renormalised; for greedy all of it on the likeliest id of `left`, the lowest of equals. `sampled_logprob`,
//!    `kept_count`, `kept_ids` and `entropy` are its, so greedy gives 0, 1, that id and 0: `sampled_logprob` is always log-softmax over the
//!    kept ids, and a record can be recomputed without knowing how it was sampled.
//!
//! A logit of minus infinity is an id of probability 0: never kept, never drawn. NaN or plus infinity anywhere spoils the row.
//!
//! Floor: a row of 131,072 logits is 512 KiB; it is read twice (maximum, sum) and its weights are written and read once, all from the
//! second-level cache, so exponentials are what it costs: about 20 plain operations each, in lanes the compiler vectorises.

mod allowed;
#[cfg(test)]
mod tests;

pub use allowed::Allowed;

/// One draw.
#[derive(Debug, Clone, Copy)]
pub struct Pick<'a> {
    /// Wanted row of the newest batch.
    pub row: u32,
    /// 0 takes the likeliest allowed id.
    pub temperature: f32,
    /// Keeps the k likeliest; 0 keeps all.
    pub top_k: u32,
    /// Keeps the likeliest whose sum reaches p, at least one; 1 keeps all.
    pub top_p: f32,
    /// Keeps those at least so likely as a share of the likeliest; 0 keeps all.
    pub min_p: f32,
    /// What the grammar allows; `None`: everything.
    pub allowed: Option<&'a Allowed>,
    /// Uniform number in [0, 1) that decides.
    pub uniform: f64,
}

/// What a draw gave.
#[derive(Debug, Clone, PartialEq)]
pub enum Picked {
    /// A token.
    Token(Token),
    /// The row held a NaN, plus infinity or no finite allowed logit: its session cannot go on.
    NotFinite,
}

/// A token and its probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// The id.
    pub id: u32,
    /// log-softmax(logits / T) over the whole vocabulary; T = 1 when greedy. Finite and at most 0.
    pub logprob: f32,
    /// The same after the grammar, top-k, top-p and min-p; 0 when greedy. Finite and at most 0.
    pub sampled_logprob: f32,
    /// Ids that were left; `None` when nothing was cut, 1 when greedy.
    pub kept_count: Option<u32>,
    /// These ids in ascending order where something was cut and at most `KEPT_MAX` were left.
    pub kept_ids: Vec<u32>,
    /// Entropy in nats of the distribution drawn from: after all filters, 0 when greedy.
    pub entropy: f32,
}

/// How likely an id is, and which ids are the likeliest: of softmax(logits), whatever was drawn from.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranking {
    /// log-softmax(logits) of the id. Finite and at most 0.
    pub logprob: f32,
    /// Ids and the same of theirs, the likeliest first and of equal ones the lower id; ids of probability 0 are not among them.
    pub likeliest: Vec<(u32, f32)>,
}

/// Longest list of kept ids that is written down.
pub const KEPT_MAX: usize = 512;

/// Numbers summed side by side. Fixed, so that a sum is the same on every machine.
const LANES: usize = 16;
/// Weights summed in float32 before they go into a float64: 16 additions a lane keep the sum within 1e-6 of itself.
const BLOCK: usize = 16 * LANES;

/// Draws tokens. Holds the scratch of a draw (20 bytes an id at most), so that rows drawn one after another allocate only what they keep.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Ids that are left, ascending; unused while nothing is cut.
    ids: Vec<u32>,
    /// Their logits, then their weights e^((logit - highest) / T), padded to whole lanes with weights of 0.
    weights: Vec<f32>,
    /// Room for weights while the logits are still needed.
    spare: Vec<f32>,
    /// Sum of each block of weights.
    sums: Vec<f64>,
    /// Places of the candidates of a cut in the total order.
    order: Vec<u64>,
}

/// Draws a token from one row. Draw many with a `Sampler`.
pub fn pick(logits: &[f32], pick: &Pick<'_>) -> Picked {
    Sampler::default().draw(logits, pick)
}

impl Sampler {
    /// Draws a token from logits `[V]`. Ids of `pick.allowed` beyond V are not there.
    pub fn draw(&mut self, logits: &[f32], pick: &Pick<'_>) -> Picked {
        let Some(highest) = highest(logits) else { return Picked::NotFinite };
        let drawn = if pick.temperature > 0.0 {
            self.draw_warm(logits, highest, pick)
        } else {
            self.draw_greedy(logits, highest, pick)
        };
        drawn.map_or(Picked::NotFinite, Picked::Token)
    }

    /// Ranks the `count` likeliest ids of logits `[V]`, and tells of `id`, which was drawn from them. `None` for logits that nothing can be drawn
    /// from.
    pub fn rank(&mut self, logits: &[f32], id: u32, count: usize) -> Option<Ranking> {
        let whole = self.weigh_all(logits, highest(logits)?, 1.0);
        let logprob = whole.logprob(*logits.get(id as usize).filter(|logit| is_finite(**logit))?);
        self.order.clear();
        let finite = logits.iter().zip(0..).filter(|(logit, _)| is_finite(**logit));
        self.order.extend(finite.map(|(logit, id)| place(*logit, id)));
        if count < self.order.len() {
            self.order.select_nth_unstable(count);
            self.order.truncate(count);
        }
        self.order.sort_unstable();
        let likeliest = self.order.iter().map(|at| (*at as u32, whole.logprob(logit_at(*at)))).collect();
        Some(Ranking { logprob, likeliest })
    }

    fn draw_greedy(&mut self, logits: &[f32], highest: f32, pick: &Pick<'_>) -> Option<Token> {
        let id = match pick.allowed {
            None => first_of(logits, highest)?,
            Some(allowed) => likeliest(logits, allowed)?,
        };
        let whole = self.weigh_all(logits, highest, 1.0);
        Some(Token {
            id,
            logprob: whole.logprob(logits[id as usize]),
            sampled_logprob: 0.0,
            kept_count: Some(1),
            kept_ids: vec![id],
            entropy: 0.0,
        })
    }

    fn draw_warm(&mut self, logits: &[f32], highest: f32, pick: &Pick<'_>) -> Option<Token> {
        let whole = self.weigh_all(logits, highest, pick.temperature);
        if pick.keeps_all() {
            let id = self.invert(pick.uniform)? as u32;
            let logprob = whole.logprob(logits[id as usize]);
            let entropy = whole.entropy();
            let (kept_count, kept_ids) = (None, Vec::new());
            return Some(Token { id, logprob, sampled_logprob: logprob, kept_count, kept_ids, entropy });
        }
        self.cut(logits, pick)?;
        let left = self.weigh_left(pick.temperature)?;
        let id = *self.ids.get(self.invert(pick.uniform)?)?;
        let cut = self.ids.len() < logits.iter().filter(|logit| is_finite(**logit)).count();
        Some(Token {
            id,
            logprob: whole.logprob(logits[id as usize]),
            sampled_logprob: left.logprob(logits[id as usize]),
            kept_count: cut.then_some(self.ids.len() as u32),
            kept_ids: if cut && self.ids.len() <= KEPT_MAX { self.ids.clone() } else { Vec::new() },
            entropy: left.entropy(),
        })
    }

    /// Weighs the whole vocabulary.
    fn weigh_all(&mut self, logits: &[f32], highest: f32, temperature: f32) -> Mass {
        self.weights.clear();
        self.weights.extend_from_slice(logits);
        self.weigh(highest, temperature)
    }

    /// Weighs the logits that are left; `None` when none is.
    fn weigh_left(&mut self, temperature: f32) -> Option<Mass> {
        let highest = highest(&self.weights)?;
        Some(self.weigh(highest, temperature))
    }

    /// Turns logits into weights and sums them, block by block.
    fn weigh(&mut self, highest: f32, temperature: f32) -> Mass {
        self.weights.resize(self.weights.len().next_multiple_of(LANES), f32::NEG_INFINITY);
        self.sums.clear();
        let mut mass = Mass { highest, temperature, total: 0.0, lift: 0.0 };
        for block in self.weights.chunks_mut(BLOCK) {
            let [sum, lift] = weigh_block(block, highest, temperature);
            self.sums.push(sum);
            mass.total += sum;
            mass.lift += lift;
        }
        mass
    }

    /// Leaves in `ids` and `weights` the ids and logits that pass every filter; `None` when none does.
    fn cut(&mut self, logits: &[f32], pick: &Pick<'_>) -> Option<()> {
        self.take_allowed(logits, pick.allowed);
        if pick.top_k > 0 && (pick.top_k as usize) < self.ids.len() {
            self.keep_k(pick.top_k as usize);
        }
        if pick.top_p < 1.0 {
            self.keep_p(pick.top_p, pick.temperature)?;
        }
        if pick.min_p > 0.0 {
            self.keep_share(pick.min_p, pick.temperature)?;
        }
        Some(())
    }

    /// Begins a cut with the allowed ids whose logits are finite.
    fn take_allowed(&mut self, logits: &[f32], allowed: Option<&Allowed>) {
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
    fn keep_k(&mut self, k: usize) {
        self.order.clear();
        self.order.extend(self.weights.iter().zip(&self.ids).map(|(logit, id)| place(*logit, *id)));
        let (_, last, _) = self.order.select_nth_unstable(k - 1);
        let last = *last;
        self.keep_to(last);
    }

    /// top-p.
    fn keep_p(&mut self, p: f32, temperature: f32) -> Option<()> {
        let highest = highest(&self.weights)?;
        let logits = std::mem::replace(&mut self.weights, std::mem::take(&mut self.spare));
        let mass = self.weigh_all(&logits, highest, temperature);
        let target = f64::from(p) * mass.total;
        // n ids below (1 - p) / n of the whole together weigh less than 1 - p: the cut lies above them. Half of it, to be clear of rounding.
        let slight = 0.5 * (1.0 - f64::from(p)) * mass.total / self.ids.len() as f64;
        self.order.clear();
        for ((logit, id), weight) in logits.iter().zip(&self.ids).zip(&self.weights) {
            if f64::from(*weight) >= slight {
                self.order.push(place(*logit, *id));
            }
        }
        let weight = |place: u64| f64::from(weight(logit_at(place), highest, temperature));
        let last = last_to_reach(&mut self.order, target, weight)?;
        self.spare = std::mem::replace(&mut self.weights, logits);
        self.keep_to(last);
        Some(())
    }

    /// min-p. A share of the likeliest is a distance from the highest logit: w >= p w_max where (logit - highest) / T >= ln p.
    fn keep_share(&mut self, p: f32, temperature: f32) -> Option<()> {
        let (highest, least) = (f64::from(highest(&self.weights)?), f64::from(p).ln());
        self.keep_if(|logit, _| (f64::from(logit) - highest) / f64::from(temperature) >= least);
        Some(())
    }

    /// Keeps what comes no later than `last` in the total order.
    fn keep_to(&mut self, last: u64) {
        self.keep_if(|logit, id| place(logit, id) <= last);
    }

    fn keep_if(&mut self, keep: impl Fn(f32, u32) -> bool) {
        let mut kept = 0;
        for index in 0..self.ids.len() {
            let (id, logit) = (self.ids[index], self.weights[index]);
            if keep(logit, id) {
                (self.ids[kept], self.weights[kept]) = (id, logit);
                kept += 1;
            }
        }
        self.ids.truncate(kept);
        self.weights.truncate(kept);
    }

    /// The index at which the running sum of the weights, in order, first exceeds `uniform` of their total.
    fn invert(&self, uniform: f64) -> Option<usize> {
        let total: f64 = self.sums.iter().sum();
        let block = first_beyond(self.sums.iter().copied(), uniform * total)?;
        let weights = self.weights.chunks(BLOCK).nth(block.index)?;
        // The block's sum was taken in lanes; the walk inside goes by its own sum, so that the last weight gets its due.
        let within: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
        let share = ((uniform * total - block.before) / self.sums[block.index]).clamp(0.0, 1.0);
        let found = first_beyond(weights.iter().map(|weight| f64::from(*weight)), share * within)?;
        Some(block.index * BLOCK + found.index)
    }
}

impl Pick<'_> {
    /// Whether no filter is asked for.
    fn keeps_all(&self) -> bool {
        self.allowed.is_none() && self.top_k == 0 && self.top_p >= 1.0 && self.min_p <= 0.0
    }
}

/// Sums over weights e^x, x = (logit - highest) / T.
#[derive(Debug, Clone, Copy)]
struct Mass {
    highest: f32,
    temperature: f32,
    /// Sum of e^x.
    total: f64,
    /// Sum of x e^x.
    lift: f64,
}

impl Mass {
    /// ln p = x - ln(sum of e^x), in float64 from the logit itself. A T so small that it leaves float32 gives its lowest number.
    fn logprob(&self, logit: f32) -> f32 {
        let x = (f64::from(logit) - f64::from(self.highest)) / f64::from(self.temperature);
        ((x - self.total.ln()).min(0.0) as f32).max(f32::MIN)
    }

    /// -sum of p ln p, with ln p as above.
    fn entropy(&self) -> f32 {
        (self.total.ln() - self.lift / self.total).max(0.0) as f32
    }
}

/// Where a running sum passes a target.
struct Beyond {
    index: usize,
    /// The sum of what comes before it.
    before: f64,
}

/// The first place where the running sum exceeds the target, which therefore weighs something; where rounding keeps the sum from exceeding
/// it, the last place that weighs something.
fn first_beyond(weights: impl Iterator<Item = f64>, target: f64) -> Option<Beyond> {
    let (mut before, mut last) = (0.0, None);
    for (index, weight) in weights.enumerate() {
        if weight > 0.0 {
            last = Some(Beyond { index, before });
        }
        if before + weight > target {
            break;
        }
        before += weight;
    }
    last
}

/// The place at which the weights, in ascending order of places, first sum to the target; the last place when they never do. Halves the
/// candidates until one is left, so that it takes linear time however flat the distribution is.
fn last_to_reach(places: &mut [u64], target: f64, weight: impl Fn(u64) -> f64) -> Option<u64> {
    let (mut before, mut rest) = (0.0, places);
    while rest.len() > 1 {
        let half = rest.len() / 2;
        rest.select_nth_unstable(half);
        let (low, high) = rest.split_at_mut(half);
        let sum: f64 = low.iter().map(|place| weight(*place)).sum();
        if before + sum >= target {
            rest = low;
        } else {
            before += sum;
            rest = high;
        }
    }
    rest.first().copied()
}

/// The highest logit; `None` when it is not finite or a NaN is among them.
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

/// The likeliest allowed id, the lowest of equals; `None` when none has a finite logit.
fn likeliest(logits: &[f32], allowed: &Allowed) -> Option<u32> {
    let mut best = (None, f32::NEG_INFINITY);
    for id in allowed.iter() {
        if let Some(&logit) = logits.get(id as usize).filter(|logit| **logit > best.1) {
            best = (Some(id), logit);
        }
    }
    best.0
}

/// Weighs a block; its sums of e^x and x e^x.
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

/// One weight, the same number that `weigh_block` writes.
fn weight(logit: f32, highest: f32, temperature: f32) -> f32 {
    exp(((logit - highest) / temperature).max(LOWEST))
}

/// Below it e^x is taken as 0: e^-87 = 1.6e-38 is the smallest that float32 holds in full.
const LOWEST: f32 = -87.0;

/// e^x for `LOWEST` <= x <= 0, 0 at `LOWEST` itself, 1 at 0; within 2e-7 of itself. x = n ln 2 + r, |r| <= 0.35, and e^r is its Taylor
/// series up to r^7, the next term being 0.35^8 / 8! = 6e-9. No branch, no call, no fused operation: the compiler can vectorise it, and
/// it gives the same bits on every machine.
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

/// Place in the total order: higher logits first, of equal ones the lower id. The bits of a float32 sort as a whole number once negative
/// ones are turned over; -0 is made 0, its equal.
fn place(logit: f32, id: u32) -> u64 {
    let bits = (logit + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!ascending) << 32 | u64::from(id)
}

/// The logit of a place.
fn logit_at(place: u64) -> f32 {
    let ascending = !((place >> 32) as u32);
    f32::from_bits(if ascending >> 31 == 1 { ascending & !(1 << 31) } else { !ascending })
}

/// Whether an id of this logit can be drawn at all; NaN and plus infinity were refused before.
fn is_finite(logit: f32) -> bool {
    logit > f32::NEG_INFINITY
}
