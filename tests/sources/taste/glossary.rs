//! Reads the retired words from docs/GLOSSARY.md, the one place where they are listed.

use std::collections::HashMap;
use std::path::Path;

use crate::taste::names::segments;

/// The header of a table of retired words. Any number of such tables may stand in the glossary.
const HEADER: [&str; 4] = ["retired", "scope", "where", "instead"];

/// How far a word is retired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// In no name, comment, text or document.
    Never,
    /// In no identifier, key, flag or metric.
    NoName,
    /// In no name of a type or module.
    NoTypeName,
    /// A person decides by reading; the test does not look for it.
    Reading,
}

/// One word or phrase of a row.
#[derive(Debug)]
pub(super) struct RetiredTerm {
    pub term: String,
    pub scope: Scope,
    pub instead: String,
    parts: Vec<String>,
    /// Folders, relative to the repository's root; none of them: everywhere.
    folders: Vec<String>,
}

impl RetiredTerm {
    fn applies_to(&self, file: &str) -> bool {
        self.folders.is_empty() || self.folders.iter().any(|folder| Path::new(file).starts_with(folder))
    }
}

/// What is written in a name or a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    TypeName,
    Name,
    Text,
}

#[derive(Debug, Default)]
pub(super) struct Glossary {
    terms: Vec<RetiredTerm>,
    /// First word of a phrase, and where it is in `terms`.
    by_first: HashMap<String, Vec<usize>>,
}

impl Glossary {
    /// Reads every table of retired words. A malformed row is an error, and so is a folder that
    /// `is_folder` does not know.
    pub(super) fn parse(text: &str, is_folder: impl Fn(&str) -> bool) -> Result<Self, String> {
        let mut glossary = Self::default();
        let mut is_in_table = false;
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            let Some(cells) = cells_of(line) else {
                is_in_table = false;
                continue;
            };
            if cells == HEADER {
                is_in_table = true;
            } else if cells.first().is_some_and(|first| first.contains("retired")) {
                return Err(format!(
                    "line {number}: a table of retired words has the columns {}",
                    HEADER.join(", ")
                ));
            } else if is_in_table && !cells.iter().all(|cell| is_rule(cell)) {
                glossary
                    .add_row(&cells, &is_folder)
                    .map_err(|problem| format!("line {number}: {problem}"))?;
            }
        }
        if glossary.terms.is_empty() {
            return Err(format!("no table with the columns {} lists any word", HEADER.join(", ")));
        }
        Ok(glossary)
    }

    fn add_row(&mut self, cells: &[&str], is_folder: impl Fn(&str) -> bool) -> Result<(), String> {
        let [retired, scope, folders, instead] = cells else {
            return Err(format!("{} cells; a row of retired words has four", cells.len()));
        };
        let scope = match *scope {
            "never" => Scope::Never,
            "no name" => Scope::NoName,
            "no type name" => Scope::NoTypeName,
            "by reading" => Scope::Reading,
            other => {
                return Err(format!("scope {other:?}; use never, no name, no type name or by reading"));
            }
        };
        let folders = folders_of(folders, is_folder)?;
        if instead.is_empty() {
            return Err(format!("{retired:?} has nothing to use instead"));
        }
        if scope == Scope::Reading {
            return Ok(());
        }
        for term in retired.split(", ") {
            let is_plain = term.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b' ');
            if term.trim() != term || term.is_empty() || !is_plain {
                return Err(format!(
                    "{term:?}; write lowercase words, with a comma and a space between them"
                ));
            }
            if self.terms.iter().any(|known| known.term == term) {
                return Err(format!("{term:?} is listed twice"));
            }
            let parts: Vec<String> = term.split(' ').map(str::to_owned).collect();
            self.by_first.entry(parts[0].clone()).or_default().push(self.terms.len());
            self.terms.push(RetiredTerm {
                term: term.to_owned(),
                scope,
                instead: (*instead).to_owned(),
                parts,
                folders: folders.clone(),
            });
        }
        Ok(())
    }

    /// The retired words in an identifier or a line of text of this file.
    pub(super) fn find(&self, text: &str, used_as: Use, file: &str) -> Vec<&RetiredTerm> {
        let segments = segments(text);
        let mut found: Vec<&RetiredTerm> = Vec::new();
        let mut lower = String::new();
        for (index, segment) in segments.iter().enumerate() {
            lower.clear();
            lower.extend(segment.chars().flat_map(char::to_lowercase));
            let singular = lower.strip_suffix('s').unwrap_or(&lower);
            let candidates = [lower.as_str(), singular].map(|first| self.by_first.get(first));
            for position in candidates.into_iter().flatten().flatten() {
                let retired = &self.terms[*position];
                let is_retired_here = match retired.scope {
                    Scope::Never => true,
                    Scope::NoName => used_as != Use::Text,
                    Scope::NoTypeName => used_as == Use::TypeName,
                    Scope::Reading => false,
                };
                let is_known = found.iter().any(|known| known.term == retired.term);
                if is_retired_here
                    && !is_known
                    && retired.applies_to(file)
                    && is_phrase(&segments[index..], &retired.parts)
                {
                    found.push(retired);
                }
            }
        }
        found
    }
}

/// Whether `segments` begin with the phrase; its last word may be a plural.
fn is_phrase(segments: &[&str], phrase: &[String]) -> bool {
    let is_last = |segment: &str, part: &str| {
        let singular = segment.strip_suffix(['s', 'S']).unwrap_or(segment);
        segment.eq_ignore_ascii_case(part) || singular.eq_ignore_ascii_case(part)
    };
    let Some((last, first)) = phrase.split_last() else { return false };
    segments.len() >= phrase.len()
        && first.iter().zip(segments).all(|(part, segment)| segment.eq_ignore_ascii_case(part))
        && is_last(segments[first.len()], last)
}

fn cells_of(line: &str) -> Option<Vec<&str>> {
    let row = line.trim().strip_prefix('|')?;
    let row = row.strip_suffix('|').unwrap_or(row);
    Some(row.split('|').map(str::trim).collect())
}

fn is_rule(cell: &str) -> bool {
    !cell.is_empty() && cell.bytes().all(|byte| byte == b'-' || byte == b':')
}

fn folders_of(cell: &str, is_folder: impl Fn(&str) -> bool) -> Result<Vec<String>, String> {
    if cell == "everywhere" {
        return Ok(Vec::new());
    }
    let mut folders = Vec::new();
    for quoted in cell.split(", ") {
        let folder = quoted.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
        match folder.filter(|folder| is_folder(folder)) {
            Some(folder) => folders.push(folder.to_owned()),
            None => {
                return Err(format!("where {quoted:?}; use everywhere or folders that exist, in backticks"));
            }
        }
    }
    Ok(folders)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
# Words

| retired | scope | where | instead |
|---|---|---|---|
| gizmo | never | everywhere | part |
| flip, flop over | no name | everywhere | swap |
| zap | no name | `crates/a`, `kernels` | write |
| widget | no type name | everywhere | control |
| \"is zany\" | by reading | everywhere | name it |
";

    fn glossary() -> Glossary {
        Glossary::parse(TABLE, |_| true).unwrap()
    }

    fn check(text: &str, used_as: Use, file: &str, expected: &[&str]) {
        let glossary = glossary();
        let found: Vec<&str> =
            glossary.find(text, used_as, file).iter().map(|found| found.term.as_str()).collect();
        assert_eq!(found, expected, "{text} as {used_as:?} in {file}");
    }

    #[test]
    fn terms_are_found_by_their_scope() {
        check("A gizmo, or GizmosOf, or giz_mo.", Use::Text, "README.md", &["gizmo"]);
        check("flip it", Use::Text, "README.md", &[]);
        check("on_flip", Use::Name, "crates/b/x.rs", &["flip"]);
        check("Flips", Use::TypeName, "crates/b/x.rs", &["flip"]);
        check("flipper", Use::Name, "crates/b/x.rs", &[]);
        check("flop_over_all, flop", Use::Name, "crates/b/x.rs", &["flop over"]);
        check("flop_underneath", Use::Name, "crates/b/x.rs", &[]);
        check("zap", Use::Name, "crates/ab/x.rs", &[]);
        check("zap", Use::Name, "crates/a/x.rs", &["zap"]);
        check("widget", Use::Name, "crates/a/x.rs", &[]);
        check("WidgetRow", Use::TypeName, "crates/a/x.rs", &["widget"]);
        check("is zany", Use::Text, "README.md", &[]);
    }

    #[test]
    fn a_malformed_table_is_an_error() {
        let wrong = |row: &str| {
            let text = TABLE.replace("| gizmo | never | everywhere | part |", row);
            Glossary::parse(&text, |folder| folder != "nowhere").unwrap_err()
        };
        assert_eq!(wrong("| gizmo | never | part |"), "line 5: 3 cells; a row of retired words has four");
        assert!(wrong("| gizmo | sometimes | everywhere | part |").contains("sometimes"));
        assert!(wrong("| gizmo | never | nowhere | part |").contains("nowhere"));
        assert!(wrong("| gizmo | never | `nowhere` | part |").contains("nowhere"));
        assert!(wrong("| gizmo (a thing) | never | everywhere | part |").contains("gizmo (a thing)"));
        assert!(wrong("| gizmo,gadget | never | everywhere | part |").contains("gizmo,gadget"));
        assert!(wrong("| gizmo, zap | never | everywhere | part |").contains("\"zap\" is listed twice"));
        assert!(wrong("| gizmo | never | everywhere | |").contains("nothing to use instead"));
        assert!(wrong("| retired | scope | instead |").contains("columns"));
        assert!(Glossary::parse("No table.", |_| true).unwrap_err().contains("no table"));
    }
}
