//! A coordinator with identities: a worker acts for itself alone, also if it knows what another one
//! knows.

use furrow_identity::Authority;
use furrow_telemetry::TimeSource;
use furrow_wire::{PeerRole, TlsConnector};

use super::*;

/// Callers with certificates of the same run.
struct IdentifiedFarm {
    served: JoinHandle<Result<RunSummary, CoordinatorError>>,
    stop: CancellationToken,
    authority: Authority,
    address: String,
}

struct Callers {
    calls: CoordinatorServiceClient<Channel>,
    registration: RegistrationServiceClient<Channel>,
}

impl IdentifiedFarm {
    async fn open(dir: &Path) -> Self {
        Self::with(JobSetup::default(), dir).await
    }

    async fn with(setup: JobSetup, dir: &Path) -> Self {
        let run = furrow_rollout::Id::new("loopback").unwrap();
        let authority = Authority::open_or_create(&dir.join("run/identity"), &run).unwrap();
        let mut job = setup.job(dir);
        job.link = Some(authority.issue(PeerRole::Coordinator, "coordinator").unwrap());
        let coordinator = tokio::task::spawn_blocking(|| Coordinator::open(job)).await.unwrap().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let stop = CancellationToken::new();
        let served =
            tokio::spawn(coordinator.serve(TcpIncoming::from(listener), stop.clone(), TimeSource::system()));
        Self { served, stop, authority, address }
    }

    fn as_peer(&self, role: PeerRole, name: &str) -> Callers {
        let identity = self.authority.issue(role, name).unwrap();
        let channel = TlsConnector::new(identity).channel(PeerRole::Coordinator, &self.address);
        let channel = channel.unwrap();
        let calls = CoordinatorServiceClient::new(channel.clone());
        Callers { calls, registration: RegistrationServiceClient::new(channel) }
    }
}

impl Callers {
    async fn lease_one(&mut self) -> LeasedAssignment {
        LeasedAssignment::new(self.calls.lease(leasing()).await.unwrap().into_inner().assignments.remove(0))
    }
}

#[tokio::test]
async fn a_worker_acts_for_itself_alone() {
    let dir = tempfile::tempdir().unwrap();
    let farm = IdentifiedFarm::open(dir.path()).await;
    let mut own = farm.as_peer(PeerRole::Env, "env");
    let mut real_policy = farm.as_peer(PeerRole::Policy, "policy");
    own.registration.register(env("env")).await.unwrap();
    real_policy.registration.register(policy("policy")).await.unwrap();
    let leased = own.lease_one().await;

    // Another environment worker of the run, which has found out id, token and secret.
    let mut rogue = farm.as_peer(PeerRole::Env, "rogue");
    check_lease_is_bound(&mut rogue, &leased).await;
    check_names_are_bound(&mut rogue).await;
    check_namesake(&farm).await;
    check_readers(&farm, &mut rogue, &leased).await;
    // Another process with a certificate of the same name, which has found out id and token.
    let mut second = farm.as_peer(PeerRole::Env, "env");
    for secret in [[0; 16], [7; 16]] {
        let value = Bytes::copy_from_slice(&secret);
        let guessed = LeasedAssignment { secret: Some(v1::LeaseSecret { value }), ..leased.clone() };
        check_no_lease(&mut second, "env", &guessed).await;
    }

    // The real ones were not harmed.
    assert!(own.registration.heartbeat(beat("env")).await.unwrap().into_inner().known);
    assert!(real_policy.registration.heartbeat(beat("policy")).await.unwrap().into_inner().known);
    own.calls.record_step(leased.step(0)).await.unwrap();
    let ending = leased.ending(1, EndKind::Answered, Some("42"));
    own.calls.finish(ending.clone()).await.unwrap();
    // The rogue repeats the very bytes, and does not learn that the trajectory has ended.
    refused(rogue.calls.finish(ending.clone()).await, STALE, NO_LEASE);
    own.calls.finish(ending).await.unwrap();
    drop((own, rogue, second, real_policy));
    // The job of one trajectory is over once that is scored and published.
    let summary = tokio::time::timeout(TEST_TIMEOUT, farm.served).await.unwrap().unwrap().unwrap();
    assert_eq!(summary.progress.scored, 1);
}

fn leasing() -> v1::LeaseRequest {
    v1::LeaseRequest { worker_id: "env".into(), slots_free: 1, wait_millis: 10_000 }
}

fn beat(worker: &str) -> v1::HeartbeatRequest {
    v1::HeartbeatRequest { worker_id: worker.into(), ..v1::HeartbeatRequest::default() }
}

fn leave(worker: &str) -> v1::LeaveRequest {
    v1::LeaveRequest { worker_id: worker.into() }
}

const DENIED: Code = Code::PermissionDenied;
const STALE: Code = Code::FailedPrecondition;

/// What a caller gets that may not act for a trajectory, whatever became of that.
const NO_LEASE: &str = "the lease is over, or its worker, token or secret is another";

/// Every call of a lease, by a caller that does not hold it.
async fn check_no_lease(caller: &mut Callers, worker: &str, leased: &LeasedAssignment) {
    refused(caller.calls.record_step(leased.step(0)).await, STALE, NO_LEASE);
    let ending = leased.ending(0, EndKind::Answered, Some("42"));
    refused(caller.calls.finish(ending).await, STALE, NO_LEASE);
    let picture = Bytes::from_static(b"picture");
    refused(caller.calls.show_first(leased.show(picture)).await, STALE, NO_LEASE);
    let renewing = v1::RenewRequest { worker_id: worker.into(), leases: vec![leased.lease()] };
    let renewed = caller.calls.renew(renewing).await.unwrap().into_inner();
    assert!(renewed.lost.contains(&leased.trajectory_id), "not its lease");
}

async fn check_lease_is_bound(rogue: &mut Callers, leased: &LeasedAssignment) {
    check_no_lease(rogue, "rogue", leased).await;
    let renewing = v1::RenewRequest { worker_id: "env".into(), leases: vec![leased.lease()] };
    refused(rogue.calls.renew(renewing).await, DENIED, "cannot act as worker");
}

/// After its end, and after its worker's identity was revoked, a lease's secret opens nothing.
#[tokio::test]
async fn the_secret_of_a_lease_that_is_over_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let setup = JobSetup { groups: 4, ..JobSetup::default() };
    let farm = IdentifiedFarm::with(setup, dir.path()).await;
    let mut own = farm.as_peer(PeerRole::Env, "env");
    let mut gone = farm.as_peer(PeerRole::Env, "gone");
    let mut policies = farm.as_peer(PeerRole::Policy, "policy");
    own.registration.register(env("env")).await.unwrap();
    gone.registration.register(env("gone")).await.unwrap();
    policies.registration.register(policy("policy")).await.unwrap();
    let [first, second] = [own.lease_one().await, own.lease_one().await];
    let leasing = v1::LeaseRequest { worker_id: "gone".into(), ..leasing() };
    let revoked = gone.calls.lease(leasing).await.unwrap().into_inner().assignments.remove(0);
    let revoked = LeasedAssignment::new(revoked);

    // The secret of another lease of the same worker, before and after that has ended.
    let crossed = LeasedAssignment { secret: first.secret.clone(), ..second.clone() };
    check_no_lease(&mut own, "env", &crossed).await;
    own.calls.record_step(first.step(0)).await.unwrap();
    own.calls.finish(first.ending(1, EndKind::Answered, Some("42"))).await.unwrap();
    check_no_lease(&mut own, "env", &crossed).await;
    refused(own.calls.record_step(first.step(1)).await, STALE, NO_LEASE);

    gone.calls.record_step(revoked.step(0)).await.unwrap();
    let peer = furrow_identity::RevokedPeer::parse("env/gone").unwrap();
    Authority::revoke(&dir.path().join("run/identity"), peer).unwrap();
    let mut observer = farm.as_peer(PeerRole::Observer, "observer").calls;
    let began = std::time::Instant::now();
    while observer.progress(v1::ProgressRequest {}).await.unwrap().into_inner().assigned > 1 {
        assert!(began.elapsed() < TEST_TIMEOUT, "the lease of a revoked worker stays");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let late = gone.calls.finish(revoked.ending(1, EndKind::Answered, Some("42"))).await;
    refused(late, Code::Unauthenticated, "was revoked");
    // What it knew is of no use to another worker either.
    check_no_lease(&mut own, "env", &revoked).await;
    farm.stop.cancel();
    drop((own, gone, policies, observer));
    tokio::time::timeout(TEST_TIMEOUT, farm.served).await.unwrap().unwrap().unwrap();
}

async fn check_names_are_bound(rogue: &mut Callers) {
    let named = "cannot act as worker";
    refused(rogue.calls.lease(leasing()).await, DENIED, named);
    refused(rogue.registration.register(env("env")).await, DENIED, named);
    refused(rogue.registration.register(policy("policy")).await, DENIED, named);
    refused(rogue.registration.register(policy("rogue")).await, DENIED, "cannot register as policy");
    refused(rogue.registration.heartbeat(beat("env")).await, DENIED, named);
    for worker in ["env", "policy"] {
        refused(rogue.registration.leave(leave(worker)).await, DENIED, named);
    }
}

/// One with the policy worker's name, and with another role.
async fn check_namesake(farm: &IdentifiedFarm) {
    let mut namesake = farm.as_peer(PeerRole::Env, "policy");
    assert!(!namesake.registration.heartbeat(beat("policy")).await.unwrap().into_inner().known);
    namesake.registration.leave(leave("policy")).await.unwrap();
}

async fn check_readers(farm: &IdentifiedFarm, rogue: &mut Callers, leased: &LeasedAssignment) {
    let drain = || v1::DrainRequest { at_once: true };
    let publication = v1::PublishRequest { publication_id: "p".into(), weights: None };
    refused(rogue.calls.publish(publication).await, DENIED, "allowed roles: client");
    refused(rogue.calls.drain(drain()).await, DENIED, "allowed roles: client");
    refused(rogue.calls.running(v1::RunningRequest {}).await, DENIED, "allowed roles: client, observer");
    let mut observer = farm.as_peer(PeerRole::Observer, "observer");
    refused(observer.calls.drain(drain()).await, DENIED, "whose role is observer");
    // It shows a picture of its own for another's trajectory while someone watches.
    observer.calls.running(v1::RunningRequest {}).await.unwrap();
    let showing = leased.show(Bytes::from_static(b"picture"));
    refused(rogue.calls.show_first(showing).await, STALE, NO_LEASE);
    let trajectory_id = leased.trajectory_id.clone();
    let last = observer.calls.last_step(v1::LastStepRequest { trajectory_id }).await.unwrap().into_inner();
    assert!(last.first_screenshot.is_empty(), "{last:?}");
}

#[tokio::test]
async fn a_lease_takes_no_more_steps_than_its_task_has() {
    let dir = tempfile::tempdir().unwrap();
    let mut farm = TestFarm::open(JobSetup::default(), dir.path()).await.unwrap();
    farm.register().await;
    let (leased, limit) = farm.lease_limited().await;
    for step in 0..limit {
        farm.record(leased.step(step)).await.unwrap();
    }
    refused(farm.record(leased.step(limit)).await, Code::OutOfRange, "ends after");
    farm.record(leased.step(limit - 1)).await.unwrap();
    farm.stop().await.unwrap();
}

#[tokio::test]
async fn weights_outside_of_the_roots_are_not_published() {
    let dir = tempfile::tempdir().unwrap();
    let weight_roots = furrow_rollout::WeightRoots::new(vec!["/data/weights".into()]);
    let setup = JobSetup { weight_roots, ..JobSetup::default() };
    let mut farm = TestFarm::open(setup, dir.path()).await.unwrap();
    farm.register().await;
    let mut publish = async |directory: &str| {
        let link = v1::WeightsLink { form: "full".into(), directory: directory.into() };
        let weights = v1::Directory { link: Some(link), ..v1::Directory::default() };
        let weights = Some(v1::publish_request::Weights::Directory(weights));
        let publication_id = directory.replace('/', "-");
        farm.calls.publish(v1::PublishRequest { publication_id, weights }).await
    };
    for outside in ["/etc", "/data/weights/../keys", "/data/weights2/1"] {
        refused(publish(outside).await, Code::InvalidArgument, "is outside of policy.weights.roots");
    }
    let inside = publish("/data/weights/1").await;
    assert!(!inside.is_err_and(|status| status.message().contains("roots")));
    farm.stop().await.unwrap();
}
