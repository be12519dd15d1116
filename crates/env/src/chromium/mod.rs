//! Real pages: a supervised pool of headless Chromium processes, one browser context per
//! trajectory.
//!
//! From the outside in: `pool.rs` keeps browsers, `browser.rs` is one with the leases of its
//! contexts, `process.rs` starts and ends its process (`command.rs`: with which flags, `user.rs`:
//! as which user, `profile.rs`: where its files are, `walls.rs`: what of all this a machine allows,
//! `libraries.rs`: with the job's libraries and fonts, `version.rs`: whether it is a browser at
//! all), `limits.rs` enforces its limits, `link.rs` sends it commands (through `devtools_relay.rs`)
//! and notices its death, `prewarm.rs` keeps contexts ready, `context.rs` is the environment of one
//! trajectory, `tab.rs` one page of it, and `network.rs` intercepts its requests if an archive is
//! recorded or replayed. Each operation on a page has a file: `act.rs` (with `input.rs`,
//! `keyboard.rs` and `drag_start.rs`), `observe.rs` (with `picture.rs`, `marks.rs` and `paint.rs`),
//! `settle.rs`, `script.rs`, `fill.rs` and `conceal.rs` (both for secrets), `select.rs`,
//! `clock.rs`. The files of a session lie in `session_folder.rs`, `chooser.rs` gives them to pages
//! and `downloads.rs` takes them. `page_errors.rs` collects what an author of a site wants to know.

mod act;
mod blocked;
mod browser;
mod chooser;
mod clock;
mod command;
mod conceal;
mod context;
mod devtools_relay;
mod downloads;
mod drag_start;
mod error;
mod fill;
mod glyphs;
mod input;
mod keyboard;
mod libraries;
mod limits;
mod link;
mod marks;
mod navigate;
mod network;
mod observe;
mod page_errors;
mod paint;
mod picture;
mod pool;
mod prewarm;
mod process;
mod profile;
mod removal;
mod script;
mod select;
mod selftest;
mod session_folder;
mod settle;
mod tab;
mod user;
mod version;
mod walls;

pub use error::{BrowserError, LOOKED_FOR};
pub use pool::{BrowserHealth, ChromiumPool};
pub use user::is_root;
pub use version::browser_version;
pub use walls::{BrowserWalls, MissingWall};
