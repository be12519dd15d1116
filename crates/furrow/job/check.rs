//! Checks the written keys and values against the known ones; finds all problems at once, by key
//! and line.

use super::renamed;
use super::shape::KeyShape;
use super::tree::{ConfigNode, ConfigValue, KeyProblem, SourceLocation};

/// The result of [`check`].
#[derive(Debug, Default)]
pub(super) struct CheckFindings {
    /// All unknown keys and all values of a wrong type.
    pub problems: Vec<KeyProblem>,
    /// Keys that a problem already names: as wrong, or as the probably intended one.
    pub named: Vec<String>,
}

/// Finds everything that no section could read, and removes it from the tree, so that the sections
/// can check the rest.
pub(super) fn check(tree: &mut ConfigNode, shape: &KeyShape) -> CheckFindings {
    let mut checker = KeyChecker { known: shape.keys(), findings: CheckFindings::default() };
    checker.keep(tree, shape, "");
    checker.findings
}

struct KeyChecker {
    known: Vec<String>,
    findings: CheckFindings,
}

impl KeyChecker {
    /// Whether the value can be read, perhaps without parts of it.
    fn keep(&mut self, node: &mut ConfigNode, shape: &KeyShape, key: &str) -> bool {
        match (&mut node.value, shape) {
            (ConfigValue::Section(entries), KeyShape::Section(_) | KeyShape::Map(_)) => {
                entries.retain_mut(|(name, child)| self.keep_entry(child, shape, &join(key, name), name));
                true
            }
            (ConfigValue::List(entries), KeyShape::List(each)) => {
                // An unreadable entry removes the whole list: without it the indices of the others
                // would change.
                let unread = |(index, entry): (usize, &mut ConfigNode)| {
                    !self.keep(entry, each, &format!("{key}[{index}]"))
                };
                let lost = entries.iter_mut().enumerate().map(unread).filter(|lost| *lost).count();
                lost == 0
            }
            (ConfigValue::Plain(value), shape) if fits(value, shape) => true,
            (value, shape) => {
                let text = wrong_kind(key, value, shape);
                self.report(node.location, key, text);
                false
            }
        }
    }

    fn keep_entry(&mut self, node: &mut ConfigNode, section: &KeyShape, key: &str, name: &str) -> bool {
        match section.at(name) {
            Some(shape) => self.keep(node, shape, key),
            None => {
                let text = self.unknown(key, section);
                self.report(node.location, key, text);
                false
            }
        }
    }

    fn report(&mut self, location: SourceLocation, key: &str, text: String) {
        self.findings.named.push(key.to_owned());
        self.findings.problems.push(KeyProblem { location, key: key.to_owned(), text });
    }

    fn unknown(&mut self, key: &str, section: &KeyShape) -> String {
        if let Some(new) = renamed::new_name(key) {
            self.findings.named.push(new.to_owned());
            return format!("renamed; write {new}");
        }
        match nearest(key, &self.known) {
            Some(meant) => {
                let text = format!("unknown key; did you mean {meant}?");
                self.findings.named.push(meant);
                text
            }
            None => format!("unknown key; {} {}", known_here(key), names(section).join(", ")),
        }
    }
}

fn wrong_kind(key: &str, value: &ConfigValue, shape: &KeyShape) -> String {
    let remedy = match (value, shape) {
        (_, KeyShape::List(each)) if matches!(**each, KeyShape::Section(_)) => {
            format!("write [[{key}]] for each entry")
        }
        (_, KeyShape::Section(_) | KeyShape::Map(_)) => format!("write a section [{key}]"),
        _ => format!("use {shape}"),
    };
    format!("{value}; {remedy}")
}

fn known_here(key: &str) -> String {
    match key.rsplit_once('.') {
        Some((section, _)) => format!("[{section}] knows"),
        None => "the sections are".to_owned(),
    }
}

fn names(section: &KeyShape) -> Vec<&str> {
    match section {
        KeyShape::Section(keys) => keys.iter().map(|(name, _)| *name).collect(),
        _ => Vec::new(),
    }
}

fn fits(value: &toml::Value, shape: &KeyShape) -> bool {
    match (shape, value) {
        (KeyShape::Flag, toml::Value::Boolean(_)) => true,
        (KeyShape::Whole { least, most }, toml::Value::Integer(number)) => {
            (least..=most).contains(&&i128::from(*number))
        }
        (KeyShape::Number, toml::Value::Float(_) | toml::Value::Integer(_)) => true,
        (KeyShape::Text | KeyShape::Path, toml::Value::String(_)) => true,
        (KeyShape::Choice(choices), toml::Value::String(choice)) => choices.contains(&choice.as_str()),
        _ => false,
    }
}

/// The known key that was most likely intended: similar in its last part, preferably in the same
/// section.
fn nearest(key: &str, known: &[String]) -> Option<String> {
    // Below 0.6 two names of ten letters differ in more than four letters: not a typo.
    const ALIKE: f64 = 0.6;
    // A name from another section must be nearly identical to be suggested.
    const ELSEWHERE: f64 = 0.2;
    let (section, name) = split(key);
    let section_known_as = without_indices(section);
    let likeness = |candidate: &String| {
        let (other_section, other_name) = split(candidate);
        let alike = strsim::normalized_damerau_levenshtein(name, other_name);
        match other_section == section_known_as {
            true => (alike, join(section, other_name)),
            false => (alike - ELSEWHERE, candidate.clone()),
        }
    };
    let best = known.iter().map(likeness).max_by(|one, other| one.0.total_cmp(&other.0))?;
    (best.0 >= ALIKE).then_some(best.1)
}

fn split(key: &str) -> (&str, &str) {
    key.rsplit_once('.').unwrap_or(("", key))
}

/// Turns `tasks.source[3].path` into `tasks.source[].path`, as keys are known.
fn without_indices(key: &str) -> String {
    let piece = |piece: &str| match piece.split_once(']') {
        Some((_, rest)) => format!("[]{rest}"),
        None => piece.to_owned(),
    };
    key.split('[').map(piece).collect()
}

/// Quotes a key that is not a plain name.
fn join(section: &str, name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let name =
        if !name.is_empty() && name.chars().all(plain) { name.to_owned() } else { format!("{name:?}") };
    if section.is_empty() { name } else { format!("{section}.{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tree::parse;

    fn shape() -> KeyShape {
        let whole = || KeyShape::Whole { least: 0, most: 1000 };
        let source = KeyShape::Section(vec![("path", KeyShape::Path), ("repeat", whole())]);
        let tasks =
            KeyShape::Section(vec![("group_size", whole()), ("source", KeyShape::List(Box::new(source)))]);
        let sampling =
            KeyShape::Section(vec![("temperature", KeyShape::Number), ("top_p", KeyShape::Number)]);
        let grammar = KeyShape::Section(vec![("extra", KeyShape::List(Box::new(KeyShape::Text)))]);
        let policy =
            KeyShape::Section(vec![("sampling", sampling), ("grammar", grammar), ("on", KeyShape::Flag)]);
        let telemetry = KeyShape::Section(vec![("log_level", KeyShape::Choice(&["warn", "info"]))]);
        KeyShape::Section(vec![("tasks", tasks), ("policy", policy), ("telemetry", telemetry)])
    }

    #[track_caller]
    fn check_file(text: &str, want: &[&str]) {
        let findings = check(&mut parse(text).unwrap(), &shape());
        let got: Vec<_> =
            findings.problems.iter().map(|KeyProblem { key, text, .. }| format!("{key}: {text}")).collect();
        assert_eq!(got, want, "{text}");
    }

    #[test]
    fn an_unknown_key_names_the_nearest_known_one() {
        check_file("[tasks]\ngroup_size = 4\n[[tasks.source]]\npath = \"a\"", &[]);
        check_file(
            "[tasks]\ngrup_size = 4",
            &["tasks.grup_size: unknown key; did you mean tasks.group_size?"],
        );
        check_file("[tsks]\nx = 1\ny = 2", &["tsks: unknown key; did you mean tasks?"]);
        check_file("group_size = 4", &["group_size: unknown key; did you mean tasks.group_size?"]);
        check_file(
            "[policy]\ntemperature = 1",
            &["policy.temperature: unknown key; did you mean policy.sampling.temperature?"],
        );
        check_file(
            "[[tasks.source]]\npath = \"a\"\n[[tasks.source]]\npth = \"b\"",
            &["tasks.source[1].pth: unknown key; did you mean tasks.source[1].path?"],
        );
        check_file("[tasks]\nwholly = 4", &["tasks.wholly: unknown key; [tasks] knows group_size, source"]);
        check_file("[zzz]", &["zzz: unknown key; the sections are tasks, policy, telemetry"]);
        check_file("\"a b\" = 1", &["\"a b\": unknown key; the sections are tasks, policy, telemetry"]);
    }

    #[test]
    fn a_wrong_kind_names_key_value_and_remedy() {
        check_file("tasks = 5", &["tasks: 5; write a section [tasks]"]);
        check_file(
            "[tasks]\ngroup_size = \"four\"",
            &["tasks.group_size: \"four\"; use a whole number from 0 to 1000"],
        );
        check_file("[tasks]\ngroup_size = -1", &["tasks.group_size: -1; use a whole number from 0 to 1000"]);
        check_file(
            "[tasks]\ngroup_size = 1.0",
            &["tasks.group_size: 1.0; use a whole number from 0 to 1000"],
        );
        check_file("[tasks.group_size]", &["tasks.group_size: a section; use a whole number from 0 to 1000"]);
        check_file(
            "[tasks.source]\npath = \"a\"",
            &["tasks.source: a section; write [[tasks.source]] for each entry"],
        );
        check_file(
            "[tasks]\nsource = \"a\"",
            &["tasks.source: \"a\"; write [[tasks.source]] for each entry"],
        );
        check_file("[tasks]\nsource = [1]", &["tasks.source[0]: 1; write a section [tasks.source[0]]"]);
        check_file("[policy.sampling]\ntop_p = true", &["policy.sampling.top_p: true; use a number"]);
        check_file("[policy.sampling]\ntop_p = 1", &[]);
        check_file("[policy]\non = 1", &["policy.on: 1; use true or false"]);
        check_file(
            "[policy.grammar]\nextra = [\"a\", 2]",
            &["policy.grammar.extra[1]: 2; use text in quotes"],
        );
        check_file(
            "[policy.grammar]\nextra = \"a\"",
            &["policy.grammar.extra: \"a\"; use a list [..], each entry text in quotes"],
        );
        check_file(
            "[telemetry]\nlog_level = \"inof\"",
            &["telemetry.log_level: \"inof\"; use one of \"warn\", \"info\""],
        );
    }

    #[test]
    fn what_is_wrong_is_taken_out_and_the_rest_stays() {
        let mut tree = parse("[tasks]\ngrup_size = 4\nsource = 1\n[policy]\non = true\nof = 1").unwrap();
        let findings = check(&mut tree, &shape());
        assert_eq!(findings.named, ["policy.of", "tasks.group_size", "tasks.grup_size", "tasks.source"]);
        assert_eq!(tree.into_toml().to_string(), "{ policy = { on = true }, tasks = {} }");
    }
}
