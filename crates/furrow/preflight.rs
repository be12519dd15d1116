//! What `furrow check` and `furrow doctor JOB` open on this machine before anything starts: start
//! pages, browser, directories, disk, checkpoint. Nothing that they start stays.

mod machine;
mod pages;

use std::time::Instant;

use furrow_env::{ReachablePages, SiteServer, WorkerSecrets};
use furrow_policy::ModelPolicy;
use furrow_rollout::PolicyKind;
use furrow_tasks::TaskSpec;

use crate::launch::{self, JobLaunch};
use crate::{CommandFailure, output};

/// What was found, each a sentence that begins with its key or its task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PreflightReport {
    /// The job cannot run like this.
    pub problems: Vec<String>,
    /// It may run, and probably not as intended.
    pub warnings: Vec<String>,
    /// What was opened and found right.
    pub passed: Vec<String>,
    /// The disk has less than its reserve free: no trajectory starts before that changes.
    pub low_disk: Option<String>,
}

/// The parts of a check.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PreflightScope {
    /// The browser, its user, its libraries, and the secrets that are typed in it.
    pub browser: bool,
    /// Directories and the disk of the run.
    pub run_dir: bool,
    /// The checkpoint of `model`.
    pub checkpoint: bool,
    /// What start pages define.
    pub page_contents: bool,
    /// Look names of live hosts up.
    pub lookups: bool,
}

/// The suite of the simulated browser's pages.
const SIMULATED: &str = "simulated";
/// Most problems of one kind that are printed.
const PRINTED_MAX: usize = 20;

impl PreflightScope {
    /// All of a job that is checked and not started.
    pub(crate) fn whole(browser: bool) -> Self {
        Self { browser, run_dir: true, checkpoint: true, page_contents: true, lookups: true }
    }

    /// What a start does not find by itself before it has a run directory: its policy opens the
    /// checkpoint, and a page may become right while the job runs.
    pub(crate) fn start() -> Self {
        Self { browser: true, run_dir: true, checkpoint: false, page_contents: false, lookups: false }
    }
}

impl PreflightReport {
    fn add(&mut self, checked: Result<String, Vec<String>>) {
        match checked {
            Ok(passed) => self.passed.push(passed),
            Err(problems) => self.problems.extend(problems),
        }
    }

    /// Prints the warnings; fails with the problems if there are any.
    pub(crate) fn conclude(&self) -> Result<(), CommandFailure> {
        for warning in shortened(&self.warnings).iter().chain(&self.low_disk) {
            output::error_line(&format!("warning: {warning}"));
        }
        match self.problems.is_empty() {
            true => Ok(()),
            false => Err(CommandFailure::Input(shortened(&self.problems))),
        }
    }
}

/// Runs the checks in this scope. Blocks; start pages and browser take tenths of a second, a large
/// tokenizer a second, names of live hosts at most three.
pub(crate) fn run(launch: &JobLaunch, scope: PreflightScope) -> Result<PreflightReport, CommandFailure> {
    let mut report = PreflightReport::default();
    let sites = launch::sites(&launch.set, launch.eval.as_ref(), &launch.job.env);
    match sites {
        Ok(sites) => {
            launch::runtime()?.block_on(check_pages(launch, &sites, scope, &mut report));
        }
        Err(CommandFailure::Input(problems)) => report.problems.extend(problems),
        Err(CommandFailure::Work(error)) => report.problems.push(crate::chain(&error)),
    }
    if scope.browser {
        let found = furrow_env::browser_version(&launch.job.env.browser);
        report.add(found.map_err(|error| vec![crate::chain(&error.into())]));
        let declared = &launch.job.env.secrets;
        if !declared.is_empty() {
            let read = WorkerSecrets::read(declared);
            report.add(read.map(|_| format!("the variables of {} secrets are set", declared.len())));
        }
    }
    if scope.run_dir {
        let dir = &launch.job.run_dir;
        report.add(match machine::directory_problem(dir) {
            None => Ok(format!("run directory {} can be made", dir.display())),
            Some(problem) => Err(vec![problem]),
        });
        report.low_disk = machine::disk_problem(dir, launch.job.records.disk_reserve_bytes);
    }
    if let Some(model) = launch.job.policy.model.as_ref().filter(|_| scope.checkpoint) {
        let began = Instant::now();
        let problems = ModelPolicy::check(model, &launch.job.policy.session);
        report.add(match problems.is_empty() {
            true => Ok(format!(
                "checkpoint {}: configuration, headers, tokenizer and template fit ({} ms)",
                model.checkpoint.display(),
                began.elapsed().as_millis()
            )),
            false => Err(problems),
        });
    }
    Ok(report)
}

async fn check_pages(
    launch: &JobLaunch,
    sites: &SiteServer,
    scope: PreflightScope,
    report: &mut PreflightReport,
) {
    let pages = ReachablePages::new(sites, &launch.job.env.egress);
    let specs: Vec<_> = [Some(&launch.set), launch.eval.as_ref()]
        .into_iter()
        .flatten()
        .flat_map(|set| set.specs().iter())
        .collect();
    let problems = pages::problems(&pages, &specs, scope.page_contents).await;
    let tasks = specs.iter().map(|spec| (spec.task.start_url.as_str(), spec.task.allow_hosts.as_slice()));
    report.warnings.extend(pages.idle_pins(tasks));
    report.warnings.extend(pages.silent_pins(specs.iter().map(|spec| spec.task.start_url.as_str())).await);
    report.warnings.extend(undemonstrated(launch, &specs));
    report.add(match problems.is_empty() {
        true => Ok(format!("the start pages of {} tasks can be reached", specs.len())),
        false => Err(problems),
    });
    if scope.lookups {
        let (private, unresolved) = pages::look_up(&pages, &specs).await;
        report.problems.extend(private);
        report.warnings.extend(unresolved);
    }
}

/// Says that the policy `scripted` cannot act on some tasks: their trajectories end unparsable at
/// once. Simulated pages demonstrate themselves.
fn undemonstrated(launch: &JobLaunch, specs: &[&TaskSpec]) -> Option<String> {
    if launch.job.policy.choice.kind() != PolicyKind::Scripted {
        return None;
    }
    let is_lacking = |spec: &&&TaskSpec| spec.task.hooks.solve.is_none() && spec.task.suite != SIMULATED;
    let lacking: Vec<_> = specs.iter().filter(is_lacking).collect();
    let first = lacking.first()?.name();
    let count = lacking.len();
    Some(format!(
        "policy.kind: scripted follows demonstrations, and {count} of {} tasks have none (such as {first}): their \
         trajectories end at once, with the reward of having done nothing; write demonstrations \
         (docs/SITES.md), leave the tasks out with exclude, or choose another policy",
        specs.len()
    ))
}

/// The first lines, and how many more there are.
fn shortened(lines: &[String]) -> Vec<String> {
    let mut shown: Vec<String> = lines.iter().take(PRINTED_MAX).cloned().collect();
    if lines.len() > PRINTED_MAX {
        shown.push(format!("… and {} more like these", lines.len() - PRINTED_MAX));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_problems_are_shortened() {
        let lines: Vec<String> = (0..1000).map(|line| line.to_string()).collect();
        let shown = shortened(&lines);
        assert_eq!(shown.len(), PRINTED_MAX + 1);
        assert_eq!(shown.last().unwrap(), "… and 980 more like these");
        assert_eq!(shortened(&lines[..PRINTED_MAX]).len(), PRINTED_MAX);
    }
}
