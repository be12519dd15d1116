//! A scorer's result for the evidence of a trajectory.

/// One named part of a reward.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreComponent {
    /// Name of the part, such as `raw`, `time_scaled` or `answer`.
    pub name: String,
    /// Value of the part.
    pub value: f32,
}

/// A scorer's result. A scorer that reaches no verdict leaves `reward` absent; it is never 0 for
/// that reason.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// The policy's reward, finite.
    pub reward: Option<f32>,
    /// Whether the task counts as solved.
    pub success: Option<bool>,
    /// Named parts of the reward.
    pub components: Vec<ScoreComponent>,
    /// Name of the scorer, such as `probe` or `answer`.
    pub scorer: String,
    /// Version of the scorer.
    pub version: u32,
    /// The scorer's reason, in one sentence.
    pub rationale: String,
    /// Hash of the evidence the scorer received, computed by the scorer.
    pub evidence_sha256: [u8; 32],
}
