//! The start pages of a job's tasks: whether browsers get them, and whether a page that a start
//! script needs defines what the script calls.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use furrow_env::{HostLookup, ReachablePages};
use furrow_tasks::TaskSpec;
use url::Url;

/// Names of tasks that a problem lists.
const NAMED_MAX: usize = 3;

/// Different pages that are opened; beyond that the tasks of a suite have the same faults.
const PAGES_MAX: usize = 2_000;

/// Scripts of one page that are searched.
const SCRIPTS_MAX: usize = 20;

/// Live hosts that are looked up, and the time for all of them.
const HOSTS_MAX: usize = 50;
const LOOKUPS_TIME: Duration = Duration::from_secs(3);

/// What a start script calls, and how it is searched for.
const LIBRARY: &str = "furrow";

/// Every problem of a start page, with the tasks that have it.
pub(super) async fn problems(pages: &ReachablePages<'_>, specs: &[&TaskSpec], contents: bool) -> Vec<String> {
    let mut known: BTreeMap<(&str, &[String]), Option<String>> = BTreeMap::new();
    let mut tasks_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for spec in specs {
        let task = &spec.task;
        let page = (task.start_url.as_str(), task.allow_hosts.as_slice());
        if !known.contains_key(&page) && known.len() < PAGES_MAX {
            let mut problem = pages.start_problem(page.0, page.1).await;
            if problem.is_none() && contents && calls_library(spec) {
                problem = library_problem(pages, page.0).await;
            }
            known.insert(page, problem);
        }
        if let Some(Some(problem)) = known.get(&page) {
            tasks_of.entry(problem.clone()).or_default().push(spec.name());
        }
    }
    tasks_of.into_iter().map(|(problem, tasks)| format!("{}: {problem}", named(&tasks))).collect()
}

/// Live hosts with a private address, and those that have none here.
pub(super) async fn look_up(pages: &ReachablePages<'_>, specs: &[&TaskSpec]) -> (Vec<String>, Vec<String>) {
    let mut by_host: BTreeMap<String, (&str, Vec<String>)> = BTreeMap::new();
    for spec in specs {
        let url = spec.task.start_url.as_str();
        let Some(host) = Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned)) else {
            continue;
        };
        by_host.entry(host).or_insert((url, Vec::new())).1.push(spec.name());
    }
    let mut private = Vec::new();
    let mut unresolved = Vec::new();
    let until = Instant::now() + LOOKUPS_TIME;
    for (url, tasks) in by_host.into_values().take(HOSTS_MAX) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match pages.lookup(url, left).await {
            HostLookup::Reachable => {}
            HostLookup::Private(why) => private.push(format!("{}: {why}", named(&tasks))),
            HostLookup::Unresolved(why) => unresolved.push(format!("{}: {why}", named(&tasks))),
        }
    }
    (private, unresolved)
}

/// The tasks of a problem, shortened.
fn named(tasks: &[String]) -> String {
    let shown = tasks.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    match tasks.len() {
        0..=NAMED_MAX => format!("start_url of {shown}"),
        all => format!("start_url of {shown} and {} more tasks", all - NAMED_MAX),
    }
}

fn calls_library(spec: &TaskSpec) -> bool {
    spec.task.hooks.start.as_deref().is_some_and(|start| start.trim_start().starts_with("furrow."))
}

/// Whether the page and its own scripts never name the library. A page may load a script in a way
/// that cannot be seen here, so everything that is not plain counts as defined.
async fn library_problem(pages: &ReachablePages<'_>, start_url: &str) -> Option<String> {
    let page = pages.page_text(start_url).await?;
    if page.contains(LIBRARY) {
        return None;
    }
    let base = Url::parse(start_url).ok()?;
    let scripts: BTreeSet<Url> =
        script_sources(&page).iter().filter_map(|source| base.join(source).ok()).collect();
    if scripts.len() > SCRIPTS_MAX {
        return None;
    }
    for script in scripts {
        // The script of another host is not known here.
        let text = pages.page_text(script.as_str()).await?;
        if text.contains(LIBRARY) || text.contains("import") {
            return None;
        }
    }
    Some(
        "the page does not define window.furrow, which the task's start calls: no script of it names furrow; \
         add `furrow.start(seed)` and `furrow.probe()`, as docs/SITES.md describes"
            .to_owned(),
    )
}

/// The `src` of every script element.
fn script_sources(page: &str) -> Vec<&str> {
    let tags = page.split("<script").skip(1).filter_map(|rest| rest.split_once('>').map(|(tag, _)| tag));
    tags.filter_map(|tag| {
        let (_, value) = tag.split_once("src=")?;
        let quote = value.chars().next()?;
        match quote {
            '"' | '\'' => value[1..].split(quote).next(),
            _ => value.split_whitespace().next(),
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use furrow_env::{EnvFile, FileRoot, SiteServer, StaticSite};

    use super::*;

    #[test]
    fn sources_of_scripts_are_found() {
        let page = r#"<script>let a;</script><script src="a.js"></script><script defer src='/b.js'></script>
            <script type=module src=c.js ></script><img src="d.png">"#;
        assert_eq!(script_sources(page), ["a.js", "/b.js", "c.js"]);
    }

    #[test]
    fn a_problem_names_its_first_tasks() {
        let tasks: Vec<String> = (0..25).map(|index| format!("mine/{index}")).collect();
        assert_eq!(named(&tasks[..1]), "start_url of mine/0");
        assert_eq!(named(&tasks), "start_url of mine/0, mine/1, mine/2 and 22 more tasks");
    }

    #[tokio::test]
    async fn a_page_whose_scripts_never_name_the_library_is_found() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("own.html", "<script>window.furrow = {start() {}, probe() {}}</script>"),
            ("shared.html", r#"<script src="lib.js"></script>"#),
            ("module.html", r#"<script type="module" src="module.js"></script>"#),
            ("foreign.html", r#"<script src="http://cdn.example/x.js"></script>"#),
            ("plain.html", "<h1>hello</h1>"),
            ("other.html", r#"<script src="other.js"></script>"#),
            ("lib.js", "globalThis.furrow = {}"),
            ("module.js", "import './x.js'"),
            ("other.js", "console.log(1)"),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let env = EnvFile::default().check(Path::new("/")).unwrap();
        let site = StaticSite { host: "mine.test".into(), root: FileRoot::Folder(folder.path().to_owned()) };
        let sites = SiteServer::open(&[site], env.sites).unwrap();
        let pages = ReachablePages::new(&sites, &env.egress);
        for (page, is_problem) in [
            ("own", false),
            ("shared", false),
            ("module", false),
            ("foreign", false),
            ("plain", true),
            ("other", true),
        ] {
            let found = library_problem(&pages, &format!("http://mine.test/{page}.html")).await;
            assert_eq!(found.is_some(), is_problem, "{page}: {found:?}");
        }
    }
}
