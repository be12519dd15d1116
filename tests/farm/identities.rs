//! What a stranger, or a process of the run with another role, gets from a running farm: nothing.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use furrow_identity::{Authority, Validity};
use furrow_records::fixtures::TrajectoryFixture;
use furrow_rollout::{EndKind, PROTOCOL_VERSION, PolicyKind, SCHEMA_VERSION, TimeSplit, TrajectoryEnding};
use furrow_wire::v1::coordinator_service_client::CoordinatorServiceClient;
use furrow_wire::v1::policy_service_client::PolicyServiceClient;
use furrow_wire::v1::registration_service_client::RegistrationServiceClient;
use furrow_wire::v1::{self, register_request};
use furrow_wire::{
    Channel, Code, Connector, Identity, OpaqueStep, PeerRole, Status, TcpConnector, TlsConnector, digest,
    encode_ending, encode_opaque_step, encode_trace, with_deadline,
};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use crate::farm::{FURROW, FarmBrowser, FarmHarness, FarmRole, free_port, furrow, pause, simulated_tasks};

const CALL: Duration = Duration::from_secs(30);

type Answer = Result<(), Status>;
type Call = (&'static str, Pin<Box<dyn Future<Output = Answer>>>);

/// Channels of one caller to both services.
struct Caller {
    coordinator: Channel,
    policy: Channel,
}

/// What a call names and presents.
#[derive(Clone)]
struct Target {
    worker: String,
    trajectory: String,
    token: u64,
    secret: Option<v1::LeaseSecret>,
}

impl Target {
    fn new(worker: &str, assignment: v1::Assignment) -> Self {
        let v1::Assignment { ancestry, token, secret, .. } = assignment;
        Self { worker: worker.into(), trajectory: ancestry.unwrap().trajectory_id, token, secret }
    }

    fn lease(&self) -> v1::LeaseRef {
        let Self { trajectory, token, secret, .. } = self.clone();
        v1::LeaseRef { trajectory_id: trajectory, token, secret }
    }

    fn record_step(&self) -> v1::RecordStepRequest {
        let Self { trajectory, token, secret, .. } = self.clone();
        let fixture =
            TrajectoryFixture { steps: 1, kind: PolicyKind::Random, ..TrajectoryFixture::default() };
        let step = fixture.trajectory().1.remove(0);
        let record = encode_opaque_step(&OpaqueStep {
            step: step.step,
            observation: step.observation,
            reply: step.reply,
            outcome: step.outcome,
            trace: encode_trace(&step.trace),
            timing: step.timing,
            observed_at_micros: step.observed_at_micros,
        });
        let digest = digest(&record).to_vec().into();
        v1::RecordStepRequest { trajectory_id: trajectory, token, step: 0, record, digest, secret }
    }

    /// An end that the farm tries again.
    fn finish(&self, steps: u32) -> v1::FinishRequest {
        let Self { trajectory, token, secret, .. } = self.clone();
        let ending = encode_ending(&TrajectoryEnding {
            end: EndKind::EnvCrash,
            reason: "a test".into(),
            evidence: None,
            goal: "nothing".into(),
            steps,
            last_outcome: None,
            timing: TimeSplit::default(),
            environment: Default::default(),
        });
        let digest = digest(&ending).to_vec().into();
        v1::FinishRequest { trajectory_id: trajectory, token, ending, digest, secret }
    }

    fn show_first(&self) -> v1::ShowFirstRequest {
        let Self { trajectory, token, secret, .. } = self.clone();
        v1::ShowFirstRequest { trajectory_id: trajectory, token, secret, screenshot: "x".into() }
    }
}

fn call<T>(
    name: &'static str,
    calling: impl Future<Output = Result<tonic::Response<T>, Status>> + 'static,
) -> Call {
    (name, Box::pin(async move { with_deadline(CALL, calling).await.map(drop) }))
}

/// A call of every method of the protocol, each of which would do something if it passed.
fn calls(from: &Caller, to: &Target) -> Vec<Call> {
    let Target { worker, trajectory, .. } = to.clone();
    let client = || CoordinatorServiceClient::new(from.coordinator.clone());
    let registration = || RegistrationServiceClient::new(from.coordinator.clone());
    macro_rules! coordinator {
        ($name:ident, $request:expr) => {{
            let mut client = client();
            let request = $request;
            call(stringify!($name), async move { client.$name(request).await })
        }};
    }
    macro_rules! registration {
        ($name:ident, $request:expr) => {{
            let mut client = registration();
            let request = $request;
            call(stringify!($name), async move { client.$name(request).await })
        }};
    }
    let link = v1::WeightsLink { form: "full".into(), directory: "/etc".into() };
    let directory = v1::Directory { link: Some(link), ..v1::Directory::default() };
    vec![
        coordinator!(lease, v1::LeaseRequest { worker_id: worker.clone(), slots_free: 9, wait_millis: 0 }),
        coordinator!(renew, v1::RenewRequest { worker_id: worker.clone(), leases: vec![to.lease()] }),
        coordinator!(record_step, to.record_step()),
        coordinator!(finish, to.finish(0)),
        coordinator!(progress, v1::ProgressRequest {}),
        coordinator!(running, v1::RunningRequest {}),
        coordinator!(last_step, v1::LastStepRequest { trajectory_id: trajectory }),
        coordinator!(show_first, to.show_first()),
        coordinator!(
            publish,
            v1::PublishRequest {
                publication_id: "forged".into(),
                weights: Some(v1::publish_request::Weights::Directory(directory)),
            }
        ),
        coordinator!(report_discarded, v1::ReportDiscardedRequest::default()),
        coordinator!(weights, v1::WeightsRequest::default()),
        coordinator!(drain, v1::DrainRequest { at_once: true }),
        registration!(register, registering(&worker)),
        registration!(
            heartbeat,
            v1::HeartbeatRequest { worker_id: worker.clone(), ..v1::HeartbeatRequest::default() }
        ),
        registration!(leave, v1::LeaveRequest { worker_id: worker }),
        session(from),
    ]
}

/// A session with a newer token than any, which would end the one that runs.
fn session(from: &Caller) -> Call {
    let mut policy = PolicyServiceClient::new(from.policy.clone());
    let open = v1::Open { token: u64::MAX, ..v1::Open::default() };
    let event = Some(v1::session_request::Event::Open(open));
    call(
        "session",
        async move { policy.session(futures::stream::iter([v1::SessionRequest { event }])).await },
    )
}

/// A registration in the stead of a policy worker, so that screenshots go elsewhere.
fn registering(worker: &str) -> v1::RegisterRequest {
    let info = v1::PolicyWorkerInfo {
        address: "127.0.0.1:9".into(),
        policy_kind: "scripted".into(),
        sessions_max: 1000,
        ..v1::PolicyWorkerInfo::default()
    };
    v1::RegisterRequest {
        protocol_version: PROTOCOL_VERSION,
        schema_version: SCHEMA_VERSION,
        worker_id: worker.into(),
        role: Some(register_request::Role::Policy(info)),
    }
}

/// Addresses of a running farm and the authority of its run.
struct Addresses {
    authority: Authority,
    coordinator: String,
    policy: String,
}

impl Addresses {
    fn with(&self, connect: &dyn Connector) -> Caller {
        let coordinator = connect.channel(PeerRole::Coordinator, &self.coordinator).unwrap();
        let policy = connect.channel(PeerRole::Policy, &self.policy).unwrap();
        Caller { coordinator, policy }
    }

    fn identified(&self, identity: Identity) -> Caller {
        self.with(&TlsConnector::new(identity))
    }

    fn as_peer(&self, role: PeerRole, name: &str) -> Caller {
        self.identified(self.authority.issue(role, name).unwrap())
    }

    /// TLS without a certificate of its own.
    fn without_certificate(&self) -> Caller {
        let authority = self.authority.issue(PeerRole::Client, "x").unwrap();
        let channel = |address: &str, role: PeerRole| {
            let root = Certificate::from_pem(authority.authority_pem());
            let tls = ClientTlsConfig::new().ca_certificate(root).domain_name(role.server_name());
            let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
            endpoint.tls_config(tls).unwrap().connect_lazy()
        };
        Caller {
            coordinator: channel(&self.coordinator, PeerRole::Coordinator),
            policy: channel(&self.policy, PeerRole::Policy),
        }
    }
}

/// A worker of the farm whose secrets the test knows.
struct LeasingWorker {
    caller: Caller,
    targets: Vec<Target>,
}

impl Addresses {
    async fn as_worker(&self, name: &str, leases: usize) -> LeasingWorker {
        let caller = self.as_peer(PeerRole::Env, name);
        let info = v1::EnvWorkerInfo { sessions_max: 8, browser: "none".into(), sandbox: true };
        let role = Some(register_request::Role::Env(info));
        let registering = v1::RegisterRequest { role, ..registering(name) };
        RegistrationServiceClient::new(caller.coordinator.clone()).register(registering).await.unwrap();
        let mut client = CoordinatorServiceClient::new(caller.coordinator.clone());
        let mut targets = Vec::new();
        while targets.len() < leases {
            let slots_free = (leases - targets.len()) as u32;
            let leasing = v1::LeaseRequest { worker_id: name.into(), slots_free, wait_millis: 10_000 };
            let leased = with_deadline(2 * CALL, client.lease(leasing)).await.unwrap().into_inner();
            assert!(!leased.run_over, "the run is over before {leases} trajectories are leased");
            targets.extend(leased.assignments.into_iter().map(|assignment| Target::new(name, assignment)));
        }
        LeasingWorker { caller, targets }
    }
}

/// What a caller gets that may not act for a trajectory, whatever became of that.
const NO_LEASE: &str = "the lease is over, or its worker, token or secret is another";

/// The calls of a lease, by a caller that does not hold it, all of them refused in the same terms.
async fn check_no_lease(what: &str, caller: &Caller, worker: &str, to: &Target) -> usize {
    let mut client = CoordinatorServiceClient::new(caller.coordinator.clone());
    let step = with_deadline(CALL, client.record_step(to.record_step())).await.map(drop);
    let end = with_deadline(CALL, client.finish(to.finish(0))).await.map(drop);
    let picture = with_deadline(CALL, client.show_first(to.show_first())).await.map(drop);
    for (name, answer) in [("record_step", step), ("finish", end), ("show_first", picture)] {
        let Err(status) = answer else { panic!("{name} with {what} was accepted") };
        assert_eq!(status.code(), Code::FailedPrecondition, "{name} with {what}: {status}");
        assert!(status.message().contains(NO_LEASE), "{name} with {what}: {status}");
    }
    let renewing = v1::RenewRequest { worker_id: worker.into(), leases: vec![to.lease()] };
    let renewed = with_deadline(CALL, client.renew(renewing)).await.unwrap().into_inner();
    assert_eq!(renewed.lost, std::slice::from_ref(&to.trajectory), "a renewal with {what}");
    4
}

/// Calls without the secret of the lease, or with one that is no longer of use, and honest calls
/// between them. Returns how many were refused.
async fn check_secrets(farm: &Addresses, caller: &Caller, [own, other]: [&Target; 2], root: &Path) -> usize {
    let rogue = farm.as_peer(PeerRole::Env, "rogue");
    let with = |secret: &Option<v1::LeaseSecret>| Target { secret: secret.clone(), ..own.clone() };
    let guess = |bytes: usize| Some(v1::LeaseSecret { value: vec![7; bytes].into() });
    let mut refused = 0;
    for (secret, part) in
        [(None, "secret is missing"), (guess(0), "0 bytes"), (guess(15), "15 bytes"), (guess(17), "17 bytes")]
    {
        for (name, calling) in calls(caller, &with(&secret)) {
            if !OF_LEASE.contains(&name) {
                continue;
            }
            let status = calling.await.unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{name} with {secret:?}: {status}");
            assert!(status.message().contains(part), "{name} with {secret:?}: {status}");
            refused += 1;
        }
    }
    refused += check_no_lease("a guessed secret", caller, "tester", &with(&guess(16))).await;
    refused += check_no_lease("the secret of another lease", caller, "tester", &with(&other.secret)).await;
    refused += check_no_lease("another identity", &rogue, "rogue", own).await;
    // Honest calls, each repeated as after a lost answer.
    let mut client = CoordinatorServiceClient::new(caller.coordinator.clone());
    for _ in 0..2 {
        with_deadline(CALL, client.record_step(own.record_step())).await.unwrap();
    }
    for _ in 0..2 {
        with_deadline(CALL, client.finish(own.finish(1))).await.unwrap();
    }
    let mut forged = own.finish(1);
    let of_rogue = CoordinatorServiceClient::new(rogue.coordinator.clone()).finish(forged.clone()).await;
    forged.secret = guess(16);
    for answer in [of_rogue, client.finish(forged).await] {
        let status = answer.unwrap_err();
        assert!(status.message().contains(NO_LEASE), "the same end from another: {status}");
        refused += 1;
    }
    refused += check_no_lease("another identity, after the end", &rogue, "rogue", own).await;
    refused += check_no_lease("a guessed secret, after the end", caller, "tester", &with(&guess(16))).await;
    let ended = Target { secret: own.secret.clone(), ..other.clone() };
    refused += check_no_lease("the secret of a lease that has ended", caller, "tester", &ended).await;
    refused + check_revoked(farm, caller, other, root).await
}

/// The right secret, once the identity of its worker is revoked.
async fn check_revoked(farm: &Addresses, caller: &Caller, to: &Target, root: &Path) -> usize {
    let renewing = v1::RenewRequest { worker_id: "tester".into(), leases: vec![to.lease()] };
    let mut client = CoordinatorServiceClient::new(caller.coordinator.clone());
    let renewed = client.renew(renewing.clone()).await.unwrap().into_inner();
    assert!(renewed.lost.is_empty(), "it is its lease until the revocation");
    let revoked = furrow(&["identity", "revoke", "env", "tester", "--run", "run"], root);
    assert!(revoked.status.success(), "{}", String::from_utf8_lossy(&revoked.stderr));
    let began = Instant::now();
    while client.renew(renewing.clone()).await.is_ok() {
        assert!(began.elapsed() < Duration::from_secs(30), "a revoked worker renews its lease");
        pause();
    }
    let refused = check_all_refused("a revoked worker", caller, to, &OF_LEASE).await;
    let rogue = farm.as_peer(PeerRole::Env, "rogue");
    refused + check_no_lease("the secret of a revoked worker", &rogue, "rogue", to).await
}

/// Makes every call and returns how many were refused.
async fn check_all_refused(who: &str, from: &Caller, to: &Target, only: &[&str]) -> usize {
    let mut refused = 0;
    for (name, calling) in calls(from, to) {
        if !only.is_empty() && !only.contains(&name) {
            continue;
        }
        let answer = calling.await;
        assert!(answer.is_err(), "{name} of {who} was accepted");
        refused += 1;
    }
    refused
}

const OF_ENV: [&str; 5] = ["lease", "renew", "record_step", "finish", "show_first"];
const OF_LEASE: [&str; 4] = ["renew", "record_step", "finish", "show_first"];
const OF_CLIENTS: [&str; 7] =
    ["progress", "running", "last_step", "publish", "report_discarded", "weights", "drain"];
const OF_WORKERS: [&str; 3] = ["register", "heartbeat", "leave"];

async fn refuse_everyone(farm: &Addresses, target: &Target) -> usize {
    let temp = tempfile::tempdir().unwrap();
    let run = furrow_rollout::Id::new("run").unwrap();
    let other = Authority::open_or_create(&temp.path().join("identity"), &run).unwrap();
    let now = SystemTime::now();
    let hour = Duration::from_secs(3600);
    let over = Validity { from: now - 2 * hour, until: now - hour };
    let mut refused = 0;
    for (who, caller) in
        [("plain text", farm.with(&TcpConnector::default())), ("no certificate", farm.without_certificate())]
    {
        refused += check_all_refused(who, &caller, target, &[]).await;
    }
    for role in PeerRole::ALL {
        let foreign = farm.identified(other.issue(role, &target.worker).unwrap());
        refused += check_all_refused("a wrong CA", &foreign, target, &[]).await;
        let expired = farm.identified(farm.authority.issue_for(role, &target.worker, over).unwrap());
        refused += check_all_refused("an expired certificate", &expired, target, &[]).await;
    }
    let session = ["session"];
    let of_env = [&OF_ENV[..], &session].concat();
    let wrong_roles: [(PeerRole, &[&str]); 7] = [
        (PeerRole::Policy, &of_env),
        (PeerRole::Client, &of_env),
        (PeerRole::Observer, &of_env),
        (PeerRole::Env, &OF_CLIENTS),
        (PeerRole::Policy, &OF_CLIENTS),
        (PeerRole::Observer, &["publish", "report_discarded", "drain"]),
        (PeerRole::Client, &OF_WORKERS),
    ];
    for (role, methods) in wrong_roles {
        let caller = farm.as_peer(role, &target.worker);
        refused += check_all_refused(role.as_str(), &caller, target, methods).await;
    }
    let rogue = farm.as_peer(PeerRole::Env, "rogue");
    for token in 0..20 {
        let target = Target { token, ..target.clone() };
        refused += check_all_refused("a rogue", &rogue, &target, &["record_step", "finish"]).await;
    }
    let names = ["lease", "renew", "show_first", "register", "heartbeat", "leave"];
    refused + check_all_refused("a rogue", &rogue, target, &names).await
}

/// Methods of a rogue's policy certificate in the name of the farm's own policy worker.
async fn refuse_a_second_policy_worker(farm: &Addresses) {
    let to = Target { worker: "policy-1".into(), trajectory: "x".into(), token: 1, secret: None };
    let stranger = farm.as_peer(PeerRole::Policy, "stranger");
    assert_eq!(check_all_refused("another policy worker", &stranger, &to, &OF_WORKERS).await, 3);
}

#[test]
fn nothing_of_a_running_farm_is_open_to_a_stranger_or_a_rogue() {
    let folder = tempfile::tempdir().unwrap();
    let job = simulated_tasks(folder.path(), 6, 2)
        + "[policy]\nkind = \"random\"\nthink_millis = 150\n[limits]\nlease_millis = 300000\n";
    let mut farm = FarmHarness::new(FarmBrowser::Simulated(2_000), &job);
    farm.start(FarmRole::Coordinator);
    farm.start(FarmRole::Policy);
    farm.wait_until("staffed", Duration::from_secs(60), |now| now.policy_workers > 0);
    let listens = farm.output(FarmRole::Policy);
    let policy = listens.lines().find_map(|line| line.strip_prefix("policy worker listens on ")).unwrap();
    let addresses = Addresses {
        authority: Authority::open(&farm.run_dir().join("identity")).unwrap(),
        coordinator: farm.coordinator_address(),
        policy: policy.to_owned(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let root = farm.run_dir().parent().unwrap().to_owned();
    let refused = runtime.block_on(async {
        let tester = addresses.as_worker("tester", 2).await;
        farm.start(FarmRole::Env);
        let Ok([own, other]) = <[Target; 2]>::try_from(tester.targets.clone()) else { panic!("two leases") };
        refuse_a_second_policy_worker(&addresses).await;
        // A stranger or a rogue that knows trajectory, token and secret.
        let refused = refuse_everyone(&addresses, &own).await;
        refused + check_secrets(&addresses, &tester.caller, [&own, &other], &root).await
    });
    println!("{refused} calls refused, 0 accepted");
    assert!(refused > 250, "{refused}");
    farm.finish(Duration::from_secs(120));
    println!("{}", farm.check(6, 2).unwrap());
    let reported = furrow(&["records", "verify", "run"], farm.run_dir().parent().unwrap());
    assert!(reported.status.success(), "{}", String::from_utf8_lossy(&reported.stdout));
}

/// The farm of another machine: folders that were issued, and no run directory of the coordinator.
#[test]
fn a_worker_of_another_machine_has_an_identity_that_was_issued() {
    let folder = tempfile::tempdir().unwrap();
    let job = simulated_tasks(folder.path(), 2, 1) + "[policy]\nkind = \"random\"\n";
    let mut farm = FarmHarness::new(FarmBrowser::Simulated(2_000), &job);
    let root = farm.run_dir().parent().unwrap().to_owned();
    for role in ["env", "policy"] {
        let issued = furrow(&["identity", "issue", role, "there", "--run", "run", "--out", role], &root);
        assert!(issued.status.success(), "{}", String::from_utf8_lossy(&issued.stderr));
    }
    farm.start(FarmRole::Coordinator);
    farm.start_elsewhere(FarmRole::Policy, &root.join("policy"));
    farm.start_elsewhere(FarmRole::Env, &root.join("env"));
    farm.finish(Duration::from_secs(60));
    println!("{}", farm.check(2, 1).unwrap());
    let log = std::fs::read_to_string(farm.run_dir().join("logs/coordinator.jsonl")).unwrap_or_default();
    assert!(log.contains("\"there."), "workers take the certificate's name and a tail");
}

/// Two environment workers, one of another machine. Its identity is revoked while it has leases.
#[test]
fn a_revoked_worker_is_refused_and_its_trajectories_are_run_by_another() {
    let folder = tempfile::tempdir().unwrap();
    let job = simulated_tasks(folder.path(), 4, 2) + "[policy]\nkind = \"random\"\nthink_millis = 300\n";
    let mut farm = FarmHarness::new(FarmBrowser::Simulated(2_000), &job);
    let root = farm.run_dir().parent().unwrap().to_owned();
    let issue = ["identity", "issue", "env", "there", "--run", "run", "--out", "env"];
    assert!(furrow(&issue, &root).status.success());
    farm.start(FarmRole::Coordinator);
    farm.start(FarmRole::Policy);
    farm.start_elsewhere(FarmRole::Env, &root.join("env"));
    farm.wait_until("under way", Duration::from_secs(60), |now| now.steps > 0);
    let began = Instant::now();
    let revoked = furrow(&["identity", "revoke", "env", "there", "--run", "run"], &root);
    assert!(revoked.status.success(), "{}", String::from_utf8_lossy(&revoked.stderr));
    let status = farm.wait_for_end(FarmRole::Env, Duration::from_secs(10));
    assert!(status.is_some_and(|status| status != 0), "a revoked worker goes on: {status:?}");
    println!("refused after {} ms", began.elapsed().as_millis());
    let output = farm.output(FarmRole::Env);
    assert!(output.contains("furrow://run/env/there was revoked"), "{output}");
    let again = furrow(&["identity", "issue", "env", "there", "--run", "run", "--out", "again"], &root);
    let refused = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(refused.contains("env/there was revoked in this run"), "{refused}");
    farm.start(FarmRole::Env);
    farm.finish(Duration::from_secs(120));
    println!("{}", farm.check(4, 2).unwrap());
}

#[test]
fn a_wildcard_address_is_not_advertised() {
    let folder = tempfile::tempdir().unwrap();
    let job = simulated_tasks(folder.path(), 1, 1) + "[policy]\nkind = \"random\"\n";
    let farm = FarmHarness::new(FarmBrowser::Simulated(2_000), &job);
    let root = farm.run_dir().parent().unwrap().to_owned();
    let arguments = ["policy", "job.toml", "--coordinator", "127.0.0.1:1", "--listen", "0.0.0.0:0"];
    let refused = furrow(&arguments, &root);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(text.contains("policy.advertise: not set") && text.contains("0.0.0.0:"), "{text}");
}

#[test]
fn an_identity_that_cannot_be_used_is_named_with_its_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let job = simulated_tasks(folder.path(), 1, 1) + "[policy]\nkind = \"random\"\n";
    let farm = FarmHarness::new(FarmBrowser::Simulated(2_000), &job);
    let root = farm.run_dir().parent().unwrap().to_owned();
    let issue = ["identity", "issue", "policy", "there", "--run", "run", "--out", "issued"];
    assert!(furrow(&issue, &root).status.success());
    let env = ["env", "job.toml", "--coordinator", "127.0.0.1:1", "--simulate-browser", "9", "--identity"];
    let table: [(&[&str], &[&str]); 4] = [
        (&[&env[..], &["issued"]].concat(), &["furrow://run/policy/there", "this process is a env"]),
        (&[&env[..], &["nowhere"]].concat(), &["nowhere holds no identity", "furrow identity issue"]),
        (&issue, &["--out: issued exists"]),
        (&["discarded", "1", "--coordinator", "127.0.0.1:1"], &["--identity: not given"]),
    ];
    for (arguments, parts) in table {
        let refused = furrow(arguments, &root);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{arguments:?}: {text}");
    }
}

/// A machine that has nothing but a token, and one that has another's.
#[test]
fn a_machine_joins_with_a_token_once() {
    let folder = tempfile::tempdir().unwrap();
    let job = simulated_tasks(folder.path(), 2, 1) + "[policy]\nkind = \"random\"\n";
    let mut farm = FarmHarness::new(FarmBrowser::Simulated(2_000), &job);
    let root = farm.run_dir().parent().unwrap().to_owned();
    farm.start(FarmRole::Coordinator);
    farm.start(FarmRole::Policy);
    farm.wait_until("the coordinator answers", Duration::from_secs(60), |_| true);
    let made = furrow(&["identity", "token", "env", "there", "--run", "run"], &root);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let token = String::from_utf8(made.stdout).unwrap();
    let address = free_port().to_string();
    let enrol = ["identity", "enrol", "--run", "run", "--listen", &address];
    let mut enrolling =
        Command::new(FURROW).args(enrol).current_dir(&root).stdout(Stdio::null()).spawn().unwrap();
    let join = |out: &str| {
        let arguments = ["identity", "join", "--at", &address, "--out", out];
        Command::new(FURROW)
            .args(arguments)
            .env("FURROW_JOIN_TOKEN", token.trim())
            .current_dir(&root)
            .output()
            .unwrap()
    };
    let began = Instant::now();
    let mut joined = join("joined");
    while !joined.status.success() && began.elapsed() < Duration::from_secs(20) {
        pause();
        joined = join("joined");
    }
    assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
    let second = join("second");
    let refused = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && refused.contains("unknown, expired or was used"), "{refused}");
    assert!(!root.join("second").exists());
    enrolling.kill().unwrap();
    enrolling.wait().unwrap();
    farm.start_elsewhere(FarmRole::Env, &root.join("joined"));
    farm.finish(Duration::from_secs(60));
    println!("{}", farm.check(2, 1).unwrap());
}
