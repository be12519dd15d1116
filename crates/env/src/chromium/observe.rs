//! Observations: a screenshot and the text that goes with it.

use chromiumoxide::cdp::browser_protocol::accessibility::GetFullAxTreeParams;
use chromiumoxide::cdp::browser_protocol::page::{
    GetLayoutMetricsParams, GetNavigationHistoryParams, NavigationEntry,
};
use furrow_rollout::{Mark, Observation, ObservationSpec, Screenshot, Size, TabInfo};

use super::conceal::{self, ConcealedPicture};
use super::tab::BrowserTab;
use super::{marks, picture, script};
use crate::environment::EnvironmentError;
use crate::secrets::Scrubber;

const TITLE_CHARS_MAX: usize = 256;
const URL_CHARS_MAX: usize = 2048;

/// Longest accessibility text, in bytes.
const AXTREE_BYTES_MAX: usize = 64 << 10;

/// The parameters of an observation.
#[derive(Debug)]
pub(super) struct ObservationRequest<'a> {
    /// The tab in front.
    pub tab: &'a BrowserTab,
    /// Index of that tab among all tabs.
    pub index: usize,
    /// The other tabs with their indices.
    pub others: &'a [(usize, &'a BrowserTab)],
    pub spec: &'a ObservationSpec,
    pub viewport: Size,
    pub with_axtree: bool,
    pub with_marks: bool,
    /// Values that must not be in it.
    pub scrubber: &'a Scrubber,
}

/// What the policy gets to see, and why its picture was withheld, if it was.
pub(super) struct Observed {
    pub observation: Observation,
    pub withheld: Option<&'static str>,
}

pub(super) async fn observe(look: &ObservationRequest<'_>) -> Result<Observed, EnvironmentError> {
    let ObservationRequest { tab, index, others, with_axtree, scrubber, .. } = *look;
    // Sent together, so that the text describes the picture.
    let (picture, entry, layout) = tokio::join!(
        conceal::picture(tab, scrubber, || picture_with_marks(look)),
        current_entry(tab),
        tab.call(GetLayoutMetricsParams {}, tab.deadlines.screenshot, "the page's layout"),
    );
    let ((screenshot, marks), withheld) = match picture? {
        ConcealedPicture::Shown(picture) => (picture, None),
        ConcealedPicture::Withheld(why) => {
            let grey = picture::grey(look.spec, look.viewport)?;
            ((grey, look.with_marks.then(Vec::new)), Some(why))
        }
    };
    let entry = entry?;
    let layout = layout?;
    let mut tabs = vec![(index, observed_tab(&entry, true, scrubber))];
    for (other_index, other) in others {
        tabs.push((*other_index, observed_tab(&current_entry(other).await?, false, scrubber)));
    }
    tabs.sort_by_key(|(index, _)| *index);
    let axtree = if with_axtree { Some(axtree(tab, scrubber).await?) } else { None };
    let observation = Observation {
        screenshot,
        url: cut(&scrubber.text(&entry.url), URL_CHARS_MAX),
        title: cut(&scrubber.text(&entry.title), TITLE_CHARS_MAX),
        tabs: tabs.into_iter().map(|(_, tab)| tab).collect(),
        scroll_y: finite(layout.css_visual_viewport.page_y),
        page_height: finite(layout.css_content_size.height),
        axtree,
        marks,
    };
    Ok(Observed { observation, withheld })
}

/// Takes the picture and draws the marks into it if the job asks for them.
async fn picture_with_marks(
    look: &ObservationRequest<'_>,
) -> Result<(Screenshot, Option<Vec<Mark>>), EnvironmentError> {
    let ObservationRequest { tab, spec, viewport, .. } = *look;
    if !look.with_marks {
        return Ok((picture::screenshot(tab, spec, viewport).await?, None));
    }
    let shown = spec.clip.unwrap_or(viewport);
    let world = script::isolated_world(tab, tab.deadlines.screenshot, "the marks").await?;
    // The marks are queried and the picture taken together: a box belongs to this picture, not to a
    // later one.
    let (marks, plain) = tokio::join!(
        marks::marks(tab, &world, shown, viewport),
        picture::RawScreenshot::capture(tab, spec, viewport),
    );
    let marks = marks?;
    let plain = plain?;
    Ok((plain.finish(marks.clone()).await?, Some(marks)))
}

/// The current entry of the page's history. The browser process answers, so that a page can neither
/// fake nor block it.
pub(super) async fn current_entry(tab: &BrowserTab) -> Result<NavigationEntry, EnvironmentError> {
    let history = tab.call(GetNavigationHistoryParams {}, tab.deadlines.input, "the page's address").await?;
    let index = usize::try_from(history.current_index).unwrap_or_default();
    history
        .entries
        .into_iter()
        .nth(index)
        .ok_or_else(|| EnvironmentError::Failed("the page has no address".into()))
}

/// Roles and names, one line per node, indented by depth.
async fn axtree(tab: &BrowserTab, scrubber: &Scrubber) -> Result<String, EnvironmentError> {
    let tree =
        tab.call(GetFullAxTreeParams::default(), tab.deadlines.screenshot, "accessibility text").await?;
    let text_value = |value: &Option<chromiumoxide::cdp::browser_protocol::accessibility::AxValue>| {
        value.as_ref().and_then(|value| value.value.as_ref()?.as_str().map(str::to_owned)).unwrap_or_default()
    };
    let mut text = String::new();
    for node in tree.nodes.iter().filter(|node| !node.ignored) {
        let role = text_value(&node.role);
        let name = text_value(&node.name);
        if name.is_empty() || matches!(role.as_str(), "InlineTextBox" | "none") {
            continue;
        }
        let line = format!("{role} {:?}\n", cut(&scrubber.text(&name), 200));
        if text.len() + line.len() > AXTREE_BYTES_MAX {
            text.push_str("…\n");
            break;
        }
        text.push_str(&line);
    }
    Ok(text)
}

fn observed_tab(entry: &NavigationEntry, active: bool, scrubber: &Scrubber) -> TabInfo {
    TabInfo {
        title: cut(&scrubber.text(&entry.title), TITLE_CHARS_MAX),
        url: cut(&scrubber.text(&entry.url), URL_CHARS_MAX),
        active,
    }
}

fn cut(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).collect()
}

fn finite(value: f64) -> f32 {
    if value.is_finite() { value as f32 } else { 0.0 }
}
