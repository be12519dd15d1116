//! A simulated run: its agenda, and what happens next.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use furrow_coordinator::SteppedCoordinator;
use furrow_coordinator::core::JobOutcome;
use furrow_faulty_disk::{Coverage, Crash, Damage, FaultyDisk, scratch};
use furrow_rollout::EndKind;
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::check;
use crate::labels::LABELS;
use crate::lives::Life;
use crate::workers::{EnvState, PolicyState, Reply, Rpc};

pub(crate) const ENVS: usize = 2;
pub(crate) const POLICIES: usize = 2;

/// Faults stop at this time, in milliseconds.
const CALM: u64 = 25_000;
/// Lives after which faults stop, too.
const LIVES_MAX: u32 = 40;
/// Once all faults are over, a run that is not done by this time hangs.
const TOO_LATE: u64 = CALM + 300_000;
/// Last operations that a violation names, where they are kept.
const TRACED_MAX: usize = 4_000;
/// Events after which a run turns in circles.
const EVENTS_MAX: u64 = 200_000;

/// What is wrong, in a sentence.
pub(crate) type Violation = String;

/// What may go wrong beside the workers' own faults.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weather {
    /// One operation of the disk in so many fails, about.
    pub disk_one_in: u32,
    /// Whether files are damaged between two lives.
    pub damages: bool,
}

/// What a worker sent for a trajectory, and what was acknowledged.
#[derive(Debug, Default, Clone)]
pub(crate) struct Account {
    /// Steps that were sent, acknowledged or not.
    pub sent: u32,
    pub acknowledged: u32,
    pub end: Option<EndKind>,
    pub is_end_acknowledged: bool,
}

/// What a run went through.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct RunCounts {
    pub lives: u64,
    pub kills: u64,
    pub power_cuts: u64,
    /// Lives that an error of the disk ended, and starts that it refused.
    pub failures: u64,
    pub drains: u64,
    /// First starts that left nothing to resume.
    pub begun_anew: u64,
    pub acknowledged: u64,
    pub damaged: u64,
    pub records_lost: u64,
}

impl RunCounts {
    pub(crate) fn numbers(&self) -> [u64; 9] {
        let Self { lives, kills, power_cuts, failures, drains, begun_anew, .. } = *self;
        let Self { acknowledged, damaged, records_lost, .. } = *self;
        [lives, kills, power_cuts, failures, drains, begun_anew, acknowledged, damaged, records_lost]
    }

    pub(crate) fn of(numbers: [u64; 9]) -> Self {
        let [lives, kills, power_cuts, failures, drains, begun_anew, acknowledged, damaged, records_lost] =
            numbers;
        Self { lives, kills, power_cuts, failures, drains, begun_anew, acknowledged, damaged, records_lost }
    }

    pub(crate) fn add(&mut self, other: &RunCounts) {
        let mine = self.numbers();
        let others = other.numbers();
        *self = Self::of(std::array::from_fn(|at| mine[at] + others[at]));
    }
}

/// The result of a run that kept every promise.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Equal only for runs that did the same.
    pub digest: u64,
    pub counts: RunCounts,
    pub coverage: Coverage,
    /// All that was noted, and every operation of the disk, where `FURROW_DISK_TRACE` is set.
    pub trace: Vec<String>,
}

/// What is on the agenda.
pub(crate) enum Happening {
    Arrive(Rpc),
    Advance { life: u32, call: u64 },
    Answered(Rpc, Reply),
    Timeout(Rpc),
    Beat { env: usize, life: u32 },
    Seek { env: usize, life: u32 },
    Act { env: usize, life: u32, trajectory: String },
    PolicyBeat { policy: usize },
    Durable { life: u32 },
    Score { life: u32 },
    Commit { life: u32 },
    Tick { life: u32 },
    Restart,
    Fault,
}

pub(crate) struct Farm {
    pub seed: u64,
    pub weather: Weather,
    pub chance: ChaCha12Rng,
    pub now: u64,
    agenda: BTreeMap<(u64, u64), Happening>,
    pub scheduled: u64,
    pub dir: TempDir,
    pub root: PathBuf,
    pub disk: FaultyDisk,
    pub runtime: Arc<Runtime>,
    pub coordinator: Option<Life>,
    /// Number of the coordinator's current life; events of an earlier one are void.
    pub life: u32,
    /// Faults of the disk before this life began.
    pub faults_before: u64,
    /// Whether a start ever succeeded: before, nothing can be lost.
    pub has_begun: bool,
    pub over: bool,
    pub envs: Vec<EnvState>,
    pub policies: Vec<PolicyState>,
    pub accounts: BTreeMap<String, Account>,
    /// Files that were damaged at rest, and their lengths since.
    pub damaged: BTreeMap<String, u64>,
    /// Files that are no run's.
    pub strays: u64,
    pub counts: RunCounts,
    pub log: Vec<String>,
    digest: u64,
    is_traced: bool,
}

/// Simulates one run to its end, and checks its data set.
pub(crate) fn simulate(seed: u64, weather: Weather) -> Result<Outcome, Violation> {
    let mut farm = Farm::new(seed, weather);
    let ended = farm.run().and_then(|()| check::check_run(&mut farm));
    if let Err(violation) = ended {
        // The disk must outlive what uses it.
        drop(farm.coordinator.take());
        let tail = |lines: &[String]| lines[lines.len().saturating_sub(TRACED_MAX)..].join("\n");
        let trace = if farm.is_traced {
            format!("\n{}\n{}", tail(&farm.log), tail(&farm.disk.trace()))
        } else {
            String::new()
        };
        let life = farm.life;
        return Err(format!("seed {seed}, life {life}, at {} ms: {violation}{trace}", farm.now));
    }
    let digest = farm.digest ^ farm.disk.digest().rotate_left(17);
    let coverage = farm.disk.coverage();
    Ok(Outcome {
        digest,
        counts: farm.counts.clone(),
        coverage,
        trace: [farm.log, farm.disk.trace()].concat(),
    })
}

impl Farm {
    fn new(seed: u64, weather: Weather) -> Self {
        let dir = tempfile::Builder::new().prefix("furrow-sim").tempdir_in(scratch()).unwrap();
        let root = dir.path().canonicalize().unwrap().join("disk");
        std::fs::create_dir(&root).unwrap();
        Self {
            seed,
            weather,
            chance: ChaCha12Rng::seed_from_u64(seed),
            now: 0,
            agenda: BTreeMap::new(),
            scheduled: 0,
            disk: FaultyDisk::new(&root, seed ^ 0x5eed, LABELS),
            dir,
            root,
            runtime: SteppedCoordinator::runtime().unwrap(),
            coordinator: None,
            life: 0,
            faults_before: 0,
            has_begun: false,
            over: false,
            envs: (0..ENVS).map(|_| EnvState::default()).collect(),
            policies: (0..POLICIES).map(|_| PolicyState::default()).collect(),
            accounts: BTreeMap::new(),
            damaged: BTreeMap::new(),
            strays: 0,
            counts: RunCounts::default(),
            log: Vec::new(),
            digest: 0xcbf2_9ce4_8422_2325,
            is_traced: std::env::var_os("FURROW_DISK_TRACE").is_some(),
        }
    }

    fn run(&mut self) -> Result<(), Violation> {
        self.disk.arm(self.weather.disk_one_in);
        self.at(0, Happening::Restart);
        (0..ENVS).for_each(|env| self.wake_env(env));
        for policy in 0..POLICIES {
            self.soon(100, Happening::PolicyBeat { policy });
        }
        self.soon(1_500, Happening::Fault);
        let mut events = 0;
        while !self.over {
            let Some(((at, _), happening)) = self.agenda.pop_first() else {
                return Err("no event is left".into());
            };
            events += 1;
            if at > TOO_LATE || events > EVENTS_MAX {
                let progress = self.coordinator.as_ref().map(|life| {
                    let progress = life.coordinator.progress();
                    (progress.groups_closed, progress.assigned, progress.scoring, progress.admission)
                });
                return Err(format!(
                    "not done after {events} events (groups, assigned, scoring, admission): {progress:?}"
                ));
            }
            self.now = at;
            if self.is_calm() {
                self.disk.arm(0);
            }
            self.happen(happening)?;
        }
        Ok(())
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.now >= CALM || self.life >= LIVES_MAX
    }

    pub(crate) fn one_in(&mut self, count: u32) -> bool {
        self.chance.random_range(0..count) == 0
    }

    /// Schedules an event after at most this many milliseconds.
    pub(crate) fn soon(&mut self, within: u64, happening: Happening) {
        let at = self.now + self.chance.random_range(1..=within);
        self.at(at, happening);
    }

    pub(crate) fn at(&mut self, at: u64, happening: Happening) {
        self.scheduled += 1;
        self.agenda.insert((at, self.scheduled), happening);
    }

    /// Adds a sentence to what makes two runs the same.
    pub(crate) fn note(&mut self, what: impl FnOnce() -> String) {
        let what = format!("{} {}", self.now, what());
        for byte in what.bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if self.is_traced {
            self.log.push(what);
        }
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Violation> {
        match happening {
            Happening::Arrive(rpc) => self.arrive(rpc),
            Happening::Advance { life, call } if life == self.life => self.advance(call),
            Happening::Answered(rpc, reply) => self.answered(rpc, reply),
            Happening::Timeout(rpc) => {
                self.repeat(rpc);
                Ok(())
            }
            Happening::Beat { env, life } => {
                self.beat(env, life);
                Ok(())
            }
            Happening::Seek { env, life } => {
                self.seek(env, life);
                Ok(())
            }
            Happening::Act { env, life, trajectory } => {
                self.act(env, life, &trajectory);
                Ok(())
            }
            Happening::PolicyBeat { policy } => {
                self.policy_beat(policy);
                Ok(())
            }
            Happening::Durable { life } if life == self.life => {
                self.soon(200, Happening::Score { life });
                self.move_life(Life::make_durable)
            }
            Happening::Score { life } if life == self.life => self.move_life(|life| {
                life.coordinator.score();
                Ok(())
            }),
            Happening::Commit { life } if life == self.life => {
                self.soon(2_000, Happening::Commit { life });
                self.move_life(|life| life.coordinator.commit_shards())
            }
            Happening::Tick { life } if life == self.life => {
                self.at(self.now + 300, Happening::Tick { life });
                self.move_life(|life| {
                    life.coordinator.tick();
                    Ok(())
                })
            }
            Happening::Restart => self.restart(),
            Happening::Fault => self.fault(),
            _ => Ok(()), // of an earlier life
        }
    }

    fn fault(&mut self) -> Result<(), Violation> {
        if self.is_calm() {
            return Ok(());
        }
        self.soon(1_500, Happening::Fault);
        match self.chance.random_range(0..9) {
            0 => self.crash(Crash::Kill),
            1 => self.crash(Crash::PowerCut),
            2 => {
                let env = self.chance.random_range(0..ENVS);
                self.restart_env(env);
                Ok(())
            }
            3 | 4 => {
                let env = self.chance.random_range(0..ENVS);
                self.stall_env(env);
                Ok(())
            }
            5 => {
                self.stop_policy();
                Ok(())
            }
            6 if self.one_in(3) => {
                self.counts.drains += u64::from(self.coordinator.is_some());
                self.move_life(|life| {
                    life.coordinator.drain();
                    Ok(())
                })
            }
            _ => {
                // The wall clock jumps, by up to an hour.
                let jump = self.chance.random_range(-3_600_000_000..3_600_000_000);
                if let Some(life) = &mut self.coordinator {
                    life.jump(jump);
                }
                Ok(())
            }
        }
    }

    /// Ends the coordinator from outside.
    fn crash(&mut self, crash: Crash) -> Result<(), Violation> {
        if self.coordinator.is_some() {
            self.disk.crash(crash);
            self.settle()?;
        }
        Ok(())
    }

    /// Damages a file of the spool at rest.
    pub(crate) fn damage(&mut self) {
        let files = self.disk.files();
        let spooled: Vec<(String, u64)> = files
            .into_iter()
            .filter(|(name, length)| name.starts_with("run/spool/") && *length > 0)
            .filter(|(name, _)| !self.damaged.contains_key(name))
            .collect();
        if spooled.is_empty() {
            return;
        }
        let (name, length) = spooled[self.chance.random_range(0..spooled.len())].clone();
        let damage = if self.one_in(2) {
            Damage::Bit(self.chance.random_range(0..length * 8))
        } else {
            Damage::Cut(self.chance.random_range(0..length))
        };
        if self.disk.damage(&name, damage) {
            self.note(|| format!("damage {name} {damage:?}"));
            self.counts.damaged += 1;
            let left = if let Damage::Cut(left) = damage { left } else { length };
            self.damaged.insert(name, left);
        }
    }

    /// Leaves a file in a folder of the data set that no shard of the run has.
    pub(crate) fn leave_stray(&mut self) {
        let folder = self.root.join("run/data/trajectories");
        if folder.is_dir() {
            self.disk.arm(0);
            let name = format!("stray-{}.parquet", self.life);
            std::fs::write(folder.join(&name), "of another run").unwrap();
            self.disk.arm(self.weather.disk_one_in);
            self.strays += 1;
        }
    }

    pub(crate) fn finish(&mut self, outcome: &JobOutcome) -> Result<(), Violation> {
        match outcome {
            JobOutcome::Complete => self.over = true,
            JobOutcome::Drained { .. } => {
                drop(self.coordinator.take());
                self.life += 1;
                self.soon(1_500, Happening::Restart);
            }
            other => return Err(format!("the job ended as {other:?}")),
        }
        Ok(())
    }
}
