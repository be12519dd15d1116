//! What sections of a report are made of.

use super::run_metrics::RunMetrics;
use crate::comparison::distinct_names;
use crate::markup::{HtmlElement, element};

/// The names without what they share, for heads of columns and legends.
pub(super) fn short_names(runs: &[RunMetrics]) -> Vec<String> {
    distinct_names(&runs.iter().map(|run| run.name.clone()).collect::<Vec<_>>())
}

/// A table whose first column is text and whose others are numbers; narrow windows scroll it.
pub(super) fn table(header: impl Iterator<Item = impl AsRef<str>>, rows: Vec<HtmlElement>) -> HtmlElement {
    let head = header.enumerate().map(|(at, name)| {
        element("th").set("scope", "col").set("class", if at > 0 { "number" } else { "" }).text(name)
    });
    let head = element("thead").with(element("tr").with_all(head));
    let whole = element("table").with(head).with(element("tbody").with_all(rows));
    element("div")
        .set("class", "scroll-x")
        .set("tabindex", "0")
        .set("role", "region")
        .set("aria-label", "table")
        .with(whole)
}

/// A card with a heading.
pub(super) fn section(title: &str, class: &str, body: HtmlElement) -> HtmlElement {
    element("section").set("class", format!("card {class}")).with(element("h2").text(title)).with(body)
}
