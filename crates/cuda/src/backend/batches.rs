//! Runs batches of the language model, and reads their results: logits and sampled tokens.

use furrow_model::backend::{DeviceLost, SequenceSpan};
use furrow_model::config::TextConfig;
use furrow_model::sample::{SampleOutcome, SampleRequest};

use super::options::BackendOptions;
use crate::batch::{BatchDescriptor, FixedBucket, LayoutInputs, is_single};
use crate::executor::{ExecutionLane, GraphKey};
use crate::forward::{DevicePass, FastKernels};
use crate::latch::ExecutorLatch;
use crate::launch::DeviceView;
use crate::sampling;
use crate::state::StateBuffers;
use crate::types::ModelTypes;
use crate::weights::DeviceTextWeights;
use crate::work::{BatchBuffers, BatchLimits};

/// The workspace of batches, and the results of the newest one.
pub(super) struct BatchRunner<P: ModelTypes> {
    options: BackendOptions,
    limits: BatchLimits,
    work: BatchBuffers<P>,
    descriptor: BatchDescriptor,
    /// Row of the computed logits of each requested row of the newest batch.
    rows_of: Vec<u32>,
    /// Logits of the last request: one for each token of the vocabulary.
    logits: Vec<f32>,
}

/// What a batch reads of the rest of the backend.
pub(super) struct PassInputs<'a, P: ModelTypes> {
    pub text: &'a TextConfig,
    pub weights: &'a DeviceTextWeights<P::Value>,
    pub states: &'a StateBuffers<P>,
    /// Rows of all tile features.
    pub features: DeviceView<P::Value>,
    /// Rows of a tile feature.
    pub feature_rows: usize,
}

impl<P: ModelTypes> BatchRunner<P> {
    pub(super) fn new(
        options: BackendOptions,
        limits: BatchLimits,
        work: BatchBuffers<P>,
        vocabulary: usize,
    ) -> Self {
        Self {
            options,
            limits,
            work,
            descriptor: BatchDescriptor::default(),
            rows_of: Vec::new(),
            logits: vec![0.0; vocabulary],
        }
    }

    pub(super) fn limits(&self) -> &BatchLimits {
        &self.limits
    }

    /// Forgets the results of the newest batch.
    pub(super) fn clear(&mut self) {
        self.rows_of.clear();
    }

    /// Logits of a requested row of the newest batch.
    pub(super) fn logits(&mut self, executor: &mut ExecutorLatch, row: u32) -> Result<&[f32], DeviceLost> {
        assert!((row as usize) < self.rows_of.len(), "logits of row {row} were not requested");
        let vocabulary = self.logits.len();
        let from = self.work.logits.from(self.rows_of[row as usize] as usize * vocabulary);
        let bytes = bytemuck::cast_slice_mut(&mut self.logits);
        executor.work(|executor| executor.download(ExecutionLane::Batch, from.address(), bytes))?;
        Ok(&self.logits)
    }

    /// Samples from requested rows of the newest batch.
    pub(super) fn sample(
        &self,
        executor: &mut ExecutorLatch,
        picks: &[SampleRequest<'_>],
    ) -> Result<Vec<SampleOutcome>, DeviceLost> {
        let Self { limits, work, rows_of, .. } = self;
        let vocabulary = self.logits.len();
        executor.check()?;
        let mut picked = Vec::with_capacity(picks.len());
        for picks in picks.chunks(limits.samples) {
            let moved: Vec<SampleRequest<'_>> =
                picks.iter().map(|pick| SampleRequest { row: rows_of[pick.row as usize], ..*pick }).collect();
            let sampled =
                executor.work(|executor| sampling::sample_rows(executor, work, vocabulary, &moved))?;
            picked.extend(sampled);
        }
        Ok(picked)
    }
}

impl<P: FastKernels> BatchRunner<P> {
    /// Runs a checked batch: as one, or, in deterministic mode, decode padded and every other span
    /// alone.
    pub(super) fn run(
        &mut self,
        executor: &mut ExecutorLatch,
        inputs: &PassInputs<'_, P>,
        batch: &[SequenceSpan<'_>],
    ) -> Result<(), DeviceLost> {
        let firsts = batch.iter().scan(0, |sum, span| {
            *sum += span.wanted();
            Some(*sum - span.wanted())
        });
        let firsts: Vec<usize> = firsts.collect();
        self.rows_of.clear();
        self.rows_of.resize(batch.iter().map(SequenceSpan::wanted).sum(), 0);
        let (singles, longs): (Vec<usize>, Vec<usize>) =
            (0..batch.len()).partition(|index| is_single(&batch[*index]));
        let mut run = BatchRun { runner: self, executor, inputs, batch, firsts };
        if !run.runner.options.deterministic {
            return run.pass(&[singles, longs].concat(), 0);
        }
        if !singles.is_empty() {
            run.pass(&singles, 0)?;
        }
        // The logits of a decode batch take as many rows as it is padded to.
        let mut logits_at = run.runner.limits.spans;
        for long in longs {
            run.pass(&[long], logits_at)?;
            logits_at += batch[long].wanted();
        }
        Ok(())
    }
}

/// One batch on its way through the model, in one or several passes.
struct BatchRun<'a, P: ModelTypes> {
    runner: &'a mut BatchRunner<P>,
    executor: &'a mut ExecutorLatch,
    inputs: &'a PassInputs<'a, P>,
    batch: &'a [SequenceSpan<'a>],
    /// Index of the first requested row of each span.
    firsts: Vec<usize>,
}

impl<P: FastKernels> BatchRun<'_, P> {
    /// Runs some spans, single ones first; writes their logits to the rows from `logits_at` on.
    fn pass(&mut self, members: &[usize], logits_at: usize) -> Result<(), DeviceLost> {
        let Self { runner, inputs, batch, firsts, .. } = self;
        let spans: Vec<&SequenceSpan<'_>> = members.iter().map(|member| &batch[*member]).collect();
        let mut row = logits_at;
        for member in members {
            for wanted in 0..batch[*member].wanted() {
                runner.rows_of[firsts[*member] + wanted] = row as u32;
                row += 1;
            }
        }
        let limits = &runner.limits;
        let layout = LayoutInputs { limits, scrap: inputs.states.scrap(), feature_rows: inputs.feature_rows };
        let decodes = spans.iter().all(|span| is_single(span));
        match decodes {
            true => {
                let most = FixedBucket { rows: limits.spans, splits: limits.splits(limits.pages) };
                let fixed = runner.options.deterministic.then_some(most);
                runner.descriptor.arrange_decode(layout, &spans, fixed);
            }
            false => runner.descriptor.arrange(layout, &spans),
        }
        let as_graph = decodes && runner.options.graphs;
        self.launch(as_graph, logits_at)
    }

    /// Uploads the descriptor and launches the pass.
    fn launch(&mut self, as_graph: bool, logits_at: usize) -> Result<(), DeviceLost> {
        let BatchRunner { limits, work, descriptor, .. } = &*self.runner;
        let PassInputs { text, weights, states, features, .. } = *self.inputs;
        let bytes = bytemuck::cast_slice(&descriptor.values);
        let form = descriptor.form;
        let lists = form.lists(work.inputs);
        let pass = DevicePass { text, weights, features, states, work, limits, form, lists, logits_at };
        self.executor.work(|executor| {
            executor.upload(ExecutionLane::Batch, bytes, work.inputs.address())?;
            if as_graph {
                let key = GraphKey { rows: form.rows, splits: form.splits };
                executor.graph(ExecutionLane::Batch, key, &mut |executor| pass.run(executor))
            } else {
                pass.run(executor)
            }
        })
    }
}
