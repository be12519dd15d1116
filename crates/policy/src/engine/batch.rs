//! One batch: chooses spans, runs them and samples tokens.

use std::ops::Range;
use std::time::Instant;

use furrow_model::backend::{Backend as _, BackendError, DeviceLost, ImageInset, LogitRows, SequenceSpan};
use furrow_model::sample::{SampleOutcome, TokenRanking};
use furrow_rollout::PolicyVersion;

use super::running::RunningSession;
use super::{Engine, EngineFault, SessionId};
use crate::response::{PartialResponse, ResponseState};
use crate::schedule::{ReadySpan, SchedulerLimits, plan};
use crate::slots::Allocation;

/// The span that a running session runs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlannedSpan {
    pub id: SessionId,
    start: u32,
    end: u32,
}

/// A span of a batch, with the tiles it shows.
pub(super) struct BatchedSpan {
    pub planned: PlannedSpan,
    pub insets: Vec<ImageInset>,
}

impl PlannedSpan {
    pub(super) fn range(self) -> Range<u32> {
        self.start..self.end
    }

    fn rows(self) -> u32 {
        self.end - self.start
    }
}

/// The token sampled for a session.
struct SampleResult {
    id: SessionId,
    picked: SampleOutcome,
    /// The ranking of its row, if the reply reports likely tokens.
    ranking: Option<TokenRanking>,
}

impl Engine {
    /// Runs one batch for each version of the weights with work. There is more than one only while
    /// trajectories finish on older weights.
    pub(super) fn run_batch(&mut self) -> Result<(), DeviceLost> {
        for version in self.versions_ready() {
            self.use_weights(version)?;
            self.run_batch_on(version)?;
            self.end_if_broken(version)?;
        }
        Ok(())
    }

    fn run_batch_on(&mut self, version: PolicyVersion) -> Result<(), DeviceLost> {
        let ready = self.ready(version);
        let prefill_tokens = self.pace.rows(&ready, self.limits.prefill_tokens);
        let mut planned = plan(ready, SchedulerLimits { prefill_tokens, ..self.limits });
        self.defer_blocking_spans(&mut planned)?;
        let batch = self.bring_tiles(planned)?;
        if !batch.is_empty() {
            self.run_together(&batch)?;
        }
        self.features.unpin_all();
        Ok(())
    }

    fn ready(&self, version: PolicyVersion) -> Vec<ReadySpan<PlannedSpan>> {
        let of_version = |session: &RunningSession| self.version_of(&session.core) == version;
        let running = self.sessions.all_running().filter(|(_, session)| of_version(session));
        let ready = running.filter_map(|(id, session)| {
            let Range { start, end } = session.active().sequence.next()?;
            let key = PlannedSpan { id, start, end };
            Some(ReadySpan {
                key,
                rows: key.rows(),
                decodes: session.is_decoding(),
                samples: session.sampling().is_some(),
                since: session.step.since,
            })
        });
        ready.collect()
    }

    /// Runs a batch. If the device refuses it as a whole, each span runs alone, so that only the
    /// one at fault fails.
    ///
    /// A device mostly reports a failure when something is read from it. So all sampled tokens are
    /// read before a session takes any of them.
    fn run_together(&mut self, batch: &[BatchedSpan]) -> Result<(), DeviceLost> {
        let began = Instant::now();
        for span in batch {
            self.make_writable(span.planned)?;
        }
        match (self.run_spans(batch), batch) {
            (Ok(()), _) => {
                self.look_ahead(batch)?;
                let sampled = self.sample(batch)?;
                self.account(batch, began);
                for span in batch {
                    self.mark_span_run(span.planned.id)?;
                }
                for SampleResult { id, picked, ranking } in sampled {
                    self.take(id, picked, ranking);
                }
                Ok(())
            }
            (Err(BackendError::Device(lost)), _) => Err(lost),
            (Err(error), [span]) => self.blame(span.planned.id, error),
            (Err(_), _) => batch.chunks(1).try_for_each(|span| self.run_together(span)),
        }
    }

    /// Ends a session whose tokens or tiles the device refused. A failure of the device is not a
    /// fault of the session.
    pub(super) fn blame(&mut self, id: SessionId, error: BackendError) -> Result<(), DeviceLost> {
        match error {
            BackendError::Device(lost) => Err(lost),
            other => {
                self.fail(id, EngineFault::Refused(other.to_string()));
                Ok(())
            }
        }
    }

    /// Copies the shared pages that a span writes to.
    pub(super) fn make_writable(&mut self, span: PlannedSpan) -> Result<(), DeviceLost> {
        let active = self.sessions.running_mut(span.id).active_mut();
        let copies = self.allocator.make_writable(active.allocation, span.start, span.end, active.reserve);
        copies.into_iter().try_for_each(|(from, to)| self.device.copy_page(from, to))
    }

    fn run_spans(&mut self, batch: &[BatchedSpan]) -> Result<(), BackendError> {
        let Self { device, sessions, .. } = self;
        let spans = batch.iter().map(|BatchedSpan { planned, insets }| {
            let session = sessions.running(planned.id);
            let active = session.active();
            SequenceSpan {
                slot: active.allocation.slot,
                pages: &active.allocation.pages,
                start: planned.start,
                tokens: active.sequence.tokens(planned.range()),
                insets,
                want: if session.sampling().is_some() { LogitRows::Last } else { LogitRows::Nothing },
            }
        });
        device.run(&spans.collect::<Vec<_>>())
    }

    /// Samples a token for every session whose logits the batch computed. Rows are in the order of
    /// the spans.
    fn sample(&mut self, batch: &[BatchedSpan]) -> Result<Vec<SampleResult>, DeviceLost> {
        let Self { device, sessions, sampler, .. } = self;
        let ids = batch.iter().map(|span| span.planned.id);
        let sampling: Vec<_> = ids.filter_map(|id| Some((id, sessions.running(id).sampling()?))).collect();
        let picks: Vec<_> = (0..).zip(&sampling).map(|(row, (_, response))| response.pick(row)).collect();
        let picked = device.sample(&picks)?;
        let mut rank =
            |row: u32, response: &PartialResponse, picked: &SampleOutcome| match (response.ranks(), picked) {
                (Some(ranks), SampleOutcome::Token(token)) => {
                    Ok(sampler.rank(device.logits(row)?, token.id, ranks))
                }
                _ => Ok(None),
            };
        (0..)
            .zip(&sampling)
            .zip(picked)
            .map(|((row, (id, response)), picked)| {
                let ranking = rank(row, response, &picked)?;
                Ok(SampleResult { id: *id, picked, ranking })
            })
            .collect()
    }

    /// Divides the batch's time among sessions by rows, and counts.
    fn account(&mut self, batch: &[BatchedSpan], began: Instant) {
        let decodes = |span: &&BatchedSpan| self.sessions.running(span.planned.id).is_decoding();
        let rows: u32 = batch.iter().map(|span| span.planned.rows()).sum();
        let together = batch.iter().filter(decodes).count() as u64;
        if together > 0 {
            let prefilled: u32 =
                batch.iter().filter(|span| !decodes(span)).map(|span| span.planned.rows()).sum();
            self.pace.record_batch(prefilled);
        }
        let micros = began.elapsed().as_secs_f64() * 1e6;
        for BatchedSpan { planned, .. } in batch {
            let session = self.sessions.running_mut(planned.id);
            let own = planned.rows();
            let decodes = session.is_decoding();
            let step = &mut session.step;
            let arrived = step.arrived;
            let queued = || began.duration_since(arrived).as_micros() as u64;
            step.costs.queue_micros.get_or_insert_with(queued);
            step.costs.device_micros += micros * f64::from(own) / f64::from(rows.max(1));
            if decodes {
                step.costs.decode_steps += 1;
                step.costs.decoded_together += together;
                step.since = self.clock;
            } else {
                step.costs.prefill_tokens += own;
            }
        }
    }

    /// Marks a session's span as run: keeps a promised snapshot, and begins the fork or ends the
    /// step once the kept tokens have run.
    fn mark_span_run(&mut self, id: SessionId) -> Result<(), DeviceLost> {
        let version = self.weight_versions.on_device();
        let session = self.sessions.running_mut(id);
        let is_fork_point = session.advance(version);
        let has_run_kept = session.has_run_kept();
        if is_fork_point {
            self.keep_snapshot(id)?;
        }
        if has_run_kept {
            let session = self.sessions.take_running(id);
            self.enter_next_stage(id, session)?;
        }
        Ok(())
    }

    /// Keeps a copy of the state at a fork point, if it was promised to siblings.
    fn keep_snapshot(&mut self, id: SessionId) -> Result<(), DeviceLost> {
        let session = self.sessions.running_mut(id);
        let tokens = session.active().sequence.done();
        let Some(name) = session.step.take_promised(tokens) else { return Ok(()) };
        self.snapshots.settle(&name);
        if self.snapshots.is_full()
            && let Some(oldest) = self.snapshots.evict()
        {
            self.allocator.release(oldest);
        }
        let active = session.active();
        let slot =
            self.allocator.take_slot().unwrap_or_else(|| unreachable!("snapshots have reserved slots"));
        self.device.copy_slot(active.allocation.slot, slot)?;
        let pages = self.allocator.share(active.allocation, tokens);
        let version = active.version_min.unwrap_or(self.weight_versions.on_device());
        self.snapshots.keep(name, Allocation { slot, pages }, tokens, version);
        Ok(())
    }

    /// Adds the token sampled for a session to its reply, which continues or ends.
    fn take(&mut self, id: SessionId, picked: SampleOutcome, ranking: Option<TokenRanking>) {
        let sampled_on = self.weight_versions.on_device();
        let newest = self.weight_versions.newest();
        let session = self.sessions.running_mut(id);
        let runs_on = session.core.pinned.unwrap_or(newest);
        let Some((reply, sequence)) = session.replying() else {
            tracing::error!(
                session = id.0,
                "a token was sampled for a session that has no reply; it is dropped"
            );
            return;
        };
        match picked {
            SampleOutcome::NotFinite => {
                let tokens = sequence.len();
                // With the rest of a broken version it ends after the batch, which still uses it.
                if !self.breaker.record(sampled_on) {
                    self.fail(id, EngineFault::NotFinite { tokens });
                }
            }
            SampleOutcome::Token(token) => match reply.take(sequence, &token, ranking, sampled_on) {
                Err(illegal) => self.fail(id, EngineFault::Refused(illegal.to_string())),
                Ok(()) => {
                    let next = reply.proceed(sequence, self.settings.chunk, runs_on);
                    if let ResponseState::Finished(reason) = next {
                        let session = self.sessions.take_running(id);
                        self.finish(id, session, reason);
                    }
                }
            },
        }
    }
}
