//! The code of the measurements: cases that fit run, others report that they do not fit. On the
//! host executor the numbers mean nothing.

use furrow_cuda::backend::{BackendOptions, CudaOpenError, ModelPrecision, StagingMode, plan};
use furrow_cuda::executor::Executor;
use furrow_cuda::measure::{
    BenchmarkBuffers, BenchmarkCases, BenchmarkModel, BenchmarkResult, ReferenceSizes, measure_swap,
};
use furrow_model::backend::BackendCapacity;
use furrow_model::config::Config;

use crate::case::{BYTES, executor, on_a_gpu};
use crate::host_executor::HostExecutor;
use crate::made;
use crate::truth::LogprobDifference;

fn small_buffers(device: &mut dyn Executor) -> BenchmarkBuffers<'_> {
    BenchmarkBuffers::open(device, ReferenceSizes { bytes: 1 << 19, side: 16 }, 1).unwrap()
}

#[test]
fn every_case_is_measured_or_does_not_fit() {
    let config = Config::read(made::checkpoint()).unwrap();
    let capacity = BackendCapacity {
        slots: 2,
        pages: 4,
        rows_max: 8,
        logits_max: 2,
        features: 1,
        offload_bytes: 1 << 20,
    };
    let mut device = executor().0;
    let found = small_buffers(&mut *device).rates().unwrap();
    assert!(found.bandwidth > 0.0 && found.flops > 0.0, "{found:?}");
    let mut subject = BenchmarkModel::open(&config, capacity, BackendOptions::default(), device, 1).unwrap();
    assert!(subject.device().plan().total() > 0);
    assert!(subject.decode(2, 70).unwrap().is_some());
    assert!(subject.decode(3, 0).unwrap().is_none(), "slots");
    assert!(subject.decode(2, 128).unwrap().is_none(), "pages");
    assert!(subject.prefill(11, 64, 8).unwrap().is_some());
    assert!(subject.prefill(11, 250, 8).unwrap().is_none(), "pages");
    assert!(subject.prefill(11, 0, 9).unwrap().is_none(), "rows");
    assert!(subject.vision(1).unwrap().is_some());
    assert!(subject.vision(2).unwrap().is_none(), "more tiles than features");
    assert!(subject.fork().unwrap().is_some());
    assert!(subject.offload(70).unwrap().is_some());
    assert!(subject.offload(257).unwrap().is_none(), "pages");
}

#[test]
fn the_table_has_every_case_and_the_capacity_is_the_largest_that_fits() {
    let config = Config::read(made::checkpoint()).unwrap();
    let cases = BenchmarkCases {
        batches: vec![1, 3],
        contexts: vec![0, 65],
        screenshots: vec![(64, 64)],
        text: 3,
        pasts: vec![0, 2],
        chunk: 4,
        offloaded: 65,
    };
    let options = BackendOptions::default();
    let whole = cases.capacity(&config, &options, BYTES).unwrap();
    assert_eq!((whole.slots, whole.pages, whole.features), (3, 6, 1));
    let total = |capacity: &BackendCapacity| plan(&config, capacity, &options).unwrap().total();
    let less = BackendCapacity { pages: 4, ..whole };
    let tight = cases.capacity(&config, &options, total(&less)).unwrap();
    assert!(tight.pages <= 4 && total(&tight) <= total(&less), "{tight:?}");
    let none = cases.capacity(&config, &options, total(&BackendCapacity { pages: 1, ..whole }));
    assert!(matches!(none, Err(CudaOpenError::Full { .. })));

    let mut device = executor().0;
    let found = small_buffers(&mut *device).rates().unwrap();
    let mut subject = BenchmarkModel::open(&config, tight, options, device, 1).unwrap();
    let mut results: Vec<BenchmarkResult> = Vec::new();
    cases.measure(&mut subject, found, &mut |result| results.push(result.clone())).unwrap();
    let missing: Vec<&str> =
        results.iter().filter(|result| result.taken.is_none()).map(|result| &*result.what).collect();
    assert_eq!(missing, ["decode, batch 3, context 65"]);
    assert_eq!(results.len(), 4 + 1 + 2 + 1 + 2);
    assert!(results.iter().all(|result| result.share().is_none_or(|share| share > 0.0)));

    let mut repeated: Vec<String> = Vec::new();
    let options = BackendOptions { deterministic: true, ..options };
    let mut subject = BenchmarkModel::open(&config, tight, options, executor().0, 1).unwrap();
    let mut report = |result: &BenchmarkResult| repeated.push(result.what.clone());
    cases.measure_with("deterministic", &mut subject, found, &mut report).unwrap();
    assert_eq!(
        repeated,
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
    let cases = BenchmarkCases { batches: vec![1, 3, 100], ..BenchmarkCases::default() };
    let mut device = executor().0;
    let mut buffers = small_buffers(&mut *device);
    let found = buffers.rates().unwrap();
    let mut results: Vec<BenchmarkResult> = Vec::new();
    cases.measure_alone(&config, &mut buffers, found, &mut |result| results.push(result.clone())).unwrap();
    let fits: Vec<bool> = results.iter().map(|result| result.taken.is_some()).collect();
    // A state is 2 x 64 x 128 x 4 bytes, 64 KiB: 100 of them exceed buffers of 1 MiB.
    assert_eq!(fits, [true, true, false]);
    // States both ways, 128 KiB, and little else.
    let bytes = results[0].floor.unwrap() * found.bandwidth;
    assert!((131_072.0..135_000.0).contains(&bytes), "{bytes}");
    for stage in [StagingMode::Device, StagingMode::Host] {
        let taken = measure_swap(&config, stage, executor().0, 1).unwrap();
        assert!(taken.is_some());
        let result = BenchmarkCases::swap_result(&config, found, stage, taken);
        assert_eq!(result.floor.is_some(), stage == StagingMode::Device, "{}", result.what);
    }
    let (mut host, _) = HostExecutor::new(BYTES);
    host.pinnable = 1000;
    assert!(measure_swap(&config, StagingMode::Host, Box::new(host), 1).unwrap().is_none());
    let (host, _) = HostExecutor::new(1000);
    assert!(measure_swap(&config, StagingMode::Device, Box::new(host), 1).unwrap().is_none());
}

/// The measurement that `tests/peers/transformers_gpu.py` makes of transformers, as JSON lines.
#[test]
#[ignore = "measures a GPU: tests/gpu.sh bench"]
fn gap() {
    assert!(on_a_gpu(), "FURROW_TEST_GPU is not set");
    for (what, LogprobDifference { p50, p99, mean }) in [
        ("decode against prefill, log-prob", LogprobDifference::of_the_oracle(ModelPrecision::Usual)),
        (
            "decode against prefill, log-prob, by chunks and pages",
            LogprobDifference::of_a_made_one(ModelPrecision::Usual),
        ),
    ] {
        println!(
            "{{\"what\": \"{what}\", \"unit\": \"nats\", \"p50\": {p50}, \"p99\": {p99}, \"mean\": {mean}}}"
        );
    }
}
