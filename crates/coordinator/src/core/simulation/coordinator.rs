//! The coordinator of a simulated farm, and what survives it: ledger, spool and data set.

use super::*;

impl SimulatedFarm {
    pub(super) fn apply(&mut self, event: Event) -> Result<(), InvariantViolation> {
        let now = EventTime { millis: self.now, wall_micros: self.now as i64 * 1000 };
        let Some(core) = &mut self.core else { return Ok(()) };
        let decision = core.apply(event.clone(), now);
        self.log.push((event, decision.clone()));
        self.check_pace()?;
        self.check_withdrawn(&decision)?;
        self.follow(decision)
    }

    /// No trajectory is leased to a worker that runs a withdrawn version, and none is ordered.
    fn check_withdrawn(&mut self, decision: &Decision) -> Result<(), InvariantViolation> {
        for mutation in &decision.commit {
            match mutation {
                Mutation::VersionWithdrawn { version, .. } => drop(self.withdrawn.insert(*version)),
                Mutation::Assigned(start)
                    if start.policy.version.is_some_and(|version| self.withdrawn.contains(&version)) =>
                {
                    return Err(format!("{start:?} was leased on a withdrawn version"));
                }
                _ => {}
            }
        }
        for effect in decision.at_once.iter().chain(&decision.then) {
            let Effect::Reply { answer, .. } = effect else { continue };
            if let CallResponse::HeartbeatAcknowledged { weights: Some(order), .. }
            | CallResponse::Registered { weights: Some(order), .. } = answer
                && self.withdrawn.contains(&order.version.0)
            {
                return Err(format!("version {} was ordered after it was withdrawn", order.version.0));
            }
        }
        Ok(())
    }

    /// Makes sure that no more trajectories are running or accepted than the version allows, even
    /// after a restart.
    fn check_pace(&self) -> Result<(), InvariantViolation> {
        let (Some(core), Some(pacing)) = (&self.core, self.rules.pacing) else { return Ok(()) };
        let discarded: u64 = (0..READERS).map(|rank| self.discarded(rank)).sum();
        let fills = core.accepted().saturating_sub(discarded) + core.training_in_flight();
        let allowed = pacing.allowed(None);
        if fills > allowed {
            return Err(format!("{fills} trajectories fill a version that allows {allowed}: {core:?}"));
        }
        Ok(())
    }

    fn follow(&mut self, mut decision: Decision) -> Result<(), InvariantViolation> {
        for effect in std::mem::take(&mut decision.at_once) {
            self.perform(effect)?;
        }
        if !decision.commit.is_empty() || !decision.then.is_empty() {
            self.undurable.push_back(decision);
            let life = self.life;
            self.soon(30, SimulatedEvent::Durable { life });
        }
        Ok(())
    }

    /// Commits everything decided so far in one transaction.
    pub(super) fn make_durable(&mut self) -> Result<(), InvariantViolation> {
        let decisions: Vec<_> = self.undurable.drain(..).collect();
        let mutations: Vec<_> = decisions.iter().flat_map(|decision| decision.commit.clone()).collect();
        self.commit(&mutations)?;
        let life = self.life;
        for effect in decisions.into_iter().flat_map(|decision| decision.then) {
            if self.life == life {
                self.perform(effect)?;
            }
        }
        Ok(())
    }

    fn commit(&mut self, mutations: &[Mutation]) -> Result<(), InvariantViolation> {
        for mutation in mutations {
            match mutation {
                Mutation::Scored { trajectory_id, .. } => self.scored.push(trajectory_id.clone()),
                Mutation::Finished { trajectory_id, ended, .. }
                | Mutation::Failed { trajectory_id, ended } => {
                    self.ended.insert(trajectory_id.clone(), ended.end);
                }
                Mutation::RecordLost { trajectory_id, ended } => {
                    self.ended.insert(trajectory_id.clone(), ended.end);
                    self.scored.retain(|scored| scored != trajectory_id);
                }
                _ => {}
            }
        }
        self.ledger.commit(mutations).map_err(|error| error.to_string())
    }

    fn perform(&mut self, effect: Effect) -> Result<(), InvariantViolation> {
        let life = self.life;
        match effect {
            Effect::Reply { call, answer } => {
                let caller = self.calls.remove(&call).ok_or(format!("{call:?} was answered twice"))?;
                self.deliver(caller, answer)?;
            }
            Effect::Score { trajectory, .. } => self.soon(200, SimulatedEvent::Judge { life, trajectory }),
            Effect::CommitTrajectory(outgoing) => {
                self.to_commit.push(outgoing.of.trajectory_id);
                self.soon(2_000, SimulatedEvent::CommitShard { life });
            }
            Effect::CommitGroup { record } => {
                self.groups_to_commit.push(record.group_id);
                self.soon(2_000, SimulatedEvent::CommitShard { life });
            }
            Effect::CloseShards => self.soon(10, SimulatedEvent::CommitShard { life }),
            Effect::Notify(_) => {}
            Effect::Over(JobOutcome::Drained { .. }) => return self.resume(),
            Effect::Over(over) => self.over = Some(over),
        }
        Ok(())
    }

    /// Restarts after a clean stop: everything that ended must be committed.
    fn resume(&mut self) -> Result<(), InvariantViolation> {
        let core = self.core.as_ref().ok_or("a coordinator drained while dead")?;
        if core.leases.len() + core.scoring.len() + core.uncommitted.len() > 0 {
            return Err(format!("it drained and left work: {core:?}"));
        }
        self.drained += 1;
        self.crash()
    }

    fn deliver(&mut self, caller: RpcCaller, answer: CallResponse) -> Result<(), InvariantViolation> {
        let rpc = match caller {
            RpcCaller::Env(rpc) => rpc,
            RpcCaller::Policy(policy) => {
                match answer {
                    CallResponse::HeartbeatAcknowledged { known: false, .. } => {
                        return self.register_policy(policy);
                    }
                    CallResponse::HeartbeatAcknowledged { weights: Some(order), .. }
                    | CallResponse::Registered { weights: Some(order), .. } => {
                        self.follow_order(policy, &order);
                    }
                    _ => {}
                }
                return Ok(());
            }
            RpcCaller::Forger => {
                let CallResponse::Refused(CallRefusal::Stale { .. }) = answer else {
                    return Err(format!("a forged call was answered with {answer:?}"));
                };
                self.forged += 1;
                return Ok(());
            }
            RpcCaller::Trainer => {
                return match answer {
                    CallResponse::Discarded { .. } => Ok(()),
                    other => Err(format!("discarding committed trajectories was refused: {other:?}")),
                };
            }
        };
        let reply = match answer {
            CallResponse::Go { .. } => {
                let life = self.life;
                self.soon(20, SimulatedEvent::Append { life, rpc });
                return Ok(());
            }
            CallResponse::Finished => {
                if let RpcRequest::Finish { proof, report } = &rpc.request {
                    self.acknowledged.insert(proof.trajectory_id.clone(), report.end);
                }
                RpcReply::Acknowledged
            }
            CallResponse::Registered { .. } => RpcReply::Registered,
            CallResponse::HeartbeatAcknowledged { known, .. } => RpcReply::HeartbeatAcknowledged { known },
            CallResponse::Leased { grants, .. } => RpcReply::Leased { grants },
            CallResponse::Renewed { lost, moves } => RpcReply::Renewed { lost, moves },
            CallResponse::Refused(_) => RpcReply::Refused,
            other => return Err(format!("unexpected reply {other:?}")),
        };
        self.send_back(rpc, reply);
        Ok(())
    }

    fn send_back(&mut self, rpc: Rpc, reply: RpcReply) {
        if self.is_calm() || !self.one_in(15) {
            self.soon(40, SimulatedEvent::Answered(rpc, reply));
        }
    }

    pub(super) fn arrive(&mut self, rpc: &Rpc) -> Result<(), InvariantViolation> {
        if self.core.is_none() {
            return Ok(());
        }
        if let RpcRequest::Step { proof, .. } | RpcRequest::Finish { proof, .. } = &rpc.request
            && self.rules.fencing
            && self.one_in(8)
        {
            self.forge(&env_name(rpc), proof.clone())?;
        }
        let call = self.call(RpcCaller::Env(rpc.clone()));
        let worker = Id::new(env_name(rpc)).map_err(|error| error.to_string())?;
        self.apply(match rpc.request.clone() {
            RpcRequest::Register => Event::RegisterEnv { call, worker, sessions_max: 4 },
            RpcRequest::Heartbeat => Event::Heartbeat {
                call,
                worker: worker_id(&env_name(rpc)),
                run: WeightsReport::default(),
                health: HeartbeatStatus::default(),
            },
            RpcRequest::Lease => {
                let free = 4 - self.envs[rpc.env].leases.len().min(4) as u32;
                Event::Lease { call, worker, slots: free, wait_millis: 1_000 }
            }
            RpcRequest::Renew => {
                let leases = self.envs[rpc.env].leases.values().map(|lease| lease.proof.clone());
                Event::Renew { call, worker, leases: leases.collect() }
            }
            RpcRequest::Step { proof, .. } => Event::StepArrived { call, claim: claim(rpc, proof) },
            RpcRequest::Finish { proof, report } => {
                Event::EndingArrived { call, claim: claim(rpc, proof), digest: report.digest }
            }
        })
    }

    /// A call for a lease by another process, or with the token or the secret of another lease,
    /// running or over.
    fn forge(&mut self, worker: &str, proof: LeaseProof) -> Result<(), InvariantViolation> {
        let number = self.chance.random_range(0..self.proofs.len());
        let other = self.proofs[number].clone();
        let guessed = LeaseSecret::new(self.chance.random::<[u8; LEASE_SECRET_BYTES]>());
        let (caller, proof) = match self.chance.random_range(0..4) {
            0 => (peer(worker), LeaseProof { secret: guessed, ..proof }),
            1 if other != proof => (peer(worker), LeaseProof { secret: other.secret, ..proof }),
            2 if other != proof => (peer(worker), LeaseProof { token: other.token, ..proof }),
            _ => (peer("rogue"), proof),
        };
        let claim = LeaseClaim { caller, proof };
        let call = self.call(RpcCaller::Forger);
        let kind = self.chance.random_range(0..3);
        self.apply(match kind {
            0 => Event::StepArrived { call, claim },
            1 => Event::EndingArrived { call, claim, digest: [9; 32] },
            _ => {
                let ending = report(&claim.proof.trajectory_id, EndKind::Answered, 1);
                Event::EndingKept { call, claim, ending }
            }
        })
    }

    pub(super) fn call(&mut self, caller: RpcCaller) -> CallId {
        self.next_call += 1;
        self.calls.insert(CallId(self.next_call), caller);
        CallId(self.next_call)
    }

    /// Spools a step or an ending that the core allowed.
    pub(super) fn append(&mut self, rpc: Rpc) -> Result<(), InvariantViolation> {
        match rpc.request.clone() {
            RpcRequest::Step { proof, step } => {
                let trajectory = proof.trajectory_id;
                let file = self.spool.entry(trajectory.clone()).or_default();
                if step > file.steps || (file.ending.is_some() && step >= file.steps) {
                    self.send_back(rpc, RpcReply::Refused);
                    return Ok(());
                }
                file.steps = file.steps.max(step + 1);
                let policy_versions = self.version_of(&rpc, &trajectory).map(|version| (version, version));
                if let Some((version, _)) = policy_versions {
                    let range = self.evaluated_on.entry(trajectory.clone()).or_insert((version, version));
                    *range = (range.0.min(version), range.1.max(version));
                }
                self.apply(Event::StepKept { trajectory, step, policy_versions })?;
                self.send_back(rpc, RpcReply::Acknowledged);
                Ok(())
            }
            RpcRequest::Finish { proof, report } => {
                self.spool.entry(proof.trajectory_id.clone()).or_default().ending = Some(report.clone());
                let claim = claim(&rpc, proof);
                let call = self.call(RpcCaller::Env(rpc));
                self.apply(Event::EndingKept { call, claim, ending: report })
            }
            _ => Err("only steps and endings are spooled".into()),
        }
    }

    pub(super) fn judge(&mut self, trajectory: Id<Trajectory>) -> Result<(), InvariantViolation> {
        // Its group may be complete meanwhile, and its rows in the data set: then its scorer finds
        // nothing, and nothing waits for its verdict.
        let is_awaited = self.core.as_ref().is_some_and(|core| core.scoring.contains_key(&trajectory));
        if (self.spares > 0 || self.schedule.is_some())
            && !is_awaited
            && !self.spool.contains_key(&trajectory)
        {
            return Ok(());
        }
        let file =
            self.spool.get(&trajectory).ok_or(format!("{trajectory} is to be scored without a spool"))?;
        let report = file.ending.clone().ok_or(format!("{trajectory} is to be scored without an ending"))?;
        let verdict = if self.one_in(6) {
            Err("the scorer failed".to_owned())
        } else {
            Ok(TimedScore { score: score(&report), micros: 10 })
        };
        self.apply(Event::Scored { trajectory, verdict })
    }

    /// Damages the spool file of one scored trajectory; the committer finds it and leaves out the
    /// trajectory and its group's row.
    fn damage(&mut self) -> Result<(), InvariantViolation> {
        let is_scored = |id: &&Id<Trajectory>| self.scored.contains(id) && !self.damaged.contains(*id);
        let Some(trajectory) = self.to_commit.iter().find(is_scored).cloned() else { return Ok(()) };
        self.to_commit.retain(|waiting| *waiting != trajectory);
        let group = group_name(&trajectory).to_owned();
        self.groups_to_commit.retain(|waiting| waiting.as_str() != group);
        self.damaged.insert(trajectory.clone());
        self.apply(Event::RecordLost { trajectory, steps: 0, why: "the CRC is another".into() })
    }

    pub(super) fn open_shard(&mut self) -> Result<(), InvariantViolation> {
        if !self.is_calm() && self.one_in(8) {
            self.damage()?;
        }
        let trajectories = std::mem::take(&mut self.to_commit);
        let groups = std::mem::take(&mut self.groups_to_commit);
        if trajectories.is_empty() && groups.is_empty() {
            return Ok(());
        }
        let index = self.next_shard;
        self.next_shard += 1;
        let shard_id = Id::new(format!("shard-{index}")).map_err(|error| error.to_string())?;
        let opening = ShardOpening { shard_id, index, trajectories, groups, replaces: Vec::new() };
        self.commit(&[Mutation::ShardOpened(opening.clone())])?;
        let life = self.life;
        // One shard after another, so that a group never overtakes its trajectories.
        self.at(self.now, SimulatedEvent::ShardWritten { life, opening });
        Ok(())
    }

    pub(super) fn commit_shard(&mut self, opening: &ShardOpening) -> Result<(), InvariantViolation> {
        let files = vec![WrittenFile {
            table: Table::Trajectories,
            path: opening.shard_id.to_string(),
            rows: 1,
            bytes: 1,
            sha256: "00".repeat(32),
        }];
        self.commit(&[Mutation::ShardWritten { shard_id: opening.shard_id.clone(), files }])?;
        let manifest_version = self.manifest.len() as u64;
        self.manifest.push(opening.clone());
        let shard_id = opening.shard_id.clone();
        self.commit(&[Mutation::ShardCommitted { shard_id, manifest_version }])?;
        for trajectory in &opening.trajectories {
            self.spool.remove(trajectory);
        }
        let trajectories = opening.trajectories.clone();
        let groups = opening.groups.clone();
        let shard = ShardSummary { shard_id: opening.shard_id.clone(), version: manifest_version, bytes: 1 };
        self.apply(Event::ShardCommitted { shard, trajectories, groups })
    }

    /// Kills the coordinator; some decisions may have reached the disk without a reply.
    pub(super) fn crash(&mut self) -> Result<(), InvariantViolation> {
        self.core = None;
        self.life += 1;
        let reached = self.chance.random_range(0..=self.undurable.len());
        let mutations: Vec<_> =
            self.undurable.drain(..).take(reached).flat_map(|decision| decision.commit).collect();
        self.commit(&mutations)?;
        self.undurable.clear();
        self.calls.clear();
        self.to_commit.clear();
        self.groups_to_commit.clear();
        self.soon(1_500, SimulatedEvent::Restart);
        Ok(())
    }

    pub(super) fn restart(&mut self) -> Result<(), InvariantViolation> {
        let run_id = Id::new("sim").map_err(|error| error.to_string())?;
        self.commit(&[Mutation::RunOpened(RunOpening {
            run_id,
            job_sha256: [1; 32],
            began_sha256: None,
            at_micros: 0,
        })])?;
        let shards = self.ledger.load().map_err(|error| error.to_string())?.shards;
        for shard in shards {
            self.commit(&[Mutation::ShardAbandoned { shard_id: shard.shard_id }])?;
        }
        let mut snapshot = self.ledger.load().map_err(|error| error.to_string())?;
        let run = snapshot.run.take().ok_or("the run is gone")?;
        // What was decided and not durable is forgotten.
        let withdrawn =
            snapshot.versions.rows().iter().filter(|row| matches!(row.state, VersionState::Withdrawn { .. }));
        self.withdrawn = withdrawn.map(|row| row.version).collect();
        let spooled = self.spool.iter().map(|(id, file)| {
            let ending = file.ending.as_ref().map(|report| report.digest);
            let policy_versions = self.evaluated_on.get(id).copied();
            (id.clone(), SpoolProgress { steps: file.steps, policy_versions, ending })
        });
        let now = EventTime { millis: self.now, wall_micros: self.now as i64 * 1000 };
        let (core, decision) = Core::start(
            self.rules.clone(),
            Arc::new(TinyPlan { spares: self.spares, schedule: self.schedule }),
            (run, snapshot),
            &spooled.collect(),
            SecretSource::seeded(self.seed << 32 | u64::from(self.life)),
            now,
        );
        self.core = Some(core);
        let life = self.life;
        self.soon(500, SimulatedEvent::Tick { life });
        self.follow(decision)
    }
}

/// What a worker claims, in the name that it registered under.
fn claim(rpc: &Rpc, proof: LeaseProof) -> LeaseClaim {
    LeaseClaim { caller: peer(&env_name(rpc)), proof }
}
