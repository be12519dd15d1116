//! Task files about pages that the farm does not serve: rows in Furrow's own format, and
//! WebVoyager's rows unchanged.
//!
//! A WebVoyager row (`web_name`, `id`, `ques`, `web`) is scored by a judge. Its reference answer is
//! stored for the judge to read; it is never compared as a string, because 500 of the 643 are only
//! examples of a correct answer.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use furrow_rollout::{ImageFormat, ObservationSpec, PageClock, PageHooks, Size, Split};
use serde_json::{Map, Value, json};

use crate::dates;
use crate::fields::JsonFields;
use crate::jsonl::{self, CommonKeys, TaskRow};
use crate::source::{LoadedSource, SuiteDefaults, TaskSpec};
use crate::{Scorer, SourceConfig};

/// WebVoyager's own protocol: 15 steps in a window of 1024 x 768. Others limit a task to twenty
/// minutes.
const WEBVOYAGER: SuiteDefaults = SuiteDefaults {
    split: Split::Test,
    max_steps: 15,
    time_limit_millis: 1_200_000,
    viewport: Size::new(1024, 768),
    observation: ObservationSpec { format: ImageFormat::Jpeg { quality: 80 }, clip: None, square: false },
    clock: PageClock::Real,
};

/// Rows in Furrow's own format about live pages.
const OWN: SuiteDefaults = SuiteDefaults {
    split: Split::Train,
    max_steps: 30,
    time_limit_millis: 1_200_000,
    viewport: Size::new(1280, 720),
    ..WEBVOYAGER
};

/// The longest published answer has 528 bytes.
const REFERENCE_BYTES_MAX: usize = 16 << 10;

/// Loads a task file without pages beside it.
pub(crate) fn load(source: &SourceConfig, problems: &mut Vec<String>) -> LoadedSource {
    let location = source.path.display().to_string();
    let rows = jsonl::read(&source.path, problems);
    let answers = source.answers.as_deref().map(|path| ReferenceAnswers::read(path, &source.key, problems));
    let specs: Vec<_> = rows
        .iter()
        .filter_map(|row| {
            if is_webvoyager(row) {
                read_webvoyager(row, source, answers.as_ref(), &location, problems)
            } else {
                read_own(row, source, &location, problems)
            }
        })
        .collect();
    let left_out = source.impossible.as_deref().map(|path| read_impossible(path, &source.key, problems));
    let left_out = left_out.unwrap_or_default();
    let notes = notes(source, &rows, &specs, &left_out);
    let lines = rows.iter().map(|row| row.line).collect();
    LoadedSource { specs, sites: Vec::new(), lines, location, left_out, notes }
}

/// Describes the variant of the suite: success rates of different variants cannot be compared.
fn notes(
    source: &SourceConfig,
    rows: &[TaskRow],
    specs: &[TaskSpec],
    left_out: &HashSet<String>,
) -> Vec<String> {
    let gone = specs.iter().filter(|spec| left_out.contains(&spec.task.task_id)).count();
    let moved = specs.iter().filter(|spec| spec.json.contains("\"moved_years\":")).count();
    let mut notes = Vec::new();
    if gone > 0 {
        notes.push(format!("{}: {gone} of {} tasks are left out as impossible", source.key, rows.len()));
    }
    if let Some(from) = source.dates_from.filter(|_| moved > 0) {
        notes.push(format!(
            "{}: {moved} of {} tasks have their days moved to {from} or later",
            source.key,
            rows.len()
        ));
    }
    notes
}

/// A JSON list of ids.
fn read_impossible(path: &Path, key: &str, problems: &mut Vec<String>) -> HashSet<String> {
    let read = jsonl::read_capped(path).map_err(|e| format!("cannot be read: {e}"));
    let ids = read.and_then(|bytes| {
        serde_json::from_slice::<HashSet<String>>(&bytes)
            .map_err(|e| format!("is not a JSON list of ids: {e}"))
    });
    ids.unwrap_or_else(|problem| {
        problems.push(format!("{key}.impossible: {}: {problem}", path.display()));
        HashSet::new()
    })
}

/// A row is WebVoyager's if it has one of its keys and not Furrow's key of the same meaning.
fn is_webvoyager(row: &TaskRow) -> bool {
    let has = |key| row.fields.contains_key(key);
    (has("ques") || has("web_name")) && !has("goal") && !has("task_id")
}

fn read_own(
    row: &TaskRow,
    source: &SourceConfig,
    location: &str,
    problems: &mut Vec<String>,
) -> Option<TaskSpec> {
    let before = problems.len();
    let mut fields = row.reader(location, problems);
    let common = CommonKeys::read(&mut fields, &source.suite, None);
    if !fields.has("goal") {
        fields.problem("goal", "is missing; only pages of a suite's own folder can supply it");
    }
    let scorer = Scorer::read(&mut fields, "score");
    if scorer.as_ref().is_some_and(Scorer::needs_probe) {
        fields
            .problem("score", "asks for a page probe, and pages elsewhere have none; score by answer or url");
    }
    if problems.len() > before {
        return None;
    }
    Some(TaskSpec::assembled(common?, scorer?, PageHooks::default(), row.text.clone(), source, &OWN))
}

fn read_webvoyager(
    row: &TaskRow,
    source: &SourceConfig,
    answers: Option<&ReferenceAnswers>,
    location: &str,
    problems: &mut Vec<String>,
) -> Option<TaskSpec> {
    let before = problems.len();
    let mut fields = row.reader(location, problems);
    let common = CommonKeys::read_webvoyager(&mut fields);
    let site = fields.required_text("web_name", 64);
    let mut common = common?;
    let site = site?;
    let reference = answers.and_then(|answers| reference_of(&mut fields, answers, &site, &common.task_id));
    let score = fields.value("score").cloned().unwrap_or_else(|| judge_score(reference));
    let mut record = row.fields.clone();
    record.insert("score".to_owned(), score);
    if let Some(years) = source.dates_from.and_then(|from| move_days(&mut common, &site, from)) {
        record.insert("moved_years".to_owned(), json!(years));
    }
    let scorer =
        Scorer::read(&mut JsonFields::new(&record, format!("{location}:{}: ", row.line), problems), "score");
    if problems.len() > before {
        return None;
    }
    let mut spec = TaskSpec::assembled(
        common,
        scorer?,
        PageHooks::default(),
        Value::Object(record).to_string(),
        source,
        &WEBVOYAGER,
    );
    spec.task.allow_hosts.extend(sister_hosts(&spec.task.start_url));
    Some(spec)
}

/// Moves the days of a travel task forward; the record keeps the original question.
fn move_days(common: &mut CommonKeys, site: &str, from: time::Date) -> Option<i32> {
    let goal = common.goal.as_deref().filter(|_| dates::SITES.contains(&site))?;
    let (moved, years) = dates::move_years(goal, from)?;
    common.goal = Some(moved);
    Some(years)
}

/// The original protocol's judge; the job sets the number of screenshots, by default one as in the
/// protocol.
fn judge_score(reference: Option<Value>) -> Value {
    let mut score = Map::new();
    score.insert("kind".to_owned(), json!("judge"));
    if let Some(reference) = reference {
        score.insert("reference".to_owned(), reference);
    }
    Value::Object(score)
}

/// Looks an answer up by `web_name` and the number after the last `--` of the id.
fn reference_of(fields: &mut JsonFields, answers: &ReferenceAnswers, site: &str, id: &str) -> Option<Value> {
    let number = id.strip_prefix(site).and_then(|rest| rest.strip_prefix("--")).and_then(|n| n.parse().ok());
    let Some(number) = number else {
        fields.problem(
            "id",
            format!(
                "{id:?} is not <web_name>--<number>, so it has no reference answer; \
                 correct it or leave `answers` out"
            ),
        );
        return None;
    };
    let found = answers.by_task.get(&(site.to_owned(), number)).cloned();
    if found.is_none() {
        fields.problem(
            "id",
            format!("{id:?} has no reference answer in {}; add it or leave `answers` out", answers.location),
        );
    }
    found
}

/// A site's pages are also on its sister hosts: `www.allrecipes.com` may reach `*.allrecipes.com`.
fn sister_hosts(start_url: &str) -> Option<String> {
    let url = url::Url::parse(start_url).ok()?;
    let host = url.domain()?;
    Some(format!("*.{}", host.strip_prefix("www.").unwrap_or(host)))
}

/// The reference answers, by site and number.
struct ReferenceAnswers {
    location: String,
    by_task: HashMap<(String, u64), Value>,
}

impl ReferenceAnswers {
    /// Validates `{"<web_name>": {"notice": …, "answers": [{"id": n, "type": "golden"|"possible",
    /// "ans": …}]}}`.
    fn read(path: &Path, key: &str, problems: &mut Vec<String>) -> Self {
        let location = path.display().to_string();
        let mut answers = Self { location: location.clone(), by_task: HashMap::new() };
        let sites = match read_object(path) {
            Ok(sites) => sites,
            Err(problem) => {
                problems.push(format!("{key}.answers: {location}: {problem}"));
                return answers;
            }
        };
        for (site, entry) in &sites {
            let list = entry.get("answers").and_then(Value::as_array);
            let Some(list) = list else {
                problems.push(format!(
                    "{location}: {site:?} has no list `answers`; use WebVoyager's reference_answer.json"
                ));
                continue;
            };
            for (index, answer) in list.iter().enumerate() {
                answers.add(site, index, answer, problems);
            }
        }
        answers
    }

    fn add(&mut self, site: &str, index: usize, answer: &Value, problems: &mut Vec<String>) {
        let empty = Map::new();
        let location = format!("{}: {site}.answers[{index}].", self.location);
        let mut fields = JsonFields::new(answer.as_object().unwrap_or(&empty), location, problems);
        let number = fields.integer("id", 0..=u64::from(u32::MAX));
        let kind = fields.choice("type", &[("golden", "golden"), ("possible", "possible")]);
        // Not `text`: the published file has a form feed where a formula has \frac, and the answer
        // is only passed on.
        let text =
            fields.value("ans").and_then(Value::as_str).filter(|text| text.len() <= REFERENCE_BYTES_MAX);
        let (Some(number), Some(kind), Some(text)) = (number, kind, text) else {
            fields
                .problem("id", "an answer needs a number `id`, `type` golden or possible, and a text `ans`");
            return;
        };
        let reference = json!({ "type": kind, "answer": text });
        if self.by_task.insert((site.to_owned(), number), reference).is_some() {
            problems.push(format!(
                "{}: {site}.answers[{index}].id: {number} is already used; keep one",
                self.location
            ));
        }
    }
}

fn read_object(path: &Path) -> Result<Map<String, Value>, String> {
    let bytes = jsonl::read_capped(path).map_err(|e| format!("cannot be read: {e}"))?;
    serde_json::from_slice(&bytes).map_err(|e| format!("is not a JSON object: {e}"))
}
