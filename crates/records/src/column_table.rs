//! The columns of all tables as Markdown, for docs/DATASET.md and the card of a data set.

use std::collections::BTreeSet;

use arrow::datatypes::{DataType, Field, Fields};

use crate::Table;
use crate::cell::{Column, ColumnCell};
use crate::schema::ImageCell;

/// A heading and a table of columns for each table of the data set.
pub(crate) fn column_tables() -> String {
    let tables = [
        ("`trajectories`", Table::Trajectories),
        ("`steps` and `failed_steps`", Table::Steps),
        ("`groups`", Table::Groups),
        ("`scores`", Table::Scores),
    ];
    tables.map(|(heading, table)| format!("### {heading}\n\n{}", column_table(table))).join("\n")
}

fn column_table(table: Table) -> String {
    let mut lines = String::from("| column | type | meaning |\n|---|---|---|\n");
    let columns = table.columns();
    let is_image = |column: &Column| is_image(&column.data_type);
    let images: BTreeSet<&str> =
        columns.iter().filter(|column| is_image(column)).map(|column| &*column.path).collect();
    let lists: BTreeSet<&str> = columns
        .iter()
        .filter(|column| matches!(column.data_type, DataType::List(_)))
        .map(|column| &*column.path)
        .collect();
    for column in &columns {
        let above = column.path.rsplit_once('.').map(|(above, _)| above);
        if above.is_some_and(|above| images.contains(above)) {
            continue;
        }
        let path = shown_path(&column.path, &lists);
        let cells = type_name(&column.data_type, column.nullable);
        let meaning = column.meaning.replace('|', "\\|");
        lines.push_str(&format!("| `{path}` | `{cells}` | {meaning} |\n"));
    }
    lines
}

/// The path with `[]` behind the name of each list that it leads through.
fn shown_path(path: &str, lists: &BTreeSet<&str>) -> String {
    let mut shown = String::new();
    for (at, part) in path.match_indices('.').map(|(at, _)| at).chain([path.len()]).scan(0, |from, at| {
        let part = &path[*from..at];
        *from = at + 1;
        Some((at, part))
    }) {
        shown.push_str(part);
        if at < path.len() {
            shown.push_str(if lists.contains(&path[..at]) { "[]." } else { "." });
        }
    }
    shown
}

/// The name of a type; a question mark where it may be null.
fn type_name(data_type: &DataType, nullable: bool) -> String {
    let name = match data_type {
        DataType::List(item) => format!("list<{}>", type_name(item.data_type(), item.is_nullable())),
        image if is_image(image) => "image".to_owned(),
        DataType::Struct(_) => "struct".to_owned(),
        DataType::Timestamp(..) => "timestamp".to_owned(),
        other => dtype(other),
    };
    format!("{name}{}", if nullable { "?" } else { "" })
}

/// Name of a plain type in Python libraries.
pub(crate) fn dtype(data_type: &DataType) -> String {
    match data_type {
        DataType::Utf8 => "string".to_owned(),
        DataType::Boolean => "bool".to_owned(),
        DataType::FixedSizeBinary(bytes) => format!("fixed_size_binary[{bytes}]"),
        DataType::Timestamp(_, zone) => {
            format!("timestamp[us, tz={}]", zone.as_deref().unwrap_or("UTC"))
        }
        other => other.to_string().to_lowercase(),
    }
}

/// Whether it is the struct of a picture: Hugging Face's convention.
pub(crate) fn is_image(data_type: &DataType) -> bool {
    *data_type == ImageCell::data_type()
}

/// The fields of a struct, or of the structs in a list.
pub(crate) fn inner_fields(field: &Field) -> Option<&Fields> {
    match field.data_type() {
        DataType::Struct(fields) => Some(fields),
        DataType::List(item) => match item.data_type() {
            DataType::Struct(fields) => Some(fields),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: &str = "<!-- written from crates/records/src/schema.rs by FURROW_WRITE_COLUMNS=1 -->\n";
    const END: &str = "<!-- end of what is written from schema.rs -->\n";

    #[test]
    fn the_documentation_has_every_column_with_its_meaning() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/DATASET.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        let wanted = format!("{before}{BEGIN}\n{}\n{END}{after}", column_tables());
        if std::env::var_os("FURROW_WRITE_COLUMNS").is_some() {
            std::fs::write(path, &wanted).unwrap();
        }
        assert!(
            std::fs::read_to_string(path).unwrap() == wanted,
            "docs/DATASET.md differs from schema.rs; run FURROW_WRITE_COLUMNS=1 cargo test -p furrow-records --lib column_table"
        );
    }

    #[test]
    fn every_column_has_a_meaning() {
        for table in Table::ALL {
            for column in table.columns() {
                assert!(column.meaning.ends_with('.'), "{table}: {}: {:?}", column.path, column.meaning);
            }
        }
    }

    #[test]
    fn paths_and_types_are_written_as_readers_name_them() {
        let table = column_table(Table::Steps);
        for row in [
            "| `observation.screenshot` | `image` | The picture that the policy received. |",
            "| `observation.tabs[].active` | `bool` | Whether it is the tab in front. |",
            "| `logprobs` | `list<float32?>?` | ",
            "| `prefix_hash` | `fixed_size_binary[16]?` | ",
            "| `observed_at` | `timestamp` | ",
            "| `image_spans[].rgb_sha256` | `fixed_size_binary[32]` | ",
        ] {
            assert!(table.contains(row), "{row} is not in\n{table}");
        }
        assert!(!table.contains("screenshot.bytes"));
    }
}
