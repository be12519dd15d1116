//! Task files of pages we do not serve: rows in our own format, and WebVoyager's rows as they are.
//!
//! A WebVoyager row (`web_name`, `id`, `ques`, `web`) is scored by a judge. Its reference answer goes along for the judge to
//! read; it is never compared as a string, because 500 of the 643 are but one example of a right answer.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use furrow_rollout::{Clock, ImageFormat, ObservationSpec, PageHooks, Size, Split};
use serde_json::{Map, Value, json};

use crate::dates;
use crate::fields::Fields;
use crate::jsonl::{self, Common, Row};
use crate::suite::{Defaults, Loaded, TaskSpec};
use crate::{Scorer, SourceConfig};

/// WebVoyager's own protocol: 15 steps in a window of 1024 x 768. Twenty minutes is the limit others give a task.
const WEBVOYAGER: Defaults = Defaults {
    split: Split::Test,
    max_steps: 15,
    time_limit_millis: 1_200_000,
    viewport: Size::new(1024, 768),
    observation: ObservationSpec { format: ImageFormat::Jpeg { quality: 80 }, clip: None, square: false },
    clock: Clock::Real,
};

/// Rows of our own format about pages elsewhere.
const OWN: Defaults = Defaults {
    split: Split::Train,
    max_steps: 30,
    time_limit_millis: 1_200_000,
    viewport: Size::new(1280, 720),
    ..WEBVOYAGER
};

/// The longest of the published ones has 528 bytes.
const REFERENCE_BYTES_MAX: usize = 16 << 10;

/// Loads a task file that has no pages beside it.
pub(crate) fn load(source: &SourceConfig, problems: &mut Vec<String>) -> Loaded {
    let place = source.path.display().to_string();
    let rows = jsonl::read(&source.path, problems);
    let answers = source.answers.as_deref().map(|path| Answers::read(path, &source.key, problems));
    let specs: Vec<_> = rows
        .iter()
        .filter_map(|row| {
            if is_webvoyager(row) {
                read_webvoyager(row, source, answers.as_ref(), &place, problems)
            } else {
                read_own(row, source, &place, problems)
            }
        })
        .collect();
    let left_out = source.impossible.as_deref().map(|path| read_impossible(path, &source.key, problems));
    let left_out = left_out.unwrap_or_default();
    let notes = notes(source, &rows, &specs, &left_out);
    let lines = rows.iter().map(|row| row.line).collect();
    Loaded { specs, sites: Vec::new(), lines, place, left_out, notes }
}

/// Which variant of the suite this is: rates of different ones cannot be compared.
fn notes(source: &SourceConfig, rows: &[Row], specs: &[TaskSpec], left_out: &HashSet<String>) -> Vec<String> {
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
        serde_json::from_slice::<HashSet<String>>(&bytes).map_err(|e| format!("is no JSON list of ids: {e}"))
    });
    ids.unwrap_or_else(|problem| {
        problems.push(format!("{key}.impossible: {}: {problem}", path.display()));
        HashSet::new()
    })
}

/// A row is WebVoyager's when it has one of its keys and not ours of the same meaning.
fn is_webvoyager(row: &Row) -> bool {
    let has = |key| row.fields.contains_key(key);
    (has("ques") || has("web_name")) && !has("goal") && !has("task_id")
}

fn read_own(row: &Row, source: &SourceConfig, place: &str, problems: &mut Vec<String>) -> Option<TaskSpec> {
    let before = problems.len();
    let mut fields = row.reader(place, problems);
    let common = Common::read(&mut fields, &source.suite, None);
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
    row: &Row,
    source: &SourceConfig,
    answers: Option<&Answers>,
    place: &str,
    problems: &mut Vec<String>,
) -> Option<TaskSpec> {
    let before = problems.len();
    let mut fields = row.reader(place, problems);
    let common = Common::read_webvoyager(&mut fields);
    let site = fields.required_text("web_name", 64);
    let (mut common, site) = (common?, site?);
    let reference = answers.and_then(|answers| reference_of(&mut fields, answers, &site, &common.task_id));
    let score = fields.value("score").cloned().unwrap_or_else(|| judged(reference));
    let mut record = row.fields.clone();
    record.insert("score".to_owned(), score);
    if let Some(years) = source.dates_from.and_then(|from| move_days(&mut common, &site, from)) {
        record.insert("moved_years".to_owned(), json!(years));
    }
    let scorer =
        Scorer::read(&mut Fields::new(&record, format!("{place}:{}: ", row.line), problems), "score");
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
    spec.task.allow_hosts.extend(neighbours(&spec.task.start_url));
    Some(spec)
}

/// Moves the days of a travel task ahead; the record keeps the question as it was written.
fn move_days(common: &mut Common, site: &str, from: time::Date) -> Option<i32> {
    let goal = common.goal.as_deref().filter(|_| dates::SITES.contains(&site))?;
    let (moved, years) = dates::moved(goal, from)?;
    common.goal = Some(moved);
    Some(years)
}

/// The original protocol's judge; how many screenshots it sees is the job's to say, one by default as there.
fn judged(reference: Option<Value>) -> Value {
    let mut score = Map::new();
    score.insert("kind".to_owned(), json!("judge"));
    if let Some(reference) = reference {
        score.insert("reference".to_owned(), reference);
    }
    Value::Object(score)
}

/// Looks an answer up by `web_name` and the number behind the last `--` of the id.
fn reference_of(fields: &mut Fields, answers: &Answers, site: &str, id: &str) -> Option<Value> {
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
            format!("{id:?} has no reference answer in {}; add it or leave `answers` out", answers.place),
        );
    }
    found
}

/// A site's pages lie on its sister hosts too: `www.allrecipes.com` may reach `*.allrecipes.com`.
fn neighbours(start_url: &str) -> Option<String> {
    let url = url::Url::parse(start_url).ok()?;
    let host = url.domain()?;
    Some(format!("*.{}", host.strip_prefix("www.").unwrap_or(host)))
}

/// The reference answers, by site and number.
struct Answers {
    place: String,
    by_task: HashMap<(String, u64), Value>,
}

impl Answers {
    /// The door: `{"<web_name>": {"notice": …, "answers": [{"id": n, "type": "golden"|"possible", "ans": …}]}}`.
    fn read(path: &Path, key: &str, problems: &mut Vec<String>) -> Self {
        let place = path.display().to_string();
        let mut answers = Self { place: place.clone(), by_task: HashMap::new() };
        let sites = match read_object(path) {
            Ok(sites) => sites,
            Err(problem) => {
                problems.push(format!("{key}.answers: {place}: {problem}"));
                return answers;
            }
        };
        for (site, entry) in &sites {
            let list = entry.get("answers").and_then(Value::as_array);
            let Some(list) = list else {
                problems.push(format!(
                    "{place}: {site:?} has no list `answers`; use WebVoyager's reference_answer.json"
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
        let place = format!("{}: {site}.answers[{index}].", self.place);
        let mut fields = Fields::new(answer.as_object().unwrap_or(&empty), place, problems);
        let number = fields.integer("id", 0..=u64::from(u32::MAX));
        let kind = fields.word("type", &[("golden", "golden"), ("possible", "possible")]);
        // Not `text`: the published file has a form feed where a formula says \frac, and the answer is only passed on.
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
                "{}: {site}.answers[{index}].id: {number} was there before; keep one",
                self.place
            ));
        }
    }
}

fn read_object(path: &Path) -> Result<Map<String, Value>, String> {
    let bytes = jsonl::read_capped(path).map_err(|e| format!("cannot be read: {e}"))?;
    serde_json::from_slice(&bytes).map_err(|e| format!("is no JSON object: {e}"))
}
