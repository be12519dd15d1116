//! Whole rollouts without a farm: what a device could reach at best, and what the scheduler reaches
//! of it.
//!
//! `workload.rs` describes the sessions, assumed or recorded. `floor.rs` is the lower bound of
//! their closed loop. `simulator.rs` runs the policy worker's engine (`furrow_policy::stepped`) on
//! a simulated device that takes exactly the floor's time, and `on_device.rs` on a real one.

mod concurrent;
mod device;
mod floor;
mod on_device;
mod session;
mod settings;
mod simulator;
mod workload;

pub use floor::{ContextRetention, RolloutFloor, TurnTokens};
pub use on_device::{required_capacity, run_on_device};
pub use settings::{PREFILL_CHUNK, PREFILL_TOKENS, SimulatorError, SimulatorSettings};
pub use simulator::{SimulationOutcome, simulate};
pub use workload::{SessionMix, StepSizes, Workload};
