//! What every ledger must do: one table of cases, and random walks on which it must agree with the
//! ledger in memory.

mod cases;
mod mutations;

use furrow_rollout::EndKind;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use mutations::*;

pub(crate) use mutations::{
    a_little_of_everything, assigned, begun, close, draw, drawn, fail, finish, lost, opened, problem,
    sample_mutations, score, versions_in_every_state,
};

/// Runs the whole suite; `make` returns an empty ledger each time.
pub(crate) fn ledger_conformance<L: Ledger>(make: impl Fn() -> L) {
    for (name, story, want) in cases::all() {
        check(&mut make(), name, &story, want);
    }
    what_is_settled_leaves_the_snapshot(&mut make());
    a_lost_record_is_no_reward(&mut make());
    evaluations_are_counted_apart(&mut make());
    fates(&mut make());
    agrees_with_memory(make);
}

#[track_caller]
fn check(ledger: &mut impl Ledger, name: &str, story: &[Mutation], want: Result<(), &str>) {
    let (last, before) = story.split_last().expect("a case has mutations");
    for mutation in before {
        ledger.commit(std::slice::from_ref(mutation)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let snapshot = ledger.load().unwrap();
    let got = ledger.commit(std::slice::from_ref(last)).map_err(|error| error.to_string());
    match (&got, want) {
        (Ok(()), Ok(())) => assert_ne!(ledger.load().unwrap(), snapshot, "{name}: nothing changed"),
        (Err(text), Err(part)) if text.contains(part) => {
            assert_eq!(ledger.load().unwrap(), snapshot, "{name}: a refusal changed something");
        }
        _ => panic!("{name}: got {got:?}, want {want:?}"),
    }
}

fn what_is_settled_leaves_the_snapshot(ledger: &mut impl Ledger) {
    let story = [
        vec![opened(), drawn(0), drawn(1), assigned(1, 0, 0, 1)],
        vec![assigned(0, 0, 0, 2), finish(0, 0, 0, 2, EndKind::Done), score(0, 0, 0, 0.5)],
        vec![assigned(0, 1, 0, 3), fail(0, 1, 0, EndKind::BrowserDead), close(0)],
    ]
    .concat();
    ledger.commit(&story).unwrap();
    let before = ledger.load().unwrap();
    assert_eq!(before.uncommitted().count(), 2);
    ledger.commit(&shard(0, 2)).unwrap();
    let written = ledger.load().unwrap();
    assert_eq!(written.uncommitted().count(), 0);
    assert_eq!(written.shards[0].files.as_deref(), Some(&[shard_file()][..]));
    assert_eq!(written.shards[0].trajectories, [trajectory(0, 0, 0), trajectory(0, 1, 0)]);
    assert_eq!(written.shards[0].groups, [group(0)]);
    assert_eq!(ledger.shard_phase(&shard_id(0)).unwrap(), Some(ShardPhase::Written));
    assert_eq!(ledger.shard_phase(&shard_id(1)).unwrap(), None);
    assert_eq!(ledger.committed_shards(0).unwrap(), []);
    ledger.commit(&[shard_committed(0, 6)]).unwrap();
    let committed = CommittedShard {
        shard_id: shard_id(0),
        manifest_version: 6,
        files: vec![shard_file()],
        replaces: Vec::new(),
    };
    assert_eq!(ledger.committed_shards(6).unwrap(), [committed]);
    assert_eq!(ledger.committed_shards(7).unwrap(), []);
    assert_eq!(ledger.newest_commit().unwrap(), 6);
    let phase = ShardPhase::Committed { manifest_version: 6 };
    assert_eq!(ledger.shard_phase(&shard_id(0)).unwrap(), Some(phase));
    let settled = ledger.load().unwrap();
    assert_eq!(settled.groups.iter().map(|row| row.draw.index).collect::<Vec<_>>(), [1]);
    assert_eq!(settled.trajectories.len(), 1);
    assert_eq!(settled.trajectories[0].start.group_id, group(1));
    assert!(settled.shards.is_empty());
    let run = settled.run.unwrap();
    assert_eq!((run.epoch, run.next_token, run.next_group, run.next_shard, run.draws), (1, 4, 2, 1, 2));
    let tally = TaskTally { scored: 1, success_known: 1, succeeded: 1, reward_sum: 0.5 };
    let totals = RunTotals {
        scored: 1,
        failed: [(EndKind::BrowserDead, 1)].into(),
        groups_closed: 1,
        shards_committed: 1,
        tasks: [(("starter".to_owned(), "click".to_owned()), tally)].into(),
        evaluated: TaskTally::default(),
    };
    assert_eq!(settled.totals, totals);
}

/// A trajectory whose record is lost after it was scored has no reward, and its slot is free again.
fn a_lost_record_is_no_reward(ledger: &mut impl Ledger) {
    let story = [
        vec![
            opened(),
            drawn(0),
            assigned(0, 0, 0, 1),
            finish(0, 0, 0, 1, EndKind::Done),
            score(0, 0, 0, 0.5),
        ],
        // The second is lost while it is acted: its end is all that the ledger learns of its
        // versions.
        vec![lost(0, 0, 0), assigned(0, 0, 1, 2), lost(0, 0, 1), assigned(0, 0, 2, 3)],
    ]
    .concat();
    ledger.commit(&story).unwrap();
    let loaded = ledger.load().unwrap();
    assert_eq!(loaded.totals.scored, 0);
    assert_eq!(loaded.totals.failed, [(EndKind::RecordLost, 2)].into());
    assert_eq!(loaded.totals.tasks, BTreeMap::new());
    for lost in &loaded.trajectories[..2] {
        assert_eq!(lost.standing.ended(), Some(&ended(EndKind::RecordLost)));
    }
    assert_eq!(loaded.trajectories[2].standing, TrajectoryStanding::Assigned);
}

/// Its trajectories are counted apart from the job's own, also once they are committed.
fn evaluations_are_counted_apart(ledger: &mut impl Ledger) {
    let story = [
        vec![opened(), begun(3, 2), problem(0, 3, 0), assigned(0, 0, 0, 1), assigned(0, 1, 0, 2)],
        vec![finish(0, 0, 0, 1, EndKind::Done), score(0, 0, 0, 0.5), finish(0, 1, 0, 2, EndKind::Done)],
        vec![score(0, 1, 0, 0.0), close(0)],
    ]
    .concat();
    ledger.commit(&story).unwrap();
    ledger.commit(&shard(0, 3)).unwrap();
    let LedgerSnapshot { groups, evaluations, totals, run, .. } = ledger.load().unwrap();
    assert_eq!((groups.len(), run.map(|run| (run.next_group, run.draws))), (0, Some((1, 0))));
    let standing = EvaluationStanding::Open;
    let row =
        EvaluationRow { version: 3, problems: 2, drawn: 1, scored: 2, succeeded: 1, standing, at_micros: 4 };
    assert_eq!(evaluations, [row]);
    let evaluated = TaskTally { scored: 2, success_known: 2, succeeded: 1, reward_sum: 0.5 };
    assert_eq!(totals, RunTotals { scored: 2, shards_committed: 1, evaluated, ..RunTotals::default() });
}

fn fates(ledger: &mut impl Ledger) {
    let mut fate = |mutations: &[Mutation]| {
        ledger.commit(mutations).unwrap();
        ledger.fate(&trajectory(0, 0, 0)).unwrap()
    };
    assert_eq!(fate(&[opened(), draw_with(0, 1)]), None);
    assert_eq!(fate(&[assigned(0, 0, 0, 1)]), Some(TrajectoryFate::Open));
    assert_eq!(fate(&[finish(0, 0, 0, 1, EndKind::Done)]), Some(TrajectoryFate::Ended));
    assert_eq!(fate(&[score(0, 0, 0, 1.0), close(0)]), Some(TrajectoryFate::Ended));
    assert_eq!(fate(&[shard_open(0, &[(0, 0, 0)], &[0]), shard_written(0)]), Some(TrajectoryFate::Ended));
    assert_eq!(fate(&[shard_committed(0, 1)]), Some(TrajectoryFate::Committed));
}

/// Random batches, most of them invalid: both ledgers accept the same ones and hold the same state
/// afterwards.
fn agrees_with_memory<L: Ledger>(make: impl Fn() -> L) {
    let mut runner = TestRunner::new(ProptestConfig { cases: 64, ..ProptestConfig::default() });
    let batches = prop::collection::vec(prop::collection::vec(any_mutation(), 1..3), 1..60);
    let walk = |batches: Vec<Vec<Mutation>>| {
        let mut ledger = make();
        let mut memory = MemoryLedger::default();
        for batch in [vec![opened()], vec![drawn(0)]].iter().chain(&batches) {
            let got = ledger.commit(batch);
            let want = memory.commit(batch);
            prop_assert_eq!(got.is_ok(), want.is_ok(), "{:?}: {:?}, memory says {:?}", batch, got, want);
        }
        prop_assert_eq!(ledger.load().unwrap(), memory.load().unwrap());
        Ok(())
    };
    runner.run(&batches, walk).unwrap();
}

/// Small numbers, so that a walk makes progress.
fn any_mutation() -> impl Strategy<Value = Mutation> {
    let slot = || (0..2u64, 0..2u32, 0..2u32);
    let rows = || prop::collection::vec(slot(), 0..5);
    prop_oneof![
        1 => Just(opened()),
        1 => (0..3u64).prop_map(drawn),
        6 => (slot(), 1..8u64).prop_map(|((g, s, a), token)| assigned(g, s, a, token)),
        1 => Just(assigned_bare()),
        6 => (slot(), 1..8u64).prop_map(|((g, s, a), token)| finish(g, s, a, token, EndKind::Answered)),
        6 => slot().prop_map(|(g, s, a)| score(g, s, a, 0.5)),
        3 => slot().prop_map(|(g, s, a)| fail(g, s, a, EndKind::Cancelled)),
        2 => slot().prop_map(|(g, s, a)| lost(g, s, a)),
        3 => (0..2u64).prop_map(close),
        4 => (0..3u64, rows(), prop::collection::vec(0..2u64, 0..2))
            .prop_map(|(index, rows, groups)| shard_open(index, &rows, &groups)),
        1 => (0..3u64).prop_map(|index| merge_open(index, &[])),
        3 => (0..3u64).prop_map(shard_written),
        1 => (0..3u64).prop_map(nothing_written),
        3 => (0..3u64, 0..3u64).prop_map(|(index, version)| shard_committed(index, version)),
        1 => (0..3u64).prop_map(abandoned),
        2 => (1..5i32, 0..5i32).prop_map(|(version, base)| proposed(version, base)),
        1 => (1..5i32).prop_map(taken),
        1 => (1..5i32).prop_map(unable),
        1 => (1..5i32).prop_map(withdrawn),
        1 => (1..5i32).prop_map(proposed_rollback),
        2 => (0..3i32, 1..3u64).prop_map(|(version, problems)| begun(version, problems)),
        3 => (0..3u64, 0..3i32, 0..2u64).prop_map(|(index, version, of)| problem(index, version, of)),
        1 => (0..3i32, any::<bool>()).prop_map(|(version, cut)| over(version, cut)),
    ]
}
