//! docs/RUNBOOK.md lists each message that can end a process, each end by the farm's fault and each
//! alert, and none that does not exist any more.

use std::collections::BTreeSet;
use std::path::Path;

/// Where the errors are that a process ends with.
const FILES: &[&str] = &[
    "crates/coordinator/src/commit/error.rs",
    "crates/coordinator/src/commit/reconcile.rs",
    "crates/coordinator/src/error.rs",
    "crates/coordinator/src/ledger.rs",
    "crates/coordinator/src/lock.rs",
    "crates/coordinator/src/lost_found.rs",
    "crates/coordinator/src/plan.rs",
    "crates/coordinator/src/spool/error.rs",
    "crates/env/src/chromium/error.rs",
    "crates/env/src/worker.rs",
    "crates/furrow/commands/roles.rs",
    "crates/furrow/commands/run.rs",
    "crates/policy/src/model/open.rs",
    "crates/policy/src/worker.rs",
];

/// Attributes and macros whose first argument is such a message.
const MARKS: &[&str] = &["#[error(", "anyhow::anyhow!("];

#[test]
fn the_runbook_lists_what_ends_a_process() {
    let page = std::fs::read_to_string("docs/RUNBOOK.md").unwrap();
    let messages = section(&page, "## Messages that end a process", "## Ends of trajectories");
    let ends = section(&page, "## Ends of trajectories", "## Alerts");
    let alerts = section(&page, "## Alerts", "\u{0}");

    let found: BTreeSet<String> = FILES.iter().flat_map(|file| headlines(Path::new(file))).collect();
    assert!(found.len() > 60, "only {} messages were found in the sources", found.len());
    same("messages", &found, &first_column(messages));

    let farms = furrow_rollout::EndKind::ALL.into_iter();
    let farms = farms.filter(|end| end.fault(false) == furrow_rollout::FaultOwner::Farm);
    same("ends", &farms.map(|end| end.as_str().to_owned()).collect(), &first_column(ends));

    let rules = std::fs::read_to_string("deploy/alerts.yml").unwrap();
    let names = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    same("alerts", &names.map(str::to_owned).collect(), &first_column(alerts));
}

#[track_caller]
fn same(what: &str, sources: &BTreeSet<String>, page: &BTreeSet<String>) {
    let missing: Vec<_> = sources.difference(page).collect();
    let stale: Vec<_> = page.difference(sources).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "{what} of docs/RUNBOOK.md\nmissing: {missing:#?}\nof no source: {stale:#?}"
    );
}

fn section<'a>(page: &'a str, from: &str, to: &str) -> &'a str {
    let begin = page.find(from).unwrap() + from.len();
    page[begin..].split(to).next().unwrap()
}

/// The first cells of tables that are code.
fn first_column(section: &str) -> BTreeSet<String> {
    let cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    cells.map(|(cell, _)| cell.to_owned()).collect()
}

fn headlines(file: &Path) -> Vec<String> {
    let source = std::fs::read_to_string(file).unwrap();
    let texts = MARKS.iter().flat_map(|mark| source.split(mark).skip(1)).filter_map(literal);
    texts.map(|text| headline(&text)).collect()
}

/// The string literal that a text begins with, with `…` for each value in it and a straight quote
/// for a backtick, which would end the code in the page.
fn literal(text: &str) -> Option<String> {
    let mut rest = text.trim_start().strip_prefix('"')?.chars().peekable();
    let mut literal = String::new();
    while let Some(character) = rest.next() {
        match character {
            '"' => return Some(literal),
            '\\' => match rest.next()? {
                '\n' => while rest.next_if(|next| next.is_whitespace()).is_some() {},
                escaped => literal.push(escaped),
            },
            '`' => literal.push('\''),
            '{' | '}' if rest.next_if_eq(&character).is_some() => literal.push(character),
            '{' => {
                rest.by_ref().find(|next| *next == '}')?;
                literal.push('…');
            }
            other => literal.push(other),
        }
    }
    None
}

/// What a message says before it explains.
fn headline(text: &str) -> String {
    let ends = ["; ", ". ", " ("].iter().filter_map(|end| text.find(end));
    text[..ends.min().unwrap_or(text.len())].to_owned()
}
