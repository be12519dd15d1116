//! The door to a GPU: driver found, new enough, device there, its architecture known.
#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, result, sys};

/// Oldest driver: CUDA 12.8, by the entry points that cudarc calls. 1000 major + 10 minor, as the driver says it.
const DRIVER_MIN: i32 = 12_080;

/// What kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// A100 and the others of compute capability 8.0 to 8.8.
    Sm80,
    /// L40S, L4: 8.9.
    Sm89,
    /// H100, H200: 9.0.
    Sm90,
    /// The same with the instructions that only they have (wgmma).
    Sm90a,
    /// B200: 10.0.
    Sm100,
}

impl Target {
    /// As compilers name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sm80 => "sm_80",
            Self::Sm89 => "sm_89",
            Self::Sm90 => "sm_90",
            Self::Sm90a => "sm_90a",
            Self::Sm100 => "sm_100",
        }
    }

    /// Of a device. Machine code runs on later minor versions of its major one; `None` where no kernel here was ever compiled for it.
    pub fn of_capability(major: i32, minor: i32) -> Option<Self> {
        match (major, minor) {
            (8, 9) => Some(Self::Sm89),
            (8, _) => Some(Self::Sm80),
            (9, _) => Some(Self::Sm90),
            (10, _) => Some(Self::Sm100),
            _ => None,
        }
    }
}

/// A GPU, open.
#[derive(Debug)]
pub struct Device {
    context: Arc<CudaContext>,
    name: String,
    target: Target,
    memory_bytes: usize,
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
    /// No such device.
    #[error("there is no GPU {ordinal}: the driver sees {count}")]
    NoDevice {
        /// The one asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// Kernels are not made for it.
    #[error(
        "{name} has compute capability {major}.{minor}; kernels are made for 8.0 to 8.9, 9.0 and 10.0 to 10.9"
    )]
    OtherArchitecture {
        /// Its name.
        name: String,
        /// Compute capability.
        major: i32,
        /// Compute capability.
        minor: i32,
    },
    /// The driver refused.
    #[error("the CUDA driver could not {operation}")]
    Driver {
        /// What was asked of it.
        operation: &'static str,
        /// Its answer.
        source: DriverError,
    },
}

impl Device {
    /// Opens a GPU. Loads the driver's library on the first call.
    pub fn open(ordinal: usize) -> Result<Self, DeviceError> {
        // SAFETY: libcuda runs its own initialisers on being loaded, as every user of CUDA has it.
        if !unsafe { sys::is_culib_present() } {
            return Err(DeviceError::NoDriver);
        }
        result::init().map_err(failed("start"))?;
        check_driver(driver_version()?)?;
        let count = CudaContext::device_count().map_err(failed("count devices"))?.try_into().unwrap_or(0);
        if ordinal >= count {
            return Err(DeviceError::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal).map_err(failed("open the device"))?;
        let name = context.name().map_err(failed("name the device"))?;
        let (major, minor) = context.compute_capability().map_err(failed("tell the architecture"))?;
        let memory_bytes = context.total_mem().map_err(failed("tell the memory's size"))?;
        match Target::of_capability(major, minor) {
            Some(target) => Ok(Self { context, name, target, memory_bytes }),
            None => Err(DeviceError::OtherArchitecture { name, major, minor }),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What kernels are compiled for.
    pub fn target(&self) -> Target {
        self.target
    }

    /// Its memory, used or not.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Its context.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }
}

fn driver_version() -> Result<i32, DeviceError> {
    let mut version = 0;
    // SAFETY: the library is loaded, and the call writes one int.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(failed("tell its version"))?;
    Ok(version)
}

fn check_driver(version: i32) -> Result<(), DeviceError> {
    if version < DRIVER_MIN { Err(DeviceError::OldDriver { version }) } else { Ok(()) }
}

fn failed(operation: &'static str) -> impl Fn(DriverError) -> DeviceError {
    move |source| DeviceError::Driver { operation, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_the_error_says_so_and_with_one_a_device_opens_or_says_why_not() {
        match Device::open(0) {
            Ok(device) => assert!(device.memory_bytes() > 0),
            Err(error) => assert!(!error.to_string().is_empty(), "{error:?}"),
        }
        // SAFETY: as in `open`.
        if !unsafe { sys::is_culib_present() } {
            assert!(matches!(Device::open(7), Err(DeviceError::NoDriver)));
        }
    }

    #[test]
    fn old_drivers_are_named_by_their_version() {
        let error = check_driver(12_040).unwrap_err();
        assert_eq!(error.to_string(), "the CUDA driver supports 12.4; 12.8 or newer is needed");
        assert!(check_driver(12_080).is_ok() && check_driver(13_000).is_ok());
    }

    #[test]
    fn devices_get_the_code_of_their_major_version() {
        let names = |major, minor| Target::of_capability(major, minor).map(Target::name);
        assert_eq!(names(8, 0), Some("sm_80"));
        assert_eq!(names(8, 6), Some("sm_80"));
        assert_eq!(names(8, 9), Some("sm_89"));
        assert_eq!(names(9, 0), Some("sm_90"));
        assert_eq!(names(10, 3), Some("sm_100"));
        assert_eq!(names(7, 5), None);
        assert_eq!(names(12, 0), None);
    }
}
