//! What programs of a container may ask the daemon of their node for, through the hatch of their container. Always of
//! that container alone.
//!
//! The rule: they see what their container is and do with its programs what root inside may do anyhow. What people
//! asked for (its description, its services and ports, whether it runs) they see and do not change, and of the cluster
//! they hear nothing.

use super::Operation;

/// A program of a container, at the hatch of its container.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Inhabitant {
    /// Root of the container.
    Root,
    /// Any other user of it.
    User,
}

/// To which programs of a container a route answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inhabitants {
    None,
    Root,
    All,
}

impl Inhabitants {
    pub fn admit(self, who: Inhabitant) -> bool {
        match (self, who) {
            (Inhabitants::All, _) | (Inhabitants::Root, Inhabitant::Root) => true,
            (Inhabitants::Root, Inhabitant::User) | (Inhabitants::None, _) => false,
        }
    }

    /// As OpenAPI says it.
    pub fn name(self) -> &'static str {
        match self {
            Inhabitants::None => "none",
            Inhabitants::Root => "root",
            Inhabitants::All => "all",
        }
    }
}

impl Operation {
    /// Without a rest: whoever adds a route says here who inside may.
    pub fn inhabitants(self) -> Inhabitants {
        use Operation::*;
        match self {
            // Looking: /proc and the files in /run/dvs tell everybody inside nearly as much.
            Version | Dcs | Dc | DcChannels | DcUsage | Processes | Process | Services | Service | Ports | Events => {
                Inhabitants::All
            }
            // Root inside may start, signal and trace what it likes, and read and write the tree.
            Run | Exec | Signal | Attach | Logs | Import | Export => Inhabitants::Root,
            // What people asked for.
            DcCreate | DcChange | DcDelete | DcStart | DcStop | DcPause | DcUnpause | DcRename | DcNodeAdd
            | DcNodeRemove | ServiceAdd | ServiceRemove | ServiceStart | ServiceStop | ServiceRestart | ServiceMove
            | ServerMove | DiskCreate | DiskChange | DiskDelete | DiskVerify | DiskRead | DiskFill | ReplicaAdd
            | ReplicaRemove | ReplicaPromote | PortAdd | PortRemove | Plan => Inhabitants::None,
            // The cluster and its nodes.
            Live | Ready | Livez | Readyz | Facts | Examination | Settings | Metrics | Nodes | Node | NodeChange
            | NodeRemove | Level | Upgrade | UpgradeDaemon | UpgradeServers | Authority | AuthorityRotate | Backup
            | Tokens | TokenCreate | TokenRemove | Join | Accesses | AccessCreate | AccessRemove | Myself | Audit => {
                Inhabitants::None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Impact, ROUTES, Who};
    use super::*;

    #[test]
    fn users_inside_change_nothing_and_nobody_inside_what_people_asked_for() {
        for route in ROUTES {
            let admits = |who| route.admits(Who::Inside(who));
            assert!(!admits(Inhabitant::User) || route.effect == Impact::Reads, "{route:?}");
            assert!(admits(Inhabitant::Root) || !admits(Inhabitant::User), "{route:?}");
            // Of a container by its name, or made to be of that one (see the daemon's `api/inhabitants.rs`).
            let is_of_one = route.path.starts_with("/v1/dcs/{dc}");
            let is_narrowed = matches!(route.operation, Operation::Version | Operation::Dcs | Operation::Events);
            assert!(!admits(Inhabitant::Root) || is_of_one || is_narrowed, "{route:?}");
        }
    }

    #[test]
    fn insiders_may_what_is_written_down_here_and_nothing_else() {
        let of = |inhabitants| {
            let names = ROUTES.iter().filter(|route| route.operation.inhabitants() == inhabitants);
            names.map(|route| route.operation.name()).collect::<Vec<_>>()
        };
        assert_eq!(
            of(Inhabitants::All),
            [
                "version",
                "events",
                "dcs",
                "dc",
                "dc-channels",
                "dc-usage",
                "services",
                "service",
                "ports",
                "processes",
                "process"
            ]
        );
        assert_eq!(of(Inhabitants::Root), ["run", "signal", "attach", "logs", "exec", "import", "export"]);
    }
}
