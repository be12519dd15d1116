//! A running job with 300 sessions, told by a stand-in coordinator over real gRPC: tiles, how far it is, draining from the page.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, LazyLock};

use furrow_records::fixtures::Plot;
use furrow_rollout::{Ancestry, Group, Id, Size, Trajectory};
use furrow_wire::v1::coordinator_service_server::{CoordinatorService, CoordinatorServiceServer};
use furrow_wire::{OpaqueStep, Timeouts, ancestry_into, encode_opaque_step, encode_trace, v1};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status};

use crate::ground::{Chrome, Ground, HOSTILE, keep_picture, poison, script, wait_for};
use crate::http::{ask, get};
use crate::keys::{press, stands_at, tab_to};
use crate::pages::{click, nothing_is_wrong, open};

/// Knows 300 trajectories; each look finds them a step further.
#[derive(Default)]
struct Coordinator {
    looks: AtomicU32,
    pictures: AtomicU32,
    drained: AtomicU32,
    stopped: AtomicU32,
    /// Progress is told and nothing else.
    late: AtomicBool,
    gone: AtomicBool,
}

const SESSIONS: u32 = 300;

/// A step as a worker sends it; made once, a debug build takes its time for a picture.
static RECORD: LazyLock<bytes::Bytes> = LazyLock::new(|| {
    let plot = Plot { size: Size::new(160, 100), ..Plot::default() };
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

type Answer<T> = Result<Response<T>, Status>;

fn nobody<T>() -> Answer<T> {
    Err(Status::unimplemented("no page asks"))
}

#[tonic::async_trait]
impl CoordinatorService for Shared {
    async fn progress(&self, _: Request<v1::ProgressRequest>) -> Answer<v1::ProgressResponse> {
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
            training_judged: 400,
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

    async fn running(&self, _: Request<v1::RunningRequest>) -> Answer<v1::RunningResponse> {
        if self.0.late.load(SeqCst) {
            return Err(Status::deadline_exceeded("too much to do"));
        }
        let looks = self.0.looks.load(SeqCst);
        let run_id = Id::new("night-run").unwrap();
        let running = |index: u32| {
            let group_id = Id::<Group>::nth(&run_id, u64::from(index / 4));
            let trajectory_id = Id::<Trajectory>::attempt(&group_id, index % 4, 0);
            let of = Ancestry {
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
            }
        };
        Ok(Response::new(v1::RunningResponse { trajectories: (0..SESSIONS).map(running).collect() }))
    }

    async fn last_step(&self, _: Request<v1::LastStepRequest>) -> Answer<v1::LastStepResponse> {
        self.0.pictures.fetch_add(1, SeqCst);
        Ok(Response::new(v1::LastStepResponse { record: RECORD.clone() }))
    }

    async fn weights(&self, _: Request<v1::WeightsRequest>) -> Answer<v1::WeightsResponse> {
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

    async fn drain(&self, request: Request<v1::DrainRequest>) -> Answer<v1::DrainResponse> {
        let told = if request.into_inner().at_once { &self.0.stopped } else { &self.0.drained };
        told.fetch_add(1, SeqCst);
        Ok(Response::new(v1::DrainResponse {}))
    }

    async fn lease(&self, _: Request<v1::LeaseRequest>) -> Answer<v1::LeaseResponse> {
        nobody()
    }
    async fn renew(&self, _: Request<v1::RenewRequest>) -> Answer<v1::RenewResponse> {
        nobody()
    }
    async fn record_step(&self, _: Request<v1::RecordStepRequest>) -> Answer<v1::RecordStepResponse> {
        nobody()
    }
    async fn finish(&self, _: Request<v1::FinishRequest>) -> Answer<v1::FinishResponse> {
        nobody()
    }
    async fn report_discarded(
        &self,
        _: Request<v1::ReportDiscardedRequest>,
    ) -> Answer<v1::ReportDiscardedResponse> {
        nobody()
    }
    async fn publish(&self, _: Request<v1::PublishRequest>) -> Answer<v1::PublishResponse> {
        nobody()
    }
}

#[derive(Clone, Default)]
struct Shared(Arc<Coordinator>);

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_sessions_are_watched_and_the_job_is_drained() {
    let coordinator = Shared::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = furrow_wire::server(Timeouts::default())
        .add_service(CoordinatorServiceServer::new(coordinator.clone()));
    let serving = tokio::spawn(router.serve_with_incoming(furrow_wire::accept(listener)));

    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("coordinator.address"), format!("{address}\n")).unwrap();
    let (ground, chrome) = (Ground::serve(dir, None).await, Chrome::start().await);
    let page = open(&chrome, &ground, "/sessions").await;
    wait_for(&page, "document.querySelectorAll('.session').length === 300").await;
    wait_for(&page, "document.querySelector('main [role=status]').textContent === '300 sessions running'")
        .await;
    wait_for(&page, "document.querySelectorAll('.session')[1].querySelector('img')?.naturalWidth === 160")
        .await;
    // The keyboard comes to the tiles, too.
    tab_to(&page, "Tab", ".session").await;
    // Only tiles in sight have asked for their picture: 20 are on the screen, and as many below it.
    let pictures: i64 = script(&page, "document.querySelectorAll('.session img[src]').length").await;
    assert!((1..80).contains(&pictures), "{pictures} pictures were asked for");
    let far: bool =
        script(&page, "document.querySelectorAll('.session')[299].querySelector('img') !== null").await;
    assert!(!far);
    script::<bool>(&page, "(document.querySelectorAll('.session')[299].scrollIntoView(), true)").await;
    wait_for(&page, "document.querySelectorAll('.session')[299].querySelector('img')?.naturalWidth === 160")
        .await;
    script::<bool>(&page, "(scrollTo(0, 0), true)").await;
    // Steps go on without a reload.
    let before: String =
        script(&page, "document.querySelectorAll('.session')[2].querySelector('.strong').textContent").await;
    wait_for(
        &page,
        &format!(
            "document.querySelectorAll('.session')[2].querySelector('.strong').textContent !== {before:?}"
        ),
    )
    .await;
    keep_picture(&page, "sessions").await;
    let title: String =
        script(&page, "document.title + document.querySelector('#run-name').textContent").await;
    assert_eq!(title, "Sessions · night-runnight-run");
    // A picture is of the step that is asked for, or of none, and nobody keeps it.
    let picture = "/api/sessions/night-run-g000000-s1-a0/screenshot";
    for (query, status) in
        [("", 200), ("?step=1", 200), ("?step=0", 404), ("?step=2", 404), ("?steps=1", 400)]
    {
        let (got, head, _) = ask(ground.address, &format!("GET {picture}{query} HTTP/1.1"), &[], "").await;
        assert_eq!(got, status, "{query}");
        assert!(head.contains("cache-control: no-store"), "{head}");
    }
    // A coordinator that is late for this one question is no end of the job: the tiles stay.
    coordinator.0.late.store(true, SeqCst);
    let (status, body) = get(ground.address, "/api/sessions", &[]).await;
    assert!(status == 503 && body.contains("too much to do"), "{status} {body}");
    let looks = coordinator.0.looks.load(SeqCst);
    while coordinator.0.looks.load(SeqCst) < looks + 3 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(script::<i64>(&page, "document.querySelectorAll('.session img').length > 0 ? document.querySelectorAll('.session').length : 0").await, 300);
    coordinator.0.late.store(false, SeqCst);
    nothing_is_wrong(&page).await;

    let page = open(&chrome, &ground, "/job").await;
    wait_for(&page, "document.querySelector('#drain')").await;
    wait_for(
        &page,
        "document.querySelector('main').textContent.includes('Version 4 is current, 5 is the newest')",
    )
    .await;
    // Each worker as its last heartbeat described it, and how long ago that was.
    let rows: Vec<Vec<String>> = script(&page, "[...document.querySelectorAll('#table-workers tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent.replaceAll('\\u202f', ' ')))").await;
    assert_eq!(
        rows,
        [
            ["env-0", "environment", "100 of 128", "400 ms ago", "1.50 GB", "64 GB", "–", "–"],
            ["env-1", "environment", "100 of 128", "31 s ago", "1.50 GB", "64 GB", "–", "–"],
            ["policy-0", "policy", "100 of 128", "90 ms ago", "1.50 GB", "64 GB", "4", HOSTILE[0]],
        ]
    );
    // The rate of what was judged so far, with how far it may be off.
    wait_for(&page, "document.querySelector('.running').textContent.replaceAll('\\u202f', ' ').includes('success rate75.0 % [70.5 %, 79.0 %] of 400')").await;
    // By the keyboard: asked for, refused, and the focus is back at the button.
    for button in ["#drain", "#stop"] {
        tab_to(&page, "Tab", button).await;
        press(&page, &["Enter"]).await;
        wait_for(&page, "document.querySelector('dialog[open]')").await;
        assert_eq!(script::<String>(&page, "document.activeElement.textContent").await, "Go on running");
        tab_to(&page, "Tab", &format!("{button}-yes")).await;
        press(&page, &["Escape"]).await;
        wait_for(&page, "!document.querySelector('dialog[open]')").await;
        stands_at(&page, button).await;
    }
    // Asked for twice, and the first answer is no.
    for button in ["#drain", "#stop"] {
        click(&page, button).await;
        wait_for(&page, "document.querySelector('dialog[open]')").await;
        keep_picture(&page, &format!("job-live-{}", &button[1..])).await;
        script::<bool>(&page, "document.activeElement.click() ?? true").await;
        wait_for(&page, "!document.querySelector('dialog[open]')").await;
    }
    assert_eq!((coordinator.0.drained.load(SeqCst), coordinator.0.stopped.load(SeqCst)), (0, 0));
    script::<bool>(&page, "document.querySelector('#drain').click() ?? true").await;
    wait_for(&page, "document.querySelector('dialog[open] #drain-yes')").await;
    click(&page, "#drain-yes").await;
    wait_for(
        &page,
        "document.querySelector('dialog[open]').textContent.includes('Nothing new begins; what runs')",
    )
    .await;
    assert_eq!((coordinator.0.drained.load(SeqCst), coordinator.0.stopped.load(SeqCst)), (1, 0));
    wait_for(&page, "document.querySelector('main').textContent.includes('Nothing new begins: draining')")
        .await;
    // A drain that takes too long is cut short.
    script::<bool>(&page, "(document.querySelector('dialog').close(), true)").await;
    click(&page, "#stop").await;
    wait_for(&page, "document.querySelector('dialog[open]').textContent.includes('taken back now')").await;
    click(&page, "#stop-yes").await;
    wait_for(&page, "document.querySelector('dialog[open]').textContent.includes('What ran is taken back')")
        .await;
    assert_eq!((coordinator.0.drained.load(SeqCst), coordinator.0.stopped.load(SeqCst)), (1, 1));
    nothing_is_wrong(&page).await;

    // The job ends: tiles go, and the pages say so.
    let page = open(&chrome, &ground, "/sessions").await;
    wait_for(&page, "document.querySelectorAll('.session').length === 300").await;
    coordinator.0.gone.store(true, SeqCst);
    wait_for(&page, "document.querySelector('main [role=status]').textContent.startsWith('Nothing runs')")
        .await;
    wait_for(&page, "document.querySelectorAll('.session').length === 0").await;
    chrome.close().await;
    ground.close().await;
    serving.abort();
}
