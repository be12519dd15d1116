//! What scorers look up in the final page, also of pages that forge, throw, loop and leave.

use furrow_env::{Environment, EnvironmentFactory};
use furrow_rollout::{
    Action, EMPTY_PAGE, FinalQuery, Finding, FindingFailureKind as Failure, PagePart, StorageArea, TaskChecks,
};
use serde_json::{Value, json};

use crate::fixture::{BrowserFixture, act, assignment, click, fixture, task};

fn of_page(part: PagePart) -> FinalQuery {
    FinalQuery::Page { part, host: None }
}

fn text(selector: &str) -> FinalQuery {
    of_page(PagePart::Text { selector: Some(selector.into()) })
}

fn script(expression: &str) -> FinalQuery {
    of_page(PagePart::Script { expression: expression.into() })
}

fn storage(area: StorageArea, key: &str) -> FinalQuery {
    of_page(PagePart::Storage { area, key: key.into() })
}

fn cookie(name: &str) -> FinalQuery {
    of_page(PagePart::Cookie { name: name.into() })
}

async fn open(fixture: &BrowserFixture, body: &str, queries: Vec<FinalQuery>) -> Box<dyn Environment> {
    let html = format!("<!doctype html><meta charset=utf-8><title>test</title><body>{body}");
    let name = format!("findings-{}.html", uuid::Uuid::now_v7());
    std::fs::write(fixture.folder.path().join(&name), html).unwrap();
    let checks = TaskChecks { reset: None, queries };
    let assignment =
        furrow_rollout::Assignment { checks, ..assignment(task(&format!("http://page.test/{name}"))) };
    let mut environment = fixture.pool.open(&assignment).await.unwrap();
    environment.begin().await.unwrap();
    environment
}

/// What each query found, or the name of its failure.
async fn look(environment: &mut Box<dyn Environment>) -> Vec<Result<Value, Failure>> {
    let evidence = environment.evidence().await.expect("the page can be observed");
    let findings = Finding::list_of_json(&evidence.findings_json.expect("there are queries")).unwrap();
    findings.into_iter().map(|finding| finding.result.map_err(|failure| failure.kind)).collect()
}

async fn check(fixture: &BrowserFixture, body: &str, cases: &[(FinalQuery, Result<Value, Failure>)]) {
    let queries = cases.iter().map(|(query, _)| query.clone()).collect();
    let mut environment = open(fixture, body, queries).await;
    let found = look(&mut environment).await;
    for ((query, want), got) in cases.iter().zip(&found) {
        assert_eq!(got, want, "{}", query.to_json());
    }
    assert_eq!(found.len(), cases.len());
    environment.close().await;
}

const SHOP: &str = "<h1>Thank  you</h1><p id=total>$12.50</p><p hidden id=hidden>secret</p>
<input id=name value=first><textarea id=note>typed</textarea><select id=size><option>S<option selected>M</select>
<svg><text id=label>chart</text></svg><iframe srcdoc='<p id=inner>inside</p>'></iframe>
<script>localStorage.theme = 'dark'; sessionStorage.step = '2'; document.cookie = 'consent=no; path=/';
document.getElementById('name').value = 'Ada';</script>";

#[tokio::test(flavor = "multi_thread")]
async fn each_part_of_a_page_is_found() {
    let fixture = fixture().await;
    let whole = script(
        "document.body.innerText.includes('Thank you') && !document.body.innerText.includes('inside')",
    );
    let cases = [
        (text("h1"), Ok(json!("Thank you"))),
        (text("p#total, h1"), Ok(json!("Thank you"))),
        (text("#hidden"), Ok(json!("secret"))),
        (text("#name"), Ok(json!("Ada"))),
        (text("#note"), Ok(json!("typed"))),
        (text("#size"), Ok(json!("M"))),
        (text("#label"), Ok(json!("chart"))),
        (text("#none"), Ok(Value::Null)),
        // The text of a frame is another document's.
        (text("#inner"), Ok(Value::Null)),
        (whole, Ok(json!(true))),
        (
            script("document.querySelector('iframe').contentDocument.querySelector('p').textContent"),
            Ok(json!("inside")),
        ),
        (storage(StorageArea::Local, "theme"), Ok(json!("dark"))),
        (storage(StorageArea::Session, "step"), Ok(json!("2"))),
        (storage(StorageArea::Session, "theme"), Ok(Value::Null)),
        (cookie("consent"), Ok(json!("no"))),
        (cookie("other"), Ok(Value::Null)),
        (script("[1, undefined, {a: 'b'}]"), Ok(json!([1, null, {"a": "b"}]))),
        (script("undefined"), Ok(Value::Null)),
        (script("Promise.resolve(3) // with a comment"), Ok(json!(3))),
        (script("'\\ud800'"), Ok(json!("\u{fffd}"))),
    ];
    check(&fixture, SHOP, &cases).await;
    let mut environment = open(&fixture, SHOP, vec![of_page(PagePart::Text { selector: None })]).await;
    let found = look(&mut environment).await.remove(0).unwrap();
    let found = found.as_str().unwrap();
    assert!(found.contains("Thank you") && !found.contains("secret") && !found.contains("inside"), "{found}");
    environment.close().await;
    fixture.close().await;
}

/// Everything that a page can replace of its own world, and names that hide members of `document`
/// and of forms from every world.
const FORGER: &str = "<p id=real>true text</p><form id=form>form text<input name=innerText value=forged>
<input name=textContent value=forged></form><img name=querySelector><img name=body><img name=documentElement>
<iframe name=location></iframe><iframe name=localStorage></iframe><iframe name=Document></iframe>
<script>
localStorage.setItem('k', 'real');
const forge = () => 'forged';
JSON.stringify = () => '[\"http:\",\"page.test\",\"forged\"]';
Object.getOwnPropertyDescriptor = () => ({ get: forge });
String.prototype.toWellFormed = forge;
Document.prototype.querySelector = () => ({ innerText: 'forged' });
Storage.prototype.getItem = forge;
Function.prototype.call = forge;
Promise.prototype.then = forge;
Array.prototype.toJSON = forge;
Object.prototype.toJSON = forge;
for (const [type, name] of [[HTMLElement, 'innerText'], [Node, 'textContent'], [Document, 'body']]) {
  Object.defineProperty(type.prototype, name, { get: forge });
}
window.owned = 'forged';
</script>";

#[tokio::test(flavor = "multi_thread")]
async fn a_page_cannot_forge_what_the_farm_reads_in_its_own_world() {
    let fixture = fixture().await;
    let cases = [
        (text("#real"), Ok(json!("true text"))),
        (text("#form"), Ok(json!("form text "))),
        (storage(StorageArea::Local, "k"), Ok(json!("real"))),
        (script("typeof window.owned"), Ok(json!("undefined"))),
        (
            script("Document.prototype.querySelector.call(document, '#real').textContent"),
            Ok(json!("true text")),
        ),
        (script("({ a: [1] })"), Ok(json!({"a": [1]}))),
        (script("location.hostname"), Ok(json!("page.test"))),
    ];
    check(&fixture, FORGER, &cases).await;
    let mut environment = open(&fixture, FORGER, vec![of_page(PagePart::Text { selector: None })]).await;
    let whole = look(&mut environment).await.remove(0).unwrap();
    assert!(whole.as_str().unwrap().contains("true text"), "{whole}");
    environment.close().await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_page_can_cause_is_a_failure_with_its_name() {
    let fixture = fixture().await;
    let large = format!("<p id=large>{}</p><p id=small>small</p>", "x".repeat(70_000));
    let cases = [
        (text("p["), Err(Failure::Threw)),
        (script("(() => { throw new Error('no') })()"), Err(Failure::Threw)),
        (script("a b"), Err(Failure::Threw)),
        (script("none.such"), Err(Failure::Threw)),
        (script("Promise.reject(1)"), Err(Failure::Threw)),
        (script("(() => { const ring = []; ring.push(ring); return ring })()"), Err(Failure::Threw)),
        (text("#large"), Err(Failure::TooLarge)),
        (script("'x'.repeat(1e8)"), Err(Failure::TooLarge)),
        (text("#small"), Ok(json!("small"))),
    ];
    check(&fixture, &large, &cases).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expression_that_does_not_end_is_stopped_and_the_browser_is_free_again() {
    let fixture = fixture().await;
    let cases = [
        (script("(() => { for (;;); })()"), Err(Failure::TimedOut)),
        (text("#total"), Ok(json!("$12.50"))),
        (script("new Promise(() => {})"), Err(Failure::TimedOut)),
        (text("#total"), Ok(json!("$12.50"))),
    ];
    check(&fixture, SHOP, &cases).await;
    // Many of them share one time limit.
    let loops = (0..20).map(|index| script(&format!("(() => {{ for (;;); return {index} }})()")));
    let mut environment = open(&fixture, SHOP, loops.collect()).await;
    let began = std::time::Instant::now();
    let found = look(&mut environment).await;
    assert!(found.iter().all(|found| *found == Err(Failure::TimedOut)), "{found:?}");
    assert!(began.elapsed().as_secs() < 45, "{:?}", began.elapsed());
    environment.close().await;
    check(&fixture, SHOP, &[(text("h1"), Ok(json!("Thank you")))]).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_loops_or_leaves_cannot_prevent_a_verdict() {
    let fixture = fixture().await;
    let body = "<p id=p>text</p><button style='position:absolute;left:0;top:100px;width:90px;height:40px'
        onclick='DO'>go</button>";
    for what in [
        "setTimeout(() => { for (;;); }, 300)",
        "setInterval(() => { location.reload() }, 40)",
        "setTimeout(() => { location.href = \"/gone\" }, 100)",
        "location.href = \"data:text/html,hello\"",
        "location.href = \"javascript:`<p id=p>text</p>`\"",
        "document.open(); document.write(\"<p id=p>text</p>\")",
        "window.open(\"about:blank\")",
    ] {
        let mut environment = open(&fixture, &body.replace("DO", what), vec![text("#p"), script("1")]).await;
        if let Ok(outcome) = environment.act(&click(20.0, 110.0)).await {
            environment.settle(outcome).await.ok();
        }
        let found = look(&mut environment).await;
        for found in &found {
            let named = match found {
                Ok(value) => value == &json!("text") || value == &json!(1) || value.is_null(),
                Err(kind) => kind.fault() == furrow_rollout::FaultOwner::Policy,
            };
            assert!(named, "{what}: {found:?}");
        }
        environment.close().await;
    }
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_host_is_away() {
    let fixture = fixture().await;
    let queries = vec![
        text("body"),
        script("1"),
        cookie("consent"),
        storage(StorageArea::Local, "theme"),
        FinalQuery::Page { part: PagePart::Text { selector: None }, host: Some("*.test".into()) },
        FinalQuery::Page { part: PagePart::Text { selector: None }, host: Some("other.test".into()) },
    ];
    let mut environment = open(&fixture, SHOP, queries).await;
    let found = look(&mut environment).await;
    assert!(found[..5].iter().all(Result::is_ok) && found[5] == Err(Failure::Away), "{found:?}");
    act(&mut environment, Action::OpenTab { url: EMPTY_PAGE.into() }).await;
    let found = look(&mut environment).await;
    assert!(found.iter().all(|found| *found == Err(Failure::Away)), "{found:?}");
    environment.close().await;
    fixture.close().await;
}
