//! The sets of legal ids of every node, computed once; equal sets are stored once.

use std::collections::HashMap;

use furrow_model::sample::AllowedTokens;

use super::automaton::{Automaton, LimitExceeded, Node, NodeId};
use super::text::{TextState, TextTransitions};

/// Sets of legal ids.
#[derive(Debug)]
pub(super) struct TokenMasks {
    sets: Vec<AllowedTokens>,
    /// Sets of each step with a choice, by the number of ids that must be left for each: with fewer
    /// ids left, fewer paths are open. There is one set if all paths are always open.
    steps: HashMap<NodeId, Vec<(u32, usize)>>,
    /// Sets of each text: by state, then by budget, from 0 to the budget above which all sets are
    /// equal.
    texts: HashMap<NodeId, TextSets>,
    /// White space, if the automaton has nodes for it.
    space: Option<usize>,
}

/// Indices of sets by state and budget; `None` for a state that no id leaves.
type TextSets = [Option<Vec<usize>>; TextState::COUNT];

/// Most sets of an automaton: 16 KiB each for 131,072 ids.
const SETS_MAX: usize = 2048;
/// Most ids of all sets before equal ones are merged. There is one set for each node and each
/// number of ids left that opens another path.
const IDS_MAX: usize = 20_000_000;

impl TokenMasks {
    /// Computes the sets of an automaton that keeps all paths open.
    pub(super) fn new(
        automaton: &Automaton,
        texts: &TextTransitions,
        vocabulary: usize,
    ) -> Result<Self, LimitExceeded> {
        Self::of(automaton, texts, vocabulary, |_| 0)
    }

    /// Adds the ids of white space.
    pub(super) fn with_space(mut self, ids: &[u32], vocabulary: usize) -> Self {
        self.space = Some(self.add(of(ids, vocabulary)));
        self
    }

    /// Computes the sets of an automaton that keeps one path open.
    pub(super) fn narrowed(
        automaton: &Automaton,
        texts: &TextTransitions,
        vocabulary: usize,
    ) -> Result<Self, LimitExceeded> {
        Self::of(automaton, texts, vocabulary, |node_id| automaton.shortest(node_id) + 1)
    }

    /// `ids_needed` returns the ids that must be left for a path to be open.
    fn of(
        automaton: &Automaton,
        texts: &TextTransitions,
        vocabulary: usize,
        needed: impl Fn(NodeId) -> u32,
    ) -> Result<Self, LimitExceeded> {
        let mut masks = Self { sets: Vec::new(), steps: HashMap::new(), texts: HashMap::new(), space: None };
        let open = masks.add_texts(texts);
        // Steps with the same ids have the same set, and texts that the same ids close have the
        // same sets.
        let mut known = HashMap::new();
        let mut closed = HashMap::new();
        let mut ids_counted = 0usize;
        for (node, node_id) in automaton.nodes().iter().zip(0..) {
            match node {
                Node::Step(edges) if edges.len() > 1 => {
                    let mut needs: Vec<u32> = edges.iter().map(|(_, node_id)| needed(*node_id)).collect();
                    needs.sort_unstable();
                    needs.dedup();
                    ids_counted = ids_counted.saturating_add(needs.len() * edges.len());
                    if ids_counted > IDS_MAX {
                        return Err(LimitExceeded { what: "ids in sets of legal ids", most: IDS_MAX });
                    }
                    let mut sets = Vec::with_capacity(needs.len());
                    for need in needs {
                        let open = edges.iter().filter(|(_, node_id)| needed(*node_id) <= need);
                        let ids: Vec<u32> = open.map(|(id, _)| *id).collect();
                        let set = match known.get(&ids) {
                            Some(set) => *set,
                            None => {
                                let set = masks.add_step(&ids, vocabulary)?;
                                known.insert(ids, set);
                                set
                            }
                        };
                        sets.push((need, set));
                    }
                    masks.steps.insert(node_id, sets);
                }
                Node::Text { close, fills, .. } => {
                    let ids: Vec<u32> = match automaton.at(*close) {
                        Node::Step(edges) => edges.iter().map(|(id, _)| *id).collect(),
                        Node::Text { .. } | Node::Space { .. } | Node::End => Vec::new(),
                    };
                    masks.check_limits()?;
                    let sets = closed
                        .entry((ids, *fills))
                        .or_insert_with_key(|(ids, fills)| masks.add_closing(&open, ids, *fills, vocabulary));
                    masks.texts.insert(node_id, sets.clone());
                }
                Node::Step(_) | Node::Space { .. } | Node::End => {}
            }
        }
        Ok(masks)
    }

    /// Legal ids of a step with a choice when `left` ids are left, and whether they are all of its
    /// ids.
    pub(super) fn step(&self, node_id: NodeId, left: u32) -> (&AllowedTokens, bool) {
        let sets = &self.steps[&node_id];
        let open = sets.partition_point(|(need, _)| *need <= left).max(1);
        (&self.sets[sets[open - 1].1], open == sets.len())
    }

    /// Legal ids within a text that may take `budget` more ids before it is closed. A state other
    /// than plain has enough budget to become plain.
    pub(super) fn text(&self, node_id: NodeId, state: TextState, budget: u32) -> &AllowedTokens {
        let budgets = self.texts[&node_id][state as usize].as_deref().unwrap_or_default();
        &self.sets[budgets[(budget as usize).min(budgets.len() - 1)]]
    }

    /// The set of white space.
    pub(super) fn space(&self) -> Option<&AllowedTokens> {
        self.space.map(|set| &self.sets[set])
    }

    pub(super) fn len(&self) -> usize {
        self.sets.len()
    }

    fn check_limits(&self) -> Result<(), LimitExceeded> {
        let what = "sets of legal ids";
        if self.sets.len() < SETS_MAX { Ok(()) } else { Err(LimitExceeded { what, most: SETS_MAX }) }
    }

    fn add_step(&mut self, ids: &[u32], vocabulary: usize) -> Result<usize, LimitExceeded> {
        self.check_limits()?;
        Ok(self.add(of(ids, vocabulary)))
    }

    /// Sets of a text without its closing ids.
    fn add_texts(&mut self, texts: &TextTransitions) -> TextSets {
        let mut open: TextSets = Default::default();
        for state in texts.states() {
            let sets = (0..=texts.budgets()).map(|budget| self.add(texts.allowed(state, budget)));
            open[state as usize] = Some(sets.collect());
        }
        open
    }

    /// In the plain state the text may be closed as well; a filling text only without budget.
    fn add_closing(&mut self, open: &TextSets, ids: &[u32], fills: bool, vocabulary: usize) -> TextSets {
        let mut sets = open.clone();
        let closable = if fills { 1 } else { usize::MAX };
        for set in sets[TextState::Plain as usize].iter_mut().flatten().take(closable) {
            let mut closing = of(ids, vocabulary);
            closing.extend(self.sets[*set].iter());
            *set = self.add(closing);
        }
        sets
    }

    fn add(&mut self, set: AllowedTokens) -> usize {
        self.sets.iter().position(|known| *known == set).unwrap_or_else(|| {
            self.sets.push(set);
            self.sets.len() - 1
        })
    }
}

fn of(ids: &[u32], vocabulary: usize) -> AllowedTokens {
    let mut allowed = AllowedTokens::new(vocabulary);
    allowed.extend(ids.iter().copied());
    allowed
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::TokenLexicon;
    use super::*;

    const ROWS: usize = 8192;

    /// Ids below 256 are bytes; those above are not text.
    fn texts() -> TextTransitions {
        let bytes: Vec<u8> = (0..=255).collect();
        let text = |id: u32| bytes.get(id as usize..=id as usize);
        TextTransitions::new(&TokenLexicon::new(ROWS, ROWS as u32 - 1, text, |text| {
            text.bytes().map(u32::from).collect()
        }))
    }

    /// Steps of two ids each, all different, each leading to the one before it.
    fn steps(count: u32) -> Automaton {
        let mut automaton = Automaton::default();
        let mut node_id = automaton.end();
        for id in 0..count {
            node_id = automaton.step(BTreeMap::from([(id, node_id), (id + 1, node_id)]));
        }
        automaton
    }

    /// Texts that are closed by one id each, all different.
    fn closings(count: u32) -> Automaton {
        let mut automaton = Automaton::default();
        let end = automaton.end();
        for id in 0..count {
            let close = automaton.chain(&[id + 300], end);
            automaton.text(10, close);
        }
        automaton
    }

    /// One step of this many ids, after each of which another number of ids is left.
    fn fan(count: u32) -> Automaton {
        let mut automaton = Automaton::default();
        let mut node_id = automaton.end();
        let mut edges = BTreeMap::new();
        for id in 0..count {
            edges.insert(id, node_id);
            node_id = automaton.chain(&[0], node_id);
        }
        automaton.step(edges);
        automaton
    }

    #[test]
    fn sets_and_the_ids_in_them_are_bounded() {
        let texts = texts();
        let sets = Some(LimitExceeded { what: "sets of legal ids", most: SETS_MAX });
        let check = |automaton: &Automaton, want: [Option<LimitExceeded>; 2]| {
            let got = [
                TokenMasks::new(automaton, &texts, ROWS).err(),
                TokenMasks::narrowed(automaton, &texts, ROWS).err(),
            ];
            assert_eq!(got, want);
        };
        check(&steps(SETS_MAX as u32 - 100), [None, None]);
        check(&steps(SETS_MAX as u32 + 1), [sets, sets]);
        check(&closings(100), [None, None]);
        check(&closings(SETS_MAX as u32 + 1), [sets, sets]);
        // With all paths open one set is enough. With one path open there is a set for each number
        // of ids left: 4,473 of them, each computed from 4,473 ids.
        let ids = LimitExceeded { what: "ids in sets of legal ids", most: IDS_MAX };
        check(&fan(1000), [None, None]);
        check(&fan(IDS_MAX.isqrt() as u32 + 1), [None, Some(ids)]);
    }
}
