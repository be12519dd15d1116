//! The coordinator over real gRPC on a loopback listener: which workers register, which calls are
//! refused, what is kept.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use furrow_coordinator::core::JobOutcome;
use furrow_coordinator::{
    Coordinator, CoordinatorError, JudgeFile, LimitsFile, RescoreError, RescoreFilter, RescoreJob,
    RescoreSummary, RunSummary, rescore,
};
use furrow_records::{DataSet, RecordsFile, verify};
use furrow_rollout::{EndKind, PROTOCOL_VERSION, SCHEMA_VERSION, TrajectoryStatus as Scored};
use furrow_testkit::chat_server::{FakeChatServer, ServerAction};
use furrow_wire::v1::coordinator_service_client::CoordinatorServiceClient;
use furrow_wire::v1::registration_service_client::RegistrationServiceClient;
use furrow_wire::{Connector, MESSAGE_BYTES_MAX, TcpConnector, digest, v1};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Status};

use common::{JobSetup, LeasedAssignment, env, judge, policy, record};

/// Everything here takes seconds, unless it hangs.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A running coordinator and its clients.
struct TestFarm {
    served: JoinHandle<Result<RunSummary, CoordinatorError>>,
    stop: CancellationToken,
    calls: CoordinatorServiceClient<Channel>,
    registration: RegistrationServiceClient<Channel>,
}

impl TestFarm {
    async fn open(setup: JobSetup, dir: &Path) -> Result<Self, CoordinatorError> {
        let job = setup.job(dir);
        let coordinator = tokio::task::spawn_blocking(|| Coordinator::open(job)).await.unwrap()?;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let stop = CancellationToken::new();
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let served = tokio::spawn(coordinator.serve(incoming, stop.clone()));
        let channel = TcpConnector::default().channel(&address).unwrap();
        let calls = CoordinatorServiceClient::new(channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX * 2);
        Ok(TestFarm { served, stop, calls, registration: RegistrationServiceClient::new(channel) })
    }

    async fn register(&mut self) {
        self.registration.register(env("env")).await.unwrap();
        self.registration.register(policy("policy")).await.unwrap();
    }

    async fn lease(&mut self, slots_free: u32) -> v1::LeaseResponse {
        let request = v1::LeaseRequest { worker_id: "env".into(), slots_free, wait_millis: 200 };
        self.calls.lease(request).await.unwrap().into_inner()
    }

    /// One assignment, in as many requests as needed.
    async fn lease_one(&mut self) -> LeasedAssignment {
        self.lease_limited().await.0
    }

    /// The same with its step limit.
    async fn lease_limited(&mut self) -> (LeasedAssignment, u32) {
        let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
        loop {
            assert!(tokio::time::Instant::now() < deadline, "nothing is leased");
            if let Some(assignment) = self.lease(1).await.assignments.pop() {
                let limit = assignment.task.as_ref().unwrap().max_steps;
                return (LeasedAssignment::new(assignment), limit);
            }
        }
    }

    async fn record(&mut self, request: v1::RecordStepRequest) -> Result<(), Status> {
        self.calls.record_step(request).await.map(drop)
    }

    async fn finish(&mut self, request: v1::FinishRequest) -> Result<(), Status> {
        self.calls.finish(request).await.map(drop)
    }

    /// Acts a whole trajectory of this many steps and gives this answer.
    async fn act(&mut self, assignment: &LeasedAssignment, steps: u32, answer: &str) {
        for step in 0..steps {
            self.record(assignment.step(step)).await.unwrap();
        }
        self.finish(assignment.ending(steps, EndKind::Answered, Some(answer))).await.unwrap();
    }

    async fn progress(&mut self) -> v1::ProgressResponse {
        self.calls.progress(v1::ProgressRequest {}).await.unwrap().into_inner()
    }

    async fn end(self) -> Result<RunSummary, CoordinatorError> {
        drop((self.calls, self.registration));
        tokio::time::timeout(TEST_TIMEOUT, self.served).await.expect("it ends").unwrap()
    }

    async fn stop(self) -> Result<RunSummary, CoordinatorError> {
        self.stop.cancel();
        self.end().await
    }
}

#[track_caller]
fn refused<T>(result: Result<T, Status>, code: Code, part: &str) {
    let Err(status) = result else { panic!("the call succeeded; expected {code:?} with {part:?}") };
    assert_eq!(status.code(), code, "{status:?}");
    assert!(status.message().contains(part), "{part:?} is not in {status:?}");
}

#[tokio::test]
async fn workers_register_or_are_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let mut farm = TestFarm::open(JobSetup::default(), dir.path()).await.unwrap();
    let with = |change: &dyn Fn(&mut v1::RegisterRequest)| {
        let mut request = policy("policy");
        change(&mut request);
        request
    };
    let with_info = |change: &dyn Fn(&mut v1::PolicyWorkerInfo)| {
        with(&|request| {
            let Some(v1::register_request::Role::Policy(info)) = &mut request.role else { unreachable!() };
            change(info);
        })
    };
    let protocol = PROTOCOL_VERSION + 1;
    let schema = SCHEMA_VERSION + 1;
    let table = [
        (
            with(&|request| request.protocol_version = protocol),
            Code::FailedPrecondition,
            format!("protocol version {protocol}, the coordinator {PROTOCOL_VERSION}"),
        ),
        (
            with(&|request| request.schema_version = schema),
            Code::FailedPrecondition,
            format!("schema version {schema}, the coordinator {SCHEMA_VERSION}"),
        ),
        (with(&|request| request.role = None), Code::InvalidArgument, "role is missing".into()),
        (with(&|request| request.worker_id = "a/b".into()), Code::InvalidArgument, "worker_id".into()),
        (with_info(&|info| info.address = "nowhere".into()), Code::InvalidArgument, "host:port".into()),
        (with_info(&|info| info.address = "host:0".into()), Code::InvalidArgument, "host:port".into()),
        (
            with_info(&|info| info.policy_kind = "oracle".into()),
            Code::InvalidArgument,
            "scripted, random".into(),
        ),
        (with_info(&|info| info.sessions_max = 0), Code::InvalidArgument, "policy.sessions_max is 0".into()),
        (
            with_info(&|info| info.weights_sha256 = Some("x".into())),
            Code::InvalidArgument,
            "policy.weights_sha256".into(),
        ),
    ];
    for (request, code, part) in table {
        refused(farm.registration.register(request).await, code, &part);
    }
    let known = farm.registration.register(policy("policy")).await.unwrap().into_inner();
    assert_eq!((known.run_id.as_str(), known.epoch, known.heartbeat_millis), ("loopback", 1, 3_000));
    for (worker_id, want) in [("policy", true), ("stranger", false)] {
        let request = v1::HeartbeatRequest { worker_id: worker_id.into(), ..v1::HeartbeatRequest::default() };
        let response = farm.registration.heartbeat(request).await.unwrap().into_inner();
        assert_eq!((response.known, response.run_over), (want, false), "{worker_id}");
    }
    let request = v1::LeaseRequest { worker_id: "stranger".into(), slots_free: 1, wait_millis: 0 };
    refused(farm.calls.lease(request).await, Code::Aborted, "register again");
    farm.stop().await.unwrap();
}

#[tokio::test]
async fn what_does_not_fit_is_refused_and_what_was_kept_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut farm = TestFarm::open(JobSetup::default(), dir.path()).await.unwrap();
    farm.register().await;
    let assignment = farm.lease(1).await.assignments.remove(0);
    assert_eq!((assignment.policy_address.as_str(), assignment.lease_millis), ("127.0.0.1:9", 60_000));
    assert_eq!(assignment.task.clone().unwrap().goal.as_deref(), Some("Say 42."));
    let leased = LeasedAssignment::new(assignment);
    assert_eq!(leased.trajectory_id, "loopback-g000000-s0-a0");

    farm.record(leased.step(0)).await.unwrap();
    farm.record(leased.step(0)).await.unwrap(); // its answer may have been lost
    let changed = |change: &dyn Fn(&mut v1::RecordStepRequest)| {
        let mut request = leased.step(1);
        change(&mut request);
        request
    };
    let other_zero = changed(&|request| {
        let mut bytes = record(0).to_vec();
        bytes.extend_from_slice(&[0x38, 0x07]); // field 7, observed_at_micros, again
        request.digest = Bytes::copy_from_slice(&digest(&bytes));
        (request.step, request.record) = (0, bytes.into());
    });
    let huge = changed(&|request| request.record = vec![0; MESSAGE_BYTES_MAX + 1].into());
    let steps = [
        (
            changed(&|request| request.token += 1),
            Code::FailedPrecondition,
            "is stale: it is leased under token 1",
        ),
        (changed(&|request| request.token = 0), Code::FailedPrecondition, "token 0"),
        (
            changed(&|request| request.trajectory_id = "loopback-g000000-s0-a1".into()),
            Code::FailedPrecondition,
            "no longer leased",
        ),
        (changed(&|request| request.digest = vec![0; 32].into()), Code::InvalidArgument, "digest"),
        (changed(&|request| request.digest = vec![0; 31].into()), Code::InvalidArgument, "31 bytes"),
        (
            changed(&|request| request.record = Bytes::from_static(b"\xff\xff")),
            Code::InvalidArgument,
            "cannot be decoded",
        ),
        (changed(&|request| request.step = 2), Code::InvalidArgument, "record is of step 1"),
        (leased.step(2), Code::OutOfRange, "step 2 came before step 1"),
        (other_zero, Code::AlreadyExists, "another digest"),
        (huge, Code::OutOfRange, "too large"),
    ];
    for (request, code, part) in steps {
        refused(farm.record(request).await, code, part);
    }
    farm.record(leased.step(1)).await.unwrap();

    let ending = leased.ending(2, EndKind::Answered, Some("42"));
    refused(
        farm.finish(leased.ending(3, EndKind::Answered, Some("42"))).await,
        Code::OutOfRange,
        "2 steps are recorded",
    );
    let stale = v1::FinishRequest { token: 9, ..ending.clone() };
    refused(farm.finish(stale).await, Code::FailedPrecondition, "is stale");
    farm.finish(ending.clone()).await.unwrap();
    farm.finish(ending).await.unwrap();
    let other = leased.ending(2, EndKind::Answered, Some("41"));
    refused(farm.finish(other).await, Code::AlreadyExists, "another ending");

    let summary = farm.end().await.unwrap();
    assert_eq!(summary.over, JobOutcome::Complete);
    let data = DataSet::open(&dir.path().join("run")).unwrap();
    let rows: Vec<_> = data.trajectories().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].status, rows[0].ending.steps), (Scored::Scored, 2));
    assert_eq!(rows[0].score.as_ref().unwrap().reward, Some(1.0));
}

#[tokio::test]
async fn discarded_trajectories_free_capacity_and_more_than_there_are_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let limits = LimitsFile {
        trajectories_per_version: Some(1),
        max_off_policy_versions: 0,
        ..JobSetup::default().limits
    };
    let mut farm =
        TestFarm::open(JobSetup { groups: 3, limits, ..JobSetup::default() }, dir.path()).await.unwrap();
    farm.register().await;
    let wrong = [
        ((1, 0, 0), Code::OutOfRange, "1 trajectories cannot be discarded: this run has accepted 0"),
        ((0, 2, 2), Code::InvalidArgument, "reader 2 of 2 is out of range"),
        ((0, 1, 0), Code::InvalidArgument, "reader 1 of 0 is out of range"),
        ((0, 0, 5000), Code::InvalidArgument, "at most 4096 readers"),
    ];
    for ((trajectories, rank, world), code, part) in wrong {
        let request = v1::ReportDiscardedRequest { trajectories, rank, world };
        refused(farm.calls.report_discarded(request).await, code, part);
    }
    for discarded in 1..=3 {
        let assignment = farm.lease_one().await;
        farm.act(&assignment, 1, "no idea").await;
        while farm.progress().await.scored < discarded {
            tokio::task::yield_now().await;
        }
        if discarded < 3 {
            let admission = farm.progress().await.admission;
            assert!(
                admission.ends_with("of them discarded, and 0 running fill what version 0 allows: 1"),
                "{admission}"
            );
            assert!(farm.lease(1).await.assignments.is_empty());
        }
        let request = v1::ReportDiscardedRequest { trajectories: discarded.into(), rank: 0, world: 0 };
        let answer = farm.calls.report_discarded(request).await.unwrap().into_inner();
        assert_eq!((answer.discarded, answer.accepted), (discarded.into(), discarded.into()));
        assert_eq!(farm.progress().await.discarded, discarded);
    }
    assert_eq!(farm.end().await.unwrap().over, JobOutcome::Complete);
}

#[tokio::test]
async fn a_job_becomes_a_data_set_that_verifies() {
    let dir = tempfile::tempdir().unwrap();
    let setup = JobSetup { groups: 3, group_size: 2, ..JobSetup::default() };
    let mut farm = TestFarm::open(setup, dir.path()).await.unwrap();
    farm.register().await;
    let mut acted = 0;
    loop {
        let leased = farm.lease(4).await;
        for assignment in leased.assignments.into_iter().map(LeasedAssignment::new) {
            match acted {
                // The first one's browser dies: it is tried again.
                0 => farm.finish(assignment.ending(0, EndKind::BrowserDead, None)).await.unwrap(),
                // This one ends without evidence: nothing to score.
                1 => {
                    farm.record(assignment.step(0)).await.unwrap();
                    farm.finish(assignment.ending(1, EndKind::Done, None)).await.unwrap();
                }
                _ => farm.act(&assignment, 2, if acted % 2 == 0 { "42" } else { "no idea" }).await,
            }
            acted += 1;
        }
        if leased.run_over {
            break;
        }
    }
    let progress = farm.progress().await;
    assert_eq!((progress.groups_planned, progress.assigned, progress.scored, progress.failed), (3, 0, 6, 2));
    let summary = farm.end().await.unwrap();
    assert_eq!((summary.over, summary.progress.committed, acted), (JobOutcome::Complete, 8, 8));

    let run = dir.path().join("run");
    let report = verify(&run).unwrap();
    assert!(report.is_sound(), "{report:?}");
    let data = DataSet::open(&run).unwrap();
    let mut ends: Vec<_> = data.trajectories().map(|row| row.unwrap().ending.end).collect();
    ends.sort();
    let mut want = vec![EndKind::Answered; 6];
    want.extend([EndKind::BrowserDead, EndKind::PageCrash]);
    assert_eq!(ends, want);
    let groups: Vec<_> = data.groups().map(Result::unwrap).collect();
    assert_eq!(groups.iter().map(|group| (group.planned, group.valid)).collect::<Vec<_>>(), [(2, 2); 3]);
    assert_eq!(std::fs::read_dir(run.join("spool")).unwrap().count(), 0, "the spool deleted everything");

    let resumed = JobSetup { resume: true, groups: 3, group_size: 2, ..JobSetup::default() };
    let summary = TestFarm::open(resumed, dir.path()).await.unwrap().end().await.unwrap();
    assert_eq!((summary.over, summary.progress.committed), (JobOutcome::Complete, 8), "no work is left");
}

#[tokio::test]
async fn a_stopped_job_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let setup = || JobSetup { groups: 2, group_size: 2, ..JobSetup::default() };
    let mut farm = TestFarm::open(setup(), dir.path()).await.unwrap();
    farm.register().await;
    let first = farm.lease_one().await;
    let second = farm.lease_one().await;
    farm.act(&first, 2, "42").await;
    farm.record(second.step(0)).await.unwrap();
    let summary = farm.stop().await.unwrap();
    assert_eq!(summary.over, JobOutcome::Drained { cancelled: 1 });
    assert_eq!(summary.progress.committed, 2);

    let error =
        TestFarm::open(setup(), dir.path()).await.err().expect("a run directory is not reused by accident");
    assert!(error.to_string().contains("--resume"), "{error}");
    let other = JobSetup { resume: true, seed: 2, ..setup() };
    let error = TestFarm::open(other, dir.path()).await.err().expect("another job is another run");
    assert!(matches!(error, CoordinatorError::Ledger(_)), "{error:?}");

    let mut farm = TestFarm::open(JobSetup { resume: true, ..setup() }, dir.path()).await.unwrap();
    farm.register().await;
    refused(farm.record(second.step(1)).await, Code::FailedPrecondition, "is stale");
    let mut ids = Vec::new();
    for _ in 0..3 {
        let assignment = farm.lease_one().await;
        farm.act(&assignment, 1, "42").await;
        ids.push(assignment.trajectory_id);
    }
    assert_eq!(ids, ["loopback-g000000-s1-a1", "loopback-g000001-s0-a0", "loopback-g000001-s1-a0"]);
    let summary = farm.end().await.unwrap();
    assert_eq!((summary.over, summary.progress.scored), (JobOutcome::Complete, 4));
    assert!(verify(&dir.path().join("run")).unwrap().is_sound());
}

#[tokio::test]
async fn the_first_limits_are_spread_and_a_resumed_job_goes_on_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let limits = || LimitsFile { spread_first_steps: true, ..JobSetup::default().limits };
    let setup = || JobSetup { groups: 5, group_size: 2, limits: limits(), ..JobSetup::default() };
    let slot = |id: &str| id.rsplit_once("-a").unwrap().0.to_owned();
    let mut given = BTreeMap::new();
    let mut farm = TestFarm::open(setup(), dir.path()).await.unwrap();
    farm.register().await;
    // Six at once of tasks with 30 steps. The first is tried again under another token: its limit
    // stays the same.
    let first = farm.lease_limited().await;
    let second = farm.lease_limited().await;
    let third = farm.lease_limited().await;
    assert_eq!([first.1, second.1, third.1], [5, 10, 15]);
    farm.finish(first.0.ending(0, EndKind::BrowserDead, None)).await.unwrap();
    given.insert(slot(&first.0.trajectory_id), first.1);
    farm.act(&second.0, 10, "42").await;
    given.insert(slot(&second.0.trajectory_id), second.1);
    // The third is running when the coordinator stops.
    farm.record(third.0.step(0)).await.unwrap();
    farm.stop().await.unwrap();

    let mut farm = TestFarm::open(JobSetup { resume: true, ..setup() }, dir.path()).await.unwrap();
    farm.register().await;
    for _ in 0..9 {
        let (assignment, limit) = farm.lease_limited().await;
        let known = given.insert(slot(&assignment.trajectory_id), limit);
        assert!(known.is_none_or(|known| known == limit), "{} has {limit} now", assignment.trajectory_id);
        for step in 0..2 {
            farm.record(assignment.step(step)).await.unwrap();
        }
        farm.finish(assignment.ending(2, EndKind::MaxSteps, Some("no"))).await.unwrap();
    }
    assert_eq!(farm.end().await.unwrap().over, JobOutcome::Complete);
    assert_eq!(given.values().copied().collect::<Vec<_>>(), [5, 10, 15, 20, 25, 30, 30, 30, 30, 30]);

    // The records hold each limit; all of them verify.
    let run = dir.path().join("run");
    assert!(verify(&run).unwrap().is_sound());
    let mut rows = 0;
    for row in DataSet::open(&run).unwrap().trajectories() {
        let row = row.unwrap();
        assert_eq!(row.task.max_steps, given[&slot(row.ancestry.trajectory_id.as_str())]);
        rows += 1;
    }
    assert_eq!(rows, 12, "ten slots, two of them tried twice");
}

#[tokio::test]
async fn a_silent_worker_loses_its_trajectory_and_its_late_ending_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let limits = LimitsFile { lease_millis: 300, heartbeat_millis: 100, ..JobSetup::default().limits };
    let mut farm = TestFarm::open(JobSetup { limits, ..JobSetup::default() }, dir.path()).await.unwrap();
    farm.register().await;
    let late = farm.lease_one().await;
    farm.record(late.step(0)).await.unwrap();
    while farm.progress().await.failed == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let leases = vec![v1::LeaseRef { trajectory_id: late.trajectory_id.clone(), token: late.token }];
    let renewed = farm.calls.renew(v1::RenewRequest { worker_id: "env".into(), leases }).await.unwrap();
    assert_eq!(renewed.into_inner().lost, std::slice::from_ref(&late.trajectory_id));
    refused(
        farm.finish(late.ending(1, EndKind::Answered, Some("42"))).await,
        Code::FailedPrecondition,
        "no longer leased",
    );
    farm.register().await; // it was silent for too long and is unknown
    let assignment = farm.lease_one().await;
    assert_eq!((assignment.trajectory_id.as_str(), assignment.token), ("loopback-g000000-s0-a1", 2));
    farm.act(&assignment, 1, "42").await;
    assert_eq!(farm.end().await.unwrap().over, JobOutcome::Complete);
    let data = DataSet::open(&dir.path().join("run")).unwrap();
    let rows: Vec<_> = data.trajectories().map(|row| row.unwrap().ending).collect();
    assert_eq!(rows.iter().map(|row| row.end).collect::<Vec<_>>(), [EndKind::LeaseLost, EndKind::Answered]);
    assert_eq!(data.failed_steps().count(), 1);
}

#[tokio::test]
async fn a_caller_that_hung_up_is_given_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut farm = TestFarm::open(JobSetup::default(), dir.path()).await.unwrap();
    farm.registration.register(env("env")).await.unwrap();
    let request = v1::LeaseRequest { worker_id: "env".into(), slots_free: 1, wait_millis: 60_000 };
    let hung_up = tokio::time::timeout(Duration::from_millis(150), farm.calls.clone().lease(request)).await;
    assert!(hung_up.is_err(), "there was nothing to lease yet");
    tokio::time::sleep(Duration::from_millis(300)).await; // a tick drops closed calls every 100 ms
    farm.registration.register(policy("policy")).await.unwrap();
    let assignment = farm.lease_one().await;
    assert_eq!(
        assignment.trajectory_id, "loopback-g000000-s0-a0",
        "no attempt was wasted on the one that hung up"
    );
    farm.stop().await.unwrap();
}

#[tokio::test]
async fn a_run_directory_has_one_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    let farm = TestFarm::open(JobSetup::default(), dir.path()).await.unwrap();
    let error = TestFarm::open(JobSetup { resume: true, ..JobSetup::default() }, dir.path())
        .await
        .err()
        .expect("it is in use");
    assert!(matches!(error, CoordinatorError::Lock(_)), "{error:?}");
    farm.stop().await.unwrap();
}

#[tokio::test]
async fn many_sessions_at_once_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let setup = JobSetup { groups: 20, group_size: 4, ..JobSetup::default() };
    let mut farm = TestFarm::open(setup, dir.path()).await.unwrap();
    farm.register().await;
    let steps: Arc<Vec<Bytes>> = Arc::new((0..3).map(record).collect());
    let mut sessions = tokio::task::JoinSet::new();
    loop {
        let leased = farm.lease(8).await;
        for assignment in leased.assignments.into_iter().map(LeasedAssignment::new) {
            let mut calls = farm.calls.clone();
            let steps = Arc::clone(&steps);
            sessions.spawn(async move {
                for step in 0..3 {
                    let request = v1::RecordStepRequest {
                        trajectory_id: assignment.trajectory_id.clone(),
                        token: assignment.token,
                        step,
                        record: steps[step as usize].clone(),
                        digest: Bytes::copy_from_slice(&digest(&steps[step as usize])),
                    };
                    calls.record_step(request).await.unwrap();
                }
                calls.finish(assignment.ending(3, EndKind::Answered, Some("42"))).await.unwrap();
            });
        }
        if leased.run_over {
            break;
        }
    }
    sessions.join_all().await;
    let summary = farm.end().await.unwrap();
    assert_eq!((summary.progress.scored, summary.progress.committed, summary.progress.steps), (80, 80, 240));
    assert!(verify(&dir.path().join("run")).unwrap().is_sound());
}

/// A judge at a fake server, with short retries.
fn judge_file(server: &FakeChatServer) -> JudgeFile {
    JudgeFile {
        endpoint: server.endpoint(),
        model: "eye".into(),
        attempts_max: 2,
        pause_millis: 5,
        call_millis: 2_000,
        deadline_millis: 10_000,
        usd_per_million_prompt_tokens: Some(10.0),
        usd_per_million_completion_tokens: Some(100.0),
        ..JudgeFile::default()
    }
}

fn reply_deed(text: &str) -> ServerAction {
    ServerAction::Text(text.to_owned())
}

/// Every file of a run directory with its content.
fn all_bytes(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push((path.clone(), std::fs::read(path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

const JUDGE_SCORER: &str = r#"{"kind":"judge"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn the_votes_of_a_judge_are_the_reward() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("key"), "sk-not-to-be-seen\n").unwrap();
    let deeds = vec![
        ServerAction::Status(429, Some("0.01")),
        reply_deed("It says 42. SUCCESS"),
        reply_deed("hm"),
        reply_deed("SUCCESS"),
    ];
    let server = FakeChatServer::start(deeds).unwrap();
    let judge =
        JudgeFile { votes: 3, screenshots: 2, key_file: Some(dir.path().join("key")), ..judge_file(&server) };
    let mut farm = TestFarm::open(JobSetup { score: JUDGE_SCORER, judge, ..JobSetup::default() }, dir.path())
        .await
        .unwrap();
    farm.register().await;
    let assignment = farm.lease_one().await;
    farm.act(&assignment, 3, "forty-two").await;
    farm.end().await.unwrap();

    let requests = server.requests();
    assert_eq!(requests.len(), 4, "once more after the 429, and three votes: no two of the first two agree");
    for (turn, seed) in [(0, 42), (1, 42), (2, 43), (3, 44)] {
        let body: serde_json::Value = serde_json::from_str(&requests[turn].body).unwrap();
        assert_eq!((body["seed"].as_i64(), body["model"].as_str()), (Some(seed), Some("eye")));
        let content = body["messages"][1]["content"].as_array().unwrap();
        assert_eq!(content.len(), 3, "the text and two pictures");
        let question_text = content[0]["text"].as_str().unwrap();
        assert!(
            question_text.contains("The task: \"Say 42.\"\nThe agent's answer: \"forty-two\""),
            "{question_text}"
        );
        assert!(requests[turn].headers.iter().any(|header| header.ends_with("Bearer sk-not-to-be-seen")));
    }
    let run = dir.path().join("run");
    assert!(verify(&run).unwrap().is_sound());
    let rows: Vec<_> = DataSet::open(&run).unwrap().trajectories().map(Result::unwrap).collect();
    let score = rows[0].score.as_ref().unwrap();
    assert_eq!((score.reward, score.success, score.scorer.as_str()), (Some(1.0), Some(true), "judge"));
    assert!(
        score.rationale.starts_with("eye on the last 2 screenshots: 2 yes, 0 no, 1 without"),
        "{}",
        score.rationale
    );
    // 3 × (1200 × 10 + 30 × 100) / 1,000,000 = 0.045
    assert!((rows[0].cost_usd.unwrap() - 0.045).abs() < 1e-6, "{:?}", rows[0].cost_usd);
    for (path, bytes) in all_bytes(&run) {
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("sk-not-to-be-seen"), "the key is in {}", path.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_judge_that_comes_back_scores_and_one_that_does_not_is_no_zero() {
    let limits = || LimitsFile { score_attempts_max: 2, attempts_max: 2, ..JobSetup::default().limits };
    // The server recovers: the first scoring fails after two attempts, the second succeeds.
    let dir = tempfile::tempdir().unwrap();
    let server = FakeChatServer::start(vec![
        ServerAction::Status(500, None),
        ServerAction::Truncated,
        reply_deed("NOT SUCCESS"),
    ])
    .unwrap();
    let setup =
        JobSetup { score: JUDGE_SCORER, judge: judge_file(&server), limits: limits(), ..JobSetup::default() };
    let mut farm = TestFarm::open(setup, dir.path()).await.unwrap();
    farm.register().await;
    let assignment = farm.lease_one().await;
    farm.act(&assignment, 1, "42").await;
    let summary = farm.end().await.unwrap();
    assert_eq!((summary.progress.scored, summary.progress.successes), (1, 0));
    assert_eq!(server.requests().len(), 3);

    // The server stays broken, in each way a server can fail: both attempts at the slot end as
    // scorer_error, nothing is scored.
    let gone = FakeChatServer::start(vec![]).unwrap().endpoint();
    let servers = [
        vec![ServerAction::Status(503, None)],
        vec![ServerAction::Status(401, None)],
        vec![reply_deed("I cannot tell.")],
        vec![ServerAction::Body("<html>".into())],
        vec![ServerAction::Silence(Duration::from_secs(60))],
        vec![ServerAction::Huge(2 << 20)],
        vec![],
    ];
    for deeds in servers {
        let dir = tempfile::tempdir().unwrap();
        let server = FakeChatServer::start(deeds.clone()).unwrap();
        let mut judge = JudgeFile { call_millis: 200, ..judge_file(&server) };
        if deeds.is_empty() {
            judge.endpoint.clone_from(&gone);
        }
        let setup = JobSetup { score: JUDGE_SCORER, judge, limits: limits(), ..JobSetup::default() };
        let mut farm = TestFarm::open(setup, dir.path()).await.unwrap();
        farm.register().await;
        for _ in 0..2 {
            let assignment = farm.lease_one().await;
            farm.act(&assignment, 1, "42").await;
        }
        let summary = farm.end().await.unwrap();
        assert_eq!(summary.progress.scored, 0, "{deeds:?}");
        assert_eq!(summary.progress.failed.get(&EndKind::ScorerError), Some(&2), "{deeds:?}");
        let run = dir.path().join("run");
        assert!(verify(&run).unwrap().is_sound(), "{deeds:?}");
        for row in DataSet::open(&run).unwrap().trajectories().map(Result::unwrap) {
            assert_eq!((row.status, row.ending.end, row.score), (Scored::Failed, EndKind::ScorerError, None));
            assert!(
                row.ending.reason.starts_with("scorer judge came to no verdict: "),
                "{}",
                row.ending.reason
            );
        }
        assert_eq!(DataSet::open(&run).unwrap().steps().count(), 0, "{deeds:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_judge_that_hangs_does_not_keep_a_stopping_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    let server = FakeChatServer::start(vec![ServerAction::Status(503, None)]).unwrap();
    let judge = JudgeFile {
        attempts_max: 100,
        pause_millis: 60_000,
        deadline_millis: 600_000,
        ..judge_file(&server)
    };
    let setup = || JobSetup { score: JUDGE_SCORER, ..JobSetup::default() };
    let mut farm = TestFarm::open(JobSetup { judge, ..setup() }, dir.path()).await.unwrap();
    farm.register().await;
    let assignment = farm.lease_one().await;
    farm.act(&assignment, 1, "42").await;
    while server.requests().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    farm.stop().await.unwrap();
    // Acknowledged and not scored: the next coordinator has it scored.
    let server = FakeChatServer::start(vec![reply_deed("SUCCESS")]).unwrap();
    let farm = TestFarm::open(JobSetup { resume: true, judge: judge_file(&server), ..setup() }, dir.path())
        .await
        .unwrap();
    let summary = farm.end().await.unwrap();
    assert_eq!((summary.over, summary.progress.scored), (JobOutcome::Complete, 1));
}

/// Scores a run again, with the stored scorers or with those of a task file that is `score` for
/// both tasks.
fn rescore_run(
    dir: &Path,
    score: Option<&'static str>,
    by: JudgeFile,
    change: impl FnOnce(&mut RescoreJob),
) -> Result<RescoreSummary, RescoreError> {
    let elsewhere = tempfile::tempdir().unwrap();
    let tasks = score.map(|score| JobSetup { score, ..JobSetup::default() }.job(elsewhere.path()).tasks);
    let mut job = RescoreJob {
        run_dir: dir.join("run"),
        tasks: tasks.map(|set| vec![set]),
        filter: RescoreFilter::default(),
        judge: judge(by),
        scorers_max: 3,
        records: RecordsFile::default().check().unwrap(),
        job_toml: "[run]\nname = \"other\"\n".into(),
        dry_run: false,
    };
    change(&mut job);
    let mut last = (0, 0);
    let done = rescore(&job, &CancellationToken::new(), |done, total| last = (done, total));
    if done.is_ok() {
        assert!(last.0 == last.1 && last.1 > 0, "{last:?}");
    }
    done
}

const OTHER: &str = r#"{"kind":"answer","match":"must_include","value":"idea"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_scorer_gives_the_changed_reward_and_nothing_stored_is_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let mut farm = TestFarm::open(JobSetup { groups: 3, group_size: 2, ..JobSetup::default() }, dir.path())
        .await
        .unwrap();
    farm.register().await;
    let broken = farm.lease_one().await;
    farm.finish(broken.ending(0, EndKind::BrowserDead, None)).await.unwrap();
    for answer in ["42", "42", "42", "no idea", "an idea", "41"] {
        let assignment = farm.lease_one().await;
        farm.act(&assignment, 2, answer).await;
    }
    assert!(matches!(
        rescore_run(dir.path(), None, JudgeFile::default(), |_| {}),
        Err(RescoreError::Lock(_))
    ));
    farm.end().await.unwrap();

    let path = dir.path().to_owned();
    let rescoring = tokio::task::spawn_blocking(move || {
        let before = all_bytes(&path.join("run/data"));
        check_other_scorer(&path, &before);
        check_score_rows(&path);
        let after = all_bytes(&path.join("run/data"));
        for file in &before {
            assert!(after.contains(file), "{} was rewritten", file.0.display());
        }
        check_filters(&path);
        check_judges(&path);
    });
    rescoring.await.unwrap();

    // The coordinator continues beside the scores.
    let setup = JobSetup { resume: true, groups: 3, group_size: 2, ..JobSetup::default() };
    let summary = TestFarm::open(setup, dir.path()).await.unwrap().end().await.unwrap();
    assert_eq!(summary.over, JobOutcome::Complete);
    assert!(verify(&dir.path().join("run")).unwrap().is_sound());
}

/// A dry run, the stored scorers and another one.
fn check_other_scorer(path: &Path, before: &[(PathBuf, Vec<u8>)]) {
    let tried = rescore_run(path, Some(OTHER), JudgeFile::default(), |job| job.dry_run = true).unwrap();
    assert_eq!((tried.scored, tried.changed, tried.manifest_version), (6, 4, None));
    assert_eq!(all_bytes(&path.join("run/data")), before, "nothing is written");

    let same = rescore_run(path, None, JudgeFile::default(), |_| {}).unwrap();
    assert_eq!((same.submitted, same.scored, same.changed, same.failed), (6, 6, 0, 1));
    assert_eq!((same.reward_before, same.reward_after), (3.0, 3.0));
    let other = rescore_run(path, Some(OTHER), JudgeFile::default(), |_| {}).unwrap();
    // "no idea" negates it: of the six only "an idea" is right, and the three that answered 42 are
    // not any more.
    assert_eq!((other.scored, other.changed, other.reward_after), (6, 4, 1.0));
    assert_eq!((other.successes_before, other.successes_after), (3, 1));
    assert!(other.manifest_version > same.manifest_version);
}

/// The rewards in `trajectories` stay, and `scores` has a row for each verdict of both scorings.
fn check_score_rows(path: &Path) {
    let run = path.join("run");
    let report = verify(&run).unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(report.counts.scores, 12);
    let data = DataSet::open(&run).unwrap();
    let mut answers = BTreeMap::new();
    for row in data.trajectories().map(Result::unwrap).filter(|row| row.status == Scored::Scored) {
        let answer = row.ending.evidence.unwrap().answer.unwrap();
        assert_eq!(
            row.score.unwrap().reward,
            Some(if answer == "42" { 1.0 } else { 0.0 }),
            "stored scores stay"
        );
        answers.insert(row.ancestry.trajectory_id.to_string(), answer);
    }
    for row in data.rescores().map(Result::unwrap).skip(6) {
        let right = answers[row.ancestry.trajectory_id.as_str()] == "an idea";
        assert_eq!(row.score.reward, Some(if right { 1.0 } else { 0.0 }));
    }
}

/// A few, by suite and id; a file that a killed scoring left is removed from the data set.
fn check_filters(path: &Path) {
    let run = path.join("run");
    std::fs::write(run.join("data/scores/loopback-score-1.parquet"), "half").unwrap();
    let none =
        rescore_run(path, Some(OTHER), JudgeFile::default(), |job| job.filter.suite = Some("x".into()))
            .unwrap();
    assert_eq!((none.submitted, none.left_out, none.manifest_version), (0, 6, None));
    let all =
        rescore_run(path, None, JudgeFile::default(), |job| job.filter.task = Some("*s*".into())).unwrap();
    assert_eq!(all.submitted, 6);
    assert!(!run.join("data/scores/loopback-score-1.parquet").exists());
    assert!(verify(&run).unwrap().is_sound());
}

/// An unreachable judge gives no rows; a reachable one receives the pictures of the last steps.
fn check_judges(path: &Path) {
    let server = FakeChatServer::start(vec![ServerAction::Status(503, None)]).unwrap();
    let unheard = rescore_run(path, Some(JUDGE_SCORER), judge_file(&server), |_| {}).unwrap();
    assert_eq!((unheard.scored, unheard.unscored, unheard.manifest_version), (0, 6, None));
    assert!(unheard.named[0].1.contains("answered 503"), "{:?}", unheard.named);
    let server = FakeChatServer::start(vec![reply_deed("SUCCESS")]).unwrap();
    let by = JudgeFile { screenshots: 3, ..judge_file(&server) };
    let by_judge = rescore_run(path, Some(JUDGE_SCORER), by, |_| {}).unwrap();
    assert_eq!((by_judge.scored, by_judge.reward_after), (6, 6.0));
    assert!((by_judge.cost_usd.unwrap() - 6.0 * 0.015).abs() < 1e-4, "{:?}", by_judge.cost_usd);
    // Two steps and the end; the answer's own step shows the same page as the end.
    for request in server.requests() {
        assert_eq!(request.body.matches("data:image/png").count(), 2);
    }
    assert!(verify(&path.join("run")).unwrap().is_sound());
}
