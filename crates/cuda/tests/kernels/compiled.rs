//! Every kernel compiles to machine code, without spilled registers.
#![expect(clippy::print_stderr, reason = "a test that was skipped says so")]

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};

use furrow_cuda::cache::KernelCache;
use furrow_cuda::compile::{CompileError, Cubin, KernelCompiler};
use furrow_cuda::device::CompileTarget;
use furrow_cuda::sources::{HEADERS, KERNELS, KernelSource};

/// Targets of devices. No device uses `Sm90a`: no kernel has instructions that only it has.
const TARGETS: [CompileTarget; 4] =
    [CompileTarget::Sm80, CompileTarget::Sm89, CompileTarget::Sm90, CompileTarget::Sm100];

/// The compiler: that of `FURROW_NVRTC`, of the folder that `tests/run.sh` fills, or of the system.
fn compiler() -> Option<KernelCompiler> {
    let filled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/nvrtc/nvidia/cu13/lib");
    let folder = env::var_os("FURROW_NVRTC").map_or(filled, PathBuf::from);
    match KernelCompiler::open(Some(&folder)) {
        Ok(compiler) => Some(compiler),
        Err(error @ CompileError::NoCompiler { .. }) => {
            assert!(
                env::var_os("FURROW_SKIP_NVRTC").is_some_and(|value| value == "1"),
                "{error}. tests/run.sh installs it; FURROW_SKIP_NVRTC=1 skips these tests"
            );
            eprintln!("skipped, as FURROW_SKIP_NVRTC asks: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_kernel_compiles_without_a_spill() {
    let Some(compiler) = compiler() else { return };
    let cache = KernelCache::new(compiler, Path::new(env!("CARGO_TARGET_TMPDIR")).join("cubins"));
    let mut names = BTreeSet::new();
    let mut spills = Vec::new();
    for (source, target) in KERNELS.iter().flat_map(|source| TARGETS.map(|target| (*source, target))) {
        let cubin = cache.get(source, target).unwrap_or_else(|error| panic!("{error}"));
        assert!(cubin.image.starts_with(b"\x7fELF"), "{}: no machine code", source.name);
        let usage = cubin.usage();
        let logged_kernels: BTreeSet<String> = usage.iter().map(|usage| usage.kernel.clone()).collect();
        let kernels = source.text.matches("EXPORT(").count();
        let there = cubin.kernels();
        assert!(kernels > 0 && !logged_kernels.is_empty(), "{}: no kernel in\n{}", source.name, cubin.log);
        assert_eq!(
            logged_kernels,
            there.into_iter().collect(),
            "{}: kernels in the log and in the code",
            source.name
        );
        for kernel in usage {
            if kernel.spill_bytes > 0 {
                spills.push(format!("{} for {}: {kernel:?}", source.name, target.name()));
            }
            assert!((1..=255).contains(&kernel.registers), "{}: {kernel:?}", source.name);
            // A device finds kernels by name only.
            assert!(
                names.insert((target.name(), kernel.kernel.clone())),
                "two kernels have the name {}",
                kernel.kernel
            );
        }
    }
    assert!(spills.is_empty(), "{}", spills.join("\n"));
}

/// If a kernel ever needs wgmma, this shows for which devices: code for 9.0a runs on 9.0 only.
#[test]
fn instructions_of_nine_alone_compile_for_its_own_target_only() {
    let Some(compiler) = compiler() else { return };
    let text = "extern \"C\" __global__ void fence() { asm volatile(\"wgmma.fence.sync.aligned;\"); }";
    let source = KernelSource { name: "fence.cu", text };
    let compiles: Vec<&str> = CompileTarget::ALL
        .into_iter()
        .filter(|target| compiler.compile(source, *target).is_ok())
        .map(CompileTarget::name)
        .collect();
    assert_eq!(compiles, ["sm_90a"]);
    let uses =
        |instruction: &str| KERNELS.iter().chain(HEADERS).any(|source| source.text.contains(instruction));
    assert!(!uses("wgmma") && !uses("setmaxnreg"), "choose Sm90a for 9.0, and compile for it here");
}

#[test]
fn a_compile_error_carries_the_compilers_log() {
    let Some(compiler) = compiler() else { return };
    let source =
        KernelSource { name: "wrong.cu", text: "extern \"C\" __global__ void wrong() { nothing(); }" };
    let error = compiler.compile(source, CompileTarget::Sm90).unwrap_err().to_string();
    assert!(error.contains("wrong.cu does not compile for sm_90") && error.contains("nothing"), "{error}");
}

#[test]
fn a_spill_is_detected() {
    let Some(compiler) = compiler() else { return };
    // 64 values that are live across a barrier, for threads with at most 32 registers each.
    let text = "extern \"C\" __global__ void __launch_bounds__(1024, 2) crowded(float* x) {
        float v[64];
        for (int i = 0; i < 64; i++) v[i] = x[threadIdx.x + i * 1024];
        __syncthreads();
        for (int i = 0; i < 64; i++) x[threadIdx.x + i * 1024] = v[63 - i] * v[i];
    }";
    let usage =
        compiler.compile(KernelSource { name: "crowded.cu", text }, CompileTarget::Sm80).unwrap().usage();
    assert!(usage.len() == 1 && usage[0].kernel == "crowded" && usage[0].spill_bytes > 0, "{usage:?}");
}

#[test]
fn the_cache_answers_for_the_same_text_alone() {
    let Some(compiler) = compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cache = KernelCache::new(compiler, folder.path().join("cubins"));
    let source = |text| KernelSource { name: "one.cu", text };
    let text = "extern \"C\" __global__ void one(float* x) { *x = 1.0f; }";
    let first = cache.get(source(text), CompileTarget::Sm90).unwrap();
    let image = |cubin: Cubin| cubin.image == first.image;
    let path = cache.path(source(text), CompileTarget::Sm90);
    assert!(path.exists());
    assert!(
        cache.get(source(text), CompileTarget::Sm90).unwrap() == first,
        "it was not stored, or not completely"
    );
    assert_ne!(cache.path(source(text), CompileTarget::Sm80), path);
    let other = text.replace("1.0", "2.0");
    assert_ne!(cache.path(KernelSource { name: "one.cu", text: &other }, CompileTarget::Sm90), path);
    std::fs::write(&path, b"damaged").unwrap();
    // The log names a time, the code does not.
    assert!(image(cache.get(source(text), CompileTarget::Sm90).unwrap()), "it was not compiled anew");
    assert!(std::fs::read(&path).unwrap().len() > 100, "it was not stored anew");
}
