//! The one place that prints: lines for people, JSON for programs.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is where the binary prints")]

use serde::Serialize;

/// A line for people.
pub fn line(text: impl AsRef<str>) {
    println!("{}", text.as_ref());
}

/// A value for programs.
pub fn json(value: &impl Serialize) -> Result<(), serde_json::Error> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// How far a command is, on the error stream.
pub fn aside(text: impl AsRef<str>) {
    eprintln!("{}", text.as_ref());
}

/// What is wrong, on the error stream.
pub fn complain(text: &str) {
    eprintln!("furrow: {text}");
}

/// Rows as a table with aligned columns: the first left, the others right.
pub fn table(header: &[&str], rows: &[Vec<String>]) {
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
    for row in rows {
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
