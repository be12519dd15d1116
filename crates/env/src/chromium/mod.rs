//! Real pages: a supervised pool of headless Chromium processes, one browser context per
//! trajectory.
//!
//! From the outside in: `pool.rs` keeps browsers, `browser.rs` is one with the leases of its
//! contexts, `process.rs` starts and ends its process (`user.rs`: as which user, `libraries.rs`:
//! with the job's libraries and fonts, `version.rs`: whether it is a browser at all), `limits.rs`
//! enforces its limits, `link.rs` sends it commands and notices its death, `prewarm.rs` keeps
//! contexts ready, `context.rs` is the environment of one trajectory, `tab.rs` one page of it, and
//! `network.rs` intercepts its requests if an archive is recorded or replayed. Each operation on a
//! page has a file: `act.rs` (with `input.rs` and `keyboard.rs`), `observe.rs` (with `picture.rs`,
//! `marks.rs` and `paint.rs`), `settle.rs`, `script.rs`, `select.rs`, `clock.rs`. The files of a
//! session lie in `session_folder.rs`, `chooser.rs` gives them to pages and `downloads.rs` takes
//! them. `page_errors.rs` collects what an author of a site wants to know.

mod act;
mod blocked;
mod browser;
mod chooser;
mod clock;
mod context;
mod downloads;
mod error;
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
mod removal;
mod script;
mod select;
mod selftest;
mod session_folder;
mod settle;
mod tab;
mod user;
mod version;

pub use error::{BrowserError, LOOKED_FOR};
pub use pool::{BrowserHealth, ChromiumPool};
pub use user::is_root;
pub use version::browser_version;
