//! What a job needs of one resource, term by term, and what there is of it.

use super::machine::AvailableBytes;

/// One term of a resource's demand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DemandTerm {
    /// Name of the consumer.
    pub what: String,
    pub bytes: u64,
    /// How the number was obtained, unless the name says it.
    pub how: String,
}

/// The demand for one resource, and what is available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResourceDemand {
    /// Name of the resource.
    pub what: &'static str,
    pub terms: Vec<DemandTerm>,
    /// What is available; `None` if unknown.
    pub available: Option<AvailableBytes>,
    /// What to change if it does not fit.
    pub remedy: String,
    /// Whether a job on a GPU must not start without it: true for what the backend allocates, false
    /// for estimates, because a worker short of memory takes fewer sessions and one short of disk
    /// waits.
    pub must_fit: bool,
}

impl DemandTerm {
    pub(crate) fn new(what: impl Into<String>, bytes: u64, how: impl Into<String>) -> Self {
        Self { what: what.into(), bytes, how: how.into() }
    }
}

impl ResourceDemand {
    /// The sum of all terms.
    pub(crate) fn total(&self) -> u64 {
        self.terms.iter().fold(0, |sum, term| sum.saturating_add(term.bytes))
    }

    /// Whether there is enough; `None` if what is available is unknown.
    pub(crate) fn fits(&self) -> Option<bool> {
        self.available.as_ref().map(|there| self.total() <= there.bytes)
    }
}
