//! Parts that rows of several tables have.

use furrow_rollout::{Outcome, OutcomeName, SamplingParams, ScoreComponent};

use super::error::RowError;
use super::values::parse_text;
use crate::schema::{ComponentCell, OutcomeCell, SamplingCell};

impl From<&Outcome> for OutcomeCell {
    fn from(outcome: &Outcome) -> Self {
        Self { name: outcome.name.as_str().into(), detail: outcome.detail.clone() }
    }
}

impl OutcomeCell {
    pub(super) fn into_domain(self) -> Result<Outcome, RowError> {
        Ok(Outcome { name: parse_text("outcome.name", &self.name, OutcomeName::parse)?, detail: self.detail })
    }
}

impl From<&ScoreComponent> for ComponentCell {
    fn from(component: &ScoreComponent) -> Self {
        Self { name: component.name.clone(), value: component.value }
    }
}

pub(super) fn component_cells(components: &[ScoreComponent]) -> Vec<ComponentCell> {
    components.iter().map(ComponentCell::from).collect()
}

pub(super) fn components(cells: Vec<ComponentCell>) -> Vec<ScoreComponent> {
    cells.into_iter().map(|cell| ScoreComponent { name: cell.name, value: cell.value }).collect()
}

impl From<&SamplingParams> for SamplingCell {
    fn from(sampling: &SamplingParams) -> Self {
        Self {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k.cast_signed(),
            min_p: sampling.min_p,
            max_tokens: sampling.max_tokens.cast_signed(),
            seed: sampling.seed,
        }
    }
}

impl From<&SamplingCell> for SamplingParams {
    fn from(cell: &SamplingCell) -> Self {
        Self {
            temperature: cell.temperature,
            top_p: cell.top_p,
            top_k: cell.top_k.cast_unsigned(),
            min_p: cell.min_p,
            max_tokens: cell.max_tokens.cast_unsigned(),
            seed: cell.seed,
        }
    }
}
