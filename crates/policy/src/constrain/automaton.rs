//! The automaton a reply walks through: places, what may come at each, and the fewest and most ids from there to the end.

use std::collections::{BTreeMap, HashMap};

/// Number of a node.
pub(super) type Place = u32;

/// What may come next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// One of some ids, ascending, each leading on.
    Step(Vec<(u32, Place)>),
    /// At most `cap` ids of free text, then one of the ids of the step `close`; one that `fills` is closed only where it has no room left.
    Text { cap: u32, close: Place, fills: bool },
    /// White space until just as many ids are left as `close` takes.
    Space { close: Place },
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
    /// Ids that lead on, of all nodes.
    edges: usize,
    /// Ids looked at so far.
    work: usize,
}

/// Why two ways are not joined.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unjoined {
    /// They begin with the same ids and cannot be told apart.
    Ambiguous,
    /// They agree for too long, or the automaton is full.
    TooLarge(TooLarge),
}

/// What there is more of than there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLarge {
    pub what: &'static str,
    pub most: usize,
}

/// Places: some 100 bytes each.
const PLACES_MAX: usize = 200_000;
/// Ids that lead on: 8 bytes each, twice while it is built, so 32 MB. A number takes 50 places of up to 1,110 ids where ids have up to
/// three digits; 32 of them fit.
const EDGES_MAX: usize = 2_000_000;
/// Ids and bytes looked at: some seconds without optimisation. Joining looks at an id three times.
const WORK_MAX: usize = 6_000_000;
/// Ids that two ways may share before they part. Names and words have up to 256 bytes.
const SHARED_MAX: usize = 1000;

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
        self.node(Node::Text { cap, close, fills: false })
    }

    /// Free text that takes all the room there is, then `close`.
    pub fn filling_text(&mut self, close: Place) -> Place {
        self.node(Node::Text { cap: u32::MAX, close, fills: true })
    }

    /// White space that takes all the room there is, none included, then `close`, which one way leads on from.
    pub fn space(&mut self, close: Place) -> Place {
        self.node(Node::Space { close })
    }

    /// Either of two ways: they share ids as far as they agree and part there.
    pub fn either(&mut self, left: Place, right: Place) -> Result<Place, Unjoined> {
        self.join(left, right, 0)
    }

    fn join(&mut self, left: Place, right: Place, shared: usize) -> Result<Place, Unjoined> {
        if left == right {
            return Ok(left);
        }
        if shared > SHARED_MAX {
            let what = "ids that two of its ways begin with alike";
            return Err(Unjoined::TooLarge(TooLarge { what, most: SHARED_MAX }));
        }
        self.fits().map_err(Unjoined::TooLarge)?;
        let (Node::Step(ours), Node::Step(theirs)) = (self.at(left).clone(), self.at(right).clone()) else {
            return Err(Unjoined::Ambiguous);
        };
        self.count(1 + ours.len() + theirs.len());
        let mut edges: BTreeMap<u32, Place> = ours.into_iter().collect();
        for (id, place) in theirs {
            let joined = match edges.get(&id) {
                Some(other) => self.join(*other, place, shared + 1)?,
                None => place,
            };
            edges.insert(id, joined);
        }
        Ok(self.step(edges))
    }

    /// Adds to what was looked at.
    pub fn count(&mut self, work: usize) {
        self.work = self.work.saturating_add(work);
    }

    /// Refuses to go on when there is too much of anything.
    pub fn fits(&self) -> Result<(), TooLarge> {
        let counted = [
            ("places", self.nodes.len(), PLACES_MAX),
            ("ids that lead on", self.edges, EDGES_MAX),
            ("steps to build it", self.work, WORK_MAX),
        ];
        match counted.into_iter().find(|(_, count, most)| count > most) {
            Some((what, _, most)) => Err(TooLarge { what, most }),
            None => Ok(()),
        }
    }

    /// As it is when nothing is added any more: without the table of equal nodes.
    pub fn finished(self) -> Self {
        Self { known: HashMap::new(), ..self }
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
        let edges = if let Node::Step(edges) = &node { edges.len() } else { 0 };
        self.count(1 + edges);
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
            Node::Text { cap, close, .. } => {
                (self.least(*close), self.shortest(*close), self.most(*close).saturating_add(*cap))
            }
            Node::Space { close } => (self.least(*close), self.shortest(*close), u32::MAX),
            Node::End => (0, 0, 0),
        };
        self.edges += edges;
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
        assert_eq!(automaton.either(left, short), Err(Unjoined::Ambiguous));
        assert_eq!(automaton.either(text, end), Err(Unjoined::Ambiguous));
        // Ways that agree for longer than a stack is deep.
        let alike = |last: u32| std::iter::repeat_n(7, 100_000).chain([last]).collect::<Vec<_>>();
        let (left, right) = (automaton.chain(&alike(1), end), automaton.chain(&alike(2), end));
        assert!(matches!(automaton.either(left, right), Err(Unjoined::TooLarge(_))));
    }

    #[test]
    fn it_grows_no_further_than_its_bounds() {
        let refused = |what, most| Err(TooLarge { what, most });
        let full = |fill: &dyn Fn(&mut Automaton)| {
            let mut automaton = Automaton::default();
            assert_eq!(automaton.fits(), Ok(()));
            fill(&mut automaton);
            let (fits, end) = (automaton.fits(), automaton.end());
            let way = automaton.chain(&[1], end);
            let (left, right) = (automaton.chain(&[7], way), automaton.chain(&[7], end));
            let joined = automaton.either(left, right).map(drop);
            assert_eq!(joined, fits.map_err(Unjoined::TooLarge), "what is full is not joined either");
            fits
        };
        let chain = |automaton: &mut Automaton, ids: usize| {
            let end = automaton.end();
            automaton.chain(&vec![0; ids], end);
        };
        assert_eq!(full(&|automaton| chain(automaton, PLACES_MAX)), refused("places", PLACES_MAX));
        let wide = |automaton: &mut Automaton| {
            let mut place = automaton.end();
            for _ in 0..=EDGES_MAX / 1000 {
                place = automaton.step((0..1000).map(|id| (id, place)).collect());
            }
        };
        assert_eq!(full(&wide), refused("ids that lead on", EDGES_MAX));
        // The same chain again and again is nothing new, and is looked at all the same.
        let again = |automaton: &mut Automaton| (0..=WORK_MAX / 2000).for_each(|_| chain(automaton, 1000));
        assert_eq!(full(&again), refused("steps to build it", WORK_MAX));
    }
}
