//! Trajectories that a trainer discarded: admission counted them, and no version of the weights is made of them.
//!
//! They are not remembered over a restart: a trainer that waits reports its count again, and until then less is lent, not more.

use std::collections::BTreeMap;

use super::{Answer, Call, Core, Effect, Notice, Refused, Turn};

/// What one of the readers that share a run has discarded since the run began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Discarded {
    /// The reader's number, less than `world`.
    pub rank: u32,
    /// Readers that share the run.
    pub world: u32,
    /// Scored trajectories outside of evaluations; it only grows.
    pub trajectories: u64,
}

/// The largest count heard of each reader.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Discards {
    world: u32,
    by_rank: BTreeMap<u32, u64>,
}

impl Discards {
    pub(super) fn total(&self) -> u64 {
        self.by_rank.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The same with a report. A training with another number of readers shares the run out anew: what others reported is not added to it.
    fn with(&self, report: Discarded) -> Self {
        let Discarded { rank, world, trajectories } = report;
        let mut by_rank = if world == self.world { self.by_rank.clone() } else { BTreeMap::new() };
        let count = by_rank.entry(rank).or_default();
        *count = trajectories.max(*count);
        Self { world, by_rank }
    }
}

impl Core {
    /// A trainer says how much it discarded: as many more may be admitted.
    pub(super) fn discard(&mut self, call: Call, report: Discarded, turn: &mut Turn) {
        let (discards, accepted) = (self.discards.with(report), self.accepted());
        let discarded = discards.total();
        if discarded > accepted {
            return turn.reply(call, Answer::Refused(Refused::Discarded { discarded, accepted }));
        }
        if discarded != self.discards.total() {
            turn.at_once(Effect::Tell(Notice::Discarded { discarded, accepted }));
        }
        self.discards = discards;
        turn.reply(call, Answer::Discarded { discarded, accepted });
    }

    /// Scored trajectories that a trainer may take: those of evaluations are for no trainer.
    pub(super) fn accepted(&self) -> u64 {
        self.tally.scored - self.tally.evaluated
    }
}
