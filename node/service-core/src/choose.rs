//! The node of an instance. Who knows the same decides the same: of nodes that are equal the first of the container is
//! taken.

use std::cmp::Reverse;
use std::fmt;

use mgmt_api::{PlacePolicy, ServiceSpec};

/// A node of the container, as the placer sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    pub name: String,
    pub standing: NodeStanding,
    /// Of its CPUs in use, in thousandths of all; absent: not known.
    pub load: Option<u32>,
    /// Instances of this service that stand there.
    pub own: u32,
    /// Instances of all services of the container that stand there.
    pub all: u32,
    /// Instances there of the service that this one is to stand near.
    pub neighbours: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeStanding {
    Ready,
    /// Its container runs, and nothing new is placed there.
    Cordoned,
    /// Down, fenced, or the container does not run there.
    Away,
}

/// Why an instance stands where it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChosenWhy {
    Asked,
    Near(String),
    Fewest,
    Packed,
    LeastLoaded,
}

/// Why it stands nowhere; it waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Nowhere {
    /// The node that was asked for.
    Away(String),
    Cordoned(String),
    /// The service that it is to stand near has no instance on a node that is ready.
    NoNeighbour(String),
    NoNode,
}

impl fmt::Display for ChosenWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChosenWhy::Asked => f.write_str("asked for"),
            ChosenWhy::Near(other) => write!(f, "near {other}"),
            ChosenWhy::Fewest => f.write_str("fewest of the service there"),
            ChosenWhy::Packed => f.write_str("most services there"),
            ChosenWhy::LeastLoaded => f.write_str("least loaded"),
        }
    }
}

impl fmt::Display for Nowhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Nowhere::Away(node) => write!(f, "node {node} is away"),
            Nowhere::Cordoned(node) => write!(f, "node {node} takes nothing new"),
            Nowhere::NoNeighbour(other) => write!(f, "'{other}' stands on no node that takes something new"),
            Nowhere::NoNode => f.write_str("no node of the container takes something new"),
        }
    }
}

/// Position in `nodes`, which are in the order of the container's description.
pub fn choose(service: &ServiceSpec, nodes: &[Candidate]) -> Result<(usize, ChosenWhy), Nowhere> {
    if let Some(asked) = &service.node {
        let found = nodes.iter().position(|it| it.name == *asked);
        let standing = found.and_then(|at| nodes.get(at)).map(|it| it.standing);
        return match (found, standing) {
            (Some(at), Some(NodeStanding::Ready)) => Ok((at, ChosenWhy::Asked)),
            (_, Some(NodeStanding::Cordoned)) => Err(Nowhere::Cordoned(asked.clone())),
            _ => Err(Nowhere::Away(asked.clone())),
        };
    }
    let ready = || nodes.iter().enumerate().filter(|(_, it)| it.standing == NodeStanding::Ready);
    if let Some(other) = &service.near {
        let best = ready().filter(|(_, it)| it.neighbours > 0).min_by_key(|(at, it)| (it.own, it.all, *at));
        let near = best.map(|(at, _)| (at, ChosenWhy::Near(other.clone())));
        return near.ok_or_else(|| Nowhere::NoNeighbour(other.clone()));
    }
    let (best, why) = match service.place.unwrap_or(PlacePolicy::Spread) {
        PlacePolicy::Spread => (ready().min_by_key(|(at, it)| (it.own, it.all, *at)), ChosenWhy::Fewest),
        PlacePolicy::Pack => (ready().min_by_key(|(at, it)| (Reverse(it.all), *at)), ChosenWhy::Packed),
        // One whose load is not known may be anything: last.
        PlacePolicy::LeastLoaded => {
            (ready().min_by_key(|(at, it)| (it.load.unwrap_or(u32::MAX), it.own, it.all, *at)), ChosenWhy::LeastLoaded)
        }
    };
    best.map(|(at, _)| (at, why)).ok_or(Nowhere::NoNode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wish;

    fn service(line: &str) -> ServiceSpec {
        #[derive(serde::Deserialize)]
        struct File {
            services: Vec<ServiceSpec>,
        }
        let text = format!(
            "[[services]]\nname = 'web'\ncommand = ['w']\n{line}\n[[services]]\nname = 'db'\ncommand = ['d']\n"
        );
        let services = toml::from_str::<File>(&text).unwrap().services;
        wish::check(&services, &["n1", "n2", "n3"].map(str::to_owned)).unwrap();
        services.into_iter().next().unwrap()
    }

    /// Own, all, neighbours, load.
    fn nodes(of: [(u32, u32, u32, Option<u32>); 3]) -> Vec<Candidate> {
        let named = ["n1", "n2", "n3"].into_iter().zip(of);
        named
            .map(|(name, (own, all, neighbours, load))| Candidate {
                name: name.to_owned(),
                standing: NodeStanding::Ready,
                load,
                own,
                all,
                neighbours,
            })
            .collect()
    }

    #[test]
    fn policy_decides_among_nodes_that_are_ready() {
        let near = || ChosenWhy::Near("db".to_owned());
        let even = [(0, 0, 0, None); 3];
        let cases = [
            ("", even, 0, ChosenWhy::Fewest),
            ("place = 'spread'", [(1, 1, 0, None), (1, 2, 0, None), (0, 9, 0, None)], 2, ChosenWhy::Fewest),
            ("place = 'spread'", [(1, 3, 0, None), (1, 2, 0, None), (1, 2, 0, None)], 1, ChosenWhy::Fewest),
            ("place = 'pack'", even, 0, ChosenWhy::Packed),
            ("place = 'pack'", [(1, 1, 0, None), (0, 4, 0, None), (0, 4, 0, None)], 1, ChosenWhy::Packed),
            ("near = 'db'", [(0, 0, 0, None), (2, 2, 1, None), (1, 5, 1, None)], 2, near()),
            ("near = 'db'", [(0, 0, 0, None), (1, 6, 2, None), (1, 5, 1, None)], 2, near()),
            (
                "place = 'least-loaded'",
                [(0, 0, 0, None), (0, 0, 0, Some(900)), (5, 5, 0, Some(100))],
                2,
                ChosenWhy::LeastLoaded,
            ),
            (
                "place = 'least-loaded'",
                [(1, 1, 0, Some(5)), (0, 3, 0, Some(5)), (0, 2, 0, Some(5))],
                2,
                ChosenWhy::LeastLoaded,
            ),
            ("place = 'least-loaded'", even, 0, ChosenWhy::LeastLoaded),
            ("node = 'n2'", [(0, 0, 0, None), (9, 9, 0, Some(1000)), (0, 0, 0, None)], 1, ChosenWhy::Asked),
        ];
        for (line, of, expected, why) in cases {
            assert_eq!(choose(&service(line), &nodes(of)), Ok((expected, why)), "{line}");
        }
    }

    #[test]
    fn node_that_is_away_or_cordoned_gets_nothing() {
        let mut three = nodes([(0, 0, 1, Some(0)), (5, 5, 1, Some(900)), (6, 6, 1, Some(950))]);
        three[0].standing = NodeStanding::Away;
        for line in ["", "place = 'least-loaded'", "near = 'db'"] {
            assert_eq!(choose(&service(line), &three).map(|(at, _)| at), Ok(1), "{line}");
        }
        three[2].standing = NodeStanding::Cordoned;
        assert_eq!(choose(&service("place = 'pack'"), &three).map(|(at, _)| at), Ok(1));
        assert_eq!(choose(&service("node = 'n1'"), &three), Err(Nowhere::Away("n1".to_owned())));
        assert_eq!(choose(&service("node = 'n3'"), &three), Err(Nowhere::Cordoned("n3".to_owned())));
        three[1].standing = NodeStanding::Away;
        assert_eq!(choose(&service(""), &three), Err(Nowhere::NoNode));
        assert_eq!(choose(&service("near = 'db'"), &three), Err(Nowhere::NoNeighbour("db".to_owned())));
    }

    #[test]
    fn instances_that_are_placed_one_after_the_other_follow_their_policy() {
        let placed = |line: &str, count: usize| {
            let (web, mut three) = (service(line), nodes([(0, 0, 0, None); 3]));
            for _ in 0..count {
                let (at, _) = choose(&web, &three).unwrap();
                (three[at].own, three[at].all) = (three[at].own + 1, three[at].all + 1);
            }
            [three[0].own, three[1].own, three[2].own]
        };
        assert_eq!(placed("place = 'spread'", 7), [3, 2, 2]);
        assert_eq!(placed("place = 'pack'", 7), [7, 0, 0]);
        assert_eq!(placed("node = 'n3'", 4), [0, 0, 4]);
    }
}
