//! The operations on sessions: batches of all kinds, forks, offloading, reuse of slots and pages,
//! graphs, exchanged weights.

use std::sync::atomic::Ordering;

use furrow_cuda::backend::{BackendOptions, CudaOpenError, ModelPrecision, StagingMode, SwapError, open};
use furrow_model::backend::{Backend, BackendCapacity, LogitRows, PAGE_TOKENS, Page, SequenceSpan, Slot};
use furrow_model::checkpoint::Checkpoint;
use furrow_model::cpu::CpuBackend;
use furrow_model::forward::Sequence;
use furrow_model::kernels::ThreadPool;
use furrow_model::weights::ModelWeights;

use crate::case::{BackendCase, on_a_gpu, relative_rms, sequence};
use crate::host_executor::HostExecutor;
use crate::made;
use crate::pair::BackendPair;

fn pages(numbers: impl IntoIterator<Item = u32>) -> Vec<Page> {
    numbers.into_iter().map(Page).collect()
}

#[test]
fn a_batch_holds_decode_and_prefill_of_any_length_side_by_side() {
    for case in BackendCase::all()
        .into_iter()
        .chain([BackendCase::oracle("moe", ModelPrecision::Usual), BackendCase::of_experts()])
    {
        let mut pair = BackendPair::open(&case);
        let mut own: Vec<Sequence> = (0..4).map(sequence).collect();
        let texts: Vec<Vec<u32>> = (0..4).map(|index| case.ids(20 + index, 90)).collect();
        // Tokens of each sequence in each batch: starts, one-token prompts, ragged prefill, decode
        // in the middle.
        for lengths in [[5, 0, 1, 66], [1, 17, 1, 1], [1, 1, 0, 1], [2, 1, 30, 0], [1, 1, 1, 1]] {
            let spans: Vec<SequenceSpan<'_>> = (0..4)
                .filter(|index| lengths[*index] > 0)
                .map(|index| {
                    let tokens = &texts[index][own[index].len()..][..lengths[index]];
                    let want = if index == 0 && lengths[0] > 1 { LogitRows::All } else { LogitRows::Last };
                    own[index].span(tokens, &[], want)
                })
                .rev()
                .collect();
            pair.run(&spans);
            own.iter_mut().zip(lengths).for_each(|(own, length)| own.advance(length));
        }
    }
}

#[test]
fn forks_share_full_pages_and_go_their_own_ways() {
    for case in BackendCase::all() {
        let mut pair = BackendPair::open(&case);
        let ids = case.ids(5, 80);
        let mut first = sequence(0);
        pair.extend(&mut first, &ids[..70]);
        pair.copy_slot(0, 3);
        pair.copy_page(1, 30);
        let mut fork = Sequence::new(Slot(3), pages([0, 30, 29]));
        fork.advance(70);
        // The original continues first, over what the fork must not see.
        pair.extend(&mut first, &ids[70..]);
        let other = case.ids(6, 3);
        pair.extend(&mut fork, &other[..2]);
        pair.extend(&mut fork, &other[2..]);
        pair.extend(&mut first, &other[..1]);
    }
}

#[test]
fn a_snapshot_holds_its_own_session_whatever_ran_beside_it() {
    let case = BackendCase::made(ModelPrecision::Usual);
    let mut pair = BackendPair::open(&case);
    let texts: Vec<Vec<u32>> = (0..3).map(|index| case.ids(30 + index, 20)).collect();
    let mut own: Vec<Sequence> = (0..3).map(sequence).collect();
    let spans: Vec<SequenceSpan<'_>> =
        own.iter().zip(&texts).map(|(own, text)| own.span(text, &[], LogitRows::Last)).collect();
    pair.run(&spans);
    own.iter_mut().for_each(|own| own.advance(20));
    // A snapshot of the second of three; then all three continue in one batch, and the snapshot
    // after them.
    pair.copy_slot(1, 3);
    pair.copy_page(8, 30);
    let next = case.ids(40, 1);
    let spans: Vec<SequenceSpan<'_>> = own.iter().map(|own| own.span(&next, &[], LogitRows::Last)).collect();
    let together = pair.run(&spans);
    let mut snapshot = Sequence::new(Slot(3), pages([30]));
    snapshot.advance(20);
    let alone = pair.extend(&mut snapshot, &next);
    let near = |index: usize| relative_rms(&alone, &together[index]);
    assert!(near(1) < case.bound && near(0) > 0.2 && near(2) > 0.2, "{:?}", [0, 1, 2].map(near));
}

#[test]
fn graphs_are_recorded_once_a_bucket_and_give_what_no_graph_gives() {
    for case in
        [BackendCase::oracle("dense", ModelPrecision::Usual), BackendCase::made(ModelPrecision::Usual)]
    {
        let mut pair = BackendPair::open(&case);
        let (mut plain, _) = case.device_with(BackendOptions { graphs: false, ..case.options });
        let mut own: Vec<Sequence> = (0..4).map(sequence).collect();
        // One-token prompts first, then batches whose members, order and number change.
        for (step, members) in
            [&[0, 1, 2][..], &[0, 1, 2], &[2, 0], &[3, 2, 1, 0], &[1], &[2, 1, 3]].iter().enumerate()
        {
            let tokens: Vec<Vec<u32>> =
                members.iter().map(|member| case.ids((step * 7 + member) as u32, 1)).collect();
            let spans: Vec<SequenceSpan<'_>> = members
                .iter()
                .zip(&tokens)
                .map(|(member, token)| own[*member].span(token, &[], LogitRows::Last))
                .collect();
            let got = pair.run(&spans);
            plain.run(&spans).unwrap();
            for (row, got) in got.iter().enumerate() {
                assert!(got == plain.logits(row as u32).unwrap(), "{}: step {step}, row {row}", pair.name);
            }
            members.iter().for_each(|member| own[*member].advance(1));
        }
        let [recorded, replayed] =
            [&pair.gauge.recorded, &pair.gauge.replayed].map(|count| count.load(Ordering::Relaxed));
        // Buckets of 4, 2 and 1; a GPU does not count.
        let want = if on_a_gpu() { (0, 0) } else { (3, 3) };
        assert_eq!((recorded, replayed), want, "{}", pair.name);
    }
}

#[test]
fn neighbours_change_no_bit_when_deterministic() {
    for precision in [ModelPrecision::Usual, ModelPrecision::WideResidual, ModelPrecision::NarrowState] {
        let case = BackendCase::made(precision);
        let options = BackendOptions { deterministic: true, ..case.options };
        assert!(has_the_same_bits_alone_and_between_neighbours(&case, options), "{precision:?}");
    }
    // The order of a product's sums depends on its shape, on the host executor too: unless
    // deterministic mode is on, a row's bits depend on the number of rows.
    let case = BackendCase::made(ModelPrecision::Usual);
    assert!(on_a_gpu() || !has_the_same_bits_alone_and_between_neighbours(&case, case.options));
}

/// Whether a session gets the same bits alone and between two others, for a prompt and two sampled
/// tokens.
fn has_the_same_bits_alone_and_between_neighbours(case: &BackendCase, options: BackendOptions) -> bool {
    let device = || case.device_with(options).0;
    let ids = case.ids(11, 30);
    let other = case.ids(12, 30);
    let mut alone = device();
    let mut want = Vec::new();
    let mut own = sequence(1);
    for piece in [&ids[..28], &ids[28..29], &ids[29..]] {
        own.run(&mut *alone, piece, &[], LogitRows::Last).unwrap();
        want.push(alone.logits(0).unwrap().to_vec());
    }
    let mut together = device();
    let mut own = sequence(1);
    let mut first = sequence(0);
    let mut last = sequence(3);
    let steps: [(&[u32], &[u32], &[u32]); 3] = [
        (&other[..5], &ids[..28], &other[..1]),
        (&other[5..6], &ids[28..29], &other[1..9]),
        (&other[6..7], &ids[29..], &other[9..10]),
    ];
    let mut is_same = true;
    for (step, (before, piece, after)) in steps.into_iter().enumerate() {
        let spans = [
            first.span(before, &[], LogitRows::All),
            own.span(piece, &[], LogitRows::Last),
            last.span(after, &[], LogitRows::Last),
        ];
        together.run(&spans).unwrap();
        is_same &= together.logits(before.len() as u32).unwrap() == want[step];
        first.advance(before.len());
        own.advance(piece.len());
        last.advance(after.len());
    }
    is_same
}

#[test]
fn exchanged_weights_take_over_and_bad_ones_do_not() {
    let case = BackendCase::made(ModelPrecision::Usual);
    let mut pair = BackendPair::open(&case);
    let mut own = sequence(0);
    let ids = case.ids(13, 9);
    let before = pair.extend(&mut own, &ids[..4]);
    pair.extend(&mut own, &ids[4..5]);

    let other = made::written(2, &made::config(), |_, _| {});
    let loaded = ModelWeights::load(other.path(), &ThreadPool::new(1), &mut |_, _| {}).unwrap();
    let device = &mut pair.device;
    let cpu = &mut pair.cpu;
    device.replace_weights(&Checkpoint::open(other.path()).unwrap(), &mut |_, _| {}).unwrap();
    cpu.replace_weights(loaded.into()).unwrap();
    // The session's state stays, and so does the graph of one row.
    pair.extend(&mut own, &ids[5..6]);
    let bad = made::written(3, &made::config(), |name, values| {
        if name == "backbone.layers.1.mixer.o_proj.weight" {
            values[5] = f32::NAN;
        }
    });
    let refused = pair.device.replace_weights(&Checkpoint::open(bad.path()).unwrap(), &mut |_, _| {});
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("o_proj.weight") && text.contains("NaN at index 5"), "{text}");
    let stranger = Checkpoint::open(&crate::case::oracle_dir("vl_names_bf16")).unwrap();
    let refused = pair.device.replace_weights(&stranger, &mut |_, _| {});
    assert!(matches!(refused, Err(SwapError::OtherModel)));
    pair.extend(&mut own, &ids[6..]);
    let after = pair.extend(&mut sequence(1), &ids[..4]);
    assert!(relative_rms(&after, &before) > 0.2, "the new weights differ from the old ones");
}

#[test]
fn staged_weights_load_during_batches_and_take_over_in_one_copy() {
    [StagingMode::Device, StagingMode::Host].into_iter().for_each(staged);
}

fn staged(stage: StagingMode) {
    let case = BackendCase::made(ModelPrecision::Usual);
    let mut pair = BackendPair::open(&case);
    assert!(matches!(
        pair.device.stage_weights(Checkpoint::open(&case.dir).unwrap()),
        Err(SwapError::NoStage)
    ));
    let plain = pair.device.plan().total();
    pair.device = case.device_with(BackendOptions { stage, ..case.options }).0;
    let weights = pair.device.plan().parts()[0].1;
    let more = if stage == StagingMode::Device { weights } else { 0 };
    assert_eq!(
        pair.device.plan().total(),
        plain + more,
        "twice the weights on the device, or no more than before"
    );
    assert!(matches!(pair.device.swap_weights(), Err(SwapError::NotStaged)));

    let mut own = sequence(0);
    let ids = case.ids(16, 40);
    pair.extend(&mut own, &ids[..3]);
    let other = made::written(2, &made::config(), |_, _| {});
    pair.device.stage_weights(Checkpoint::open(other.path()).unwrap()).unwrap();
    let mut token = 3;
    while !pair.device.stage_more(100_000).unwrap() {
        assert!(matches!(pair.device.swap_weights(), Err(SwapError::NotStaged)));
        // The old weights are in use.
        pair.extend(&mut own, &ids[token..=token]);
        token += 1;
    }
    assert!(token > 4, "the weights come in several pieces");
    pair.extend(&mut own, &ids[token..=token]);
    pair.device.swap_weights().unwrap();
    let loaded = ModelWeights::load(other.path(), &ThreadPool::new(1), &mut |_, _| {}).unwrap();
    pair.cpu.replace_weights(loaded.into()).unwrap();
    pair.extend(&mut own, &ids[token + 1..token + 2]);
    pair.extend(&mut own, &ids[token + 2..token + 6]);

    // Invalid weights are dropped, and those in use stay.
    let bad = made::written(3, &made::config(), |name, values| {
        if name == "backbone.norm_f.weight" {
            values[1] = f32::INFINITY;
        }
    });
    pair.device.stage_weights(Checkpoint::open(bad.path()).unwrap()).unwrap();
    let text = pair.device.stage_more(u64::MAX).unwrap_err().to_string();
    assert!(text.contains("norm_f.weight"), "{text}");
    assert!(matches!(pair.device.stage_more(1), Err(SwapError::NotStaged)));
    assert!(matches!(pair.device.swap_weights(), Err(SwapError::NotStaged)));
    pair.extend(&mut own, &ids[..1]);

    // A second valid set goes to the memory of the first, whose copy may still have been in
    // progress.
    let third = made::written(4, &made::config(), |_, _| {});
    pair.device.stage_weights(Checkpoint::open(third.path()).unwrap()).unwrap();
    assert!(pair.device.stage_more(u64::MAX).unwrap());
    pair.device.swap_weights().unwrap();
    let loaded = ModelWeights::load(third.path(), &ThreadPool::new(1), &mut |_, _| {}).unwrap();
    pair.cpu.replace_weights(loaded.into()).unwrap();
    pair.extend(&mut own, &ids[1..2]);
}

#[test]
fn too_little_host_memory_for_staged_weights_is_reported() {
    let case = BackendCase::made(ModelPrecision::Usual);
    let options = BackendOptions { stage: StagingMode::Host, ..case.options };
    let checkpoint = Checkpoint::open(&case.dir).unwrap();
    let (device, _) = case.device();
    let total = device.plan().total();
    let weights = device.plan().parts()[0].1;
    let (mut host, _) = HostExecutor::new(total);
    host.pinnable = weights - 1;
    let capacity = BackendCapacity { offload_bytes: 0, ..case.capacity() };
    let error = open(&checkpoint, capacity, options, Box::new(host), &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, CudaOpenError::HostFull { requested } if requested == weights), "{error}");
}

#[test]
fn a_session_rebuilt_from_its_tokens_gives_the_same_logits() {
    let case = BackendCase::made(ModelPrecision::Usual);
    let ids = case.ids(14, 100);
    let mut pair = BackendPair::open(&case);
    let mut decoded = sequence(0);
    for token in &ids[..70] {
        // Only the last logits are needed: the other tokens run as they were sampled.
        pair.cpu.run(&[decoded.span(std::slice::from_ref(token), &[], LogitRows::Nothing)]).unwrap();
        pair.device.run(&[decoded.span(std::slice::from_ref(token), &[], LogitRows::Nothing)]).unwrap();
        decoded.advance(1);
    }
    let want = pair.extend(&mut decoded, &ids[70..72]);
    let mut rebuilt = BackendPair::open(&case);
    let mut own = sequence(2);
    rebuilt.extend(&mut own, &ids[..PAGE_TOKENS + 6]);
    let got = rebuilt.extend(&mut own, &ids[70..72]);
    let error = relative_rms(&got, &want);
    assert!(error <= case.bound, "{error:e}");
}

/// The `cpu` backend and the device refuse the same batches.
#[test]
fn both_refuse_the_same_batches() {
    let case = BackendCase::oracle("dense", ModelPrecision::Usual);
    let mut pair = BackendPair::open(&case);
    let ids = case.ids(15, 400);
    pair.extend(&mut sequence(0), &ids[..3]);
    let own = sequence(1);
    let far = Sequence::new(Slot(4), pages([0]));
    let short = Sequence::new(Slot(2), Vec::new());
    let beyond = Sequence::new(Slot(2), pages([32]));
    let unknown = [1, 512, 2];
    let good = own.span(&ids[..2], &[], LogitRows::Last);
    let batches: Vec<Vec<SequenceSpan<'_>>> = vec![
        vec![own.span(&ids[..321], &[], LogitRows::Nothing)],
        vec![own.span(&ids[..320], &[], LogitRows::All), far.span(&ids[..1], &[], LogitRows::Last)],
        // More sessions than slots.
        vec![good, far.span(&ids[..1], &[], LogitRows::Last)],
        vec![good, short.span(&ids[..1], &[], LogitRows::Last)],
        vec![good, beyond.span(&ids[..1], &[], LogitRows::Last)],
        vec![own.span(&unknown, &[], LogitRows::Last)],
    ];
    let answer =
        |backend: &mut dyn Backend, batch: &[SequenceSpan<'_>]| backend.run(batch).unwrap_err().to_string();
    for batch in &batches {
        let cpu: &mut CpuBackend = &mut pair.cpu;
        assert_eq!(answer(&mut *pair.device, batch), answer(cpu, batch));
    }
    assert!(pair.device.run(&[]).is_ok());
    pair.extend(&mut sequence(1), &ids[..3]);
}
