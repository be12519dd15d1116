//! A Mamba-2 layer over a batch: projection, convolution, recurrence by heads, gated norm,
//! projection.

use super::ForwardPass;
use crate::cpu::work::{BatchWorkspace, ScanJob, emptied, heads_per_job};
use crate::kernels::{ConvKernel, StridedRows};
use crate::layers::{norm, ssm};
use crate::weights::SsmWeights;

impl ForwardPass<'_> {
    /// Computes the addition to the residual stream from the normed rows. `layer` counts Mamba-2
    /// layers.
    pub(super) fn ssm(&mut self, layer: usize, weights: &SsmWeights) {
        let all = self.all(self.text.hidden);
        let inner = self.all(self.text.ssm.inner());
        let projected = self.all(self.text.ssm.in_proj_width());
        let BatchWorkspace { normed, wide, .. } = &mut *self.work;
        self.crew.product(&weights.in_proj, &normed[..all], &mut wide[..projected]);
        self.convolve(layer, &self.convs[layer]);
        self.find_steps(weights);
        self.scan(layer, weights);
        self.gate(weights);
        let BatchWorkspace { by_row, delta, .. } = &mut *self.work;
        self.crew.product(&weights.out_proj, &by_row[..inner], &mut delta[..all]);
    }

    fn convolve(&mut self, layer: usize, conv: &ConvKernel) {
        let config = &self.text.ssm;
        let layout = self.layout;
        let rows = self.layout.rows();
        let width = config.conv_width();
        let stride = config.in_proj_width();
        let BatchWorkspace { wide, conv: mixed, .. } = &mut *self.work;
        let inputs = StridedRows::new(&wide[..rows * stride], config.parts()[1].start, width, stride);
        let arena = &*self.arena;
        self.crew.rows(&mut mixed[..rows * width], width, |row, out| {
            let piece = &layout.pieces[layout.piece_of[row] as usize];
            let (state, _) = arena.state(layer, piece.slot);
            conv.output(state, inputs.part(piece.base, piece.base + piece.len), row - piece.base, out);
        });
        let states = self.arena.states(layer, layout.pieces.iter().map(|piece| piece.slot));
        for (piece, (state, _)) in layout.pieces.iter().zip(states) {
            conv.advance(state, inputs.part(piece.base, piece.base + piece.len));
        }
    }

    fn find_steps(&mut self, weights: &SsmWeights) {
        let config = &self.text.ssm;
        let rows = self.layout.rows();
        let BatchWorkspace { wide, steps, .. } = &mut *self.work;
        let dt = config.parts()[2].clone();
        let stride = config.in_proj_width();
        let raw = StridedRows::new(&wide[..rows * stride], dt.start, dt.len(), stride);
        let width = 2 * config.heads;
        self.crew.rows(&mut steps[..rows * width], width, |row, out| {
            ssm::steps(config, weights, raw.row(row), out);
        });
    }

    /// Runs the recurrence. Every head of every span is separate, so that all threads have work at
    /// any batch size.
    fn scan(&mut self, layer: usize, weights: &SsmWeights) {
        let config = &self.text.ssm;
        let layout = self.layout;
        let rows = self.layout.rows();
        let BatchWorkspace { conv: mixed, steps, by_head, jobs, .. } = &mut *self.work;
        let heads = heads_per_job(config.heads, layout.pieces.len(), self.crew.team.threads());
        let mut list: Vec<ScanJob<'_>> = emptied(std::mem::take(&mut jobs.scan));
        let states = self.arena.states(layer, layout.pieces.iter().map(|piece| piece.slot));
        let mut rest = &mut by_head[..rows * config.inner()];
        for (piece, (_, states)) in layout.pieces.iter().zip(states) {
            let (own, after) = rest.split_at_mut(piece.len * config.inner());
            rest = after;
            let states = states.chunks_mut(heads * config.head_dim * config.state);
            let outputs = own.chunks_mut(heads * config.head_dim * piece.len);
            let job = |(index, (states, y))| ScanJob { piece: *piece, head: index * heads, states, y };
            list.extend(states.zip(outputs).enumerate().map(job));
        }
        self.crew.team.pieces(&mut list, 1, |_, jobs| {
            for ScanJob { piece, head, states, y } in jobs {
                let mixed = piece.rows(mixed, config.conv_width());
                let steps = piece.rows(steps, 2 * config.heads);
                let states = states.chunks_exact_mut(config.head_dim * config.state);
                let outputs = y.chunks_exact_mut(config.head_dim * piece.len);
                for (head, (state, y)) in (*head..).zip(states.zip(outputs)) {
                    ssm::scan(config, weights, head, mixed, steps).run(state, y);
                }
            }
        });
        jobs.scan = emptied(list);
    }

    /// Gathers the heads' outputs into rows, gates and norms them.
    fn gate(&mut self, weights: &SsmWeights) {
        let config = &self.text.ssm;
        let layout = self.layout;
        let rows = self.layout.rows();
        let inner = config.inner();
        let size = config.head_dim;
        let stride = config.in_proj_width();
        let BatchWorkspace { wide, by_head, by_row, .. } = &mut *self.work;
        let z = StridedRows::new(&wide[..rows * stride], 0, inner, stride);
        self.crew.rows(&mut by_row[..rows * inner], inner, |row, out| {
            let piece = &layout.pieces[layout.piece_of[row] as usize];
            let heads = piece.rows(by_head, inner).chunks_exact(piece.len * size);
            for (out, head) in out.chunks_exact_mut(size).zip(heads) {
                out.copy_from_slice(&head[(row - piece.base) * size..][..size]);
            }
            norm::gated_row(out, z.row(row), &weights.norm, config.groups, self.text.norm_epsilon);
        });
    }
}
