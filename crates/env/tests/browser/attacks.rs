//! A folder of hostile pages: each ends in the outcome its first line names, in time, while honest pages of the same browser go on.
//!
//! The first line of a page is its row of the table: `<!-- act; outcomes; seconds: what it does -->`. Several outcomes stand where the
//! machine's pace decides which comes first.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use furrow_env::{EnvFile, Root, Site, Stage, StageError, Stages};
use furrow_rollout::*;
use futures::StreamExt;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::ground::{Ground, assignment, click, ground_with, task};

const NEIGHBOURS: usize = 5;

/// A row of the table.
#[derive(Debug, Clone)]
struct Attack {
    /// Its file below the folder, without the ending.
    name: String,
    act: Act,
    want: Vec<String>,
    within: Duration,
}

/// What the policy does on the page.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// Waits.
    Look,
    /// Clicks twice.
    Click,
    /// Clicks and types.
    Type,
    /// Clicks, then goes to another page.
    Leave,
    /// Clicks, then goes back.
    Back,
}

impl Attack {
    fn read(folder: &Path, file: &Path) -> Option<Self> {
        let text = fs::read(file).unwrap();
        let first = String::from_utf8_lossy(text.split(|byte| *byte == b'\n').next()?).into_owned();
        let name = file.strip_prefix(folder).unwrap().with_extension("").display().to_string();
        let row = first.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
        let (row, _words) = row.split_once(": ").unwrap_or_else(|| panic!("{name}: {row}"));
        let [act, want, within] = row.split("; ").collect::<Vec<_>>()[..] else { panic!("{name}: {row}") };
        let act = match act {
            "look" => Act::Look,
            "click" => Act::Click,
            "type" => Act::Type,
            "leave" => Act::Leave,
            "back" => Act::Back,
            other => panic!("{name}: no act is called {other}"),
        };
        let want: Vec<String> = want.split('|').map(str::to_owned).collect();
        let known = |word: &String| OutcomeName::parse(word).is_some();
        assert!(want.iter().all(known), "{name}: {want:?} are not all outcomes");
        let seconds = within.strip_suffix(" s").and_then(|number| number.parse().ok());
        let within = Duration::from_secs(seconds.unwrap_or_else(|| panic!("{name}: {within}")));
        Some(Self { name, act, want, within })
    }

    /// All rows of a folder, by name.
    fn all(below: &str) -> Vec<Self> {
        let folder = folder();
        let mut files: Vec<_> =
            fs::read_dir(folder.join(below)).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|ending| ending == "html"));
        files.sort();
        // Pages of one name's beginning do alike: in this order those that flood the same thing are not sprung together.
        let dealt = (0..7).flat_map(|first| files.iter().skip(first).step_by(7));
        dealt.filter_map(|file| Self::read(&folder, file)).collect()
    }

    fn actions(&self) -> Vec<Action> {
        let press = click(100.0, 100.0);
        match self.act {
            Act::Look => vec![Action::Wait { seconds: 1 }],
            Act::Click => vec![press, click(300.0, 300.0)],
            Act::Type => {
                let into = Some(PagePoint { x: 100.0, y: 100.0 });
                vec![press, Action::Write { into, content: "Kožušček 雪".into(), press_enter: true }]
            }
            Act::Leave => vec![press, Action::Goto { url: "http://attack.test/honest.html".into() }],
            Act::Back => vec![press, Action::GoBack],
        }
    }

    /// The whole of a trajectory as an attempt has it, but for policy and coordinator. What came of it that is most worth telling.
    async fn met(&self, ground: &Ground) -> Met {
        let mut task = task(&format!("http://attack.test/{}.html", self.name));
        task.observation.format = ImageFormat::Jpeg { quality: 80 };
        let began = Instant::now();
        let mut stage = match ground.pool.open(&assignment(task)).await {
            Ok(stage) => stage,
            Err(error) => return Met::nowhere(began, &error),
        };
        let browser = stage.browser().to_owned();
        let mut outcomes = Vec::new();
        let played = self.play(&mut stage, &mut outcomes).await;
        let error = played.err();
        if let Some(error) = &error {
            let unnamed = || Outcome::told(OutcomeName::InvalidAction, format!("no name: {error}"));
            outcomes.push(error.outcome().unwrap_or_else(unnamed));
        }
        let evidence = stage.evidence().await;
        stage.close().await;
        // What is worth telling: how it failed, else what happened beside the actions.
        let name = outcomes.iter().rev().map(|outcome| outcome.name).max_by_key(|name| weight(*name));
        let name = name.map_or("ok", OutcomeName::as_str);
        Met { name, took: began.elapsed(), browser, outcomes, has_evidence: evidence.is_some() }
    }

    async fn play(&self, stage: &mut Box<dyn Stage>, outcomes: &mut Vec<Outcome>) -> Result<(), StageError> {
        stage.begin().await?;
        stage.observe().await?;
        for action in self.actions() {
            let outcome = stage.act(&action).await?;
            outcomes.push(stage.settle(outcome).await?);
            match stage.probe().await {
                // An attempt takes it that the task is not done.
                Ok(_) | Err(StageError::Failed(_)) => {}
                Err(error) => return Err(error),
            }
            let seen = stage.observe().await?;
            assert!(seen.tabs.len() <= 8 && seen.title.chars().count() <= 256, "{}", self.name);
            for word in ["root:", "webSocketDebuggerUrl"] {
                assert!(!format!("{:?} {:?}", seen.title, seen.tabs).contains(word), "{}", self.name);
            }
        }
        Ok(())
    }
}

fn weight(name: OutcomeName) -> usize {
    use OutcomeName::*;
    let order = [Ok, NotSettled, NoHistory, NavigationFailed, OffList, PopupClosed, DownloadDenied];
    order.iter().position(|other| *other == name).unwrap_or(match name {
        DialogDismissed => 7,
        PageHang | PageCrash | BrowserDead => 9,
        _ => 8,
    })
}

/// What came of an attack.
#[derive(Debug)]
struct Met {
    name: &'static str,
    took: Duration,
    browser: String,
    outcomes: Vec<Outcome>,
    has_evidence: bool,
}

impl Met {
    /// There was not even a page to begin with.
    fn nowhere(began: Instant, error: &StageError) -> Self {
        let outcomes = vec![Outcome::told(OutcomeName::InvalidAction, format!("no page: {error}"))];
        Self { name: "", took: began.elapsed(), browser: String::new(), outcomes, has_evidence: false }
    }

    fn line(&self, attack: &Attack) -> String {
        let evidence = if self.has_evidence { "" } else { ", nothing to see" };
        format!("{}: {} after {:.1} s{evidence}", attack.name, self.name, self.took.as_secs_f32())
    }
}

/// An honest page that is acted on all the while.
struct Neighbour {
    stop: CancellationToken,
    work: JoinHandle<Lived>,
}

/// How it went.
#[derive(Debug, Default)]
struct Lived {
    turns: u64,
    slowest: Duration,
    harm: Vec<String>,
}

impl Neighbour {
    fn move_in(mut stage: Box<dyn Stage>, street: Arc<Street>) -> Self {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let work = tokio::spawn(async move {
            let mut lived = Lived::default();
            while !stopped.is_cancelled() {
                let began = Instant::now();
                if let Err(harm) = Self::turn(&mut stage, lived.turns + 1).await {
                    lived.harm.push(format!("{harm} while {:?}", street.names()));
                    break;
                }
                lived.turns += 1;
                lived.slowest = lived.slowest.max(began.elapsed());
                street.slowest.fetch_max(began.elapsed().as_millis() as u64, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            stage.close().await;
            lived
        });
        Self { stop, work }
    }

    /// A step, and whether everything is as it should be.
    async fn turn(stage: &mut Box<dyn Stage>, turn: u64) -> Result<(), String> {
        let told = |error: StageError| error.to_string();
        let outcome = stage.act(&click(100.0, 100.0)).await.map_err(told)?;
        let outcome = stage.settle(outcome).await.map_err(told)?;
        if !matches!(outcome.name, OutcomeName::Ok | OutcomeName::NotSettled) {
            return Err(format!("{outcome:?}"));
        }
        let probed = stage.probe().await.map_err(told)?.unwrap_or_default();
        let seen = stage.observe().await.map_err(told)?;
        if probed != format!("{{\"n\":{turn}}}") || (seen.tabs.len(), seen.title.as_str()) != (1, "honest") {
            return Err(format!("turn {turn} of {:?} with {:?} said {probed}", seen.title, seen.tabs));
        }
        Ok(())
    }
}

/// What is going on in the browser.
#[derive(Debug, Default)]
struct Street {
    attacks: Mutex<Vec<String>>,
    /// Slowest turn of a neighbour since it was last asked, in milliseconds.
    slowest: AtomicU64,
}

impl Street {
    fn names(&self) -> Vec<String> {
        self.attacks.lock().unwrap().clone()
    }

    fn enter(&self, name: &str) {
        self.attacks.lock().unwrap().push(name.to_owned());
    }

    fn leave(&self, name: &str) {
        self.attacks.lock().unwrap().retain(|other| other != name);
    }
}

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/attacks")
}

fn site() -> Site {
    Site { host: "attack.test".into(), root: Root::Folder(folder()) }
}

/// Deadlines that a test can wait for and an honest page of a busy machine can keep.
fn hurried(file: &mut EnvFile) {
    file.contexts_per_browser = 30;
    (file.input_millis, file.screenshot_millis, file.navigation_millis, file.settle_cap_millis) =
        (3_500, 4_000, 5_000, 800);
}

/// Springs all attacks, so many at once, beside honest pages in the same browser; says what did not end as it should.
#[expect(clippy::print_stdout, reason = "what came of each attack is worth reading where one fails")]
async fn beside_neighbours(ground: Ground, attacks: Vec<Attack>, at_once: usize) {
    // `FURROW_ATTACK=hang cargo test ...` springs those whose name holds that word.
    let only = std::env::var("FURROW_ATTACK").ok();
    let ground = Arc::new(ground);
    let street = Arc::new(Street::default());
    let mut neighbours = Vec::new();
    let mut home = String::new();
    for _ in 0..NEIGHBOURS {
        let honest = assignment(task("http://attack.test/honest.html"));
        let mut stage = ground.pool.open(&honest).await.unwrap();
        stage.begin().await.unwrap();
        home = stage.browser().to_owned();
        neighbours.push(Neighbour::move_in(stage, street.clone()));
    }
    let chosen =
        attacks.into_iter().filter(|attack| only.as_ref().is_none_or(|only| attack.name.contains(only)));
    let met = futures::stream::iter(chosen).map(|attack| {
        let (ground, street) = (ground.clone(), street.clone());
        async move {
            street.enter(&attack.name);
            let met = attack.met(&ground).await;
            street.leave(&attack.name);
            let slowest = street.slowest.swap(0, Ordering::SeqCst);
            println!("{met}; the slowest neighbour {slowest} ms", met = met.line(&attack));
            (attack, met)
        }
    });
    let met: Vec<_> = met.buffer_unordered(at_once).collect().await;
    let mut wrong = Vec::new();
    for (attack, met) in &met {
        let is_wanted = attack.want.iter().any(|want| want == met.name);
        // A page that hangs once is stopped and can be looked at; one that goes on hanging cannot.
        let is_seen = met.has_evidence || !attack.name.starts_with("hang_in_click");
        if !is_wanted || !is_seen || met.took > attack.within || met.browser != home {
            let (want, within) = (&attack.want, attack.within);
            wrong.push(format!("{}, not {want:?} within {within:?}: {:?}", met.line(attack), met.outcomes));
        }
    }
    for neighbour in neighbours {
        neighbour.stop.cancel();
        let Lived { turns, slowest, harm } = neighbour.work.await.expect("a neighbour's own end");
        println!("a neighbour made {turns} turns, the slowest in {slowest:?}");
        wrong.extend(harm.into_iter().map(|harm| format!("a neighbour came to harm: {harm}")));
        if turns == 0 || slowest > Duration::from_secs(10) {
            wrong.push(format!("a neighbour made {turns} turns, the slowest in {slowest:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), met.len(), wrong.join("\n"));
    Arc::into_inner(ground).unwrap().close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_hostile_page_ends_in_its_outcome_beside_honest_pages() {
    let attacks = Attack::all("");
    assert!(attacks.len() >= 40, "{} hostile pages", attacks.len());
    let ground = ground_with(hurried, vec![site()]).await;
    beside_neighbours(ground, attacks, 6).await;
    // One after the other: both at once would measure the machine.
    greedy_pages_are_ended_alone().await;
}

/// A browser with little memory and few threads: what takes too much of either is ended, and nobody else.
async fn greedy_pages_are_ended_alone() {
    let ground = ground_with(
        |file| {
            hurried(file);
            (file.browser_memory_bytes_max, file.browser_threads_max) = (1 << 30, 400);
        },
        vec![site()],
    )
    .await;
    beside_neighbours(ground, Attack::all("greedy"), 1).await;
}
