//! Sizes above which a message is refused before any memory is allocated for it.

/// One gRPC message. A full-HD PNG of noise is 6.2 MB; 16 MiB leaves space for text beside it.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// One encoded screenshot: the message minus 4 MiB for everything else in it.
pub const SCREENSHOT_BYTES_MAX: usize = 12 << 20;

/// One encoded step or ending: a message minus its envelope.
pub const RECORD_BYTES_MAX: usize = MESSAGE_BYTES_MAX - 4096;

/// Most past steps that a request to rebuild a session may contain.
pub const PAST_STEPS_MAX: u32 = 10_000;

/// Longest time, in milliseconds, that a request for work may stay open: the maximum of
/// `env.lease_wait_millis` and the coordinator's own limit. It is one minute because proxies
/// between machines cut connections that are silent for longer.
pub const LEASE_WAIT_MILLIS_MAX: u64 = 60_000;

/// Title of a page or tab, in bytes.
pub(crate) const TITLE_BYTES_MAX: usize = 4 << 10;

/// An address, in bytes.
pub(crate) const URL_BYTES_MAX: usize = 64 << 10;

/// A directory, in bytes: the longest path that Linux accepts.
pub(crate) const PATH_BYTES_MAX: usize = 4096;

/// A policy's reply, a goal, instructions, an answer or a script, in bytes.
pub(crate) const TEXT_BYTES_MAX: usize = 1 << 20;

/// A trace, in bytes: 100,000 prompt tokens and 10,000 response tokens with 512 kept ids each stay
/// below.
pub(crate) const TRACE_BYTES_MAX: usize = 4 << 20;

/// Role of a mark, in bytes: an ARIA role or a tag name.
pub(crate) const ROLE_BYTES_MAX: usize = 64;

/// Most tabs of an observation.
pub(crate) const TABS_MAX: usize = 256;

/// Longest side of an image or viewport, in pixels.
pub(crate) const SIDE_MAX: u32 = 16_384;

/// Most entries of a task's host list.
pub(crate) const HOSTS_MAX: usize = 4096;

/// Most tokens of one reply, as in a job's `policy.sampling.max_tokens`.
pub(crate) const REPLY_TOKENS_MAX: u32 = 1_000_000;

/// Most tokens in a list of a trace.
pub(crate) const TOKENS_MAX: usize = 1 << 20;
