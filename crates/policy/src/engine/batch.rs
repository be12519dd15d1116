//! One batch: chooses spans, fetches their tiles, runs them and samples tokens.

use std::time::Instant;

use furrow_model::backend::{Backend as _, BackendError, DeviceLost, ImageInset, LogitRows, SequenceSpan};
use furrow_model::sample::{SampleOutcome, TokenRanking};
use furrow_rollout::{FinishReason, PolicyVersion};

use super::step::{EngineSession, StateTier};
use super::{Engine, EngineFault, SessionId};
use crate::features::{FeatureCache, TileKey};
use crate::metered::MeteredBackend;
use crate::response::PartialResponse;
use crate::schedule::{ReadySpan, SchedulerLimits, plan};
use crate::sequence::TileRows;
use crate::slots::Allocation;

impl EngineSession {
    /// Slot and pages of the active sequence's state.
    fn active_allocation(&self) -> Option<&Allocation> {
        let (_, is_fork) = self.active();
        match (&self.state, self.step.as_ref()?.fork.as_ref()) {
            (_, Some(fork)) if is_fork => fork.allocation.as_ref(),
            (StateTier::Device(allocation), _) => Some(allocation),
            _ => None,
        }
    }
}

/// The token sampled for a session.
struct SampleResult {
    id: SessionId,
    picked: SampleOutcome,
    /// The ranking of its row, if the reply reports likely tokens.
    ranking: Option<TokenRanking>,
}

/// The span a session runs in the next batch if this one goes as planned: the next span of its
/// prompt, or a token.
fn plan_ahead(key: SessionId, session: &EngineSession, is_running: bool) -> Option<ReadySpan<SessionId>> {
    let step = session.step.as_ref().filter(|step| step.is_admitted)?;
    let decodes = session.is_decoding();
    let rows = if decodes { 1 } else { session.span_ahead(is_running)?.1.len() as u32 };
    Some(ReadySpan { key, rows, decodes, samples: decodes, since: step.since })
}

/// Pins tiles and encodes the missing ones; false if the cache has no capacity for them.
fn encode_missing_tiles(
    features: &mut FeatureCache,
    device: &mut MeteredBackend,
    rows: &[TileRows<'_>],
    vision: [u8; 32],
) -> Result<bool, BackendError> {
    let key_of = |rows: &TileRows<'_>| TileKey { pixels: rows.tile.hash, vision };
    let keys: Vec<_> = rows.iter().map(key_of).collect();
    let Some(fetch) = features.pin(&keys) else { return Ok(false) };
    device.release(&fetch.evicted);
    let tile = |key: &TileKey| rows.iter().find(|rows| key_of(rows) == *key).map(|rows| rows.tile.clone());
    let missing: Vec<_> = fetch.missing.iter().filter_map(tile).collect();
    if !missing.is_empty() {
        let made = device.encode(&missing)?;
        for (key, feature) in fetch.missing.iter().zip(made) {
            features.insert(*key, feature);
        }
    }
    Ok(true)
}

impl Engine {
    /// Runs one batch for each version of the weights with work. There is more than one only while
    /// trajectories finish on older weights.
    pub(super) fn run_batch(&mut self) -> Result<(), DeviceLost> {
        for version in self.versions_ready() {
            self.use_weights(version)?;
            self.run_batch_on(version)?;
        }
        Ok(())
    }

    fn run_batch_on(&mut self, version: PolicyVersion) -> Result<(), DeviceLost> {
        let ready = self.ready(version);
        let prefill_tokens = self.pace.rows(&ready, self.limits.prefill_tokens);
        let mut batch = plan(ready, SchedulerLimits { prefill_tokens, ..self.limits });
        self.defer_blocking_spans(&mut batch)?;
        let insets = self.bring_tiles(&mut batch)?;
        if !batch.is_empty() {
            self.run_together(&batch, &insets)?;
        }
        self.features.unpin_all();
        Ok(())
    }

    fn ready(&self, version: PolicyVersion) -> Vec<ReadySpan<SessionId>> {
        let ready = |(id, session): (&SessionId, &EngineSession)| {
            let step = session.step.as_ref().filter(|step| step.is_admitted)?;
            if self.version_of(session) != version {
                return None;
            }
            let span = session.next()?;
            Some(ReadySpan {
                key: *id,
                rows: span.end - span.start,
                decodes: session.is_decoding(),
                samples: session.samples_next(),
                since: step.since,
            })
        };
        self.sessions.iter().filter_map(ready).collect()
    }

    /// Defers, by one batch, the spans that would block all others: those whose tiles are not
    /// encoded yet or whose states are being transferred. That work runs beside the batch, and the
    /// spans join the next one.
    fn defer_blocking_spans(&mut self, batch: &mut Vec<SessionId>) -> Result<(), DeviceLost> {
        let mut deferred = Vec::new();
        for id in &*batch {
            self.make_writable(*id)?;
            if self.would_block_batch(*id)? {
                deferred.push(*id);
            }
        }
        if deferred.len() == batch.len() {
            return Ok(());
        }
        batch.retain(|id| !deferred.contains(id));
        for id in deferred {
            if let Some(step) = self.sessions.get_mut(&id).and_then(|session| session.step.as_mut()) {
                step.was_left_out = true;
            }
        }
        Ok(())
    }

    fn would_block_batch(&mut self, id: SessionId) -> Result<bool, DeviceLost> {
        let Some(session) = self.sessions.get(&id) else { return Ok(false) };
        if session.step.as_ref().is_none_or(|step| step.was_left_out) {
            return Ok(false);
        }
        if let Some(allocation) = session.active_allocation()
            && self.device.is_moving(allocation.slot, &allocation.pages)?
        {
            return Ok(true);
        }
        let Some((sequence, span)) = session.span_ahead(false).filter(|_| self.device.encodes_concurrently())
        else {
            return Ok(false);
        };
        let vision = self.weight_versions.vision();
        let mut rows = sequence.tile_rows(span).into_iter();
        Ok(rows.any(|rows| self.features.get(&TileKey { pixels: rows.tile.hash, vision }).is_none()))
    }

    /// Encodes tiles beside the batch that runs: those that the next one needs, if no other session
    /// comes between. Tiles that the device refuses here are refused again when their span runs,
    /// and that session gets the fault.
    fn look_ahead(&mut self, batch: &[SessionId]) -> Result<(), DeviceLost> {
        if !self.device.encodes_concurrently() {
            return Ok(());
        }
        let ready: Vec<ReadySpan<SessionId>> = self
            .sessions
            .iter()
            .filter_map(|(id, session)| plan_ahead(*id, session, batch.contains(id)))
            .collect();
        let prefill_tokens = self.pace.rows(&ready, self.limits.prefill_tokens);
        for id in plan(ready, SchedulerLimits { prefill_tokens, ..self.limits }) {
            let Self { sessions, features, device, weight_versions, .. } = self;
            let Some(session) = sessions.get(&id).filter(|session| !session.is_decoding()) else { continue };
            let Some((sequence, span)) = session.span_ahead(batch.contains(&id)) else { continue };
            match encode_missing_tiles(features, device, &sequence.tile_rows(span), weight_versions.vision())
            {
                Ok(true) => {}
                Err(BackendError::Device(lost)) => return Err(lost),
                Ok(false) | Err(_) => break,
            }
        }
        Ok(())
    }

    /// Ensures that the tiles of every span are on the device. A span whose tiles find no capacity
    /// leaves the batch; it runs after the spans before it have released theirs.
    fn bring_tiles(&mut self, batch: &mut Vec<SessionId>) -> Result<Vec<Vec<ImageInset>>, DeviceLost> {
        let mut insets = Vec::with_capacity(batch.len());
        for id in std::mem::take(batch) {
            match self.tiles_of(id) {
                Ok(Some(found)) => {
                    batch.push(id);
                    insets.push(found);
                }
                Ok(None) => {}
                Err(error) => self.blame(id, error)?,
            }
        }
        Ok(insets)
    }

    fn tiles_of(&mut self, id: SessionId) -> Result<Option<Vec<ImageInset>>, BackendError> {
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(None) };
        let Some(span) = session.next() else { return Ok(None) };
        let rows = session.active().0.tile_rows(span);
        if rows.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let vision = self.weight_versions.vision();
        let began = Instant::now();
        if !encode_missing_tiles(&mut self.features, &mut self.device, &rows, vision)? {
            return Ok(None);
        }
        let inset = |rows: &TileRows<'_>| {
            let feature = self.features.get(&TileKey { pixels: rows.tile.hash, vision })?;
            Some(ImageInset { at: rows.at, len: rows.len, feature, row: rows.row })
        };
        let insets = rows.iter().filter_map(inset).collect();
        if let Some(step) = &mut session.step {
            step.costs.device_micros += began.elapsed().as_secs_f64() * 1e6;
        }
        Ok(Some(insets))
    }

    /// Runs a batch. If the device refuses it as a whole, each span runs alone, so that only the
    /// one at fault fails.
    ///
    /// A device mostly reports a failure when something is read from it. So all sampled tokens are
    /// read before a session takes any of them.
    fn run_together(&mut self, batch: &[SessionId], insets: &[Vec<ImageInset>]) -> Result<(), DeviceLost> {
        let began = Instant::now();
        for id in batch {
            self.make_writable(*id)?;
        }
        match (self.run_spans(batch, insets), batch) {
            (Ok(()), _) => {
                self.look_ahead(batch)?;
                let sampled = self.sample(batch)?;
                self.account(batch, began);
                self.advance(batch)?;
                for SampleResult { id, picked, ranking } in sampled {
                    self.take(id, picked, ranking);
                }
                Ok(())
            }
            (Err(BackendError::Device(lost)), _) => Err(lost),
            (Err(error), [id]) => self.blame(*id, error),
            (Err(_), _) => {
                let mut alone = batch.iter().zip(insets);
                alone.try_for_each(|(id, insets)| self.run_together(&[*id], std::slice::from_ref(insets)))
            }
        }
    }

    /// Ends a session whose tokens or tiles the device refused. A failure of the device is not a
    /// fault of the session.
    fn blame(&mut self, id: SessionId, error: BackendError) -> Result<(), DeviceLost> {
        match error {
            BackendError::Device(lost) => Err(lost),
            other => {
                self.fail(id, EngineFault::Refused(other.to_string()));
                Ok(())
            }
        }
    }

    /// Copies the shared pages that the next span writes to.
    fn make_writable(&mut self, id: SessionId) -> Result<(), DeviceLost> {
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        let Some(span) = session.next() else { return Ok(()) };
        let (_, is_fork) = session.active();
        let Some(step) = &mut session.step else { return Ok(()) };
        let allocation = match (&mut session.state, &mut step.fork) {
            (_, Some(fork)) if is_fork => fork.allocation.as_mut(),
            (StateTier::Device(allocation), _) => Some(allocation),
            _ => None,
        };
        let Some(allocation) = allocation else { return Ok(()) };
        let copies = self.allocator.make_writable(allocation, span.start, span.end, &mut step.reserve);
        copies.into_iter().try_for_each(|(from, to)| self.device.copy_page(from, to))
    }

    fn run_spans(&mut self, batch: &[SessionId], insets: &[Vec<ImageInset>]) -> Result<(), BackendError> {
        let Self { device, sessions, .. } = self;
        let spans = batch.iter().zip(insets).filter_map(|(id, insets)| {
            let session = sessions.get(id)?;
            let (sequence, _) = session.active();
            let allocation = session.active_allocation()?;
            let span = sequence.next()?;
            Some(SequenceSpan {
                slot: allocation.slot,
                pages: &allocation.pages,
                start: span.start,
                tokens: sequence.tokens(span),
                insets,
                want: if session.samples_next() { LogitRows::Last } else { LogitRows::Nothing },
            })
        });
        device.run(&spans.collect::<Vec<_>>())
    }

    /// Samples a token for every session whose logits the batch computed. Rows are in the order of
    /// the spans.
    fn sample(&mut self, batch: &[SessionId]) -> Result<Vec<SampleResult>, DeviceLost> {
        let Self { device, sessions, sampler, .. } = self;
        let sampling: Vec<_> = batch
            .iter()
            .filter_map(|id| {
                let session = sessions.get(id).filter(|session| session.samples_next())?;
                Some((*id, session.step.as_ref()?.response()?))
            })
            .collect();
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
    fn account(&mut self, batch: &[SessionId], began: Instant) {
        let rows_of = |session: &EngineSession| session.next().map_or(0, |span| span.end - span.start);
        let sessions = || batch.iter().filter_map(|id| self.sessions.get(id));
        let rows: u32 = sessions().map(rows_of).sum();
        let together = sessions().filter(|session| session.is_decoding()).count() as u64;
        if together > 0 {
            let prefilled: u32 = sessions().filter(|session| !session.is_decoding()).map(rows_of).sum();
            self.pace.record_batch(prefilled);
        }
        let micros = began.elapsed().as_secs_f64() * 1e6;
        for id in batch {
            let Some(session) = self.sessions.get_mut(id) else { continue };
            let own = rows_of(session);
            let decodes = session.is_decoding();
            let Some(step) = &mut session.step else { continue };
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

    /// Marks the spans as run: keeps promised snapshots, begins forks, and ends steps without a
    /// reply.
    fn advance(&mut self, batch: &[SessionId]) -> Result<(), DeviceLost> {
        for id in batch {
            let Some(mut session) = self.sessions.remove(id) else { continue };
            let ran = self.mark_span_run(&mut session);
            let is_over =
                session.next().is_none() && session.step.as_ref().is_some_and(|step| !step.wants_reply());
            // Inserted after a failure as well, so that its step is answered.
            self.sessions.insert(*id, session);
            ran?;
            if is_over {
                self.finish(*id, FinishReason::Stop);
            }
        }
        Ok(())
    }

    /// Marks a session's span as run.
    fn mark_span_run(&mut self, session: &mut EngineSession) -> Result<(), DeviceLost> {
        let (_, is_fork) = session.active();
        let version = Some(self.weight_versions.on_device());
        match &mut session.step {
            Some(step) if is_fork => step.version_min = step.version_min.or(version),
            _ => session.version_min = session.version_min.or(version),
        }
        if let Some(step) = &mut session.step {
            step.was_left_out = false;
        }
        let at_fork_point = session.active_mut().advance();
        if at_fork_point {
            self.keep_snapshot(session, is_fork)?;
        }
        if is_fork { Ok(()) } else { self.begin_fork(session) }
    }

    /// Keeps a copy of the state at a fork point that was promised to siblings.
    fn keep_snapshot(&mut self, session: &mut EngineSession, is_fork: bool) -> Result<(), DeviceLost> {
        let Some(step) = &mut session.step else { return Ok(()) };
        let (allocation, tokens, version) = match (&step.fork, &session.state) {
            (Some(fork), _) if is_fork => (fork.allocation.as_ref(), fork.sequence.done(), step.version_min),
            (_, StateTier::Device(allocation)) => {
                (Some(allocation), session.base.done(), session.version_min)
            }
            _ => return Ok(()),
        };
        let Some(index) = step.promised.iter().position(|(position, _)| *position == tokens) else {
            return Ok(());
        };
        let (_, name) = step.promised.swap_remove(index);
        self.snapshots.settle(&name);
        if self.snapshots.is_full()
            && let Some(oldest) = self.snapshots.evict()
        {
            self.allocator.release(oldest);
        }
        let (Some(allocation), Some(slot)) = (allocation, self.allocator.take_slot()) else { return Ok(()) };
        self.device.copy_slot(allocation.slot, slot)?;
        let pages = self.allocator.share(allocation, tokens);
        let version = version.unwrap_or(self.weight_versions.on_device());
        self.snapshots.keep(name, Allocation { slot, pages }, tokens, version);
        Ok(())
    }

    fn take(&mut self, id: SessionId, picked: SampleOutcome, ranking: Option<TokenRanking>) {
        let version = self.weight_versions.on_device();
        let Some(session) = self.sessions.get_mut(&id) else { return };
        match picked {
            SampleOutcome::Token(token) => match session.take(&token, ranking, version) {
                Ok(()) => self.proceed(id),
                Err(illegal) => self.fail(id, EngineFault::Refused(illegal.to_string())),
            },
            SampleOutcome::NotFinite => {
                let tokens = session.replying_len();
                self.fail(id, EngineFault::NotFinite { tokens });
            }
        }
    }
}
