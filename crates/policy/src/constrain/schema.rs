//! JSON schemas as layouts: which schemas are supported, and the nodes of the automaton that they
//! become.
//!
//! A reply is written without white space, with the properties of an object in the order of the
//! schema. A key that is not supported is refused by its name, because a client that sets a pattern
//! must not get a text that ignores it. The automaton has no cycles, so lists and free objects have
//! a longest form.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::automaton::NodeId;
use super::bounds::{NumberBounds, TextBounds};
use super::error::ConstraintError;
use super::layout::AutomatonBuilder;
use super::lexicon::TokenLexicon;

/// A supported schema; only `check` and `any_object` create one.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema(pub(super) ValueShape);

/// A schema that is not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {why}")]
pub struct SchemaError {
    /// The path from the root `$`.
    pub path: String,
    /// The problem and what to use instead.
    pub why: String,
}

/// The form of a value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ValueShape {
    Object(Vec<SchemaProperty>),
    /// An object with any member names.
    Map {
        value: Box<ValueShape>,
        members_max: u32,
    },
    List {
        items: Box<ValueShape>,
        from: u32,
        to: u32,
    },
    Text(TextBounds),
    Whole {
        from: i64,
        to: i64,
    },
    Number,
    BoundedNumber(NumberBounds),
    /// One of these JSON literals.
    Literals(Vec<String>),
    Either(Vec<ValueShape>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct SchemaProperty {
    /// Its name, as JSON.
    name: String,
    shape: ValueShape,
    is_required: bool,
}

/// Keys that bound a number.
const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
/// Keys that do not constrain a value.
const REMARKS: [&str; 11] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "additionalProperties",
];
/// Deepest nesting of schemas.
const DEPTH_MAX: usize = 16;
/// Most properties, literals and alternatives of a schema.
const PIECES_MAX: usize = 1000;
/// Most bytes of a schema, written without white space.
const BYTES_MAX: usize = 32 << 10;
/// Most bytes of a property's name or of a literal, as JSON. Alternatives are joined byte by byte.
const LITERAL_BYTES_MAX: usize = 256;
/// Most types in a list: JSON has seven if integers count apart.
const KINDS_MAX: usize = 7;
/// Longest list if a schema sets no limit, and the highest limit it may set.
const ITEMS_USUAL: u32 = 16;
const ITEMS_MAX: u32 = 256;
/// Whole numbers of 15 digits are exact in every JSON parser.
const WHOLE_MAX: i64 = 999_999_999_999_999;
/// Digits after the decimal point.
const FRACTION_DIGITS: usize = 9;
/// Most members of a free object, and what each of them may hold.
const MEMBERS_MAX: u32 = 16;
const INNER_MAX: u32 = 8;

impl Schema {
    /// Checks a schema and returns the first part that is not supported. This takes milliseconds,
    /// and longer for a schema that is far too long, so run it on a blocking thread.
    pub fn check(schema: &Value) -> Result<Self, SchemaError> {
        let bytes = schema.to_string().len();
        if bytes > BYTES_MAX {
            return wrong("$", format!("the schema has {bytes} bytes; use at most {BYTES_MAX}"));
        }
        let mut reader = SchemaReader { root: schema, pieces_left: PIECES_MAX };
        reader.shape(schema, "$", 0).map(Self)
    }

    /// Any object of up to 16 members: texts, numbers, `true`, `false`, `null`, and lists and
    /// objects of up to 8 of those.
    pub(crate) fn any_object() -> Self {
        let plain = vec![
            ValueShape::Text(TextBounds::default()),
            ValueShape::Number,
            ValueShape::Literals(["true", "false", "null"].map(Into::into).into()),
        ];
        let inner = || Box::new(ValueShape::Either(plain.clone()));
        let mut any = plain.clone();
        any.push(ValueShape::List { items: inner(), from: 0, to: INNER_MAX });
        any.push(ValueShape::Map { value: inner(), members_max: INNER_MAX });
        Self(ValueShape::Map { value: Box::new(ValueShape::Either(any)), members_max: MEMBERS_MAX })
    }

    /// The first node of a reply that ends with the stop id.
    pub(super) fn build(
        &self,
        builder: &mut AutomatonBuilder<'_, '_>,
        lexicon: &TokenLexicon<'_>,
        digit_by_digit: bool,
    ) -> Result<NodeId, ConstraintError> {
        if digit_by_digit || matches!(self.0, ValueShape::Map { .. }) {
            // 272 numbers of 50 nodes with 1,110 ids each would be 15 million ids if ids have up to
            // three digits.
            builder.digit_by_digit();
        }
        let end = builder.automaton.end();
        let stop = builder.automaton.chain(&[lexicon.stop], end);
        builder.shape(&self.0, stop)
    }
}

struct SchemaReader<'a> {
    root: &'a Value,
    pieces_left: usize,
}

fn wrong<T>(path: &str, why: impl Into<String>) -> Result<T, SchemaError> {
    Err(SchemaError { path: path.chars().take(200).collect(), why: why.into() })
}

impl SchemaReader<'_> {
    fn shape(&mut self, schema: &Value, path: &str, depth: usize) -> Result<ValueShape, SchemaError> {
        if depth > DEPTH_MAX {
            return wrong(
                path,
                format!("schemas may be nested {DEPTH_MAX} deep and must not contain themselves"),
            );
        }
        let Value::Object(map) = schema else {
            return wrong(path, "a schema must be an object; true and false are not supported");
        };
        self.take_piece(path)?;
        if let Some(target) = map.get("$ref") {
            check_keys(map, &["$ref"], path)?;
            let root = self.root;
            let found = target.as_str().and_then(|at| root.pointer(at.strip_prefix('#')?));
            return match found {
                Some(found) => self.shape(found, path, depth + 1),
                None => wrong(path, "$ref does not name a definition of this schema; use #/$defs/NAME"),
            };
        }
        if let Some(ways) = map.get("anyOf") {
            check_keys(map, &["anyOf"], path)?;
            let Some(ways) = ways.as_array().filter(|ways| !ways.is_empty()) else {
                return wrong(path, "anyOf must be a list of schemas");
            };
            let mut shapes = Vec::new();
            for (index, way) in ways.iter().enumerate() {
                shapes.push(self.shape(way, &format!("{path}.anyOf[{index}]"), depth + 1)?);
            }
            return Ok(ValueShape::Either(shapes));
        }
        if let Some(literals) = map.get("enum").or_else(|| map.get("const")) {
            check_keys(map, &["type", if map.contains_key("enum") { "enum" } else { "const" }], path)?;
            return self.literals(map, literals, path);
        }
        match map.get("type") {
            Some(Value::String(kind)) => self.kind(kind, map, path, depth),
            Some(Value::Array(kinds)) if !kinds.is_empty() => {
                let repeats = |(at, kind): (usize, &Value)| kinds[..at].contains(kind);
                if kinds.len() > KINDS_MAX || kinds.iter().enumerate().any(repeats) {
                    return wrong(path, format!("type may name up to {KINDS_MAX} types, each once"));
                }
                let mut shapes = Vec::new();
                for kind in kinds {
                    let Some(kind) = kind.as_str() else { return wrong(path, "type must name types") };
                    // Keys of the other types do not apply to this one.
                    shapes.push(self.kind(kind, &of_kind(map, kind, kinds), path, depth)?);
                }
                Ok(ValueShape::Either(shapes))
            }
            _ => wrong(
                path,
                "the type is missing; use object, array, string, integer, number, boolean or null",
            ),
        }
    }

    fn kind(
        &mut self,
        kind: &str,
        map: &Map<String, Value>,
        path: &str,
        depth: usize,
    ) -> Result<ValueShape, SchemaError> {
        check_keys(map, keys_of(kind), path)?;
        Ok(match kind {
            "object" => return self.object(map, path, depth),
            "array" => return self.list(map, path, depth),
            "string" => ValueShape::Text(TextBounds::read(map).or_else(|why| wrong(path, why))?),
            "integer" => return whole(map, path),
            "number" if BOUNDS.iter().any(|bound| map.contains_key(*bound)) => {
                ValueShape::BoundedNumber(NumberBounds::read(map).or_else(|why| wrong(path, why))?)
            }
            "number" => ValueShape::Number,
            "boolean" => ValueShape::Literals(["true", "false"].map(Into::into).into()),
            "null" => ValueShape::Literals(vec!["null".into()]),
            _ => {
                return wrong(
                    path,
                    "the type is unknown; use object, array, string, integer, number, boolean or null",
                );
            }
        })
    }

    fn object(
        &mut self,
        map: &Map<String, Value>,
        path: &str,
        depth: usize,
    ) -> Result<ValueShape, SchemaError> {
        let none = Map::new();
        let properties = match map.get("properties") {
            None => &none,
            Some(Value::Object(properties)) => properties,
            Some(_) => return wrong(path, "properties must be an object of schemas"),
        };
        let required: HashSet<&str> = match map.get("required") {
            None => HashSet::new(),
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            Some(_) => return wrong(path, "required must be a list of names"),
        };
        if let Some(name) = required.iter().find(|name| !properties.contains_key(**name)) {
            let name = cut(name);
            return wrong(path, format!("required names {name:?}, which is not in properties"));
        }
        let mut shapes = Vec::with_capacity(properties.len().min(PIECES_MAX));
        for (name, schema) in properties {
            let json = Value::from(name.as_str()).to_string();
            check_length(&json, path)?;
            let shape = self.shape(schema, &format!("{path}.{name}"), depth + 1)?;
            let is_required = required.contains(name.as_str());
            shapes.push(SchemaProperty { name: json, shape, is_required });
        }
        Ok(ValueShape::Object(shapes))
    }

    fn list(
        &mut self,
        map: &Map<String, Value>,
        path: &str,
        depth: usize,
    ) -> Result<ValueShape, SchemaError> {
        let Some(items) = map.get("items") else { return wrong(path, "an array needs items") };
        let items = Box::new(self.shape(items, &format!("{path}[]"), depth + 1)?);
        let count = |key: &str, usual: u32| match map.get(key) {
            None => Ok(usual),
            Some(count) => match count.as_u64().filter(|count| *count <= u64::from(ITEMS_MAX)) {
                Some(count) => Ok(count as u32),
                None => wrong(path, format!("{key} must be a whole number from 0 to {ITEMS_MAX}")),
            },
        };
        let from = count("minItems", count("min_items", 0)?)?;
        let to = count("maxItems", from.max(ITEMS_USUAL))?;
        if from > to {
            return wrong(path, format!("minItems {from} is more than maxItems {to}"));
        }
        Ok(ValueShape::List { items, from, to })
    }

    fn literals(
        &mut self,
        map: &Map<String, Value>,
        literals: &Value,
        path: &str,
    ) -> Result<ValueShape, SchemaError> {
        let list = match literals {
            Value::Array(list) if map.contains_key("enum") => list.as_slice(),
            one if !map.contains_key("enum") => std::slice::from_ref(one),
            _ => return wrong(path, "enum must be a list of values"),
        };
        if list.is_empty() || list.iter().any(|literal| literal.is_array() || literal.is_object()) {
            return wrong(path, "enum and const may hold texts, numbers, true, false or null, at least one");
        }
        let is_of = |literal: &Value| match map.get("type").and_then(Value::as_str) {
            Some("string") => literal.is_string(),
            Some("integer") => literal.is_i64() || literal.is_u64(),
            Some("number") => literal.is_number(),
            Some("boolean") => literal.is_boolean(),
            Some("null") => literal.is_null(),
            _ => !map.contains_key("type"),
        };
        if let Some(literal) = list.iter().find(|literal| !is_of(literal)) {
            let literal = literal.to_string();
            return wrong(path, format!("{} is not of the type that the schema sets", cut(&literal)));
        }
        list.iter().try_for_each(|_| self.take_piece(path))?;
        let mut literals: Vec<String> = list.iter().map(Value::to_string).collect();
        literals.iter().try_for_each(|literal| check_length(literal, path))?;
        literals.sort_unstable();
        literals.dedup();
        Ok(ValueShape::Literals(literals))
    }

    fn take_piece(&mut self, path: &str) -> Result<(), SchemaError> {
        match self.pieces_left.checked_sub(1) {
            Some(left) => {
                self.pieces_left = left;
                Ok(())
            }
            None => wrong(path, format!("the schema has more than {PIECES_MAX} properties and literals")),
        }
    }
}

/// Keys that constrain values of a type.
fn keys_of(kind: &str) -> &'static [&'static str] {
    match kind {
        "object" => &["type", "properties", "required"],
        // Some clients write minItems so.
        "array" => &["type", "items", "minItems", "min_items", "maxItems"],
        "string" => &["type", "minLength", "maxLength"],
        "integer" | "number" => &["type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
        _ => &["type"],
    }
}

/// The keys of a schema of several types, without those of its other types.
fn of_kind(map: &Map<String, Value>, kind: &str, kinds: &[Value]) -> Map<String, Value> {
    let is_of = |key: &str, kind: &str| keys_of(kind).contains(&key);
    let others: Vec<&str> = kinds.iter().filter_map(Value::as_str).collect();
    let is_mine = |key: &str| {
        !REMARKS.contains(&key) && (is_of(key, kind) || !others.iter().any(|other| is_of(key, other)))
    };
    map.iter().filter(|(key, _)| is_mine(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn check_keys(map: &Map<String, Value>, known: &[&str], path: &str) -> Result<(), SchemaError> {
    let is_known = |key: &&String| known.contains(&key.as_str()) || REMARKS.contains(&key.as_str());
    match map.keys().find(|key| !is_known(key)) {
        Some(key) => wrong(path, format!("{:?} is not supported here", cut(key))),
        None => Ok(()),
    }
}

/// Refuses a name or literal, as JSON, that is too long.
fn check_length(literal: &str, path: &str) -> Result<(), SchemaError> {
    if literal.len() <= LITERAL_BYTES_MAX {
        return Ok(());
    }
    let bytes = literal.len();
    let literal = cut(literal);
    wrong(path, format!("{literal}… has {bytes} bytes; names and literals may have {LITERAL_BYTES_MAX}"))
}

/// The first characters of a text from outside.
fn cut(text: &str) -> &str {
    let end = text.char_indices().nth(40).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

fn whole(map: &Map<String, Value>, path: &str) -> Result<ValueShape, SchemaError> {
    let bound = |key: &str, step: i64| match map.get(key) {
        None => Ok(None),
        Some(value) => {
            match value.as_i64().filter(|value| value.unsigned_abs() <= WHOLE_MAX.unsigned_abs()) {
                Some(value) => Ok(Some(value + step)),
                None => wrong(path, format!("{key} must be a whole number of at most 15 digits")),
            }
        }
    };
    let from = [bound("minimum", 0)?, bound("exclusiveMinimum", 1)?].into_iter().flatten().max();
    let to = [bound("maximum", 0)?, bound("exclusiveMaximum", -1)?].into_iter().flatten().min();
    let from = from.unwrap_or(-WHOLE_MAX);
    let to = to.unwrap_or(WHOLE_MAX);
    if from > to {
        return wrong(path, format!("no whole number is from {from} to {to}"));
    }
    Ok(ValueShape::Whole { from, to })
}

impl AutomatonBuilder<'_, '_> {
    pub(super) fn shape(&mut self, shape: &ValueShape, next: NodeId) -> Result<NodeId, ConstraintError> {
        self.automaton.check_limits()?;
        self.automaton.count(1);
        match shape {
            ValueShape::Object(properties) => self.object(properties, next),
            ValueShape::Map { value, members_max } => {
                self.series(["{", "}"], (0, *members_max), next, |builder, next| {
                    let value = builder.shape(value, next)?;
                    let colon = builder.fixed(":", value)?;
                    TextBounds::default().build(builder, colon)
                })
            }
            ValueShape::List { items, from, to } => {
                self.series(["[", "]"], (*from, *to), next, |builder, next| builder.shape(items, next))
            }
            ValueShape::Text(bounds) => bounds.build(self, next),
            ValueShape::Whole { from, to } => self.whole(*from, *to, next),
            ValueShape::Number => self.decimal(next),
            ValueShape::BoundedNumber(bounds) => bounds.build(self, FRACTION_DIGITS, next),
            ValueShape::Literals(literals) => self.choices(literals, next),
            ValueShape::Either(shapes) => {
                let ways =
                    shapes.iter().map(|shape| self.shape(shape, next)).collect::<Result<Vec<_>, _>>()?;
                self.one_of(ways)
            }
        }
    }

    /// Properties from the last to the first. Whether a comma comes depends on whether a property
    /// came before.
    fn object(&mut self, properties: &[SchemaProperty], next: NodeId) -> Result<NodeId, ConstraintError> {
        let close = self.fixed("}", next)?;
        let mut first = close;
        let mut later = close;
        for SchemaProperty { name, shape, is_required } in properties.iter().rev() {
            let value = self.shape(shape, later)?;
            let begun = self.fixed(&format!("{name}:"), value)?;
            let added = self.fixed(&format!(",{name}:"), value)?;
            (first, later) = match is_required {
                true => (begun, added),
                false => (self.either(begun, first)?, self.either(added, later)?),
            };
        }
        self.fixed("{", first)
    }

    /// A number of elements between brackets, with commas between them.
    fn series(
        &mut self,
        [open, close]: [&str; 2],
        (from, to): (u32, u32),
        next: NodeId,
        mut part: impl FnMut(&mut Self, NodeId) -> Result<NodeId, ConstraintError>,
    ) -> Result<NodeId, ConstraintError> {
        let close = self.fixed(close, next)?;
        let mut node_id = close;
        for count in (0..to).rev() {
            let one = part(self, node_id)?;
            let one = if count > 0 { self.fixed(",", one)? } else { one };
            node_id = if count < from { one } else { self.either(one, close)? };
        }
        self.fixed(open, node_id)
    }

    fn whole(&mut self, from: i64, to: i64, next: NodeId) -> Result<NodeId, ConstraintError> {
        let mut ways = Vec::new();
        if to >= 0 {
            ways.push(self.digits_of(from.max(0).unsigned_abs(), to.unsigned_abs(), next)?);
        }
        if from < 0 {
            let least = if to < 0 { to.unsigned_abs() } else { 1 };
            let digits = self.digits_of(least, from.unsigned_abs(), next)?;
            ways.push(self.fixed("-", digits)?);
        }
        self.one_of(ways)
    }

    fn decimal(&mut self, next: NodeId) -> Result<NodeId, ConstraintError> {
        let fraction = self.fraction(FRACTION_DIGITS, next)?;
        let point = self.fixed(".", fraction)?;
        let behind = self.either(point, next)?;
        let digits = self.digits_of(0, WHOLE_MAX.unsigned_abs(), behind)?;
        let negative = self.fixed("-", digits)?;
        self.either(digits, negative)
    }
}
