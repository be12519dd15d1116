//! A device and the `cpu` backend that run the same batches and are compared after each.

use std::sync::Arc;

use furrow_cuda::backend::DeviceBackend;
use furrow_model::backend::{Backend, ImageInset, LogitRows, OffloadedState, Page, SequenceSpan, Slot};
use furrow_model::cpu::CpuBackend;
use furrow_model::forward::Sequence;

use crate::case::{BackendCase, relative_rms};
use crate::host_executor::ExecutorGauge;

pub(crate) struct BackendPair {
    pub name: String,
    pub bound: f64,
    pub cpu: CpuBackend,
    pub device: Box<dyn DeviceBackend>,
    pub gauge: Arc<ExecutorGauge>,
}

impl BackendPair {
    pub(crate) fn open(case: &BackendCase) -> Self {
        let (device, gauge) = case.device();
        let name = format!("{} {:?}", case.name, case.options);
        Self { name, bound: case.bound, cpu: case.cpu(), device, gauge }
    }

    /// Runs a batch on both and compares every requested row of logits; returns those of the
    /// device.
    #[track_caller]
    pub(crate) fn run(&mut self, batch: &[SequenceSpan<'_>]) -> Vec<Vec<f32>> {
        self.cpu.run(batch).unwrap();
        self.device.run(batch).unwrap();
        let wanted = batch.iter().map(SequenceSpan::wanted).sum::<usize>() as u32;
        (0..wanted).map(|row| self.compare(row)).collect()
    }

    #[track_caller]
    fn compare(&mut self, row: u32) -> Vec<f32> {
        let got = self.device.logits(row).unwrap().to_vec();
        let error = relative_rms(&got, self.cpu.logits(row).unwrap());
        // The error of one row may exceed the mean over many rows a little.
        assert!(error <= 2.0 * self.bound, "{}: row {row} is off by {error:e}", self.name);
        got
    }

    /// Runs more tokens of one sequence alone; returns the logits of the last one.
    #[track_caller]
    pub(crate) fn extend(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Vec<f32> {
        self.extend_with(sequence, tokens, &[])
    }

    #[track_caller]
    pub(crate) fn extend_with(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        insets: &[ImageInset],
    ) -> Vec<f32> {
        let logits = self.run(&[sequence.span(tokens, insets, LogitRows::Last)]).remove(0);
        sequence.advance(tokens.len());
        logits
    }

    pub(crate) fn copy_slot(&mut self, from: u32, to: u32) {
        self.cpu.copy_slot(Slot(from), Slot(to)).unwrap();
        self.device.copy_slot(Slot(from), Slot(to)).unwrap();
    }

    pub(crate) fn copy_page(&mut self, from: u32, to: u32) {
        self.cpu.copy_page(Page(from), Page(to)).unwrap();
        self.device.copy_page(Page(from), Page(to)).unwrap();
    }

    pub(crate) fn offload(&mut self, slot: u32, pages: &[Page]) -> [OffloadedState; 2] {
        [
            self.cpu.offload(Slot(slot), pages).unwrap().unwrap(),
            self.device.offload(Slot(slot), pages).unwrap().unwrap(),
        ]
    }

    pub(crate) fn restore(&mut self, [of_cpu, of_device]: &[OffloadedState; 2], slot: u32, pages: &[Page]) {
        self.cpu.restore(of_cpu, Slot(slot), pages).unwrap();
        self.device.restore(of_device, Slot(slot), pages).unwrap();
    }
}
