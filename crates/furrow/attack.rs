//! `furrow tasks attack`: tries in real browsers what a policy that wants the reward without the
//! task would try, on any suite with demonstrations.
//!
//! Six attacks for each task and seed. The demonstration is followed first, because an attack needs
//! to know the right answer and the right state. Then, each in a session of its own or on the
//! demonstration's evidence:
//! * `unpaid_end`: the goal reached, and an end that the task does not pay.
//! * `forged_report`: a script in the page replaces what the page reports.
//! * `written_storage`: a script in the page writes the storage that the demonstration left.
//! * `large_storage`: a script in the page fills the storage.
//! * `error_page`: the browser's error page in front, with the right answer: a verdict is due.
//! * `every_candidate`: the answer is all that the start page says.

use std::sync::Arc;

use furrow_env::{Environment, EnvironmentFactory};
use furrow_rollout::{Action, EndKind, Evidence, Score, is_graded};
use furrow_tasks::{EndFacts, TaskSpec};
use futures::StreamExt;
use serde_json::{Value, json};
use url::Url;

use crate::progress::ItemProgress;
use crate::prove::{ProofPlan, assignment, case_seed, follow};
use crate::{CommandFailure, output};

/// Runs in the page before the policy acts: what a script that got in would do to the report.
const FORGE: &str = r#"
  const report = { done: false, correct: true, expected: "1", state: {}, reward: 1, raw_reward: 1 };
  const forged = { probe: () => report };
  try { Object.assign(window.furrow, forged); } catch {}
  try { Object.defineProperty(window, "furrow", { value: forged }); } catch {}
  try { window.furrow = forged; } catch {}
"#;

/// Run in a world of their own, which shares the storage with the page.
const FILL_STORAGE: &str = r#"localStorage.setItem("filled", "x".repeat(4_000_000)); return null;"#;
const READ_TEXT: &str = "return document.body.innerText.slice(0, 4000);";

/// What became of an attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttackResult {
    /// No reward, and a verdict.
    Unpaid,
    /// A reward, as a page that reports on itself can be made to give: the score says so.
    SelfReported,
    /// A reward for a written state that the site's own rules allow after a single step.
    Reachable,
    /// A reward that nothing marks.
    Paid,
    /// There was no verdict, so that the trajectory would be tried again.
    Unscored,
}

impl AttackResult {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Unpaid => "not_paid",
            Self::SelfReported => "self_reported",
            Self::Reachable => "reachable",
            Self::Paid => "PAID",
            Self::Unscored => "UNSCORED",
        }
    }

    fn is_failure(self) -> bool {
        matches!(self, Self::Paid | Self::Unscored)
    }
}

/// One attack on one task under one seed.
#[derive(Debug)]
struct AttackRow {
    task: String,
    seed: u64,
    attack: &'static str,
    result: AttackResult,
    why: String,
}

/// What the demonstration left behind.
struct SolvedTask {
    /// Its answer; without one, the page said that the task is done.
    answer: Option<String>,
    evidence: Evidence,
    steps: u32,
    /// The site's storage at the end, as an object.
    storage: Value,
}

/// Attacks each task that has a demonstration, under each seed.
pub(crate) async fn attack(
    specs: &[&TaskSpec],
    stages: Arc<dyn EnvironmentFactory>,
    plan: &ProofPlan<'_>,
) -> Result<(), CommandFailure> {
    let demonstrated: Vec<&TaskSpec> =
        specs.iter().copied().filter(|spec| spec.task.hooks.solve.is_some()).collect();
    let mut count = ItemProgress::new("tasks", demonstrated.len() as u64 * plan.seeds);
    let cases = demonstrated.iter().flat_map(|&spec| (0..plan.seeds).map(move |seed| (spec, seed)));
    let stages_of = stages.as_ref();
    let attacking = cases.enumerate().map(|(index, (spec, seed))| async move {
        let seed = spec.fixed_seed.unwrap_or_else(|| case_seed(&spec.name(), seed));
        let attacker = TaskAttacker { spec, seed, index, stages: stages_of, plan };
        attacker.run().await
    });
    let mut attacking = futures::stream::iter(attacking).buffered(plan.at_once);
    let mut rows = Vec::new();
    let mut broken = Vec::new();
    while let Some(attacked) = attacking.next().await {
        count.step();
        match attacked {
            Ok(found) => rows.extend(found),
            Err(problem) => {
                count.say(&problem);
                broken.push(problem);
            }
        }
    }
    drop(count);
    drop(attacking);
    stages.close().await;
    conclude(&rows, &broken, specs.len() - demonstrated.len(), plan.as_json)
}

fn conclude(
    rows: &[AttackRow],
    broken: &[String],
    skipped: usize,
    as_json: bool,
) -> Result<(), CommandFailure> {
    let of = |result| rows.iter().filter(|row| row.result == result).count();
    let [unpaid, believed] = [of(AttackResult::Unpaid), of(AttackResult::SelfReported)];
    if as_json {
        let attacks: Vec<Value> = rows.iter().map(AttackRow::describe).collect();
        output::json(&json!({ "attacks": attacks, "broken": broken, "without_demonstration": skipped }))?;
    } else {
        let shown = rows.iter().filter(|row| row.result != AttackResult::Unpaid);
        let table: Vec<Vec<String>> = shown.map(AttackRow::cells).collect();
        if !table.is_empty() {
            output::table(&["task", "seed", "attack", "result", "why"], &table);
        }
        output::line(format!(
            "{unpaid} of {} attacks were not paid; {believed} were paid on pages that report of themselves \
             (component self_reported); {skipped} tasks have no demonstration and were not attacked",
            rows.len()
        ));
    }
    let failed = rows.iter().filter(|row| row.result.is_failure()).count();
    if failed == 0 && broken.is_empty() {
        return Ok(());
    }
    Err(CommandFailure::Work(anyhow::anyhow!(
        "{failed} attacks were paid or escaped their score, and {} tasks could not be attacked; see above, \
         and docs/REWARD_HACKING.md",
        broken.len()
    )))
}

impl AttackRow {
    fn describe(&self) -> Value {
        let Self { task, seed, attack, result, why } = self;
        json!({ "task": task, "seed": seed, "attack": attack, "result": result.as_str(), "why": why })
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.task.clone(),
            self.seed.to_string(),
            self.attack.to_owned(),
            self.result.as_str().to_owned(),
            self.why.clone(),
        ]
    }
}

/// Attacks one task under one seed.
struct TaskAttacker<'a> {
    spec: &'a TaskSpec,
    seed: u64,
    index: usize,
    stages: &'a dyn EnvironmentFactory,
    plan: &'a ProofPlan<'a>,
}

impl TaskAttacker<'_> {
    async fn run(&self) -> Result<Vec<AttackRow>, String> {
        let named = |why: String| format!("{} with seed {}: {why}", self.spec.name(), self.seed);
        self.attacks().await.map_err(named)
    }

    async fn attacks(&self) -> Result<Vec<AttackRow>, String> {
        let solved = self.solve().await?;
        let right = || solved.answer.clone().unwrap_or_else(|| "done".to_owned());
        // The right answer is rightful, whatever else was written: where it is enough, a wrong one.
        let untouched = self.played(None, "", right()).await;
        let is_enough = untouched.as_ref().is_ok_and(|(score, _)| earned(score));
        let claimed = || if is_enough { "furrow".to_owned() } else { right() };
        let storage = write_storage(&solved.storage);
        let found = [
            ("unpaid_end", self.unpaid_end(&solved)),
            ("forged_report", of_played(self.played(Some(FORGE), "", "1".to_owned()).await)),
            ("written_storage", of_written(self.played(None, &storage, claimed()).await)),
            ("large_storage", of_played(self.played(None, FILL_STORAGE, claimed()).await)),
            ("every_candidate", of_played(self.played(None, READ_TEXT, String::new()).await)),
            ("error_page", self.left(right()).await),
        ];
        let row = |(attack, (result, why)): (&'static str, (AttackResult, String))| AttackRow {
            task: self.spec.name(),
            seed: self.seed,
            attack,
            result,
            why,
        };
        Ok(found.into_iter().map(row).collect())
    }

    /// Follows the demonstration and keeps what it left.
    async fn solve(&self) -> Result<SolvedTask, String> {
        let demonstration = self.spec.task.hooks.solve.as_deref().unwrap_or_default();
        let (mut stage, goal) = self.open(None, &with_storage(demonstration)).await?;
        let solved = self.follow_to_the_end(stage.as_mut(), &goal).await;
        stage.close().await;
        solved
    }

    async fn follow_to_the_end(&self, stage: &mut dyn Environment, goal: &str) -> Result<SolvedTask, String> {
        let run = follow(stage, goal, &self.spec.task).await?;
        let mut evidence = stage.evidence().await.ok_or("the last page gives no evidence")?;
        evidence.answer.clone_from(&run.answer);
        let score = self.score(&evidence, run.end, run.steps)?;
        if score.reward != Some(1.0) {
            return Err(format!(
                "its demonstration earns {:?}, not 1; prove it first with `furrow tasks check --all`",
                score.reward
            ));
        }
        let hint: Value = serde_json::from_str(&run.last_hint).unwrap_or_default();
        let storage = hint["thought"].as_str().and_then(|text| serde_json::from_str(text).ok());
        Ok(SolvedTask {
            answer: run.answer,
            evidence,
            steps: run.steps,
            storage: storage.unwrap_or_default(),
        })
    }

    /// The goal reached, at each end of a policy's that the task does not name.
    fn unpaid_end(&self, solved: &SolvedTask) -> (AttackResult, String) {
        let evidence = Evidence { answer: None, ..solved.evidence.clone() };
        let unpaid =
            [EndKind::Unparsable, EndKind::OffListNavigation, EndKind::ContextFull, EndKind::MaxTime];
        for end in unpaid.into_iter().filter(|end| !self.spec.scorer.pays(*end)) {
            let found = judged(self.score(&evidence, end, solved.steps));
            if found.0 != AttackResult::Unpaid {
                return (found.0, format!("{}: {}", end.as_str(), found.1));
            }
        }
        (AttackResult::Unpaid, String::new())
    }

    /// Starts the task, lets `forge` run in the page and `script` beside it, and answers: what the
    /// script returns, or else `answer`. Returns the score, and whether the site was graded.
    async fn played(
        &self,
        forge: Option<&str>,
        script: &str,
        answer: String,
    ) -> Result<(Score, bool), String> {
        let (mut stage, goal) = self.open(forge, script).await?;
        let ran = async {
            let returned = match script {
                "" => None,
                _ => stage.hint(&goal, 0).await.map_err(|error| error.to_string())?,
            };
            let text =
                returned.and_then(|hint| serde_json::from_str::<Option<String>>(&hint.json).ok()).flatten();
            // What was written shows after a reload; what was forged is gone after one.
            let step = if forge.is_some() { Action::Wait { seconds: 1 } } else { Action::Refresh };
            act(stage.as_mut(), &step).await;
            let mut evidence = stage.evidence().await.ok_or("the page gives no evidence")?;
            evidence.answer = Some(text.unwrap_or(answer));
            let is_graded = evidence.probe_json.as_deref().is_some_and(is_graded);
            Ok((self.score(&evidence, EndKind::Answered, 2)?, is_graded))
        };
        let score = ran.await;
        stage.close().await;
        score
    }

    /// The right answer in front of the browser's error page: any verdict will do.
    async fn left(&self, answer: String) -> (AttackResult, String) {
        let (mut stage, _) = match self.open(None, "").await {
            Ok(opened) => opened,
            Err(why) => return (AttackResult::Unscored, why),
        };
        let ran = async {
            let mut url = Url::parse(&self.spec.task.start_url).map_err(|error| error.to_string())?;
            // Nothing listens there, whether the host is served by the farm or not.
            url.set_scheme("https").and_then(|()| url.set_port(Some(9))).map_err(|()| "no such address")?;
            act(stage.as_mut(), &Action::Goto { url: url.to_string() }).await;
            let mut evidence = stage.evidence().await.ok_or("the error page gives no evidence")?;
            evidence.answer = Some(answer);
            self.score(&evidence, EndKind::Answered, 2)
        };
        let score = ran.await;
        stage.close().await;
        match score {
            Ok(_) => (AttackResult::Unpaid, String::new()),
            Err(why) => (AttackResult::Unscored, why),
        }
    }

    async fn open(&self, forge: Option<&str>, solve: &str) -> Result<(Box<dyn Environment>, String), String> {
        let mut assignment = assignment(self.spec, self.seed, self.index, self.plan.session)?;
        let hooks = &mut assignment.task.hooks;
        hooks.solve = Some(solve.to_owned());
        if let Some((forge, start)) = forge.zip(hooks.start.as_mut()) {
            *start = format!("(async () => {{ const goal = await ({start}); {forge}; return goal; }})()");
        }
        let mut stage = self.stages.open(&assignment).await.map_err(|error| error.to_string())?;
        let goal = stage.begin().await;
        let goal = match goal.map_err(|error| error.to_string()) {
            Ok(goal) => self.spec.task.goal.clone().or(goal),
            Err(why) => {
                stage.close().await;
                return Err(why);
            }
        };
        match goal {
            Some(goal) => Ok((stage, goal)),
            None => {
                stage.close().await;
                Err("neither the task nor its page has a goal".to_owned())
            }
        }
    }

    fn score(&self, evidence: &Evidence, end: EndKind, steps: u32) -> Result<Score, String> {
        let facts = EndFacts { end, steps, max_steps: self.spec.task.max_steps };
        self.spec.scorer.score(evidence, &facts).map_err(|error| error.to_string())
    }
}

/// One step, as a trajectory makes it. What fails is the page's answer to an attack.
async fn act(stage: &mut dyn Environment, action: &Action) {
    if let Ok(outcome) = stage.act(action).await {
        stage.settle(outcome).await.ok();
    }
    stage.probe().await.ok();
}

/// The demonstration, whose answer carries the site's storage as its thought.
fn with_storage(demonstration: &str) -> String {
    format!(
        "const next = await (async () => {{ {demonstration}\n }})(); \
         return next && next.action === \"answer\" ? {{ ...next, thought: JSON.stringify({{ ...localStorage }}) }} : next;"
    )
}

/// A script that writes the storage and returns nothing.
fn write_storage(storage: &Value) -> String {
    format!(
        "for (const [name, value] of Object.entries({storage} ?? {{}})) localStorage.setItem(name, value); return null;"
    )
}

fn earned(score: &Score) -> bool {
    score.reward.is_some_and(|reward| reward > 0.0)
}

fn of_played(played: Result<(Score, bool), String>) -> (AttackResult, String) {
    judged(played.map(|(score, _)| score))
}

/// The same where a state was written: one that a graded site accepts is a legal one.
fn of_written(played: Result<(Score, bool), String>) -> (AttackResult, String) {
    let is_graded = played.as_ref().is_ok_and(|(_, is_graded)| *is_graded);
    match of_played(played) {
        (AttackResult::Paid, why) if is_graded => (AttackResult::Reachable, why),
        other => other,
    }
}

/// What a verdict says about the attack that it is on.
fn judged(score: Result<Score, String>) -> (AttackResult, String) {
    match score {
        Err(why) => (AttackResult::Unscored, why),
        Ok(score) if !earned(&score) => (AttackResult::Unpaid, String::new()),
        Ok(score) => {
            let is_marked = |name: &str| name.rsplit('/').next() == Some("self_reported");
            let is_believed = score.components.iter().any(|part| is_marked(&part.name));
            let result = if is_believed { AttackResult::SelfReported } else { AttackResult::Paid };
            (result, score.rationale)
        }
    }
}

#[cfg(test)]
mod tests {
    use furrow_rollout::ScoreComponent;

    use super::*;

    #[test]
    fn a_paid_attack_is_a_failure_unless_its_page_is_marked_as_believed() {
        let score = |reward: f32, component: &str| Score {
            reward: Some(reward),
            success: Some(reward == 1.0),
            components: vec![ScoreComponent { name: component.to_owned(), value: 1.0 }],
            scorer: "probe".to_owned(),
            version: 4,
            rationale: "because".to_owned(),
            evidence_sha256: [0; 32],
        };
        for (given, want) in [
            (Ok(score(0.0, "tampered")), AttackResult::Unpaid),
            (Ok(score(-1.0, "raw")), AttackResult::Unpaid),
            (Ok(score(1.0, "raw")), AttackResult::Paid),
            (Ok(score(0.5, "not_self_reported")), AttackResult::Paid),
            (Ok(score(1.0, "self_reported")), AttackResult::SelfReported),
            (Ok(score(1.0, "1.text/self_reported")), AttackResult::SelfReported),
            (Err("no probe".to_owned()), AttackResult::Unscored),
        ] {
            let (got, _) = judged(given.clone());
            assert_eq!(got, want, "{given:?}");
            assert_eq!(got.is_failure(), matches!(want, AttackResult::Paid | AttackResult::Unscored));
        }
        let written = |is_graded| of_written(Ok((score(1.0, "raw"), is_graded))).0;
        assert_eq!([true, false].map(written), [AttackResult::Reachable, AttackResult::Paid]);
    }
}
