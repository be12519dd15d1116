//! Which ends of a trajectory pay.
//!
//! A state alone does not: a policy that brought it about and then replied with garbage, left the
//! task's hosts or never stopped would otherwise learn that such ends cost nothing.

use furrow_rollout::{EndKind, FaultOwner, ScoreComponent};

use super::verdict::RuleVerdict;
use crate::fields::JsonFields;

const KEY: &str = "ends";

/// The ends that pay, in the order of [`EndKind::ALL`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PayingEnds(Vec<EndKind>);

impl Default for PayingEnds {
    /// An answer, and the page's own word.
    fn default() -> Self {
        Self(vec![EndKind::Answered, EndKind::Done])
    }
}

impl PayingEnds {
    /// Reads the key of a task's line.
    pub(super) fn read(fields: &mut JsonFields) -> Self {
        let own = || EndKind::ALL.into_iter().filter(|end| end.fault(true) == FaultOwner::Policy);
        let Some(names) = fields.texts(KEY, EndKind::ALL.len(), 64) else { return Self::default() };
        for name in names.iter().filter(|name| !own().any(|end| end.as_str() == name.as_str())) {
            let known: Vec<_> = own().map(EndKind::as_str).collect();
            fields
                .problem(KEY, format!("{name:?} is no end of a policy's; use some of {}", known.join(", ")));
        }
        Self(own().filter(|end| names.iter().any(|name| name == end.as_str())).collect())
    }

    pub(super) fn pays(&self, end: EndKind) -> bool {
        self.0.contains(&end)
    }

    /// The verdict on a trajectory whose end does not pay: no reward, but a loss stays one.
    pub(super) fn unpaid(&self, end: EndKind, verdict: Option<RuleVerdict>) -> RuleVerdict {
        let paying: Vec<_> = self.0.iter().map(|end| end.as_str()).collect();
        let named = format!("it ended by {}, and this task pays for {}", end.as_str(), paying.join(" and "));
        let unpaid = ScoreComponent { name: "unpaid_end".to_owned(), value: 1.0 };
        let Some(verdict) = verdict else {
            return RuleVerdict { components: vec![unpaid], ..RuleVerdict::binary(false, named) };
        };
        let mut components = verdict.components;
        if verdict.reward > 0.0 {
            components.push(unpaid);
        }
        RuleVerdict {
            reward: verdict.reward.min(0.0),
            success: false,
            components,
            rationale: format!("{named}; {}", verdict.rationale),
        }
    }
}
