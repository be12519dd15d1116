//! Demonstrations: the page's own solution names the next action, and this policy writes it as a
//! model would.

use furrow_rollout::{Action, PolicyHashes, PolicyKind, PolicyReply};
use furrow_wire::{PastStep, SessionOpening};

use crate::grammar::{self, ReplyRemarks, ViewedPage};
use crate::hint;
use crate::policy::{Policy, PolicyError, PolicyInput, PolicyOutput, Session, trace_without_tokens};

/// Follows the hints of `solve.js`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScriptedPolicy;

#[tonic::async_trait]
impl Policy for ScriptedPolicy {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Scripted
    }

    fn wants_hints(&self) -> bool {
        true
    }

    fn hashes(&self) -> PolicyHashes {
        PolicyHashes::default()
    }

    async fn open(&self, _: &SessionOpening) -> Result<Box<dyn Session>, PolicyError> {
        Ok(Box::new(*self))
    }
}

#[tonic::async_trait]
impl Session for ScriptedPolicy {
    /// Keeps nothing, because its answers depend on the turn alone.
    async fn rebuild_step(&mut self, _: PastStep) -> Result<(), PolicyError> {
        Ok(())
    }

    async fn act(&mut self, turn: PolicyInput<'_>) -> Result<PolicyOutput, PolicyError> {
        let reply = match turn.hint_json {
            Some(json) => follow(json, &turn)?,
            None => no_demonstration(),
        };
        Ok(PolicyOutput::Reply(Box::new((reply, trace_without_tokens(PolicyKind::Scripted)))))
    }
}

fn follow(json: &str, turn: &PolicyInput<'_>) -> Result<PolicyReply, PolicyError> {
    let failed = |why| PolicyError::Hint { step: turn.step, why };
    let written = hint::read(json).map_err(failed)?;
    let is_demonstrated = written.is_some();
    let nothing_yet = || (Action::Wait { seconds: 1 }, ReplyRemarks::default());
    let (action, remarks) = written.unwrap_or_else(nothing_yet);
    let view = ViewedPage::from(turn.observation);
    let text = grammar::encode(&turn.session.grammar, &action, &remarks, view).map_err(failed)?;
    let mut reply = grammar::parse(&turn.session.grammar, &text, view);
    if !is_demonstrated {
        // A wait that the demonstration did not ask for: rows with an unnamed action teach nothing.
        reply.name.clear();
    }
    Ok(reply)
}

/// A page without a solution gets an empty reply, which ends the trajectory as `unparsable`, so
/// that it does not count as an attempt.
fn no_demonstration() -> PolicyReply {
    PolicyReply {
        raw_text: String::new(),
        name: String::new(),
        args_json: "{}".into(),
        action: Err("there is no demonstration for this page".into()),
    }
}
