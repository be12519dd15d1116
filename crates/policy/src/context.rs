//! What a session keeps between steps, and the prompt that follows from it: functions on lists of
//! ids.
//!
//! Write K_t for the kept tokens before step t. Then `prompt_t = K_t ++ prompt_token_ids_t` and
//! `K_{t+1} = K_t ++ commit_token_ids_t`.
//!
//! | policy | `prompt_token_ids` | `commit_token_ids` |
//! |---|---|---|
//! | `append` | the turn | null: prompt ++ response |
//! | `last_image` | the turn | the turn's text ++ response |
//! | `window(k)` | the window; the turn | text ++ response of the turn that leaves the window |
//! | `fresh` | the turn, which is a whole prompt | nothing |
//!
//! The window holds the last k - 1 turns, images included, each with its response. Until it is
//! full, no turn leaves it, and nothing is committed. `last_image` is `window(1)`. Prompts repeat
//! responses as they were sampled. K holds images only under `append`.

use std::collections::VecDeque;
use std::ops::Range;

use furrow_rollout::{ContextPolicy, ImageSpan, TokenTrace, token_hash};

/// The part that one observation adds to the conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PromptTurn {
    /// Its ids, placeholders included.
    pub ids: Vec<u32>,
    pub image: Option<TurnImage>,
}

/// An image in a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TurnImage {
    /// Its placeholders; `token_start` counts from the turn's start.
    pub span: ImageSpan,
    /// The range of ids that is removed together with the image: the placeholders and the
    /// delimiters around them.
    pub leaves: Range<u32>,
}

/// Ids around an image's placeholders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImageDelimiters {
    /// The id before the first one.
    pub open: u32,
    /// The id after the last one.
    pub close: u32,
}

/// The prompt of a step, as the records store it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepPrompt {
    pub prefix_len: u32,
    pub prefix_hash: [u8; 16],
    pub token_ids: Vec<u32>,
    /// Images of K ++ token_ids.
    pub image_spans: Vec<ImageSpan>,
    /// Hash of K ++ token_ids.
    pub prompt_hash: [u8; 16],
}

/// The kept tokens and the turns that later prompts repeat.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenContext {
    keep: ContextPolicy,
    kept: Vec<u32>,
    kept_spans: Vec<ImageSpan>,
    /// Turns after K that the next prompt repeats, oldest first.
    window: VecDeque<(PromptTurn, Vec<u32>)>,
}

/// Why a trace does not continue a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RebuildError {
    /// The kept tokens differ from those with which the step began.
    #[error("prefix_len and prefix_hash do not match the {kept} tokens that the steps before it kept")]
    Prefix {
        /// Length of K in this session.
        kept: usize,
    },
    /// The prompt does not follow this context policy.
    #[error("its prompt does not follow the context policy {keep}: {why}")]
    Prompt { keep: ContextPolicy, why: &'static str },
}

impl PromptTurn {
    /// The turn's ids without the image.
    pub(crate) fn text(&self) -> Vec<u32> {
        let Some(TurnImage { leaves, .. }) = &self.image else { return self.ids.clone() };
        [&self.ids[..leaves.start as usize], &self.ids[leaves.end as usize..]].concat()
    }

    /// Extracts a turn from a trace whose prompt has `start` tokens before it.
    fn from_trace(
        ids: &[u32],
        span: Option<&ImageSpan>,
        start: u32,
        delimiters: ImageDelimiters,
    ) -> Option<Self> {
        let Some(span) = span else { return Some(Self { ids: ids.to_vec(), image: None }) };
        let at = span.token_start.checked_sub(start)?;
        let (before, rest) = ids.split_at_checked(at as usize)?;
        let behind = rest.get(span.token_len as usize..)?;
        if before.last() != Some(&delimiters.open) || behind.first() != Some(&delimiters.close) {
            return None;
        }
        let leaves = at - 1..at + span.token_len + 1;
        let span = ImageSpan { token_start: at, ..span.clone() };
        Some(Self { ids: ids.to_vec(), image: Some(TurnImage { span, leaves }) })
    }
}

impl TokenContext {
    /// Creates a context that keeps nothing yet.
    pub(crate) fn new(keep: ContextPolicy) -> Self {
        Self { keep, kept: Vec::new(), kept_spans: Vec::new(), window: VecDeque::new() }
    }

    /// K, the kept tokens.
    pub(crate) fn kept(&self) -> &[u32] {
        &self.kept
    }

    /// The prompt that shows this turn.
    pub(crate) fn prompt(&self, turn: &PromptTurn) -> StepPrompt {
        let mut ids = self.kept.clone();
        let mut image_spans = self.kept_spans.clone();
        let repeated = self.window.iter().map(|(turn, response)| (turn, &response[..]));
        for (turn, response) in repeated.chain([(turn, &[][..])]) {
            image_spans.extend(turn.image.iter().map(|image| moved(&image.span, ids.len() as u32)));
            ids.extend(&turn.ids);
            ids.extend(response);
        }
        StepPrompt {
            prefix_len: self.kept.len() as u32,
            prefix_hash: token_hash(&self.kept, &self.kept_spans),
            prompt_hash: token_hash(&ids, &image_spans),
            token_ids: ids.split_off(self.kept.len()),
            image_spans,
        }
    }

    /// Keeps an answered turn and returns `commit_token_ids`.
    pub(crate) fn commit(&mut self, turn: PromptTurn, response: &[u32]) -> Option<Vec<u32>> {
        match self.keep {
            ContextPolicy::Append => {
                let start = self.kept.len() as u32;
                self.kept_spans.extend(turn.image.iter().map(|image| moved(&image.span, start)));
                self.kept.extend(turn.ids);
                self.kept.extend(response);
                None
            }
            ContextPolicy::LastImage => Some(self.commit_beyond(1, turn, response)),
            ContextPolicy::Window(pictures) => Some(self.commit_beyond(pictures, turn, response)),
            ContextPolicy::Fresh => Some(Vec::new()),
        }
    }

    /// The next prompt shows its own image and `images - 1` before it. The text of the turn before
    /// those is added to K.
    fn commit_beyond(&mut self, pictures: u32, turn: PromptTurn, response: &[u32]) -> Vec<u32> {
        self.window.push_back((turn, response.to_vec()));
        if self.window.len() < pictures as usize {
            return Vec::new();
        }
        let Some((turn, response)) = self.window.pop_front() else { return Vec::new() };
        let text = [turn.text(), response].concat();
        self.kept.extend(&text);
        text
    }

    /// Checks that a recorded step continues what is kept, and keeps it. Returns the step's own
    /// turn.
    pub(crate) fn rebuild_turn(
        &mut self,
        step: u32,
        trace: &TokenTrace,
        delimiters: ImageDelimiters,
    ) -> Result<PromptTurn, RebuildError> {
        let kept = self.kept.len();
        if trace.prefix_len as usize != kept || trace.prefix_hash != token_hash(&self.kept, &self.kept_spans)
        {
            return Err(RebuildError::Prefix { kept });
        }
        let keep = self.keep;
        let wrong = |why| RebuildError::Prompt { keep, why };
        let repeated: usize =
            self.window.iter().map(|(turn, response)| turn.ids.len() + response.len()).sum();
        let own = trace
            .prompt_token_ids
            .get(repeated..)
            .ok_or(wrong("it is shorter than the turns it must repeat"))?;
        let span = trace.image_spans.last().filter(|span| span.step == step);
        let turn = PromptTurn::from_trace(own, span, (kept + repeated) as u32, delimiters)
            .ok_or(wrong("there are no delimiters around its image"))?;
        let prompt = self.prompt(&turn);
        if prompt.token_ids != trace.prompt_token_ids || prompt.image_spans != trace.image_spans {
            return Err(wrong("it repeats other tokens or images than were shown"));
        }
        if prompt.prompt_hash != trace.prompt_hash {
            return Err(wrong("prompt_hash does not match its tokens"));
        }
        if self.commit(turn.clone(), &trace.response_token_ids) != trace.commit_token_ids {
            return Err(wrong("commit_token_ids differ from what it keeps"));
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

    /// Ids of a turn: text, delimiter 1, three 9s, delimiter 2, text.
    fn turn(step: u32) -> PromptTurn {
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
        PromptTurn { ids: vec![text, 1, 9, 9, 9, 2, text + 1], image: Some(TurnImage { span, leaves: 1..6 }) }
    }

    const DELIMITERS: ImageDelimiters = ImageDelimiters { open: 1, close: 2 };

    fn response(step: u32) -> Vec<u32> {
        vec![105 + step * 10]
    }

    fn trace(prompt: StepPrompt, commit: Option<Vec<u32>>, response: Vec<u32>) -> TokenTrace {
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

    /// The length of K, the ids that the prompt shows after it (an image is 9s), and what is
    /// committed.
    type WantedStep<'a> = (u32, &'a [u32], Option<&'a [u32]>);

    #[track_caller]
    fn check(keep: ContextPolicy, want: &[WantedStep<'_>]) {
        let mut context = TokenContext::new(keep);
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
            let mut context = TokenContext::new(keep);
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
    fn traces_alone_rebuild_the_kept_tokens_and_a_foreign_trace_is_refused() {
        let policies =
            [ContextPolicy::Append, ContextPolicy::LastImage, ContextPolicy::Window(3), ContextPolicy::Fresh];
        for keep in policies {
            let mut decoded = TokenContext::new(keep);
            let mut rebuilt = TokenContext::new(keep);
            for step in 0..6 {
                let prompt = decoded.prompt(&turn(step));
                let commit = decoded.commit(turn(step), &response(step));
                let recorded = trace(prompt, commit, response(step));
                let mut stranger = recorded.clone();
                stranger.prompt_token_ids[0] ^= 64;
                assert!(
                    rebuilt.clone().rebuild_turn(step, &stranger, DELIMITERS).is_err(),
                    "{keep} step {step}"
                );
                let elsewhere = rebuilt.clone().rebuild_turn(step + 1, &recorded, DELIMITERS);
                assert!(elsewhere.is_err() || keep == ContextPolicy::Append, "{keep} step {step}");
                assert_eq!(
                    rebuilt.rebuild_turn(step, &recorded, DELIMITERS),
                    Ok(turn(step)),
                    "{keep} step {step}"
                );
                assert_eq!(rebuilt, decoded);
            }
        }
    }
}
