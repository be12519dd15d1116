//! What is refused before anything runs, and how a device that failed behaves.

use std::sync::atomic::Ordering;

use furrow_cuda::backend::{self, BackendOptions, CudaOpenError, ModelPrecision, open};
use furrow_model::backend::{BackendCapacity, BackendError, DeviceLost, LogitRows};
use furrow_model::checkpoint::Checkpoint;
use furrow_model::sample::{SampleOutcome, SampleRequest};
use serde_json::json;

use crate::case::{BYTES, BackendCase, on_a_gpu, sequence};
use crate::host_executor::HostExecutor;
use crate::made;

fn refused(checkpoint: &Checkpoint, capacity: BackendCapacity, bytes: u64) -> CudaOpenError {
    let (host, _) = HostExecutor::new(bytes);
    match open(checkpoint, capacity, BackendOptions::default(), Box::new(host), &mut |_, _| {}) {
        Ok(_) => panic!("it opened"),
        Err(error) => error,
    }
}

const CAPACITY: BackendCapacity =
    BackendCapacity { slots: 4, pages: 32, rows_max: 64, logits_max: 8, features: 2, offload_bytes: 0 };

#[test]
fn models_without_kernels_are_refused_by_name() {
    let mut config = made::config();
    config["llm_config"]["conv_kernel"] = json!(3);
    let odd = made::written(1, &config, |_, _| {});
    let text = refused(&Checkpoint::open(odd.path()).unwrap(), CAPACITY, BYTES).to_string();
    assert!(text.contains("conv_kernel: 3, not 4"), "{text}");

    let mut config = made::config();
    config["vision_config"]["num_attention_heads"] = json!(1);
    config["vision_config"]["hidden_size"] = json!(264);
    let odd = made::written(1, &config, |_, _| {});
    let text = refused(&Checkpoint::open(odd.path()).unwrap(), CAPACITY, BYTES).to_string();
    let want = "vision_config.num_attention_heads: 1, which makes heads of 264 values, more than 256";
    assert!(text.contains(want), "{text}");
}

#[test]
fn too_little_memory_is_reported_by_part_and_before_loading() {
    let checkpoint = Checkpoint::open(made::checkpoint()).unwrap();
    let error = refused(&checkpoint, CAPACITY, 1 << 20);
    let CudaOpenError::Full { requested, free } = &error else { panic!("{error}") };
    assert_eq!(*free, 1 << 20);
    let names: Vec<&str> = requested.parts().iter().map(|(name, _)| *name).collect();
    for part in ["weights", "state slots", "KV pages", "rows of a batch", "tile features"] {
        assert!(names.contains(&part), "{names:?}");
    }
    let text = error.to_string();
    assert!(text.contains("1.0 MB free"), "{text}");
    // Exactly enough memory is enough.
    let total = requested.total();
    let (host, _) = HostExecutor::new(total);
    let device =
        open(&checkpoint, CAPACITY, BackendOptions::default(), Box::new(host), &mut |_, _| {}).unwrap();
    assert_eq!(device.plan().total(), total);
    assert!(matches!(refused(&checkpoint, CAPACITY, total - 1), CudaOpenError::Full { .. }));
    let none = BackendCapacity { slots: 0, ..CAPACITY };
    assert!(matches!(refused(&checkpoint, none, BYTES), CudaOpenError::NoCapacity { what: "state slots" }));
    let wide = BackendCapacity { rows_max: 65_536, ..CAPACITY };
    assert!(matches!(refused(&checkpoint, wide, BYTES), CudaOpenError::TooLarge { requested: 65_536, .. }));
}

#[test]
fn a_plan_from_the_configuration_alone_counts_the_published_model() {
    let dir = tempfile::tempdir().unwrap();
    let text = include_str!("../../../model/tests/configs/nano_12b_vl.json");
    std::fs::write(dir.path().join("config.json"), text).unwrap();
    let config = furrow_model::config::Config::read(dir.path()).unwrap();
    let capacity = BackendCapacity {
        slots: 100,
        pages: 12_800,
        rows_max: 2048,
        logits_max: 100,
        features: 100,
        offload_bytes: 0,
    };
    let plan = backend::plan(&config, &capacity, &BackendOptions::default()).unwrap();
    let of = |name: &str| plan.parts().iter().find(|(part, _)| *part == name).unwrap().1;
    // 12.31 and 0.84 billion weights of 2 bytes; the position table is stored in the size of a
    // tile.
    assert!((26.2e9..26.4e9).contains(&(of("weights") as f64)), "{plan}");
    // 100 x (146,800,640 + 2,064,384) bytes, and one copy command.
    assert_eq!(of("state slots"), 14_886_502_400 + 256);
    // 819,200 positions of 24,576 bytes, and the scrap page.
    assert_eq!(of("KV pages"), 12_801 * 64 * 24_576);
    assert_eq!(of("tile features"), 100 * 256 * 5120 * 2);
    let absurd = BackendCapacity { slots: u32::MAX, pages: u32::MAX, ..capacity };
    assert!(backend::plan(&config, &absurd, &BackendOptions::default()).unwrap().total() > 1 << 58);
}

#[test]
fn a_failed_device_reports_the_failure_at_every_later_call() {
    if on_a_gpu() {
        return; // A GPU cannot be made to fail.
    }
    let case = BackendCase::made(ModelPrecision::Usual);
    let (mut device, gauge) = case.device();
    let ids = case.ids(1, 4);
    let mut own = sequence(0);
    own.run(&mut *device, &ids, &[], LogitRows::Last).unwrap();
    gauge.fails_at.store(1, Ordering::Relaxed);
    let pick = SampleRequest {
        row: 0,
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        allowed: None,
        uniform: 0.5,
    };
    let lost = Err(DeviceLost("could not run a kernel: the executor is gone".into()));
    assert_eq!(device.sample(&[pick]), lost, "a failure is not a result for a row");
    // Even if it could work again, it gets no more calls.
    gauge.fails_at.store(0, Ordering::Relaxed);
    let message = |error: BackendError| error.to_string();
    let text = message(own.run(&mut *device, &ids, &[], LogitRows::Last).unwrap_err());
    assert_eq!(text, "the device failed: could not run a kernel: the executor is gone");
    assert_eq!(device.logits(0).map(<[f32]>::len), lost.clone().map(|_: Vec<SampleOutcome>| 0));
    assert_eq!(device.sample(&[pick]), lost);
}
