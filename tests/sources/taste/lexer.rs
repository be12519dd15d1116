//! Splits a source text into code, comments and string literals, so that rules look only where
//! they apply.

/// How a language writes comments and strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Rust,
    /// CUDA, C++ and protobuf.
    C,
    JavaScript,
    Python,
    /// Prose, markup and shell scripts: nothing is split.
    Plain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FragmentKind {
    Code,
    Comment,
    Literal,
}

/// A run of one kind. The fragments of a text cover it without gaps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fragment<'a> {
    pub kind: FragmentKind,
    /// Line and byte at which it starts, the line from 1.
    pub line: usize,
    pub start: usize,
    pub text: &'a str,
}

pub(super) fn split(text: &str, language: Language) -> Vec<Fragment<'_>> {
    let mut lexer = Lexer { text, language, at: 0, braces: Vec::new(), spans: Vec::new() };
    lexer.run();
    let mut fragments = Vec::new();
    let mut line = 1;
    for (kind, start, end) in lexer.spans {
        let text = &text[start..end];
        fragments.push(Fragment { kind, line, start, text });
        line += text.matches('\n').count();
    }
    fragments
}

struct Lexer<'a> {
    text: &'a str,
    language: Language,
    at: usize,
    /// JavaScript: how many braces are open in each `${…}` around this point.
    braces: Vec<usize>,
    spans: Vec<(FragmentKind, usize, usize)>,
}

impl Lexer<'_> {
    fn run(&mut self) {
        while self.at < self.text.len() {
            let start = self.at;
            if let Some(end) = self.comment_end() {
                self.push(FragmentKind::Comment, start, end);
            } else if let Some(end) = self.literal_end() {
                self.push(FragmentKind::Literal, start, end);
            } else {
                self.step_over_code();
                self.push(FragmentKind::Code, start, self.at);
            }
        }
    }

    fn push(&mut self, kind: FragmentKind, start: usize, end: usize) {
        self.at = end;
        match self.spans.last_mut() {
            Some((FragmentKind::Code, _, last)) if kind == FragmentKind::Code => *last = end,
            _ => self.spans.push((kind, start, end)),
        }
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// Where `needle` ends that follows `skip` bytes from here, or the text's end.
    fn end_of(&self, skip: usize, needle: &str) -> usize {
        let found = self.rest().get(skip..).and_then(|rest| rest.find(needle));
        found.map_or(self.text.len(), |index| self.at + skip + index + needle.len())
    }

    fn comment_end(&self) -> Option<usize> {
        let line_end = || self.rest().find('\n').map_or(self.text.len(), |index| self.at + index);
        match self.language {
            Language::Plain => None,
            Language::Python => self.rest().starts_with('#').then(line_end),
            _ if self.rest().starts_with("//") => Some(line_end()),
            Language::Rust if self.rest().starts_with("/*") => Some(self.nested_comment_end()),
            _ if self.rest().starts_with("/*") => Some(self.end_of(2, "*/")),
            _ => None,
        }
    }

    fn nested_comment_end(&self) -> usize {
        let bytes = self.text.as_bytes();
        let mut depth = 0;
        let mut at = self.at;
        while at < bytes.len() {
            if bytes[at..].starts_with(b"/*") {
                depth += 1;
                at += 2;
            } else if bytes[at..].starts_with(b"*/") {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            } else {
                at += 1;
            }
        }
        bytes.len()
    }

    fn literal_end(&mut self) -> Option<usize> {
        match self.language {
            Language::Plain => None,
            Language::Rust => self.rust_literal_end(),
            Language::C => self.quoted_end(&['"', '\'']),
            Language::Python => ["\"\"\"", "'''"]
                .iter()
                .find(|quotes| self.rest().starts_with(**quotes))
                .map(|quotes| self.end_of(3, quotes))
                .or_else(|| self.quoted_end(&['"', '\''])),
            Language::JavaScript => {
                let is_template_rest = self.rest().starts_with('}') && self.braces.last() == Some(&0);
                if is_template_rest {
                    self.braces.pop();
                }
                if is_template_rest || self.rest().starts_with('`') {
                    return Some(self.template_end());
                }
                self.regex_end().or_else(|| self.quoted_end(&['"', '\'']))
            }
        }
    }

    /// The end of a literal in one of `quotes`, where a backslash escapes.
    fn quoted_end(&self, quotes: &[char]) -> Option<usize> {
        let quote = self.rest().chars().next().filter(|first| quotes.contains(first))?;
        let is_digit_separator = self.language == Language::C
            && quote == '\''
            && self.text[..self.at].ends_with(|before: char| before.is_ascii_alphanumeric());
        if is_digit_separator {
            return None;
        }
        let mut is_escaped = false;
        for (index, letter) in self.rest().char_indices().skip(1) {
            if is_escaped {
                is_escaped = false;
            } else if letter == '\\' {
                is_escaped = true;
            } else if letter == quote {
                return Some(self.at + index + 1);
            }
        }
        Some(self.text.len())
    }

    fn rust_literal_end(&self) -> Option<usize> {
        let rest = self.rest();
        if rest.starts_with('"') {
            return self.quoted_end(&['"']);
        }
        if let Some(content) = rest.strip_prefix('\'') {
            let mut letters = content.chars();
            let first = letters.next()?;
            let is_char = first == '\\' || letters.next() == Some('\'');
            return if is_char { self.quoted_end(&['\'']) } else { None };
        }
        let is_in_name =
            self.text[..self.at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
        let after = rest.trim_start_matches(['b', 'c']).strip_prefix('r')?;
        let hashes = after.len() - after.trim_start_matches('#').len();
        if is_in_name || !after[hashes..].starts_with('"') || rest.len() - after.len() > 2 {
            return None;
        }
        let opening = rest.len() - after.len() + hashes + 1;
        Some(self.end_of(opening, &format!("\"{}", "#".repeat(hashes))))
    }

    /// The end of a template's text, from its backtick or the brace that closes a `${…}` in it.
    fn template_end(&mut self) -> usize {
        let mut is_escaped = false;
        let mut letters = self.rest().char_indices().skip(1).peekable();
        while let Some((index, letter)) = letters.next() {
            let end = self.at + index + 1;
            if is_escaped {
                is_escaped = false;
            } else if letter == '\\' {
                is_escaped = true;
            } else if letter == '`' {
                return end;
            } else if letter == '$' && letters.peek().is_some_and(|(_, next)| *next == '{') {
                self.braces.push(0);
                return end + 1;
            }
        }
        self.text.len()
    }

    fn regex_end(&self) -> Option<usize> {
        if !self.rest().starts_with('/') {
            return None;
        }
        let before = self.text[..self.at].trim_end();
        let may_start = before.is_empty()
            || before.ends_with(|last: char| "(,=:[!&|?{};>".contains(last))
            || before.ends_with("return");
        let line = self.rest().lines().next()?;
        let mut is_escaped = false;
        let mut is_in_class = false;
        for (index, letter) in line.char_indices().skip(1) {
            match letter {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                '[' => is_in_class = true,
                ']' => is_in_class = false,
                '/' if !is_in_class => return may_start.then_some(self.at + index + 1),
                _ => {}
            }
        }
        None
    }

    /// Steps over one character, and over all behind it that can begin neither comment nor literal.
    fn step_over_code(&mut self) {
        if let Some(open) = self.braces.last_mut() {
            match self.text.as_bytes()[self.at] {
                b'{' => *open += 1,
                b'}' => *open = open.saturating_sub(1),
                _ => {}
            }
        }
        let bytes = self.text.as_bytes();
        self.at += 1;
        if self.language == Language::Plain {
            self.at = bytes.len();
        }
        while self.at < bytes.len() && (!self.text.is_char_boundary(self.at) || !may_begin(bytes[self.at])) {
            self.at += 1;
        }
    }
}

/// Whether a byte can begin a comment or a literal, or opens or closes a brace.
fn may_begin(byte: u8) -> bool {
    matches!(byte, b'/' | b'#' | b'"' | b'\'' | b'`' | b'{' | b'}' | b'r' | b'b' | b'c')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(language: Language, text: &str, literals: &[&str], comments: &[&str]) {
        let fragments = split(text, language);
        let of = |kind| {
            let chosen = fragments.iter().filter(|fragment| fragment.kind == kind);
            chosen.map(|fragment| fragment.text).collect::<Vec<_>>()
        };
        assert_eq!(of(FragmentKind::Literal), literals, "literals of {text}");
        assert_eq!(of(FragmentKind::Comment), comments, "comments of {text}");
        let whole: String = fragments.iter().map(|fragment| fragment.text).collect();
        assert_eq!(whole, text);
    }

    #[test]
    fn rust_is_split() {
        check(Language::Rust, "let a = \"// \\\" no\"; // yes", &["\"// \\\" no\""], &["// yes"]);
        check(Language::Rust, "a(r#\"say \"no\"\"#, br\"x\\\")", &["r#\"say \"no\"\"#", "br\"x\\\""], &[]);
        check(Language::Rust, "fn f<'a>(x: &'a str) { ['\"', '\\'', 'é'] }", &["'\"'", "'\\''", "'é'"], &[]);
        check(
            Language::Rust,
            "/* a /* b */ c */ x /// d\n//! e",
            &[],
            &["/* a /* b */ c */", "/// d", "//! e"],
        );
        check(Language::Rust, "let r#type = attr\"x\";", &["\"x\""], &[]);
    }

    #[test]
    fn other_languages_are_split() {
        check(Language::C, "x = 1'000; c = '\"'; // \"y\"", &["'\"'"], &["// \"y\""]);
        check(Language::C, "/* a /* b */ c", &[], &["/* a /* b */"]);
        check(Language::Python, "a = \"\"\"# no\n\"\"\"  # yes", &["\"\"\"# no\n\"\"\""], &["# yes"]);
        check(
            Language::JavaScript,
            "f(`a ${{b: `c`}} d`, /[/'\"]/g, 4 / 2)",
            &["`a ${", "`c`", "} d`", "/[/'\"]/"],
            &[],
        );
        check(Language::JavaScript, "x = a / b; y = c / d; // '", &[], &["// '"]);
        check(Language::Plain, "# it's // plain", &[], &[]);
    }
}
