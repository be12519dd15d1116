//! A set of token ids, one bit each: the ids that a grammar allows next.

/// Ids that may be sampled, out of a vocabulary of fixed size. 131,072 ids are 16 KiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedTokens {
    bits: Vec<u64>,
    vocabulary: u32,
    count: u32,
}

impl AllowedTokens {
    /// The empty set for a vocabulary of this size.
    pub fn new(vocabulary: usize) -> Self {
        Self { bits: vec![0; vocabulary.div_ceil(64)], vocabulary: vocabulary as u32, count: 0 }
    }

    /// Every id of a vocabulary of this size.
    pub fn all(vocabulary: usize) -> Self {
        let mut bits = vec![u64::MAX; vocabulary.div_ceil(64)];
        if let (Some(last), left @ 1..) = (bits.last_mut(), vocabulary % 64) {
            *last = (1 << left) - 1;
        }
        Self { bits, vocabulary: vocabulary as u32, count: vocabulary as u32 }
    }

    /// Adds an id; false if it was in the set already or is not in the vocabulary.
    pub fn insert(&mut self, id: u32) -> bool {
        let new = id < self.vocabulary && !self.contains(id);
        if new {
            self.bits[id as usize / 64] |= 1 << (id % 64);
            self.count += 1;
        }
        new
    }

    /// Whether the id is in the set.
    pub fn contains(&self, id: u32) -> bool {
        self.bits.get(id as usize / 64).is_some_and(|block| block >> (id % 64) & 1 == 1)
    }

    /// Number of ids in the set.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Size of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary as usize
    }

    /// The ids in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.bits
            .iter()
            .zip((0..).step_by(64))
            .flat_map(|(block, first)| SetBits(*block).map(move |bit| first + bit))
    }

    pub fn first(&self) -> Option<u32> {
        self.iter().next()
    }

    /// The bits, id `i` at bit `i % 64` of element `i / 64`; bits of ids outside the vocabulary are
    /// 0.
    pub fn bits(&self) -> &[u64] {
        &self.bits
    }
}

impl Extend<u32> for AllowedTokens {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, ids: I) {
        for id in ids {
            self.insert(id);
        }
    }
}

/// Iterates over the positions of set bits, lowest first.
struct SetBits(u64);

impl Iterator for SetBits {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let bit = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (bit < 64).then_some(bit)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn all_stops_at_the_vocabulary() {
        for vocabulary in [0, 1, 63, 64, 65, 128, 300] {
            let all = AllowedTokens::all(vocabulary);
            assert_eq!(all.iter().collect::<Vec<_>>(), (0..vocabulary as u32).collect::<Vec<_>>());
            let mut one_by_one = AllowedTokens::new(vocabulary);
            one_by_one.extend(0..vocabulary as u32 + 70);
            assert_eq!(all, one_by_one);
            assert!(!all.contains(vocabulary as u32) && !all.contains(u32::MAX));
        }
    }

    proptest! {
        #[test]
        fn it_is_a_set(ids in prop::collection::btree_set(0u32..200, 0..99)) {
            let mut allowed = AllowedTokens::new(200);
            allowed.extend(ids.iter().copied());
            prop_assert_eq!(allowed.iter().collect::<Vec<_>>(), ids.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(allowed.count() as usize, ids.len());
            prop_assert_eq!(allowed.first(), ids.first().copied());
            prop_assert!((0..200).all(|id| allowed.contains(id) == ids.contains(&id)));
        }
    }
}
