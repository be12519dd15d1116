//! The only module that prints: lines for people, JSON for programs.
//!
//! A reader may close the pipe: under `furrow … | head` the command prints no more and works to its
//! end. Output lost for another reason, such as a full disk, is a failure, which `write_error`
//! returns at the end.

use std::io::{ErrorKind, Write};
use std::sync::OnceLock;

use serde::Serialize;

/// The first write to the standard output that failed.
static WRITE_ERROR: OnceLock<std::io::Error> = OnceLock::new();

/// The program in whose name problems are printed: `furrow` unless [`set_program`] named another.
static PROGRAM: OnceLock<&str> = OnceLock::new();

/// Names the program in whose name problems are printed.
pub fn set_program(name: &'static str) {
    // Only the first name is kept.
    PROGRAM.set(name).ok();
}

/// Prints a line for people.
pub fn line(text: impl AsRef<str>) {
    if let Err(error) = writeln!(std::io::stdout().lock(), "{}", text.as_ref()) {
        // Only the first error is kept.
        drop(WRITE_ERROR.set(error));
    }
}

/// Prints bytes as they are.
pub(crate) fn raw(bytes: &[u8]) {
    if let Err(error) = std::io::stdout().lock().write_all(bytes) {
        // Only the first error is kept.
        drop(WRITE_ERROR.set(error));
    }
}

/// Prints a value for programs.
pub fn json(value: &impl Serialize) -> Result<(), serde_json::Error> {
    line(serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Prints a value for programs on one line, where more values follow.
pub(crate) fn json_line(value: &impl Serialize) -> Result<(), serde_json::Error> {
    line(serde_json::to_string(value)?);
    Ok(())
}

/// The error of lost output, unless the reader closed the pipe.
pub(crate) fn write_error() -> Option<&'static std::io::Error> {
    WRITE_ERROR.get().filter(|error| error.kind() != ErrorKind::BrokenPipe)
}

/// Prints progress on the error stream.
pub(crate) fn progress_line(text: impl AsRef<str>) {
    // A failed write to the error stream cannot be reported anywhere.
    drop(writeln!(std::io::stderr().lock(), "{}", text.as_ref()));
}

/// Prints a problem on the error stream.
pub fn error_line(text: &str) {
    progress_line(format!("{}: {text}", PROGRAM.get().unwrap_or(&"furrow")));
}

/// Prints rows as a table with aligned columns: the first one left, the others right.
pub fn table(header: &[&str], rows: &[Vec<String>]) {
    // Names in a data set are untrusted text.
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

/// Bytes in decimal units.
pub(crate) fn bytes(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} B"),
        1_000..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.2} GB", count as f64 / 1e9),
    }
}

/// A share in percent, or a dash for none.
pub fn percent(share: Option<f64>) -> String {
    share.map_or("–".to_owned(), |share| format!("{:.0} %", share * 100.0))
}
