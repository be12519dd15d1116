//! Loads the machine code of every kernel, and launches kernels.

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};

use cudarc::driver::{DriverError, result, sys};

use super::error::GpuError;
use crate::cache::KernelCache;
use crate::device::GpuDevice;
use crate::launch::KernelLaunch;
use crate::sources::KERNELS;

pub(super) struct LoadedKernels {
    functions: BTreeMap<String, sys::CUfunction>,
    modules: Vec<sys::CUmodule>,
}

impl LoadedKernels {
    /// Compiles every file, or reads it from the cache, and loads it: a launch must not load
    /// anything, because it may be part of a recording.
    pub(super) fn load(cache: &KernelCache, device: &GpuDevice) -> Result<Self, GpuError> {
        let mut kernels = Self { functions: BTreeMap::new(), modules: Vec::new() };
        let most = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let shared_bytes = device.context().attribute(most).map_err(failed("query its shared memory"))?;
        for source in KERNELS {
            let cubin = cache.get(*source, device.target())?;
            // SAFETY: the image is an ELF file of the compiler, checked by its hash; the call
            // copies it.
            let module = unsafe { result::module::load_data(cubin.image.as_ptr().cast()) };
            let module = module.map_err(failed("load a kernel"))?;
            kernels.modules.push(module);
            for name in cubin.kernels() {
                let function = function(module, &name, shared_bytes);
                kernels.functions.insert(name, function.map_err(failed("find a kernel"))?);
            }
        }
        Ok(kernels)
    }

    pub(super) fn launch(&self, launch: &KernelLaunch, stream: sys::CUstream) -> Result<(), DriverError> {
        let function = self.functions.get(launch.kernel);
        let function = *function.ok_or(DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND))?;
        let mut values: Vec<u64> = launch.arguments.iter().map(|argument| argument.bits()).collect();
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let [x, y, z] = launch.grid;
        // SAFETY: the module stays loaded; parameters have the types of the kernel's (tests compare
        // the signatures) and are copied by the call; the addresses are memory of the executor that
        // called.
        unsafe {
            result::launch_kernel(
                function,
                (x, y, z),
                (launch.threads, 1, 1),
                launch.shared_bytes,
                stream,
                &mut pointers,
            )
        }
    }
}

/// A kernel that may use all the shared memory of a block: more than 48 KiB must be enabled
/// explicitly.
fn function(module: sys::CUmodule, name: &str, shared_bytes: i32) -> Result<sys::CUfunction, DriverError> {
    let name = CString::new(name).map_err(|_| DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE))?;
    let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    let fixed = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
    // SAFETY: the module is loaded, and the function lives as long as it.
    unsafe {
        let function = result::module::get_function(module, name)?;
        let fixed = result::function::get_function_attribute(function, fixed)?;
        result::function::set_function_attribute(function, most, shared_bytes - fixed)?;
        Ok(function)
    }
}

fn failed(operation: &'static str) -> impl Fn(DriverError) -> GpuError {
    move |source| GpuError::Driver { operation, source }
}

impl Drop for LoadedKernels {
    fn drop(&mut self) {
        for module in self.modules.drain(..) {
            // SAFETY: it was loaded, its functions are not used any more, and it is unloaded once.
            unsafe { result::module::unload(module) }.ok();
        }
    }
}
