//! Samples tokens on the device: uploads requests, launches one kernel, downloads results.
//!
//! Bytes for 100 tokens: 3 kB up, a mask of V / 8 bytes for each distinct grammar state, 200 kB of
//! ids down.

use furrow_model::sample::{AllowedTokens, KEPT_MAX, SampleOutcome, SampleRequest};

use crate::executor::{ExecutionLane, Executor, ExecutorError};
use crate::launch::{DeviceElement, DeviceView};
use crate::ops::sample::{self, SampleLaunch};
use crate::types::ModelTypes;
use crate::work::BatchBuffers;

/// Samples from rows of logits in the workspace; at most as many as it has memory for.
pub(crate) fn sample_rows<P: ModelTypes>(
    executor: &mut dyn Executor,
    work: &BatchBuffers<P>,
    vocabulary: usize,
    picks: &[SampleRequest<'_>],
) -> Result<Vec<SampleOutcome>, ExecutorError> {
    if picks.is_empty() {
        return Ok(Vec::new());
    }
    let buffers = &work.sampling;
    let (questions, sets) = pack_requests(picks);
    let mask_blocks: Vec<u64> = sets.iter().flat_map(|set| bits(set, vocabulary)).collect();
    send(executor, &questions, buffers.picks)?;
    if !mask_blocks.is_empty() {
        send(executor, &mask_blocks, buffers.allowed)?;
    }
    let sample = SampleLaunch {
        logits: work.logits,
        vocabulary,
        picks: buffers.picks.first(picks.len()),
        allowed: buffers.allowed,
        ids: buffers.ids,
        lefts: buffers.lefts,
        sums: buffers.sums,
        picked: buffers.picked,
        kept: buffers.kept,
    };
    executor.launch(ExecutionLane::Batch, &sample.launch())?;
    let mut picked = vec![<sample::PackedSample as bytemuck::Zeroable>::zeroed(); picks.len()];
    let mut kept = vec![0_u32; picks.len() * KEPT_MAX];
    executor.download(
        ExecutionLane::Batch,
        buffers.picked.address(),
        bytemuck::cast_slice_mut(&mut picked),
    )?;
    executor.download(ExecutionLane::Batch, buffers.kept.address(), bytemuck::cast_slice_mut(&mut kept))?;
    Ok(picked.iter().zip(kept.chunks_exact(KEPT_MAX)).map(|(picked, kept)| picked.answer(kept)).collect())
}

fn send<T: DeviceElement + bytemuck::Pod>(
    executor: &mut dyn Executor,
    values: &[T],
    to: DeviceView<T>,
) -> Result<(), ExecutorError> {
    executor.upload(ExecutionLane::Batch, bytemuck::cast_slice(values), to.first(values.len()).address())
}

/// The requests in the kernel's form, and the sets of allowed ids that they refer to. Sessions
/// share sets, so each is uploaded once.
fn pack_requests<'a>(picks: &[SampleRequest<'a>]) -> (Vec<sample::PackedRequest>, Vec<&'a AllowedTokens>) {
    let mut sets: Vec<&AllowedTokens> = Vec::new();
    let mut number = |allowed: &'a AllowedTokens| {
        let known = sets.iter().position(|set| std::ptr::eq(*set, allowed));
        known.unwrap_or_else(|| {
            sets.push(allowed);
            sets.len() - 1
        }) as u32
    };
    let questions =
        picks.iter().map(|pick| sample::PackedRequest::new(pick, pick.allowed.map(&mut number))).collect();
    (questions, sets)
}

/// A set as 64-bit masks for this vocabulary; ids outside it are dropped.
fn bits(allowed: &AllowedTokens, vocabulary: usize) -> impl Iterator<Item = u64> + '_ {
    let inside = move |block: usize| match vocabulary - block * 64 {
        left @ 0..64 => (1 << left) - 1,
        _ => u64::MAX,
    };
    (0..vocabulary.div_ceil(64))
        .map(move |block| allowed.bits().get(block).copied().unwrap_or(0) & inside(block))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_sent_once_and_cut_to_the_vocabulary() {
        let [small, all] = [AllowedTokens::all(3), AllowedTokens::all(200)];
        let pick = |allowed| SampleRequest {
            row: 0,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            allowed,
            uniform: 0.5,
        };
        let (_, sets) = pack_requests(&[pick(Some(&all)), pick(None), pick(Some(&small)), pick(Some(&all))]);
        assert!(
            sets.len() == 2
                && std::ptr::eq(sets[0], &raw const all)
                && std::ptr::eq(sets[1], &raw const small)
        );
        assert_eq!(bits(&small, 130).collect::<Vec<_>>(), [7, 0, 0]);
        assert_eq!(bits(&all, 70).collect::<Vec<_>>(), [u64::MAX, 63]);
        assert_eq!(bits(&all, 128).collect::<Vec<_>>(), [u64::MAX; 2]);
    }
}
