//! The engine against the model of air: whatever happens around a session, it gets the tokens it gets alone.

mod alone;
mod claims;
mod lost;
mod swaps;
mod world;

use furrow_rollout::{ContextPolicy, StateOrigin};
use world::{Script, World, room, settings};

use super::*;
