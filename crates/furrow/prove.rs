//! `furrow tasks check --all`: proves in real browsers that each demonstrated task can be solved and is not earned for nothing.
//!
//! Three things are looked at for each task and seed. Its demonstration, acting through real input events alone, ends with reward 1.
//! Doing nothing earns nothing. Nor does answering without a look at the page: not with any of a few stock words, not with anything the
//! goal itself names, and of [`GUESSES`] random numbers at most [`LUCKY_MAX`], since a number may be hit by chance.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use furrow_env::{Stage, StageError, Stages};
use furrow_policy::hint;
use furrow_rollout::{Action, Ancestry, Assignment, End, Evidence, Id, SessionSpec, Task};
use furrow_tasks::{Facts, Scorer, TaskSet, TaskSpec};
use futures::StreamExt;
use rand::rngs::ChaCha12Rng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::progress::Count;
use crate::{Failure, output};

/// Random numbers given as the answer.
const GUESSES: usize = 40;
/// So many of them may be right. A count below 20 is hit by one of ten guesses or so.
const LUCKY_MAX: usize = 4;
/// So many of the last hints are told of a demonstration that failed.
const HINTS_TOLD: usize = 4;
/// Answers that need no look at anything.
const STOCK: [&str; 8] = ["done", "yes", "no", "0", "1", "none", "unknown", "I could not find it."];

/// What was found out about one task under one seed.
#[derive(Debug)]
struct Proof {
    task: String,
    seed: u64,
    goal: String,
    steps: u32,
    /// What speaks against it; empty when all is proved.
    problems: Vec<String>,
}

/// How following a demonstration ended.
#[derive(Debug)]
struct Followed {
    end: End,
    answer: Option<String>,
    steps: u32,
    /// The last hints, cut to a readable length.
    last: VecDeque<String>,
}

/// Proves every task of the set that has a demonstration, under so many seeds each.
pub async fn prove(
    set: &TaskSet,
    stages: Arc<dyn Stages>,
    session: &SessionSpec,
    seeds: u64,
    at_once: usize,
    as_json: bool,
) -> Result<(), Failure> {
    let demonstrated: Vec<&TaskSpec> =
        set.specs().iter().filter(|spec| spec.task.hooks.solve.is_some()).collect();
    let left_out = set.specs().len() - demonstrated.len();
    let mut count = Count::new("proofs", demonstrated.len() as u64 * seeds);
    let cases = demonstrated.iter().flat_map(|&spec| (0..seeds).map(move |seed| (spec, seed)));
    let stages_of = &stages;
    let proving = cases.enumerate().map(|(index, (spec, seed))| async move {
        let seed = spec.fixed_seed.unwrap_or_else(|| case_seed(&spec.name(), seed));
        prove_one(spec, seed, index, stages_of.as_ref(), session).await
    });
    let mut proving = futures::stream::iter(proving).buffered(at_once);
    let mut proofs: Vec<Proof> = Vec::new();
    while let Some(proof) = proving.next().await {
        for problem in &proof.problems {
            count.say(&format!("{} with seed {}: {problem}", proof.task, proof.seed));
        }
        count.step();
        proofs.push(proof);
    }
    drop(count);
    stages.close().await;
    tell(&proofs, left_out, as_json)
}

fn tell(proofs: &[Proof], left_out: usize, as_json: bool) -> Result<(), Failure> {
    let wrong: Vec<&Proof> = proofs.iter().filter(|proof| !proof.problems.is_empty()).collect();
    if as_json {
        let rows: Vec<Value> = proofs.iter().map(describe).collect();
        output::json(
            &json!({ "proofs": rows, "proved": proofs.len() - wrong.len(), "without_demonstration": left_out }),
        )?;
    } else {
        let rows: Vec<Vec<String>> = proofs.iter().map(row).collect();
        output::table(&["task", "seed", "steps", "proved"], &rows);
        output::line(format!(
            "{} of {} proved; {left_out} tasks have no demonstration",
            proofs.len() - wrong.len(),
            proofs.len()
        ));
    }
    if wrong.is_empty() && !proofs.is_empty() {
        return Ok(());
    }
    Err(Failure::Work(match proofs.len() {
        0 => anyhow::anyhow!("no task has a demonstration; there is nothing to prove"),
        all => anyhow::anyhow!("{} of {all} proofs failed; the reasons stand above", wrong.len()),
    }))
}

async fn prove_one(
    spec: &TaskSpec,
    seed: u64,
    index: usize,
    stages: &dyn Stages,
    session: &SessionSpec,
) -> Proof {
    let mut proof = Proof { task: spec.name(), seed, goal: String::new(), steps: 0, problems: Vec::new() };
    let opened = match assignment(spec, seed, index, session) {
        Ok(assignment) => stages.open(&assignment).await,
        Err(error) => Err(StageError::Failed(error)),
    };
    let mut stage = match opened {
        Ok(stage) => stage,
        Err(error) => {
            proof.problems.push(format!("no page: {error}"));
            return proof;
        }
    };
    if let Err(error) = examine(spec, stage.as_mut(), &mut proof).await {
        proof.problems.push(error);
    }
    stage.close().await;
    proof
}

async fn examine(spec: &TaskSpec, stage: &mut dyn Stage, proof: &mut Proof) -> Result<(), String> {
    let told = |error: StageError| error.to_string();
    let made = stage.begin().await.map_err(told)?;
    let goal = spec.task.goal.clone().or(made).ok_or("neither the task nor its page has a goal")?;
    proof.goal.clone_from(&goal);
    let idle = stage.evidence().await.ok_or("nothing is to be seen of the start page")?;
    proof.problems.extend(earned_for_nothing(&spec.scorer, &idle, &goal, &spec.task, proof.seed));
    let Followed { end, answer, steps, last } = follow(stage, &goal, &spec.task).await?;
    proof.steps = steps;
    let mut evidence = stage.evidence().await.ok_or("nothing is to be seen at the end")?;
    evidence.answer.clone_from(&answer);
    let facts = Facts { end, steps, max_steps: spec.task.max_steps };
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

/// Acts as the demonstration says until it answers, the page is done, or the steps are used up.
async fn follow(stage: &mut dyn Stage, goal: &str, task: &Task) -> Result<Followed, String> {
    let mut last = VecDeque::new();
    for step in 0..task.max_steps {
        // A trajectory looks before each step, and notices new tabs by it.
        stage.observe().await.map_err(|error| error.to_string())?;
        let asked = stage.hint(goal, step).await.map_err(|error| format!("step {step}: {error}"))?;
        if last.len() == HINTS_TOLD {
            last.pop_front();
        }
        last.push_back(
            asked.as_ref().map_or("null".to_owned(), |asked| asked.json.chars().take(200).collect()),
        );
        let read = asked.map(|asked| hint::read(&asked.json)).transpose()?;
        let action = read.flatten().map_or(Action::Wait { seconds: 1 }, |(action, _)| action);
        if let Action::Answer { content } = action {
            return Ok(Followed { end: End::Answered, answer: Some(content), steps: step + 1, last });
        }
        let outcome = stage.act(&action).await.map_err(|error| format!("step {step}: {error}"))?;
        stage.settle(outcome).await.map_err(|error| format!("step {step}: {error}"))?;
        let probe = stage.probe().await.map_err(|error| format!("step {step}: {error}"))?;
        let says = probe.and_then(|json| serde_json::from_str::<Value>(&json).ok());
        if says.is_some_and(|says| says["done"] == Value::Bool(true)) {
            return Ok(Followed { end: End::Done, answer: None, steps: step + 1, last });
        }
    }
    Ok(Followed { end: End::MaxSteps, answer: None, steps: task.max_steps, last })
}

/// What the untouched page would already be rewarded for.
fn earned_for_nothing(scorer: &Scorer, idle: &Evidence, goal: &str, task: &Task, seed: u64) -> Vec<String> {
    let earns = |answer: Option<String>| {
        let end = if answer.is_some() { End::Answered } else { End::MaxSteps };
        let evidence = Evidence { answer, ..idle.clone() };
        let facts = Facts { end, steps: 0, max_steps: task.max_steps };
        scorer.score(&evidence, &facts).is_ok_and(|score| score.reward.is_some_and(|reward| reward > 0.0))
    };
    let mut problems = Vec::new();
    if earns(None) {
        problems.push(format!("doing nothing is rewarded; goal: {goal}"));
    }
    for answer in cheap_answers(goal) {
        if earns(Some(answer.clone())) {
            problems.push(format!("answering {answer:?} unseen is rewarded; goal: {goal}"));
        }
    }
    let lucky = guesses(seed).into_iter().filter(|guess| earns(Some(guess.clone()))).count();
    if lucky > LUCKY_MAX {
        problems.push(format!("{lucky} of {GUESSES} random numbers are rewarded; goal: {goal}"));
    }
    problems
}

/// Stock words, and what the goal itself puts in quotes or names as a number.
fn cheap_answers(goal: &str) -> BTreeSet<String> {
    let quoted = goal.split('"').skip(1).step_by(2).map(str::to_owned);
    let numbers = goal.split(|c: char| !c.is_ascii_digit() && c != '.').map(|word| word.trim_matches('.'));
    let numbers = numbers.filter(|word| word.parse::<f64>().is_ok()).map(str::to_owned);
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

/// Seeds spread over what a sampler would draw, the same on every machine.
fn case_seed(name: &str, index: u64) -> u64 {
    let sum = name
        .bytes()
        .fold(index.wrapping_add(1), |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    ChaCha12Rng::seed_from_u64(sum).next_u64() & 0xffff_ffff
}

fn assignment(spec: &TaskSpec, seed: u64, index: usize, session: &SessionSpec) -> Result<Assignment, String> {
    let run_id = Id::new("check").map_err(|bad| bad.to_string())?;
    let group_id = Id::nth(&run_id, index as u64);
    let trajectory_id = Id::attempt(&group_id, 0, 0);
    Ok(Assignment {
        ancestry: Ancestry { run_id, group_id, sample_index: 0, attempt: 0, trajectory_id },
        token: 1,
        lease_millis: 60_000,
        task: spec.drawn(seed),
        session: session.clone(),
        policy_address: String::new(),
    })
}

fn describe(proof: &Proof) -> Value {
    let Proof { task, seed, goal, steps, problems } = proof;
    json!({ "task": task, "seed": seed, "goal": goal, "steps": steps, "problems": problems })
}

fn row(proof: &Proof) -> Vec<String> {
    let proved = if proof.problems.is_empty() { "yes" } else { "NO" };
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
            assert!(answers.contains(want), "{want:?} not in {answers:?}");
        }
        assert!(!answers.contains(""));
    }

    #[test]
    fn guesses_and_seeds_repeat_and_differ() {
        assert_eq!((guesses(7), guesses(7).len()), (guesses(7), GUESSES));
        assert_ne!(guesses(7), guesses(8));
        assert_eq!(case_seed("web/a", 0), case_seed("web/a", 0));
        assert_ne!(case_seed("web/a", 0), case_seed("web/a", 1));
    }
}
