//! The shape of an action: its name and fields, told once and used to read, to write and to instruct.

use serde_json::{Map, Value};

/// One action of a grammar.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub name: &'static str,
    pub fields: &'static [Field],
    /// What it does, for the instructions.
    pub says: &'static str,
}

/// One field of an action.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    pub name: &'static str,
    pub kind: FieldKind,
}

/// What a field may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FieldKind {
    /// Any string.
    Text,
    /// A string that begins with http:// or https://; the action's own reading says so where it does not.
    Address,
    /// A whole number, both ends included.
    Whole { from: u64, to: u64 },
    /// A whole number that may be left out.
    WholeOr { from: u64, to: u64, default: u64 },
    /// One of some words.
    Word(&'static [&'static str]),
    /// true or false, false when left out.
    Flag,
}

/// A field called `name` of the given kind.
pub(super) const fn field(name: &'static str, kind: FieldKind) -> Field {
    Field { name, kind }
}

/// Checked fields of an action; reading one the shape does not have is a mistake of ours.
#[derive(Debug)]
pub(crate) struct Fields(Map<String, Value>);

impl Shape {
    /// Checks that `given` has exactly this shape and fills in what may be left out.
    pub fn read(&self, given: &Map<String, Value>) -> Result<Fields, String> {
        let known = |key: &str| key == "action" || self.fields.iter().any(|field| field.name == key);
        if let Some(stranger) = given.keys().find(|key| !known(key)) {
            return Err(format!("{} has no field {stranger:?}; it takes {}", self.name, self.field_names()));
        }
        let mut fields = Map::new();
        for field in self.fields {
            let value = field.read(given.get(field.name)).map_err(|why| format!("{}.{why}", self.name))?;
            fields.insert(field.name.to_owned(), value);
        }
        Ok(Fields(fields))
    }

    fn field_names(&self) -> String {
        match self.fields {
            [] => "none".to_owned(),
            fields => fields.iter().map(|field| field.name).collect::<Vec<_>>().join(", "),
        }
    }
}

impl Field {
    fn read(&self, given: Option<&Value>) -> Result<Value, String> {
        let name = self.name;
        match (self.kind, given) {
            (FieldKind::WholeOr { default, .. }, None) => Ok(default.into()),
            (FieldKind::Flag, None) => Ok(false.into()),
            (_, None) => Err(format!("{name} is missing")),
            (FieldKind::Text | FieldKind::Address, Some(Value::String(text))) => Ok(text.as_str().into()),
            (FieldKind::Flag, Some(Value::Bool(flag))) => Ok((*flag).into()),
            (FieldKind::Word(words), Some(Value::String(word))) if words.contains(&word.as_str()) => {
                Ok(word.as_str().into())
            }
            (FieldKind::Whole { from, to } | FieldKind::WholeOr { from, to, .. }, Some(value)) => {
                match value.as_u64() {
                    Some(number) if (from..=to).contains(&number) => Ok(number.into()),
                    _ => Err(format!("{name} is {}; use a whole number from {from} to {to}", shown(value))),
                }
            }
            (kind, Some(value)) => Err(format!("{name} is {}; use {}", shown(value), kind.right())),
        }
    }
}

impl FieldKind {
    /// What would be right, in words.
    pub fn right(self) -> String {
        match self {
            FieldKind::Text | FieldKind::Address => "a string".into(),
            FieldKind::Whole { from, to } => format!("a whole number from {from} to {to}"),
            FieldKind::WholeOr { from, to, default } => {
                format!("a whole number from {from} to {to} (left out: {default})")
            }
            FieldKind::Word(words) => format!("one of {}", words.join(", ")),
            FieldKind::Flag => "true or false (left out: false)".into(),
        }
    }
}

impl Fields {
    /// A string field.
    pub fn text(&self, name: &str) -> String {
        self.0.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    /// A whole number; the shape has checked that it fits.
    pub fn whole<T: TryFrom<u64> + Default>(&self, name: &str) -> T {
        let number = self.0.get(name).and_then(Value::as_u64).unwrap_or_default();
        T::try_from(number).unwrap_or_default()
    }

    /// A flag.
    pub fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or_default()
    }
}

/// A value as it stood there, cut short.
fn shown(value: &Value) -> String {
    value.to_string().chars().take(60).collect()
}
