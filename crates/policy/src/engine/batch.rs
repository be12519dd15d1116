//! One batch: choose spans, bring their tiles, run them, draw tokens.

use std::time::Instant;

use furrow_model::backend::{Backend as _, BackendError, DeviceLost, Inset, Span, Want};
use furrow_model::sample::{Picked, Ranking};
use furrow_rollout::{FinishReason, PolicyVersion};

use super::step::{Session, State};
use super::{Engine, Fault, SessionId};
use crate::draw::Response;
use crate::features::{Features, TileKey};
use crate::metered::Metered;
use crate::schedule::{Limits, Ready, plan};
use crate::sequence::TileRows;
use crate::slots::Place;

impl Session {
    /// Where the active sequence's state is.
    fn active_place(&self) -> Option<&Place> {
        let (_, is_fork) = self.active();
        match (&self.state, self.step.as_ref()?.fork.as_ref()) {
            (_, Some(fork)) if is_fork => fork.place.as_ref(),
            (State::Device(place), _) => Some(place),
            _ => None,
        }
    }
}

/// What a session drew.
struct Drawn {
    id: SessionId,
    picked: Picked,
    /// Of its row, where somebody wants to know.
    ranking: Option<Ranking>,
}

/// What a session runs in the next batch, if this one goes as planned: the next span of its prompt, or a token.
fn ahead(key: SessionId, session: &Session, is_running: bool) -> Option<Ready<SessionId>> {
    let step = session.step.as_ref().filter(|step| step.is_admitted)?;
    let decodes = session.decodes();
    let rows = if decodes { 1 } else { session.span_ahead(is_running)?.1.len() as u32 };
    Some(Ready { key, rows, decodes, draws: decodes, since: step.since })
}

/// Pins tiles and has those encoded that are missing; false where there is no room for them.
fn bring(
    features: &mut Features,
    device: &mut Metered,
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
    /// Runs one batch for each version of the weights that has work: one, unless trajectories finish on older ones.
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
        let mut batch = plan(ready, Limits { prefill_tokens, ..self.limits });
        self.leave_out(&mut batch)?;
        let insets = self.bring_tiles(&mut batch)?;
        if !batch.is_empty() {
            self.run_together(&batch, &insets)?;
        }
        self.features.unpin_all();
        Ok(())
    }

    fn ready(&self, version: PolicyVersion) -> Vec<Ready<SessionId>> {
        let ready = |(id, session): (&SessionId, &Session)| {
            let step = session.step.as_ref().filter(|step| step.is_admitted)?;
            if self.version_of(session) != version {
                return None;
            }
            let span = session.next()?;
            Some(Ready {
                key: *id,
                rows: span.end - span.start,
                decodes: session.decodes(),
                draws: session.draws_next(),
                since: step.since,
            })
        };
        self.sessions.iter().filter_map(ready).collect()
    }

    /// Leaves out, of one batch, the spans that would hold up all others: their tiles are not encoded yet, or their states are on their way. Beside the
    /// batch they come, and are in the next one.
    fn leave_out(&mut self, batch: &mut Vec<SessionId>) -> Result<(), DeviceLost> {
        let mut held = Vec::new();
        for id in &*batch {
            self.make_writable(*id)?;
            if self.would_hold_up(*id)? {
                held.push(*id);
            }
        }
        if held.len() == batch.len() {
            return Ok(());
        }
        batch.retain(|id| !held.contains(id));
        for id in held {
            if let Some(step) = self.sessions.get_mut(&id).and_then(|session| session.step.as_mut()) {
                step.was_left_out = true;
            }
        }
        Ok(())
    }

    fn would_hold_up(&mut self, id: SessionId) -> Result<bool, DeviceLost> {
        let Some(session) = self.sessions.get(&id) else { return Ok(false) };
        if session.step.as_ref().is_none_or(|step| step.was_left_out) {
            return Ok(false);
        }
        if let Some(place) = session.active_place()
            && self.device.is_moving(place.slot, &place.pages)?
        {
            return Ok(true);
        }
        let Some((sequence, span)) = session.span_ahead(false).filter(|_| self.device.encodes_beside())
        else {
            return Ok(false);
        };
        let vision = self.shelf.vision();
        let mut rows = sequence.tile_rows(span).into_iter();
        Ok(rows.any(|rows| self.features.get(&TileKey { pixels: rows.tile.hash, vision }).is_none()))
    }

    /// Has tiles encoded beside the batch that was begun: those that the next one shows, if no session comes between. Tiles that the device refuses are refused
    /// again where they are shown, and blamed on that session.
    fn look_ahead(&mut self, batch: &[SessionId]) -> Result<(), DeviceLost> {
        if !self.device.encodes_beside() {
            return Ok(());
        }
        let ready: Vec<Ready<SessionId>> = self
            .sessions
            .iter()
            .filter_map(|(id, session)| ahead(*id, session, batch.contains(id)))
            .collect();
        let prefill_tokens = self.pace.rows(&ready, self.limits.prefill_tokens);
        for id in plan(ready, Limits { prefill_tokens, ..self.limits }) {
            let Self { sessions, features, device, shelf, .. } = self;
            let Some(session) = sessions.get(&id).filter(|session| !session.decodes()) else { continue };
            let Some((sequence, span)) = session.span_ahead(batch.contains(&id)) else { continue };
            match bring(features, device, &sequence.tile_rows(span), shelf.vision()) {
                Ok(true) => {}
                Err(BackendError::Device(lost)) => return Err(lost),
                Ok(false) | Err(_) => break,
            }
        }
        Ok(())
    }

    /// Has the tiles of every span on the device. A span whose tiles find no room is taken out of the batch: the one before it will
    /// have left by the next.
    fn bring_tiles(&mut self, batch: &mut Vec<SessionId>) -> Result<Vec<Vec<Inset>>, DeviceLost> {
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

    fn tiles_of(&mut self, id: SessionId) -> Result<Option<Vec<Inset>>, BackendError> {
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(None) };
        let Some(span) = session.next() else { return Ok(None) };
        let rows = session.active().0.tile_rows(span);
        if rows.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let vision = self.shelf.vision();
        let began = Instant::now();
        if !bring(&mut self.features, &mut self.device, &rows, vision)? {
            return Ok(None);
        }
        let inset = |rows: &TileRows<'_>| {
            let feature = self.features.get(&TileKey { pixels: rows.tile.hash, vision })?;
            Some(Inset { at: rows.at, len: rows.len, feature, row: rows.row })
        };
        let insets = rows.iter().filter_map(inset).collect();
        if let Some(step) = &mut session.step {
            step.tally.device_micros += began.elapsed().as_secs_f64() * 1e6;
        }
        Ok(Some(insets))
    }

    /// Runs a batch. If the device refuses it as a whole, each span is tried alone, so that only the one at fault fails.
    ///
    /// A device mostly shows a failure where something is read from it, so what was drawn is whole before a session takes any of it.
    fn run_together(&mut self, batch: &[SessionId], insets: &[Vec<Inset>]) -> Result<(), DeviceLost> {
        let began = Instant::now();
        for id in batch {
            self.make_writable(*id)?;
        }
        match (self.run_spans(batch, insets), batch) {
            (Ok(()), _) => {
                self.look_ahead(batch)?;
                let drawn = self.draw(batch)?;
                self.account(batch, began);
                self.advance(batch)?;
                for Drawn { id, picked, ranking } in drawn {
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

    /// Ends a session whose tokens or tiles the device refused. A device that failed is not that session's fault.
    fn blame(&mut self, id: SessionId, error: BackendError) -> Result<(), DeviceLost> {
        match error {
            BackendError::Device(lost) => Err(lost),
            other => {
                self.fail(id, Fault::Refused(other.to_string()));
                Ok(())
            }
        }
    }

    /// Parts the pages that the next span writes to from those of others.
    fn make_writable(&mut self, id: SessionId) -> Result<(), DeviceLost> {
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        let Some(span) = session.next() else { return Ok(()) };
        let (_, is_fork) = session.active();
        let Some(step) = &mut session.step else { return Ok(()) };
        let place = match (&mut session.state, &mut step.fork) {
            (_, Some(fork)) if is_fork => fork.place.as_mut(),
            (State::Device(place), _) => Some(place),
            _ => None,
        };
        let Some(place) = place else { return Ok(()) };
        let copies = self.places.make_writable(place, span.start, span.end, &mut step.reserve);
        copies.into_iter().try_for_each(|(from, to)| self.device.copy_page(from, to))
    }

    fn run_spans(&mut self, batch: &[SessionId], insets: &[Vec<Inset>]) -> Result<(), BackendError> {
        let Self { device, sessions, .. } = self;
        let spans = batch.iter().zip(insets).filter_map(|(id, insets)| {
            let session = sessions.get(id)?;
            let (sequence, _) = session.active();
            let place = session.active_place()?;
            let span = sequence.next()?;
            Some(Span {
                slot: place.slot,
                pages: &place.pages,
                start: span.start,
                tokens: sequence.tokens(span),
                insets,
                want: if session.draws_next() { Want::Last } else { Want::Nothing },
            })
        });
        device.run(&spans.collect::<Vec<_>>())
    }

    /// Draws a token for every session whose logits were wanted, from the rows in the order of the spans.
    fn draw(&mut self, batch: &[SessionId]) -> Result<Vec<Drawn>, DeviceLost> {
        let Self { device, sessions, sampler, .. } = self;
        let drawing: Vec<_> = batch
            .iter()
            .filter_map(|id| {
                let session = sessions.get(id).filter(|session| session.draws_next())?;
                Some((*id, session.step.as_ref()?.response()?))
            })
            .collect();
        let picks: Vec<_> = (0..).zip(&drawing).map(|(row, (_, response))| response.pick(row)).collect();
        let picked = device.sample(&picks)?;
        let mut rank = |row: u32, response: &Response, picked: &Picked| match (response.ranks(), picked) {
            (Some(ranks), Picked::Token(token)) => Ok(sampler.rank(device.logits(row)?, token.id, ranks)),
            _ => Ok(None),
        };
        (0..)
            .zip(&drawing)
            .zip(picked)
            .map(|((row, (id, response)), picked)| {
                let ranking = rank(row, response, &picked)?;
                Ok(Drawn { id: *id, picked, ranking })
            })
            .collect()
    }

    /// Shares the batch's time by rows, and counts.
    fn account(&mut self, batch: &[SessionId], began: Instant) {
        let rows_of = |session: &Session| session.next().map_or(0, |span| span.end - span.start);
        let sessions = || batch.iter().filter_map(|id| self.sessions.get(id));
        let rows: u32 = sessions().map(rows_of).sum();
        let together = sessions().filter(|session| session.decodes()).count() as u64;
        if together > 0 {
            let prefilled: u32 = sessions().filter(|session| !session.decodes()).map(rows_of).sum();
            self.pace.ran(prefilled);
        }
        let micros = began.elapsed().as_secs_f64() * 1e6;
        for id in batch {
            let Some(session) = self.sessions.get_mut(id) else { continue };
            let (own, decodes) = (rows_of(session), session.decodes());
            let Some(step) = &mut session.step else { continue };
            let arrived = step.arrived;
            let queued = || began.duration_since(arrived).as_micros() as u64;
            step.tally.queue_micros.get_or_insert_with(queued);
            step.tally.device_micros += micros * f64::from(own) / f64::from(rows.max(1));
            if decodes {
                step.tally.decode_steps += 1;
                step.tally.decoded_together += together;
                step.since = self.clock;
            } else {
                step.tally.prefill_tokens += own;
            }
        }
    }

    /// The spans are in the states: keeps promised snapshots, begins forks, ends steps that asked for nothing.
    fn advance(&mut self, batch: &[SessionId]) -> Result<(), DeviceLost> {
        for id in batch {
            let Some(mut session) = self.sessions.remove(id) else { continue };
            let ran = self.ran(&mut session);
            let is_over =
                session.next().is_none() && session.step.as_ref().is_some_and(|step| !step.is_asked());
            // Put back also after a failure, so that its step is answered.
            self.sessions.insert(*id, session);
            ran?;
            if is_over {
                self.finish(*id, FinishReason::Stop);
            }
        }
        Ok(())
    }

    /// A session's span is in its state.
    fn ran(&mut self, session: &mut Session) -> Result<(), DeviceLost> {
        let (_, is_fork) = session.active();
        let version = Some(self.shelf.on_device());
        match &mut session.step {
            Some(step) if is_fork => step.version_min = step.version_min.or(version),
            _ => session.version_min = session.version_min.or(version),
        }
        if let Some(step) = &mut session.step {
            step.was_left_out = false;
        }
        let at_fork_point = session.active_mut().ran();
        if at_fork_point {
            self.keep_snapshot(session, is_fork)?;
        }
        if is_fork { Ok(()) } else { self.begin_fork(session) }
    }

    /// Keeps a copy of the state at a fork point that siblings were promised.
    fn keep_snapshot(&mut self, session: &mut Session, is_fork: bool) -> Result<(), DeviceLost> {
        let Some(step) = &mut session.step else { return Ok(()) };
        let (place, tokens, version) = match (&step.fork, &session.state) {
            (Some(fork), _) if is_fork => (fork.place.as_ref(), fork.sequence.done(), step.version_min),
            (_, State::Device(place)) => (Some(place), session.base.done(), session.version_min),
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
            self.places.release(oldest);
        }
        let (Some(place), Some(slot)) = (place, self.places.take_slot()) else { return Ok(()) };
        self.device.copy_slot(place.slot, slot)?;
        let pages = self.places.share(place, tokens);
        let version = version.unwrap_or(self.shelf.on_device());
        self.snapshots.keep(name, Place { slot, pages }, tokens, version);
        Ok(())
    }

    fn take(&mut self, id: SessionId, picked: Picked, ranking: Option<Ranking>) {
        let version = self.shelf.on_device();
        let Some(session) = self.sessions.get_mut(&id) else { return };
        match picked {
            Picked::Token(token) => match session.take(&token, ranking, version) {
                Ok(()) => self.proceed(id),
                Err(illegal) => self.fail(id, Fault::Refused(illegal.to_string())),
            },
            Picked::NotFinite => {
                let tokens = session.replying_len();
                self.fail(id, Fault::NotFinite { tokens });
            }
        }
    }
}
