//! A response being sampled: which random number decides each token, which tokens may come next,
//! and what is recorded.

use std::sync::Arc;

use furrow_model::sample::{AllowedTokens, KEPT_MAX, SampleRequest, SampledToken, TokenRanking};
use furrow_model::tokenizer::Tokenizer;
use furrow_rollout::{FinishReason, SamplingParams, TrajectoryAncestry};
use rand::rngs::ChaCha12Rng;
use rand::{Rng, SeedableRng};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use crate::constrain::{Constraint, ConstraintCursor, IllegalToken, NextToken};

/// The uniform random numbers of one session. Each is a function of (seed, group, slot, step, index
/// in the response).
///
/// No number depends on the numbers used before it, so other sessions, forced tokens, offloading or
/// a rebuild cannot shift one. A retried slot gets the same numbers again: a failure of the farm
/// does not sample the trajectory again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RandomStream {
    key: [u8; 32],
}

impl RandomStream {
    /// The stream of a session. The key is SHA-256 over a name, the job's seed and the slot as u64
    /// and u32 little-endian, and the group's id.
    pub fn new(seed: u64, ancestry: &TrajectoryAncestry) -> Self {
        let mut key = Sha256::new();
        key.update(b"furrow session stream 1");
        key.update(seed.to_le_bytes());
        key.update(ancestry.sample_index.to_le_bytes());
        key.update(ancestry.group_id.as_str());
        Self { key: key.finalize().into() }
    }

    /// The stream of a chat request with a seed. The key is SHA-256 over a name and the seed as u64
    /// little-endian.
    pub(crate) fn of_chat(seed: u64) -> Self {
        let mut key = Sha256::new();
        key.update(b"furrow chat stream 1");
        key.update(seed.to_le_bytes());
        Self { key: key.finalize().into() }
    }

    /// The seed of one of several replies to a request: the request's for the first, else the first
    /// 8 bytes, little-endian, of SHA-256 over a name and the seed as u64 and the index as u32
    /// little-endian.
    pub(crate) fn seed_of_choice(seed: u64, index: u32) -> u64 {
        if index == 0 {
            return seed;
        }
        let mut hash = Sha256::new();
        hash.update(b"furrow chat choice 1");
        hash.update(seed.to_le_bytes());
        hash.update(index.to_le_bytes());
        let digest: [u8; 32] = hash.finalize().into();
        digest[..8].iter().rev().fold(0, |seed, byte| seed << 8 | u64::from(*byte))
    }

    /// The number in [0, 1) that decides token `index` of the response of a step: the top 53 bits
    /// of words 2 `index` (low) and 2 `index` + 1 of ChaCha12 with 64-bit counter and stream number
    /// `step`.
    pub fn uniform(&self, step: u32, index: u32) -> f64 {
        let mut generator = ChaCha12Rng::from_seed(self.key);
        generator.set_stream(step.into());
        generator.set_word_pos(2 * u128::from(index));
        (generator.next_u64() >> 11) as f64 * 2f64.powi(-53)
    }
}

impl std::fmt::Debug for RandomStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RandomStream({:02x}{:02x}…)", self.key[0], self.key[1])
    }
}

/// The columns of a response, with one entry for each token.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenColumns {
    pub ids: Vec<u32>,
    /// Whether the policy sampled the token.
    pub mask: Vec<bool>,
    /// Whether the token was the only legal one.
    pub forced: Vec<bool>,
    /// Log-prob over the whole vocabulary; null unless sampled.
    pub logprobs: Vec<Option<f32>>,
    /// Log-prob after the filters; 0 if forced, null if appended.
    pub sampled_logprobs: Vec<Option<f32>>,
    /// Number of ids that the filters left; null if they removed none or nothing was sampled.
    pub kept_count: Vec<Option<u32>>,
    /// The ids that the filters left, for the tokens that list them.
    pub kept_token_ids: Vec<u32>,
    /// Start of each token's list, and the end of the last one.
    pub kept_offsets: Vec<u32>,
    /// Entropy in nats; null unless sampled.
    pub entropy: Vec<Option<f32>>,
    /// Version of the weights that made each token.
    pub policy_versions: Vec<i32>,
}

/// What a response needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseState {
    Sample,
    /// Nothing: the response is complete.
    Finished(FinishReason),
}

/// A response being sampled.
///
/// Call `append_forced` first and after every `take`; it appends the tokens that have no
/// alternative. Then `state` says whether to sample. If so, run the tokens that are not yet in the
/// state, sample by `pick` and pass the token to `take`.
#[derive(Debug, Clone)]
pub struct PartialResponse {
    sampling: SamplingParams,
    stream: RandomStream,
    step: u32,
    stop: u32,
    cursor: Option<ConstraintCursor>,
    /// Ids that an unconstrained response may sample; `None`: all.
    allowed_ids: Option<Arc<AllowedTokens>>,
    columns: TokenColumns,
    over: Option<FinishReason>,
    watch: Option<TokenWatcher>,
}

/// A token of a response, as a watcher receives it.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchedToken {
    pub id: u32,
    /// Log-prob over the whole vocabulary; `None` if forced. If the tokens are ranked, it is that
    /// of softmax(logits), also at a temperature other than 0 and 1.
    pub logprob: Option<f32>,
    /// The likeliest ids of softmax(logits) and their log-probs, as many as the watcher requested.
    pub likeliest: Vec<(u32, f32)>,
}

/// Sends each token of a response to a channel, except the stop id after a truncated one, and ends
/// an unconstrained response whose text contains a stop text.
#[derive(Debug, Clone)]
pub struct TokenWatcher {
    sender: mpsc::Sender<WatchedToken>,
    stops: Arc<[String]>,
    tokenizer: Arc<Tokenizer>,
    /// The last bytes of the text, as many as can begin a stop text.
    tail: Vec<u8>,
    /// How many of the likeliest ids to report with each sampled token; `None`: none, and the
    /// log-prob of the sample is enough.
    ranks: Option<usize>,
    /// Ranking for the next token.
    ranking: Option<TokenRanking>,
}

impl TokenWatcher {
    /// `sender` needs capacity for every token of the response, because the engine does not wait
    /// for a slow reader.
    pub fn new(sender: mpsc::Sender<WatchedToken>, stops: Arc<[String]>, tokenizer: Arc<Tokenizer>) -> Self {
        Self { sender, stops, tokenizer, tail: Vec::new(), ranks: None, ranking: None }
    }

    /// Ranks the logits of each sample and reports this many of the likeliest ids.
    pub fn ranking(self, ranks: Option<usize>) -> Self {
        Self { ranks, ..self }
    }

    /// Returns whether the text contains a stop text.
    fn observe(&mut self, id: u32, logprob: Option<f32>) -> bool {
        let watched = match self.ranking.take() {
            Some(TokenRanking { logprob, likeliest }) => {
                WatchedToken { id, logprob: Some(logprob), likeliest }
            }
            None => WatchedToken { id, logprob, likeliest: Vec::new() },
        };
        // The receiver may have left; the session's token is cancelled then.
        self.sender.try_send(watched).ok();
        let Some(longest) = self.stops.iter().map(String::len).max() else { return false };
        let vocabulary = self.tokenizer.vocabulary();
        if !vocabulary.is_special(id) {
            self.tail.extend(vocabulary.bytes(id).unwrap_or_default());
        }
        let is_there = |stop: &String| self.tail.windows(stop.len()).any(|window| window == stop.as_bytes());
        let found = self.stops.iter().any(is_there);
        self.tail.drain(..self.tail.len().saturating_sub(longest - 1));
        found
    }
}

impl PartialResponse {
    /// An empty response to a step; the id `stop` ends it. Under a constraint,
    /// `sampling.max_tokens` must be the limit with which it was compiled.
    pub fn new(
        sampling: &SamplingParams,
        stream: &RandomStream,
        step: u32,
        stop: u32,
        constraint: Option<&Arc<Constraint>>,
    ) -> Self {
        Self {
            sampling: sampling.clone(),
            stream: *stream,
            step,
            stop,
            cursor: constraint.map(ConstraintCursor::new),
            allowed_ids: None,
            columns: TokenColumns { kept_offsets: vec![0], ..TokenColumns::default() },
            over: None,
            watch: None,
        }
    }

    /// Restricts an unconstrained response to these ids. They lack the image placeholder, which has
    /// no meaning without an image. A constraint never allows it.
    pub(crate) fn restricted_to(self, allowed: &Arc<AllowedTokens>) -> Self {
        Self { allowed_ids: Some(allowed.clone()), ..self }
    }

    pub(crate) fn watched_by(self, watch: TokenWatcher) -> Self {
        Self { watch: Some(watch), ..self }
    }

    /// Appends every token that has no alternative now and returns them: those that the grammar
    /// forces, and the stop id after an unconstrained response that reached `max_tokens`.
    pub(crate) fn append_forced(&mut self, version: i32) -> &[u32] {
        let first = self.columns.ids.len();
        while let Some(NextToken::Forced(id)) = self.next() {
            self.columns.push_unsampled(id, true, version);
            if let Some(watch) = &mut self.watch {
                watch.observe(id, None);
            }
            self.advance(id).unwrap_or_else(|illegal| unreachable!("the only legal id: {illegal}"));
        }
        if self.over.is_none() && self.is_cut() {
            self.columns.push_unsampled(self.stop, false, version);
            self.over = Some(FinishReason::Length);
        }
        &self.columns.ids[first..]
    }

    pub fn state(&self) -> ResponseState {
        self.over.map_or(ResponseState::Sample, ResponseState::Finished)
    }

    /// The request to sample the next token from logits row `row`.
    pub fn pick(&self, row: u32) -> SampleRequest<'_> {
        let SamplingParams { temperature, top_p, top_k, min_p, .. } = self.sampling;
        let allowed = match self.next() {
            Some(NextToken::Choose(allowed)) => Some(allowed),
            _ => self.allowed_ids.as_deref(),
        };
        let uniform = self.stream.uniform(self.step, self.columns.ids.len() as u32);
        SampleRequest { row, temperature, top_k, top_p, min_p, allowed, uniform }
    }

    /// How many of the likeliest ids to report with the next token; `None`: no ranking.
    pub fn ranks(&self) -> Option<usize> {
        self.watch.as_ref()?.ranks
    }

    /// Sets the ranking of the row from which the next token was sampled.
    pub fn rank(&mut self, ranking: Option<TokenRanking>) {
        if let Some(watch) = &mut self.watch {
            watch.ranking = ranking;
        }
    }

    /// Takes the token that `pick` sampled.
    pub fn take(&mut self, token: &SampledToken, version: i32) -> Result<(), IllegalToken> {
        let id = token.id;
        self.advance(id)?;
        self.columns.push_sampled(token, version);
        let is_there = self.watch.as_mut().is_some_and(|watch| watch.observe(id, Some(token.logprob)));
        if self.cursor.is_none() && (id == self.stop || is_there) {
            self.over = Some(FinishReason::Stop);
        }
        Ok(())
    }

    /// Ends the response; no more tokens are sampled.
    pub fn abort(&mut self) {
        self.over = Some(FinishReason::Abort);
    }

    /// The tokens so far.
    pub fn columns(&self) -> &TokenColumns {
        &self.columns
    }

    /// The tokens for the records.
    pub(crate) fn into_columns(self) -> TokenColumns {
        self.columns
    }

    fn next(&self) -> Option<NextToken<'_>> {
        self.cursor.as_ref().filter(|_| self.over.is_none()).map(ConstraintCursor::next)
    }

    fn advance(&mut self, id: u32) -> Result<(), IllegalToken> {
        let Some(cursor) = &mut self.cursor else { return Ok(()) };
        cursor.advance(id)?;
        if cursor.next() == NextToken::Done {
            self.over = Some(cursor.finish_reason());
        }
        Ok(())
    }

    /// Whether an unconstrained response has reached its limit.
    fn is_cut(&self) -> bool {
        self.cursor.is_none() && self.columns.ids.len() >= self.sampling.max_tokens as usize
    }
}

impl TokenColumns {
    /// Adds a sampled token.
    fn push_sampled(&mut self, token: &SampledToken, version: i32) {
        debug_assert!(token.kept_ids.len() <= KEPT_MAX);
        self.kept_token_ids.extend_from_slice(&token.kept_ids);
        self.push(token.id, true, false, version);
        self.logprobs.push(Some(token.logprob));
        self.sampled_logprobs.push(Some(token.sampled_logprob));
        self.kept_count.push(token.kept_count);
        self.entropy.push(Some(token.entropy));
    }

    /// Adds a token that was not sampled: forced by the grammar, or appended. For a forced one its
    /// id is listed as the only one left, so its `sampled_logprobs` of 0 is the log-softmax over
    /// the listed ids, as for sampled tokens.
    fn push_unsampled(&mut self, id: u32, forced: bool, version: i32) {
        if forced {
            self.kept_token_ids.push(id);
        }
        self.push(id, false, forced, version);
        self.logprobs.push(None);
        self.sampled_logprobs.push(forced.then_some(0.0));
        self.kept_count.push(forced.then_some(1));
        self.entropy.push(None);
    }

    fn push(&mut self, id: u32, mask: bool, forced: bool, version: i32) {
        self.ids.push(id);
        self.mask.push(mask);
        self.forced.push(forced);
        self.kept_offsets.push(self.kept_token_ids.len() as u32);
        self.policy_versions.push(version);
    }
}

#[cfg(test)]
mod tests {
    use furrow_model::sample::{SampleOutcome, sample_token};
    use furrow_rollout::Id;

    use super::*;

    const STOP: u32 = 2;

    fn ancestry(group: &str, sample_index: u32, attempt: u32) -> TrajectoryAncestry {
        TrajectoryAncestry {
            run_id: Id::new("run").unwrap(),
            group_id: Id::new(group).unwrap(),
            sample_index,
            attempt,
            trajectory_id: Id::new(format!("{group}-s{sample_index}-a{attempt}")).unwrap(),
        }
    }

    #[track_caller]
    fn check(seed: u64, group: &str, sample_index: u32, at: (u32, u32), want: f64) {
        for attempt in [0, 3] {
            let stream = RandomStream::new(seed, &ancestry(group, sample_index, attempt));
            let got = stream.uniform(at.0, at.1);
            assert_eq!(got, want, "{got:?}");
        }
    }

    #[test]
    fn random_numbers_are_those_of_every_release() {
        // Computed by another program from the documentation of `uniform`.
        check(0, "run-g000000", 0, (0, 0), 0.39942770937077066);
        check(0, "run-g000000", 0, (0, 1), 0.9761149625501577);
        check(0, "run-g000000", 0, (0, 7), 0.04167219749876827);
        check(0, "run-g000000", 0, (0, 8), 0.5778773911351786);
        check(0, "run-g000000", 0, (29, 1000), 0.9846320204450523);
        check(1, "run-g000000", 0, (0, 0), 0.09200434203798424);
        check(0, "run-g000001", 0, (0, 0), 0.7632523601111212);
        check(0, "run-g000000", 1, (0, 0), 0.4663872005806159);
        check(u64::MAX, "run-g000000", u32::MAX, (u32::MAX, u32::MAX), 0.9391486772114482);
    }

    #[test]
    fn stream_positions_are_independent_and_uniform() {
        let stream = RandomStream::new(5, &ancestry("g", 0, 0));
        let mut sum = 0.0;
        let mut buckets = [0u32; 16];
        let mut unique = std::collections::HashSet::new();
        for index in 0..4096u32 {
            let uniform = stream.uniform(index / 256, index % 256);
            assert!((0.0..1.0).contains(&uniform) && unique.insert(uniform.to_bits()));
            buckets[(uniform * 16.0) as usize] += 1;
            sum += uniform;
        }
        // Mean 0.5, standard deviation 0.2887 / sqrt(4096) = 0.0045. Chi-square with 15 degrees of
        // freedom is above 45 once in 10^4.
        let statistic: f64 = buckets.iter().map(|count| (f64::from(*count) - 256.0).powi(2) / 256.0).sum();
        assert!((sum / 4096.0 - 0.5).abs() < 0.0225 && statistic < 45.0, "{sum} {statistic}");
    }

    fn token(id: u32, kept_ids: &[u32]) -> SampledToken {
        SampledToken {
            id,
            logprob: -2.0,
            sampled_logprob: -1.0,
            kept_count: (!kept_ids.is_empty()).then_some(kept_ids.len() as u32),
            kept_ids: kept_ids.to_vec(),
            entropy: 0.5,
        }
    }

    fn free(max_tokens: u32) -> PartialResponse {
        let sampling = SamplingParams { max_tokens, ..SamplingParams::default() };
        PartialResponse::new(&sampling, &RandomStream::new(0, &ancestry("g", 0, 0)), 4, STOP, None)
    }

    #[test]
    fn a_free_response_ends_with_the_stop_id_or_has_it_appended() {
        let mut response = free(3);
        for (sampled, kept) in [(7, &[5, 7][..]), (8, &[])] {
            assert_eq!((response.append_forced(1).len(), response.state()), (0, ResponseState::Sample));
            response.take(&token(sampled, kept), 1).unwrap();
        }
        let mut stopped = response.clone();
        stopped.take(&token(STOP, &[]), 2).unwrap();
        assert_eq!(
            (stopped.append_forced(2).len(), stopped.state()),
            (0, ResponseState::Finished(FinishReason::Stop))
        );
        assert_eq!(
            (stopped.columns().ids.as_slice(), stopped.columns().mask.as_slice()),
            (&[7, 8, STOP][..], &[true; 3][..])
        );

        response.take(&token(9, &[1, 2, 9]), 2).unwrap();
        assert_eq!(response.append_forced(2), [STOP]);
        assert_eq!(
            (response.append_forced(2).len(), response.state()),
            (0, ResponseState::Finished(FinishReason::Length))
        );
        let want = TokenColumns {
            ids: vec![7, 8, 9, STOP],
            mask: vec![true, true, true, false],
            forced: vec![false; 4],
            logprobs: vec![Some(-2.0), Some(-2.0), Some(-2.0), None],
            sampled_logprobs: vec![Some(-1.0), Some(-1.0), Some(-1.0), None],
            kept_count: vec![Some(2), None, Some(3), None],
            kept_token_ids: vec![5, 7, 1, 2, 9],
            kept_offsets: vec![0, 2, 2, 5, 5],
            entropy: vec![Some(0.5), Some(0.5), Some(0.5), None],
            policy_versions: vec![1, 1, 2, 2],
        };
        assert_eq!(response.into_columns(), want);
        let mut given_up = free(3);
        given_up.abort();
        assert_eq!(
            (given_up.append_forced(0).len(), given_up.state()),
            (0, ResponseState::Finished(FinishReason::Abort))
        );
    }

    #[test]
    fn each_sample_uses_the_random_number_of_its_index() {
        let mut response = free(9);
        let stream = RandomStream::new(0, &ancestry("g", 0, 0));
        for index in 0..4 {
            let pick = response.pick(6);
            assert_eq!((pick.row, pick.uniform, pick.allowed), (6, stream.uniform(4, index), None));
            response.take(&token(7, &[]), 0).unwrap();
        }
    }

    #[test]
    fn an_unconstrained_response_samples_from_the_allowed_ids() {
        let mut some = AllowedTokens::new(10);
        some.extend([1, 3, 5]);
        let some = Arc::new(some);
        assert_eq!(free(9).restricted_to(&some).pick(0).allowed, Some(&*some));
    }

    #[test]
    fn a_constrained_response_alternates_between_forced_and_sampled_tokens() {
        let bytes: Vec<u8> = (0..=255).collect();
        let text = |id: u32| bytes.get(id as usize..=id as usize);
        let encode = |text: &str| text.bytes().map(u32::from).collect();
        let lexicon = crate::constrain::TokenLexicon::new(257, 256, text, encode);
        let grammar =
            furrow_rollout::Grammar { name: crate::grammar::HOLO_NAVIGATION.into(), extra: Vec::new() };
        let constraint =
            Constraint::compile(&grammar, &lexicon, &crate::constrain::TextCaps::default().into(), 400)
                .unwrap();
        let sampling = SamplingParams { max_tokens: 400, temperature: 0.5, ..SamplingParams::default() };
        let stream = RandomStream::new(0, &ancestry("g", 0, 0));
        let mut response = PartialResponse::new(&sampling, &stream, 0, 256, Some(&constraint));
        assert_eq!(response.append_forced(3), br#"{"note":""#.map(u32::from));
        let mut samples = 0;
        while response.state() == ResponseState::Sample {
            let logits: Vec<f32> = (0..257).map(|id| (id % 29) as f32 / 4.0).collect();
            let pick_ = response.pick(0);
            assert_eq!(pick_.uniform, stream.uniform(0, response.columns().ids.len() as u32));
            let SampleOutcome::Token(token) = sample_token(&logits, &pick_) else { panic!("not finite") };
            response.take(&token, 3).unwrap();
            response.append_forced(3);
            samples += 1;
        }
        let columns = response.columns();
        let reply: Vec<u8> = columns.ids.iter().filter_map(|id| u8::try_from(*id).ok()).collect();
        let image = furrow_rollout::Size::new(100, 100);
        let read = crate::grammar::parse(
            &grammar,
            str::from_utf8(&reply).unwrap(),
            crate::grammar::ViewedPage::image(image),
        );
        assert!(read.action.is_ok(), "{read:?}");
        assert_eq!(columns.mask.iter().filter(|mask| **mask).count(), samples);
        assert_eq!((columns.ids.last(), columns.forced.last()), (Some(&256), Some(&true)));
        for index in 0..columns.ids.len() {
            let listed = columns.kept_offsets[index + 1] - columns.kept_offsets[index];
            assert_eq!(columns.kept_count[index], Some(listed));
            assert_ne!(columns.mask[index], columns.forced[index]);
            assert_eq!(columns.logprobs[index].is_some(), columns.mask[index]);
            assert!(
                columns.sampled_logprobs[index].is_some_and(|logprob| columns.mask[index] || logprob == 0.0)
            );
        }
    }
}
