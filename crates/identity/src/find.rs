//! Where a process has its identity from.

use std::path::Path;

use crate::{Authority, Identity, IdentityError, PeerRole};

impl Identity {
    /// The identity of a process with this role: from a folder with the run's authority, issued
    /// now for `name`, or from a folder that `furrow identity issue` wrote or that is from outside,
    /// under the name there.
    pub fn find(dir: &Path, role: PeerRole, name: &str) -> Result<Self, IdentityError> {
        let found = if Self::is_in(dir) {
            Self::read(dir)?
        } else if Self::is_outside_in(dir) {
            Self::read_outside(dir)?
        } else {
            return Authority::open(dir)?.issue(role, name);
        };
        if found.peer().role != role {
            let peer = found.peer().to_string();
            return Err(IdentityError::OtherRole { dir: dir.to_owned(), peer, role });
        }
        Ok(found)
    }
}
