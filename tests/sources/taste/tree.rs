//! Finds the files that the rules are about.

use std::fs;
use std::path::Path;

use crate::taste::lexer::Language;

/// Left out: what cites old names on purpose, and what others read as it is stored.
const EXEMPT: [&str; 5] = ["CHANGELOG.md", "docs/GLOSSARY.md", "docs/decisions", "envs", "tests/fixtures"];
/// Folders that tools write.
const GENERATED: [&str; 5] = ["target", "runs", "build", "node_modules", "__pycache__"];

#[derive(Debug)]
pub(super) struct SourceFile {
    /// From the repository's root, with slashes.
    pub path: String,
    pub text: String,
    pub language: Language,
}

impl SourceFile {
    pub(super) fn is_rust(&self) -> bool {
        self.language == Language::Rust
    }
}

/// Every file below `root` that a person writes, in order of their paths.
pub(super) fn source_files(root: &Path) -> Vec<SourceFile> {
    let mut files = Vec::new();
    collect(root, "", &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn collect(folder: &Path, prefix: &str, files: &mut Vec<SourceFile>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        if name.starts_with('.') || EXEMPT.contains(&path.as_str()) {
            continue;
        }
        if entry.path().is_dir() {
            if !GENERATED.contains(&name.as_str()) && !name.ends_with(".egg-info") {
                collect(&entry.path(), &path, files);
            }
        } else if let Some(language) = language_of(&name) {
            // One page of the browser tests is not UTF-8 on purpose.
            let text = String::from_utf8_lossy(&fs::read(entry.path()).unwrap()).into_owned();
            files.push(SourceFile { path, text, language });
        }
    }
}

fn language_of(name: &str) -> Option<Language> {
    match name.rsplit_once('.').map_or(name, |(_, ending)| ending) {
        "rs" => Some(Language::Rust),
        "cu" | "cuh" | "cpp" | "h" | "proto" => Some(Language::C),
        "js" | "mjs" => Some(Language::JavaScript),
        "py" => Some(Language::Python),
        "md" | "css" | "html" | "sh" | "sql" | "toml" | "yml" | "justfile" => Some(Language::Plain),
        _ => None,
    }
}
