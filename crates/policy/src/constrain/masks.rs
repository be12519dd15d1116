//! The sets of legal ids of every place, made once, equal ones kept once.

use std::collections::HashMap;

use furrow_model::sample::Allowed;

use super::automaton::{Automaton, Node, Place, TooLarge};
use super::text::{State, Texts};

/// Sets of legal ids.
#[derive(Debug)]
pub(super) struct Masks {
    sets: Vec<Allowed>,
    /// Sets of each step that leaves a choice, by the ids that must be left for each: with fewer, fewer ways are open. One where every
    /// way always is.
    steps: HashMap<Place, Vec<(u32, usize)>>,
    /// Sets of each text: by state, then by room from 0 to where more room changes nothing.
    texts: HashMap<Place, TextSets>,
    /// White space, where an automaton has places for it.
    space: Option<usize>,
}

/// Set numbers by state and room; `None` for a state that no ids lead out of.
type TextSets = [Option<Vec<usize>>; State::COUNT];

/// Sets of one automaton: 16 KiB each for 131,072 ids.
const SETS_MAX: usize = 2048;
/// Ids of all sets, before equal ones are found: one for each place and number of ids left that opens another way.
const IDS_MAX: usize = 20_000_000;

impl Masks {
    /// Makes the sets of all places of an automaton whose ways are all kept open.
    pub fn new(automaton: &Automaton, texts: &Texts, vocabulary: usize) -> Result<Self, TooLarge> {
        Self::of(automaton, texts, vocabulary, |_| 0)
    }

    /// The same with the ids of white space.
    pub fn with_space(mut self, ids: &[u32], vocabulary: usize) -> Self {
        self.space = Some(self.add(of(ids, vocabulary)));
        self
    }

    /// Makes the sets of all places of an automaton of which one way is kept open.
    pub fn narrowed(automaton: &Automaton, texts: &Texts, vocabulary: usize) -> Result<Self, TooLarge> {
        Self::of(automaton, texts, vocabulary, |place| automaton.shortest(place) + 1)
    }

    /// `needed`: ids that must be left for a way to be open.
    fn of(
        automaton: &Automaton,
        texts: &Texts,
        vocabulary: usize,
        needed: impl Fn(Place) -> u32,
    ) -> Result<Self, TooLarge> {
        let mut masks = Self { sets: Vec::new(), steps: HashMap::new(), texts: HashMap::new(), space: None };
        let open = masks.add_texts(texts);
        // Steps of the same ids have the same set, and texts that are closed by the same ids the same sets.
        let (mut known, mut closed) = (HashMap::new(), HashMap::new());
        let mut ids_seen = 0usize;
        for (node, place) in automaton.nodes().iter().zip(0..) {
            match node {
                Node::Step(edges) if edges.len() > 1 => {
                    let mut needs: Vec<u32> = edges.iter().map(|(_, place)| needed(*place)).collect();
                    needs.sort_unstable();
                    needs.dedup();
                    ids_seen = ids_seen.saturating_add(needs.len() * edges.len());
                    if ids_seen > IDS_MAX {
                        return Err(TooLarge { what: "ids in sets of what may come next", most: IDS_MAX });
                    }
                    let mut sets = Vec::with_capacity(needs.len());
                    for need in needs {
                        let open = edges.iter().filter(|(_, place)| needed(*place) <= need);
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
                    masks.steps.insert(place, sets);
                }
                Node::Text { close, fills, .. } => {
                    let ids: Vec<u32> = match automaton.at(*close) {
                        Node::Step(edges) => edges.iter().map(|(id, _)| *id).collect(),
                        Node::Text { .. } | Node::Space { .. } | Node::End => Vec::new(),
                    };
                    masks.fits()?;
                    let sets = closed
                        .entry((ids, *fills))
                        .or_insert_with_key(|(ids, fills)| masks.add_closing(&open, ids, *fills, vocabulary));
                    masks.texts.insert(place, sets.clone());
                }
                Node::Step(_) | Node::Space { .. } | Node::End => {}
            }
        }
        Ok(masks)
    }

    /// Legal ids of a step that leaves a choice, and whether they are all of them, where so many ids are left.
    pub fn step(&self, place: Place, left: u32) -> (&Allowed, bool) {
        let sets = &self.steps[&place];
        let open = sets.partition_point(|(need, _)| *need <= left).max(1);
        (&self.sets[sets[open - 1].1], open == sets.len())
    }

    /// Legal ids within a text that may take `room` more ids before it is closed. A state other than plain has the room to come back.
    pub fn text(&self, place: Place, state: State, room: u32) -> &Allowed {
        let rooms = self.texts[&place][state as usize].as_deref().unwrap_or_default();
        &self.sets[rooms[(room as usize).min(rooms.len() - 1)]]
    }

    /// White space.
    pub fn space(&self) -> Option<&Allowed> {
        self.space.map(|set| &self.sets[set])
    }

    /// How many sets there are.
    pub fn len(&self) -> usize {
        self.sets.len()
    }

    fn fits(&self) -> Result<(), TooLarge> {
        let what = "sets of what may come next";
        if self.sets.len() < SETS_MAX { Ok(()) } else { Err(TooLarge { what, most: SETS_MAX }) }
    }

    fn add_step(&mut self, ids: &[u32], vocabulary: usize) -> Result<usize, TooLarge> {
        self.fits()?;
        Ok(self.add(of(ids, vocabulary)))
    }

    /// Sets of a text without its closing ids.
    fn add_texts(&mut self, texts: &Texts) -> TextSets {
        let mut open: TextSets = Default::default();
        for state in texts.states() {
            let sets = (0..=texts.rooms()).map(|room| self.add(texts.allowed(state, room)));
            open[state as usize] = Some(sets.collect());
        }
        open
    }

    /// Where nothing is open the text may be closed as well; one that fills only without room.
    fn add_closing(&mut self, open: &TextSets, ids: &[u32], fills: bool, vocabulary: usize) -> TextSets {
        let mut sets = open.clone();
        let rooms = if fills { 1 } else { usize::MAX };
        for set in sets[State::Plain as usize].iter_mut().flatten().take(rooms) {
            let mut closing = of(ids, vocabulary);
            closing.extend(self.sets[*set].iter());
            *set = self.add(closing);
        }
        sets
    }

    fn add(&mut self, set: Allowed) -> usize {
        self.sets.iter().position(|known| *known == set).unwrap_or_else(|| {
            self.sets.push(set);
            self.sets.len() - 1
        })
    }
}

fn of(ids: &[u32], vocabulary: usize) -> Allowed {
    let mut allowed = Allowed::new(vocabulary);
    allowed.extend(ids.iter().copied());
    allowed
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::Lexicon;
    use super::*;

    const ROWS: usize = 8192;

    /// Ids below 256 are bytes; those behind them are no text.
    fn texts() -> Texts {
        let bytes: Vec<u8> = (0..=255).collect();
        let text = |id: u32| bytes.get(id as usize..=id as usize);
        Texts::new(&Lexicon::new(ROWS, ROWS as u32 - 1, text, |text| text.bytes().map(u32::from).collect()))
    }

    /// Steps of two ids each, no two of the same; each leads to the one before it.
    fn steps(count: u32) -> Automaton {
        let mut automaton = Automaton::default();
        let mut place = automaton.end();
        for id in 0..count {
            place = automaton.step(BTreeMap::from([(id, place), (id + 1, place)]));
        }
        automaton
    }

    /// Texts that are closed by an id each, no two by the same.
    fn closings(count: u32) -> Automaton {
        let mut automaton = Automaton::default();
        let end = automaton.end();
        for id in 0..count {
            let close = automaton.chain(&[id + 300], end);
            automaton.text(10, close);
        }
        automaton
    }

    /// One step of so many ids, behind each of which another number of ids is left.
    fn fan(count: u32) -> Automaton {
        let mut automaton = Automaton::default();
        let mut place = automaton.end();
        let mut edges = BTreeMap::new();
        for id in 0..count {
            edges.insert(id, place);
            place = automaton.chain(&[0], place);
        }
        automaton.step(edges);
        automaton
    }

    #[test]
    fn sets_and_the_ids_in_them_are_bounded() {
        let texts = texts();
        let sets = Some(TooLarge { what: "sets of what may come next", most: SETS_MAX });
        let check = |automaton: &Automaton, want: [Option<TooLarge>; 2]| {
            let got =
                [Masks::new(automaton, &texts, ROWS).err(), Masks::narrowed(automaton, &texts, ROWS).err()];
            assert_eq!(got, want);
        };
        check(&steps(SETS_MAX as u32 - 100), [None, None]);
        check(&steps(SETS_MAX as u32 + 1), [sets, sets]);
        check(&closings(100), [None, None]);
        check(&closings(SETS_MAX as u32 + 1), [sets, sets]);
        // Where all ways stay open one set is enough; where one does, there is a set for each number of ids left: 4,473 of them, made from
        // 4,473 ids each.
        let ids = TooLarge { what: "ids in sets of what may come next", most: IDS_MAX };
        check(&fan(1000), [None, None]);
        check(&fan(IDS_MAX.isqrt() as u32 + 1), [None, Some(ids)]);
    }
}
