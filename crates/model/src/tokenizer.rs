//! Reads `tokenizer.json`: text to ids and back, and the bytes of every id.
//!
//! Text is always plain: the name of a mark inside it never becomes the mark's id, so no text of a
//! page can end a turn or replace an image. Callers look marks up by name and insert their ids
//! (`template.rs`).

pub(crate) mod alphabet;
mod file;
mod vocabulary;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tokenizers::models::bpe::BPE;
use tokenizers::{
    Model, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
};

pub use vocabulary::{TokenKind, Vocabulary};

use crate::config::Config;
use crate::file::FileError;

/// Name of the file in a checkpoint directory.
pub(crate) const TOKENIZER_FILE: &str = "tokenizer.json";
/// Largest file that is read. Published ones of 131,072 entries have about 17 MB.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
/// Most bytes of a text for one byte of its normal form: a mathematical letter of four bytes
/// becomes a letter of one.
const NORMALIZED_SHRINK_MAX: usize = 4;
/// Bytes of U+FFFD, which stands for each byte that is not UTF-8.
const REPLACEMENT_BYTES: usize = char::REPLACEMENT_CHARACTER.len_utf8();

/// A byte-level BPE tokenizer.
pub struct Tokenizer {
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    bpe: BPE,
    vocabulary: Vocabulary,
    /// Added tokens by name.
    added: BTreeMap<String, u32>,
    /// Id of each single byte.
    byte_ids: [u32; 256],
    sha256: [u8; 32],
    /// Most bytes of text that become one token.
    encoded_bytes_max: usize,
    /// Most bytes of text that one token becomes.
    decoded_bytes_max: usize,
}

/// Why a tokenizer was not opened.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file could not be read.
    #[error("cannot open the tokenizer; a checkpoint directory has {TOKENIZER_FILE} next to config.json")]
    File(#[from] FileError),
    /// The file is not JSON of the expected form.
    #[error("{} is not a tokenizer in the format of the tokenizers library", path.display())]
    Syntax { path: PathBuf, source: serde_json::Error },
    /// The file needs something that this program cannot run exactly.
    #[error("{}: {}", path.display(), list(problems))]
    Invalid {
        path: PathBuf,
        /// Every problem, by key.
        problems: Vec<String>,
    },
}

impl Tokenizer {
    /// Opens the tokenizer of a checkpoint directory.
    pub fn open(dir: &Path) -> Result<Self, TokenizerError> {
        let path = dir.join(TOKENIZER_FILE);
        let text = crate::file::read(&path, FILE_BYTES_MAX)?;
        Self::parse(&path, &text)
    }

    /// Reads a tokenizer from the text of its file; `path` is its name in errors.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self, TokenizerError> {
        let file: file::TokenizerFile = serde_json::from_slice(text)
            .map_err(|source| TokenizerError::Syntax { path: path.to_owned(), source })?;
        let invalid = |problems| TokenizerError::Invalid { path: path.to_owned(), problems };
        let parts = file.check().map_err(invalid)?;
        let shrink_max = if parts.normalizer.is_some() { NORMALIZED_SHRINK_MAX } else { 1 };
        let tokenizer = Self {
            encoded_bytes_max: parts.vocabulary.text_bytes_max() * shrink_max,
            decoded_bytes_max: parts.vocabulary.bytes_max() * REPLACEMENT_BYTES,
            normalizer: parts.normalizer,
            pre_tokenizer: parts.pre_tokenizer,
            bpe: parts.bpe,
            vocabulary: parts.vocabulary,
            added: parts.added,
            byte_ids: parts.byte_ids,
            sha256: Sha256::digest(text).into(),
        };
        tokenizer.check_round_trip().map_err(|problem| invalid(vec![problem]))?;
        Ok(tokenizer)
    }

    /// Ids of a text, none of them a mark's, whatever the text contains. The ids have the bytes of
    /// the text, except for Unicode normalisation if the file requires it.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        match self.pieces(text) {
            Ok(pieces) => pieces.iter().for_each(|piece| self.encode_piece(piece, &mut ids)),
            Err(_) => ids.extend(text.bytes().map(|byte| self.byte_ids[byte as usize])),
        }
        ids
    }

    /// Most bytes of a text that can become this many tokens: a longer one certainly becomes more.
    pub fn encoded_bytes_max(&self, tokens: usize) -> usize {
        self.encoded_bytes_max.saturating_mul(tokens)
    }

    /// Most bytes of the text that this many tokens can become.
    pub fn decoded_bytes_max(&self, tokens: usize) -> usize {
        self.decoded_bytes_max.saturating_mul(tokens)
    }

    /// Text of some ids without special marks. Ids without an entry are omitted, bytes that are not
    /// UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.text_of(ids, |id| !self.vocabulary.is_special(id))
    }

    /// Text of some ids with every mark written as its name.
    pub fn decode_with_marks(&self, ids: &[u32]) -> String {
        self.text_of(ids, |_| true)
    }

    /// Id of a mark by its name: an added token, whether or not the file calls it special.
    pub fn special(&self, name: &str) -> Option<u32> {
        self.added.get(name).copied()
    }

    /// All marks by name.
    pub(crate) fn specials(&self) -> impl Iterator<Item = (&str, u32)> {
        self.added.iter().map(|(name, id)| (name.as_str(), *id))
    }

    /// Every id with its bytes.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// SHA-256 of the file.
    pub fn sha256(&self) -> &[u8; 32] {
        &self.sha256
    }

    /// Whether a model can process every id of this tokenizer. `embedding_rows`: rows of the table,
    /// which may be more than the head's. Ids above the tokenizer's are the model's own padding and
    /// not a problem.
    pub fn fits(&self, config: &Config, embedding_rows: usize) -> Result<(), Vec<String>> {
        let mut problems = Vec::new();
        problems.extend(self.text_problem(config.text.vocabulary.min(embedding_rows)));
        let placeholder = config.vision.as_ref().map(|vision| vision.image_token);
        for (name, id) in self.specials() {
            if id as usize >= embedding_rows && Some(id) != placeholder {
                problems.push(format!(
                    "{TOKENIZER_FILE}: {name:?} is id {id}, but the embedding table has {embedding_rows} rows; \
                     use tokenizer and weights of one checkpoint"
                ));
            }
        }
        problems.extend(placeholder.and_then(|id| self.placeholder_problem(id)));
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    fn text_problem(&self, rows: usize) -> Option<String> {
        let (highest, _) = self.vocabulary.texts().last()?;
        (highest as usize >= rows).then(|| {
            format!(
                "{TOKENIZER_FILE}: pieces of text have ids up to {highest}, but the model has {rows}; use tokenizer and \
                 weights of one checkpoint"
            )
        })
    }

    /// If text could produce the placeholder, a page could insert an image.
    fn placeholder_problem(&self, id: u32) -> Option<String> {
        let text = self.vocabulary.text(id)?;
        Some(format!(
            "config.json: the image placeholder is id {id}, which is the text {:?} in {TOKENIZER_FILE}; use an added token",
            String::from_utf8_lossy(text)
        ))
    }

    /// Pieces of the text that are encoded separately, in the alphabet of bytes.
    pub(crate) fn pieces(&self, text: &str) -> tokenizers::Result<Vec<String>> {
        let mut text = NormalizedString::from(text);
        if let Some(normalizer) = &self.normalizer {
            normalizer.normalize(&mut text)?;
        }
        let mut text = PreTokenizedString::from(text);
        if let Some(pre_tokenizer) = &self.pre_tokenizer {
            pre_tokenizer.pre_tokenize(&mut text)?;
        }
        let pieces = text.get_splits(OffsetReferential::Normalized, OffsetType::None);
        Ok(pieces.into_iter().map(|(piece, _, _)| piece.to_owned()).collect())
    }

    /// A mark's name may also be an entry of the model, and merges may produce it: such a piece is
    /// encoded byte by byte.
    fn encode_piece(&self, piece: &str, ids: &mut Vec<u32>) {
        match self.bpe.tokenize(piece) {
            Ok(tokens) if tokens.iter().all(|token| self.vocabulary.text(token.id).is_some()) => {
                ids.extend(tokens.iter().map(|token| token.id));
            }
            _ => ids.extend(piece.chars().flat_map(|char| self.spell(char))),
        }
    }

    fn spell(&self, char: char) -> Vec<u32> {
        let bytes = alphabet::byte_of(char).map_or_else(|| char.to_string().into_bytes(), |byte| vec![byte]);
        bytes.into_iter().map(|byte| self.byte_ids[byte as usize]).collect()
    }

    fn text_of(&self, ids: &[u32], keep: impl Fn(u32) -> bool) -> String {
        let kept = ids.iter().filter(|id| keep(**id)).filter_map(|id| self.vocabulary.bytes(*id));
        String::from_utf8_lossy(&kept.flatten().copied().collect::<Vec<u8>>()).into_owned()
    }

    /// Checks the pipeline as a whole, on text that every normalisation form leaves unchanged.
    fn check_round_trip(&self) -> Result<(), String> {
        let text = "Open the 2nd tab,\n\tthen type \"x=1\"  漢字 🦀 </s>\r\n";
        let back = self.decode(&self.encode(text));
        if back == text {
            Ok(())
        } else {
            Err(format!("normalizer and pre_tokenizer turn {text:?} into {back:?}"))
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("ids", &self.vocabulary.len()).finish_non_exhaustive()
    }
}

/// Joins the first problems in one line.
fn list(problems: &[String]) -> String {
    const LISTED_MAX: usize = 8;
    let more = problems.len().saturating_sub(LISTED_MAX);
    let listed = problems.iter().take(LISTED_MAX).cloned().collect::<Vec<_>>().join("; ");
    if more == 0 { listed } else { format!("{listed}; and {more} more") }
}

#[cfg(test)]
pub(crate) mod tests;
