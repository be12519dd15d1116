//! Memory of sessions' states: slots of the recurrence and the convolution, pages of keys and
//! values.
//!
//! A slot is contiguous: for each Mamba-2 layer the SSM state `[heads, head size, N]` and the
//! convolution's last inputs `[3, W]`. A snapshot is therefore one copy. A page is contiguous too:
//! for each attention layer and KV head keys `[64, head size]` and values `[64, head size]`. After
//! the last page is a scrap page that no session owns: padding rows of a batch write there.

use std::marker::PhantomData;

use furrow_model::backend::{BackendCapacity, PAGE_TOKENS, Page, Slot};
use furrow_model::config::{LayerKind, TextConfig};

use crate::arena::BufferAllocator;
use crate::launch::{DeviceElement, DeviceView};
use crate::ops::DeviceSlots;
use crate::ops::attention::DevicePages;
use crate::types::ModelTypes;

/// Part of a plan.
const SLOTS: &str = "state slots";
const PAGES: &str = "KV pages";
/// Kernels move packs of 16 bytes.
const PACK_BYTES: usize = 16;

/// The memory of all sessions.
#[derive(Debug)]
pub(crate) struct StateBuffers<P> {
    slots: DeviceView<u8>,
    pages: DeviceView<u8>,
    /// Bytes of a layer's SSM state and of its convolution's inputs, in packs.
    ssm_bytes: usize,
    conv_bytes: usize,
    slot_bytes: usize,
    /// Bytes of a layer's part of a page.
    kv_bytes: usize,
    page_bytes: usize,
    scrap: u32,
    types: PhantomData<fn() -> P>,
}

impl<P: ModelTypes> StateBuffers<P> {
    /// Allocates all slots and pages.
    pub(crate) fn allocate(
        text: &TextConfig,
        capacity: &BackendCapacity,
        allocator: &mut BufferAllocator,
    ) -> Self {
        let ssm = text.ssm.inner() * text.ssm.state * size_of::<P::State>();
        let conv = text.ssm.conv_width() * (text.ssm.conv_kernel - 1) * size_of::<P::Value>();
        let ssm_bytes = ssm.next_multiple_of(PACK_BYTES);
        let conv_bytes = conv.next_multiple_of(PACK_BYTES);
        let kv_bytes = text.attention.page_values() * size_of::<P::Value>();
        let slot_bytes = text.layers_of(LayerKind::Ssm).count() * (ssm_bytes + conv_bytes);
        let page_bytes = text.layers_of(LayerKind::Attention).count() * kv_bytes;
        let all = |count: u32, bytes: usize| (count as usize).saturating_mul(bytes);
        Self {
            slots: allocator.take(SLOTS, all(capacity.slots, slot_bytes)),
            pages: allocator.take(PAGES, all(capacity.pages.saturating_add(1), page_bytes)),
            ssm_bytes,
            conv_bytes,
            slot_bytes,
            kv_bytes,
            page_bytes,
            scrap: capacity.pages,
            types: PhantomData,
        }
    }

    /// A layer's SSM state in every slot. `layer` counts only Mamba-2 layers.
    pub(crate) fn ssm(&self, layer: usize) -> DeviceSlots<P::State> {
        let at = layer * (self.ssm_bytes + self.conv_bytes);
        DeviceSlots {
            values: as_values(self.slots.from(at)),
            stride: self.slot_bytes / size_of::<P::State>(),
        }
    }

    /// A layer's convolution state in every slot.
    pub(crate) fn conv(&self, layer: usize) -> DeviceSlots<P::Value> {
        let at = layer * (self.ssm_bytes + self.conv_bytes) + self.ssm_bytes;
        DeviceSlots {
            values: as_values(self.slots.from(at)),
            stride: self.slot_bytes / size_of::<P::Value>(),
        }
    }

    /// A layer's part of every page. `layer` counts only attention layers.
    pub(crate) fn pages(
        &self,
        layer: usize,
        table: DeviceView<u32>,
        table_stride: usize,
    ) -> DevicePages<P::Value> {
        let values = as_values(self.pages.from(layer * self.kv_bytes));
        DevicePages { values, stride: self.page_bytes / size_of::<P::Value>(), table, table_stride }
    }

    /// The whole of a slot.
    pub(crate) fn slot(&self, slot: Slot) -> DeviceView<u8> {
        self.slots.from(slot.0 as usize * self.slot_bytes).first(self.slot_bytes)
    }

    /// The whole of a page.
    pub(crate) fn page(&self, page: Page) -> DeviceView<u8> {
        self.pages.from(page.0 as usize * self.page_bytes).first(self.page_bytes)
    }

    /// Bytes of a slot and of a page.
    pub(crate) fn sizes(&self) -> [u64; 2] {
        [self.slot_bytes as u64, self.page_bytes as u64]
    }

    /// All slots, and all pages.
    pub(crate) fn all(&self) -> [DeviceView<u8>; 2] {
        [self.slots, self.pages]
    }

    pub(crate) fn scrap(&self) -> u32 {
        self.scrap
    }
}

/// Pages for this many positions.
pub(crate) fn pages_of(positions: usize) -> usize {
    positions.div_ceil(PAGE_TOKENS)
}

fn as_values<T: DeviceElement>(bytes: DeviceView<u8>) -> DeviceView<T> {
    DeviceView::new(bytes.address(), bytes.len() / size_of::<T>())
}
