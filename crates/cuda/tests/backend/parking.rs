//! States parked in pinned memory: they come back bit for bit, in whatever order lanes do their work, and batches that do not touch them wait for none of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use furrow_cuda::backend::{Device, OpenError, Precision, open};
use furrow_cuda::executor::{Executor, Lane};
use furrow_model::backend::{Backend, Page, Parked, Room, Slot, Want};
use furrow_model::checkpoint::Checkpoint;
use furrow_model::forward::Sequence;

use crate::air::{Air, Gauge, Planted};
use crate::case::{BYTES, Case, executor, on_a_gpu, sequence};
use crate::pair::Pair;

fn pages(numbers: impl IntoIterator<Item = u32>) -> Vec<Page> {
    numbers.into_iter().map(Page).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn a_parked_session_comes_back_bit_for_bit_into_other_places() {
    for case in Case::all() {
        let mut pair = Pair::open(&case);
        let (ids, other) = (case.ids(7, 68), case.ids(8, 40));
        pair.extend(&mut sequence(0), &ids[..66]);
        // One that stays, to be held against the one that goes.
        pair.copy_slot(0, 3);
        pair.copy_page(0, 30);
        pair.copy_page(1, 31);
        let parked = pair.park(0, &pages([0, 1]));
        assert_eq!(
            parked.each_ref().map(Parked::bytes),
            [pair.cpu.parked_bytes(2), pair.device.parked_bytes(2)]
        );
        // Somebody else works in its place meanwhile, over whatever it left there.
        pair.extend(&mut sequence(0), &other);
        pair.cpu.clear(Slot(0)).unwrap();
        pair.device.clear(Slot(0)).unwrap();
        pair.restore(&parked, 2, &pages([17, 9]));
        drop(parked);
        let mut own = Sequence::new(Slot(2), pages([17, 9, 20]));
        let mut stayed = Sequence::new(Slot(3), pages([30, 31, 29]));
        own.advance(66);
        stayed.advance(66);
        for tokens in [&ids[66..], &other[..1]] {
            let back = pair.extend(&mut own, tokens);
            assert!(bits(&back) == bits(&pair.extend(&mut stayed, tokens)), "{}", pair.name);
        }
    }
}

/// A device with room for one parked session of two pages.
fn tight(case: &Case, executor: Box<dyn Executor>, state: u64) -> Box<dyn Device> {
    let room = Room { parked_bytes: state, ..case.room() };
    let checkpoint = Checkpoint::open(&case.dir).unwrap();
    open(&checkpoint, room, case.options, executor, &mut |_, _| {}).unwrap()
}

/// Bytes of a parked session of two pages.
fn two_pages(case: &Case) -> u64 {
    case.device().0.parked_bytes(2)
}

/// Sessions that take turns in places of the device and in the one place beside it, with nothing waited for between: what each of them says.
fn turns(case: &Case, device: &mut dyn Device) -> Vec<Vec<u32>> {
    let mut said = Vec::new();
    let mut say = |device: &mut dyn Device, own: &mut Sequence, tokens: &[u32]| {
        device.run(&[own.span(tokens, &[], Want::Last)]).unwrap();
        own.advance(tokens.len());
        said.push(device.logits(0).unwrap().to_vec());
    };
    let ids = case.ids(9, 80);
    let (mut first, mut second) = (sequence(0), sequence(1));
    say(device, &mut first, &ids[..66]);
    say(device, &mut second, &ids[3..72]);
    // Both go on once more without anybody asking what came of it: a state leaves after the batches that made it.
    device.run(&[first.span(&ids[66..67], &[], Want::Last)]).unwrap();
    first.advance(1);
    let parked = device.park(Slot(0), &pages([0, 1])).unwrap().unwrap();
    assert!(device.park(Slot(1), &pages([8, 9])).unwrap().is_none(), "there is room for one");
    // A third begins where the first one still is.
    let mut third = Sequence::new(Slot(0), pages([0, 1]));
    device.run(&[third.span(&ids[20..30], &[], Want::Last)]).unwrap();
    third.advance(10);
    device.restore(&parked, Slot(2), &pages([17, 20])).unwrap();
    drop(parked);
    // The second goes to where the first one has just come from.
    let parked = device.park(Slot(1), &pages([8, 9])).unwrap().unwrap();
    // A fork of the first, which may still be coming, over the second, which may still be going.
    device.copy_slot(Slot(2), Slot(1)).unwrap();
    device.copy_page(Page(17), Page(8)).unwrap();
    device.copy_page(Page(20), Page(9)).unwrap();
    device.clear(Slot(3)).unwrap();
    let mut fork = Sequence::new(Slot(1), pages([8, 9]));
    fork.advance(67);
    let mut first = Sequence::new(Slot(2), pages([17, 20]));
    first.advance(67);
    say(device, &mut fork, &ids[70..72]);
    say(device, &mut first, &ids[67..69]);
    say(device, &mut third, &ids[30..33]);
    device.restore(&parked, Slot(0), &pages([1, 0])).unwrap();
    drop(parked);
    let mut second = Sequence::new(Slot(0), pages([1, 0]));
    second.advance(69);
    // Its pages hold what the second wrote before they are parked again.
    say(device, &mut second, &ids[72..73]);
    let parked = device.park(Slot(0), &pages([1, 0])).unwrap().unwrap();
    device.clear(Slot(0)).unwrap();
    device.restore(&parked, Slot(3), &pages([2, 3])).unwrap();
    let mut second = Sequence::new(Slot(3), pages([2, 3]));
    second.advance(70);
    say(device, &mut second, &ids[73..75]);
    // A prompt that begins where nothing is.
    say(device, &mut sequence(0), &ids[..5]);
    said.iter().map(|logits| bits(logits)).collect()
}

const BATCH: Lane = Lane::Batch;
const COPY: Lane = Lane::Copy;
/// Lanes that do their work as late as may be; the others do it at once.
const LATE: [&[Lane]; 4] = [&[COPY], &[BATCH], &[BATCH, COPY], &[]];

fn taken_late(case: &Case, state: u64, late: &'static [Lane], planted: Option<Planted>) -> Vec<Vec<u32>> {
    let (mut air, _) = Air::new(BYTES);
    (air.late, air.planted) = (late, planted);
    turns(case, &mut *tight(case, Box::new(air), state))
}

#[test]
fn states_and_batches_wait_for_each_other_whatever_is_late() {
    let case = Case::made(Precision::Usual);
    let state = two_pages(&case);
    let want = turns(&case, &mut *tight(&case, executor().0, state));
    assert_eq!(want.len(), 8);
    assert!(want.iter().flatten().all(|bits| f32::from_bits(*bits).is_finite()));
    if on_a_gpu() {
        return; // It has its own order.
    }
    for late in LATE {
        assert!(taken_late(&case, state, late, None) == want, "late: {late:?}");
    }
    // What each wait is for: without it something comes too late, or too early.
    for planted in
        [Planted::Deaf(BATCH, COPY), Planted::Deaf(COPY, BATCH), Planted::SendsAtOnce, Planted::FetchesAtOnce]
    {
        let differs = |late: &&'static [Lane]| taken_late(&case, state, late, Some(planted)) != want;
        assert!(LATE.iter().any(differs), "{planted:?} passes");
    }
}

#[test]
fn batches_go_on_while_others_are_parked() {
    if on_a_gpu() {
        return; // What it has put off is not told.
    }
    let case = Case::made(Precision::Usual);
    let (mut device, gauge): (Box<dyn Device>, Arc<Gauge>) = case.device();
    let put_off = || gauge.put_off.load(Ordering::Relaxed);
    let ids = case.ids(10, 80);
    let (mut first, mut second) = (sequence(0), sequence(1));
    first.run(&mut *device, &ids[..66], &[], Want::Last).unwrap();
    second.run(&mut *device, &ids[..5], &[], Want::Last).unwrap();
    device.copy_slot(Slot(0), Slot(3)).unwrap();
    device.wait().unwrap();
    let parked = device.park(Slot(0), &pages([0, 1])).unwrap().unwrap();
    let under_way = put_off();
    assert!(under_way > 0, "it is on its way");
    assert!(device.is_moving(Slot(0), &[]).unwrap() && device.is_moving(Slot(3), &pages([1])).unwrap());
    assert!(!device.is_moving(Slot(1), &pages([8])).unwrap());
    second.run(&mut *device, &ids[5..6], &[], Want::Last).unwrap();
    assert!(device.logits(0).unwrap().iter().all(|logit| logit.is_finite()));
    // A fork shares the full page: it reads there, and so does the copy.
    let mut fork = Sequence::new(Slot(3), pages([0, 30]));
    fork.advance(64);
    fork.run(&mut *device, &ids[64..65], &[], Want::Last).unwrap();
    device.logits(0).unwrap();
    assert_eq!(put_off(), under_way, "they wait for none of it");
    // Into its slot, which is cleared in its turn, and another page.
    device.clear(Slot(0)).unwrap();
    assert!(put_off() > under_way);
    second.run(&mut *device, &ids[6..7], &[], Want::Last).unwrap();
    assert!(put_off() > under_way, "a place that nobody runs in is waited for by nobody");
    let mut third = Sequence::new(Slot(0), pages([20]));
    third.run(&mut *device, &ids[..2], &[], Want::Last).unwrap();
    assert_eq!(put_off(), 0, "its place had to be left first");
    device.restore(&parked, Slot(2), &pages([17, 9])).unwrap();
    assert!(put_off() > 0);
    second.run(&mut *device, &ids[7..8], &[], Want::Last).unwrap();
    device.logits(0).unwrap();
    assert!(put_off() > 0, "it comes beside the batch");
    assert!(device.is_moving(Slot(2), &[]).unwrap());
    device.wait().unwrap();
    assert!(!device.is_moving(Slot(2), &pages([17, 9])).unwrap(), "it has come");
}

#[test]
fn a_machine_that_lends_too_little_for_parked_states_says_how_much() {
    let case = Case::made(Precision::Usual);
    let checkpoint = Checkpoint::open(&case.dir).unwrap();
    let page = {
        let device = case.device().0;
        device.parked_bytes(1) - device.parked_bytes(0)
    };
    let open = |lent, parked_bytes| {
        let (mut air, _) = Air::new(BYTES);
        air.lent = lent;
        let room = Room { parked_bytes, ..case.room() };
        open(&checkpoint, room, case.options, Box::new(air), &mut |_, _| {})
    };
    let refused = open(9 * page, 10 * page + 1).unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, OpenError::ParkingFull { asked, lent: 0 } if asked == 10 * page + 1), "{text}");
    assert!(text.contains("of which 0.0 MB are to be pinned"), "{text}");
    // What is lent to the byte is enough, and what holds no state is refused when it is asked for.
    let mut device = open(10 * page, 10 * page + 1).unwrap();
    let each = device.parked_bytes(1);
    let held: Vec<_> =
        (0..10 * page / each).map(|_| device.park(Slot(0), &pages([0])).unwrap().unwrap()).collect();
    assert!(device.park(Slot(0), &pages([0])).unwrap().is_none());
    assert_eq!(held.iter().map(Parked::bytes).sum::<u64>(), 10 * page / each * each);
    drop(held);
    assert!(device.park(Slot(0), &pages([0])).unwrap().is_some());
    assert!(open(0, 0).unwrap().park(Slot(0), &[]).unwrap().is_none());
}
