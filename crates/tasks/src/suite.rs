//! Suites: loads the sources of a job into one set of tasks, each with its scorer.

use std::collections::HashMap;

use furrow_rollout::{FinalQuery, HttpQuery, Split, Task};
use sha2::{Digest, Sha256};
use url::Url;

use crate::files::FileStore;
use crate::jsonl::refuse_repeated;
use crate::sites::hex;
use crate::source::LoadedSource;
use crate::suite_version::suite_version;
use crate::{
    BoxForm, SiteSpec, SourceConfig, TaskSection, TaskSpec, TasksConfig, glob, grounding, miniwob, starter,
    web, webvoyager,
};

/// Most planned tasks of a whole job, repetitions included; 4 bytes each in the sampler.
const PLAN_MAX: u64 = 10_000_000;

/// All tasks of a job, in the order of their sources and lines. Never empty.
#[derive(Debug, Clone)]
pub struct TaskSet {
    specs: Vec<TaskSpec>,
    sites: Vec<SiteSpec>,
    files: FileStore,
    notes: Vec<String>,
    warnings: Vec<String>,
}

/// Opens every source of the job and returns its tasks, or every problem found in any of them.
pub fn load(config: &TasksConfig) -> Result<TaskSet, Vec<String>> {
    let mut set = TaskSet {
        specs: Vec::new(),
        sites: Vec::new(),
        files: FileStore::default(),
        notes: Vec::new(),
        warnings: Vec::new(),
    };
    let mut problems = Vec::new();
    for source in &config.sources {
        let Some(what) = absent(source) else {
            set.add(source, &mut problems);
            continue;
        };
        if source.optional {
            set.notes.push(format!("{}: suite {} is skipped: {what}", source.key, source.suite));
        } else {
            problems.push(format!(
                "{}: {what}; provide it, or set optional = true to continue without it",
                source.key
            ));
        }
    }
    set.refuse_unknown_back_ends(config, &mut problems);
    set.refuse_unknown_secrets(config, &mut problems);
    set.warn_of_self_reports();
    let section = config.section;
    set.refuse_shared_ids(section, &mut problems);
    set.refuse_excess(section, &mut problems);
    if section == TaskSection::Eval {
        set.specs.iter_mut().for_each(|spec| spec.task.split = Split::Eval);
    }
    if set.specs.is_empty() && problems.is_empty() {
        let skipped = set.notes.join("; ");
        let section = section.as_str();
        problems.push(format!(
            "{section}: no task is left; provide the files of at least one source ({skipped})"
        ));
    }
    if problems.is_empty() { Ok(set) } else { Err(problems) }
}

/// The missing file or folder of a source.
fn absent(source: &SourceConfig) -> Option<String> {
    let needed = [
        ("path", Some(&source.path)),
        ("pages", source.pages.as_ref()),
        ("impossible", source.impossible.as_ref()),
    ];
    let gone = |(key, path): (&str, Option<&std::path::PathBuf>)| {
        let path = path?;
        (!path.exists()).then(|| format!("{key} {} does not exist", path.display()))
    };
    needed.into_iter().find_map(gone)
}

impl TaskSet {
    /// All tasks; a [`crate::TaskChoice`] contains an index into them.
    pub fn specs(&self) -> &[TaskSpec] {
        &self.specs
    }

    /// The static sites that an environment worker must serve for these tasks.
    pub fn sites(&self) -> &[SiteSpec] {
        &self.sites
    }

    /// Bytes of all files that the tasks offer for uploads, each counted once.
    pub fn file_bytes(&self) -> usize {
        self.files.bytes()
    }

    /// Notes for the user before the job starts, such as skipped suites. Each is a sentence.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What is probably not intended, such as a pattern that matches no task. Each begins with its
    /// key.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The sites of two sets, or those of them that one environment worker cannot serve together.
    pub fn sites_with<'a>(&'a self, other: &'a TaskSet) -> Result<Vec<&'a SiteSpec>, Vec<String>> {
        let mut sites: Vec<&SiteSpec> = self.sites.iter().collect();
        let mut problems = Vec::new();
        for site in &other.sites {
            match self.sites.iter().find(|own| own.host == site.host) {
                None => sites.push(site),
                Some(own) if own == site => {}
                Some(_) => problems.push(format!(
                    "eval.source: a source of [tasks] already serves {} from elsewhere; give this one another suite name",
                    site.host
                )),
            }
        }
        if problems.is_empty() { Ok(sites) } else { Err(problems) }
    }

    /// Number of tasks that need a judge.
    pub fn tasks_with_judge(&self) -> usize {
        self.specs.iter().filter(|spec| spec.scorer.needs_judge()).count()
    }

    /// The task with this name.
    pub fn find(&self, suite: &str, task_id: &str) -> Option<&TaskSpec> {
        self.specs.iter().find(|spec| spec.task.suite == suite && spec.task.task_id == task_id)
    }

    /// The tasks of a suite and a split whose ids match a pattern with `*` and `?`; `None` matches
    /// all.
    pub fn matching<'a>(
        &'a self,
        suite: Option<&'a str>,
        split: Option<Split>,
        id: Option<&'a str>,
    ) -> impl Iterator<Item = &'a TaskSpec> {
        self.specs.iter().filter(move |spec| {
            suite.is_none_or(|suite| spec.task.suite == suite)
                && split.is_none_or(|split| spec.task.split == split)
                && id.is_none_or(|pattern| glob::fits(pattern, &spec.task.task_id))
        })
    }

    /// Hexadecimal SHA-256 over the tasks in their order, with their limits, scripts and scorers. A
    /// resumed job compares it: in another set, the same choice is another task.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for spec in &self.specs {
            let text = format!("{:?}\0{}\0{}\0{}\n", spec.task, spec.json, spec.repeat, spec.weight);
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        hex(&hash.finalize())
    }

    /// Tasks name hooks and hosts of the job; no task can define one.
    fn refuse_unknown_back_ends(&self, config: &TasksConfig, problems: &mut Vec<String>) {
        let hooks: Vec<&str> = config.hooks.iter().map(|hook| hook.name.as_str()).collect();
        let list = |names: &[&str]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let hosts: Vec<&str> = config.http_hosts.iter().map(String::as_str).collect();
        for spec in &self.specs {
            let checks = spec.checks();
            let checked = checks.queries.iter().filter_map(|query| match query {
                FinalQuery::Command { hook } => Some(("score", hook)),
                _ => None,
            });
            let named = checks.reset.iter().map(|hook| ("reset", hook)).chain(checked);
            for (key, hook) in named.filter(|(_, hook)| !hooks.contains(&hook.as_str())) {
                problems.push(format!(
                    "{}: {key}: hook {hook:?} is not in the job; its hooks: {}. Add [tasks.hooks.{hook}], or use one of them",
                    spec.name(),
                    list(&hooks)
                ));
            }
            for query in &checks.queries {
                let FinalQuery::Http(HttpQuery { url, .. }) = query else { continue };
                let host = Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned));
                let host = host.unwrap_or_default();
                if !hosts.contains(&host.as_str()) {
                    problems.push(format!(
                        "{}: score: the job does not let tasks ask {host:?}; its tasks.http_hosts: {}. Add the host there, and its pin to env.pins",
                        spec.name(),
                        list(&hosts)
                    ));
                }
            }
        }
    }

    /// Tasks name secrets of the job; no task can declare one.
    fn refuse_unknown_secrets(&self, config: &TasksConfig, problems: &mut Vec<String>) {
        let known = if config.secrets.is_empty() { "none".to_owned() } else { config.secrets.join(", ") };
        for spec in &self.specs {
            for name in spec.secrets.iter().filter(|name| !config.secrets.contains(name)) {
                problems.push(format!(
                    "{}: secrets: {name} is not declared in the job; its secrets: {known}. Add [env.secrets.{name}], or use one of them",
                    spec.name()
                ));
            }
        }
    }

    /// A page that a policy can write to reports what the policy wrote.
    fn warn_of_self_reports(&mut self) {
        let believing = |spec: &&TaskSpec| !spec.scorer.self_reported().is_empty();
        let mut tasks = self.specs.iter().filter(believing);
        let Some(first) = tasks.next() else { return };
        let others = tasks.count();
        let kinds = first.scorer.self_reported().join(", ");
        self.warnings.push(format!(
            "score: {} ({kinds}) and {others} other tasks believe what the final page reports of itself, which a policy that writes to the page may forge; check a back end where there is one (http, command)",
            first.name()
        ));
    }

    fn add(&mut self, source: &SourceConfig, problems: &mut Vec<String>) {
        let before = problems.len();
        let mut loaded = load_source(source, problems);
        match suite_version(&loaded.specs, &loaded.sites) {
            Ok(version) => {
                loaded.specs.iter_mut().for_each(|spec| spec.suite_version = Some(version.clone()));
            }
            // Its records have no version then; a job that ran before runs.
            Err(why) => self.warnings.push(format!("{}.path: its suite has no version: {why}", source.key)),
        }
        if problems.len() == before {
            let ids = loaded.specs.iter().map(|spec| spec.task.task_id.as_str());
            refuse_repeated(&loaded.location, loaded.lines.iter().copied().zip(ids), problems);
        }
        if problems.len() == before {
            self.warnings.extend(idle_patterns(source, &loaded.specs));
        }
        let mut specs = loaded.specs;
        specs.retain(|spec| source.includes(&spec.task) && !loaded.left_out.contains(&spec.task.task_id));
        self.notes.extend(loaded.notes);
        if specs.is_empty() && problems.len() == before {
            problems
                .push(format!("{}: no task is left; widen include or splits, shorten exclude", source.key));
        }
        specs.iter_mut().for_each(|spec| self.files.fill(spec, source, problems));
        let weight = source.weight / (specs.len().max(1) as f64 * f64::from(source.repeat));
        specs.iter_mut().for_each(|spec| spec.weight = weight);
        self.specs.append(&mut specs);
        for site in loaded.sites {
            self.add_site(site, source, problems);
        }
    }

    fn add_site(&mut self, site: SiteSpec, source: &SourceConfig, problems: &mut Vec<String>) {
        match self.sites.iter().find(|other| other.host == site.host) {
            None => self.sites.push(site),
            Some(other) if *other == site => {}
            Some(_) => problems.push(format!(
                "{}: another source already serves {} from elsewhere; give this one another suite name",
                source.key, site.host
            )),
        }
    }

    /// A task may come from one source only, or its rows could not be distinguished.
    fn refuse_shared_ids(&self, section: TaskSection, problems: &mut Vec<String>) {
        let mut counts = HashMap::new();
        for spec in &self.specs {
            *counts.entry((&spec.task.suite, &spec.task.task_id)).or_insert(0) += 1;
        }
        if let Some(((suite, id), _)) = counts.into_iter().filter(|(_, count)| *count > 1).min() {
            let section = section.as_str();
            let problem =
                format!("{section}.source: {suite}/{id} comes from two sources; exclude it from one of them");
            if problems.is_empty() {
                problems.push(problem);
            }
        }
    }

    fn refuse_excess(&self, section: TaskSection, problems: &mut Vec<String>) {
        let planned: u64 = self.specs.iter().map(|spec| u64::from(spec.repeat)).sum();
        if planned > PLAN_MAX {
            problems.push(format!(
                "{}: {planned} tasks with their repetitions; plan at most {PLAN_MAX}, lower repeat",
                section.as_str()
            ));
        }
    }
}

/// Selects the loader: by the suite's name, else by the kind of file at its path.
fn load_source(source: &SourceConfig, problems: &mut Vec<String>) -> LoadedSource {
    let has_pages = source.suite == "miniwob" || source.path.is_dir() || grounding::is_grounding_set(source);
    let webvoyagers = [
        ("answers", source.answers.is_some()),
        ("impossible", source.impossible.is_some()),
        ("dates_from", source.dates_from.is_some()),
    ];
    for (key, _) in webvoyagers.into_iter().filter(|(_, given)| *given && has_pages) {
        problems.push(format!("{}.{key}: only a task file of WebVoyager's has it; remove it", source.key));
    }
    let is_set = source.suite != "miniwob" && grounding::is_grounding_set(source);
    if source.boxes != BoxForm::Auto && !is_set {
        problems.push(format!("{}.boxes: only a grounding set has boxes; remove it", source.key));
    }
    if is_set {
        grounding::load(source, problems)
    } else if source.suite == "miniwob" {
        miniwob::load(source, problems)
    } else if web::is_folder(source) {
        web::load(source, problems)
    } else if starter::is_folder(source) {
        starter::load(source, problems)
    } else {
        webvoyager::load(source, problems)
    }
}

/// Patterns that select nothing: a misspelt one silently drops tasks, or keeps those that were to
/// be left out. Only a warning, because the stored job of a run must be read when its suite has
/// lost a task.
fn idle_patterns(source: &SourceConfig, specs: &[TaskSpec]) -> Vec<String> {
    let ids: Vec<&str> = specs.iter().map(|spec| spec.task.task_id.as_str()).collect();
    let lists = [("include", &source.include), ("exclude", &source.exclude)];
    let mut warnings = Vec::new();
    for (name, patterns) in lists {
        for pattern in patterns.iter().filter(|pattern| !ids.iter().any(|id| glob::fits(pattern, id))) {
            let meant = nearest(pattern, &ids).map_or_else(
                || "`furrow tasks list` shows the ids".to_owned(),
                |id| format!("did you mean {id:?}?"),
            );
            warnings.push(format!(
                "{}.{name}: {pattern:?} matches no task of suite {}; {meant}",
                source.key, source.suite
            ));
        }
    }
    warnings
}

/// The id that was most likely meant: half of the letters may differ at most.
fn nearest<'a>(pattern: &str, ids: &[&'a str]) -> Option<&'a str> {
    let alike = |id: &&&str| strsim::normalized_damerau_levenshtein(pattern, id);
    let best = ids.iter().max_by(|one, other| alike(one).total_cmp(&alike(other)))?;
    (alike(&best) >= 0.5).then_some(*best)
}

impl SourceConfig {
    fn includes(&self, task: &Task) -> bool {
        let id = &task.task_id;
        let included = self.include.is_empty() || glob::any_fits(&self.include, id);
        let in_split = self.splits.is_empty() || self.splits.contains(&task.split);
        included && in_split && !glob::any_fits(&self.exclude, id)
    }
}
