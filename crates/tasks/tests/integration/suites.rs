//! Suites through the public interface: how a job's sources load, and which errors they yield.

use std::fs;
use std::path::Path;

use furrow_rollout::{EndKind, Evidence, ImageFormat, PageClock, Size, Split};
use furrow_tasks::{EndFacts, Scorer, SiteRoot, SourceFile, TaskSet, TasksConfig, TasksFile, load};
use tempfile::TempDir;

/// A suite `mine` of two pages, one with a demonstration.
fn pages() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let lines = [
        r#"{"task_id":"click","suite":"mine","goal":null,"start_url":"http://mine.test/click.html","max_steps":4,"time_limit_ms":60000,"viewport":[320,240],"score":{"kind":"probe","pointer":"/correct"},"difficulty":"easy","split":"validation","colour":"red"}"#,
        r#"{"task_id":"read","goal":"Say {seed}.","start_url":"read.html?x=1","score":{"kind":"answer","match":"exact","value":"{seed}"},"seed":5}"#,
    ];
    fs::write(folder.path().join("tasks.jsonl"), lines.join("\n")).unwrap();
    for file in ["click.html", "read.html"] {
        fs::write(folder.path().join(file), "<!doctype html>").unwrap();
    }
    fs::write(folder.path().join("click.solve.js"), "return {action: 'click_element'}").unwrap();
    folder
}

fn source(suite: &str, path: impl AsRef<Path>) -> SourceFile {
    SourceFile { suite: suite.to_owned(), path: path.as_ref().to_owned(), ..SourceFile::default() }
}

fn config(sources: Vec<SourceFile>) -> TasksConfig {
    TasksFile { source: sources, ..TasksFile::default() }
        .check(Path::new(env!("CARGO_MANIFEST_DIR")))
        .unwrap()
}

fn loaded(sources: Vec<SourceFile>) -> TaskSet {
    load(&config(sources)).unwrap_or_else(|problems| panic!("{problems:#?}"))
}

#[track_caller]
fn refused(sources: Vec<SourceFile>, want: &[&str]) {
    let problems = load(&config(sources)).unwrap_err();
    for want in want {
        assert!(problems.iter().any(|problem| problem.contains(want)), "{want:?} not in {problems:#?}");
    }
    assert_eq!(problems.len(), want.len(), "{problems:#?}");
}

fn write(folder: &TempDir, name: &str, text: &str) {
    fs::write(folder.path().join(name), text).unwrap();
}

#[test]
fn a_folder_of_pages_becomes_tasks_on_a_site_of_its_own() {
    let folder = pages();
    let set = loaded(vec![source("mine", folder.path())]);
    let click = set.find("mine", "click").unwrap();
    assert_eq!(click.task.start_url, "http://mine.test/click.html");
    assert_eq!((click.task.max_steps, click.task.time_limit_millis), (4, 60_000));
    assert_eq!((click.task.viewport, click.task.split), (Size::new(320, 240), Split::Validation));
    assert_eq!((click.task.observation.format, click.task.observation.square), (ImageFormat::Png, true));
    assert_eq!(click.task.clock, PageClock::Real);
    assert_eq!(click.task.hooks.start_with(9).as_deref(), Some("furrow.start('9')"));
    assert_eq!(click.task.hooks.solve.as_deref(), Some("return {action: 'click_element'}"));
    assert_eq!(click.difficulty.as_deref(), Some("easy"));
    assert!(click.json.contains(r#""colour":"red""#), "unknown keys are kept");
    let read = set.find("mine", "read").unwrap();
    assert_eq!(read.task.start_url, "http://mine.test/read.html?x=1");
    assert_eq!(read.task.hooks.solve, None);
    assert_eq!(set.sites().len(), 1);
    assert_eq!(set.sites()[0].host, "mine.test");
    assert_eq!(set.sites()[0].root, SiteRoot::Folder(folder.path().to_owned()));
}

/// A line without these keys gets what docs/TASKS.md says, by the layout of its suite.
#[test]
fn defaults_of_a_line_are_the_documented_ones() {
    let documented = include_str!("../../../../docs/TASKS.md");
    let line =
        r#"{"task_id":"a","goal":"Go.","start_url":"http://a.test/","score":{"kind":"url","path":"/"}}"#;
    let by_hand = tempfile::tempdir().unwrap();
    write(&by_hand, "own.jsonl", line);
    let page = tempfile::tempdir().unwrap();
    write(&page, "tasks.jsonl", &line.replace("http://a.test/", "/a.html"));
    write(&page, "a.html", "<!doctype html>");
    let site = tempfile::tempdir().unwrap();
    fs::create_dir_all(site.path().join("sites/a/www")).unwrap();
    write(&site, "sites/a/www/index.html", "<!doctype html>");
    let of_site = line.replace("http://a.test/", "/").replace("\"a\"", "\"a-go\"");
    write(&site, "sites/a/tasks.jsonl", &of_site);
    let cases = [
        (by_hand.path().join("own.jsonl"), 1_200_000, Size::new(1280, 720)),
        (site.path().to_owned(), 600_000, Size::new(1280, 720)),
        (page.path().to_owned(), 300_000, Size::new(512, 512)),
    ];
    let row = |key: &str| documented.lines().find(|line| line.starts_with(&format!("| `{key}`"))).unwrap();
    for (path, millis, viewport) in cases {
        let set = loaded(vec![source("own", &path)]);
        let task = &set.specs()[0].task;
        let got = (task.max_steps, task.time_limit_millis, task.viewport);
        assert_eq!(got, (30, millis, viewport), "{}", path.display());
        let size = format!("`[{}, {}]`", viewport.width, viewport.height);
        assert!(row("time_limit_ms").contains(&millis.to_string()), "{millis}");
        assert!(row("viewport").contains(&size) && row("max_steps").contains("else 30"), "{size}");
    }
}

#[test]
fn template_text_in_goals_stays_text() {
    let folder = pages();
    let set = loaded(vec![source("mine", folder.path())]);
    let task = set.find("mine", "read").unwrap().with_seed(77);
    assert_eq!(task.goal.as_deref(), Some("Say {seed}."));
    assert_eq!(task.seed, 5, "a seed in the line overrides the sampler's");
    assert_eq!(set.find("mine", "click").unwrap().with_seed(77).seed, 77);
    let webvoyager = loaded(vec![source("webvoyager", "tests/data/webvoyager.jsonl")]);
    let goal = webvoyager.specs()[1].with_seed(3).goal.unwrap();
    assert_eq!(goal, "Find a note that mentions {seed} and {{ 7 * 7 }}, \"quoted\" <img> and \\n.");
}

#[test]
fn the_job_outranks_the_line_and_the_line_the_suite() {
    let folder = pages();
    let set = loaded(vec![SourceFile {
        split: Some("test".into()),
        max_steps: Some(9),
        allow_hosts: vec!["cdn.test".into()],
        include: vec!["cl*".into()],
        ..source("mine", folder.path())
    }]);
    assert_eq!(set.specs().len(), 1);
    let task = &set.specs()[0].task;
    assert_eq!((task.split, task.max_steps), (Split::Test, 9));
    assert_eq!(task.allow_hosts, ["cdn.test"]);
    let by_split =
        |split| loaded(vec![source("mine", folder.path())]).matching(None, Some(split), None).count();
    assert_eq!((by_split(Split::Train), by_split(Split::Validation)), (1, 1));
}

#[test]
fn a_pattern_that_matches_no_task_is_named_with_the_id_that_was_meant() {
    let folder = pages();
    let warnings = |include: &[&str], exclude: &[&str]| {
        let patterns = |list: &[&str]| list.iter().map(ToString::to_string).collect();
        let with = SourceFile {
            include: patterns(include),
            exclude: patterns(exclude),
            ..source("mine", folder.path())
        };
        loaded(vec![with]).warnings().to_vec()
    };
    assert_eq!(warnings(&["click", "re*"], &[]), [""; 0]);
    assert_eq!(
        warnings(&["click", "raed"], &[]),
        [r#"tasks.source[0].include: "raed" matches no task of suite mine; did you mean "read"?"#]
    );
    assert_eq!(
        warnings(&[], &["clik", "zzz*"]),
        [
            r#"tasks.source[0].exclude: "clik" matches no task of suite mine; did you mean "click"?"#,
            r#"tasks.source[0].exclude: "zzz*" matches no task of suite mine; `furrow tasks list` shows the ids"#,
        ]
    );
}

#[test]
fn webvoyagers_rows_load_unchanged_and_wait_for_a_judge() {
    let set = loaded(vec![SourceFile {
        answers: Some("tests/data/reference_answer.json".into()),
        ..source("webvoyager", "tests/data/webvoyager.jsonl")
    }]);
    let ids: Vec<_> = set.specs().iter().map(|spec| spec.task.task_id.as_str()).collect();
    assert_eq!(ids, ["Field Notes--0", "Field Notes--3", "Barn--12"]);
    let note = &set.specs()[1];
    assert_eq!(note.task.start_url, "https://www.fieldnotes.example/search?q=a%20b");
    assert_eq!(note.task.allow_hosts, ["*.fieldnotes.example"]);
    assert_eq!((note.task.max_steps, note.task.viewport), (15, Size::new(1024, 768)));
    assert_eq!(note.task.split, Split::Test);
    assert_eq!(set.specs()[2].task.max_steps, 5);
    assert!(note.json.contains(r#""mine":{"kept":[1,2.5]}"#), "unknown keys are kept: {}", note.json);
    assert!(note.json.contains(r#""reference":{"type":"possible","answer":"Note 17"}"#), "{}", note.json);
    assert_eq!((set.tasks_with_judge(), set.notes().len()), (3, 0));
}

#[test]
fn impossible_tasks_are_left_out_and_past_days_moved_and_both_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let line = |site: &str, n: u32, ques: &str| {
        format!(r#"{{"web_name":"{site}","id":"{site}--{n}","ques":"{ques}","web":"https://a.example/"}}"#)
    };
    let lines = [
        line("Booking", 0, "A room for March 20-27, 2024."),
        line("Google Flights", 1, "Leave December 25, 2023, return January 5, 2024."),
        line("ArXiv", 2, "Papers of January 3, 2024."),
        line("Booking", 3, "A room for March 20-27."),
    ];
    write(&folder, "voyage.jsonl", &lines.join("\n"));
    write(&folder, "gone.json", r#"["Booking--3", "Nowhere--1"]"#);
    let voyage = |impossible: &str, dates_from: Option<&str>| SourceFile {
        impossible: Some(folder.path().join(impossible)),
        dates_from: dates_from.map(str::to_owned),
        ..source("webvoyager", folder.path().join("voyage.jsonl"))
    };
    let set = loaded(vec![voyage("gone.json", Some("2026-12-01"))]);
    let goals: Vec<_> = set.specs().iter().filter_map(|spec| spec.task.goal.as_deref()).collect();
    let want = [
        "A room for March 20-27, 2027.",
        "Leave December 25, 2026, return January 5, 2027.",
        "Papers of January 3, 2024.",
    ];
    assert_eq!(goals, want);
    let record = &set.specs()[0].json;
    assert!(record.contains("March 20-27, 2024") && record.contains(r#""moved_years":3"#), "{record}");
    assert!(set.notes()[0].ends_with("1 of 4 tasks are left out as impossible"), "{:?}", set.notes());
    assert!(set.notes()[1].ends_with("2 of 4 tasks have their days moved to 2026-12-01 or later"));
    let as_written = loaded(vec![voyage("gone.json", None)]);
    assert_eq!(as_written.specs()[0].task.goal.as_deref(), Some("A room for March 20-27, 2024."));
    assert_ne!(as_written.fingerprint(), set.fingerprint());
    write(&folder, "bad.json", r#"{"ids":[]}"#);
    refused(vec![voyage("bad.json", None)], &["tasks.source[0].impossible: "]);
}

/// A reference answer is never compared as a string, golden or possible: no row is scored without
/// the judge.
#[test]
fn a_reference_answer_is_no_reward() {
    let set = loaded(vec![SourceFile {
        answers: Some("tests/data/reference_answer.json".into()),
        ..source("webvoyager", "tests/data/webvoyager.jsonl")
    }]);
    let facts = EndFacts { end: EndKind::Answered, steps: 1, max_steps: 15 };
    for (spec, answer) in set.specs().iter().zip(["Rye", "Note 17", "4"]) {
        let evidence = Evidence { answer: Some(answer.to_owned()), ..Evidence::default() };
        assert!(spec.scorer.needs_judge());
        assert!(spec.scorer.score(&evidence, &facts).is_err(), "{}", spec.name());
        assert!(Scorer::of_task_json(&spec.json).unwrap().score(&evidence, &facts).is_err());
    }
}

#[test]
fn reference_answers_join_on_site_and_number() {
    let folder = tempfile::tempdir().unwrap();
    write(
        &folder,
        "answers.json",
        r#"{"Barn":{"answers":[{"id":12,"type":"maybe","ans":"4"}]},"Field Notes":{}}"#,
    );
    let with = |answers: &Path| {
        vec![SourceFile {
            answers: Some(answers.to_owned()),
            ..source("webvoyager", "tests/data/webvoyager.jsonl")
        }]
    };
    refused(
        with(&folder.path().join("answers.json")),
        &[
            "Barn.answers[0].type: \"maybe\" is not known here; use one of golden, possible",
            "Barn.answers[0].id: an answer needs a number `id`",
            "\"Field Notes\" has no list `answers`",
            "webvoyager.jsonl:1: id: \"Field Notes--0\" has no reference answer",
            "webvoyager.jsonl:2: id: \"Field Notes--3\" has no reference answer",
            "webvoyager.jsonl:3: id: \"Barn--12\" has no reference answer",
        ],
    );
}

#[test]
fn every_bad_row_of_every_source_is_reported_at_once() {
    let folder = pages();
    let good = r#""start_url":"click.html","score":{"kind":"probe"}"#;
    let lines = [
        format!(r#"{{"task_id":"a",{good},"max_steps":0}}"#),
        "{not json}".to_owned(),
        format!(r#"{{"task_id":"b",{good},"suite":"other"}}"#),
        r#"{"task_id":"c","start_url":"gone.html","score":{"kind":"probe"}}"#.to_owned(),
        r#"{"task_id":"d","start_url":"../../etc/passwd","score":{"kind":"probe"}}"#.to_owned(),
        r#"{"task_id":"e","start_url":"click.html"}"#.to_owned(),
        r#"{"task_id":"f","start_url":"click.html","score":{"kind":"answer","match":"exact"}}"#.to_owned(),
    ];
    write(&folder, "tasks.jsonl", &lines.join("\n"));
    write(
        &folder,
        "live.jsonl",
        r#"{"task_id":"x","start_url":"https://a.example/","score":{"kind":"probe"}}"#,
    );
    refused(
        vec![source("mine", folder.path()), source("live", folder.path().join("live.jsonl"))],
        &[
            "tasks.jsonl:1: max_steps: 0 is out of range; use a whole number from 1 to 10000",
            "tasks.jsonl:2: is not a JSON object",
            "tasks.jsonl:3: suite: \"other\" is not \"mine\"",
            "tasks.jsonl:4: start_url: there is no ",
            "tasks.jsonl:5: start_url: there is no ",
            "tasks.jsonl:6: score: is missing; say how the task is scored",
            "tasks.jsonl:7: score.value: is missing",
            "live.jsonl:1: goal: is missing; only pages of a suite's own folder can supply it",
            "live.jsonl:1: score: asks for a page probe, and pages elsewhere have none",
        ],
    );
}

#[test]
fn ids_are_unique_in_a_file_and_across_sources() {
    let folder = pages();
    let line = r#"{"task_id":"same","start_url":"click.html","score":{"kind":"probe"}}"#;
    write(&folder, "tasks.jsonl", &format!("{line}\n\n{line}"));
    refused(vec![source("mine", folder.path())], &["tasks.jsonl:3: task_id: \"same\" is already used"]);
    let folder = pages();
    let twice = || source("mine", folder.path());
    refused(vec![twice(), twice()], &["mine/click comes from two sources; exclude it from one of them"]);
    let first = SourceFile { include: vec!["click".into()], ..twice() };
    let second = SourceFile { exclude: vec!["click".into()], split: Some("eval".into()), ..twice() };
    assert_eq!(loaded(vec![first, second]).sites().len(), 1, "one folder is one site");
    refused(
        vec![twice(), SourceFile { exclude: vec!["*".into()], ..twice() }],
        &["tasks.source[1]: no task is left; widen include or splits, shorten exclude"],
    );
}

#[test]
fn an_absent_source_is_an_error_unless_it_is_optional() {
    let folder = pages();
    let gone = || SourceFile { pages: Some("no.whl".into()), ..source("miniwob", folder.path()) };
    refused(vec![gone()], &["tasks.source[0]: pages "]);
    let optional = || SourceFile { optional: true, ..gone() };
    let set = loaded(vec![optional(), source("mine", folder.path())]);
    assert_eq!(set.specs().len(), 2);
    assert!(
        set.notes()[0].starts_with("tasks.source[0]: suite miniwob is skipped: pages "),
        "{:?}",
        set.notes()
    );
    refused(vec![optional()], &["tasks: no task is left"]);
}

#[test]
fn reference_answers_belong_to_task_files() {
    let folder = pages();
    let source = SourceFile { answers: Some("x.json".into()), ..source("mine", folder.path()) };
    refused(vec![source], &["tasks.source[0].answers: only a task file of WebVoyager's has it"]);
}

#[test]
fn two_folders_cannot_share_a_host() {
    let one = pages();
    let other = pages();
    let first = SourceFile { include: vec!["click".into()], ..source("mine", one.path()) };
    let second = SourceFile { include: vec!["read".into()], ..source("mine", other.path()) };
    refused(
        vec![first, second],
        &["tasks.source[1]: another source already serves mine.test from elsewhere"],
    );
}

#[test]
fn miniwob_pages_come_from_an_unpacked_folder() {
    let folder = tempfile::tempdir().unwrap();
    let html = folder.path().join("pages/miniwob/html/miniwob");
    fs::create_dir_all(&html).unwrap();
    fs::create_dir_all(folder.path().join("solve")).unwrap();
    fs::write(html.join("click-test.html"), "").unwrap();
    write(&folder, "solve/click-test.js", "return null");
    write(
        &folder,
        "tasks.jsonl",
        r#"{"task_id":"click-test","suite":"miniwob","file":"miniwob/click-test.html","page_time_limit_ms":10000,"deterministic_goal":true}"#,
    );
    let with_pages =
        || SourceFile { pages: Some(folder.path().join("pages")), ..source("miniwob", folder.path()) };
    let set = loaded(vec![with_pages()]);
    let spec = set.find("miniwob", "click-test").unwrap();
    assert_eq!(spec.task.start_url, "http://miniwob.test/miniwob/click-test.html");
    assert_eq!(spec.task.observation.clip, Some(Size::new(160, 210)));
    assert!(matches!(spec.task.clock, PageClock::Virtual { step_millis: 1000 }));
    assert_eq!(spec.task.hooks.solve.as_deref(), Some("return null"));
    assert!(spec.task.hooks.start_with(3).unwrap().contains("Math.seedrandom('3')"));
    assert_eq!(Scorer::of_task_json(&spec.json).as_ref(), Ok(&spec.scorer));
    assert!(spec.json.contains("\"deterministic_goal\":true"));
    assert_eq!(set.sites()[0].host, "miniwob.test");
    write(&folder, "tasks.jsonl", r#"{"task_id":"gone","file":"miniwob/gone.html"}"#);
    refused(vec![with_pages()], &["1 of the listed pages are missing, the first is miniwob/gone.html"]);
    write(&folder, "tasks.jsonl", r#"{"task_id":"out","file":"../out.html"}"#);
    refused(vec![with_pages()], &["tasks.jsonl:1: file: \"../out.html\" is not a page"]);
}

#[test]
fn a_fingerprint_changes_with_anything_a_draw_depends_on() {
    let folder = pages();
    let print = || loaded(vec![source("mine", folder.path())]).fingerprint();
    let first = print();
    assert_eq!(first, print());
    let shorter = SourceFile { max_steps: Some(2), ..source("mine", folder.path()) };
    assert_ne!(first, loaded(vec![shorter]).fingerprint());
    write(&folder, "click.solve.js", "return {action: 'wait'}");
    assert_ne!(first, print());
}
