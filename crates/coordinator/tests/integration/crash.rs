//! The coordinator dies at every fail point, twice, while a worker survives; then the data set is
//! checked.
//!
//! Each point kills a child process in its first life and in its second. The third life finishes
//! the job. Everything acknowledged to the worker must then be in the data set exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use furrow_coordinator::core::JobOutcome;
use furrow_coordinator::{LimitsFile, arm_fail_points, evaluation_fail_points, fail_points, run};
use furrow_records::{DataSet, RecordsFile, verify};
use furrow_rollout::EndKind;
use furrow_tasks::{EvalConfig, EvalFile, SourceFile, TaskSet, load};
use furrow_wire::v1::coordinator_service_client::CoordinatorServiceClient;
use furrow_wire::v1::registration_service_client::RegistrationServiceClient;
use furrow_wire::{Connector, PeerRole, RefusalKind, TcpConnector, refusal, v1, with_deadline};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::Channel;
use tonic::transport::server::TcpIncoming;

use crate::common::{JobSetup, LeasedAssignment, env, policy};

const SIGKILL: i32 = 9;
const DIR: &str = "FURROW_TEST_DIR";

/// A file beside the run of a job that has evaluations.
const EVALUATED: &str = "evaluated";

/// Everything here takes seconds, unless it hangs.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A call without an answer after this time gets none.
const ANSWER: Duration = Duration::from_secs(3);

/// Pause between two calls for a trajectory: slow enough for shards to close by age while the job
/// runs.
const PACE: Duration = Duration::from_millis(15);

/// These points are passed only in error handling that this job does not reach: recovery undoes a
/// shard that was opened and not written, without the ledger's thread.
const OUT_OF_THE_WAY: [&str; 4] = [
    "ledger.before_run_open",
    "ledger.after_run_open",
    "ledger.before_shard_abandon",
    "ledger.after_shard_abandon",
];

struct CoordinatorProcess {
    child: Child,
    dir: PathBuf,
}

/// An environment worker (and a policy worker) that survives coordinators.
#[derive(Default)]
struct SurvivingWorker {
    in_flight: BTreeMap<String, TrajectoryInFlight>,
    over: bool,
    /// Endings whose acknowledgement arrived.
    acknowledged: BTreeSet<String>,
}

/// A running trajectory: the steps acknowledged so far.
struct TrajectoryInFlight {
    assignment: LeasedAssignment,
    steps: u32,
    end: EndKind,
}

impl CoordinatorProcess {
    fn begin(dir: &Path, fail_points: &str) -> Self {
        let port = dir.join("port");
        if port.exists() {
            std::fs::remove_file(port).unwrap();
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "crash::child_that_coordinates"]);
        command.args(["--ignored", "--nocapture", "--test-threads=1"]);
        command.env(DIR, dir).env("FAILPOINTS", fail_points);
        let child = command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap();
        Self { child, dir: dir.to_owned() }
    }

    /// Its address, unless it dies before it serves.
    async fn address(&mut self) -> Option<String> {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            assert!(Instant::now() < deadline, "it neither serves nor dies");
            if let Ok(address) = std::fs::read_to_string(self.dir.join("port")) {
                return Some(address);
            }
            if self.child.try_wait().unwrap().is_some() {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Its exit status, if it is dead.
    fn end(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Serves the worker until the process dies or the job is done.
    async fn live(mut self, worker: &mut SurvivingWorker) -> ExitStatus {
        let deadline = Instant::now() + TEST_TIMEOUT;
        if let Some(address) = self.address().await {
            let channel = TcpConnector::default().channel(PeerRole::Coordinator, &address).unwrap();
            while self.end().is_none() {
                if Instant::now() > deadline {
                    self.child.kill().unwrap();
                    panic!("the job does not end: {:?}", worker.in_flight.keys().collect::<Vec<_>>());
                }
                worker.work(channel.clone()).await.ok(); // failed calls are repeated in the next life
                tokio::time::sleep(PACE).await;
            }
        }
        self.child.wait().unwrap()
    }
}

impl SurvivingWorker {
    /// One round: register, ask for work, advance every running trajectory by one call.
    async fn work(&mut self, channel: Channel) -> Result<(), Status> {
        let mut registration = RegistrationServiceClient::new(channel.clone());
        let mut calls = CoordinatorServiceClient::new(channel);
        with_deadline(ANSWER, registration.register(policy("policy"))).await?;
        with_deadline(ANSWER, registration.register(env("env"))).await?;
        self.renew(&mut calls).await?;
        if !self.over {
            let request = v1::LeaseRequest { worker_id: "env".into(), slots_free: 2, wait_millis: 0 };
            let leased = with_deadline(ANSWER, calls.lease(request)).await?.into_inner();
            self.over = leased.run_over;
            leased
                .assignments
                .into_iter()
                .map(LeasedAssignment::new)
                .for_each(|assignment| self.take(assignment));
        }
        for trajectory in self.in_flight.keys().cloned().collect::<Vec<_>>() {
            self.act(&trajectory, &mut calls).await?;
        }
        Ok(())
    }

    fn take(&mut self, assignment: LeasedAssignment) {
        // The first attempt in each group fails, so that a failure passes its fail points, too.
        let end =
            if assignment.trajectory_id.ends_with("-s0-a0") { EndKind::EnvCrash } else { EndKind::Answered };
        self.in_flight
            .insert(assignment.trajectory_id.clone(), TrajectoryInFlight { assignment, steps: 0, end });
    }

    async fn renew(&mut self, calls: &mut CoordinatorServiceClient<Channel>) -> Result<(), Status> {
        let request = v1::RenewRequest {
            worker_id: "env".into(),
            leases: self.in_flight.values().map(|hand| hand.assignment.lease()).collect(),
        };
        let renewed = with_deadline(ANSWER, calls.renew(request)).await?.into_inner();
        self.in_flight.retain(|trajectory, _| !renewed.lost.contains(trajectory));
        Ok(())
    }

    /// The next step, or the ending; after a lost answer it is sent again.
    async fn act(
        &mut self,
        trajectory: &str,
        calls: &mut CoordinatorServiceClient<Channel>,
    ) -> Result<(), Status> {
        let Some(hand) = self.in_flight.get_mut(trajectory) else { return Ok(()) };
        let result = if hand.steps < 2 {
            with_deadline(ANSWER, calls.record_step(hand.assignment.step(hand.steps))).await.map(drop)
        } else {
            with_deadline(ANSWER, calls.finish(hand.assignment.ending(2, hand.end, Some("42"))))
                .await
                .map(drop)
        };
        match result {
            Ok(()) if hand.steps < 2 => hand.steps += 1,
            Ok(()) => {
                self.in_flight.remove(trajectory);
                self.acknowledged.insert(trajectory.to_owned());
            }
            Err(status) if refusal(&status) == RefusalKind::Stale => {
                self.in_flight.remove(trajectory);
            }
            Err(status) => return Err(status),
        }
        Ok(())
    }
}

#[test]
#[ignore = "runs only as a child of the other test"]
fn child_that_coordinates() {
    arm_fail_points();
    let dir = PathBuf::from(std::env::var_os(DIR).expect("only its parent runs this"));
    let limits = LimitsFile { lease_millis: 2000, heartbeat_millis: 100, ..JobSetup::default().limits };
    let setup = JobSetup { groups: 3, group_size: 2, resume: true, limits, ..JobSetup::default() };
    let mut job = setup.job(&dir);
    if dir.join(EVALUATED).exists() {
        job.eval = Some(evaluation(&dir));
    }
    let records = RecordsFile {
        max_delay_millis: Some(100),
        disk_reserve_bytes: 16 << 20,
        merge_files_min: 2,
        ..RecordsFile::default()
    };
    job.records = records.check().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let summary = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::fs::write(dir.join("port.new"), address).unwrap();
        std::fs::rename(dir.join("port.new"), dir.join("port")).unwrap();
        run(job, TcpIncoming::from(listener), CancellationToken::new()).await.unwrap()
    });
    assert_eq!(summary.over, JobOutcome::Complete);
}

/// The two tasks of the job as an evaluation.
fn evaluation(dir: &Path) -> (TaskSet, EvalConfig) {
    let source = SourceFile { suite: "mine".into(), path: dir.join("tasks.jsonl"), ..SourceFile::default() };
    let config = EvalFile { group_size: 2, source: vec![source], ..EvalFile::default() };
    let config = config.check(dir).unwrap().unwrap();
    (load(&config.tasks).unwrap(), config)
}

/// Runs a job with this fail point; returns how often it killed the process, or what is wrong with
/// the data set in the end.
async fn crash_at(point: &str, is_evaluated: bool) -> Result<u32, String> {
    let dir = tempfile::tempdir().unwrap();
    if is_evaluated {
        std::fs::write(dir.path().join(EVALUATED), "").unwrap();
    }
    let mut worker = SurvivingWorker::default();
    let mut deaths = 0;
    for visit in ["return", "return", "off"] {
        let status =
            CoordinatorProcess::begin(dir.path(), &format!("{point}={visit}")).live(&mut worker).await;
        match status.signal() {
            Some(SIGKILL) => deaths += 1,
            _ if status.success() => {}
            _ => return Err(format!("{point}={visit}: it ended with {status}")),
        }
    }
    look(dir.path(), &worker).map_err(|what| format!("{point}: {what}"))?;
    Ok(deaths)
}

/// The data set verifies, holds each acknowledged ending once, and every slot is scored once.
fn look(dir: &Path, worker: &SurvivingWorker) -> Result<(), String> {
    let run = dir.join("run");
    let report = verify(&run).map_err(|error| error.to_string())?;
    if !report.is_sound() {
        return Err(format!("{:?}", report.breaches));
    }
    let data = DataSet::open(&run).map_err(|error| error.to_string())?;
    let mut rows: BTreeMap<String, Vec<EndKind>> = BTreeMap::new();
    for row in data.trajectories().map(Result::unwrap) {
        rows.entry(row.ancestry.trajectory_id.to_string()).or_default().push(row.ending.end);
    }
    for trajectory in &worker.acknowledged {
        match rows.get(trajectory).map(Vec::as_slice) {
            Some([EndKind::Answered | EndKind::EnvCrash]) => {}
            other => return Err(format!("{trajectory} was acknowledged and is kept as {other:?}")),
        }
    }
    let scored = data.trajectories().filter(|row| row.as_ref().is_ok_and(|row| row.score.is_some())).count();
    let spooled = std::fs::read_dir(run.join("spool")).map_err(|error| error.to_string())?.count();
    let want = if dir.join(EVALUATED).exists() { (10, 5, 0) } else { (6, 3, 0) };
    match (scored, data.groups().count(), spooled) {
        got if got == want => Ok(()),
        other => Err(format!("trajectories scored, groups, files left in the spool: {other:?}")),
    }
}

#[tokio::test]
async fn nothing_is_lost_wherever_the_coordinator_dies() {
    let mut wrong = Vec::new();
    let mut deaths = BTreeMap::new();
    for point in fail_points().filter(|point| !OUT_OF_THE_WAY.contains(point)) {
        match crash_at(point, false).await {
            Ok(count) => drop(deaths.insert(point, count)),
            Err(what) => wrong.push(what),
        }
    }
    println!("{deaths:?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
    let once: Vec<_> = deaths.iter().filter(|(_, count)| **count < 2).collect();
    assert!(once.is_empty(), "not passed twice: {once:?}");
}

/// An evaluation continues where it was: its problems are drawn once and its slots scored once,
/// wherever the coordinator dies.
#[tokio::test]
async fn an_evaluation_survives_wherever_the_coordinator_dies() {
    let shared = ["ledger.after_group_draw", "ledger.before_group_close"];
    for point in evaluation_fail_points().chain(shared) {
        let deaths = crash_at(point, true).await.unwrap();
        assert!(deaths > 0, "{point} was not passed");
    }
}

/// Lets a lease expire and finishes late; returns the coordinator's answer and its exit status, if
/// it exits within the time limit.
async fn finish_late(fail_points: &str, time_limit: Duration) -> (Result<(), Status>, Option<ExitStatus>) {
    let dir = tempfile::tempdir().unwrap();
    let mut life = CoordinatorProcess::begin(dir.path(), fail_points);
    let address = life.address().await.unwrap();
    let channel = TcpConnector::default().channel(PeerRole::Coordinator, &address).unwrap();
    let mut calls = CoordinatorServiceClient::new(channel.clone());
    let mut worker = SurvivingWorker::default();
    while worker.in_flight.is_empty() {
        worker.work(channel.clone()).await.unwrap();
    }
    let assignment = &worker.in_flight.values().next().unwrap().assignment;
    let failed = async |calls: &mut CoordinatorServiceClient<Channel>| {
        calls.progress(v1::ProgressRequest {}).await.unwrap().into_inner().failed
    };
    while failed(&mut calls).await == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let answer = with_deadline(ANSWER, calls.finish(assignment.ending(1, EndKind::Answered, Some("42"))))
        .await
        .map(drop);
    let deadline = Instant::now() + time_limit;
    while life.end().is_none() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let ended = life.end();
    life.child.kill().ok(); // without the bug, it still waits for workers
    life.child.wait().unwrap();
    (answer, ended)
}

#[tokio::test]
async fn a_late_ending_is_refused_and_without_fencing_it_stops_the_farm() {
    let (answer, ended) = finish_late("bug.no_fencing=off", Duration::from_secs(1)).await;
    assert_eq!(refusal(&answer.unwrap_err()), RefusalKind::Stale);
    assert!(ended.is_none(), "it ended with {ended:?}");
    // On a busy machine the trace of a panic alone takes more than a second.
    let (answer, ended) = finish_late("bug.no_fencing=return", Duration::from_secs(20)).await;
    assert!(
        answer.is_err_and(|status| refusal(&status) != RefusalKind::Stale),
        "the late ending was accepted"
    );
    assert!(ended.is_some_and(|status| !status.success()), "the ledger accepted two ends of one trajectory");
}
