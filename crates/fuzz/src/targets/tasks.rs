//! Task files (rows of their own format and of WebVoyager's, folders of pages, folders of sites),
//! and the evidence that their scorers read.

use std::path::{Path, PathBuf};

use furrow_rollout::{EndKind, Evidence};
use furrow_tasks::{EndFacts, SourceFile, TasksConfig, TasksFile};

use crate::{FuzzTarget, Seed, accept, files};

pub(super) const TASKS: FuzzTarget = FuzzTarget {
    name: "tasks",
    run,
    repair: None,
    memory_max: |_| 64 << 20,
    bytes_max: 16 << 10,
    catches_panics: false,
    seeds,
};

const NAMES: [&str; 10] = [
    "rows.jsonl",
    "answers.json",
    "impossible.json",
    "tasks.jsonl",
    "page.html",
    "page.solve.js",
    "solve.js",
    "sites/a/tasks.jsonl",
    "sites/a/site.toml",
    "sites/a/www/index.html",
];

/// Tasks that are accepted are the same each time they are loaded, and score any evidence.
fn run(input: &[u8]) {
    let folder = files::scratch();
    files::write(folder, input, &NAMES);
    let config = config(folder);
    let Ok(tasks) = furrow_tasks::load(&config) else { return };
    accept();
    assert!(!tasks.specs().is_empty(), "an accepted set has a task");
    let evidence = evidence(input);
    for spec in tasks.specs() {
        let facts = EndFacts { end: EndKind::Answered, steps: 3, max_steps: 9 };
        let scored = spec.scorer.score(&evidence, &facts).ok().and_then(|score| score.reward);
        assert!(scored.is_none_or(f32::is_finite), "{scored:?} is no reward");
    }
    let again = furrow_tasks::load(&config).expect("the same files are accepted again");
    assert_eq!(again.fingerprint(), tasks.fingerprint(), "the same files are the same tasks");
}

/// What the environment says of the last page, some of it written by the page.
fn evidence(input: &[u8]) -> Evidence {
    let split = files::split(input);
    let text = |name: &str| {
        let found = split.iter().find(|(known, _)| *known == name)?;
        std::str::from_utf8(found.1).ok().map(|text| text.trim_end_matches('\n').to_owned())
    };
    Evidence {
        url: text("url"),
        answer: text("answer"),
        probe_json: text("probe.json"),
        findings_json: text("findings.json"),
        ..Evidence::default()
    }
}

fn config(folder: &Path) -> TasksConfig {
    let beside = |name: &str| folder.join(name).is_file().then(|| PathBuf::from(name));
    let rows = beside("rows.jsonl");
    let source = SourceFile {
        suite: "own".into(),
        answers: rows.as_ref().and(beside("answers.json")),
        impossible: rows.as_ref().and(beside("impossible.json")),
        dates_from: rows.as_ref().and(beside("answers.json")).map(|_| "2026-01-01".into()),
        path: rows.unwrap_or_else(|| ".".into()),
        ..SourceFile::default()
    };
    let file =
        TasksFile { source: vec![source], http_hosts: vec!["api.test".into()], ..TasksFile::default() };
    file.check(folder).expect("a section of known values")
}

fn seeds() -> Vec<Seed> {
    [row_seeds(), folder_seeds()].concat()
}

fn joined(files: &[(&str, &str)]) -> Vec<u8> {
    files::join(files.iter().map(|(name, text)| (*name, text.as_bytes())))
}

fn row_seeds() -> Vec<Seed> {
    let rows = concat!(
        r#"{"task_id":"a","goal":"Find the price","start_url":"https://shop.test/?q=1","max_steps":9,"#,
        r#""viewport":[800,600],"split":"validation","allow_hosts":["*.cdn.test"],"seed":3,"#,
        r#""score":{"kind":"all","of":[{"kind":"answer","match":"number","value":4.5,"unit":"$"},"#,
        r#"{"kind":"not","of":{"kind":"url","prefix":"https://shop.test/cart"}}]}}"#,
        "\n",
        r#"{"task_id":"b","goal":"Order it","start_url":"http://shop.test/","#,
        r#""score":{"kind":"http","url":"http://api.test/orders","pointer":"/0/id","equals":7}}"#,
        "\n"
    );
    let findings = r#"[{"query":{"kind":"http","url":"http://api.test/orders"},"found":"[{\"id\":7}]"}]"#;
    let compared = concat!(
        r#"{"task_id":"a","goal":"g","start_url":"https://shop.test/","score":{"kind":"weighted","of":["#,
        r#"{"kind":"answer","match":"date","value":"2024-02-29","order":"month_first","weight":1},"#,
        r#"{"kind":"answer","match":"set","value":["Rome","Paris"],"ordered":true,"weight":2},"#,
        r#"{"kind":"answer","match":"regex","value":"^[0-9]+ of","weight":1},"#,
        r#"{"kind":"answer","match":"must_include","value":"Rome","among":["Oslo"],"weight":1},"#,
        r#"{"kind":"answer","match":"number","value":5,"tolerance":0.5,"unit":["km","kilometres"],"weight":1}]}}"#,
        "\n"
    );
    let voyager = concat!(
        r#"{"web_name":"Booking","id":"Booking--3","ques":"Find a hotel from January 5, 2024 to 7","#,
        r#""web":"https://www.booking.com/"}"#,
        "\n"
    );
    let answers = r#"{"Booking":{"answers":[{"id":3,"type":"possible","ans":"Hotel A"}]}}"#;
    vec![
        Seed::new(
            "rows",
            joined(&[
                ("rows.jsonl", rows),
                ("answer", "It costs $4.50.\n"),
                ("url", "https://shop.test/item?q=1#top\n"),
                ("findings.json", findings),
            ]),
        ),
        Seed::new(
            "compared",
            joined(&[("rows.jsonl", compared), ("answer", "2/29/2024, not Rome but Paris; 5,1 km\n")]),
        ),
        Seed::new(
            "webvoyager",
            joined(&[
                ("rows.jsonl", voyager),
                ("answers.json", answers),
                ("impossible.json", "[\"Booking--4\"]"),
            ]),
        ),
    ]
}

fn folder_seeds() -> Vec<Seed> {
    let starter = concat!(
        r#"{"task_id":"click","suite":"own","goal":null,"start_url":"http://own.test/page.html","#,
        r#""max_steps":6,"time_limit_ms":120000,"viewport":[512,512],"difficulty":"easy","split":"train","#,
        r#""score":{"kind":"probe","pointer":"/correct"}}"#,
        "\n"
    );
    let site = concat!(
        r#"{"task_id":"a-price","goal":"Say the price","start_url":"http://a.own.test/","#,
        r#""score":{"kind":"answer","match":"contains","value":"5"}}"#,
        "\n"
    );
    vec![
        Seed::new(
            "starter",
            joined(&[
                ("tasks.jsonl", starter),
                ("page.html", "<p>"),
                ("page.solve.js", "solve()"),
                (
                    "probe.json",
                    r#"{"done":true,"correct":0.5,"away":"x","error_page":{"fault":"policy","url":"u"}}"#,
                ),
            ]),
        ),
        Seed::new(
            "site",
            joined(&[
                ("sites/a/tasks.jsonl", site),
                ("sites/a/site.toml", "fallback = true\n"),
                ("sites/a/www/index.html", "<p>"),
                ("solve.js", "// all"),
            ]),
        ),
    ]
}
