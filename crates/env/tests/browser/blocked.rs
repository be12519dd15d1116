//! Fake pages with which sites refuse a browser, and pages that only look similar, in real
//! Chromium.

use std::time::{Duration, Instant};

use furrow_env::{EnvironmentError, EnvironmentFactory};
use furrow_rollout::{Action, EndKind};

use crate::fixture::{BrowserFixture, assignment, at, fixture_with, task};

const ARTICLE: &str =
    "<h1>News</h1><p>Are you a robot? Sites ask this more and more often, and people are tired of it.</p>";

fn long(text: &str) -> String {
    format!("{text}{}", "<p>Another paragraph of an article, which goes on for quite a while.</p>".repeat(60))
}

fn wall(inner: &str) -> String {
    let style = "position:fixed;inset:0;background:#222;color:#fff;z-index:9;padding:100px";
    format!("{}<div style='{style}'>{inner}</div>", long(ARTICLE))
}

/// Opens a page and returns how it was refused, if it was.
async fn begun(fixture: &BrowserFixture, name: usize, body: &str) -> Option<EnvironmentError> {
    let file = format!("blocked-{name}.html");
    let html = format!("<!doctype html><meta charset=utf-8><title>Site</title><body>{body}");
    std::fs::write(fixture.folder.path().join(&file), html).unwrap();
    let mut environment =
        fixture.pool.open(&assignment(task(&format!("http://page.test/{file}")))).await.unwrap();
    let error = environment.begin().await.err();
    environment.close().await;
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_distinguished_from_pages() {
    let timeout_millis = 200;
    let fixture = fixture_with(
        |file| (file.blocked_pages, file.blocked_timeout_millis) = ("all".into(), timeout_millis),
        vec![],
    )
    .await;
    let refusals = [
        "<h2>One more step</h2><div class='g-recaptcha' style='width:304px;height:78px;background:#eee'></div>".to_owned(),
        "<iframe src='http://newassets.hcaptcha.com/x' width=300 height=80></iframe>".to_owned(),
        "<div class='cf-turnstile' style='width:300px;height:65px'>Wait</div>".to_owned(),
        "<h1>Just a moment</h1><p>Checking if the site connection is secure</p>".to_owned(),
        "<h4>Enter the characters you see below</h4><form action='/errors/validateCaptcha'><img src='/captcha/x.jpg' width=200 height=70><input></form>".to_owned(),
        "<p>Our systems have detected unusual traffic from your computer network.</p>".to_owned(),
        "<h1>Access Denied</h1><p>You don't have permission to access this page.</p>".to_owned(),
        "<div id='px-captcha' style='width:300px;height:80px'></div><p>Press &amp; Hold</p>".to_owned(),
        wall("<p>We value your privacy. Consent to cookies in order to read this site.</p>"),
        wall("<p>You need a subscription.</p><button disabled>Continue</button>"),
    ];
    for (name, body) in refusals.iter().enumerate() {
        let error = begun(&fixture, name, body).await;
        assert!(matches!(error, Some(EnvironmentError::Blocked(_))), "{body}: {error:?}");
        assert_eq!(error.unwrap().end(), EndKind::Blocked);
    }
    let pages = [
        "<h1>Hello</h1><p>A small page.</p>".to_owned(),
        long(ARTICLE),
        format!("{}<div class='g-recaptcha' style='width:304px;height:78px'></div>", long("<h1>Shop</h1>")),
        "<h1>Sign up</h1><input placeholder=name><input placeholder=mail><input type=password><div class='h-captcha' style='width:300px;height:78px'></div>".to_owned(),
        "<h1>Shop</h1><div class='g-recaptcha' data-size=invisible style='width:256px;height:60px'></div>".to_owned(),
        "<h1>Shop</h1><div class='g-recaptcha' style='display:none'></div>".to_owned(),
        wall("<p>We value your privacy.</p><button>Accept cookies</button>"),
        wall("<p>We value your privacy.</p><span onclick='1'>Reject</span>"),
        wall("<p>We value your privacy.</p><span style='cursor:pointer'>Reject</span>"),
        wall("<p>Loading…</p>"),
        format!("{}<div style='position:fixed;bottom:0;left:0;right:0;height:60px'>We use cookies</div>", long(ARTICLE)),
        format!("{}<div style='position:fixed;inset:0;background:#0008'></div><div style='position:fixed;inset:150px;background:#fff'>Cookies? <button>Yes</button></div>", long(ARTICLE)),
    ];
    for (name, body) in pages.iter().enumerate() {
        assert_eq!(begun(&fixture, 100 + name, body).await, None, "{body}");
    }
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_after_an_action_ends_it_and_one_that_goes_by_itself_does_not() {
    let fixture = fixture_with(
        |file| (file.blocked_pages, file.blocked_timeout_millis) = ("all".into(), 4_000),
        vec![],
    )
    .await;
    let button = |script: &str| {
        format!(
            "<button style='position:absolute;inset:0;width:500px;height:500px' onclick=\"{script}\">go</button>"
        )
    };
    let denied = button("document.body.innerHTML = '<h1>Access denied</h1>'");
    let mut environment = fixture.page(&denied).await;
    let began = Instant::now();
    let outcome = environment.act(&Action::click(at(100.0, 100.0))).await.unwrap();
    let error = environment.settle(outcome).await.unwrap_err();
    assert!(matches!(&error, EnvironmentError::Blocked(why) if why.contains("access denied")), "{error:?}");
    assert!(
        began.elapsed() >= Duration::from_secs(4),
        "the refusal ended the trajectory before its time was over"
    );
    environment.close().await;

    let passing = button(
        "document.body.innerHTML = '<h1>Checking your browser</h1>'; setTimeout(() => document.body.innerHTML = '<h1>Welcome</h1>', 900)",
    );
    let mut environment = fixture.page(&passing).await;
    let outcome = environment.act(&Action::click(at(100.0, 100.0))).await.unwrap();
    environment.settle(outcome).await.unwrap();
    environment.close().await;
    fixture.close().await;

    // The farm's own pages are only inspected if the job asks for it.
    let fixture = fixture_with(|_| {}, vec![]).await;
    assert_eq!(begun(&fixture, 0, "<h1>Access Denied</h1>").await, None);
    fixture.close().await;
}
