//! Grounding sets: a picture, an instruction, a box. A page shows the picture, the first click ends
//! the task and counts if it is inside the box, so that the mean reward is the click accuracy.
//!
//! Rows come from Parquet files or from JSON Lines. Three published layouts are supported; they
//! differ in their other columns, which are kept, and in the format of the box:
//!
//! - Hcompany/WebClick (`dataset_info` in the card of its copy lhoestq/WebClick): `image`,
//!   `instruction`, `bbox`, `bucket`. The box is left, top, right and bottom as shares of the
//!   picture.
//! - rootsautomation/ScreenSpot (its card): `file_name`, `bbox`, `instruction`, `data_type`,
//!   `data_source`, `image`. The box has the same format.
//! - agent-studio/GroundUI-1K and -18K (card of Voxel51/GroundUI-18k): `image`, `instruction`,
//!   `bbox`, `resolution`, `source`, `platform`. The box is left, top, right and bottom in pixels.
//!
//! `image` is Hugging Face's struct of `bytes` and `path`; in JSON Lines it is a path below the
//! file's folder, or an object with `path`. `tasks.source[].boxes` sets the format of the boxes
//! where the numbers alone are ambiguous.

mod boxes;
mod parquet;
mod picture;
mod picture_set;
mod row;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use furrow_rollout::{ImageFormat, ObservationSpec, PageClock, PageHooks, Size, Split};
use serde_json::{Map, Value, json};
use url::Url;

use crate::fields::JsonFields;
use crate::file_keys::FileKeys;
use crate::jsonl::{self, CommonKeys, refuse_repeated};
use crate::source::{LoadedSource, SuiteDefaults, TaskSpec};
use crate::{Scorer, SiteRoot, SiteSpec, SourceConfig};
pub use boxes::BoxForm;
use boxes::read_box;
use picture::PictureFile;
pub use picture_set::PictureSet;
use row::GroundingRow;

/// Longest instruction: it becomes part of the prompt.
const INSTRUCTION_BYTES_MAX: usize = 16 << 10;

/// Longest side that is shown in full size; larger pictures are scaled down, because of limits of
/// Chromium's window and of a model's tiles.
const SIDE_MAX: u32 = 4096;

const PROBE: &str = include_str!("hooks/grounding_probe.js");
const START: &str = include_str!("hooks/grounding_start.js");

const DEFAULTS: SuiteDefaults = SuiteDefaults {
    split: Split::Test,
    max_steps: 1,
    time_limit_millis: 120_000,
    viewport: Size::new(1280, 720),
    // The original picture, not a second compression of it.
    observation: ObservationSpec { format: ImageFormat::Png, clip: None, square: false },
    clock: PageClock::Real,
};

/// Whether a source has this layout: a Parquet file, a folder of them, or JSON Lines of pictures.
pub(crate) fn is_grounding_set(source: &SourceConfig) -> bool {
    source.path.extension().is_some_and(|ending| ending == "parquet")
        || !shards(&source.path).is_empty()
        || (source.path.is_file() && starts_with_picture_row(&source.path))
}

/// Parquet files of a folder, in the order of their names.
fn shards(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut shards: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|ending| ending == "parquet")).collect();
    shards.sort();
    shards
}

/// Whether the first line has `image` and `bbox` and no start address.
fn starts_with_picture_row(path: &Path) -> bool {
    use std::io::{BufRead, BufReader, Read};
    let Ok(file) = std::fs::File::open(path) else { return false };
    let mut line = String::new();
    let read = BufReader::new(file.take(1 << 16)).read_line(&mut line);
    let row: Option<Map<String, Value>> = read.ok().and_then(|_| serde_json::from_str(line.trim()).ok());
    row.is_some_and(|row| {
        row.contains_key("image") && row.contains_key("bbox") && !row.contains_key("start_url")
    })
}

/// Loads the rows; every picture is opened once to read its size.
pub(crate) fn load(source: &SourceConfig, problems: &mut Vec<String>) -> LoadedSource {
    let location = source.path.display().to_string();
    let host = format!("{}.test", source.suite);
    let Ok(site) = Url::parse(&format!("http://{host}/")) else {
        problems.push(format!(
            "{}.suite: {:?} is not a host name; choose another name",
            source.key, source.suite
        ));
        return LoadedSource::default();
    };
    let rows = match source.path.extension() {
        Some(ending) if ending == "parquet" => parquet::read(std::slice::from_ref(&source.path), problems),
        _ if source.path.is_dir() => parquet::read(&shards(&source.path), problems),
        _ => read_lines(&source.path, problems),
    };
    if rows.is_empty() && problems.is_empty() {
        problems.push(format!("{location}: contains no row"));
    }
    let mut specs = Vec::new();
    let mut lines = Vec::new();
    let mut pictures = PictureSet::default();
    for (index, row) in rows.into_iter().enumerate() {
        let line = row.line;
        if let Some(spec) = read_task(index, &row, source, &site, problems) {
            pictures.add(row.picture, Size { ..spec.task.viewport });
            specs.push(spec);
            lines.push(line);
        }
    }
    if problems.is_empty() {
        let ids = specs.iter().map(|spec| spec.task.task_id.as_str());
        refuse_repeated(&location, lines.iter().copied().zip(ids), problems);
    }
    let sites = vec![SiteSpec { host, root: SiteRoot::Pictures(Arc::new(pictures)) }];
    LoadedSource { specs, sites, lines, location, ..LoadedSource::default() }
}

fn read_lines(path: &Path, problems: &mut Vec<String>) -> Vec<GroundingRow> {
    let shown = path.display().to_string();
    let folder = path.parent().unwrap_or(Path::new("."));
    let rows = jsonl::read(path, problems);
    rows.into_iter()
        .filter_map(|row| {
            let location = format!("{shown}:{}", row.line);
            let image = row.fields.get("image");
            let named = image.and_then(|image| image.as_str().or_else(|| image.get("path")?.as_str()));
            let picture = named
                .ok_or_else(|| "is missing; give the picture's path below the file's folder".to_owned())
                .and_then(|named| PictureFile::from_file(folder, named));
            match picture {
                Ok(picture) => Some(GroundingRow { location, line: row.line, fields: row.fields, picture }),
                Err(problem) => {
                    problems.push(format!("{location}: image: {problem}"));
                    None
                }
            }
        })
        .collect()
}

fn read_task(
    index: usize,
    row: &GroundingRow,
    source: &SourceConfig,
    site: &Url,
    problems: &mut Vec<String>,
) -> Option<TaskSpec> {
    let before = problems.len();
    let mut fields = JsonFields::new(&row.fields, format!("{}: ", row.location), problems);
    let goal = fields.required_text("instruction", INSTRUCTION_BYTES_MAX);
    let edges = read_box(&mut fields, source.boxes, row.picture.size);
    let task_id = fields.text("task_id", 256).unwrap_or_else(|| format!("row-{index:06}"));
    if problems.len() > before {
        return None;
    }
    let goal = goal?;
    let edges = edges?;
    let (viewport, scale) = scaled_size(row.picture.size);
    let shown = edges.map(|edge| edge * scale);
    let mut record = row.fields.clone();
    record.insert("task_id".to_owned(), json!(task_id));
    record.insert("picture".to_owned(), json!([row.picture.size.width, row.picture.size.height]));
    record.insert("score".to_owned(), json!({ "kind": "click", "box": shown }));
    let scorer =
        Scorer::read(&mut JsonFields::new(&record, format!("{}: ", row.location), problems), "score")?;
    let [left, top, right, bottom] = shown;
    let solve = format!(
        "return {{ action: \"click_element\", element: \"the target\", x: {}, y: {} }};",
        (left + right) / 2.0,
        (top + bottom) / 2.0
    );
    let hooks =
        PageHooks { start: Some(START.to_owned()), probe: Some(PROBE.to_owned()), solve: Some(solve) };
    let common = CommonKeys {
        task_id,
        goal: Some(goal),
        start_url: site.join(&format!("{index:06}.html")).ok()?,
        seed: None,
        max_steps: None,
        time_limit_millis: None,
        viewport: Some(viewport),
        split: None,
        difficulty: None,
        chance_level: None,
        allow_hosts: Vec::new(),
        files: FileKeys::default(),
        reset: None,
        secrets: Vec::new(),
    };
    let json = Value::Object(record).to_string();
    Some(TaskSpec::assembled(common, scorer, hooks, json, source, &DEFAULTS))
}

/// The viewport for a picture, and the factor by which the picture is scaled down.
fn scaled_size(size: Size) -> (Size, f64) {
    let longest = size.width.max(size.height).max(1);
    let scale = (f64::from(SIDE_MAX) / f64::from(longest)).min(1.0);
    let side = |side: u32| ((f64::from(side) * scale).round() as u32).clamp(16, SIDE_MAX);
    (Size::new(side(size.width), side(size.height)), scale)
}

#[cfg(test)]
mod tests;
