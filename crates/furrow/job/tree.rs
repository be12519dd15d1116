//! A job file as a tree in which every value knows where it was written, and `--set` on top of it.

use std::fmt;

use toml::de::{DeTable, DeValue};

use super::shape::Shape;

/// A value and where it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    pub place: Place,
    pub value: Value,
}

/// Where something was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the file, on this line, counted from 1.
    Line(usize),
    /// On the command line.
    Set,
    /// Nowhere.
    Default,
}

/// What was written.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Section(Vec<(String, Node)>),
    List(Vec<Node>),
    Plain(toml::Value),
}

/// Something wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// Dotted key it is about; empty when the file as a whole is.
    pub key: String,
    /// What, and what would be right.
    pub text: String,
}

/// One part of a dotted key.
#[derive(Debug, PartialEq, Eq)]
enum Part<'k> {
    Name(&'k str),
    Index(usize),
}

/// Reads the text of a file; all its syntax errors come at once.
pub fn parse(text: &str) -> Result<Node, Vec<Problem>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(section(table.get_ref(), Place::Line(1), text));
    }
    let problem = |error: toml::de::Error| Problem {
        place: error.span().map_or(Place::Default, |span| line_of(text, span.start)),
        key: String::new(),
        text: format!("this is no TOML: {}", error.message()),
    };
    Err(errors.into_iter().map(problem).collect())
}

fn section(table: &DeTable<'_>, place: Place, text: &str) -> Node {
    let entry = |(key, value): (&toml::Spanned<toml::de::DeString<'_>>, &toml::Spanned<DeValue<'_>>)| {
        let place = line_of(text, key.span().start);
        (key.get_ref().to_string(), node(value.get_ref(), place, text))
    };
    Node { place, value: Value::Section(table.iter().map(entry).collect()) }
}

fn node(value: &DeValue<'_>, place: Place, text: &str) -> Node {
    match value {
        DeValue::Table(table) => section(table, place, text),
        DeValue::Array(list) => {
            let entry = |each: &toml::Spanned<DeValue<'_>>| {
                node(each.get_ref(), line_of(text, each.span().start), text)
            };
            Node { place, value: Value::List(list.iter().map(entry).collect()) }
        }
        plain => Node { place, value: Value::Plain(plain_value(plain)) },
    }
}

/// A number that TOML itself cannot hold stays the text it was; the check of its shape then names it.
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
        DeValue::Array(_) | DeValue::Table(_) => unreachable!("lists and sections are no plain values"),
    }
}

fn line_of(text: &str, offset: usize) -> Place {
    Place::Line(1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count())
}

impl Node {
    /// Puts one `key=value` of the command line on top. What stands behind the key decides how the value is read: text needs no quotes.
    pub fn set(&mut self, setting: &str, shape: &Shape) -> Result<(), Problem> {
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        let key = key.trim();
        let problem = |text: String| Problem { place: Place::Set, key: key.to_owned(), text };
        if !setting.contains('=') {
            return Err(problem("no value; write key=value, such as run.seed=7".into()));
        }
        let parts = parts(key).ok_or_else(|| {
            problem("no key; write names with dots between, such as tasks.source[0].repeat".into())
        })?;
        *self.reach(&parts).map_err(problem)? = written(value.trim(), shape_at(shape, &parts));
        Ok(())
    }

    /// Gives a key that was not written a value, as if it were its default.
    pub fn default_to(&mut self, key: &str, value: toml::Value) {
        let parts = parts(key).unwrap_or_default();
        if !self.has(key)
            && let Ok(target) = self.reach(&parts)
        {
            *target = Node { place: Place::Default, value: Value::Plain(value) };
        }
    }

    /// The plain value of a key, if one was written.
    pub fn plain(&self, key: &str) -> Option<&toml::Value> {
        match &self.find(key)?.value {
            Value::Plain(value) => Some(value),
            _ => None,
        }
    }

    /// Where a dotted key was written, or else the nearest thing around it.
    pub fn place_of(&self, key: &str) -> Place {
        let mut node = self;
        for part in parts(key).unwrap_or_default() {
            match node.child(&part) {
                Some(child) => node = child,
                None => break,
            }
        }
        node.place
    }

    /// Whether a dotted key was written at all.
    pub fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// As the type of the TOML crate, for the readers of the sections.
    pub fn into_toml(self) -> toml::Value {
        match self.value {
            Value::Section(entries) => {
                toml::Value::Table(entries.into_iter().map(|(key, node)| (key, node.into_toml())).collect())
            }
            Value::List(entries) => toml::Value::Array(entries.into_iter().map(Node::into_toml).collect()),
            Value::Plain(value) => value,
        }
    }

    fn find(&self, key: &str) -> Option<&Node> {
        parts(key)?.iter().try_fold(self, |node, part| node.child(part))
    }

    fn child(&self, part: &Part<'_>) -> Option<&Node> {
        match (&self.value, part) {
            (Value::Section(entries), Part::Name(name)) => {
                entries.iter().find(|(key, _)| key == name).map(|(_, node)| node)
            }
            (Value::List(entries), Part::Index(index)) => entries.get(*index),
            _ => None,
        }
    }

    /// Walks to a key, making sections on the way. What is in the way is said.
    fn reach(&mut self, parts: &[Part<'_>]) -> Result<&mut Node, String> {
        let Some((first, rest)) = parts.split_first() else { return Ok(self) };
        let next = match (&mut self.value, first) {
            (Value::Section(entries), Part::Name(name)) => entry(entries, name),
            (Value::List(entries), Part::Index(index)) => {
                let count = entries.len();
                let missing = || format!("there is no entry {index}; the list has {count}, counted from 0");
                entries.get_mut(*index).ok_or_else(missing)?
            }
            (Value::List(_), Part::Name(_)) => return Err("a list; name the entry, such as source[0]".into()),
            (_, Part::Index(_)) => return Err("no list, so it has no entry [..]".into()),
            (Value::Plain(_), Part::Name(_)) => return Err("it stands below a plain value".into()),
        };
        next.reach(rest)
    }
}

fn entry<'n>(entries: &'n mut Vec<(String, Node)>, name: &str) -> &'n mut Node {
    let at = entries.iter().position(|(key, _)| key == name).unwrap_or_else(|| {
        let section = Node { place: Place::Set, value: Value::Section(Vec::new()) };
        entries.push((name.to_owned(), section));
        entries.len() - 1
    });
    &mut entries[at].1
}

/// `a.b[0].c` in its parts.
fn parts(key: &str) -> Option<Vec<Part<'_>>> {
    let mut parts = Vec::new();
    for piece in key.split('.') {
        let (name, mut indices) = piece.split_at(piece.find('[').unwrap_or(piece.len()));
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || !name.chars().all(plain) {
            return None;
        }
        parts.push(Part::Name(name));
        while !indices.is_empty() {
            let (index, rest) = indices.strip_prefix('[')?.split_once(']')?;
            parts.push(Part::Index(index.parse().ok()?));
            indices = rest;
        }
    }
    Some(parts)
}

fn shape_at<'s>(shape: &'s Shape, parts: &[Part<'_>]) -> Option<&'s Shape> {
    parts.iter().try_fold(shape, |shape, part| match (shape, part) {
        (Shape::List(each), Part::Index(_)) => Some(&**each),
        (shape, Part::Name(name)) => shape.at(name),
        _ => None,
    })
}

/// A value of the command line: TOML, except that text may stand without quotes.
fn written(text: &str, shape: Option<&Shape>) -> Node {
    let quoted = text.starts_with(['"', '\'']);
    let wants_text = matches!(shape, Some(Shape::Text | Shape::Path | Shape::Choice(_)));
    let parsed = DeValue::parse(text).ok().filter(|_| quoted || !wants_text);
    let value = match parsed {
        Some(value) => node(value.get_ref(), Place::Set, text).value,
        None => Value::Plain(toml::Value::String(text.to_owned())),
    };
    let mut node = Node { place: Place::Set, value };
    node.all_set();
    node
}

impl Node {
    /// Everything below was written on the command line too.
    fn all_set(&mut self) {
        self.place = Place::Set;
        match &mut self.value {
            Value::Section(entries) => entries.iter_mut().for_each(|(_, node)| node.all_set()),
            Value::List(entries) => entries.iter_mut().for_each(Node::all_set),
            Value::Plain(_) => {}
        }
    }
}

impl fmt::Display for Value {
    /// What was written, in a few words for an error. A long text is cut.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Section(_) => f.write_str("a section"),
            Value::List(entries) => write!(f, "a list of {}", entries.len()),
            Value::Plain(toml::Value::String(text)) if text.chars().count() > 60 => {
                write!(f, "{:?}..", text.chars().take(60).collect::<String>())
            }
            Value::Plain(toml::Value::String(text)) => write!(f, "{text:?}"),
            Value::Plain(value) => write!(f, "{value}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "top = 1\n\n[a]\nb = \"text\"\nlong = [\n  1,\n  2,\n]\n\n[[a.list]]\nx = 1\n[[a.list]]\nx = 2\ny.z = 3\n";

    #[track_caller]
    fn check_place(key: &str, want: Place) {
        assert_eq!(parse(FILE).unwrap().place_of(key), want, "{key}");
    }

    #[test]
    fn every_value_knows_its_line() {
        use Place::Line;
        check_place("top", Line(1));
        check_place("a", Line(3));
        check_place("a.b", Line(4));
        check_place("a.long", Line(5));
        check_place("a.long[1]", Line(7));
        check_place("a.list[0].x", Line(11));
        check_place("a.list[1].x", Line(13));
        check_place("a.list[1].y.z", Line(14));
        // What is missing is shown at the nearest thing around it.
        check_place("a.missing", Line(3));
        check_place("a.list[1].path", Line(12));
        check_place("nowhere", Line(1));
    }

    fn shape() -> Shape {
        let entry = Shape::Section(vec![("x", Shape::Whole { least: 0, most: 9 })]);
        let a = Shape::Section(vec![("b", Shape::Text), ("list", Shape::List(Box::new(entry)))]);
        Shape::Section(vec![("top", Shape::Number), ("a", a), ("path", Shape::Path)])
    }

    #[track_caller]
    fn check_set(setting: &str, want: Result<(&str, &str), &str>) {
        let mut tree = parse(FILE).unwrap();
        match (tree.set(setting, &shape()), want) {
            (Ok(()), Ok((key, value))) => {
                let node = tree.find(key).unwrap();
                assert_eq!((node.place, node.value.to_string().as_str()), (Place::Set, value), "{setting}");
            }
            (Err(Problem { place, key, text }), Err(want)) => {
                assert_eq!((place, format!("{key}: {text}")), (Place::Set, want.to_owned()));
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
    fn a_setting_that_cannot_be_is_said() {
        check_set("top", Err("top: no value; write key=value, such as run.seed=7"));
        let no_key = "no key; write names with dots between, such as tasks.source[0].repeat";
        check_set("a..b=1", Err(&format!("a..b: {no_key}")));
        check_set("a[x]=1", Err(&format!("a[x]: {no_key}")));
        check_set("=1", Err(&format!(": {no_key}")));
        check_set("a.list[2].x=1", Err("a.list[2].x: there is no entry 2; the list has 2, counted from 0"));
        check_set("a.list.x=1", Err("a.list.x: a list; name the entry, such as source[0]"));
        check_set("top.x=1", Err("top.x: it stands below a plain value"));
        check_set("top[0]=1", Err("top[0]: no list, so it has no entry [..]"));
    }

    #[test]
    fn a_default_gives_way_to_what_was_written() {
        let mut tree = parse("[a]\nb = 1").unwrap();
        tree.default_to("a.b", 7.into());
        tree.default_to("a.c", 8.into());
        tree.default_to("d.e", 9.into());
        let value = |key: &str| tree.plain(key).and_then(toml::Value::as_integer);
        assert_eq!((value("a.b"), value("a.c"), value("d.e"), value("d")), (Some(1), Some(8), Some(9), None));
        assert_eq!((tree.place_of("a.b"), tree.place_of("a.c")), (Place::Line(2), Place::Default));
    }

    #[test]
    fn all_syntax_errors_come_with_their_lines() {
        let problems = parse("a = \nb = 1\nc == 2\n").unwrap_err();
        let lines: Vec<_> = problems.iter().map(|problem| problem.place).collect();
        assert!(lines.contains(&Place::Line(1)) && lines.contains(&Place::Line(3)), "{problems:?}");
        assert!(problems.iter().all(|problem| problem.text.starts_with("this is no TOML: ")), "{problems:?}");
    }

    #[test]
    fn numbers_beyond_toml_are_kept_for_the_error() {
        let tree = parse("big = 99999999999999999999\nhex = 0xff\nsplit = 1_000\nfloat = 1_0.5").unwrap();
        let value = |key: &str| tree.child(&Part::Name(key)).unwrap().value.to_string();
        assert_eq!(value("big"), "\"99999999999999999999\"");
        assert_eq!(
            (value("hex"), value("split"), value("float")),
            ("255".into(), "1000".into(), "10.5".into())
        );
    }
}
