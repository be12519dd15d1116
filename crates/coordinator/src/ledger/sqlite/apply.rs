//! Applies a mutation inside a transaction.

use rusqlite::Transaction;

use super::evaluations::{begin_evaluation, end_evaluation};
use super::failure::MutationFailure;
use super::groups::{close_group, draw_group};
use super::run::{load_run, open_run};
use super::shards::{abandon_shard, commit_shard, open_shard, write_shard};
use super::trajectories::{assign, fail, finish, lose_record, score};
use super::weights::{propose_version, refuse_version, take_version, withdraw_version};
use crate::ledger::{LedgerRefusal, Mutation};

pub(super) fn apply(transaction: &Transaction<'_>, mutation: &Mutation) -> Result<(), MutationFailure> {
    if let Some(flaw) = mutation.flaw() {
        return Err(flaw.into());
    }
    if let Mutation::RunOpened(opening) = mutation {
        return open_run(transaction, opening);
    }
    let run = load_run(transaction)?.ok_or(LedgerRefusal::NoRun)?;
    match mutation {
        Mutation::RunOpened(_) => Ok(()),
        Mutation::GroupDrawn { draw, draws } => draw_group(transaction, &run, draw, *draws),
        Mutation::Assigned(start) => assign(transaction, &run, start),
        Mutation::Finished { trajectory_id, token, ended, evidence_sha256 } => {
            finish(transaction, trajectory_id, *token, ended, evidence_sha256)
        }
        Mutation::Scored { trajectory_id, verdict } => score(transaction, trajectory_id, verdict),
        Mutation::Failed { trajectory_id, ended } => fail(transaction, trajectory_id, ended),
        Mutation::RecordLost { trajectory_id, ended } => lose_record(transaction, trajectory_id, ended),
        Mutation::GroupClosed { group_id, at_micros } => close_group(transaction, group_id, *at_micros),
        Mutation::ShardOpened(opening) => open_shard(transaction, &run, opening),
        Mutation::ShardWritten { shard_id, files } => write_shard(transaction, shard_id, files),
        Mutation::ShardCommitted { shard_id, manifest_version } => {
            commit_shard(transaction, shard_id, *manifest_version)
        }
        Mutation::ShardAbandoned { shard_id } => abandon_shard(transaction, shard_id),
        Mutation::VersionProposed(row) => propose_version(transaction, row),
        Mutation::VersionTaken { version, weights_sha256 } => {
            take_version(transaction, *version, weights_sha256)
        }
        Mutation::VersionRefused { version, reason } => refuse_version(transaction, *version, reason),
        Mutation::VersionWithdrawn { version, reason } => withdraw_version(transaction, *version, reason),
        Mutation::EvaluationBegun { version, problems, at_micros } => {
            begin_evaluation(transaction, *version, *problems, *at_micros)
        }
        Mutation::EvaluationEnded { version, cut } => end_evaluation(transaction, *version, cut.as_deref()),
    }
}
