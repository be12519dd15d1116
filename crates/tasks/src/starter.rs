//! Suites of pages: a folder with `tasks.jsonl`, the pages, and beside each page `<page>.solve.js`.
//!
//! `starter` is one; any folder with the same layout is another. The pages share a script that
//! defines `window.furrow`: `furrow.start(seed)` sets the task up and returns its goal,
//! `furrow.probe()` reports the state. The folder is served as `http://<suite>.test/`.
//!
//! Three keys of the probe's result have a meaning: `done` (true ends the trajectory), `away`,
//! which the probe script reports if a page does not have the library, and with it `error_page`, by
//! which the environment worker reports who caused the browser's error page
//! ([`furrow_rollout::ErrorPage`]).

use std::path::{Path, PathBuf};

use furrow_rollout::{ImageFormat, ObservationSpec, PageClock, PageHooks, Size, Split};
use url::Url;

use crate::jsonl::{self, CommonKeys, TaskRow};
use crate::source::{LoadedSource, SuiteDefaults, TaskSpec};
use crate::{Scorer, SiteRoot, SiteSpec, SourceConfig};

const START: &str = "furrow.start('{seed}')";
const PROBE: &str = include_str!("hooks/starter_probe.js");

/// Largest demonstration: it is a page of code, not a library, and is part of every assignment.
const SOLVE_BYTES_MAX: u64 = 64 << 10;

/// 512 x 512 costs a vision model one tile. Thirty steps are 1.5 times the longest starter task's
/// number.
const DEFAULTS: SuiteDefaults = SuiteDefaults {
    split: Split::Train,
    max_steps: 30,
    time_limit_millis: 300_000,
    viewport: Size::new(512, 512),
    observation: ObservationSpec { format: ImageFormat::Png, clip: None, square: true },
    clock: PageClock::Real,
};

/// Whether a source has this layout.
pub(crate) fn is_folder(source: &SourceConfig) -> bool {
    source.path.is_dir()
}

/// Loads the tasks of a folder of pages.
pub(crate) fn load(source: &SourceConfig, problems: &mut Vec<String>) -> LoadedSource {
    let file = source.path.join("tasks.jsonl");
    let host = format!("{}.test", source.suite);
    let Ok(site) = Url::parse(&format!("http://{host}/")) else {
        problems.push(format!(
            "{}.suite: {:?} is not a host name; choose another name",
            source.key, source.suite
        ));
        return LoadedSource::default();
    };
    let location = file.display().to_string();
    let rows = jsonl::read(&file, problems);
    let specs = rows.iter().filter_map(|row| read_task(row, source, &site, &location, problems)).collect();
    let site = SiteSpec { host, root: SiteRoot::Folder(source.path.clone()) };
    LoadedSource {
        specs,
        sites: vec![site],
        lines: rows.iter().map(|row| row.line).collect(),
        location,
        ..LoadedSource::default()
    }
}

fn read_task(
    row: &TaskRow,
    source: &SourceConfig,
    site: &Url,
    location: &str,
    problems: &mut Vec<String>,
) -> Option<TaskSpec> {
    let before = problems.len();
    let mut fields = row.reader(location, problems);
    let common = CommonKeys::read(&mut fields, &source.suite, Some(site));
    let scorer = Scorer::read(&mut fields, "score");
    let common = common?;
    let page = page_of(&source.path, &common.start_url);
    if !page.is_file() {
        fields.problem(
            "start_url",
            format!("there is no {}; add the page or correct the address", page.display()),
        );
    }
    let solve = read_solve(&page).unwrap_or_else(|problem| {
        problems.push(format!("{location}:{}: {problem}", row.line));
        None
    });
    if problems.len() > before {
        return None;
    }
    let hooks = PageHooks { start: Some(START.to_owned()), probe: Some(PROBE.to_owned()), solve };
    Some(TaskSpec::assembled(common, scorer?, hooks, row.text.clone(), source, &DEFAULTS))
}

/// The file behind an address of the suite's own site. Parsing has already resolved every `..` in
/// it.
fn page_of(folder: &Path, url: &Url) -> PathBuf {
    folder.join(url.path().trim_start_matches('/'))
}

/// `click.solve.js` beside `click.html`, if there is one.
fn read_solve(page: &Path) -> Result<Option<String>, String> {
    read_script(&page.with_extension("solve.js"))
}

/// A script's text, `None` if there is no such file.
pub(crate) fn read_script(path: &Path) -> Result<Option<String>, String> {
    if !path.is_file() {
        return Ok(None);
    }
    let shown = path.display();
    let size = path.metadata().map_err(|e| format!("{shown}: cannot be read: {e}"))?.len();
    if size > SOLVE_BYTES_MAX {
        return Err(format!("{shown}: has {size} bytes; a demonstration has at most {SOLVE_BYTES_MAX}"));
    }
    std::fs::read_to_string(path).map(Some).map_err(|e| format!("{shown}: cannot be read as UTF-8 text: {e}"))
}
