//! The tiles of a batch: which spans wait for theirs, and what is encoded beside a batch for the
//! next one.

use std::time::Instant;

use furrow_model::backend::{Backend as _, BackendError, DeviceLost, ImageInset};

use super::batch::{BatchedSpan, PlannedSpan};
use super::running::RunningSession;
use super::{Engine, SessionId};
use crate::features::{FeatureCache, TileKey};
use crate::metered::MeteredBackend;
use crate::schedule::{ReadySpan, SchedulerLimits, plan};
use crate::sequence::TileRows;

/// The span a session runs in the next batch if this one goes as planned: the next span of its
/// prompt, or a token.
fn plan_ahead(key: SessionId, session: &RunningSession, is_running: bool) -> Option<ReadySpan<SessionId>> {
    let decodes = session.is_decoding();
    let rows = if decodes { 1 } else { session.span_ahead(is_running)?.1.len() as u32 };
    Some(ReadySpan { key, rows, decodes, samples: decodes, since: session.step.since })
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
    /// Defers, by one batch, the spans that would block all others: those whose tiles are not
    /// encoded yet or whose states are being transferred. That work runs beside the batch, and the
    /// spans join the next one.
    pub(super) fn defer_blocking_spans(&mut self, batch: &mut Vec<PlannedSpan>) -> Result<(), DeviceLost> {
        let mut deferred = Vec::new();
        for span in &*batch {
            self.make_writable(*span)?;
            if self.would_block_batch(*span)? {
                deferred.push(*span);
            }
        }
        if deferred.len() == batch.len() {
            return Ok(());
        }
        batch.retain(|span| !deferred.contains(span));
        for span in deferred {
            self.sessions.running_mut(span.id).step.was_left_out = true;
        }
        Ok(())
    }

    fn would_block_batch(&mut self, span: PlannedSpan) -> Result<bool, DeviceLost> {
        let session = self.sessions.running(span.id);
        if session.step.was_left_out {
            return Ok(false);
        }
        let active = session.active();
        if self.device.is_moving(active.allocation.slot, &active.allocation.pages)? {
            return Ok(true);
        }
        if !self.device.encodes_concurrently() {
            return Ok(false);
        }
        let vision = self.weight_versions.vision();
        let mut rows = active.sequence.tile_rows(span.range()).into_iter();
        Ok(rows.any(|rows| self.features.get(&TileKey { pixels: rows.tile.hash, vision }).is_none()))
    }

    /// Encodes tiles beside the batch that runs: those that the next one needs, if no other session
    /// comes between. Tiles that the device refuses here are refused again when their span runs,
    /// and that session gets the fault.
    pub(super) fn look_ahead(&mut self, batch: &[BatchedSpan]) -> Result<(), DeviceLost> {
        if !self.device.encodes_concurrently() {
            return Ok(());
        }
        let is_in_batch = |id: SessionId| batch.iter().any(|span| span.planned.id == id);
        let ready: Vec<ReadySpan<SessionId>> = self
            .sessions
            .all_running()
            .filter_map(|(id, session)| plan_ahead(id, session, is_in_batch(id)))
            .collect();
        let prefill_tokens = self.pace.rows(&ready, self.limits.prefill_tokens);
        for id in plan(ready, SchedulerLimits { prefill_tokens, ..self.limits }) {
            let Self { sessions, features, device, weight_versions, .. } = self;
            let session = sessions.running(id);
            if session.is_decoding() {
                continue;
            }
            if let Some((sequence, span)) = session.span_ahead(is_in_batch(id)) {
                let rows = sequence.tile_rows(span);
                match encode_missing_tiles(features, device, &rows, weight_versions.vision()) {
                    Ok(true) => {}
                    Err(BackendError::Device(lost)) => return Err(lost),
                    Ok(false) | Err(_) => break,
                }
            }
        }
        Ok(())
    }

    /// Ensures that the tiles of every span are on the device. A span whose tiles find no capacity
    /// leaves the batch; it runs after the spans before it have released theirs.
    pub(super) fn bring_tiles(&mut self, batch: Vec<PlannedSpan>) -> Result<Vec<BatchedSpan>, DeviceLost> {
        let mut spans = Vec::with_capacity(batch.len());
        for planned in batch {
            match self.tiles_of(planned) {
                Ok(Some(insets)) => spans.push(BatchedSpan { planned, insets }),
                Ok(None) => {}
                Err(error) => self.blame(planned.id, error)?,
            }
        }
        Ok(spans)
    }

    /// The tiles of a span; `None` if the cache has no capacity for them.
    fn tiles_of(&mut self, span: PlannedSpan) -> Result<Option<Vec<ImageInset>>, BackendError> {
        let session = self.sessions.running_mut(span.id);
        let rows = session.active().sequence.tile_rows(span.range());
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
        session.step.costs.device_micros += began.elapsed().as_secs_f64() * 1e6;
        Ok(Some(insets))
    }
}
