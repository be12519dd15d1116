//! A step: a row of `steps` or of `failed_steps`.

use furrow_rollout::{
    EngineStats, FinishReason, ImageSpan, PolicyVersion, SamplingParams, Split, StateOrigin, StepRecord,
    TimeSplit, TokenTrace, Trace, TrajectoryAncestry, TrajectoryRecord,
};

use super::derived::{DerivedColumns, TrajectoryColumns};
use super::error::RowError;
use super::parts::{component_cells, components};
use super::values::{
    ancestry, elapsed, extension, micros, parse_text, policy_kind, present, signed, split, to_i16, unsigned,
};
use crate::cell::TimestampMicros;
use crate::schema::{
    ActionCell, EngineCell, ImageSpanCell, ObservationCell, OutcomeCell, SamplingCell, StepRow, StepTiming,
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

impl StepRow {
    /// The row of one step.
    pub(crate) fn new(
        trajectory: &TrajectoryRecord,
        step: &StepRecord,
        is_last: bool,
    ) -> Result<Self, RowError> {
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
    fn tokens(&self) -> Result<Option<TokenTrace>, RowError> {
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

    fn no_tokens(&self) -> Result<(), RowError> {
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
            Some((column, _)) => Err(RowError::WithoutTokens { column }),
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
    pub(crate) fn into_domain(mut self) -> Result<RecordedStep, RowError> {
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
    fn into_domain(self) -> Result<EngineStats, RowError> {
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
