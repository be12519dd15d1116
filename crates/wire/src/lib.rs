//! The contract between machines: conversions between proto messages and domain types.
//!
//! Only this crate reads `proto/`. Each domain type has one file: `*_from` validates what came from
//! a peer (sizes, names, ranges) and names what is wrong; `*_into` cannot fail. A converted value
//! is trusted.

#![warn(missing_docs)]

mod access;
mod assignment;
mod authorize;
mod budget;
mod current_identity;
mod enrolment;
mod error;
mod files;
mod handshake;
mod incoming;
mod lease;
mod limits;
mod link;
mod observation;
mod reply;
mod revocations;
mod session;
mod step;
mod tls;
mod trace;
mod weights;

pub use access::Caller;
pub use assignment::{
    ancestry_from, ancestry_into, assignment_from, assignment_into, session_spec_from, session_spec_into,
    task_from, task_into,
};
pub use authorize::{Authorize, AuthorizeLayer};
pub use enrolment::{Enroller, enrol, serve_enrolment};
pub use error::{RefusalKind, WireError, describe_status, refusal};
pub use files::FileContents;
pub use furrow_identity::{Identity, Peer, PeerRole, RevokedPeer};
pub use incoming::{BoundedIncoming, BoundedStream, ConnectionLimits, raise_descriptor_limit};
pub use lease::{lease_ref_from, lease_ref_into, lease_secret_from, lease_secret_into};
pub use limits::{
    LEASE_WAIT_MILLIS_MAX, MESSAGE_BYTES_MAX, PAST_STEPS_MAX, RECORD_BYTES_MAX, SCREENSHOT_BYTES_MAX,
};
pub use link::{
    Authorized, AuthorizedServer, Connector, LinkTimeouts, TcpConnector, TlsConnector, accept,
    authorized_server, endpoint, serve, server, with_deadline, with_health_and_reflection,
};
pub use observation::{observation_from, observation_into, screenshot_from, screenshot_into};
pub use reply::{outcome_from, outcome_into, reply_from, reply_into};
pub use revocations::Revocations;
pub use session::{PastStep, SessionOpening, past_from, past_into};
pub use step::{
    OpaqueStep, decode_ending, decode_opaque_step, decode_step, digest, encode_ending, encode_opaque_step,
};
pub use tonic::transport::Channel;
pub use tonic::{Code, Status};
pub use trace::{decode_trace, encode_trace};
pub use weights::{
    sha256_from, weights_link_from, weights_link_into, weights_order_from, weights_order_into,
};

/// The generated messages and services.
pub mod v1 {
    #![allow(
        missing_docs,
        unused_qualifications,
        clippy::all,
        clippy::pedantic,
        reason = "generated from proto/"
    )]
    tonic::include_proto!("furrow.v1");

    /// Encoded file descriptor set for the reflection service.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/furrow.bin"));
}
