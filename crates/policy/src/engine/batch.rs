//! One batch: choose spans, bring their tiles, run them, draw tokens.

use std::time::Instant;

use furrow_model::backend::{Backend as _, BackendError, Inset, Span, Want};
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
    pub(super) fn run_batch(&mut self) {
        for version in self.versions_ready() {
            if self.broken.is_none() && self.use_weights(version) {
                self.run_batch_on(version);
            }
        }
    }

    fn run_batch_on(&mut self, version: PolicyVersion) {
        let ready = self.ready(version);
        let prefill_tokens = self.pace.rows(&ready, self.limits.prefill_tokens);
        let mut batch = plan(ready, Limits { prefill_tokens, ..self.limits });
        self.leave_out(&mut batch);
        let insets = self.bring_tiles(&mut batch);
        if !batch.is_empty() && self.broken.is_none() {
            self.run_together(&batch, &insets);
        }
        self.features.unpin_all();
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
    fn leave_out(&mut self, batch: &mut Vec<SessionId>) {
        batch.iter().for_each(|id| self.make_writable(*id));
        let held: Vec<SessionId> = batch.iter().copied().filter(|id| self.would_hold_up(*id)).collect();
        if held.len() == batch.len() {
            return;
        }
        batch.retain(|id| !held.contains(id));
        for id in held {
            if let Some(step) = self.sessions.get_mut(&id).and_then(|session| session.step.as_mut()) {
                step.was_left_out = true;
            }
        }
    }

    fn would_hold_up(&mut self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get(&id) else { return false };
        if session.step.as_ref().is_none_or(|step| step.was_left_out) {
            return false;
        }
        let mut is_moving = |place: &Place| self.device.is_moving(place.slot, &place.pages);
        if session.active_place().is_some_and(&mut is_moving) {
            return true;
        }
        let Some((sequence, span)) = session.span_ahead(false).filter(|_| self.device.encodes_beside())
        else {
            return false;
        };
        let vision = self.shelf.vision();
        let mut rows = sequence.tile_rows(span).into_iter();
        rows.any(|rows| self.features.get(&TileKey { pixels: rows.tile.hash, vision }).is_none())
    }

    /// Has tiles encoded beside the batch that was begun: those that the next one shows, if nobody comes between.
    fn look_ahead(&mut self, batch: &[SessionId]) -> Result<(), BackendError> {
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
            if !bring(features, device, &sequence.tile_rows(span), shelf.vision())? {
                break;
            }
        }
        Ok(())
    }

    /// Has the tiles of every span on the device. A span whose tiles find no room is taken out of the batch: the one before it will
    /// have left by the next.
    fn bring_tiles(&mut self, batch: &mut Vec<SessionId>) -> Vec<Vec<Inset>> {
        let mut insets = Vec::with_capacity(batch.len());
        batch.retain(|id| match self.tiles_of(*id) {
            Ok(Some(found)) => {
                insets.push(found);
                true
            }
            Ok(None) => false,
            Err(error) => {
                self.blame(*id, &error);
                false
            }
        });
        insets
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
    fn run_together(&mut self, batch: &[SessionId], insets: &[Vec<Inset>]) {
        let began = Instant::now();
        batch.iter().for_each(|id| self.make_writable(*id));
        match (self.run_spans(batch, insets), batch) {
            (Ok(()), _) => {
                // It was run whole; what fails beside it ends the device, or is refused again where it is shown.
                if let Err(BackendError::Device(why)) = self.look_ahead(batch) {
                    self.broken = Some(why);
                }
                let picked = self.draw(batch);
                self.account(batch, began);
                self.advance(batch);
                for Drawn { id, picked, ranking } in picked {
                    self.take(id, picked, ranking);
                }
            }
            (Err(error), [id]) => self.blame(*id, &error),
            (Err(BackendError::Device(why)), _) => self.broken = Some(why),
            (Err(_), _) => {
                for (id, insets) in batch.iter().zip(insets) {
                    self.run_together(&[*id], std::slice::from_ref(insets));
                }
            }
        }
    }

    fn blame(&mut self, id: SessionId, error: &BackendError) {
        match error {
            BackendError::Device(why) => self.broken = Some(why.clone()),
            other => self.fail(id, Fault::Refused(other.to_string())),
        }
    }

    /// Parts the pages that the next span writes to from those of others.
    fn make_writable(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(span) = session.next() else { return };
        let (_, is_fork) = session.active();
        let Some(step) = &mut session.step else { return };
        let place = match (&mut session.state, &mut step.fork) {
            (_, Some(fork)) if is_fork => fork.place.as_mut(),
            (State::Device(place), _) => Some(place),
            _ => None,
        };
        let Some(place) = place else { return };
        for (from, to) in self.places.make_writable(place, span.start, span.end, &mut step.reserve) {
            self.device.copy_page(from, to);
        }
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
    fn draw(&mut self, batch: &[SessionId]) -> Vec<Drawn> {
        let Self { device, sessions, sampler, .. } = self;
        let drawing: Vec<_> = batch
            .iter()
            .filter_map(|id| {
                let session = sessions.get(id).filter(|session| session.draws_next())?;
                Some((*id, session.step.as_ref()?.response()?))
            })
            .collect();
        let picks: Vec<_> = (0..).zip(&drawing).map(|(row, (_, response))| response.pick(row)).collect();
        let picked = device.sample(&picks);
        let mut rank = |row: u32, response: &Response, picked: &Picked| match (response.ranks(), picked) {
            (Some(ranks), Picked::Token(token)) => sampler.rank(device.logits(row), token.id, ranks),
            _ => None,
        };
        (0..)
            .zip(&drawing)
            .zip(picked)
            .map(|((row, (id, response)), picked)| {
                let ranking = rank(row, response, &picked);
                Drawn { id: *id, picked, ranking }
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
    fn advance(&mut self, batch: &[SessionId]) {
        for id in batch {
            let Some(mut session) = self.sessions.remove(id) else { continue };
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
                self.keep_snapshot(&mut session, is_fork);
            }
            if !is_fork {
                self.begin_fork(&mut session);
            }
            let is_over =
                session.next().is_none() && session.step.as_ref().is_some_and(|step| !step.is_asked());
            self.sessions.insert(*id, session);
            if is_over {
                self.finish(*id, FinishReason::Stop);
            }
        }
    }

    /// Keeps a copy of the state at a fork point that siblings were promised.
    fn keep_snapshot(&mut self, session: &mut Session, is_fork: bool) {
        let Some(step) = &mut session.step else { return };
        let (place, tokens, version) = match (&step.fork, &session.state) {
            (Some(fork), _) if is_fork => (fork.place.as_ref(), fork.sequence.done(), step.version_min),
            (_, State::Device(place)) => (Some(place), session.base.done(), session.version_min),
            _ => return,
        };
        let Some(index) = step.promised.iter().position(|(position, _)| *position == tokens) else { return };
        let (_, name) = step.promised.swap_remove(index);
        self.snapshots.settle(&name);
        if self.snapshots.is_full()
            && let Some(oldest) = self.snapshots.evict()
        {
            self.places.release(oldest);
        }
        let (Some(place), Some(slot)) = (place, self.places.take_slot()) else { return };
        self.device.copy_slot(place.slot, slot);
        let pages = self.places.share(place, tokens);
        let version = version.unwrap_or(self.shelf.on_device());
        self.snapshots.keep(name, Place { slot, pages }, tokens, version);
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
