//! Sizes beyond which a message is refused before anything is allocated for it.

/// One gRPC message. A full-HD PNG of noise is 6.2 MB; 16 MiB leaves room for text beside it.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// One encoded screenshot: the message less 4 MiB for everything else in it.
pub const SCREENSHOT_BYTES_MAX: usize = 12 << 20;

/// One encoded step or ending: a message less its envelope.
pub const RECORD_BYTES_MAX: usize = MESSAGE_BYTES_MAX - 4096;

/// Steps a rebuilt session may bring along.
pub const PAST_STEPS_MAX: u32 = 10_000;

/// Longest time, in milliseconds, that a worker may ask to have its request for work held open (`env.lease_wait_millis`), and that a
/// coordinator holds one whatever is asked. A minute: proxies between machines cut calls that are silent for longer.
pub const LEASE_WAIT_MILLIS_MAX: u64 = 60_000;

/// Title of a page or tab, in bytes.
pub(crate) const TITLE_BYTES_MAX: usize = 4 << 10;

/// An address, in bytes.
pub(crate) const URL_BYTES_MAX: usize = 64 << 10;

/// A directory, in bytes: the longest that Linux takes.
pub(crate) const PATH_BYTES_MAX: usize = 4096;

/// A policy's reply, a goal, instructions, an answer or a script, in bytes.
pub(crate) const TEXT_BYTES_MAX: usize = 1 << 20;

/// A trace, in bytes: 100,000 prompt tokens and 10,000 response tokens with 512 kept ids each stay below.
pub(crate) const TRACE_BYTES_MAX: usize = 4 << 20;

/// Role of a mark, in bytes: a word of ARIA or a tag.
pub(crate) const ROLE_BYTES_MAX: usize = 64;

/// Tabs of an observation.
pub(crate) const TABS_MAX: usize = 256;

/// Side of an image or viewport in pixels.
pub(crate) const SIDE_MAX: u32 = 16_384;

/// Entries of a task's list of hosts.
pub(crate) const HOSTS_MAX: usize = 4096;

/// Tokens of a trace's list.
pub(crate) const TOKENS_MAX: usize = 1 << 20;
