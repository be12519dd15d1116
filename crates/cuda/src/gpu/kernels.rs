//! Machine code of every kernel on the device, and their launch.

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::path::Path;

use cudarc::driver::{DriverError, result, sys};

use super::GpuError;
use crate::cache::Cache;
use crate::device::Device;
use crate::launch::Launch;
use crate::sources::KERNELS;

/// All kernels, loaded.
pub(super) struct Kernels {
    functions: BTreeMap<String, sys::CUfunction>,
    modules: Vec<sys::CUmodule>,
}

impl Kernels {
    /// Compiles every file or takes what was compiled before, and loads it: a launch must not load anything, for it may be part of a recording.
    pub fn load(cache: &Cache, device: &Device) -> Result<Self, GpuError> {
        let mut kernels = Self { functions: BTreeMap::new(), modules: Vec::new() };
        let most = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let shared_bytes = device.context().attribute(most).map_err(failed("tell its shared memory"))?;
        for source in KERNELS {
            let cubin = cache.get(*source, device.target())?;
            // SAFETY: the image is an ELF file that the compiler made, checked by its hash; the call copies it.
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

    pub fn launch(&self, launch: &Launch, stream: sys::CUstream) -> Result<(), DriverError> {
        let function = self.functions.get(launch.kernel);
        let function = *function.ok_or(DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND))?;
        let mut words: Vec<u64> = launch.arguments.iter().map(|argument| argument.bits()).collect();
        let mut pointers: Vec<*mut c_void> =
            words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        let [x, y, z] = launch.grid;
        // SAFETY: the module stays loaded; parameters have the types of the kernel's (tests hold signatures together) and are copied by the call; the
        // addresses are memory of the executor that asked.
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

/// A kernel that may take all the shared memory a block can have: above 48 KiB it must be told so.
fn function(module: sys::CUmodule, name: &str, shared_bytes: i32) -> Result<sys::CUfunction, DriverError> {
    let name = CString::new(name).map_err(|_| DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE))?;
    let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    let fixed = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
    // SAFETY: the module is loaded, and a function lives as long as it.
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

impl Drop for Kernels {
    fn drop(&mut self) {
        for module in self.modules.drain(..) {
            // SAFETY: it was loaded, its functions are not used any more, and it is unloaded once.
            unsafe { result::module::unload(module) }.ok();
        }
    }
}

/// Whether a folder has a library of that name, whatever its version.
pub(super) fn holds(folder: &Path, name: &str) -> bool {
    let Ok(entries) = folder.read_dir() else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(name))
}
