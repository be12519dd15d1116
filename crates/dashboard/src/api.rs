//! Makes the answers of `/api/` from the view and from the metrics, and returns pictures as they
//! were recorded.

use furrow_analysis::view::{DataSetTally, DataSetView, PictureSource, TableSize, TrajectoryQuery};
use serde_json::Value;

use crate::answers::{
    ChoicesAnswer, JobAnswer, LearningAnswer, OverviewAnswer, PageHead, TableTotals, TrajectoryAnswer,
    TrajectoryRow, TrajectoryWindow,
};
use crate::api_error::DashboardApiError;
use crate::follow::DashboardState;
use crate::live_run::LiveRun;
use crate::metrics;
use crate::plan;
use crate::query::TableWindow;

/// The header of every page: the run, and how complete its data is.
pub(crate) fn head(state: &DashboardState) -> PageHead {
    let subject = &state.subject;
    let view = state.view();
    let index_view = view.as_ref().map(|view| view.state());
    PageHead {
        name: subject.name.clone(),
        version: index_view.as_ref().map_or(0, |shown| shown.version),
        generation: index_view.as_ref().map_or(0, |shown| shown.generation),
        lines: state.load_history().lines,
        trajectories: index_view.as_ref().map_or(0, |shown| shown.index.len() as u64),
        left_out: index_view.as_ref().map_or(0, |shown| shown.index.left_out()),
        step_files_left: index_view.as_ref().map_or(0, |shown| shown.step_files_left() as u64),
        problems: index_view.as_ref().map(|shown| shown.problems.clone()).unwrap_or_default(),
        trouble: state.trouble(),
        device: subject.device,
    }
}

pub(crate) fn overview(state: &DashboardState) -> OverviewAnswer {
    let story = state.load_history();
    let totals = story.totals.as_ref();
    let over_time = (story.moments.as_slice(), story.pauses.as_slice());
    let subject = &state.subject;
    let of =
        |tally: &_| metrics::overview(tally, totals, over_time, subject.device, subject.usd_per_device_hour);
    let metrics = match state.view() {
        Some(view) => of(&view.state().tally),
        None => of(&DataSetTally::default()),
    };
    OverviewAnswer { metrics, head: head(state), live: state.live().map(|live| live.answer()) }
}

/// Data of the page Learning; what a trainer keeps is read from the files.
pub(crate) fn learning(state: &DashboardState) -> Result<LearningAnswer, DashboardApiError> {
    let Some(view) = state.view() else {
        let metrics = metrics::learning(&DataSetTally::default());
        return Ok(LearningAnswer { metrics, kept: None, head: head(state) });
    };
    let metrics = metrics::learning(&view.state().tally);
    let kept = state.kept(&view)?.as_deref().cloned();
    Ok(LearningAnswer { metrics, kept, head: head(state) })
}

pub(crate) fn job(state: &DashboardState) -> JobAnswer {
    let story = state.load_history();
    let view = state.view();
    let ledger = match &view {
        Some(view) => metrics::ledger(&view.state().tally, story.totals.as_ref()),
        None => metrics::ledger(&DataSetTally::default(), story.totals.as_ref()),
    };
    let subject = &state.subject;
    let live = state.live();
    let plan = subject.planned.as_ref().zip(view.as_ref()).map(|(planned, view)| {
        plan::lines(
            planned,
            subject.floor.as_ref(),
            &view.state().tally,
            story.totals.as_ref(),
            live.as_ref(),
        )
    });
    JobAnswer {
        head: head(state),
        // A job names its folder relative to its file, such as `deploy/../runs`.
        dir: subject.dir.as_ref().map(|dir| dir.canonicalize().as_ref().unwrap_or(dir).display().to_string()),
        live: live.as_ref().map(LiveRun::answer),
        workers: live.as_ref().map(LiveRun::workers),
        plan,
        job: subject.job.clone(),
        ledger,
        tables: view.as_ref().map(|view| tables(view)),
        metrics_lines_unread: story.unread,
    }
}

fn tables(view: &DataSetView) -> Vec<TableTotals> {
    let of_table = |size: &TableSize| TableTotals {
        table: size.table.as_str().to_owned(),
        files: size.files,
        rows: size.rows,
        bytes: size.bytes,
    };
    view.state().tables.iter().map(of_table).collect()
}

/// One window of the table of trajectories.
pub(crate) fn trajectories(
    state: &DashboardState,
    query: &str,
) -> Result<TrajectoryWindow, DashboardApiError> {
    let window = TableWindow::parse(query).map_err(DashboardApiError::BadRequest)?;
    let Some(view) = state.view() else { return Ok(TrajectoryWindow::default()) };
    let selected = state.select(&view, &window.query);
    let index_view = view.state();
    let begin = selected.len().min(window.offset as usize);
    let rows =
        selected[begin..].iter().take(window.limit as usize).filter_map(|&row| index_view.index.line(row));
    Ok(TrajectoryWindow {
        total: index_view.index.len() as u64,
        matched: selected.len() as u64,
        offset: begin as u64,
        rows: rows.map(TrajectoryRow::from).collect(),
    })
}

pub(crate) fn choices(state: &DashboardState) -> ChoicesAnswer {
    let of_view = |view: &DataSetView| {
        let index_view = view.state();
        let choices = index_view.index.filter_choices();
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
        ChoicesAnswer {
            suites: owned(choices.suites),
            splits: owned(choices.splits),
            ends: owned(choices.ends),
            policy_kinds: owned(choices.policy_kinds),
            head: PageHead::default(),
        }
    };
    let choices = state.view().map(|view| of_view(&view)).unwrap_or_default();
    ChoicesAnswer { head: head(state), ..choices }
}

/// One trajectory, its steps, and its siblings.
pub(crate) fn trajectory(state: &DashboardState, id: &str) -> Result<TrajectoryAnswer, DashboardApiError> {
    let view = view(state, id)?;
    let look = view.trajectory_detail(id)?.ok_or_else(|| missing(id))?;
    let group = look.trajectory["group_id"].as_str().unwrap_or_default().to_owned();
    let query = TrajectoryQuery { group_id: Some(group), ..TrajectoryQuery::default() };
    let head = head(state);
    let index_view = view.state();
    // A group has at most 1,024 slots, plus failed attempts.
    let mut siblings: Vec<_> = index_view
        .index
        .select(&query)
        .into_iter()
        .take(4096)
        .filter_map(|row| index_view.index.line(row))
        .map(TrajectoryRow::from)
        .collect();
    siblings.sort_by_key(|line| (line.sample_index, line.attempt));
    Ok(TrajectoryAnswer { trajectory: look.trajectory, steps: look.steps, siblings, head })
}

/// A row with every column.
pub(crate) fn row(state: &DashboardState, id: &str, query: &str) -> Result<Value, DashboardApiError> {
    let step = crate::query::step(query).map_err(DashboardApiError::BadRequest)?;
    view(state, id)?.row(id, step)?.ok_or_else(|| missing(id))
}

/// A picture and its media type, which is derived from its first bytes only. `None`: the trajectory
/// has this step or this end, and no picture of it is stored.
pub(crate) fn picture(
    state: &DashboardState,
    id: &str,
    which: &str,
) -> Result<Option<(bytes::Bytes, &'static str)>, DashboardApiError> {
    let shot = match which {
        "evidence" => PictureSource::Evidence,
        step => PictureSource::Step(step.parse().map_err(|_| {
            DashboardApiError::BadRequest(
                "use the number of a step, or `evidence` for the last picture".to_owned(),
            )
        })?),
    };
    let view = view(state, id)?;
    if let Some(bytes) = view.picture(id, shot)? {
        return Ok(Some(with_type(bytes)));
    }
    let row = view.row(id, None)?.ok_or_else(|| missing(id))?;
    let steps = row["num_steps"].as_i64().unwrap_or_default();
    match shot {
        PictureSource::Step(step) if !(0..steps).contains(&i64::from(step)) => Err(missing(id)),
        _ => Ok(None),
    }
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

fn view(state: &DashboardState, id: &str) -> Result<std::sync::Arc<DataSetView>, DashboardApiError> {
    state.view().ok_or_else(|| missing(id))
}

fn missing(id: &str) -> DashboardApiError {
    let id: String = id.chars().take(128).collect();
    DashboardApiError::NotFound(format!(
        "{id}: not committed, expired, or not in this data set; a running trajectory appears when its shard is committed"
    ))
}
