//! The automaton a reply walks through: places, what may come at each, and the fewest and most ids from there to the end.

use std::collections::{BTreeMap, HashMap};

/// Number of a node.
pub(super) type Place = u32;

/// What may come next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// One of some ids, ascending, each leading on.
    Step(Vec<(u32, Place)>),
    /// At most `cap` ids of free text, then one of the ids of the step `close`.
    Text { cap: u32, close: Place },
    /// Nothing.
    End,
}

/// Nodes, built from the end to the beginning; equal ones are one, so it is as small as it can be and has no cycle.
#[derive(Debug, Default)]
pub(super) struct Automaton {
    nodes: Vec<Node>,
    known: HashMap<Node, Place>,
    least: Vec<u32>,
    shortest: Vec<u32>,
    most: Vec<u32>,
}

/// Two ways on begin with the same ids and cannot be told apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ambiguous;

impl Automaton {
    /// Where a reply is complete.
    pub fn end(&mut self) -> Place {
        self.node(Node::End)
    }

    /// These ids, one after another, then `next`.
    pub fn chain(&mut self, ids: &[u32], next: Place) -> Place {
        ids.iter().rev().fold(next, |next, id| self.node(Node::Step(vec![(*id, next)])))
    }

    /// One of these ids, each with its own way on.
    pub fn step(&mut self, edges: BTreeMap<u32, Place>) -> Place {
        self.node(Node::Step(edges.into_iter().collect()))
    }

    /// Free text, then `close`.
    pub fn text(&mut self, cap: u32, close: Place) -> Place {
        self.node(Node::Text { cap, close })
    }

    /// Either of two ways: they share ids as far as they agree and part there.
    pub fn either(&mut self, left: Place, right: Place) -> Result<Place, Ambiguous> {
        if left == right {
            return Ok(left);
        }
        let (Node::Step(ours), Node::Step(theirs)) = (self.at(left).clone(), self.at(right).clone()) else {
            return Err(Ambiguous);
        };
        let mut edges: BTreeMap<u32, Place> = ours.into_iter().collect();
        for (id, place) in theirs {
            let joined = match edges.get(&id) {
                Some(other) => self.either(*other, place)?,
                None => place,
            };
            edges.insert(id, joined);
        }
        Ok(self.step(edges))
    }

    /// What may come at a place.
    pub fn at(&self, place: Place) -> &Node {
        &self.nodes[place as usize]
    }

    /// All nodes in order of their numbers.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Ids to the end with every text empty, by the longest of the other ways. Keep so many free and every way stays open.
    pub fn least(&self, place: Place) -> u32 {
        self.least[place as usize]
    }

    /// Ids to the end with every text empty, by the shortest of the other ways. Keep so many free and one way stays open.
    pub fn shortest(&self, place: Place) -> u32 {
        self.shortest[place as usize]
    }

    /// Ids to the end with every text at its cap, by the longest way.
    pub fn most(&self, place: Place) -> u32 {
        self.most[place as usize]
    }

    fn node(&mut self, node: Node) -> Place {
        if let Some(place) = self.known.get(&node) {
            return *place;
        }
        let longest = |ends: &[u32], edges: &[(u32, Place)]| {
            edges.iter().map(|(_, place)| ends[*place as usize].saturating_add(1)).max().unwrap_or(0)
        };
        let (least, shortest, most) = match &node {
            Node::Step(edges) => {
                let shortest = edges.iter().map(|(_, place)| self.shortest(*place) + 1).min().unwrap_or(0);
                (longest(&self.least, edges), shortest, longest(&self.most, edges))
            }
            Node::Text { cap, close } => {
                (self.least(*close), self.shortest(*close), self.most(*close).saturating_add(*cap))
            }
            Node::End => (0, 0, 0),
        };
        self.least.push(least);
        self.shortest.push(shortest);
        self.most.push(most);
        self.nodes.push(node.clone());
        let place = (self.nodes.len() - 1) as Place;
        self.known.insert(node, place);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_share_what_they_agree_on() {
        let mut automaton = Automaton::default();
        let end = automaton.end();
        let text = automaton.chain(&[9], end);
        let text = automaton.text(5, text);
        let left = automaton.chain(&[1, 2, 3], end);
        let right = automaton.chain(&[1, 4], text);
        let both = automaton.either(left, right).unwrap();
        let Node::Step(first) = automaton.at(both).clone() else { panic!() };
        let Node::Step(second) = automaton.at(first[0].1) else { panic!() };
        assert_eq!((first.len(), second.iter().map(|(id, _)| *id).collect::<Vec<_>>()), (1, vec![2, 4]));
        assert_eq!((automaton.shortest(both), automaton.least(both), automaton.most(both)), (3, 3, 8));
        assert_eq!(automaton.either(both, left), Ok(both), "equal nodes are one");
        // One way ends where the other goes on: the id alone does not say which.
        let short = automaton.chain(&[1], end);
        assert_eq!(automaton.either(left, short), Err(Ambiguous));
        assert_eq!(automaton.either(text, end), Err(Ambiguous));
    }
}
