//! What a session keeps between steps, and the prompt that follows from it: functions on lists of ids, nothing else.
//!
//! Write K_t for the kept tokens before step t. Then `prompt_t = K_t ++ prompt_token_ids_t` and `K_{t+1} = K_t ++ commit_token_ids_t`.
//!
//! | policy | `prompt_token_ids` | `commit_token_ids` |
//! |---|---|---|
//! | `append` | the turn | null: prompt ++ response |
//! | `last_image` | the turn | the turn's text ++ response |
//! | `window(k)` | the turns before it whose pictures are still seen, with their responses; the turn | text ++ response of the turn whose picture is seen no more; until there is one, nothing |
//! | `fresh` | the turn, which is a whole prompt | nothing |
//!
//! `last_image` is `window(1)`. Responses re-enter as they were sampled. Only under `append` does K hold pictures.

use std::collections::VecDeque;
use std::ops::Range;

use furrow_rollout::{ContextPolicy, ImageSpan, TokenTrace, token_hash};

/// What one observation adds to the conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// Its ids, placeholders included.
    pub ids: Vec<u32>,
    /// The picture in it.
    pub seen: Option<Seen>,
}

/// A picture in a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its placeholders; `token_start` counts from the turn's start.
    pub span: ImageSpan,
    /// What leaves the turn's ids when the picture does: the placeholders and the marks around them.
    pub leaves: Range<u32>,
}

/// Ids around a picture's placeholders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// Before the first one.
    pub open: u32,
    /// Behind the last one.
    pub close: u32,
}

/// The prompt of a step, as the records tell it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Length of K.
    pub prefix_len: u32,
    /// Hash of K.
    pub prefix_hash: [u8; 16],
    /// Tokens behind K.
    pub token_ids: Vec<u32>,
    /// Pictures of K ++ token_ids.
    pub image_spans: Vec<ImageSpan>,
    /// Hash of K ++ token_ids.
    pub prompt_hash: [u8; 16],
}

/// What is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Context {
    keep: ContextPolicy,
    kept: Vec<u32>,
    kept_spans: Vec<ImageSpan>,
    /// Turns behind K that the next prompt enters again, oldest first.
    again: VecDeque<(Turn, Vec<u32>)>,
}

/// Why a trace does not continue a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecallError {
    /// The kept tokens are not those the step began with.
    #[error("prefix_len and prefix_hash are not those of the {kept} tokens that the steps before it kept")]
    Prefix {
        /// Length of K here.
        kept: usize,
    },
    /// The prompt cannot be read as this context policy's.
    #[error("its prompt is not one of the context policy {keep}: {why}")]
    Prompt {
        /// The context policy.
        keep: ContextPolicy,
        /// What is wrong.
        why: &'static str,
    },
}

impl Turn {
    /// Its ids without the picture.
    pub fn text(&self) -> Vec<u32> {
        let Some(Seen { leaves, .. }) = &self.seen else { return self.ids.clone() };
        [&self.ids[..leaves.start as usize], &self.ids[leaves.end as usize..]].concat()
    }

    /// A turn out of a trace, whose prompt holds `start` tokens before it.
    fn found(ids: &[u32], span: Option<&ImageSpan>, start: u32, marks: Marks) -> Option<Self> {
        let Some(span) = span else { return Some(Self { ids: ids.to_vec(), seen: None }) };
        let at = span.token_start.checked_sub(start)?;
        let (before, rest) = ids.split_at_checked(at as usize)?;
        let behind = rest.get(span.token_len as usize..)?;
        if before.last() != Some(&marks.open) || behind.first() != Some(&marks.close) {
            return None;
        }
        let leaves = at - 1..at + span.token_len + 1;
        let span = ImageSpan { token_start: at, ..span.clone() };
        Some(Self { ids: ids.to_vec(), seen: Some(Seen { span, leaves }) })
    }
}

impl Context {
    /// Nothing kept yet.
    pub fn new(keep: ContextPolicy) -> Self {
        Self { keep, kept: Vec::new(), kept_spans: Vec::new(), again: VecDeque::new() }
    }

    /// K.
    pub fn kept(&self) -> &[u32] {
        &self.kept
    }

    /// The prompt that shows this turn.
    pub fn prompt(&self, turn: &Turn) -> Prompt {
        let mut ids = self.kept.clone();
        let mut image_spans = self.kept_spans.clone();
        let again = self.again.iter().map(|(turn, response)| (turn, &response[..]));
        for (turn, response) in again.chain([(turn, &[][..])]) {
            image_spans.extend(turn.seen.iter().map(|seen| moved(&seen.span, ids.len() as u32)));
            ids.extend(&turn.ids);
            ids.extend(response);
        }
        Prompt {
            prefix_len: self.kept.len() as u32,
            prefix_hash: token_hash(&self.kept, &self.kept_spans),
            prompt_hash: token_hash(&ids, &image_spans),
            token_ids: ids.split_off(self.kept.len()),
            image_spans,
        }
    }

    /// Keeps a turn that was answered and returns `commit_token_ids`.
    pub fn commit(&mut self, turn: Turn, response: &[u32]) -> Option<Vec<u32>> {
        match self.keep {
            ContextPolicy::Append => {
                let start = self.kept.len() as u32;
                self.kept_spans.extend(turn.seen.iter().map(|seen| moved(&seen.span, start)));
                self.kept.extend(turn.ids);
                self.kept.extend(response);
                None
            }
            ContextPolicy::LastImage => Some(self.commit_beyond(1, turn, response)),
            ContextPolicy::Window(pictures) => Some(self.commit_beyond(pictures, turn, response)),
            ContextPolicy::Fresh => Some(Vec::new()),
        }
    }

    /// The next prompt shows its own picture and `pictures - 1` before it; the text of the turn before those goes into K.
    fn commit_beyond(&mut self, pictures: u32, turn: Turn, response: &[u32]) -> Vec<u32> {
        self.again.push_back((turn, response.to_vec()));
        if self.again.len() < pictures as usize {
            return Vec::new();
        }
        let Some((turn, response)) = self.again.pop_front() else { return Vec::new() };
        let text = [turn.text(), response].concat();
        self.kept.extend(&text);
        text
    }

    /// Keeps a step out of a trace, after checking that the trace continues what is kept. Returns the step's own turn.
    pub fn recall(&mut self, step: u32, trace: &TokenTrace, marks: Marks) -> Result<Turn, RecallError> {
        let kept = self.kept.len();
        if trace.prefix_len as usize != kept || trace.prefix_hash != token_hash(&self.kept, &self.kept_spans)
        {
            return Err(RecallError::Prefix { kept });
        }
        let keep = self.keep;
        let wrong = |why| RecallError::Prompt { keep, why };
        let again: usize = self.again.iter().map(|(turn, response)| turn.ids.len() + response.len()).sum();
        let own =
            trace.prompt_token_ids.get(again..).ok_or(wrong("it is shorter than what it enters again"))?;
        let span = trace.image_spans.last().filter(|span| span.step == step);
        let turn = Turn::found(own, span, (kept + again) as u32, marks)
            .ok_or(wrong("there are no marks around its picture"))?;
        let prompt = self.prompt(&turn);
        if prompt.token_ids != trace.prompt_token_ids || prompt.image_spans != trace.image_spans {
            return Err(wrong("it enters other tokens or pictures again than were seen"));
        }
        if prompt.prompt_hash != trace.prompt_hash {
            return Err(wrong("prompt_hash is not that of its tokens"));
        }
        if self.commit(turn.clone(), &trace.response_token_ids) != trace.commit_token_ids {
            return Err(wrong("commit_token_ids are not what it keeps"));
        }
        Ok(turn)
    }
}

fn moved(span: &ImageSpan, by: u32) -> ImageSpan {
    ImageSpan { token_start: span.token_start + by, ..span.clone() }
}

#[cfg(test)]
mod tests {
    use furrow_rollout::FinishReason;

    use super::*;

    /// Ids of a turn: text, mark 1, three 9s, mark 2, text.
    fn turn(step: u32) -> Turn {
        let text = 100 + step * 10;
        let span = ImageSpan {
            step,
            token_start: 2,
            token_len: 3,
            tiles_x: 1,
            tiles_y: 1,
            blob_sha256: [step as u8; 32],
            rgb_sha256: [step as u8; 32],
        };
        Turn { ids: vec![text, 1, 9, 9, 9, 2, text + 1], seen: Some(Seen { span, leaves: 1..6 }) }
    }

    const MARKS: Marks = Marks { open: 1, close: 2 };

    fn response(step: u32) -> Vec<u32> {
        vec![105 + step * 10]
    }

    fn trace(prompt: Prompt, commit: Option<Vec<u32>>, response: Vec<u32>) -> TokenTrace {
        TokenTrace {
            prompt_token_ids: prompt.token_ids,
            image_spans: prompt.image_spans,
            response_mask: vec![true; response.len()],
            forced: vec![false; response.len()],
            policy_versions: vec![0; response.len()],
            response_token_ids: response,
            commit_token_ids: commit,
            prefix_len: prompt.prefix_len,
            prefix_hash: prompt.prefix_hash,
            prompt_hash: prompt.prompt_hash,
            finish_reason: FinishReason::Stop,
            logprobs: None,
            sampled_logprobs: None,
            kept_count: None,
            kept_token_ids: vec![],
            kept_offsets: vec![],
            entropy: None,
        }
    }

    /// How long K is, which ids the prompt shows behind it (a picture is 9s), and what is committed.
    type Step<'a> = (u32, &'a [u32], Option<&'a [u32]>);

    #[track_caller]
    fn check(keep: ContextPolicy, want: &[Step<'_>]) {
        let mut context = Context::new(keep);
        for (step, (kept, shown, commit)) in (0..).zip(want) {
            let prompt = context.prompt(&turn(step));
            assert_eq!((prompt.prefix_len, &prompt.token_ids[..]), (*kept, *shown), "{keep} step {step}");
            assert_eq!(context.commit(turn(step), &response(step)).as_deref(), *commit, "{keep} step {step}");
        }
    }

    #[test]
    fn each_policy_shows_and_keeps_what_its_name_says() {
        let t0: &[u32] = &[100, 1, 9, 9, 9, 2, 101];
        let t1: &[u32] = &[110, 1, 9, 9, 9, 2, 111];
        let t2: &[u32] = &[120, 1, 9, 9, 9, 2, 121];
        let t3: &[u32] = &[130, 1, 9, 9, 9, 2, 131];
        check(ContextPolicy::Append, &[(0, t0, None), (8, t1, None), (16, t2, None)]);
        let text: [&[u32]; 3] = [&[100, 101, 105], &[110, 111, 115], &[120, 121, 125]];
        let last_image = [(0, t0, Some(text[0])), (3, t1, Some(text[1])), (6, t2, Some(text[2]))];
        check(ContextPolicy::LastImage, &last_image);
        check(ContextPolicy::Window(1), &last_image);
        let t01 = [t0, &[105], t1].concat();
        let t12 = [t1, &[115], t2].concat();
        let t23 = [t2, &[125], t3].concat();
        check(
            ContextPolicy::Window(2),
            &[
                (0, t0, Some(&[])),
                (0, &t01, Some(text[0])),
                (3, &t12, Some(text[1])),
                (6, &t23, Some(text[2])),
            ],
        );
        check(ContextPolicy::Fresh, &[(0, t0, Some(&[])), (0, t1, Some(&[]))]);
    }

    #[test]
    fn image_spans_count_from_the_whole_prompt() {
        let starts = |keep| {
            let mut context = Context::new(keep);
            for step in 0..2 {
                context.commit(turn(step), &response(step));
            }
            let spans = context.prompt(&turn(2)).image_spans;
            spans.iter().map(|span| (span.step, span.token_start)).collect::<Vec<_>>()
        };
        assert_eq!(starts(ContextPolicy::Append), [(0, 2), (1, 10), (2, 18)]);
        assert_eq!(starts(ContextPolicy::LastImage), [(2, 8)]);
        assert_eq!(starts(ContextPolicy::Window(2)), [(1, 5), (2, 13)]);
        assert_eq!(starts(ContextPolicy::Fresh), [(2, 2)]);
    }

    #[test]
    fn traces_alone_rebuild_what_is_kept_and_a_stranger_is_refused() {
        let policies =
            [ContextPolicy::Append, ContextPolicy::LastImage, ContextPolicy::Window(3), ContextPolicy::Fresh];
        for keep in policies {
            let (mut lived, mut rebuilt) = (Context::new(keep), Context::new(keep));
            for step in 0..6 {
                let prompt = lived.prompt(&turn(step));
                let commit = lived.commit(turn(step), &response(step));
                let told = trace(prompt, commit, response(step));
                let mut stranger = told.clone();
                stranger.prompt_token_ids[0] ^= 64;
                assert!(rebuilt.clone().recall(step, &stranger, MARKS).is_err(), "{keep} step {step}");
                let elsewhere = rebuilt.clone().recall(step + 1, &told, MARKS);
                assert!(elsewhere.is_err() || keep == ContextPolicy::Append, "{keep} step {step}");
                assert_eq!(rebuilt.recall(step, &told, MARKS), Ok(turn(step)), "{keep} step {step}");
                assert_eq!(rebuilt, lived);
            }
        }
    }
}
