//! Bounds of texts and numbers in a schema, and their nodes.
//!
//! A text of bounded length is written in characters of ASCII, one id each, because an id of free
//! text may have any number of characters. Of a number with bounds, the part before the point is
//! chosen so that every fraction fits, so values between a bound and the next whole number are not
//! written.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::automaton::NodeId;
use super::error::ConstraintError;
use super::layout::AutomatonBuilder;

/// Numbers of characters that a text may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TextBounds {
    from: u32,
    /// `None`: as many as fit.
    to: Option<u32>,
}

/// The numbers within a schema's bounds that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NumberBounds {
    positive: Option<Magnitudes>,
    negative: Option<Magnitudes>,
}

/// Whole numbers without a sign. Those below the last one may have a fraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Magnitudes {
    from: u64,
    to: u64,
    /// Whether the last one is a value itself.
    with_last: bool,
}

/// Each character takes up to 93 edges.
const CHARS_MAX: u64 = 256;
/// Whole numbers of 15 digits are exact in every JSON parser.
const WHOLE_MAX: f64 = 999_999_999_999_999.0;

impl TextBounds {
    /// Reads `minLength` and `maxLength`; the error says what is wrong.
    pub(super) fn read(map: &Map<String, Value>) -> Result<Self, String> {
        let length = |key: &str| match map.get(key) {
            None => Ok(None),
            Some(value) => match value.as_u64().filter(|length| *length <= CHARS_MAX) {
                Some(length) => Ok(Some(length as u32)),
                None => Err(format!("{key} must be a whole number from 0 to {CHARS_MAX}")),
            },
        };
        let from = length("minLength")?.unwrap_or(0);
        let to = length("maxLength")?;
        match to {
            Some(to) if from > to => Err(format!("minLength {from} is more than maxLength {to}")),
            _ => Ok(Self { from, to }),
        }
    }

    /// A text in quotes.
    pub(super) fn build(
        self,
        builder: &mut AutomatonBuilder<'_, '_>,
        next: NodeId,
    ) -> Result<NodeId, ConstraintError> {
        let close = builder.fixed("\"", next)?;
        let mut node_id = match self.to {
            None => builder.automaton.text(u32::MAX, close),
            Some(_) => close,
        };
        let chars: Vec<u32> = if self == Self::default() { Vec::new() } else { builder.single_chars() };
        if chars.is_empty() && self != Self::default() {
            return Err(ConstraintError::NoChars);
        }
        let bounded = self.to.unwrap_or(self.from);
        for count in (0..bounded).rev() {
            builder.automaton.check_limits()?;
            let one: BTreeMap<u32, NodeId> = chars.iter().map(|id| (*id, node_id)).collect();
            let one = builder.automaton.step(one);
            node_id = if count < self.from { one } else { builder.either(one, close)? };
        }
        builder.fixed("\"", node_id)
    }
}

impl NumberBounds {
    /// Reads the bounds of a number; the error says what is wrong.
    pub(super) fn read(map: &Map<String, Value>) -> Result<Self, String> {
        let bound = |key: &str| match map.get(key) {
            None => Ok(None),
            Some(value) => match value.as_f64().filter(|value| value.abs() <= WHOLE_MAX) {
                Some(value) => Ok(Some(value)),
                None => Err(format!("{key} must be a number of at most 15 digits")),
            },
        };
        let minimum = bound("minimum")?.unwrap_or(-WHOLE_MAX);
        let maximum = bound("maximum")?.unwrap_or(WHOLE_MAX);
        let above = bound("exclusiveMinimum")?;
        let below = bound("exclusiveMaximum")?;
        // The first and last whole numbers.
        let from = minimum.ceil().max(above.map_or(-WHOLE_MAX, |above| above.floor() + 1.0));
        let to = maximum.floor().min(below.map_or(WHOLE_MAX, |below| below.ceil() - 1.0));
        // A fraction above the last whole number fits if the bound is not below the next one.
        let reach = maximum.min(below.unwrap_or(WHOLE_MAX));
        let low = minimum.max(above.unwrap_or(-WHOLE_MAX));
        if from > to {
            return Err(format!("no whole number is within the bounds {low} and {reach}"));
        }
        let magnitudes = |from: f64, to: f64, reach: f64| {
            let open = reach >= to + 1.0;
            Magnitudes { from: from as u64, to: (if open { to + 1.0 } else { to }) as u64, with_last: !open }
        };
        let positive = (to >= 0.0).then(|| magnitudes(from.max(0.0), to, reach));
        let negative = (from <= -1.0).then(|| magnitudes((-to).max(1.0), -from, -low));
        Ok(Self { positive, negative })
    }

    pub(super) fn build(
        self,
        builder: &mut AutomatonBuilder<'_, '_>,
        fraction_digits: usize,
        next: NodeId,
    ) -> Result<NodeId, ConstraintError> {
        let fraction = builder.fraction(fraction_digits, next)?;
        let point = builder.fixed(".", fraction)?;
        let behind = builder.either(point, next)?;
        let mut ways = Vec::new();
        if let Some(magnitudes) = self.positive {
            ways.push(magnitudes.build(builder, behind, next)?);
        }
        if let Some(magnitudes) = self.negative {
            let digits = magnitudes.build(builder, behind, next)?;
            ways.push(builder.fixed("-", digits)?);
        }
        builder.one_of(ways)
    }
}

impl Magnitudes {
    fn build(
        self,
        builder: &mut AutomatonBuilder<'_, '_>,
        behind: NodeId,
        next: NodeId,
    ) -> Result<NodeId, ConstraintError> {
        let Self { from, to, with_last } = self;
        let mut ways = Vec::new();
        if from < to {
            ways.push(builder.digits_of(from, to - 1, behind)?);
        }
        if with_last {
            ways.push(builder.digits_of(to, to, next)?);
        }
        builder.one_of(ways)
    }
}
