//! A job file as a tree in which every value has the location where it was written, with `--set`
//! applied.

use std::collections::BTreeSet;
use std::fmt;

use toml::de::{DeTable, DeValue};

use super::shape::KeyShape;

/// A value and its location.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ConfigNode {
    pub location: SourceLocation,
    pub value: ConfigValue,
}

/// Where a value was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SourceLocation {
    /// In the file, on this line, counted from 1.
    Line(usize),
    Set,
    /// Not written: a default.
    Default,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ConfigValue {
    Section(Vec<(String, ConfigNode)>),
    List(Vec<ConfigNode>),
    Plain(toml::Value),
}

/// A problem and its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyProblem {
    pub location: SourceLocation,
    /// The dotted key of the problem; empty for the file as a whole.
    pub key: String,
    /// What is wrong, and the remedy.
    pub text: String,
}

#[derive(Debug, PartialEq, Eq)]
enum KeyPart<'k> {
    Name(&'k str),
    Index(usize),
}

/// Parses the text of a file; returns all its syntax errors.
pub(super) fn parse(text: &str) -> Result<ConfigNode, Vec<KeyProblem>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(section(table.get_ref(), SourceLocation::Line(1), text));
    }
    let problem = |error: toml::de::Error| KeyProblem {
        location: error.span().map_or(SourceLocation::Default, |span| line_of(text, span.start)),
        key: String::new(),
        text: format!("not valid TOML: {}", error.message()),
    };
    Err(errors.into_iter().map(problem).collect())
}

fn section(table: &DeTable<'_>, location: SourceLocation, text: &str) -> ConfigNode {
    let entry = |(key, value): (&toml::Spanned<toml::de::DeString<'_>>, &toml::Spanned<DeValue<'_>>)| {
        let entry_location = line_of(text, key.span().start);
        (key.get_ref().to_string(), node(value.get_ref(), entry_location, text))
    };
    ConfigNode { location, value: ConfigValue::Section(table.iter().map(entry).collect()) }
}

fn node(value: &DeValue<'_>, location: SourceLocation, text: &str) -> ConfigNode {
    match value {
        DeValue::Table(table) => section(table, location, text),
        DeValue::Array(list) => {
            let entry = |each: &toml::Spanned<DeValue<'_>>| {
                node(each.get_ref(), line_of(text, each.span().start), text)
            };
            ConfigNode { location, value: ConfigValue::List(list.iter().map(entry).collect()) }
        }
        plain => ConfigNode { location, value: ConfigValue::Plain(plain_value(plain)) },
    }
}

/// A number that TOML cannot hold stays text; the check of its shape then reports it.
fn plain_value(value: &DeValue<'_>) -> toml::Value {
    match value {
        DeValue::Integer(number) => {
            let digits = number.as_str().replace('_', "");
            i64::from_str_radix(&digits, number.radix())
                .map_or_else(|_| toml::Value::String(number.to_string()), toml::Value::Integer)
        }
        DeValue::Float(number) => number
            .as_str()
            .replace('_', "")
            .parse()
            .map_or_else(|_| number.to_string().into(), toml::Value::Float),
        DeValue::Boolean(flag) => toml::Value::Boolean(*flag),
        DeValue::Datetime(moment) => toml::Value::Datetime(*moment),
        DeValue::String(text) => toml::Value::String(text.to_string()),
        DeValue::Array(_) | DeValue::Table(_) => unreachable!("lists and sections are not plain values"),
    }
}

fn line_of(text: &str, offset: usize) -> SourceLocation {
    SourceLocation::Line(
        1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count(),
    )
}

impl ConfigNode {
    /// Applies one `key=value` of the command line. The key's shape decides how the value is read:
    /// text needs no quotes.
    pub(crate) fn set(&mut self, setting: &str, shape: &KeyShape) -> Result<(), KeyProblem> {
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        let key = key.trim();
        let problem = |text: String| KeyProblem { location: SourceLocation::Set, key: key.to_owned(), text };
        if !setting.contains('=') {
            return Err(problem("no value; write key=value, such as run.seed=7".into()));
        }
        let parts = parts(key).ok_or_else(|| {
            problem("no valid key; separate names with dots, such as tasks.source[0].repeat".into())
        })?;
        *self.reach(&parts).map_err(problem)? = written(value.trim(), shape_at(shape, &parts));
        Ok(())
    }

    /// Sets a default for a key that was not written.
    pub(crate) fn default_to(&mut self, key: &str, value: toml::Value) {
        let parts = parts(key).unwrap_or_default();
        if !self.has(key)
            && let Ok(target) = self.reach(&parts)
        {
            *target = ConfigNode { location: SourceLocation::Default, value: ConfigValue::Plain(value) };
        }
    }

    /// Gives a key that was not written the value that another job has there, and says whether it
    /// did.
    pub(crate) fn inherit(&mut self, key: &str, value: &toml::Value) -> bool {
        let parts = parts(key).unwrap_or_default();
        match self.has(key) {
            true => false,
            false => self.reach(&parts).map(|target| *target = ConfigNode::of(value)).is_ok(),
        }
    }

    /// A value that was written nowhere.
    fn of(value: &toml::Value) -> Self {
        let value = match value {
            toml::Value::Table(table) => ConfigValue::Section(
                table.iter().map(|(key, value)| (key.clone(), ConfigNode::of(value))).collect(),
            ),
            toml::Value::Array(entries) => ConfigValue::List(entries.iter().map(ConfigNode::of).collect()),
            plain => ConfigValue::Plain(plain.clone()),
        };
        ConfigNode { location: SourceLocation::Default, value }
    }

    /// Moves what stands under a key to another key, unless something stands there.
    pub(crate) fn rename(&mut self, old: &str, new: &str) {
        if self.has(new) {
            return;
        }
        let Some((section, name)) = old.rsplit_once('.') else { return };
        let Some(ConfigNode { value: ConfigValue::Section(entries), .. }) = self.find_mut(section) else {
            return;
        };
        let Some(index) = entries.iter().position(|(key, _)| key == name) else { return };
        let (_, node) = entries.remove(index);
        if let Ok(target) = self.reach(&parts(new).unwrap_or_default()) {
            *target = node;
        }
    }

    /// The dotted keys of all values that were written, in the file or on the command line.
    pub(crate) fn written(&self) -> BTreeSet<String> {
        let mut keys = BTreeSet::new();
        self.gather_written("", &mut keys);
        keys
    }

    fn gather_written(&self, key: &str, keys: &mut BTreeSet<String>) {
        match &self.value {
            ConfigValue::Section(entries) => {
                for (name, node) in entries {
                    let dot = if key.is_empty() { "" } else { "." };
                    node.gather_written(&format!("{key}{dot}{name}"), keys);
                }
            }
            ConfigValue::List(entries)
                if entries.iter().any(|node| matches!(node.value, ConfigValue::Section(_))) =>
            {
                for (index, node) in entries.iter().enumerate() {
                    node.gather_written(&format!("{key}[{index}]"), keys);
                }
            }
            ConfigValue::List(_) | ConfigValue::Plain(_) if self.location != SourceLocation::Default => {
                keys.insert(key.to_owned());
            }
            ConfigValue::List(_) | ConfigValue::Plain(_) => {}
        }
    }

    /// The plain value of a key, if it was written.
    pub(crate) fn plain(&self, key: &str) -> Option<&toml::Value> {
        match &self.find(key)?.value {
            ConfigValue::Plain(value) => Some(value),
            _ => None,
        }
    }

    /// Where a dotted key was written, or else the nearest section around it.
    pub(crate) fn location_of(&self, key: &str) -> SourceLocation {
        let mut node = self;
        for part in parts(key).unwrap_or_default() {
            match node.child(&part) {
                Some(child) => node = child,
                None => break,
            }
        }
        node.location
    }

    /// Whether a dotted key was written.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// Converts to the TOML crate's type, for the deserializers of the sections.
    pub(crate) fn into_toml(self) -> toml::Value {
        match self.value {
            ConfigValue::Section(entries) => {
                toml::Value::Table(entries.into_iter().map(|(key, node)| (key, node.into_toml())).collect())
            }
            ConfigValue::List(entries) => {
                toml::Value::Array(entries.into_iter().map(ConfigNode::into_toml).collect())
            }
            ConfigValue::Plain(value) => value,
        }
    }

    fn find(&self, key: &str) -> Option<&ConfigNode> {
        parts(key)?.iter().try_fold(self, |node, part| node.child(part))
    }

    fn find_mut(&mut self, key: &str) -> Option<&mut ConfigNode> {
        let parts = parts(key)?;
        self.has(key).then(|| self.reach(&parts).ok()).flatten()
    }

    fn child(&self, part: &KeyPart<'_>) -> Option<&ConfigNode> {
        match (&self.value, part) {
            (ConfigValue::Section(entries), KeyPart::Name(name)) => {
                entries.iter().find(|(key, _)| key == name).map(|(_, node)| node)
            }
            (ConfigValue::List(entries), KeyPart::Index(index)) => entries.get(*index),
            _ => None,
        }
    }

    /// Walks to a key, adding sections on the way; fails if another value is in the way.
    fn reach(&mut self, parts: &[KeyPart<'_>]) -> Result<&mut ConfigNode, String> {
        let Some((first, rest)) = parts.split_first() else { return Ok(self) };
        let next = match (&mut self.value, first) {
            (ConfigValue::Section(entries), KeyPart::Name(name)) => entry(entries, name),
            (ConfigValue::List(entries), KeyPart::Index(index)) => {
                let count = entries.len();
                let missing =
                    || format!("there is no entry {index}; the list has {count} entries, counted from 0");
                entries.get_mut(*index).ok_or_else(missing)?
            }
            (ConfigValue::List(_), KeyPart::Name(_)) => {
                return Err("a list; add an index, such as source[0]".into());
            }
            (_, KeyPart::Index(_)) => return Err("not a list; remove the index [..]".into()),
            (ConfigValue::Plain(_), KeyPart::Name(_)) => return Err("the key above is not a section".into()),
        };
        next.reach(rest)
    }
}

fn entry<'n>(entries: &'n mut Vec<(String, ConfigNode)>, name: &str) -> &'n mut ConfigNode {
    let at = entries.iter().position(|(key, _)| key == name).unwrap_or_else(|| {
        let section = ConfigNode { location: SourceLocation::Set, value: ConfigValue::Section(Vec::new()) };
        entries.push((name.to_owned(), section));
        entries.len() - 1
    });
    &mut entries[at].1
}

/// Splits `a.b[0].c` into its parts.
fn parts(key: &str) -> Option<Vec<KeyPart<'_>>> {
    let mut parts = Vec::new();
    for piece in key.split('.') {
        let (name, mut indices) = piece.split_at(piece.find('[').unwrap_or(piece.len()));
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || !name.chars().all(plain) {
            return None;
        }
        parts.push(KeyPart::Name(name));
        while !indices.is_empty() {
            let (index, rest) = indices.strip_prefix('[')?.split_once(']')?;
            parts.push(KeyPart::Index(index.parse().ok()?));
            indices = rest;
        }
    }
    Some(parts)
}

fn shape_at<'s>(shape: &'s KeyShape, parts: &[KeyPart<'_>]) -> Option<&'s KeyShape> {
    parts.iter().try_fold(shape, |shape, part| match (shape, part) {
        (KeyShape::List(each), KeyPart::Index(_)) => Some(&**each),
        (shape, KeyPart::Name(name)) => shape.at(name),
        _ => None,
    })
}

/// A value of the command line: TOML, except that text needs no quotes.
fn written(text: &str, shape: Option<&KeyShape>) -> ConfigNode {
    let quoted = text.starts_with(['"', '\'']);
    let wants_text = matches!(shape, Some(KeyShape::Text | KeyShape::Path | KeyShape::Choice(_)));
    let parsed = DeValue::parse(text).ok().filter(|_| quoted || !wants_text);
    let value = match parsed {
        Some(value) => node(value.get_ref(), SourceLocation::Set, text).value,
        None => ConfigValue::Plain(toml::Value::String(text.to_owned())),
    };
    let mut node = ConfigNode { location: SourceLocation::Set, value };
    node.mark_set();
    node
}

impl ConfigNode {
    /// Marks everything below as written on the command line, too.
    fn mark_set(&mut self) {
        self.location = SourceLocation::Set;
        match &mut self.value {
            ConfigValue::Section(entries) => entries.iter_mut().for_each(|(_, node)| node.mark_set()),
            ConfigValue::List(entries) => entries.iter_mut().for_each(ConfigNode::mark_set),
            ConfigValue::Plain(_) => {}
        }
    }
}

impl fmt::Display for ConfigValue {
    /// The value in a few words for an error; long text is cut.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigValue::Section(_) => f.write_str("a section"),
            ConfigValue::List(entries) => write!(f, "a list of {}", entries.len()),
            ConfigValue::Plain(toml::Value::String(text)) if text.chars().count() > 60 => {
                write!(f, "{:?}..", text.chars().take(60).collect::<String>())
            }
            ConfigValue::Plain(toml::Value::String(text)) => write!(f, "{text:?}"),
            ConfigValue::Plain(value) => write!(f, "{value}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "top = 1\n\n[a]\nb = \"text\"\nlong = [\n  1,\n  2,\n]\n\n[[a.list]]\nx = 1\n[[a.list]]\nx = 2\ny.z = 3\n";

    #[track_caller]
    fn check_location(key: &str, want: SourceLocation) {
        assert_eq!(parse(FILE).unwrap().location_of(key), want, "{key}");
    }

    #[test]
    fn every_value_knows_its_line() {
        use SourceLocation::Line;
        check_location("top", Line(1));
        check_location("a", Line(3));
        check_location("a.b", Line(4));
        check_location("a.long", Line(5));
        check_location("a.long[1]", Line(7));
        check_location("a.list[0].x", Line(11));
        check_location("a.list[1].x", Line(13));
        check_location("a.list[1].y.z", Line(14));
        // A missing key gets the location of the nearest section around it.
        check_location("a.missing", Line(3));
        check_location("a.list[1].path", Line(12));
        check_location("nowhere", Line(1));
    }

    fn shape() -> KeyShape {
        let entry = KeyShape::Section(vec![("x", KeyShape::Whole { least: 0, most: 9 })]);
        let a = KeyShape::Section(vec![("b", KeyShape::Text), ("list", KeyShape::List(Box::new(entry)))]);
        KeyShape::Section(vec![("top", KeyShape::Number), ("a", a), ("path", KeyShape::Path)])
    }

    #[track_caller]
    fn check_set(setting: &str, want: Result<(&str, &str), &str>) {
        let mut tree = parse(FILE).unwrap();
        match (tree.set(setting, &shape()), want) {
            (Ok(()), Ok((key, value))) => {
                let node = tree.find(key).unwrap();
                assert_eq!(
                    (node.location, node.value.to_string().as_str()),
                    (SourceLocation::Set, value),
                    "{setting}"
                );
            }
            (Err(KeyProblem { location, key, text }), Err(want)) => {
                assert_eq!((location, format!("{key}: {text}")), (SourceLocation::Set, want.to_owned()));
            }
            (got, want) => panic!("{setting}: {got:?}, not {want:?}"),
        }
    }

    #[test]
    fn a_setting_is_read_as_its_key_wants_it() {
        check_set("top=0.5", Ok(("top", "0.5")));
        check_set(" top = 7 ", Ok(("top", "7")));
        check_set("top=word", Ok(("top", "\"word\"")));
        check_set("top=true", Ok(("top", "true")));
        check_set("a.b=true", Ok(("a.b", "\"true\"")));
        check_set("a.b=2026-11-01", Ok(("a.b", "\"2026-11-01\"")));
        check_set("a.b=\"in quotes\"", Ok(("a.b", "\"in quotes\"")));
        check_set("a.b=a=b", Ok(("a.b", "\"a=b\"")));
        check_set("a.b=", Ok(("a.b", "\"\"")));
        check_set("path=../x y", Ok(("path", "\"../x y\"")));
        check_set("a.list[1].x=5", Ok(("a.list[1].x", "5")));
        check_set("a.list=[{x = 1}, {x = 2}, {x = 3}]", Ok(("a.list", "a list of 3")));
        check_set("a.list=[{x = 1}, {x = 2}, {x = 3}]", Ok(("a.list[2].x", "3")));
        check_set("new.section.key=1", Ok(("new.section.key", "1")));
    }

    #[test]
    fn an_impossible_setting_is_reported() {
        check_set("top", Err("top: no value; write key=value, such as run.seed=7"));
        let no_key = "no valid key; separate names with dots, such as tasks.source[0].repeat";
        check_set("a..b=1", Err(&format!("a..b: {no_key}")));
        check_set("a[x]=1", Err(&format!("a[x]: {no_key}")));
        check_set("=1", Err(&format!(": {no_key}")));
        check_set(
            "a.list[2].x=1",
            Err("a.list[2].x: there is no entry 2; the list has 2 entries, counted from 0"),
        );
        check_set("a.list.x=1", Err("a.list.x: a list; add an index, such as source[0]"));
        check_set("top.x=1", Err("top.x: the key above is not a section"));
        check_set("top[0]=1", Err("top[0]: not a list; remove the index [..]"));
    }

    #[test]
    fn a_default_gives_way_to_what_was_written() {
        let mut tree = parse("[a]\nb = 1").unwrap();
        tree.default_to("a.b", 7.into());
        tree.default_to("a.c", 8.into());
        tree.default_to("d.e", 9.into());
        let value = |key: &str| tree.plain(key).and_then(toml::Value::as_integer);
        assert_eq!((value("a.b"), value("a.c"), value("d.e"), value("d")), (Some(1), Some(8), Some(9), None));
        assert_eq!(
            (tree.location_of("a.b"), tree.location_of("a.c")),
            (SourceLocation::Line(2), SourceLocation::Default)
        );
    }

    #[test]
    fn all_syntax_errors_come_with_their_lines() {
        let problems = parse("a = \nb = 1\nc == 2\n").unwrap_err();
        let lines: Vec<_> = problems.iter().map(|problem| problem.location).collect();
        assert!(
            lines.contains(&SourceLocation::Line(1)) && lines.contains(&SourceLocation::Line(3)),
            "{problems:?}"
        );
        assert!(problems.iter().all(|problem| problem.text.starts_with("not valid TOML: ")), "{problems:?}");
    }

    #[test]
    fn numbers_beyond_toml_are_kept_for_the_error() {
        let tree = parse("big = 99999999999999999999\nhex = 0xff\nsplit = 1_000\nfloat = 1_0.5").unwrap();
        let value = |key: &str| tree.child(&KeyPart::Name(key)).unwrap().value.to_string();
        assert_eq!(value("big"), "\"99999999999999999999\"");
        assert_eq!(
            (value("hex"), value("split"), value("float")),
            ("255".into(), "1000".into(), "10.5".into())
        );
    }
}
