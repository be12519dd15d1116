//! Suites of whole sites: a folder with `sites/<site>/`, each served as
//! `http://<site>.<suite>.test/`, and shared files.
//!
//! ```text
//! shared/                 if it is there, laid under every site: /kit/…
//! solve.js                what every demonstration begins with
//! sites/<site>/www/       what is served
//! sites/<site>/tasks.jsonl, sites/<site>/solve.js
//! sites/<site>/site.toml  if it is there, how the site is served
//! ```
//!
//! A line of `tasks.jsonl` is a template: the site generates task and content from (split, seed). A
//! template of the train split is a task of all three splits: `shop-price`, `shop-price@validation`
//! and `shop-price@test` never show the same content, because the split is part of the generator's
//! seed. A template of another split belongs to that split alone, so that validation and test have
//! templates that training never uses.
//!
//! A template whose line has the goal needs no `furrow.start`, and one whose scorer does not ask
//! the page needs no `furrow.probe`: an application may be served as it is.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use furrow_rollout::{ImageFormat, ObservationSpec, PageClock, PageHooks, Size, Split};
use serde::Deserialize;
use serde_json::{Value, json};
use url::Url;

use crate::jsonl::{self, CommonKeys, TaskRow, refuse_repeated};
use crate::source::{LoadedSource, SuiteDefaults, TaskSpec};
use crate::starter::read_script;
use crate::{Scorer, SiteRoot, SiteSpec, SourceConfig};

const PROBE: &str = include_str!("hooks/web_probe.js");

/// The probe of a task whose scorer does not ask the page, so that the page need not have one.
const OPTIONAL_PROBE: &str = include_str!("hooks/web_probe_optional.js");

/// A site's description is a few lines.
const DESCRIPTION_BYTES_MAX: u64 = 64 << 10;

/// Most sites of one suite.
const SITES_MAX: usize = 200;

/// Approximately the viewport that WebVoyager uses; JPEG as for the live web.
const DEFAULTS: SuiteDefaults = SuiteDefaults {
    split: Split::Train,
    max_steps: 30,
    time_limit_millis: 600_000,
    viewport: Size::new(1280, 720),
    observation: ObservationSpec { format: ImageFormat::Jpeg { quality: 80 }, clip: None, square: false },
    clock: PageClock::Real,
};

/// One site of the suite.
struct WebSite {
    name: String,
    folder: PathBuf,
    host: String,
    url: Url,
    /// The shared part of the demonstrations and the site's own; `None` if the site has none.
    solve: Option<String>,
    description: SiteDescription,
}

/// `site.toml`, how a site is served.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SiteDescription {
    /// Whether `index.html` is served for paths that are no files and have no extension, as a
    /// single-page application expects.
    fallback: bool,
}

/// Whether a source has this layout.
pub(crate) fn is_folder(source: &SourceConfig) -> bool {
    source.path.join("sites").is_dir()
}

/// Loads the templates of all sites, each as the tasks it generates.
pub(crate) fn load(source: &SourceConfig, problems: &mut Vec<String>) -> LoadedSource {
    if source.split.is_some() {
        problems.push(format!(
            "{}.split: the tasks of this suite have their own splits; use splits = [\"train\"] to take some",
            source.key
        ));
    }
    let mut loaded = LoadedSource { location: source.path.display().to_string(), ..LoadedSource::default() };
    for name in site_names(source, problems) {
        let Some(site) = open(source, name, problems) else { continue };
        load_site(&site, source, &mut loaded, problems);
    }
    loaded
}

fn site_names(source: &SourceConfig, problems: &mut Vec<String>) -> Vec<String> {
    let folder = source.path.join("sites");
    let entries = std::fs::read_dir(&folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = match entries {
        Ok(entries) if entries.len() <= SITES_MAX => entries,
        Ok(entries) => {
            let count = entries.len();
            problems.push(format!(
                "{}: contains {count} sites, at most {SITES_MAX} are allowed",
                folder.display()
            ));
            return Vec::new();
        }
        Err(error) => {
            problems.push(format!("{}: cannot be read: {error}", folder.display()));
            return Vec::new();
        }
    };
    let is_site = |entry: &std::fs::DirEntry| entry.path().join("tasks.jsonl").is_file();
    let names = entries.iter().filter(|entry| is_site(entry));
    let mut names: Vec<_> = names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    if names.is_empty() {
        problems.push(format!("{}: contains no site; a site is a folder with tasks.jsonl", folder.display()));
    }
    names
}

fn open(source: &SourceConfig, name: String, problems: &mut Vec<String>) -> Option<WebSite> {
    let folder = source.path.join("sites").join(&name);
    let host = format!("{name}.{}.test", source.suite);
    let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let url = Url::parse(&format!("http://{host}/")).ok().filter(|_| plain);
    let Some(url) = url else {
        problems.push(format!(
            "{}: is not a host name; name the folder with letters a-z and digits",
            folder.display()
        ));
        return None;
    };
    let read = read_solve(&source.path, &folder)
        .and_then(|solve| Ok((solve, read_description(&folder.join("site.toml"))?)));
    match read {
        Ok((solve, description)) => Some(WebSite { name, folder, host, url, solve, description }),
        Err(problem) => {
            problems.push(problem);
            None
        }
    }
}

/// A site without a description is served as a folder of pages.
fn read_description(path: &Path) -> Result<SiteDescription, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(DESCRIPTION_BYTES_MAX).read_to_string(&mut text));
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(SiteDescription::default()),
        Err(error) => Err(format!("{}: cannot be read: {error}", path.display())),
        Ok(_) => toml::from_str(&text)
            .map_err(|error| format!("{}: {}; it knows fallback = true", path.display(), error.message())),
    }
}

fn read_solve(suite: &Path, folder: &Path) -> Result<Option<String>, String> {
    let Some(own) = read_script(&folder.join("solve.js"))? else { return Ok(None) };
    let common = read_script(&suite.join("solve.js"))?.unwrap_or_default();
    Ok(Some(format!("{common}\n{own}")))
}

fn load_site(site: &WebSite, source: &SourceConfig, loaded: &mut LoadedSource, problems: &mut Vec<String>) {
    let file = site.folder.join("tasks.jsonl");
    let shown = file.display().to_string();
    let rows = jsonl::read(&file, problems);
    let before = problems.len();
    let tasks: Vec<_> =
        rows.iter().filter_map(|row| read_template(row, site, source, &shown, problems)).collect();
    if problems.len() == before {
        let ids = tasks.iter().filter_map(|of_template| of_template.first());
        let ids = ids.map(|spec| spec.task.task_id.as_str());
        refuse_repeated(&shown, rows.iter().map(|row| row.line).zip(ids), problems);
    }
    loaded.specs.extend(tasks.into_iter().flatten());
    let shared = source.path.join("shared");
    let layers = [Some(site.folder.join("www")), shared.is_dir().then_some(shared)];
    let layers = layers.into_iter().flatten().collect();
    let root = match site.description.fallback {
        true => SiteRoot::SinglePage(layers),
        false => SiteRoot::Layers(layers),
    };
    loaded.sites.push(SiteSpec { host: site.host.clone(), root });
}

/// The tasks that a template generates, its own split first.
fn read_template(
    row: &TaskRow,
    site: &WebSite,
    source: &SourceConfig,
    shown: &str,
    problems: &mut Vec<String>,
) -> Option<Vec<TaskSpec>> {
    let before = problems.len();
    let mut fields = row.reader(shown, problems);
    let common = CommonKeys::read(&mut fields, &source.suite, Some(&site.url));
    let scorer = Scorer::read(&mut fields, "score");
    let common = common?;
    let prefix = format!("{}-", site.name);
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !common.task_id.starts_with(&prefix) || !common.task_id.chars().all(plain) {
        let problem =
            format!("{:?} is not the name of a template; use {prefix} and a-z 0-9 -", common.task_id);
        fields.problem("task_id", problem);
    }
    if common.seed.is_some() {
        fields.problem("seed", "would turn many tasks into one; leave it out");
    }
    if problems.len() > before {
        return None;
    }
    let scorer = scorer?;
    let home = common.split.unwrap_or(DEFAULTS.split);
    let splits = match home {
        Split::Train => vec![Split::Train, Split::Validation, Split::Test],
        other => vec![other],
    };
    let make = |split: Split| task(row, &common, &scorer, site, source, home, split);
    Some(splits.into_iter().map(make).collect())
}

fn task(
    row: &TaskRow,
    template: &CommonKeys,
    scorer: &Scorer,
    site: &WebSite,
    source: &SourceConfig,
    home: Split,
    split: Split,
) -> TaskSpec {
    let name = &template.task_id;
    let split_name = split.as_str();
    let task_id = if split == home { name.clone() } else { format!("{name}@{split_name}") };
    let mut record = row.fields.clone();
    record.insert("task_id".to_owned(), json!(task_id));
    record.insert("template".to_owned(), json!(name));
    record.insert("split".to_owned(), json!(split_name));
    let solve = site.solve.as_ref().map(|solve| format!("const template = \"{name}\";\n{solve}"));
    let start = format!("furrow.start(\"{name}\", \"{{seed}}\", \"{split_name}\")");
    let start = match template.goal {
        Some(_) => format!("window.furrow?.start ? {start} : null"),
        None => start,
    };
    let probe = if template.goal.is_some() && !scorer.needs_probe() { OPTIONAL_PROBE } else { PROBE };
    let hooks = PageHooks { start: Some(start), probe: Some(probe.replace("{suite}", &source.suite)), solve };
    let common = CommonKeys { task_id, split: Some(split), ..template.clone() };
    let json = Value::Object(record).to_string();
    let common = CommonKeys { files: common.files.below(&site.folder), ..common };
    TaskSpec::assembled(common, scorer.clone(), hooks, json, source, &DEFAULTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SourceFile, TaskSet, TasksFile};

    const TRAIN: &str =
        r#"{"task_id":"toy-a","start_url":"/","split":"train","score":{"kind":"probe"},"difficulty":"easy"}"#;
    const TEST: &str = r#"{"task_id":"toy-b","start_url":"/","split":"test","score":{"kind":"probe"}}"#;

    fn suite(lines: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let site = folder.path().join("sites/toy");
        std::fs::create_dir_all(site.join("www")).unwrap();
        std::fs::create_dir_all(folder.path().join("shared")).unwrap();
        std::fs::write(site.join("tasks.jsonl"), lines.join("\n")).unwrap();
        std::fs::write(site.join("solve.js"), "return null;").unwrap();
        std::fs::write(folder.path().join("solve.js"), "const x = 1;").unwrap();
        folder
    }

    fn loaded(folder: &Path, change: impl FnOnce(&mut SourceFile)) -> Result<TaskSet, Vec<String>> {
        let mut source =
            SourceFile { suite: "web".to_owned(), path: folder.to_owned(), ..SourceFile::default() };
        change(&mut source);
        let file = TasksFile { source: vec![source], ..TasksFile::default() };
        crate::load(&file.check(folder)?)
    }

    #[test]
    fn a_train_template_is_a_task_of_every_split_and_others_of_their_own_alone() {
        let folder = suite(&[TRAIN, TEST]);
        let set = loaded(folder.path(), |_| {}).unwrap();
        let got: Vec<_> =
            set.specs().iter().map(|spec| (spec.task.task_id.as_str(), spec.task.split)).collect();
        let want = [
            ("toy-a", Split::Train),
            ("toy-a@validation", Split::Validation),
            ("toy-a@test", Split::Test),
            ("toy-b", Split::Test),
        ];
        assert_eq!(got, want);
        let test_spec = &set.specs()[2];
        let start = test_spec.task.hooks.start_with(7).unwrap();
        assert_eq!(start, r#"furrow.start("toy-a", "7", "test")"#);
        assert!(
            test_spec.task.hooks.solve.as_ref().unwrap().starts_with("const template = \"toy-a\";\nconst x")
        );
        assert!(test_spec.json.contains(r#""task_id":"toy-a@test""#), "{}", test_spec.json);
        assert_eq!(set.sites()[0].host, "toy.web.test");
        let root = SiteRoot::Layers(vec![folder.path().join("sites/toy/www"), folder.path().join("shared")]);
        assert_eq!(set.sites()[0].root, root);
    }

    #[test]
    fn a_line_with_a_goal_needs_no_library_in_the_page() {
        let own = r#"{"task_id":"toy-a","goal":"Find it.","start_url":"/","split":"test","score":{"kind":"answer","match":"number","value":3}}"#;
        let probed = r#"{"task_id":"toy-b","goal":"Send it.","start_url":"/","split":"test","score":{"kind":"probe"}}"#;
        let folder = suite(&[own, probed]);
        let set = loaded(folder.path(), |_| {}).unwrap();
        let hooks = |index: usize| set.specs()[index].task.hooks.clone();
        for index in [0, 1] {
            let start = hooks(index).start.unwrap();
            assert!(start.starts_with("window.furrow?.start ? furrow.start(\"toy-"), "{start}");
        }
        // Only the second one asks the page, and so waits for its library.
        assert!(!hooks(0).probe.unwrap().contains("setTimeout"));
        assert!(hooks(1).probe.unwrap().contains("setTimeout"));
    }

    #[test]
    fn a_description_says_how_a_site_is_served() {
        let folder = suite(&[TEST]);
        let file = folder.path().join("sites/toy/site.toml");
        let layers = || vec![folder.path().join("sites/toy/www"), folder.path().join("shared")];
        for (text, want) in [
            ("", SiteRoot::Layers(layers())),
            ("fallback = false", SiteRoot::Layers(layers())),
            ("fallback = true", SiteRoot::SinglePage(layers())),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(loaded(folder.path(), |_| {}).unwrap().sites()[0].root, want, "{text}");
        }
        for (text, want) in
            [("fall_back = true", "unknown field"), ("fallback = 1", "fallback = true"), ("=", "site.toml")]
        {
            std::fs::write(&file, text).unwrap();
            let problems = loaded(folder.path(), |_| {}).unwrap_err();
            assert!(problems[0].contains(want) && problems[0].contains("site.toml"), "{problems:?}");
        }
    }

    #[test]
    fn what_sites_share_may_be_left_out() {
        let folder = suite(&[TEST]);
        std::fs::remove_dir(folder.path().join("shared")).unwrap();
        let set = loaded(folder.path(), |_| {}).unwrap();
        assert_eq!(set.sites()[0].root, SiteRoot::Layers(vec![folder.path().join("sites/toy/www")]));
    }

    #[test]
    fn splits_are_taken_and_never_renamed() {
        let folder = suite(&[TRAIN, TEST]);
        let test = loaded(folder.path(), |source| source.splits = vec!["test".to_owned()]).unwrap();
        let ids: Vec<_> = test.specs().iter().map(|spec| spec.task.task_id.as_str()).collect();
        assert_eq!(ids, ["toy-a@test", "toy-b"]);
        let renamed = loaded(folder.path(), |source| source.split = Some("train".to_owned())).unwrap_err();
        assert!(renamed[0].contains("use splits = [\"train\"]"), "{renamed:?}");
    }

    #[test]
    fn a_bad_template_is_reported() {
        let table = [
            (
                r#"{"task_id":"a","start_url":"/","score":{"kind":"probe"}}"#,
                "\"a\" is not the name of a template",
            ),
            (
                r#"{"task_id":"toy-\"a","start_url":"/","score":{"kind":"probe"}}"#,
                "is not the name of a template",
            ),
            (r#"{"task_id":"toy-a","start_url":"/","seed":3,"score":{"kind":"probe"}}"#, "leave it out"),
            (r#"{"task_id":"toy-a","start_url":"http://x.test/","score":{"kind":"probe"}}"#, "own site"),
            (r#"{"task_id":"toy-a","start_url":"/"}"#, "score: is missing"),
        ];
        for (line, want) in table {
            let folder = suite(&[line]);
            let problems = loaded(folder.path(), |_| {}).unwrap_err();
            assert!(problems.iter().any(|problem| problem.contains(want)), "{line}: {problems:?}");
        }
        let folder = suite(&[TRAIN, TRAIN]);
        let twice = loaded(folder.path(), |_| {}).unwrap_err();
        assert!(twice[0].contains("tasks.jsonl:2: task_id: \"toy-a\" is already used"), "{twice:?}");
    }

    #[test]
    fn a_folder_that_cannot_be_a_host_is_refused() {
        let folder = suite(&[TRAIN]);
        let site = folder.path().join("sites");
        std::fs::rename(site.join("toy"), site.join("My Toy")).unwrap();
        let problems = loaded(folder.path(), |_| {}).unwrap_err();
        assert!(problems[0].contains("is not a host name"), "{problems:?}");
    }
}
