//! How each operation is launched: shapes are checked, grids and shared memory follow from them.
//!
//! Every launch here is of the kernel file that its type names, and asserts what the kernel takes for granted. Widths are in values. Where a
//! row is wider than what is read of it, its `stride` says how far the next one is.

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

use crate::launch::{Argument, Element, View, size};

/// Values that a pack moves: sizes that kernels split into packs are multiples of it.
pub const PACK: usize = 8;

/// Rows of values with a distance from one to the next.
#[derive(Debug, Clone, Copy)]
pub struct Rows<T> {
    /// From the first value of the first row on.
    pub values: View<T>,
    /// Values from one row to the next.
    pub stride: usize,
}

impl<T: Element> Rows<T> {
    /// Asserts that the rows are at least so wide; how many there are is the spans' business, which lie on the device.
    fn hold(&self, width: usize, what: &str) {
        assert!(width <= self.stride, "{what}: rows of {width} in steps of {}", self.stride);
        assert!(self.values.is_empty() || width <= self.values.len(), "{what}: not one row of {width}");
    }

    fn arguments(&self) -> [Argument; 2] {
        [self.values.into(), size(self.stride).into()]
    }
}

/// One layer's state in every slot.
#[derive(Debug, Clone, Copy)]
pub struct Slots<S> {
    /// From the layer's first value in slot 0 on.
    pub values: View<S>,
    /// Values from one slot to the next.
    pub stride: usize,
}

impl<S: Element> Slots<S> {
    fn hold(&self, width: usize, what: &str) {
        assert!(width <= self.stride && width <= self.values.len(), "{what}: a state of {width} values");
    }

    fn arguments(&self) -> [Argument; 2] {
        [self.values.into(), (self.stride as u64).into()]
    }
}

/// Asserts that a size splits into packs.
fn in_packs(width: usize, what: &str) {
    assert!(width > 0 && width.is_multiple_of(PACK), "{what}: {width} is no multiple of {PACK}");
}
