//! The columns of all five tables, each defined once.
//!
//! What the names alone do not say:
//! * Counts and token ids are unsigned in the domain types and signed in the columns, bit for bit,
//!   because loaders expect int32 and int64.
//! * `is_first`, `is_last`, `is_terminal`, `is_truncated` are those of RLDS: the last step is
//!   terminal when the policy itself brought the trajectory to its end, otherwise truncated; steps
//!   of a failed trajectory end truncated.
//! * `reward` is the trajectory's reward on its last step and 0 before it; null in all steps of a
//!   failed trajectory.
//! * `trainable_rl`: the trajectory is scored, its split is `train`, the step was made by a `model`
//!   or `openai` policy and has log-probs. `trainable_sft`: scored, split `train`, the reply holds
//!   an action, and the policy is not `random`, whose replies teach nothing. Both are fixed when
//!   written; the reader chooses which rewards, staleness or spread to keep.
//! * Page text (titles, addresses, answers, outcomes) is plain utf8: show it as text, never as
//!   markup.
//! * Token columns are null where the policy recorded no tokens. `commit_token_ids` is also null
//!   where the session keeps prompt ++ response; `prompt_token_ids` distinguishes the two cases.
//! * Timestamps are microseconds in UTC. (DuckDB's Python client needs `pytz` to convert them to
//!   Python objects; Arrow, NumPy and pandas do not.)
//! * `image_spans` lists every image of the whole prompt K_t ++ `prompt_token_ids`, including those
//!   inside K_t.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::cell::{ColumnCell, TimestampMicros, columns, fits};

/// A table of the data set, stored in a folder of its name below `data/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Table {
    /// One row per trajectory, including failed ones.
    Trajectories,
    /// One row per step of every scored trajectory.
    Steps,
    /// Steps of the failed trajectories, for debugging.
    FailedSteps,
    /// One row per group, written when it closes.
    Groups,
    /// Scores that were added later.
    Scores,
}

/// Keys of a file's metadata.
pub(crate) mod key {
    pub(crate) const SCHEMA_VERSION: &str = "furrow.schema_version";
    pub(crate) const SCHEMA_SHA256: &str = "furrow.schema_sha256";
    pub(crate) const TABLE: &str = "furrow.table";
    pub(crate) const SHARD_ID: &str = "furrow.shard_id";
    pub(crate) const RUN_ID: &str = "furrow.run_id";
    pub(crate) const JOB: &str = "furrow.job";
    pub(crate) const PREFILL_GAP: &str = "furrow.prefill_gap";
}

columns! {
    /// A row of `trajectories`.
    TrajectoryRow {
        run_id: String,
        trajectory_id: String,
        attempt: i16,
        group_id: String,
        sample_index: i32,
        group_size: i32,
        task_id: String,
        suite: String,
        split: String,
        policy_kind: String,
        /// Name of a `rollout::TrajectoryStatus`: `scored` or `failed`.
        status: String,
        /// The name of a `rollout::EndKind`.
        end: String,
        /// Why it ended so, in a sentence; empty where the name of the end suffices.
        failure_reason: String,
        reward: Option<f32>,
        score: Option<ScoreCell>,
        evidence: Option<EvidenceCell>,
        /// The instruction that was given.
        goal: String,
        last_outcome: Option<OutcomeCell>,
        num_steps: i32,
        num_prompt_tokens: i64,
        num_response_tokens: i64,
        num_invalid_actions: i32,
        policy_version_min: Option<i32>,
        policy_version_max: Option<i32>,
        staleness: Option<i32>,
        /// Fencing token it finished under.
        fencing_token: u64,
        hashes: HashesCell,
        environment: EnvironmentCell,
        session: SessionCell,
        task: TaskCell,
        /// The task's whole line in its file.
        task_json: String,
        timing: TrajectoryTiming,
        gpu_micros: i64,
        cost_usd: Option<f64>,
        started_at: TimestampMicros,
        ended_at: TimestampMicros,
    }

    /// A row of `steps` and of `failed_steps`.
    StepRow {
        run_id: String,
        trajectory_id: String,
        attempt: i16,
        group_id: String,
        sample_index: i32,
        task_id: String,
        suite: String,
        split: String,
        step: i32,
        is_first: bool,
        is_last: bool,
        is_terminal: bool,
        is_truncated: bool,
        policy_kind: String,
        trainable_rl: bool,
        trainable_sft: bool,
        observation: ObservationCell,
        /// Tokens added to the prompt at this step.
        prompt_token_ids: Option<Vec<i32>>,
        image_spans: Option<Vec<ImageSpanCell>>,
        response_token_ids: Option<Vec<i32>>,
        /// True where the policy sampled the token.
        response_mask: Option<Vec<bool>>,
        /// True where the grammar allowed only this token.
        forced: Option<Vec<bool>>,
        finish_reason: Option<String>,
        commit_token_ids: Option<Vec<i32>>,
        prefix_len: Option<i32>,
        prefix_hash: Option<[u8; 16]>,
        prompt_hash: Option<[u8; 16]>,
        logprobs: Option<Vec<Option<f32>>>,
        sampled_logprobs: Option<Vec<Option<f32>>>,
        kept_count: Option<Vec<Option<i32>>>,
        kept_token_ids: Option<Vec<i32>>,
        kept_offsets: Option<Vec<i32>>,
        entropy: Option<Vec<Option<f32>>>,
        /// Version of the weights that produced each token.
        policy_versions: Option<Vec<i32>>,
        /// Version of the weights at this step, with or without tokens.
        policy_version: Option<i32>,
        state_version_min: Option<i32>,
        action: ActionCell,
        outcome: OutcomeCell,
        reward: Option<f32>,
        reward_components: Vec<ComponentCell>,
        sampling: SamplingCell,
        engine: EngineCell,
        timing: StepTiming,
        observed_at: TimestampMicros,
    }

    /// A row of `groups`.
    GroupRow {
        run_id: String,
        group_id: String,
        task_id: String,
        suite: String,
        split: String,
        /// The seed all slots share.
        seed: u64,
        planned: i32,
        valid: i32,
        /// Failed attempts by end.
        failed: Vec<FailedCell>,
        mean: Option<f64>,
        /// Standard deviation of the population.
        std: Option<f64>,
        zero_variance: Option<bool>,
        policy_version_min: Option<i32>,
        policy_version_max: Option<i32>,
        closed_at: TimestampMicros,
    }

    /// A row of `scores`.
    ScoreRow {
        run_id: String,
        trajectory_id: String,
        attempt: i16,
        group_id: String,
        sample_index: i32,
        task_id: String,
        suite: String,
        split: String,
        reward: Option<f32>,
        score: ScoreCell,
        scored_at: TimestampMicros,
    }

    /// A picture in Hugging Face's convention.
    ImageCell { bytes: Bytes, path: Option<String> }

    /// State before the action.
    ObservationCell {
        screenshot: ImageCell,
        /// Name of the encoding: `png` or `jpeg`.
        format: String,
        /// Quality of a jpeg, 1 to 100.
        quality: Option<i16>,
        width: i32,
        height: i32,
        url: String,
        title: String,
        tabs: Vec<TabCell>,
        scroll_y: f32,
        page_height: f32,
        axtree: Option<String>,
        /// The numbered boxes drawn into the screenshot; null unless the job enables them.
        marks: Option<Vec<MarkCell>>,
    }

    TabCell { title: String, url: String, active: bool }

    MarkCell {
        /// The number in the picture, from 1.
        mark: i32,
        /// An ARIA role, or the element's tag.
        role: String,
        text: String,
        /// Left edge of the box in pixels of the picture.
        x: f32,
        y: f32,
        width: f32,
        height: f32,
    }

    ImageSpanCell {
        /// Step of its screenshot; it may be an earlier one.
        step: i32,
        /// Index of the first placeholder in K_t ++ prompt_token_ids.
        token_start: i32,
        token_len: i32,
        tiles_x: i16,
        tiles_y: i16,
        blob_sha256: [u8; 32],
        rgb_sha256: [u8; 32],
    }

    /// The policy's reply. The last six columns hold the action in the page's own space, whatever
    /// grammar it was written in.
    ActionCell {
        raw_text: String,
        /// Name of the action in the grammar.
        name: String,
        args_json: String,
        /// Its target in CSS pixels of the viewport (null: the position of the mouse): for a drag
        /// its end, for several actions the last one with a target.
        x: Option<f32>,
        y: Option<f32>,
        valid: bool,
        /// Why there is no action.
        error: Option<String>,
        /// `click`, `move`, `write`, `scroll`, `go_back`, `go_forward`, `refresh`, `restart`,
        /// `goto`, `wait`, `answer`, `drag`, `select_tab`, `open_tab`, `press_key`, `several`.
        kind: Option<String>,
        /// Start of a drag (null: the position of the mouse).
        from_x: Option<f32>,
        from_y: Option<f32>,
        /// The text written or answered, the address, the key, the direction, the button (null:
        /// left), or several actions as a JSON list of objects with the names of these columns.
        text: Option<String>,
        /// Seconds to wait, the tab's index, clicks or presses (null: 1), or pixels to scroll
        /// (null: most of a screen).
        number: Option<i32>,
        press_enter: Option<bool>,
    }

    OutcomeCell { name: String, detail: String }

    ComponentCell { name: String, value: f32 }

    SamplingCell {
        temperature: f32,
        top_p: f32,
        top_k: i32,
        min_p: f32,
        max_tokens: i32,
        seed: u64,
    }

    EngineCell {
        worker: String,
        slot: Option<i32>,
        state_origin: Option<String>,
        batch_size_mean: f32,
        prefill_tokens: i32,
        reused_tokens: i32,
        decode_steps: i32,
        queue_micros: i64,
        service_micros: i64,
        gpu_micros: i64,
    }

    /// Time of a step by cause.
    StepTiming {
        boot_micros: i64,
        observe_micros: i64,
        policy_micros: i64,
        act_micros: i64,
        settle_micros: i64,
        record_micros: i64,
        finish_micros: i64,
    }

    /// Time of a trajectory by cause: in the queue, in the environment worker, at the scorer.
    TrajectoryTiming {
        queue_micros: i64,
        boot_micros: i64,
        observe_micros: i64,
        policy_micros: i64,
        act_micros: i64,
        settle_micros: i64,
        record_micros: i64,
        finish_micros: i64,
        score_micros: i64,
    }

    ScoreCell {
        success: Option<bool>,
        components: Vec<ComponentCell>,
        scorer: String,
        version: i32,
        rationale: String,
        /// What the scorer received; equals `evidence.sha256`.
        evidence_sha256: [u8; 32],
    }

    /// State of the page at the end.
    EvidenceCell {
        screenshot: Option<ImageCell>,
        url: Option<String>,
        title: Option<String>,
        answer: Option<String>,
        probe_json: Option<String>,
        /// Hash over all parts, length-prefixed as u64 little-endian; a null part has a length of
        /// all ones.
        sha256: [u8; 32],
    }

    /// Hexadecimal SHA-256 of the parts of the policy.
    HashesCell {
        weights: Option<String>,
        tokenizer: Option<String>,
        template: Option<String>,
        grammar: Option<String>,
        processor: Option<String>,
    }

    EnvironmentCell {
        worker: String,
        browser: String,
        sandbox: bool,
        locale: String,
        timezone: String,
        viewport_width: Option<i32>,
        viewport_height: Option<i32>,
    }

    SessionCell {
        grammar: String,
        grammar_extra: Vec<String>,
        sampling: SamplingCell,
        /// `append`, `last_image`, `window` or `fresh`.
        context: String,
        /// Number of screenshots a `window` holds.
        context_window: Option<i32>,
        instructions: String,
    }

    /// The task as assigned; `task_id`, `suite` and `split` are columns beside it.
    TaskCell {
        goal: Option<String>,
        start_url: String,
        seed: u64,
        max_steps: i32,
        time_limit_millis: i64,
        viewport_width: i32,
        viewport_height: i32,
        observation: ObservationSpecCell,
        allow_hosts: Vec<String>,
        hooks: HooksCell,
        /// `real` if the page uses the wall clock, `virtual` if its time advances by step.
        clock: String,
        clock_step_millis: Option<i32>,
    }

    ObservationSpecCell {
        format: String,
        quality: Option<i16>,
        clip_width: Option<i32>,
        clip_height: Option<i32>,
        square: bool,
    }

    HooksCell { start: Option<String>, probe: Option<String>, solve: Option<String> }

    FailedCell { end: String, count: i32 }
}

impl Table {
    /// All tables of a data set.
    pub const ALL: [Table; 5] =
        [Table::Trajectories, Table::Steps, Table::FailedSteps, Table::Groups, Table::Scores];

    /// Name of the table's folder.
    pub fn as_str(self) -> &'static str {
        match self {
            Table::Trajectories => "trajectories",
            Table::Steps => "steps",
            Table::FailedSteps => "failed_steps",
            Table::Groups => "groups",
            Table::Scores => "scores",
        }
    }

    /// The table of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.as_str() == name)
    }

    /// Arrow schema of the table's columns.
    pub fn schema(self) -> SchemaRef {
        Arc::new(Schema::new(self.fields()))
    }

    /// Whether the table has all columns of `R`, with their types, so that `R` can be read from it.
    pub fn has_columns<R: ColumnCell>(self) -> bool {
        fits(&R::data_type(), &DataType::Struct(self.fields()))
    }

    fn fields(self) -> Fields {
        match self {
            Table::Trajectories => TrajectoryRow::fields(),
            Table::Steps | Table::FailedSteps => StepRow::fields(),
            Table::Groups => GroupRow::fields(),
            Table::Scores => ScoreRow::fields(),
        }
    }

    /// Hash of names, types and nullability of all columns, hexadecimal.
    pub(crate) fn schema_sha256(self) -> String {
        let mut lines = String::new();
        self.fields().iter().for_each(|field| describe("", field, &mut lines));
        hex(&Sha256::digest(lines))
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Lower-case hexadecimal, as hashes are written in manifests, footers and reports.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}

fn describe(above: &str, field: &Field, lines: &mut String) {
    let path = format!("{above}{}", field.name());
    let null = if field.is_nullable() { " or null" } else { "" };
    match field.data_type() {
        DataType::Struct(fields) => {
            lines.push_str(&format!("{path}: struct{null}\n"));
            fields.iter().for_each(|field| describe(&format!("{path}."), field, lines));
        }
        DataType::List(item) => {
            lines.push_str(&format!("{path}: list{null}\n"));
            describe(&format!("{path}."), item, lines);
        }
        other => lines.push_str(&format!("{path}: {other}{null}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rollout::TimeCause;

    #[test]
    fn every_cause_of_time_has_its_column() {
        let causes: Vec<String> =
            TimeCause::ALL.iter().map(|cause| format!("{}_micros", cause.as_str())).collect();
        let step: Vec<String> = StepTiming::fields().iter().map(|field| field.name().clone()).collect();
        let whole: Vec<String> =
            TrajectoryTiming::fields().iter().map(|field| field.name().clone()).collect();
        assert_eq!(step, causes);
        assert_eq!(whole[1..whole.len() - 1], causes);
        assert_eq!((&*whole[0], &*whole[whole.len() - 1]), ("queue_micros", "score_micros"));
    }

    /// The columns are a contract with every reader: a change needs a new `SCHEMA_VERSION`, and new
    /// lines here.
    #[test]
    fn a_changed_column_is_a_new_schema_version() {
        let mut lines = String::new();
        for table in [Table::Trajectories, Table::Steps, Table::Groups, Table::Scores] {
            lines.push_str(&format!("# {table}\n"));
            table.fields().iter().for_each(|field| describe("", field, &mut lines));
        }
        let wanted = include_str!("../tests/schema_v1.txt");
        assert_eq!(furrow_rollout::SCHEMA_VERSION, 1);
        assert!(lines == wanted, "the columns are now:\n{lines}");
    }

    #[test]
    fn no_column_is_a_map_or_hides_its_text_in_a_dictionary() {
        fn plain(field: &Field) {
            match field.data_type() {
                DataType::Struct(fields) => fields.iter().for_each(|field| plain(field)),
                DataType::List(item) => plain(item),
                other => {
                    assert!(!other.is_nested() && !matches!(other, DataType::Dictionary(..)), "{field:?}");
                }
            }
        }
        Table::ALL
            .iter()
            .flat_map(|table| table.fields().iter().cloned().collect::<Vec<_>>())
            .for_each(|f| plain(&f));
    }
}
