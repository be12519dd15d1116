//! Between the context of a session and its sequences in the engine: which stretches a step lays, and which a trace lays again.

use std::collections::BTreeMap;
use std::sync::Arc;

use furrow_rollout::{ContextPolicy, TokenTrace};

use crate::context::{Context, Marks, Prompt, RecallError, Turn};
use crate::sequence::{Picture, Placed, Stretch};

/// How a step that stayed is laid again when a session is rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    /// Leg by leg, as it was lived: for a device on which a row's last bits depend on the span it ran in.
    AsLived,
    /// In one leg: for a device whose rows do not depend on cuts, such as the `cpu` backend. A reply of 150 tokens is then prefilled
    /// at once instead of token by token.
    AtOnce,
}

/// A session's conversation.
#[derive(Debug, Clone)]
pub struct Conversation {
    keep: ContextPolicy,
    replay: Replay,
    context: Context,
    /// Pictures that a later prompt shows again, by step.
    pictures: BTreeMap<u32, Arc<Picture>>,
    /// Where instructions and task end in the first turn: up to there, sessions of a group agree.
    task_end: Option<u32>,
    /// Kept tokens that the engine was not told yet. They are run when the next step is, so that a session waits for no prefill twice.
    untold: Vec<Stretch>,
}

/// What a step lays.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown {
    /// The prompt, for the record.
    pub prompt: Prompt,
    /// Behind the kept tokens.
    pub kept: Vec<Stretch>,
    /// Behind those.
    pub stretch: Stretch,
    /// Whether prompt and reply stay.
    pub stays: bool,
}

impl Conversation {
    /// An empty one.
    pub fn new(keep: ContextPolicy, replay: Replay) -> Self {
        Self {
            keep,
            replay,
            context: Context::new(keep),
            pictures: BTreeMap::new(),
            task_end: None,
            untold: Vec::new(),
        }
    }

    /// Tokens of the prompt that would show this turn.
    pub fn tokens_with(&self, turn: &Turn) -> usize {
        let Prompt { prefix_len, token_ids, .. } = self.context.prompt(turn);
        prefix_len as usize + token_ids.len()
    }

    /// Shows a turn. `task_end`: where instructions and task end in it, if it is the first or holds them anew.
    pub fn show(&mut self, turn: &Turn, picture: Option<Arc<Picture>>, task_end: u32) -> Shown {
        self.task_end.get_or_insert(task_end);
        self.keep_picture(turn, picture);
        let prompt = self.context.prompt(turn);
        let stretch = self.stretch(&prompt);
        let stays = self.keep == ContextPolicy::Append;
        Shown { prompt, kept: std::mem::take(&mut self.untold), stretch, stays }
    }

    /// The turn that was shown got this response. Returns `commit_token_ids`.
    pub fn answered(&mut self, turn: Turn, response: &[u32]) -> Option<Vec<u32>> {
        let is_first = self.context.kept().is_empty();
        let commit = self.context.commit(turn, response);
        self.note(commit.as_deref(), is_first);
        self.forget_pictures();
        commit
    }

    /// Keeps a step out of a trace. Returns what the engine must run now, before the pictures are forgotten.
    pub fn recall(
        &mut self,
        step: u32,
        trace: &TokenTrace,
        picture: Option<Arc<Picture>>,
        marks: Marks,
    ) -> Result<Option<Stretch>, RecallError> {
        let is_first = self.context.kept().is_empty();
        let mut after = self.context.clone();
        let turn = after.recall(step, trace, marks)?;
        let leaves = turn.seen.as_ref().map(|seen| seen.leaves.start);
        self.task_end.get_or_insert(leaves.unwrap_or(turn.ids.len() as u32));
        self.keep_picture(&turn, picture);
        let prompt = self.context.prompt(&turn);
        let again = (self.keep == ContextPolicy::Append).then(|| self.lived(&prompt, trace));
        self.context = after;
        self.note(trace.commit_token_ids.as_deref(), is_first);
        self.forget_pictures();
        Ok(again)
    }

    /// What a step out of a trace was shown: kept tokens that the engine was not told yet, and the prompt behind them. Nothing of the
    /// step is kept.
    pub fn shown_before(
        &mut self,
        step: u32,
        trace: &TokenTrace,
        picture: Option<Arc<Picture>>,
        marks: Marks,
    ) -> Result<(Vec<Stretch>, Stretch), RecallError> {
        let turn = self.context.clone().recall(step, trace, marks)?;
        let leaves = turn.seen.as_ref().map(|seen| seen.leaves.start);
        self.task_end.get_or_insert(leaves.unwrap_or(turn.ids.len() as u32));
        self.keep_picture(&turn, picture);
        let prompt = self.context.prompt(&turn);
        Ok((std::mem::take(&mut self.untold), self.stretch(&prompt)))
    }

    /// A step that stayed: each draw ended a leg, and what followed the last one is run with the next step.
    fn lived(&self, prompt: &Prompt, trace: &TokenTrace) -> Stretch {
        let mut stretch = self.stretch(prompt);
        let start = stretch.ids.len() as u32;
        let sampled = (0..).zip(&trace.response_mask).filter(|(_, sampled)| **sampled);
        stretch.ends = sampled.map(|(at, _)| start + at).collect();
        if self.replay == Replay::AtOnce {
            stretch.ends.drain(..stretch.ends.len().saturating_sub(1));
        }
        stretch.ids.extend(&trace.response_token_ids);
        stretch
    }

    fn keep_picture(&mut self, turn: &Turn, picture: Option<Arc<Picture>>) {
        if let (Some(seen), Some(picture)) = (&turn.seen, picture) {
            self.pictures.insert(seen.span.step, picture);
        }
    }

    /// Drops the pictures that no later prompt shows: a tile of 512 x 512 is 3 MB.
    fn forget_pictures(&mut self) {
        let shown_again = match self.keep {
            ContextPolicy::Window(pictures) => pictures as usize - 1,
            ContextPolicy::Append | ContextPolicy::LastImage | ContextPolicy::Fresh => 0,
        };
        while self.pictures.len() > shown_again {
            self.pictures.pop_first();
        }
    }

    /// The tokens behind K with their pictures and fork points.
    fn stretch(&self, prompt: &Prompt) -> Stretch {
        let behind = prompt.image_spans.iter().filter(|span| span.token_start >= prompt.prefix_len);
        let placed = behind.filter_map(|span| {
            let picture = Arc::clone(self.pictures.get(&span.step)?);
            Some(Placed { at: span.token_start - prompt.prefix_len, picture })
        });
        let pictures = placed.collect();
        let forks = if prompt.prefix_len == 0 { self.forks(prompt) } else { Vec::new() };
        Stretch { ids: prompt.token_ids.clone(), pictures, ends: Vec::new(), forks }
    }

    /// A prompt from nothing can share instructions and task, and the first page with the mark behind it.
    fn forks(&self, prompt: &Prompt) -> Vec<u32> {
        let first_page = prompt.image_spans.first().filter(|span| span.step == 0);
        let page_end = first_page.map(|span| span.token_start + span.token_len + 1);
        let inside = 1..prompt.token_ids.len() as u32;
        self.task_end.into_iter().chain(page_end).filter(|position| inside.contains(position)).collect()
    }

    fn note(&mut self, commit: Option<&[u32]>, is_first: bool) {
        let Some(text) = commit.filter(|text| !text.is_empty()) else { return };
        let mut stretch = Stretch::text(text.to_vec());
        if is_first {
            let inside = 1..text.len() as u32;
            stretch.forks.extend(self.task_end.filter(|position| inside.contains(position)));
        }
        self.untold.push(stretch);
    }
}
