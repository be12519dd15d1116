//! Reads rows and their columns into the types of the ledger, and refuses values that they cannot
//! hold.

use furrow_rollout::{Id, IdKind};
use rusqlite::{Connection, OptionalExtension, Row};
use serde::{Deserialize, Serialize};

use super::failure::{MutationFailure, unreadable};
use crate::ledger::LedgerRefusal;

pub(super) fn expect_one(changed: usize, why: LedgerRefusal) -> Result<(), MutationFailure> {
    if changed == 1 { Ok(()) } else { Err(why.into()) }
}

pub(super) fn first_text(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
) -> Result<Option<String>, MutationFailure> {
    Ok(connection.prepare_cached(sql)?.query_row(params, |row| row.get(0)).optional()?)
}

pub(super) fn collect<T>(
    connection: &Connection,
    sql: &str,
    read: impl Fn(&Row<'_>) -> Result<T, MutationFailure>,
) -> Result<Vec<T>, MutationFailure> {
    let mut query = connection.prepare_cached(sql)?;
    let mut rows = query.query([])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(read(row)?);
    }
    Ok(all)
}

pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain structs with string keys always serialise")
}

pub(super) fn unsigned(row: &Row<'_>, column: impl rusqlite::RowIndex) -> Result<u64, MutationFailure> {
    Ok(row.get::<_, i64>(column)?.cast_unsigned())
}

pub(super) fn id<K: IdKind>(
    row: &Row<'_>,
    column: impl rusqlite::RowIndex,
) -> Result<Id<K>, MutationFailure> {
    let text: String = row.get(column)?;
    Id::new(text).map_err(|bad| unreadable(bad.to_string()))
}

pub(super) fn maybe_id<K: IdKind>(
    row: &Row<'_>,
    column: impl rusqlite::RowIndex,
) -> Result<Option<Id<K>>, MutationFailure> {
    let text: Option<String> = row.get(column)?;
    text.map(|text| Id::new(text).map_err(|bad| unreadable(bad.to_string()))).transpose()
}

pub(super) fn parse_column<T>(
    row: &Row<'_>,
    column: impl rusqlite::RowIndex,
    parse: fn(&str) -> Option<T>,
) -> Result<T, MutationFailure> {
    let text: String = row.get(column)?;
    parse(&text).ok_or_else(|| unreadable(format!("{text:?} is not a value this furrow knows")))
}

pub(super) fn parsed<T: for<'a> Deserialize<'a>>(
    row: &Row<'_>,
    column: impl rusqlite::RowIndex,
) -> Result<T, MutationFailure> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(|error| unreadable(format!("unreadable {text:.60}: {error}")))
}
