//! A trajectory: a row of `trajectories`, with its evidence and the environment it ran in.

use bytes::Bytes;
use furrow_rollout::{
    EnvironmentFingerprint, Evidence, PolicyHashes, TimeSplit, TrajectoryAncestry, TrajectoryEnding,
    TrajectoryRecord,
};

use super::error::RowError;
use super::values::{
    ancestry, elapsed, end, extension, micros, policy_kind, size, split, status, to_i16, walls_level,
};
use crate::cell::TimestampMicros;
use crate::schema::{
    EnvironmentCell, EvidenceCell, HashesCell, ImageCell, OutcomeCell, ScoreCell, SessionCell, TaskCell,
    TrajectoryRow, TrajectoryTiming,
};

impl TrajectoryRow {
    /// The row of one trajectory.
    pub(crate) fn new(record: &TrajectoryRecord) -> Result<Self, RowError> {
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
            success: record.score.as_ref().and_then(|score| score.success),
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
    pub(crate) fn into_domain(self) -> Result<TrajectoryRecord, RowError> {
        let ending = TrajectoryEnding {
            end: end(&self.end)?,
            reason: self.failure_reason,
            evidence: self.evidence.map(EvidenceCell::into_domain),
            goal: self.goal,
            steps: self.num_steps.cast_unsigned(),
            last_outcome: self.last_outcome.map(OutcomeCell::into_domain).transpose()?,
            timing: TimeSplit::from(&self.timing.worker()),
            environment: self.environment.into_domain()?,
        };
        let reward = self.reward;
        if reward.is_some() && self.score.is_none() {
            return Err(RowError::RewardWithoutScore);
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

impl EvidenceCell {
    fn new(evidence: &Evidence, path: &str) -> Self {
        let image = |bytes: &Bytes| ImageCell { bytes: bytes.clone(), path: Some(path.into()) };
        Self {
            screenshot: evidence.screenshot.as_ref().map(image),
            url: evidence.url.clone(),
            title: evidence.title.clone(),
            answer: evidence.answer.clone(),
            probe_json: evidence.probe_json.clone(),
            findings_json: evidence.findings_json.clone(),
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
            findings_json: self.findings_json,
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
            walls: environment.walls.map(|level| level.as_str().into()),
        }
    }
}

impl EnvironmentCell {
    fn into_domain(self) -> Result<EnvironmentFingerprint, RowError> {
        Ok(EnvironmentFingerprint {
            worker: self.worker,
            browser: self.browser,
            sandbox: self.sandbox,
            locale: self.locale,
            timezone: self.timezone,
            viewport: self
                .viewport_width
                .zip(self.viewport_height)
                .map(|(width, height)| size(width, height)),
            walls: self.walls.as_deref().map(walls_level).transpose()?,
        })
    }
}
