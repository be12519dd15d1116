//! The lives of the coordinator: it starts, is moved, and dies.

use std::collections::BTreeMap;
use std::task::Poll;

use furrow_coordinator::{CoordinatorError, PendingCall, SteppedCoordinator};
use furrow_faulty_disk::Crash;
use furrow_telemetry::{ManualTime, TimeSource};
use furrow_wire::v1::coordinator_service_server::CoordinatorService;
use furrow_wire::v1::registration_service_server::RegistrationService;
use furrow_wire::{RefusalKind, refusal, v1};
use rand::RngExt;
use tonic::{Request, Status};

use crate::farm::{Farm, Happening, Violation};
use crate::messages::job;
use crate::workers::{Reply, Rpc, RpcRequest};

/// Wall clock when a run begins, microseconds since the Unix epoch.
const WALL: i64 = 1_790_000_000_000_000;

/// A coordinator that lives.
pub(crate) struct Life {
    pub coordinator: SteppedCoordinator,
    hand: ManualTime,
    time: TimeSource,
    /// When its clock was moved last, by the farm's time.
    moved: u64,
    calls: BTreeMap<u64, OpenCall>,
    is_durable_scheduled: bool,
}

/// A call that waits for its answer.
struct OpenCall {
    rpc: Rpc,
    call: PendingCall<Result<Reply, Status>>,
    is_scheduled: bool,
}

impl Life {
    /// Makes everything decided durable.
    pub(crate) fn make_durable(&mut self) -> Result<(), CoordinatorError> {
        self.is_durable_scheduled = false;
        self.coordinator.make_durable()
    }

    /// Moves the wall clock; the monotonic one stays.
    pub(crate) fn jump(&mut self, micros: i64) {
        self.hand.set_wall(self.time.wall_micros() + micros);
    }

    fn catch_up(&mut self, now: u64) {
        self.hand.advance((now - self.moved) * 1000);
        self.moved = now;
    }
}

impl Farm {
    /// Starts the coordinator, unless it lives.
    pub(crate) fn restart(&mut self) -> Result<(), Violation> {
        if self.coordinator.is_some() {
            return Ok(());
        }
        self.counts.lives += 1;
        if self.weather.damages && !self.is_calm() {
            match self.chance.random_range(0..8) {
                0 | 1 => self.damage(),
                2 => self.leave_stray(),
                _ => {}
            }
        }
        self.faults_before = self.disk.coverage().faults();
        // Each life counts from its own beginning; its wall clock may be an hour off.
        let wall = WALL + self.now as i64 * 1000 + self.chance.random_range(-3_600_000_000..3_600_000_000);
        let (time, hand) = TimeSource::manual(wall);
        let job = job(self.dir.path(), &self.root, self.seed.is_multiple_of(2));
        match SteppedCoordinator::open(job, time.clone(), &self.runtime) {
            Ok(coordinator) => {
                self.has_begun |= self.disk.is_down().is_none();
                let calls = BTreeMap::new();
                let moved = self.now;
                let is_durable_scheduled = false;
                let life = Life { coordinator, hand, time, moved, calls, is_durable_scheduled };
                self.coordinator = Some(life);
                let life = self.life;
                self.note(|| format!("life {life}"));
                self.soon(300, Happening::Tick { life });
                self.soon(2_000, Happening::Commit { life });
                self.settle()
            }
            Err(error) => self.fail(&error),
        }
    }

    /// A start or a life that ended with an error: only a fault may have done it.
    fn fail(&mut self, error: &CoordinatorError) -> Result<(), Violation> {
        // The folder has another name each time.
        let error = furrow_records::chain(error).replace(&*self.root.to_string_lossy(), "");
        self.note(|| format!("failed: {error}"));
        let was_crash = self.disk.is_down().is_some();
        let had_faults = was_crash || self.disk.coverage().faults() > self.faults_before;
        if !self.has_begun && !had_faults {
            // The first start was cut short: nothing was acknowledged, and one begins anew.
            self.disk.arm(0);
            std::fs::remove_dir_all(self.root.join("run")).map_err(|error| error.to_string())?;
            self.disk.arm(self.weather.disk_one_in);
            self.counts.begun_anew += 1;
        } else if !had_faults {
            return Err(format!("without a fault of the disk: {error}"));
        }
        self.counts.failures += 1;
        self.die();
        Ok(())
    }

    /// Ends the current life, with what a crash leaves of the disk.
    fn die(&mut self) {
        drop(self.coordinator.take());
        match self.disk.is_down() {
            Some(Crash::Kill) => self.counts.kills += 1,
            Some(Crash::PowerCut) => self.counts.power_cuts += 1,
            None => {}
        }
        self.disk.revive();
        self.life += 1;
        self.soon(1_500, Happening::Restart);
    }

    /// Moves a part of the coordinator, and follows up.
    pub(crate) fn move_life(
        &mut self,
        step: impl FnOnce(&mut Life) -> Result<(), CoordinatorError>,
    ) -> Result<(), Violation> {
        let now = self.now;
        let Some(life) = &mut self.coordinator else { return Ok(()) };
        life.catch_up(now);
        match step(life) {
            Ok(()) => self.settle(),
            Err(error) if self.disk.is_down().is_none() => self.fail(&error),
            Err(_) => self.settle(),
        }
    }

    /// What follows from a step of the coordinator: its death, its end, or more steps.
    pub(crate) fn settle(&mut self) -> Result<(), Violation> {
        if self.disk.is_down().is_some() {
            self.note(|| "died".to_owned());
            self.die();
            return Ok(());
        }
        let number = self.life;
        let Some(life) = &mut self.coordinator else { return Ok(()) };
        if let Err(error) = life.coordinator.check() {
            return self.fail(&error);
        }
        if let Some(outcome) = life.coordinator.over() {
            self.note(|| format!("over {outcome:?}"));
            return self.finish(&outcome);
        }
        let must_schedule = life.coordinator.is_undurable() && !life.is_durable_scheduled;
        life.is_durable_scheduled |= must_schedule;
        let mut woken = Vec::new();
        for (call, open) in &mut life.calls {
            if open.call.is_woken() && !open.is_scheduled {
                open.is_scheduled = true;
                woken.push(*call);
            }
        }
        if must_schedule {
            self.soon(30, Happening::Durable { life: number });
        }
        for call in woken {
            self.soon(20, Happening::Advance { life: number, call });
        }
        Ok(())
    }

    /// A message arrives at the coordinator, if it lives.
    pub(crate) fn arrive(&mut self, mut rpc: Rpc) -> Result<(), Violation> {
        rpc.arrived = self.now;
        let Some(life) = &mut self.coordinator else { return Ok(()) };
        let call = PendingCall::new(perform(life.coordinator.service(), rpc.request.clone()));
        self.scheduled += 1;
        life.calls.insert(self.scheduled, OpenCall { rpc, call, is_scheduled: true });
        self.advance(self.scheduled)
    }

    /// Moves a call on.
    pub(crate) fn advance(&mut self, number: u64) -> Result<(), Violation> {
        let now = self.now;
        let Some(life) = &mut self.coordinator else { return Ok(()) };
        let Some(mut open) = life.calls.remove(&number) else { return Ok(()) };
        life.catch_up(now);
        open.is_scheduled = false;
        match life.coordinator.poll(&mut open.call) {
            Poll::Pending => drop(life.calls.insert(number, open)),
            // What a dead coordinator would have answered does not arrive.
            Poll::Ready(_) if self.disk.is_down().is_some() => {}
            Poll::Ready(answer) => {
                let reply = answer.unwrap_or_else(|status| {
                    let why = status.message().replace(&*self.root.to_string_lossy(), "");
                    self.note(|| format!("refused {} {why}", status.code()));
                    Reply::Refused(refusal(&status))
                });
                self.send_back(open.rpc, reply);
            }
        }
        self.settle()
    }
}

/// Calls the service as the worker's own client would.
async fn perform(
    service: impl CoordinatorService + RegistrationService,
    request: RpcRequest,
) -> Result<Reply, Status> {
    match request {
        RpcRequest::Register(message) => {
            service.register(Request::new(message)).await.map(|_| Reply::Registered)
        }
        RpcRequest::Heartbeat(message) => {
            let answer = service.heartbeat(Request::new(message)).await?.into_inner();
            Ok(Reply::HeartbeatAcknowledged { known: answer.known })
        }
        RpcRequest::Lease(message) => {
            let answer = service.lease(Request::new(message)).await?.into_inner();
            let leased = |assignment: v1::Assignment| v1::LeaseRef {
                trajectory_id: assignment.ancestry.unwrap_or_default().trajectory_id,
                token: assignment.token,
                secret: assignment.secret,
            };
            Ok(Reply::Leased(answer.assignments.into_iter().map(leased).collect()))
        }
        RpcRequest::Renew(message) => {
            let answer = service.renew(Request::new(message)).await?.into_inner();
            Ok(Reply::Renewed { lost: answer.lost })
        }
        RpcRequest::Step(message) => {
            service.record_step(Request::new(message)).await.map(|_| Reply::Acknowledged)
        }
        RpcRequest::Finish(message) => {
            service.finish(Request::new(message)).await.map(|_| Reply::Acknowledged)
        }
        RpcRequest::Leave(message) => service.leave(Request::new(message)).await.map(|_| Reply::Left),
    }
}

/// Whether the same call may succeed later.
pub(crate) fn may_retry(kind: RefusalKind) -> bool {
    kind == RefusalKind::Retry
}
