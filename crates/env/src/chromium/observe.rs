//! What the policy is shown: a screenshot and the words around it.

use chromiumoxide::cdp::browser_protocol::accessibility::GetFullAxTreeParams;
use chromiumoxide::cdp::browser_protocol::page::{
    GetLayoutMetricsParams, GetNavigationHistoryParams, NavigationEntry,
};
use furrow_rollout::{Mark, Observation, ObservationSpec, Screenshot, Size, Tab as TabNoun};

use super::tab::Tab;
use super::{marks, picture, script};
use crate::stage::StageError;

const TITLE_CHARS_MAX: usize = 256;
const URL_CHARS_MAX: usize = 2048;

/// Longest accessibility text, in bytes.
const AXTREE_BYTES_MAX: usize = 64 << 10;

/// What is looked at, and how.
#[derive(Debug)]
pub(super) struct Look<'a> {
    /// The tab in front.
    pub tab: &'a Tab,
    /// Its place among all tabs.
    pub place: usize,
    /// The other tabs with their places.
    pub others: &'a [(usize, &'a Tab)],
    pub spec: &'a ObservationSpec,
    pub viewport: Size,
    pub with_axtree: bool,
    pub with_marks: bool,
}

/// The whole state before a step.
pub(super) async fn observe(look: &Look<'_>) -> Result<Observation, StageError> {
    let Look { tab, place, others, with_axtree, .. } = *look;
    // Sent together, so that the words describe the picture.
    let (picture, entry, layout) = tokio::join!(
        picture_with_marks(look),
        current_entry(tab),
        tab.call(GetLayoutMetricsParams {}, tab.deadlines.screenshot, "the page's layout"),
    );
    let ((screenshot, marks), entry, layout) = (picture?, entry?, layout?);
    let mut tabs = vec![(place, noun(&entry, true))];
    for (other_place, other) in others {
        tabs.push((*other_place, noun(&current_entry(other).await?, false)));
    }
    tabs.sort_by_key(|(place, _)| *place);
    let axtree = if with_axtree { Some(axtree(tab).await?) } else { None };
    Ok(Observation {
        screenshot,
        url: cut(&entry.url, URL_CHARS_MAX),
        title: cut(&entry.title, TITLE_CHARS_MAX),
        tabs: tabs.into_iter().map(|(_, tab)| tab).collect(),
        scroll_y: finite(layout.css_visual_viewport.page_y),
        page_height: finite(layout.css_content_size.height),
        axtree,
        marks,
    })
}

/// The picture, and the marks drawn into it where they are asked for.
async fn picture_with_marks(look: &Look<'_>) -> Result<(Screenshot, Option<Vec<Mark>>), StageError> {
    let Look { tab, spec, viewport, .. } = *look;
    if !look.with_marks {
        return Ok((picture::screenshot(tab, spec, viewport).await?, None));
    }
    let shown = spec.clip.unwrap_or(viewport);
    let world = script::world(tab, tab.deadlines.screenshot, "the marks").await?;
    // Asked for and taken in one breath: a box belongs to this picture, not to one a moment later.
    let (marks, plain) =
        tokio::join!(marks::marks(tab, &world, shown, viewport), picture::Plain::take(tab, spec, viewport),);
    let (marks, plain) = (marks?, plain?);
    Ok((plain.finished(marks.clone()).await?, Some(marks)))
}

/// The entry of the page's history that is shown. The browser process answers, so a page can neither fake nor block it.
pub(super) async fn current_entry(tab: &Tab) -> Result<NavigationEntry, StageError> {
    let history = tab.call(GetNavigationHistoryParams {}, tab.deadlines.input, "the page's address").await?;
    let index = usize::try_from(history.current_index).unwrap_or_default();
    history.entries.into_iter().nth(index).ok_or_else(|| StageError::Failed("the page has no address".into()))
}

/// Roles and names, a line a node, indented by depth.
async fn axtree(tab: &Tab) -> Result<String, StageError> {
    let tree =
        tab.call(GetFullAxTreeParams::default(), tab.deadlines.screenshot, "accessibility text").await?;
    let word = |value: &Option<chromiumoxide::cdp::browser_protocol::accessibility::AxValue>| {
        value.as_ref().and_then(|value| value.value.as_ref()?.as_str().map(str::to_owned)).unwrap_or_default()
    };
    let mut text = String::new();
    for node in tree.nodes.iter().filter(|node| !node.ignored) {
        let (role, name) = (word(&node.role), word(&node.name));
        if name.is_empty() || matches!(role.as_str(), "InlineTextBox" | "none") {
            continue;
        }
        let line = format!("{role} {:?}\n", cut(&name, 200));
        if text.len() + line.len() > AXTREE_BYTES_MAX {
            text.push_str("…\n");
            break;
        }
        text.push_str(&line);
    }
    Ok(text)
}

fn noun(entry: &NavigationEntry, active: bool) -> TabNoun {
    TabNoun { title: cut(&entry.title, TITLE_CHARS_MAX), url: cut(&entry.url, URL_CHARS_MAX), active }
}

fn cut(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).collect()
}

fn finite(value: f64) -> f32 {
    if value.is_finite() { value as f32 } else { 0.0 }
}
