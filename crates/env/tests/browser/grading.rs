//! A site that grades is asked in a page that no policy acted in, about the state that it left.

use std::path::Path;

use furrow_env::{Environment, EnvironmentFactory, FileRoot, StaticSite};
use furrow_rollout::*;
use serde_json::{Value, json};

use crate::fixture::{BrowserFixture, act, assignment, click, fixture_with, task};

/// The page of the site: each button is 30 px high and does what a page, or what was smuggled into
/// it, might do.
const PAGE: &str = r##"<!doctype html><title>site</title>
<style>button, a { position: absolute; left: 10px; width: 200px; height: 20px }</style>
<script>
window.furrow = {
  start: () => { localStorage.furrow = "task 7"; localStorage.state = '{"n":0}'; return "Make it 1."; },
  probe: () => ({ done: true, correct: true }),
  grade: async (begun, ended) => {
    if (ended.furrow !== begun.furrow) return { correct: false, void: "tampered" };
    return { correct: JSON.parse(ended.state).n === 1, begun: begun.state, furrow_graded: false };
  },
};
const set = (n) => { localStorage.state = JSON.stringify({ n }); };
const replaced = () => {
  window.furrow = { grade: () => ({ correct: true }), probe: () => ({ done: true, correct: true }) };
  Storage.prototype.getItem = () => '{"n":1}';
  Object.defineProperty(window, "localStorage", { value: { furrow: "task 7", state: '{"n":1}' } });
  JSON.stringify = () => '{"correct":true}';
  Object.prototype.n = 1;
};
</script>
<button style="top:10px" onclick="set(1)">right</button>
<button style="top:40px" onclick="replaced()">replaced</button>
<button style="top:70px" onclick="localStorage.clear()">cleared</button>
<button style="top:100px" onclick="localStorage.note = 'x'.repeat(100000)">large</button>
<button style="top:130px" onclick="set(1); for (;;);">right, then a hang</button>
<a style="top:160px" href="javascript:set(3-2)">script in an address</a>
<button style="top:190px" onclick="document.body.insertAdjacentHTML('beforeend', '<img src=/no onerror=set(3-2)>')">markup</button>
<button style="top:220px" onclick="const a = document.createElement('script'); a.text = 'set(3-2)'; document.body.append(a)">element</button>
<button style="top:250px" onclick="localStorage.furrow = 'task 8'; set(1)">another task</button>
<button style="top:280px" onclick="set(1); setInterval(() => set(0))">right, then undone on and on</button>
"##;

/// Clicks the button of this index.
fn button(index: u16) -> Action {
    click(20.0, 20.0 + 30.0 * f32::from(index))
}

fn goto(url: &str) -> Action {
    Action::Goto { url: url.into() }
}

async fn graded_site() -> BrowserFixture {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("index.html"), PAGE).unwrap();
    let root = FileRoot::Layers(vec![folder.path().to_owned()]);
    // The server keeps the page in memory from its first request on, and opens the folder before.
    let fixture = fixture_with(|_| {}, vec![StaticSite { host: "graded.test".into(), root }]).await;
    let kept = folder.keep();
    let environment = open(&fixture, PageClock::Real).await;
    environment.close().await;
    std::fs::remove_dir_all(kept).unwrap();
    fixture
}

async fn open(fixture: &BrowserFixture, clock: PageClock) -> Box<dyn Environment> {
    let mut task = task("http://graded.test/");
    task.hooks.start = Some("furrow.start()".into());
    task.hooks.probe = Some("window.furrow.probe()".into());
    task.clock = clock;
    let mut environment = fixture.pool.open(&assignment(task)).await.unwrap();
    assert_eq!(environment.begin().await.unwrap().as_deref(), Some("Make it 1."));
    environment
}

async fn report_after(fixture: &BrowserFixture, clock: PageClock, actions: Vec<Action>) -> Value {
    let mut environment = open(fixture, clock).await;
    for action in actions {
        // A page that hangs is an error of the action; its state is graded all the same.
        if let Ok(outcome) = environment.act(&action).await {
            environment.settle(outcome).await.ok();
        }
        assert!(!matches!(environment.probe().await, Ok(Some(_))), "no page of a graded site ends a task");
    }
    let evidence = environment.evidence().await.expect("evidence");
    let report = serde_json::from_str(&evidence.probe_json.expect("a report")).unwrap();
    environment.close().await;
    report
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_decides_nothing_about_its_own_grade() {
    let fixture = graded_site().await;
    let graded = |correct: bool| json!({"correct": correct, "begun": "{\"n\":0}", "furrow_graded": true});
    let tampered = json!({"correct": false, "void": "tampered", "furrow_graded": true});
    let mut oversized = VoidState::Oversized.report();
    oversized.insert("furrow_graded".into(), json!(true));
    let away = "http://graded.test/nowhere";
    for (name, actions, want) in [
        ("nothing", vec![], graded(false)),
        ("right", vec![button(0)], graded(true)),
        ("replaced", vec![button(1)], graded(false)),
        ("right, then replaced", vec![button(0), button(1)], graded(true)),
        ("cleared", vec![button(2)], tampered.clone()),
        ("large", vec![button(0), button(3)], Value::Object(oversized)),
        ("right, then a hang", vec![button(4)], graded(true)),
        ("a script in an address", vec![button(5)], graded(false)),
        ("a handler in markup", vec![button(6)], graded(false)),
        ("a script element", vec![button(7)], graded(false)),
        ("another task", vec![button(8)], tampered),
        // What was done stands when the policy leaves the site.
        ("right, then a missing page", vec![button(0), goto(away)], graded(true)),
        ("right, then tls", vec![button(0), goto("https://graded.test/")], graded(true)),
        ("right, then an empty page", vec![button(0), goto("about:blank")], graded(true)),
        ("wrong, then tls", vec![goto("https://graded.test/")], graded(false)),
        ("right, then another tab", vec![button(0), Action::OpenTab { url: away.into() }], graded(true)),
    ] {
        let got = report_after(&fixture, PageClock::Real, actions).await;
        assert_eq!(got, want, "{name}");
    }
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_whose_clock_stands_still_is_graded_too() {
    let fixture = graded_site().await;
    for (actions, want) in [
        (vec![button(0)], true),
        (vec![button(0), goto("https://graded.test/")], true),
        (vec![button(0), goto("about:blank")], true),
        (vec![button(9)], false),
    ] {
        let clock = PageClock::Virtual { step_millis: 100 };
        let got = report_after(&fixture, clock, actions.clone()).await;
        assert_eq!(got["correct"], json!(want), "{actions:?}: {got}");
    }
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grading_leaves_no_page_behind() {
    let fixture = graded_site().await;
    let mut environment = open(&fixture, PageClock::Real).await;
    let browser = environment.browser().to_owned();
    act(&mut environment, button(0)).await;
    let before = fixture.pool.open_pages(&browser).await;
    assert!(environment.evidence().await.is_some());
    assert_eq!(fixture.pool.open_pages(&browser).await, before);
    environment.close().await;
    fixture.close().await;
}

/// A site of envs/web, and the task that every write below is for.
async fn code_site() -> BrowserFixture {
    let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../envs/web");
    let root = FileRoot::Layers(vec![web.join("sites/code/www"), web.join("shared")]);
    fixture_with(|_| {}, vec![StaticSite { host: "code.web.test".into(), root }]).await
}

/// The report after each of these scripts ran before a step, with the site's storage in reach as an
/// attacker would have it: an isolated world shares the storage of the page.
async fn report_after_writes(fixture: &BrowserFixture, writes: &[&str]) -> Value {
    let mut task = task("http://code.web.test/");
    task.hooks.start = Some(r#"furrow.start("code-star", "7", "train")"#.into());
    let helpers = "const read = (key) => JSON.parse(localStorage.getItem(key) ?? 'null');
        const write = (key, value) => localStorage.setItem(key, JSON.stringify(value));";
    let cases = writes.iter().map(|script| format!("() => {{ {script} }}"));
    let cases = cases.collect::<Vec<_>>().join(",\n");
    task.hooks.solve = Some(format!("{helpers}\n[{cases}][step](); return 1;"));
    let mut environment = fixture.pool.open(&assignment(task)).await.unwrap();
    let goal = environment.begin().await.unwrap().unwrap();
    for step in 0..writes.len() as u32 {
        environment.hint(&goal, step).await.unwrap();
        act(&mut environment, Action::Wait { seconds: 1 }).await;
        environment.probe().await.unwrap();
    }
    let evidence = environment.evidence().await.unwrap();
    environment.close().await;
    serde_json::from_str(&evidence.probe_json.unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_its_pages_transitions_do_not_lead_to_is_tampered() {
    let fixture = code_site().await;
    // The state as the task wants it, signed in and both repositories starred.
    let solved =
        "const now = read('state'); now.user = 'x'; now.stars = ['a/b', 'c/d']; write('state', now);";
    let journal = |entries: &str| format!("{solved} write('journal', {entries});");
    let forged = journal("[['stars.toggle', { id: 'a/b' }]]");
    let unknown = journal("[['stars are given', {}]]");
    let inherited = journal("[['constructor', {}], ['__proto__', {}], ['toString', {}]]");
    let failing = journal("[['request failed', { request: 'star' }]]");
    for (name, writes) in [
        ("the state alone", vec![solved]),
        ("with a transition that refuses", vec![&forged]),
        ("with an unknown transition", vec![&unknown]),
        ("with inherited names", vec![&inherited]),
        ("with a request that does not fail", vec![&failing]),
        ("the journal is no list", vec!["write('journal', { length: 1 })"]),
        ("the journal is no JSON", vec!["localStorage.setItem('journal', '[')"]),
        ("the state is gone", vec!["localStorage.removeItem('state')"]),
        ("the state is null", vec!["write('state', null)"]),
        ("everything is gone", vec!["localStorage.clear()"]),
        ("another task", vec!["write('furrow', { ...read('furrow'), seed: '8' })"]),
        (
            "the state with a space",
            vec!["localStorage.setItem('state', localStorage.getItem('state') + ' ')"],
        ),
        (
            "a state and its journal come and go",
            vec!["write('journal', [['a', {}], ['b', {}]])", "localStorage.removeItem('journal')"],
        ),
        ("more than a step can do", vec!["write('journal', Array(9).fill(['account.signOut', {}]))"]),
    ] {
        let got = report_after_writes(&fixture, &writes).await;
        assert_eq!((&got["void"], &got["correct"]), (&json!("tampered"), &json!(false)), "{name}: {got}");
    }
    for harmless in ["", "write('journal', [])", "sessionStorage.setItem('x', 1)", "write('other', 1)"] {
        let got = report_after_writes(&fixture, &[harmless]).await;
        assert_eq!((&got["void"], &got["correct"]), (&Value::Null, &json!(false)), "{harmless}: {got}");
    }
    fixture.close().await;
}
