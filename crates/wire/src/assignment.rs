//! Assignments, tasks and session settings.

use furrow_rollout::{
    Ancestry, Assignment, Clock, ContextPolicy, ExtraAction, Grammar, Id, ObservationSpec, PageHooks,
    Sampling, SessionSpec, Split, Task,
};

use crate::error::{WireError, cap, capped, finite, need, unknown, word};
use crate::limits::{HOSTS_MAX, TEXT_BYTES_MAX, URL_BYTES_MAX};
use crate::observation::{format_from, format_into, size_from, size_into};
use crate::v1;

/// Noun from message.
pub fn assignment_from(message: v1::Assignment) -> Result<Assignment, WireError> {
    Ok(Assignment {
        ancestry: ancestry_from(&need(message.ancestry, "assignment.ancestry")?)?,
        token: message.token,
        lease_millis: message.lease_millis,
        task: task_from(need(message.task, "assignment.task")?)?,
        session: session_spec_from(need(message.session, "assignment.session")?)?,
        policy_address: capped(message.policy_address, 512, "assignment.policy_address")?,
    })
}

/// Message from noun.
pub fn assignment_into(noun: &Assignment) -> v1::Assignment {
    v1::Assignment {
        ancestry: Some(ancestry_into(&noun.ancestry)),
        token: noun.token,
        lease_millis: noun.lease_millis,
        task: Some(task_into(&noun.task)),
        session: Some(session_spec_into(&noun.session)),
        policy_address: noun.policy_address.clone(),
    }
}

/// Noun from message.
pub fn ancestry_from(message: &v1::Ancestry) -> Result<Ancestry, WireError> {
    Ok(Ancestry {
        run_id: id_from(&message.run_id, "ancestry.run_id")?,
        group_id: id_from(&message.group_id, "ancestry.group_id")?,
        sample_index: message.sample_index,
        attempt: message.attempt,
        trajectory_id: id_from(&message.trajectory_id, "ancestry.trajectory_id")?,
    })
}

/// Message from noun.
pub fn ancestry_into(noun: &Ancestry) -> v1::Ancestry {
    v1::Ancestry {
        run_id: noun.run_id.to_string(),
        group_id: noun.group_id.to_string(),
        sample_index: noun.sample_index,
        attempt: noun.attempt,
        trajectory_id: noun.trajectory_id.to_string(),
    }
}

/// Noun from message.
pub fn task_from(message: v1::Task) -> Result<Task, WireError> {
    cap(message.allow_hosts.len(), HOSTS_MAX, "task.allow_hosts")?;
    let observation = need(message.observation, "task.observation")?;
    Ok(Task {
        task_id: capped(message.task_id, 256, "task.task_id")?,
        suite: capped(message.suite, 256, "task.suite")?,
        split: word(
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
            None => Clock::Real,
            Some(step_millis) => Clock::Virtual { step_millis },
        },
    })
}

/// Message from noun.
pub fn task_into(noun: &Task) -> v1::Task {
    v1::Task {
        task_id: noun.task_id.clone(),
        suite: noun.suite.clone(),
        split: noun.split.as_str().to_owned(),
        goal: noun.goal.clone(),
        start_url: noun.start_url.clone(),
        seed: noun.seed,
        max_steps: noun.max_steps,
        time_limit_millis: noun.time_limit_millis,
        viewport: Some(size_into(noun.viewport)),
        observation: Some(v1::ObservationSpec {
            format: Some(format_into(noun.observation.format)),
            clip: noun.observation.clip.map(size_into),
            square: noun.observation.square,
        }),
        allow_hosts: noun.allow_hosts.clone(),
        hooks: Some(v1::PageHooks {
            start: noun.hooks.start.clone(),
            probe: noun.hooks.probe.clone(),
            solve: noun.hooks.solve.clone(),
        }),
        virtual_step_millis: match noun.clock {
            Clock::Real => None,
            Clock::Virtual { step_millis } => Some(step_millis),
        },
    }
}

/// Noun from message.
pub fn session_spec_from(message: v1::SessionSpec) -> Result<SessionSpec, WireError> {
    let grammar = need(message.grammar, "session.grammar")?;
    let sampling = need(message.sampling, "session.sampling")?;
    Ok(SessionSpec {
        grammar: Grammar {
            name: capped(grammar.name, 256, "session.grammar.name")?,
            extra: grammar.extra.iter().map(|name| extra_from(name)).collect::<Result<_, _>>()?,
        },
        sampling: Sampling {
            temperature: finite(sampling.temperature, "session.sampling.temperature")?,
            top_p: finite(sampling.top_p, "session.sampling.top_p")?,
            top_k: sampling.top_k,
            min_p: finite(sampling.min_p, "session.sampling.min_p")?,
            max_tokens: sampling.max_tokens,
            seed: sampling.seed,
        },
        context: context_from(&message.context)?,
        instructions: capped(message.instructions, TEXT_BYTES_MAX, "session.instructions")?,
    })
}

/// Message from noun.
pub fn session_spec_into(noun: &SessionSpec) -> v1::SessionSpec {
    v1::SessionSpec {
        grammar: Some(v1::Grammar {
            name: noun.grammar.name.clone(),
            extra: noun.grammar.extra.iter().map(|extra| extra.as_str().to_owned()).collect(),
        }),
        sampling: Some(v1::Sampling {
            temperature: noun.sampling.temperature,
            top_p: noun.sampling.top_p,
            top_k: noun.sampling.top_k,
            min_p: noun.sampling.min_p,
            max_tokens: noun.sampling.max_tokens,
            seed: noun.sampling.seed,
        }),
        context: noun.context.to_string(),
        instructions: noun.instructions.clone(),
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
    word(ExtraAction::parse(name), "session.grammar.extra", name, "drag, select_tab, press_key or write")
}

fn context_from(text: &str) -> Result<ContextPolicy, WireError> {
    word(ContextPolicy::parse(text), "session.context", text, "append, last_image, window(k) or fresh")
}

fn id_from<K: furrow_rollout::Kind>(text: &str, key: &'static str) -> Result<Id<K>, WireError> {
    Id::new(text).map_err(|_| unknown(key, text, "1 to 128 of A-Z a-z 0-9 . _ -"))
}
