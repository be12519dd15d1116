//! The untrained baseline: actions drawn from a fixed distribution, so that a success rate has something to stand against.

use furrow_rollout::{
    Action, Ancestry, Direction, ExtraAction, Hashes, PagePoint, PolicyKind, Reply, SessionSpec, Size,
};
use furrow_wire::{Opening, PastStep};
use rand::rngs::ChaCha12Rng;
use rand::{Rng, RngExt, SeedableRng};
use sha2::{Digest, Sha256};

use crate::grammar::{self, Remarks, Seen};
use crate::policy::{Answer, Policy, PolicyError, Session, Turn, tokenless};

/// Draws for one reply. Of a grammar that can only click, all of so many fail once in 10^25.
const DRAWS_MAX: u32 = 64;

/// Draws actions. The draw of a step depends on the job's seed, the group, the slot and the step alone: a session that is rebuilt on
/// another worker goes on as it would have, and so does a retried slot.
#[derive(Debug, Clone, Copy, Default)]
pub struct Random;

#[tonic::async_trait]
impl Policy for Random {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Random
    }

    fn wants_hints(&self) -> bool {
        false
    }

    fn hashes(&self) -> Hashes {
        Hashes::default()
    }

    async fn open(&self, _: &Opening) -> Result<Box<dyn Session>, PolicyError> {
        Ok(Box::new(*self))
    }
}

#[tonic::async_trait]
impl Session for Random {
    /// It keeps nothing: what it answers depends on the turn alone.
    async fn recall(&mut self, _: PastStep) -> Result<(), PolicyError> {
        Ok(())
    }

    async fn act(&mut self, turn: Turn<'_>) -> Result<Answer, PolicyError> {
        let reply = reply(turn.ancestry, turn.session, turn.step, Seen::from(turn.observation));
        let failed = |why| PolicyError::Hint { step: turn.step, why };
        Ok(Answer::Reply(Box::new((reply.map_err(failed)?, tokenless(PolicyKind::Random)))))
    }
}

impl Random {
    /// The action of a step without a service around it; the error says why the grammar cannot write it.
    pub fn draw(
        self,
        ancestry: &Ancestry,
        session: &SessionSpec,
        step: u32,
        image: Size,
    ) -> Result<Action, String> {
        reply(ancestry, session, step, Seen::image(image))?.action
    }
}

/// Draws until the grammar has a word for it: some have none for a click where no mark is, or for anything but a click.
fn reply(ancestry: &Ancestry, session: &SessionSpec, step: u32, seen: Seen<'_>) -> Result<Reply, String> {
    let grammar = &session.grammar;
    let mut rng = stream(ancestry, session, step);
    let mut why = String::new();
    for _ in 0..DRAWS_MAX {
        let action = draw(&mut rng, &grammar.extra, seen.image);
        match grammar::encode(grammar, &action, &Remarks::default(), seen) {
            Ok(text) => return Ok(grammar::parse(grammar, &text, seen)),
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// A stream of its own for each step: the key names the session, the stream number the step.
fn stream(ancestry: &Ancestry, session: &SessionSpec, step: u32) -> ChaCha12Rng {
    let mut key = Sha256::new();
    key.update(b"furrow random policy 1");
    key.update(session.sampling.seed.to_le_bytes());
    key.update(ancestry.sample_index.to_le_bytes());
    key.update(ancestry.group_id.as_str());
    let mut rng = ChaCha12Rng::from_seed(key.finalize().into());
    rng.set_stream(u64::from(step));
    rng
}

/// Of 100 draws 60 click, 12 write, 12 scroll and the rest does what a lost visitor does.
fn draw(rng: &mut impl Rng, extra: &[ExtraAction], image: Size) -> Action {
    match rng.random_range(0..100) {
        0..60 => Action::click(point(rng, image)),
        60..72 => Action::Write { into: Some(point(rng, image)), content: word(rng), press_enter: true },
        72..84 => Action::scroll(direction(rng)),
        84..87 => Action::GoBack,
        87..88 => Action::Refresh,
        88..90 => Action::Wait { seconds: 1 },
        90..92 => Action::Answer { content: word(rng) },
        _ => extra_action(rng, extra, image).unwrap_or_else(|| Action::click(point(rng, image))),
    }
}

fn extra_action(rng: &mut impl Rng, extra: &[ExtraAction], image: Size) -> Option<Action> {
    let chosen = extra.get(rng.random_range(0..extra.len().max(1)))?;
    Some(match chosen {
        ExtraAction::Drag => Action::drag(point(rng, image), point(rng, image)),
        ExtraAction::SelectTab => Action::SelectTab { index: rng.random_range(0..3) },
        ExtraAction::PressKey => Action::press(pick(rng, &["Enter", "Tab", "Escape", "ArrowDown"])),
        ExtraAction::Write => Action::Write { into: None, content: word(rng), press_enter: rng.random() },
    })
}

fn point(rng: &mut impl Rng, image: Size) -> PagePoint {
    PagePoint { x: rng.random_range(0.0..image.width as f32), y: rng.random_range(0.0..image.height as f32) }
}

fn direction(rng: &mut impl Rng) -> Direction {
    // People scroll down more often than in any other direction.
    *[Direction::Down, Direction::Down, Direction::Down, Direction::Up, Direction::Left, Direction::Right]
        .get(rng.random_range(0..6))
        .unwrap_or(&Direction::Down)
}

fn word(rng: &mut impl Rng) -> String {
    pick(rng, &["yes", "no", "blue", "42", "hello", "Paris", "next", "2"])
}

fn pick(rng: &mut impl Rng, from: &[&str]) -> String {
    from.get(rng.random_range(0..from.len())).copied().unwrap_or_default().to_owned()
}
