//! Every slot's state and every page's keys and values, allocated once.
//!
//! A slot is one contiguous range: for each Mamba-2 layer the convolution's last inputs
//! `[kernel - 1, W]`, then the SSM state `[heads, head size, N]`. A snapshot is therefore one copy.
//! A page is contiguous too: for each attention layer and KV head keys `[head size, 64]` and values
//! `[64, head size]`.

use super::error::CpuOpenError;
use super::values::FloatBuffer;
use crate::backend::{BackendCapacity, HostState, Page, Slot};
use crate::config::{LayerKind, TextConfig};

/// The memory of all sessions.
#[derive(Debug)]
pub(super) struct StateArena {
    slots: FloatBuffer,
    pages: FloatBuffer,
    /// Values of a layer's convolution state, SSM state, and part of a page.
    conv: usize,
    ssm: usize,
    kv: usize,
    /// Values of a slot and of a page.
    slot: usize,
    page: usize,
}

impl StateArena {
    /// Allocates and clears everything.
    pub(super) fn new(text: &TextConfig, capacity: &BackendCapacity) -> Result<Self, CpuOpenError> {
        let conv = text.ssm.conv_width() * (text.ssm.conv_kernel - 1);
        let ssm = text.ssm.inner() * text.ssm.state;
        let kv = text.attention.page_values();
        let slot = text.count(LayerKind::Ssm) * (conv + ssm);
        let page = text.count(LayerKind::Attention) * kv;
        Ok(Self {
            slots: FloatBuffer::zeros("the state of all slots", capacity.slots as usize, slot)?,
            pages: FloatBuffer::zeros("the keys and values of all pages", capacity.pages as usize, page)?,
            conv,
            ssm,
            kv,
            slot,
            page,
        })
    }

    /// A layer's convolution and SSM state in one slot. `layer` counts only Mamba-2 layers.
    pub(super) fn state(&self, layer: usize, slot: Slot) -> (&[f32], &[f32]) {
        let start = slot.0 as usize * self.slot + layer * (self.conv + self.ssm);
        self.slots[start..start + self.conv + self.ssm].split_at(self.conv)
    }

    /// A layer's convolution and SSM states of some slots, which are ascending.
    pub(super) fn states<'a>(
        &'a mut self,
        layer: usize,
        slots: impl Iterator<Item = Slot> + 'a,
    ) -> impl Iterator<Item = (&'a mut [f32], &'a mut [f32])> {
        let conv = self.conv;
        let both = self.conv + self.ssm;
        let size = self.slot;
        let mut rest = &mut self.slots[..];
        let mut first = 0;
        slots.map(move |slot| {
            let ahead = (slot.0 as usize - first) * size;
            let (own, after) = std::mem::take(&mut rest)[ahead..].split_at_mut(size);
            (rest, first) = (after, slot.0 as usize + 1);
            own[layer * both..][..both].split_at_mut(conv)
        })
    }

    /// A layer's part of a page. `layer` counts only attention layers.
    pub(super) fn keys_values(&self, layer: usize, page: Page) -> &[f32] {
        &self.pages[page.0 as usize * self.page + layer * self.kv..][..self.kv]
    }

    /// A layer's part of a page, for writing.
    pub(super) fn keys_values_mut(&mut self, layer: usize, page: Page) -> &mut [f32] {
        &mut self.pages[page.0 as usize * self.page + layer * self.kv..][..self.kv]
    }

    pub(super) fn clear(&mut self, slot: Slot) {
        own_mut(&mut self.slots, self.slot, slot.0).fill(0.0);
    }

    pub(super) fn copy_slot(&mut self, from: Slot, to: Slot) {
        copy(&mut self.slots, self.slot, from.0, to.0);
    }

    pub(super) fn copy_page(&mut self, from: Page, to: Page) {
        copy(&mut self.pages, self.page, from.0, to.0);
    }

    pub(super) fn offloaded_bytes(&self, pages: u32) -> u64 {
        (self.slot + self.page * pages as usize) as u64 * size_of::<f32>() as u64
    }

    pub(super) fn offload(&self, slot: Slot, pages: &[Page]) -> HostState {
        let mut bytes = Vec::with_capacity(pages.len() * self.page * size_of::<f32>());
        for page in pages {
            bytes.extend_from_slice(bytemuck::cast_slice(own(&self.pages, self.page, page.0)));
        }
        HostState { state: bytemuck::cast_slice(own(&self.slots, self.slot, slot.0)).to_vec(), pages: bytes }
    }

    pub(super) fn restore(&mut self, offloaded: &HostState, slot: Slot, pages: &[Page]) {
        let page_bytes = self.page * size_of::<f32>();
        assert_eq!(
            offloaded.pages.len(),
            pages.len() * page_bytes,
            "offloaded bytes of {} pages",
            pages.len()
        );
        let state: &mut [u8] = bytemuck::cast_slice_mut(own_mut(&mut self.slots, self.slot, slot.0));
        state.copy_from_slice(&offloaded.state);
        for (index, page) in pages.iter().enumerate() {
            let to: &mut [u8] = bytemuck::cast_slice_mut(own_mut(&mut self.pages, self.page, page.0));
            to.copy_from_slice(&offloaded.pages[index * page_bytes..(index + 1) * page_bytes]);
        }
    }
}

fn own(values: &[f32], size: usize, index: u32) -> &[f32] {
    &values[index as usize * size..][..size]
}

fn own_mut(values: &mut [f32], size: usize, index: u32) -> &mut [f32] {
    &mut values[index as usize * size..][..size]
}

fn copy(values: &mut [f32], size: usize, from: u32, to: u32) {
    let from = from as usize * size;
    values.copy_within(from..from + size, to as usize * size);
}
