//! The way figures are taken: what is measured runs, what does not fit says so. On air the figures themselves mean nothing.

use furrow_cuda::backend::{OpenError, Options, Precision, Stage, plan};
use furrow_cuda::executor::Executor;
use furrow_cuda::measure::{Cases, Figure, Subject, Yard, Yardstick, swap};
use furrow_model::backend::Room;
use furrow_model::config::Config;

use crate::air::Air;
use crate::case::{BYTES, executor, on_a_gpu};
use crate::made;
use crate::truth::Gap;

fn small_yard(device: &mut dyn Executor) -> Yard<'_> {
    Yard::open(device, Yardstick { bytes: 1 << 19, side: 16 }, 1).unwrap()
}

#[test]
fn every_figure_is_taken_or_does_not_fit() {
    let config = Config::read(made::checkpoint()).unwrap();
    let room = Room { slots: 2, pages: 4, rows_max: 8, logits_max: 2, features: 1, parked_bytes: 1 << 20 };
    let mut device = executor().0;
    let found = small_yard(&mut *device).rates().unwrap();
    assert!(found.bandwidth > 0.0 && found.flops > 0.0, "{found:?}");
    let mut subject = Subject::open(&config, room, Options::default(), device, 1).unwrap();
    assert!(subject.device().plan().total() > 0);
    assert!(subject.decode(2, 70).unwrap().is_some());
    assert!(subject.decode(3, 0).unwrap().is_none(), "slots");
    assert!(subject.decode(2, 128).unwrap().is_none(), "pages");
    assert!(subject.prefill(11, 64, 8).unwrap().is_some());
    assert!(subject.prefill(11, 250, 8).unwrap().is_none(), "pages");
    assert!(subject.prefill(11, 0, 9).unwrap().is_none(), "rows");
    assert!(subject.vision(1).unwrap().is_some());
    assert!(subject.vision(2).unwrap().is_none(), "places");
    assert!(subject.fork().unwrap().is_some());
    assert!(subject.park(70).unwrap().is_some());
    assert!(subject.park(257).unwrap().is_none(), "pages");
}

#[test]
fn the_table_has_every_case_and_the_room_is_the_largest_that_fits() {
    let config = Config::read(made::checkpoint()).unwrap();
    let cases = Cases {
        batches: vec![1, 3],
        contexts: vec![0, 65],
        screenshots: vec![(64, 64)],
        text: 3,
        pasts: vec![0, 2],
        chunk: 4,
        parked: 65,
    };
    let options = Options::default();
    let whole = cases.room(&config, &options, BYTES).unwrap();
    assert_eq!((whole.slots, whole.pages, whole.features), (3, 6, 1));
    let total = |room: &Room| plan(&config, room, &options).unwrap().total();
    let less = Room { pages: 4, ..whole };
    let tight = cases.room(&config, &options, total(&less)).unwrap();
    assert!(tight.pages <= 4 && total(&tight) <= total(&less), "{tight:?}");
    let none = cases.room(&config, &options, total(&Room { pages: 1, ..whole }));
    assert!(matches!(none, Err(OpenError::Full { .. })));

    let mut device = executor().0;
    let found = small_yard(&mut *device).rates().unwrap();
    let mut subject = Subject::open(&config, tight, options, device, 1).unwrap();
    let mut figures: Vec<Figure> = Vec::new();
    cases.measure(&mut subject, found, &mut |figure| figures.push(figure.clone())).unwrap();
    let missing: Vec<&str> =
        figures.iter().filter(|figure| figure.taken.is_none()).map(|figure| &*figure.what).collect();
    assert_eq!(missing, ["decode, batch 3, context 65"]);
    assert_eq!(figures.len(), 4 + 1 + 2 + 1 + 2);
    assert!(figures.iter().all(|figure| figure.share().is_none_or(|share| share > 0.0)));

    let mut again: Vec<String> = Vec::new();
    let options = Options { deterministic: true, ..options };
    let mut subject = Subject::open(&config, tight, options, executor().0, 1).unwrap();
    let mut tell = |figure: &Figure| again.push(figure.what.clone());
    cases.measure_with("deterministic", &mut subject, found, &mut tell).unwrap();
    assert_eq!(
        again,
        [
            "decode, batch 1, context 65, deterministic",
            "decode, batch 3, context 65, deterministic",
            "prefill, 7 tokens behind 0, deterministic"
        ]
    );
}

#[test]
fn a_kernel_alone_and_swaps_are_measured_or_do_not_fit() {
    let config = Config::read(made::checkpoint()).unwrap();
    let cases = Cases { batches: vec![1, 3, 100], ..Cases::default() };
    let mut device = executor().0;
    let mut yard = small_yard(&mut *device);
    let found = yard.rates().unwrap();
    let mut figures: Vec<Figure> = Vec::new();
    cases.measure_alone(&config, &mut yard, found, &mut |figure| figures.push(figure.clone())).unwrap();
    let fits: Vec<bool> = figures.iter().map(|figure| figure.taken.is_some()).collect();
    // A state is 2 x 64 x 128 x 4 bytes, 64 KiB: 100 of them are more than a yard of 1 MiB.
    assert_eq!(fits, [true, true, false]);
    // States both ways, 128 KiB, and little else.
    let bytes = figures[0].floor.unwrap() * found.bandwidth;
    assert!((131_072.0..135_000.0).contains(&bytes), "{bytes}");
    for stage in [Stage::Device, Stage::Host] {
        let taken = swap(&config, stage, executor().0, 1).unwrap();
        assert!(taken.is_some());
        let figure = Cases::swapped(&config, found, stage, taken);
        assert_eq!(figure.floor.is_some(), stage == Stage::Device, "{}", figure.what);
    }
    let (mut air, _) = Air::new(BYTES);
    air.lent = 1000;
    assert!(swap(&config, Stage::Host, Box::new(air), 1).unwrap().is_none());
    let (air, _) = Air::new(1000);
    assert!(swap(&config, Stage::Device, Box::new(air), 1).unwrap().is_none());
}

/// What `tests/peers/transformers_gpu.py` says of transformers, as JSON lines.
#[test]
#[ignore = "tells of a GPU: tests/gpu.sh bench"]
fn gap() {
    assert!(on_a_gpu(), "FURROW_TEST_GPU is not set");
    for (what, Gap { p50, p99, mean }) in [
        ("decode against prefill, log-prob", Gap::of_the_oracle(Precision::Usual)),
        ("decode against prefill, log-prob, by chunks and pages", Gap::of_a_made_one(Precision::Usual)),
    ] {
        println!(
            "{{\"what\": \"{what}\", \"unit\": \"nats\", \"p50\": {p50}, \"p99\": {p99}, \"mean\": {mean}}}"
        );
    }
}
