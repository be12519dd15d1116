//! The suites of this repository load and have the documented properties.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use furrow_rollout::Split;
use furrow_tasks::{SourceFile, TaskSet, TaskSpec, TasksFile, load};

fn suite(name: &str, pages: Option<&Path>) -> TaskSet {
    let envs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../envs");
    let source = SourceFile {
        suite: name.to_owned(),
        path: name.into(),
        pages: pages.map(Path::to_owned),
        ..SourceFile::default()
    };
    let file = TasksFile { source: vec![source], ..TasksFile::default() };
    load(&file.check(&envs).unwrap()).unwrap_or_else(|problems| panic!("{problems:#?}"))
}

#[test]
fn starter_has_fifteen_demonstrated_tasks_on_small_pages() {
    let set = suite("starter", None);
    assert_eq!(set.specs().len(), 15);
    for spec in set.specs() {
        let task = &spec.task;
        let name = spec.name();
        assert!(task.hooks.solve.is_some(), "{name} has no demonstration");
        assert!(task.viewport.width <= 512 && task.viewport.height <= 512, "{name} costs more than one tile");
        assert!(spec.scorer.needs_probe() && !spec.scorer.needs_judge(), "{name}");
    }
    assert!(set.notes().is_empty(), "{:?}", set.notes());
}

/// Every site has the documented content: at least 12 templates, three difficulties, all splits, a
/// demonstration for each task.
#[test]
fn the_webs_sites_have_twelve_templates_over_three_difficulties_and_all_splits() {
    let set = suite("web", None);
    let mut sites: BTreeMap<String, Vec<&TaskSpec>> = BTreeMap::new();
    for spec in set.specs() {
        let site = spec.task.start_url.trim_start_matches("http://").split('.').next().unwrap().to_owned();
        assert!(spec.task.hooks.solve.is_some(), "{} has no demonstration", spec.name());
        assert!(spec.scorer.needs_probe() && !spec.scorer.needs_judge(), "{}", spec.name());
        sites.entry(site).or_default().push(spec);
    }
    assert_eq!(sites.len(), set.sites().len());
    for (site, tasks) in sites {
        let own: Vec<_> = tasks.iter().filter(|spec| !spec.task.task_id.contains('@')).collect();
        assert!(own.len() >= 12, "{site} has {} templates", own.len());
        let levels: BTreeSet<_> = own.iter().filter_map(|spec| spec.difficulty.as_deref()).collect();
        assert_eq!(levels, BTreeSet::from(["easy", "hard", "medium"]), "{site}");
        for split in [Split::Train, Split::Validation, Split::Test] {
            let split_count = own.iter().filter(|spec| spec.task.split == split).count();
            assert!(split_count >= 2, "{site} has {split_count} templates of {} alone", split.as_str());
        }
        let starts: BTreeSet<_> = tasks.iter().map(|spec| spec.task.hooks.start.clone()).collect();
        assert_eq!(starts.len(), tasks.len(), "{site}: two tasks have the same start");
    }
}

/// The pages are not in the repository, so that empty ones replace them.
#[test]
fn miniwob_lists_seventy_pages_and_demonstrates_fifteen() {
    let envs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../envs/miniwob/tasks.jsonl");
    let list = std::fs::read_to_string(envs).unwrap();
    let pages = tempfile::tempdir().unwrap();
    std::fs::create_dir(pages.path().join("miniwob")).unwrap();
    for line in list.lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        std::fs::write(pages.path().join(row["file"].as_str().unwrap()), "").unwrap();
    }
    let set = suite("miniwob", Some(pages.path()));
    assert_eq!(set.specs().len(), 70);
    let demonstrated = set.specs().iter().filter(|spec| spec.task.hooks.solve.is_some()).count();
    assert!(demonstrated >= 15, "{demonstrated}");
}

/// Ways in which a page's script could navigate to an arbitrary address, and what to use in their
/// place.
const WAYS_OUT: [(&str, &str); 10] = [
    ("window.open", "use a link"),
    (".open(\"", "use a link"),
    ("navigation.", "use visit"),
    ("setAttributeNS", "use h"),
    ("http-equiv", "use visit"),
    ("javascript:", "use a listener"),
    ("eval(", "write the code itself"),
    ("Function(", "write the code itself"),
    ("document.write", "use h"),
    ("insertAdjacentHTML", "use h"),
];

/// Attributes, also as properties, that take an address. The kit validates their values.
const ADDRESSES: [&str; 6] = ["href", "src", "action", "formaction", "formAction", "srcdoc"];

/// The kit's own files, which contain what all others use.
const KIT: [&str; 3] = ["shared/kit/address.js", "shared/kit/dom.js", "starter/furrow.js"];

/// Finds what in a page's source could lead to an address that the page did not create: for example
/// from its query, which a policy can write.
fn ways_out(source: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    // The formatter begins a new line after the parenthesis of a long call.
    let calls = source.split('(').map(str::trim_start).collect::<Vec<_>>().join("(");
    for (way, instead) in WAYS_OUT {
        if calls.contains(way) {
            found.push(format!("{way:?}: {instead}"));
        }
    }
    // The parts of `location` may be read, and the page reloaded; under another name `location`
    // could be passed on.
    for (at, _) in source.match_indices("location") {
        let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
        let before = &source[..at];
        let after = &source["location".len() + at..];
        if before.ends_with(is_name) || after.starts_with(is_name) {
            continue;
        }
        let is_text = before.ends_with(' ') && after.starts_with([' ', '.', ',']) && !after.starts_with(" =");
        let part: String =
            after.strip_prefix('.').unwrap_or_default().chars().take_while(|c| is_name(*c)).collect();
        let then = after.get(1 + part.len()..).unwrap_or_default().trim_start();
        let is_set = is_assigned(then);
        let is_read =
            ["search", "pathname", "hash", "href", "origin", "hostname", "reload"].contains(&part.as_str());
        if !(is_read && !is_set || part.is_empty() && is_text && is_in_text(before)) {
            let line = source[..at].lines().count();
            found.push(format!(
                "line {line}: location{}: use visit",
                after.chars().take(20).collect::<String>()
            ));
        }
    }
    for name in ADDRESSES {
        let property = format!(".{name}");
        let sets = |(at, _)| is_assigned(&source[at + property.len()..]);
        if source.match_indices(&property).any(sets) {
            found.push(format!("{property} is set: use h"));
        }
        if ['"', '\'', '`'].iter().any(|quote| calls.contains(&format!("setAttribute({quote}{name}"))) {
            found.push(format!("setAttribute of {name}: use h"));
        }
    }
    found
}

/// Whether an assignment follows.
fn is_assigned(after: &str) -> bool {
    let after = after.trim_start();
    after.starts_with('=') && !after.starts_with("==") && !after.starts_with("=>")
        || after.starts_with("+=")
        || after.starts_with("??=")
}

/// Whether a position in a source is inside a comment or a string of its line.
fn is_in_text(before: &str) -> bool {
    let line = before.rsplit('\n').next().unwrap_or_default();
    line.trim_start().starts_with(['*', '/']) || line.matches('"').count() % 2 == 1
}

fn sources(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "js" || extension == "html")
            && !path.to_str().unwrap().ends_with("solve.js")
        {
            found.push(path);
        }
    }
}

/// A page that navigates to an address from its query runs a script that a policy writes there:
/// `next=javascript:…` yielded any reward.
#[test]
fn no_page_goes_where_its_query_says() {
    let envs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../envs");
    let mut found = Vec::new();
    for suite in ["web", "starter"] {
        sources(&envs.join(suite), &mut found);
    }
    assert!(found.len() > 100, "{} files", found.len());
    let mut problems = Vec::new();
    for path in found.iter().filter(|path| !KIT.iter().any(|own| path.ends_with(own))) {
        let ways = ways_out(&std::fs::read_to_string(path).unwrap());
        problems.extend(ways.into_iter().map(|way| format!("{}: {way}", path.display())));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn the_ways_out_of_a_page_are_detected() {
    for source in [
        "location.assign(query().next ?? \"/\")",
        "location.replace(to)",
        "location = to",
        "location=to",
        "location.href = to",
        "location.href=to",
        "location.search = query().next",
        "location.pathname = to",
        "location.protocol = to",
        "window.location = to",
        "document.location.href = to",
        "top.location = to",
        "location[way](to)",
        "const { assign } = location;",
        "const here = location;",
        "go(location)",
        "window.open(to)",
        "open(\"x\"), self.open(\"x\")",
        "navigation.navigate(to)",
        "link.href = query().next",
        "link.href=query().next",
        "location.search += to",
        "frame.src = to",
        "form.action = to",
        "link.setAttribute(\"href\", to)",
        "frame.setAttribute('src', to)",
        "frame.setAttribute(\n  \"src\",\n  to,\n)",
        "self.open(\n  \"x\",\n)",
        "eval(to)",
        "<a href=\"javascript:go()\">",
        "<meta http-equiv=\"refresh\">",
    ] {
        assert!(!ways_out(source).is_empty(), "{source}");
    }
    for source in [
        "visit(query().next)",
        "const page = location.pathname.split(\"/\")[1]",
        "if (location.search === \"?x\" || location.href == x) location.reload();",
        "h(\"a\", { href: href(\"/page/\", { id }) })",
        "// The location of a place.",
        "const relocation = 1, locations = [];",
        "h(\"p\", {}, \"Use my location now\")",
    ] {
        assert_eq!(ways_out(source), Vec::<String>::new(), "{source}");
    }
}

/// What a site's transitions must not contain: they run once in the page and once where the state
/// is graded, and must lead to the same state.
const IMPURE: [&str; 10] = [
    "document",
    "window",
    "localStorage",
    "sessionStorage",
    "location",
    "Date.now",
    "new Date()",
    "Math.random",
    "setTimeout",
    "fetch(",
];

/// The state changes in a site's transitions alone, and those depend on nothing but the state, the
/// arguments and the world.
#[test]
fn sites_of_the_web_change_by_pure_transitions() {
    let sites = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../envs/web/sites");
    let mut problems = Vec::new();
    for site in std::fs::read_dir(&sites).unwrap() {
        let pages = site.unwrap().path().join("www");
        let transitions = pages.join("transitions.js");
        let mut files = Vec::new();
        sources(&pages, &mut files);
        assert!(files.contains(&transitions), "{} is missing", transitions.display());
        for file in files {
            let source = std::fs::read_to_string(&file).unwrap();
            let code: Vec<&str> =
                source.lines().filter(|line| !line.trim_start().starts_with(['/', '*'])).collect();
            let is_pure = file == transitions;
            let forbidden = if is_pure { &IMPURE[..] } else { &["localStorage", "sessionStorage"] };
            for term in forbidden.iter().filter(|term| code.iter().any(|line| line.contains(**term))) {
                problems.push(format!("{}: {term}", file.display()));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
