//! Compiles CUDA C++ to machine code for one architecture, with NVIDIA's run-time compiler.
//!
//! The compiler is a library that may be missing: `KernelCompiler::open` finds it or reports where
//! it looked. Sources and headers are passed in memory, so a user's machine needs neither headers
//! nor a toolkit.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, NulError, c_char};
use std::path::{Path, PathBuf};
use std::ptr;

use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys;
use libloading::Library;
use object::read::File;
use object::{Object, ObjectSection};

use crate::device::CompileTarget;
use crate::sources::{HEADERS, KernelSource};

/// Options of every compilation. With `-v` the log has registers and spills.
const OPTIONS: [&str; 2] = ["--std=c++17", "--ptxas-options=-v"];

/// The run-time compiler, loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelCompiler {
    version: (i32, i32),
}

/// Machine code of one file for one architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cubin {
    /// An ELF image, for `cuModuleLoadData`.
    pub image: Vec<u8>,
    pub log: String,
}

/// Resources of a multiprocessor that a kernel uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelUsage {
    pub kernel: String,
    pub registers: u32,
    /// Bytes that did not fit in registers, stored and loaded again.
    pub spill_bytes: u32,
}

/// Why there is no machine code.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The library is not on this machine.
    #[error(
        "no CUDA compiler: libnvrtc was not found; looked {looked}; install it, or set policy.engine.cuda_libraries to its folder"
    )]
    NoCompiler { looked: String },
    /// A library is there but does not load.
    #[error("{} could not be loaded", path.display())]
    Load { path: PathBuf, source: libloading::Error },
    /// A source holds a zero byte.
    #[error("{name} contains a zero byte; remove it")]
    Zero { name: String, source: NulError },
    #[error("{name} does not compile for {}:\n{log}", target.name())]
    Refused { name: String, target: CompileTarget, log: String, source: NvrtcError },
    /// The compiler failed otherwise.
    #[error("the CUDA compiler could not {operation}")]
    Failed { operation: &'static str, source: NvrtcError },
}

impl KernelCompiler {
    /// Loads the compiler: from `folder` if given, otherwise from the system's library path.
    pub fn open(folder: Option<&Path>) -> Result<Self, CompileError> {
        if let Some(folder) = folder {
            load_from(folder)?;
        }
        // SAFETY: loading NVIDIA's compiler runs only its own initialisers.
        if !unsafe { sys::is_culib_present() } {
            let looked = folder.map_or("in the system's library path".to_owned(), |folder| {
                format!("in {} and in the system's library path", folder.display())
            });
            return Err(CompileError::NoCompiler { looked });
        }
        let mut version = (0, 0);
        // SAFETY: the library is loaded, and the call writes two ints.
        unsafe { sys::nvrtcVersion(&mut version.0, &mut version.1) }
            .result()
            .map_err(|source| CompileError::Failed { operation: "report its version", source })?;
        Ok(Self { version })
    }

    /// Major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    pub fn compile(&self, source: KernelSource<'_>, target: CompileTarget) -> Result<Cubin, CompileError> {
        let program = NvrtcProgram::new(source)?;
        let options = options(target, self.version);
        // SAFETY: the program was created and is not destroyed before it is dropped.
        let compiled = unsafe { result::compile_program(program.0, &options) };
        let log = program.log()?;
        match compiled {
            Ok(()) => Ok(Cubin { image: program.image()?, log }),
            Err(error) => {
                Err(CompileError::Refused { name: source.name.to_owned(), target, log, source: error })
            }
        }
    }
}

impl Cubin {
    /// Names of the file's kernels: each has a section of code. The log is not a reliable source: a
    /// compiler that caches its output logs nothing the second time.
    pub fn kernels(&self) -> Vec<String> {
        let Ok(file) = File::parse(&*self.image) else { return Vec::new() };
        let name_of =
            |section: object::Section<'_, '_>| Some(section.name().ok()?.strip_prefix(".text.")?.to_owned());
        file.sections().filter_map(name_of).collect()
    }

    /// Usage of each kernel of the file, from the log; empty if the compiler did not log it.
    pub fn usage(&self) -> Vec<KernelUsage> {
        usage(&self.log)
    }
}

/// All options of a compilation. From 13.0 on an option disables the compiler's own cache;
/// `cache.rs` stores the output together with its log.
pub(crate) fn options(target: CompileTarget, version: (i32, i32)) -> Vec<String> {
    let target = format!("--gpu-architecture={}", target.name());
    let no_cache = (version >= (13, 0)).then(|| "--no-cache".to_owned());
    OPTIONS.iter().map(ToString::to_string).chain([target]).chain(no_cache).collect()
}

/// Loads the compiler, and the library that it opens itself, from one folder and never unloads
/// them: later lookups of the plain names find these.
fn load_from(folder: &Path) -> Result<(), CompileError> {
    let Ok(entries) = folder.read_dir() else { return Ok(()) };
    let is_wanted = |name: &str, prefix: &str| name.starts_with(prefix) && !name.contains(".alt.");
    let names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    // The builtins come first: the compiler finds them only if they are loaded.
    for prefix in ["libnvrtc-builtins.so", "libnvrtc.so"] {
        for name in names.iter().filter(|name| is_wanted(name, prefix)) {
            let path = folder.join(name);
            // SAFETY: the user named this folder as NVIDIA's; its libraries run their own
            // initialisers.
            match unsafe { Library::new(&path) } {
                Ok(library) => std::mem::forget(library),
                Err(source) => return Err(CompileError::Load { path, source }),
            }
        }
    }
    Ok(())
}

/// A program of the compiler, destroyed on drop.
struct NvrtcProgram(sys::nvrtcProgram);

impl NvrtcProgram {
    fn new(source: KernelSource<'_>) -> Result<Self, CompileError> {
        let text = c_string(source.name, source.text)?;
        let name = c_string(source.name, source.name)?;
        let headers = HEADERS.iter().map(|header| c_string(header.name, header.text));
        let headers = headers.collect::<Result<Vec<_>, _>>()?;
        let names = HEADERS.iter().map(|header| c_string(header.name, header.name));
        let names = names.collect::<Result<Vec<_>, _>>()?;
        let pointers = |strings: &[CString]| -> Vec<*const c_char> {
            strings.iter().map(|string| string.as_ptr()).collect()
        };
        let headers_at = pointers(&headers);
        let names_at = pointers(&names);
        let mut program = ptr::null_mut();
        // SAFETY: all strings end in zero and outlive the call, which copies them; the two lists
        // have `HEADERS.len()` pointers each.
        unsafe {
            sys::nvrtcCreateProgram(
                &mut program,
                text.as_ptr(),
                name.as_ptr(),
                HEADERS.len() as i32,
                headers_at.as_ptr(),
                names_at.as_ptr(),
            )
        }
        .result()
        .map_err(|source| CompileError::Failed { operation: "accept the source", source })?;
        Ok(Self(program))
    }

    fn log(&self) -> Result<String, CompileError> {
        // SAFETY: the program lives as long as this.
        let log = unsafe { result::get_program_log(self.0) }
            .map_err(|source| CompileError::Failed { operation: "return its log", source })?;
        let bytes: Vec<u8> = log.into_iter().map(|letter| letter as u8).collect();
        let text = CStr::from_bytes_until_nul(&bytes).map_or(&bytes[..], CStr::to_bytes);
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    fn image(&self) -> Result<Vec<u8>, CompileError> {
        let failed = |source| CompileError::Failed { operation: "return its machine code", source };
        let mut size = 0;
        // SAFETY: the program lives as long as this; the call writes one size.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &mut size) }.result().map_err(failed)?;
        let mut image = vec![0_u8; size];
        // SAFETY: the image has the size that the compiler has just reported.
        unsafe { sys::nvrtcGetCUBIN(self.0, image.as_mut_ptr().cast()) }.result().map_err(failed)?;
        Ok(image)
    }
}

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        // SAFETY: it was created, and only this call destroys it.
        let destroyed = unsafe { result::destroy_program(self.0) };
        debug_assert!(destroyed.is_ok(), "destroying a live program failed");
    }
}

fn c_string(name: &str, text: &str) -> Result<CString, CompileError> {
    CString::new(text).map_err(|source| CompileError::Zero { name: name.to_owned(), source })
}

/// Parses the lines of ptxas: a kernel's name, then its spills, then its registers.
fn usage(log: &str) -> Vec<KernelUsage> {
    let mut usages: Vec<KernelUsage> = Vec::new();
    for line in log.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            usages.push(KernelUsage { kernel, registers: 0, spill_bytes: 0 });
        } else if let Some(usage) = usages.last_mut() {
            usage.spill_bytes +=
                number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
            usage.registers += number_before(line, " registers");
        }
    }
    usages
}

/// The number directly before this text in a line; 0 without it.
fn number_before(line: &str, label: &str) -> u32 {
    let before = line.split(label).next().filter(|before| before.len() < line.len());
    let digits = before.map(|before| before.rsplit(|letter: char| !letter.is_ascii_digit()).next());
    digits.flatten().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_and_spills_are_read_from_the_log() {
        let log = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'scan_bf16' for 'sm_90'
ptxas info    : Function properties for scan_bf16
    120 bytes stack frame, 24 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
ptxas info    : Compiling entry function 'scan_f32' for 'sm_90'
ptxas info    : Function properties for scan_f32
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 0 barriers";
        let want = |kernel: &str, registers, spill_bytes| KernelUsage {
            kernel: kernel.to_owned(),
            registers,
            spill_bytes,
        };
        assert_eq!(usage(log), [want("scan_bf16", 255, 32), want("scan_f32", 40, 0)]);
        assert_eq!(usage(""), []);
    }

    #[test]
    fn a_folder_without_the_compiler_is_named_in_the_error() {
        let folder = tempfile::tempdir().unwrap();
        match KernelCompiler::open(Some(folder.path())) {
            Ok(compiler) => assert!(compiler.version() > (11, 0), "the system's compiler is older than 11.0"),
            Err(error) => assert!(error.to_string().contains(&*folder.path().to_string_lossy()), "{error}"),
        }
    }
}
