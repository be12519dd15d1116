//! Kernels on the CPU: compiles a file with the C++ compiler against `shim/`, loads it, runs
//! launches.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::env::consts::ARCH;
use std::ffi::{CStr, c_char, c_void};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use furrow_cuda::launch::KernelLaunch;
use furrow_cuda::sources::{HEADERS, KernelSource};
use sha2::{Digest, Sha256};

/// A compiled kernel file, or one variant of a library that holds several.
pub(crate) struct ShimLibrary {
    /// Seed of the order in which threads run.
    pub order: u64,
    kernels: BTreeMap<String, ShimKernel>,
    launched: Mutex<BTreeSet<String>>,
    run: unsafe extern "C" fn(*const KernelEntry, *const LaunchEntry, *mut *mut c_void) -> *const c_char,
    _library: libloading::Library,
}

/// A kernel of the table in `shim.cpp`.
#[repr(C)]
struct KernelEntry {
    name: *const c_char,
    variant: u32,
    signature: *const c_char,
    run: *const c_void,
    next: *const KernelEntry,
}

#[repr(C)]
struct LaunchEntry {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    seed: u64,
}

struct ShimKernel {
    entry: *const KernelEntry,
    signature: String,
}

// SAFETY: the table is constant once the library is loaded, and `shim_launch` takes a lock.
unsafe impl Send for ShimKernel {}
// SAFETY: as above.
unsafe impl Sync for ShimKernel {}

const SHIM: [(&str, &str); 2] =
    [("shim.h", include_str!("shim/shim.h")), ("shim.cpp", include_str!("shim/shim.cpp"))];

impl ShimLibrary {
    /// Compiles and loads a file.
    #[track_caller]
    pub(crate) fn build(source: KernelSource<'_>) -> Self {
        Self::open(&compiled(source.name, source.text, OptimisationLevel::Some), 0)
    }

    /// Loads the kernels of one of a library's variants.
    #[track_caller]
    pub(crate) fn open(path: &Path, variant: u32) -> Self {
        // SAFETY: the library was compiled from this repository's sources; its constructors fill a
        // table.
        let library = unsafe { libloading::Library::new(path) }.unwrap();
        // SAFETY: `shim.cpp` defines both with these types.
        let (table, run) = unsafe {
            let table = library.get::<unsafe extern "C" fn() -> *const KernelEntry>(b"shim_kernels").unwrap();
            (table(), *library.get(b"shim_launch").unwrap())
        };
        let mut kernels = BTreeMap::new();
        let mut entry = table;
        // SAFETY: the table is a list of constant entries that ends in null; names are constant
        // strings.
        while let Some(kernel) = unsafe { entry.as_ref() } {
            // SAFETY: as above.
            let [name, signature] =
                [kernel.name, kernel.signature].map(|text| unsafe { CStr::from_ptr(text) });
            let [name, signature] = [name, signature].map(|text| text.to_str().unwrap().to_owned());
            if kernel.variant == variant {
                kernels.insert(name, ShimKernel { entry, signature });
            }
            entry = kernel.next;
        }
        Self { order: 1, kernels, launched: Mutex::default(), run, _library: library }
    }

    /// Runs a launch whose views are valid memory.
    pub(crate) fn run(&self, launch: &KernelLaunch) -> Result<(), String> {
        let kernel = self.kernels.get(launch.kernel).unwrap_or_else(|| panic!("no kernel {}", launch.kernel));
        assert_eq!(launch.signature(), kernel.signature, "parameters of {}", launch.kernel);
        self.launched.lock().unwrap().insert(launch.kernel.to_owned());
        let mut values: Vec<u64> = launch.arguments.iter().map(|argument| argument.bits()).collect();
        let mut arguments: Vec<*mut c_void> =
            values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let entry = LaunchEntry {
            grid: launch.grid,
            block: [launch.threads, 1, 1],
            shared_bytes: launch.shared_bytes,
            seed: self.order,
        };
        // SAFETY: the parameters' types were compared; they point to `GuardedMemory`, which stays
        // until the call returns.
        let failure = unsafe { (self.run)(kernel.entry, &entry, arguments.as_mut_ptr()) };
        if failure.is_null() {
            return Ok(());
        }
        // SAFETY: the result is a constant string until the next launch of this library.
        let failure = unsafe { CStr::from_ptr(failure) };
        Err(format!("{}: {}", launch.kernel, failure.to_string_lossy()))
    }

    /// Kernels of the file that were never run.
    pub(crate) fn not_launched(&self) -> Vec<String> {
        let launched = self.launched.lock().unwrap();
        self.kernels.keys().filter(|name| !launched.contains(*name)).cloned().collect()
    }
}

/// How much the compiler optimises.
#[derive(Clone, Copy)]
pub(crate) enum OptimisationLevel {
    /// For the shim: threads are resumed in it more often than anywhere else.
    Much,
    /// For a complete comparison.
    Some,
    /// For planted bugs: most are detected at once, so compiling dominates.
    Little,
}

/// A kernel file as a shared library that includes the shim. An earlier library of the same text is
/// reused.
#[track_caller]
pub(crate) fn compiled(name: &str, text: &str, optimised: OptimisationLevel) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    fs::create_dir_all(&folder).unwrap();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shim = manifest.join("tests/kernels/shim");

    let flags = flags(OptimisationLevel::Much);
    let object = folder.join(format!("shim-{}.o", digest(&SHIM, &flags)));
    build_once(&object, |to| {
        let mut command = compiler();
        command.args(flags).arg("-c").arg(shim.join("shim.cpp")).arg("-o").arg(to);
        command
    });

    let flags = self::flags(optimised);
    let headers = HEADERS.iter().map(|header| (header.name, header.text));
    let texts: Vec<(&str, &str)> = headers.chain(SHIM).chain([(name, text)]).collect();
    let key = digest(&texts, &flags);
    let library = folder.join(format!("{name}-{key}.so"));
    let source = folder.join(format!("{key}-{name}"));
    build_once(&source, |to| {
        fs::write(to, text).unwrap();
        Command::new("true")
    });
    build_once(&library, |to| {
        let mut command = compiler();
        command.args(flags).arg("-shared");
        command.arg("-I").arg(manifest.join("../../kernels/include")).arg("-I").arg(&shim);
        command.arg("-DCPU_SHIM").args(["-x", "c++"]).arg(&source).args(["-x", "none"]).arg(&object);
        command.arg("-o").arg(to);
        command
    });
    library
}

/// Variants of a file as one text, each in a namespace with its number, so that one compiler run
/// reads the headers once for all.
pub(crate) fn side_by_side(name: &str, variants: &[String]) -> String {
    let included = |line: &&str| line.starts_with("#include");
    let mut all: String = variants[0].lines().filter(included).map(|line| format!("{line}\n")).collect();
    for (number, text) in variants.iter().enumerate() {
        // A name with C linkage would be the same in every namespace.
        let text = text.replace("extern \"C\" ", "");
        let lines: Vec<&str> = text.lines().map(|line| if included(&line) { "" } else { line }).collect();
        let macros = lines.iter().filter_map(|line| line.strip_prefix("#define "));
        let macros = macros.filter_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_').next());
        let forget: String = macros.map(|name| format!("#undef {name}\n")).collect();
        let body = lines.join("\n");
        // Writing to a String cannot fail.
        writeln!(
            all,
            "#undef SHIM_VARIANT\n#define SHIM_VARIANT {number}\nnamespace variant_{number} {{\nSHIM_NAMES\n#line 1 \"{name}\"\n{body}\n}}\n{forget}"
        )
        .unwrap();
    }
    all
}

fn flags(optimised: OptimisationLevel) -> Vec<&'static str> {
    // No contraction of a * b + c: where one operation is intended, the code calls fmaf.
    let mut flags =
        vec!["-std=c++17", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-Wl,-Bsymbolic"];
    flags.push(match optimised {
        OptimisationLevel::Much => "-O2",
        OptimisationLevel::Some => "-O1",
        OptimisationLevel::Little => "-Og",
    });
    // A planted bug may make something unused.
    flags.extend([
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unknown-pragmas",
        "-Wno-unused",
        "-Wno-unused-parameter",
    ]);
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") {
        flags.push("-mfma");
    }
    flags
}

/// The C++ compiler. Detection runs it, so it happens once.
fn compiler() -> Command {
    static FOUND: OnceLock<cc::Tool> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let target = format!("{ARCH}-unknown-linux-gnu");
        let mut build = cc::Build::new();
        build.cpp(true).target(&target).host(&target).opt_level(0).cargo_metadata(false);
        build.get_compiler()
    });
    found.to_command()
}

/// Creates a file unless it exists. Other processes may create it at the same time: the last one
/// replaces it by the same contents.
fn build_once(path: &Path, make: impl FnOnce(&Path) -> Command) {
    static UNFINISHED: AtomicU32 = AtomicU32::new(0);
    if path.exists() {
        return;
    }
    let number = UNFINISHED.fetch_add(1, Ordering::Relaxed);
    let unfinished = path.with_extension(format!("{}-{number}.tmp", std::process::id()));
    let answer = make(&unfinished).output().unwrap();
    assert!(answer.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&answer.stderr));
    fs::rename(&unfinished, path).unwrap();
}

fn digest(texts: &[(&str, &str)], flags: &[&str]) -> String {
    let mut digest = Sha256::new();
    for text in texts.iter().flat_map(|(name, text)| [name, text]).chain(flags) {
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text);
    }
    digest.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}
