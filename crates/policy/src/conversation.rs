//! Connects the context of a session with its sequences in the engine: builds the segments that a
//! step runs, and those that rebuild a recorded step.

use std::collections::BTreeMap;
use std::sync::Arc;

use furrow_rollout::{ContextPolicy, TokenTrace};

use crate::context::{ImageDelimiters, PromptTurn, RebuildError, StepPrompt, TokenContext};
use crate::sequence::{PositionedImage, TiledImage, TokenSegment};

/// How a step that stays in the context runs again when a session is rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RebuildMode {
    /// One chunk group for each decoded token, as the step ran at first. For devices on which the
    /// last bits of a row depend on the span it ran in.
    AsDecoded,
    /// As one chunk group. For devices whose rows do not depend on chunk boundaries, such as the
    /// `cpu` backend. A reply of 150 tokens is then prefilled at once instead of token by token.
    AtOnce,
}

/// A session's context, images and segments that wait for the engine.
#[derive(Debug, Clone)]
pub(crate) struct Conversation {
    keep: ContextPolicy,
    rebuild_mode: RebuildMode,
    context: TokenContext,
    /// Images that a later prompt shows again, by step.
    pictures: BTreeMap<u32, Arc<TiledImage>>,
    /// Position where instructions and task end in the first turn. Sessions of a group agree up to
    /// there.
    task_end: Option<u32>,
    /// Kept tokens that the engine has not received yet. They run with the next step, so that a
    /// session does not wait twice for a prefill.
    pending: Vec<TokenSegment>,
}

/// What a step runs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PromptPlan {
    /// The prompt, as the records store it.
    pub prompt: StepPrompt,
    /// Pending segments that follow the kept tokens.
    pub kept: Vec<TokenSegment>,
    /// The prompt's segment, which follows those.
    pub segment: TokenSegment,
    /// Whether prompt and reply stay in the sequence.
    pub keeps_reply: bool,
}

impl Conversation {
    /// Creates an empty conversation.
    pub(crate) fn new(keep: ContextPolicy, rebuild_mode: RebuildMode) -> Self {
        Self {
            keep,
            rebuild_mode,
            context: TokenContext::new(keep),
            pictures: BTreeMap::new(),
            task_end: None,
            pending: Vec::new(),
        }
    }

    /// Number of prompt tokens if this turn were shown.
    pub(crate) fn tokens_with(&self, turn: &PromptTurn) -> usize {
        let StepPrompt { prefix_len, token_ids, .. } = self.context.prompt(turn);
        prefix_len as usize + token_ids.len()
    }

    /// Plans the prompt of a turn. `task_end` is where instructions and task end in the turn; only
    /// the first one counts.
    pub(crate) fn plan_prompt(
        &mut self,
        turn: &PromptTurn,
        picture: Option<Arc<TiledImage>>,
        task_end: u32,
    ) -> PromptPlan {
        self.task_end.get_or_insert(task_end);
        self.keep_picture(turn, picture);
        let prompt = self.context.prompt(turn);
        let segment = self.prompt_segment(&prompt);
        let keeps_reply = self.keep == ContextPolicy::Append;
        PromptPlan { prompt, kept: std::mem::take(&mut self.pending), segment, keeps_reply }
    }

    /// Commits the response to the turn. Returns `commit_token_ids`.
    pub(crate) fn commit_response(&mut self, turn: PromptTurn, response: &[u32]) -> Option<Vec<u32>> {
        let is_first = self.context.kept().is_empty();
        let commit = self.context.commit(turn, response);
        self.push_pending(commit.as_deref(), is_first);
        self.forget_pictures();
        commit
    }

    /// Adds a recorded step. Returns the segment that the engine must run before images are
    /// dropped.
    pub(crate) fn rebuild_step(
        &mut self,
        step: u32,
        trace: &TokenTrace,
        picture: Option<Arc<TiledImage>>,
        delimiters: ImageDelimiters,
    ) -> Result<Option<TokenSegment>, RebuildError> {
        let is_first = self.context.kept().is_empty();
        let mut after = self.context.clone();
        let turn = after.rebuild_turn(step, trace, delimiters)?;
        let leaves = turn.image.as_ref().map(|image| image.leaves.start);
        self.task_end.get_or_insert(leaves.unwrap_or(turn.ids.len() as u32));
        self.keep_picture(&turn, picture);
        let prompt = self.context.prompt(&turn);
        let segment = (self.keep == ContextPolicy::Append).then(|| self.decoded_segment(&prompt, trace));
        self.context = after;
        self.push_pending(trace.commit_token_ids.as_deref(), is_first);
        self.forget_pictures();
        Ok(segment)
    }

    /// Returns what a recorded step was shown: the kept tokens that the engine has not received
    /// yet, and the prompt after them. Keeps nothing of the step.
    pub(crate) fn prompt_before(
        &mut self,
        step: u32,
        trace: &TokenTrace,
        picture: Option<Arc<TiledImage>>,
        delimiters: ImageDelimiters,
    ) -> Result<(Vec<TokenSegment>, TokenSegment), RebuildError> {
        let turn = self.context.clone().rebuild_turn(step, trace, delimiters)?;
        let leaves = turn.image.as_ref().map(|image| image.leaves.start);
        self.task_end.get_or_insert(leaves.unwrap_or(turn.ids.len() as u32));
        self.keep_picture(&turn, picture);
        let prompt = self.context.prompt(&turn);
        Ok((std::mem::take(&mut self.pending), self.prompt_segment(&prompt)))
    }

    /// Builds the segment of a step that stays. Each sampled token ends a chunk group; the tokens
    /// after the last one run with the next step.
    fn decoded_segment(&self, prompt: &StepPrompt, trace: &TokenTrace) -> TokenSegment {
        let mut segment = self.prompt_segment(prompt);
        let start = segment.ids.len() as u32;
        let sampled = (0..).zip(&trace.response_mask).filter(|(_, sampled)| **sampled);
        segment.ends = sampled.map(|(at, _)| start + at).collect();
        if self.rebuild_mode == RebuildMode::AtOnce {
            segment.ends.drain(..segment.ends.len().saturating_sub(1));
        }
        segment.ids.extend(&trace.response_token_ids);
        segment
    }

    fn keep_picture(&mut self, turn: &PromptTurn, picture: Option<Arc<TiledImage>>) {
        if let (Some(image), Some(picture)) = (&turn.image, picture) {
            self.pictures.insert(image.span.step, picture);
        }
    }

    /// Drops the images that no later prompt shows: a tile of 512 x 512 is 3 MB.
    fn forget_pictures(&mut self) {
        let shown_again = match self.keep {
            ContextPolicy::Window(pictures) => pictures as usize - 1,
            ContextPolicy::Append | ContextPolicy::LastImage | ContextPolicy::Fresh => 0,
        };
        while self.pictures.len() > shown_again {
            self.pictures.pop_first();
        }
    }

    /// Builds the segment of the tokens after the kept ones, with its images and fork points.
    fn prompt_segment(&self, prompt: &StepPrompt) -> TokenSegment {
        let behind = prompt.image_spans.iter().filter(|span| span.token_start >= prompt.prefix_len);
        let positioned = behind.filter_map(|span| {
            let picture = Arc::clone(self.pictures.get(&span.step)?);
            Some(PositionedImage { at: span.token_start - prompt.prefix_len, picture })
        });
        let pictures = positioned.collect();
        let forks = if prompt.prefix_len == 0 { self.forks(prompt) } else { Vec::new() };
        TokenSegment { ids: prompt.token_ids.clone(), pictures, ends: Vec::new(), forks }
    }

    /// Fork points of a prompt that keeps no tokens: after instructions and task, and after the
    /// first page with its closing delimiter.
    fn forks(&self, prompt: &StepPrompt) -> Vec<u32> {
        let first_page = prompt.image_spans.first().filter(|span| span.step == 0);
        let page_end = first_page.map(|span| span.token_start + span.token_len + 1);
        let inside = 1..prompt.token_ids.len() as u32;
        self.task_end.into_iter().chain(page_end).filter(|position| inside.contains(position)).collect()
    }

    fn push_pending(&mut self, commit: Option<&[u32]>, is_first: bool) {
        let Some(text) = commit.filter(|text| !text.is_empty()) else { return };
        let mut segment = TokenSegment::text(text.to_vec());
        if is_first {
            let inside = 1..text.len() as u32;
            segment.forks.extend(self.task_end.filter(|position| inside.contains(position)));
        }
        self.pending.push(segment);
    }
}
