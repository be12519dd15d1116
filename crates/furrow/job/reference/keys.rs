//! Gathers every key of a job with its type, default, limits and meaning.

use serde::Deserialize as _;
use toml::{Table, Value};

use super::comments::StructComments;
use super::limits;
use crate::identity;
use crate::job::JobFile;
use crate::job::shape::KeyShape;

/// One of each section that a job has none of by default.
const ONE_ENTRY_EACH: &str = "[[tasks.source]]\n[[eval.source]]\n[tasks.hooks.NAME]\n[env.secrets.NAME]\n";

/// All keys of a job by their sections.
#[derive(Debug)]
pub(super) struct JobKeys {
    pub sections: Vec<KeySection>,
}

#[derive(Debug)]
pub(super) struct KeySection {
    /// Its dotted name, such as `policy.engine` or `tasks.source[]`.
    pub name: String,
    pub comment: String,
    /// The keys that are not sections themselves.
    pub keys: Vec<JobKey>,
}

#[derive(Debug)]
pub(super) struct JobKey {
    /// Its dotted name, such as `tasks.source[].path`.
    pub name: String,
    pub shape: KeyShape,
    /// What the file's type has without the key; `None`: nothing.
    pub default: Option<Value>,
    /// The key whose value is the default.
    pub inherits: Option<&'static str>,
    /// What the checks allow, as they word it.
    pub limits: Vec<String>,
    pub comment: String,
    /// Whether a resumed run keeps it.
    pub is_fixed: bool,
}

impl JobKeys {
    pub(super) fn gather() -> Self {
        let comments = StructComments::read(super::root());
        let file: Table = ONE_ENTRY_EACH.parse().unwrap();
        let defaults = Table::try_from(JobFile::deserialize(file).unwrap()).unwrap();
        let mut keys = Self { sections: Vec::new() };
        let KeyShape::Section(sections) = KeyShape::of::<JobFile>() else { panic!("a job has sections") };
        keys.add_section("", "JobFile", String::new(), &sections, &defaults, &comments);
        // The file's own level has sections alone.
        let top = keys.sections.remove(0);
        assert!(top.keys.is_empty(), "{top:?}");
        keys
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &JobKey> {
        self.sections.iter().flat_map(|section| &section.keys)
    }

    pub(super) fn key(&self, name: &str) -> &JobKey {
        self.keys().find(|key| key.name == name).unwrap_or_else(|| panic!("{name} is no key"))
    }

    fn add_section(
        &mut self,
        name: &str,
        type_name: &str,
        comment: String,
        shapes: &[(&'static str, KeyShape)],
        defaults: &Table,
        comments: &StructComments,
    ) {
        let fields = comments.of(type_name);
        let names: Vec<&str> = fields.iter().map(|field| &*field.name).collect();
        let known: Vec<&str> = shapes.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, known, "{type_name}: the source's fields are not the keys");
        let at = self.sections.len();
        self.sections.push(KeySection { name: name.to_owned(), comment, keys: Vec::new() });
        for ((key, shape), field) in shapes.iter().zip(fields) {
            let dotted = if name.is_empty() { (*key).to_owned() } else { format!("{name}.{key}") };
            let default = defaults.get(*key);
            let comment = field.comment.clone();
            match (shape, default) {
                (KeyShape::Section(inner), Some(Value::Table(table))) => {
                    self.add_section(&dotted, &field.type_name, comment, inner, table, comments);
                }
                (KeyShape::List(each), Some(Value::Array(entries))) if is_section(each) => {
                    let (KeyShape::Section(inner), Some(Value::Table(table))) = (&**each, entries.first())
                    else {
                        panic!("{dotted} has no entry in {ONE_ENTRY_EACH:?}");
                    };
                    let listed = format!("{dotted}[]");
                    self.add_section(&listed, &field.type_name, comment, inner, table, comments);
                }
                (KeyShape::Map(each), Some(Value::Table(entries))) if is_section(each) => {
                    let (KeyShape::Section(inner), Some((own, Value::Table(table)))) =
                        (&**each, entries.iter().next())
                    else {
                        panic!("{dotted} has no entry in {ONE_ENTRY_EACH:?}");
                    };
                    let named = format!("{dotted}.{own}");
                    self.add_section(&named, &field.type_name, comment, inner, table, comments);
                }
                _ => {
                    let key = JobKey {
                        limits: limits::of(&dotted, shape),
                        inherits: inherited(&dotted),
                        is_fixed: is_fixed(&dotted),
                        name: dotted,
                        shape: shape.clone(),
                        default: default.cloned(),
                        comment,
                    };
                    self.sections[at].keys.push(key);
                }
            }
        }
    }
}

impl JobKey {
    /// Whether any number is allowed.
    pub(super) fn is_unlimited(&self) -> bool {
        matches!(self.shape, KeyShape::Whole { .. } | KeyShape::Number) && self.limits.is_empty()
    }

    /// The least and the most whole number, where one sentence states both.
    pub(super) fn range(&self) -> Option<(i64, i64)> {
        let [limit] = &self.limits[..] else { return None };
        let (least, most) = limit.split_once(" to ")?;
        let most = most.split(' ').next()?;
        matches!(self.shape, KeyShape::Whole { .. }).then_some((least.parse().ok()?, most.parse().ok()?))
    }

    /// The unit that its name says: `None` for counts and texts.
    pub(super) fn unit(&self) -> Option<&'static str> {
        let last = self.name.rsplit('.').next().unwrap_or_default();
        let is_number = matches!(self.shape, KeyShape::Whole { .. } | KeyShape::Number);
        if is_number && self.name.starts_with("policy.constrain.") {
            return Some("tokens");
        }
        let units = [
            ("usd", "US dollars"),
            ("millis", "milliseconds"),
            ("bytes", "bytes"),
            ("tokens", "tokens"),
            ("prefill_chunk", "tokens"),
            ("versions", "versions"),
        ];
        units.into_iter().find(|(part, _)| is_number && last.contains(part)).map(|(_, unit)| unit)
    }
}

fn is_section(shape: &KeyShape) -> bool {
    matches!(shape, KeyShape::Section(_))
}

/// What `identity::KEYS` names, or something above the key.
fn is_fixed(key: &str) -> bool {
    let bare = key.replace("[]", "");
    identity::KEYS
        .iter()
        .any(|fixed| bare.strip_prefix(fixed).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

/// The key that gives this one its default, found by a job that sets it.
fn inherited(key: &str) -> Option<&'static str> {
    // Far from every default.
    const SEED: i64 = 7_654_321;
    let mut tree = crate::job::tree::parse(&format!("run.seed = {SEED}")).unwrap();
    crate::job::inherit(&mut tree, "");
    let found = tree.plain(key).and_then(Value::as_integer) == Some(SEED);
    (found && key != "run.seed").then_some("run.seed")
}
