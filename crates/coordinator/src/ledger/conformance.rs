//! What every ledger must do: one table of cases, and random walks on which it must agree with the
//! ledger in memory.

use furrow_records::{Table, WrittenFile};
use furrow_rollout::{
    EndKind, Group, Id, PolicyHashes, PolicyKind, Run, Score, ScoreComponent, Shard, Split, Trajectory,
    WeightsForm,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use crate::versions::VersionSource;
use crate::versions::tests::{hash, row as version_row};

/// A refusal is identified by a part of its text.
type LedgerCase = (&'static str, Vec<Mutation>, Result<(), &'static str>);

/// Runs the whole suite; `make` returns an empty ledger each time.
pub fn ledger_conformance<L: Ledger>(make: impl Fn() -> L) {
    for (name, story, want) in cases() {
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

/// Each case is refused or accepted at its last mutation.
fn cases() -> Vec<LedgerCase> {
    let leased = || vec![opened(), drawn(0), assigned(0, 0, 0, 1)];
    let finished = || [leased(), vec![finish(0, 0, 0, 1, EndKind::Answered)]].concat();
    let scored = || [finished(), vec![score(0, 0, 0, 1.0)]].concat();
    let failed = || [leased(), vec![fail(0, 0, 0, EndKind::LeaseLost)]].concat();
    let closed =
        || [scored(), vec![assigned(0, 1, 0, 2), fail(0, 1, 0, EndKind::Cancelled), close(0)]].concat();
    let evaluating = || vec![opened(), begun(3, 1), problem(0, 3, 0)];
    let and = |mut story: Vec<Mutation>, last: Mutation| {
        story.push(last);
        story
    };
    let grown =
        || Mutation::RunOpened(RunOpening { job_sha256: [8; 32], began_sha256: Some([7; 32]), ..opening() });
    let other_job = RunOpening { job_sha256: [9; 32], ..opening() };
    let long_name = RunOpening { run_id: Id::new("r".repeat(97)).unwrap(), ..opening() };
    let odd_part = ScoreComponent { name: "raw".to_owned(), value: f32::INFINITY };
    let no_reward = |reward| verdict(0, 0, 0, Score { reward, ..score_of(0.0) });
    vec![
        ("a run opens", vec![opened()], Ok(())),
        ("a run opens again", vec![opened(), opened()], Ok(())),
        ("a job that gained keys is the run's from then on", vec![opened(), grown(), grown()], Ok(())),
        (
            "the job before it is not the run's any more",
            vec![opened(), grown(), opened()],
            Err("use another output_dir"),
        ),
        (
            "another job is refused",
            vec![opened(), Mutation::RunOpened(other_job)],
            Err("use another output_dir"),
        ),
        ("a run's id leaves space for suffixes", vec![Mutation::RunOpened(long_name)], Err("use at most 96")),
        ("nothing comes before the run", vec![drawn(0)], Err("no run was opened")),
        ("a group is drawn", vec![opened(), drawn(0)], Ok(())),
        ("groups are drawn in order", vec![opened(), drawn(1)], Err("next group is 0, not 1")),
        ("a group has slots", vec![opened(), draw_with(0, 0)], Err("0 slots")),
        ("a chance is one", vec![opened(), chanced(0.0)], Err("chance outside (0, 1]")),
        ("up to certainty", vec![opened(), chanced(1.0)], Ok(())),
        ("draws do not go back", vec![opened(), drawn(0), redrawn(1, 0)], Err("drawn 1 times, not 0")),
        ("a trajectory is leased", leased(), Ok(())),
        (
            "a token is the next",
            vec![opened(), drawn(0), assigned(0, 0, 0, 5)],
            Err("next token is 1, not 5"),
        ),
        ("a group is known", vec![opened(), assigned(0, 0, 0, 1)], Err("no group")),
        ("a slot exists", vec![opened(), drawn(0), assigned(0, 2, 0, 1)], Err("no slot 2")),
        (
            "attempts count up",
            vec![opened(), drawn(0), assigned(0, 0, 1, 1)],
            Err("next attempt is 0, not 1"),
        ),
        ("a slot has one holder", and(leased(), assigned(0, 0, 1, 2)), Err("still holds the slot")),
        ("a finished one holds its slot", and(finished(), assigned(0, 0, 1, 2)), Err("still holds the slot")),
        ("a scored one holds its slot", and(scored(), assigned(0, 0, 1, 2)), Err("still holds the slot")),
        ("a failed one is retried", and(failed(), assigned(0, 0, 1, 2)), Ok(())),
        ("a closed group takes none", and(closed(), assigned(0, 1, 1, 3)), Err("is closed")),
        ("a trajectory finishes", finished(), Ok(())),
        ("a stale token finishes nothing", and(leased(), finish(0, 0, 0, 9, EndKind::Done)), Err("token")),
        (
            "an unknown one does not finish",
            and(leased(), finish(0, 1, 0, 1, EndKind::Done)),
            Err("finish of"),
        ),
        (
            "a farm's end is not finished",
            and(leased(), finish(0, 0, 0, 1, EndKind::EnvCrash)),
            Err("farm's fault"),
        ),
        ("a hang that recurs is", and(leased(), finish(0, 0, 0, 1, EndKind::PageHang)), Ok(())),
        ("it finishes once", and(finished(), finish(0, 0, 0, 1, EndKind::Answered)), Err("not leased")),
        (
            "a failed one does not finish",
            and(failed(), finish(0, 0, 0, 1, EndKind::Answered)),
            Err("not leased"),
        ),
        ("a finished one is scored", scored(), Ok(())),
        ("a leased one is not scored", and(leased(), score(0, 0, 0, 1.0)), Err("not waiting for a score")),
        ("it is scored once", and(scored(), score(0, 0, 0, 0.0)), Err("not waiting for a score")),
        ("a verdict without a reward is refused", and(finished(), no_reward(None)), Err("finite reward")),
        ("a reward is a number", and(finished(), no_reward(Some(f32::NAN))), Err("finite reward")),
        (
            "so is each of its parts",
            and(finished(), verdict(0, 0, 0, Score { components: vec![odd_part], ..score_of(1.0) })),
            Err("component raw is inf"),
        ),
        (
            "the scorer saw what was acknowledged",
            and(finished(), verdict(0, 0, 0, Score { evidence_sha256: [8; 32], ..score_of(1.0) })),
            Err("score of"),
        ),
        ("a leased one fails", failed(), Ok(())),
        ("a finished one fails", and(finished(), fail(0, 0, 0, EndKind::ScorerError)), Ok(())),
        ("a scored one does not", and(scored(), fail(0, 0, 0, EndKind::ScorerError)), Err("ended already")),
        ("it fails once", and(failed(), fail(0, 0, 0, EndKind::Cancelled)), Err("ended already")),
        (
            "the policy's end is not a failure",
            and(leased(), fail(0, 0, 0, EndKind::Answered)),
            Err("policy's own"),
        ),
        ("a hang is one the first time", and(leased(), fail(0, 0, 0, EndKind::PageHang)), Ok(())),
        ("a group closes", closed(), Ok(())),
        ("an open attempt keeps it open", and(leased(), close(0)), Err("still open")),
        ("so does one without a score", and(finished(), close(0)), Err("still open")),
        ("it closes once", and(closed(), close(0)), Err("closed already")),
        ("a shard opens", and(closed(), shard_open(0, &[(0, 0, 0), (0, 1, 0)], &[0])), Ok(())),
        (
            "shards are numbered",
            and(closed(), shard_open(1, &[(0, 0, 0)], &[])),
            Err("next shard is 0, not 1"),
        ),
        ("an empty shard is refused", and(closed(), shard_open(0, &[], &[])), Err("empty shard")),
        (
            "a shard holds a row once",
            and(closed(), shard_open(0, &[(0, 0, 0), (0, 0, 0)], &[])),
            Err("twice"),
        ),
        ("a merge opens", and(closed(), merge_open(0, &[])), Ok(())),
        ("a merge adds no rows", and(closed(), merge_open(0, &[(0, 0, 0)])), Err("new rows and a merge")),
        ("a leased one waits", and(leased(), shard_open(0, &[(0, 0, 0)], &[])), Err("has not ended")),
        (
            "a group follows its trajectories",
            and(closed(), shard_open(0, &[(0, 0, 0)], &[0])),
            Err("committed before its"),
        ),
        ("an open group waits", and(scored(), shard_open(0, &[(0, 0, 0)], &[0])), Err("open")),
        (
            "a row is in one shard",
            [closed(), vec![shard_open(0, &[(0, 0, 0)], &[]), shard_open(1, &[(0, 0, 0)], &[])]].concat(),
            Err("is in"),
        ),
        ("a shard is written", [closed(), shard(0, 3)].concat(), Ok(())),
        (
            "it is written once",
            [closed(), shard(0, 3), vec![shard_written(0)]].concat(),
            Err("shard_write of"),
        ),
        (
            "it is committed once",
            [closed(), shard(0, 4), vec![shard_committed(0, 1)]].concat(),
            Err("written"),
        ),
        (
            "unwritten it is not",
            [closed(), shard(0, 1), vec![shard_committed(0, 0)]].concat(),
            Err("written"),
        ),
        ("a shard is abandoned", [closed(), shard(0, 1), vec![abandoned(0)]].concat(), Ok(())),
        (
            "a written one is too, where its files turn out damaged",
            [closed(), shard(0, 2), vec![abandoned(0)]].concat(),
            Ok(()),
        ),
        (
            "a committed one is not",
            [closed(), shard(0, 3), vec![abandoned(0)]].concat(),
            Err("shard_abandon of"),
        ),
        ("a leased one's record is lost", and(leased(), lost(0, 0, 0)), Ok(())),
        ("a finished one's is", and(finished(), lost(0, 0, 0)), Ok(())),
        ("a scored one's is", and(scored(), lost(0, 0, 0)), Ok(())),
        ("also where its group is closed", and(closed(), lost(0, 0, 0)), Ok(())),
        ("a failed one keeps its end", and(failed(), lost(0, 0, 0)), Err("failed already or is in a shard")),
        (
            "what a shard holds is not lost",
            [closed(), shard(0, 1), vec![lost(0, 0, 0)]].concat(),
            Err("failed already or is in a shard"),
        ),
        (
            "a lost record has no other end",
            and(finished(), record_lost(0, 0, 0, EndKind::Cancelled)),
            Err("cancelled is not damage"),
        ),
        (
            "its slot may be tried again",
            [scored(), vec![lost(0, 0, 0), assigned(0, 0, 1, 2)]].concat(),
            Ok(()),
        ),
        (
            "its rows go to another",
            [closed(), shard(0, 1), vec![abandoned(0), shard_open(1, &[(0, 0, 0), (0, 1, 0)], &[0])]]
                .concat(),
            Ok(()),
        ),
        ("weights are published", vec![opened(), proposed(1, 0)], Ok(())),
        ("over a version that is there", vec![opened(), proposed(1, 0), proposed(2, 1)], Ok(())),
        (
            "not over one that is not",
            vec![opened(), proposed(1, 0), proposed(3, 2)],
            Err("version 2, on which it is based, does not exist"),
        ),
        ("numbers grow", vec![opened(), proposed(2, 0), proposed(1, 0)], Err("not newer than 2")),
        ("they may leave some out", vec![opened(), proposed(1, 0), proposed(9, 1)], Ok(())),
        ("a worker runs them", vec![opened(), proposed(1, 0), taken(1)], Ok(())),
        ("once", vec![opened(), proposed(1, 0), taken(1), taken(1)], Err("taken already")),
        ("none can run them", vec![opened(), proposed(1, 0), unable(1)], Ok(())),
        (
            "what runs is not refused",
            vec![opened(), proposed(1, 0), taken(1), unable(1)],
            Err("taken already"),
        ),
        (
            "nothing goes over what was refused",
            vec![opened(), proposed(1, 0), unable(1), proposed(2, 1)],
            Err("version 1 was refused"),
        ),
        (
            "a publication is one version",
            vec![opened(), proposed(1, 0), proposed_rollback(2)],
            Err("as version 1"),
        ),
        ("until that is refused", vec![opened(), proposed(1, 0), unable(1), proposed_rollback(2)], Ok(())),
        ("a version is evaluated", vec![opened(), begun(0, 2)], Ok(())),
        ("on something", vec![opened(), begun(0, 0)], Err("0 problems")),
        (
            "one at a time",
            vec![opened(), begun(0, 2), begun(1, 2)],
            Err("the evaluation of version 0 is open"),
        ),
        ("its problems are drawn", vec![opened(), drawn(0), begun(3, 2), problem(1, 3, 0)], Ok(())),
        ("in order", vec![opened(), begun(3, 2), problem(0, 3, 1)], Err("next problem of 2 is 0, not 1")),
        ("each once", vec![opened(), begun(3, 2), problem(0, 3, 0), problem(1, 3, 0)], Err("is 1, not 0")),
        ("and no more", and(evaluating(), problem(1, 3, 1)), Err("next problem of 1 is 1, not 1")),
        (
            "of what is evaluated",
            vec![opened(), begun(3, 2), problem(0, 2, 0)],
            Err("no evaluation of version 2"),
        ),
        ("nothing is drawn without", vec![opened(), problem(0, 3, 0)], Err("no evaluation of version 3")),
        ("it ends when all is done", and(evaluating(), over(3, false)), Err("r-g000000 is open")),
        ("and all is drawn", vec![opened(), begun(3, 2), over(3, false)], Err("0 of its 2 problems")),
        ("which it was", [evaluating(), vec![close(0), over(3, false)]].concat(), Ok(())),
        ("once", [evaluating(), vec![close(0), over(3, false), over(3, false)]].concat(), Err("is open")),
        ("a cut one left some out", vec![opened(), begun(3, 2), over(3, true)], Ok(())),
        (
            "a version is evaluated once",
            vec![opened(), begun(3, 2), over(3, true), begun(3, 2)],
            Err("was evaluated"),
        ),
        (
            "and none before it",
            vec![opened(), begun(3, 2), over(3, true), begun(2, 2)],
            Err("3 was evaluated"),
        ),
        ("but newer ones", vec![opened(), begun(3, 2), over(3, true), begun(4, 2)], Ok(())),
        (
            "a manifest version is one shard's",
            [
                closed(),
                vec![shard_open(0, &[(0, 0, 0)], &[]), shard_written(0), shard_committed(0, 4)],
                vec![shard_open(1, &[(0, 1, 0)], &[0]), shard_written(1), shard_committed(1, 4)],
            ]
            .concat(),
            Err("manifest"),
        ),
    ]
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
    assert_eq!(ledger.committed_shards().unwrap(), []);
    ledger.commit(&[shard_committed(0, 6)]).unwrap();
    let published = CommittedShard {
        shard_id: shard_id(0),
        manifest_version: 6,
        files: vec![shard_file()],
        replaces: Vec::new(),
    };
    assert_eq!(ledger.committed_shards().unwrap(), [published]);
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
        6 => (slot(), 1..8u64).prop_map(|((g, s, a), token)| finish(g, s, a, token, EndKind::Answered)),
        6 => slot().prop_map(|(g, s, a)| score(g, s, a, 0.5)),
        3 => slot().prop_map(|(g, s, a)| fail(g, s, a, EndKind::Cancelled)),
        2 => slot().prop_map(|(g, s, a)| lost(g, s, a)),
        3 => (0..2u64).prop_map(close),
        4 => (0..3u64, rows(), prop::collection::vec(0..2u64, 0..2))
            .prop_map(|(index, rows, groups)| shard_open(index, &rows, &groups)),
        3 => (0..3u64).prop_map(shard_written),
        3 => (0..3u64, 0..3u64).prop_map(|(index, version)| shard_committed(index, version)),
        1 => (0..3u64).prop_map(abandoned),
        2 => (1..5i32, 0..5i32).prop_map(|(version, base)| proposed(version, base)),
        1 => (1..5i32).prop_map(taken),
        1 => (1..5i32).prop_map(unable),
        1 => (1..5i32).prop_map(proposed_rollback),
        2 => (0..3i32, 1..3u64).prop_map(|(version, problems)| begun(version, problems)),
        3 => (0..3u64, 0..3i32, 0..2u64).prop_map(|(index, version, of)| problem(index, version, of)),
        1 => (0..3i32, any::<bool>()).prop_map(|(version, cut)| over(version, cut)),
    ]
}

/// One of each kind.
pub fn sample_mutations() -> Vec<Mutation> {
    vec![
        opened(),
        drawn(0),
        assigned(0, 0, 0, 1),
        finish(0, 0, 0, 1, EndKind::Done),
        score(0, 0, 0, 1.0),
        fail(0, 0, 0, EndKind::Cancelled),
        close(0),
        shard_open(0, &[(0, 0, 0)], &[0]),
        shard_written(0),
        shard_committed(0, 1),
        abandoned(0),
        proposed(1, 0),
        taken(1),
        unable(2),
        begun(0, 1),
        over(0, true),
    ]
}

fn opening() -> RunOpening {
    RunOpening { run_id: run(), job_sha256: [7; 32], began_sha256: None, at_micros: 1 }
}

pub fn opened() -> Mutation {
    Mutation::RunOpened(opening())
}

pub fn drawn(index: u64) -> Mutation {
    redrawn(index, index + 1)
}

fn redrawn(index: u64, draws: u64) -> Mutation {
    Mutation::GroupDrawn { draw: draw(index, 2), draws }
}

fn chanced(chance: f64) -> Mutation {
    Mutation::GroupDrawn { draw: TaskDraw { chance: Some(chance), ..draw(0, 2) }, draws: 1 }
}

fn draw_with(index: u64, group_size: u32) -> Mutation {
    Mutation::GroupDrawn { draw: draw(index, group_size), draws: index + 1 }
}

pub fn draw(index: u64, group_size: u32) -> TaskDraw {
    TaskDraw {
        group_id: group(index),
        index,
        suite: "starter".to_owned(),
        task_id: "click".to_owned(),
        split: Split::Train,
        seed: u64::MAX - index,
        group_size,
        task_json: "{\"id\":\"click\"}".to_owned(),
        chance: index.is_multiple_of(2).then_some(0.25),
        problem: None,
        at_micros: 2,
    }
}

pub fn assigned(group_index: u64, sample_index: u32, attempt: u32, token: u64) -> Mutation {
    Mutation::Assigned(TrajectoryStart {
        trajectory_id: trajectory(group_index, sample_index, attempt),
        group_id: group(group_index),
        sample_index,
        attempt,
        token,
        env_worker: Id::new("env-1").unwrap(),
        policy: PolicyFacts {
            worker: Id::new("policy-1").unwrap(),
            address: "127.0.0.1:7000".to_owned(),
            kind: PolicyKind::Scripted,
            version: Some(3),
            hashes: PolicyHashes { grammar: Some("ab".to_owned()), ..PolicyHashes::default() },
        },
        at_micros: 3,
        queue_micros: 4,
    })
}

fn ended(end: EndKind) -> TrajectoryEnd {
    let reason = format!("because of {}", end.as_str());
    TrajectoryEnd { end, reason, steps: 2, policy_versions: Some((1, 2)), staleness: Some(1), at_micros: 5 }
}

pub fn finish(group_index: u64, sample_index: u32, attempt: u32, token: u64, end: EndKind) -> Mutation {
    let trajectory_id = trajectory(group_index, sample_index, attempt);
    Mutation::Finished { trajectory_id, token, ended: ended(end), evidence_sha256: [6; 32] }
}

fn score_of(reward: f32) -> Score {
    Score {
        reward: Some(reward),
        success: Some(reward > 0.0),
        components: vec![ScoreComponent { name: "raw".to_owned(), value: 0.1 }],
        scorer: "probe".to_owned(),
        version: 1,
        rationale: "the \"page\" said so".to_owned(),
        evidence_sha256: [6; 32],
    }
}

pub fn score(group_index: u64, sample_index: u32, attempt: u32, reward: f32) -> Mutation {
    verdict(group_index, sample_index, attempt, score_of(reward))
}

fn verdict(group_index: u64, sample_index: u32, attempt: u32, score: Score) -> Mutation {
    let trajectory_id = trajectory(group_index, sample_index, attempt);
    Mutation::Scored { trajectory_id, verdict: TimedScore { score, micros: 8 } }
}

pub fn fail(group_index: u64, sample_index: u32, attempt: u32, end: EndKind) -> Mutation {
    Mutation::Failed { trajectory_id: trajectory(group_index, sample_index, attempt), ended: ended(end) }
}

fn lost(group_index: u64, sample_index: u32, attempt: u32) -> Mutation {
    record_lost(group_index, sample_index, attempt, EndKind::RecordLost)
}

fn record_lost(group_index: u64, sample_index: u32, attempt: u32, end: EndKind) -> Mutation {
    Mutation::RecordLost { trajectory_id: trajectory(group_index, sample_index, attempt), ended: ended(end) }
}

pub fn close(group_index: u64) -> Mutation {
    Mutation::GroupClosed { group_id: group(group_index), at_micros: 9 }
}

fn shard_open(index: u64, rows: &[(u64, u32, u32)], groups: &[u64]) -> Mutation {
    Mutation::ShardOpened(ShardOpening {
        shard_id: shard_id(index),
        index,
        trajectories: rows.iter().map(|&(g, s, a)| trajectory(g, s, a)).collect(),
        groups: groups.iter().map(|&index| group(index)).collect(),
        replaces: Vec::new(),
    })
}

/// A shard that holds the rows of an earlier one.
fn merge_open(index: u64, rows: &[(u64, u32, u32)]) -> Mutation {
    let Mutation::ShardOpened(opening) = shard_open(index, rows, &[]) else { unreachable!() };
    Mutation::ShardOpened(ShardOpening { replaces: vec!["steps/x.parquet".to_owned()], ..opening })
}

fn shard_file() -> WrittenFile {
    let path = "steps/x.parquet".to_owned();
    let sha256 = "05".repeat(32);
    WrittenFile { table: Table::Steps, path, rows: 2, bytes: 900, sha256 }
}

fn shard_written(index: u64) -> Mutation {
    Mutation::ShardWritten { shard_id: shard_id(index), files: vec![shard_file()] }
}

fn shard_committed(index: u64, manifest_version: u64) -> Mutation {
    Mutation::ShardCommitted { shard_id: shard_id(index), manifest_version }
}

fn abandoned(index: u64) -> Mutation {
    Mutation::ShardAbandoned { shard_id: shard_id(index) }
}

fn proposed(version: i32, base_version: i32) -> Mutation {
    Mutation::VersionProposed(version_row(version, WeightsForm::ALL[version as usize % 3], base_version))
}

/// The publication of version 1, as a rollback to what the job names.
fn proposed_rollback(version: i32) -> Mutation {
    let row = version_row(version, WeightsForm::Full, 0);
    let source = VersionSource::Rollback { to: 0 };
    Mutation::VersionProposed(VersionRow { publication_id: "p1".to_owned(), source, ..row })
}

fn taken(version: i32) -> Mutation {
    Mutation::VersionTaken { version, weights_sha256: hash(version) }
}

fn unable(version: i32) -> Mutation {
    Mutation::VersionRefused { version, reason: "its file is torn".to_owned() }
}

fn begun(version: i32, problems: u64) -> Mutation {
    Mutation::EvaluationBegun { version, problems, at_micros: 4 }
}

/// A group that is a problem of an evaluation; the sampler does not draw.
fn problem(group_index: u64, version: i32, index: u64) -> Mutation {
    let problem = Some(EvaluationProblem { version, index });
    let draw = TaskDraw { problem, split: Split::Eval, chance: None, ..draw(group_index, 2) };
    Mutation::GroupDrawn { draw, draws: group_index }
}

fn over(version: i32, cut: bool) -> Mutation {
    let cut = cut.then(|| "newer weights waited".to_owned());
    Mutation::EvaluationEnded { version, cut }
}

/// The first `stages` of a shard's life, with the rows of group 0; a fourth commits it a second
/// time.
fn shard(index: u64, stages: usize) -> Vec<Mutation> {
    let opened = shard_open(index, &[(0, 0, 0), (0, 1, 0)], &[0]);
    let mut life = vec![opened, shard_written(index), shard_committed(index, 0)];
    life.truncate(stages);
    life
}

fn run() -> Id<Run> {
    Id::new("r").unwrap()
}

fn group(index: u64) -> Id<Group> {
    Id::nth(&run(), index)
}

fn trajectory(group_index: u64, sample_index: u32, attempt: u32) -> Id<Trajectory> {
    Id::attempt(&group(group_index), sample_index, attempt)
}

fn shard_id(index: u64) -> Id<Shard> {
    Id::new(format!("r-x{index:06}")).unwrap()
}
