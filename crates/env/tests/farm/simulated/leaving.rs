//! Leases that are lost or replaced, and workers that stop.

use super::*;

#[tokio::test]
async fn a_lost_lease_is_dropped_silently() {
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    policy.notes.change(|notes| notes.pause_from = Some(1));
    let server = policy.serve(0);
    let farm = Farm::simulated(
        config(),
        sim_config(),
        vec![assignment(0, server.address), assignment(1, server.address)],
    );
    policy
        .notes
        .until("both are at step 1", |notes| {
            notes.observed.iter().filter(|(_, step)| *step == 1).count() == 2
        })
        .await;
    farm.book.change(|book| book.leases.remove(&name(0)));
    policy.notes.until("the lost one is closed", |notes| notes.closed == 1).await;
    policy.notes.change(|notes| notes.pause_from = None);
    farm.finished(1).await;
    let book = farm.book.clone();
    assert_eq!(farm.end().await, WorkerSummary { acknowledged: 1, abandoned: 1, cut_off: 0 });
    book.read(|book| assert!(book.ending(&name(0)).is_none() && book.ending(&name(1)).is_some()));
}

/// The trajectory is leased again with a newer token between two renewals: the record is refused
/// and the attempt ends there, although the policy is still computing.
#[tokio::test]
async fn a_stale_token_ends_the_attempt() {
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    policy.notes.change(|notes| notes.pause_from = Some(1));
    let server = policy.serve(0);
    let farm = Farm::simulated(config(), sim_config(), vec![]);
    // Only the record is refused: renewals with the old token still succeed.
    farm.book.change(|book| {
        book.lose_replies.insert("record_step 0".into(), u32::MAX);
        book.queue.push_back(assignment(0, server.address));
    });
    farm.book.until("step 0 came", |book| book.calls.len() > 1).await;
    farm.book.change(|book| book.leases.insert(name(0), (99, furrow_wire::v1::LeaseSecret::default())));
    policy.notes.until("the stale one is closed", |notes| notes.closed == 1).await;
    let book = farm.book.clone();
    assert_eq!(farm.end().await, WorkerSummary { acknowledged: 0, abandoned: 1, cut_off: 0 });
    book.read(|book| assert!(book.endings.is_empty()));
}

#[tokio::test]
async fn stopping_lets_trajectories_end() {
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    policy.notes.change(|notes| notes.pause_from = Some(1));
    let server = policy.serve(0);
    let assigned = (0..5).map(|n| assignment(n, server.address)).collect();
    let farm = Farm::simulated(config(), sim_config(), assigned);
    policy
        .notes
        .until("three are at step 1", |notes| {
            notes.observed.iter().filter(|(_, step)| *step == 1).count() == 3
        })
        .await;
    farm.stop.cancel();
    policy.notes.change(|notes| notes.pause_from = None);
    let book = farm.book.clone();
    assert_eq!(farm.ended().await, WorkerSummary { acknowledged: 3, abandoned: 0, cut_off: 0 });
    book.read(|book| assert_eq!((book.queue.len(), book.endings.len(), book.left), (2, 3, 1)));
}

#[tokio::test]
async fn what_does_not_end_in_time_is_handed_back() {
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    policy.notes.change(|notes| notes.pause_from = Some(1));
    let server = policy.serve(0);
    let hurried = WorkerConfig { drain_grace: Duration::from_millis(50), ..config() };
    let farm = Farm::simulated(hurried, sim_config(), vec![assignment(0, server.address)]);
    policy.notes.until("it is at step 1", |notes| notes.observed.len() == 2).await;
    farm.stop.cancel();
    let book = farm.book.clone();
    assert_eq!(farm.ended().await, WorkerSummary { acknowledged: 1, abandoned: 0, cut_off: 0 });
    let ending = book.read(|book| book.ending(&name(0)).unwrap());
    assert_eq!((ending.end, ending.steps), (EndKind::Cancelled, 1));
    assert!(ending.reason.contains("returns the lease"), "{}", ending.reason);
}

#[tokio::test]
async fn what_cannot_even_be_handed_back_is_cut_off() {
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    policy.notes.change(|notes| notes.pause_from = Some(1));
    let server = policy.serve(0);
    let millis = Duration::from_millis;
    let hurried = WorkerConfig { drain_grace: millis(20), call_deadline: millis(50), ..config() };
    let mut farm = Farm::simulated(hurried, sim_config(), vec![assignment(0, server.address)]);
    policy.notes.until("it is at step 1", |notes| notes.observed.len() == 2).await;
    farm.coordinator.take().unwrap().kill();
    farm.stop.cancel();
    assert_eq!(farm.ended().await, WorkerSummary { acknowledged: 0, abandoned: 1, cut_off: 1 });
}

#[tokio::test]
async fn a_trajectory_leased_anew_replaces_the_older_attempt() {
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    policy.notes.change(|notes| notes.pause_from = Some(1));
    let server = policy.serve(0);
    let farm = Farm::simulated(config(), sim_config(), vec![assignment(0, server.address)]);
    policy.notes.until("it is at step 1", |notes| notes.observed.len() == 2).await;
    // Step 0 is recorded while step 1 is in progress: it must be stored before it is dropped.
    farm.book.until("step 0 is recorded", |book| book.recorded(&name(0)).len() == 1).await;
    farm.book.change(|book| {
        book.steps.clear();
        let secret = LeaseSecret::new([50; LEASE_SECRET_BYTES]);
        book.queue.push_back(Assignment { token: 50, secret, ..assignment(0, server.address) });
    });
    policy.notes.until("the older one is closed", |notes| notes.closed == 1).await;
    policy.notes.change(|notes| notes.pause_from = None);
    farm.finished(1).await;
    farm.book.read(|book| assert_eq!(book.recorded(&name(0)).len(), 4));
    assert_eq!(farm.end().await, WorkerSummary { acknowledged: 1, abandoned: 1, cut_off: 0 });
}

#[tokio::test]
async fn a_refused_worker_reports_the_refusal() {
    let book = WatchedValue::new(CoordinatorState {
        refuse_registration: Some("protocol version 1, expected 2".into()),
        ..CoordinatorState::default()
    });
    let coordinator = StubCoordinator(book).serve(0);
    let environments = Arc::new(SimulatedBrowser::new(sim_config()));
    let address = coordinator.address.to_string();
    let id = Id::new("e").unwrap();
    let stop = CancellationToken::new();
    let error =
        run(config(), id, environments, Arc::new(TcpConnector::default()), &address, stop).await.unwrap_err();
    let message = error.to_string();
    assert!(message.contains(&address) && message.contains("protocol version 1, expected 2"), "{message}");
}

#[tokio::test]
async fn a_coordinator_that_stays_away_ends_the_worker() {
    let policy = StubPolicy::new(PolicyBehaviour::Click);
    policy.notes.change(|notes| notes.pause_from = Some(1));
    let server = policy.serve(0);
    let short = RetryPolicy { timeout: Duration::from_millis(200), ..config().coordinator_retry };
    let mut farm = Farm::simulated(
        WorkerConfig { coordinator_retry: short, ..config() },
        sim_config(),
        vec![assignment(0, server.address)],
    );
    policy.notes.until("it is at step 1", |notes| notes.observed.len() == 2).await;
    farm.coordinator.take().unwrap().kill();
    let error =
        tokio::time::timeout(DEADLINE, farm.worker).await.expect("the worker ends").unwrap().unwrap_err();
    assert!(matches!(error, WorkerError::CoordinatorGone { .. }), "{error}");
    assert_eq!((farm.open_left)(), 0);
}

#[tokio::test]
async fn a_worker_may_be_stopped_before_it_found_a_coordinator() {
    let server = StubPolicy::new(PolicyBehaviour::Click).serve(0);
    let address = server.address.to_string();
    server.kill();
    let id = Id::new("e").unwrap();
    let stop = CancellationToken::new();
    let worker = run(
        config(),
        id,
        Arc::new(SimulatedBrowser::new(sim_config())),
        Arc::new(TcpConnector::default()),
        &address,
        stop.clone(),
    );
    stop.cancel();
    assert_eq!(tokio::time::timeout(DEADLINE, worker).await.unwrap().unwrap(), WorkerSummary::default());
}
