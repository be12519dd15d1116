//! Writes docs/job.schema.json, and checks a job by it as an editor would.

use serde_json::{Map, Value, json};

use super::keys::{JobKey, JobKeys};
use crate::job::shape::KeyShape;

pub(super) fn write(keys: &JobKeys) -> String {
    serde_json::to_string_pretty(&of(keys)).unwrap() + "\n"
}

/// Draft 7, which editors of TOML support.
pub(super) fn of(keys: &JobKeys) -> Value {
    let mut schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A job of Furrow",
        "description": "Every key: docs/CONFIG.md",
        "type": "object",
        "properties": {},
        "additionalProperties": false,
    });
    for section in &keys.sections {
        let node = section_at(&mut schema, &section.name);
        node.insert("description".to_owned(), section.comment.clone().into());
        for key in &section.keys {
            let name = key.name.rsplit('.').next().unwrap();
            node["properties"][name] = describe(key);
        }
    }
    schema
}

/// The object of a section, made where it is missing.
fn section_at<'s>(schema: &'s mut Value, section: &str) -> &'s mut Map<String, Value> {
    let object = || json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let mut node = schema;
    for part in section.split('.') {
        // A name that the job chooses.
        if part == "NAME" {
            if !node["additionalProperties"].is_object() {
                node["additionalProperties"] = object();
            }
            node = &mut node["additionalProperties"];
            continue;
        }
        let (name, is_list) = part.strip_suffix("[]").map_or((part, false), |name| (name, true));
        let made = if is_list { json!({ "type": "array", "items": object() }) } else { object() };
        let properties = node["properties"].as_object_mut().unwrap();
        node = properties.entry(name).or_insert(made);
        if is_list {
            node = &mut node["items"];
        }
    }
    node.as_object_mut().unwrap()
}

fn describe(key: &JobKey) -> Value {
    let mut node = typed(&key.shape);
    let limits = key.limits.join("; ");
    let allowed = if limits.is_empty() { limits } else { format!(" Allowed: {limits}.") };
    let unit = key.unit().map(|unit| format!(" Unit: {unit}.")).unwrap_or_default();
    node["description"] = format!("{}{unit}{allowed}", key.comment).into();
    if let Some((least, most)) = key.range() {
        node["minimum"] = least.into();
        node["maximum"] = most.into();
    } else if let KeyShape::Whole { least, .. } = key.shape {
        node["minimum"] = i64::try_from(least).unwrap().into();
    }
    if let (Some(default), None) = (&key.default, key.inherits) {
        node["default"] = serde_json::to_value(default).unwrap();
    }
    node
}

fn typed(shape: &KeyShape) -> Value {
    match shape {
        KeyShape::Flag => json!({ "type": "boolean" }),
        KeyShape::Whole { .. } => json!({ "type": "integer" }),
        KeyShape::Number => json!({ "type": "number" }),
        KeyShape::Text | KeyShape::Path => json!({ "type": "string" }),
        KeyShape::Choice(choices) => json!({ "enum": choices }),
        KeyShape::List(each) => json!({ "type": "array", "items": typed(each) }),
        shape => panic!("{shape:?} has no type in a schema"),
    }
}

/// What a job has that the schema forbids: the few rules that are written above.
pub(super) fn problems(job: &Value, schema: &Value, key: &str) -> Vec<String> {
    let wrong = |is_right: bool, text: String| {
        if is_right { Vec::new() } else { vec![format!("{key}: {text}")] }
    };
    if let Some(choices) = schema["enum"].as_array() {
        return wrong(choices.contains(job), format!("{job} is not a choice"));
    }
    match (schema["type"].as_str().unwrap(), job) {
        ("object", Value::Object(entries)) => {
            let each = |(name, value): (&String, &Value)| {
                let dotted = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                match schema["properties"].get(name) {
                    Some(inner) => problems(value, inner, &dotted),
                    None => vec![format!("{dotted}: not a key")],
                }
            };
            entries.iter().flat_map(each).collect()
        }
        ("array", Value::Array(entries)) => {
            entries.iter().flat_map(|entry| problems(entry, &schema["items"], key)).collect()
        }
        ("boolean", Value::Bool(_)) | ("string", Value::String(_)) | ("number", Value::Number(_)) => {
            Vec::new()
        }
        ("integer", Value::Number(number)) => {
            let number = number.as_i64().unwrap();
            let least = schema["minimum"].as_i64().unwrap_or(i64::MIN);
            let most = schema["maximum"].as_i64().unwrap_or(i64::MAX);
            let low = wrong(number >= least, format!("{number} is below {least}"));
            [low, wrong(number <= most, format!("{number} is above {most}"))].concat()
        }
        (want, got) => vec![format!("{key}: {got} is not a {want}")],
    }
}
