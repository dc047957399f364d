//! Every resource of the API, once: what it is, who may ask for it, what it takes and what it answers. The daemon's
//! dispatch and its check of roles, the audit log and the description in OpenAPI (`docs/openapi.json`) are all made of
//! this table, so none of them can know a route that the others do not.

mod inhabitants;
pub use inhabitants::{Inhabitant, Inhabitants};

use crate::AccessRole;
use crate::path;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Method {
    Get,
    Post,
    Patch,
    Delete,
}

impl Method {
    pub fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Patch => "PATCH",
            Method::Delete => "DELETE",
        }
    }
}

/// Who may ask.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Least {
    /// Whoever reaches a node.
    Anyone,
    /// People who have this role or one behind it, and nodes.
    Person(AccessRole),
    /// Nodes, and root on the node itself.
    Node,
}

/// Who asks, as far as the table cares.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Who {
    Stranger,
    Person(AccessRole),
    /// Over the node's own Unix socket.
    Local,
    Node,
    /// A program of a container, which asks for what is its container's.
    Inside(Inhabitant),
}

impl Least {
    pub fn admits(self, who: Who) -> bool {
        match (self, who) {
            // They have a table of their own.
            (_, Who::Inside(_)) => false,
            (Least::Anyone, _) | (_, Who::Local | Who::Node) => true,
            (Least::Person(least), Who::Person(role)) => role >= least,
            (Least::Person(_) | Least::Node, Who::Stranger) | (Least::Node, Who::Person(_)) => false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Impact {
    Reads,
    /// Something is another than before, or a secret is handed out: it is written into the audit log.
    Changes,
}

/// A parameter of the query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Query {
    pub name: &'static str,
    pub shape: Shape,
    pub is_required: bool,
    pub means: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    Text,
    Number,
    Truth,
}

/// What a request is answered with when nothing is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// 200 with a type of this name.
    One(&'static str),
    /// 201 with a type of this name.
    Made(&'static str),
    /// 200 with a list of it.
    Many(&'static str),
    /// 200 when all is well, 503 when not, both with a type of this name.
    Health(&'static str),
    /// 200 when all is well, 503 when not, both with text.
    Probe,
    /// 200 with any object.
    Object,
    /// 200 with text of this media type.
    Text(&'static str),
    /// 204
    Nothing,
    /// 101, and then frames of `dvs-stream`; the request has the header `Upgrade: dvs-stream`.
    Stream,
    /// As `Stream` with the header, else as `One`.
    StreamOr(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub operation: Operation,
    pub method: Method,
    pub path: &'static str,
    pub least: Least,
    pub effect: Impact,
    pub query: &'static [Query],
    /// Type of the body.
    pub takes: Option<&'static str>,
    pub answer: Answer,
    /// In a sentence.
    pub what: &'static str,
}

macro_rules! routes {
    ($($operation:ident $name:literal: $method:ident $path:ident $least:expr, $effect:ident, $query:expr,
        $takes:expr => $answer:expr; $what:literal)*) => {
        /// What can be asked for.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Operation {
            $($operation),*
        }

        impl Operation {
            /// As in the audit log and in OpenAPI.
            pub fn name(self) -> &'static str {
                match self {
                    $(Operation::$operation => $name),*
                }
            }
        }

        pub static ROUTES: &[Route] = &[$(Route {
            operation: Operation::$operation,
            method: Method::$method,
            path: path::$path,
            least: $least,
            effect: Impact::$effect,
            query: $query,
            takes: $takes,
            answer: $answer,
            what: $what,
        }),*];
    };
}

const VIEWER: Least = Least::Person(AccessRole::Viewer);
const OPERATOR: Least = Least::Person(AccessRole::Operator);
const ADMINISTRATOR: Least = Least::Person(AccessRole::Administrator);

const fn text(name: &'static str, means: &'static str) -> Query {
    Query { name, shape: Shape::Text, is_required: false, means }
}

const fn number(name: &'static str, means: &'static str) -> Query {
    Query { name, shape: Shape::Number, is_required: false, means }
}

const fn truth(name: &'static str, means: &'static str) -> Query {
    Query { name, shape: Shape::Truth, is_required: false, means }
}

const VERBOSE: Query = text("verbose", "Each check by its name. Of any value.");
const SESSION: Query = number("session", "Names a stream that outlives its connections: 64 bits by chance.");
const TAIL: Query = number("tail", "The last so many lines.");
const FOLLOW: Query = truth("follow", "Keep the answer open, for what is still to come.");

routes! {
    Version "version": Get VERSION VIEWER, Reads, &[], None => Answer::One("Version");
        "Which daemon answers, of which node and cluster."
    Live "health-live": Get LIVE VIEWER, Reads, &[VERBOSE], None => Answer::Health("Health");
        "Whether the daemon makes progress."
    Ready "health-ready": Get READY VIEWER, Reads, &[VERBOSE], None => Answer::Health("Health");
        "Whether all parts of the node are well."
    Livez "livez": Get LIVEZ VIEWER, Reads, &[VERBOSE], None => Answer::Probe;
        "Whether the daemon makes progress, for probes."
    Readyz "readyz": Get READYZ VIEWER, Reads, &[VERBOSE], None => Answer::Probe;
        "Whether all parts of the node are well, for probes."
    Facts "health-facts": Get FACTS Least::Node, Reads, &[], None => Answer::One("NodeFacts");
        "What a node says of itself to another one that examines the cluster."
    Examination "health-cluster": Get EXAMINATION VIEWER, Reads, &[], None => Answer::One("Examination");
        "What is wrong with the cluster, in words. Asks all nodes."
    Settings "settings": Get SETTINGS ADMINISTRATOR, Reads, &[], None => Answer::Object;
        "The settings with which the daemon was started, without secrets."
    Metrics "metrics": Get METRICS VIEWER, Reads, &[text("node", "Of another node, which is asked.")], None
        => Answer::Text("application/openmetrics-text; version=1.0.0; charset=utf-8");
        "Numbers about a node, in OpenMetrics text."
    Nodes "nodes": Get NODES VIEWER, Reads, &[], None => Answer::Many("Node");
        "The nodes of the cluster, as the one that answers sees them."
    Node "node": Get NODE VIEWER, Reads, &[], None => Answer::One("Node");
        "A node and its links."
    NodeChange "node-change": Patch NODE ADMINISTRATOR, Changes, &[], Some("NodeChange") => Answer::One("Node");
        "Cordons or labels a node."
    NodeRemove "node-remove": Delete NODE ADMINISTRATOR, Changes,
        &[truth("lost", "Its machine is gone for good.")], None => Answer::Nothing;
        "Takes a node out of the cluster."
    Level "level": Get LEVEL VIEWER, Reads, &[], None => Answer::One("ClusterLevel");
        "In which format the cluster writes, and which releases its nodes run."
    Upgrade "upgrade": Get UPGRADE Least::Node, Reads, &[], None => Answer::One("UpgradeState");
        "How far the node that answers is with another release."
    UpgradeDaemon "upgrade-daemon": Post UPGRADE_DAEMON Least::Node, Changes, &[], None => Answer::Nothing;
        "The daemon that answers begins anew from the file it was started from."
    UpgradeServers "upgrade-servers": Post UPGRADE_SERVERS Least::Node, Changes, &[], None => Answer::Nothing;
        "Servers and gates of the node that answers follow its daemon into its release."
    Authority "authority": Get AUTHORITY ADMINISTRATOR, Reads, &[], None => Answer::One("AuthorityState");
        "How the cluster's certificate authority stands."
    AuthorityRotate "authority-rotate": Post AUTHORITY ADMINISTRATOR, Changes, &[], None
        => Answer::One("AuthorityState");
        "Begins to put another authority into the place of the one there is."
    Backup "backup": Get BACKUP Least::Node, Changes, &[], None => Answer::Text("application/x-ndjson");
        "A copy of all that the cluster decided, with its secrets."
    Tokens "tokens": Get TOKENS ADMINISTRATOR, Reads, &[], None => Answer::Many("TokenInfo");
        "Tokens with which machines may join."
    TokenCreate "token-create": Post TOKENS ADMINISTRATOR, Changes, &[], Some("TokenRequest")
        => Answer::Made("NewToken");
        "Makes a token that lets one machine join, once."
    TokenRemove "token-remove": Delete TOKEN ADMINISTRATOR, Changes, &[], None => Answer::Nothing;
        "Takes a machine's token back."
    Join "join": Post JOIN Least::Anyone, Changes, &[], Some("JoinRequest") => Answer::One("JoinAnswer");
        "A machine becomes a node, with a token of its own kind."
    Accesses "accesses": Get ACCESSES ADMINISTRATOR, Reads, &[], None => Answer::Many("AccessInfo");
        "Who may ask the cluster from elsewhere."
    AccessCreate "access-create": Post ACCESSES ADMINISTRATOR, Changes, &[], Some("AccessRequest")
        => Answer::Made("AccessFile");
        "Lets somebody ask from elsewhere: by a new token, or by the certificate in the request."
    AccessRemove "access-remove": Delete ACCESS ADMINISTRATOR, Changes, &[], None => Answer::Nothing;
        "Takes an access back. Connections that stand by it end."
    Myself "self": Get MYSELF VIEWER, Reads, &[], None => Answer::One("Myself");
        "Who asks, as the cluster sees it, and how the cluster is reached now."
    Audit "audit": Get AUDIT ADMINISTRATOR, Reads,
        &[TAIL, FOLLOW, text("node", "Of another node, which is asked.")], None
        => Answer::Text("application/x-ndjson");
        "Changes and refusals, of the node that answers: AuditEntry in lines."
    Events "events": Get EVENTS VIEWER, Reads, &[text("dc", "Of one container alone.")], None
        => Answer::Text("application/x-ndjson");
        "What becomes other from now on, as long as somebody listens: EventInfo in lines."
    Dcs "dcs": Get DCS VIEWER, Reads, &[], None => Answer::Many("Dc");
        "The containers of the cluster."
    DcCreate "dc-create": Post DCS OPERATOR, Changes, &[truth("start", "Start it as well.")], Some("DcSpec")
        => Answer::Made("Dc");
        "Makes a container."
    Dc "dc": Get DC VIEWER, Reads, &[], None => Answer::One("Dc");
        "A container: what was asked for, and what is."
    Plan "plan": Post PLAN VIEWER, Reads, &[], Some("ApplyRequest") => Answer::One("ApplyPlan");
        "What would have to be done for containers to be as they are described, and whether it is admitted."
    DcChange "dc-change": Patch DC OPERATOR, Changes, &[], Some("DcChange") => Answer::One("Dc");
        "Changes a container while it runs; answered when its nodes have followed. All of it, or nothing."
    DcDelete "dc-delete": Delete DC OPERATOR, Changes,
        &[truth("force", "Stop it first."), truth("keep_data", "Leave the images of its disks.")], None
        => Answer::Nothing;
        "Deletes a container."
    DcStart "dc-start": Post DC_START OPERATOR, Changes,
        &[text("snapshot", "Its tree is what it was for this snapshot, before anything else. Of a stopped container.")], None
        => Answer::One("Dc");
        "Starts a container; answered when every node of it runs it."
    DcStop "dc-stop": Post DC_STOP OPERATOR, Changes,
        &[number("grace_ms", "Between SIGTERM and SIGKILL, in milliseconds; 10,000.")], None => Answer::One("Dc");
        "Stops a container."
    DcPause "dc-pause": Post DC_PAUSE OPERATOR, Changes, &[], None => Answer::One("Dc");
        "The programs of a container stand still, its services too; answered when its nodes have followed."
    DcUnpause "dc-unpause": Post DC_UNPAUSE OPERATOR, Changes, &[], None => Answer::One("Dc");
        "The programs of a container go on where they stood."
    DcRename "dc-rename": Post DC_RENAME OPERATOR, Changes, &[], Some("DcRename") => Answer::One("Dc");
        "A stopped container has another name."
    DcNodeAdd "dc-node-add": Post DC_NODES OPERATOR, Changes, &[], Some("DcNodeRequest") => Answer::One("Dc");
        "A container spans one node more; answered when that runs it."
    DcNodeRemove "dc-node-remove": Delete DC_NODE OPERATOR, Changes,
        &[truth("force", "End its programs there, and take it out also when it does not answer.")], None
        => Answer::One("Dc");
        "A container does not span a node any more."
    ServerMove "server-move": Post SERVER_MOVE OPERATOR, Changes, &[], Some("ServerMoveRequest") => Answer::One("Dc");
        "A server of a container stands on another node; answered when it serves there."
    DiskCreate "disk-create": Post DISKS OPERATOR, Changes, &[], Some("DiskSpec") => Answer::One("Dc");
        "A container has one disk more; answered when it serves."
    DiskChange "disk-change": Patch DISK OPERATOR, Changes, &[], Some("DiskChange") => Answer::One("Dc");
        "A disk of a container is larger; answered when its nodes have followed."
    DiskDelete "disk-delete": Delete DISK OPERATOR, Changes,
        &[truth("force", "Also where a node that has an image of it does not answer: that image stays there.")], None
        => Answer::One("Dc");
        "A container has a disk no more, nor what was on it; answered when it is gone."
    DiskVerify "disk-verify": Post DISK_VERIFY OPERATOR, Changes,
        &[truth("repair", "What differs becomes what the primary has.")], None => Answer::One("Dc");
        "The current copies of a disk are compared with its primary's; answered when that has begun."
    DiskRead "disk-read": Get DISK_CONTENT OPERATOR, Reads, &[], None => Answer::Stream;
        "What is on a disk that has no file tree, for a backup, which the client hears as output."
    DiskFill "disk-fill": Post DISK_CONTENT OPERATOR, Changes, &[], None => Answer::Stream;
        "Fills a disk that has no file tree from a backup, which the client sends as input."
    ReplicaAdd "replica-add": Post REPLICAS OPERATOR, Changes, &[], Some("DcNodeRequest") => Answer::One("Dc");
        "A disk of a container has one copy more; answered when its node has begun to get what there is."
    ReplicaRemove "replica-remove": Delete REPLICA OPERATOR, Changes,
        &[truth("force", "Also when it may be the only one that has everything.")], None => Answer::One("Dc");
        "A disk of a container has one copy less; answered when it is gone."
    ReplicaPromote "replica-promote": Post REPLICA_PROMOTE OPERATOR, Changes,
        &[truth("force", "Also a copy that misses something, where nobody who has everything is there.")], None
        => Answer::One("Dc");
        "A disk of a container stands beside another one of its copies; answered when it serves there."
    DcChannels "dc-channels": Get DC_CHANNELS VIEWER, Reads, &[], None => Answer::Many("ChannelInfo");
        "Channels of a container with an end on the node that answers."
    DcUsage "dc-usage": Get DC_USAGE VIEWER, Reads, &[], None => Answer::Many("NodeUsage");
        "What a container uses of each of its nodes. A header dvs-missing names each node that did not answer."
    Services "services": Get SERVICES VIEWER, Reads, &[], None => Answer::Many("ServiceInfo");
        "Programs of a container that DVS keeps running."
    ServiceAdd "service-add": Post SERVICES OPERATOR, Changes, &[], Some("ServiceSpec") => Answer::Made("ServiceInfo");
        "Describes a program that is to be kept running; it is started as soon as it can be."
    Service "service": Get SERVICE VIEWER, Reads, &[], None => Answer::One("ServiceInfo");
        "A service and its instances."
    ServiceRemove "service-remove": Delete SERVICE OPERATOR, Changes,
        &[truth("replaced", "It is added again at once: also where others come after it.")], None => Answer::Nothing;
        "Stops a service and forgets it; answered when nothing of it runs any more."
    ServiceStart "service-start": Post SERVICE_START OPERATOR, Changes, &[], None => Answer::One("ServiceInfo");
        "Starts a service that was stopped, and instances that ended for good."
    ServiceStop "service-stop": Post SERVICE_STOP OPERATOR, Changes, &[], None => Answer::One("ServiceInfo");
        "Stops a service; answered when nothing of it runs any more."
    ServiceRestart "service-restart": Post SERVICE_RESTART OPERATOR, Changes, &[], None => Answer::One("ServiceInfo");
        "Ends each instance of a service and begins it again where it stands."
    ServiceMove "service-move": Post SERVICE_MOVE OPERATOR, Changes, &[], Some("MoveRequest")
        => Answer::One("ServiceInfo");
        "Instances of a service end where they stand and begin elsewhere."
    Ports "ports": Get PORTS VIEWER, Reads, &[], None => Answer::Many("PortInfo");
        "Ports of nodes that lead into a container."
    PortAdd "port-add": Post PORTS OPERATOR, Changes, &[], Some("PortSpec") => Answer::Made("PortInfo");
        "Publishes a port; answered when its nodes listen."
    PortRemove "port-remove": Delete PORT OPERATOR, Changes, &[], None => Answer::Nothing;
        "Publishes a port no more; what is connected goes on."
    Processes "processes": Get PROCESSES VIEWER, Reads, &[], None => Answer::Many("Process");
        "Processes of a container on all its nodes. A header dvs-missing names each node that did not answer."
    Run "run": Post PROCESSES OPERATOR, Changes, &[SESSION], Some("RunRequest") => Answer::StreamOr("RunResponse");
        "Starts a program, and stays connected to it when the request asks for a stream."
    Process "process": Get PROCESS VIEWER, Reads, &[], None => Answer::One("Process");
        "A process."
    Signal "signal": Post PROCESS_SIGNAL OPERATOR, Changes, &[], Some("SignalRequest") => Answer::Nothing;
        "Sends a process a signal."
    Attach "attach": Get PROCESS_ATTACH OPERATOR, Changes,
        &[SESSION, number("heard", "Go on with the session, of which so many frames were heard.")], None
        => Answer::Stream;
        "Connects to the streams or the terminal of a program that runs."
    Logs "logs": Get PROCESS_LOGS OPERATOR, Reads,
        &[
            TAIL,
            FOLLOW,
            number("since", "What was written then or later: milliseconds since 1970."),
            text("form", "'pieces': LogPiece in lines of JSON, application/x-ndjson."),
        ],
        None => Answer::Text("text/plain; charset=utf-8");
        "What a program wrote."
    Exec "exec": Post DC_EXEC OPERATOR, Changes, &[SESSION], Some("ExecRequest") => Answer::StreamOr("RunResponse");
        "Starts a program beside another one, on its node and with its root."
    Import "import": Post DC_IMPORT OPERATOR, Changes,
        &[
            Query { name: "path", shape: Shape::Text, is_required: true, means: "Where in the tree." },
            text("node", "Which unpacks; the container's first."),
            text("top", "The archive has one file or directory, of this name: it becomes what is at the path, or goes \
                into the directory that is there."),
            truth("mine", "Everything belongs to root, whoever owns it in the archive."),
        ],
        None => Answer::Stream;
        "Unpacks a tar stream, which the client sends as input, into the tree."
    Export "export": Get DC_EXPORT OPERATOR, Reads,
        &[
            Query { name: "path", shape: Shape::Text, is_required: true, means: "Where in the tree." },
            text("top", "What it is called in the archive; as in the tree."),
            text("node", "Which packs; the container's first."),
        ],
        None => Answer::Stream;
        "Packs a file or directory of the tree into a tar stream, which the client hears as output."
}

impl Route {
    pub fn of(operation: Operation) -> Option<&'static Route> {
        ROUTES.iter().find(|route| route.operation == operation)
    }

    pub fn admits(&self, who: Who) -> bool {
        match who {
            Who::Inside(inhabitant) => self.operation.inhabitants().admit(inhabitant),
            who => self.least.admits(who),
        }
    }

    /// Names in its path: `dc`, `pid`.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }
}

#[cfg(test)]
mod description;
#[cfg(test)]
mod openapi;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const EVERYBODY: [Who; 6] = [
        Who::Stranger,
        Who::Person(AccessRole::Viewer),
        Who::Person(AccessRole::Operator),
        Who::Person(AccessRole::Administrator),
        Who::Local,
        Who::Node,
    ];

    /// Who may ask for what, written down a second time: a route whose least role is changed is changed here too.
    fn expected(operation: Operation) -> [bool; 6] {
        use Operation::*;
        match operation {
            Join => [true; 6],
            Version | Live | Ready | Livez | Readyz | Examination | Metrics | Nodes | Node | Dcs | Dc | DcUsage
            | DcChannels | Level | Processes | Process | Myself | Services | Service | Ports | Plan | Events => {
                [false, true, true, true, true, true]
            }
            DcCreate | DcChange | DcDelete | DcStart | DcStop | DcPause | DcUnpause | DcRename | DcNodeAdd
            | DcNodeRemove | Run | Signal | Attach | Logs | Exec | Import | Export | PortAdd | PortRemove
            | ServiceAdd | ServiceRemove | ServiceStart | ServiceStop | ServiceRestart | ServiceMove | ServerMove
            | DiskCreate | DiskChange | DiskDelete | DiskVerify | DiskRead | DiskFill | ReplicaAdd | ReplicaRemove
            | ReplicaPromote => [false, false, true, true, true, true],
            Settings | NodeChange | NodeRemove | Authority | AuthorityRotate | Tokens | TokenCreate | TokenRemove
            | Accesses | AccessCreate | AccessRemove | Audit => [false, false, false, true, true, true],
            Facts | Backup | Upgrade | UpgradeDaemon | UpgradeServers => [false, false, false, false, true, true],
        }
    }

    #[test]
    fn each_route_admits_exactly_whom_it_should() {
        for route in ROUTES {
            let admitted = EVERYBODY.map(|who| route.admits(who));
            assert_eq!(admitted, expected(route.operation), "{:?} of {EVERYBODY:?}", route.operation);
        }
    }

    #[test]
    fn viewers_change_nothing_and_strangers_only_join() {
        for route in ROUTES {
            let viewer = route.least.admits(Who::Person(AccessRole::Viewer));
            assert!(!viewer || route.effect == Impact::Reads || route.operation == Operation::Join, "{route:?}");
            let changes_by_get = route.method == Method::Get && route.effect == Impact::Changes;
            assert!(!changes_by_get || matches!(route.operation, Operation::Attach | Operation::Backup), "{route:?}");
            let asks_by_post = route.operation == Operation::Plan;
            assert!(route.method == Method::Get || route.effect == Impact::Changes || asks_by_post, "{route:?}");
        }
    }

    #[test]
    fn every_route_is_there_once_and_says_what_it_is() {
        let (mut ways, mut names) = (BTreeSet::new(), BTreeSet::new());
        for route in ROUTES {
            assert!(ways.insert((route.path, route.method.name())), "{route:?}");
            assert!(names.insert(route.operation.name()), "{route:?}");
            assert!(route.what.ends_with('.') && !route.path.ends_with('/') && !route.path.contains("//"), "{route:?}");
            assert_eq!(Route::of(route.operation).map(|found| found.path), Some(route.path));
        }
    }
}
