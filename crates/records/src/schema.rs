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
//!   a named action, and the policy is not `random`, whose replies teach nothing. Unnamed is the
//!   wait of a scripted policy whose page had no action to demonstrate. Both are fixed when
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

use arrow::datatypes::{DataType, Fields, Schema, SchemaRef};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::cell::{Column, ColumnCell, TimestampMicros, columns, fits};

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
    /// SHA-256 of the job, which is a file of `jobs/`; of the last rows' job in a merged file.
    pub(crate) const JOB_SHA256: &str = "furrow.job_sha256";
    /// In a file merged from rows of several jobs: each job's SHA-256 and how many rows it wrote,
    /// in the order of the rows, as JSON.
    pub(crate) const JOBS: &str = "furrow.jobs";
    /// The whole job, in files of schema version 1.
    pub(crate) const JOB: &str = "furrow.job";
    pub(crate) const PREFILL_GAP: &str = "furrow.prefill_gap";
}

columns! {
    /// A row of `trajectories`.
    TrajectoryRow {
        /// Id of the run that collected it.
        run_id: String,
        /// Id of this attempt, unique in the data set.
        trajectory_id: String,
        /// How many attempts at the slot came before it.
        attempt: i16,
        /// Group of trajectories of one task and seed.
        group_id: String,
        /// Slot within the group, from 0.
        sample_index: i32,
        /// Slots that the group planned.
        group_size: i32,
        /// Id of the task within its suite.
        task_id: String,
        /// The set of tasks that it belongs to.
        suite: String,
        /// `train`, `validation`, `test` or `eval`; `eval` is of evaluations.
        split: String,
        /// `scripted`, `random`, `openai` or `model`.
        policy_kind: String,
        /// `scored` or `failed`; a failed attempt never has a reward.
        status: String,
        /// How it ended, such as `answered`, `max_steps` or `page_crash`.
        end: String,
        /// Why it ended so, in a sentence; empty where the name of the end suffices.
        failure_reason: String,
        /// Reward of the whole trajectory; null where no scorer reached a verdict.
        reward: Option<f32>,
        /// Whether the task was solved, as in `score.success`; null without a verdict, and in files
        /// of schema version 1.
        success: Option<bool>,
        /// The verdict of the scorer; null for a failed attempt.
        score: Option<ScoreCell>,
        /// State of the page at the end, which the scorer received.
        evidence: Option<EvidenceCell>,
        /// The instruction that was given.
        goal: String,
        /// Outcome of the last action.
        last_outcome: Option<OutcomeCell>,
        /// Steps that it took.
        num_steps: i32,
        /// Tokens added to prompts in all steps.
        num_prompt_tokens: i64,
        /// Tokens of replies in all steps.
        num_response_tokens: i64,
        /// Steps whose reply held no valid action.
        num_invalid_actions: i32,
        /// Oldest version of the weights among its tokens.
        policy_version_min: Option<i32>,
        /// Newest version of the weights among its tokens.
        policy_version_max: Option<i32>,
        /// Versions of the weights published between its start and its end.
        staleness: Option<i32>,
        /// Fencing token it finished under.
        fencing_token: u64,
        /// Hashes of the policy's parts.
        hashes: HashesCell,
        /// The browser that it ran in.
        environment: EnvironmentCell,
        /// How the policy's session was set up.
        session: SessionCell,
        /// The task as it was assigned.
        task: TaskCell,
        /// The task's whole line in its file.
        task_json: String,
        /// Where its time went, by cause.
        timing: TrajectoryTiming,
        /// Device time that it took.
        gpu_micros: i64,
        /// What its calls to a paid endpoint cost.
        cost_usd: Option<f64>,
        /// When a worker leased it.
        started_at: TimestampMicros,
        /// When the coordinator acknowledged its end.
        ended_at: TimestampMicros,
    }

    /// A row of `steps` and of `failed_steps`.
    StepRow {
        /// Id of the run that collected it.
        run_id: String,
        /// The trajectory that it is a step of.
        trajectory_id: String,
        /// How many attempts at the slot came before the trajectory.
        attempt: i16,
        /// Group of the trajectory.
        group_id: String,
        /// Slot within the group, from 0.
        sample_index: i32,
        /// Id of the task within its suite.
        task_id: String,
        /// The set of tasks that it belongs to.
        suite: String,
        /// `train`, `validation`, `test` or `eval`; `eval` is of evaluations.
        split: String,
        /// Index within the trajectory, from 0.
        step: i32,
        /// Whether it is step 0.
        is_first: bool,
        /// Whether it is the trajectory's last step.
        is_last: bool,
        /// Whether the policy itself ended the trajectory with this step.
        is_terminal: bool,
        /// Whether it is the last step and a limit or a failure ended the trajectory.
        is_truncated: bool,
        /// `scripted`, `random`, `openai` or `model`.
        policy_kind: String,
        /// Usable for RL: scored, split `train`, with log-probs of a model.
        trainable_rl: bool,
        /// Usable for supervised training: scored, split `train`, with a named action that was not
        /// random.
        trainable_sft: bool,
        /// What the policy was shown before the action.
        observation: ObservationCell,
        /// Tokens added to the prompt at this step.
        prompt_token_ids: Option<Vec<i32>>,
        /// Where the images of the whole prompt lie.
        image_spans: Option<Vec<ImageSpanCell>>,
        /// Tokens of the reply, forced and appended ones included.
        response_token_ids: Option<Vec<i32>>,
        /// True where the policy sampled the token.
        response_mask: Option<Vec<bool>>,
        /// True where the grammar allowed only this token.
        forced: Option<Vec<bool>>,
        /// Why the reply stopped, such as `stop` or `length`.
        finish_reason: Option<String>,
        /// What the session keeps of prompt and reply; null where it keeps both whole.
        commit_token_ids: Option<Vec<i32>>,
        /// Tokens of the session before this step.
        prefix_len: Option<i32>,
        /// Hash of the session's tokens before this step.
        prefix_hash: Option<[u8; 16]>,
        /// Hash of the whole prompt of this step.
        prompt_hash: Option<[u8; 16]>,
        /// Log-softmax of logits / temperature over the whole vocabulary, one per reply token; null
        /// for forced and appended ones.
        logprobs: Option<Vec<Option<f32>>>,
        /// The same over the ids that could be sampled; 0 for forced tokens, null for appended
        /// ones.
        sampled_logprobs: Option<Vec<Option<f32>>>,
        /// How many ids could be sampled, per reply token; null: all.
        kept_count: Option<Vec<Option<i32>>>,
        /// These ids, of all tokens in a row, at most 512 each.
        kept_token_ids: Option<Vec<i32>>,
        /// Where each token's ids begin in `kept_token_ids`, and the end.
        kept_offsets: Option<Vec<i32>>,
        /// Entropy in nats of the distribution that was sampled from; null for forced tokens.
        entropy: Option<Vec<Option<f32>>>,
        /// Version of the weights that produced each token.
        policy_versions: Option<Vec<i32>>,
        /// Version of the weights at this step, with or without tokens.
        policy_version: Option<i32>,
        /// Oldest version that wrote any state this step reads.
        state_version_min: Option<i32>,
        /// The reply and the action in it.
        action: ActionCell,
        /// What the action did.
        outcome: OutcomeCell,
        /// The trajectory's reward on the last step, 0 before it; null in failed attempts.
        reward: Option<f32>,
        /// Parts of the reward, on the last step.
        reward_components: Vec<ComponentCell>,
        /// How the reply was sampled.
        sampling: SamplingCell,
        /// What the reply took of the engine.
        engine: EngineCell,
        /// Where the step's time went, by cause.
        timing: StepTiming,
        /// When the screenshot was taken.
        observed_at: TimestampMicros,
    }

    /// A row of `groups`.
    GroupRow {
        /// Id of the run that collected it.
        run_id: String,
        /// Id of the group, unique in the data set.
        group_id: String,
        /// Id of the task within its suite.
        task_id: String,
        /// The set of tasks that it belongs to.
        suite: String,
        /// `train`, `validation`, `test` or `eval`; `eval` is of evaluations.
        split: String,
        /// The seed all slots share.
        seed: u64,
        /// Slots that were planned, spare ones included.
        planned: i32,
        /// Slots that have a scored trajectory.
        valid: i32,
        /// Failed attempts by end, retried ones included.
        failed: Vec<FailedCell>,
        /// Mean reward of the scored trajectories.
        mean: Option<f64>,
        /// Standard deviation of the population.
        std: Option<f64>,
        /// Whether all scored trajectories have the same reward.
        zero_variance: Option<bool>,
        /// Oldest version of the weights among its scored tokens.
        policy_version_min: Option<i32>,
        /// Newest version of the weights among its scored tokens.
        policy_version_max: Option<i32>,
        /// When its last slot was settled.
        closed_at: TimestampMicros,
    }

    /// A row of `scores`.
    ScoreRow {
        /// Id of the run that collected the trajectory.
        run_id: String,
        /// The trajectory that was scored once more.
        trajectory_id: String,
        /// How many attempts at the slot came before the trajectory.
        attempt: i16,
        /// Group of the trajectory.
        group_id: String,
        /// Slot within the group, from 0.
        sample_index: i32,
        /// Id of the task within its suite.
        task_id: String,
        /// The set of tasks that it belongs to.
        suite: String,
        /// `train`, `validation`, `test` or `eval`; `eval` is of evaluations.
        split: String,
        /// The later reward; null where the scorer reached no verdict.
        reward: Option<f32>,
        /// The later verdict of the scorer.
        score: ScoreCell,
        /// When it was scored; the newest counts.
        scored_at: TimestampMicros,
    }

    /// A picture in Hugging Face's convention.
    ImageCell {
        /// The encoded picture, as the policy received it.
        bytes: Bytes,
        /// A name for the picture; no such file exists.
        path: Option<String>,
    }

    /// State before the action.
    ObservationCell {
        /// The picture that the policy received.
        screenshot: ImageCell,
        /// Name of the encoding: `png` or `jpeg`.
        format: String,
        /// Quality of a jpeg, 1 to 100.
        quality: Option<i16>,
        /// Width of the picture in pixels.
        width: i32,
        /// Height of the picture in pixels.
        height: i32,
        /// Address of the page.
        url: String,
        /// Title of the page.
        title: String,
        /// Open tabs, in their order.
        tabs: Vec<TabCell>,
        /// How far the page is scrolled down, in CSS pixels.
        scroll_y: f32,
        /// Height of the whole page in CSS pixels.
        page_height: f32,
        /// Accessibility tree as text; null unless the job enables it.
        axtree: Option<String>,
        /// The numbered boxes drawn into the screenshot; null unless the job enables them.
        marks: Option<Vec<MarkCell>>,
    }

    TabCell {
        /// Title of the tab's page.
        title: String,
        /// Address of the tab's page.
        url: String,
        /// Whether it is the tab in front.
        active: bool,
    }

    MarkCell {
        /// The number in the picture, from 1.
        mark: i32,
        /// An ARIA role, or the element's tag.
        role: String,
        /// Text of the element, at most 200 characters.
        text: String,
        /// Left edge of the box in pixels of the picture.
        x: f32,
        /// Top edge of the box in pixels of the picture.
        y: f32,
        /// Width of the box in pixels of the picture.
        width: f32,
        /// Height of the box in pixels of the picture.
        height: f32,
    }

    ImageSpanCell {
        /// Step of its screenshot; it may be an earlier one.
        step: i32,
        /// Index of the first placeholder in K_t ++ prompt_token_ids.
        token_start: i32,
        /// How many placeholders it takes.
        token_len: i32,
        /// Columns of tiles that the picture was cut into.
        tiles_x: i16,
        /// Rows of tiles that the picture was cut into.
        tiles_y: i16,
        /// SHA-256 of the encoded picture.
        blob_sha256: [u8; 32],
        /// SHA-256 of its decoded RGB pixels.
        rgb_sha256: [u8; 32],
    }

    /// The policy's reply. The last six columns hold the action in the page's own space, whatever
    /// grammar it was written in.
    ActionCell {
        /// The reply as the policy wrote it.
        raw_text: String,
        /// Name of the action in the grammar; empty for a wait between demonstrated actions.
        name: String,
        /// Arguments as the policy wrote them, as JSON.
        args_json: String,
        /// Its target in CSS pixels of the viewport (null: the position of the mouse): for a drag
        /// its end, for several actions the last one with a target.
        x: Option<f32>,
        /// The same from the top.
        y: Option<f32>,
        /// Whether the reply held an action.
        valid: bool,
        /// Why there is no action.
        error: Option<String>,
        /// `click`, `move`, `write`, `scroll`, `go_back`, `go_forward`, `refresh`, `restart`,
        /// `goto`, `wait`, `answer`, `drag`, `select_tab`, `open_tab`, `press_key`, `hold_key`,
        /// `key_down`, `key_up`, `mouse_down`, `mouse_up`, `upload`, `several`.
        kind: Option<String>,
        /// Start of a drag (null: the position of the mouse).
        from_x: Option<f32>,
        /// The same from the top.
        from_y: Option<f32>,
        /// The text written or answered, the address, the key, the direction, the button (null:
        /// left), names of files as a JSON list, or several actions as a JSON list of objects with
        /// the names of these columns.
        /// Modifiers of a click, a move, a scroll or a drag are in front: `Control+Shift+left`,
        /// `Shift+down`; a move or a drag has nothing else here (null: none).
        text: Option<String>,
        /// Seconds to wait, the tab's index, clicks or presses (null: 1), milliseconds of
        /// `hold_key`, or pixels to scroll (null: most of a screen).
        number: Option<i32>,
        /// Whether Enter was pressed after the text.
        press_enter: Option<bool>,
    }

    OutcomeCell {
        /// What happened, such as `ok` or `not_settled`.
        name: String,
        /// Details in a sentence; often empty.
        detail: String,
    }

    ComponentCell {
        /// What the component measures.
        name: String,
        /// Its part of the reward, or a count.
        value: f32,
    }

    SamplingCell {
        /// Temperature; 0 samples greedily.
        temperature: f32,
        /// Share of probability that is kept.
        top_p: f32,
        /// Most ids that are kept; 0: all.
        top_k: i32,
        /// Least probability, relative to the likeliest id.
        min_p: f32,
        /// Most tokens of a reply.
        max_tokens: i32,
        /// Seed of the job, from which each session derives its random numbers.
        seed: u64,
    }

    EngineCell {
        /// The policy worker that replied.
        worker: String,
        /// Slot of the session's recurrent state.
        slot: Option<i32>,
        /// Origin of the session's state: `resident`, `forked`, `offloaded` or `rebuilt`.
        state_origin: Option<String>,
        /// Mean sessions per decoding pass.
        batch_size_mean: f32,
        /// Prompt tokens that were computed.
        prefill_tokens: i32,
        /// Prompt tokens that were in the state already.
        reused_tokens: i32,
        /// Decoding passes that it took part in.
        decode_steps: i32,
        /// Time it waited to enter a batch.
        queue_micros: i64,
        /// Time from reading the observation to sending the reply.
        service_micros: i64,
        /// Its share of device time.
        gpu_micros: i64,
    }

    /// Time of a step by cause.
    StepTiming {
        /// Preparing a browser context and the start page.
        boot_micros: i64,
        /// Taking and encoding the screenshot.
        observe_micros: i64,
        /// Waiting for the policy's reply.
        policy_micros: i64,
        /// Delivering input to the page.
        act_micros: i64,
        /// Waiting until the page was quiet.
        settle_micros: i64,
        /// Until the coordinator made the step durable.
        record_micros: i64,
        /// Gathering evidence and disposing of the browser context.
        finish_micros: i64,
    }

    /// Time of a trajectory by cause: in the queue, in the environment worker, at the scorer.
    TrajectoryTiming {
        /// From its slot being free until its lease.
        queue_micros: i64,
        /// Preparing a browser context and the start page.
        boot_micros: i64,
        /// Taking and encoding screenshots.
        observe_micros: i64,
        /// Waiting for the policy's replies.
        policy_micros: i64,
        /// Delivering input to pages.
        act_micros: i64,
        /// Waiting until pages were quiet.
        settle_micros: i64,
        /// Until the coordinator made steps durable.
        record_micros: i64,
        /// Gathering evidence and disposing of the browser context.
        finish_micros: i64,
        /// Time spent on scoring.
        score_micros: i64,
    }

    ScoreCell {
        /// Whether the task was solved; null where the scorer does not say.
        success: Option<bool>,
        /// What the reward is made of.
        components: Vec<ComponentCell>,
        /// Name of the scorer that gave it.
        scorer: String,
        /// Version of the scorer's rules.
        version: i32,
        /// Why it scored so, in a sentence.
        rationale: String,
        /// What the scorer received; equals `evidence.sha256`.
        evidence_sha256: [u8; 32],
    }

    /// State of the page at the end.
    EvidenceCell {
        /// The last picture of the page, without marks.
        screenshot: Option<ImageCell>,
        /// Address of the last page.
        url: Option<String>,
        /// Title of the last page.
        title: Option<String>,
        /// What the policy answered; null without an answer.
        answer: Option<String>,
        /// What the task's probe read from the page, as JSON.
        probe_json: Option<String>,
        /// What the scorer's queries found in the last page and in back ends, as JSON; null without
        /// queries, and in files before schema version 3.
        findings_json: Option<String>,
        /// Hash over all parts, length-prefixed as u64 little-endian; a null part has a length of
        /// all ones, a null `findings_json` is no part.
        sha256: [u8; 32],
    }

    /// Hexadecimal SHA-256 of the parts of the policy.
    HashesCell {
        /// SHA-256 of all weights, with deltas and adapters applied.
        weights: Option<String>,
        /// SHA-256 of the file tokenizer.json.
        tokenizer: Option<String>,
        /// SHA-256 of the chat template.
        template: Option<String>,
        /// SHA-256 of the action grammar with its extra actions.
        grammar: Option<String>,
        /// SHA-256 of the image processor's settings.
        processor: Option<String>,
    }

    EnvironmentCell {
        /// The environment worker that ran it.
        worker: String,
        /// Name and version of the browser.
        browser: String,
        /// Whether the browser's sandbox was on.
        sandbox: bool,
        /// Locale of the pages, such as `en-US`.
        locale: String,
        /// Time zone of the pages.
        timezone: String,
        /// Width of the viewport in CSS pixels.
        viewport_width: Option<i32>,
        /// Height of the viewport in CSS pixels.
        viewport_height: Option<i32>,
        /// How far the browser was shut off from its machine: `basic`, `namespaces` or `full`; null
        /// without a browser, and in files of schema versions 1 to 3.
        walls: Option<String>,
    }

    SessionCell {
        /// Name of the action grammar.
        grammar: String,
        /// Extra actions that the job enables.
        grammar_extra: Vec<String>,
        /// How replies were sampled.
        sampling: SamplingCell,
        /// `append`, `last_image`, `window` or `fresh`.
        context: String,
        /// Number of screenshots a `window` holds.
        context_window: Option<i32>,
        /// Instructions that precede the task in the prompt.
        instructions: String,
    }

    /// The task as assigned; `task_id`, `suite` and `split` are columns beside it.
    TaskCell {
        /// The goal in the task's file; null where the page generates it.
        goal: Option<String>,
        /// Address of the first page.
        start_url: String,
        /// Seed of the page's content, shared by the group.
        seed: u64,
        /// Most steps of a trajectory.
        max_steps: i32,
        /// Most time of a trajectory.
        time_limit_millis: i64,
        /// Width of the viewport in CSS pixels.
        viewport_width: i32,
        /// Height of the viewport in CSS pixels.
        viewport_height: i32,
        /// How screenshots are taken.
        observation: ObservationSpecCell,
        /// Hosts that the browser may reach, beside the first page's.
        allow_hosts: Vec<String>,
        /// Scripts that run in the page.
        hooks: HooksCell,
        /// `real` if the page uses the wall clock, `virtual` if its time advances by step.
        clock: String,
        /// Page time that passes at each step of a virtual clock.
        clock_step_millis: Option<i32>,
    }

    ObservationSpecCell {
        /// Name of the encoding: `png` or `jpeg`.
        format: String,
        /// Quality of a jpeg, 1 to 100.
        quality: Option<i16>,
        /// Width of the part that is kept, from the left; null: all.
        clip_width: Option<i32>,
        /// Height of the part that is kept, from the top; null: all.
        clip_height: Option<i32>,
        /// Whether the picture is padded to a square.
        square: bool,
    }

    HooksCell {
        /// Script that begins the task in the page.
        start: Option<String>,
        /// Script that reads the page's state for the scorer.
        probe: Option<String>,
        /// Script that demonstrates the task.
        solve: Option<String>,
    }

    FailedCell {
        /// Name of the end, such as `page_crash`.
        end: String,
        /// How many attempts ended so.
        count: i32,
    }
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

    /// Its columns and those below them, in order.
    pub fn columns(self) -> Vec<Column> {
        let mut columns = Vec::new();
        match self {
            Table::Trajectories => TrajectoryRow::columns_below("", &mut columns),
            Table::Steps | Table::FailedSteps => StepRow::columns_below("", &mut columns),
            Table::Groups => GroupRow::columns_below("", &mut columns),
            Table::Scores => ScoreRow::columns_below("", &mut columns),
        }
        columns
    }

    pub(crate) fn fields(self) -> Fields {
        match self {
            Table::Trajectories => TrajectoryRow::fields(),
            Table::Steps | Table::FailedSteps => StepRow::fields(),
            Table::Groups => GroupRow::fields(),
            Table::Scores => ScoreRow::fields(),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::Field;
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
