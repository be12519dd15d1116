//! Action grammars: text from a policy becomes an action, and an action becomes the text that a
//! policy would have written.
//!
//! Each family has a file and each name a `GrammarDialect`. A text that a published harness would
//! refuse or misread is refused here with the reason, so that a policy is rewarded for what it
//! wrote and not for what it may have meant.

mod anthropic;
mod dialect;
mod holo;
mod holo_point;
mod holo_step;
mod nemotron;
mod openai;
mod shape;
mod space;
#[cfg(test)]
mod tests;
mod ui_tars;
mod web_voyager;

use furrow_rollout::{Action, ExtraAction, Grammar, PolicyReply};
use sha2::{Digest, Sha256};

pub(crate) use dialect::ReplyFrame;
use dialect::{GrammarDialect, TEXT_BYTES_MAX};
pub use dialect::{ReplyRemarks, ViewedPage};
pub(crate) use holo::HOLO_NAVIGATION;
use shape::ParsedCall;
pub(crate) use shape::{ActionField, ActionShape, FieldKind};

const DIALECTS: &[GrammarDialect] = &[
    holo::NAVIGATION,
    holo::NAVIGATION_PIXELS,
    holo_step::STEP,
    holo_point::CLICK_CALL,
    holo_point::CLICK_ABSOLUTE,
    holo_point::POINT,
    web_voyager::MARKS,
    nemotron::TOOLS,
    ui_tars::THOUSANDTHS,
    ui_tars::PIXELS,
    openai::COMPUTER,
    anthropic::COMPUTER,
];

impl GrammarDialect {
    #[track_caller]
    fn of(grammar: &Grammar) -> &'static GrammarDialect {
        named(&grammar.name).expect("the job's validation admits no other grammar")
    }
}

fn named(name: &str) -> Option<&'static GrammarDialect> {
    DIALECTS.iter().find(|dialect| dialect.name == name)
}

/// Names of all grammars.
pub fn names() -> impl Iterator<Item = &'static str> {
    DIALECTS.iter().map(|dialect| dialect.name)
}

/// The further actions of this grammar that a job may enable; `None` if there is no such grammar.
pub(crate) fn extra_actions(name: &str) -> Option<&'static [ExtraAction]> {
    named(name).map(|dialect| dialect.extra)
}

/// Whether a grammar uses marks, which the job must then ask for.
pub fn needs_marks(name: &str) -> bool {
    named(name).is_some_and(|dialect| dialect.needs_marks)
}

/// Parses a policy's text. The reply's `action` holds the error if that fails.
pub fn parse(grammar: &Grammar, text: &str, view: ViewedPage<'_>) -> PolicyReply {
    let mut parsed = ParsedCall::default();
    let action = match text.len() {
        0..=TEXT_BYTES_MAX => (GrammarDialect::of(grammar).read)(text, &grammar.extra, view, &mut parsed),
        more => Err(format!("the reply has {more} bytes; use at most {TEXT_BYTES_MAX}")),
    };
    let ParsedCall { name, args_json } = parsed;
    PolicyReply {
        raw_text: text.to_owned(),
        name,
        args_json: args_json.unwrap_or_else(|| "{}".into()),
        action,
    }
}

/// Formats an action as a policy would; `Err` if the grammar cannot express it, or could not parse
/// the result.
pub fn encode(
    grammar: &Grammar,
    action: &Action,
    remarks: &ReplyRemarks,
    view: ViewedPage<'_>,
) -> Result<String, String> {
    let text = (GrammarDialect::of(grammar).encode)(action, remarks, &grammar.extra, view)?;
    parse(grammar, &text, view).action.map(|_| text)
}

/// Instructions that tell a policy how to write its actions.
pub fn instructions(grammar: &Grammar) -> String {
    (GrammarDialect::of(grammar).instructions)(&grammar.extra)
}

/// Layout of a reply, if decoding can be constrained to it.
pub(crate) fn frame(grammar: &Grammar) -> Option<ReplyFrame> {
    GrammarDialect::of(grammar).frame
}

/// Hexadecimal SHA-256 of everything that determines how a grammar parses, for the records.
pub fn sha256(grammar: &Grammar) -> String {
    let digest = Sha256::digest(format!("{}\n{}", grammar.name, instructions(grammar)));
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
