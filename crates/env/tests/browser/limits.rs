//! A page that takes too much is ended, by name, near its limit; pages beside it go on. Contexts wait for memory.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use furrow_env::{Stage, StageError, Stages};
use furrow_telemetry::group_members;

use crate::ground::{act, click, ground_with, state};
use crate::life::commands;

const MB: u64 = 1 << 20;

/// Counts its clicks, and after the first does what the script says.
fn page(script: &str) -> String {
    let style = "position:absolute;left:0;top:0;width:500px;height:500px";
    format!(
        "<script>state = {{n: 0}}</script><button style='{style}' onclick='if (++state.n == 1) {{ {script} }}'>b</button>"
    )
}

/// First process of the browser a stage lives in.
fn first_process(stage: &dyn Stage) -> u32 {
    let index = stage.browser().rsplit('-').next().unwrap();
    let profile = format!("furrow-env-{}-{index} ", std::process::id());
    let is_it = |command: &str| {
        command.contains(&profile) && !command.contains("--type=") && !command.starts_with("setpriv")
    };
    commands().into_iter().find(|(_, command)| is_it(command)).unwrap().0
}

/// Goes on until the page fails; one that is busy with its greed may well be late.
async fn until_it_fails(stage: &mut Box<dyn Stage>) -> StageError {
    let began = Instant::now();
    let first = stage.act(&click(100.0, 100.0)).await;
    let mut step = first.map(drop);
    while matches!(step, Ok(()) | Err(StageError::PageHang { .. })) {
        assert!(began.elapsed() < Duration::from_secs(20), "it goes on for ever");
        step = stage.observe().await.map(drop);
    }
    step.unwrap_err()
}

async fn goes_on(stage: &mut Box<dyn Stage>) {
    let before = state(stage).await["n"].as_u64().unwrap();
    act(stage, click(100.0, 100.0)).await;
    assert_eq!(state(stage).await["n"], before + 1);
    stage.observe().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_takes_all_it_can_get_is_ended_and_its_neighbours_go_on() {
    let limit = 640 * MB;
    let ground = ground_with(
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
    let mut beside = ground.page(&page("")).await;
    let mut elsewhere = None;
    for (script, want) in cases {
        let mut greedy = ground.page(&page(script)).await;
        assert_eq!(greedy.browser(), beside.browser());
        if elsewhere.is_none() {
            elsewhere = Some(ground.page(&page("")).await);
        }
        let group = first_process(&*greedy);
        let (over, is_over) = sync_channel::<()>(0);
        let observer = std::thread::spawn(move || {
            let mut most = 0;
            while is_over.recv_timeout(Duration::from_millis(5)) == Err(RecvTimeoutError::Timeout) {
                most = most.max(group_members(group).unwrap().iter().map(|member| member.held_bytes).sum());
            }
            most
        });
        let error = until_it_fails(&mut greedy).await;
        drop(over);
        let most: u64 = observer.join().unwrap();
        assert_eq!(error, StageError::PageCrash, "{script}");
        let why = greedy.cause_of_death().unwrap();
        assert!(why.contains(want) && why.contains("the page that"), "{why}");
        // Two looks are 20 ms apart; on a machine that is busy with other things they may be 100 ms, or 170 MB.
        assert!(most < limit + 256 * MB, "{script}: it got as far as {} MB", most / MB);
        greedy.close().await;
        goes_on(&mut beside).await;
        goes_on(elsewhere.as_mut().unwrap()).await;
    }
    assert_ne!(elsewhere.as_ref().unwrap().browser(), beside.browser());
    beside.close().await;
    elsewhere.unwrap().close().await;
    ground.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_near_its_limit_gets_no_further_context() {
    let ground = ground_with(|file| file.browser_memory_bytes_max = 512 * MB, vec![]).await;
    let mut large = ground.page(&page("kept = new Uint8Array(300 << 20).fill(7)")).await;
    let early = ground.page(&page("")).await;
    assert_eq!(early.browser(), large.browser());
    act(&mut large, click(100.0, 100.0)).await;
    // It is looked at four times a second at least.
    let began = Instant::now();
    let late = loop {
        let late = ground.page(&page("")).await;
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
    for stage in [large, early, late] {
        stage.close().await;
    }
    ground.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_has_room_for_what_memory_leaves() {
    let available = furrow_telemetry::available_bytes().unwrap();
    // No machine frees 1 TiB while a test runs.
    let none = ground_with(|file| file.memory_reserve_bytes = 1 << 40, vec![]).await;
    assert_eq!(none.pool.room().stages, 0);
    // What was leased before memory became short is acted all the same.
    let stage = none.page("<p>x").await;
    stage.close().await;
    assert!(
        none.pool.health().held_bytes.is_some_and(|held| (30 * MB..400 * MB).contains(&held)),
        "{:?}",
        none.pool.health()
    );
    none.close().await;
    let ample = ground_with(|file| file.memory_reserve_bytes = 0, vec![]).await;
    assert_eq!(ample.pool.room().stages, u32::MAX);
    ample.close().await;
    let some = ground_with(|file| file.memory_reserve_bytes = available / 2, vec![]).await;
    let room = some.pool.room();
    assert!((1..available as u32 / 100).contains(&room.stages), "{room:?}");
    some.close().await;
}
