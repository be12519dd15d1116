//! What a page's own scripts and requests get wrong reaches the author, with file and line, if it
//! is asked for.

use furrow_env::{EnvironmentFactory, SiteServer};
use furrow_rollout::{PageHooks, Task};
use std::sync::Arc;

use crate::fixture::{assignment, config, fixture, task};

const PAGE: &str = "<!doctype html><title>Broken</title>
<link rel=stylesheet href='https://fonts.example.org/css?family=Inter'>
<script src='/broken.js'></script>
<script src='/absent.js'></script>
<script src='http://cdn.example.org/library.js'></script>
<script>
  console.log('a line');
  console.error('no books', 3);
</script>
<p>text</p>";

const SCRIPT: &str = "\n\nconst books = load();\nwindow.furrow = { start: () => 'goal' };\n";

fn broken(start: &str) -> Task {
    let hooks = PageHooks { start: Some(start.to_owned()), ..PageHooks::default() };
    Task { hooks, ..task("http://page.test/index.html") }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_a_page_name_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("index.html"), PAGE).unwrap();
    std::fs::write(folder.path().join("broken.js"), SCRIPT).unwrap();
    let mut config = config(|_| {});
    config.browser.page_errors = true;
    let site = furrow_env::StaticSite {
        host: "page.test".into(),
        root: furrow_env::FileRoot::Folder(folder.path().to_owned()),
    };
    let sites = Arc::new(SiteServer::open(&[site], config.sites).unwrap());
    let pool = furrow_env::ChromiumPool::start(config.browser, sites, config.egress).await.unwrap();

    let mut environment = pool.open(&assignment(broken("furrow.start(1)"))).await.unwrap();
    let error = environment.begin().await.unwrap_err().to_string();
    assert!(error.contains("furrow is not defined"), "{error}");
    let errors = environment.page_errors().await;
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let page = "http://page.test/index.html";
    for want in [
        "http://page.test/broken.js:3: exception: ReferenceError: load is not defined".to_owned(),
        format!("{page}:8: console: no books 3"),
        format!("{page}:4: request: http://page.test/absent.js: "),
        format!(
            "{page}:5: refused: http://cdn.example.org/library.js: refused, because it is not on the task's list"
        ),
        format!(
            "{page}:2: refused: https://fonts.example.org/css?family=Inter: refused, because it is not on the task's list"
        ),
    ] {
        assert!(lines.iter().any(|line| line.starts_with(&want)), "{want:?} is missing in {lines:#?}");
    }
    // The missing script is also one of the wrong type.
    assert_eq!(lines.len(), 6, "{lines:#?}");
    assert_eq!(environment.page_errors().await, [], "each is reported once");
    environment.close().await;
    pool.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_farm_collects_no_errors_of_pages() {
    let fixture = fixture().await;
    let mut environment = fixture.page("<script>console.error('x'); nothing()</script>").await;
    assert_eq!(environment.page_errors().await, []);
    environment.close().await;
    fixture.close().await;
}
