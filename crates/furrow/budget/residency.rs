//! Which sessions are on the GPU at a time, and which are swapped out to pinned memory.
//!
//! A session at rest (its page acts) holds what it kept; one that works holds, and has reserved, what its step can come to. Sums are taken over steps: with
//! ages spread evenly each step of the workload is as likely as any other. What a scheduler really swaps is `furrow plan --simulate`.

use furrow_model::backend::PAGE_TOKENS;
use furrow_model::floor::Keep;
use furrow_policy::{Arena, ModelConfig};

use crate::output;
use crate::sessions::Sessions;

/// Bytes a second between device and host: what a PCIe 5 x16 link carries in one direction, an estimate.
const HOST_BYTES_A_SECOND: f64 = 55e9;
/// Pages beyond those that a session's tokens fill: one parted from a fork, one of each of two snapshots, one that a fork shares half-full.
const SPARE: u64 = 4;

/// Sessions on the device and off it, at even ages and at their longest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Residency {
    /// Sessions at once.
    pub sessions: u64,
    /// Sessions that the engine admits, whatever they come to hold: at most so many act.
    pub admitted: u64,
    /// With ages spread evenly.
    pub even: Share,
    /// With all sessions at their longest.
    pub longest: Share,
    /// Bytes of pinned memory for what is swapped out.
    pub parked_bytes: u64,
    /// Tokens of the longest step, and the most that a session may have.
    pub tokens: [u64; 2],
}

/// Where sessions of a size are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// KV pages of a session, in the mean.
    pub pages: u64,
    /// Sessions whose state is on the device.
    pub resident: u64,
    /// Sessions whose state is in pinned memory.
    pub swapped_out: u64,
    /// What those take there.
    pub bytes: u64,
    /// Bytes over the bus for a step, both ways, at most: each session that is out comes in once a step, for another one that goes.
    pub bytes_a_step: u64,
}

impl Share {
    /// Seconds of the bus for a step.
    pub fn seconds_a_step(&self) -> f64 {
        self.bytes_a_step as f64 / HOST_BYTES_A_SECOND
    }
}

impl Residency {
    /// Of a job's sessions in the room of its backend.
    pub fn of(arena: &Arena, model: &ModelConfig, sessions: &Sessions) -> Self {
        let Ok(config) = furrow_model::config::Config::read(&model.checkpoint) else {
            unreachable!("an arena was planned from it")
        };
        let limit = u64::from(arena.context_tokens_max);
        let tokens = |turn: &furrow_model::floor::Turn| (turn.new + turn.past + turn.sampled) as u64;
        let turns = sessions.workload.turns(&config, sessions.keep);
        let each: Vec<u64> = turns.iter().flatten().map(|turn| tokens(turn).min(limit)).collect();
        let most = turns.iter().flatten().map(tokens).max().unwrap_or(0);
        let pages = |tokens: u64| tokens.div_ceil(PAGE_TOKENS as u64) + SPARE;
        let mean = each.iter().map(|tokens| pages(*tokens)).sum::<u64>().div_ceil((each.len() as u64).max(1));
        let longest = each.iter().map(|tokens| pages(*tokens)).max().unwrap_or(0);
        // A session that keeps less than it shows works on a fork: two slots.
        let slots = u64::from(model.engine.state_slots);
        let slots = if sessions.keep == Keep::Append { slots } else { slots / 2 };
        let share = |pages: u64| {
            let fit = u64::from(arena.room.pages) / pages.max(1);
            let resident = fit.min(slots).min(sessions.count as u64);
            let swapped_out = sessions.count as u64 - resident;
            let parked = arena.needs.parked_bytes(u32::try_from(pages).unwrap_or(u32::MAX));
            // Of the sessions so many are out when their turn comes.
            let a_step = (2 * parked * swapped_out).checked_div(sessions.count as u64).unwrap_or(0);
            Share { pages, resident, swapped_out, bytes: swapped_out * parked, bytes_a_step: a_step }
        };
        Self {
            sessions: sessions.count as u64,
            admitted: u64::from(arena.sessions_max),
            even: share(mean),
            longest: share(longest),
            parked_bytes: arena.room.parked_bytes,
            tokens: [most, limit],
        }
    }

    /// What keeps sessions from acting or steps from being taken.
    pub fn warning(&self) -> Option<String> {
        let [most, limit] = self.tokens;
        if most > limit {
            return Some(format!(
                "policy.engine.context_tokens_max: {limit}; the longest step comes to {most} tokens and would end its trajectory as context_full; raise it to {most}"
            ));
        }
        let Self { sessions, admitted, even, parked_bytes, .. } = self;
        if admitted < sessions {
            return Some(format!(
                "policy.engine: {admitted} of {sessions} sessions are admitted, for only so many have a place at context_tokens_max {limit}; raise parked_bytes or kv_tokens, or lower context_tokens_max (the longest step has {most})"
            ));
        }
        (even.bytes > *parked_bytes).then(|| {
            format!(
                "policy.engine.parked_bytes: {}; {} sessions are swapped out with ages spread evenly and take {}; raise it to that or more",
                output::bytes(*parked_bytes),
                even.swapped_out,
                output::bytes(even.bytes)
            )
        })
    }
}
