//! Estimates which sessions are on the GPU and which are swapped out to pinned memory.
//!
//! An idle session (its page acts) holds what it kept; a working one holds and reserves the largest
//! size of its step. Sums go over steps: with evenly spread ages each step of the workload is
//! equally likely. `furrow plan --simulate` shows what the scheduler really swaps.

use furrow_model::backend::PAGE_TOKENS;
use furrow_policy::{EngineMemoryPlan, ModelConfig};
use furrow_simulator::{ContextRetention, TurnTokens};

use crate::output;
use crate::sessions::SessionSizes;

/// Bytes per second between device and host: an estimate for one direction of a PCIe 5 x16 link.
const HOST_BYTES_A_SECOND: f64 = 55e9;
/// Pages beyond those that a session's tokens fill: one copied from a fork, one for each of two
/// snapshots, one half-full page shared with a fork.
const SPARE: u64 = 4;

/// Sessions on the device and off it, at evenly spread ages and at their longest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SessionResidency {
    /// Number of concurrent sessions.
    pub sessions: u64,
    /// Number of sessions that the engine admits at most, whatever their size.
    pub admitted: u64,
    /// With evenly spread ages.
    pub even: ResidencyShare,
    /// With all sessions at their longest.
    pub longest: ResidencyShare,
    /// Bytes of pinned memory for swapped-out states.
    pub offload_bytes: u64,
    /// Tokens of the longest step, and the limit of a session.
    pub tokens: [u64; 2],
}

/// Residency of sessions of one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ResidencyShare {
    /// Mean number of KV pages per session.
    pub pages: u64,
    /// Number of sessions whose state is on the device.
    pub resident: u64,
    /// Number of sessions whose state is in pinned memory.
    pub swapped_out: u64,
    /// Bytes that these states take in pinned memory.
    pub bytes: u64,
    /// Bytes over the bus per step, both directions, at most: each swapped-out session is restored
    /// once per step, in exchange for another one.
    pub bytes_a_step: u64,
}

impl ResidencyShare {
    /// Seconds of bus time per step.
    pub(crate) fn seconds_a_step(&self) -> f64 {
        self.bytes_a_step as f64 / HOST_BYTES_A_SECOND
    }
}

impl SessionResidency {
    /// The residency of a job's sessions in the capacity of its backend.
    pub(crate) fn estimate(arena: &EngineMemoryPlan, model: &ModelConfig, sessions: &SessionSizes) -> Self {
        let Ok(config) = furrow_model::config::Config::read(&model.checkpoint) else {
            unreachable!("the arena was planned from this file")
        };
        let limit = u64::from(arena.context_tokens_max);
        let tokens = |turn: &TurnTokens| (turn.new + turn.past + turn.sampled) as u64;
        let turns = sessions.workload.turns(&config, sessions.keep);
        let each: Vec<u64> = turns.iter().flatten().map(|turn| tokens(turn).min(limit)).collect();
        let most = turns.iter().flatten().map(tokens).max().unwrap_or(0);
        let pages = |tokens: u64| tokens.div_ceil(PAGE_TOKENS as u64) + SPARE;
        let mean = each.iter().map(|tokens| pages(*tokens)).sum::<u64>().div_ceil((each.len() as u64).max(1));
        let longest = each.iter().map(|tokens| pages(*tokens)).max().unwrap_or(0);
        // A session that keeps less than its prompt works on a fork, which takes two slots.
        let slots = u64::from(model.engine.state_slots);
        let slots = if sessions.keep == ContextRetention::Append { slots } else { slots / 2 };
        let share = |pages: u64| {
            let fit = u64::from(arena.capacity.pages) / pages.max(1);
            let resident = fit.min(slots).min(sessions.count as u64);
            let swapped_out = sessions.count as u64 - resident;
            let offloaded = arena.needs.offloaded_bytes(u32::try_from(pages).unwrap_or(u32::MAX));
            // On average this many sessions are swapped out at their turn.
            let a_step = (2 * offloaded * swapped_out).checked_div(sessions.count as u64).unwrap_or(0);
            ResidencyShare {
                pages,
                resident,
                swapped_out,
                bytes: swapped_out * offloaded,
                bytes_a_step: a_step,
            }
        };
        Self {
            sessions: sessions.count as u64,
            admitted: u64::from(arena.sessions_max),
            even: share(mean),
            longest: share(longest),
            offload_bytes: arena.capacity.offload_bytes,
            tokens: [most, limit],
        }
    }

    /// Why sessions cannot act or steps cannot be taken, if so.
    pub(crate) fn warning(&self) -> Option<String> {
        let [most, limit] = self.tokens;
        if most > limit {
            return Some(format!(
                "policy.engine.context_tokens_max: {limit}; the longest step reaches {most} tokens and would end its trajectory as context_full; raise it to {most}"
            ));
        }
        let Self { sessions, admitted, even, offload_bytes, .. } = self;
        if admitted < sessions {
            return Some(format!(
                "policy.engine: {admitted} of {sessions} sessions are admitted, because only so many fit at context_tokens_max {limit}; raise offload_bytes or kv_tokens, or lower context_tokens_max (the longest step has {most})"
            ));
        }
        (even.bytes > *offload_bytes).then(|| {
            format!(
                "policy.engine.offload_bytes: {}; with evenly spread ages {} sessions are swapped out and take {}; raise it to at least that",
                output::bytes(*offload_bytes),
                even.swapped_out,
                output::bytes(even.bytes)
            )
        })
    }
}
