//! A checkpoint's `config.json`, checked: shapes of the language model and of the vision encoder.

mod fields;
mod json;
mod problems;
mod published;
mod shapes;
#[cfg(test)]
mod tests;
mod text;
mod vision;

use std::cell::RefCell;
use std::path::Path;

use serde_json::{Map, Value};

use self::fields::ConfigSection;
pub use self::problems::{ConfigError, ConfigProblem, ConfigProblems};
pub use self::shapes::{AttentionConfig, Config, LayerKind, MoeConfig, SsmConfig, TextConfig, VisionConfig};
use crate::file;

/// Largest `config.json` that is read. Published ones stay below 100 KB.
const BYTES_MAX: u64 = 16 << 20;

impl Config {
    /// Reads `config.json` of a checkpoint directory.
    ///
    /// # Errors
    /// If the file cannot be read, is not JSON, or needs what this implementation does not have.
    /// The error names every such key.
    pub fn read(dir: &Path) -> Result<Self, ConfigError> {
        let path = dir.join("config.json");
        let text = file::read(&path, BYTES_MAX)?;
        Self::parse(&text, &path)
    }

    /// Checks the text of a `config.json`; `path` is its name in errors.
    ///
    /// # Errors
    /// As for [`Config::read`].
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, ConfigError> {
        let value = json::read(text).map_err(|source| ConfigError::NotJson { path: path.into(), source })?;
        Self::check(&value).map_err(|problems| ConfigError::Invalid { path: path.into(), problems })
    }

    fn check(value: &Value) -> Result<Self, ConfigProblems> {
        let empty = Map::new();
        let problems = RefCell::default();
        let top = ConfigSection::new("", value.as_object().unwrap_or(&empty), &problems);
        top.refuse_key(
            "quantization_config",
            "quantised weights cannot be read; use the bfloat16 checkpoint",
        );
        let text = text::read(text_section(top));
        let vision = top.section("vision_config", "vision_config.").map(|section| vision::read(top, section));
        match problems.into_inner() {
            problems if problems.0.is_empty() => Ok(Self { text, vision }),
            problems => Err(problems),
        }
    }
}

/// The language model's keys: in a section of their own, or at the top level of a text checkpoint.
fn text_section(top: ConfigSection<'_>) -> ConfigSection<'_> {
    match top.find(&["llm_config", "text_config"]) {
        Some(("llm_config", _)) => top.section("llm_config", "llm_config.").unwrap_or(top),
        Some(_) => top.section("text_config", "text_config.").unwrap_or(top),
        None => top,
    }
}
