//! What is planned is what is allocated, to the byte: on the device and of pinned memory.

use std::sync::atomic::Ordering;

use furrow_cuda::backend::{Options, Precision, Stage, needs, needs_of, open};
use furrow_cuda::needs::STAGING;
use furrow_model::backend::Room;
use furrow_model::checkpoint::Checkpoint;
use furrow_model::config::Config;

use crate::air::Air;
use crate::case::{BYTES, Case};

#[test]
fn an_executor_is_asked_for_what_was_planned_and_nothing_else() {
    let cases = [Case::made(Precision::Usual), Case::made(Precision::NarrowState), Case::of_experts()];
    for case in cases {
        for stage in [Stage::None, Stage::Device, Stage::Host] {
            for parked_bytes in [0, 12_345_678] {
                let room = Room { parked_bytes, ..case.room() };
                let options = Options { stage, ..case.options };
                let checkpoint = Checkpoint::open(&case.dir).unwrap();
                let planned = needs_of(&checkpoint, &room, &options).unwrap();
                let (air, gauge) = Air::new(BYTES);
                let device = open(&checkpoint, room, options, Box::new(air), &mut |_, _| {}).unwrap();
                let asked = [&gauge.allocated, &gauge.pinned].map(|bytes| bytes.load(Ordering::Relaxed));
                // The staging of copies is the executor's own: the one of the tests has none.
                let staging = planned.pinned.parts().iter().find(|(part, _)| *part == STAGING).unwrap().1;
                let want = [planned.device.total(), planned.pinned.total() - staging];
                assert_eq!(asked, want, "{stage:?}, {parked_bytes} parked: {planned:?}");
                assert_eq!(device.plan(), &planned.device);
                // Where a session is parked, it takes what was said.
                let parked = device.parked_bytes(3);
                assert_eq!(parked, planned.parked_bytes(3));
                assert!(parked_bytes == 0 || want[1] >= parked, "{parked} of {want:?}");
            }
        }
    }
}

#[test]
fn the_published_model_needs_what_its_shape_says() {
    let config = Config::published();
    let room = Room {
        slots: 102,
        pages: 12_800,
        rows_max: 2048,
        logits_max: 102,
        features: 100,
        parked_bytes: 64 << 30,
    };
    let of = |stage| needs(&config, &room, &Options { stage, ..Options::default() }).unwrap();
    let [none, device, host] = [Stage::None, Stage::Device, Stage::Host].map(of);
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
    // A slot of 94.6 blocks, and a page a block: 6,000 tokens are 94 pages.
    assert_eq!(none.parked_bytes(94), (95 + 94) * block);
}
