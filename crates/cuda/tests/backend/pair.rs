//! A device of air and the `cpu` backend that do the same, and are compared after every batch.

use std::sync::Arc;

use furrow_cuda::backend::Device;
use furrow_model::backend::{Backend, Inset, Page, Parked, Slot, Span, Want};
use furrow_model::cpu::Cpu;
use furrow_model::forward::Sequence;

use crate::air::Gauge;
use crate::case::{Case, relative_rms};

/// Both backends.
pub struct Pair {
    pub name: String,
    pub bound: f64,
    pub cpu: Cpu,
    pub device: Box<dyn Device>,
    pub gauge: Arc<Gauge>,
}

impl Pair {
    pub fn open(case: &Case) -> Self {
        let (device, gauge) = case.device();
        let name = format!("{} {:?}", case.name, case.options);
        Self { name, bound: case.bound, cpu: case.cpu(), device, gauge }
    }

    /// Runs a batch on both and compares every wanted row of logits; gives those of the device.
    #[track_caller]
    pub fn run(&mut self, batch: &[Span<'_>]) -> Vec<Vec<f32>> {
        self.cpu.run(batch).unwrap();
        self.device.run(batch).unwrap();
        let wanted = batch.iter().map(Span::wanted).sum::<usize>() as u32;
        (0..wanted).map(|row| self.compare(row)).collect()
    }

    #[track_caller]
    fn compare(&mut self, row: u32) -> Vec<f32> {
        let got = self.device.logits(row).unwrap().to_vec();
        let error = relative_rms(&got, self.cpu.logits(row).unwrap());
        // A row alone may be off a little more than the mean of many.
        assert!(error <= 2.0 * self.bound, "{}: row {row} is off by {error:e}", self.name);
        got
    }

    /// Runs more tokens of a sequence, alone; gives the logits of the last one.
    #[track_caller]
    pub fn extend(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Vec<f32> {
        self.extend_with(sequence, tokens, &[])
    }

    #[track_caller]
    pub fn extend_with(&mut self, sequence: &mut Sequence, tokens: &[u32], insets: &[Inset]) -> Vec<f32> {
        let logits = self.run(&[sequence.span(tokens, insets, Want::Last)]).remove(0);
        sequence.advance(tokens.len());
        logits
    }

    pub fn copy_slot(&mut self, from: u32, to: u32) {
        self.cpu.copy_slot(Slot(from), Slot(to)).unwrap();
        self.device.copy_slot(Slot(from), Slot(to)).unwrap();
    }

    pub fn copy_page(&mut self, from: u32, to: u32) {
        self.cpu.copy_page(Page(from), Page(to)).unwrap();
        self.device.copy_page(Page(from), Page(to)).unwrap();
    }

    pub fn park(&mut self, slot: u32, pages: &[Page]) -> [Parked; 2] {
        [
            self.cpu.park(Slot(slot), pages).unwrap().unwrap(),
            self.device.park(Slot(slot), pages).unwrap().unwrap(),
        ]
    }

    pub fn restore(&mut self, [of_cpu, of_device]: &[Parked; 2], slot: u32, pages: &[Page]) {
        self.cpu.restore(of_cpu, Slot(slot), pages).unwrap();
        self.device.restore(of_device, Slot(slot), pages).unwrap();
    }
}
