//! Keeps the sources readable: names from the glossary, comments that fit and say something, one
//! binding a line, small functions and files.
//!
//! `FURROW_TASTE_COUNTS=1 cargo test --test sources taste -- --nocapture` prints all breaches and
//! their number by rule, and passes.

mod glossary;
mod lexer;
mod names;
mod outline;
mod rules;
mod tree;

use std::fs;
use std::path::Path;
use std::thread;

use glossary::Glossary;
use rules::{Breach, RULES};
use tree::SourceFile;

/// Breaches that are left of each rule. A number only falls: lower it with what you repair.
const LEFT: &[(&str, usize)] = &[
    ("retired", 0),
    ("comment-width", 0),
    ("tuple-let", 0),
    ("filler-doc", 0),
    ("long-file", 0),
    ("long-function", 0),
];

/// What may stay as it is: rule, file, and the item that a breach is reported for.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    // The names that `renamed` refuses are those of an earlier release.
    ("retired", "crates/furrow/renamed.rs", "air"),
    // Data sets store this browser of simulated trajectories.
    ("retired", "crates/env/src/simulated.rs", "air"),
    // A label value of stored metrics.jsonl files and of Grafana boards that are installed.
    ("retired", "crates/telemetry/src/labels.rs", "\"no_room\""),
    // This list.
    ("retired", "tests/sources/taste.rs", "air"),
];
/// Lower it when an exception goes; it never rises.
const EXCEPTIONS_MAX: usize = 4;

#[test]
fn the_tree_keeps_the_rules() {
    let glossary = read_glossary();
    for file in rules::NAMING_FILES {
        assert!(Path::new(file).exists(), "{file} is gone; correct NAMING_FILES in taste/rules.rs");
    }
    let breaches = check_all(&tree::source_files(Path::new(".")), &glossary);
    println!("{}", counts(&breaches));
    if std::env::var_os("FURROW_TASTE_COUNTS").is_some() {
        breaches.iter().for_each(|breach| println!("{}", describe(breach)));
        return;
    }
    let (rest, unused) = except(breaches, EXCEPTIONS);
    assert!(unused.is_empty(), "{}", unused.join("\n"));
    for rule in RULES {
        let of_rule: Vec<String> = rest.iter().filter(|breach| breach.rule == rule).map(describe).collect();
        let left = LEFT.iter().find(|(name, _)| *name == rule).map_or(0, |(_, left)| *left);
        assert!(of_rule.len() <= left, "{left} are left of {rule}, and there are\n{}", of_rule.join("\n"));
        assert!(of_rule.len() >= left, "{rule}: {} breaches; lower LEFT, which says {left}", of_rule.len());
    }
}

#[test]
fn exceptions_only_become_fewer() {
    assert_eq!(EXCEPTIONS.len(), EXCEPTIONS_MAX, "EXCEPTIONS_MAX follows the number of exceptions down");
    for (index, (rule, file, item)) in EXCEPTIONS.iter().enumerate() {
        assert!(RULES.contains(rule), "{rule} is not a rule; use one of {RULES:?}");
        assert!(
            !EXCEPTIONS[..index].contains(&(*rule, *file, *item)),
            "{rule} {file} {item} is listed twice"
        );
    }
}

fn read_glossary() -> Glossary {
    let text = fs::read_to_string("docs/GLOSSARY.md").unwrap();
    Glossary::parse(&text, |folder| Path::new(folder).is_dir())
        .unwrap_or_else(|problem| panic!("docs/GLOSSARY.md: {problem}"))
}

/// The breaches of all files, in order of files and lines. Every processor takes a part of the
/// files.
fn check_all(files: &[SourceFile], glossary: &Glossary) -> Vec<Breach> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let mut breaches: Vec<Breach> = thread::scope(|scope| {
        let workers: Vec<_> = (0..processors)
            .map(|first| {
                let own = files.iter().skip(first).step_by(processors);
                scope.spawn(move || own.flat_map(|file| rules::check(file, glossary)).collect::<Vec<_>>())
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    breaches.sort();
    breaches
}

/// The breaches that no exception names, and a problem for each exception without a breach.
fn except(breaches: Vec<Breach>, exceptions: &[(&str, &str, &str)]) -> (Vec<Breach>, Vec<String>) {
    let key = |breach: &Breach| (breach.rule, breach.file.clone(), breach.item.clone());
    let is_of = |breach: &Breach, exception: &(&str, &str, &str)| {
        let (rule, file, item) = key(breach);
        (rule, file.as_str(), item.as_str()) == *exception
    };
    let unused = exceptions
        .iter()
        .filter(|exception| !breaches.iter().any(|breach| is_of(breach, exception)))
        .map(|(rule, file, item)| {
            format!("{file}: {rule}: `{item}` needs no exception now; take it off the list")
        })
        .collect();
    let rest =
        breaches.into_iter().filter(|breach| !exceptions.iter().any(|exception| is_of(breach, exception)));
    (rest.collect(), unused)
}

fn describe(breach: &Breach) -> String {
    format!("{}:{}: {}: {}", breach.file, breach.line, breach.rule, breach.what)
}

fn counts(breaches: &[Breach]) -> String {
    let count = |rule: &str| breaches.iter().filter(|breach| breach.rule == rule).count();
    let counts: Vec<String> = RULES.iter().map(|rule| format!("{rule} {}", count(rule))).collect();
    format!("breaches: {}", counts.join(", "))
}

#[test]
fn an_exception_covers_its_item_and_must_be_needed() {
    let breach = |item: &str| Breach {
        file: "a.rs".to_owned(),
        line: 3,
        rule: rules::TUPLE_LET,
        item: item.to_owned(),
        what: "split it".to_owned(),
    };
    let exceptions = [(rules::TUPLE_LET, "a.rs", "f"), (rules::TUPLE_LET, "b.rs", "f")];
    let (rest, unused) = except(vec![breach("f"), breach("g"), breach("f")], &exceptions);
    assert_eq!(rest, [breach("g")]);
    assert_eq!(unused, ["b.rs: tuple-let: `f` needs no exception now; take it off the list"]);
    assert_eq!(describe(&rest[0]), "a.rs:3: tuple-let: split it");
    assert_eq!(counts(&rest).matches("tuple-let 1, filler-doc 0").count(), 1);
}
