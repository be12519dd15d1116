//! Memory of the machine: what is pinned, what processes take, what is left for files that are mapped.

use furrow_model::floor::Work as _;
use furrow_policy::Arena;

use super::{Machine, Roles, Sum, Term, There, takes_versions, weight_files};
use crate::job::Job;
use crate::sessions::Sessions;

/// A session of light pages in Chromium with its share of the farm: 4.14 GB (PSS) of 100 sessions, `docs/benchmarks/browser-100.json`.
const SESSION_BYTES: u64 = 41_400_000;
/// A context that waits for its session, as `env.contexts_ready` has it.
const CONTEXT_BYTES: u64 = 20_000_000;
/// The process itself: code, runtime, allocator, tokenizer, ledger.
const PROCESS_BYTES: u64 = 300_000_000;
/// Tables of steps that are written at a time: of scored trajectories and of failed ones.
const TABLES: u64 = 2;

/// Pinned memory, processes and page cache, each beside what those before it leave.
pub fn sums(
    job: &Job,
    roles: Roles,
    sessions: &Sessions,
    arena: Option<&Arena>,
    machine: &Machine,
) -> Vec<Sum> {
    let mut left = machine.memory.clone();
    let mut sums = Vec::new();
    let mut add = |what, terms: Vec<Term>, remedy: &str, must_fit| {
        let sum = Sum { what, terms, there: left.clone(), remedy: remedy.into(), must_fit };
        if let Some(There { bytes, of }) = &mut left {
            *bytes = bytes.saturating_sub(sum.total());
            *of = format!("{}, {what} taken off", of.split(", ").next().unwrap_or_default());
        }
        sums.push(sum);
    };
    if let Some(arena) = arena {
        let remedy = "lower policy.engine.parked_bytes, or set policy.weights.stage = \"device\"";
        add("pinned memory", pinned(arena), remedy, true);
    }
    let remedy = if arena.is_some() {
        "lower policy.engine.parked_bytes or env.sessions_max"
    } else {
        "lower env.sessions_max, policy.engine.kv_tokens, state_slots or parked_bytes"
    };
    add("memory of processes", processes(job, roles, sessions), remedy, false);
    let cached = page_cache(job);
    if !cached.is_empty() {
        let remedy = "lower policy.engine.parked_bytes; weights are read from disk again where their pages were given up";
        add("page cache", cached, remedy, false);
    }
    sums
}

fn pinned(arena: &Arena) -> Vec<Term> {
    let parts = arena.needs.pinned.parts().iter().filter(|(_, bytes)| *bytes > 0);
    parts.map(|(part, bytes)| Term::new(*part, *bytes, "")).collect()
}

/// Estimates, but for what the job sets.
fn processes(job: &Job, roles: Roles, sessions: &Sessions) -> Vec<Term> {
    let count = sessions.count as u64;
    let mut terms = vec![Term::new("the program", PROCESS_BYTES, "estimated")];
    if let Some(model) = &job.policy.model {
        let config = furrow_model::config::Config::read(&model.checkpoint).ok();
        let side = config.and_then(|config| config.vision).map_or(0, |vision| vision.tile as u64);
        let tiles = sessions.workload.steps().map(|step| u64::from(step.tiles)).max().unwrap_or(0);
        let bytes = count * tiles * 3 * side * side * 4;
        terms.push(Term::new(
            "screenshots cut into tiles",
            bytes,
            format!("{count} sessions x {tiles} tiles x 3 x {side} x {side} float32"),
        ));
        terms.extend(on_the_processor(model, sessions));
    }
    if roles == Roles::Policy {
        return terms;
    }
    let env = &job.env;
    let browsers = count.div_ceil(u64::from(env.browser.contexts_per_browser).max(1));
    let ready = u64::from(env.browser.contexts_ready);
    let steps = sessions.workload.steps_mean().ceil() as u64;
    terms.extend([
        Term::new(
            "browsers",
            count * SESSION_BYTES,
            format!("{count} sessions x 41.4 MB, measured with light pages"),
        ),
        Term::new(
            "contexts made ahead",
            browsers * ready * CONTEXT_BYTES,
            format!("{browsers} browsers x {ready} x 20 MB"),
        ),
        Term::new(
            "steps kept until a trajectory ends",
            count * steps * sessions.step_bytes,
            format!("{count} sessions x {steps} steps x {} kB", sessions.step_bytes / 1000),
        ),
        Term::new("files of sites", env.sites.cache_bytes_max, "env.site_cache_bytes_max"),
        Term::new(
            "steps on their way to the spool",
            job.limits.spool_queue_bytes_max(),
            "limits.spool_queue_bytes_max",
        ),
        Term::new(
            "rows on their way to shards",
            TABLES * job.records.row_group_bytes as u64,
            format!("{TABLES} tables x records.row_group_bytes"),
        ),
        Term::new("reserve", env.browser.memory_reserve_bytes, "env.memory_reserve_bytes"),
    ]);
    terms
}

/// What a model takes that computes on the processor. States that are swapped out take memory when they are, and no more than those of all sessions.
fn on_the_processor(model: &furrow_policy::ModelConfig, sessions: &Sessions) -> Vec<Term> {
    let Ok(Some(bytes)) = furrow_policy::bytes_on_the_processor(model) else { return Vec::new() };
    let Ok(config) = furrow_model::config::Config::read(&model.checkpoint) else { return Vec::new() };
    let turns = sessions.workload.turns(&config, sessions.keep);
    let longest = turns.iter().flatten().map(|turn| turn.new + turn.past + turn.sampled).fold(0.0, f64::max);
    // Keys and values are float32 there, twice what they are on a GPU.
    let states = (sessions.count as f64 * 2.0 * config.session_bytes(longest)) as u64;
    let parts = bytes.parts().into_iter().filter(|(_, bytes)| *bytes > 0);
    let parts = parts.map(|(part, bytes)| Term::new(part, bytes, ""));
    let swapped = states.min(model.engine.parked_bytes);
    parts
        .chain([Term::new("states of idle sessions", swapped, "at most policy.engine.parked_bytes")])
        .collect()
}

/// Weight files that are read through the page cache. Shards of a later version that are links to the first one's are the same pages.
fn page_cache(job: &Job) -> Vec<Term> {
    let Some(model) = &job.policy.model else { return Vec::new() };
    let files = weight_files(model);
    let mut terms = vec![Term::new("weight files", files.iter().sum(), format!("{} files", files.len()))];
    if takes_versions(model)
        && let Some(largest) = files.iter().max()
    {
        let how = format!(
            "where all files but one are links to those; {:.1} GB where none is",
            files.iter().sum::<u64>() as f64 / 1e9
        );
        terms.push(Term::new("the largest file of a next version", *largest, how));
    }
    terms
}
