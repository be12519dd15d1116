//! A data set of a million trajectories in a real Chromium: opened, scrolled, sorted, filtered,
//! searched, and one of them read.
//!
//! Times are printed and not asserted: docs/DASHBOARD.md has those of a release build, which the
//! ignored test measures.
#![expect(clippy::print_stdout, reason = "the times are its output")]

use std::path::Path;
use std::time::{Duration, Instant};

use chromiumoxide::Page;
use furrow_analysis::view::Sort;
use furrow_records::fixtures::{self, RowBlock, TrajectoryFixture};
use furrow_rollout::{EndKind, Id, PolicyKind, Size};
use serde_json::Value;

use crate::harness::{TestBrowser, TestDashboard, keep_picture, script, wait_for};
use crate::keys::{press, write};
use crate::pages::{WATCH, assert_no_errors, click, open};

/// Groups of a block, of four trajectories each.
const GROUPS: u64 = 250;
/// Trajectories of a shard.
const SHARD: u64 = 100_000;
/// Most rows of an answer, by the API's limit.
const ANSWER_MAX: usize = 500;
/// Most nodes of the whole document: a table with 30 visible rows has about 600.
const NODES_MAX: usize = 2_500;

/// 1,000 trajectories of 23 kinds; without steps if those would take longer to read than everything
/// else.
fn block(has_steps: bool) -> RowBlock {
    let plot = |mix: u32| TrajectoryFixture {
        steps: 1 + mix % 3,
        end: [EndKind::Answered, EndKind::MaxSteps, EndKind::BrowserDead, EndKind::Unparsable]
            [mix as usize % 4],
        reward: (mix % 8) as f32 / 8.0,
        kind: if mix % 5 == 4 { PolicyKind::Random } else { PolicyKind::Model },
        size: Size::new(4, 4),
        ..TrajectoryFixture::default()
    };
    let plots: Vec<_> = (0..23).map(|mix| plot(mix).trajectory()).collect();
    let attempt = |group: u64, sample: u32| {
        let mix = (group * 7 + u64::from(sample) * 13) as usize % plots.len();
        let (mut record, steps) = plots[mix].clone();
        record.ancestry.sample_index = sample;
        record.ancestry.group_id = Id::nth(&record.ancestry.run_id.clone(), group);
        record.ancestry.trajectory_id = Id::attempt(&record.ancestry.group_id, sample, 0);
        (record.task.task_id, record.task.seed) = (format!("task-{:03}", group % 200), group);
        record.task.suite = if group.is_multiple_of(3) { "mini" } else { "web" }.into();
        record.ended_at_micros += (group * 4 + u64::from(sample)) as i64 * 50_000;
        record.gpu_micros += u64::from(sample) * 1_000;
        record.staleness = record.staleness.map(|_| mix as i32 % 4);
        (record, if has_steps { steps } else { Vec::new() })
    };
    let made: Vec<_> = (0..GROUPS)
        .flat_map(|group| (0..4).map(move |sample| attempt(group, sample)).collect::<Vec<_>>())
        .collect();
    let records: Vec<_> = made.iter().map(|(record, _)| record.clone()).collect();
    RowBlock::new(&made, &records.chunks(4).map(fixtures::group).collect::<Vec<_>>())
}

/// Resident memory of this process in MB: the dashboard and the test, without the browser.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<f64>().unwrap() / 1e3
}

/// Records the number of rows of each answer on the page.
const ANSWERS: &str = r"
    window.answers = [];
    const json = Response.prototype.json;
    Response.prototype.json = async function () {
        const answer = await json.call(this);
        if (Array.isArray(answer?.rows)) answers.push(answer.rows.length);
        return answer;
    };
";

/// The text of the status line, without the thin spaces of its numbers.
const STATUS: &str = "document.querySelector('main [role=status]')?.textContent.replaceAll('\\u202f', '')";

/// A page with many rows, and times of operations.
struct TableProbe<'a> {
    page: &'a Page,
    dashboard: &'a TestDashboard,
    rows: u64,
}

impl TableProbe<'_> {
    /// Waits for a condition, prints the time, and checks that the browser holds only the visible
    /// rows.
    async fn until(&self, what: &str, began: Instant, condition: &str) {
        wait_for(self.page, condition).await;
        println!("{what}: {:.0?}", began.elapsed());
        let (lines, nodes): (usize, usize) = script(self.page, "[document.querySelectorAll('.grid-rows .grid-row').length, document.querySelectorAll('*').length]").await;
        assert!(lines <= 60 && nodes <= NODES_MAX, "{what}: {lines} rows, {nodes} nodes");
    }

    /// A row that is present and loaded.
    fn row_is_loaded(row: u64) -> String {
        format!("document.querySelector('#row-{row} .middle')?.textContent.startsWith('test-g')")
    }

    /// Drags the scroll bar to a share of its way and checks the rows there.
    async fn scroll_to(&self, share: f64) {
        let began = Instant::now();
        let first: u64 = script(self.page, &format!("(() => {{ const bar = document.querySelector('.grid-scroll'); bar.scrollTop = {share} * (bar.scrollHeight - bar.clientHeight); \
            return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(Number(document.querySelector('.grid-rows .grid-row').id.slice(4)))))); }})()")).await;
        let want = share * self.rows as f64;
        assert!((first as f64 - want).abs() < 60.0, "row {first} at {share} of {}", self.rows);
        self.until(&format!("scrolled to {share}"), began, &Self::row_is_loaded(first)).await;
    }

    async fn key(&self, key: &str, row: u64) {
        let began = Instant::now();
        press(self.page, &[key]).await;
        let condition = format!("document.querySelector('#row-{row}.at') && ({})", Self::row_is_loaded(row));
        self.until(key, began, &condition).await;
    }

    /// Checks that the first rows are those of the API.
    async fn first_rows(&self, query: &str) -> String {
        let answer = self.dashboard.get(&format!("/api/trajectories?{query}&limit=3")).await;
        let ids: Vec<&str> = answer["rows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["trajectory_id"].as_str().unwrap())
            .collect();
        assert_eq!(ids.len(), 3);
        format!(
            "{ids:?}.every((id, row) => document.querySelector(`#row-${{row}}`)?.textContent.includes(id))"
        )
    }

    /// The text of the status line that counts all trajectories.
    fn label(&self) -> String {
        format!("{} trajectories", self.rows)
    }

    async fn until_all_are_counted(&self) {
        let label = self.label();
        let deadline = Instant::now() + Duration::from_secs(300);
        while !script::<bool>(self.page, &format!("{STATUS} === {label:?}")).await {
            assert!(Instant::now() < deadline, "{:?}", script::<Option<String>>(self.page, STATUS).await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// By the scroll bar and by keys, through a grid that has the focus from here on.
    async fn move_through_rows(&self) {
        for share in [0.5, 1.0, 0.25] {
            self.scroll_to(share).await;
        }
        self.focus().await;
        let rows = self.rows;
        self.key("Home", 0).await;
        self.key("End", rows - 1).await;
        let fits: u64 =
            script(self.page, "Math.floor(document.querySelector('.grid-scroll').clientHeight / 40)").await;
        self.key("PageUp", rows - 1 - fits).await;
        self.key("ArrowUp", rows - 2 - fits).await;
        self.key("Home", 0).await;
        self.key("PageDown", fits).await;
        self.key("ArrowDown", fits + 1).await;
    }

    async fn focus(&self) {
        script::<bool>(self.page, "document.querySelector('[role=grid]').focus() ?? true").await;
    }

    /// By every heading, in both directions where they differ.
    async fn sort_by_every_heading(&self) {
        let sorts: Vec<String> = script(
            self.page,
            "[...document.querySelectorAll('.grid-head button')].map((button) => button.id.slice(5))",
        )
        .await;
        assert!(sorts.len() >= 7, "{sorts:?}");
        for sort in &sorts {
            let began = Instant::now();
            click(self.page, &format!("#sort-{sort}")).await;
            let order =
                script::<String>(self.page, "new URLSearchParams(location.search).get('order')").await;
            let condition = self.first_rows(&format!("sort={sort}&order={order}")).await;
            self.until(&format!("sorted by {sort}, {order}"), began, &condition).await;
        }
        for sort in Sort::ALL.iter().filter(|sort| sorts.iter().any(|known| known == sort.as_str())) {
            is_in_order(self.dashboard, *sort, true, self.rows / 2).await;
        }
        is_in_order(self.dashboard, Sort::EndedAt, false, self.rows / 3).await;
    }

    async fn clear_filters(&self) {
        click(self.page, ".filters > button").await;
        wait_for(self.page, &format!("{STATUS} === {:?}", self.label())).await;
    }

    /// By a field's value, and by text.
    async fn filter_and_find(&self) {
        let rows = self.rows;
        self.clear_filters().await;
        let began = Instant::now();
        script::<bool>(self.page, "(() => { const end = document.querySelector('select[name=end]'); end.value = 'browser_dead'; return end.dispatchEvent(new Event('change')); })()").await;
        self.until("filtered by end", began, &format!("{STATUS}.includes(' of {rows}') && document.querySelector('#row-0')?.textContent.includes('browser dead')")).await;
        self.clear_filters().await;
        click(self.page, "#find").await;
        let began = Instant::now();
        let last = format!("g{:06}", rows / 4 - 1);
        write(self.page, &last).await;
        self.until("found by its id", began, &format!("{STATUS} === '4 of {rows} trajectories'")).await;
        self.clear_filters().await;
    }

    /// The first and the very last row open their trajectories, and going back selects them.
    async fn open_first_and_last(&self) {
        self.focus().await;
        for (key, row) in [("Home", 0), ("End", self.rows - 1)] {
            self.key(key, row).await;
            let id: String =
                script(self.page, &format!("document.querySelector('#row-{row} code').textContent")).await;
            let began = Instant::now();
            press(self.page, &["Enter"]).await;
            wait_for(self.page, &format!("document.querySelector('main h1')?.textContent === {id:?}")).await;
            println!("opened {id}: {:.0?}", began.elapsed());
            if key == "Home" {
                wait_for(self.page, "document.querySelector('article.step img')?.naturalWidth === 4").await;
            }
            let began = Instant::now();
            script::<bool>(self.page, "history.back() ?? true").await;
            self.until(
                "and back",
                began,
                &format!("document.querySelector('#row-{row}.at')?.textContent.includes({id:?})"),
            )
            .await;
        }
    }
}

/// Checks that rows of the sorted table are in order, and that those without a value come last.
async fn is_in_order(dashboard: &TestDashboard, sort: Sort, descending: bool, offset: u64) {
    let order = if descending { "desc" } else { "asc" };
    let column = sort.as_str();
    let path = format!("/api/trajectories?sort={column}&order={order}&offset={offset}&limit=500");
    let answer = dashboard.get(&path).await;
    let rows = answer["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 500, "{path}");
    let key = |row: &Value| match &row[column] {
        Value::String(text) => (text.clone(), 0.0),
        value => (String::new(), value.as_f64().unwrap_or(f64::NAN)),
    };
    let keys: Vec<_> = rows.iter().map(key).filter(|(_, number)| !number.is_nan()).collect();
    let sorted = |pair: &[(String, f64)]| if descending { pair[0] >= pair[1] } else { pair[0] <= pair[1] };
    // Tasks are sorted by suite first.
    assert!(sort == Sort::TaskId || keys.windows(2).all(sorted), "{path}: {keys:?}");
}

fn write_shards(data: &Path, rows: u64, has_all_steps: bool) {
    let whole = block(true);
    let bare = block(false);
    for shard in 0..rows / SHARD {
        let block = if has_all_steps { &whole } else { &bare };
        block.commit(data, &format!("s{shard}"), shard * 100..(shard + 1) * 100 - 1);
        // The last thousand have their steps in either case.
        whole.commit(data, &format!("t{shard}"), (shard + 1) * 100 - 1..(shard + 1) * 100);
    }
}

/// Most rows of these data sets have no steps, and so no pictures.
async fn forget_missing_pictures(page: &Page) {
    script::<bool>(
        page,
        "(window.wrong = window.wrong.filter((what) => !what.includes('/screenshot/')), true)",
    )
    .await;
}

async fn look_through(rows: u64, has_all_steps: bool) {
    let dir = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let data = dir.path().join("data");
    // On its own thread: tokio interrupts a task that never yields, and a manifest of many commits
    // is read at once.
    tokio::task::spawn_blocking(move || write_shards(&data, rows, has_all_steps)).await.unwrap();
    println!("{rows} trajectories written: {:.1?}", began.elapsed());

    let chrome = TestBrowser::start().await;
    let began = Instant::now();
    let before = resident();
    let dashboard = TestDashboard::serve(dir, None).await;
    let page = chrome.open("about:blank").await;
    page.evaluate_on_new_document(format!("{WATCH}{ANSWERS}")).await.unwrap();
    page.goto(dashboard.url("/trajectories")).await.unwrap();
    let look = TableProbe { page: &page, dashboard: &dashboard, rows };
    look.until_all_are_counted().await;
    look.until("read and shown", began, &TableProbe::row_is_loaded(0)).await;
    dashboard.wait_until(|head| head["step_files_left"] == 0).await;
    println!("steps summed up: {:.1?}; memory {:.0} MB, {before:.0} MB before", began.elapsed(), resident());
    keep_picture(&page, "trajectories-many").await;

    look.move_through_rows().await;
    look.sort_by_every_heading().await;
    look.filter_and_find().await;
    look.open_first_and_last().await;
    look_at_other_pages(&chrome, &dashboard).await;
    forget_missing_pictures(&page).await;
    assert_no_errors(&page).await;
    let answers: Vec<usize> = script(&page, "answers").await;
    assert!(answers.len() > 20 && answers.iter().all(|rows| *rows <= ANSWER_MAX), "{answers:?}");
    println!(
        "{} answers of at most {} rows; memory {:.0} MB",
        answers.len(),
        answers.iter().max().unwrap(),
        resident()
    );
    chrome.close().await;
    dashboard.close().await;
}

/// The other pages cover all trajectories.
async fn look_at_other_pages(chrome: &TestBrowser, dashboard: &TestDashboard) {
    for (path, text) in [("/", "Failures by kind"), ("/learning", "By policy version")] {
        let began = Instant::now();
        let page = open(chrome, dashboard, path).await;
        wait_for(&page, &format!("document.querySelector('main').textContent.includes({text:?})")).await;
        println!("{path}: {:.0?}", began.elapsed());
        assert_no_errors(&page).await;
        page.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_trajectories_are_looked_through() {
    look_through(100_000, false).await;
}

/// `cargo test --release -p furrow-dashboard --test pages -- --ignored --nocapture a_million`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a debug build takes minutes to read a million rows"]
async fn a_million_trajectories_are_looked_through() {
    look_through(1_000_000, true).await;
}
