//! A coordinator with identities: a worker acts for itself alone, also if it knows what another one
//! knows.

use furrow_identity::Authority;
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
        let run = furrow_rollout::Id::new("loopback").unwrap();
        let authority = Authority::open_or_create(&dir.join("identity"), &run).unwrap();
        let mut job = JobSetup::default().job(dir);
        job.link = Some(authority.issue(PeerRole::Coordinator, "coordinator").unwrap());
        let coordinator = tokio::task::spawn_blocking(|| Coordinator::open(job)).await.unwrap().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let stop = CancellationToken::new();
        let served = tokio::spawn(coordinator.serve(TcpIncoming::from(listener), stop.clone()));
        Self { served, stop, authority, address }
    }

    fn as_peer(&self, role: PeerRole, name: &str) -> Callers {
        let identity = self.authority.issue(role, name).unwrap();
        let channel = TlsConnector::new(Arc::new(identity)).channel(PeerRole::Coordinator, &self.address);
        let channel = channel.unwrap();
        let calls = CoordinatorServiceClient::new(channel.clone());
        Callers { calls, registration: RegistrationServiceClient::new(channel) }
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
    let assignment = own.calls.lease(leasing()).await.unwrap().into_inner().assignments.remove(0);
    let lease = v1::LeaseRef {
        trajectory_id: assignment.ancestry.as_ref().unwrap().trajectory_id.clone(),
        token: assignment.token,
    };
    let leased = LeasedAssignment::new(assignment);

    // Another environment worker of the run, which has found out id and token.
    let mut rogue = farm.as_peer(PeerRole::Env, "rogue");
    check_lease_is_bound(&mut rogue, &leased, &lease).await;
    check_names_are_bound(&mut rogue).await;
    check_namesake(&farm).await;
    check_readers(&farm, &mut rogue, &lease.trajectory_id).await;

    // The real ones were not harmed.
    assert!(own.registration.heartbeat(beat("env")).await.unwrap().into_inner().known);
    assert!(real_policy.registration.heartbeat(beat("policy")).await.unwrap().into_inner().known);
    own.calls.record_step(leased.step(0)).await.unwrap();
    own.calls.finish(leased.ending(1, EndKind::Answered, Some("42"))).await.unwrap();
    drop((own, rogue, real_policy));
    farm.stop.cancel();
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

async fn check_lease_is_bound(rogue: &mut Callers, leased: &LeasedAssignment, lease: &v1::LeaseRef) {
    let other = "leased to another worker";
    refused(rogue.calls.record_step(leased.step(0)).await, DENIED, other);
    refused(rogue.calls.finish(leased.ending(0, EndKind::Answered, Some("42"))).await, DENIED, other);
    let renewing = |worker: &str| v1::RenewRequest { worker_id: worker.into(), leases: vec![lease.clone()] };
    refused(rogue.calls.renew(renewing("env")).await, DENIED, "cannot act as worker");
    let renewed = rogue.calls.renew(renewing("rogue")).await.unwrap().into_inner();
    assert!(renewed.lost.contains(&lease.trajectory_id), "not its lease");
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

async fn check_readers(farm: &IdentifiedFarm, rogue: &mut Callers, trajectory_id: &str) {
    let drain = || v1::DrainRequest { at_once: true };
    let publication = v1::PublishRequest { publication_id: "p".into(), weights: None };
    refused(rogue.calls.publish(publication).await, DENIED, "allowed roles: client");
    refused(rogue.calls.drain(drain()).await, DENIED, "allowed roles: client");
    refused(rogue.calls.running(v1::RunningRequest {}).await, DENIED, "allowed roles: client, observer");
    let mut observer = farm.as_peer(PeerRole::Observer, "observer");
    refused(observer.calls.drain(drain()).await, DENIED, "whose role is observer");
    // It shows a picture of its own for another's trajectory while someone watches.
    observer.calls.running(v1::RunningRequest {}).await.unwrap();
    let trajectory_id = trajectory_id.to_owned();
    let screenshot = Bytes::from_static(b"picture");
    let showing = v1::ShowFirstRequest { trajectory_id: trajectory_id.clone(), screenshot };
    rogue.calls.show_first(showing).await.unwrap();
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
