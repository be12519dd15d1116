//! Matrix products by cuBLASLt. The algorithm for a shape is searched once and then stays.
//!
//! cuBLASLt is column-major. `Y [m, n] = X [m, k] W^T` in rows is `Y^T = W X^T` in columns: A is W,
//! which in columns is `[k, n]` and is transposed, B is `X^T` `[k, m]`, D is `Y^T` `[n, m]`; the
//! bias, one for each of D's rows, is one for each output. Sums in float32, never in TF32.
//!
//! Lower bound of a product: weights read once, n k values (decode), or 2 m n k operations
//! (prefill).

use std::collections::HashMap;
use std::path::PathBuf;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::driver::{DriverError, result as driver, sys as driver_sys};
use libloading::Library;

use super::libraries::has_library;
use crate::executor::{ElementType, MatrixProduct, ProductShape};

/// Workspace of an algorithm: NVIDIA's recommendation for Hopper.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;
/// No algorithm needs a larger alignment.
const ALIGN_MAX: u32 = 256;
/// cuBLAS's number for a transposed operand.
const TURNED: i32 = 1;

/// Why there are no products.
#[derive(Debug, thiserror::Error)]
pub enum ProductsError {
    /// The library is not on this machine.
    #[error(
        "no cuBLASLt: libcublasLt was not found; install NVIDIA's cuBLAS, or set policy.engine.cuda_libraries to its folder (looked in {looked:?} and in the system's library path)"
    )]
    NoLibrary { looked: Vec<PathBuf> },
    /// The library does not load.
    #[error("{} could not be loaded", path.display())]
    Load { path: PathBuf, source: libloading::Error },
    /// The library does not initialise.
    #[error("cuBLASLt could not be initialised")]
    Start(#[source] CublasError),
    /// No memory for its workspaces.
    #[error("there is no memory for the workspaces of cuBLASLt")]
    Workspace(#[source] DriverError),
}

/// The library, its workspaces and the algorithms found so far.
pub(super) struct ProductLibrary {
    handle: sys::cublasLtHandle_t,
    /// One for each lane.
    workspaces: [u64; 2],
    found: HashMap<AlgorithmKey, ProductAlgorithm>,
}

/// Key of an algorithm: the shape, and the alignment of weight, input and output in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct AlgorithmKey {
    shape: ProductShape,
    aligned: [u32; 3],
}

/// Descriptors of a product and its algorithm.
struct ProductAlgorithm {
    product: sys::cublasLtMatmulDesc_t,
    /// Layouts of W, X and Y.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl ProductLibrary {
    /// Loads the library: from a folder that has it, otherwise from the system's library path.
    pub(super) fn open(folders: &[PathBuf]) -> Result<Self, ProductsError> {
        if let Some(folder) = folders.iter().find(|folder| has_library(folder, "libcublasLt.so")) {
            load_from(folder)?;
        }
        // SAFETY: loading NVIDIA's library runs only its own initialisers.
        if !unsafe { sys::is_culib_present() } {
            return Err(ProductsError::NoLibrary { looked: folders.to_vec() });
        }
        let handle = result::create_handle().map_err(ProductsError::Start)?;
        let mut products = Self { handle, workspaces: [0; 2], found: HashMap::new() };
        for workspace in &mut products.workspaces {
            // SAFETY: the context is bound; a workspace may have any contents.
            *workspace = unsafe { driver::malloc_sync(WORKSPACE_BYTES) }.map_err(ProductsError::Workspace)?;
        }
        Ok(products)
    }

    /// Submits a product to a stream.
    pub(super) fn multiply(
        &mut self,
        product: &MatrixProduct,
        lane: usize,
        stream: driver_sys::CUstream,
    ) -> Result<(), CublasError> {
        let key = AlgorithmKey::of(product);
        if !self.found.contains_key(&key) {
            let found = ProductAlgorithm::search(self.handle, &key, product.bias)?;
            self.found.insert(key, found);
        }
        let found = &self.found[&key];
        if product.shape.biased {
            found.set_bias(product.bias)?;
        }
        let one = 1.0_f32;
        let old = if product.shape.adds { 1.0_f32 } else { 0.0 };
        let [weight, input, output] = found.layouts;
        // SAFETY: the descriptors live in `found`; addresses are the executor's memory, as large as
        // the shape requires; factors are read before the call returns.
        unsafe {
            result::matmul(
                self.handle,
                found.product,
                (&raw const one).cast(),
                (&raw const old).cast(),
                product.weight as *const _,
                weight,
                product.input as *const _,
                input,
                product.output as *const _,
                output,
                product.output as *mut _,
                output,
                &found.algorithm,
                self.workspaces[lane] as *mut _,
                WORKSPACE_BYTES,
                stream.cast(),
            )
        }
    }
}

impl AlgorithmKey {
    fn of(product: &MatrixProduct) -> Self {
        let ProductShape { input_stride, output_stride, inputs, values, results, .. } = product.shape;
        let aligned = |address: u64, stride: usize, number: ElementType| {
            let row = (stride * number.bytes()) as u64;
            1 << (address | row | u64::from(ALIGN_MAX)).trailing_zeros()
        };
        Self {
            shape: product.shape,
            aligned: [
                aligned(product.weight, inputs, values),
                aligned(product.input, input_stride, values),
                aligned(product.output, output_stride, results),
            ],
        }
    }
}

impl ProductAlgorithm {
    /// Describes the product and takes the algorithm that cuBLASLt estimates as fastest. The bias
    /// address is set before the search, because the search depends on its alignment.
    fn search(handle: sys::cublasLtHandle_t, key: &AlgorithmKey, bias: u64) -> Result<Self, CublasError> {
        let ProductShape {
            rows, inputs, outputs, input_stride, output_stride, values, results, biased, ..
        } = key.shape;
        let layout = |number, height: usize, width: usize, stride: usize| {
            result::create_matrix_layout(data_type(number), height as u64, width as u64, stride as i64)
        };
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let product = result::create_matmul_desc(compute, data_type(ElementType::F32))?;
        let layouts = [
            layout(values, inputs, outputs, inputs)?,
            layout(values, inputs, rows, input_stride)?,
            layout(results, outputs, rows, output_stride)?,
        ];
        // What exists so far is destroyed with it, whatever the search returns.
        let mut found = Self { product, layouts, algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] } };
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        found.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &TURNED)?;
        if biased {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
            found.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
            found.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &data_type(results))?;
            found.set_bias(bias)?;
        }
        let preference = SearchPreference::new(key)?;
        let [weight, input, output] = found.layouts;
        // SAFETY: all descriptors were created above and live.
        let answer = unsafe {
            result::get_matmul_algo_heuristic(
                handle,
                found.product,
                weight,
                input,
                output,
                output,
                preference.0,
            )
        }?;
        found.algorithm = answer.algo;
        Ok(found)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<(), CublasError> {
        // SAFETY: the descriptor lives; the value has the type, and so the size, of the attribute,
        // and is copied.
        unsafe {
            result::set_matmul_desc_attribute(
                self.product,
                attribute,
                std::ptr::from_ref(value).cast(),
                size_of::<T>(),
            )
        }
    }

    fn set_bias(&self, address: u64) -> Result<(), CublasError> {
        self.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &address)
    }
}

/// Limits for an algorithm.
struct SearchPreference(sys::cublasLtMatmulPreference_t);

impl SearchPreference {
    fn new(key: &AlgorithmKey) -> Result<Self, CublasError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let preference = Self(result::create_matmul_pref()?);
        let [weight, input, output] = key.aligned;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE_BYTES)?;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &weight)?;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &input)?;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &output)?;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &output)?;
        Ok(preference)
    }

    fn set<T>(
        &self,
        attribute: sys::cublasLtMatmulPreferenceAttributes_t,
        value: &T,
    ) -> Result<(), CublasError> {
        // SAFETY: the preference lives; the value has the type, and so the size, of the attribute,
        // and is copied.
        unsafe {
            result::set_matmul_pref_attribute(
                self.0,
                attribute,
                std::ptr::from_ref(value).cast(),
                size_of::<T>(),
            )
        }
    }
}

fn data_type(number: ElementType) -> sys::cudaDataType {
    match number {
        ElementType::F32 => sys::cudaDataType::CUDA_R_32F,
        ElementType::Bf16 => sys::cudaDataType::CUDA_R_16BF,
    }
}

fn load_from(folder: &std::path::Path) -> Result<(), ProductsError> {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let is_it = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcublasLt.so"))
    };
    for path in entries.map(|entry| entry.path()).filter(is_it) {
        // SAFETY: the user named this folder as NVIDIA's; its library runs its own initialisers.
        match unsafe { Library::new(&path) } {
            // It is never unloaded: later lookups of the plain name find this library.
            Ok(library) => std::mem::forget(library),
            Err(source) => return Err(ProductsError::Load { path, source }),
        }
    }
    Ok(())
}

impl Drop for ProductAlgorithm {
    fn drop(&mut self) {
        // SAFETY: all were created by `search`, and are destroyed once.
        unsafe {
            result::destroy_matmul_desc(self.product).ok();
            self.layouts.iter().for_each(|layout| {
                result::destroy_matrix_layout(*layout).ok();
            });
        }
    }
}

impl Drop for SearchPreference {
    fn drop(&mut self) {
        // SAFETY: it was created by `new`, and is destroyed once.
        unsafe { result::destroy_matmul_pref(self.0) }.ok();
    }
}

impl Drop for ProductLibrary {
    fn drop(&mut self) {
        self.found.clear();
        // SAFETY: the handle was created by `open`, nothing uses it any more, and workspaces were
        // allocated (0 frees nothing).
        unsafe {
            result::destroy_handle(self.handle).ok();
            for workspace in self.workspaces.into_iter().filter(|address| *address != 0) {
                driver::free_sync(workspace).ok();
            }
        }
    }
}
