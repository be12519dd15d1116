//! Sends the steps of a trajectory to the coordinator, in order, one while the next is made.

use bytes::Bytes;
use furrow_rollout::{Assignment, LeaseProof, OutcomeName, TimeSplit, TrajectoryAncestry};
use furrow_telemetry::StepAcknowledged;
use furrow_wire::{OpaqueStep, RECORD_BYTES_MAX, encode_opaque_step};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::coordinator_link::{CallError, CoordinatorLink};
use crate::crash;

/// Sends steps in order and waits for their acknowledgements.
pub(super) struct StepRecorder {
    link: CoordinatorLink,
    of: TrajectoryAncestry,
    proof: LeaseProof,
    lost: CancellationToken,
    /// At most one call; it ends with the attempt.
    calls: JoinSet<Result<(), CallError>>,
    /// Steps that were handed over to be sent.
    pub steps: u32,
    /// Steps that the coordinator acknowledged.
    pub durable: u32,
}

impl StepRecorder {
    pub(super) fn new(link: CoordinatorLink, leased: &Assignment, lost: CancellationToken) -> Self {
        let of = leased.ancestry.clone();
        Self { link, of, proof: leased.proof(), lost, calls: JoinSet::new(), steps: 0, durable: 0 }
    }

    pub(super) async fn wait_acknowledged(&mut self) -> Result<(), CallError> {
        while let Some(joined) = self.calls.join_next().await {
            joined.unwrap_or_else(|error| Err(CallError::Refused(format!("recording failed: {error}"))))?;
            self.durable += 1;
        }
        Ok(())
    }

    /// The error says that the step is too large for a record.
    pub(super) fn record(&mut self, step: &OpaqueStep) -> Result<(), String> {
        let record = encode_opaque_step(step);
        if record.len() > RECORD_BYTES_MAX {
            let size = record.len();
            return Err(format!(
                "step {} has {size} bytes, at most {RECORD_BYTES_MAX} can be recorded",
                step.step
            ));
        }
        self.steps += 1;
        let screenshot_bytes = step.observation.screenshot.bytes.len() as u64;
        self.calls.spawn(send_step(
            self.link.clone(),
            self.of.clone(),
            StepReceipt {
                proof: self.proof.clone(),
                step: step.step,
                outcome: step.outcome.name,
                began_at_micros: step.observed_at_micros,
                timing: step.timing,
                screenshot_bytes,
            },
            record,
            self.lost.clone(),
        ));
        Ok(())
    }
}

/// The lease that a step is recorded under, and the fields of the event that is emitted once it is
/// durable.
struct StepReceipt {
    proof: LeaseProof,
    step: u32,
    outcome: OutcomeName,
    /// A step begins with its observation.
    began_at_micros: i64,
    timing: TimeSplit,
    screenshot_bytes: u64,
}

async fn send_step(
    link: CoordinatorLink,
    of: TrajectoryAncestry,
    receipt: StepReceipt,
    record: Bytes,
    lost: CancellationToken,
) -> Result<(), CallError> {
    let StepReceipt { proof, step, outcome, began_at_micros, timing, screenshot_bytes } = receipt;
    crash::point("env.before_record");
    if let Err(error) = link.record_step(&proof, step, record).await {
        // The policy may compute for another minute: a lost lease ends the attempt now.
        if matches!(error, CallError::Stale(_)) {
            lost.cancel();
        }
        return Err(error);
    }
    crash::point("env.after_record");
    let of = &of;
    let token = proof.token;
    let timing = &timing;
    StepAcknowledged { of, step, token, outcome, began_at_micros, timing, screenshot_bytes }.emit();
    Ok(())
}
