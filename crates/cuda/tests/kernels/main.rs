//! Tests every kernel without a GPU: compiles it to machine code, runs it on the CPU against
//! `furrow_model::layers`, and runs it with planted bugs that must be detected.
//!
//! With `FURROW_TEST_GPU` set (`tests/gpu.sh parity`) the comparisons run on a GPU; `runner.rs`
//! decides that. A binary of its own, as `backend` is, because `tests/gpu.sh` carries both to a
//! machine with a GPU and runs other tests of each.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attention;
mod batch;
mod causal_conv;
#[path = "../backend/chosen.rs"]
mod chosen;
mod compiled;
mod convert;
mod copy;
mod embed;
mod family;
mod gated_norm;
#[path = "../backend/host_executor.rs"]
mod host_executor;
mod memory;
mod moe;
mod planted;
mod residual_rms_norm;
mod runner;
mod sample;
mod shim;
mod squared_relu;
mod ssm;
mod vision;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use family::{BugKind, KernelFamily};
use furrow_cuda::sources::KERNELS;

/// A comparison for every file of `kernels/`.
const FAMILIES: &[&KernelFamily] = &[
    &attention::FAMILY,
    &attention::DECODE,
    &attention::PREFILL,
    &causal_conv::FAMILY,
    &convert::FAMILY,
    &copy::FAMILY,
    &embed::FAMILY,
    &gated_norm::FAMILY,
    &moe::EXPERTS,
    &moe::ROUTE,
    &residual_rms_norm::FAMILY,
    &sample::FAMILY,
    &squared_relu::FAMILY,
    &ssm::FAMILY,
    &ssm::CHUNKED,
    &vision::ATTENTION,
    &vision::GELU,
    &vision::LAYER_NORM,
    &vision::PATCHES,
    &vision::SHUFFLE,
];

#[test]
fn every_kernel_file_is_carried_and_compared() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
    let files = |folder: &Path, ending: &str| -> BTreeSet<String> {
        let names =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(ending)).collect()
    };
    let carried: BTreeSet<String> = KERNELS.iter().map(|source| source.name.to_owned()).collect();
    let compared: BTreeSet<String> = FAMILIES.iter().map(|family| family.file.to_owned()).collect();
    assert_eq!(files(&folder, ".cu"), carried, "kernels/ and furrow_cuda::sources::KERNELS differ");
    assert_eq!(carried, compared, "these kernels have no comparison with the CPU, or it is not in FAMILIES");
    let headers = furrow_cuda::sources::HEADERS.iter().map(|source| source.name.to_owned()).collect();
    assert_eq!(files(&folder.join("include"), ".cuh"), headers, "kernels/include/ and HEADERS differ");
}

#[test]
fn every_comparison_has_bugs_it_must_find() {
    for family in FAMILIES {
        let kinds: Vec<BugKind> = family.bugs.iter().map(|bug| bug.kind).collect();
        assert!(kinds.len() >= 3 && kinds.contains(&BugKind::Index), "{}: {kinds:?}", family.file);
        let text = family.source().text;
        let has = |text_part: &str| text.contains(text_part);
        assert!(
            !has("__syncthreads") || kinds.contains(&BugKind::Barrier),
            "{}: plant one at a barrier",
            family.file
        );
        assert!(
            !has("slot") || kinds.contains(&BugKind::State),
            "{}: plant one where state is carried",
            family.file
        );
    }
}

/// Runs comparisons as on a GPU, but on the host executor: memory, launches and guards are the
/// executor's.
#[test]
fn comparisons_go_through_an_executor_too() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["copy::agrees", "squared_relu::agrees", "gated_norm::agrees"])
        .env("FURROW_TEST_GPU", "host");
    let answer = command.output().unwrap();
    let output = String::from_utf8_lossy(&answer.stdout);
    assert!(answer.status.success() && output.contains("3 passed"), "{output}");
}
