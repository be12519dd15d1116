//! Trajectories that a trainer discarded: admission counted them, but no version of the weights is
//! trained on them.
//!
//! A restart loses them: a trainer that waits reports its count again, and until then less is
//! leased, not more.

use std::collections::BTreeMap;

use super::answer::{CallRefusal, CallResponse};
use super::decision::{Effect, EventContext};
use super::event::{CallId, DiscardReport};
use super::notice::CoreNotice;
use super::state::{Core, DiscardCounts};

impl DiscardCounts {
    pub(super) fn total(&self) -> u64 {
        self.by_rank.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The counts with a report added. A training with another number of readers divides the run
    /// anew: earlier reports are not added to it.
    fn with_report(&self, report: DiscardReport) -> Self {
        let DiscardReport { rank, world, trajectories } = report;
        let mut by_rank = if world == self.world { self.by_rank.clone() } else { BTreeMap::new() };
        let count = by_rank.entry(rank).or_default();
        *count = trajectories.max(*count);
        Self { world, by_rank }
    }
}

impl Core {
    /// Handles a trainer's report: as many more trajectories may be admitted.
    pub(super) fn discard(&mut self, call: CallId, report: DiscardReport, turn: &mut EventContext) {
        let discards = self.discards.with_report(report);
        let accepted = self.accepted();
        let discarded = discards.total();
        if discarded > accepted {
            return turn.reply(call, CallResponse::Refused(CallRefusal::Discarded { discarded, accepted }));
        }
        if discarded != self.discards.total() {
            turn.at_once(Effect::Notify(CoreNotice::Discarded { discarded, accepted }));
        }
        self.discards = discards;
        turn.reply(call, CallResponse::Discarded { discarded, accepted });
    }

    /// Scored trajectories that a trainer may take: those of evaluations are excluded.
    pub(super) fn accepted(&self) -> u64 {
        self.tally.scored - self.tally.evaluated
    }
}
