//! Offloaded states in pinned memory: they are restored bit for bit, in any order of the lanes'
//! work, and batches that do not use them do not wait for them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use furrow_cuda::backend::{CudaOpenError, DeviceBackend, ModelPrecision, open};
use furrow_cuda::executor::{ExecutionLane, Executor};
use furrow_model::backend::{Backend, BackendCapacity, LogitRows, OffloadedState, Page, Slot};
use furrow_model::checkpoint::Checkpoint;
use furrow_model::forward::Sequence;

use crate::case::{BYTES, BackendCase, executor, on_a_gpu, sequence};
use crate::host_executor::{ExecutorGauge, HostExecutor, PlantedFault};
use crate::pair::BackendPair;

fn pages(numbers: impl IntoIterator<Item = u32>) -> Vec<Page> {
    numbers.into_iter().map(Page).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn an_offloaded_session_is_restored_bit_for_bit_into_other_slots_and_pages() {
    for case in BackendCase::all() {
        let mut pair = BackendPair::open(&case);
        let ids = case.ids(7, 68);
        let other = case.ids(8, 40);
        pair.extend(&mut sequence(0), &ids[..66]);
        // A copy that stays, for comparison.
        pair.copy_slot(0, 3);
        pair.copy_page(0, 30);
        pair.copy_page(1, 31);
        let offloaded = pair.offload(0, &pages([0, 1]));
        assert_eq!(
            offloaded.each_ref().map(OffloadedState::bytes),
            [pair.cpu.offloaded_bytes(2), pair.device.offloaded_bytes(2)]
        );
        // Another sequence overwrites the slot and the pages meanwhile.
        pair.extend(&mut sequence(0), &other);
        pair.cpu.clear(Slot(0)).unwrap();
        pair.device.clear(Slot(0)).unwrap();
        pair.restore(&offloaded, 2, &pages([17, 9]));
        drop(offloaded);
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

/// A device with memory for one offloaded session of two pages.
fn tight(case: &BackendCase, executor: Box<dyn Executor>, state: u64) -> Box<dyn DeviceBackend> {
    let capacity = BackendCapacity { offload_bytes: state, ..case.capacity() };
    let checkpoint = Checkpoint::open(&case.dir).unwrap();
    open(&checkpoint, capacity, case.options, executor, &mut |_, _| {}).unwrap()
}

/// Bytes of an offloaded session of two pages.
fn two_pages(case: &BackendCase) -> u64 {
    case.device().0.offloaded_bytes(2)
}

/// Sessions that take turns in slots and pages of the device and in the one place in host memory,
/// without waits between; returns the results of each.
fn take_turns(case: &BackendCase, device: &mut dyn DeviceBackend) -> Vec<Vec<u32>> {
    let mut answers = Vec::new();
    let mut say = |device: &mut dyn DeviceBackend, own: &mut Sequence, tokens: &[u32]| {
        device.run(&[own.span(tokens, &[], LogitRows::Last)]).unwrap();
        own.advance(tokens.len());
        answers.push(device.logits(0).unwrap().to_vec());
    };
    let ids = case.ids(9, 80);
    let mut first = sequence(0);
    let mut second = sequence(1);
    say(device, &mut first, &ids[..66]);
    say(device, &mut second, &ids[3..72]);
    // Both continue once more before any results are read: a state is copied out after the batches
    // that wrote it.
    device.run(&[first.span(&ids[66..67], &[], LogitRows::Last)]).unwrap();
    first.advance(1);
    let offloaded = device.offload(Slot(0), &pages([0, 1])).unwrap().unwrap();
    assert!(device.offload(Slot(1), &pages([8, 9])).unwrap().is_none(), "there is memory for only one");
    // A third begins where the first one still is.
    let mut third = Sequence::new(Slot(0), pages([0, 1]));
    device.run(&[third.span(&ids[20..30], &[], LogitRows::Last)]).unwrap();
    third.advance(10);
    device.restore(&offloaded, Slot(2), &pages([17, 20])).unwrap();
    drop(offloaded);
    // The second goes to the memory that the first one has just left.
    let offloaded = device.offload(Slot(1), &pages([8, 9])).unwrap().unwrap();
    // A fork of the first, whose copy in may still be in progress, over the second, whose copy out
    // may be.
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
    device.restore(&offloaded, Slot(0), &pages([1, 0])).unwrap();
    drop(offloaded);
    let mut second = Sequence::new(Slot(0), pages([1, 0]));
    second.advance(69);
    // Its pages have what the second wrote before they are offloaded again.
    say(device, &mut second, &ids[72..73]);
    let offloaded = device.offload(Slot(0), &pages([1, 0])).unwrap().unwrap();
    device.clear(Slot(0)).unwrap();
    device.restore(&offloaded, Slot(3), &pages([2, 3])).unwrap();
    let mut second = Sequence::new(Slot(3), pages([2, 3]));
    second.advance(70);
    say(device, &mut second, &ids[73..75]);
    // A prompt in a slot that is not in use.
    say(device, &mut sequence(0), &ids[..5]);
    answers.iter().map(|logits| bits(logits)).collect()
}

const BATCH: ExecutionLane = ExecutionLane::Batch;
const COPY: ExecutionLane = ExecutionLane::Copy;
/// Lanes that do their work as late as possible; the others do it at once.
const LATE: [&[ExecutionLane]; 4] = [&[COPY], &[BATCH], &[BATCH, COPY], &[]];

fn taken_late(
    case: &BackendCase,
    state: u64,
    late: &'static [ExecutionLane],
    planted: Option<PlantedFault>,
) -> Vec<Vec<u32>> {
    let (mut host, _) = HostExecutor::new(BYTES);
    (host.late, host.planted) = (late, planted);
    take_turns(case, &mut *tight(case, Box::new(host), state))
}

#[test]
fn states_and_batches_wait_for_each_other_whatever_is_late() {
    let case = BackendCase::made(ModelPrecision::Usual);
    let state = two_pages(&case);
    let want = take_turns(&case, &mut *tight(&case, executor().0, state));
    assert_eq!(want.len(), 8);
    assert!(want.iter().flatten().all(|bits| f32::from_bits(*bits).is_finite()));
    if on_a_gpu() {
        return; // A GPU has its own order.
    }
    for late in LATE {
        assert!(taken_late(&case, state, late, None) == want, "late: {late:?}");
    }
    // Each wait is necessary: without it something comes too late or too early.
    for planted in [
        PlantedFault::Deaf(BATCH, COPY),
        PlantedFault::Deaf(COPY, BATCH),
        PlantedFault::SendsAtOnce,
        PlantedFault::FetchesAtOnce,
    ] {
        let differs = |late: &&'static [ExecutionLane]| taken_late(&case, state, late, Some(planted)) != want;
        assert!(LATE.iter().any(differs), "{planted:?} is not detected");
    }
}

#[test]
fn batches_run_while_others_are_offloaded() {
    if on_a_gpu() {
        return; // A GPU does not report its pending work.
    }
    let case = BackendCase::made(ModelPrecision::Usual);
    let (mut device, gauge): (Box<dyn DeviceBackend>, Arc<ExecutorGauge>) = case.device();
    let put_off = || gauge.put_off.load(Ordering::Relaxed);
    let ids = case.ids(10, 80);
    let mut first = sequence(0);
    let mut second = sequence(1);
    first.run(&mut *device, &ids[..66], &[], LogitRows::Last).unwrap();
    second.run(&mut *device, &ids[..5], &[], LogitRows::Last).unwrap();
    device.copy_slot(Slot(0), Slot(3)).unwrap();
    device.wait().unwrap();
    let offloaded = device.offload(Slot(0), &pages([0, 1])).unwrap().unwrap();
    let under_way = put_off();
    assert!(under_way > 0, "the copy is in progress");
    assert!(device.is_moving(Slot(0), &[]).unwrap() && device.is_moving(Slot(3), &pages([1])).unwrap());
    assert!(!device.is_moving(Slot(1), &pages([8])).unwrap());
    second.run(&mut *device, &ids[5..6], &[], LogitRows::Last).unwrap();
    assert!(device.logits(0).unwrap().iter().all(|logit| logit.is_finite()));
    // A fork shares the full page: both it and the copy only read there.
    let mut fork = Sequence::new(Slot(3), pages([0, 30]));
    fork.advance(64);
    fork.run(&mut *device, &ids[64..65], &[], LogitRows::Last).unwrap();
    device.logits(0).unwrap();
    assert_eq!(put_off(), under_way, "they do not wait for the copy");
    // Into its slot, which is cleared, and another page.
    device.clear(Slot(0)).unwrap();
    assert!(put_off() > under_way);
    second.run(&mut *device, &ids[6..7], &[], LogitRows::Last).unwrap();
    assert!(put_off() > under_way, "no batch waits for a slot that it does not use");
    let mut third = Sequence::new(Slot(0), pages([20]));
    third.run(&mut *device, &ids[..2], &[], LogitRows::Last).unwrap();
    assert_eq!(put_off(), 0, "the state had to be copied out first");
    device.restore(&offloaded, Slot(2), &pages([17, 9])).unwrap();
    assert!(put_off() > 0);
    second.run(&mut *device, &ids[7..8], &[], LogitRows::Last).unwrap();
    device.logits(0).unwrap();
    assert!(put_off() > 0, "it is copied while the batch runs");
    assert!(device.is_moving(Slot(2), &[]).unwrap());
    device.wait().unwrap();
    assert!(!device.is_moving(Slot(2), &pages([17, 9])).unwrap(), "the copy has ended");
}

#[test]
fn too_little_pinned_memory_for_offloaded_states_is_reported() {
    let case = BackendCase::made(ModelPrecision::Usual);
    let checkpoint = Checkpoint::open(&case.dir).unwrap();
    let page = {
        let device = case.device().0;
        device.offloaded_bytes(1) - device.offloaded_bytes(0)
    };
    let open = |pinnable, offload_bytes| {
        let (mut host, _) = HostExecutor::new(BYTES);
        host.pinnable = pinnable;
        let capacity = BackendCapacity { offload_bytes, ..case.capacity() };
        open(&checkpoint, capacity, case.options, Box::new(host), &mut |_, _| {})
    };
    let refused = open(9 * page, 10 * page + 1).unwrap_err();
    let text = refused.to_string();
    assert!(
        matches!(refused, CudaOpenError::OffloadFull { requested, available: 0 } if requested == 10 * page + 1),
        "{text}"
    );
    assert!(text.contains("of which 0.0 MB are available"), "{text}");
    // Exactly as much as can be pinned is enough, and too little for a state is reported when one
    // is offloaded.
    let mut device = open(10 * page, 10 * page + 1).unwrap();
    let each = device.offloaded_bytes(1);
    let offloaded_states: Vec<_> =
        (0..10 * page / each).map(|_| device.offload(Slot(0), &pages([0])).unwrap().unwrap()).collect();
    assert!(device.offload(Slot(0), &pages([0])).unwrap().is_none());
    assert_eq!(offloaded_states.iter().map(OffloadedState::bytes).sum::<u64>(), 10 * page / each * each);
    drop(offloaded_states);
    assert!(device.offload(Slot(0), &pages([0])).unwrap().is_some());
    assert!(open(0, 0).unwrap().offload(Slot(0), &[]).unwrap().is_none());
}
