//! A folder of hostile pages: each ends in time in the outcome that its first line names, while
//! honest pages of the same browser continue.
//!
//! The first line of a page is its row of the table: `<!-- act; outcomes; seconds: what it does
//! -->`. Several outcomes are listed where the machine's speed decides which comes first.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use furrow_env::{EnvFile, Environment, EnvironmentError, EnvironmentFactory, FileRoot, StaticSite};
use furrow_rollout::*;
use futures::StreamExt;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::fixture::{BrowserFixture, assignment, click, fixture_with, task};

const NEIGHBOURS: usize = 5;

/// A row of the table.
#[derive(Debug, Clone)]
struct AttackPage {
    /// Name of its file below the folder, without the extension.
    name: String,
    act: PageAct,
    want: Vec<String>,
    within: Duration,
}

/// The policy's behaviour on the page.
#[derive(Debug, Clone, Copy)]
enum PageAct {
    Look,
    Click,
    Type,
    /// Clicks, then goes to another page.
    Leave,
    /// Clicks, then goes back.
    Back,
}

impl AttackPage {
    fn read(folder: &Path, file: &Path) -> Option<Self> {
        let text = fs::read(file).unwrap();
        let first = String::from_utf8_lossy(text.split(|byte| *byte == b'\n').next()?).into_owned();
        let name = file.strip_prefix(folder).unwrap().with_extension("").display().to_string();
        let row = first.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
        let (row, _description) = row.split_once(": ").unwrap_or_else(|| panic!("{name}: {row}"));
        let [act, want, within] = row.split("; ").collect::<Vec<_>>()[..] else { panic!("{name}: {row}") };
        let act = match act {
            "look" => PageAct::Look,
            "click" => PageAct::Click,
            "type" => PageAct::Type,
            "leave" => PageAct::Leave,
            "back" => PageAct::Back,
            other => panic!("{name}: there is no act {other}"),
        };
        let want: Vec<String> = want.split('|').map(str::to_owned).collect();
        let known = |outcome: &String| OutcomeName::parse(outcome).is_some();
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
        // Pages whose names begin alike do the same: in this order, pages that flood the same
        // resource do not run together.
        let dealt = (0..7).flat_map(|first| files.iter().skip(first).step_by(7));
        dealt.filter_map(|file| Self::read(&folder, file)).collect()
    }

    fn actions(&self) -> Vec<Action> {
        let press = click(100.0, 100.0);
        match self.act {
            PageAct::Look => vec![Action::Wait { seconds: 1 }],
            PageAct::Click => vec![press, click(300.0, 300.0)],
            PageAct::Type => {
                let into = Some(PagePoint { x: 100.0, y: 100.0 });
                vec![press, Action::Write { into, content: "Kožušček 雪".into(), press_enter: true }]
            }
            PageAct::Leave => vec![press, Action::Goto { url: "http://attack.test/honest.html".into() }],
            PageAct::Back => vec![press, Action::GoBack],
        }
    }

    /// Runs the trajectory as an attempt would, but without policy and coordinator. Returns the
    /// most significant outcome.
    async fn run_attack(&self, fixture: &BrowserFixture) -> AttackResult {
        let mut task = task(&format!("http://attack.test/{}.html", self.name));
        task.observation.format = ImageFormat::Jpeg { quality: 80 };
        let began = Instant::now();
        let mut environment = match fixture.pool.open(&assignment(task)).await {
            Ok(environment) => environment,
            Err(error) => return AttackResult::no_page(began, &error),
        };
        let browser = environment.browser().to_owned();
        let mut outcomes = Vec::new();
        let played = self.play(&mut environment, &mut outcomes).await;
        let error = played.err();
        if let Some(error) = &error {
            let unnamed = || Outcome::with_detail(OutcomeName::InvalidAction, format!("no name: {error}"));
            outcomes.push(error.outcome().unwrap_or_else(unnamed));
        }
        let evidence = environment.evidence().await;
        environment.close().await;
        // The most significant outcome: how it failed, else a side effect of the actions.
        let name = outcomes.iter().rev().map(|outcome| outcome.name).max_by_key(|name| weight(*name));
        let name = name.map_or("ok", OutcomeName::as_str);
        AttackResult { name, took: began.elapsed(), browser, outcomes, has_evidence: evidence.is_some() }
    }

    async fn play(
        &self,
        environment: &mut Box<dyn Environment>,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), EnvironmentError> {
        environment.begin().await?;
        environment.observe().await?;
        for action in self.actions() {
            let outcome = environment.act(&action).await?;
            outcomes.push(environment.settle(outcome).await?);
            match environment.probe().await {
                // An attempt treats this as a task that is not done.
                Ok(_) | Err(EnvironmentError::Failed(_)) => {}
                Err(error) => return Err(error),
            }
            let observation = environment.observe().await?;
            assert!(observation.tabs.len() <= 8 && observation.title.chars().count() <= 256, "{}", self.name);
            for secret in ["root:", "webSocketDebuggerUrl"] {
                assert!(
                    !format!("{:?} {:?}", observation.title, observation.tabs).contains(secret),
                    "{}",
                    self.name
                );
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

/// The result of an attack.
#[derive(Debug)]
struct AttackResult {
    name: &'static str,
    took: Duration,
    browser: String,
    outcomes: Vec<Outcome>,
    has_evidence: bool,
}

impl AttackResult {
    /// The start page did not open.
    fn no_page(began: Instant, error: &EnvironmentError) -> Self {
        let outcomes = vec![Outcome::with_detail(OutcomeName::InvalidAction, format!("no page: {error}"))];
        Self { name: "", took: began.elapsed(), browser: String::new(), outcomes, has_evidence: false }
    }

    fn line(&self, attack: &AttackPage) -> String {
        let evidence = if self.has_evidence { "" } else { ", no evidence" };
        format!("{}: {} after {:.1} s{evidence}", attack.name, self.name, self.took.as_secs_f32())
    }
}

/// An honest page that is used during the attacks.
struct NeighbourPage {
    stop: CancellationToken,
    work: JoinHandle<NeighbourReport>,
}

/// Results of an honest page.
#[derive(Debug, Default)]
struct NeighbourReport {
    turns: u64,
    slowest: Duration,
    harm: Vec<String>,
}

impl NeighbourPage {
    fn spawn(mut environment: Box<dyn Environment>, active: Arc<ActiveAttacks>) -> Self {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let work = tokio::spawn(async move {
            let mut report = NeighbourReport::default();
            while !stopped.is_cancelled() {
                let began = Instant::now();
                if let Err(harm) = Self::turn(&mut environment, report.turns + 1).await {
                    report.harm.push(format!("{harm} while {:?}", active.names()));
                    break;
                }
                report.turns += 1;
                report.slowest = report.slowest.max(began.elapsed());
                active.slowest.fetch_max(began.elapsed().as_millis() as u64, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            environment.close().await;
            report
        });
        Self { stop, work }
    }

    /// Runs one step and checks that the page is unaffected.
    async fn turn(environment: &mut Box<dyn Environment>, turn: u64) -> Result<(), String> {
        let to_text = |error: EnvironmentError| error.to_string();
        let outcome = environment.act(&click(100.0, 100.0)).await.map_err(to_text)?;
        let outcome = environment.settle(outcome).await.map_err(to_text)?;
        if !matches!(outcome.name, OutcomeName::Ok | OutcomeName::NotSettled) {
            return Err(format!("{outcome:?}"));
        }
        let probed = environment.probe().await.map_err(to_text)?.unwrap_or_default();
        let observation = environment.observe().await.map_err(to_text)?;
        if probed != format!("{{\"n\":{turn}}}")
            || (observation.tabs.len(), observation.title.as_str()) != (1, "honest")
        {
            return Err(format!(
                "turn {turn} of {:?} with {:?} reported {probed}",
                observation.title, observation.tabs
            ));
        }
        Ok(())
    }
}

/// The attacks in progress in the browser.
#[derive(Debug, Default)]
struct ActiveAttacks {
    attacks: Mutex<Vec<String>>,
    /// Slowest step of an honest page since the last read, in milliseconds.
    slowest: AtomicU64,
}

impl ActiveAttacks {
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

fn site() -> StaticSite {
    StaticSite { host: "attack.test".into(), root: FileRoot::Folder(folder()) }
}

/// Deadlines that are short enough for a test and long enough for an honest page on a busy machine.
fn short_deadlines(file: &mut EnvFile) {
    file.contexts_per_browser = 30;
    (file.input_millis, file.screenshot_millis, file.navigation_millis, file.settle_cap_millis) =
        (3_500, 4_000, 5_000, 800);
}

/// Runs all attacks, `at_once` at a time, beside honest pages in the same browser; fails if one did
/// not end as expected.
#[expect(clippy::print_stdout, reason = "the result of each attack helps to explain a failure")]
async fn beside_neighbours(fixture: BrowserFixture, attacks: Vec<AttackPage>, at_once: usize) {
    // `FURROW_ATTACK=hang cargo test ...` runs those whose name contains that word.
    let only = std::env::var("FURROW_ATTACK").ok();
    let fixture = Arc::new(fixture);
    let active = Arc::new(ActiveAttacks::default());
    let mut neighbours = Vec::new();
    let mut home = String::new();
    for _ in 0..NEIGHBOURS {
        let honest = assignment(task("http://attack.test/honest.html"));
        let mut environment = fixture.pool.open(&honest).await.unwrap();
        environment.begin().await.unwrap();
        home = environment.browser().to_owned();
        neighbours.push(NeighbourPage::spawn(environment, active.clone()));
    }
    let chosen =
        attacks.into_iter().filter(|attack| only.as_ref().is_none_or(|only| attack.name.contains(only)));
    let met = futures::stream::iter(chosen).map(|attack| {
        let fixture = fixture.clone();
        let active = active.clone();
        async move {
            active.enter(&attack.name);
            let met = attack.run_attack(&fixture).await;
            active.leave(&attack.name);
            let slowest = active.slowest.swap(0, Ordering::SeqCst);
            println!("{met}; the slowest honest page took {slowest} ms", met = met.line(&attack));
            (attack, met)
        }
    });
    let met: Vec<_> = met.buffer_unordered(at_once).collect().await;
    let mut wrong = Vec::new();
    for (attack, met) in &met {
        let is_wanted = attack.want.iter().any(|want| want == met.name);
        // A page that hangs once is stopped and can be observed; one that keeps hanging cannot.
        let has_evidence = met.has_evidence || !attack.name.starts_with("hang_in_click");
        if !is_wanted || !has_evidence || met.took > attack.within || met.browser != home {
            let want = &attack.want;
            let within = attack.within;
            wrong.push(format!("{}, not {want:?} within {within:?}: {:?}", met.line(attack), met.outcomes));
        }
    }
    for neighbour in neighbours {
        neighbour.stop.cancel();
        let NeighbourReport { turns, slowest, harm } =
            neighbour.work.await.expect("the honest page's task ends");
        println!("an honest page made {turns} steps, the slowest in {slowest:?}");
        wrong.extend(harm.into_iter().map(|harm| format!("an honest page was affected: {harm}")));
        if turns == 0 || slowest > Duration::from_secs(10) {
            wrong.push(format!("an honest page made {turns} steps, the slowest in {slowest:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), met.len(), wrong.join("\n"));
    Arc::into_inner(fixture).unwrap().close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_hostile_page_ends_in_its_outcome_beside_honest_pages() {
    let attacks = AttackPage::all("");
    assert!(attacks.len() >= 40, "{} hostile pages", attacks.len());
    let fixture = fixture_with(short_deadlines, vec![site()]).await;
    beside_neighbours(fixture, attacks, 6).await;
    // One after the other: together they would measure the machine.
    greedy_pages_are_ended_alone().await;
}

/// A browser with little memory and few threads: a page that exceeds a limit is killed, and no
/// other page is.
async fn greedy_pages_are_ended_alone() {
    let fixture = fixture_with(
        |file| {
            short_deadlines(file);
            (file.browser_memory_bytes_max, file.browser_threads_max) = (1 << 30, 400);
        },
        vec![site()],
    )
    .await;
    beside_neighbours(fixture, AttackPage::all("greedy"), 1).await;
}
