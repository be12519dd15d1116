//! The answers of `/api/`: JSON made of the view and of the figures, and pictures as they were recorded.

use furrow_records::RecordsError;
use furrow_records::view::{Shot, TableSize, View};
use serde_json::{Value, json};

use crate::figures;
use crate::follow::State;
use crate::live::Live;
use crate::plan;
use crate::query::Window;

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// What was asked makes no sense.
    Asked(String),
    /// There is no such thing.
    Missing(String),
    /// It is there and cannot be read.
    Broken(String),
    /// Whoever knows did not answer in time.
    Late(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Asked(what) | Self::Missing(what) | Self::Broken(what) | Self::Late(what)) = self;
        f.write_str(what)
    }
}

impl From<RecordsError> for Refusal {
    fn from(error: RecordsError) -> Self {
        Refusal::Broken(furrow_records::chain(&error))
    }
}

/// What the pages say above everything: whose figures these are and how complete.
pub(crate) fn head(state: &State) -> Value {
    let subject = &state.subject;
    let view = state.view();
    let shown = view.as_ref().map(|view| view.shown());
    json!({
        "name": subject.name,
        "version": shown.as_ref().map_or(0, |shown| shown.version),
        "generation": shown.as_ref().map_or(0, |shown| shown.generation),
        "lines": state.story().lines,
        "trajectories": shown.as_ref().map_or(0, |shown| shown.index.len()),
        "left_out": shown.as_ref().map_or(0, |shown| shown.index.left_out()),
        "step_files_left": shown.as_ref().map_or(0, |shown| shown.step_files_left()),
        "problems": shown.as_ref().map(|shown| shown.problems.clone()).unwrap_or_default(),
        "trouble": state.trouble(),
        "device": subject.device,
    })
}

/// Overview.
pub(crate) fn overview(state: &State) -> Value {
    let story = state.story();
    let (totals, moments) = (story.totals.as_ref(), &story.moments);
    let subject = &state.subject;
    let of =
        |tally: &_| figures::overview(tally, totals, moments, subject.device, subject.usd_per_device_hour);
    let mut answer = match state.view() {
        Some(view) => of(&view.shown().tally),
        None => of(&furrow_records::view::Tally::default()),
    };
    answer["head"] = head(state);
    answer["live"] = state.live().map(|live| live.told()).into();
    answer
}

/// Learning; what a trainer keeps is read from the files.
pub(crate) fn learning(state: &State) -> Result<Value, Refusal> {
    let Some(view) = state.view() else {
        let mut answer = figures::learning(&furrow_records::view::Tally::default());
        (answer["head"], answer["kept"]) = (head(state), Value::Null);
        return Ok(answer);
    };
    let mut answer = figures::learning(&view.shown().tally);
    answer["kept"] = serde_json::to_value(state.kept(&view)?.as_deref()).unwrap_or_default();
    answer["head"] = head(state);
    Ok(answer)
}

/// Job.
pub(crate) fn job(state: &State) -> Value {
    let story = state.story();
    let view = state.view();
    let ledger = match &view {
        Some(view) => figures::ledger(&view.shown().tally, story.totals.as_ref()),
        None => figures::ledger(&furrow_records::view::Tally::default(), story.totals.as_ref()),
    };
    let tables = view.as_ref().map(|view| tables(view));
    let (subject, live) = (&state.subject, state.live());
    let plan = subject.planned.as_ref().zip(view.as_ref()).map(|(planned, view)| {
        plan::lines(
            planned,
            subject.floor.as_ref(),
            &view.shown().tally,
            story.totals.as_ref(),
            live.as_ref(),
        )
    });
    json!({
        "head": head(state),
        "dir": subject.dir.as_ref().map(|dir| dir.display().to_string()),
        "live": live.as_ref().map(Live::told),
        "workers": live.as_ref().map(Live::workers),
        "plan": plan,
        "job": subject.job,
        "ledger": ledger,
        "tables": tables,
        "metrics_lines_unread": story.unread,
    })
}

fn tables(view: &View) -> Value {
    let of_table = |size: &TableSize| json!({ "table": size.table.as_str(), "files": size.files, "rows": size.rows, "bytes": size.bytes });
    view.shown().tables.iter().map(of_table).collect()
}

/// A page of the table of trajectories.
pub(crate) fn trajectories(state: &State, query: &str) -> Result<Value, Refusal> {
    let window = Window::parse(query).map_err(Refusal::Asked)?;
    let Some(view) = state.view() else {
        return Ok(json!({ "total": 0, "matched": 0, "offset": 0, "rows": [] }));
    };
    let places = state.select(&view, &window.query);
    let shown = view.shown();
    let begin = places.len().min(window.offset as usize);
    let rows =
        places[begin..].iter().take(window.limit as usize).filter_map(|&place| shown.index.line(place));
    Ok(json!({
        "total": shown.index.len(),
        "matched": places.len(),
        "offset": begin,
        "rows": rows.collect::<Vec<_>>(),
    }))
}

/// What the filters offer.
pub(crate) fn choices(state: &State) -> Value {
    let mut answer = match state.view() {
        Some(view) => json!(view.shown().index.words()),
        None => json!({ "suites": [], "splits": [], "ends": [], "policy_kinds": [] }),
    };
    answer["head"] = head(state);
    answer
}

/// One trajectory, its steps, and its siblings.
pub(crate) fn trajectory(state: &State, id: &str) -> Result<Value, Refusal> {
    let view = view(state, id)?;
    let look = view.look(id)?.ok_or_else(|| missing(id))?;
    let group = look.trajectory["group_id"].as_str().unwrap_or_default().to_owned();
    let query = furrow_records::view::Query { group_id: Some(group), ..Default::default() };
    let of_all = head(state);
    let shown = view.shown();
    // A group has at most 1,024 slots; attempts that failed come on top.
    let mut siblings: Vec<_> = shown
        .index
        .select(&query)
        .into_iter()
        .take(4096)
        .filter_map(|place| shown.index.line(place))
        .collect();
    siblings.sort_by_key(|line| (line.sample_index, line.attempt));
    Ok(json!({ "trajectory": look.trajectory, "steps": look.steps, "siblings": siblings, "head": of_all }))
}

/// A row with every column.
pub(crate) fn row(state: &State, id: &str, query: &str) -> Result<Value, Refusal> {
    let step = crate::query::step(query).map_err(Refusal::Asked)?;
    view(state, id)?.row(id, step)?.ok_or_else(|| missing(id))
}

/// A picture and its media type, which its first bytes tell and nobody else.
pub(crate) fn picture(state: &State, id: &str, which: &str) -> Result<(bytes::Bytes, &'static str), Refusal> {
    let shot = match which {
        "evidence" => Shot::Evidence,
        step => Shot::Step(step.parse().map_err(|_| {
            Refusal::Asked("name a step by its number, or the last picture as `evidence`".to_owned())
        })?),
    };
    let bytes = view(state, id)?.picture(id, shot)?.ok_or_else(|| missing(id))?;
    Ok(with_type(bytes))
}

/// A picture and its media type.
pub(crate) fn with_type(bytes: bytes::Bytes) -> (bytes::Bytes, &'static str) {
    let media_type = picture_type(&bytes);
    (bytes, media_type)
}

fn picture_type(bytes: &[u8]) -> &'static str {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => "image/png",
        [0xff, 0xd8, 0xff, ..] => "image/jpeg",
        _ => "application/octet-stream",
    }
}

fn view(state: &State, id: &str) -> Result<std::sync::Arc<View>, Refusal> {
    state.view().ok_or_else(|| missing(id))
}

fn missing(id: &str) -> Refusal {
    let id: String = id.chars().take(128).collect();
    Refusal::Missing(format!(
        "{id}: not published, or not in this data set; a trajectory that still runs appears when its shard is closed"
    ))
}
