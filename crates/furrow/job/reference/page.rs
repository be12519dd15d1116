//! Writes docs/CONFIG.md: what each section is for, then a table of its keys.

use toml::Value;

use super::keys::{JobKey, JobKeys, KeySection};
use crate::job::shape::KeyShape;

const INTRODUCTION: &str = "\
# Every key of a job

This page is for people who write a job file. It lists each key with its type and unit, its default, what is allowed and
what it does. A test writes it from the sources, so do not edit it: change the doc comment of the field
([CONTRIBUTING.md](../CONTRIBUTING.md#a-config-key)).

A job is one TOML file. Only `[[tasks.source]]` is required; every other key has a default.

    furrow init demo job.toml            # a commented job to begin with; also own-site, localhost, webvoyager, gpu, eval
    furrow check job.toml                # check it, and print every key with its value
    furrow run job.toml --set env.sessions_max=8 --set policy.sampling.temperature=0.7

`--set KEY=VALUE` replaces one key; entries of lists are counted from 0: `--set tasks.source[0].repeat=3`. Relative paths
begin at the folder of the job file. Unknown keys are refused.

**Editors** complete and check a job with the JSON Schema [job.schema.json](job.schema.json), which
`furrow check --schema` prints. With a TOML language server such as Taplo, write it beside the job and name it in the
job's first line:

    furrow check --schema > job.schema.json
    #:schema ./job.schema.json

**A resumed run** (`furrow run --resume`) keeps the values of keys marked *kept*: a job that sets another value is
refused. One of them may grow: a larger `tasks.groups` lengthens the run. All other keys may change between two starts.

In *allowed*, a range includes both ends. A dash means: whatever the type allows.
";

pub(super) fn write(keys: &JobKeys) -> String {
    let mut page = INTRODUCTION.to_owned();
    page.push_str("\n| section | |\n|---|---|\n");
    for section in &keys.sections {
        let KeySection { name, comment, keys } = section;
        let heading = heading(name);
        // A section of sections has no table below.
        let linked = match keys.is_empty() {
            true => format!("`{heading}`"),
            false => format!("[`{heading}`](#{})", anchor(name)),
        };
        page.push_str(&format!("| {linked} | {} |\n", cell(comment)));
    }
    for section in keys.sections.iter().filter(|section| !section.keys.is_empty()) {
        page.push_str(&format!("\n## {}\n\n{}\n\n", heading(&section.name), section.comment));
        page.push_str("| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n");
        section.keys.iter().for_each(|key| page.push_str(&row(key)));
    }
    page
}

fn row(key: &JobKey) -> String {
    let unit = key.unit().map(|unit| format!(", {unit}")).unwrap_or_default();
    let kept = if key.is_fixed { " *Kept.*" } else { "" };
    format!(
        "| `{}` | {}{unit} | {} | {} | {}{kept} |\n",
        key.name,
        type_text(&key.shape),
        cell(&default_text(key)),
        cell(&allowed(key)),
        cell(&key.comment)
    )
}

/// As a job file writes it: `[policy.engine]`, `[[tasks.source]]`.
fn heading(section: &str) -> String {
    match section.strip_suffix("[]") {
        Some(list) => format!("[[{list}]]"),
        None => format!("[{section}]"),
    }
}

/// As GitHub makes it of a heading: small letters and digits.
fn anchor(section: &str) -> String {
    section
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '_')
        .map(|c| c.to_ascii_lowercase())
        .collect()
}

fn type_text(shape: &KeyShape) -> String {
    match shape {
        KeyShape::Flag => "true or false".to_owned(),
        KeyShape::Whole { .. } => "whole number".to_owned(),
        KeyShape::Number => "number".to_owned(),
        KeyShape::Text => "text".to_owned(),
        KeyShape::Path => "path".to_owned(),
        KeyShape::Choice(_) => "choice".to_owned(),
        KeyShape::List(each) => format!("list of {}s", type_text(each)),
        shape => panic!("{shape:?} has no name"),
    }
}

fn default_text(key: &JobKey) -> String {
    if let Some(other) = key.inherits {
        return format!("`{other}`");
    }
    let Some(default) = &key.default else { return "not set".to_owned() };
    let readable = default.as_integer().and_then(|number| readable(key, number));
    let readable = readable.map(|text| format!(" ({text})")).unwrap_or_default();
    match default {
        // A default of 32 bits, such as 0.1, is not the number of 64 bits that is nearest to it.
        Value::Float(number) => format!("`{}`", *number as f32),
        value => format!("`{value}`{readable}"),
    }
}

fn allowed(key: &JobKey) -> String {
    let texts = match &key.shape {
        KeyShape::Choice(choices) => choices.iter().map(|choice| format!("`{choice}`")).collect(),
        _ => key.limits.clone(),
    };
    match (texts.is_empty(), key.range()) {
        (true, _) => "-".to_owned(),
        (false, Some((least, most))) => {
            let readable = [least, most].iter().any(|end| readable(key, *end).is_some());
            let [least, most] = [least, most].map(|end| with_unit(key, end));
            let in_units = if readable { format!(" ({least} to {most})") } else { String::new() };
            format!("{}{in_units}", texts.join("; "))
        }
        (false, None) => texts.join(", "),
    }
}

/// A number of bytes or milliseconds in larger units, where it is a round one.
fn readable(key: &JobKey, number: i64) -> Option<String> {
    let units: &[(i64, &str)] = match key.unit()? {
        "bytes" => &[(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")],
        "milliseconds" => &[(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")],
        _ => return None,
    };
    let (size, unit) = units.iter().find(|(size, _)| number >= *size && number % size == 0)?;
    Some(format!("{} {unit}", number / size))
}

/// The same of any number: `0`, `100 ms`, `64 KiB`.
fn with_unit(key: &JobKey, number: i64) -> String {
    let small = if key.unit() == Some("bytes") { "B" } else { "ms" };
    let plain = || if number == 0 { "0".to_owned() } else { format!("{number} {small}") };
    readable(key, number).unwrap_or_else(plain)
}

/// Text that does not end a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
