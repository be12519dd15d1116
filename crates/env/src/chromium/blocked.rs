//! Detects that a live site refuses to serve the browser: a CAPTCHA in place of the page, 403 or
//! 429, or an overlay without a control to close it.
//!
//! Such a trajectory ends as `blocked`: it is marked, retried and never scored, because the
//! policy's actions did not cause it. Therefore a page only counts as a refusal if it shows little
//! else: a form with a CAPTCHA in it is a page, and so is an article about robots. The farm's own
//! sites (`.test`) are not inspected: their overlays are part of the task.

use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

use super::script;
use super::tab::BrowserTab;
use crate::config::RefusalRules;
use crate::environment::EnvironmentError;

/// Some pages check the browser and continue without input; they are inspected at this interval.
const INSPECT_INTERVAL: Duration = Duration::from_millis(500);

/// A page with less text and fewer links than this shows little else.
const THIN_TEXT: u32 = 1_500;
const THIN_LINKS: u32 = 20;

/// Phrases of refusals in lower case, which count only if the page shows little else.
const REFUSAL_PHRASES: [&str; 25] = [
    "verify you are human",
    "verify you're human",
    "verify that you are human",
    "verifying you are human",
    "confirm you are human",
    "are you a human",
    "are you a robot",
    "not a robot",
    "unusual traffic",
    "enter the characters you see",
    "type the characters you see",
    "press and hold",
    "press & hold",
    "checking your browser",
    "checking if the site connection is secure",
    "access denied",
    "access to this page has been denied",
    "you have been blocked",
    "attention required",
    "pardon our interruption",
    "your request has been blocked",
    "too many requests",
    "automated access",
    "automated queries",
    "complete the security check",
];

/// The appearance of a page as a script in it measures it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageAppearance {
    host: String,
    /// HTTP status of the document; 0 if the browser does not report it.
    status: u16,
    /// Visible title and text, cut.
    visible_text: String,
    /// Number of characters of text on the page.
    text: u32,
    links: u32,
    /// Number of visible input fields.
    fields: u32,
    /// Kind of visible CAPTCHA.
    captcha: Option<String>,
    /// Whether an element about consent, age or subscription covers the whole page and has no
    /// control.
    wall: bool,
}

/// Why the page is a lasting refusal; `None` for a page.
pub(super) async fn detect_refusal(
    tab: &BrowserTab,
    rules: RefusalRules,
) -> Result<Option<String>, EnvironmentError> {
    let deadline = Instant::now() + rules.timeout;
    loop {
        let Some(why) = inspect_page(tab, rules).await? else { return Ok(None) };
        if Instant::now() >= deadline {
            return Ok(Some(why));
        }
        tokio::time::sleep(INSPECT_INTERVAL).await;
    }
}

async fn inspect_page(tab: &BrowserTab, rules: RefusalRules) -> Result<Option<String>, EnvironmentError> {
    let looks =
        match script::evaluate_isolated(tab, INSPECT_SCRIPT, tab.deadlines.screenshot, "how the page looks")
            .await
        {
            Ok(looks) => looks,
            // The document was replaced while the script ran: it is inspected after the next
            // action.
            Err(EnvironmentError::Failed(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
    let looks: Option<PageAppearance> = serde_json::from_value(looks).ok();
    Ok(looks.filter(|looks| rules.pages.includes_host(&looks.host)).and_then(|looks| looks.refusal()))
}

impl PageAppearance {
    fn refusal(&self) -> Option<String> {
        let lowercase_text = self.visible_text.to_lowercase();
        // The page of the egress filter: the tab was led to a host that the task does not allow.
        if lowercase_text.contains("this task does not reach") {
            return None;
        }
        let thin = self.text < THIN_TEXT && self.links < THIN_LINKS;
        let phrase = REFUSAL_PHRASES.iter().find(|phrase| lowercase_text.contains(**phrase));
        if self.status == 429 {
            return Some("the site answered HTTP 429".to_owned());
        }
        if self.status == 403 && thin {
            return Some("the site answered HTTP 403".to_owned());
        }
        // A form to log in or to write a comment has a CAPTCHA beside its fields; a CAPTCHA in
        // place of the page has one field at most.
        if let Some(captcha) = self.captcha.as_deref().filter(|_| thin && self.fields <= 1) {
            return Some(format!("the site shows a CAPTCHA instead of the page: {captcha}"));
        }
        if let Some(phrase) = phrase.filter(|_| thin && self.fields <= 1) {
            return Some(format!("the page shows only {phrase:?}"));
        }
        self.wall.then(|| "an overlay covers the page and has no control to close it".to_owned())
    }
}

/// Runs in an isolated world. Pages of thousands of elements are not refusals and are not measured.
const INSPECT_SCRIPT: &str = r#"(() => {
  const isVisible = (element) => {
    const box = element.getBoundingClientRect();
    return box.width >= 20 && box.height >= 10 && box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth
      && element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  };
  const page = {
    host: location.hostname, status: performance.getEntriesByType('navigation')[0]?.responseStatus ?? 0,
    visibleText: document.title.slice(0, 200), text: 1e6, links: 1e6, fields: 0, captcha: null, wall: false,
  };
  if (!document.body || document.getElementsByTagName('*').length > 3000) return page;
  const text = document.body.innerText;
  page.text = text.length;
  page.visibleText += '\n' + text.slice(0, 3000);
  page.links = [...document.links].filter(isVisible).length;
  const fields = 'input:not([type=hidden]):not([type=submit]):not([type=button]):not([type=checkbox]):not([type=radio]), textarea';
  page.fields = [...document.querySelectorAll(fields)].filter(isVisible).length;
  const captchas = {
    reCAPTCHA: 'iframe[src*="/recaptcha/"]:not([src*="size=invisible"]), .g-recaptcha:not([data-size=invisible])',
    hCaptcha: 'iframe[src*="hcaptcha.com"], .h-captcha:not([data-size=invisible])',
    Turnstile: 'iframe[src*="challenges.cloudflare.com"], .cf-turnstile, #challenge-form, #challenge-running',
    Arkose: 'iframe[src*="arkoselabs.com"], iframe[src*="funcaptcha.com"], #FunCaptcha',
    DataDome: 'iframe[src*="captcha-delivery.com"]',
    HUMAN: '#px-captcha, .px-captcha',
    'a picture of letters': 'img[src*="captcha" i], form[action*="captcha" i]',
  };
  for (const [name, selector] of Object.entries(captchas)) {
    if ([...document.querySelectorAll(selector)].some(isVisible)) { page.captcha = name; break; }
  }
  // The element that covers most of the page: the same at eight of nine points, and fixed to the window.
  const over = new Map();
  for (const x of [0.1, 0.5, 0.9]) {
    for (const y of [0.1, 0.5, 0.9]) {
      let top = document.elementFromPoint(innerWidth * x, innerHeight * y);
      let fixed = null;
      for (let at = top; at && at !== document.body; at = at.parentElement) {
        if (getComputedStyle(at).position === 'fixed' || at.matches('dialog[open]')) fixed = at;
      }
      if (fixed) over.set(fixed, (over.get(fixed) ?? 0) + 1);
    }
  }
  const overlays = [...over].filter(([, points]) => points >= 8).map(([element]) => element);
  // A dialog is usually in front of its backdrop: other fixed and visible elements count as part of the overlay.
  if (overlays.length) {
    const parts = [...document.querySelectorAll('body *')].filter((element) => {
      const style = getComputedStyle(element);
      return (style.position === 'fixed' || element.matches('dialog[open]')) && isVisible(element);
    });
    const overlayText = parts.map((part) => part.innerText).join(' ').slice(0, 3000);
    const topic = /cookie|consent|privacy|gdpr|subscri|sign in|log in|ad.?block|years of age|your (country|region)|not available/i;
    const controls = 'button:not(:disabled), input:not([type=hidden]):not(:disabled), select, [role=button]:not([aria-disabled=true]), a[href], [onclick], label, summary, iframe, canvas';
    const clickable = (part) => [part, ...part.querySelectorAll('*')].some((element) =>
      (element.matches(controls) || getComputedStyle(element).cursor === 'pointer') && isVisible(element));
    page.wall = topic.test(overlayText) && !parts.some(clickable);
  }
  return page;
})()"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> PageAppearance {
        PageAppearance {
            host: "shop.example".into(),
            status: 200,
            visible_text: "Shop\nhats and coats".into(),
            text: 5_000,
            links: 80,
            fields: 1,
            captcha: None,
            wall: false,
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut PageAppearance), want: Option<&str>) {
        let mut looks = page();
        change(&mut looks);
        let got = looks.refusal();
        match want {
            None => assert_eq!(got, None),
            Some(want) => assert!(got.as_ref().is_some_and(|got| got.contains(want)), "{got:?}"),
        }
    }

    #[test]
    fn only_a_page_that_shows_little_else_is_a_refusal() {
        let thin = |looks: &mut PageAppearance| (looks.text, looks.links, looks.fields) = (200, 2, 0);
        check(|_| {}, None);
        check(thin, None);
        check(|looks| looks.status = 429, Some("HTTP 429"));
        check(|looks| looks.status = 403, None);
        check(|looks| looks.status = 404, None);
        check(
            |looks| {
                thin(looks);
                looks.status = 403;
            },
            Some("HTTP 403"),
        );
        check(
            |looks| {
                thin(looks);
                looks.status = 403;
                looks.visible_text =
                    "This task does not reach \"ads.example\": it is not on the task's list.".into();
            },
            None,
        );
        check(|looks| looks.captcha = Some("hCaptcha".into()), None);
        check(
            |looks| {
                thin(looks);
                looks.captcha = Some("hCaptcha".into());
            },
            Some("hCaptcha"),
        );
        check(
            |looks| {
                thin(looks);
                (looks.captcha, looks.fields) = (Some("hCaptcha".into()), 3);
            },
            None,
        );
        check(|looks| looks.visible_text = "Why sites ask: are you a robot?".into(), None);
        check(
            |looks| {
                thin(looks);
                looks.visible_text = "Robot Check\nEnter the characters you see below".into();
            },
            Some("enter the characters"),
        );
        check(|looks| looks.wall = true, Some("an overlay"));
    }
}
