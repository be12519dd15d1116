//! Keys that an earlier release knew under another name. A user's file is refused with the new
//! name; the job that a run directory keeps is read under it.

use super::tree::ConfigNode;

/// Key of an earlier release, and its name today.
const RENAMED: &[(&str, &str)] = &[
    ("env.blocked_patience_millis", "env.blocked_timeout_millis"),
    ("env.coordinator_patience_millis", "env.coordinator_retry_timeout_millis"),
    ("env.policy_patience_millis", "env.policy_retry_timeout_millis"),
    ("policy.engine.parked_bytes", "policy.engine.offload_bytes"),
];

/// The name that replaced a key, if one did.
pub(super) fn new_name(key: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(old, _)| *old == key).map(|(_, new)| *new)
}

/// Moves every value under an old key to the new one.
pub(super) fn apply(stored: &mut ConfigNode) {
    for (old, new) in RENAMED {
        stored.rename(old, new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::shape::KeyShape;
    use crate::job::{JobFile, tree};

    #[test]
    fn new_names_are_keys_of_today_and_old_ones_are_not() {
        let known = KeyShape::of::<JobFile>().keys();
        for (old, new) in RENAMED {
            assert!(known.iter().any(|key| key == new), "{new} is not a key");
            assert!(!known.iter().any(|key| key == old), "{old} is a key still");
        }
    }

    #[test]
    fn every_value_moves_to_its_new_key() {
        for (old, new) in RENAMED {
            let mut job = tree::parse(&format!("{old} = 5\nrun.seed = 1\n")).unwrap();
            apply(&mut job);
            assert!(!job.has(old));
            assert_eq!(job.plain(new), Some(&toml::Value::Integer(5)));
            assert_eq!(job.plain("run.seed"), Some(&toml::Value::Integer(1)));
        }
    }
}
