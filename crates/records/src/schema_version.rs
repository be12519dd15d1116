//! The versions of the schema, and what the files of each lack of today's columns.
//!
//! Columns only come: none is renamed, removed or given another type. So an older file is today's
//! without some columns, which read as null. Every version since v0.1.0 is read.

use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use furrow_rollout::SCHEMA_VERSION;
use sha2::{Digest, Sha256};

use crate::Table;
use crate::schema::hex;

/// A version of the schema that this release reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SchemaVersion {
    /// Its number in manifests and footers.
    pub(crate) number: u32,
    /// Columns of today that its files lack, by table and path.
    lacks: &'static [(Table, &'static str)],
}

/// Every version, the oldest first. The last one is what this release writes.
pub(crate) const VERSIONS: [SchemaVersion; SCHEMA_VERSION as usize] = [
    SchemaVersion {
        number: 1,
        lacks: &[
            (Table::Trajectories, "success"),
            (Table::Trajectories, "evidence.findings_json"),
            (Table::Trajectories, "environment.walls"),
        ],
    },
    SchemaVersion {
        number: 2,
        lacks: &[(Table::Trajectories, "evidence.findings_json"), (Table::Trajectories, "environment.walls")],
    },
    SchemaVersion { number: 3, lacks: &[(Table::Trajectories, "environment.walls")] },
    SchemaVersion { number: 4, lacks: &[] },
];

impl SchemaVersion {
    /// The version that this release writes.
    pub(crate) fn newest() -> Self {
        VERSIONS[VERSIONS.len() - 1]
    }

    /// The version of this number, if this release reads it.
    pub(crate) fn find(number: u32) -> Option<Self> {
        VERSIONS.into_iter().find(|version| version.number == number)
    }

    /// The columns of a table.
    pub(crate) fn fields(self, table: Table) -> Fields {
        let lacks: Vec<&str> =
            self.lacks.iter().filter(|(of, _)| *of == table).map(|(_, path)| *path).collect();
        without("", &table.fields(), &lacks)
    }

    /// Whether the table's files have this column.
    pub(crate) fn has(self, table: Table, path: &str) -> bool {
        !self.lacks.contains(&(table, path))
    }

    /// Hash of names, types and nullability of all columns, hexadecimal.
    pub(crate) fn sha256(self, table: Table) -> String {
        hex(&Sha256::digest(description(&self.fields(table))))
    }
}

/// Fields without those of these paths; `above` is the path that leads to them.
fn without(above: &str, fields: &Fields, lacks: &[&str]) -> Fields {
    let kept = |field: &FieldRef| {
        let path = format!("{above}{}", field.name());
        (!lacks.contains(&&*path)).then(|| {
            let data_type = match field.data_type() {
                DataType::Struct(fields) => DataType::Struct(without(&format!("{path}."), fields, lacks)),
                DataType::List(item) => match item.data_type() {
                    DataType::Struct(fields) => {
                        let inner = DataType::Struct(without(&format!("{path}."), fields, lacks));
                        DataType::List(item.as_ref().clone().with_data_type(inner).into())
                    }
                    _ => field.data_type().clone(),
                },
                other => other.clone(),
            };
            field.as_ref().clone().with_data_type(data_type)
        })
    };
    fields.iter().filter_map(kept).collect()
}

/// A line for each field and those inside it: name, type, whether it may be null.
fn description(fields: &Fields) -> String {
    let mut lines = String::new();
    fields.iter().for_each(|field| describe("", field, &mut lines));
    lines
}

fn describe(above: &str, field: &Field, lines: &mut String) {
    let path = format!("{above}{}", field.name());
    let null = if field.is_nullable() { " or null" } else { "" };
    match field.data_type() {
        DataType::Struct(fields) => {
            lines.push_str(&format!("{path}: struct{null}\n"));
            fields.iter().for_each(|field| describe(&format!("{path}."), field, lines));
        }
        DataType::List(item) => {
            lines.push_str(&format!("{path}: list{null}\n"));
            describe(&format!("{path}."), item, lines);
        }
        other => lines.push_str(&format!("{path}: {other}{null}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(version: SchemaVersion) -> String {
        let tables = [Table::Trajectories, Table::Steps, Table::Groups, Table::Scores];
        tables.map(|table| format!("# {table}\n{}", description(&version.fields(table)))).concat()
    }

    /// The columns are a contract with every reader: a change needs a new `SCHEMA_VERSION`, a row
    /// in `VERSIONS` and a list of its own here. The lists of earlier versions never change.
    #[test]
    fn a_changed_column_is_a_new_schema_version() {
        let lists = [
            include_str!("../tests/schema_v1.txt"),
            include_str!("../tests/schema_v2.txt"),
            include_str!("../tests/schema_v3.txt"),
            include_str!("../tests/schema_v4.txt"),
        ];
        assert_eq!(lists.len(), VERSIONS.len());
        for (version, list) in VERSIONS.into_iter().zip(lists) {
            let columns = columns(version);
            assert!(columns == list, "the columns of version {} are now:\n{columns}", version.number);
        }
    }

    #[test]
    fn versions_are_numbered_from_one_and_the_newest_lacks_nothing() {
        assert!(VERSIONS.into_iter().map(|version| version.number).eq(1..=SCHEMA_VERSION));
        assert_eq!(SchemaVersion::newest().lacks, []);
        assert_eq!(SchemaVersion::find(SCHEMA_VERSION + 1), None);
        assert_eq!(SchemaVersion::find(0), None);
    }

    /// An older file reads as today's with nulls, so a column that it lacks must hold them; and a
    /// path that names no column would lack nothing.
    #[test]
    fn what_an_older_version_lacks_is_a_nullable_column_of_today() {
        for version in VERSIONS {
            for (table, path) in version.lacks {
                let column = table.columns().into_iter().find(|column| column.path == *path);
                assert!(column.is_some_and(|column| column.nullable), "{table}: {path}");
            }
        }
    }

    #[test]
    fn a_column_inside_a_list_of_structs_can_be_lacking() {
        let fields = Table::Steps.fields();
        let lacks = ["observation.tabs.active", "observation.axtree", "reward"];
        let before = description(&fields);
        let after = description(&without("", &fields, &lacks));
        let lost: Vec<&str> =
            before.lines().filter(|line| !after.lines().any(|kept| kept == *line)).collect();
        let wanted = [
            "observation.tabs.item.active: Boolean",
            "observation.axtree: Utf8 or null",
            "reward: Float32 or null",
        ];
        assert_eq!(lost, wanted);
    }
}
