//! Plausible domain values for tests, here and in other crates: trajectories whose tokens, hashes
//! and pictures are consistent.

mod block;
pub mod data_set;

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;

use bytes::Bytes;
use furrow_rollout::{
    Action, ContextPolicy, EndKind, EngineStats, EnvironmentFingerprint, Evidence, ExtraAction, FinishReason,
    Grammar, Group, GroupRecord, GroupStatistics, Id, ImageFormat, ImageSpan, Observation, ObservationSpec,
    Outcome, OutcomeName, PageClock, PageHooks, PagePoint, PolicyHashes, PolicyKind, PolicyReply,
    PolicyVersion, Run, SamplingParams, Score, ScoreComponent, Screenshot, SessionSpec, Size, Split,
    StateOrigin, StepRecord, TabInfo, Task, TimeCause, TimeSplit, TokenTrace, Trace, Trajectory,
    TrajectoryAncestry, TrajectoryEnding, TrajectoryRecord, TrajectoryStatus, WallsLevel, token_hash,
};
use image::{ExtendedColorType, ImageEncoder, codecs::png::PngEncoder};
use sha2::{Digest, Sha256};

pub use block::RowBlock;

use crate::{ShardPlan, pixels};

/// Id of the image placeholder in these tokens.
pub const PLACEHOLDER: u32 = 18;
/// Wall clock at the start of the first trajectory.
pub const STARTED: i64 = 1_790_000_000_000_000;

/// Properties of a trajectory to generate; the rest follows.
#[derive(Debug, Clone)]
pub struct TrajectoryFixture {
    /// Id of the run.
    pub run: String,
    /// Index of its group.
    pub group: u64,
    /// Slot in the group.
    pub sample: u32,
    /// Attempt at the slot.
    pub attempt: u32,
    /// Slots of the group.
    pub group_size: u32,
    /// Steps to generate, numbered from 0; 0 gives a trajectory that ended before its first step.
    pub steps: u32,
    /// How it ends, which decides whether it is scored.
    pub end: EndKind,
    /// Its reward, when it is scored.
    pub reward: f32,
    /// Kind of policy; only `Model` has tokens.
    pub kind: PolicyKind,
    /// Context policy of the session.
    pub context: ContextPolicy,
    /// Split of the task.
    pub split: Split,
    /// Size of the screenshots.
    pub size: Size,
}

impl Default for TrajectoryFixture {
    fn default() -> Self {
        Self {
            run: "test".into(),
            group: 0,
            sample: 0,
            attempt: 0,
            group_size: 4,
            steps: 3,
            end: EndKind::Answered,
            reward: 1.0,
            kind: PolicyKind::Model,
            context: ContextPolicy::Append,
            split: Split::Train,
            size: Size::new(16, 16),
        }
    }
}

/// The plan of a shard of the run `test`.
pub fn plan(data_dir: &Path, shard_id: &str) -> ShardPlan {
    ShardPlan {
        data_dir: data_dir.to_owned(),
        shard_id: Id::new(shard_id).expect("a test's shard id"),
        run_id: Id::new("test").expect("a run id"),
        job_toml: "[run]\nname = \"test\"\n".into(),
        row_group_bytes: 1 << 20,
        compression_level: 3,
    }
}

/// A small picture that differs from seed to seed.
pub fn png(width: u32, height: u32, seed: u64) -> Bytes {
    let pixel = |at: u64| (at.wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503)) >> 5) as u8;
    let pixels: Vec<u8> = (0..u64::from(width) * u64::from(height) * 3).map(pixel).collect();
    let mut encoded = Cursor::new(Vec::new());
    let encoder = PngEncoder::new(&mut encoded);
    encoder.write_image(&pixels, width, height, ExtendedColorType::Rgb8).expect("a picture in memory");
    encoded.into_inner().into()
}

impl TrajectoryFixture {
    /// Generates the trajectory and its steps.
    pub fn trajectory(&self) -> (TrajectoryRecord, Vec<StepRecord>) {
        let steps = self.steps();
        let scored = self.end.fault(self.attempt > 0) == furrow_rollout::FaultOwner::Policy;
        let evidence = scored.then(|| self.evidence());
        let score = evidence.as_ref().map(|evidence| self.score(evidence));
        let timing = steps.iter().fold(TimeSplit::default(), |mut sum, step| {
            sum.merge(&step.timing);
            sum
        });
        let tokens = || steps.iter().filter_map(|step| step.trace.tokens.as_ref());
        let versions = || tokens().flat_map(|tokens| tokens.policy_versions.iter().copied());
        let started_at_micros = STARTED + (self.group * 1_000_000) as i64;
        let record = TrajectoryRecord {
            ancestry: self.ancestry(),
            task: self.task(),
            task_json: r#"{"id":"click-it","goal":"Click \"it\"."}"#.into(),
            policy_kind: self.kind,
            status: if scored { TrajectoryStatus::Scored } else { TrajectoryStatus::Failed },
            ending: TrajectoryEnding {
                end: self.end,
                reason: if scored { String::new() } else { "the browser went away".into() },
                evidence,
                goal: "Click \"it\".".into(),
                steps: self.steps,
                last_outcome: None,
                timing,
                environment: environment(),
            },
            score,
            policy_versions: versions().min().zip(versions().max()),
            staleness: tokens().next().map(|_| 1),
            hashes: PolicyHashes { grammar: Some("ab".repeat(32)), ..PolicyHashes::default() },
            session: self.session(),
            group_size: self.group_size,
            token: 7,
            queue_micros: 1_000,
            score_micros: 2_000,
            gpu_micros: steps.iter().map(|step| step.trace.engine.gpu_micros).sum(),
            prompt_tokens: tokens().map(|tokens| tokens.prompt_token_ids.len() as u64).sum(),
            response_tokens: tokens().map(|tokens| tokens.response_token_ids.len() as u64).sum(),
            invalid_actions: steps.iter().filter(|step| step.reply.action.is_err()).count() as u32,
            cost_usd: None,
            started_at_micros,
            ended_at_micros: started_at_micros + 9_000_000,
        };
        (record, steps)
    }

    fn ancestry(&self) -> TrajectoryAncestry {
        let run_id: Id<Run> = Id::new(&self.run).expect("a test's run id");
        let group_id = Id::<Group>::nth(&run_id, self.group);
        let trajectory_id = Id::<Trajectory>::attempt(&group_id, self.sample, self.attempt);
        TrajectoryAncestry {
            run_id,
            group_id,
            sample_index: self.sample,
            attempt: self.attempt,
            trajectory_id,
        }
    }

    fn task(&self) -> Task {
        Task {
            task_id: "click-it".into(),
            suite: "starter".into(),
            split: self.split,
            goal: None,
            start_url: "http://starter.test/click-it".into(),
            seed: self.group,
            max_steps: 10,
            time_limit_millis: 60_000,
            viewport: Size::new(512, 512),
            observation: ObservationSpec { format: ImageFormat::Png, clip: None, square: true },
            allow_hosts: vec!["starter.test".into()],
            hooks: PageHooks { probe: Some("window.probe()".into()), ..PageHooks::default() },
            clock: PageClock::Virtual { step_millis: 500 },
        }
    }

    fn session(&self) -> SessionSpec {
        SessionSpec {
            grammar: Grammar { name: "holo_navigation".into(), extra: vec![ExtraAction::Drag] },
            sampling: SamplingParams::default(),
            context: self.context,
            instructions: "Use the page.".into(),
        }
    }

    fn evidence(&self) -> Evidence {
        Evidence {
            screenshot: Some(png(self.size.width, self.size.height, self.picture(99))),
            url: Some("http://starter.test/click-it#done".into()),
            title: Some("It".into()),
            answer: (self.end == EndKind::Answered).then(|| "42".into()),
            probe_json: Some(r#"{"done":true}"#.into()),
            findings_json: Some(r#"[{"query":{"kind":"text","selector":"h1"},"found":"It"}]"#.into()),
        }
    }

    fn score(&self, evidence: &Evidence) -> Score {
        Score {
            reward: Some(self.reward),
            success: Some(self.reward > 0.5),
            components: vec![ScoreComponent { name: "raw".into(), value: self.reward }],
            scorer: "probe".into(),
            version: 1,
            rationale: "the page says so".into(),
            evidence_sha256: evidence.sha256(),
        }
    }

    fn steps(&self) -> Vec<StepRecord> {
        let pictures: Vec<Bytes> =
            (0..self.steps).map(|step| png(self.size.width, self.size.height, self.picture(step))).collect();
        let mut talk = SessionFixture::new(self, &pictures);
        pictures.iter().zip(0..).map(|(picture, step)| self.step(step, picture, &mut talk)).collect()
    }

    fn picture(&self, step: u32) -> u64 {
        self.group * 10_000 + u64::from(self.sample) * 100 + u64::from(step)
    }

    fn step(&self, step: u32, picture: &Bytes, talk: &mut SessionFixture) -> StepRecord {
        let mut timing = TimeSplit::default();
        timing.add(TimeCause::Policy, 40_000);
        timing.add(TimeCause::Settle, 60_000);
        let has_tokens = self.kind == PolicyKind::Model;
        let version = has_tokens.then_some(PolicyVersion(3));
        StepRecord {
            step,
            observation: self.observation(picture.clone()),
            reply: self.reply(step),
            outcome: Outcome::named(OutcomeName::Ok),
            trace: Trace {
                policy_kind: self.kind,
                policy_version: version,
                state_version_min: version,
                tokens: has_tokens.then(|| talk.turn(step)),
                engine: engine(has_tokens),
                rescored: Vec::new(),
            },
            timing,
            observed_at_micros: STARTED + i64::from(step) * 100_000,
        }
    }

    fn observation(&self, bytes: Bytes) -> Observation {
        let tab = TabInfo { title: "It".into(), url: "http://starter.test/click-it".into(), active: true };
        Observation {
            screenshot: Screenshot { bytes, format: ImageFormat::Png, size: self.size },
            url: tab.url.clone(),
            title: tab.title.clone(),
            tabs: vec![tab],
            scroll_y: 0.0,
            page_height: 512.0,
            axtree: None,
            marks: None,
        }
    }

    /// A click, or an answer at the end.
    fn reply(&self, step: u32) -> PolicyReply {
        let at = PagePoint { x: 12.5, y: 40.0 };
        let (raw_text, name, action) = if step + 1 == self.steps && self.end == EndKind::Answered {
            (r#"{"action":"answer","content":"42"}"#, "answer", Action::Answer { content: "42".into() })
        } else {
            (r#"{"action":"click_element","x":24,"y":78}"#, "click_element", Action::click(at))
        };
        PolicyReply {
            raw_text: raw_text.into(),
            name: name.into(),
            args_json: "{}".into(),
            action: Ok(action),
        }
    }
}

fn engine(has_tokens: bool) -> EngineStats {
    let state_origin = has_tokens.then_some(StateOrigin::Resident);
    let gpu_micros = if has_tokens { 5_000 } else { 0 };
    EngineStats {
        worker: "policy-0".into(),
        state_origin,
        service_micros: 40_000,
        gpu_micros,
        ..EngineStats::default()
    }
}

fn environment() -> EnvironmentFingerprint {
    EnvironmentFingerprint {
        worker: "env-0".into(),
        browser: "chromium 1".into(),
        sandbox: true,
        locale: "en-US".into(),
        timezone: "UTC".into(),
        viewport: Some(Size::new(512, 512)),
        walls: Some(WallsLevel::Full),
    }
}

/// The group of these trajectories.
pub fn group(trajectories: &[TrajectoryRecord]) -> GroupRecord {
    let first = trajectories.first().expect("a group has trajectories");
    let scored = || trajectories.iter().filter(|trajectory| trajectory.status == TrajectoryStatus::Scored);
    let rewards: Vec<f32> =
        scored().filter_map(|trajectory| trajectory.score.as_ref().and_then(|score| score.reward)).collect();
    let mut failed = BTreeMap::new();
    for trajectory in trajectories.iter().filter(|trajectory| trajectory.status == TrajectoryStatus::Failed) {
        *failed.entry(trajectory.ending.end.as_str().to_owned()).or_default() += 1;
    }
    let versions = || scored().filter_map(|trajectory| trajectory.policy_versions);
    GroupRecord {
        run_id: first.ancestry.run_id.clone(),
        group_id: first.ancestry.group_id.clone(),
        task_id: first.task.task_id.clone(),
        suite: first.task.suite.clone(),
        split: first.task.split,
        seed: first.task.seed,
        planned: first.group_size,
        valid: rewards.len() as u32,
        failed,
        rewards: GroupStatistics::of(&rewards),
        policy_versions: versions()
            .map(|(oldest, _)| oldest)
            .min()
            .zip(versions().map(|(_, newest)| newest).max()),
        closed_at_micros: STARTED + 60_000_000,
    }
}

/// Tokens as they enter and leave a session: each user turn holds one picture.
struct SessionFixture {
    context: ContextPolicy,
    turns: Vec<ChatTurn>,
    kept: Vec<u32>,
    kept_spans: Vec<ImageSpan>,
}

/// One turn of a chat.
struct ChatTurn {
    before: Vec<u32>,
    picture: ImageSpan,
    after: Vec<u32>,
    response: Vec<u32>,
}

/// A prompt under construction.
#[derive(Default)]
struct PromptFixture {
    ids: Vec<u32>,
    spans: Vec<ImageSpan>,
}

impl SessionFixture {
    fn new(plot: &TrajectoryFixture, pictures: &[Bytes]) -> Self {
        let turns =
            pictures.iter().zip(0u32..).map(|(picture, step)| ChatTurn::new(plot, picture, step)).collect();
        Self { context: plot.context, turns, kept: Vec::new(), kept_spans: Vec::new() }
    }

    fn turn(&mut self, step: u32) -> TokenTrace {
        let now = step as usize;
        let mut prompt = PromptFixture { ids: self.kept.clone(), spans: self.kept_spans.clone() };
        for shown in self.oldest(now)..now {
            prompt.push_turn(&self.turns[shown]);
            prompt.ids.extend(&self.turns[shown].response);
        }
        prompt.push_turn(&self.turns[now]);
        let prefix_len = self.kept.len();
        let prefix_hash = token_hash(&self.kept, &self.kept_spans);
        let prompt_hash = token_hash(&prompt.ids, &prompt.spans);
        let commit = self.commit(now);
        let response = self.turns[now].response.clone();
        let trace = token_trace(&prompt.ids[prefix_len..], prompt.spans.clone(), &response);
        match &commit {
            Some(ids) => self.kept.extend(ids),
            None => {
                self.kept = prompt.ids;
                self.kept.extend(&response);
                self.kept_spans = prompt.spans;
            }
        }
        let prefix_len = prefix_len as u32;
        TokenTrace { commit_token_ids: commit, prefix_len, prefix_hash, prompt_hash, ..trace }
    }

    /// The first turn whose picture the prompt repeats.
    fn oldest(&self, now: usize) -> usize {
        match self.context {
            ContextPolicy::Window(window) => (now + 1).saturating_sub(window as usize),
            _ => now,
        }
    }

    fn commit(&self, now: usize) -> Option<Vec<u32>> {
        match self.context {
            ContextPolicy::Append => None,
            ContextPolicy::LastImage => Some(self.turns[now].text()),
            ContextPolicy::Window(_) if self.oldest(now + 1) > self.oldest(now) => {
                Some(self.turns[self.oldest(now)].text())
            }
            ContextPolicy::Window(_) | ContextPolicy::Fresh => Some(Vec::new()),
        }
    }
}

impl ChatTurn {
    fn new(plot: &TrajectoryFixture, picture: &Bytes, step: u32) -> Self {
        let token = |at: u32| 1_000 + (plot.sample * 31 + step * 7 + at) % 500;
        Self {
            before: vec![token(0), token(1)],
            picture: ImageSpan {
                step,
                token_start: 0,
                token_len: 4,
                tiles_x: 1,
                tiles_y: 1,
                blob_sha256: Sha256::digest(picture).into(),
                rgb_sha256: pixels::rgb_sha256(picture, image::ImageFormat::Png)
                    .expect("a picture made here"),
            },
            after: vec![token(2)],
            response: (3..9).map(token).collect(),
        }
    }

    fn text(&self) -> Vec<u32> {
        [&self.before[..], &self.after, &self.response].concat()
    }
}

impl PromptFixture {
    fn push_turn(&mut self, turn: &ChatTurn) {
        self.ids.extend(&turn.before);
        self.spans.push(ImageSpan { token_start: self.ids.len() as u32, ..turn.picture.clone() });
        self.ids.extend(std::iter::repeat_n(PLACEHOLDER, turn.picture.token_len as usize));
        self.ids.extend(&turn.after);
    }
}

/// A response of six tokens: the first forced, the last appended, the third uncut, the others cut
/// to two ids.
fn token_trace(prompt: &[u32], spans: Vec<ImageSpan>, response: &[u32]) -> TokenTrace {
    let sampled = [false, true, true, true, true, false];
    let kept = [1, 2, 0, 2, 2, 0];
    let ids = response.iter().zip(kept).flat_map(|(&id, count)| id..id + count);
    let offsets = kept.iter().scan(0, |end, count| {
        *end += count;
        Some(*end)
    });
    TokenTrace {
        prompt_token_ids: prompt.to_vec(),
        image_spans: spans,
        response_token_ids: response.to_vec(),
        response_mask: sampled.to_vec(),
        forced: vec![true, false, false, false, false, false],
        commit_token_ids: None,
        prefix_len: 0,
        prefix_hash: [0; 16],
        prompt_hash: [0; 16],
        finish_reason: FinishReason::Length,
        logprobs: Some(sampled.map(|sampled| sampled.then_some(-0.75)).to_vec()),
        sampled_logprobs: Some(vec![Some(0.0), Some(-0.5), Some(-0.75), Some(-0.5), Some(-0.5), None]),
        kept_count: Some(vec![Some(1), Some(2), None, Some(2), Some(2), None]),
        kept_token_ids: ids.collect(),
        kept_offsets: std::iter::once(0).chain(offsets).collect(),
        entropy: Some(sampled.map(|sampled| sampled.then_some(0.6)).to_vec()),
        policy_versions: vec![3; 6],
    }
}
