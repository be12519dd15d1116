//! Decodes tokens into text as they arrive: only whole characters, nothing from a stop text on, and
//! the same text however it is cut into tokens.

use std::collections::VecDeque;

use furrow_model::tokenizer::Tokenizer;
use furrow_openai::server::{ChatDelta, TokenLogprob};

use crate::response::WatchedToken;

/// Tokens that were sampled and not sent yet.
pub(super) struct TextAssembler<'a> {
    tokenizer: &'a Tokenizer,
    stops: &'a [String],
    wants_logprobs: bool,
    wants_ids: bool,
    bytes: Vec<u8>,
    /// Number of bytes sent before `bytes`.
    emitted: usize,
    /// Whether a stop text was found.
    is_over: bool,
    /// Tokens that were not sent, in order.
    tokens: VecDeque<PendingToken>,
}

/// A token, and the position of its bytes in the text.
struct PendingToken {
    at: usize,
    token: WatchedToken,
}

impl<'a> TextAssembler<'a> {
    pub(super) fn new(
        tokenizer: &'a Tokenizer,
        stops: &'a [String],
        wants_logprobs: bool,
        wants_ids: bool,
    ) -> Self {
        Self {
            tokenizer,
            stops,
            wants_logprobs,
            wants_ids,
            bytes: Vec::new(),
            emitted: 0,
            is_over: false,
            tokens: VecDeque::new(),
        }
    }

    /// Adds a token; `Some` if there is text to send.
    pub(super) fn push(&mut self, token: WatchedToken) -> Option<ChatDelta> {
        if self.is_over {
            return None;
        }
        let vocabulary = self.tokenizer.vocabulary();
        let id = token.id;
        self.tokens.push_back(PendingToken { at: self.emitted + self.bytes.len(), token });
        if !vocabulary.is_special(id) {
            self.bytes.extend(vocabulary.bytes(id).unwrap_or_default());
        }
        self.cut();
        let ready = self.ready();
        let text = self.take(ready);
        (!text.is_empty()).then(|| self.delta(text, self.emitted))
    }

    /// The rest after the last token.
    pub(super) fn finish(mut self) -> ChatDelta {
        let text = self.take(self.bytes.len());
        self.delta(text, usize::MAX)
    }

    /// Removes the first stop text and everything after it. A token that begins before it is kept
    /// whole.
    fn cut(&mut self) {
        let positions = self
            .stops
            .iter()
            .filter_map(|stop| self.bytes.windows(stop.len()).position(|window| window == stop.as_bytes()));
        if let Some(position) = positions.min() {
            self.bytes.truncate(position);
            self.is_over = true;
            let end = self.emitted + position;
            self.tokens.retain(|pending| pending.at < end);
        }
    }

    /// Number of bytes that can be sent. The beginning of a possible stop text waits, and so does
    /// an incomplete character.
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
        let emitted: Vec<u8> = self.bytes.drain(..ready).collect();
        self.emitted += emitted.len();
        String::from_utf8_lossy(&emitted).into_owned()
    }

    /// This text and the tokens that begin before a position.
    fn delta(&mut self, text: String, end: usize) -> ChatDelta {
        let ready = self.tokens.iter().take_while(|pending| pending.at < end).count();
        let tokens: Vec<WatchedToken> = self.tokens.drain(..ready).map(|pending| pending.token).collect();
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
        ChatDelta {
            text,
            logprobs: self.wants_logprobs.then(|| logprobs.collect()),
            calls: Vec::new(),
            token_ids: self.wants_ids.then(|| tokens.iter().map(|token| token.id).collect()),
        }
    }
}

/// Whether invalid bytes can become a character.
fn may_go_on(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    /// A tokenizer of bytes alone, in the form of the published ones: 256 entries in their
    /// alphabet.
    fn tokenizer() -> Tokenizer {
        let folder = tempfile::tempdir().unwrap();
        let what = furrow_model::init::InitSpec {
            size: furrow_model::init::ModelSize::Tiny,
            seed: 1,
            dtype: furrow_model::init::StoredType::Bfloat16,
            shard_bytes_max: u64::MAX,
        };
        let dir = folder.path().join("tiny");
        furrow_model::init::init(&dir, &what).unwrap();
        Tokenizer::open(Path::new(&dir)).unwrap()
    }

    fn watched(id: u32) -> WatchedToken {
        WatchedToken { id, logprob: Some(-1.0), likeliest: Vec::new() }
    }

    fn assemble(tokenizer: &Tokenizer, stops: &[String], ids: &[u32]) -> (Vec<String>, String) {
        let mut unfolding = TextAssembler::new(tokenizer, stops, true, true);
        let mut parts = Vec::new();
        let mut received = Vec::new();
        let mut logprobs = 0;
        let deltas: Vec<ChatDelta> = ids.iter().filter_map(|id| unfolding.push(watched(*id))).collect();
        for delta in deltas.into_iter().chain([unfolding.finish()]) {
            received.extend(delta.token_ids.unwrap());
            logprobs += delta.logprobs.unwrap().len();
            parts.push(delta.text);
        }
        let whole = parts.concat();
        // Every token is sent once, except those that begin after the text.
        let bytes = |ids: &[u32]| -> Vec<u8> {
            ids.iter().flat_map(|id| tokenizer.vocabulary().bytes(*id).unwrap()).copied().collect()
        };
        let all = bytes(ids);
        let positions = stops
            .iter()
            .filter_map(|stop| all.windows(stop.len()).position(|window| window == stop.as_bytes()));
        let expected = match positions.min() {
            Some(end) => (0..=ids.len()).find(|count| bytes(&ids[..*count]).len() >= end).unwrap(),
            None => ids.len(),
        };
        assert_eq!((&received[..], logprobs), (&ids[..expected], expected));
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
            let (parts, whole) = assemble(&tokenizer, &stops, &bytes(text));
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
        /// However the bytes are cut into tokens and parts, the text is all of them up to the first
        /// stop text.
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
                prop_assert_eq!(assemble(tokenizer, &stops, &ids).1, want);
                Ok(())
            })?;
        }
    }
}
