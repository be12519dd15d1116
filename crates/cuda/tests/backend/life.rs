//! What sessions go through: batches of all kinds, forks, parking, reuse of slots and pages, graphs, exchanged weights.

use std::sync::atomic::Ordering;

use furrow_cuda::backend::{OpenError, Options, Precision, Stage, SwapError, open};
use furrow_model::backend::{Backend, PAGE_TOKENS, Page, Room, Slot, Span, Want};
use furrow_model::checkpoint::Checkpoint;
use furrow_model::cpu::Cpu;
use furrow_model::forward::Sequence;
use furrow_model::kernels::Team;
use furrow_model::weights::Weights;

use crate::air::Air;
use crate::case::{Case, on_a_gpu, relative_rms, sequence};
use crate::made;
use crate::pair::Pair;

fn pages(numbers: impl IntoIterator<Item = u32>) -> Vec<Page> {
    numbers.into_iter().map(Page).collect()
}

#[test]
fn a_batch_holds_decode_and_prefill_of_any_length_side_by_side() {
    for case in Case::all().into_iter().chain([Case::oracle("moe", Precision::Usual), Case::of_experts()]) {
        let mut pair = Pair::open(&case);
        let mut own: Vec<Sequence> = (0..4).map(sequence).collect();
        let texts: Vec<Vec<u32>> = (0..4).map(|index| case.ids(20 + index, 90)).collect();
        // Tokens of each sequence in each batch: starts, one-token prompts, ragged prefill, decode in the middle.
        for lengths in [[5, 0, 1, 66], [1, 17, 1, 1], [1, 1, 0, 1], [2, 1, 30, 0], [1, 1, 1, 1]] {
            let spans: Vec<Span<'_>> = (0..4)
                .filter(|index| lengths[*index] > 0)
                .map(|index| {
                    let tokens = &texts[index][own[index].len()..][..lengths[index]];
                    let want = if index == 0 && lengths[0] > 1 { Want::All } else { Want::Last };
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
    for case in Case::all() {
        let mut pair = Pair::open(&case);
        let ids = case.ids(5, 80);
        let mut first = sequence(0);
        pair.extend(&mut first, &ids[..70]);
        pair.copy_slot(0, 3);
        pair.copy_page(1, 30);
        let mut fork = Sequence::new(Slot(3), pages([0, 30, 29]));
        fork.advance(70);
        // The original goes on first, over what the fork must not see.
        pair.extend(&mut first, &ids[70..]);
        let other = case.ids(6, 3);
        pair.extend(&mut fork, &other[..2]);
        pair.extend(&mut fork, &other[2..]);
        pair.extend(&mut first, &other[..1]);
    }
}

#[test]
fn a_snapshot_is_of_its_own_session_whatever_ran_beside_it() {
    let case = Case::made(Precision::Usual);
    let mut pair = Pair::open(&case);
    let texts: Vec<Vec<u32>> = (0..3).map(|index| case.ids(30 + index, 20)).collect();
    let mut own: Vec<Sequence> = (0..3).map(sequence).collect();
    let spans: Vec<Span<'_>> =
        own.iter().zip(&texts).map(|(own, text)| own.span(text, &[], Want::Last)).collect();
    pair.run(&spans);
    own.iter_mut().for_each(|own| own.advance(20));
    // Of the second of three; then all three go on in one batch, and the snapshot after them.
    pair.copy_slot(1, 3);
    pair.copy_page(8, 30);
    let next = case.ids(40, 1);
    let spans: Vec<Span<'_>> = own.iter().map(|own| own.span(&next, &[], Want::Last)).collect();
    let together = pair.run(&spans);
    let mut snapshot = Sequence::new(Slot(3), pages([30]));
    snapshot.advance(20);
    let alone = pair.extend(&mut snapshot, &next);
    let near = |index: usize| relative_rms(&alone, &together[index]);
    assert!(near(1) < case.bound && near(0) > 0.2 && near(2) > 0.2, "{:?}", [0, 1, 2].map(near));
}

#[test]
fn graphs_are_recorded_once_a_bucket_and_give_what_no_graph_gives() {
    for case in [Case::oracle("dense", Precision::Usual), Case::made(Precision::Usual)] {
        let mut pair = Pair::open(&case);
        let (mut plain, _) = case.device_with(Options { graphs: false, ..case.options });
        let mut own: Vec<Sequence> = (0..4).map(sequence).collect();
        // One-token prompts first, then batches whose members, order and number change.
        for (step, members) in
            [&[0, 1, 2][..], &[0, 1, 2], &[2, 0], &[3, 2, 1, 0], &[1], &[2, 1, 3]].iter().enumerate()
        {
            let tokens: Vec<Vec<u32>> =
                members.iter().map(|member| case.ids((step * 7 + member) as u32, 1)).collect();
            let spans: Vec<Span<'_>> = members
                .iter()
                .zip(&tokens)
                .map(|(member, token)| own[*member].span(token, &[], Want::Last))
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
        // Buckets of 4, 2 and 1; a GPU is not asked.
        let want = if on_a_gpu() { (0, 0) } else { (3, 3) };
        assert_eq!((recorded, replayed), want, "{}", pair.name);
    }
}

#[test]
fn neighbours_change_no_bit_where_that_is_asked_for() {
    for precision in [Precision::Usual, Precision::WideResidual, Precision::NarrowState] {
        let case = Case::made(precision);
        let options = Options { deterministic: true, ..case.options };
        assert!(is_alone_whoever_is_there(&case, options), "{precision:?}");
    }
    // Products sum by shape, on air too: without asking for it, a row's bits depend on how many there are.
    let case = Case::made(Precision::Usual);
    assert!(on_a_gpu() || !is_alone_whoever_is_there(&case, case.options));
}

/// Whether a session gets the same bits alone and between two others: a prompt, and two drawn tokens.
fn is_alone_whoever_is_there(case: &Case, options: Options) -> bool {
    let device = || case.device_with(options).0;
    let (ids, other) = (case.ids(11, 30), case.ids(12, 30));
    let mut alone = device();
    let mut want = Vec::new();
    let mut own = sequence(1);
    for piece in [&ids[..28], &ids[28..29], &ids[29..]] {
        own.run(&mut *alone, piece, &[], Want::Last).unwrap();
        want.push(alone.logits(0).unwrap().to_vec());
    }
    let mut together = device();
    let (mut own, mut first, mut last) = (sequence(1), sequence(0), sequence(3));
    let steps: [(&[u32], &[u32], &[u32]); 3] = [
        (&other[..5], &ids[..28], &other[..1]),
        (&other[5..6], &ids[28..29], &other[1..9]),
        (&other[6..7], &ids[29..], &other[9..10]),
    ];
    let mut is_same = true;
    for (step, (before, piece, after)) in steps.into_iter().enumerate() {
        let spans = [
            first.span(before, &[], Want::All),
            own.span(piece, &[], Want::Last),
            last.span(after, &[], Want::Last),
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
    let case = Case::made(Precision::Usual);
    let mut pair = Pair::open(&case);
    let mut own = sequence(0);
    let ids = case.ids(13, 9);
    let before = pair.extend(&mut own, &ids[..4]);
    pair.extend(&mut own, &ids[4..5]);

    let other = made::written(2, &made::config(), |_, _| {});
    let loaded = Weights::load(other.path(), &Team::new(1), &mut |_, _| {}).unwrap();
    let (device, cpu) = (&mut pair.device, &mut pair.cpu);
    device.replace_weights(&Checkpoint::open(other.path()).unwrap(), &mut |_, _| {}).unwrap();
    cpu.replace_weights(loaded.into()).unwrap();
    // The session's state stays, the graph of one row too.
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
    assert!(relative_rms(&after, &before) > 0.2, "the new weights are others");
}

#[test]
fn staged_weights_come_beside_running_batches_and_take_over_in_one_copy() {
    [Stage::Device, Stage::Host].into_iter().for_each(staged);
}

fn staged(stage: Stage) {
    let case = Case::made(Precision::Usual);
    let mut pair = Pair::open(&case);
    assert!(matches!(
        pair.device.stage_weights(Checkpoint::open(&case.dir).unwrap()),
        Err(SwapError::NoStage)
    ));
    let plain = pair.device.plan().total();
    pair.device = case.device_with(Options { stage, ..case.options }).0;
    let weights = pair.device.plan().parts()[0].1;
    let more = if stage == Stage::Device { weights } else { 0 };
    assert_eq!(pair.device.plan().total(), plain + more, "as much again, or nothing on the device");
    assert!(matches!(pair.device.swap_weights(), Err(SwapError::NotStaged)));

    let (mut own, ids) = (sequence(0), case.ids(16, 40));
    pair.extend(&mut own, &ids[..3]);
    let other = made::written(2, &made::config(), |_, _| {});
    pair.device.stage_weights(Checkpoint::open(other.path()).unwrap()).unwrap();
    let mut token = 3;
    while !pair.device.stage_more(100_000).unwrap() {
        assert!(matches!(pair.device.swap_weights(), Err(SwapError::NotStaged)));
        // The old ones are in use.
        pair.extend(&mut own, &ids[token..=token]);
        token += 1;
    }
    assert!(token > 4, "in pieces");
    pair.extend(&mut own, &ids[token..=token]);
    pair.device.swap_weights().unwrap();
    let loaded = Weights::load(other.path(), &Team::new(1), &mut |_, _| {}).unwrap();
    pair.cpu.replace_weights(loaded.into()).unwrap();
    pair.extend(&mut own, &ids[token + 1..token + 2]);
    pair.extend(&mut own, &ids[token + 2..token + 6]);

    // Bad ones are forgotten, and those in use stay.
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

    // A second good set goes where the first one went, which may still have been under way.
    let third = made::written(4, &made::config(), |_, _| {});
    pair.device.stage_weights(Checkpoint::open(third.path()).unwrap()).unwrap();
    assert!(pair.device.stage_more(u64::MAX).unwrap());
    pair.device.swap_weights().unwrap();
    let loaded = Weights::load(third.path(), &Team::new(1), &mut |_, _| {}).unwrap();
    pair.cpu.replace_weights(loaded.into()).unwrap();
    pair.extend(&mut own, &ids[1..2]);
}

#[test]
fn a_machine_that_cannot_hold_the_second_set_says_so() {
    let case = Case::made(Precision::Usual);
    let options = Options { stage: Stage::Host, ..case.options };
    let checkpoint = Checkpoint::open(&case.dir).unwrap();
    let (device, _) = case.device();
    let (total, weights) = (device.plan().total(), device.plan().parts()[0].1);
    let (mut air, _) = Air::new(total);
    air.lent = weights - 1;
    let room = Room { parked_bytes: 0, ..case.room() };
    let error = open(&checkpoint, room, options, Box::new(air), &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, OpenError::HostFull { asked } if asked == weights), "{error}");
}

#[test]
fn rebuilt_from_its_tokens_a_session_goes_on_as_it_would_have() {
    let case = Case::made(Precision::Usual);
    let ids = case.ids(14, 100);
    let mut pair = Pair::open(&case);
    let mut lived = sequence(0);
    for token in &ids[..70] {
        // Only the last is wanted: the others are run as they were drawn.
        pair.cpu.run(&[lived.span(std::slice::from_ref(token), &[], Want::Nothing)]).unwrap();
        pair.device.run(&[lived.span(std::slice::from_ref(token), &[], Want::Nothing)]).unwrap();
        lived.advance(1);
    }
    let want = pair.extend(&mut lived, &ids[70..72]);
    let mut rebuilt = Pair::open(&case);
    let mut own = sequence(2);
    rebuilt.extend(&mut own, &ids[..PAGE_TOKENS + 6]);
    let got = rebuilt.extend(&mut own, &ids[70..72]);
    let error = relative_rms(&got, &want);
    assert!(error <= case.bound, "{error:e}");
}

/// What the `cpu` backend holds its room to, the device holds it to.
#[test]
fn both_refuse_the_same_batches() {
    let case = Case::oracle("dense", Precision::Usual);
    let mut pair = Pair::open(&case);
    let ids = case.ids(15, 400);
    pair.extend(&mut sequence(0), &ids[..3]);
    let own = sequence(1);
    let far = Sequence::new(Slot(4), pages([0]));
    let short = Sequence::new(Slot(2), Vec::new());
    let beyond = Sequence::new(Slot(2), pages([32]));
    let unknown = [1, 512, 2];
    let good = own.span(&ids[..2], &[], Want::Last);
    let batches: Vec<Vec<Span<'_>>> = vec![
        vec![own.span(&ids[..321], &[], Want::Nothing)],
        vec![own.span(&ids[..320], &[], Want::All), far.span(&ids[..1], &[], Want::Last)],
        // More sessions than slots.
        vec![good, far.span(&ids[..1], &[], Want::Last)],
        vec![good, short.span(&ids[..1], &[], Want::Last)],
        vec![good, beyond.span(&ids[..1], &[], Want::Last)],
        vec![own.span(&unknown, &[], Want::Last)],
    ];
    let answer = |backend: &mut dyn Backend, batch: &[Span<'_>]| backend.run(batch).unwrap_err().to_string();
    for batch in &batches {
        let cpu: &mut Cpu = &mut pair.cpu;
        assert_eq!(answer(&mut *pair.device, batch), answer(cpu, batch));
    }
    assert!(pair.device.run(&[]).is_ok());
    pair.extend(&mut sequence(1), &ids[..3]);
}
