//! What a verification found: breaches with their location, warnings, and what was checked.

use serde::Serialize;

use crate::Table;

/// Breaches that are listed; further ones are only counted.
const BREACHES_LISTED_MAX: usize = 1_000;
/// Bytes of what is said of a breach.
const BREACH_BYTES_MAX: usize = 4 << 10;

/// Result of a verification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Newest commit that was read.
    pub version: u64,
    /// Files and rows that the checks read: all zero for an empty data set, which has no breaches.
    pub counts: VerifyCounts,
    /// All breaches, listed or not.
    pub breaches_total: u64,
    /// The first thousand breaches.
    pub breaches: Vec<RuleBreach>,
    /// Findings that are not breaches but should be known.
    pub warnings: Vec<VerifyWarning>,
    /// What was removed for good; absent where nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expired: Option<ExpiredCounts>,
}

/// What retention removed from a data set, and what it left without its other rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ExpiredCounts {
    /// Rows of the table `trajectories`.
    pub trajectories: u64,
    /// Rows of the table `steps`.
    pub steps: u64,
    /// Groups whose row is there, and not all of their trajectories.
    pub groups_cut: u64,
    /// Steps of failed trajectories whose trajectory's row has expired.
    pub failed_steps_left: u64,
    /// Later scores of trajectories that have expired.
    pub scores_left: u64,
}

/// Amounts of what was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct VerifyCounts {
    /// Files in the manifest.
    pub files: u64,
    /// Rows of the table `trajectories`.
    pub trajectories: u64,
    /// Rows of the table `steps`.
    pub steps: u64,
    /// Rows of the table `failed_steps`.
    pub failed_steps: u64,
    /// Rows of the table `groups`.
    pub groups: u64,
    /// Rows of the table `scores`.
    pub scores: u64,
    /// Prompts rebuilt from the kept tokens and the commits.
    pub prompts: u64,
    /// Tokens of these prompts and their responses.
    pub tokens: u64,
    /// Pictures whose pixels were hashed again and must match.
    pub png_pictures: u64,
    /// Pictures whose pixels may differ from decoder to decoder.
    pub jpeg_pictures: u64,
    /// Of those, pictures whose pixels differ.
    pub jpeg_differing: u64,
}

/// One place that breaks one rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleBreach {
    /// The rule that is broken.
    pub check: VerifyCheck,
    /// The table of the row, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<Table>,
    /// Path of the file below `data/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The row within the file, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row: Option<u64>,
    /// Id of the trajectory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trajectory: Option<String>,
    /// Index of the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// What is wrong, and what would be right.
    pub what: String,
}

/// A finding that is not a breach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifyWarning {
    /// The file or trajectory it concerns.
    pub about: String,
    /// The finding as a sentence.
    pub what: String,
}

/// Rules of a sound data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VerifyCheck {
    /// Commits are contiguous, well formed and consistent.
    Manifest,
    /// Every listed file exists with its length, hash, columns and rows.
    File,
    /// Every cell holds an allowed value, and related cells are null together.
    Row,
    /// A trajectory has one row.
    TrajectoryOnce,
    /// A slot is scored at most once.
    SlotOnce,
    /// A group has one row.
    GroupOnce,
    /// A trajectory has exactly one row.
    StepOnce,
    /// A trajectory's steps are adjacent and numbered 0, 1, 2 …
    StepOrder,
    /// The number of steps is the one in the trajectory's row.
    StepCount,
    /// A step's trajectory has a row with the same ids.
    StepParent,
    /// Steps of failed trajectories are in `failed_steps` only.
    FailedApart,
    /// A trajectory is scored exactly when its end is the policy's own and it has evidence, score
    /// and reward.
    ScoredComplete,
    /// The scorer received the evidence that is stored.
    #[serde(rename = "evidence_seen")]
    EvidenceReceived,
    /// The reward of a trajectory or of a later score is a finite number.
    RewardFinite,
    /// First, last, terminal, truncated, trainable and reward of a step follow from the trajectory,
    /// success of a trajectory from its score.
    #[serde(rename = "step_place")]
    DerivedValues,
    /// A group's counts match its trajectories, whose slots are all among its own.
    GroupCounts,
    /// A group's statistics match its rewards.
    GroupRewards,
    /// Token lists have one entry per token.
    TokenLengths,
    /// Forced, sampled and appended tokens are marked as such.
    TokenMarks,
    /// Log-probs are finite and at most 0, entropies finite and not negative.
    Logprobs,
    /// Kept ids match their offsets.
    KeptIds,
    /// Versions do not go back, and lie within the trajectory's range.
    Versions,
    /// Image spans are inside the prompt, in order, and do not overlap.
    SpanBounds,
    /// Image spans cover exactly the placeholders.
    Placeholders,
    /// A span's picture is the recorded one.
    Pictures,
    /// Marks are numbered from 1, and their boxes are inside the picture.
    Marks,
    /// The kept tokens are those that the commits produced.
    Prefix,
    /// The rebuilt prompt has the recorded hash.
    PromptHash,
}

/// The location of a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowLocation<'a> {
    pub table: Table,
    pub file: &'a str,
    pub row: u64,
}

impl VerifyReport {
    /// Whether there are no breaches.
    pub fn is_sound(&self) -> bool {
        self.breaches_total == 0
    }

    pub(super) fn new(version: u64) -> Self {
        Self {
            version,
            counts: VerifyCounts::default(),
            breaches_total: 0,
            breaches: Vec::new(),
            warnings: Vec::new(),
            expired: None,
        }
    }

    pub(super) fn of_manifest(version: u64, what: &str) -> Self {
        let mut report = Self::new(version);
        let what = format!("commit {version} {what}");
        report.breach(RuleBreach {
            check: VerifyCheck::Manifest,
            table: None,
            file: None,
            row: None,
            trajectory: None,
            step: None,
            what,
        });
        report
    }

    pub(super) fn breach(&mut self, mut breach: RuleBreach) {
        self.breaches_total += 1;
        if self.breaches.len() < BREACHES_LISTED_MAX {
            // It may quote a cell of any length.
            let end = breach.what.floor_char_boundary(BREACH_BYTES_MAX);
            breach.what.truncate(end);
            breach.what.shrink_to_fit();
            self.breaches.push(breach);
        }
    }

    pub(super) fn warn(&mut self, about: impl Into<String>, what: impl Into<String>) {
        self.warnings.push(VerifyWarning { about: about.into(), what: what.into() });
    }
}

impl RowLocation<'_> {
    pub(super) fn breach(
        &self,
        check: VerifyCheck,
        trajectory: Option<&str>,
        step: Option<u32>,
        what: String,
    ) -> RuleBreach {
        RuleBreach {
            check,
            table: Some(self.table),
            file: Some(self.file.to_owned()),
            row: Some(self.row),
            trajectory: trajectory.map(str::to_owned),
            step,
            what,
        }
    }
}
