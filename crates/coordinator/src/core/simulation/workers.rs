//! Environment workers, policy workers and trainers of a simulated farm, and their faults.

use super::*;

impl SimulatedFarm {
    pub(super) fn fault(&mut self) -> Result<(), InvariantViolation> {
        if self.is_calm() {
            return Ok(());
        }
        self.soon(1_500, SimulatedEvent::Fault);
        let env = self.chance.random_range(0..ENVS);
        match self.chance.random_range(0..9) {
            0 | 1 if self.core.is_some() => self.crash()?,
            2 => {
                self.envs[env] = EnvState { life: self.envs[env].life + 1, ..EnvState::default() };
                self.wake_env(env);
            }
            3..=5 => {
                let pause = self.chance.random_range(LEASE / 2..LEASE * 3);
                self.envs[env].stalled_until = self.now + pause;
            }
            6 => {
                let policy = self.chance.random_range(0..POLICIES);
                let pause = self.chance.random_range(100..LEASE * 3);
                let PolicyState { life, .. } = self.policies[policy];
                let dead_until = self.now + pause;
                self.policies[policy] = PolicyState { life: life + 1, dead_until, ..PolicyState::default() };
            }
            7 if self.has_weights => {
                // A device that computes wrongly.
                let policy = self.chance.random_range(0..POLICIES);
                let PolicyState { life, runs, .. } = self.policies[policy];
                self.break_version(policy, life, runs);
            }
            8 if self.core.is_some() && self.one_in(2) => self.apply(Event::Drain { call: None })?,
            _ if self.core.is_some() => {
                let rpc = Rpc { id: 0, env, life: self.envs[env].life, request: RpcRequest::Heartbeat };
                self.leave(&rpc)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn leave(&mut self, rpc: &Rpc) -> Result<(), InvariantViolation> {
        let name = env_name(rpc);
        self.envs[rpc.env] = EnvState { life: rpc.life + 1, ..EnvState::default() };
        self.wake_env(rpc.env);
        let call = self.call(RpcCaller::Policy(0)); // its caller died
        self.apply(Event::Leave { call, worker: worker_id(&name) })
    }

    pub(super) fn wake_env(&mut self, env: usize) {
        let life = self.envs[env].life;
        self.soon(BEAT, SimulatedEvent::Beat { env, life });
        self.soon(BEAT, SimulatedEvent::Seek { env, life });
    }

    fn send(&mut self, env: usize, request: RpcRequest) {
        self.scheduled += 1;
        let rpc = Rpc { id: self.scheduled, env, life: self.envs[env].life, request };
        self.envs[env].unanswered.insert(rpc.id);
        self.transmit(rpc);
    }

    fn transmit(&mut self, rpc: Rpc) {
        if self.is_calm() || !self.one_in(15) {
            self.soon(40, SimulatedEvent::Arrive(rpc.clone()));
        }
        self.at(self.now + 2_500, SimulatedEvent::Timeout(rpc));
    }

    /// The worker, if it is still in that life and awake; a stalled worker gets the event when it
    /// wakes.
    fn awake(
        &mut self,
        env: usize,
        life: u32,
        later: impl FnOnce() -> SimulatedEvent,
    ) -> Option<&mut EnvState> {
        let until = self.envs[env].stalled_until;
        if self.envs[env].life == life && until > self.now {
            self.at(until, later());
        }
        let env = &mut self.envs[env];
        (env.life == life && until <= self.now).then_some(env)
    }

    /// Repeats a call that got no answer.
    pub(super) fn repeat(&mut self, rpc: Rpc) {
        let repeated = rpc.clone();
        let Some(env) = self.awake(rpc.env, rpc.life, || SimulatedEvent::Timeout(repeated)) else { return };
        if !env.unanswered.contains(&rpc.id) {
            return;
        }
        match rpc.request {
            RpcRequest::Step { .. } | RpcRequest::Finish { .. } => self.transmit(rpc),
            RpcRequest::Lease => {
                env.unanswered.remove(&rpc.id);
                env.requesting = false;
            }
            _ => {
                env.unanswered.remove(&rpc.id);
            }
        }
    }

    pub(super) fn beat(&mut self, env: usize, life: u32) {
        let Some(state) = self.awake(env, life, || SimulatedEvent::Beat { env, life }) else { return };
        let first = if state.registered { RpcRequest::Heartbeat } else { RpcRequest::Register };
        let has_leases = !state.leases.is_empty();
        self.send(env, first);
        if has_leases {
            self.send(env, RpcRequest::Renew);
        }
        self.at(self.now + BEAT, SimulatedEvent::Beat { env, life });
    }

    pub(super) fn seek(&mut self, env: usize, life: u32) {
        let Some(state) = self.awake(env, life, || SimulatedEvent::Seek { env, life }) else { return };
        if state.registered && !state.requesting && state.leases.len() < 4 {
            state.requesting = true;
            self.send(env, RpcRequest::Lease);
        }
        self.at(self.now + 300, SimulatedEvent::Seek { env, life });
    }

    pub(super) fn act(&mut self, env: usize, life: u32, trajectory: Id<Trajectory>) {
        let now = self.now;
        let same = trajectory.clone();
        let later = || SimulatedEvent::Act { env, life, trajectory: same };
        let Some(policy) = self
            .awake(env, life, later)
            .and_then(|state| state.leases.get(&trajectory).map(|lease| lease.policy.clone()))
        else {
            return;
        };
        let is_there = self.policy_serves(&policy);
        let Some(lease) = self.envs[env].leases.get_mut(&trajectory) else { return };
        let proof = lease.proof.clone();
        if lease.steps == lease.steps_planned {
            let report = ReportedEnd { steps: lease.steps, ..lease.report.clone() };
            self.send(env, RpcRequest::Finish { proof, report });
        } else if is_there {
            lease.stuck_since = None;
            let step = lease.steps;
            self.send(env, RpcRequest::Step { proof, step });
        } else if now - *lease.stuck_since.get_or_insert(now) > 2 * LEASE {
            lease.steps_planned = lease.steps;
            lease.report = ReportedEnd {
                end: EndKind::PolicyFault,
                evidence_sha256: None,
                ..report(&trajectory, EndKind::Done, 0)
            };
            self.at(now + 1, SimulatedEvent::Act { env, life, trajectory });
        } else {
            self.at(now + 400, SimulatedEvent::Act { env, life, trajectory });
        }
    }

    pub(super) fn answered(&mut self, rpc: Rpc, reply: RpcReply) {
        let env = rpc.env;
        if self.envs[env].life == rpc.life && self.envs[env].stalled_until > self.now {
            return self.at(self.envs[env].stalled_until, SimulatedEvent::Answered(rpc, reply));
        }
        if self.envs[env].life != rpc.life || !self.envs[env].unanswered.remove(&rpc.id) {
            return;
        }
        match (rpc.request, reply) {
            (RpcRequest::Register, RpcReply::Registered) => self.envs[env].registered = true,
            (RpcRequest::Heartbeat, RpcReply::HeartbeatAcknowledged { known: false }) => {
                self.envs[env].registered = false;
            }
            (RpcRequest::Lease, RpcReply::Leased { grants }) => {
                self.envs[env].requesting = false;
                grants.into_iter().for_each(|grant| self.take_lease(env, grant));
            }
            (RpcRequest::Lease, _) => self.envs[env].requesting = false,
            (RpcRequest::Renew, RpcReply::Renewed { lost, moves }) => {
                self.envs[env].leases.retain(|trajectory, _| !lost.contains(trajectory));
                for (trajectory, address) in moves {
                    if let Some(lease) = self.envs[env].leases.get_mut(&trajectory) {
                        lease.policy = address;
                    }
                }
            }
            (RpcRequest::Step { proof, .. }, RpcReply::Acknowledged) => {
                let trajectory = proof.trajectory_id;
                let life = rpc.life;
                if let Some(lease) = self.envs[env].leases.get_mut(&trajectory) {
                    lease.steps += 1;
                    self.soon(1_000, SimulatedEvent::Act { env, life, trajectory });
                }
            }
            (RpcRequest::Step { proof, .. } | RpcRequest::Finish { proof, .. }, _) => {
                self.envs[env].leases.remove(&proof.trajectory_id);
            }
            _ => {}
        }
    }

    fn take_lease(&mut self, env: usize, grant: LeaseGrant) {
        let ends = [
            EndKind::Answered,
            EndKind::Answered,
            EndKind::Done,
            EndKind::MaxSteps,
            EndKind::MaxTime,
            EndKind::PageHang,
            EndKind::EnvCrash,
            EndKind::BrowserDead,
        ];
        let end = ends[self.chance.random_range(0..ends.len())];
        let trajectory = grant.of.trajectory_id;
        let proof =
            LeaseProof { trajectory_id: trajectory.clone(), token: grant.token, secret: grant.secret };
        self.proofs.push(proof.clone());
        let evidence = self.chance.random_range(0..8);
        let lease = LeaseState {
            proof,
            steps: 0,
            steps_planned: self.chance.random_range(0..6),
            report: report(&trajectory, end, evidence),
            policy: grant.policy_address,
            stuck_since: None,
        };
        self.envs[env].leases.insert(trajectory.clone(), lease);
        let life = self.envs[env].life;
        self.soon(500, SimulatedEvent::Act { env, life, trajectory });
    }

    fn policy_serves(&self, address: &str) -> bool {
        let serves = |policy: usize| self.is_up(policy) && !self.policies[policy].is_broken;
        (0..POLICIES).any(|policy| policy_name(policy, &self.policies[policy]) == address && serves(policy))
    }

    fn is_up(&self, policy: usize) -> bool {
        self.policies[policy].dead_until <= self.now
    }

    pub(super) fn policy_beat(&mut self, policy: usize) -> Result<(), InvariantViolation> {
        self.at(self.now + BEAT, SimulatedEvent::PolicyBeat { policy });
        if !self.is_up(policy) || self.core.is_none() {
            return Ok(());
        }
        let worker = worker_id(&policy_name(policy, &self.policies[policy]));
        let call = self.call(RpcCaller::Policy(policy));
        self.policies[policy].beats += 1;
        let run = self.run_of(policy);
        self.apply(Event::Heartbeat { call, worker, run, health: HeartbeatStatus::default() })
    }

    /// A reader of a trainer that discards every committed trajectory; some reports are lost, and
    /// each holds the whole count.
    pub(super) fn report(&mut self, rank: u32) -> Result<(), InvariantViolation> {
        self.soon(1_000, SimulatedEvent::Report { rank });
        let is_lost = !self.is_calm() && self.one_in(3);
        if self.core.is_none() || is_lost {
            return Ok(());
        }
        let report = DiscardReport { rank, world: READERS, trajectories: self.discarded(rank) };
        let call = self.call(RpcCaller::Trainer);
        self.apply(Event::Discarded { call, report })
    }

    /// Scored trajectories of the committed groups that belong to a reader.
    pub(super) fn discarded(&self, rank: u32) -> u64 {
        let groups = self.manifest.iter().flat_map(|shard| &shard.groups);
        let mine = groups
            .filter(|group| group.as_str().bytes().last().map(u32::from).unwrap_or(0) % READERS == rank);
        let mine: BTreeSet<&str> = mine.map(Id::as_str).collect();
        let group_of = |trajectory: &Id<Trajectory>| {
            trajectory.as_str().rsplit_once("-s").is_some_and(|(group, _)| mine.contains(group))
        };
        self.scored.iter().filter(|trajectory| group_of(trajectory)).count() as u64
    }

    /// Publishes weights for as long as faults occur.
    pub(super) fn train(&mut self) -> Result<(), InvariantViolation> {
        if !self.is_calm() {
            self.soon(2_000, SimulatedEvent::Train);
        }
        if self.core.is_none() {
            return Ok(());
        }
        self.published += 1;
        let directory = format!("/w/{}", self.published);
        if self.one_in(4) {
            self.broken.insert(directory.clone());
        }
        let link = WeightsLink { form: WeightsForm::Full, directory };
        let publication = WeightsPublication {
            publication_id: format!("p{}", self.published),
            source: VersionSource::Directory { link, base_version: 0 },
            weights_sha256: None,
        };
        let call = self.call(RpcCaller::Policy(0)); // without a caller
        self.apply(Event::Publish { call, publication })
    }

    /// Handles an ordered version: one that failed is tried again if other workers run it.
    pub(super) fn follow_order(&mut self, policy: usize, order: &WeightsOrder) {
        let version = order.version.0;
        let PolicyState { life, runs, ordered, refused, .. } = self.policies[policy];
        let once_more = order.taken && refused == Some(version);
        if version > runs && (version != ordered || once_more) {
            self.policies[policy].ordered = version;
            self.policies[policy].ordered_directory = order.links.last().map(|link| link.directory.clone());
            self.soon(800, SimulatedEvent::TakeUp { policy, life });
        }
    }

    /// The policy worker has loaded the ordered version, or cannot.
    pub(super) fn take_up(&mut self, policy: usize, life: u32) {
        let cannot = !self.is_calm() && self.one_in(4);
        let state = &mut self.policies[policy];
        if state.life != life {
            return;
        }
        state.refused = cannot.then_some(state.ordered);
        if cannot || state.ordered <= state.runs {
            return;
        }
        (state.runs, state.is_broken) = (state.ordered, false);
        state.directory.clone_from(&state.ordered_directory);
        let version = state.runs;
        if state.directory.as_ref().is_some_and(|directory| self.broken.contains(directory)) {
            self.soon(1_500, SimulatedEvent::Break { policy, life, version });
        }
    }

    /// The weights of a policy worker turn out to be broken. A second version of one process, and
    /// the weights that the job names, end the process.
    pub(super) fn break_version(&mut self, policy: usize, life: u32, version: i32) {
        let now = self.now;
        let state = &mut self.policies[policy];
        if state.life != life || state.runs != version || state.dead_until > now {
            return;
        }
        if version == 0 || state.broke_on.is_some_and(|first| first != version) {
            *state = PolicyState { life: life + 1, dead_until: now + 200, ..PolicyState::default() };
        } else {
            (state.is_broken, state.broke_on) = (true, Some(version));
        }
    }

    /// A policy worker's report about its weights, if it has any.
    fn run_of(&self, policy: usize) -> WeightsReport {
        let state = &self.policies[policy];
        let version = self.has_weights.then_some(state.runs);
        let torn = || state.refused.map(|version| (version, "its file is torn".to_owned()));
        let broken = || state.is_broken.then(|| (state.runs, "its logits are not finite".to_owned()));
        let refused =
            if state.beats.is_multiple_of(2) { broken().or_else(torn) } else { torn().or_else(broken) };
        WeightsReport {
            version,
            weights_sha256: version.map(hash),
            refused: refused.filter(|_| version.is_some()),
        }
    }

    /// The version the policy worker of a trajectory runs as it acts.
    pub(super) fn version_of(&self, rpc: &Rpc, trajectory: &Id<Trajectory>) -> Option<i32> {
        self.schedule?;
        let address = &self.envs[rpc.env].leases.get(trajectory)?.policy;
        let named = |policy: &usize| policy_name(*policy, &self.policies[*policy]) == *address;
        (0..POLICIES).find(named).map(|policy| self.policies[policy].runs)
    }

    pub(super) fn register_policy(&mut self, policy: usize) -> Result<(), InvariantViolation> {
        let name = policy_name(policy, &self.policies[policy]);
        let worker: Id<PolicyWorker> = Id::new(&name).map_err(|error| error.to_string())?;
        let offer = PolicyOffer {
            address: name,
            kind: PolicyKind::Random,
            sessions_max: 6,
            version: self.run_of(policy).version,
            hashes: PolicyHashes::default(),
        };
        let call = self.call(RpcCaller::Policy(policy));
        let run = self.run_of(policy);
        self.apply(Event::RegisterPolicy { call, worker, offer, run })
    }
}
