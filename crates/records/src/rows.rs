//! Converts domain types to rows and back. Rows are untrusted input, so reading them can fail;
//! writing fails only where a column is too narrow.

mod action;

use bytes::Bytes;
use furrow_rollout::{
    ContextPolicy, EndKind, EngineStats, EnvironmentFingerprint, Evidence, ExtraAction, FinishReason,
    Grammar, GroupRecord, GroupStatistics, Id, IdKind, ImageFormat, ImageSpan, Mark, Observation,
    ObservationSpec, Outcome, OutcomeName, PageClock, PageHooks, PolicyHashes, PolicyKind, PolicyVersion,
    SamplingParams, Score, ScoreComponent, Screenshot, SessionSpec, Size, Split, StateOrigin, StepRecord,
    TabInfo, Task, TimeCause, TimeSplit, TokenTrace, Trace, TrajectoryAncestry, TrajectoryEnding,
    TrajectoryRecord, TrajectoryStatus,
};

use crate::cell::TimestampMicros;
use crate::schema::{
    ActionCell, ComponentCell, EngineCell, EnvironmentCell, EvidenceCell, FailedCell, GroupRow, HashesCell,
    HooksCell, ImageCell, ImageSpanCell, MarkCell, ObservationCell, ObservationSpecCell, OutcomeCell,
    SamplingCell, ScoreCell, ScoreRow, SessionCell, StepRow, StepTiming, TabCell, TaskCell, TrajectoryRow,
    TrajectoryTiming,
};

/// One row of `steps` or `failed_steps` as read back.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedStep {
    /// Run, group and trajectory of the step.
    pub ancestry: TrajectoryAncestry,
    /// Id of the task.
    pub task_id: String,
    /// Suite of the task.
    pub suite: String,
    /// Split of the task.
    pub split: Split,
    /// Columns derived from its trajectory.
    pub derived: DerivedColumns,
    /// The step as it was recorded.
    pub record: StepRecord,
    /// Sampling parameters of its tokens.
    pub sampling: SamplingParams,
}

/// Columns of a step that are derived from its trajectory.
#[derive(Debug, Clone, PartialEq)]
pub struct DerivedColumns {
    /// Whether it is step 0.
    pub is_first: bool,
    /// Whether it is the trajectory's last step.
    pub is_last: bool,
    /// Whether it is the last step and the policy brought the trajectory to its end.
    pub is_terminal: bool,
    /// Whether it is the last step and the trajectory ended otherwise.
    pub is_truncated: bool,
    /// Usable for RL (see `schema.rs`).
    pub trainable_rl: bool,
    /// Usable for supervised training (see `schema.rs`).
    pub trainable_sft: bool,
    /// The trajectory's reward on the last step, 0 before it, `None` for a failed trajectory.
    pub reward: Option<f32>,
    /// Components of the reward, on the last step.
    pub reward_components: Vec<ScoreComponent>,
}

/// A later verdict on a stored trajectory, one row of `scores`.
#[derive(Debug, Clone, PartialEq)]
pub struct RescoreRecord {
    /// Run, group and id of the trajectory.
    pub ancestry: TrajectoryAncestry,
    /// Id of its task.
    pub task_id: String,
    /// Suite of the task.
    pub suite: String,
    /// Split of the task.
    pub split: Split,
    /// The verdict of this scoring; the one in `trajectories` stays as it was.
    pub score: Score,
    /// Wall clock of the scoring, microseconds since the Unix epoch.
    pub scored_at_micros: i64,
}

/// Columns of a trajectory that its steps repeat.
pub(crate) struct TrajectoryColumns<'a> {
    pub status: TrajectoryStatus,
    pub end: EndKind,
    pub split: Split,
    pub reward: Option<f32>,
    pub components: &'a [ScoreComponent],
}

impl<'a> TrajectoryColumns<'a> {
    pub(crate) fn of(trajectory: &'a TrajectoryRecord) -> Self {
        let score = trajectory.score.as_ref();
        Self {
            status: trajectory.status,
            end: trajectory.ending.end,
            split: trajectory.task.split,
            reward: score.and_then(|score| score.reward),
            components: score.map_or(&[], |score| &score.components),
        }
    }

    /// The derived columns of one step, defined only here.
    pub(crate) fn derive(&self, step: &StepRecord, is_last: bool) -> DerivedColumns {
        let scored = self.status == TrajectoryStatus::Scored;
        let is_terminal = is_last && scored && self.end.is_terminal();
        let trainable = scored && self.split == Split::Train;
        let paid = if is_last { self.reward } else { self.reward.map(|_| 0.0) };
        DerivedColumns {
            is_first: step.step == 0,
            is_last,
            is_terminal,
            is_truncated: is_last && !is_terminal,
            trainable_rl: trainable && trains_by_reward(&step.trace),
            trainable_sft: trainable && trains_by_imitation(step),
            reward: paid.filter(|_| scored),
            reward_components: if is_last && scored { self.components.to_vec() } else { Vec::new() },
        }
    }
}

fn trains_by_reward(trace: &Trace) -> bool {
    let has_logprobs = trace.tokens.as_ref().is_some_and(|tokens| tokens.logprobs.is_some());
    matches!(trace.policy_kind, PolicyKind::Model | PolicyKind::Openai) && has_logprobs
}

fn trains_by_imitation(step: &StepRecord) -> bool {
    step.reply.action.is_ok() && step.trace.policy_kind != PolicyKind::Random
}

// Numbers. Unsigned values are stored in signed columns bit for bit; times saturate at 292,000
// years.

fn micros(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Times are never negative; a negative cell is read as 0.
fn elapsed(cell: i64) -> u64 {
    u64::try_from(cell).unwrap_or(0)
}

fn to_i16(what: &str, value: u32) -> Result<i16, String> {
    i16::try_from(value).map_err(|_| format!("{what} {value} is above {}", i16::MAX))
}

fn unsigned(cells: &[i32]) -> Vec<u32> {
    cells.iter().map(|id| id.cast_unsigned()).collect()
}

fn signed(ids: &[u32]) -> Vec<i32> {
    ids.iter().map(|id| id.cast_signed()).collect()
}

fn size(width: i32, height: i32) -> Size {
    Size::new(width.cast_unsigned(), height.cast_unsigned())
}

// Strings.

fn id<K: IdKind>(text: &str) -> Result<Id<K>, String> {
    Id::new(text).map_err(|bad| bad.to_string())
}

fn parse_text<T>(column: &str, text: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, String> {
    let shown = || text.chars().take(40).collect::<String>();
    parse(text).ok_or_else(|| format!("{column} holds {:?}, which is not an allowed value", shown()))
}

pub(crate) fn status(text: &str) -> Result<TrajectoryStatus, String> {
    let parse = |text: &str| {
        [TrajectoryStatus::Scored, TrajectoryStatus::Failed]
            .into_iter()
            .find(|status| status.as_str() == text)
    };
    parse_text("status", text, parse)
}

pub(crate) fn end(text: &str) -> Result<EndKind, String> {
    parse_text("end", text, EndKind::parse)
}

pub(crate) fn split(text: &str) -> Result<Split, String> {
    parse_text("split", text, Split::parse)
}

pub(crate) fn policy_kind(text: &str) -> Result<PolicyKind, String> {
    parse_text("policy_kind", text, PolicyKind::parse)
}

fn present<T>(column: &str, cell: Option<T>) -> Result<T, String> {
    cell.ok_or_else(|| format!("{column} is null, but related columns are not"))
}

// Pictures.

fn quality_cell(format: ImageFormat) -> Option<i16> {
    match format {
        ImageFormat::Png => None,
        ImageFormat::Jpeg { quality } => Some(quality.into()),
    }
}

fn format(text: &str, quality: Option<i16>) -> Result<ImageFormat, String> {
    let quality = quality.map(u8::try_from);
    match (text, quality) {
        ("png", None) => Ok(ImageFormat::Png),
        ("jpeg", Some(Ok(quality))) => Ok(ImageFormat::Jpeg { quality }),
        _ => Err("format and quality must be a png, or a jpeg with its quality".into()),
    }
}

fn extension(format: ImageFormat) -> &'static str {
    match format {
        ImageFormat::Png => "png",
        ImageFormat::Jpeg { .. } => "jpg",
    }
}

// Timing.

impl From<TimeSplit> for StepTiming {
    fn from(split: TimeSplit) -> Self {
        let of = |cause| micros(split.of(cause));
        Self {
            boot_micros: of(TimeCause::Boot),
            observe_micros: of(TimeCause::Observe),
            policy_micros: of(TimeCause::Policy),
            act_micros: of(TimeCause::Act),
            settle_micros: of(TimeCause::Settle),
            record_micros: of(TimeCause::Record),
            finish_micros: of(TimeCause::Finish),
        }
    }
}

impl From<&StepTiming> for TimeSplit {
    fn from(cell: &StepTiming) -> Self {
        let mut split = TimeSplit::default();
        for (cause, micros) in [
            (TimeCause::Boot, cell.boot_micros),
            (TimeCause::Observe, cell.observe_micros),
            (TimeCause::Policy, cell.policy_micros),
            (TimeCause::Act, cell.act_micros),
            (TimeCause::Settle, cell.settle_micros),
            (TimeCause::Record, cell.record_micros),
            (TimeCause::Finish, cell.finish_micros),
        ] {
            split.add(cause, elapsed(micros));
        }
        split
    }
}

impl TrajectoryTiming {
    fn new(record: &TrajectoryRecord) -> Self {
        let worker = StepTiming::from(record.ending.timing);
        Self {
            queue_micros: micros(record.queue_micros),
            boot_micros: worker.boot_micros,
            observe_micros: worker.observe_micros,
            policy_micros: worker.policy_micros,
            act_micros: worker.act_micros,
            settle_micros: worker.settle_micros,
            record_micros: worker.record_micros,
            finish_micros: worker.finish_micros,
            score_micros: micros(record.score_micros),
        }
    }

    fn worker(&self) -> StepTiming {
        StepTiming {
            boot_micros: self.boot_micros,
            observe_micros: self.observe_micros,
            policy_micros: self.policy_micros,
            act_micros: self.act_micros,
            settle_micros: self.settle_micros,
            record_micros: self.record_micros,
            finish_micros: self.finish_micros,
        }
    }
}

// Parts of a step.

impl ObservationCell {
    fn new(observation: &Observation, path: String) -> Self {
        let Observation { screenshot, url, title, tabs, scroll_y, page_height, axtree, marks } = observation;
        Self {
            screenshot: ImageCell { bytes: screenshot.bytes.clone(), path: Some(path) },
            format: screenshot.format.as_str().into(),
            quality: quality_cell(screenshot.format),
            width: screenshot.size.width.cast_signed(),
            height: screenshot.size.height.cast_signed(),
            url: url.clone(),
            title: title.clone(),
            tabs: tabs.iter().map(TabCell::from).collect(),
            scroll_y: *scroll_y,
            page_height: *page_height,
            axtree: axtree.clone(),
            marks: marks.as_ref().map(|marks| marks.iter().map(MarkCell::from).collect()),
        }
    }

    fn into_domain(self) -> Result<Observation, String> {
        let format = format(&self.format, self.quality)?;
        let tab = |cell: TabCell| TabInfo { title: cell.title, url: cell.url, active: cell.active };
        Ok(Observation {
            screenshot: Screenshot {
                bytes: self.screenshot.bytes,
                format,
                size: size(self.width, self.height),
            },
            url: self.url,
            title: self.title,
            tabs: self.tabs.into_iter().map(tab).collect(),
            scroll_y: self.scroll_y,
            page_height: self.page_height,
            axtree: self.axtree,
            marks: self.marks.map(|marks| marks.into_iter().map(Mark::from).collect()),
        })
    }
}

impl From<&TabInfo> for TabCell {
    fn from(tab: &TabInfo) -> Self {
        Self { title: tab.title.clone(), url: tab.url.clone(), active: tab.active }
    }
}

impl From<&Mark> for MarkCell {
    fn from(mark: &Mark) -> Self {
        let Mark { mark, role, text, x, y, width, height } = mark.clone();
        Self { mark: mark.cast_signed(), role, text, x, y, width, height }
    }
}

impl From<MarkCell> for Mark {
    fn from(cell: MarkCell) -> Self {
        let MarkCell { mark, role, text, x, y, width, height } = cell;
        Self { mark: mark.cast_unsigned(), role, text, x, y, width, height }
    }
}

impl From<&Outcome> for OutcomeCell {
    fn from(outcome: &Outcome) -> Self {
        Self { name: outcome.name.as_str().into(), detail: outcome.detail.clone() }
    }
}

impl OutcomeCell {
    fn into_domain(self) -> Result<Outcome, String> {
        Ok(Outcome { name: parse_text("outcome.name", &self.name, OutcomeName::parse)?, detail: self.detail })
    }
}

impl From<&ScoreComponent> for ComponentCell {
    fn from(component: &ScoreComponent) -> Self {
        Self { name: component.name.clone(), value: component.value }
    }
}

fn component_cells(components: &[ScoreComponent]) -> Vec<ComponentCell> {
    components.iter().map(ComponentCell::from).collect()
}

pub(crate) fn components(cells: Vec<ComponentCell>) -> Vec<ScoreComponent> {
    cells.into_iter().map(|cell| ScoreComponent { name: cell.name, value: cell.value }).collect()
}

impl From<&SamplingParams> for SamplingCell {
    fn from(sampling: &SamplingParams) -> Self {
        Self {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k.cast_signed(),
            min_p: sampling.min_p,
            max_tokens: sampling.max_tokens.cast_signed(),
            seed: sampling.seed,
        }
    }
}

impl From<&SamplingCell> for SamplingParams {
    fn from(cell: &SamplingCell) -> Self {
        Self {
            temperature: cell.temperature,
            top_p: cell.top_p,
            top_k: cell.top_k.cast_unsigned(),
            min_p: cell.min_p,
            max_tokens: cell.max_tokens.cast_unsigned(),
            seed: cell.seed,
        }
    }
}

impl From<&EngineStats> for EngineCell {
    fn from(engine: &EngineStats) -> Self {
        Self {
            worker: engine.worker.clone(),
            slot: engine.slot.map(u32::cast_signed),
            state_origin: engine.state_origin.map(|origin| origin.as_str().into()),
            batch_size_mean: engine.batch_size_mean,
            prefill_tokens: engine.prefill_tokens.cast_signed(),
            reused_tokens: engine.reused_tokens.cast_signed(),
            decode_steps: engine.decode_steps.cast_signed(),
            queue_micros: micros(engine.queue_micros),
            service_micros: micros(engine.service_micros),
            gpu_micros: micros(engine.gpu_micros),
        }
    }
}

impl EngineCell {
    fn into_domain(self) -> Result<EngineStats, String> {
        let origin = |text: String| parse_text("engine.state_origin", &text, StateOrigin::parse);
        Ok(EngineStats {
            worker: self.worker,
            slot: self.slot.map(i32::cast_unsigned),
            state_origin: self.state_origin.map(origin).transpose()?,
            batch_size_mean: self.batch_size_mean,
            prefill_tokens: self.prefill_tokens.cast_unsigned(),
            reused_tokens: self.reused_tokens.cast_unsigned(),
            decode_steps: self.decode_steps.cast_unsigned(),
            queue_micros: elapsed(self.queue_micros),
            service_micros: elapsed(self.service_micros),
            gpu_micros: elapsed(self.gpu_micros),
            cost_usd: None,
        })
    }
}

impl From<&ImageSpan> for ImageSpanCell {
    fn from(span: &ImageSpan) -> Self {
        Self {
            step: span.step.cast_signed(),
            token_start: span.token_start.cast_signed(),
            token_len: span.token_len.cast_signed(),
            tiles_x: span.tiles_x.cast_signed(),
            tiles_y: span.tiles_y.cast_signed(),
            blob_sha256: span.blob_sha256,
            rgb_sha256: span.rgb_sha256,
        }
    }
}

impl From<&ImageSpanCell> for ImageSpan {
    fn from(cell: &ImageSpanCell) -> Self {
        Self {
            step: cell.step.cast_unsigned(),
            token_start: cell.token_start.cast_unsigned(),
            token_len: cell.token_len.cast_unsigned(),
            tiles_x: cell.tiles_x.cast_unsigned(),
            tiles_y: cell.tiles_y.cast_unsigned(),
            blob_sha256: cell.blob_sha256,
            rgb_sha256: cell.rgb_sha256,
        }
    }
}

// A step.

impl StepRow {
    /// The row of one step.
    pub(crate) fn new(
        trajectory: &TrajectoryRecord,
        step: &StepRecord,
        is_last: bool,
    ) -> Result<Self, String> {
        let TrajectoryAncestry { run_id, group_id, sample_index, attempt, trajectory_id } =
            &trajectory.ancestry;
        let derived = TrajectoryColumns::of(trajectory).derive(step, is_last);
        let screenshot = &step.observation.screenshot;
        let path = format!("{trajectory_id}-{}.{}", step.step, extension(screenshot.format));
        let mut row = Self {
            run_id: run_id.to_string(),
            trajectory_id: trajectory_id.to_string(),
            attempt: to_i16("attempt", *attempt)?,
            group_id: group_id.to_string(),
            sample_index: sample_index.cast_signed(),
            task_id: trajectory.task.task_id.clone(),
            suite: trajectory.task.suite.clone(),
            split: trajectory.task.split.as_str().into(),
            step: step.step.cast_signed(),
            is_first: derived.is_first,
            is_last: derived.is_last,
            is_terminal: derived.is_terminal,
            is_truncated: derived.is_truncated,
            policy_kind: step.trace.policy_kind.as_str().into(),
            trainable_rl: derived.trainable_rl,
            trainable_sft: derived.trainable_sft,
            observation: ObservationCell::new(&step.observation, path),
            policy_version: step.trace.policy_version.map(|version| version.0),
            state_version_min: step.trace.state_version_min.map(|version| version.0),
            action: ActionCell::from(&step.reply),
            outcome: OutcomeCell::from(&step.outcome),
            reward: derived.reward,
            reward_components: component_cells(&derived.reward_components),
            sampling: SamplingCell::from(&trajectory.session.sampling),
            engine: EngineCell::from(&step.trace.engine),
            timing: StepTiming::from(step.timing),
            observed_at: TimestampMicros(step.observed_at_micros),
            ..Self::default()
        };
        if let Some(tokens) = &step.trace.tokens {
            row.set_tokens(tokens);
        }
        Ok(row)
    }

    fn set_tokens(&mut self, tokens: &TokenTrace) {
        self.prompt_token_ids = Some(signed(&tokens.prompt_token_ids));
        self.image_spans = Some(tokens.image_spans.iter().map(ImageSpanCell::from).collect());
        self.response_token_ids = Some(signed(&tokens.response_token_ids));
        self.response_mask = Some(tokens.response_mask.clone());
        self.forced = Some(tokens.forced.clone());
        self.finish_reason = Some(tokens.finish_reason.as_str().into());
        self.commit_token_ids = tokens.commit_token_ids.as_deref().map(signed);
        self.prefix_len = Some(tokens.prefix_len.cast_signed());
        self.prefix_hash = Some(tokens.prefix_hash);
        self.prompt_hash = Some(tokens.prompt_hash);
        self.logprobs = tokens.logprobs.clone();
        self.sampled_logprobs = tokens.sampled_logprobs.clone();
        let counts =
            |counts: &Vec<Option<u32>>| counts.iter().map(|count| count.map(u32::cast_signed)).collect();
        self.kept_count = tokens.kept_count.as_ref().map(counts);
        self.kept_token_ids = Some(signed(&tokens.kept_token_ids));
        self.kept_offsets = Some(signed(&tokens.kept_offsets));
        self.entropy = tokens.entropy.clone();
        self.policy_versions = Some(tokens.policy_versions.clone());
    }

    /// The tokens, when the row has any.
    fn tokens(&self) -> Result<Option<TokenTrace>, String> {
        let Some(prompt) = &self.prompt_token_ids else {
            return self.no_tokens().map(|()| None);
        };
        let finish_reason = present("finish_reason", self.finish_reason.as_deref())?;
        let counts =
            |cells: &Vec<Option<i32>>| cells.iter().map(|count| count.map(i32::cast_unsigned)).collect();
        let spans = present("image_spans", self.image_spans.as_ref())?;
        Ok(Some(TokenTrace {
            prompt_token_ids: unsigned(prompt),
            image_spans: spans.iter().map(ImageSpan::from).collect(),
            response_token_ids: unsigned(present("response_token_ids", self.response_token_ids.as_deref())?),
            response_mask: present("response_mask", self.response_mask.clone())?,
            forced: present("forced", self.forced.clone())?,
            commit_token_ids: self.commit_token_ids.as_deref().map(unsigned),
            prefix_len: present("prefix_len", self.prefix_len)?.cast_unsigned(),
            prefix_hash: present("prefix_hash", self.prefix_hash)?,
            prompt_hash: present("prompt_hash", self.prompt_hash)?,
            finish_reason: parse_text("finish_reason", finish_reason, FinishReason::parse)?,
            logprobs: self.logprobs.clone(),
            sampled_logprobs: self.sampled_logprobs.clone(),
            kept_count: self.kept_count.as_ref().map(counts),
            kept_token_ids: unsigned(present("kept_token_ids", self.kept_token_ids.as_deref())?),
            kept_offsets: unsigned(present("kept_offsets", self.kept_offsets.as_deref())?),
            entropy: self.entropy.clone(),
            policy_versions: present("policy_versions", self.policy_versions.clone())?,
        }))
    }

    fn no_tokens(&self) -> Result<(), String> {
        let stray = [
            ("image_spans", self.image_spans.is_some()),
            ("response_token_ids", self.response_token_ids.is_some()),
            ("response_mask", self.response_mask.is_some()),
            ("forced", self.forced.is_some()),
            ("finish_reason", self.finish_reason.is_some()),
            ("commit_token_ids", self.commit_token_ids.is_some()),
            ("prefix_len", self.prefix_len.is_some()),
            ("prefix_hash", self.prefix_hash.is_some()),
            ("prompt_hash", self.prompt_hash.is_some()),
            ("logprobs", self.logprobs.is_some()),
            ("sampled_logprobs", self.sampled_logprobs.is_some()),
            ("kept_count", self.kept_count.is_some()),
            ("kept_token_ids", self.kept_token_ids.is_some()),
            ("kept_offsets", self.kept_offsets.is_some()),
            ("entropy", self.entropy.is_some()),
            ("policy_versions", self.policy_versions.is_some()),
        ];
        match stray.into_iter().find(|(_, is_there)| *is_there) {
            Some((column, _)) => Err(format!("{column} is present, but prompt_token_ids is null")),
            None => Ok(()),
        }
    }

    fn take_derived(&mut self) -> DerivedColumns {
        DerivedColumns {
            is_first: self.is_first,
            is_last: self.is_last,
            is_terminal: self.is_terminal,
            is_truncated: self.is_truncated,
            trainable_rl: self.trainable_rl,
            trainable_sft: self.trainable_sft,
            reward: self.reward,
            reward_components: components(std::mem::take(&mut self.reward_components)),
        }
    }

    /// Converts the row to a step.
    pub(crate) fn into_domain(mut self) -> Result<RecordedStep, String> {
        let derived = self.take_derived();
        let trace = Trace {
            policy_kind: policy_kind(&self.policy_kind)?,
            policy_version: self.policy_version.map(PolicyVersion),
            state_version_min: self.state_version_min.map(PolicyVersion),
            tokens: self.tokens()?,
            engine: self.engine.into_domain()?,
            rescored: Vec::new(),
        };
        let record = StepRecord {
            step: self.step.cast_unsigned(),
            observation: self.observation.into_domain()?,
            reply: self.action.into_domain()?,
            outcome: self.outcome.into_domain()?,
            trace,
            timing: TimeSplit::from(&self.timing),
            observed_at_micros: self.observed_at.0,
        };
        Ok(RecordedStep {
            ancestry: ancestry(
                &self.run_id,
                &self.trajectory_id,
                &self.group_id,
                self.sample_index,
                self.attempt,
            )?,
            task_id: self.task_id,
            suite: self.suite,
            split: split(&self.split)?,
            derived,
            record,
            sampling: SamplingParams::from(&self.sampling),
        })
    }
}

fn ancestry(
    run: &str,
    trajectory: &str,
    group: &str,
    sample: i32,
    attempt: i16,
) -> Result<TrajectoryAncestry, String> {
    Ok(TrajectoryAncestry {
        run_id: id(run)?,
        group_id: id(group)?,
        sample_index: sample.cast_unsigned(),
        attempt: u32::try_from(attempt).map_err(|_| format!("attempt {attempt} is negative"))?,
        trajectory_id: id(trajectory)?,
    })
}

// Parts of a trajectory.

impl From<&Score> for ScoreCell {
    fn from(score: &Score) -> Self {
        Self {
            success: score.success,
            components: component_cells(&score.components),
            scorer: score.scorer.clone(),
            version: score.version.cast_signed(),
            rationale: score.rationale.clone(),
            evidence_sha256: score.evidence_sha256,
        }
    }
}

impl ScoreCell {
    fn into_domain(self, reward: Option<f32>) -> Score {
        Score {
            reward,
            success: self.success,
            components: components(self.components),
            scorer: self.scorer,
            version: self.version.cast_unsigned(),
            rationale: self.rationale,
            evidence_sha256: self.evidence_sha256,
        }
    }
}

impl EvidenceCell {
    fn new(evidence: &Evidence, path: &str) -> Self {
        let image = |bytes: &Bytes| ImageCell { bytes: bytes.clone(), path: Some(path.into()) };
        Self {
            screenshot: evidence.screenshot.as_ref().map(image),
            url: evidence.url.clone(),
            title: evidence.title.clone(),
            answer: evidence.answer.clone(),
            probe_json: evidence.probe_json.clone(),
            sha256: evidence.sha256(),
        }
    }

    pub(crate) fn into_domain(self) -> Evidence {
        Evidence {
            screenshot: self.screenshot.map(|image| image.bytes),
            url: self.url,
            title: self.title,
            answer: self.answer,
            probe_json: self.probe_json,
        }
    }
}

impl From<&PolicyHashes> for HashesCell {
    fn from(hashes: &PolicyHashes) -> Self {
        Self {
            weights: hashes.weights.clone(),
            tokenizer: hashes.tokenizer.clone(),
            template: hashes.template.clone(),
            grammar: hashes.grammar.clone(),
            processor: hashes.processor.clone(),
        }
    }
}

impl From<HashesCell> for PolicyHashes {
    fn from(cell: HashesCell) -> Self {
        Self {
            weights: cell.weights,
            tokenizer: cell.tokenizer,
            template: cell.template,
            grammar: cell.grammar,
            processor: cell.processor,
        }
    }
}

impl From<&EnvironmentFingerprint> for EnvironmentCell {
    fn from(environment: &EnvironmentFingerprint) -> Self {
        Self {
            worker: environment.worker.clone(),
            browser: environment.browser.clone(),
            sandbox: environment.sandbox,
            locale: environment.locale.clone(),
            timezone: environment.timezone.clone(),
            viewport_width: environment.viewport.map(|size| size.width.cast_signed()),
            viewport_height: environment.viewport.map(|size| size.height.cast_signed()),
        }
    }
}

impl From<EnvironmentCell> for EnvironmentFingerprint {
    fn from(cell: EnvironmentCell) -> Self {
        Self {
            worker: cell.worker,
            browser: cell.browser,
            sandbox: cell.sandbox,
            locale: cell.locale,
            timezone: cell.timezone,
            viewport: cell
                .viewport_width
                .zip(cell.viewport_height)
                .map(|(width, height)| size(width, height)),
        }
    }
}

impl From<&SessionSpec> for SessionCell {
    fn from(session: &SessionSpec) -> Self {
        let (context, context_window) = context_cells(session.context);
        Self {
            grammar: session.grammar.name.clone(),
            grammar_extra: session.grammar.extra.iter().map(|extra| extra.as_str().into()).collect(),
            sampling: SamplingCell::from(&session.sampling),
            context: context.into(),
            context_window,
            instructions: session.instructions.clone(),
        }
    }
}

impl SessionCell {
    fn into_domain(self) -> Result<SessionSpec, String> {
        let extra = |text: &String| parse_text("session.grammar_extra", text, ExtraAction::parse);
        let extra = self.grammar_extra.iter().map(extra).collect::<Result<_, _>>()?;
        Ok(SessionSpec {
            grammar: Grammar { name: self.grammar, extra },
            sampling: SamplingParams::from(&self.sampling),
            context: context(&self.context, self.context_window)?,
            instructions: self.instructions,
        })
    }
}

fn context_cells(context: ContextPolicy) -> (&'static str, Option<i32>) {
    match context {
        ContextPolicy::Append => ("append", None),
        ContextPolicy::LastImage => ("last_image", None),
        ContextPolicy::Window(kept) => ("window", Some(kept.cast_signed())),
        ContextPolicy::Fresh => ("fresh", None),
    }
}

fn context(text: &str, window: Option<i32>) -> Result<ContextPolicy, String> {
    match (text, window) {
        ("append", None) => Ok(ContextPolicy::Append),
        ("last_image", None) => Ok(ContextPolicy::LastImage),
        ("window", Some(kept)) => Ok(ContextPolicy::Window(kept.cast_unsigned())),
        ("fresh", None) => Ok(ContextPolicy::Fresh),
        _ => Err("session.context and context_window are not a known context policy".into()),
    }
}

impl From<&Task> for TaskCell {
    fn from(task: &Task) -> Self {
        let (clock, clock_step_millis) = match task.clock {
            PageClock::Real => ("real", None),
            PageClock::Virtual { step_millis } => ("virtual", Some(step_millis.cast_signed())),
        };
        Self {
            goal: task.goal.clone(),
            start_url: task.start_url.clone(),
            seed: task.seed,
            max_steps: task.max_steps.cast_signed(),
            time_limit_millis: micros(task.time_limit_millis),
            viewport_width: task.viewport.width.cast_signed(),
            viewport_height: task.viewport.height.cast_signed(),
            observation: ObservationSpecCell::from(&task.observation),
            allow_hosts: task.allow_hosts.clone(),
            hooks: HooksCell {
                start: task.hooks.start.clone(),
                probe: task.hooks.probe.clone(),
                solve: task.hooks.solve.clone(),
            },
            clock: clock.into(),
            clock_step_millis,
        }
    }
}

impl From<&ObservationSpec> for ObservationSpecCell {
    fn from(spec: &ObservationSpec) -> Self {
        Self {
            format: spec.format.as_str().into(),
            quality: quality_cell(spec.format),
            clip_width: spec.clip.map(|clip| clip.width.cast_signed()),
            clip_height: spec.clip.map(|clip| clip.height.cast_signed()),
            square: spec.square,
        }
    }
}

impl ObservationSpecCell {
    fn into_domain(self) -> Result<ObservationSpec, String> {
        Ok(ObservationSpec {
            format: format(&self.format, self.quality)?,
            clip: self.clip_width.zip(self.clip_height).map(|(width, height)| size(width, height)),
            square: self.square,
        })
    }
}

impl TaskCell {
    fn into_domain(self, task_id: String, suite: String, split: Split) -> Result<Task, String> {
        let clock = match (&*self.clock, self.clock_step_millis) {
            ("real", None) => PageClock::Real,
            ("virtual", Some(step)) => PageClock::Virtual { step_millis: step.cast_unsigned() },
            _ => return Err("task.clock and clock_step_millis are not a known clock".into()),
        };
        Ok(Task {
            task_id,
            suite,
            split,
            goal: self.goal,
            start_url: self.start_url,
            seed: self.seed,
            max_steps: self.max_steps.cast_unsigned(),
            time_limit_millis: elapsed(self.time_limit_millis),
            viewport: size(self.viewport_width, self.viewport_height),
            observation: self.observation.into_domain()?,
            allow_hosts: self.allow_hosts,
            hooks: PageHooks { start: self.hooks.start, probe: self.hooks.probe, solve: self.hooks.solve },
            clock,
        })
    }
}

// A trajectory.

impl TrajectoryRow {
    /// The row of one trajectory.
    pub(crate) fn new(record: &TrajectoryRecord) -> Result<Self, String> {
        let TrajectoryAncestry { run_id, group_id, sample_index, attempt, trajectory_id } = &record.ancestry;
        let ending = &record.ending;
        let path = format!("{trajectory_id}-end.{}", extension(record.task.observation.format));
        Ok(Self {
            run_id: run_id.to_string(),
            trajectory_id: trajectory_id.to_string(),
            attempt: to_i16("attempt", *attempt)?,
            group_id: group_id.to_string(),
            sample_index: sample_index.cast_signed(),
            group_size: record.group_size.cast_signed(),
            task_id: record.task.task_id.clone(),
            suite: record.task.suite.clone(),
            split: record.task.split.as_str().into(),
            policy_kind: record.policy_kind.as_str().into(),
            status: record.status.as_str().into(),
            end: ending.end.as_str().into(),
            failure_reason: ending.reason.clone(),
            reward: record.score.as_ref().and_then(|score| score.reward),
            score: record.score.as_ref().map(ScoreCell::from),
            evidence: ending.evidence.as_ref().map(|evidence| EvidenceCell::new(evidence, &path)),
            goal: ending.goal.clone(),
            last_outcome: ending.last_outcome.as_ref().map(OutcomeCell::from),
            num_steps: ending.steps.cast_signed(),
            num_prompt_tokens: record.prompt_tokens.cast_signed(),
            num_response_tokens: record.response_tokens.cast_signed(),
            num_invalid_actions: record.invalid_actions.cast_signed(),
            policy_version_min: record.policy_versions.map(|(oldest, _)| oldest),
            policy_version_max: record.policy_versions.map(|(_, newest)| newest),
            staleness: record.staleness,
            fencing_token: record.token,
            hashes: HashesCell::from(&record.hashes),
            environment: EnvironmentCell::from(&ending.environment),
            session: SessionCell::from(&record.session),
            task: TaskCell::from(&record.task),
            task_json: record.task_json.clone(),
            timing: TrajectoryTiming::new(record),
            gpu_micros: micros(record.gpu_micros),
            cost_usd: record.cost_usd,
            started_at: TimestampMicros(record.started_at_micros),
            ended_at: TimestampMicros(record.ended_at_micros),
        })
    }

    /// Converts the row to a trajectory.
    pub(crate) fn into_domain(self) -> Result<TrajectoryRecord, String> {
        let ending = TrajectoryEnding {
            end: end(&self.end)?,
            reason: self.failure_reason,
            evidence: self.evidence.map(EvidenceCell::into_domain),
            goal: self.goal,
            steps: self.num_steps.cast_unsigned(),
            last_outcome: self.last_outcome.map(OutcomeCell::into_domain).transpose()?,
            timing: TimeSplit::from(&self.timing.worker()),
            environment: self.environment.into(),
        };
        let reward = self.reward;
        if reward.is_some() && self.score.is_none() {
            return Err("reward is present, but score is null".into());
        }
        Ok(TrajectoryRecord {
            ancestry: ancestry(
                &self.run_id,
                &self.trajectory_id,
                &self.group_id,
                self.sample_index,
                self.attempt,
            )?,
            task: self.task.into_domain(self.task_id, self.suite, split(&self.split)?)?,
            task_json: self.task_json,
            policy_kind: policy_kind(&self.policy_kind)?,
            status: status(&self.status)?,
            ending,
            score: self.score.map(|score| score.into_domain(reward)),
            policy_versions: self.policy_version_min.zip(self.policy_version_max),
            staleness: self.staleness,
            hashes: self.hashes.into(),
            session: self.session.into_domain()?,
            group_size: self.group_size.cast_unsigned(),
            token: self.fencing_token,
            queue_micros: elapsed(self.timing.queue_micros),
            score_micros: elapsed(self.timing.score_micros),
            gpu_micros: elapsed(self.gpu_micros),
            prompt_tokens: self.num_prompt_tokens.cast_unsigned(),
            response_tokens: self.num_response_tokens.cast_unsigned(),
            invalid_actions: self.num_invalid_actions.cast_unsigned(),
            cost_usd: self.cost_usd,
            started_at_micros: self.started_at.0,
            ended_at_micros: self.ended_at.0,
        })
    }
}

// Groups and later scores.

impl GroupRow {
    /// The row of one group.
    pub(crate) fn new(record: &GroupRecord) -> Self {
        let failed =
            |(end, count): (&String, &u32)| FailedCell { end: end.clone(), count: count.cast_signed() };
        Self {
            run_id: record.run_id.to_string(),
            group_id: record.group_id.to_string(),
            task_id: record.task_id.clone(),
            suite: record.suite.clone(),
            split: record.split.as_str().into(),
            seed: record.seed,
            planned: record.planned.cast_signed(),
            valid: record.valid.cast_signed(),
            failed: record.failed.iter().map(failed).collect(),
            mean: record.rewards.map(|rewards| rewards.mean),
            std: record.rewards.map(|rewards| rewards.std),
            zero_variance: record.rewards.map(|rewards| rewards.zero_variance),
            policy_version_min: record.policy_versions.map(|(oldest, _)| oldest),
            policy_version_max: record.policy_versions.map(|(_, newest)| newest),
            closed_at: TimestampMicros(record.closed_at_micros),
        }
    }

    fn rewards(&self) -> Result<Option<GroupStatistics>, String> {
        match (self.mean, self.std, self.zero_variance) {
            (None, None, None) => Ok(None),
            (Some(mean), Some(std), Some(zero_variance)) => {
                Ok(Some(GroupStatistics { mean, std, zero_variance }))
            }
            _ => Err("mean, std and zero_variance must be null together".into()),
        }
    }

    /// Converts the row to a group.
    pub(crate) fn into_domain(self) -> Result<GroupRecord, String> {
        Ok(GroupRecord {
            run_id: id(&self.run_id)?,
            group_id: id(&self.group_id)?,
            split: split(&self.split)?,
            seed: self.seed,
            planned: self.planned.cast_unsigned(),
            valid: self.valid.cast_unsigned(),
            rewards: self.rewards()?,
            failed: self.failed.into_iter().map(|cell| (cell.end, cell.count.cast_unsigned())).collect(),
            policy_versions: self.policy_version_min.zip(self.policy_version_max),
            closed_at_micros: self.closed_at.0,
            task_id: self.task_id,
            suite: self.suite,
        })
    }
}

impl ScoreRow {
    /// The row of one later score.
    pub(crate) fn new(rescore: &RescoreRecord) -> Result<Self, String> {
        let TrajectoryAncestry { run_id, group_id, sample_index, attempt, trajectory_id } = &rescore.ancestry;
        Ok(Self {
            run_id: run_id.to_string(),
            trajectory_id: trajectory_id.to_string(),
            attempt: to_i16("attempt", *attempt)?,
            group_id: group_id.to_string(),
            sample_index: sample_index.cast_signed(),
            task_id: rescore.task_id.clone(),
            suite: rescore.suite.clone(),
            split: rescore.split.as_str().into(),
            reward: rescore.score.reward,
            score: ScoreCell::from(&rescore.score),
            scored_at: TimestampMicros(rescore.scored_at_micros),
        })
    }

    /// Converts the row to a later score.
    pub(crate) fn into_domain(self) -> Result<RescoreRecord, String> {
        Ok(RescoreRecord {
            ancestry: ancestry(
                &self.run_id,
                &self.trajectory_id,
                &self.group_id,
                self.sample_index,
                self.attempt,
            )?,
            task_id: self.task_id,
            suite: self.suite,
            split: split(&self.split)?,
            score: self.score.into_domain(self.reward),
            scored_at_micros: self.scored_at.0,
        })
    }
}
