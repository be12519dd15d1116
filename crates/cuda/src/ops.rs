//! The launch of each operation: checks shapes, and derives grids and shared memory from them.
//!
//! Every launch is of the kernel file that its type names, and asserts what the kernel assumes.
//! Widths are in values. If a row is wider than the part that is read, `stride` is the distance to
//! the next row.

pub mod attention;
pub mod conv;
pub mod convert;
pub mod copy;
pub mod embed;
pub mod mlp;
pub mod moe;
pub mod norm;
pub mod sample;
pub mod ssm;
pub mod vision;

use crate::launch::{DeviceElement, DeviceView, KernelArgument, size};

/// Values of a pack: sizes that kernels split into packs are multiples of it.
pub const PACK: usize = 8;

/// Rows of values with a distance from one to the next.
#[derive(Debug, Clone, Copy)]
pub struct DeviceRows<T> {
    /// Starting at the first value of the first row.
    pub values: DeviceView<T>,
    /// Values from one row to the next.
    pub stride: usize,
}

impl<T: DeviceElement> DeviceRows<T> {
    /// Asserts that the rows have at least this width. Their number is not checked: it follows from
    /// the spans, which are on the device.
    fn assert_width(&self, width: usize, what: &str) {
        assert!(width <= self.stride, "{what}: rows of {width} with a stride of {}", self.stride);
        assert!(
            self.values.is_empty() || width <= self.values.len(),
            "{what}: no space for one row of {width}"
        );
    }

    fn arguments(&self) -> [KernelArgument; 2] {
        [self.values.into(), size(self.stride).into()]
    }
}

/// One layer's state in every slot.
#[derive(Debug, Clone, Copy)]
pub struct DeviceSlots<S> {
    /// Starting at the layer's first value in slot 0.
    pub values: DeviceView<S>,
    /// Values from one slot to the next.
    pub stride: usize,
}

impl<S: DeviceElement> DeviceSlots<S> {
    fn assert_width(&self, width: usize, what: &str) {
        assert!(width <= self.stride && width <= self.values.len(), "{what}: a state of {width} values");
    }

    fn arguments(&self) -> [KernelArgument; 2] {
        [self.values.into(), (self.stride as u64).into()]
    }
}

/// Asserts that a size splits into packs.
fn assert_in_packs(width: usize, what: &str) {
    assert!(width > 0 && width.is_multiple_of(PACK), "{what}: {width} is not a multiple of {PACK}");
}
