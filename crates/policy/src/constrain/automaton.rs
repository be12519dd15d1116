//! The automaton of a reply: nodes, the ids that may come at each, and the fewest and most ids from
//! there to the end.

use std::collections::{BTreeMap, HashMap};

/// Index of a node.
pub(super) type NodeId = u32;

/// The ids that may come next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// One of these ids, ascending, each with the node after it.
    Step(Vec<(u32, NodeId)>),
    /// At most `cap` ids of free text, then one of the ids of the step `close`. A text that `fills`
    /// is closed only when its budget is used up.
    Text { cap: u32, close: NodeId, fills: bool },
    /// White space until exactly as many ids are left as `close` takes.
    Space { close: NodeId },
    /// The reply is complete.
    End,
}

/// Nodes, built from the end to the beginning. Equal ones are stored once, so the automaton is
/// minimal and has no cycle.
#[derive(Debug, Default)]
pub(super) struct Automaton {
    nodes: Vec<Node>,
    known: HashMap<Node, NodeId>,
    least: Vec<u32>,
    shortest: Vec<u32>,
    most: Vec<u32>,
    /// Number of edges of all nodes.
    edges: usize,
    /// Number of ids processed so far.
    work: usize,
}

/// Why two alternatives cannot be joined.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum JoinFailure {
    /// They begin with the same ids and cannot be distinguished.
    Ambiguous,
    /// They share too many ids, or the automaton is full.
    TooLarge(LimitExceeded),
}

/// A limit that is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LimitExceeded {
    pub what: &'static str,
    pub most: usize,
}

/// Most nodes; each takes some 100 bytes.
const NODES_MAX: usize = 200_000;
/// Most edges. Each takes 8 bytes, and twice that during the build, so 32 MB in all. A number takes
/// 50 nodes of up to 1,110 ids if ids have up to three digits; 32 such numbers fit.
const EDGES_MAX: usize = 2_000_000;
/// Most ids and bytes processed: some seconds without optimisation. Joining processes an id three
/// times.
const WORK_MAX: usize = 6_000_000;
/// Most ids that two alternatives may share at their start. Names and literals have up to 256
/// bytes.
const SHARED_MAX: usize = 1000;

impl Automaton {
    /// The node at which a reply is complete.
    pub(super) fn end(&mut self) -> NodeId {
        self.node(Node::End)
    }

    /// These ids, one after another, then `next`.
    pub(super) fn chain(&mut self, ids: &[u32], next: NodeId) -> NodeId {
        ids.iter().rev().fold(next, |next, id| self.node(Node::Step(vec![(*id, next)])))
    }

    /// One of these ids, each with its own next node.
    pub(super) fn step(&mut self, edges: BTreeMap<u32, NodeId>) -> NodeId {
        self.node(Node::Step(edges.into_iter().collect()))
    }

    /// Free text, then `close`.
    pub(super) fn text(&mut self, cap: u32, close: NodeId) -> NodeId {
        self.node(Node::Text { cap, close, fills: false })
    }

    /// Free text that takes its whole budget, then `close`.
    pub(super) fn filling_text(&mut self, close: NodeId) -> NodeId {
        self.node(Node::Text { cap: u32::MAX, close, fills: true })
    }

    /// White space that takes its whole budget, which may be 0, then `close`, whose path must be
    /// unique.
    pub(super) fn space(&mut self, close: NodeId) -> NodeId {
        self.node(Node::Space { close })
    }

    /// Either of two alternatives. They share nodes while their ids agree and then branch.
    pub(super) fn either(&mut self, left: NodeId, right: NodeId) -> Result<NodeId, JoinFailure> {
        self.join(left, right, 0)
    }

    fn join(&mut self, left: NodeId, right: NodeId, shared: usize) -> Result<NodeId, JoinFailure> {
        if left == right {
            return Ok(left);
        }
        if shared > SHARED_MAX {
            let what = "ids that two alternatives share at their start";
            return Err(JoinFailure::TooLarge(LimitExceeded { what, most: SHARED_MAX }));
        }
        self.check_limits().map_err(JoinFailure::TooLarge)?;
        let (Node::Step(ours), Node::Step(theirs)) = (self.at(left).clone(), self.at(right).clone()) else {
            return Err(JoinFailure::Ambiguous);
        };
        self.count(1 + ours.len() + theirs.len());
        let mut edges: BTreeMap<u32, NodeId> = ours.into_iter().collect();
        for (id, node_id) in theirs {
            let joined = match edges.get(&id) {
                Some(other) => self.join(*other, node_id, shared + 1)?,
                None => node_id,
            };
            edges.insert(id, joined);
        }
        Ok(self.step(edges))
    }

    pub(super) fn count(&mut self, work: usize) {
        self.work = self.work.saturating_add(work);
    }

    pub(super) fn check_limits(&self) -> Result<(), LimitExceeded> {
        let counted = [
            ("nodes", self.nodes.len(), NODES_MAX),
            ("edges", self.edges, EDGES_MAX),
            ("construction steps", self.work, WORK_MAX),
        ];
        match counted.into_iter().find(|(_, count, most)| count > most) {
            Some((what, _, most)) => Err(LimitExceeded { what, most }),
            None => Ok(()),
        }
    }

    /// The finished automaton, without the table of equal nodes.
    pub(super) fn finished(self) -> Self {
        Self { known: HashMap::new(), ..self }
    }

    /// The ids that may come at a node.
    pub(super) fn at(&self, node_id: NodeId) -> &Node {
        &self.nodes[node_id as usize]
    }

    /// All nodes in order of their indices.
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Ids to the end with every text empty, along the longest of the other paths. With this many
    /// ids reserved, all paths stay open.
    pub(super) fn least(&self, node_id: NodeId) -> u32 {
        self.least[node_id as usize]
    }

    /// Ids to the end with every text empty, along the shortest of the other paths. With this many
    /// ids reserved, one path stays open.
    pub(super) fn shortest(&self, node_id: NodeId) -> u32 {
        self.shortest[node_id as usize]
    }

    /// Ids to the end with every text at its cap, along the longest path.
    pub(super) fn most(&self, node_id: NodeId) -> u32 {
        self.most[node_id as usize]
    }

    fn node(&mut self, node: Node) -> NodeId {
        let edges = if let Node::Step(edges) = &node { edges.len() } else { 0 };
        self.count(1 + edges);
        if let Some(node_id) = self.known.get(&node) {
            return *node_id;
        }
        let longest = |ends: &[u32], edges: &[(u32, NodeId)]| {
            edges.iter().map(|(_, node_id)| ends[*node_id as usize].saturating_add(1)).max().unwrap_or(0)
        };
        let (least, shortest, most) = match &node {
            Node::Step(edges) => {
                let shortest =
                    edges.iter().map(|(_, node_id)| self.shortest(*node_id) + 1).min().unwrap_or(0);
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
        let node_id = (self.nodes.len() - 1) as NodeId;
        self.known.insert(node, node_id);
        node_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_ways_share_their_common_prefix() {
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
        assert_eq!(automaton.either(both, left), Ok(both), "equal nodes are stored once");
        // One alternative ends where the other continues, so the id alone does not decide.
        let short = automaton.chain(&[1], end);
        assert_eq!(automaton.either(left, short), Err(JoinFailure::Ambiguous));
        assert_eq!(automaton.either(text, end), Err(JoinFailure::Ambiguous));
        // The alternatives share more ids than a recursion could follow.
        let alike = |last: u32| std::iter::repeat_n(7, 100_000).chain([last]).collect::<Vec<_>>();
        let left = automaton.chain(&alike(1), end);
        let right = automaton.chain(&alike(2), end);
        assert!(matches!(automaton.either(left, right), Err(JoinFailure::TooLarge(_))));
    }

    #[test]
    fn an_automaton_stops_growing_at_its_limits() {
        let refused = |what, most| Err(LimitExceeded { what, most });
        let full = |fill: &dyn Fn(&mut Automaton)| {
            let mut automaton = Automaton::default();
            assert_eq!(automaton.check_limits(), Ok(()));
            fill(&mut automaton);
            let fits = automaton.check_limits();
            let end = automaton.end();
            let way = automaton.chain(&[1], end);
            let left = automaton.chain(&[7], way);
            let right = automaton.chain(&[7], end);
            let joined = automaton.either(left, right).map(drop);
            assert_eq!(
                joined,
                fits.map_err(JoinFailure::TooLarge),
                "a full automaton does not join alternatives"
            );
            fits
        };
        let chain = |automaton: &mut Automaton, ids: usize| {
            let end = automaton.end();
            automaton.chain(&vec![0; ids], end);
        };
        assert_eq!(full(&|automaton| chain(automaton, NODES_MAX)), refused("nodes", NODES_MAX));
        let wide = |automaton: &mut Automaton| {
            let mut node_id = automaton.end();
            for _ in 0..=EDGES_MAX / 1000 {
                node_id = automaton.step((0..1000).map(|id| (id, node_id)).collect());
            }
        };
        assert_eq!(full(&wide), refused("edges", EDGES_MAX));
        // Adding the same chain again adds no node, but counts as work.
        let repeated = |automaton: &mut Automaton| (0..=WORK_MAX / 2000).for_each(|_| chain(automaton, 1000));
        assert_eq!(full(&repeated), refused("construction steps", WORK_MAX));
    }
}
