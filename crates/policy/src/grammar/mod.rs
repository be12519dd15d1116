//! Action grammars: text from a policy becomes an action, and an action becomes the text a policy would have written.

mod holo_navigation;
mod shape;

use furrow_rollout::{Action, Grammar, Reply, Size};
use sha2::{Digest, Sha256};

pub(crate) use shape::{Field, FieldKind, Shape};

/// The Holo navigation object with coordinates 0 to 1000 of the image as sent.
pub const HOLO_NAVIGATION: &str = "holo_navigation";

/// Words around an action that carry no weight for what is done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remarks {
    /// What to remember.
    pub note: String,
    /// Why this action.
    pub thought: String,
    /// What the action aims at, in words.
    pub element: String,
}

/// Reads a policy's text. `image` is the size of the screenshot the coordinates refer to.
pub fn parse(grammar: &Grammar, text: &str, image: Size) -> Reply {
    debug_assert_eq!(grammar.name, HOLO_NAVIGATION, "the job's door admits no other grammar");
    holo_navigation::parse(text, &grammar.extra, image)
}

/// Writes an action as a policy would; `Err` when the grammar has no word for it.
pub fn encode(grammar: &Grammar, action: &Action, remarks: &Remarks, image: Size) -> Result<String, String> {
    debug_assert_eq!(grammar.name, HOLO_NAVIGATION, "the job's door admits no other grammar");
    holo_navigation::encode(action, remarks, &grammar.extra, image)
}

/// Instructions that tell a policy how to write its actions.
pub fn instructions(grammar: &Grammar) -> String {
    holo_navigation::instructions(&grammar.extra)
}

/// The actions a policy may write, in the order of the instructions.
pub(crate) fn shapes(grammar: &Grammar) -> Vec<Shape> {
    debug_assert_eq!(grammar.name, HOLO_NAVIGATION, "the job's door admits no other grammar");
    holo_navigation::shapes(&grammar.extra).collect()
}

/// Hexadecimal SHA-256 of everything that decides how a grammar reads, for the records.
pub fn sha256(grammar: &Grammar) -> String {
    let digest = Sha256::digest(format!("{}\n{}", grammar.name, instructions(grammar)));
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
