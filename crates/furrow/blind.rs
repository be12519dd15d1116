//! `furrow tasks check --blind` and `--replays`: which templates can be solved without looking?
//!
//! **Blind**: policies that see the goal alone (`blind/policies.rs`) learn from draws of a template
//! and are tried on other draws of it. **Replays**: the actions of a demonstration under one seed
//! are executed under others, whatever the page shows (`blind/replays.rs`). Both follow the rule in
//! `blind/gate.rs`. Every random choice follows from one seed.

mod draw;
mod draws;
mod expression;
mod forest;
mod formulas;
mod gate;
mod goal;
mod policies;
mod replays;
mod report;
mod resume;
mod seeds;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use furrow_env::EnvironmentFactory;
use furrow_rollout::SessionSpec;
use furrow_tasks::TaskSpec;
use futures::StreamExt;

use crate::CommandFailure;
use crate::progress::ItemProgress;
use draw::DrawScorer;
use draws::{DrawKind, DrawSource};
use gate::{FIRST_DRAWS, REPEAT_DRAWS};
use replays::ReplayPlan;
use report::{BlindReport, TemplateReport, TemplateResult};
use resume::ResumeFile;
use seeds::SeedRole;

/// Training draws of a template whose pages must be opened one by one.
const PAGE_TRAINING_MAX: usize = 60;

/// Least deadline of a batch of draws: a busy machine makes it late, and no policy waits for it.
pub(crate) const DRAWS_DEADLINE: Duration = Duration::from_secs(30);

/// What the blind checks try, and how often.
#[derive(Debug, Args)]
pub(crate) struct BlindArgs {
    /// Find templates that can be solved without looking: try constant answers, tables of goals, a
    /// forest on the goal's words, and formulas over its numbers in a real browser. A template
    /// fails if the upper 95 % bound of the best of them exceeds 0.10
    #[arg(long, conflicts_with_all = ["all", "replays", "seeds"])]
    blind: bool,
    /// Find templates that a fixed list of actions solves: execute the actions of the demonstration
    /// under one seed under other seeds, by the same rule. Takes seconds for each replay
    #[arg(long, conflicts_with_all = ["all", "seeds"])]
    replays: bool,
    /// Number of draws that the policies of --blind learn from; at most 60 where each draw opens a
    /// page, which the report says
    #[arg(long, value_name = "DRAWS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    training: u32,
    /// Seed of all draws and of the forest
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Append each finished replay to this file, and do not repeat those that it has. Remove it
    /// after a change of the site
    #[arg(long, value_name = "FILE", requires = "replays")]
    resume: Option<PathBuf>,
}

/// What both checks work with.
struct CheckContext<'a> {
    stages: &'a dyn EnvironmentFactory,
    session: &'a SessionSpec,
    args: &'a BlindArgs,
    /// Most pages at once.
    at_once: usize,
    /// Counts draws or replays. No borrow is held over a wait.
    count: RefCell<ItemProgress>,
}

impl BlindArgs {
    /// Whether one of the checks is asked for.
    pub(crate) fn is_on(&self) -> bool {
        self.blind || self.replays
    }

    /// Checks the templates of these tasks and prints the report. At most `at_once` of them are
    /// checked at once.
    pub(crate) async fn check(
        &self,
        specs: &[&TaskSpec],
        stages: Arc<dyn EnvironmentFactory>,
        session: &SessionSpec,
        at_once: usize,
        as_json: bool,
    ) -> Result<(), CommandFailure> {
        let resume = self.resume.as_deref().map(|path| ResumeFile::open(path, self.seed)).transpose();
        let resume = resume.map_err(|why| CommandFailure::Input(vec![format!("--resume: {why}")]))?;
        let resume = RefCell::new(resume.unwrap_or_default());
        let specs = one_a_template(specs);
        let count = ItemProgress::new(if self.blind { "draws" } else { "replays" }, 0);
        // A page keeps a processor busy; more at once only miss deadlines.
        let at_once = at_once.min(std::thread::available_parallelism().map_or(1, usize::from));
        let count = RefCell::new(count);
        let context = CheckContext { stages: stages.as_ref(), session, args: self, at_once, count };
        let checks = specs.iter().enumerate().map(|(index, spec)| {
            let context = &context;
            let resume = &resume;
            async move {
                let report = match (unchecked(spec), context.args.blind) {
                    (Some(result), _) => TemplateReport::of(spec, result),
                    (None, true) => examine(context, spec, index).await,
                    (None, false) => replay(context, spec, index, resume).await,
                };
                context.count.borrow().say(&report.line());
                report
            }
        });
        // The replays of one template are many enough.
        let templates_at_once = if self.blind { at_once } else { 1 };
        let mut checks = futures::stream::iter(checks).buffered(templates_at_once);
        let mut reports = Vec::new();
        while let Some(report) = checks.next().await {
            reports.push(report);
        }
        drop(checks);
        drop(context);
        stages.close().await;
        BlindReport { seed: self.seed, is_blind: self.blind, templates: reports }.print(as_json)
    }
}

/// The first task of each template: the tasks of its splits differ in their seeds alone.
fn one_a_template<'a>(specs: &[&'a TaskSpec]) -> Vec<&'a TaskSpec> {
    let mut known = BTreeSet::new();
    specs.iter().copied().filter(|spec| known.insert(spec.template())).collect()
}

/// Why a task cannot be checked: no seed changes it, or a judge scores it.
fn unchecked(spec: &TaskSpec) -> Option<TemplateResult> {
    let is_drawn = spec.task.hooks.start.as_ref().is_some_and(|start| start.contains("{seed}"));
    match is_drawn && spec.fixed_seed.is_none() {
        false => Some(TemplateResult::Fixed),
        true => spec.scorer.needs_judge().then_some(TemplateResult::Judged),
    }
}

/// Tries blind policies on a template.
async fn examine(context: &CheckContext<'_>, spec: &TaskSpec, index: usize) -> TemplateReport {
    match examined(context, spec, index).await {
        Ok(report) => report,
        Err(why) => TemplateReport::of(spec, TemplateResult::Unknown(why)),
    }
}

async fn examined(
    context: &CheckContext<'_>,
    spec: &TaskSpec,
    index: usize,
) -> Result<TemplateReport, String> {
    let seeds = |role, count| seeds::seeds(context.args.seed, &spec.name(), role, count);
    let scorer = DrawScorer { scorer: &spec.scorer, max_steps: spec.task.max_steps };
    let first_seeds = seeds(SeedRole::Test, FIRST_DRAWS);
    context.count.borrow_mut().expect_more(FIRST_DRAWS as u64);
    let opening = DrawSource::open(spec, context.stages, context.session, index, &first_seeds);
    let mut source = opening.await?;
    let test = source.draws(&first_seeds).await;
    context.count.borrow_mut().advance(FIRST_DRAWS as u64);
    let mut training = Vec::new();
    // Where no answer earns anything by itself, there is nothing to learn.
    if test.iter().any(|draw| draw.right_answer.is_some()) {
        let count = match source.kind {
            DrawKind::Frames => context.args.training as usize,
            DrawKind::Pages => (context.args.training as usize).min(PAGE_TRAINING_MAX),
        };
        context.count.borrow_mut().expect_more(count as u64);
        training = source.draws(&seeds(SeedRole::Training, count)).await;
        context.count.borrow_mut().advance(count as u64);
    }
    let policies = policies::train(scorer, &training, context.args.seed);
    let first = gate::rates(&policies, scorer, &test);
    let again = gate::to_repeat(&policies, &first);
    let mut repeated = Vec::new();
    if !again.is_empty() {
        context.count.borrow_mut().expect_more(REPEAT_DRAWS as u64);
        let draws = source.draws(&seeds(SeedRole::Repeat, REPEAT_DRAWS)).await;
        context.count.borrow_mut().advance(REPEAT_DRAWS as u64);
        repeated = gate::rates(again, scorer, &draws);
    }
    // A bound from half the draws would be none of what the rule asks for.
    if source.failed * 10 > source.made {
        let why = source.last_error.unwrap_or_default();
        return Err(format!("{} of {} draws failed: {why}", source.failed, source.failed + source.made));
    }
    let mut report = TemplateReport::of(spec, TemplateResult::measured(&first, &repeated));
    report.training = training.len();
    report.note_draws(source.kind.as_str(), source.made, source.failed, source.took);
    report.policies = first.into_iter().chain(repeated).collect();
    Ok(report)
}

/// Executes a template's recorded actions under other seeds.
async fn replay(
    context: &CheckContext<'_>,
    spec: &TaskSpec,
    index: usize,
    resume: &RefCell<ResumeFile>,
) -> TemplateReport {
    if spec.task.hooks.solve.is_none() {
        return TemplateReport::of(spec, TemplateResult::NoDemonstration);
    }
    let plan = ReplayPlan {
        spec,
        stages: context.stages,
        session: context.session,
        index,
        seed: context.args.seed,
        at_once: context.at_once,
        count: &context.count,
        resume,
    };
    match plan.run().await {
        Ok(replayed) => {
            let repeated: Vec<_> = replayed.repeated.into_iter().collect();
            let first = [replayed.first];
            let mut report = TemplateReport::of(spec, TemplateResult::measured(&first, &repeated));
            report.note_draws("replays", replayed.made, replayed.failed, replayed.took);
            report.policies = first.into_iter().chain(repeated).collect();
            report
        }
        Err(why) => TemplateReport::of(spec, TemplateResult::Unknown(why)),
    }
}
