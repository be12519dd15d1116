//! The sets of legal ids of every place, made once, equal ones kept once.

use std::collections::HashMap;

use furrow_model::sample::Allowed;

use super::automaton::{Automaton, Node, Place};
use super::text::{State, Texts};

/// Sets of legal ids.
#[derive(Debug)]
pub(super) struct Masks {
    sets: Vec<Allowed>,
    /// Set of each step that leaves a choice.
    steps: HashMap<Place, usize>,
    /// Sets of each text: by state, then by room from 0 to where more room changes nothing.
    texts: HashMap<Place, TextSets>,
}

/// Set numbers by state and room; `None` for a state that no ids lead out of.
type TextSets = [Option<Vec<usize>>; State::COUNT];

impl Masks {
    /// Makes the sets of all places.
    pub fn new(automaton: &Automaton, texts: &Texts, vocabulary: usize) -> Self {
        let mut masks = Self { sets: Vec::new(), steps: HashMap::new(), texts: HashMap::new() };
        let open = masks.add_texts(texts);
        for (node, place) in automaton.nodes().iter().zip(0..) {
            match node {
                Node::Step(edges) if edges.len() > 1 => {
                    let set = masks.add(of(edges, vocabulary));
                    masks.steps.insert(place, set);
                }
                Node::Text { close, .. } => {
                    let sets = masks.add_closing(&open, automaton.at(*close), vocabulary);
                    masks.texts.insert(place, sets);
                }
                Node::Step(_) | Node::End => {}
            }
        }
        masks
    }

    /// Legal ids of a step that leaves a choice.
    pub fn step(&self, place: Place) -> &Allowed {
        &self.sets[self.steps[&place]]
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
    fn add_closing(&mut self, open: &TextSets, close: &Node, vocabulary: usize) -> TextSets {
        let Node::Step(edges) = close else { return open.clone() };
        let mut sets = open.clone();
        for set in sets[State::Plain as usize].iter_mut().flatten() {
            let mut closing = of(edges, vocabulary);
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

fn of(edges: &[(u32, Place)], vocabulary: usize) -> Allowed {
    let mut allowed = Allowed::new(vocabulary);
    allowed.extend(edges.iter().map(|(id, _)| *id));
    allowed
}
