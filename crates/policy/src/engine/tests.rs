//! The engine on the simulated backend: whatever happens around a session, it gets the tokens it
//! gets alone.

mod alone;
mod breaker;
mod claims;
mod harness;
mod lost;
mod phases;
mod swaps;

use furrow_rollout::{ContextPolicy, StateOrigin};
use harness::{EngineHarness, SessionScript, capacity, settings};

use super::*;
