//! The shape of an action: its name and fields, defined once for the parser, the encoder and the
//! instructions.

use serde_json::{Map, Value};

/// One action of a grammar.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ActionShape {
    pub name: &'static str,
    pub fields: &'static [ActionField],
    /// What it does, for the instructions.
    pub description: &'static str,
}

/// One field of an action.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ActionField {
    pub name: &'static str,
    pub kind: FieldKind,
}

/// What a field may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FieldKind {
    Text,
    /// A string that may be left out.
    TextOrNone,
    /// A string that begins with http:// or https://, which is checked when the action is built.
    Address,
    /// A whole number within these inclusive bounds.
    Whole {
        from: u64,
        to: u64,
    },
    /// A whole number that may be left out.
    WholeOr {
        from: u64,
        to: u64,
        default: u64,
    },
    /// A number within these inclusive bounds.
    Number {
        from: f64,
        to: f64,
    },
    /// Any number that may be left out.
    NumberOr {
        from: f64,
        to: f64,
        default: f64,
    },
    /// Two numbers, x and y.
    Pair,
    /// Two numbers that may be left out.
    PairOrNone,
    /// One of these choices.
    Choice(&'static [&'static str]),
    /// One of these choices; the first if left out.
    ChoiceOr(&'static [&'static str]),
    /// true or false; false if left out.
    Flag,
    /// A list of 1 to `most` names of keys.
    Keys {
        most: usize,
    },
    /// A list of up to `most` names of keys, which may be left out.
    KeysOrNone {
        most: usize,
    },
    /// A list of 1 to `most` names of files.
    Names {
        most: usize,
    },
    /// Any value, which is not checked.
    Anything,
}

/// A field with this name and kind.
pub(super) const fn field(name: &'static str, kind: FieldKind) -> ActionField {
    ActionField { name, kind }
}

/// Checked fields of an action. Reading a field that the shape lacks is a bug.
#[derive(Debug)]
pub(crate) struct ActionFields(Map<String, Value>);

/// Parses a call: an object in which `name_key` names one of the shapes, beside the fields of that
/// shape. `path` is its location, for errors.
pub(super) fn read_call(
    given: &Map<String, Value>,
    (path, name_key): (&str, &str),
    shapes: &[ActionShape],
    parsed: &mut ParsedCall,
) -> Result<(&'static str, ActionFields), String> {
    let called = given
        .get(name_key)
        .and_then(Value::as_str)
        .ok_or_else(|| format!("{path}.{name_key} is missing; name the action"))?;
    let shape = shapes.iter().find(|shape| shape.name == called).ok_or_else(|| {
        let names: Vec<&str> = shapes.iter().map(|shape| shape.name).collect();
        format!("there is no action {:?}; use {}", cut(called), names.join(", "))
    })?;
    shape.name.clone_into(&mut parsed.name);
    let args = given.iter().filter(|(key, _)| *key != name_key);
    let args: Map<String, Value> = args.map(|(key, value)| (key.clone(), value.clone())).collect();
    parsed.args_json = Some(Value::Object(args).to_string());
    Ok((shape.name, shape.read(given, name_key)?))
}

/// One line for each action, for instructions.
pub(super) fn listed(shapes: &[ActionShape]) -> String {
    let mut text = String::new();
    for shape in shapes {
        text.push_str(&format!("- {}: {}", shape.name, shape.description));
        for field in shape.fields {
            text.push_str(&format!("; {} is {}", field.name, field.kind.expectation()));
        }
        text.push('\n');
    }
    text
}

impl ActionShape {
    /// Checks that `given` has exactly the fields of this shape beside the action's name, and adds
    /// defaults.
    pub(crate) fn read(&self, given: &Map<String, Value>, name_key: &str) -> Result<ActionFields, String> {
        let known = |key: &str| key == name_key || self.fields.iter().any(|field| field.name == key);
        if let Some(stranger) = given.keys().find(|key| !known(key)) {
            return Err(format!("{} has no field {stranger:?}; it takes {}", self.name, self.field_names()));
        }
        let mut fields = Map::new();
        for field in self.fields {
            let value = field.read(given.get(field.name)).map_err(|why| format!("{}.{why}", self.name))?;
            fields.insert(field.name.to_owned(), value);
        }
        Ok(ActionFields(fields))
    }

    fn field_names(&self) -> String {
        match self.fields {
            [] => "none".to_owned(),
            fields => fields.iter().map(|field| field.name).collect::<Vec<_>>().join(", "),
        }
    }
}

impl ActionField {
    fn read(&self, given: Option<&Value>) -> Result<Value, String> {
        let name = self.name;
        match (self.kind, given) {
            (FieldKind::WholeOr { default, .. }, None) => Ok(default.into()),
            (FieldKind::NumberOr { default, .. }, None) => Ok(default.into()),
            (FieldKind::ChoiceOr(choices), None) => Ok(choices.first().copied().into()),
            (FieldKind::Flag, None) => Ok(false.into()),
            (
                FieldKind::PairOrNone | FieldKind::TextOrNone | FieldKind::KeysOrNone { .. },
                None | Some(Value::Null),
            )
            | (FieldKind::Anything, None) => Ok(Value::Null),
            (_, None) => Err(format!("{name} is missing")),
            (FieldKind::Text | FieldKind::TextOrNone | FieldKind::Address, Some(Value::String(text))) => {
                Ok(text.as_str().into())
            }
            (FieldKind::Flag, Some(Value::Bool(flag))) => Ok((*flag).into()),
            (FieldKind::Choice(choices) | FieldKind::ChoiceOr(choices), Some(Value::String(choice)))
                if choices.contains(&choice.as_str()) =>
            {
                Ok(choice.as_str().into())
            }
            (
                FieldKind::Number { from, to } | FieldKind::NumberOr { from, to, .. },
                Some(Value::Number(number)),
            ) if number.as_f64().is_some_and(|number| (from..=to).contains(&number)) => {
                Ok(number.clone().into())
            }
            (FieldKind::Pair | FieldKind::PairOrNone, Some(Value::Array(pair)))
                if pair.len() == 2 && pair.iter().all(Value::is_number) =>
            {
                Ok(pair.clone().into())
            }
            (FieldKind::Keys { most } | FieldKind::Names { most }, Some(Value::Array(keys)))
                if (1..=most).contains(&keys.len()) && keys.iter().all(Value::is_string) =>
            {
                Ok(keys.clone().into())
            }
            (FieldKind::KeysOrNone { most }, Some(Value::Array(keys)))
                if keys.len() <= most && keys.iter().all(Value::is_string) =>
            {
                Ok(keys.clone().into())
            }
            (FieldKind::Anything, Some(value)) => Ok(value.clone()),
            (FieldKind::Whole { from, to } | FieldKind::WholeOr { from, to, .. }, Some(value)) => {
                match value.as_u64() {
                    Some(number) if (from..=to).contains(&number) => Ok(number.into()),
                    _ => Err(format!("{name} is {}; use a whole number from {from} to {to}", shorten(value))),
                }
            }
            (kind, Some(value)) => Err(format!("{name} is {}; use {}", shorten(value), kind.expectation())),
        }
    }
}

impl FieldKind {
    /// A description of the legal values.
    pub(crate) fn expectation(self) -> String {
        match self {
            FieldKind::Text | FieldKind::Address => "a string".into(),
            FieldKind::TextOrNone => "a string (may be left out)".into(),
            FieldKind::Whole { from, to } => format!("a whole number from {from} to {to}"),
            FieldKind::WholeOr { from, to, default } => {
                format!("a whole number from {from} to {to} (left out: {default})")
            }
            FieldKind::Number { from, to } => format!("a number from {from} to {to}"),
            FieldKind::NumberOr { from, to, default } => {
                format!("a number from {from} to {to} (left out: {default})")
            }
            FieldKind::Pair => "a list of two numbers, x and y".into(),
            FieldKind::PairOrNone => "a list of two numbers, x and y (may be left out)".into(),
            FieldKind::Choice(choices) => format!("one of {}", choices.join(", ")),
            FieldKind::ChoiceOr(choices) => {
                let first = choices.first().copied().unwrap_or_default();
                format!("one of {} (left out: {first})", choices.join(", "))
            }
            FieldKind::Flag => "true or false (left out: false)".into(),
            FieldKind::Keys { most } => format!("a list of 1 to {most} names of keys"),
            FieldKind::KeysOrNone { most } => {
                format!("a list of up to {most} names of keys (may be left out)")
            }
            FieldKind::Names { most } => format!("a list of 1 to {most} names of files"),
            FieldKind::Anything => "anything".into(),
        }
    }
}

impl ActionFields {
    pub(crate) fn text(&self, name: &str) -> String {
        self.0.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    /// A whole number; the shape has checked that it fits.
    pub(crate) fn whole<T: TryFrom<u64> + Default>(&self, name: &str) -> T {
        let number = self.0.get(name).and_then(Value::as_u64).unwrap_or_default();
        T::try_from(number).unwrap_or_default()
    }

    pub(crate) fn number(&self, name: &str) -> f64 {
        self.0.get(name).and_then(Value::as_f64).unwrap_or_default()
    }

    /// Two numbers; `None` if left out.
    pub(crate) fn pair(&self, name: &str) -> Option<(f64, f64)> {
        let pair = self.0.get(name)?.as_array()?;
        Some((pair.first()?.as_f64()?, pair.get(1)?.as_f64()?))
    }

    pub(crate) fn texts(&self, name: &str) -> Vec<String> {
        let list = self.0.get(name).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// The value of a field without a check.
    pub(crate) fn value(&self, name: &str) -> &Value {
        self.0.get(name).unwrap_or(&Value::Null)
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or_default()
    }
}

/// A value in an error, shortened.
fn shorten(value: &Value) -> String {
    value.to_string().chars().take(60).collect()
}

/// The name and arguments of a reply's action, as far as they could be parsed.
#[derive(Debug, Default)]
pub(super) struct ParsedCall {
    pub name: String,
    /// Its fields as written, a JSON object.
    pub args_json: Option<String>,
}

/// Shortens a text for an error.
pub(super) fn cut(text: &str) -> String {
    text.chars().take(60).collect()
}
