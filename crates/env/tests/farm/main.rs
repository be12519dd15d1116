//! A worker between a stand-in coordinator and a stand-in policy, over real gRPC: in air, and with real browsers.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

mod air;
mod farm;
mod real;
mod standin;
