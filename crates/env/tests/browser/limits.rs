//! A page that uses too much is killed near its limit, and the error names the limit; other pages
//! continue. Contexts wait for memory.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use furrow_env::{Environment, EnvironmentError, EnvironmentFactory};
use furrow_telemetry::group_members;

use crate::fixture::{act, click, fixture_with, state};
use crate::life::commands;

const MB: u64 = 1 << 20;

/// Counts its clicks, and runs the script after the first one.
fn page(script: &str) -> String {
    let style = "position:absolute;left:0;top:0;width:500px;height:500px";
    format!(
        "<script>state = {{n: 0}}</script><button style='{style}' onclick='if (++state.n == 1) {{ {script} }}'>b</button>"
    )
}

/// First process of an environment's browser.
pub(crate) fn first_process(environment: &dyn Environment) -> u32 {
    let index = environment.browser().rsplit('-').next().unwrap();
    let profile = format!("furrow-env-{}-{index}-", std::process::id());
    let is_it = |command: &str| {
        command.contains(&profile) && !command.contains("--type=") && !command.starts_with("setpriv")
    };
    commands().into_iter().find(|(_, command)| is_it(command)).unwrap().0
}

/// Observes until the page fails; a page that is busy may answer late.
async fn until_it_fails(environment: &mut Box<dyn Environment>) -> EnvironmentError {
    let began = Instant::now();
    let first = environment.act(&click(100.0, 100.0)).await;
    let mut step = first.map(drop);
    while matches!(step, Ok(()) | Err(EnvironmentError::PageHang { .. })) {
        assert!(began.elapsed() < Duration::from_secs(60), "the page does not fail");
        step = environment.observe().await.map(drop);
    }
    step.unwrap_err()
}

async fn goes_on(environment: &mut Box<dyn Environment>) {
    let before = state(environment).await["n"].as_u64().unwrap();
    act(environment, click(100.0, 100.0)).await;
    assert_eq!(state(environment).await["n"], before + 1);
    environment.observe().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_takes_all_it_can_get_is_ended_and_its_neighbours_go_on() {
    let limit = 640 * MB;
    let fixture = fixture_with(
        |file| {
            (file.contexts_per_browser, file.browser_memory_bytes_max, file.browser_threads_max) =
                (2, limit, 256);
        },
        vec![],
    )
    .await;
    let cases = [
        (
            "const eat = []; for (;;) eat.push(new Uint8Array(8 << 20).fill(7))",
            "env.browser_memory_bytes_max is 671088640",
        ),
        (
            "const code = window.URL.createObjectURL(new Blob([\"0\"])); window.kept = []; for (let i = 0; i < 300; i++) kept.push(new Worker(code))",
            "env.browser_threads_max is 256",
        ),
    ];
    let mut beside = fixture.page(&page("")).await;
    let mut elsewhere = None;
    for (script, want) in cases {
        let mut greedy = fixture.page(&page(script)).await;
        assert_eq!(greedy.browser(), beside.browser());
        if elsewhere.is_none() {
            elsewhere = Some(fixture.page(&page("")).await);
        }
        let group = first_process(&*greedy);
        let (over, is_over) = sync_channel::<()>(0);
        let observer = std::thread::spawn(move || {
            let mut most = 0;
            while is_over.recv_timeout(Duration::from_millis(5)) == Err(RecvTimeoutError::Timeout) {
                most =
                    most.max(group_members(group).unwrap().iter().map(|member| member.footprint_bytes).sum());
            }
            most
        });
        let error = until_it_fails(&mut greedy).await;
        drop(over);
        let most: u64 = observer.join().unwrap();
        assert_eq!(error, EnvironmentError::PageCrash, "{script}");
        let why = greedy.death_cause().unwrap();
        assert!(why.contains(want) && why.contains("the page that"), "{why}");
        // Two polls are 20 ms apart; on a busy machine they may be 100 ms apart, which is 170 MB.
        assert!(most < limit + 256 * MB, "{script}: it got as far as {} MB", most / MB);
        greedy.close().await;
        goes_on(&mut beside).await;
        goes_on(elsewhere.as_mut().unwrap()).await;
    }
    assert_ne!(elsewhere.as_ref().unwrap().browser(), beside.browser());
    beside.close().await;
    elsewhere.unwrap().close().await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_near_its_limit_gets_no_further_context() {
    let fixture = fixture_with(|file| file.browser_memory_bytes_max = 512 * MB, vec![]).await;
    let mut large = fixture.page(&page("kept = new Uint8Array(300 << 20).fill(7)")).await;
    let early = fixture.page(&page("")).await;
    assert_eq!(early.browser(), large.browser());
    act(&mut large, click(100.0, 100.0)).await;
    // The browser is polled at least four times per second.
    let began = Instant::now();
    let late = loop {
        let late = fixture.page(&page("")).await;
        if late.browser() != large.browser() {
            break late;
        }
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "another context went into a browser that is full"
        );
        late.close().await;
    };
    goes_on(&mut large).await;
    for environment in [large, early, late] {
        environment.close().await;
    }
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_has_capacity_for_what_memory_leaves() {
    let available = furrow_telemetry::available_bytes().unwrap();
    // No machine frees 1 TiB while a test runs.
    let none = fixture_with(|file| file.memory_reserve_bytes = 1 << 40, vec![]).await;
    assert_eq!(none.pool.capacity().environments, 0);
    // A trajectory that was leased before memory became short still runs.
    let environment = none.page("<p>x").await;
    environment.close().await;
    assert!(
        none.pool.health().memory_bytes.is_some_and(|used| (30 * MB..400 * MB).contains(&used)),
        "{:?}",
        none.pool.health()
    );
    none.close().await;
    let ample = fixture_with(|file| file.memory_reserve_bytes = 0, vec![]).await;
    assert_eq!(ample.pool.capacity().environments, u32::MAX);
    ample.close().await;
    let some = fixture_with(|file| file.memory_reserve_bytes = available / 2, vec![]).await;
    let capacity = some.pool.capacity();
    assert!((1..available as u32 / 100).contains(&capacity.environments), "{capacity:?}");
    some.close().await;
}
