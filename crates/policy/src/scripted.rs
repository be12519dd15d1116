//! Demonstrations: the page's own solution names the next action, this policy writes it down as a model would.

use furrow_rollout::{Action, Hashes, PolicyKind, Reply};
use furrow_wire::{Opening, PastStep};

use crate::grammar::{self, Remarks, Seen};
use crate::hint;
use crate::policy::{Answer, Policy, PolicyError, Session, Turn, tokenless};

/// Follows the hints of `solve.js`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scripted;

#[tonic::async_trait]
impl Policy for Scripted {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Scripted
    }

    fn wants_hints(&self) -> bool {
        true
    }

    fn hashes(&self) -> Hashes {
        Hashes::default()
    }

    async fn open(&self, _: &Opening) -> Result<Box<dyn Session>, PolicyError> {
        Ok(Box::new(*self))
    }
}

#[tonic::async_trait]
impl Session for Scripted {
    /// It keeps nothing: what it answers depends on the turn alone.
    async fn recall(&mut self, _: PastStep) -> Result<(), PolicyError> {
        Ok(())
    }

    async fn act(&mut self, turn: Turn<'_>) -> Result<Answer, PolicyError> {
        let reply = match turn.hint_json {
            Some(json) => follow(json, &turn)?,
            None => no_demonstration(),
        };
        Ok(Answer::Reply(Box::new((reply, tokenless(PolicyKind::Scripted)))))
    }
}

fn follow(json: &str, turn: &Turn<'_>) -> Result<Reply, PolicyError> {
    let failed = |why| PolicyError::Hint { step: turn.step, why };
    let nothing_yet = || (Action::Wait { seconds: 1 }, Remarks::default());
    let (action, remarks) = hint::read(json).map_err(failed)?.unwrap_or_else(nothing_yet);
    let seen = Seen::from(turn.observation);
    let text = grammar::encode(&turn.session.grammar, &action, &remarks, seen).map_err(failed)?;
    Ok(grammar::parse(&turn.session.grammar, &text, seen))
}

/// A page without a solution: an empty reply, which ends the trajectory as `unparsable` instead of looking like an attempt.
fn no_demonstration() -> Reply {
    Reply {
        raw_text: String::new(),
        name: String::new(),
        args_json: "{}".into(),
        action: Err("there is no demonstration for this page".into()),
    }
}
