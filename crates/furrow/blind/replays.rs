//! Open-loop replay: the actions of a demonstration under one seed, executed under other seeds
//! whatever the page shows. A template that this solves teaches a list of actions.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use furrow_env::{Environment, EnvironmentFactory};
use furrow_rollout::{Action, EndKind, Evidence, SessionSpec};
use furrow_tasks::{EndFacts, TaskSpec};
use futures::{StreamExt, TryStreamExt};

use super::gate::{BlindRate, FIRST_DRAWS, REPEAT_DRAWS};
use super::resume::{ReplayLine, ResumeFile};
use super::seeds::{self, SeedRole};
use crate::progress::ItemProgress;
use crate::prove;

/// Which actions are replayed, under which seeds, and where the results go.
pub(super) struct ReplayPlan<'a> {
    pub spec: &'a TaskSpec,
    pub stages: &'a dyn EnvironmentFactory,
    pub session: &'a SessionSpec,
    /// Differs between the tasks of a check, and so do the names of their trajectories.
    pub index: usize,
    /// Seed of the whole check.
    pub seed: u64,
    /// Most replays at once.
    pub at_once: usize,
    /// Counts replays; no borrow is held over a wait.
    pub count: &'a RefCell<ItemProgress>,
    /// Replays of earlier starts, and where new ones go; no borrow is held over a wait.
    pub resume: &'a RefCell<ResumeFile>,
}

/// The rates of a template's replays.
pub(super) struct Replayed {
    pub first: BlindRate,
    pub repeated: Option<BlindRate>,
    /// Replays with a verdict, and those whose page failed.
    pub made: u64,
    pub failed: u64,
    /// Time of the replays, earlier starts included.
    pub took: Duration,
}

/// How one trajectory ended, and what was executed in it.
struct AttemptEnd {
    end: EndKind,
    /// `None` without a verdict.
    reward: Option<f32>,
    steps: u32,
    executed: Vec<Action>,
}

impl ReplayPlan<'_> {
    /// Records the demonstration and replays it, as often as the rule of the gate asks.
    pub(super) async fn run(&self) -> Result<Replayed, String> {
        let seeds = |role, count| seeds::seeds(self.seed, &self.spec.name(), role, count);
        let first_seeds = seeds(SeedRole::Test, FIRST_DRAWS);
        // A check that an earlier start finished needs no browser.
        let is_known = |seed: &u64| self.resume.borrow().find(self.spec, *seed).is_some();
        let mut actions = Vec::new();
        if !first_seeds.iter().all(is_known) {
            actions = self.record().await?;
        }
        let first = self.replays(&first_seeds, &actions).await?;
        let mut repeated = Vec::new();
        if rate(&first).needs_repeat() {
            let seeds = seeds(SeedRole::Repeat, REPEAT_DRAWS);
            if actions.is_empty() && !seeds.iter().all(is_known) {
                actions = self.record().await?;
            }
            repeated = self.replays(&seeds, &actions).await?;
        }
        let ended = || first.iter().chain(&repeated);
        let made = ended().flatten().count() as u64;
        let failed = ended().count() as u64 - made;
        if failed * 10 > made {
            return Err(format!("{failed} of {} replays failed", failed + made));
        }
        Ok(Replayed {
            first: rate(&first),
            repeated: (!repeated.is_empty()).then(|| rate(&repeated)),
            made,
            failed,
            took: ended().flatten().map(|line| Duration::from_millis(line.millis)).sum(),
        })
    }

    /// The replay of each seed; `None` where the page failed.
    async fn replays(&self, seeds: &[u64], actions: &[Action]) -> Result<Vec<Option<ReplayLine>>, String> {
        self.count.borrow_mut().expect_more(seeds.len() as u64);
        let replays = seeds.iter().enumerate().map(|(position, &seed)| async move {
            let known = self.resume.borrow().find(self.spec, seed);
            let line = match known {
                Some(line) => Some(line),
                None => self.replay_and_keep(seed, self.index + position, actions).await?,
            };
            self.count.borrow_mut().advance(1);
            Ok(line)
        });
        futures::stream::iter(replays).buffered(self.at_once).try_collect().await
    }

    /// Replays under a seed and appends the result to the file; `None` if the page failed, which
    /// the next start tries again.
    async fn replay_and_keep(
        &self,
        seed: u64,
        index: usize,
        actions: &[Action],
    ) -> Result<Option<ReplayLine>, String> {
        let began = Instant::now();
        let ended = match self.attempt(seed, index, Some(actions)).await {
            Ok(ended) => ended,
            Err(why) => {
                self.count.borrow().say(&format!("{} with seed {seed}: {why}", self.spec.name()));
                return Ok(None);
            }
        };
        let line = ReplayLine {
            success: ended.earned(),
            reward: ended.reward,
            end: ended.end.as_str().to_owned(),
            steps: ended.steps,
            millis: began.elapsed().as_millis() as u64,
        };
        self.resume.borrow_mut().append(self.spec, seed, &line)?;
        Ok(Some(line))
    }

    /// The actions of the demonstration under a seed that no replay has.
    async fn record(&self) -> Result<Vec<Action>, String> {
        let seed = seeds::seeds(self.seed, &self.spec.name(), SeedRole::Training, 1)[0];
        let ended = self.attempt(seed, self.index, None).await;
        let ended = ended.map_err(|why| format!("the demonstration: {why}"))?;
        match ended.earned() {
            true => Ok(ended.executed),
            false => {
                Err(format!("the demonstration under seed {seed} earned nothing; nothing can be replayed"))
            }
        }
    }

    /// Executes these actions, or the demonstration without any, and scores the end.
    async fn attempt(
        &self,
        seed: u64,
        index: usize,
        actions: Option<&[Action]>,
    ) -> Result<AttemptEnd, String> {
        let assignment = prove::assignment(self.spec, seed, index, self.session)?;
        let mut stage = self.stages.open(&assignment).await.map_err(|error| error.to_string())?;
        let ended = self.act_and_score(stage.as_mut(), actions).await;
        stage.close().await;
        ended
    }

    async fn act_and_score(
        &self,
        stage: &mut dyn Environment,
        actions: Option<&[Action]>,
    ) -> Result<AttemptEnd, String> {
        let task = &self.spec.task;
        let made = stage.begin().await.map_err(|error| error.to_string())?;
        let goal = task.goal.clone().or(made).ok_or("neither the task nor its page has a goal")?;
        let (end, answer, executed) = match actions {
            Some(actions) => execute_all(stage, actions).await?,
            None => {
                let run = prove::follow(stage, &goal, task).await?;
                (run.end, run.answer, run.actions)
            }
        };
        let steps = executed.len() as u32;
        let idle = stage.evidence().await.ok_or("the last page gives no evidence")?;
        let evidence = Evidence { answer, ..idle };
        let facts = EndFacts { end, steps, max_steps: task.max_steps };
        let reward = self.spec.scorer.score(&evidence, &facts).ok().and_then(|score| score.reward);
        Ok(AttemptEnd { end, reward, steps, executed })
    }
}

impl AttemptEnd {
    fn earned(&self) -> bool {
        self.reward.is_some_and(|reward| reward > 0.0)
    }
}

/// How actions ended: the end, the answer, and the actions that were executed.
type ExecutedActions = (EndKind, Option<String>, Vec<Action>);

/// Executes the actions without looking, until one of them answers or the task is over. A list
/// without an answer ends as a policy that uses up its steps.
async fn execute_all(stage: &mut dyn Environment, actions: &[Action]) -> Result<ExecutedActions, String> {
    for (step, action) in actions.iter().enumerate() {
        let executed = || actions[..=step].to_vec();
        if let Action::Answer { content } = action {
            return Ok((EndKind::Answered, Some(content.clone()), executed()));
        }
        // A new tab counts from the next observation on; its picture goes nowhere.
        stage.observe().await.map_err(|error| format!("step {step}: {error}"))?;
        if prove::execute(stage, action).await.map_err(|error| format!("step {step}: {error}"))? {
            return Ok((EndKind::Done, None, executed()));
        }
    }
    Ok((EndKind::MaxSteps, None, actions.to_vec()))
}

fn rate(lines: &[Option<ReplayLine>]) -> BlindRate {
    let successes = lines.iter().flatten().filter(|line| line.success).count() as u64;
    BlindRate { policy: "replay".to_owned(), successes, draws: lines.iter().flatten().count() as u64 }
}
