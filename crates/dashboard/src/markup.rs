//! Markup that is well-formed at any time: text enters only through [`HtmlElement::text`] and is
//! never markup.

use crate::format::is_control_character;

/// An element with its content.
#[derive(Debug, Clone)]
pub(crate) struct HtmlElement {
    tag: &'static str,
    head: String,
    body: String,
}

/// Elements without an end tag.
const VOID: [&str; 3] = ["meta", "br", "img"];

pub(crate) fn element(tag: &'static str) -> HtmlElement {
    HtmlElement { tag, head: String::new(), body: String::new() }
}

impl HtmlElement {
    #[expect(clippy::needless_pass_by_value, reason = "callers pass new and borrowed values alike")]
    pub(crate) fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.head.push_str(&format!(" {name}=\"{}\"", escaped(&value.to_string())));
        self
    }

    pub(crate) fn text(mut self, text: impl AsRef<str>) -> Self {
        self.body.push_str(&escaped(text.as_ref()));
        self
    }

    #[expect(clippy::needless_pass_by_value, reason = "an element belongs to one parent")]
    pub(crate) fn with(mut self, child: HtmlElement) -> Self {
        child.write(&mut self.body);
        self
    }

    pub(crate) fn with_all(self, children: impl IntoIterator<Item = HtmlElement>) -> Self {
        children.into_iter().fold(self, Self::with)
    }

    /// Appends text that a browser does not parse as markup: the style sheet, or JSON whose `<` are
    /// escaped. Never for untrusted text.
    pub(crate) fn raw(mut self, ours: &str) -> Self {
        self.body.push_str(ours);
        self
    }

    /// The element as HTML.
    pub(crate) fn written(&self) -> String {
        let mut text = String::new();
        self.write(&mut text);
        text
    }

    fn write(&self, to: &mut String) {
        to.push_str(&format!("<{}{}>{}", self.tag, self.head, self.body));
        if !VOID.contains(&self.tag) {
            to.push_str(&format!("</{}>", self.tag));
        }
    }
}

/// Escapes text, and replaces characters that would act instead of being shown.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(letter),
            letter if is_control_character(letter) => escaped.push('\u{fffd}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_never_markup() {
        let made = element("p").set("title", "\"><script>").text("<b>&'\u{0}\u{202e}").with(element("br"));
        assert_eq!(
            made.written(),
            "<p title=\"&quot;&gt;&lt;script&gt;\">&lt;b&gt;&amp;&#39;\u{fffd}\u{fffd}<br></p>"
        );
    }
}
