//! The limits of a server's connections.

use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpLimits {
    /// Most open connections; more wait in the system's queue.
    pub connections_max: usize,
    /// Most bytes of a request's line and headers: the buffer of a connection, at least 8 KiB.
    pub head_bytes_max: usize,
    /// Until the line and headers of a request are complete, from the start of the connection or
    /// the end of the previous response. So it also limits idle connections.
    pub head_timeout: Duration,
    /// Until a body is complete, for the routes that read one with
    /// [`read_body`](crate::read_body).
    pub body_timeout: Duration,
    /// Until a part of a response is sent; after that the client counts as gone.
    pub write_timeout: Duration,
    /// Total life of a connection, for clients that connect again by themselves.
    pub connection_timeout: Option<Duration>,
}
