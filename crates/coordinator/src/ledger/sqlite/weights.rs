//! The rows of policy versions.

use furrow_rollout::{WeightsForm, WeightsLink};
use rusqlite::{Connection, Transaction, params};

use super::failure::MutationFailure;
use super::rows::{collect, expect_one, parse_column};
use crate::ledger::LedgerRefusal;
use crate::versions::{VersionRefusal, VersionRow, VersionSource, VersionState, VersionTable};

pub(super) fn propose_version(
    transaction: &Transaction<'_>,
    row: &VersionRow,
) -> Result<(), MutationFailure> {
    load_versions(transaction)?.propose(row.clone()).map_err(LedgerRefusal::from)?;
    let (form, directory) = match &row.source {
        VersionSource::Directory { link, .. } => (Some(link.form.as_str()), Some(&link.directory)),
        VersionSource::Rollback { .. } => (None, None),
    };
    let sql = "INSERT INTO weights (version, publication_id, form, directory, base_version, state, weights_sha256, published_at_micros)
               VALUES (?1, ?2, ?3, ?4, ?5, 'proposed', ?6, ?7)";
    transaction.prepare_cached(sql)?.execute(params![
        row.version,
        row.publication_id,
        form,
        directory,
        row.source.base(),
        row.weights_sha256,
        row.at_micros,
    ])?;
    Ok(())
}

pub(super) fn take_version(
    transaction: &Transaction<'_>,
    version: i32,
    weights_sha256: &str,
) -> Result<(), MutationFailure> {
    load_versions(transaction)?.take(version, weights_sha256).map_err(LedgerRefusal::from)?;
    let sql =
        "UPDATE weights SET state = 'taken', weights_sha256 = ?2 WHERE version = ?1 AND state = 'proposed'";
    let changed = transaction.prepare_cached(sql)?.execute(params![version, weights_sha256])?;
    expect_one(changed, VersionRefusal::Unknown { version }.into())
}

pub(super) fn refuse_version(
    transaction: &Transaction<'_>,
    version: i32,
    reason: &str,
) -> Result<(), MutationFailure> {
    load_versions(transaction)?.refuse(version, reason).map_err(LedgerRefusal::from)?;
    let sql = "UPDATE weights SET state = 'refused', reason = ?2 WHERE version = ?1 AND state = 'proposed'";
    let changed = transaction.prepare_cached(sql)?.execute(params![version, reason])?;
    expect_one(changed, VersionRefusal::Unknown { version }.into())
}

pub(super) fn withdraw_version(
    transaction: &Transaction<'_>,
    version: i32,
    reason: &str,
) -> Result<(), MutationFailure> {
    load_versions(transaction)?.withdraw(version, reason).map_err(LedgerRefusal::from)?;
    let sql = "UPDATE weights SET state = 'withdrawn', reason = ?2 WHERE version = ?1 AND state = 'taken'";
    let changed = transaction.prepare_cached(sql)?.execute(params![version, reason])?;
    expect_one(changed, VersionRefusal::Unknown { version }.into())
}

pub(super) fn load_versions(connection: &Connection) -> Result<VersionTable, MutationFailure> {
    let sql = "SELECT version, publication_id, form, directory, base_version, state, reason, weights_sha256, published_at_micros
               FROM weights ORDER BY version";
    let rows = collect(connection, sql, |row| {
        let base_version = row.get("base_version")?;
        let source = match row.get::<_, Option<String>>("directory")? {
            None => VersionSource::Rollback { to: base_version },
            Some(directory) => {
                let link = WeightsLink { form: parse_column(row, "form", WeightsForm::parse)?, directory };
                VersionSource::Directory { link, base_version }
            }
        };
        let state = match row.get::<_, String>("state")?.as_str() {
            "proposed" => VersionState::Proposed,
            "taken" => VersionState::Taken,
            "withdrawn" => VersionState::Withdrawn { reason: row.get("reason")? },
            _ => VersionState::Refused { reason: row.get("reason")? },
        };
        Ok(VersionRow {
            version: row.get("version")?,
            publication_id: row.get("publication_id")?,
            source,
            state,
            weights_sha256: row.get("weights_sha256")?,
            at_micros: row.get("published_at_micros")?,
        })
    })?;
    Ok(VersionTable::of(rows))
}
