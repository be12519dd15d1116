//! The `cpu` backend as model benchmarks drive it: equal sequences, no sampling.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use furrow::CommandFailure;
use furrow_model::backend::{
    Backend as _, BackendCapacity, BackendError, LogitRows, PAGE_TOKENS, Page, SequenceSpan, Slot,
};
use furrow_model::checkpoint::{CheckpointError, chain};
use furrow_model::cpu::CpuBackend;
use furrow_model::kernels::{ProductPrecision, ThreadPool};
use furrow_model::weights::ModelWeights;

/// The `cpu` backend with capacity for the largest case.
pub(crate) struct CpuModel {
    pub cpu: CpuBackend,
    pub team: ThreadPool,
    pub weights: Arc<ModelWeights>,
    vocabulary: u32,
    rows_max: u32,
    sequence_pages: u32,
}

/// The capacity that a benchmark needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BenchLoad {
    /// Number of concurrent sequences.
    pub sequences: u32,
    /// Tokens of each sequence.
    pub sequence_tokens: u32,
    /// Tokens of a sequence that runs alone.
    pub alone_tokens: u32,
    /// Tokens of a prefill chunk.
    pub rows_max: u32,
}

impl CpuModel {
    pub(crate) fn open(
        folder: &Path,
        compute: ProductPrecision,
        threads: usize,
        load: BenchLoad,
    ) -> Result<Self, CommandFailure> {
        let team = ThreadPool::new(threads);
        let refused = |error: CheckpointError| CommandFailure::Input(vec![chain(&error)]);
        let weights = Arc::new(ModelWeights::load(folder, &team, &mut |_, _| ()).map_err(refused)?);
        let vocabulary = weights.config.text.vocabulary as u32;
        let sequence_pages = pages(load.sequence_tokens);
        let capacity = BackendCapacity {
            slots: load.sequences,
            pages: (load.sequences * sequence_pages).max(pages(load.alone_tokens)),
            rows_max: load.rows_max,
            logits_max: load.sequences,
            features: 0,
            offload_bytes: 0,
        };
        let cpu = CpuBackend::open(Arc::clone(&weights), capacity, threads, compute)
            .context("failed to open the cpu backend")?;
        Ok(Self { cpu, team, weights, vocabulary, rows_max: load.rows_max, sequence_pages })
    }

    /// Seconds to prefill `sequences` sequences of `tokens` tokens, one after the other.
    pub(crate) fn prefill_each(&mut self, sequences: u32, tokens: u32) -> Result<f64, CommandFailure> {
        let began = Instant::now();
        for slot in 0..sequences {
            self.prefill_chunks(Slot(slot), &self.pages_of(slot), 0, tokens)?;
        }
        Ok(began.elapsed().as_secs_f64())
    }

    /// Seconds of `steps` decode steps after `past` tokens, all sequences in one batch each.
    pub(crate) fn decode(&mut self, sequences: u32, past: u32, steps: u32) -> Result<f64, CommandFailure> {
        let pages: Vec<Vec<Page>> = (0..sequences).map(|slot| self.pages_of(slot)).collect();
        let began = Instant::now();
        for step in 0..steps {
            let tokens: Vec<[u32; 1]> = (0..sequences).map(|slot| [self.id(slot + step * 31)]).collect();
            let spans: Vec<SequenceSpan<'_>> = (0..sequences)
                .zip(pages.iter().zip(&tokens))
                .map(|(slot, (pages, tokens))| span(Slot(slot), pages, past + step, tokens))
                .collect();
            self.cpu.run(&spans)?;
        }
        Ok(began.elapsed().as_secs_f64())
    }

    /// Seconds to prefill `tokens` tokens of sequence 0, alone, after `past` tokens; 0 starts over.
    pub(crate) fn prefill(&mut self, past: u32, tokens: u32) -> Result<f64, CommandFailure> {
        let pages: Vec<Page> = (0..pages(past + tokens)).map(Page).collect();
        let began = Instant::now();
        self.prefill_chunks(Slot(0), &pages, past, tokens)?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// The logits after a prompt.
    pub(crate) fn logits(&mut self, prompt: &[u32]) -> Result<Vec<f32>, BackendError> {
        let pages = self.pages_of(0);
        self.cpu.run(&[span(Slot(0), &pages, 0, prompt)])?;
        Ok(self.cpu.logits(0)?.to_vec())
    }

    /// This many token ids.
    pub(crate) fn ids(&self, tokens: u32) -> Vec<u32> {
        (0..tokens).map(|index| self.id(index * 7919)).collect()
    }

    fn prefill_chunks(
        &mut self,
        slot: Slot,
        pages: &[Page],
        past: u32,
        tokens: u32,
    ) -> Result<(), CommandFailure> {
        let ids = self.ids(tokens);
        for (start, piece) in (past..).step_by(self.rows_max as usize).zip(ids.chunks(self.rows_max as usize))
        {
            self.cpu.run(&[span(slot, pages, start, piece)])?;
        }
        Ok(())
    }

    /// Never one of the first three, which are special in many vocabularies.
    fn id(&self, index: u32) -> u32 {
        3 + index % (self.vocabulary - 3)
    }

    fn pages_of(&self, slot: u32) -> Vec<Page> {
        (slot * self.sequence_pages..(slot + 1) * self.sequence_pages).map(Page).collect()
    }
}

/// Number of pages for this many tokens.
pub(crate) fn pages(tokens: u32) -> u32 {
    tokens.div_ceil(PAGE_TOKENS as u32)
}

fn span<'a>(slot: Slot, pages: &'a [Page], start: u32, tokens: &'a [u32]) -> SequenceSpan<'a> {
    SequenceSpan { slot, pages, start, tokens, insets: &[], want: LogitRows::Last }
}
