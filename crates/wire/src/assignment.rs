//! Assignments, tasks and session settings.

use furrow_rollout::{
    Assignment, ContextPolicy, ExtraAction, FinalQuery, Grammar, Id, ObservationSpec, PageClock, PageHooks,
    QUERIES_MAX, SECRETS_MAX, SamplingParams, SessionSpec, Split, Task, TaskChecks, TrajectoryAncestry,
    is_hook_name, is_secret_name,
};

use crate::error::{WireError, cap, capped, known_value, need, unknown, within};
use crate::files::{FileContents, upload_into};
use crate::lease::{lease_secret_from, lease_secret_into};
use crate::limits::{HOSTS_MAX, REPLY_TOKENS_MAX, TEXT_BYTES_MAX, URL_BYTES_MAX};
use crate::observation::{format_from, format_into, size_from, size_into};
use crate::v1;

/// Validates an assignment that a coordinator sent beside these files.
pub fn assignment_from(message: v1::Assignment, contents: &FileContents) -> Result<Assignment, WireError> {
    Ok(Assignment {
        files: contents.select(message.uploads, message.download_bytes_max)?,
        ancestry: ancestry_from(&need(message.ancestry, "assignment.ancestry")?)?,
        token: message.token,
        secret: lease_secret_from(message.secret, "assignment.secret")?,
        lease_millis: message.lease_millis,
        task: task_from(need(message.task, "assignment.task")?)?,
        checks: checks_from(message.checks.unwrap_or_default())?,
        secrets: secrets_from(message.secrets)?,
        session: session_spec_from(need(message.session, "assignment.session")?)?,
        policy_address: capped(message.policy_address, 512, "assignment.policy_address")?,
    })
}

/// Converts an assignment to its message.
pub fn assignment_into(value: &Assignment) -> v1::Assignment {
    v1::Assignment {
        ancestry: Some(ancestry_into(&value.ancestry)),
        token: value.token,
        secret: Some(lease_secret_into(&value.secret)),
        lease_millis: value.lease_millis,
        task: Some(task_into(&value.task)),
        checks: Some(checks_into(&value.checks)),
        secrets: value.secrets.clone(),
        session: Some(session_spec_into(&value.session)),
        policy_address: value.policy_address.clone(),
        uploads: value.files.uploads.iter().map(upload_into).collect(),
        download_bytes_max: value.files.download_bytes_max,
    }
}

/// Validates checks: the name of the hook, number and content of the queries.
fn checks_from(message: v1::TaskChecks) -> Result<TaskChecks, WireError> {
    cap(message.queries.len(), QUERIES_MAX, "checks.queries")?;
    if let Some(name) = message.reset.as_ref().filter(|name| !is_hook_name(name)) {
        return Err(unknown("checks.reset", name, "a hook's name"));
    }
    let query = |text: &String| {
        let query = serde_json::from_str(text).map_err(|error| error.to_string());
        let query = query.and_then(|query| FinalQuery::of_json(&query));
        query.map_err(|why| unknown("checks.queries", &why, "a query of this release"))
    };
    Ok(TaskChecks {
        reset: message.reset,
        queries: message.queries.iter().map(query).collect::<Result<_, _>>()?,
    })
}

fn secrets_from(names: Vec<String>) -> Result<Vec<String>, WireError> {
    cap(names.len(), SECRETS_MAX, "assignment.secrets")?;
    match names.iter().find(|name| !is_secret_name(name)) {
        Some(name) => Err(unknown("assignment.secrets", name, "a secret's name, such as SHOP_PASSWORD")),
        None => Ok(names),
    }
}

fn checks_into(value: &TaskChecks) -> v1::TaskChecks {
    v1::TaskChecks {
        reset: value.reset.clone(),
        queries: value.queries.iter().map(|query| query.to_json().to_string()).collect(),
    }
}

/// Validates the ids that place a trajectory in its run.
pub fn ancestry_from(message: &v1::Ancestry) -> Result<TrajectoryAncestry, WireError> {
    Ok(TrajectoryAncestry {
        run_id: id_from(&message.run_id, "ancestry.run_id")?,
        group_id: id_from(&message.group_id, "ancestry.group_id")?,
        sample_index: message.sample_index,
        attempt: message.attempt,
        trajectory_id: id_from(&message.trajectory_id, "ancestry.trajectory_id")?,
    })
}

/// Converts the ids of a trajectory to their message.
pub fn ancestry_into(value: &TrajectoryAncestry) -> v1::Ancestry {
    v1::Ancestry {
        run_id: value.run_id.to_string(),
        group_id: value.group_id.to_string(),
        sample_index: value.sample_index,
        attempt: value.attempt,
        trajectory_id: value.trajectory_id.to_string(),
    }
}

/// Validates a task: lengths of its texts, number of its hosts, and a known split.
pub fn task_from(message: v1::Task) -> Result<Task, WireError> {
    cap(message.allow_hosts.len(), HOSTS_MAX, "task.allow_hosts")?;
    let observation = need(message.observation, "task.observation")?;
    Ok(Task {
        task_id: capped(message.task_id, 256, "task.task_id")?,
        suite: capped(message.suite, 256, "task.suite")?,
        split: known_value(
            Split::parse(&message.split),
            "task.split",
            &message.split,
            "train, validation, test or eval",
        )?,
        goal: message.goal.map(|goal| capped(goal, TEXT_BYTES_MAX, "task.goal")).transpose()?,
        start_url: capped(message.start_url, URL_BYTES_MAX, "task.start_url")?,
        seed: message.seed,
        max_steps: message.max_steps,
        time_limit_millis: message.time_limit_millis,
        viewport: size_from(need(message.viewport, "task.viewport")?)?,
        observation: ObservationSpec {
            format: format_from(need(observation.format, "task.observation.format")?)?,
            clip: observation.clip.map(size_from).transpose()?,
            square: observation.square,
        },
        allow_hosts: message.allow_hosts,
        hooks: hooks_from(message.hooks.unwrap_or_default())?,
        clock: match message.virtual_step_millis {
            None => PageClock::Real,
            Some(step_millis) => PageClock::Virtual { step_millis },
        },
    })
}

/// Converts a task to its message.
pub fn task_into(value: &Task) -> v1::Task {
    v1::Task {
        task_id: value.task_id.clone(),
        suite: value.suite.clone(),
        split: value.split.as_str().to_owned(),
        goal: value.goal.clone(),
        start_url: value.start_url.clone(),
        seed: value.seed,
        max_steps: value.max_steps,
        time_limit_millis: value.time_limit_millis,
        viewport: Some(size_into(value.viewport)),
        observation: Some(v1::ObservationSpec {
            format: Some(format_into(value.observation.format)),
            clip: value.observation.clip.map(size_into),
            square: value.observation.square,
        }),
        allow_hosts: value.allow_hosts.clone(),
        hooks: Some(v1::PageHooks {
            start: value.hooks.start.clone(),
            probe: value.hooks.probe.clone(),
            solve: value.hooks.solve.clone(),
        }),
        virtual_step_millis: match value.clock {
            PageClock::Real => None,
            PageClock::Virtual { step_millis } => Some(step_millis),
        },
    }
}

/// Validates the settings of a session: sampling parameters that a job may set, known extra actions
/// and context policy.
pub fn session_spec_from(message: v1::SessionSpec) -> Result<SessionSpec, WireError> {
    let grammar = need(message.grammar, "session.grammar")?;
    let sampling = need(message.sampling, "session.sampling")?;
    Ok(SessionSpec {
        grammar: Grammar {
            name: capped(grammar.name, 256, "session.grammar.name")?,
            extra: grammar.extra.iter().map(|name| extra_from(name)).collect::<Result<_, _>>()?,
        },
        sampling: SamplingParams {
            temperature: within(
                sampling.temperature,
                0.0..=100.0,
                "session.sampling.temperature",
                "0 to 100",
            )?,
            top_p: within(
                sampling.top_p,
                f32::MIN_POSITIVE..=1.0,
                "session.sampling.top_p",
                "above 0, at most 1",
            )?,
            top_k: sampling.top_k,
            min_p: within(sampling.min_p, 0.0..=1.0, "session.sampling.min_p", "0 to 1")?,
            max_tokens: reply_tokens_from(sampling.max_tokens)?,
            seed: sampling.seed,
        },
        context: context_from(&message.context)?,
        instructions: capped(message.instructions, TEXT_BYTES_MAX, "session.instructions")?,
    })
}

/// Most tokens of a reply, in the range that a job may set.
fn reply_tokens_from(max_tokens: u32) -> Result<u32, WireError> {
    if (1..=REPLY_TOKENS_MAX).contains(&max_tokens) {
        return Ok(max_tokens);
    }
    Err(unknown("session.sampling.max_tokens", &max_tokens.to_string(), "1 to 1000000"))
}

/// Converts session settings to their message.
pub fn session_spec_into(value: &SessionSpec) -> v1::SessionSpec {
    v1::SessionSpec {
        grammar: Some(v1::Grammar {
            name: value.grammar.name.clone(),
            extra: value.grammar.extra.iter().map(|extra| extra.as_str().to_owned()).collect(),
        }),
        sampling: Some(v1::Sampling {
            temperature: value.sampling.temperature,
            top_p: value.sampling.top_p,
            top_k: value.sampling.top_k,
            min_p: value.sampling.min_p,
            max_tokens: value.sampling.max_tokens,
            seed: value.sampling.seed,
        }),
        context: value.context.to_string(),
        instructions: value.instructions.clone(),
    }
}

fn hooks_from(message: v1::PageHooks) -> Result<PageHooks, WireError> {
    let script = |text: Option<String>, key| text.map(|text| capped(text, TEXT_BYTES_MAX, key)).transpose();
    Ok(PageHooks {
        start: script(message.start, "task.hooks.start")?,
        probe: script(message.probe, "task.hooks.probe")?,
        solve: script(message.solve, "task.hooks.solve")?,
    })
}

fn extra_from(name: &str) -> Result<ExtraAction, WireError> {
    known_value(
        ExtraAction::parse(name),
        "session.grammar.extra",
        name,
        "drag, select_tab, press_key, write or upload",
    )
}

fn context_from(text: &str) -> Result<ContextPolicy, WireError> {
    known_value(ContextPolicy::parse(text), "session.context", text, "append, last_image, window(k) or fresh")
}

fn id_from<K: furrow_rollout::IdKind>(text: &str, key: &'static str) -> Result<Id<K>, WireError> {
    Id::new(text).map_err(|_| unknown(key, text, "1 to 128 of A-Z a-z 0-9 . _ -"))
}
