//! The sets of legal ids of every place, made once, equal ones kept once.

use std::collections::HashMap;

use furrow_model::sample::Allowed;

use super::automaton::{Automaton, Node, Place};
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
}

/// Set numbers by state and room; `None` for a state that no ids lead out of.
type TextSets = [Option<Vec<usize>>; State::COUNT];

impl Masks {
    /// Makes the sets of all places of an automaton whose ways are all kept open.
    pub fn new(automaton: &Automaton, texts: &Texts, vocabulary: usize) -> Self {
        Self::of(automaton, texts, vocabulary, |_| 0)
    }

    /// Makes the sets of all places of an automaton of which one way is kept open.
    pub fn narrowed(automaton: &Automaton, texts: &Texts, vocabulary: usize) -> Self {
        Self::of(automaton, texts, vocabulary, |place| automaton.shortest(place) + 1)
    }

    /// `needed`: ids that must be left for a way to be open.
    fn of(automaton: &Automaton, texts: &Texts, vocabulary: usize, needed: impl Fn(Place) -> u32) -> Self {
        let mut masks = Self { sets: Vec::new(), steps: HashMap::new(), texts: HashMap::new() };
        let open = masks.add_texts(texts);
        // Steps of the same ids have the same set, and texts that are closed by the same ids the same sets.
        let (mut known, mut closed) = (HashMap::new(), HashMap::new());
        for (node, place) in automaton.nodes().iter().zip(0..) {
            match node {
                Node::Step(edges) if edges.len() > 1 => {
                    let mut needs: Vec<u32> = edges.iter().map(|(_, place)| needed(*place)).collect();
                    needs.sort_unstable();
                    needs.dedup();
                    let sets = needs.into_iter().map(|need| {
                        let open = edges.iter().filter(|(_, place)| needed(*place) <= need);
                        let ids: Vec<u32> = open.map(|(id, _)| *id).collect();
                        (need, *known.entry(ids).or_insert_with_key(|ids| masks.add(of(ids, vocabulary))))
                    });
                    let sets = sets.collect();
                    masks.steps.insert(place, sets);
                }
                Node::Text { close, .. } => {
                    let ids: Vec<u32> = match automaton.at(*close) {
                        Node::Step(edges) => edges.iter().map(|(id, _)| *id).collect(),
                        Node::Text { .. } | Node::End => Vec::new(),
                    };
                    let sets =
                        closed.entry(ids).or_insert_with_key(|ids| masks.add_closing(&open, ids, vocabulary));
                    masks.texts.insert(place, sets.clone());
                }
                Node::Step(_) | Node::End => {}
            }
        }
        masks
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

    /// How many sets there are.
    pub fn len(&self) -> usize {
        self.sets.len()
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

    /// Where nothing is open the text may be closed as well.
    fn add_closing(&mut self, open: &TextSets, ids: &[u32], vocabulary: usize) -> TextSets {
        let mut sets = open.clone();
        for set in sets[State::Plain as usize].iter_mut().flatten() {
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
