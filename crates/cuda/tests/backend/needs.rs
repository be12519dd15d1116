//! What is planned is what is allocated, to the byte: on the device and in pinned memory.

use std::sync::atomic::Ordering;

use furrow_cuda::backend::{BackendOptions, ModelPrecision, StagingMode, checkpoint_needs, needs, open};
use furrow_cuda::needs::STAGING;
use furrow_model::backend::BackendCapacity;
use furrow_model::checkpoint::Checkpoint;
use furrow_model::config::Config;

use crate::case::{BYTES, BackendCase};
use crate::host_executor::HostExecutor;

#[test]
fn a_backend_allocates_exactly_what_was_planned() {
    let cases = [
        BackendCase::made(ModelPrecision::Usual),
        BackendCase::made(ModelPrecision::NarrowState),
        BackendCase::of_experts(),
    ];
    for case in cases {
        for stage in [StagingMode::None, StagingMode::Device, StagingMode::Host] {
            for offload_bytes in [0, 12_345_678] {
                let capacity = BackendCapacity { offload_bytes, ..case.capacity() };
                let options = BackendOptions { stage, ..case.options };
                let checkpoint = Checkpoint::open(&case.dir).unwrap();
                let planned = checkpoint_needs(&checkpoint, &capacity, &options).unwrap();
                let (host, gauge) = HostExecutor::new(BYTES);
                let device = open(&checkpoint, capacity, options, Box::new(host), &mut |_, _| {}).unwrap();
                let allocated = [&gauge.allocated, &gauge.pinned].map(|bytes| bytes.load(Ordering::Relaxed));
                // The executor itself allocates the staging of copies; the one of the tests has
                // none.
                let staging = planned.pinned.parts().iter().find(|(part, _)| *part == STAGING).unwrap().1;
                let want = [planned.device.total(), planned.pinned.total() - staging];
                assert_eq!(allocated, want, "{stage:?}, {offload_bytes} offloaded: {planned:?}");
                assert_eq!(device.plan(), &planned.device);
                // An offloaded session takes the planned bytes.
                let offloaded_state_bytes = device.offloaded_bytes(3);
                assert_eq!(offloaded_state_bytes, planned.offloaded_bytes(3));
                assert!(
                    offload_bytes == 0 || want[1] >= offloaded_state_bytes,
                    "{offloaded_state_bytes} of {want:?}"
                );
            }
        }
    }
}

#[test]
fn the_published_model_needs_the_bytes_of_its_shape() {
    let config = Config::published();
    let capacity = BackendCapacity {
        slots: 102,
        pages: 12_800,
        rows_max: 2048,
        logits_max: 102,
        features: 100,
        offload_bytes: 64 << 30,
    };
    let of =
        |stage| needs(&config, &capacity, &BackendOptions { stage, ..BackendOptions::default() }).unwrap();
    let [none, device, host] = [StagingMode::None, StagingMode::Device, StagingMode::Host].map(of);
    assert_eq!(none.sizes, [148_865_024, 64 * 24_576]);
    let weights = none.device.parts()[0].1;
    assert_eq!(device.device.total() - none.device.total(), weights);
    assert_eq!(
        (host.device.total(), host.pinned.total()),
        (none.device.total(), none.pinned.total() + weights)
    );
    // 64 MiB of staging, and whole blocks of 1.5 MiB.
    let block = 64 * 24_576;
    assert_eq!(none.pinned.total(), (64 << 20) + (64_u64 << 30) / block * block);
    // A slot of 94.6 blocks, and one block for each page: 6,000 tokens have 94 pages.
    assert_eq!(none.offloaded_bytes(94), (95 + 94) * block);
}
