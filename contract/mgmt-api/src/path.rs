//! Paths of the REST API. `{...}` is a name.
//!
//! A request for a container or process that lives on another node is forwarded there by the daemon that received it.

/// GET: [`crate::Version`].
pub const VERSION: &str = "/v1/version";
/// GET: 200 when the daemon makes progress, else 503. [`crate::Health`]; `?verbose` with the names of the checks.
pub const LIVE: &str = "/v1/health/live";
/// GET: 200 when the engine answers, the broker listens, the proxies run and disks have room; else 503.
/// [`crate::Health`]; `?verbose` with the names of the checks.
pub const READY: &str = "/v1/health/ready";
/// GET: as [`LIVE`], in text for probes: `ok`, or a line `[-] CHECK: why` for what is not well and `failed`. With
/// `?verbose` a line for each check.
pub const LIVEZ: &str = "/livez";
/// GET: as [`READY`], in the same form.
pub const READYZ: &str = "/readyz";
/// GET: [`crate::NodeFacts`] of the node that answers.
pub const FACTS: &str = "/v1/health/facts";
/// GET: [`crate::Examination`]: all nodes are asked for their facts.
pub const EXAMINATION: &str = "/v1/health/cluster";
/// GET: the settings with which the daemon was started, as an object. No secret is among them: of those it knows where
/// they lie, and what its proxy is told besides is left out.
pub const SETTINGS: &str = "/v1/settings";
/// GET: numbers about the node that answers, in OpenMetrics text 1.0; with `?node=NAME` of another one, which is asked.
pub const METRICS: &str = "/metrics";
/// GET: [`crate::ClusterLevel`].
pub const LEVEL: &str = "/v1/level";
/// GET: [`crate::UpgradeState`] of the node that answers.
pub const UPGRADE: &str = "/v1/upgrade";
/// POST: the daemon that answers begins anew, in the same process, from the file it was started from.
pub const UPGRADE_DAEMON: &str = "/v1/upgrade/daemon";
/// POST: servers and gates of the node that answers that execute another file than the daemon are replaced, one after
/// the other. May be repeated.
pub const UPGRADE_SERVERS: &str = "/v1/upgrade/servers";
/// GET: list of [`crate::Node`].
pub const NODES: &str = "/v1/nodes";
/// GET: [`crate::Node`]; PATCH [`crate::NodeChange`]: [`crate::Node`]; DELETE (`?lost=true`: its daemon is gone for
/// good): the node is no part of the cluster any more.
pub const NODE: &str = "/v1/nodes/{node}";
/// GET: list of [`crate::TokenInfo`]; POST [`crate::TokenRequest`]: 201 with [`crate::NewToken`].
pub const TOKENS: &str = "/v1/tokens";
/// DELETE: nobody comes with it any more.
pub const TOKEN: &str = "/v1/tokens/{id}";
/// GET: [`crate::AuthorityState`]; POST: a new root begins to take the place of the one there is.
pub const AUTHORITY: &str = "/v1/authority";
/// GET: a copy of what the cluster's engine holds (`dvs cluster backup`): lines of JSON, the last one with their
/// checksum; an answer without it is not whole. It has the cluster's secrets.
pub const BACKUP: &str = "/v1/backup";
/// GET: list of [`crate::AccessInfo`]; POST [`crate::AccessRequest`]: 201 with [`crate::AccessFile`].
pub const ACCESSES: &str = "/v1/access";
/// DELETE: nobody comes with it any more; connections that stand by it end.
pub const ACCESS: &str = "/v1/access/{name}";
/// GET: [`crate::Myself`].
pub const MYSELF: &str = "/v1/self";
/// GET: [`crate::AuditEntry`] in lines, of the node that answers, or with `?node=NAME` of another one, which is asked.
/// `?tail=N` the last ones, `?follow=true` keeps the answer open.
pub const AUDIT: &str = "/v1/audit";
/// GET: [`crate::EventInfo`] in lines, from now on, as long as somebody listens. `?dc=NAME`: of one container alone.
pub const EVENTS: &str = "/v1/events";
/// POST [`crate::JoinRequest`]: [`crate::JoinAnswer`]. All that is answered to a peer without a certificate.
pub const JOIN: &str = "/v1/join";
/// POST: a description of containers is compared with what is.
pub const PLAN: &str = "/v1/plan";
/// GET: list of [`crate::Dc`]; POST [`crate::DcSpec`]: 201 with [`crate::Dc`]. `?start=true` starts it as well.
pub const DCS: &str = "/v1/dcs";
/// GET; DELETE (`?force=true` stops it first, `?keep_data=true` leaves images).
pub const DC: &str = "/v1/dcs/{dc}";
/// POST [`crate::DcNodeRequest`]: the container spans this node, too; 200 with [`crate::Dc`] when it runs there, if it
/// is to run. Again: the same answer.
pub const DC_NODES: &str = "/v1/dcs/{dc}/nodes";
/// DELETE (`?force=true`: programs there end, and it need not answer): the container does not span this node any more;
/// [`crate::Dc`]. Refused while a server stands there that does not stand on each node.
pub const DC_NODE: &str = "/v1/dcs/{dc}/nodes/{node}";
/// POST: 200 with [`crate::Dc`] when every node reports it running, or the error that prevents it.
pub const DC_START: &str = "/v1/dcs/{dc}/start";
/// POST: `?grace_ms=` between SIGTERM and SIGKILL (10,000).
pub const DC_STOP: &str = "/v1/dcs/{dc}/stop";
/// POST: its programs stand still, on all its nodes; 200 with [`crate::Dc`]. Again: the same answer. Refused when it
/// is stopped.
pub const DC_PAUSE: &str = "/v1/dcs/{dc}/pause";
/// POST: they go on where they stood; 200 with [`crate::Dc`]. Again: the same answer.
pub const DC_UNPAUSE: &str = "/v1/dcs/{dc}/unpause";
/// POST [`crate::DcRename`]: a stopped container has another name; 200 with [`crate::Dc`]. 409: it is not stopped, or
/// the name is taken.
pub const DC_RENAME: &str = "/v1/dcs/{dc}/rename";
/// POST [`crate::ServerMoveRequest`]: a server of the container stands on another node; 200 with [`crate::Dc`] when it
/// serves there. Again: the same answer. 409: it cannot, and why.
pub const SERVER_MOVE: &str = "/v1/dcs/{dc}/servers/{server}/move";
/// POST [`crate::DiskSpec`]: the container has one disk more; 200 with [`crate::Dc`] when it serves, if the container
/// runs. Again: the same answer. 409: it has another one of this name. 507: no room.
pub const DISKS: &str = "/v1/dcs/{dc}/disks";
/// PATCH [`crate::DiskChange`]: the disk is larger; 200 with [`crate::Dc`] when its nodes have followed. Again: the
/// same answer. DELETE: the container has the disk no more, nor what was on it; 200 with [`crate::Dc`] when it is gone.
/// 409: it cannot be, and why.
pub const DISK: &str = "/v1/dcs/{dc}/disks/{disk}";
/// POST: the current copies of a disk are compared with its primary's, while it serves, and `?repair=true` what differs
/// becomes what that has; 200 with [`crate::Dc`] when that has begun, and again while it goes on. What was found says
/// [`crate::DiskCopies::verification`] of [`DC`]. 409: the container does not run.
pub const DISK_VERIFY: &str = "/v1/dcs/{dc}/disks/{disk}/verify";
/// GET, POST, both with `Upgrade: dvs-stream`: what is on a disk without a file tree, as [`crate::content`] has it, as
/// output of the stream, or as its input.
pub const DISK_CONTENT: &str = "/v1/dcs/{dc}/disks/{disk}/content";
/// POST [`crate::DcNodeRequest`]: a disk has a copy on this node, too; 200 with [`crate::Dc`] when that runs there and
/// gets what there is. A disk without copies has two from then on. Again: the same answer.
pub const REPLICAS: &str = "/v1/dcs/{dc}/disks/{disk}/replicas";
/// DELETE: no copy of the disk is on this node any more; 200 with [`crate::Dc`] when it is gone. 409: the disk stands
/// beside it, or it may be needed (`?force=true`).
pub const REPLICA: &str = "/v1/dcs/{dc}/disks/{disk}/replicas/{node}";
/// POST: the disk stands beside this copy; 200 with [`crate::Dc`] when it serves there. `?force=true`: beside one that
/// misses something, which is lost; 409 while a node is there whose copy has everything.
pub const REPLICA_PROMOTE: &str = "/v1/dcs/{dc}/disks/{disk}/replicas/{node}/promote";
/// GET: list of [`crate::Process`] of all nodes, [`MISSING`] naming those that did not answer, and each [`NOTE`]; POST
/// [`crate::RunRequest`]: [`crate::RunResponse`], or, with the header `Upgrade: dvs-stream`, 101 and then frames of
/// [`crate::stream`]. `?session=N` asks for a session ([`crate::stream::session`]).
pub const PROCESSES: &str = "/v1/dcs/{dc}/processes";
/// Header of an answer to which not all nodes contributed, once for each: `NODE: why`.
pub const MISSING: &str = "dvs-missing";
/// Header of an answer about programs, once for each: what people should know before they wait, e.g. that the tree of
/// the container waits for a node.
pub const NOTE: &str = "dvs-note";
/// POST [`crate::ExecRequest`]: answers like POST [`PROCESSES`], and knows its `session` too.
pub const DC_EXEC: &str = "/v1/dcs/{dc}/exec";
/// GET: [`crate::Process`].
pub const PROCESS: &str = "/v1/dcs/{dc}/processes/{pid}";
/// POST [`crate::SignalRequest`].
pub const PROCESS_SIGNAL: &str = "/v1/dcs/{dc}/processes/{pid}/signal";
/// GET with `Upgrade: dvs-stream`: re-attach to the terminal or streams of a program started by `run`. `?session=N`
/// begins a session, `?session=N&heard=H` goes on with one whose connection broke.
pub const PROCESS_ATTACH: &str = "/v1/dcs/{dc}/processes/{pid}/attach";
/// GET: text of standard output and error. `?follow=true` keeps the answer open, `?tail=N` lines, `?since=MS` what was
/// written then or later, `?form=pieces` lines of [`crate::LogPiece`] instead. What runs since an earlier release is
/// told as text, and not `since`.
pub const PROCESS_LOGS: &str = "/v1/dcs/{dc}/processes/{pid}/logs";
/// GET: list of [`crate::ChannelInfo`] of the container on the answering node.
pub const DC_CHANNELS: &str = "/v1/dcs/{dc}/channels";
/// GET: list of [`crate::ServiceInfo`]; POST [`crate::ServiceSpec`]: 201 with [`crate::ServiceInfo`].
pub const SERVICES: &str = "/v1/dcs/{dc}/services";
/// GET: [`crate::ServiceInfo`]; DELETE: it is stopped, and then forgotten.
pub const SERVICE: &str = "/v1/dcs/{dc}/services/{service}";
/// POST: what was stopped, or ended for good, is started. [`crate::ServiceInfo`]
pub const SERVICE_START: &str = "/v1/dcs/{dc}/services/{service}/start";
/// POST: answered when nothing of it runs any more. [`crate::ServiceInfo`]
pub const SERVICE_STOP: &str = "/v1/dcs/{dc}/services/{service}/stop";
/// POST: each instance ends and begins again where it stands. [`crate::ServiceInfo`]
pub const SERVICE_RESTART: &str = "/v1/dcs/{dc}/services/{service}/restart";
/// POST [`crate::MoveRequest`]: instances end where they stand and begin elsewhere. [`crate::ServiceInfo`]
pub const SERVICE_MOVE: &str = "/v1/dcs/{dc}/services/{service}/move";
/// GET: list of [`crate::PortInfo`]; POST [`crate::PortSpec`]: 201 with [`crate::PortInfo`] when its nodes listen.
pub const PORTS: &str = "/v1/dcs/{dc}/ports";
/// DELETE, `{port}` as of `PortSpec`: nobody listens there any more; what is connected goes on.
pub const PORT: &str = "/v1/dcs/{dc}/ports/{port}";
/// POST with `Upgrade: dvs-stream`, `?path=/in/tree&node=n1` ([`crate::in_tree`]): the client sends a tar stream as
/// stdin frames, plain or compressed with gzip, bzip2, xz or zstd; it is unpacked into the tree by a process inside the
/// container, which follows no link; exit frame ends. Status 2: some entries could not be made; standard error names
/// them.
pub const DC_IMPORT: &str = "/v1/dcs/{dc}/import";
/// GET: what it uses of its nodes.
pub const DC_USAGE: &str = "/v1/dcs/{dc}/usage";
/// GET: a tar stream out of the tree.
pub const DC_EXPORT: &str = "/v1/dcs/{dc}/export";

/// Fills the names into a path: `fill(DC_START, &[("dc", "shop")])`.
pub fn fill(template: &str, names: &[(&str, &str)]) -> String {
    names.iter().fold(template.to_owned(), |path, (name, value)| path.replace(&format!("{{{name}}}"), value))
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_filled_in() {
        assert_eq!(super::fill(super::PROCESS, &[("dc", "shop"), ("pid", "65600")]), "/v1/dcs/shop/processes/65600");
    }
}
