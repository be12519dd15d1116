//! The untrained baseline: actions sampled from a fixed distribution, for comparison with success
//! rates of trained policies.

use furrow_rollout::{
    Action, ExtraAction, PagePoint, PolicyHashes, PolicyKind, PolicyReply, ScrollDirection, SessionSpec,
    Size, TrajectoryAncestry,
};
use furrow_wire::{PastStep, SessionOpening};
use rand::rngs::ChaCha12Rng;
use rand::{Rng, RngExt, SeedableRng};
use sha2::{Digest, Sha256};

use crate::grammar::{self, ReplyRemarks, ViewedPage};
use crate::policy::{Policy, PolicyError, PolicyInput, PolicyOutput, Session, trace_without_tokens};

/// Attempts to sample an action for one reply. With a grammar that can only click, all of them fail
/// once in 10^25 replies.
const SAMPLES_MAX: u32 = 64;

/// Samples actions. The action of a step depends only on the job's seed, the group, the slot and
/// the step. So a session that is rebuilt on another worker continues as it would have, and so does
/// a retried slot.
#[derive(Debug, Clone, Copy, Default)]
pub struct RandomPolicy;

#[tonic::async_trait]
impl Policy for RandomPolicy {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Random
    }

    fn wants_hints(&self) -> bool {
        false
    }

    fn hashes(&self) -> PolicyHashes {
        PolicyHashes::default()
    }

    async fn open(&self, _: &SessionOpening) -> Result<Box<dyn Session>, PolicyError> {
        Ok(Box::new(*self))
    }
}

#[tonic::async_trait]
impl Session for RandomPolicy {
    /// Keeps nothing, because its answers depend on the turn alone.
    async fn rebuild_step(&mut self, _: PastStep) -> Result<(), PolicyError> {
        Ok(())
    }

    async fn act(&mut self, turn: PolicyInput<'_>) -> Result<PolicyOutput, PolicyError> {
        let reply = reply(turn.ancestry, turn.session, turn.step, ViewedPage::from(turn.observation));
        let failed = |why| PolicyError::Hint { step: turn.step, why };
        Ok(PolicyOutput::Reply(Box::new((reply.map_err(failed)?, trace_without_tokens(PolicyKind::Random)))))
    }
}

impl RandomPolicy {
    /// The action of a step outside of a service. The error says why the grammar cannot express it.
    pub fn sample(
        self,
        ancestry: &TrajectoryAncestry,
        session: &SessionSpec,
        step: u32,
        image: Size,
    ) -> Result<Action, String> {
        reply(ancestry, session, step, ViewedPage::image(image))?.action
    }
}

/// Samples actions until the grammar can express one: some grammars cannot express a click where no
/// mark is, or an action other than a click.
fn reply(
    ancestry: &TrajectoryAncestry,
    session: &SessionSpec,
    step: u32,
    view: ViewedPage<'_>,
) -> Result<PolicyReply, String> {
    let grammar = &session.grammar;
    let mut rng = stream(ancestry, session, step);
    let mut why = String::new();
    for _ in 0..SAMPLES_MAX {
        let action = sample_action(&mut rng, &grammar.extra, view.image);
        match grammar::encode(grammar, &action, &ReplyRemarks::default(), view) {
            Ok(text) => return Ok(grammar::parse(grammar, &text, view)),
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// Each step has its own stream: the key contains the session, the stream number is the step.
fn stream(ancestry: &TrajectoryAncestry, session: &SessionSpec, step: u32) -> ChaCha12Rng {
    let mut key = Sha256::new();
    key.update(b"furrow random policy 1");
    key.update(session.sampling.seed.to_le_bytes());
    key.update(ancestry.sample_index.to_le_bytes());
    key.update(ancestry.group_id.as_str());
    let mut rng = ChaCha12Rng::from_seed(key.finalize().into());
    rng.set_stream(u64::from(step));
    rng
}

/// Of 100 samples 60 are clicks, 12 write, 12 scroll and the rest are other actions.
fn sample_action(rng: &mut impl Rng, extra: &[ExtraAction], image: Size) -> Action {
    match rng.random_range(0..100) {
        0..60 => Action::click(point(rng, image)),
        60..72 => {
            Action::Write { into: Some(point(rng, image)), content: random_text(rng), press_enter: true }
        }
        72..84 => Action::scroll(direction(rng)),
        84..87 => Action::GoBack,
        87..88 => Action::Refresh,
        88..90 => Action::Wait { seconds: 1 },
        90..92 => Action::Answer { content: random_text(rng) },
        _ => extra_action(rng, extra, image).unwrap_or_else(|| Action::click(point(rng, image))),
    }
}

fn extra_action(rng: &mut impl Rng, extra: &[ExtraAction], image: Size) -> Option<Action> {
    let chosen = extra.get(rng.random_range(0..extra.len().max(1)))?;
    Some(match chosen {
        ExtraAction::Drag => Action::drag(point(rng, image), point(rng, image)),
        ExtraAction::SelectTab => Action::SelectTab { index: rng.random_range(0..3) },
        ExtraAction::PressKey => Action::press(pick(rng, &["Enter", "Tab", "Escape", "ArrowDown"])),
        ExtraAction::Write => {
            Action::Write { into: None, content: random_text(rng), press_enter: rng.random() }
        }
        // It knows no names.
        ExtraAction::Upload => return None,
    })
}

fn point(rng: &mut impl Rng, image: Size) -> PagePoint {
    PagePoint { x: rng.random_range(0.0..image.width as f32), y: rng.random_range(0.0..image.height as f32) }
}

fn direction(rng: &mut impl Rng) -> ScrollDirection {
    // People scroll down more often than in any other direction.
    *[
        ScrollDirection::Down,
        ScrollDirection::Down,
        ScrollDirection::Down,
        ScrollDirection::Up,
        ScrollDirection::Left,
        ScrollDirection::Right,
    ]
    .get(rng.random_range(0..6))
    .unwrap_or(&ScrollDirection::Down)
}

fn random_text(rng: &mut impl Rng) -> String {
    pick(rng, &["yes", "no", "blue", "42", "hello", "Paris", "next", "2"])
}

fn pick(rng: &mut impl Rng, from: &[&str]) -> String {
    from.get(rng.random_range(0..from.len())).copied().unwrap_or_default().to_owned()
}
