//! The server's side: the door for a request of `/chat/completions`, and the forms of what is answered.
//!
//! Only forms: who may ask, how long it may take and what computes is its caller's. What a server of ours does not do is refused by its
//! name, never ignored: a client that asked for `n` = 4 and got one reply would not notice.

mod answer;
mod request;

pub use answer::{ApiError, DONE, Delta, Envelope, Finish, TokenLogprob, Told, Usage, models};
pub use request::{ChatLimits, ChatRequest, Format, Part, Said, Sampled};
