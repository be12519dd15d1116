//! Text of tokens as they come: whole characters only, nothing of a text to stop at, the same however it is cut.

use std::collections::VecDeque;

use furrow_model::tokenizer::Tokenizer;
use furrow_openai::server::{Delta, TokenLogprob};

use crate::draw::Watched;

/// What was drawn and not told yet.
pub(super) struct Unfolding<'a> {
    tokenizer: &'a Tokenizer,
    stops: &'a [String],
    wants_logprobs: bool,
    wants_ids: bool,
    bytes: Vec<u8>,
    /// Bytes told before those.
    told: usize,
    /// Whether a text to stop at came.
    is_over: bool,
    /// Tokens that were not told, in their order.
    tokens: VecDeque<Drawn>,
}

/// A token, and where its bytes begin in the text.
struct Drawn {
    at: usize,
    token: Watched,
}

impl<'a> Unfolding<'a> {
    pub fn new(tokenizer: &'a Tokenizer, stops: &'a [String], wants_logprobs: bool, wants_ids: bool) -> Self {
        Self {
            tokenizer,
            stops,
            wants_logprobs,
            wants_ids,
            bytes: Vec::new(),
            told: 0,
            is_over: false,
            tokens: VecDeque::new(),
        }
    }

    /// Takes a token; `Some` when there is text to tell.
    pub fn push(&mut self, token: Watched) -> Option<Delta> {
        if self.is_over {
            return None;
        }
        let vocabulary = self.tokenizer.vocabulary();
        let id = token.id;
        self.tokens.push_back(Drawn { at: self.told + self.bytes.len(), token });
        if !vocabulary.is_special(id) {
            self.bytes.extend(vocabulary.bytes(id).unwrap_or_default());
        }
        self.cut();
        let ready = self.ready();
        let text = self.take(ready);
        (!text.is_empty()).then(|| self.delta(text, self.told))
    }

    /// What is left when nothing more comes.
    pub fn finish(mut self) -> Delta {
        let text = self.take(self.bytes.len());
        self.delta(text, usize::MAX)
    }

    /// Cuts off the first text to stop at and all behind it. A token that begins before it is told whole.
    fn cut(&mut self) {
        let places = self
            .stops
            .iter()
            .filter_map(|stop| self.bytes.windows(stop.len()).position(|window| window == stop.as_bytes()));
        if let Some(place) = places.min() {
            self.bytes.truncate(place);
            self.is_over = true;
            let end = self.told + place;
            self.tokens.retain(|drawn| drawn.at < end);
        }
    }

    /// Bytes that can be told: what may begin a text to stop at waits, and so does a character of which more may come.
    fn ready(&self) -> usize {
        let mut ready = self.bytes.len();
        if !self.is_over {
            let begins =
                |at: usize| self.stops.iter().any(|stop| stop.as_bytes().starts_with(&self.bytes[at..]));
            let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
            let from = ready.saturating_sub(longest);
            ready = (from..ready).find(|at| begins(*at)).unwrap_or(ready);
        }
        match self.bytes[..ready].utf8_chunks().last() {
            Some(last) if may_go_on(last.invalid()) => ready - last.invalid().len(),
            _ => ready,
        }
    }

    fn take(&mut self, ready: usize) -> String {
        let told: Vec<u8> = self.bytes.drain(..ready).collect();
        self.told += told.len();
        String::from_utf8_lossy(&told).into_owned()
    }

    /// This text and the tokens that begin before a place of the whole.
    fn delta(&mut self, text: String, end: usize) -> Delta {
        let ready = self.tokens.iter().take_while(|drawn| drawn.at < end).count();
        let tokens: Vec<Watched> = self.tokens.drain(..ready).map(|drawn| drawn.token).collect();
        let vocabulary = self.tokenizer.vocabulary();
        let alone = |id: u32, logprob: f32| {
            let bytes = vocabulary.bytes(id).unwrap_or_default();
            let token = String::from_utf8_lossy(bytes).into_owned();
            TokenLogprob { token, bytes: bytes.to_vec(), logprob, top: Vec::new() }
        };
        let logprobs = tokens.iter().filter_map(|token| {
            let top = token.likeliest.iter().map(|(id, logprob)| alone(*id, *logprob)).collect();
            Some(TokenLogprob { top, ..alone(token.id, token.logprob?) })
        });
        Delta {
            text,
            logprobs: self.wants_logprobs.then(|| logprobs.collect()),
            token_ids: self.wants_ids.then(|| tokens.iter().map(|token| token.id).collect()),
        }
    }
}

/// Whether bytes that are no character can become one.
fn may_go_on(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    /// A tokenizer of bytes alone, the shape of the published ones: 256 entries in their alphabet.
    fn tokenizer() -> Tokenizer {
        let folder = tempfile::tempdir().unwrap();
        let what = furrow_model::init::Init {
            size: furrow_model::init::Size::Tiny,
            seed: 1,
            dtype: furrow_model::init::StoredType::Bfloat16,
            shard_bytes_max: u64::MAX,
        };
        let dir = folder.path().join("tiny");
        furrow_model::init::init(&dir, &what).unwrap();
        Tokenizer::open(Path::new(&dir)).unwrap()
    }

    fn watched(id: u32) -> Watched {
        Watched { id, logprob: Some(-1.0), likeliest: Vec::new() }
    }

    fn told(tokenizer: &Tokenizer, stops: &[String], ids: &[u32]) -> (Vec<String>, String) {
        let mut unfolding = Unfolding::new(tokenizer, stops, true, true);
        let mut parts = Vec::new();
        let (mut seen, mut logprobs) = (Vec::new(), 0);
        let deltas: Vec<Delta> = ids.iter().filter_map(|id| unfolding.push(watched(*id))).collect();
        for delta in deltas.into_iter().chain([unfolding.finish()]) {
            seen.extend(delta.token_ids.unwrap());
            logprobs += delta.logprobs.unwrap().len();
            parts.push(delta.text);
        }
        let whole = parts.concat();
        // Every token is told once, but for those that begin behind the text.
        let bytes = |ids: &[u32]| -> Vec<u8> {
            ids.iter().flat_map(|id| tokenizer.vocabulary().bytes(*id).unwrap()).copied().collect()
        };
        let all = bytes(ids);
        let places = stops
            .iter()
            .filter_map(|stop| all.windows(stop.len()).position(|window| window == stop.as_bytes()));
        let told = match places.min() {
            Some(end) => (0..=ids.len()).find(|count| bytes(&ids[..*count]).len() >= end).unwrap(),
            None => ids.len(),
        };
        assert_eq!((&seen[..], logprobs), (&ids[..told], told));
        (parts, whole)
    }

    #[test]
    fn characters_come_whole_and_stops_not_at_all() {
        let tokenizer = tokenizer();
        let bytes = |text: &[u8]| -> Vec<u32> {
            let of = |byte: &u8| {
                let mut texts = tokenizer.vocabulary().texts();
                texts.find(|(_, text)| *text == [*byte]).map(|(id, _)| id).unwrap()
            };
            text.iter().map(of).collect()
        };
        let check = |stops: &[&str], text: &[u8], want: &str| {
            let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
            let (parts, whole) = told(&tokenizer, &stops, &bytes(text));
            assert_eq!(whole, want);
            assert!(parts.iter().all(|part| !part.contains('\u{fffd}')) || want.contains('\u{fffd}'));
        };
        check(&[], "né 漢🦀".as_bytes(), "né 漢🦀");
        check(&[], b"a\xE6\x97", "a\u{fffd}");
        check(&[], b"a\xE6\xFFb", "a\u{fffd}\u{fffd}b");
        check(&["END"], b"one ENDtwo END", "one ");
        check(&["END"], b"one EN", "one EN");
        check(&["ENDE", "DEE"], b"xENDEE", "x");
        check(&["é"], "cafés".as_bytes(), "caf");
        check(&["aab"], b"aaab", "a");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// However the bytes are cut into tokens and told, the text is that of all of them up to the first stop.
        #[test]
        fn parts_make_the_whole(picks in prop::collection::vec(any::<prop::sample::Index>(), 0..60), stop in "[a-c]{0,3}") {
            thread_local!(static TOKENIZER: Tokenizer = tokenizer());
            TOKENIZER.with(|tokenizer| {
                let vocabulary = tokenizer.vocabulary();
                let texts: Vec<u32> = vocabulary.texts().map(|(id, _)| id).collect();
                let ids: Vec<u32> = picks.iter().map(|pick| *pick.get(&texts)).collect();
                let stops: Vec<String> = (!stop.is_empty()).then(|| stop.clone()).into_iter().collect();
                let all: Vec<u8> = ids.iter().flat_map(|id| vocabulary.bytes(*id).unwrap()).copied().collect();
                let end = stops.first().and_then(|stop| all.windows(stop.len()).position(|window| window == stop.as_bytes()));
                let want = String::from_utf8_lossy(&all[..end.unwrap_or(all.len())]).into_owned();
                prop_assert_eq!(told(tokenizer, &stops, &ids).1, want);
                Ok(())
            })?;
        }
    }
}
