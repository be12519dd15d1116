//! Sizes of steps: tokens, tiles and time of each, without reading a picture.

use furrow_records::cell::columns;
use furrow_records::{DataSet, RecordsError, Table};
use furrow_rollout::{StepRecord, TimeCause};

/// Tokens and tiles of a step that has tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepTokens {
    /// Tokens that the prompt added at this step, including those of screenshots.
    pub prompt: u32,
    /// Of those, tokens before the step's own screenshot; 0 without one.
    pub before_image: u32,
    /// Tokens of the step's own screenshot.
    pub image_rows: u32,
    /// Tiles that the screenshot was cut into, including a thumbnail.
    pub tiles: u32,
    /// Tokens of the reply.
    pub response: u32,
    /// Of those, tokens that the policy sampled.
    pub sampled: u32,
}

/// Size and time of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepSize {
    /// Id of its trajectory.
    pub trajectory_id: String,
    /// Its index, from 0.
    pub step: u32,
    /// Its tokens; `None` for a policy that records none.
    pub tokens: Option<StepTokens>,
    /// Microseconds of the step spent on anything but waiting for the policy.
    pub page_micros: u64,
}

columns! {
    /// The columns that sizes are computed from.
    SizeRow {
        trajectory_id: String,
        step: i32,
        prompt_token_ids: Option<Vec<i32>>,
        image_spans: Option<Vec<SpanCell>>,
        response_token_ids: Option<Vec<i32>>,
        response_mask: Option<Vec<bool>>,
        prefix_len: Option<i32>,
        timing: PageTiming,
    }

    SpanCell { step: i32, token_start: i32, token_len: i32, tiles_x: i16, tiles_y: i16 }

    PageTiming {
        boot_micros: i64,
        observe_micros: i64,
        act_micros: i64,
        settle_micros: i64,
        record_micros: i64,
        finish_micros: i64,
    }
}

/// The screenshot of a step in its prompt.
#[derive(Debug, Clone, Copy)]
struct ScreenshotSpan {
    start: u32,
    rows: u32,
    grid: (u32, u32),
}

impl StepTokens {
    fn of(
        prompt: usize,
        prefix: u32,
        own: Option<ScreenshotSpan>,
        (response, sampled): (usize, usize),
    ) -> Self {
        let none = ScreenshotSpan { start: prefix, rows: 0, grid: (0, 0) };
        let ScreenshotSpan { start, rows, grid } = own.unwrap_or(none);
        Self {
            prompt: prompt as u32,
            before_image: start.saturating_sub(prefix),
            image_rows: rows,
            tiles: tiles(rows, grid.0 * grid.1),
            response: response as u32,
            sampled: sampled as u32,
        }
    }
}

impl StepSize {
    /// The size of a step that is not in a shard yet.
    pub fn of(trajectory_id: &str, record: &StepRecord) -> Self {
        let tokens = record.trace.tokens.as_ref().map(|tokens| {
            let own = tokens.image_spans.iter().find(|span| span.step == record.step);
            let own = own.map(|span| ScreenshotSpan {
                start: span.token_start,
                rows: span.token_len,
                grid: (span.tiles_x.into(), span.tiles_y.into()),
            });
            let sampled = tokens.response_mask.iter().filter(|sampled| **sampled).count();
            let response = (tokens.response_token_ids.len(), sampled);
            StepTokens::of(tokens.prompt_token_ids.len(), tokens.prefix_len, own, response)
        });
        let page_micros = record.timing.total() - record.timing.of(TimeCause::Policy);
        Self { trajectory_id: trajectory_id.to_owned(), step: record.step, tokens, page_micros }
    }
}

impl From<SizeRow> for StepSize {
    fn from(row: SizeRow) -> Self {
        let count = |number: i32| u32::try_from(number).unwrap_or(0);
        let tokens = row.prompt_token_ids.zip(row.response_token_ids).map(|(prompt, response)| {
            let own = row.image_spans.iter().flatten().find(|span| span.step == row.step);
            let own = own.map(|span| ScreenshotSpan {
                start: count(span.token_start),
                rows: count(span.token_len),
                grid: (count(span.tiles_x.into()), count(span.tiles_y.into())),
            });
            let sampled = row.response_mask.iter().flatten().filter(|sampled| **sampled).count();
            let prefix = row.prefix_len.map_or(0, count);
            StepTokens::of(prompt.len(), prefix, own, (response.len(), sampled))
        });
        let PageTiming {
            boot_micros,
            observe_micros,
            act_micros,
            settle_micros,
            record_micros,
            finish_micros,
        } = row.timing;
        let micros = [boot_micros, observe_micros, act_micros, settle_micros, record_micros, finish_micros];
        let page_micros = micros.into_iter().map(|micros| u64::try_from(micros).unwrap_or(0)).sum();
        Self { trajectory_id: row.trajectory_id, step: count(row.step), tokens, page_micros }
    }
}

/// Tiles of `rows` tokens on a grid of `cells`: the cells, and a thumbnail where there was one. A
/// tile has n² tokens, and `cells a² = (cells + 1) b²` has no solution in whole numbers, so the
/// number of tokens decides.
fn tiles(rows: u32, cells: u32) -> u32 {
    let fits = |tiles: &u32| *tiles > 0 && rows > 0 && rows.is_multiple_of(*tiles) && is_square(rows / tiles);
    [cells, cells + 1].into_iter().find(fits).unwrap_or(cells)
}

fn is_square(number: u32) -> bool {
    number.isqrt().pow(2) == number
}

/// Sizes of the steps of all scored trajectories; those of one trajectory are adjacent and in
/// order.
///
/// # Errors
/// Fails when a file cannot be read.
pub fn step_sizes(set: &DataSet) -> Result<Vec<StepSize>, RecordsError> {
    let mut sizes = Vec::new();
    for batch in set.rows::<SizeRow>(Table::Steps) {
        sizes.extend(batch?.into_iter().map(StepSize::from));
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_columns_of_steps() {
        assert!(Table::Steps.has_columns::<SizeRow>());
    }

    #[test]
    fn rows_and_cells_say_whether_there_was_a_thumbnail() {
        for (rows, cells, want) in [
            (256, 1, 1),
            (3 * 256, 2, 3),
            (2 * 256, 2, 2),
            (7 * 256, 6, 7),
            (13 * 256, 12, 13),
            (12 * 256, 12, 12),
            (4 * 4, 4, 4),
            (4 * 5, 4, 5),
            (0, 0, 0),
            // A vision tower without square tiles: only the grid is known.
            (30, 4, 4),
        ] {
            assert_eq!(tiles(rows, cells), want, "{rows} rows on {cells} cells");
        }
        for cells in 1..=12_u32 {
            for side in 1..=16_u32 {
                assert_eq!(tiles(cells * side * side, cells), cells);
                assert_eq!(tiles((cells + 1) * side * side, cells), cells + 1);
            }
        }
    }
}
