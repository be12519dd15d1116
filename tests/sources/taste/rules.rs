//! The rules, each a function from one file to its breaches.

use crate::taste::glossary::{Glossary, RetiredTerm, Use};
use crate::taste::lexer::{Fragment, FragmentKind, Language, split};
use crate::taste::names::identifiers;
use crate::taste::outline::Outline;
use crate::taste::tree::SourceFile;

pub(super) const RETIRED: &str = "retired";
pub(super) const COMMENT_WIDTH: &str = "comment-width";
pub(super) const TUPLE_LET: &str = "tuple-let";
pub(super) const FILLER_DOC: &str = "filler-doc";
pub(super) const LONG_FILE: &str = "long-file";
pub(super) const LONG_FUNCTION: &str = "long-function";
pub(super) const RULES: [&str; 6] = [RETIRED, COMMENT_WIDTH, TUPLE_LET, FILLER_DOC, LONG_FILE, LONG_FUNCTION];

const COMMENT_WIDTH_MAX: usize = 100;
/// Of a line of code with a comment behind it: rustfmt's `max_width`.
const CODE_WIDTH_MAX: usize = 110;
const FILLER_TERMS_MAX: usize = 3;
const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;

/// Files whose string literals without spaces are names: of metrics, their labels and events.
pub(super) const NAMING_FILES: [&str; 2] =
    ["crates/telemetry/src/labels.rs", "crates/telemetry/src/names.rs"];

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Breach {
    pub file: String,
    pub line: usize,
    pub rule: &'static str,
    /// What an exception names: the item, or for `retired` the name or word itself.
    pub item: String,
    pub what: String,
}

/// One file, split and parsed once for all rules.
pub(super) struct Checker<'a> {
    file: &'a SourceFile,
    glossary: &'a Glossary,
    fragments: Vec<Fragment<'a>>,
    outline: Outline,
    breaches: Vec<Breach>,
}

/// All breaches of a file, in order of lines.
pub(super) fn check(file: &SourceFile, glossary: &Glossary) -> Vec<Breach> {
    let outline = if file.is_rust() {
        Outline::parse(&file.text).unwrap_or_else(|error| panic!("{} is not Rust: {error}", file.path))
    } else {
        Outline::default()
    };
    let fragments = split(&file.text, file.language);
    let mut checker = Checker { file, glossary, fragments, outline, breaches: Vec::new() };
    checker.check_retired_path();
    checker.check_retired_text();
    if file.is_rust() {
        checker.check_retired_definitions();
        checker.check_comment_width();
        checker.check_tuple_lets();
        checker.check_filler_docs();
        checker.check_lengths();
    } else if file.language != Language::Plain {
        checker.check_retired_identifiers();
    }
    checker.breaches.sort();
    checker.breaches
}

impl<'a> Checker<'a> {
    fn add(&mut self, rule: &'static str, line: usize, what: String) {
        let item = self.outline.item_at(line).to_owned();
        self.breaches.push(Breach { file: self.file.path.clone(), line, rule, item, what });
    }

    fn add_retired(&mut self, line: usize, item: &str, term: &RetiredTerm, used_as: Use) {
        let what = match used_as {
            Use::Text => format!("`{}` is retired; write {}", term.term, term.instead),
            _ => format!(
                "the name `{item}` holds the retired `{}`; choose one with {}",
                term.term, term.instead
            ),
        };
        let is_known =
            |known: &Breach| (known.rule, known.line, known.item.as_str()) == (RETIRED, line, item);
        if !self.breaches.iter().any(is_known) {
            let file = self.file.path.clone();
            self.breaches.push(Breach { file, line, rule: RETIRED, item: item.to_owned(), what });
        }
    }

    fn find_retired(&self, text: &str, used_as: Use) -> Vec<&'a RetiredTerm> {
        self.glossary.find(text, used_as, &self.file.path)
    }

    fn check_retired_path(&mut self) {
        let path = self.file.path.clone();
        let is_free = [".md", ".html", ".css", ".toml"].iter().any(|ending| path.ends_with(ending));
        let used_as = match self.file.language {
            Language::Rust => Use::TypeName,
            Language::Plain if is_free => Use::Text,
            _ => Use::Name,
        };
        for term in self.find_retired(&path, used_as) {
            self.add_retired(1, &path, term, Use::Name);
        }
    }

    /// Comments and string literals, or all of a text that has no code.
    fn check_retired_text(&mut self) {
        for fragment in self.fragments.clone() {
            if fragment.kind == FragmentKind::Code && self.file.language != Language::Plain {
                continue;
            }
            let is_literal = fragment.kind == FragmentKind::Literal;
            if is_literal && self.outline.stored_names.iter().any(|lines| contains(*lines, fragment.line)) {
                continue;
            }
            let is_name =
                is_literal && !fragment.text.contains(' ') && NAMING_FILES.contains(&self.file.path.as_str());
            let used_as = if is_name { Use::Name } else { Use::Text };
            for (line, text) in (fragment.line..).zip(fragment.text.lines()) {
                for term in self.find_retired(text, used_as) {
                    let item = if is_name { text } else { &term.term };
                    self.add_retired(line, item, term, used_as);
                }
            }
        }
    }

    fn check_retired_definitions(&mut self) {
        for definition in std::mem::take(&mut self.outline.definitions) {
            let used_as = if definition.is_type { Use::TypeName } else { Use::Name };
            for term in self.find_retired(&definition.name, used_as) {
                self.add_retired(definition.line, &definition.name, term, used_as);
            }
        }
    }

    /// Identifiers of a language that is not parsed. One behind a dot may be another library's, and
    /// is left out, except behind `self` and `this`.
    fn check_retired_identifiers(&mut self) {
        for fragment in self.fragments.clone() {
            if fragment.kind != FragmentKind::Code {
                continue;
            }
            for (line, at, name) in identifiers(fragment.text) {
                let before = &fragment.text[..at];
                let is_own = ["self.", "this."].iter().any(|owner| before.ends_with(owner));
                if (before.ends_with('.') && !is_own) || name.starts_with("__") {
                    continue;
                }
                for term in self.find_retired(name, Use::Name) {
                    self.add_retired(fragment.line + line, name, term, Use::Name);
                }
            }
        }
    }

    fn check_comment_width(&mut self) {
        let starts = line_starts(&self.file.text);
        for (index, line) in self.file.text.lines().enumerate() {
            let width = line.chars().count();
            if width <= COMMENT_WIDTH_MAX {
                continue;
            }
            let number = index + 1;
            let first = starts[index] + line.len() - line.trim_start().len();
            if self.kind_at(first) == FragmentKind::Comment {
                if !is_unbreakable_url(line) {
                    self.add(
                        COMMENT_WIDTH,
                        number,
                        format!("{width} columns; wrap the comment at {COMMENT_WIDTH_MAX}"),
                    );
                }
            } else if width > CODE_WIDTH_MAX
                && self.kind_at(starts[index] + line.len() - 1) == FragmentKind::Comment
            {
                self.add(COMMENT_WIDTH, number, format!("{width} columns; move the comment above the line"));
            }
        }
    }

    fn kind_at(&self, byte: usize) -> FragmentKind {
        let after = self.fragments.partition_point(|fragment| fragment.start <= byte);
        self.fragments[after - 1].kind
    }

    fn check_tuple_lets(&mut self) {
        for line in std::mem::take(&mut self.outline.tuple_lets) {
            self.add(TUPLE_LET, line, "a tuple is bound to a tuple; write one `let` a name".to_owned());
        }
    }

    fn check_filler_docs(&mut self) {
        for (first, text) in doc_comments(&self.fragments) {
            let count = text.split_whitespace().filter(|part| part.contains(char::is_alphanumeric)).count();
            if count <= FILLER_TERMS_MAX {
                let what =
                    format!("{:?} says no more than the name; delete it, or say why or how", text.trim());
                self.add(FILLER_DOC, first, what);
            }
        }
    }

    fn check_lengths(&mut self) {
        let is_code = code_lines(&self.file.text, &self.fragments);
        let count = |first: usize, last: usize| (first..=last).filter(|line| is_code[*line]).count();
        let in_tests: usize =
            self.outline.test_modules.iter().map(|(first, last)| count(*first, *last)).sum();
        let lines = count(1, is_code.len() - 1) - in_tests;
        let too_long: Vec<_> = (self.outline.functions.iter())
            .map(|function| (function.line, function.path.clone(), count(function.first, function.last)))
            .filter(|(_, _, lines)| *lines > FUNCTION_LINES_MAX)
            .collect();
        if lines > FILE_LINES_MAX {
            let what =
                format!("{lines} lines of code; split it by duty into files of at most {FILE_LINES_MAX}");
            self.breaches.push(Breach {
                file: self.file.path.clone(),
                line: 1,
                rule: LONG_FILE,
                item: String::new(),
                what,
            });
        }
        for (line, path, lines) in too_long {
            let what =
                format!("{lines} lines of code; split it into functions of at most {FUNCTION_LINES_MAX}");
            self.add(LONG_FUNCTION, line, format!("`{path}` has {what}"));
        }
    }
}

fn contains((first, last): (usize, usize), line: usize) -> bool {
    first <= line && line <= last
}

fn line_starts(text: &str) -> Vec<usize> {
    let ends = text.match_indices('\n').map(|(index, _)| index + 1);
    std::iter::once(0).chain(ends).collect()
}

/// Whether a comment's line is one URL, with at most a list mark or a label before it.
fn is_unbreakable_url(line: &str) -> bool {
    let mut parts = line.trim_start().trim_start_matches(['/', '!']).split_whitespace();
    let first = parts.next().unwrap_or("");
    let rest: Vec<&str> = parts.collect();
    match rest.as_slice() {
        [] => first.contains("://"),
        [last] => last.contains("://"),
        _ => false,
    }
}

/// Each doc comment: the line it starts at and its whole text.
fn doc_comments(fragments: &[Fragment]) -> Vec<(usize, String)> {
    let mut comments: Vec<(usize, String)> = Vec::new();
    let mut last: Option<(usize, &str)> = None;
    for fragment in fragments.iter().filter(|fragment| fragment.kind == FragmentKind::Comment) {
        let mark = ["///", "//!"].into_iter().find(|mark| fragment.text.starts_with(mark));
        let Some(mark) = mark.filter(|_| !fragment.text.starts_with("////")) else { continue };
        let text = &fragment.text[mark.len()..];
        match comments.last_mut() {
            Some((_, known)) if last == Some((fragment.line - 1, mark)) => {
                known.push(' ');
                known.push_str(text);
            }
            _ => comments.push((fragment.line, text.to_owned())),
        }
        last = Some((fragment.line, mark));
    }
    comments
}

/// For each line, from 1, whether it has code.
fn code_lines(text: &str, fragments: &[Fragment]) -> Vec<bool> {
    let mut is_code = vec![false; text.lines().count() + 2];
    for fragment in fragments.iter().filter(|fragment| fragment.kind != FragmentKind::Comment) {
        for (line, text) in (fragment.line..).zip(fragment.text.split('\n')) {
            is_code[line] |= !text.trim().is_empty();
        }
    }
    is_code
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
| retired | scope | where | instead |
|---|---|---|---|
| gizmo | never | everywhere | part |
| flip | no name | everywhere | swap |
| widget | no type name | everywhere | control |
";

    fn breaches(path: &str, text: &str, language: Language) -> Vec<(&'static str, usize, String)> {
        let glossary = Glossary::parse(TABLE, |_| true).unwrap();
        let file = SourceFile { path: path.to_owned(), text: text.to_owned(), language };
        let found = check(&file, &glossary).into_iter();
        found.map(|breach| (breach.rule, breach.line, breach.item)).collect()
    }

    fn check_rust(text: &str, expected: &[(&'static str, usize, &str)]) {
        let found = breaches("crates/a/src/b.rs", text, Language::Rust);
        let found: Vec<_> = found.iter().map(|(rule, line, item)| (*rule, *line, item.as_str())).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn retired_terms_in_rust_are_breaches() {
        check_rust("fn f() {}\n// A gizmo.\n", &[(RETIRED, 2, "gizmo")]);
        check_rust("const A: &str = \"\\\n no gizmo\";", &[(RETIRED, 2, "gizmo")]);
        check_rust("struct GizmoMap;", &[(RETIRED, 1, "GizmoMap")]);
        check_rust("fn f() {\n    let flip_all = 1;\n}", &[(RETIRED, 2, "flip_all")]);
        check_rust("struct Widget;", &[(RETIRED, 1, "Widget")]);
        check_rust("// A flip of a widget.\nfn widget() { foreign::flip() }", &[]);
        check_rust("struct A {\n    #[serde(rename = \"gizmo\")]\n    b: u8,\n}", &[]);
        check_rust("struct A {\n    #[arg(long = \"flip-it\")]\n    b: u8,\n}", &[(RETIRED, 2, "flip-it")]);
    }

    #[test]
    fn retired_terms_in_other_languages_are_breaches() {
        let check = |path, text, language, expected: &[(usize, &str)]| {
            let found = breaches(path, text, language);
            let found: Vec<_> = found.iter().map(|(_, line, item)| (*line, item.as_str())).collect();
            assert_eq!(found, expected, "{text}");
        };
        check("kernels/a.cu", "// flip\nint flips = __flip(x.flip);", Language::C, &[(2, "flips")]);
        check("a.js", "const flip = `${gizmo} gizmo`;", Language::JavaScript, &[(1, "flip"), (1, "gizmo")]);
        check("a.py", "def flip():\n  pass  # gizmo", Language::Python, &[(1, "flip"), (2, "gizmo")]);
        check("a.py", "self.flips = other.flip", Language::Python, &[(1, "flips")]);
        check("docs/a.md", "A `--gizmo`,\na flip.", Language::Plain, &[(1, "gizmo")]);
        check("crates/a/flip.rs", "//! It is for a test.", Language::Rust, &[(1, "crates/a/flip.rs")]);
        check("docs/flip.md", "", Language::Plain, &[]);
        check("deploy/flip.sh", "", Language::Plain, &[(1, "deploy/flip.sh")]);
        let named = [(1, "\"env/flips\"")];
        check(NAMING_FILES[0], "const A: &str = \"env/flips\";", Language::Rust, &named);
        check(NAMING_FILES[0], "const A: &str = \"a flip\";", Language::Rust, &[]);
    }

    #[test]
    fn wide_comments_are_breaches() {
        let filler = "x ".repeat(60);
        let wide = &[(COMMENT_WIDTH, 2, "f")];
        check_rust(&format!("fn f() {{\n    // {}\n}}", &filler[..94]), wide);
        check_rust(&format!("fn f() {{\n    // {}\n}}", &filler[..92]), &[]);
        check_rust(&format!("fn f() {{\n/* {filler}\n*/ }}"), wide);
        check_rust(&format!("fn f() {{\n    g(); // {}\n}}", &filler[..98]), &[]);
        check_rust(&format!("fn f() {{\n    g(); // {}\n}}", &filler[..100]), wide);
        check_rust(&format!("fn f() {{\n    g(\"{filler}//\");\n}}"), &[]);
        let url = format!("https://example.org/{}", "x".repeat(90));
        check_rust(&format!("fn f() {{\n    // [1]: {url}\n}}"), &[]);
        check_rust(&format!("fn f() {{\n    // As {url} says\n}}"), wide);
    }

    #[test]
    fn tuple_lets_are_breaches() {
        check_rust("fn f() {\n    let (a, b) = (1, 2);\n}", &[(TUPLE_LET, 2, "f")]);
        check_rust("fn f() {\n    let a = 1;\n    let b = 2;\n}", &[]);
    }

    #[test]
    fn filler_docs_are_breaches() {
        check_rust("/// Its name.\nstruct A;", &[(FILLER_DOC, 1, "A")]);
        check_rust("struct A {\n    /// Which\n    /// - one.\n    b: u8,\n}", &[(FILLER_DOC, 2, "A::b")]);
        check_rust("//! Its name.\nstruct A;", &[(FILLER_DOC, 1, "")]);
        check_rust("/// Set once, never cleared.\nstruct A;", &[]);
        check_rust("/// Its name.\n/// Never empty.\nstruct A;", &[]);
        check_rust("// Its name.\nstruct A;\nconst B: &str = \"/// Its name.\";", &[]);
    }

    #[test]
    fn long_files_are_breaches() {
        let lines = |count: usize| "const A: u8 = 0;\n".repeat(count);
        check_rust(&lines(601), &[(LONG_FILE, 1, "")]);
        check_rust(&format!("{}\n// A comment\n\n", lines(600)), &[]);
        check_rust(&format!("{}\n#[cfg(test)]\nmod tests {{\n{}}}", lines(600), lines(9)), &[]);
        check_rust(&format!("{}\nmod more {{\n{}}}", lines(600), lines(9)), &[(LONG_FILE, 1, "")]);
    }

    #[test]
    fn long_functions_are_breaches() {
        let body = |count: usize| format!("{{\n{}}}", "g();\n".repeat(count));
        check_rust(&format!("impl A {{\nfn f() {}\n}}", body(71)), &[(LONG_FUNCTION, 2, "A::f")]);
        check_rust(&format!("trait A {{\nfn f() {}\n}}", body(71)), &[(LONG_FUNCTION, 2, "A::f")]);
        check_rust(&format!("fn f() {}", body(70)), &[]);
        check_rust(&format!("fn f() {}", body(70).replacen("g();", "// A comment\n\ng();", 9)), &[]);
    }
}
