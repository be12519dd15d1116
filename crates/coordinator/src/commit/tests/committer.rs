//! The committer on its thread: when it closes a shard, and how it ends.

use super::*;

#[test]
fn the_rest_is_committed_when_the_last_handle_is_dropped() {
    let mut fed = CommitterFixture::new(|records| records.max_delay = NEVER);
    fed.feed();
    assert_eq!(fed.next(), Some((5, 2)));
    assert_eq!(fed.next(), None);
    assert_eq!(fed.next(), None);
    fed.world.check(fed.world.dir.path(), "closed");
}

#[test]
fn a_shard_closes_by_size() {
    let mut fed = CommitterFixture::new(|records| (records.max_delay, records.max_shard_bytes) = (NEVER, 1));
    fed.feed();
    // the spool holds nothing of the last trajectory, so it does not close a shard
    for shard in [(1, 0), (1, 0), (1, 0), (1, 0), (1, 2)] {
        assert_eq!(fed.next(), Some(shard));
    }
    assert_eq!(fed.next(), None);
    fed.world.check(fed.world.dir.path(), "by size");
}

#[test]
fn a_shard_closes_by_age() {
    let mut fed = CommitterFixture::new(|records| records.max_delay = Duration::from_millis(50));
    fed.feed_one();
    assert_eq!(fed.next(), Some((1, 0)));
}

#[test]
fn a_shard_closes_when_flushed() {
    let mut fed = CommitterFixture::new(|records| records.max_delay = NEVER);
    fed.flush();
    fed.feed_one();
    fed.feed_one();
    fed.flush();
    assert_eq!(fed.next(), Some((2, 0)));
}

#[test]
fn a_record_that_cannot_be_read_is_left_out_until_it_comes_as_a_failed_one() {
    left_out_until_failed("a bit", 3, "the CRC is another");
    left_out_until_failed("gone", 0, "No such file");
    left_out_until_failed("a pipe", 0, "it is a named pipe");
}

/// Damage found during the run: the shard is written without the trajectory, and a group's row that
/// counts it as scored waits for another.
fn left_out_until_failed(damage: &str, want_steps: u32, want_why: &str) {
    let mut fed = CommitterFixture::new(|records| records.max_delay = NEVER);
    let id = "r-g000000-s0-a0";
    let path = fed.world.dir.path().join(format!("spool/{id}.spool"));
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.len() - 100;
    bytes[at] ^= 1;
    fs::write(&path, &bytes).unwrap();
    if damage != "a bit" {
        fs::remove_file(&path).unwrap();
    }
    if damage == "a pipe" {
        make_pipe(&path);
    }
    let mut facts = fed
        .batch
        .trajectories
        .iter()
        .find(|facts| facts.ancestry.trajectory_id.as_str() == id)
        .unwrap()
        .clone();
    let row =
        fed.batch.groups.iter().find(|group| group.group_id == facts.ancestry.group_id).unwrap().clone();
    let handle = fed.handle.clone().unwrap();
    fed.feed();
    fed.runtime.block_on(handle.flush()).unwrap();
    let Some(CommitReport::Unreadable { trajectory, steps, why }) = fed.runtime.block_on(fed.reports.next())
    else {
        panic!("the file was read")
    };
    assert_eq!((trajectory.as_str(), steps), (id, want_steps));
    assert!(why.contains(want_why), "{why}");
    assert_eq!(fed.next(), Some((4, 1)));
    // the row that was made before the damage was found
    fed.runtime.block_on(handle.group(row.clone())).unwrap();
    let ended = TrajectoryEnd { end: EndKind::RecordLost, reason: why, steps, ..facts.ended };
    let mut ledger = SqliteLedger::open(fed.world.dir.path().join("ledger.sqlite")).unwrap();
    ledger.commit(&[Mutation::RecordLost { trajectory_id: trajectory, ended: ended.clone() }]).unwrap();
    (facts.ended, facts.verdict) = (ended, None);
    fed.runtime.block_on(handle.trajectory(facts)).unwrap();
    let failed = BTreeMap::from([("browser_dead".to_owned(), 1), ("record_lost".to_owned(), 1)]);
    let rewards = furrow_rollout::GroupStatistics::of(&[fed.world.scored_reward("r-g000000-s1-a1")]);
    let row = GroupRecord { valid: 1, failed, rewards, ..row };
    fed.runtime.block_on(handle.group(row)).unwrap();
    drop(handle);
    assert_eq!(fed.next(), Some((1, 1)));
    assert_eq!(fed.next(), None);
    let report = verify(fed.world.dir.path()).unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(names(&fed.world.dir.path().join("spool")), BTreeSet::new());
    if damage == "a bit" {
        let aside = tree(&fed.world.dir.path().join("lost+found"));
        assert!(aside.values().any(|kept| *kept == bytes), "the damaged file was not kept");
    }
}

#[test]
fn a_committer_that_fails_reports_it_and_ends() {
    let mut fed = CommitterFixture::new(|records| records.max_delay = NEVER);
    // before its trajectories: the ledger refuses it
    let group = fed.batch.groups.remove(0);
    fed.runtime.block_on(fed.handle.as_ref().unwrap().group(group)).unwrap();
    fed.flush();
    let Some(CommitReport::Failed(error)) = fed.runtime.block_on(fed.reports.next()) else {
        panic!("no failure")
    };
    assert!(matches!(&error, CommitError::Ledger(LedgerError::Refused { .. })), "{error:?}");
    assert_eq!(fed.next(), None);
    let refused = fed.runtime.block_on(fed.handle.as_ref().unwrap().flush()).unwrap_err().to_string();
    assert!(refused.contains("its last report says why"), "{refused}");
}

#[test]
fn a_committer_may_be_dropped_by_async_code() {
    let world = TestRun::new(&plots());
    let recovered = restart(world.dir.path()).unwrap();
    Runtime::new().unwrap().block_on(async move { drop(recovered) });
}
