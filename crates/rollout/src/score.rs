//! A scorer's verdict on evidence.

/// One named part of a reward.
#[derive(Debug, Clone, PartialEq)]
pub struct Component {
    /// Such as `raw`, `time_scaled` or `answer`.
    pub name: String,
    /// Its value.
    pub value: f32,
}

/// The verdict. `reward` is absent when the scorer came to none; that is never a 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// What the policy is rewarded with, finite.
    pub reward: Option<f32>,
    /// Whether the task counts as solved.
    pub success: Option<bool>,
    /// Parts of the reward.
    pub components: Vec<Component>,
    /// Scorer's name, such as `probe` or `answer`.
    pub scorer: String,
    /// Scorer's version.
    pub version: u32,
    /// Why, in a sentence.
    pub rationale: String,
    /// Hash of the evidence the scorer received, computed by the scorer.
    pub evidence_sha256: [u8; 32],
}
