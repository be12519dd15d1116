//! Draws on the device: questions up, one launch, answers down.
//!
//! Bytes of 100 draws: 3 kB up, a mask of V / 8 bytes for each grammar state among them, 200 kB of ids down.

use furrow_model::sample::{Allowed, KEPT_MAX, Pick, Picked};

use crate::executor::{Executor, ExecutorError, Lane};
use crate::launch::{Element, View};
use crate::ops::sample::{self, Sample};
use crate::types::Types;
use crate::work::Work;

/// Draws from rows of logits as they lie in the workspace; at most as many as it has room for.
pub(crate) fn draw<P: Types>(
    executor: &mut dyn Executor,
    work: &Work<P>,
    vocabulary: usize,
    picks: &[Pick<'_>],
) -> Result<Vec<Picked>, ExecutorError> {
    if picks.is_empty() {
        return Ok(Vec::new());
    }
    let draws = &work.draws;
    let (questions, sets) = questions(picks);
    let words: Vec<u64> = sets.iter().flat_map(|set| bits(set, vocabulary)).collect();
    send(executor, &questions, draws.picks)?;
    if !words.is_empty() {
        send(executor, &words, draws.allowed)?;
    }
    let sample = Sample {
        logits: work.logits,
        vocabulary,
        picks: draws.picks.first(picks.len()),
        allowed: draws.allowed,
        ids: draws.ids,
        lefts: draws.lefts,
        sums: draws.sums,
        picked: draws.picked,
        kept: draws.kept,
    };
    executor.launch(Lane::Batch, &sample.launch())?;
    let mut picked = vec![<sample::Picked as bytemuck::Zeroable>::zeroed(); picks.len()];
    let mut kept = vec![0_u32; picks.len() * KEPT_MAX];
    executor.download(Lane::Batch, draws.picked.address(), bytemuck::cast_slice_mut(&mut picked))?;
    executor.download(Lane::Batch, draws.kept.address(), bytemuck::cast_slice_mut(&mut kept))?;
    Ok(picked.iter().zip(kept.chunks_exact(KEPT_MAX)).map(|(picked, kept)| picked.answer(kept)).collect())
}

fn send<T: Element + bytemuck::Pod>(
    executor: &mut dyn Executor,
    values: &[T],
    to: View<T>,
) -> Result<(), ExecutorError> {
    executor.upload(Lane::Batch, bytemuck::cast_slice(values), to.first(values.len()).address())
}

/// The picks as the kernel reads them, and the sets of allowed ids they name. Sessions share theirs, so each goes up once.
fn questions<'a>(picks: &[Pick<'a>]) -> (Vec<sample::Pick>, Vec<&'a Allowed>) {
    let mut sets: Vec<&Allowed> = Vec::new();
    let mut number = |allowed: &'a Allowed| {
        let known = sets.iter().position(|set| std::ptr::eq(*set, allowed));
        known.unwrap_or_else(|| {
            sets.push(allowed);
            sets.len() - 1
        }) as u32
    };
    let questions = picks.iter().map(|pick| sample::Pick::new(pick, pick.allowed.map(&mut number))).collect();
    (questions, sets)
}

/// A set as words of this vocabulary: ids beyond it are not there.
fn bits(allowed: &Allowed, vocabulary: usize) -> impl Iterator<Item = u64> + '_ {
    let inside = move |word: usize| match vocabulary - word * 64 {
        left @ 0..64 => (1 << left) - 1,
        _ => u64::MAX,
    };
    (0..vocabulary.div_ceil(64))
        .map(move |word| allowed.bits().get(word).copied().unwrap_or(0) & inside(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_sent_once_and_cut_to_the_vocabulary() {
        let [small, all] = [Allowed::all(3), Allowed::all(200)];
        let pick = |allowed| Pick {
            row: 0,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            allowed,
            uniform: 0.5,
        };
        let (_, sets) = questions(&[pick(Some(&all)), pick(None), pick(Some(&small)), pick(Some(&all))]);
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
