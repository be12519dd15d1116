//! The roles that a certificate can name.

use std::fmt;

/// What a process does in a run, and so what it may ask of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerRole {
    /// Assigns work and receives records.
    Coordinator,
    /// Turns observations into actions.
    Policy,
    /// Leases trajectories and runs them in browsers.
    Env,
    /// Commands of a person or a trainer, which change the run: publish, drain.
    Client,
    /// Reads how the run goes and changes nothing.
    Observer,
}

impl PeerRole {
    pub const ALL: [Self; 5] = [Self::Coordinator, Self::Policy, Self::Env, Self::Client, Self::Observer];

    /// The role's name in certificates and commands.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator",
            Self::Policy => "policy",
            Self::Env => "env",
            Self::Client => "client",
            Self::Observer => "observer",
        }
    }

    /// The role of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }

    /// The name that certificates of this role carry for clients, if the role serves calls. It
    /// depends on no address, because a service may have several.
    pub fn server_name(self) -> String {
        format!("{self}.furrow.internal")
    }

    /// Whether processes of this role serve calls of others.
    pub(crate) fn serves(self) -> bool {
        matches!(self, Self::Coordinator | Self::Policy)
    }
}

impl fmt::Display for PeerRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
