//! A response being drawn: which number decides each token, what may come next, and what is written down of it.

use std::sync::Arc;

use furrow_model::sample::{Allowed, KEPT_MAX, Pick, Ranking, Token};
use furrow_model::tokenizer::Tokenizer;
use furrow_rollout::{Ancestry, FinishReason, Sampling};
use rand::rngs::ChaCha12Rng;
use rand::{Rng, SeedableRng};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use crate::constrain::{Constraint, Cursor, Illegal, Next};

/// The uniform numbers of one session, each at its own place: a function of (seed, group, slot, step, index in the response).
///
/// Nothing is drawn in turn, so neighbours, forced tokens, parking or a rebuilt session cannot move a number. A retried slot gets the
/// same numbers again: a failure of the farm gives no second chance of another luck.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    key: [u8; 32],
}

impl Stream {
    /// Of a session: the key is SHA-256 over a name, the job's seed and the slot as u64 and u32 little-endian, and the group's id.
    pub fn new(seed: u64, ancestry: &Ancestry) -> Self {
        let mut key = Sha256::new();
        key.update(b"furrow session stream 1");
        key.update(seed.to_le_bytes());
        key.update(ancestry.sample_index.to_le_bytes());
        key.update(ancestry.group_id.as_str());
        Self { key: key.finalize().into() }
    }

    /// Of a chat that is told a seed: the key is SHA-256 over a name and the seed as u64 little-endian.
    pub fn of_chat(seed: u64) -> Self {
        let mut key = Sha256::new();
        key.update(b"furrow chat stream 1");
        key.update(seed.to_le_bytes());
        Self { key: key.finalize().into() }
    }

    /// The number in [0, 1) that decides token `index` of the response of a step: the top 53 bits of words 2 `index` (low) and
    /// 2 `index` + 1 of ChaCha12 with 64-bit counter, stream number `step`.
    pub fn uniform(&self, step: u32, index: u32) -> f64 {
        let mut words = ChaCha12Rng::from_seed(self.key);
        words.set_stream(step.into());
        words.set_word_pos(2 * u128::from(index));
        (words.next_u64() >> 11) as f64 * 2f64.powi(-53)
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({:02x}{:02x}…)", self.key[0], self.key[1])
    }
}

/// The columns of a response, one entry a token.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Columns {
    /// Ids.
    pub ids: Vec<u32>,
    /// Sampled by the policy.
    pub mask: Vec<bool>,
    /// The only legal id.
    pub forced: Vec<bool>,
    /// Whole vocabulary; null unless sampled.
    pub logprobs: Vec<Option<f32>>,
    /// After the filters; 0 where forced, null where appended.
    pub sampled_logprobs: Vec<Option<f32>>,
    /// Ids left by the filters; null where nothing was cut or nothing was drawn.
    pub kept_count: Vec<Option<u32>>,
    /// The ids left, where they are listed.
    pub kept_token_ids: Vec<u32>,
    /// Where each token's list begins, and the end.
    pub kept_offsets: Vec<u32>,
    /// Nats; null unless sampled.
    pub entropy: Vec<Option<f32>>,
    /// Weights that made each token.
    pub policy_versions: Vec<i32>,
}

/// What a response waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// A draw.
    Draw,
    /// Nothing: it is complete.
    Over(FinishReason),
}

/// A response being drawn.
///
/// `force` first and after every `take`: it appends what has no alternative. Then `wait` says whether to draw; if so, run what is not
/// yet in the state, draw by `pick` and hand the token to `take`.
#[derive(Debug, Clone)]
pub struct Response {
    sampling: Sampling,
    stream: Stream,
    step: u32,
    stop: u32,
    cursor: Option<Cursor>,
    /// What a free response draws among; `None`: everything.
    among: Option<Arc<Allowed>>,
    columns: Columns,
    over: Option<FinishReason>,
    watch: Option<Watch>,
}

/// A token as whoever watches a response sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Watched {
    /// The id.
    pub id: u32,
    /// Whole vocabulary; `None` where it was forced. At a temperature other than 0 and 1 it is that of softmax(logits) where the watch has
    /// its tokens ranked.
    pub logprob: Option<f32>,
    /// The likeliest ids of softmax(logits) and their log-probs, as many as the watch wants.
    pub likeliest: Vec<(u32, f32)>,
}

/// Tells of each token of a response as it comes, the stop id behind a cut one left out, and ends a free response where its text holds one
/// of some texts.
#[derive(Debug, Clone)]
pub struct Watch {
    told: mpsc::Sender<Watched>,
    stops: Arc<[String]>,
    tokenizer: Arc<Tokenizer>,
    /// The last bytes, as many as can begin a text to stop at.
    tail: Vec<u8>,
    /// How many of the likeliest ids are wanted beside each that is drawn; `None`: none, and the draw's own log-prob is enough.
    ranks: Option<usize>,
    /// Of the token that is taken next.
    ranking: Option<Ranking>,
}

impl Watch {
    /// Tells `told`, which must have room for every token of the response: nothing waits for a slow reader.
    pub fn new(told: mpsc::Sender<Watched>, stops: Arc<[String]>, tokenizer: Arc<Tokenizer>) -> Self {
        Self { told, stops, tokenizer, tail: Vec::new(), ranks: None, ranking: None }
    }

    /// The same, with the logits of each draw ranked: so many of the likeliest ids are told.
    pub fn ranking(self, ranks: Option<usize>) -> Self {
        Self { ranks, ..self }
    }

    /// Returns whether a text to stop at is there.
    fn see(&mut self, id: u32, logprob: Option<f32>) -> bool {
        let watched = match self.ranking.take() {
            Some(Ranking { logprob, likeliest }) => Watched { id, logprob: Some(logprob), likeliest },
            None => Watched { id, logprob, likeliest: Vec::new() },
        };
        // Whoever watched may be gone; the session's life tells.
        self.told.try_send(watched).ok();
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

impl Response {
    /// An empty response to step `step`; `stop` ends it. Under a constraint `sampling.max_tokens` is what it was compiled with.
    pub fn new(
        sampling: &Sampling,
        stream: &Stream,
        step: u32,
        stop: u32,
        constraint: Option<&Arc<Constraint>>,
    ) -> Self {
        Self {
            sampling: sampling.clone(),
            stream: *stream,
            step,
            stop,
            cursor: constraint.map(Cursor::new),
            among: None,
            columns: Columns { kept_offsets: vec![0], ..Columns::default() },
            over: None,
            watch: None,
        }
    }

    /// The same, a free response drawing among these ids only: without the placeholder of images where the model has a row for it, since
    /// a placeholder without a picture stands for nothing. A constraint has no such ids anyway.
    pub fn among(self, allowed: &Arc<Allowed>) -> Self {
        Self { among: Some(allowed.clone()), ..self }
    }

    /// The same, with somebody who watches.
    pub fn watched(self, watch: Watch) -> Self {
        Self { watch: Some(watch), ..self }
    }

    /// Appends every token that has no alternative now, and gives these: forced ones of the grammar, and the stop id behind a free
    /// response that reached `max_tokens`.
    pub fn force(&mut self, version: i32) -> &[u32] {
        let first = self.columns.ids.len();
        while let Some(Next::Forced(id)) = self.next() {
            self.columns.push_given(id, true, version);
            if let Some(watch) = &mut self.watch {
                watch.see(id, None);
            }
            self.advance(id).unwrap_or_else(|illegal| unreachable!("the only legal id: {illegal}"));
        }
        if self.over.is_none() && self.is_cut() {
            self.columns.push_given(self.stop, false, version);
            self.over = Some(FinishReason::Length);
        }
        &self.columns.ids[first..]
    }

    /// Whether to draw.
    pub fn wait(&self) -> Wait {
        self.over.map_or(Wait::Draw, Wait::Over)
    }

    /// The next draw, from logits row `row`.
    pub fn pick(&self, row: u32) -> Pick<'_> {
        let Sampling { temperature, top_p, top_k, min_p, .. } = self.sampling;
        let allowed = match self.next() {
            Some(Next::Choose(allowed)) => Some(allowed),
            _ => self.among.as_deref(),
        };
        let uniform = self.stream.uniform(self.step, self.columns.ids.len() as u32);
        Pick { row, temperature, top_k, top_p, min_p, allowed, uniform }
    }

    /// How many of the likeliest ids are wanted beside what `pick` draws; `None`: no ranking.
    pub fn ranks(&self) -> Option<usize> {
        self.watch.as_ref()?.ranks
    }

    /// The ranking of the row that the token which is taken next was drawn from.
    pub fn rank(&mut self, ranking: Option<Ranking>) {
        if let Some(watch) = &mut self.watch {
            watch.ranking = ranking;
        }
    }

    /// Takes what `pick` drew.
    pub fn take(&mut self, token: &Token, version: i32) -> Result<(), Illegal> {
        let id = token.id;
        self.advance(id)?;
        self.columns.push_drawn(token, version);
        let is_there = self.watch.as_mut().is_some_and(|watch| watch.see(id, Some(token.logprob)));
        if self.cursor.is_none() && (id == self.stop || is_there) {
            self.over = Some(FinishReason::Stop);
        }
        Ok(())
    }

    /// Gives up: nothing more is drawn.
    pub fn abort(&mut self) {
        self.over = Some(FinishReason::Abort);
    }

    /// What there is so far.
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// What there is, for the records.
    pub fn into_columns(self) -> Columns {
        self.columns
    }

    fn next(&self) -> Option<Next<'_>> {
        self.cursor.as_ref().filter(|_| self.over.is_none()).map(Cursor::next)
    }

    fn advance(&mut self, id: u32) -> Result<(), Illegal> {
        let Some(cursor) = &mut self.cursor else { return Ok(()) };
        cursor.advance(id)?;
        if cursor.next() == Next::Done {
            self.over = Some(cursor.finish_reason());
        }
        Ok(())
    }

    /// Whether a free response has all the tokens it may have.
    fn is_cut(&self) -> bool {
        self.cursor.is_none() && self.columns.ids.len() >= self.sampling.max_tokens as usize
    }
}

impl Columns {
    /// A token that was drawn.
    fn push_drawn(&mut self, token: &Token, version: i32) {
        debug_assert!(token.kept_ids.len() <= KEPT_MAX);
        self.kept_token_ids.extend_from_slice(&token.kept_ids);
        self.push(token.id, true, false, version);
        self.logprobs.push(Some(token.logprob));
        self.sampled_logprobs.push(Some(token.sampled_logprob));
        self.kept_count.push(token.kept_count);
        self.entropy.push(Some(token.entropy));
    }

    /// A token that was not drawn: forced by the grammar, or appended. One id was left to a forced one, and it is listed, so that its
    /// `sampled_logprobs` of 0 is the log-softmax over what is listed, as everywhere.
    fn push_given(&mut self, id: u32, forced: bool, version: i32) {
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
    use furrow_model::sample::{Picked, pick};
    use furrow_rollout::Id;

    use super::*;

    const STOP: u32 = 2;

    fn ancestry(group: &str, sample_index: u32, attempt: u32) -> Ancestry {
        Ancestry {
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
            let stream = Stream::new(seed, &ancestry(group, sample_index, attempt));
            let got = stream.uniform(at.0, at.1);
            assert_eq!(got, want, "{got:?}");
        }
    }

    #[test]
    fn numbers_are_those_of_every_release() {
        // Computed by another program from the description of `uniform`.
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
    fn places_are_independent_and_uniform() {
        let stream = Stream::new(5, &ancestry("g", 0, 0));
        let (mut sum, mut buckets, mut seen) = (0.0, [0u32; 16], std::collections::HashSet::new());
        for place in 0..4096u32 {
            let uniform = stream.uniform(place / 256, place % 256);
            assert!((0.0..1.0).contains(&uniform) && seen.insert(uniform.to_bits()));
            buckets[(uniform * 16.0) as usize] += 1;
            sum += uniform;
        }
        // Mean 0.5, standard deviation 0.2887 / sqrt(4096) = 0.0045. Chi-square with 15 degrees of freedom is above 45 once in 10^4.
        let statistic: f64 = buckets.iter().map(|count| (f64::from(*count) - 256.0).powi(2) / 256.0).sum();
        assert!((sum / 4096.0 - 0.5).abs() < 0.0225 && statistic < 45.0, "{sum} {statistic}");
    }

    fn token(id: u32, kept_ids: &[u32]) -> Token {
        Token {
            id,
            logprob: -2.0,
            sampled_logprob: -1.0,
            kept_count: (!kept_ids.is_empty()).then_some(kept_ids.len() as u32),
            kept_ids: kept_ids.to_vec(),
            entropy: 0.5,
        }
    }

    fn free(max_tokens: u32) -> Response {
        let sampling = Sampling { max_tokens, ..Sampling::default() };
        Response::new(&sampling, &Stream::new(0, &ancestry("g", 0, 0)), 4, STOP, None)
    }

    #[test]
    fn a_free_response_ends_with_the_stop_id_or_has_it_appended() {
        let mut response = free(3);
        for (drawn, kept) in [(7, &[5, 7][..]), (8, &[])] {
            assert_eq!((response.force(1).len(), response.wait()), (0, Wait::Draw));
            response.take(&token(drawn, kept), 1).unwrap();
        }
        let mut stopped = response.clone();
        stopped.take(&token(STOP, &[]), 2).unwrap();
        assert_eq!((stopped.force(2).len(), stopped.wait()), (0, Wait::Over(FinishReason::Stop)));
        assert_eq!(
            (stopped.columns().ids.as_slice(), stopped.columns().mask.as_slice()),
            (&[7, 8, STOP][..], &[true; 3][..])
        );

        response.take(&token(9, &[1, 2, 9]), 2).unwrap();
        assert_eq!(response.force(2), [STOP]);
        assert_eq!((response.force(2).len(), response.wait()), (0, Wait::Over(FinishReason::Length)));
        let want = Columns {
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
        assert_eq!((given_up.force(0).len(), given_up.wait()), (0, Wait::Over(FinishReason::Abort)));
    }

    #[test]
    fn each_draw_has_the_number_of_its_index() {
        let mut response = free(9);
        let stream = Stream::new(0, &ancestry("g", 0, 0));
        for index in 0..4 {
            let pick = response.pick(6);
            assert_eq!((pick.row, pick.uniform, pick.allowed), (6, stream.uniform(4, index), None));
            response.take(&token(7, &[]), 0).unwrap();
        }
    }

    #[test]
    fn a_free_response_draws_among_what_it_was_given() {
        let mut some = Allowed::new(10);
        some.extend([1, 3, 5]);
        let some = Arc::new(some);
        assert_eq!(free(9).among(&some).pick(0).allowed, Some(&*some));
    }

    #[test]
    fn a_constrained_response_alternates_between_forced_and_drawn() {
        let bytes: Vec<u8> = (0..=255).collect();
        let text = |id: u32| bytes.get(id as usize..=id as usize);
        let encode = |text: &str| text.bytes().map(u32::from).collect();
        let lexicon = crate::constrain::Lexicon::new(257, 256, text, encode);
        let grammar =
            furrow_rollout::Grammar { name: crate::grammar::HOLO_NAVIGATION.into(), extra: Vec::new() };
        let constraint =
            Constraint::compile(&grammar, &lexicon, &crate::constrain::Caps::default().into(), 400).unwrap();
        let sampling = Sampling { max_tokens: 400, temperature: 0.5, ..Sampling::default() };
        let stream = Stream::new(0, &ancestry("g", 0, 0));
        let mut response = Response::new(&sampling, &stream, 0, 256, Some(&constraint));
        assert_eq!(response.force(3), br#"{"note":""#.map(u32::from));
        let mut draws = 0;
        while response.wait() == Wait::Draw {
            let logits: Vec<f32> = (0..257).map(|id| (id % 29) as f32 / 4.0).collect();
            let pick_ = response.pick(0);
            assert_eq!(pick_.uniform, stream.uniform(0, response.columns().ids.len() as u32));
            let Picked::Token(token) = pick(&logits, &pick_) else { panic!("not finite") };
            response.take(&token, 3).unwrap();
            response.force(3);
            draws += 1;
        }
        let columns = response.columns();
        let reply: Vec<u8> = columns.ids.iter().filter_map(|id| u8::try_from(*id).ok()).collect();
        let image = furrow_rollout::Size::new(100, 100);
        let read = crate::grammar::parse(
            &grammar,
            str::from_utf8(&reply).unwrap(),
            crate::grammar::Seen::image(image),
        );
        assert!(read.action.is_ok(), "{read:?}");
        assert_eq!(columns.mask.iter().filter(|mask| **mask).count(), draws);
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
