//! Memory of the machine: pinned memory, memory of processes, and what remains for mapped files.

use furrow_model::floor::ModelWork as _;
use furrow_policy::EngineMemoryPlan;

use super::demand::{DemandTerm, ResourceDemand};
use super::machine::{AvailableBytes, LocalRoles, MachineCapacity};
use super::weights::{loads_new_versions, weight_files};
use crate::job::Job;
use crate::sessions::SessionSizes;

/// A session of light pages in Chromium with its share of the farm: 4.14 GB (PSS) for 100 sessions,
/// `docs/benchmarks/browser-100.json`.
const SESSION_BYTES: u64 = 41_400_000;
/// A prewarmed context, as `env.contexts_ready` counts them.
const CONTEXT_BYTES: u64 = 20_000_000;
/// The furrow process itself: code, runtime, allocator, tokenizer, ledger.
const PROCESS_BYTES: u64 = 300_000_000;
/// Tables of steps that are written at the same time: scored trajectories and failed ones.
const TABLES: u64 = 2;

/// Pinned memory, processes and page cache, each compared with what the ones before it leave.
pub(super) fn sums(
    job: &Job,
    roles: LocalRoles,
    sessions: &SessionSizes,
    arena: Option<&EngineMemoryPlan>,
    machine: &MachineCapacity,
) -> Vec<ResourceDemand> {
    let mut left = machine.memory.clone();
    let mut sums = Vec::new();
    let mut add = |what, terms: Vec<DemandTerm>, remedy: &str, must_fit| {
        let sum = ResourceDemand { what, terms, available: left.clone(), remedy: remedy.into(), must_fit };
        if let Some(AvailableBytes { bytes, source: of }) = &mut left {
            *bytes = bytes.saturating_sub(sum.total());
            *of = format!("{}, less {what}", of.split(", ").next().unwrap_or_default());
        }
        sums.push(sum);
    };
    if let Some(arena) = arena {
        let remedy = "lower policy.engine.offload_bytes, or set policy.weights.stage = \"device\"";
        add("pinned memory", pinned(arena), remedy, true);
    }
    let remedy = if arena.is_some() {
        "lower policy.engine.offload_bytes or env.sessions_max"
    } else {
        "lower env.sessions_max, policy.engine.kv_tokens, state_slots or offload_bytes"
    };
    add("memory of processes", processes(job, roles, sessions), remedy, false);
    let cached = page_cache(job);
    if !cached.is_empty() {
        let remedy =
            "lower policy.engine.offload_bytes; weights outside of the page cache are read from disk again";
        add("page cache", cached, remedy, false);
    }
    sums
}

fn pinned(arena: &EngineMemoryPlan) -> Vec<DemandTerm> {
    let parts = arena.needs.pinned.parts().iter().filter(|(_, bytes)| *bytes > 0);
    parts.map(|(part, bytes)| DemandTerm::new(*part, *bytes, "")).collect()
}

/// Estimates, except for the limits that the job sets.
fn processes(job: &Job, roles: LocalRoles, sessions: &SessionSizes) -> Vec<DemandTerm> {
    let count = sessions.count as u64;
    let mut terms = vec![DemandTerm::new("the program", PROCESS_BYTES, "estimated")];
    if let Some(model) = &job.policy.model {
        let config = furrow_model::config::Config::read(&model.checkpoint).ok();
        let side = config.and_then(|config| config.vision).map_or(0, |vision| vision.tile as u64);
        let tiles = sessions.workload.steps().map(|step| u64::from(step.tiles)).max().unwrap_or(0);
        let bytes = count * tiles * 3 * side * side * 4;
        terms.push(DemandTerm::new(
            "screenshots cut into tiles",
            bytes,
            format!("{count} sessions x {tiles} tiles x 3 x {side} x {side} float32"),
        ));
        terms.extend(cpu_model_terms(model, sessions));
    }
    if roles == LocalRoles::Policy {
        return terms;
    }
    let env = &job.env;
    let browsers = count.div_ceil(u64::from(env.browser.contexts_per_browser).max(1));
    let ready = u64::from(env.browser.contexts_ready);
    let steps = sessions.workload.steps_mean().ceil() as u64;
    terms.extend([
        DemandTerm::new(
            "browsers",
            count * SESSION_BYTES,
            format!("{count} sessions x 41.4 MB, measured with light pages"),
        ),
        DemandTerm::new(
            "prewarmed contexts",
            browsers * ready * CONTEXT_BYTES,
            format!("{browsers} browsers x {ready} x 20 MB"),
        ),
        DemandTerm::new(
            "steps kept until a trajectory ends",
            count * steps * sessions.step_bytes,
            format!("{count} sessions x {steps} steps x {} kB", sessions.step_bytes / 1000),
        ),
        DemandTerm::new("files of sites", env.sites.cache_bytes_max, "env.site_cache_bytes_max"),
        DemandTerm::new(
            "steps queued for the spool",
            job.limits.spool_queue_bytes_max(),
            "limits.spool_queue_bytes_max",
        ),
        DemandTerm::new(
            "rows buffered for shards",
            TABLES * job.records.row_group_bytes as u64,
            format!("{TABLES} tables x records.row_group_bytes"),
        ),
        DemandTerm::new("reserve", env.browser.memory_reserve_bytes, "env.memory_reserve_bytes"),
    ]);
    terms
}

/// What a model on the CPU takes. Swapped-out states take memory only while they are swapped out,
/// and at most as much as the states of all sessions.
fn cpu_model_terms(model: &furrow_policy::ModelConfig, sessions: &SessionSizes) -> Vec<DemandTerm> {
    let Ok(Some(bytes)) = furrow_policy::cpu_memory_bytes(model) else { return Vec::new() };
    let Ok(config) = furrow_model::config::Config::read(&model.checkpoint) else { return Vec::new() };
    let turns = sessions.workload.turns(&config, sessions.keep);
    let longest = turns.iter().flatten().map(|turn| turn.new + turn.past + turn.sampled).fold(0.0, f64::max);
    // Keys and values are float32 on the CPU, twice their size on a GPU.
    let states = (sessions.count as f64 * 2.0 * config.session_bytes(longest)) as u64;
    let parts = bytes.parts().into_iter().filter(|(_, bytes)| *bytes > 0);
    let parts = parts.map(|(part, bytes)| DemandTerm::new(part, bytes, ""));
    let swapped = states.min(model.engine.offload_bytes);
    parts
        .chain([DemandTerm::new("states of idle sessions", swapped, "at most policy.engine.offload_bytes")])
        .collect()
}

/// Weight files that are read through the page cache. Shards of a later version that are links to
/// the first one's share its pages.
fn page_cache(job: &Job) -> Vec<DemandTerm> {
    let Some(model) = &job.policy.model else { return Vec::new() };
    let files = weight_files(model);
    let mut terms =
        vec![DemandTerm::new("weight files", files.iter().sum(), format!("{} files", files.len()))];
    if loads_new_versions(model)
        && let Some(largest) = files.iter().max()
    {
        let how = format!(
            "if all files but one are links to these; {:.1} GB if none is",
            files.iter().sum::<u64>() as f64 / 1e9
        );
        terms.push(DemandTerm::new("the largest file of a next version", *largest, how));
    }
    terms
}
