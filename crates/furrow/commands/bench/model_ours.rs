//! The `cpu` backend as model benchmarks drive it: all sequences alike, no sampling.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use furrow_model::backend::{Backend as _, BackendError, PAGE_TOKENS, Page, Room, Slot, Span, Want};
use furrow_model::checkpoint::CheckpointError;
use furrow_model::cpu::Cpu;
use furrow_model::kernels::{Compute, Team};
use furrow_model::weights::Weights;

use crate::Failure;
use furrow_model::checkpoint::chain;

/// Our backend with room for the largest case.
pub struct Ours {
    pub cpu: Cpu,
    pub team: Team,
    pub weights: Arc<Weights>,
    vocabulary: u32,
    rows_max: u32,
    sequence_pages: u32,
}

/// What there has to be room for.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Sequences at once.
    pub sequences: u32,
    /// Tokens of each of them.
    pub sequence_tokens: u32,
    /// Tokens of one sequence when it is alone.
    pub alone_tokens: u32,
    /// Tokens of a piece of prefill.
    pub rows_max: u32,
}

impl Ours {
    /// Loads a checkpoint.
    pub fn open(folder: &Path, compute: Compute, threads: usize, load: Load) -> Result<Self, Failure> {
        let team = Team::new(threads);
        let refused = |error: CheckpointError| Failure::Input(vec![chain(&error)]);
        let weights = Arc::new(Weights::load(folder, &team, &mut |_, _| ()).map_err(refused)?);
        let vocabulary = weights.config.text.vocabulary as u32;
        let sequence_pages = pages(load.sequence_tokens);
        let room = Room {
            slots: load.sequences,
            pages: (load.sequences * sequence_pages).max(pages(load.alone_tokens)),
            rows_max: load.rows_max,
            logits_max: load.sequences,
            features: 0,
            parked_bytes: 0,
        };
        let cpu =
            Cpu::open(Arc::clone(&weights), room, threads, compute).context("opening the cpu backend")?;
        Ok(Self { cpu, team, weights, vocabulary, rows_max: load.rows_max, sequence_pages })
    }

    /// Seconds of prefilling so many sequences of so many tokens, one after the other.
    pub fn prefill_each(&mut self, sequences: u32, tokens: u32) -> Result<f64, Failure> {
        let began = Instant::now();
        for slot in 0..sequences {
            self.pieces(Slot(slot), &self.pages_of(slot), 0, tokens)?;
        }
        Ok(began.elapsed().as_secs_f64())
    }

    /// Seconds of so many steps behind `past` tokens, all sequences in one batch each.
    pub fn decode(&mut self, sequences: u32, past: u32, steps: u32) -> Result<f64, Failure> {
        let pages: Vec<Vec<Page>> = (0..sequences).map(|slot| self.pages_of(slot)).collect();
        let began = Instant::now();
        for step in 0..steps {
            let tokens: Vec<[u32; 1]> = (0..sequences).map(|slot| [self.id(slot + step * 31)]).collect();
            let spans: Vec<Span<'_>> = (0..sequences)
                .zip(pages.iter().zip(&tokens))
                .map(|(slot, (pages, tokens))| span(Slot(slot), pages, past + step, tokens))
                .collect();
            self.cpu.run(&spans)?;
        }
        Ok(began.elapsed().as_secs_f64())
    }

    /// Seconds of prefilling so many tokens of sequence 0, which is alone, behind `past`; 0 begins anew.
    pub fn prefill(&mut self, past: u32, tokens: u32) -> Result<f64, Failure> {
        let pages: Vec<Page> = (0..pages(past + tokens)).map(Page).collect();
        let began = Instant::now();
        self.pieces(Slot(0), &pages, past, tokens)?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// What comes out behind a prompt.
    pub fn logits(&mut self, prompt: &[u32]) -> Result<Vec<f32>, BackendError> {
        let pages = self.pages_of(0);
        self.cpu.run(&[span(Slot(0), &pages, 0, prompt)])?;
        Ok(self.cpu.logits(0)?.to_vec())
    }

    /// So many token ids.
    pub fn ids(&self, tokens: u32) -> Vec<u32> {
        (0..tokens).map(|index| self.id(index * 7919)).collect()
    }

    fn pieces(&mut self, slot: Slot, pages: &[Page], past: u32, tokens: u32) -> Result<(), Failure> {
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

/// Pages of so many tokens.
pub fn pages(tokens: u32) -> u32 {
    tokens.div_ceil(PAGE_TOKENS as u32)
}

fn span<'a>(slot: Slot, pages: &'a [Page], start: u32, tokens: &'a [u32]) -> Span<'a> {
    Span { slot, pages, start, tokens, insets: &[], want: Want::Last }
}
