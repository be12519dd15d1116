//! Every kernel without a GPU: compiled to machine code, run on the CPU against `furrow_model::layers`, and run with planted bugs that must
//! show.
//!
//! With `FURROW_TEST_GPU` set (`tests/gpu.sh parity`) the comparisons run on a GPU; `place.rs` is where that is decided.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../backend/air.rs"]
mod air;
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
mod memory;
mod moe;
mod place;
mod planted;
mod residual_rms_norm;
mod sample;
mod shim;
mod squared_relu;
mod ssm;
mod vision;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use family::{Family, Kind};
use furrow_cuda::sources::KERNELS;

/// A comparison for every file of `kernels/`.
const FAMILIES: &[&Family] = &[
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
        let kinds: Vec<Kind> = family.bugs.iter().map(|bug| bug.kind).collect();
        assert!(kinds.len() >= 3 && kinds.contains(&Kind::Index), "{}: {kinds:?}", family.file);
        let text = family.source().text;
        let has = |words: &str| text.contains(words);
        assert!(
            !has("__syncthreads") || kinds.contains(&Kind::Barrier),
            "{}: plant one at a barrier",
            family.file
        );
        assert!(
            !has("slot") || kinds.contains(&Kind::State),
            "{}: plant one where state is carried",
            family.file
        );
    }
}

/// The way that comparisons go on a GPU, gone with a device of air in its place: memory, launches and guards are an executor's.
#[test]
fn comparisons_go_through_an_executor_too() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["copy::agrees", "squared_relu::agrees", "gated_norm::agrees"])
        .env("FURROW_TEST_GPU", "air");
    let answer = command.output().unwrap();
    let said = String::from_utf8_lossy(&answer.stdout);
    assert!(answer.status.success() && said.contains("3 passed"), "{said}");
}
