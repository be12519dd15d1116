//! The table of cases: stories of mutations, each accepted or refused at its last one.

use furrow_rollout::{EndKind, Id, Score, ScoreComponent};

use super::mutations::*;
use crate::ledger::{Mutation, RunOpening};

/// A name, a story, and what becomes of its last mutation. A refusal is identified by a part of its
/// text.
pub(super) type LedgerCase = (&'static str, Vec<Mutation>, Result<(), &'static str>);

pub(super) fn all() -> Vec<LedgerCase> {
    [
        runs_and_groups(),
        leases(),
        finishes(),
        scores(),
        failures_and_closings(),
        shard_openings(),
        shard_lives(),
        lost_records(),
        versions(),
        evaluations(),
    ]
    .concat()
}

// Stories that others begin with. All of them are about group 0, which has two slots.

fn leased() -> Vec<Mutation> {
    vec![opened(), drawn(0), assigned(0, 0, 0, 1)]
}

fn finished() -> Vec<Mutation> {
    and(leased(), finish(0, 0, 0, 1, EndKind::Answered))
}

fn scored() -> Vec<Mutation> {
    and(finished(), score(0, 0, 0, 1.0))
}

fn failed() -> Vec<Mutation> {
    and(leased(), fail(0, 0, 0, EndKind::LeaseLost))
}

fn closed() -> Vec<Mutation> {
    [scored(), vec![assigned(0, 1, 0, 2), fail(0, 1, 0, EndKind::Cancelled), close(0)]].concat()
}

fn evaluating() -> Vec<Mutation> {
    vec![opened(), begun(3, 1), problem(0, 3, 0)]
}

fn and(mut story: Vec<Mutation>, last: Mutation) -> Vec<Mutation> {
    story.push(last);
    story
}

/// How a run opens, and how its groups are drawn.
fn runs_and_groups() -> Vec<LedgerCase> {
    let grown =
        || Mutation::RunOpened(RunOpening { job_sha256: [8; 32], began_sha256: Some([7; 32]), ..opening() });
    let other_job = RunOpening { job_sha256: [9; 32], ..opening() };
    let long_name = RunOpening { run_id: Id::new("r".repeat(97)).unwrap(), ..opening() };
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
    ]
}

/// Who may act a slot, and under which token.
fn leases() -> Vec<LedgerCase> {
    vec![
        ("a trajectory is leased", leased(), Ok(())),
        (
            "a token is the next",
            vec![opened(), drawn(0), assigned(0, 0, 0, 5)],
            Err("next token is 1, not 5"),
        ),
        (
            "a lease has a secret",
            vec![opened(), drawn(0), assigned_bare()],
            Err("needs the digest of its secret"),
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
    ]
}

/// The ends that the policy caused.
fn finishes() -> Vec<LedgerCase> {
    vec![
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
    ]
}

fn scores() -> Vec<LedgerCase> {
    let odd_part = ScoreComponent { name: "raw".to_owned(), value: f32::INFINITY };
    let no_reward = |reward| verdict(0, 0, 0, Score { reward, ..score_of(0.0) });
    vec![
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
    ]
}

/// The ends that the farm caused, and when a group takes no more attempts.
fn failures_and_closings() -> Vec<LedgerCase> {
    vec![
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
    ]
}

/// Which rows a shard may hold.
fn shard_openings() -> Vec<LedgerCase> {
    vec![
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
    ]
}

/// The order of writing, committing and abandoning a shard.
fn shard_lives() -> Vec<LedgerCase> {
    vec![
        ("a shard is written", [closed(), shard(0, 3)].concat(), Ok(())),
        (
            "it is written once",
            [closed(), shard(0, 3), vec![shard_written(0)]].concat(),
            Err("shard_write of"),
        ),
        (
            "not without a file",
            [closed(), shard(0, 1), vec![nothing_written(0)]].concat(),
            Err("a shard without files"),
        ),
        (
            "unless it only removes some",
            [closed(), vec![merge_open(0, &[]), nothing_written(0)]].concat(),
            Ok(()),
        ),
        (
            "which is committed like any other",
            [closed(), vec![merge_open(0, &[]), nothing_written(0), shard_committed(0, 1)]].concat(),
            Ok(()),
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
            "an abandoned one's rows go to another",
            [closed(), shard(0, 1), vec![abandoned(0), shard_open(1, &[(0, 0, 0), (0, 1, 0)], &[0])]]
                .concat(),
            Ok(()),
        ),
        (
            "a committed one is not",
            [closed(), shard(0, 3), vec![abandoned(0)]].concat(),
            Err("shard_abandon of"),
        ),
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

fn lost_records() -> Vec<LedgerCase> {
    vec![
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
    ]
}

fn versions() -> Vec<LedgerCase> {
    vec![
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
        ("what runs turns out to be broken", vec![opened(), proposed(1, 0), taken(1), withdrawn(1)], Ok(())),
        ("once", vec![opened(), proposed(1, 0), taken(1), withdrawn(1), withdrawn(1)], Err("is withdrawn")),
        ("and not before", vec![opened(), proposed(1, 0), withdrawn(1)], Err("is proposed")),
        ("nor what cannot run", vec![opened(), proposed(1, 0), unable(1), withdrawn(1)], Err("is refused")),
        (
            "it is not taken again",
            vec![opened(), proposed(1, 0), taken(1), withdrawn(1), taken(1)],
            Err("already"),
        ),
        (
            "nothing goes over it",
            vec![opened(), proposed(1, 0), taken(1), withdrawn(1), proposed(2, 1)],
            Err("version 1 was withdrawn"),
        ),
        (
            "its publication is that version",
            vec![opened(), proposed(1, 0), taken(1), withdrawn(1), proposed_rollback(2)],
            Err("as version 1"),
        ),
        (
            "a publication is one version",
            vec![opened(), proposed(1, 0), proposed_rollback(2)],
            Err("as version 1"),
        ),
        ("until that is refused", vec![opened(), proposed(1, 0), unable(1), proposed_rollback(2)], Ok(())),
    ]
}

fn evaluations() -> Vec<LedgerCase> {
    vec![
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
    ]
}
