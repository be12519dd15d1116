//! Real pages: a supervised pool of headless Chromium processes, one browser context a trajectory.
//!
//! From the outside in: `pool.rs` keeps processes, `process.rs` starts and ends one (`libraries.rs`: with libraries and fonts of the job), `limits.rs` holds it to what it may take, `link.rs` speaks with it and notices its death,
//! `blank.rs` keeps contexts ready, `context.rs` is the stage of one trajectory, `tab.rs` one page of it, `network.rs` stands between it and the world where an archive
//! is made or used. What is done to a page has a file a verb: `act.rs`,
//! `observe.rs` (with `picture.rs`, `marks.rs` and `paint.rs`), `settle.rs`, `script.rs`, `select.rs`, `clock.rs`.

mod act;
mod blank;
mod blocked;
mod clock;
mod context;
mod libraries;
mod limits;
mod link;
mod marks;
mod navigate;
mod network;
mod observe;
mod paint;
mod picture;
mod pool;
mod process;
mod script;
mod select;
mod selftest;
mod settle;
mod tab;

pub use blocked::BlockedPages;
pub use pool::{Chromium, Health};
pub use process::{BrowserError, LOOKED_FOR};
