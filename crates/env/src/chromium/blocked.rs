//! Whether a live site refuses to serve us: a CAPTCHA in place of the page, 403 or 429, a wall that nothing on it opens.
//!
//! Such a trajectory ends as `blocked`: it is marked and tried again, and never scored, since what the policy did had no part in
//! it. So a page is only called a refusal when it shows little else: a form with a CAPTCHA in it is a page, and so is an article
//! about robots. Our own sites (`.test`) are not looked at: their walls are there to be passed.

use std::time::Duration;

use furrow_rollout::Task;
use serde::Deserialize;
use tokio::time::Instant;

use super::script;
use super::tab::Tab;
use crate::config::Refusals;
use crate::stage::StageError;

/// Pages that check the browser by themselves go on by themselves after a while; they are looked at this often.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A page with less text than this, and fewer links, shows little else.
const THIN_TEXT: u32 = 1_500;
const THIN_LINKS: u32 = 20;

/// What refusals say, in lower case, where the page shows little else.
const SAYINGS: [&str; 25] = [
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

/// What a page looks like from inside.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Looks {
    host: String,
    /// HTTP status of the document, 0 where the browser does not say.
    status: u16,
    /// Title and text as they are seen, cut.
    said: String,
    /// Characters of text on the page.
    text: u32,
    links: u32,
    /// Fields to write into that are seen.
    fields: u32,
    /// What kind of CAPTCHA is seen.
    captcha: Option<String>,
    /// Whether something lies over the whole page that speaks of consent, age or subscription and has nothing to press.
    wall: bool,
}

/// Why the page is a refusal and stays one; `None` for a page.
pub(super) async fn refused(tab: &Tab, rules: Refusals) -> Result<Option<String>, StageError> {
    let patience = Instant::now() + rules.patience;
    loop {
        let Some(why) = look(tab, rules).await? else { return Ok(None) };
        if Instant::now() >= patience {
            return Ok(Some(why));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn look(tab: &Tab, rules: Refusals) -> Result<Option<String>, StageError> {
    let looks = match script::apart(tab, LOOK, tab.deadlines.screenshot, "how the page looks").await {
        Ok(looks) => looks,
        // The document went away under the script: it is looked at after the next action.
        Err(StageError::Failed(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let looks: Option<Looks> = serde_json::from_value(looks).ok();
    Ok(looks.filter(|looks| rules.pages.takes(&looks.host)).and_then(|looks| looks.refusal()))
}

/// Which pages are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockedPages {
    /// Those that are not our own.
    Live,
    /// All; for trying it out.
    All,
    /// None.
    Never,
}

impl BlockedPages {
    /// The word in job files.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "live" => Some(Self::Live),
            "all" => Some(Self::All),
            "never" => Some(Self::Never),
            _ => None,
        }
    }

    /// Whether a task can meet such a page at all: most of ours never leave our own sites and are not asked.
    pub(super) fn concerns(self, task: &Task) -> bool {
        let start = task.start_url.parse::<http::Uri>().ok();
        let start = start.as_ref().and_then(http::Uri::host).unwrap_or_default();
        let own = task.allow_hosts.iter().map(String::as_str).chain([start]);
        match self {
            Self::Never => false,
            Self::All => true,
            Self::Live => own.into_iter().any(|host| self.takes(host)),
        }
    }

    fn takes(self, host: &str) -> bool {
        match self {
            Self::Live => !host.is_empty() && !host.ends_with(".test"),
            Self::All => true,
            Self::Never => false,
        }
    }
}

impl Looks {
    fn refusal(&self) -> Option<String> {
        let said = self.said.to_lowercase();
        // Our own filter's: the page led to a host that the task does not allow.
        if said.contains("this task does not reach") {
            return None;
        }
        let thin = self.text < THIN_TEXT && self.links < THIN_LINKS;
        let saying = SAYINGS.iter().find(|saying| said.contains(**saying));
        if self.status == 429 {
            return Some("the site answered HTTP 429".to_owned());
        }
        if self.status == 403 && thin {
            return Some("the site answered HTTP 403".to_owned());
        }
        // A form to log in or to write a comment has a CAPTCHA beside its fields; a CAPTCHA in place of the page has one at most.
        if let Some(captcha) = self.captcha.as_deref().filter(|_| thin && self.fields <= 1) {
            return Some(format!("a CAPTCHA stands in place of the page: {captcha}"));
        }
        if let Some(saying) = saying.filter(|_| thin && self.fields <= 1) {
            return Some(format!("the page only says {saying:?}"));
        }
        self.wall.then(|| "a wall lies over the page and nothing on it opens it".to_owned())
    }
}

/// Runs in a world of our own. Pages of thousands of elements are no refusals and are not measured.
const LOOK: &str = r#"(() => {
  const shown = (element) => {
    const box = element.getBoundingClientRect();
    return box.width >= 20 && box.height >= 10 && box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth
      && element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  };
  const looks = {
    host: location.hostname, status: performance.getEntriesByType('navigation')[0]?.responseStatus ?? 0,
    said: document.title.slice(0, 200), text: 1e6, links: 1e6, fields: 0, captcha: null, wall: false,
  };
  if (!document.body || document.getElementsByTagName('*').length > 3000) return looks;
  const text = document.body.innerText;
  looks.text = text.length;
  looks.said += '\n' + text.slice(0, 3000);
  looks.links = [...document.links].filter(shown).length;
  const fields = 'input:not([type=hidden]):not([type=submit]):not([type=button]):not([type=checkbox]):not([type=radio]), textarea';
  looks.fields = [...document.querySelectorAll(fields)].filter(shown).length;
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
    if ([...document.querySelectorAll(selector)].some(shown)) { looks.captcha = name; break; }
  }
  // The element that lies over most of the page: the same at eight of nine places, and fixed to the window.
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
  const walls = [...over].filter(([, places]) => places >= 8).map(([element]) => element);
  // A dialog stands before its backdrop as a rule: what else is fixed and seen counts as part of the wall.
  if (walls.length) {
    const parts = [...document.querySelectorAll('body *')].filter((element) => {
      const style = getComputedStyle(element);
      return (style.position === 'fixed' || element.matches('dialog[open]')) && shown(element);
    });
    const words = parts.map((part) => part.innerText).join(' ').slice(0, 3000);
    const topic = /cookie|consent|privacy|gdpr|subscri|sign in|log in|ad.?block|years of age|your (country|region)|not available/i;
    const ways = 'button:not(:disabled), input:not([type=hidden]):not(:disabled), select, [role=button]:not([aria-disabled=true]), a[href], [onclick], label, summary, iframe, canvas';
    const clickable = (part) => [part, ...part.querySelectorAll('*')].some((element) =>
      (element.matches(ways) || getComputedStyle(element).cursor === 'pointer') && shown(element));
    looks.wall = topic.test(words) && !parts.some(clickable);
  }
  return looks;
})()"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Looks {
        Looks {
            host: "shop.example".into(),
            status: 200,
            said: "Shop\nhats and coats".into(),
            text: 5_000,
            links: 80,
            fields: 1,
            captcha: None,
            wall: false,
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Looks), want: Option<&str>) {
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
        let thin = |looks: &mut Looks| (looks.text, looks.links, looks.fields) = (200, 2, 0);
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
                looks.said = "This task does not reach \"ads.example\": it is not on the task's list.".into();
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
        check(|looks| looks.said = "Why sites ask: are you a robot?".into(), None);
        check(
            |looks| {
                thin(looks);
                looks.said = "Robot Check\nEnter the characters you see below".into();
            },
            Some("enter the characters"),
        );
        check(|looks| looks.wall = true, Some("a wall"));
    }

    #[test]
    fn our_own_sites_are_not_looked_at() {
        for (host, live) in [("a.example", true), ("shop.web.test", false), ("", false), ("attest", true)] {
            assert_eq!(BlockedPages::Live.takes(host), live, "{host}");
            assert!(BlockedPages::All.takes(host) && !BlockedPages::Never.takes(host));
        }
    }
}
