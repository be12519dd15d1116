//! Opens a GPU: finds the driver, checks its version, and determines the device's architecture.
#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, result, sys};

/// Oldest driver: CUDA 12.8, because of the entry points that cudarc calls. In the driver's form,
/// 1000 major + 10 minor.
const DRIVER_MIN: i32 = 12_080;

/// Architecture that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CompileTarget {
    /// A100 and other devices of compute capability 8.0 to 8.8.
    Sm80,
    Sm89,
    Sm90,
    /// 9.0 with instructions that only it has (wgmma and its loads). No kernel uses them, so no
    /// device gets this target: code for `Sm90` is the same and also runs on later devices of the
    /// same major version.
    Sm90a,
    Sm100,
}

impl CompileTarget {
    pub const ALL: [Self; 5] = [Self::Sm80, Self::Sm89, Self::Sm90, Self::Sm90a, Self::Sm100];

    /// Its name for compilers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sm80 => "sm_80",
            Self::Sm89 => "sm_89",
            Self::Sm90 => "sm_90",
            Self::Sm90a => "sm_90a",
            Self::Sm100 => "sm_100",
        }
    }

    /// Target of a device. Machine code runs on later minor versions of its major one; `None` if no
    /// kernel here was compiled for it.
    pub(crate) fn of_capability(major: i32, minor: i32) -> Option<Self> {
        match (major, minor) {
            (8, 9) => Some(Self::Sm89),
            (8, _) => Some(Self::Sm80),
            (9, _) => Some(Self::Sm90),
            (10, _) => Some(Self::Sm100),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub struct GpuDevice {
    context: Arc<CudaContext>,
    name: String,
    target: CompileTarget,
    memory_bytes: usize,
    driver: i32,
}

/// Why no GPU was opened.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// No driver on this machine.
    #[error("no CUDA driver: libcuda was not found; install NVIDIA's driver, or use the cpu backend")]
    NoDriver,
    /// The driver lacks entry points.
    #[error("the CUDA driver supports {}.{}; 12.8 or newer is needed", version / 1000, version % 1000 / 10)]
    OldDriver {
        /// 1000 major + 10 minor.
        version: i32,
    },
    /// The compiler is newer than the driver.
    #[error(
        "libnvrtc has CUDA {}.{}, and the driver of CUDA {}.{} cannot load its output; install a newer driver, or set policy.engine.cuda_libraries to the folder of a libnvrtc of CUDA {}",
        compiler.0, compiler.1, driver / 1000, driver % 1000 / 10, driver / 1000
    )]
    OldDriverForCompiler {
        compiler: (i32, i32),
        /// 1000 major + 10 minor.
        driver: i32,
    },
    #[error("there is no GPU {ordinal}: the driver has {count}; choose a smaller number")]
    NoDevice { ordinal: usize, count: usize },
    /// Its compute capability is not supported.
    #[error(
        "{name} has compute capability {major}.{minor}; kernels support 8.0 to 8.9, 9.0 and 10.0 to 10.9"
    )]
    OtherArchitecture { name: String, major: i32, minor: i32 },
    #[error("the CUDA driver could not {operation}")]
    Driver { operation: &'static str, source: DriverError },
}

impl GpuDevice {
    /// Opens a GPU. Loads the driver's library on the first call.
    pub fn open(ordinal: usize) -> Result<Self, DeviceError> {
        // SAFETY: loading libcuda runs its own initialisers, as for every user of CUDA.
        if !unsafe { sys::is_culib_present() } {
            return Err(DeviceError::NoDriver);
        }
        result::init().map_err(failed("start"))?;
        let driver = driver_version()?;
        check_driver(driver)?;
        let count = CudaContext::device_count().map_err(failed("count devices"))?.try_into().unwrap_or(0);
        if ordinal >= count {
            return Err(DeviceError::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal).map_err(failed("open the device"))?;
        let name = context.name().map_err(failed("query the device's name"))?;
        let (major, minor) = context.compute_capability().map_err(failed("query the architecture"))?;
        let memory_bytes = context.total_mem().map_err(failed("query the memory size"))?;
        match CompileTarget::of_capability(major, minor) {
            Some(target) => Ok(Self { context, name, target, memory_bytes, driver }),
            None => Err(DeviceError::OtherArchitecture { name, major, minor }),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Architecture to compile kernels for.
    pub fn target(&self) -> CompileTarget {
        self.target
    }

    /// Refuses a compiler whose machine code the driver cannot load: a driver does not read code of
    /// a later major version of CUDA.
    ///
    /// # Errors
    /// If the compiler has a later major version.
    pub(crate) fn check_compiler(&self, version: (i32, i32)) -> Result<(), DeviceError> {
        check_compiler(version, self.driver)
    }

    /// Total memory in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Free memory in bytes, without that of this context.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn free_bytes(&self) -> Result<usize, DeviceError> {
        let memory_info = self.context.bind_to_thread().and_then(|()| result::mem_get_info());
        memory_info.map(|(free, _)| free).map_err(failed("query the free memory"))
    }

    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }
}

fn driver_version() -> Result<i32, DeviceError> {
    let mut version = 0;
    // SAFETY: the library is loaded, and the call writes one int.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(failed("report its version"))?;
    Ok(version)
}

fn check_driver(version: i32) -> Result<(), DeviceError> {
    if version < DRIVER_MIN { Err(DeviceError::OldDriver { version }) } else { Ok(()) }
}

fn check_compiler(compiler: (i32, i32), driver: i32) -> Result<(), DeviceError> {
    if compiler.0 > driver / 1000 {
        Err(DeviceError::OldDriverForCompiler { compiler, driver })
    } else {
        Ok(())
    }
}

fn failed(operation: &'static str) -> impl Fn(DriverError) -> DeviceError {
    move |source| DeviceError::Driver { operation, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opening_a_device_succeeds_or_names_the_reason() {
        match GpuDevice::open(0) {
            Ok(device) => assert!(device.memory_bytes() > 0),
            Err(error) => assert!(!error.to_string().is_empty(), "{error:?}"),
        }
        // SAFETY: as in `open`.
        if !unsafe { sys::is_culib_present() } {
            assert!(matches!(GpuDevice::open(7), Err(DeviceError::NoDriver)));
        }
    }

    #[test]
    fn old_drivers_are_named_by_their_version() {
        let error = check_driver(12_040).unwrap_err();
        assert_eq!(error.to_string(), "the CUDA driver supports 12.4; 12.8 or newer is needed");
        assert!(check_driver(12_080).is_ok() && check_driver(13_000).is_ok());
    }

    #[test]
    fn a_compiler_of_a_later_cuda_than_the_drivers_is_refused() {
        let error = check_compiler((13, 0), 12_080).unwrap_err().to_string();
        assert!(
            error.contains("libnvrtc has CUDA 13.0, and the driver of CUDA 12.8")
                && error.contains("of a libnvrtc of CUDA 12"),
            "{error}"
        );
        for (compiler, driver) in [((12, 9), 12_080), ((12, 8), 13_000), ((13, 2), 13_000)] {
            assert!(check_compiler(compiler, driver).is_ok(), "{compiler:?} {driver}");
        }
    }

    #[test]
    fn devices_get_the_code_of_their_major_version() {
        let check = |(major, minor), want: Option<&str>| {
            let target = CompileTarget::of_capability(major, minor);
            assert_eq!(target.map(CompileTarget::name), want, "{major}.{minor}");
            assert!(target.is_none_or(|target| CompileTarget::ALL.contains(&target)));
        };
        check((7, 5), None);
        check((8, 0), Some("sm_80")); // A100
        check((8, 6), Some("sm_80")); // A10, A40
        check((8, 7), Some("sm_80"));
        check((8, 9), Some("sm_89")); // L4, L40S
        check((9, 0), Some("sm_90")); // H100, H200
        check((10, 0), Some("sm_100")); // B200
        check((10, 3), Some("sm_100")); // B300
        check((11, 0), None);
        check((12, 0), None);
    }
}
