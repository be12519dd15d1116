//! The shared kit of the offline sites, in the browser it is made for.

use std::path::PathBuf;

use furrow_env::{EnvironmentFactory, FileRoot, StaticSite};
use serde_json::{Value, json};

use crate::fixture::{assignment, fixture_with, state, task};

/// Values of a query parameter, and whether each is a page of the site.
const ADDRESSES: &[(&str, bool)] = &[
    ("/", true),
    ("/account/", true),
    ("/order/?number=HP-1#top", true),
    ("/a//b", true),
    ("/..//elsewhere.test/", true),
    ("/?next=https://elsewhere.test/", true),
    ("/a b", true),
    ("/javascript:alert(1)", true),
    ("/%2F/elsewhere.test", true),
    ("", false),
    ("a", false),
    ("?q", false),
    ("#x", false),
    (" /", false),
    ("//elsewhere.test/", false),
    ("///elsewhere.test/", false),
    ("/\\elsewhere.test/", false),
    ("\\\\elsewhere.test/", false),
    ("\\/elsewhere.test/", false),
    ("/a\\b", false),
    ("/\t/elsewhere.test/", false),
    ("/\n/elsewhere.test/", false),
    ("/\r\n/elsewhere.test/", false),
    ("\t/", false),
    ("/\u{0}", false),
    ("/a\u{1f}", false),
    ("/\u{7f}", false),
    ("/\u{85}/", false),
    ("/\u{2028}/elsewhere.test", false),
    ("javascript:void(0)", false),
    ("JavaScript:void(0)", false),
    ("java\nscript:void(0)", false),
    ("\u{1}javascript:void(0)", false),
    (" javascript:void(0)", false),
    ("data:text/html,x", false),
    ("blob:http://kit.test/x", false),
    ("http://kit.test/", false),
    ("http:/a", false),
    ("https:elsewhere.test", false),
    ("about:blank", false),
];

/// Values of attributes, and whether each is allowed.
const ATTRIBUTES: &[(&str, &str, bool)] = &[
    ("href", "/page/?id=1", true),
    ("href", "#reviews", true),
    ("href", "javascript:void(0)", false),
    ("HREF", "javascript:void(0)", false),
    ("href", "https://elsewhere.test/", false),
    ("href", "#x:y", false),
    ("src", "/page/?framed=1", true),
    ("src", "//elsewhere.test/x.js", false),
    ("action", "javascript:void(0)", false),
    ("formaction", "javascript:void(0)", false),
    ("href", "blob:https://elsewhere.test/x", false),
    ("title", "javascript: what it is", true),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_a_site_lead_to_pages_of_the_site() {
    let shared = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../envs/web/shared");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("index.html"), "<!doctype html><title>kit</title><body>").unwrap();
    let root = FileRoot::Layers(vec![folder.path().to_owned(), shared]);
    let fixture = fixture_with(|_| {}, vec![StaticSite { host: "kit.test".into(), root }]).await;
    let mut task = task("http://kit.test/");
    let texts: Vec<&str> = ADDRESSES.iter().map(|(text, _)| *text).collect();
    let attributes: Vec<_> = ATTRIBUTES.iter().map(|(name, value, _)| json!([name, value])).collect();
    task.hooks.probe = Some(format!(
        "(async () => {{
            const {{ ownPath }} = await import('/kit/address.js'), {{ h }} = await import('/kit/dom.js');
            const made = (name, value) => {{ try {{ h('a', {{ [name]: value }}); return true }} catch {{ return false }} }};
            const blob = URL.createObjectURL(new Blob(['x']));
            return {{
                paths: {}.map((text) => ownPath(text, '/else/')),
                others: [undefined, null, 7, {{}}, ['/']].map((value) => ownPath(value)),
                made: {}.map(([name, value]) => made(name, value)),
                blob: made('href', blob),
            }};
        }})()",
        json!(texts),
        json!(attributes)
    ));
    let mut environment = fixture.pool.open(&assignment(task)).await.unwrap();
    environment.begin().await.unwrap();
    let reported = state(&mut environment).await;
    for ((text, is_own), got) in ADDRESSES.iter().zip(reported["paths"].as_array().unwrap()) {
        assert_eq!(got, if *is_own { text } else { "/else/" }, "{text:?}");
    }
    assert_eq!(reported["others"], json!(["/", "/", "/", "/", "/"]));
    for ((name, value, is_made), got) in ATTRIBUTES.iter().zip(reported["made"].as_array().unwrap()) {
        assert_eq!(got, &Value::Bool(*is_made), "{name} {value:?}");
    }
    assert_eq!(reported["blob"], true, "a file that the page made");
    environment.close().await;
    fixture.close().await;
}
