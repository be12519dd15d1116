//! Single values of cells: numbers in narrower columns, texts with a fixed set of values, formats
//! of pictures.

use furrow_rollout::{
    EndKind, Id, IdKind, ImageFormat, PolicyKind, Size, Split, TrajectoryAncestry, TrajectoryStatus,
    WallsLevel,
};

use super::error::RowError;

// Numbers. Unsigned values are stored in signed columns bit for bit; times saturate at 292,000
// years.

pub(super) fn micros(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Times are never negative; a negative cell is read as 0.
pub(super) fn elapsed(cell: i64) -> u64 {
    u64::try_from(cell).unwrap_or(0)
}

pub(super) fn to_i16(column: &'static str, value: u32) -> Result<i16, RowError> {
    i16::try_from(value).map_err(|_| RowError::TooLarge { column, value })
}

pub(super) fn unsigned(cells: &[i32]) -> Vec<u32> {
    cells.iter().map(|id| id.cast_unsigned()).collect()
}

pub(super) fn signed(ids: &[u32]) -> Vec<i32> {
    ids.iter().map(|id| id.cast_signed()).collect()
}

pub(super) fn size(width: i32, height: i32) -> Size {
    Size::new(width.cast_unsigned(), height.cast_unsigned())
}

// Strings.

pub(super) fn id<K: IdKind>(text: &str) -> Result<Id<K>, RowError> {
    Ok(Id::new(text)?)
}

pub(super) fn ancestry(
    run: &str,
    trajectory: &str,
    group: &str,
    sample: i32,
    attempt: i16,
) -> Result<TrajectoryAncestry, RowError> {
    Ok(TrajectoryAncestry {
        run_id: id(run)?,
        group_id: id(group)?,
        sample_index: sample.cast_unsigned(),
        attempt: u32::try_from(attempt).map_err(|_| RowError::NegativeAttempt(attempt))?,
        trajectory_id: id(trajectory)?,
    })
}

pub(super) fn parse_text<T>(
    column: &'static str,
    text: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, RowError> {
    let value = || text.chars().take(40).collect();
    parse(text).ok_or_else(|| RowError::NotAllowed { column, value: value() })
}

pub(super) fn status(text: &str) -> Result<TrajectoryStatus, RowError> {
    let parse = |text: &str| {
        [TrajectoryStatus::Scored, TrajectoryStatus::Failed]
            .into_iter()
            .find(|status| status.as_str() == text)
    };
    parse_text("status", text, parse)
}

pub(super) fn walls_level(text: &str) -> Result<WallsLevel, RowError> {
    parse_text("environment.walls", text, WallsLevel::parse)
}

pub(super) fn end(text: &str) -> Result<EndKind, RowError> {
    parse_text("end", text, EndKind::parse)
}

pub(super) fn split(text: &str) -> Result<Split, RowError> {
    parse_text("split", text, Split::parse)
}

pub(super) fn policy_kind(text: &str) -> Result<PolicyKind, RowError> {
    parse_text("policy_kind", text, PolicyKind::parse)
}

pub(super) fn present<T>(column: &'static str, cell: Option<T>) -> Result<T, RowError> {
    cell.ok_or(RowError::Null { column })
}

// Pictures.

pub(super) fn quality_cell(format: ImageFormat) -> Option<i16> {
    match format {
        ImageFormat::Png => None,
        ImageFormat::Jpeg { quality } => Some(quality.into()),
    }
}

pub(super) fn format(text: &str, quality: Option<i16>) -> Result<ImageFormat, RowError> {
    let quality = quality.map(u8::try_from);
    match (text, quality) {
        ("png", None) => Ok(ImageFormat::Png),
        ("jpeg", Some(Ok(quality))) => Ok(ImageFormat::Jpeg { quality }),
        _ => Err(RowError::ImageFormat),
    }
}

pub(super) fn extension(format: ImageFormat) -> &'static str {
    match format {
        ImageFormat::Png => "png",
        ImageFormat::Jpeg { .. } => "jpg",
    }
}
