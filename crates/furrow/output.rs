//! The one place that prints: lines for people, JSON for programs.
//!
//! Whoever reads may leave: under `furrow … | head` nothing more is said, and the work goes on to its end. Output that is lost
//! otherwise, as on a full disk, is a failure, which [`lost`] tells at the end.

use std::io::{ErrorKind, Write};
use std::sync::OnceLock;

use serde::Serialize;

/// Why what was printed did not all arrive.
static LOST: OnceLock<std::io::Error> = OnceLock::new();

/// A line for people.
pub fn line(text: impl AsRef<str>) {
    if let Err(error) = writeln!(std::io::stdout().lock(), "{}", text.as_ref()) {
        // Only the first matters, and the first is kept.
        drop(LOST.set(error));
    }
}

/// A value for programs.
pub fn json(value: &impl Serialize) -> Result<(), serde_json::Error> {
    line(serde_json::to_string_pretty(value)?);
    Ok(())
}

/// What could not be printed although somebody was to read it.
pub fn lost() -> Option<&'static std::io::Error> {
    LOST.get().filter(|error| error.kind() != ErrorKind::BrokenPipe)
}

/// How far a command is, on the error stream.
pub fn aside(text: impl AsRef<str>) {
    // There is no other place to say that this one is gone.
    drop(writeln!(std::io::stderr().lock(), "{}", text.as_ref()));
}

/// What is wrong, on the error stream.
pub fn complain(text: &str) {
    aside(format!("furrow: {text}"));
}

/// Rows as a table with aligned columns: the first left, the others right.
pub fn table(header: &[&str], rows: &[Vec<String>]) {
    // Names in a data set may be anybody's.
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| furrow_dashboard::clean(cell)).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let print = |cells: &[&str]| {
        let padded = cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        line(padded.collect::<Vec<_>>().join("  ").trim_end());
    };
    print(header);
    for row in &rows {
        print(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

/// Bytes with a unit.
pub fn bytes(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} B"),
        1_000..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.2} GB", count as f64 / 1e9),
    }
}

/// A share, or a dash where there is none.
pub fn percent(share: Option<f64>) -> String {
    share.map_or("–".to_owned(), |share| format!("{:.0} %", share * 100.0))
}
