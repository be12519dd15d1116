//! Replies that call functions, as layouts: one call or several, each with arguments of the
//! function's schema, or else JSON of another schema.

use super::automaton::NodeId;
use super::error::ConstraintError;
use super::layout::AutomatonBuilder;
use super::lexicon::TokenLexicon;
use super::schema::Schema;
use crate::tool_text::{BETWEEN_CALLS, call_head, call_tail};

/// The calls that a reply may consist of.
#[derive(Debug, Clone, PartialEq)]
pub struct CallForms {
    /// Names of the functions and schemas of their arguments, at least one.
    pub functions: Vec<(String, Schema)>,
    /// Whether a reply may have several calls.
    pub several: bool,
    /// What a reply may be instead of calls.
    pub otherwise: Option<Schema>,
}

/// Most calls of a reply. Each repeats the layouts of all functions.
const CALLS_MAX: u32 = 4;

impl CallForms {
    /// Most calls of a reply: the automaton of several can be too large where that of one is not.
    pub(super) fn counts(&self) -> &'static [u32] {
        if self.several { &[CALLS_MAX, 1] } else { &[1] }
    }

    /// The first node of a reply of at most this many calls that ends with the stop id.
    pub(super) fn build(
        &self,
        builder: &mut AutomatonBuilder<'_, '_>,
        lexicon: &TokenLexicon<'_>,
        calls_max: u32,
    ) -> Result<NodeId, ConstraintError> {
        // Numbers in the arguments of every call would be too many ids if ids had several digits.
        builder.digit_by_digit();
        let end = builder.automaton.end();
        let stop = builder.automaton.chain(&[lexicon.stop], end);
        let mut next = stop;
        for count in (0..calls_max).rev() {
            let call = self.call(builder, next)?;
            next = if count == 0 {
                call
            } else {
                let one_more = builder.fixed(BETWEEN_CALLS, call)?;
                builder.either(one_more, stop)?
            };
        }
        match &self.otherwise {
            None => Ok(next),
            Some(schema) => {
                let value = builder.shape(&schema.0, stop)?;
                builder.either(next, value)
            }
        }
    }

    fn call(&self, builder: &mut AutomatonBuilder<'_, '_>, next: NodeId) -> Result<NodeId, ConstraintError> {
        let close = builder.fixed(&call_tail(), next)?;
        let mut ways = Vec::with_capacity(self.functions.len());
        for (name, arguments) in &self.functions {
            let arguments = builder.shape(&arguments.0, close)?;
            ways.push(builder.fixed(&call_head(name), arguments)?);
        }
        builder.one_of(ways)
    }
}
