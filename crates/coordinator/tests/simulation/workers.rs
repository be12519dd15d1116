//! Environment and policy workers of a simulated run, the network between them and the
//! coordinator, and their faults.

use std::collections::{BTreeMap, BTreeSet};

use furrow_rollout::EndKind;
use furrow_wire::{RefusalKind, v1};
use rand::RngExt;

use crate::farm::{Farm, Happening, POLICIES, Violation};
use crate::lives::may_retry;
use crate::messages::{BEAT, LEASE, STEPS_MAX, ending, env, policy, step};

/// Trajectories that an environment worker acts at once.
const SESSIONS: usize = 3;
/// When a call without an answer is repeated.
const ANSWER: u64 = 2_500;

/// An environment worker in its current life.
#[derive(Default)]
pub(crate) struct EnvState {
    life: u32,
    stalled_until: u64,
    registered: bool,
    requesting: bool,
    leases: BTreeMap<String, LeaseState>,
    unanswered: BTreeSet<u64>,
}

struct LeaseState {
    lease: v1::LeaseRef,
    /// Steps that were acknowledged so far.
    steps: u32,
    steps_planned: u32,
    end: EndKind,
    answer: Option<&'static str>,
    /// When the last call that renewed the lease was sent.
    renewed: u64,
}

#[derive(Default)]
pub(crate) struct PolicyState {
    life: u32,
    dead_until: u64,
}

#[derive(Clone)]
pub(crate) struct Rpc {
    id: u64,
    /// `None` for a policy worker.
    env: Option<usize>,
    worker: usize,
    life: u32,
    sent: u64,
    /// When it reached the coordinator.
    pub arrived: u64,
    pub request: RpcRequest,
}

#[derive(Clone)]
pub(crate) enum RpcRequest {
    Register(v1::RegisterRequest),
    Heartbeat(v1::HeartbeatRequest),
    Lease(v1::LeaseRequest),
    Renew(v1::RenewRequest),
    Step(v1::RecordStepRequest),
    Finish(v1::FinishRequest),
    Leave(v1::LeaveRequest),
}

#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Registered,
    HeartbeatAcknowledged { known: bool },
    Leased(Vec<v1::LeaseRef>),
    Renewed { lost: Vec<String> },
    Acknowledged,
    Left,
    Refused(RefusalKind),
}

fn env_name(env: usize, life: u32) -> String {
    format!("env{env}-{life}")
}

fn policy_name(policy: usize, life: u32) -> String {
    format!("policy{policy}-{life}")
}

impl Farm {
    pub(crate) fn wake_env(&mut self, env: usize) {
        let life = self.envs[env].life;
        self.soon(BEAT, Happening::Beat { env, life });
        self.soon(BEAT, Happening::Seek { env, life });
    }

    pub(crate) fn restart_env(&mut self, env: usize) {
        let life = self.envs[env].life;
        if self.one_in(3) {
            let worker_id = env_name(env, life);
            self.send(env, RpcRequest::Leave(v1::LeaveRequest { worker_id }));
        }
        self.envs[env] = EnvState { life: life + 1, ..EnvState::default() };
        self.wake_env(env);
    }

    pub(crate) fn stall_env(&mut self, env: usize) {
        let pause = self.chance.random_range(LEASE / 2..LEASE * 3);
        self.envs[env].stalled_until = self.now + pause;
    }

    pub(crate) fn stop_policy(&mut self) {
        let policy = self.chance.random_range(0..POLICIES);
        let pause = self.chance.random_range(100..LEASE * 3);
        let life = self.policies[policy].life + 1;
        self.policies[policy] = PolicyState { life, dead_until: self.now + pause };
    }

    fn send(&mut self, env: usize, request: RpcRequest) {
        self.scheduled += 1;
        let life = self.envs[env].life;
        let id = self.scheduled;
        let rpc = Rpc { id, env: Some(env), worker: env, life, sent: self.now, arrived: 0, request };
        self.envs[env].unanswered.insert(rpc.id);
        self.transmit(rpc);
    }

    /// Messages are lost, doubled, and late.
    fn transmit(&mut self, rpc: Rpc) {
        let copies = match self.chance.random_range(0..20) {
            0 if !self.is_calm() => 0,
            1 | 2 if !self.is_calm() => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let within = if !self.is_calm() && self.one_in(15) { 6_000 } else { 40 };
            self.soon(within, Happening::Arrive(rpc.clone()));
        }
        self.at(self.now + ANSWER, Happening::Timeout(rpc));
    }

    pub(crate) fn send_back(&mut self, rpc: Rpc, reply: Reply) {
        if self.is_calm() || !self.one_in(15) {
            self.soon(40, Happening::Answered(rpc, reply));
        }
    }

    /// The worker, if it is still in that life and awake; a stalled worker gets the event when it
    /// wakes.
    fn awake(&mut self, env: usize, life: u32, later: impl FnOnce() -> Happening) -> Option<&mut EnvState> {
        let until = self.envs[env].stalled_until;
        if self.envs[env].life == life && until > self.now {
            self.at(until, later());
        }
        let env = &mut self.envs[env];
        (env.life == life && until <= self.now).then_some(env)
    }

    /// Repeats a call that got no answer.
    pub(crate) fn repeat(&mut self, rpc: Rpc) {
        let Some(env) = rpc.env else { return };
        let again = rpc.clone();
        let Some(state) = self.awake(env, rpc.life, || Happening::Timeout(again)) else { return };
        if !state.unanswered.contains(&rpc.id) {
            return;
        }
        match rpc.request {
            RpcRequest::Step(_) | RpcRequest::Finish(_) => {
                let sent = self.now;
                self.transmit(Rpc { sent, ..rpc });
            }
            request => {
                state.requesting &= !matches!(request, RpcRequest::Lease(_));
                state.unanswered.remove(&rpc.id);
            }
        }
    }

    pub(crate) fn beat(&mut self, env: usize, life: u32) {
        let Some(state) = self.awake(env, life, || Happening::Beat { env, life }) else { return };
        let worker_id = env_name(env, life);
        let leases: Vec<_> = state.leases.values().map(|state| state.lease.clone()).collect();
        let registered = state.registered;
        self.send(
            env,
            match registered {
                true => {
                    let worker_id = worker_id.clone();
                    RpcRequest::Heartbeat(v1::HeartbeatRequest { worker_id, ..Default::default() })
                }
                false => RpcRequest::Register(self::env(&worker_id)),
            },
        );
        if !leases.is_empty() {
            self.send(env, RpcRequest::Renew(v1::RenewRequest { worker_id, leases }));
        }
        self.at(self.now + BEAT, Happening::Beat { env, life });
    }

    pub(crate) fn seek(&mut self, env: usize, life: u32) {
        let Some(state) = self.awake(env, life, || Happening::Seek { env, life }) else { return };
        if state.registered && !state.requesting && state.leases.len() < SESSIONS {
            state.requesting = true;
            let slots_free = (SESSIONS - state.leases.len()) as u32;
            let worker_id = env_name(env, life);
            self.send(env, RpcRequest::Lease(v1::LeaseRequest { worker_id, slots_free, wait_millis: 1_000 }));
        }
        self.at(self.now + 300, Happening::Seek { env, life });
    }

    /// The next step of a trajectory, or its end.
    pub(crate) fn act(&mut self, env: usize, life: u32, trajectory: &str) {
        let same = trajectory.to_owned();
        let later = || Happening::Act { env, life, trajectory: same };
        let Some(state) = self.awake(env, life, later) else { return };
        let Some(lease) = state.leases.get(trajectory) else { return };
        let LeaseState { steps, steps_planned, end, answer, .. } = *lease;
        let lease = lease.lease.clone();
        let account = self.accounts.entry(trajectory.to_owned()).or_default();
        if steps < steps_planned {
            account.sent = account.sent.max(steps + 1);
            self.send(env, RpcRequest::Step(step(&lease, steps)));
        } else {
            account.end = Some(end);
            self.send(env, RpcRequest::Finish(ending(&lease, steps, (end, answer))));
        }
    }

    /// An answer reaches a worker.
    pub(crate) fn answered(&mut self, rpc: Rpc, reply: Reply) -> Result<(), Violation> {
        let Some(env) = rpc.env else {
            let is_unknown = matches!(reply, Reply::HeartbeatAcknowledged { known: false });
            if is_unknown && self.policies[rpc.worker].life == rpc.life {
                let name = policy_name(rpc.worker, rpc.life);
                self.send_as_policy(rpc.worker, RpcRequest::Register(policy(&name)));
            }
            return Ok(());
        };
        self.acknowledge(&rpc, &reply)?;
        if self.envs[env].life == rpc.life && self.envs[env].stalled_until > self.now {
            self.at(self.envs[env].stalled_until, Happening::Answered(rpc, reply));
            return Ok(());
        }
        if self.envs[env].life != rpc.life || !self.envs[env].unanswered.remove(&rpc.id) {
            return Ok(());
        }
        let state = &mut self.envs[env];
        match (rpc.request, reply) {
            (RpcRequest::Register(_), Reply::Registered) => state.registered = true,
            (RpcRequest::Heartbeat(_), Reply::HeartbeatAcknowledged { known: false }) => {
                state.registered = false;
            }
            (RpcRequest::Lease(_), Reply::Leased(leases)) => {
                state.requesting = false;
                leases.into_iter().for_each(|lease| self.take_lease(env, lease));
            }
            (RpcRequest::Lease(_), _) => state.requesting = false,
            (RpcRequest::Renew(request), Reply::Renewed { lost }) => {
                for lease in request.leases.iter().filter(|lease| !lost.contains(&lease.trajectory_id)) {
                    if let Some(lease) = state.leases.get_mut(&lease.trajectory_id) {
                        lease.renewed = lease.renewed.max(rpc.sent);
                    }
                }
                for trajectory in lost {
                    self.lose(env, &trajectory, rpc.arrived)?;
                }
            }
            (RpcRequest::Step(request), Reply::Acknowledged) => {
                let life = rpc.life;
                if let Some(lease) = state.leases.get_mut(&request.trajectory_id) {
                    lease.steps += 1;
                    lease.renewed = lease.renewed.max(rpc.sent);
                    self.soon(600, Happening::Act { env, life, trajectory: request.trajectory_id });
                }
            }
            (RpcRequest::Finish(request), Reply::Acknowledged) => {
                state.leases.remove(&request.trajectory_id);
            }
            (
                RpcRequest::Step(v1::RecordStepRequest { trajectory_id, .. })
                | RpcRequest::Finish(v1::FinishRequest { trajectory_id, .. }),
                Reply::Refused(kind),
            ) => {
                if may_retry(kind) {
                    let life = rpc.life;
                    self.soon(600, Happening::Act { env, life, trajectory: trajectory_id });
                } else {
                    self.refused(env, &trajectory_id, kind, rpc.arrived)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// What the coordinator acknowledged counts, even where its worker is gone meanwhile.
    fn acknowledge(&mut self, rpc: &Rpc, reply: &Reply) -> Result<(), Violation> {
        if !matches!(reply, Reply::Acknowledged) {
            return Ok(());
        }
        match &rpc.request {
            RpcRequest::Step(request) => {
                let account = self.accounts.entry(request.trajectory_id.clone()).or_default();
                account.acknowledged = account.acknowledged.max(request.step + 1);
            }
            RpcRequest::Finish(request) => {
                let account = self.accounts.entry(request.trajectory_id.clone()).or_default();
                self.counts.acknowledged += u64::from(!account.is_end_acknowledged);
                account.is_end_acknowledged = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// The coordinator says that a lease is lost. It must not be, while it was renewed in time.
    fn lose(&mut self, env: usize, trajectory: &str, at: u64) -> Result<(), Violation> {
        let Some(lease) = self.envs[env].leases.remove(trajectory) else { return Ok(()) };
        // Its end may be recorded, and the answer lost.
        let has_ended = self.accounts.get(trajectory).is_some_and(|account| account.end.is_some());
        let is_excused = has_ended || self.counts.drains > 0 || self.is_damaged(trajectory);
        if at < lease.renewed + LEASE && at >= lease.renewed && !is_excused {
            let since = at - lease.renewed;
            return Err(format!("the lease of {trajectory} was lost {since} ms after it was renewed"));
        }
        Ok(())
    }

    fn refused(&mut self, env: usize, trajectory: &str, kind: RefusalKind, at: u64) -> Result<(), Violation> {
        if kind == RefusalKind::Stale {
            return self.lose(env, trajectory, at);
        }
        // The worker has sent nothing that contradicts what it sent before.
        let lease = self.envs[env].leases.remove(trajectory);
        if lease.is_some() && !self.is_damaged(trajectory) {
            return Err(format!("a call for {trajectory} was refused as wrong"));
        }
        Ok(())
    }

    pub(crate) fn is_damaged(&self, trajectory: &str) -> bool {
        self.damaged.contains_key(&format!("run/spool/{trajectory}.spool"))
    }

    fn take_lease(&mut self, env: usize, lease: v1::LeaseRef) {
        let trajectory = lease.trajectory_id.clone();
        let ends = [
            EndKind::Answered,
            EndKind::Answered,
            EndKind::Answered,
            EndKind::MaxSteps,
            EndKind::EnvCrash,
            EndKind::BrowserDead,
        ];
        let end = ends[self.chance.random_range(0..ends.len())];
        let answers = [Some("42"), Some("42"), Some("41"), None];
        let lease = LeaseState {
            lease,
            steps: 0,
            steps_planned: self.chance.random_range(0..=STEPS_MAX),
            end,
            answer: answers[self.chance.random_range(0..answers.len())],
            renewed: self.now.saturating_sub(LEASE),
        };
        self.envs[env].leases.insert(trajectory.clone(), lease);
        let life = self.envs[env].life;
        self.soon(400, Happening::Act { env, life, trajectory });
    }

    pub(crate) fn policy_beat(&mut self, policy: usize) {
        self.at(self.now + BEAT, Happening::PolicyBeat { policy });
        let PolicyState { life, dead_until } = self.policies[policy];
        if dead_until <= self.now {
            let worker_id = policy_name(policy, life);
            let beat = v1::HeartbeatRequest { worker_id, ..Default::default() };
            self.send_as_policy(policy, RpcRequest::Heartbeat(beat));
        }
    }

    fn send_as_policy(&mut self, policy: usize, request: RpcRequest) {
        self.scheduled += 1;
        let life = self.policies[policy].life;
        let id = self.scheduled;
        let rpc = Rpc { id, env: None, worker: policy, life, sent: self.now, arrived: 0, request };
        self.soon(40, Happening::Arrive(rpc));
    }
}
