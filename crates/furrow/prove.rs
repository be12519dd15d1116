//! `furrow tasks check --all`: proves in real browsers that each demonstrated task can be solved
//! and that nothing else earns its reward.
//!
//! Three checks for each task and seed. Its demonstration, acting through real input events only,
//! ends with reward 1. Doing nothing earns nothing. Answering without looking at the page earns
//! nothing: not with stock answers, not with anything that the goal itself names, and with at most
//! [`LUCKY_MAX`] of [`GUESSES`] random numbers, since a number may be right by chance.
//!
//! A task without a demonstration is opened, so that its page loads and the goal is made, and gets
//! the last two checks.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use furrow_env::{Environment, EnvironmentError, EnvironmentFactory};
use furrow_policy::hint;
use furrow_rollout::{
    Action, Assignment, EndKind, Evidence, FaultOwner, FinalQuery, Finding, FindingFailure,
    FindingFailureKind, Id, LEASE_SECRET_BYTES, LeaseSecret, SessionSpec, Task, TrajectoryAncestry,
};
use furrow_tasks::{EndFacts, Scorer, TaskSpec};
use futures::StreamExt;
use rand::rngs::ChaCha12Rng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::progress::ItemProgress;
use crate::{CommandFailure, output};

/// Number of random numbers given as the answer.
const GUESSES: usize = 40;
/// How many of them may be right: one guess in ten or so hits a count below 20.
const LUCKY_MAX: usize = 4;
/// How many of the last hints are printed for a failed demonstration.
const HINTS_PRINTED: usize = 4;
/// Answers that need no look at the page.
const STOCK: [&str; 8] = ["done", "yes", "no", "0", "1", "none", "unknown", "I could not find it."];

/// The result for one task and seed.
#[derive(Debug)]
struct TaskProof {
    task: String,
    seed: u64,
    goal: String,
    steps: u32,
    /// Whether its demonstration was followed; otherwise its page was opened.
    is_demonstrated: bool,
    /// Empty if everything is proved.
    problems: Vec<String>,
    /// What went wrong in its pages, which need not be the task's fault.
    page_errors: Vec<String>,
}

/// Which tasks to prove, and how.
#[derive(Debug)]
pub(crate) struct ProofPlan<'a> {
    pub session: &'a SessionSpec,
    /// Seeds for each task.
    pub seeds: u64,
    /// Most proofs that run at once.
    pub at_once: usize,
    pub as_json: bool,
}

/// How a followed demonstration ended.
#[derive(Debug)]
pub(crate) struct DemonstrationRun {
    pub end: EndKind,
    pub answer: Option<String>,
    pub steps: u32,
    /// The last hint as its script returned it.
    pub last_hint: String,
    /// The actions as they were executed, the answer included.
    pub actions: Vec<Action>,
    /// The last hints, cut to a readable length.
    last: VecDeque<String>,
}

/// Proves tasks with a demonstration and opens those without, each under every seed.
pub(crate) async fn prove(
    specs: &[&TaskSpec],
    stages: Arc<dyn EnvironmentFactory>,
    plan: &ProofPlan<'_>,
) -> Result<(), CommandFailure> {
    let ProofPlan { session, seeds, at_once, as_json } = *plan;
    let mut count = ItemProgress::new("proofs", specs.len() as u64 * seeds);
    let cases = specs.iter().flat_map(|&spec| (0..seeds).map(move |seed| (spec, seed)));
    let stages_of = &stages;
    let proving = cases.enumerate().map(|(index, (spec, seed))| async move {
        let seed = spec.fixed_seed.unwrap_or_else(|| case_seed(&spec.name(), seed));
        prove_one(spec, seed, index, stages_of.as_ref(), session).await
    });
    let mut proving = futures::stream::iter(proving).buffered(at_once);
    let mut proofs: Vec<TaskProof> = Vec::new();
    let mut reported = BTreeSet::new();
    while let Some(proof) = proving.next().await {
        for problem in &proof.problems {
            count.say(&format!("{} with seed {}: {problem}", proof.task, proof.seed));
        }
        // Every task of a site has the errors of the page that they share.
        for error in proof.page_errors.iter().filter(|error| reported.insert((*error).clone())) {
            count.say(&format!("{}: page error: {error}", proof.task));
        }
        count.step();
        proofs.push(proof);
    }
    drop(count);
    stages.close().await;
    let opened = specs.iter().filter(|spec| spec.task.hooks.solve.is_none()).count();
    print_proofs(&proofs, opened, as_json)
}

fn print_proofs(proofs: &[TaskProof], opened: usize, as_json: bool) -> Result<(), CommandFailure> {
    let wrong: Vec<&TaskProof> = proofs.iter().filter(|proof| !proof.problems.is_empty()).collect();
    // A page that was only opened proves nothing of its task.
    let followed: Vec<&TaskProof> = proofs.iter().filter(|proof| proof.is_demonstrated).collect();
    let proved = followed.iter().filter(|proof| proof.problems.is_empty()).count();
    if as_json {
        let rows: Vec<Value> = proofs.iter().map(describe).collect();
        output::json(&json!({ "proofs": rows, "proved": proved, "without_demonstration": opened }))?;
    } else {
        let rows: Vec<Vec<String>> = proofs.iter().map(row).collect();
        output::table(&["task", "seed", "steps", "proved"], &rows);
        output::line(format!(
            "{proved} of {} demonstrations proved; {opened} tasks have no demonstration and were opened",
            followed.len()
        ));
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let all = proofs.len();
    Err(CommandFailure::Work(anyhow::anyhow!(
        "{} of {all} proofs failed; see the reasons above",
        wrong.len()
    )))
}

async fn prove_one(
    spec: &TaskSpec,
    seed: u64,
    index: usize,
    stages: &dyn EnvironmentFactory,
    session: &SessionSpec,
) -> TaskProof {
    let mut proof = TaskProof {
        task: spec.name(),
        seed,
        goal: String::new(),
        steps: 0,
        is_demonstrated: spec.task.hooks.solve.is_some(),
        problems: Vec::new(),
        page_errors: Vec::new(),
    };
    let opened = match assignment(spec, seed, index, session) {
        Ok(assignment) => stages.open(&assignment).await,
        Err(error) => Err(EnvironmentError::Failed(error)),
    };
    let mut stage = match opened {
        Ok(stage) => stage,
        Err(error) => {
            proof.problems.push(format!("the page did not open: {error}"));
            return proof;
        }
    };
    if let Err(error) = examine(spec, stage.as_mut(), &mut proof).await {
        proof.problems.push(error);
    }
    proof.page_errors = stage.page_errors().await.iter().map(ToString::to_string).collect();
    stage.close().await;
    proof
}

async fn examine(spec: &TaskSpec, stage: &mut dyn Environment, proof: &mut TaskProof) -> Result<(), String> {
    let to_text = |error: EnvironmentError| error.to_string();
    let made = stage.begin().await.map_err(to_text)?;
    let goal = spec.task.goal.clone().or(made).ok_or("neither the task nor its page has a goal")?;
    proof.goal.clone_from(&goal);
    let idle = stage.evidence().await.ok_or("the start page gives no evidence")?;
    proof.problems.extend(broken_queries(&idle));
    proof.problems.extend(earned_for_nothing(&spec.scorer, &idle, &goal, &spec.task, proof.seed));
    if !proof.is_demonstrated {
        return Ok(());
    }
    let DemonstrationRun { end, answer, steps, last, .. } = follow(stage, &goal, &spec.task).await?;
    proof.steps = steps;
    let mut evidence = stage.evidence().await.ok_or("the last page gives no evidence")?;
    evidence.answer.clone_from(&answer);
    let facts = EndFacts { end, steps, max_steps: spec.task.max_steps };
    let score = spec.scorer.score(&evidence, &facts).map_err(|error| error.to_string())?;
    if score.reward != Some(1.0) || score.success != Some(true) {
        proof.problems.push(format!(
            "the demonstration ended as {} after {steps} steps with reward {}: {}; goal: {goal}; its last hints: {}",
            end.as_str(),
            score.reward.map_or("none".to_owned(), |reward| reward.to_string()),
            score.rationale,
            last.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
        ));
    }
    Ok(())
}

/// Follows the demonstration until it answers, the page is done, or the steps are used up.
pub(crate) async fn follow(
    stage: &mut dyn Environment,
    goal: &str,
    task: &Task,
) -> Result<DemonstrationRun, String> {
    let mut last = VecDeque::new();
    let mut last_hint = String::new();
    let mut actions = Vec::new();
    let ended = |end, answer, actions: Vec<Action>, last_hint, last| {
        Ok(DemonstrationRun { end, answer, steps: actions.len() as u32, last_hint, actions, last })
    };
    for step in 0..task.max_steps {
        // A trajectory observes before each step, which also detects new tabs.
        stage.observe().await.map_err(|error| error.to_string())?;
        let hint_text = stage.hint(goal, step).await.map_err(|error| format!("step {step}: {error}"))?;
        if last.len() == HINTS_PRINTED {
            last.pop_front();
        }
        last.push_back(
            hint_text
                .as_ref()
                .map_or("null".to_owned(), |hint_text| hint_text.json.chars().take(200).collect()),
        );
        last_hint = hint_text.as_ref().map_or_else(String::new, |hint| hint.json.clone());
        let read = hint_text.map(|hint_text| hint::read(&hint_text.json)).transpose()?;
        let action = read.flatten().map_or(Action::Wait { seconds: 1 }, |(action, _)| action);
        actions.push(action.clone());
        if let Action::Answer { content } = action {
            return ended(EndKind::Answered, Some(content), actions, last_hint, last);
        }
        if execute(stage, &action).await.map_err(|error| format!("step {step}: {error}"))? {
            return ended(EndKind::Done, None, actions, last_hint, last);
        }
    }
    ended(EndKind::MaxSteps, None, actions, last_hint, last)
}

/// Executes an action, waits until the page is quiet, and asks whether the task is over.
pub(crate) async fn execute(stage: &mut dyn Environment, action: &Action) -> Result<bool, EnvironmentError> {
    let outcome = stage.act(action).await?;
    stage.settle(outcome).await?;
    let probe = stage.probe().await?;
    let says = probe.and_then(|json| serde_json::from_str::<Value>(&json).ok());
    Ok(says.is_some_and(|says| says["done"] == Value::Bool(true)))
}

/// What the scorer looks up and cannot find on any page: a selector or an expression with a mistake
/// scores 0 for ever, and a back end that does not answer scores nothing.
fn broken_queries(idle: &Evidence) -> Vec<String> {
    let json = idle.findings_json.as_deref();
    let findings = json.and_then(|json| Finding::list_of_json(json).ok()).unwrap_or_default();
    let problem = |finding: Finding| {
        let FindingFailure { kind, why } = finding.result.err()?;
        let is_mistake = kind == FindingFailureKind::Threw && why.contains("SyntaxError");
        // A start address that leads to another host: the scorer must name that host.
        let is_start = matches!(finding.query, FinalQuery::Page { host: None, .. });
        let is_elsewhere = kind == FindingFailureKind::Away && is_start;
        let is_broken = is_mistake || is_elsewhere || kind.fault() == FaultOwner::Farm;
        is_broken
            .then(|| format!("{} cannot be looked up: {}: {why}", finding.query.to_json(), kind.as_str()))
    };
    findings.into_iter().filter_map(problem).collect()
}

/// The ways to earn a reward on the untouched page.
fn earned_for_nothing(scorer: &Scorer, idle: &Evidence, goal: &str, task: &Task, seed: u64) -> Vec<String> {
    let earns = |answer: Option<String>| {
        // An end that pays, whether or not there is an answer.
        let facts = EndFacts { end: EndKind::Answered, steps: 0, max_steps: task.max_steps };
        let evidence = Evidence { answer, ..idle.clone() };
        scorer.score(&evidence, &facts).is_ok_and(|score| score.reward.is_some_and(|reward| reward > 0.0))
    };
    let mut problems = Vec::new();
    if earns(None) {
        problems.push(format!("doing nothing is rewarded; goal: {goal}"));
    }
    for answer in cheap_answers(goal) {
        if earns(Some(answer.clone())) {
            problems.push(format!("answering {answer:?} without a look is rewarded; goal: {goal}"));
        }
    }
    let lucky = guesses(seed).into_iter().filter(|guess| earns(Some(guess.clone()))).count();
    if lucky > LUCKY_MAX {
        problems.push(format!("{lucky} of {GUESSES} random numbers are rewarded; goal: {goal}"));
    }
    problems
}

/// Stock answers, and what the goal itself quotes or names as a number.
fn cheap_answers(goal: &str) -> BTreeSet<String> {
    let quoted = goal.split('"').skip(1).step_by(2).map(str::to_owned);
    let numbers = goal.split(|c: char| !c.is_ascii_digit() && c != '.').map(|part| part.trim_matches('.'));
    let numbers = numbers.filter(|part| part.parse::<f64>().is_ok()).map(str::to_owned);
    STOCK
        .map(str::to_owned)
        .into_iter()
        .chain(quoted)
        .chain(numbers)
        .filter(|answer| !answer.is_empty())
        .collect()
}

/// Half small whole numbers, half amounts with two decimals.
fn guesses(seed: u64) -> Vec<String> {
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    let mut number = |below: u64| rng.next_u64() % below;
    (0..GUESSES)
        .map(|index| match index % 2 {
            0 => number(100).to_string(),
            _ => format!("{}.{:02}", number(400), number(100)),
        })
        .collect()
}

/// Seeds spread over the range that a sampler draws from, the same on every machine.
pub(crate) fn case_seed(name: &str, index: u64) -> u64 {
    let sum = name
        .bytes()
        .fold(index.wrapping_add(1), |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    ChaCha12Rng::seed_from_u64(sum).next_u64() & 0xffff_ffff
}

/// What opens a task outside of a run.
pub(crate) fn assignment(
    spec: &TaskSpec,
    seed: u64,
    index: usize,
    session: &SessionSpec,
) -> Result<Assignment, String> {
    let run_id = Id::new("check").map_err(|bad| bad.to_string())?;
    let group_id = Id::nth(&run_id, index as u64);
    let trajectory_id = Id::attempt(&group_id, 0, 0);
    Ok(Assignment {
        ancestry: TrajectoryAncestry { run_id, group_id, sample_index: 0, attempt: 0, trajectory_id },
        token: 1,
        // No coordinator leases it, so none asks for it.
        secret: LeaseSecret::new([0; LEASE_SECRET_BYTES]),
        lease_millis: 60_000,
        task: spec.with_seed(seed),
        files: spec.files.clone(),
        checks: spec.checks(),
        secrets: spec.secrets.clone(),
        session: session.clone(),
        policy_address: String::new(),
    })
}

fn describe(proof: &TaskProof) -> Value {
    let TaskProof { task, seed, goal, steps, is_demonstrated, problems, page_errors } = proof;
    json!({
        "task": task, "seed": seed, "goal": goal, "steps": steps, "demonstrated": is_demonstrated,
        "problems": problems, "page_errors": page_errors,
    })
}

fn row(proof: &TaskProof) -> Vec<String> {
    let proved = match (proof.problems.is_empty(), proof.is_demonstrated) {
        (true, true) => "yes",
        (true, false) => "opened",
        (false, _) => "NO",
    };
    vec![proof.task.clone(), proof.seed.to_string(), proof.steps.to_string(), proved.to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_goal_names_is_a_cheap_answer() {
        let answers =
            cheap_answers(r#"Put 3 of the "Tall Mug 20" at $4.50 in the cart, then answer "done"."#);
        for want in ["3", "Tall Mug 20", "4.50", "20", "done", "yes"] {
            assert!(answers.contains(want), "{want:?} is missing in {answers:?}");
        }
        assert!(!answers.contains(""));
    }

    #[test]
    fn a_query_with_a_mistake_is_named() {
        let idle = |kind, why: &str| {
            let query = FinalQuery::Command { hook: "paid".into() };
            let finding = Finding { query, result: Err(FindingFailure::new(kind, why)) };
            Evidence { findings_json: Some(Finding::list_to_json(&[finding])), ..Evidence::default() }
        };
        let table = [
            (FindingFailureKind::Threw, "SyntaxError: 'p[' is not a valid selector", 1),
            (FindingFailureKind::Threw, "TypeError: null has no text", 0),
            (FindingFailureKind::Away, "about:blank", 0),
            (FindingFailureKind::NoAnswer, "connection refused", 1),
            (FindingFailureKind::HookFailed, "killed", 1),
        ];
        for (kind, why, count) in table {
            assert_eq!(broken_queries(&idle(kind, why)).len(), count, "{why}");
        }
        assert_eq!(broken_queries(&Evidence::default()), [""; 0]);
    }

    #[test]
    fn guesses_and_seeds_repeat_and_differ() {
        assert_eq!((guesses(7), guesses(7).len()), (guesses(7), GUESSES));
        assert_ne!(guesses(7), guesses(8));
        assert_eq!(case_seed("web/a", 0), case_seed("web/a", 0));
        assert_ne!(case_seed("web/a", 0), case_seed("web/a", 1));
    }
}
