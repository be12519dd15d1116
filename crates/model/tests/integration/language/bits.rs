//! Cuts of a prefill, batches, pages and threads do not change a single bit.

use furrow_model::backend::{Backend, HostState, LogitRows, Page, SequenceSpan, Slot};
use furrow_model::cpu::CpuBackend;
use furrow_model::forward::{ForwardRequest, Sequence, forward};

use crate::language::oracle::{OracleCase, sequence};

/// The bits of some values, so that NaNs can be compared too.
pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Logits of all rows of one span, run alone.
pub(super) fn run(cpu: &mut CpuBackend, own: &mut Sequence, ids: &[u32]) -> Vec<u32> {
    own.run(cpu, ids, &[], LogitRows::All).unwrap();
    (0..ids.len()).flat_map(|row| bits(cpu.logits(row as u32).unwrap())).collect()
}

fn offload(cpu: &mut CpuBackend, own: &Sequence) -> HostState {
    HostState::of(&cpu.offload(own.slot(), &own.pages()[..own.len().div_ceil(64)]).unwrap().unwrap()).clone()
}

#[test]
fn every_segmentation_gives_the_bits_of_the_whole_prompt() {
    for case in OracleCase::all() {
        let ids = case.ids("prompt_a");
        let mut cpu = case.open();
        let mut own = sequence(0);
        let whole = run(&mut cpu, &mut own, &ids);
        let state = offload(&mut cpu, &own);
        for segments in case.segmentations() {
            let mut cpu = case.open();
            let mut own = sequence(0);
            let mut logits = Vec::new();
            let mut first = 0;
            for length in &segments {
                logits.extend(run(&mut cpu, &mut own, &ids[first..first + length]));
                first += length;
            }
            assert_eq!(first, ids.len());
            assert!(logits == whole, "{} {:?}: logits of {segments:?}", case.name, case.compute);
            assert!(
                offload(&mut cpu, &own) == state,
                "{} {:?}: state of {segments:?}",
                case.name,
                case.compute
            );
        }
    }
}

#[test]
fn forward_in_segments_and_in_calls_that_are_too_small() {
    let case = OracleCase::load("long_chunk128", furrow_model::kernels::ProductPrecision::Float32);
    let input_ids = case.ids("prompt_a");
    let request = ForwardRequest { input_ids: &input_ids, decode: 5, ..ForwardRequest::default() };
    let whole = forward(&mut case.open(), &request).unwrap();
    for segments in case.segmentations() {
        let got = forward(&mut case.open(), &ForwardRequest { segments: &segments, ..request }).unwrap();
        assert!(got == whole, "{segments:?}");
    }
    for rows_max in [1, 7, 64, 299] {
        let capacity =
            furrow_model::backend::BackendCapacity { rows_max, logits_max: 200, ..case.capacity() };
        let mut cpu = CpuBackend::open(case.weights.clone(), capacity, 2, case.compute).unwrap();
        assert!(forward(&mut cpu, &request).unwrap() == whole, "{rows_max} rows");
    }
}

#[test]
fn threads_change_nothing() {
    for case in OracleCase::all() {
        let ids = case.ids("prompt_a");
        let alone = run(&mut case.open_with(1), &mut sequence(0), &ids);
        for threads in [2, 3, 8] {
            let got = run(&mut case.open_with(threads), &mut sequence(0), &ids);
            assert!(got == alone, "{} {:?}: {threads} threads", case.name, case.compute);
        }
    }
}

/// The tokens of a sequence, and the lengths of the pieces in which they run.
struct SegmentPlan {
    ids: Vec<u32>,
    pieces: Vec<usize>,
}

/// Runs sequences in the same batches, one piece of each at a time, and returns each one's logits.
fn together(case: &OracleCase, plans: &[SegmentPlan], slots: &[u32]) -> Vec<Vec<u32>> {
    let mut cpu = case.open();
    let mut own: Vec<Sequence> = slots.iter().map(|slot| sequence(*slot)).collect();
    let mut logits = vec![Vec::new(); plans.len()];
    for turn in 0..plans.iter().map(|plan| plan.pieces.len()).max().unwrap() {
        let running: Vec<usize> =
            (0..plans.len()).filter(|index| turn < plans[*index].pieces.len()).collect();
        let piece = |index: &usize| {
            let first = own[*index].len();
            &plans[*index].ids[first..first + plans[*index].pieces[turn]]
        };
        let spans: Vec<SequenceSpan<'_>> =
            running.iter().map(|index| own[*index].span(piece(index), &[], LogitRows::All)).collect();
        cpu.run(&spans).unwrap();
        let mut row = 0;
        for index in &running {
            for _ in 0..plans[*index].pieces[turn] {
                logits[*index].extend(bits(cpu.logits(row).unwrap()));
                row += 1;
            }
        }
        running.iter().for_each(|index| own[*index].advance(plans[*index].pieces[turn]));
    }
    logits
}

#[test]
fn a_batch_gives_each_sequence_the_bits_it_has_alone() {
    for case in OracleCase::all() {
        let a = case.ids("prompt_a");
        let b = case.ids("prompt_b");
        let half = b.len() / 2;
        let plans = [
            SegmentPlan { pieces: vec![a.len() - 3, 1, 1, 1], ids: a.clone() },
            SegmentPlan { pieces: vec![half, b.len() - half], ids: b.clone() },
            SegmentPlan { pieces: vec![1; b.len()], ids: b.clone() },
            SegmentPlan { pieces: vec![5, 1, a.len() - 6], ids: a.clone() },
        ];
        let alone = [&a, &b, &b, &a].map(|ids| run(&mut case.open(), &mut sequence(0), ids));
        // With any slots: spans run in the order of slots, logits are in the order of spans.
        for slots in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
            let got = together(&case, &plans, &slots);
            for (index, (got, alone)) in got.iter().zip(&alone).enumerate() {
                assert!(got == alone, "{} {:?}: sequence {index}, slots {slots:?}", case.name, case.compute);
            }
        }
    }
}

#[test]
fn only_wanted_rows_have_logits_and_they_are_the_same_bits() {
    for case in OracleCase::all() {
        let a = case.ids("prompt_a");
        let b = case.ids("prompt_b");
        let width = case.vocabulary();
        let alone = [&a, &b].map(|ids| run(&mut case.open(), &mut sequence(0), ids));
        let mut cpu = case.open();
        let own: Vec<Sequence> = (0..3).map(sequence).collect();
        let spans = [
            own[2].span(&a, &[], LogitRows::Last),
            own[0].span(&a, &[], LogitRows::Nothing),
            own[1].span(&b, &[], LogitRows::All),
        ];
        cpu.run(&spans).unwrap();
        assert_eq!(bits(cpu.logits(0).unwrap()), alone[0][(a.len() - 1) * width..]);
        for row in 0..b.len() {
            assert_eq!(bits(cpu.logits(1 + row as u32).unwrap()), alone[1][row * width..(row + 1) * width]);
        }
    }
}

#[test]
fn pages_may_lie_anywhere() {
    let case = OracleCase::load("long_chunk128", furrow_model::kernels::ProductPrecision::Float32);
    let ids = case.ids("prompt_a");
    let alone = run(&mut case.open(), &mut sequence(0), &ids);
    for pages in [[9, 3, 31, 0, 17], [4, 3, 2, 1, 0]] {
        let mut own = Sequence::new(Slot(2), pages.into_iter().map(Page).collect());
        assert!(run(&mut case.open(), &mut own, &ids) == alone, "pages {pages:?}");
    }
}
