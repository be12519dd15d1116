//! The HTTP server of every role: it bounds connections, bodies and waits, authenticates requests,
//! and drains on a stop.
//!
//! A role makes an axum `Router` of its paths with an [`AccessLayer`] around it, and passes it to
//! [`HttpServer::serve`]. Each role binds its own port and has its own token, its own limits and
//! its own form of errors. `server.rs` accepts connections and drives hyper within `limits.rs`;
//! `layer.rs` asks `access.rs` for a decision on a request, which compares its `token.rs` or, for
//! browsers, the cookie of `sign_in.rs`; `body.rs` reads a body.
//!
//! `furrow_testkit::hostile_http` is the table of hostile clients that each server is tried with.

mod access;
mod body;
mod headers;
mod layer;
mod limits;
mod response;
mod server;
mod sign_in;
mod token;
mod write_timeout;

pub use access::{AccessControl, AccessRefusal, AccessRules, OriginCheck};
pub use body::{BodyError, read_body};
pub use layer::{AccessLayer, AccessService};
pub use limits::HttpLimits;
pub use response::{CHALLENGE, HTML, JSON, respond};
pub use server::{HttpServer, ServerTasks};
pub use sign_in::{SignIn, SignInError};
pub use token::{TokenError, read_token};
