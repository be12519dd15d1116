//! A simulated session: the prompts it sends and how it handles replies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use furrow_model::vision::ImageTile;
use furrow_policy::stepped::{
    PositionedImage, SteppedEngine, SteppedRequest, SteppedSession, TiledImage, TokenSegment,
};
use furrow_rollout::ContextPolicy;

use crate::device::SAMPLED_ID;
use crate::settings::{SimulatorError, SimulatorSettings};
use crate::workload::{StepSizes, Workload};

/// Fixed ids for all text: their values have no effect in the simulation.
const STOP: u32 = 0;
const TEXT: u32 = 2;
const MARK: u32 = 3;
const PLACEHOLDER: u32 = 4;
/// Ids from here on are unique to a trajectory.
const NAMES: u32 = 16;

/// A session and those that follow it.
pub(crate) struct SimulatedSession {
    keep: ContextPolicy,
    sessions: u64,
    work: Arc<Workload>,
    /// Index of the next trajectory of the workload, shared by all sessions.
    next: Arc<AtomicUsize>,
    /// Index of this session's trajectory.
    course: usize,
    rows_per_tile: usize,
    /// Number that is unique to each simulated trajectory: this session's index, plus the number of
    /// sessions for each round.
    trajectory: u64,
    step: usize,
    /// The open session; `None` before [`Self::begin_at`].
    session: Option<SteppedSession>,
    /// When the page was shown that it waits for a reply to; `None` while the past is built.
    shown_at: Option<u64>,
    /// Text of the previous turn and its reply, which `last_image` adds to the kept tokens with the
    /// next turn.
    pending: Vec<TokenSegment>,
}

/// Progress of a session.
pub(crate) enum SessionProgress {
    /// No answer has arrived.
    Waits,
    /// Its past is on the device.
    Aged,
    /// Its page acts; the page before was shown at this time.
    Acts {
        /// On the simulated clock.
        shown_at: u64,
    },
}

impl SimulatedSession {
    pub(crate) fn new(
        index: usize,
        settings: &SimulatorSettings,
        (work, next): (Arc<Workload>, Arc<AtomicUsize>),
        rows_per_tile: usize,
    ) -> Self {
        Self {
            keep: settings.keep,
            sessions: settings.mix.sessions as u64,
            work,
            next,
            course: 0,
            rows_per_tile,
            trajectory: index as u64,
            step: 0,
            session: None,
            shown_at: None,
            pending: Vec::new(),
        }
    }

    /// Opens a session in a trajectory of the workload with this many past steps.
    pub(crate) fn begin_at(
        &mut self,
        engine: &mut SteppedEngine,
        (course, age): (usize, usize),
    ) -> Result<(), SimulatorError> {
        self.course = course;
        self.pending.clear();
        let mut session = engine.open(self.trajectory, age > 0).map_err(SimulatorError::Fault)?;
        let mut past = Vec::new();
        for step in 0..age {
            self.step = step;
            past.extend(self.past_segments());
        }
        self.step = age;
        if !past.is_empty() {
            engine.rebuild(&mut session, past);
        }
        self.session = Some(session);
        self.shown_at = None;
        Ok(())
    }

    /// The segments that a past step keeps. Its image rows run as text.
    fn past_segments(&mut self) -> Vec<TokenSegment> {
        let response = self.response();
        match self.keep {
            ContextPolicy::Append => {
                let ids = [self.turn().ids, response].concat();
                // As when it was decoded: the last sampled token and the stop id run with the next
                // step.
                vec![TokenSegment { ends: vec![ids.len() as u32 - 2], ids, ..TokenSegment::default() }]
            }
            _ => {
                let kept = std::mem::take(&mut self.pending);
                self.finish_turn();
                kept
            }
        }
    }

    /// Ids of each reply.
    pub(crate) fn response(&self) -> Vec<u32> {
        [vec![SAMPLED_ID; self.sampled_len()], vec![STOP]].concat()
    }

    /// Shows a page to the session.
    pub(crate) fn show(&mut self, engine: &mut SteppedEngine, now: u64) {
        let (kept, prompt) = self.take_prompt();
        let request = SteppedRequest {
            kept,
            prompt,
            keeps_reply: self.keep == ContextPolicy::Append,
            step: self.step as u32,
            sampled: self.sampled_len() as u32,
            stop: STOP,
        };
        if let Some(session) = &mut self.session {
            engine.request(session, request);
            self.shown_at = Some(now);
        }
    }

    /// Takes the session's reply, if there is one. A trajectory that has ended is replaced by the
    /// next.
    pub(crate) fn poll(&mut self, engine: &mut SteppedEngine) -> Result<SessionProgress, SimulatorError> {
        let Some(answer) = self.session.as_mut().and_then(SteppedSession::take_answer) else {
            return Ok(SessionProgress::Waits);
        };
        answer.map_err(SimulatorError::Fault)?;
        let Some(shown_at) = self.shown_at.take() else { return Ok(SessionProgress::Aged) };
        self.finish_turn();
        if self.step == self.work.trajectories[self.course].len() {
            if let Some(session) = self.session.take() {
                engine.close(session);
            }
            self.trajectory += self.sessions;
            let next = self.next.fetch_add(1, Ordering::Relaxed) % self.work.trajectories.len();
            self.begin_at(engine, (next, 0))?;
        }
        Ok(SessionProgress::Acts { shown_at })
    }

    /// Segments to add to the kept tokens, and the prompt after them.
    pub(crate) fn take_prompt(&mut self) -> (Vec<TokenSegment>, TokenSegment) {
        (std::mem::take(&mut self.pending), self.turn())
    }

    /// Ends the turn: `last_image` keeps its text and the reply.
    pub(crate) fn finish_turn(&mut self) {
        if self.keep == ContextPolicy::LastImage {
            let (head, text) = self.text();
            let mut segment =
                TokenSegment::text([self.head(head), vec![TEXT; text], self.response()].concat());
            segment.forks.extend((head > 0).then_some(head as u32));
            self.pending.push(segment);
        }
        self.step += 1;
    }

    /// Instructions and task, which differ between trajectories.
    fn head(&self, len: usize) -> Vec<u32> {
        let mut ids = vec![TEXT; len];
        ids.iter_mut().take(1).for_each(|id| *id = NAMES + self.trajectory as u32);
        ids
    }

    /// Sizes of a step of this trajectory.
    fn sizes(&self, step: usize) -> StepSizes {
        self.work.trajectories[self.course].get(step).copied().unwrap_or_default()
    }

    /// Number of sampled tokens of this step, without the stop id after them.
    fn sampled_len(&self) -> usize {
        let StepSizes { sampled, given, .. } = self.sizes(self.step);
        // If nothing was appended to the recorded reply, its last sampled token was the stop id.
        (sampled - u32::from(given == 0 && sampled > 0)).max(1) as usize
    }

    /// Number of tokens of instructions and task, and of the turn's text without the image and its
    /// delimiters. The tokens that the grammar added to the previous reply run with this turn,
    /// except the stop id.
    fn text(&self) -> (usize, usize) {
        let StepSizes { instructions, text, .. } = self.sizes(self.step);
        let before = self.step.checked_sub(1).map_or(0, |step| self.sizes(step).given.saturating_sub(1));
        (instructions as usize, (text.saturating_sub(2) + before) as usize)
    }

    /// Instructions and task in the first turn, the image between its delimiters, text: the segment
    /// that the policy's `conversation.rs` would build.
    fn turn(&self) -> TokenSegment {
        let (head, text) = self.text();
        let picture = self.picture();
        let rows = picture.rows();
        let ids =
            [self.head(head), vec![MARK], vec![PLACEHOLDER; rows as usize], vec![MARK], vec![TEXT; text]];
        let at = head as u32 + 1;
        let forks = if self.step == 0 { vec![head as u32, at + rows + 1] } else { Vec::new() };
        // A step without an image is text alone. It keeps the delimiters, so that its length is
        // right.
        let pictures = if rows > 0 { vec![PositionedImage { at, picture }] } else { Vec::new() };
        TokenSegment { ids: ids.concat(), pictures, ends: Vec::new(), forks }
    }

    /// An image with unique tiles.
    fn picture(&self) -> Arc<TiledImage> {
        let count = self.sizes(self.step).tiles as usize;
        let rows = self.rows_per_tile;
        let tile = |tile: usize| {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&self.trajectory.to_le_bytes());
            hash[8..16].copy_from_slice(&(self.step as u64).to_le_bytes());
            hash[16..24].copy_from_slice(&(tile as u64).to_le_bytes());
            ImageTile { pixels: Vec::new(), hash }
        };
        let tiles: Vec<ImageTile> = (0..count).map(tile).collect();
        let hash = tiles.first().map_or([0; 32], |tile| tile.hash);
        Arc::new(TiledImage {
            grid: (count as u16, 1),
            tiles,
            rows_per_tile: rows as u32,
            blob_sha256: hash,
            rgb_sha256: hash,
        })
    }
}
