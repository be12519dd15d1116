//! The `cpu` backend allocates what its room says and nothing while it decodes, on any thread: one test, alone in its process, counts.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::alloc::System;
use std::path::PathBuf;

use furrow_model::backend::{Backend, Page, Room, Slot, Span, Want};
use furrow_model::cpu::Cpu;
use furrow_model::forward::Sequence;
use furrow_model::kernels::{Compute, Team};
use furrow_model::weights::Weights;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const PROMPT: [u32; 40] = [7; 40];

#[test]
fn what_is_allocated() {
    opening_takes_what_the_room_says();
    batches_allocate_nothing();
}

fn opening_takes_what_the_room_says() {
    for name in ["dense", "moe_latent_groups"] {
        let weights = load(name);
        let room =
            Room { slots: 40, pages: 100, rows_max: 256, logits_max: 64, features: 0, parked_bytes: 0 };
        let said = room.bytes(&weights.config, 0).total() as f64;
        let region = Region::new(COUNTED);
        let cpu = Cpu::open(weights, room, 1, Compute::Float32).unwrap();
        let taken = region.change().bytes_allocated as f64;
        assert!(taken >= said && taken < 1.05 * said, "{name}: {taken} bytes for {said}");
        drop(cpu);
    }
}

fn load(name: &str) -> Weights {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/oracle").join(name);
    Weights::load(&dir, &Team::new(1), &mut |_, _| {}).unwrap()
}

fn batches_allocate_nothing() {
    for (name, compute) in [
        ("dense", Compute::Float32),
        ("moe", Compute::Float32),
        ("moe_latent_groups", Compute::Float32),
        ("vl_names_bf16", Compute::Bfloat16),
    ] {
        for threads in [1, 2] {
            let allocated = run(name, compute, threads);
            assert_eq!(allocated, 0, "{name} {compute:?}, {threads} threads");
        }
    }
}

/// The fewest allocations of three times 30 mixed batches that cross a page: a thread that wakes for the first time makes its own
/// scratch, whenever that is.
fn run(name: &str, compute: Compute, threads: usize) -> usize {
    let room = Room { slots: 3, pages: 12, rows_max: 64, logits_max: 4, features: 0, parked_bytes: 0 };
    let mut cpu = Cpu::open(load(name), room, threads, compute).unwrap();
    let pages = |slot| (0..4).map(|page| Page(slot * 4 + page)).collect();
    let mut own = [0, 1, 2].map(|slot| Sequence::new(Slot(slot), pages(slot)));
    own[2].run(&mut cpu, &PROMPT, &[], Want::Last).unwrap();
    (0..3).map(|_| batches(&mut cpu, &mut own)).min().unwrap()
}

/// One sequence decodes, one is fed two tokens at a time, one joins late.
fn batches(cpu: &mut Cpu, own: &mut [Sequence; 3]) -> usize {
    let region = Region::new(COUNTED);
    for turn in 0..30 {
        let [a, b, c] = &*own;
        let spans = [
            c.span(&PROMPT[..1], &[], Want::Last),
            a.span(&PROMPT[..2], &[], Want::All),
            b.span(&PROMPT[..1], &[], Want::Nothing),
        ];
        let spans: &[Span<'_>] = if turn < 5 { &spans[..2] } else { &spans };
        cpu.run(spans).unwrap();
        assert!(cpu.logits(0).unwrap()[0].is_finite());
        own[2].advance(1);
        own[0].advance(2);
        own[1].advance(usize::from(turn >= 5));
    }
    let change = region.change();
    change.allocations + change.reallocations
}
