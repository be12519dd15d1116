//! JSON schemas as layouts: which of them can be led to, and the places of the automaton they become.
//!
//! A reply is written without white space, the properties of an object in the order of the schema. What a schema says that is not
//! led to is refused by its name: whoever asked for a pattern must not get a text without it. The automaton has no cycles, so lists and
//! free objects have a longest form.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::automaton::Place;
use super::layout::Builder;
use super::{ConstraintError, Lexicon};

/// A schema that replies can be led to; only `check` and `any_object` make one.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema(Shape);

/// A schema that they cannot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {why}")]
pub struct SchemaError {
    /// Where, from the root `$`.
    pub path: String,
    /// What is wrong, and what would be right.
    pub why: String,
}

/// What a value looks like.
#[derive(Debug, Clone, PartialEq)]
enum Shape {
    Object(Vec<Property>),
    /// Members of any name.
    Map {
        value: Box<Shape>,
        members_max: u32,
    },
    List {
        items: Box<Shape>,
        from: u32,
        to: u32,
    },
    Text,
    Whole {
        from: i64,
        to: i64,
    },
    Number,
    /// One of these, as JSON.
    Words(Vec<String>),
    Either(Vec<Shape>),
}

#[derive(Debug, Clone, PartialEq)]
struct Property {
    /// Its name, as JSON.
    name: String,
    shape: Shape,
    is_required: bool,
}

/// Keys that say nothing about a value.
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
/// Schemas inside schemas.
const DEPTH_MAX: usize = 16;
/// Properties, words and ways of one schema.
const PIECES_MAX: usize = 1000;
/// Bytes of a schema, written without white space.
const BYTES_MAX: usize = 32 << 10;
/// Bytes of a property's name or of a word, as JSON: ways are joined byte by byte.
const WORD_BYTES_MAX: usize = 256;
/// JSON has seven types, integers counted apart.
const KINDS_MAX: usize = 7;
/// Longest list where a schema names none, and the longest it may name.
const ITEMS_USUAL: u32 = 16;
const ITEMS_MAX: u32 = 256;
/// Whole numbers of 15 digits are exact in every reader.
const WHOLE_MAX: i64 = 999_999_999_999_999;
/// Digits behind the point.
const FRACTION_DIGITS: usize = 9;
/// Members of a free object and what each of them may hold.
const MEMBERS_MAX: u32 = 16;
const INNER_MAX: u32 = 8;

impl Schema {
    /// Reads a schema, or says the first thing in it that is not led to. Milliseconds, more for what is far too long: not for a thread that
    /// serves others.
    pub fn check(schema: &Value) -> Result<Self, SchemaError> {
        let bytes = schema.to_string().len();
        if bytes > BYTES_MAX {
            return wrong("$", format!("the schema has {bytes} bytes; use at most {BYTES_MAX}"));
        }
        let mut reader = Reader { root: schema, pieces_left: PIECES_MAX };
        reader.shape(schema, "$", 0).map(Self)
    }

    /// Any object of up to 16 members: texts, numbers, `true`, `false`, `null`, and lists and objects of up to 8 of those.
    pub fn any_object() -> Self {
        let plain =
            vec![Shape::Text, Shape::Number, Shape::Words(["true", "false", "null"].map(Into::into).into())];
        let inner = || Box::new(Shape::Either(plain.clone()));
        let mut any = plain.clone();
        any.push(Shape::List { items: inner(), from: 0, to: INNER_MAX });
        any.push(Shape::Map { value: inner(), members_max: INNER_MAX });
        Self(Shape::Map { value: Box::new(Shape::Either(any)), members_max: MEMBERS_MAX })
    }

    /// The place where a reply begins, for one that ends with the stop id.
    pub(super) fn build(
        &self,
        builder: &mut Builder<'_, '_>,
        lexicon: &Lexicon<'_>,
    ) -> Result<Place, ConstraintError> {
        if let Shape::Map { .. } = self.0 {
            // 272 numbers of 50 places with 1,110 ids each would be 15 million ids where ids have up to three digits.
            builder.digit_by_digit();
        }
        let end = builder.automaton.end();
        let stop = builder.automaton.chain(&[lexicon.stop], end);
        builder.shape(&self.0, stop)
    }
}

struct Reader<'a> {
    root: &'a Value,
    pieces_left: usize,
}

fn wrong<T>(path: &str, why: impl Into<String>) -> Result<T, SchemaError> {
    Err(SchemaError { path: path.chars().take(200).collect(), why: why.into() })
}

impl Reader<'_> {
    fn shape(&mut self, schema: &Value, path: &str, depth: usize) -> Result<Shape, SchemaError> {
        if depth > DEPTH_MAX {
            return wrong(path, format!("schemas may lie {DEPTH_MAX} deep and not hold themselves"));
        }
        let Value::Object(map) = schema else {
            return wrong(path, "a schema is an object here; true and false are not supported");
        };
        self.take_piece(path)?;
        if let Some(target) = map.get("$ref") {
            only(map, &["$ref"], path)?;
            let root = self.root;
            let found = target.as_str().and_then(|at| root.pointer(at.strip_prefix('#')?));
            return match found {
                Some(found) => self.shape(found, path, depth + 1),
                None => wrong(path, "$ref leads nowhere in this schema; use #/$defs/NAME"),
            };
        }
        if let Some(ways) = map.get("anyOf") {
            only(map, &["anyOf"], path)?;
            let Some(ways) = ways.as_array().filter(|ways| !ways.is_empty()) else {
                return wrong(path, "anyOf is a list of schemas");
            };
            let mut shapes = Vec::new();
            for (index, way) in ways.iter().enumerate() {
                shapes.push(self.shape(way, &format!("{path}.anyOf[{index}]"), depth + 1)?);
            }
            return Ok(Shape::Either(shapes));
        }
        if let Some(words) = map.get("enum").or_else(|| map.get("const")) {
            only(map, &["type", if map.contains_key("enum") { "enum" } else { "const" }], path)?;
            return self.words(map, words, path);
        }
        match map.get("type") {
            Some(Value::String(kind)) => self.kind(kind, map, path, depth),
            Some(Value::Array(kinds)) if !kinds.is_empty() => {
                let repeats = |(at, kind): (usize, &Value)| kinds[..at].contains(kind);
                if kinds.len() > KINDS_MAX || kinds.iter().enumerate().any(repeats) {
                    return wrong(path, format!("type names up to {KINDS_MAX} types, each once"));
                }
                let mut shapes = Vec::new();
                for kind in kinds {
                    let Some(kind) = kind.as_str() else { return wrong(path, "type names types") };
                    // What is said of the others is not for this one.
                    shapes.push(self.kind(kind, &of_kind(map, kind, kinds), path, depth)?);
                }
                Ok(Shape::Either(shapes))
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
    ) -> Result<Shape, SchemaError> {
        only(map, keys_of(kind), path)?;
        Ok(match kind {
            "object" => return self.object(map, path, depth),
            "array" => return self.list(map, path, depth),
            "string" => Shape::Text,
            "integer" => return whole(map, path),
            "number" => Shape::Number,
            "boolean" => Shape::Words(["true", "false"].map(Into::into).into()),
            "null" => Shape::Words(vec!["null".into()]),
            _ => {
                return wrong(
                    path,
                    "type is none of object, array, string, integer, number, boolean and null",
                );
            }
        })
    }

    fn object(&mut self, map: &Map<String, Value>, path: &str, depth: usize) -> Result<Shape, SchemaError> {
        let none = Map::new();
        let properties = match map.get("properties") {
            None => &none,
            Some(Value::Object(properties)) => properties,
            Some(_) => return wrong(path, "properties is an object of schemas"),
        };
        let required: HashSet<&str> = match map.get("required") {
            None => HashSet::new(),
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            Some(_) => return wrong(path, "required is a list of names"),
        };
        if let Some(name) = required.iter().find(|name| !properties.contains_key(**name)) {
            let name = cut(name);
            return wrong(path, format!("required names {name:?}, which is none of the properties"));
        }
        let mut shapes = Vec::with_capacity(properties.len().min(PIECES_MAX));
        for (name, schema) in properties {
            let json = Value::from(name.as_str()).to_string();
            short(&json, path)?;
            let shape = self.shape(schema, &format!("{path}.{name}"), depth + 1)?;
            let is_required = required.contains(name.as_str());
            shapes.push(Property { name: json, shape, is_required });
        }
        Ok(Shape::Object(shapes))
    }

    fn list(&mut self, map: &Map<String, Value>, path: &str, depth: usize) -> Result<Shape, SchemaError> {
        let Some(items) = map.get("items") else { return wrong(path, "an array needs items") };
        let items = Box::new(self.shape(items, &format!("{path}[]"), depth + 1)?);
        let count = |key: &str, usual: u32| match map.get(key) {
            None => Ok(usual),
            Some(count) => match count.as_u64().filter(|count| *count <= u64::from(ITEMS_MAX)) {
                Some(count) => Ok(count as u32),
                None => wrong(path, format!("{key} is a whole number of 0 to {ITEMS_MAX}")),
            },
        };
        let from = count("minItems", 0)?;
        let to = count("maxItems", from.max(ITEMS_USUAL))?;
        if from > to {
            return wrong(path, format!("minItems {from} is more than maxItems {to}"));
        }
        Ok(Shape::List { items, from, to })
    }

    fn words(&mut self, map: &Map<String, Value>, words: &Value, path: &str) -> Result<Shape, SchemaError> {
        let list = match words {
            Value::Array(list) if map.contains_key("enum") => list.as_slice(),
            one if !map.contains_key("enum") => std::slice::from_ref(one),
            _ => return wrong(path, "enum is a list of values"),
        };
        if list.is_empty() || list.iter().any(|word| word.is_array() || word.is_object()) {
            return wrong(path, "enum and const name texts, numbers, true, false or null, at least one");
        }
        let is_of = |word: &Value| match map.get("type").and_then(Value::as_str) {
            Some("string") => word.is_string(),
            Some("integer") => word.is_i64() || word.is_u64(),
            Some("number") => word.is_number(),
            Some("boolean") => word.is_boolean(),
            Some("null") => word.is_null(),
            _ => !map.contains_key("type"),
        };
        if let Some(word) = list.iter().find(|word| !is_of(word)) {
            let word = word.to_string();
            return wrong(path, format!("{} is not of the type that stands beside it", cut(&word)));
        }
        list.iter().try_for_each(|_| self.take_piece(path))?;
        let mut words: Vec<String> = list.iter().map(Value::to_string).collect();
        words.iter().try_for_each(|word| short(word, path))?;
        words.sort_unstable();
        words.dedup();
        Ok(Shape::Words(words))
    }

    fn take_piece(&mut self, path: &str) -> Result<(), SchemaError> {
        match self.pieces_left.checked_sub(1) {
            Some(left) => {
                self.pieces_left = left;
                Ok(())
            }
            None => wrong(path, format!("the schema has more than {PIECES_MAX} properties and words")),
        }
    }
}

/// Keys that say something about values of a type.
fn keys_of(kind: &str) -> &'static [&'static str] {
    match kind {
        "object" => &["type", "properties", "required"],
        "array" => &["type", "items", "minItems", "maxItems"],
        "integer" => &["type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
        _ => &["type"],
    }
}

/// The keys of a schema of several types without those that are for another of them.
fn of_kind(map: &Map<String, Value>, kind: &str, kinds: &[Value]) -> Map<String, Value> {
    let is_of = |key: &str, kind: &str| keys_of(kind).contains(&key);
    let others: Vec<&str> = kinds.iter().filter_map(Value::as_str).collect();
    let is_mine = |key: &str| {
        !REMARKS.contains(&key) && (is_of(key, kind) || !others.iter().any(|other| is_of(key, other)))
    };
    map.iter().filter(|(key, _)| is_mine(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn only(map: &Map<String, Value>, known: &[&str], path: &str) -> Result<(), SchemaError> {
    let is_known = |key: &&String| known.contains(&key.as_str()) || REMARKS.contains(&key.as_str());
    match map.keys().find(|key| !is_known(key)) {
        Some(key) => wrong(path, format!("{:?} is not supported here", cut(key))),
        None => Ok(()),
    }
}

/// Refuses a name or a word, as JSON, that is too long.
fn short(word: &str, path: &str) -> Result<(), SchemaError> {
    if word.len() <= WORD_BYTES_MAX {
        return Ok(());
    }
    let (word, bytes) = (cut(word), word.len());
    wrong(path, format!("{word}… has {bytes} bytes; names and words have at most {WORD_BYTES_MAX}"))
}

/// The first characters of a text that comes from outside.
fn cut(text: &str) -> &str {
    let end = text.char_indices().nth(40).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

fn whole(map: &Map<String, Value>, path: &str) -> Result<Shape, SchemaError> {
    let bound = |key: &str, step: i64| match map.get(key) {
        None => Ok(None),
        Some(value) => {
            match value.as_i64().filter(|value| value.unsigned_abs() <= WHOLE_MAX.unsigned_abs()) {
                Some(value) => Ok(Some(value + step)),
                None => wrong(path, format!("{key} is a whole number of at most 15 digits")),
            }
        }
    };
    let from = [bound("minimum", 0)?, bound("exclusiveMinimum", 1)?].into_iter().flatten().max();
    let to = [bound("maximum", 0)?, bound("exclusiveMaximum", -1)?].into_iter().flatten().min();
    let (from, to) = (from.unwrap_or(-WHOLE_MAX), to.unwrap_or(WHOLE_MAX));
    if from > to {
        return wrong(path, format!("no whole number is from {from} to {to}"));
    }
    Ok(Shape::Whole { from, to })
}

impl Builder<'_, '_> {
    fn shape(&mut self, shape: &Shape, next: Place) -> Result<Place, ConstraintError> {
        self.automaton.fits()?;
        self.automaton.count(1);
        match shape {
            Shape::Object(properties) => self.object(properties, next),
            Shape::Map { value, members_max } => {
                self.series(["{", "}"], (0, *members_max), next, |builder, next| {
                    let value = builder.shape(value, next)?;
                    let colon = builder.fixed(":", value)?;
                    builder.quoted(colon)
                })
            }
            Shape::List { items, from, to } => {
                self.series(["[", "]"], (*from, *to), next, |builder, next| builder.shape(items, next))
            }
            Shape::Text => self.quoted(next),
            Shape::Whole { from, to } => self.whole(*from, *to, next),
            Shape::Number => self.decimal(next),
            Shape::Words(words) => self.words(words, next),
            Shape::Either(shapes) => {
                let ways =
                    shapes.iter().map(|shape| self.shape(shape, next)).collect::<Result<Vec<_>, _>>()?;
                self.one_of(ways)
            }
        }
    }

    /// A text in quotes, as long as it fits.
    fn quoted(&mut self, next: Place) -> Result<Place, ConstraintError> {
        let close = self.fixed("\"", next)?;
        let text = self.automaton.text(u32::MAX, close);
        self.fixed("\"", text)
    }

    /// Properties from the last to the first. Whether a comma comes depends on whether one stood before.
    fn object(&mut self, properties: &[Property], next: Place) -> Result<Place, ConstraintError> {
        let close = self.fixed("}", next)?;
        let (mut first, mut later) = (close, close);
        for Property { name, shape, is_required } in properties.iter().rev() {
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

    /// So many parts between brackets, with commas between them.
    fn series(
        &mut self,
        [open, close]: [&str; 2],
        (from, to): (u32, u32),
        next: Place,
        mut part: impl FnMut(&mut Self, Place) -> Result<Place, ConstraintError>,
    ) -> Result<Place, ConstraintError> {
        let close = self.fixed(close, next)?;
        let mut place = close;
        for count in (0..to).rev() {
            let one = part(self, place)?;
            let one = if count > 0 { self.fixed(",", one)? } else { one };
            place = if count < from { one } else { self.either(one, close)? };
        }
        self.fixed(open, place)
    }

    fn whole(&mut self, from: i64, to: i64, next: Place) -> Result<Place, ConstraintError> {
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

    fn decimal(&mut self, next: Place) -> Result<Place, ConstraintError> {
        let fraction = self.fraction(FRACTION_DIGITS, next)?;
        let point = self.fixed(".", fraction)?;
        let behind = self.either(point, next)?;
        let digits = self.digits_of(0, WHOLE_MAX.unsigned_abs(), behind)?;
        let negative = self.fixed("-", digits)?;
        self.either(digits, negative)
    }
}
