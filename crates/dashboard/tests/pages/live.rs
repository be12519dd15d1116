//! A running job with 300 sessions, reported by a fake coordinator over real gRPC: tiles, progress,
//! draining from the page.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, LazyLock};

use chromiumoxide::Page;
use furrow_identity::{Authority, PeerRole};
use furrow_records::fixtures::TrajectoryFixture;
use furrow_rollout::{Group, Id, Size, Trajectory, TrajectoryAncestry};
use furrow_wire::v1::coordinator_service_server::{CoordinatorService, CoordinatorServiceServer};
use furrow_wire::{LinkTimeouts, OpaqueStep, ancestry_into, encode_opaque_step, encode_trace, v1};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status};

use crate::harness::{HOSTILE, TestBrowser, TestDashboard, keep_picture, poison, script, wait_for};
use crate::http::{ask, get};
use crate::keys::{press, tab_to, wait_for_focus};
use crate::pages::{assert_no_errors, click, open};

/// Reports 300 trajectories; each poll finds them a step further.
#[derive(Default)]
struct FakeCoordinator {
    looks: AtomicU32,
    pictures: AtomicU32,
    drained: AtomicU32,
    stopped: AtomicU32,
    /// Only progress is answered.
    late: AtomicBool,
    gone: AtomicBool,
}

impl FakeCoordinator {
    /// How often it was asked to drain, and to stop at once.
    fn ended(&self) -> (u32, u32) {
        (self.drained.load(SeqCst), self.stopped.load(SeqCst))
    }
}

const SESSIONS: u32 = 300;

/// A step as a worker sends it; created once, because a debug build is slow with a picture.
static RECORD: LazyLock<bytes::Bytes> = LazyLock::new(|| {
    let plot = TrajectoryFixture { size: Size::new(160, 100), ..TrajectoryFixture::default() };
    let (mut record, mut steps) = plot.trajectory();
    poison(&mut record, &mut steps);
    let step = steps.remove(1);
    encode_opaque_step(&OpaqueStep {
        step: step.step,
        observation: step.observation,
        reply: step.reply,
        outcome: step.outcome,
        trace: encode_trace(&step.trace),
        timing: step.timing,
        observed_at_micros: step.observed_at_micros,
    })
});

type RpcResult<T> = Result<Response<T>, Status>;

fn unimplemented<T>() -> RpcResult<T> {
    Err(Status::unimplemented("no page calls this"))
}

#[tonic::async_trait]
impl CoordinatorService for SharedCoordinator {
    async fn progress(&self, _: Request<v1::ProgressRequest>) -> RpcResult<v1::ProgressResponse> {
        if self.0.gone.load(SeqCst) {
            return Err(Status::unavailable("gone"));
        }
        let looks = self.0.looks.fetch_add(1, SeqCst);
        let drained = self.0.drained.load(SeqCst) + self.0.stopped.load(SeqCst) > 0;
        let worker = |worker_id: &str, role: &str, heard_millis| v1::WorkerHealth {
            worker_id: worker_id.into(),
            role: role.into(),
            sessions_max: 128,
            sessions: 100,
            heard_millis,
            memory_bytes: Some(1_500_000_000),
            memory_left_bytes: Some(64_000_000_000),
            policy_version: (role == "policy").then_some(4),
            waits: if role == "policy" { HOSTILE[0].into() } else { String::new() },
        };
        Ok(Response::new(v1::ProgressResponse {
            run_id: "night-run".into(),
            groups_planned: 500,
            groups_closed: 120 + looks,
            assigned: SESSIONS,
            scored: 480 + 4 * looks,
            failed: 7,
            successes: 300,
            training_success_known: 400,
            training_successes: 300,
            scoring: 3,
            workers: vec![
                worker("env-0", "env", 400),
                worker("env-1", "env", 31_000),
                worker("policy-0", "policy", 90),
            ],
            env_workers: 3,
            policy_workers: 1,
            admission: if drained { "draining" } else { "open" }.into(),
            ..v1::ProgressResponse::default()
        }))
    }

    async fn running(&self, _: Request<v1::RunningRequest>) -> RpcResult<v1::RunningResponse> {
        if self.0.late.load(SeqCst) {
            return Err(Status::deadline_exceeded("too much to do"));
        }
        let looks = self.0.looks.load(SeqCst);
        let run_id = Id::new("night-run").unwrap();
        let running = |index: u32| {
            let group_id = Id::<Group>::nth(&run_id, u64::from(index / 4));
            let trajectory_id = Id::<Trajectory>::attempt(&group_id, index % 4, 0);
            let of = TrajectoryAncestry {
                run_id: run_id.clone(),
                group_id,
                sample_index: index % 4,
                attempt: 0,
                trajectory_id,
            };
            v1::RunningTrajectory {
                ancestry: Some(ancestry_into(&of)),
                task_id: HOSTILE[index as usize % HOSTILE.len()].into(),
                suite: "web".into(),
                env_worker: "env-0".into(),
                policy_worker: "policy-0".into(),
                steps: if index == 0 { 0 } else { 1 + looks / 3 },
                started_at_micros: furrow_records::fixtures::STARTED,
                first_shown: index == 0,
            }
        };
        Ok(Response::new(v1::RunningResponse { trajectories: (0..SESSIONS).map(running).collect() }))
    }

    async fn last_step(&self, request: Request<v1::LastStepRequest>) -> RpcResult<v1::LastStepResponse> {
        self.0.pictures.fetch_add(1, SeqCst);
        // The first trajectory has no durable step, and shows its first screenshot.
        if request.into_inner().trajectory_id.ends_with("-g000000-s0-a0") {
            let first_screenshot = furrow_records::fixtures::png(120, 75, 1);
            return Ok(Response::new(v1::LastStepResponse { first_screenshot, ..Default::default() }));
        }
        Ok(Response::new(v1::LastStepResponse { record: RECORD.clone(), ..Default::default() }))
    }

    async fn show_first(&self, _: Request<v1::ShowFirstRequest>) -> RpcResult<v1::ShowFirstResponse> {
        unimplemented()
    }

    async fn weights(&self, _: Request<v1::WeightsRequest>) -> RpcResult<v1::WeightsResponse> {
        let worker = v1::WeightsWorker {
            worker_id: "policy-0".into(),
            version: 4,
            moved: false,
            lags: HOSTILE[1].into(),
        };
        Ok(Response::new(v1::WeightsResponse {
            current: 4,
            version: 5,
            workers: vec![worker],
            ..Default::default()
        }))
    }

    async fn drain(&self, request: Request<v1::DrainRequest>) -> RpcResult<v1::DrainResponse> {
        let counter = if request.into_inner().at_once { &self.0.stopped } else { &self.0.drained };
        counter.fetch_add(1, SeqCst);
        Ok(Response::new(v1::DrainResponse {}))
    }

    async fn lease(&self, _: Request<v1::LeaseRequest>) -> RpcResult<v1::LeaseResponse> {
        unimplemented()
    }
    async fn renew(&self, _: Request<v1::RenewRequest>) -> RpcResult<v1::RenewResponse> {
        unimplemented()
    }
    async fn record_step(&self, _: Request<v1::RecordStepRequest>) -> RpcResult<v1::RecordStepResponse> {
        unimplemented()
    }
    async fn finish(&self, _: Request<v1::FinishRequest>) -> RpcResult<v1::FinishResponse> {
        unimplemented()
    }
    async fn report_discarded(
        &self,
        _: Request<v1::ReportDiscardedRequest>,
    ) -> RpcResult<v1::ReportDiscardedResponse> {
        unimplemented()
    }
    async fn publish(&self, _: Request<v1::PublishRequest>) -> RpcResult<v1::PublishResponse> {
        unimplemented()
    }
}

#[derive(Clone, Default)]
struct SharedCoordinator(Arc<FakeCoordinator>);

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_sessions_are_watched_and_the_job_is_drained() {
    let shared = SharedCoordinator::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let authority =
        Authority::open_or_create(&Authority::dir_of_run(dir.path()), &Id::new("live").unwrap()).unwrap();
    let identity = authority.issue(PeerRole::Coordinator, "coordinator").unwrap();
    let router = furrow_wire::authorized_server(
        LinkTimeouts::default(),
        Some(&identity),
        &furrow_wire::Revocations::default(),
    )
    .add_service(CoordinatorServiceServer::new(shared.clone()));
    let accepted = furrow_wire::accept(listener);
    let serving = tokio::spawn(furrow_wire::serve(router, accepted, Some(identity), std::future::pending()));
    let coordinator = &*shared.0;

    std::fs::write(dir.path().join("coordinator.address"), format!("{address}\n")).unwrap();
    let dashboard = TestDashboard::serve(dir, None).await;
    let chrome = TestBrowser::start().await;
    let page = open(&chrome, &dashboard, "/sessions").await;
    watch_tiles(&page).await;
    check_picture_answers(&dashboard).await;
    check_late_coordinator(&page, &dashboard, coordinator).await;
    assert_no_errors(&page).await;

    // How many are not yet committed: on the first page, without a click. All that are scored or
    // failed: this coordinator says that it committed none.
    let page = open(&chrome, &dashboard, "/").await;
    wait_for(&page, "/scored\\d+, \\d+ not yet committed/.test(document.querySelector('.running')?.textContent.replaceAll('\\u202f', ''))").await;

    let page = open(&chrome, &dashboard, "/job").await;
    check_job(&page).await;
    decline_to_end(&page).await;
    assert_eq!(coordinator.ended(), (0, 0));
    drain_and_stop(&page, coordinator).await;
    assert_no_errors(&page).await;

    // The job ends: the tiles disappear, and the pages report it.
    let page = open(&chrome, &dashboard, "/sessions").await;
    wait_for(&page, "document.querySelectorAll('.session').length === 300").await;
    coordinator.gone.store(true, SeqCst);
    wait_for(&page, "document.querySelector('main [role=status]').textContent.startsWith('Nothing runs')")
        .await;
    wait_for(&page, "document.querySelectorAll('.session').length === 0").await;
    chrome.close().await;
    dashboard.close().await;
    serving.abort();
}

/// The tiles of all sessions: their pictures, the keyboard, and steps that advance.
async fn watch_tiles(page: &Page) {
    wait_for(page, "document.querySelectorAll('.session').length === 300").await;
    wait_for(page, "document.querySelector('main [role=status]').textContent === '300 sessions running'")
        .await;
    wait_for(page, "document.querySelectorAll('.session')[1].querySelector('img')?.naturalWidth === 160")
        .await;
    // Before its first step is recorded, a session shows the page that its policy got first.
    wait_for(page, "document.querySelectorAll('.session')[0].querySelector('img')?.naturalWidth === 120")
        .await;
    // The keyboard reaches the tiles, too.
    tab_to(page, "Tab", ".session").await;
    // Only tiles near the visible area request their picture: 20 are on the screen, and as many
    // below it.
    let pictures: i64 = script(page, "document.querySelectorAll('.session img[src]').length").await;
    assert!((1..80).contains(&pictures), "{pictures} pictures were requested");
    let far: bool =
        script(page, "document.querySelectorAll('.session')[299].querySelector('img') !== null").await;
    assert!(!far);
    script::<bool>(page, "(document.querySelectorAll('.session')[299].scrollIntoView(), true)").await;
    wait_for(page, "document.querySelectorAll('.session')[299].querySelector('img')?.naturalWidth === 160")
        .await;
    script::<bool>(page, "(scrollTo(0, 0), true)").await;
    // Steps advance without a reload.
    let before: String =
        script(page, "document.querySelectorAll('.session')[2].querySelector('.strong').textContent").await;
    wait_for(
        page,
        &format!(
            "document.querySelectorAll('.session')[2].querySelector('.strong').textContent !== {before:?}"
        ),
    )
    .await;
    keep_picture(page, "sessions").await;
    let title: String =
        script(page, "document.title + document.querySelector('#run-name').textContent").await;
    assert_eq!(title, "Sessions · night-runnight-run");
}

/// A picture belongs to the requested step, or the request fails; it is not cached.
async fn check_picture_answers(dashboard: &TestDashboard) {
    let picture = "/api/sessions/night-run-g000000-s1-a0/screenshot";
    for (query, status) in
        [("", 200), ("?step=1", 200), ("?step=0", 404), ("?step=2", 404), ("?steps=1", 400)]
    {
        let (got, head, _) = ask(dashboard.address, &format!("GET {picture}{query} HTTP/1.1"), &[], "").await;
        assert_eq!(got, status, "{query}");
        assert!(head.contains("cache-control: no-store"), "{head}");
    }
    // Without a recorded step the first screenshot is that of step 0, and there is no step to
    // describe.
    let first = "/api/sessions/night-run-g000000-s0-a0";
    for (path, status) in
        [("/screenshot", 200), ("/screenshot?step=0", 200), ("/screenshot?step=1", 404), ("", 404)]
    {
        let (got, _) = get(dashboard.address, &format!("{first}{path}"), &[]).await;
        assert_eq!(got, status, "{path}");
    }
}

/// A coordinator that is late for this one question does not end the job: the tiles stay.
async fn check_late_coordinator(page: &Page, dashboard: &TestDashboard, coordinator: &FakeCoordinator) {
    coordinator.late.store(true, SeqCst);
    let (status, body) = get(dashboard.address, "/api/sessions", &[]).await;
    assert!(status == 503 && body.contains("too much to do"), "{status} {body}");
    let looks = coordinator.looks.load(SeqCst);
    while coordinator.looks.load(SeqCst) < looks + 3 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(script::<i64>(page, "document.querySelectorAll('.session img').length > 0 ? document.querySelectorAll('.session').length : 0").await, 300);
    coordinator.late.store(false, SeqCst);
}

/// `/job`: the versions, the workers and the success rate of the running job.
async fn check_job(page: &Page) {
    wait_for(page, "document.querySelector('#drain')").await;
    wait_for(
        page,
        "document.querySelector('main').textContent.includes('Version 4 is current, 5 is the newest')",
    )
    .await;
    // Each worker as in its last heartbeat, and the time since then.
    let rows: Vec<Vec<String>> = script(page, "[...document.querySelectorAll('#table-workers tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent.replaceAll('\\u202f', ' ')))").await;
    assert_eq!(
        rows,
        [
            ["env-0", "environment", "100 of 128", "400 ms ago", "1.50 GB", "64 GB", "–", "–"],
            ["env-1", "environment", "100 of 128", "31 s ago", "1.50 GB", "64 GB", "–", "–"],
            ["policy-0", "policy", "100 of 128", "90 ms ago", "1.50 GB", "64 GB", "4", HOSTILE[0]],
        ]
    );
    // The success rate so far, with its interval.
    wait_for(page, "document.querySelector('.running').textContent.replaceAll('\\u202f', ' ').includes('success rate75.0 % [70.5 %, 79.0 %] of 400')").await;
}

/// Draining and stopping are requested and declined, by keyboard and by pointer.
async fn decline_to_end(page: &Page) {
    // By keyboard: requested, declined, and the focus is back on the button.
    for button in ["#drain", "#stop"] {
        tab_to(page, "Tab", button).await;
        press(page, &["Enter"]).await;
        wait_for(page, "document.querySelector('dialog[open]')").await;
        assert_eq!(script::<String>(page, "document.activeElement.textContent").await, "Go on running");
        tab_to(page, "Tab", &format!("{button}-yes")).await;
        press(page, &["Escape"]).await;
        wait_for(page, "!document.querySelector('dialog[open]')").await;
        wait_for_focus(page, button).await;
    }
    // Requested twice; the first confirmation is declined.
    for button in ["#drain", "#stop"] {
        click(page, button).await;
        wait_for(page, "document.querySelector('dialog[open]')").await;
        keep_picture(page, &format!("job-live-{}", &button[1..])).await;
        script::<bool>(page, "document.activeElement.click() ?? true").await;
        wait_for(page, "!document.querySelector('dialog[open]')").await;
    }
}

async fn drain_and_stop(page: &Page, coordinator: &FakeCoordinator) {
    script::<bool>(page, "document.querySelector('#drain').click() ?? true").await;
    wait_for(page, "document.querySelector('dialog[open] #drain-yes')").await;
    click(page, "#drain-yes").await;
    wait_for(
        page,
        "document.querySelector('dialog[open]').textContent.includes('No new trajectory starts; running')",
    )
    .await;
    assert_eq!(coordinator.ended(), (1, 0));
    wait_for(page, "document.querySelector('main').textContent.includes('Admission is paused: draining')")
        .await;
    // A drain that takes too long is cut short.
    script::<bool>(page, "(document.querySelector('dialog').close(), true)").await;
    click(page, "#stop").await;
    wait_for(page, "document.querySelector('dialog[open]').textContent.includes('are cancelled now')").await;
    click(page, "#stop-yes").await;
    wait_for(page, "document.querySelector('dialog[open]').textContent.includes('What ran is taken back')")
        .await;
    assert_eq!(coordinator.ended(), (1, 1));
}
