//! One trajectory as a self-contained HTML file: a strip of thumbnails, the picture of a step with
//! its target marked, what the policy thought and did beside it.
//!
//! Every text of a page or a model enters through [`HtmlElement::text`]. The file's own policy
//! allows no request, and one script: the one whose hash it names. Without scripts the steps follow
//! one another.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use furrow_rollout::{
    Action, Evidence, ImageFormat, PagePoint, PolicyReply, Score, Screenshot, StepRecord, TimeCause,
    TimeSplit, TrajectoryRecord, TrajectoryStatus,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::format::spaced_name;
use crate::markup::{HtmlElement, element};

const STYLE: [&str; 2] = [include_str!("../pages/palette.css"), include_str!("../pages/trajectory_file.css")];
const SCRIPT: &str = include_str!("../pages/trajectory_file.js");

/// Marks in a picture whose longer side has so many radii.
const RADII: f32 = 45.0;

/// The file. The same trajectory gives the same text.
pub fn trajectory_html(record: &TrajectoryRecord, steps: &[StepRecord]) -> String {
    let script = BASE64.encode(Sha256::digest(SCRIPT));
    let policy = format!(
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{script}'; \
         base-uri 'none'; form-action 'none'"
    );
    let head = element("head")
        .with(element("meta").set("charset", "utf-8"))
        .with(element("meta").set("http-equiv", "Content-Security-Policy").set("content", policy))
        .with(element("meta").set("name", "viewport").set("content", "width=device-width, initial-scale=1"))
        .with(element("meta").set("name", "color-scheme").set("content", "light dark"))
        .with(element("title").text(format!("Trajectory {}", record.ancestry.trajectory_id)))
        .with(element("style").raw(&STYLE.concat()));
    let main = element("main")
        .with(heading(record))
        .with(element("nav").set("id", "strip").set("aria-label", "Steps; the arrow keys move between them"))
        .with_all(steps.iter().map(|step| step_article(step, steps.len())))
        .with(end_article(record));
    let body = element("body").with(main).with(element("script").set("type", "module").raw(SCRIPT));
    format!("<!doctype html>\n{}\n", element("html").set("lang", "en").with(head).with(body).written())
}

fn heading(record: &TrajectoryRecord) -> HtmlElement {
    let task = &record.task;
    let origin = format!(
        "{}/{} ({}) · {} · {}",
        task.suite,
        task.task_id,
        task.split.as_str(),
        record.policy_kind.as_str(),
        record.ancestry.trajectory_id,
    );
    element("header")
        .with(element("h1").text(&record.ending.goal))
        .with(element("p").set("class", "note").text(origin))
        .with(verdict(record))
}

/// How it ended, the reward and whether the task was solved.
fn verdict(record: &TrajectoryRecord) -> HtmlElement {
    let is_scored = record.status == TrajectoryStatus::Scored;
    let score = record.score.as_ref();
    let solved = match score.and_then(|score| score.success) {
        Some(true) => tag("good", "solved"),
        Some(false) => tag("bad", "not solved"),
        None => tag("", if is_scored { "no verdict on success" } else { "not scored" }),
    };
    let reward = score.and_then(|score| score.reward);
    let reward = reward.map_or("no reward".to_owned(), |reward| format!("reward {reward}"));
    element("p")
        .with(solved)
        .text(" ")
        .with(tag("", &reward))
        .text(" ")
        .with(tag("", &spaced_name(record.ending.end.as_str())))
}

fn tag(kind: &str, text: &str) -> HtmlElement {
    element("span").set("class", format!("tag {kind}")).text(text)
}

fn step_article(step: &StepRecord, count: usize) -> HtmlElement {
    let number = step.step + 1;
    let observation = &step.observation;
    let outcome = step.outcome.name.as_str();
    let is_good = matches!(outcome, "ok" | "answered" | "option_chosen");
    let heading = element("h2")
        .text(format!("Step {number} of {count} "))
        .with(tag(if is_good { "good" } else { "bad" }, &spaced_name(outcome)));
    let mut account = element("div").with(heading);
    if let Some(thought) = thought(&step.reply.raw_text) {
        account = account
            .with(element("h3").text("Thought"))
            .with(element("p").set("class", "thought").text(thought));
    }
    account = account
        .with(element("h3").text("Action"))
        .with(element("p").set("class", "action").text(action_text(&step.reply)));
    if !step.outcome.detail.is_empty() {
        account = account.with(element("p").text(&step.outcome.detail));
    }
    account = account
        .with(folded("Reply as written", element("pre").text(&step.reply.raw_text)))
        .with(folded("Facts", facts(&step_facts(step))));
    let alt = format!("Screenshot before step {number}: {}", observation.title);
    let shot = shot(&observation.screenshot, &alt, step.reply.action.as_ref().ok());
    article(&format!("step-{number}"), &number.to_string(), &format!("Step {number}"))
        .with(shot.with(caption(&observation.title, &observation.url)))
        .with(account)
}

/// The last page, and what the scorer made of it.
fn end_article(record: &TrajectoryRecord) -> HtmlElement {
    let ending = &record.ending;
    let mut account = element("div").with(element("h2").text("The end")).with(verdict(record));
    if !ending.reason.is_empty() {
        account = account.with(element("p").text(&ending.reason));
    }
    let evidence = ending.evidence.as_ref();
    if let Some(answer) = evidence.and_then(|evidence| evidence.answer.as_ref()) {
        account =
            account.with(element("h3").text("Answer")).with(element("p").set("class", "action").text(answer));
    }
    if let Some(score) = &record.score {
        account = account.with(element("h3").text("Why")).with(element("p").text(&score.rationale));
    }
    account = account.with(folded("Facts", facts(&end_facts(record))));
    article("end", "end", "The end").with(end_shot(record, evidence)).with(account)
}

fn end_shot(record: &TrajectoryRecord, evidence: Option<&Evidence>) -> HtmlElement {
    let text = |part: Option<&String>| part.cloned().unwrap_or_default();
    let Some(evidence) = evidence else {
        return element("figure").with(caption("No evidence of the last page was kept", ""));
    };
    let title = text(evidence.title.as_ref());
    let below = caption(&title, &text(evidence.url.as_ref()));
    match &evidence.screenshot {
        Some(bytes) => {
            let alt = format!("Last screenshot: {title}");
            let format = record.task.observation.format;
            element("figure")
                .with(element("div").set("class", "shot").with(picture(bytes, format, &alt)))
                .with(below)
        }
        None => element("figure").with(below),
    }
}

fn article(id: &str, number: &str, label: &str) -> HtmlElement {
    element("article").set("id", id).set("class", "step").set("data-number", number).set("aria-label", label)
}

fn caption(title: &str, url: &str) -> HtmlElement {
    let title = if title.is_empty() { "(no title)" } else { title };
    element("figcaption")
        .with(element("strong").text(title))
        .with(element("br"))
        .with(element("code").text(url))
}

fn folded(summary: &str, inside: HtmlElement) -> HtmlElement {
    element("details").with(element("summary").text(summary)).with(inside)
}

fn facts(facts: &[(&str, String)]) -> HtmlElement {
    facts.iter().filter(|(_, value)| !value.is_empty()).fold(element("dl"), |list, (name, value)| {
        list.with(element("dt").text(name)).with(element("dd").text(value))
    })
}

/// The picture with the action's targets over it.
fn shot(screenshot: &Screenshot, alt: &str, action: Option<&Action>) -> HtmlElement {
    let size = screenshot.size;
    let radius = size.width.max(size.height) as f32 / RADII;
    let mut marks = element("svg")
        .set("viewBox", format!("0 0 {} {}", size.width, size.height))
        .set("aria-hidden", "true");
    for (from, to) in action.map(targets).unwrap_or_default() {
        if let Some(from) = from {
            marks = marks.with(
                element("line")
                    .set("class", "target")
                    .set("x1", from.x)
                    .set("y1", from.y)
                    .set("x2", to.x)
                    .set("y2", to.y),
            );
        }
        for (kind, radius) in [("target halo", radius), ("target", radius), ("target dot", radius / 6.0)] {
            let circle = element("circle").set("class", kind);
            marks = marks.with(circle.set("cx", to.x).set("cy", to.y).set("r", radius));
        }
    }
    let inside = element("div")
        .set("class", "shot")
        .with(picture(&screenshot.bytes, screenshot.format, alt))
        .with(marks);
    element("figure").with(inside)
}

fn picture(bytes: &[u8], format: ImageFormat, alt: &str) -> HtmlElement {
    let kind = match format {
        ImageFormat::Png => "png",
        ImageFormat::Jpeg { .. } => "jpeg",
    };
    let source = format!("data:image/{kind};base64,{}", BASE64.encode(bytes));
    element("img").set("src", source).set("alt", alt)
}

/// Where an action aims, in order; a drag also has where it begins.
pub fn targets(action: &Action) -> Vec<(Option<PagePoint>, PagePoint)> {
    match action {
        Action::Several(parts) => parts.iter().flat_map(targets).collect(),
        Action::Drag { from, to, .. } => vec![(*from, *to)],
        other => other.point().map(|point| (None, point)).into_iter().collect(),
    }
}

/// What a reply says beside its action, where its grammar has a field for that: JSON with
/// `thought` or `note`, or text before the call.
fn thought(raw: &str) -> Option<String> {
    if let Ok(reply) = serde_json::from_str::<Value>(raw) {
        let texts = ["thought", "note"].iter().filter_map(|key| reply.get(key)?.as_str());
        let texts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
        return (!texts.is_empty()).then(|| texts.join("\n"));
    }
    let call = ["<tool_call>", "Action:", "ACTION:"].iter().filter_map(|call| raw.find(call)).min()?;
    let before = raw[..call].trim_start_matches("Thought:").trim_start_matches("THOUGHT:");
    let before = before.replace("<think>", "").replace("</think>", "");
    Some(before.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The action in a sentence, or why there is none.
fn action_text(reply: &PolicyReply) -> String {
    match &reply.action {
        Ok(action) => sentence(action),
        Err(why) => format!("No action: {why}"),
    }
}

fn sentence(action: &Action) -> String {
    let modifiers = action.modifiers();
    let with = if modifiers.is_empty() { String::new() } else { format!(" with {modifiers} down") };
    deed(action) + &with
}

/// The action without the modifier keys that are down during it.
fn deed(action: &Action) -> String {
    let at =
        |point: Option<&PagePoint>| point.map_or(String::new(), |at| format!(" at {:.0}, {:.0}", at.x, at.y));
    match action {
        Action::Click { at: point, button, count, .. } => {
            let times = if *count > 1 { format!(" {count} times") } else { String::new() };
            let with = if button.as_str() == "left" { "" } else { button.as_str() };
            format!("Click {with}{times}{}", at(point.as_ref())).replace("  ", " ").trim_end().to_owned()
        }
        Action::Move { at: point, .. } => format!("Move the mouse{}", at(Some(point)).replace(" at", " to")),
        Action::Write { into, content, press_enter } => {
            let enter = if *press_enter { ", then press Enter" } else { "" };
            format!("Write “{content}”{}{enter}", at(into.as_ref()))
        }
        Action::Scroll { at: point, direction, pixels, .. } => {
            let far = pixels.map_or(String::new(), |pixels| format!(" {pixels} pixels"));
            format!("Scroll {}{far}{}", direction.as_str(), at(point.as_ref()))
        }
        Action::GoBack => "Go back".to_owned(),
        Action::GoForward => "Go forward".to_owned(),
        Action::Refresh => "Load the page again".to_owned(),
        Action::Restart => "Return to the start page".to_owned(),
        Action::Goto { url } => format!("Go to {url}"),
        Action::Wait { seconds } => format!("Wait {seconds} s"),
        Action::Answer { content } => format!("Answer “{content}”"),
        Action::Drag { from, to, .. } => {
            format!("Drag from{} to {:.0}, {:.0}", at(from.as_ref()), to.x, to.y)
                .replace("from at", "from")
                .replace("from to", "to")
        }
        Action::SelectTab { index } => format!("Select tab {}", index + 1),
        Action::OpenTab { url } => format!("Open {url} in a tab"),
        Action::PressKey { key, times: 1 } => format!("Press {key}"),
        Action::PressKey { key, times } => format!("Press {key} {times} times"),
        Action::HoldKey { key, millis } => format!("Hold {key} for {millis} ms"),
        Action::KeyDown { key } => format!("Press {key} and leave it down"),
        Action::KeyUp { key } => format!("Release {key}"),
        Action::MouseDown { at: point, button } => {
            format!("Press the {} button{} and leave it down", button.as_str(), at(point.as_ref()))
        }
        Action::MouseUp { at: point, button } => {
            format!("Release the {} button{}", button.as_str(), at(point.as_ref()))
        }
        Action::Upload { names } => format!("Upload {}", names.join(", ")),
        Action::Several(parts) => parts.iter().map(sentence).collect::<Vec<_>>().join("; "),
    }
}

fn step_facts(step: &StepRecord) -> Vec<(&'static str, String)> {
    let observation = &step.observation;
    let trace = &step.trace;
    let tokens = trace.tokens.as_ref();
    let counted = |tokens: &furrow_rollout::TokenTrace| {
        format!(
            "{} of the prompt, {} of the reply",
            tokens.prompt_token_ids.len(),
            tokens.response_token_ids.len()
        )
    };
    let size = observation.screenshot.size;
    let tabs = if observation.tabs.len() > 1 { observation.tabs.len().to_string() } else { String::new() };
    vec![
        ("name", step.reply.name.clone()),
        ("arguments", step.reply.args_json.clone()),
        ("picture", format!("{} × {} {}", size.width, size.height, observation.screenshot.format.as_str())),
        (
            "scrolled",
            if observation.scroll_y > 0.0 {
                format!("{} pixels", observation.scroll_y)
            } else {
                String::new()
            },
        ),
        ("tabs", tabs),
        ("version", trace.policy_version.map_or(String::new(), |version| version.0.to_string())),
        ("tokens", tokens.map_or(String::new(), counted)),
        ("time", times(&step.timing)),
    ]
}

fn end_facts(record: &TrajectoryRecord) -> Vec<(&'static str, String)> {
    let score = record.score.as_ref();
    let parts = |score: &Score| {
        let parts = score.components.iter().map(|part| format!("{} {}", part.name, part.value));
        parts.collect::<Vec<_>>().join(", ")
    };
    let environment = &record.ending.environment;
    vec![
        ("group", record.ancestry.group_id.to_string()),
        ("slot", format!("{}, attempt {}", record.ancestry.sample_index + 1, record.ancestry.attempt + 1)),
        ("start page", record.task.start_url.clone()),
        ("seed", record.task.seed.to_string()),
        ("scorer", score.map_or(String::new(), |score| score.scorer.clone())),
        ("parts", score.map_or(String::new(), parts)),
        ("browser", environment.browser.clone()),
        ("walls around it", environment.walls.map_or(String::new(), |level| level.as_str().into())),
        ("time", times(&record.ending.timing)),
    ]
}

fn times(timing: &TimeSplit) -> String {
    let part = |cause: &TimeCause| {
        let millis = timing.of(*cause) / 1_000;
        (millis > 0).then(|| format!("{} {millis} ms", cause.as_str()))
    };
    TimeCause::ALL.iter().filter_map(part).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_records::fixtures::TrajectoryFixture;
    use furrow_rollout::{Modifier, Modifiers, PointerButton};

    #[test]
    fn a_thought_is_what_the_reply_says_beside_its_action() {
        let check = |raw: &str, want: Option<&str>| assert_eq!(thought(raw).as_deref(), want, "{raw}");
        check(r#"{"thought":"Look.","note":"N","action":{}}"#, Some("Look.\nN"));
        check(r#"{"thought":"","action":{}}"#, None);
        check("Thought: Look there.\nAction: click(1)", Some("Look there."));
        check("<think>Look.</think><tool_call>{}", Some("Look."));
        check("Action: click(1)", None);
        check("click", None);
        check("", None);
    }

    #[test]
    fn an_action_is_a_sentence() {
        let at = PagePoint { x: 1.4, y: 2.0 };
        let check = |action: Action, want: &str| assert_eq!(sentence(&action), want);
        check(Action::click(at), "Click at 1, 2");
        let modifiers = Modifiers::NONE;
        check(
            Action::Click { at: None, button: PointerButton::Right, count: 2, modifiers },
            "Click right 2 times",
        );
        check(Action::hover(at), "Move the mouse to 1, 2");
        check(Action::drag(at, at), "Drag from 1, 2 to 1, 2");
        check(Action::Drag { from: None, to: at, modifiers }, "Drag to 1, 2");
        let control = Modifiers::NONE.with(Modifier::Control);
        check(Action::click(at).with_modifiers(control).unwrap(), "Click at 1, 2 with Control down");
        check(
            Action::MouseDown { at: Some(at), button: PointerButton::Left },
            "Press the left button at 1, 2 and leave it down",
        );
        check(Action::Several(vec![Action::GoBack, Action::Wait { seconds: 2 }]), "Go back; Wait 2 s");
    }

    #[test]
    fn every_text_of_a_hostile_page_is_escaped() {
        let hostile = "</script><script>window.pwned=1</script><img src=x onerror=pwned()>\"'&\u{202e}";
        let (mut record, mut steps) = TrajectoryFixture::default().trajectory();
        let text = || hostile.to_owned();
        record.task.task_id = text();
        record.task.suite = text();
        record.task.start_url = text();
        record.ending.goal = text();
        record.ending.reason = text();
        record.ending.environment.browser = text();
        let evidence = record.ending.evidence.as_mut().unwrap();
        (evidence.title, evidence.url, evidence.answer) = (Some(text()), Some(text()), Some(text()));
        let score = record.score.as_mut().unwrap();
        (score.rationale, score.scorer) = (text(), text());
        let actions = [
            Ok(Action::Goto { url: text() }),
            Ok(Action::Write { into: None, content: text(), press_enter: true }),
            Err(text()),
        ];
        for (step, action) in steps.iter_mut().zip(actions) {
            step.observation.title = text();
            step.observation.url = text();
            step.reply.raw_text = serde_json::json!({ "thought": hostile, "action": hostile }).to_string();
            (step.reply.name, step.reply.args_json) = (text(), text());
            step.reply.action = action;
            step.outcome.detail = text();
        }
        let html = trajectory_html(&record, &steps);
        assert_eq!(html.matches("<script").count(), 1, "only the file's own script");
        assert_eq!(html.matches("</script>").count(), 1);
        assert!(!html.contains("<img src=x") && !html.contains('\u{202e}'));
        let shown = html.matches("&lt;/script&gt;&lt;script&gt;window.pwned=1").count();
        assert!(shown > 25, "{shown} texts of the page are shown");
        assert_eq!(html.matches("<article").count(), 4, "three steps and the end");
        assert_eq!(html, trajectory_html(&record, &steps));
    }

    #[test]
    fn a_picture_carries_its_own_type() {
        let jpeg = picture(b"x", ImageFormat::Jpeg { quality: 80 }, "a").written();
        assert_eq!(jpeg, "<img src=\"data:image/jpeg;base64,eA==\" alt=\"a\">");
    }
}
