//! Markup that is complete at any moment: text comes in through [`Element::text`] alone and is never markup.

use crate::format::is_obeyed;

/// An element with what is in it.
#[derive(Debug, Clone)]
pub(crate) struct Element {
    tag: &'static str,
    head: String,
    body: String,
}

/// Elements that end with their head.
const VOID: [&str; 2] = ["meta", "br"];

/// An empty element.
pub(crate) fn element(tag: &'static str) -> Element {
    Element { tag, head: String::new(), body: String::new() }
}

impl Element {
    /// With an attribute.
    #[expect(clippy::needless_pass_by_value, reason = "what is made on the spot, or borrowed, alike")]
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.head.push_str(&format!(" {name}=\"{}\"", escaped(&value.to_string())));
        self
    }

    /// With text behind what is there.
    pub fn text(mut self, text: impl AsRef<str>) -> Self {
        self.body.push_str(&escaped(text.as_ref()));
        self
    }

    /// With another element behind what is there.
    #[expect(clippy::needless_pass_by_value, reason = "an element belongs to one parent")]
    pub fn with(mut self, child: Element) -> Self {
        child.write(&mut self.body);
        self
    }

    /// With others behind what is there.
    pub fn with_all(self, children: impl IntoIterator<Item = Element>) -> Self {
        children.into_iter().fold(self, Self::with)
    }

    /// With text that is no markup to a browser either: the style sheet, or JSON whose `<` are escaped. Ours alone.
    pub fn raw(mut self, ours: &str) -> Self {
        self.body.push_str(ours);
        self
    }

    /// As it stands in a file.
    pub fn written(&self) -> String {
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

/// Text that is no markup, and of which nothing is obeyed.
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
            letter if is_obeyed(letter) => escaped.push('\u{fffd}'),
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
