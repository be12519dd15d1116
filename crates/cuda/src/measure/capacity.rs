//! How large a model of a measurement may be.

use furrow_model::backend::BackendCapacity;
use furrow_model::config::Config;

use crate::backend::{self, BackendOptions, CudaOpenError};

/// The capacity with the most pages that fit into this many bytes: at least those of `capacity`, at
/// most enough for every slot.
///
/// # Errors
/// If not even those of `capacity` fit.
pub(super) fn widest(
    config: &Config,
    options: &BackendOptions,
    free: u64,
    capacity: BackendCapacity,
) -> Result<BackendCapacity, CudaOpenError> {
    let each = capacity.pages;
    let with = |pages| BackendCapacity { pages, ..capacity };
    let fits = |pages| Ok::<_, CudaOpenError>(backend::plan(config, &with(pages), options)?.total() <= free);
    if !fits(each)? {
        let planned = backend::plan(config, &capacity, options)?;
        return Err(CudaOpenError::Full { requested: planned, free });
    }
    // Bisects between a number that fits and one that does not, until they differ by at most one
    // sequence's pages.
    let mut low = each;
    let mut high = each.saturating_mul(capacity.slots);
    if fits(high)? {
        return Ok(with(high));
    }
    while high - low > each {
        let middle = low + (high - low) / 2;
        if fits(middle)? { low = middle } else { high = middle }
    }
    Ok(with(low))
}
