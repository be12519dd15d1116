//! The `cpu` backend allocates its stated capacity, and nothing while it decodes, on any thread.
//!
//! A binary of its own, because its allocator counts what every thread of the process allocates.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::alloc::System;
use std::path::PathBuf;

use furrow_model::backend::{Backend, BackendCapacity, LogitRows, Page, SequenceSpan, Slot};
use furrow_model::cpu::CpuBackend;
use furrow_model::forward::Sequence;
use furrow_model::kernels::{ProductPrecision, ThreadPool};
use furrow_model::weights::ModelWeights;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const PROMPT: [u32; 40] = [7; 40];

#[test]
fn opening_allocates_the_capacity_and_batches_allocate_nothing() {
    check_open_allocates_its_capacity();
    batches_allocate_nothing();
}

fn check_open_allocates_its_capacity() {
    for name in ["dense", "moe_latent_groups"] {
        let weights = load(name);
        let capacity = BackendCapacity {
            slots: 40,
            pages: 100,
            rows_max: 256,
            logits_max: 64,
            features: 0,
            offload_bytes: 0,
        };
        let planned = capacity.bytes(&weights.config, 0).total() as f64;
        let region = Region::new(COUNTED);
        let cpu = CpuBackend::open(weights, capacity, 1, ProductPrecision::Float32).unwrap();
        let taken = region.change().bytes_allocated as f64;
        assert!(taken >= planned && taken < 1.05 * planned, "{name}: {taken} bytes for {planned}");
        drop(cpu);
    }
}

fn load(name: &str) -> ModelWeights {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/oracle").join(name);
    ModelWeights::load(&dir, &ThreadPool::new(1), &mut |_, _| {}).unwrap()
}

fn batches_allocate_nothing() {
    for (name, compute) in [
        ("dense", ProductPrecision::Float32),
        ("moe", ProductPrecision::Float32),
        ("moe_latent_groups", ProductPrecision::Float32),
        ("vl_names_bf16", ProductPrecision::Bfloat16),
    ] {
        for threads in [1, 2] {
            let allocated = run(name, compute, threads);
            assert_eq!(allocated, 0, "{name} {compute:?}, {threads} threads");
        }
    }
}

/// The fewest allocations of three times 30 mixed batches that cross a page. The minimum is needed
/// because a thread that wakes for the first time allocates its own scratch, at any time.
fn run(name: &str, compute: ProductPrecision, threads: usize) -> usize {
    let capacity =
        BackendCapacity { slots: 3, pages: 12, rows_max: 64, logits_max: 4, features: 0, offload_bytes: 0 };
    let mut cpu = CpuBackend::open(load(name), capacity, threads, compute).unwrap();
    let pages = |slot| (0..4).map(|page| Page(slot * 4 + page)).collect();
    let mut own = [0, 1, 2].map(|slot| Sequence::new(Slot(slot), pages(slot)));
    own[2].run(&mut cpu, &PROMPT, &[], LogitRows::Last).unwrap();
    (0..3).map(|_| batches(&mut cpu, &mut own)).min().unwrap()
}

/// One sequence decodes, one runs two tokens at a time, one joins late.
fn batches(cpu: &mut CpuBackend, own: &mut [Sequence; 3]) -> usize {
    let region = Region::new(COUNTED);
    for turn in 0..30 {
        let [a, b, c] = &*own;
        let spans = [
            c.span(&PROMPT[..1], &[], LogitRows::Last),
            a.span(&PROMPT[..2], &[], LogitRows::All),
            b.span(&PROMPT[..1], &[], LogitRows::Nothing),
        ];
        let spans: &[SequenceSpan<'_>] = if turn < 5 { &spans[..2] } else { &spans };
        cpu.run(spans).unwrap();
        assert!(cpu.logits(0).unwrap()[0].is_finite());
        own[2].advance(1);
        own[0].advance(2);
        own[1].advance(usize::from(turn >= 5));
    }
    let change = region.change();
    change.allocations + change.reallocations
}
