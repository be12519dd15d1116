//! A policy that thinks longer than a step's page time: the page waits for it, and shows what its action did.

use std::time::{Duration, Instant};

use furrow_env::Stages;
use furrow_rollout::*;
use futures::future::join_all;
use tokio::time::sleep;

use crate::ground::{Ground, act, assignment, at, click, ground, ground_with};
use crate::page_time::{miniwob_site, miniwob_tasks, on_virtual_time, probed};

/// Counts what it hears of, and shows in a corner which it heard last.
const HEARS: &str = "<div style='height:30000px'></div>
<input style='position:fixed;left:100px;top:200px;width:200px;height:30px'>
<div id=shown style='position:fixed;left:0;top:0;width:60px;height:60px'></div>
<script>
  state = {};
  const hear = (kind, colour) => {
    state[kind] = (state[kind] ?? 0) + 1;
    shown.style.background = `rgb(${colour}, ${state[kind]})`;
  };
  let from = 0;
  onmousedown = (event) => { from = event.clientX };
  onmouseup = (event) => Math.abs(event.clientX - from) > 50 ? hear('drag', '10, 200') : hear('click', '200, 10');
  onscroll = () => hear('scroll', '10, 10');
  oninput = () => hear('input', '90, 90');
  onkeydown = (event) => { if (event.key === 'F8') hear('key', '90, 10') };
</script>";

/// An action, what the page calls it, and the first two colours that it shows it with.
fn actions() -> Vec<(Action, &'static str, [u8; 2])> {
    vec![
        (click(300.0, 100.0), "click", [200, 10]),
        (Action::drag(at(300.0, 100.0), at(400.0, 120.0)), "drag", [10, 200]),
        (Action::Scroll { at: None, direction: Direction::Down, pixels: Some(100) }, "scroll", [10, 10]),
        (
            Action::Write { into: Some(at(150.0, 215.0)), content: "a".into(), press_enter: false },
            "input",
            [90, 90],
        ),
        (Action::press("F8"), "key", [90, 10]),
    ]
}

fn corner(seen: &Observation) -> [u8; 3] {
    image::load_from_memory(&seen.screenshot.bytes).unwrap().into_rgb8().get_pixel(5, 5).0
}

/// Looks, thinks, acts and looks again, as often as there are actions; what was wrong.
async fn thinks(
    ground: &Ground,
    think: Duration,
    actions: Vec<(Action, &'static str, [u8; 2])>,
) -> Vec<String> {
    let mut stage = ground.page_with(HEARS, on_virtual_time_of_state).await;
    let mut wrong = Vec::new();
    for (round, (action, kind, colour)) in (1..).zip(actions) {
        let name = format!("{think:?}, round {round}, {kind}");
        let before = probed(&mut stage).await;
        sleep(think).await;
        let began = Instant::now();
        let after = async {
            let outcome = stage.act(&action).await?;
            let outcome = stage.settle(outcome).await?;
            let seen = stage.observe().await?;
            Ok::<_, furrow_env::StageError>((outcome, seen))
        };
        let (outcome, seen) = match after.await {
            Ok(after) => after,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                break;
            }
        };
        let after = probed(&mut stage).await;
        let cost = after["now"].as_f64().unwrap() - before["now"].as_f64().unwrap();
        let count = after["state"][kind].as_u64().unwrap_or(0);
        let had = before["state"][kind].as_u64().unwrap_or(0);
        if outcome.name != OutcomeName::Ok || count != had + 1 || (cost - 1000.0).abs() > 1.0 {
            wrong.push(format!("{name}: {outcome:?}, {cost} ms of page time, {before} became {after}"));
        }
        let want = [colour[0], colour[1], count as u8];
        if corner(&seen) != want {
            wrong.push(format!("{name}: {:?} is shown instead of {want:?}", corner(&seen)));
        }
        if began.elapsed() > Duration::from_secs(4) {
            wrong.push(format!("{name}: {:?} for one step", began.elapsed()));
        }
    }
    stage.close().await;
    wrong
}

fn on_virtual_time_of_state(task: &mut Task) {
    on_virtual_time(task);
    task.hooks.probe = Some("({ state: window.state, now: performance.now() })".into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_what_an_action_did_however_long_the_policy_thought() {
    let ground = ground().await;
    let (millis, all) = (Duration::from_millis, actions());
    let twice = || [all.clone(), all.clone()].concat();
    let mut cases = vec![(millis(0), twice()), (millis(500), twice()), (millis(1500), twice())];
    // The longest are shared out, so that the test takes as long as a few of them.
    cases.extend(all.chunks(2).map(|some| (millis(3000), [some, some].concat())));
    cases.extend(all.chunks(2).map(|some| (millis(8000), some.to_vec())));
    let wrong = join_all(cases.into_iter().map(|(think, actions)| thinks(&ground, think, actions))).await;
    let wrong: Vec<String> = wrong.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    ground.close().await;
}

/// Pages that ask for frames without end or change nothing in them: a frame that nothing comes of keeps no later one from being drawn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_asks_for_frames_is_shown_however_long_the_policy_thought() {
    let ground = ground().await;
    let asks = "const again = () => requestAnimationFrame(again); again();";
    let bodies = [
        format!("{HEARS}<script>{asks}</script>"),
        format!("{HEARS}<script>onmousemove = () => requestAnimationFrame(() => {{}})</script>"),
        format!(
            "{HEARS}<style>@keyframes turn {{ to {{ rotate: 1turn }} }} input {{ animation: turn 9s infinite }}</style>"
        ),
    ];
    let shared = &ground;
    let looks = bodies.iter().map(|body| async move {
        let mut stage = shared.page_with(body, on_virtual_time_of_state).await;
        for round in 1..=3_u8 {
            sleep(Duration::from_millis(1500)).await;
            act(&mut stage, click(300.0, 100.0)).await;
            let seen = stage.observe().await.unwrap_or_else(|error| panic!("round {round}, {body}: {error}"));
            assert_eq!(corner(&seen), [200, 10, round], "{body}");
        }
        stage.close().await;
    });
    join_all(looks).await;
    ground.close().await;
}

/// The screenshots after each action on a MiniWoB++ page, whose clock is looked at, too.
async fn shown_on(ground: &Ground, task: Task, thinks: bool) -> Vec<Observation> {
    let name = task.start_url.clone();
    let mut stage = ground.pool.open(&assignment(task)).await.unwrap();
    stage.begin().await.unwrap();
    // Above everything that reacts, then the page's own controls.
    let steps = [
        Action::Move { at: at(150.0, 3.0) },
        Action::drag(at(60.0, 90.0), at(90.0, 120.0)),
        Action::scroll(Direction::Down),
        click(40.0, 80.0),
        Action::Move { at: at(60.0, 90.0) },
    ];
    let mut shown = Vec::new();
    for (action, think) in steps.into_iter().zip([1500, 3000, 500, 3000, 1500]) {
        if thinks {
            sleep(Duration::from_millis(think)).await;
        }
        let before = probed(&mut stage).await["now"].as_f64().unwrap();
        act(&mut stage, action.clone()).await;
        let cost = probed(&mut stage).await["now"].as_f64().unwrap() - before;
        assert_eq!(cost.round(), 1000.0, "{name}, {action:?}");
        let seen = stage.observe().await;
        shown.push(seen.unwrap_or_else(|error| panic!("{name}, {action:?}, thinks: {thinks}: {error}")));
    }
    stage.close().await;
    shown
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn miniwob_pages_look_the_same_however_long_the_policy_thought() {
    let ground = ground_with(|_| {}, vec![miniwob_site()]).await;
    let names = ["click-button", "click-checkboxes", "drag-box", "enter-text", "scroll-text", "use-slider"];
    let mut tasks = miniwob_tasks();
    tasks.retain(|task| names.iter().any(|name| task.start_url.ends_with(&format!("{name}.html"))));
    assert!(tasks.len() >= 4, "{} pages", tasks.len());
    let looks = tasks.into_iter().map(|task| async {
        let name = task.start_url.clone();
        let (quick, slow) =
            tokio::join!(shown_on(&ground, task.clone(), false), shown_on(&ground, task, true));
        for (step, (quick, slow)) in quick.iter().zip(&slow).enumerate() {
            assert!(quick.screenshot.bytes == slow.screenshot.bytes, "{name}, step {step}");
        }
    });
    join_all(looks).await;
    ground.close().await;
}
