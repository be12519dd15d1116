//! Seeds of draws: disjoint by what they are for, the same on every machine.

use rand::rngs::ChaCha12Rng;
use rand::{Rng, SeedableRng};

/// What a draw is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeedRole {
    /// Policies learn from it; a demonstration is recorded under it.
    Training,
    /// A policy is tried on it first.
    Test,
    /// A policy is tried on it once more.
    Repeat,
}

/// The first seeds of a task for a role, below 2^32: the range that samplers draw from. The two
/// lowest bits say the role, so no seed has two.
pub(super) fn seeds(root: u64, task: &str, role: SeedRole, count: usize) -> Vec<u64> {
    let low = match role {
        SeedRole::Training => 0,
        SeedRole::Test => 1,
        SeedRole::Repeat => 2,
    };
    // FNV-1a: another name, other seeds.
    let name = task.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut rng = ChaCha12Rng::seed_from_u64(name ^ root.rotate_left(32) ^ low);
    (0..count).map(|_| (rng.next_u64() & 0xffff_fffc) | low).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_share_no_seed_and_more_seeds_begin_with_fewer() {
        let of = |role, count| seeds(5, "web/a", role, count);
        let all = [SeedRole::Training, SeedRole::Test, SeedRole::Repeat].map(|role| of(role, 300));
        let mut distinct: Vec<u64> = all.concat();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 900);
        assert_eq!(of(SeedRole::Test, 30), all[1][..30]);
        assert_ne!(seeds(6, "web/a", SeedRole::Test, 30), all[1][..30]);
        assert_ne!(seeds(5, "web/b", SeedRole::Test, 30), all[1][..30]);
    }
}
