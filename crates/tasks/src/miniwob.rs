//! MiniWoB++: a folder with Furrow's list of pages and their demonstrations, and the pages from the
//! pinned wheel.
//!
//! `tasks.jsonl` names the pages (`task_id`, `file`, `page_time_limit_ms`), and
//! `solve/<task_id>.js` contains a demonstration if there is one. The pages draw a score panel to
//! the right of x = 160; the picture is clipped to the task's 160 x 210 and padded to a square.
//! Pages use virtual time: each action is granted [`STEP_MILLIS`] and time stands still while the
//! policy computes, so that neither the reward nor the page's own time limit depends on the farm's
//! speed.

use std::collections::HashSet;
use std::path::{Component, Path};

use furrow_rollout::{ImageFormat, ObservationSpec, PageClock, PageHooks, Size, Split};
use serde_json::{Value, json};
use url::Url;

use crate::fields::JsonFields;
use crate::jsonl::{self, CommonKeys, TaskRow};
use crate::sites::{miniwob_pages, miniwob_root};
use crate::source::{LoadedSource, SuiteDefaults, TaskSpec};
use crate::starter::read_script;
use crate::{Scorer, SiteSpec, SourceConfig};

/// Host under which the pages are served.
const HOST: &str = "miniwob.test";
const SITE: &str = "http://miniwob.test/";

const START: &str = include_str!("hooks/miniwob_start.js");
const PROBE: &str = include_str!("hooks/miniwob_probe.js");

/// Time limit of a page that sets none.
const PAGE_LIMIT_MILLIS: u64 = 10_000;

/// Page time granted to each action. The slowest reaction in the listed pages is an accordion: 0.4
/// s; menus open after 0.3 s.
const STEP_MILLIS: u32 = 1000;

/// Real time that the start script and the first picture may take before page time stands still.
const START_MILLIS: u64 = 15_000;

/// The pages were made for a window of 500 x 320: in a smaller one dialogs and scroll bars move
/// their content.
const DEFAULTS: SuiteDefaults = SuiteDefaults {
    split: Split::Train,
    max_steps: 20,
    time_limit_millis: 300_000,
    viewport: Size::new(500, 320),
    observation: ObservationSpec { format: ImageFormat::Png, clip: Some(Size::new(160, 210)), square: true },
    clock: PageClock::Virtual { step_millis: STEP_MILLIS },
};

/// One validated line of the list.
struct ListedPage {
    common: CommonKeys,
    file: String,
    limit_millis: u64,
}

/// Loads the listed pages; the wheel is opened and its hash is compared with the pinned one.
pub(crate) fn load(source: &SourceConfig, problems: &mut Vec<String>) -> LoadedSource {
    let file = source.path.join("tasks.jsonl");
    let location = file.display().to_string();
    let mut rows = jsonl::read(&file, problems);
    if source.unlisted {
        let unlisted = unlisted(&rows, source, problems);
        rows.extend(unlisted);
    }
    let pages: Vec<_> = rows.iter().filter_map(|row| read_page(row, source, &location, problems)).collect();
    let files: Vec<&str> = pages.iter().map(|(_, page)| page.file.as_str()).collect();
    let sites = source.pages.as_deref().and_then(|path| match miniwob_root(path, &files) {
        Ok(root) => Some(SiteSpec { host: HOST.to_owned(), root }),
        Err(problem) => {
            problems.push(format!("{}.pages: {problem}", source.key));
            None
        }
    });
    let sites = sites.into_iter().collect();
    let lines = pages.iter().map(|(row, _)| row.line).collect();
    let specs = pages
        .into_iter()
        .filter_map(|(row, page)| make_task(row, page, source, &location, problems))
        .collect();
    LoadedSource { specs, sites, lines, location, ..LoadedSource::default() }
}

/// Rows, after the last listed one, for the pages that are not listed: of split `test`, because
/// nothing was tuned on them.
fn unlisted(rows: &[TaskRow], source: &SourceConfig, problems: &mut Vec<String>) -> Vec<TaskRow> {
    let Some(path) = source.pages.as_deref() else { return Vec::new() };
    let found = miniwob_root(path, &[]).and_then(|root| {
        miniwob_pages(&root).map_err(|error| format!("{}: its pages cannot be read: {error}", path.display()))
    });
    let found = found.unwrap_or_else(|problem| {
        problems.push(format!("{}.pages: {problem}", source.key));
        Vec::new()
    });
    let listed: HashSet<&str> =
        rows.iter().filter_map(|row| row.fields.get("file").and_then(Value::as_str)).collect();
    let line = rows.last().map_or(0, |row| row.line);
    let new = found.into_iter().filter(|(file, _)| !listed.contains(file.as_str()));
    new.zip(line + 1..).filter_map(|((file, limit), line)| unlisted_row(&file, limit, line)).collect()
}

fn unlisted_row(file: &str, limit_millis: Option<u64>, line: usize) -> Option<TaskRow> {
    let task_id = Path::new(file).file_stem()?.to_str()?;
    let limit = limit_millis.unwrap_or(PAGE_LIMIT_MILLIS);
    let row = json!({ "task_id": task_id, "suite": "miniwob", "file": file, "page_time_limit_ms": limit, "split": "test" });
    Some(TaskRow { line, text: row.to_string(), fields: row.as_object()?.clone() })
}

fn read_page<'a>(
    row: &'a TaskRow,
    source: &SourceConfig,
    location: &str,
    problems: &mut Vec<String>,
) -> Option<(&'a TaskRow, ListedPage)> {
    let before = problems.len();
    let mut fields = row.reader(location, problems);
    let file = read_file(&mut fields);
    let start_url = file.as_deref().and_then(|file| Url::parse(SITE).ok()?.join(file).ok());
    let limit_millis = fields.integer("page_time_limit_ms", 1000..=3_600_000);
    let common = CommonKeys::read_at(&mut fields, &source.suite, start_url);
    if problems.len() > before {
        return None;
    }
    Some((
        row,
        ListedPage { common: common?, file: file?, limit_millis: limit_millis.unwrap_or(PAGE_LIMIT_MILLIS) },
    ))
}

/// The page's path below the served root: plain names only, so that it can leave neither a folder
/// nor an archive.
fn read_file(fields: &mut JsonFields) -> Option<String> {
    let file = fields.required_text("file", 256)?;
    let plain = Path::new(&file).components().all(|part| matches!(part, Component::Normal(_)));
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
    if !plain || !file.chars().all(allowed) || !file.ends_with(".html") {
        return fields.refuse(
            "file",
            &Value::String(file),
            "is not a page",
            "use a path such as miniwob/click-test.html",
        );
    }
    Some(file)
}

fn make_task(
    row: &TaskRow,
    page: ListedPage,
    source: &SourceConfig,
    location: &str,
    problems: &mut Vec<String>,
) -> Option<TaskSpec> {
    let id = &page.common.task_id;
    let solve = match solve_of(&source.path, id) {
        Ok(solve) => solve,
        Err(problem) => {
            problems.push(format!("{location}:{}: {problem}", row.line));
            return None;
        }
    };
    let score = json!({ "kind": "miniwob", "reward": source.reward.as_str() });
    let scorer = Scorer::from_value(&score).ok()?;
    let mut record = row.fields.clone();
    record.insert("score".to_owned(), score);
    let json = Value::Object(record).to_string();
    let mut spec = TaskSpec::assembled(page.common, scorer, PageHooks::default(), json, source, &DEFAULTS);
    spec.task.hooks = PageHooks {
        start: Some(start_script(page.limit_millis, spec.task.max_steps)),
        probe: Some(PROBE.to_owned()),
        solve,
    };
    Some(spec)
}

fn solve_of(folder: &Path, task_id: &str) -> Result<Option<String>, String> {
    let plain = task_id.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    if plain { read_script(&folder.join("solve").join(format!("{task_id}.js"))) } else { Ok(None) }
}

/// The start script with the page's time limit inserted. The limit counts page time, and is raised
/// if the granted steps would not fit into it: the step limit then ends the trajectory, and a
/// truncated trajectory is not the page's failure.
fn start_script(limit_millis: u64, max_steps: u32) -> String {
    let steps_millis = u64::from(max_steps) * u64::from(STEP_MILLIS) + START_MILLIS;
    START.replace("{limit_millis}", &limit_millis.max(steps_millis).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_limit_is_raised_until_all_steps_fit() {
        let limit = |limit, steps| {
            let script = start_script(limit, steps);
            let line = script.lines().find(|line| line.contains("EPISODE_MAX_TIME")).unwrap().to_owned();
            line.trim().to_owned()
        };
        assert_eq!(limit(10_000, 20), "core.EPISODE_MAX_TIME = 35000;");
        assert_eq!(limit(60_000, 20), "core.EPISODE_MAX_TIME = 60000;");
    }

    #[test]
    fn the_start_script_takes_the_seed_and_nothing_else() {
        let hooks = PageHooks { start: Some(start_script(10_000, 20)), ..PageHooks::default() };
        let script = hooks.start_with(7).unwrap();
        assert!(script.contains("Math.seedrandom('7')"));
        assert!(!script.contains("{seed}") && !script.contains("{limit_millis}"));
    }

    #[test]
    fn pages_that_no_row_names_are_tasks_for_testing() {
        let folder = tempfile::tempdir().unwrap();
        let pages = folder.path().join("pages");
        std::fs::create_dir_all(pages.join("miniwob")).unwrap();
        let html = |limit: &str| format!("<script>{limit}</script>");
        for (name, limit) in [
            ("listed.html", ""),
            ("slow.html", "core.EPISODE_MAX_TIME = 20000; // 20 s"),
            ("plain.html", ""),
            ("notes.txt", ""),
        ] {
            std::fs::write(pages.join("miniwob").join(name), html(limit)).unwrap();
        }
        let listed = r#"{"task_id": "listed", "file": "miniwob/listed.html", "split": "train"}"#;
        std::fs::write(folder.path().join("tasks.jsonl"), listed).unwrap();
        let load = |unlisted: bool, reward: &str| {
            let source = crate::SourceFile {
                suite: "miniwob".to_owned(),
                path: folder.path().into(),
                pages: Some(pages.clone()),
                unlisted,
                reward: Some(reward.to_owned()),
                ..crate::SourceFile::default()
            };
            let file = crate::TasksFile { source: vec![source], ..crate::TasksFile::default() };
            let mut problems = Vec::new();
            let loaded = load(&file.check(Path::new("/")).unwrap().sources[0], &mut problems);
            assert_eq!(problems, Vec::<String>::new());
            loaded.specs
        };
        assert_eq!(load(false, "raw").len(), 1);
        let specs = load(true, "sparse");
        let listed_tasks: Vec<_> =
            specs.iter().map(|spec| (spec.task.task_id.as_str(), spec.task.split)).collect();
        assert_eq!(listed_tasks, [("listed", Split::Train), ("plain", Split::Test), ("slow", Split::Test)]);
        for (spec, limit) in specs[1..].iter().zip([35_000, 35_000]) {
            let start = spec.task.hooks.start.as_deref().unwrap();
            assert!(start.contains(&format!("EPISODE_MAX_TIME = {limit};")), "{start}");
            assert!(spec.json.contains(r#""reward":"sparse""#), "{}", spec.json);
        }
        assert!(specs[2].json.contains(r#""page_time_limit_ms":20000"#), "{}", specs[2].json);
    }

    #[test]
    fn a_page_is_a_plain_path() {
        let table = [
            ("miniwob/click-test.html", true),
            ("../click-test.html", false),
            ("/etc/x.html", false),
            ("miniwob/../../x.html", false),
            ("miniwob\\x.html", false),
            ("miniwob/x.js", false),
            ("miniwob/x.html?y", false),
        ];
        for (file, want) in table {
            let map = serde_json::from_value(json!({ "file": file })).unwrap();
            let mut problems = Vec::new();
            let got = read_file(&mut JsonFields::new(&map, "", &mut problems));
            assert_eq!(got.is_some(), want, "{file}");
        }
    }
}
