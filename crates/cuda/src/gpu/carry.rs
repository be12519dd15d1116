//! Copies within this machine's memory by several cores: one carries some 10 GB/s, a device takes 55 over PCIe 5.

use std::thread::available_parallelism;

use furrow_model::kernels::Team;

/// Cores that carry: what memory gives is the bound from then on.
const CORES_MAX: usize = 8;
/// Bytes of a piece: 0.2 ms of one core, long against waking another.
const PIECE: usize = 2 << 20;

/// The cores.
pub(super) fn carriers() -> Team {
    Team::new(available_parallelism().map_or(1, usize::from).min(CORES_MAX))
}

/// Copies bytes to as many.
pub(super) fn carry(team: &Team, from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "as many bytes");
    if from.len() <= PIECE {
        return to.copy_from_slice(from);
    }
    team.pieces(to, PIECE, |index, piece| piece.copy_from_slice(&from[index * PIECE..][..piece.len()]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_whatever_the_length() {
        let team = Team::new(3);
        for len in [0, 1, PIECE, PIECE + 1, 3 * PIECE - 1, 4 * PIECE] {
            let from: Vec<u8> = (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let mut to = vec![0; len];
            carry(&team, &from, &mut to);
            assert!(from == to, "{len} bytes");
        }
    }
}
