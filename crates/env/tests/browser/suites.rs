//! Each starter page is solved by its own demonstration through real input, and not without any
//! action.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use furrow_env::{Environment, EnvironmentError, EnvironmentFactory, FileRoot, StaticSite};
use furrow_rollout::{Action, PageHooks, PagePoint, ScrollDirection, Task};
use serde_json::Value;

use crate::fixture::{act, assignment, fixture_with, task};

/// A document that a link led to may take longer than `settle_cap_millis` on a busy machine, and
/// has no probe before its script has run.
const DOCUMENT_DEADLINE: Duration = Duration::from_secs(60);

fn starter() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../envs/starter")
}

fn starter_task(line: &str, seed: u64) -> Task {
    let row: Value = serde_json::from_str(line).unwrap();
    let name = row["task_id"].as_str().unwrap();
    let solve = std::fs::read_to_string(starter().join(format!("{name}.solve.js"))).unwrap();
    Task {
        task_id: name.into(),
        seed,
        max_steps: row["max_steps"].as_u64().unwrap() as u32,
        hooks: PageHooks {
            start: Some("furrow.start({seed})".into()),
            probe: Some("furrow.probe()".into()),
            solve: Some(solve),
        },
        ..task(row["start_url"].as_str().unwrap())
    }
}

/// Converts a hint to an action as the policy does, but without its rounding.
fn action(hint: &Value) -> Action {
    let number = |key: &str| hint[key].as_f64().unwrap() as f32;
    let at = || PagePoint { x: number("x"), y: number("y") };
    let text = |key: &str| hint[key].as_str().unwrap().to_owned();
    match hint["action"].as_str().unwrap() {
        "click_element" => Action::click(at()),
        "write_element_abs" => {
            Action::Write { into: Some(at()), content: text("content"), press_enter: true }
        }
        "write" => {
            Action::Write { into: None, content: text("content"), press_enter: hint["press_enter"] == true }
        }
        "scroll" => Action::scroll(ScrollDirection::parse(&text("direction")).unwrap()),
        "drag" => Action::drag(at(), PagePoint { x: number("to_x"), y: number("to_y") }),
        "select_tab" => Action::SelectTab { index: hint["index"].as_u64().unwrap() as u32 },
        "press_key" => Action::press(text("key")),
        "go_back" => Action::GoBack,
        "answer" => Action::Answer { content: text("content") },
        other => panic!("{other}"),
    }
}

/// What the page's probe tells, once its document has one.
async fn state(environment: &mut Box<dyn Environment>) -> Value {
    let began = Instant::now();
    loop {
        match environment.probe().await {
            Ok(state) => return serde_json::from_str(&state.unwrap()).unwrap(),
            Err(EnvironmentError::Failed(why)) if began.elapsed() > DOCUMENT_DEADLINE => panic!("{why}"),
            Err(EnvironmentError::Failed(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_starter_task_is_solved_by_its_demonstration() {
    let site = StaticSite { host: "starter.test".into(), root: FileRoot::Folder(starter()) };
    let fixture = fixture_with(|_| {}, vec![site]).await;
    let tasks = std::fs::read_to_string(starter().join("tasks.jsonl")).unwrap();
    let mut goals = Vec::new();
    for line in tasks.lines() {
        for seed in [3, 11] {
            let task = starter_task(line, seed);
            let name = task.task_id.clone();
            let max_steps = task.max_steps;
            let mut environment = fixture.pool.open(&assignment(task)).await.unwrap();
            let goal = environment.begin().await.unwrap().unwrap();
            assert_eq!(state(&mut environment).await["done"], false, "{name} begins done");
            let mut answer = None;
            for step in 0..max_steps {
                let hint = environment
                    .hint(&goal, step)
                    .await
                    .unwrap_or_else(|error| panic!("{name} {seed}: {error}"))
                    .unwrap();
                let hint: Value = serde_json::from_str(&hint.json).unwrap();
                let action = action(&hint);
                if let Action::Answer { content } = &action {
                    answer = Some(content.clone());
                    break;
                }
                act(&mut environment, action).await;
                if state(&mut environment).await["done"] == true {
                    break;
                }
            }
            let end = state(&mut environment).await;
            let solved = match &answer {
                Some(answer) => end["expected"].as_str() == Some(answer),
                None => end["correct"] == true,
            };
            assert!(solved, "{name} with seed {seed} ({goal}) ended as {end}, answer {answer:?}");
            environment.close().await;
            goals.push(goal);
        }
    }
    assert_eq!(goals.len(), 30, "fifteen tasks, two seeds");
    // The three pages of tiles have few words for positions.
    goals.retain(|goal| !goal.ends_with(" tile."));
    goals.sort();
    goals.dedup();
    assert_eq!(goals.len(), 24, "a goal repeats: {goals:?}");
    fixture.close().await;
}
