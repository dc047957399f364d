//! One method per resource. Paths and bodies are the contract's; names are escaped here.

use std::fs::File;
use std::io::Read;

use hyper::http::Method;
use mgmt_api::path::{self, fill};
use mgmt_api::{
    AccessFile, AccessInfo, AccessRequest, ApplyPlan, ApplyRequest, AuthorityState, ChannelInfo, ClusterLevel, Dc,
    DcChange, DcNodeRequest, DcRename, DcSpec, DiskChange, DiskSpec, Examination, ExecRequest, Health, MoveRequest,
    Myself, NewToken, Node, NodeChange, NodeUsage, PortInfo, PortSpec, Process, RunRequest, RunResponse,
    ServerMoveRequest, ServiceInfo, ServiceSpec, SignalRequest, TokenInfo, TokenRequest, UpgradeState, Version,
};

use crate::connection::{ACT_SECONDS, ASK_SECONDS, Noted};
use crate::{Client, Error, Stream, TextStream};

/// What to do with a container once it exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterCreate {
    Leave,
    Start,
}

/// What to do with a running container that shall be deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BeforeDelete {
    Refuse,
    Stop,
}

/// What becomes of a service that is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterRemoval {
    Gone,
    /// It is added again at once: what comes after it waits.
    Added,
}

/// What to do with the images of a deleted container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data {
    Keep,
    Remove,
}

/// How an archive becomes files.
#[derive(Clone, Copy, Default, Debug)]
pub struct Unpacked<'a> {
    /// Through which it goes; the container's first.
    pub node: Option<&'a str>,
    /// The one file or directory of the archive: it becomes the destination, or goes into the directory there.
    pub top: Option<&'a str>,
    /// All of it belongs to root.
    pub mine: bool,
}

/// What has become of a node that is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeGone {
    /// Its daemon lives.
    No,
    ForGood,
}

/// Which part of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogQuery {
    /// Keep the answer open until the program ends.
    pub follow: bool,
    /// The last so many lines; all when absent.
    pub tail: Option<u64>,
}

/// The name of a stream that outlives its connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Session(u64);

impl Session {
    /// One that nobody else has.
    pub fn new() -> std::io::Result<Session> {
        let mut bytes = [0; 8];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Session(u64::from_le_bytes(bytes)))
    }

    fn asked(self, path: String) -> String {
        format!("{path}?session={}", self.0)
    }
}

/// A service may have ten minutes to end (`grace_ms`).
const STOP_SECONDS: u64 = 720;
const NONE: Option<&()> = None;

/// Processes of a container.
#[derive(Clone, PartialEq, Debug)]
pub struct Processes {
    pub processes: Vec<Process>,
    /// Nodes that did not answer, with the reason: `n2: it is down`.
    pub missing: Vec<String>,
    /// What keeps programs waiting.
    pub notes: Vec<String>,
}

impl Client {
    pub async fn version(&self) -> Result<Version, Error> {
        self.json(Method::GET, path::VERSION, NONE, ASK_SECONDS).await
    }

    pub async fn level(&self) -> Result<ClusterLevel, Error> {
        self.json(Method::GET, path::LEVEL, NONE, ASK_SECONDS).await
    }

    /// How far an upgrade of the node is.
    pub async fn upgrade_state(&self) -> Result<UpgradeState, Error> {
        self.json(Method::GET, path::UPGRADE, NONE, ASK_SECONDS).await
    }

    /// The daemon begins anew from the file it was started from.
    pub async fn upgrade_daemon(&self) -> Result<(), Error> {
        self.nothing(Method::POST, path::UPGRADE_DAEMON, NONE, ASK_SECONDS).await
    }

    /// Servers and gates of other binaries give way. May be repeated.
    pub async fn upgrade_servers(&self) -> Result<(), Error> {
        self.nothing(Method::POST, path::UPGRADE_SERVERS, NONE, ASK_SECONDS).await
    }

    pub async fn create_token(&self, asked: &TokenRequest) -> Result<NewToken, Error> {
        self.json(Method::POST, path::TOKENS, Some(asked), ASK_SECONDS).await
    }

    pub async fn tokens(&self) -> Result<Vec<TokenInfo>, Error> {
        self.json(Method::GET, path::TOKENS, NONE, ASK_SECONDS).await
    }

    pub async fn remove_token(&self, id: &str) -> Result<(), Error> {
        let path = named(path::TOKEN, &[("id", id)]);
        self.nothing(Method::DELETE, &path, NONE, ASK_SECONDS).await
    }

    pub async fn create_access(&self, asked: &AccessRequest) -> Result<AccessFile, Error> {
        self.json(Method::POST, path::ACCESSES, Some(asked), ASK_SECONDS).await
    }

    pub async fn accesses(&self) -> Result<Vec<AccessInfo>, Error> {
        self.json(Method::GET, path::ACCESSES, NONE, ASK_SECONDS).await
    }

    pub async fn remove_access(&self, name: &str) -> Result<(), Error> {
        let path = named(path::ACCESS, &[("name", name)]);
        self.nothing(Method::DELETE, &path, NONE, ASK_SECONDS).await
    }

    /// Who asks, as the cluster sees it.
    pub async fn myself(&self) -> Result<Myself, Error> {
        self.json(Method::GET, path::MYSELF, NONE, ASK_SECONDS).await
    }

    /// Lines of JSON ([`mgmt_api::EventInfo`]), as long as somebody listens. `dc`: of one container alone.
    pub async fn events(&self, dc: Option<&str>) -> Result<TextStream, Error> {
        let dc = dc.map(|dc| named("?dc={dc}", &[("dc", dc)])).unwrap_or_default();
        self.follow(&format!("{}{dc}", path::EVENTS)).await
    }

    /// Lines of the audit log; `None`: of the daemon's own node.
    pub async fn audit(&self, node: Option<&str>, query: LogQuery) -> Result<TextStream, Error> {
        let tail = query.tail.map(|lines| format!("&tail={lines}")).unwrap_or_default();
        let node = node.map(|node| named("&node={node}", &[("node", node)])).unwrap_or_default();
        self.follow(&format!("{}?follow={}{tail}{node}", path::AUDIT, query.follow)).await
    }

    pub async fn authority(&self) -> Result<AuthorityState, Error> {
        self.json(Method::GET, path::AUTHORITY, NONE, ASK_SECONDS).await
    }

    pub async fn rotate_authority(&self) -> Result<AuthorityState, Error> {
        self.json(Method::POST, path::AUTHORITY, NONE, ASK_SECONDS).await
    }

    /// A copy of what the engine holds, piece by piece.
    pub async fn backup(&self) -> Result<TextStream, Error> {
        self.follow(path::BACKUP).await
    }

    /// Answers when it runs there, if it is to run.
    pub async fn add_dc_node(&self, dc: &str, node: &str) -> Result<Dc, Error> {
        let asked = DcNodeRequest { node: node.to_owned() };
        self.json(Method::POST, &named(path::DC_NODES, &[("dc", dc)]), Some(&asked), ACT_SECONDS).await
    }

    /// `before`: what is done about programs there, and a node that does not answer.
    pub async fn remove_dc_node(&self, dc: &str, node: &str, before: BeforeDelete) -> Result<Dc, Error> {
        let force = if before == BeforeDelete::Stop { "?force=true" } else { "" };
        let path = format!("{}{force}", named(path::DC_NODE, &[("dc", dc), ("node", node)]));
        self.json(Method::DELETE, &path, NONE, ACT_SECONDS).await
    }

    /// What would have to be done for containers to be as they are described.
    pub async fn plan(&self, description: &ApplyRequest) -> Result<ApplyPlan, Error> {
        self.json(Method::POST, path::PLAN, Some(description), ASK_SECONDS).await
    }

    /// Answers when its nodes have followed.
    pub async fn change_dc(&self, dc: &str, change: &DcChange) -> Result<Dc, Error> {
        self.json(Method::PATCH, &named(path::DC, &[("dc", dc)]), Some(change), ACT_SECONDS).await
    }

    pub async fn change_node(&self, node: &str, change: &NodeChange) -> Result<Node, Error> {
        self.json(Method::PATCH, &named(path::NODE, &[("node", node)]), Some(change), ASK_SECONDS).await
    }

    /// `lost`: its machine is gone for good.
    pub async fn remove_node(&self, node: &str, gone: NodeGone) -> Result<(), Error> {
        let lost = if gone == NodeGone::ForGood { "?lost=true" } else { "" };
        let path = format!("{}{lost}", named(path::NODE, &[("node", node)]));
        self.nothing(Method::DELETE, &path, NONE, ASK_SECONDS).await
    }

    /// Not ready is an answer, not an error.
    pub async fn ready(&self) -> Result<Health, Error> {
        self.json_even_unavailable(path::READY).await
    }

    /// The same, with each check by its name.
    pub async fn ready_verbose(&self) -> Result<Health, Error> {
        self.json_even_unavailable(&format!("{}?verbose=true", path::READY)).await
    }

    /// What is wrong with the cluster, as the daemon's node sees it.
    pub async fn examine(&self) -> Result<Examination, Error> {
        self.json(Method::GET, path::EXAMINATION, NONE, ASK_SECONDS).await
    }

    /// With which the daemon was started.
    pub async fn settings(&self) -> Result<serde_json::Value, Error> {
        self.json(Method::GET, path::SETTINGS, NONE, ASK_SECONDS).await
    }

    /// Numbers about a node, in OpenMetrics text; `None`: the daemon's own node.
    pub async fn metrics(&self, node: Option<&str>) -> Result<String, Error> {
        let query = node.map(|node| named("?node={node}", &[("node", node)])).unwrap_or_default();
        let bytes = self.bytes(Method::GET, &format!("{}{query}", path::METRICS), NONE, ASK_SECONDS).await?;
        String::from_utf8(bytes.to_vec()).map_err(|_| Error::Foreign("the metrics are no text".to_owned()))
    }

    pub async fn nodes(&self) -> Result<Vec<Node>, Error> {
        self.json(Method::GET, path::NODES, NONE, ASK_SECONDS).await
    }

    pub async fn node(&self, name: &str) -> Result<Node, Error> {
        self.json(Method::GET, &named(path::NODE, &[("node", name)]), NONE, ASK_SECONDS).await
    }

    pub async fn dcs(&self) -> Result<Vec<Dc>, Error> {
        self.json(Method::GET, path::DCS, NONE, ASK_SECONDS).await
    }

    pub async fn dc(&self, dc: &str) -> Result<Dc, Error> {
        self.json(Method::GET, &named(path::DC, &[("dc", dc)]), NONE, ASK_SECONDS).await
    }

    pub async fn create_dc(&self, spec: &DcSpec, after: AfterCreate) -> Result<Dc, Error> {
        let query = match after {
            AfterCreate::Leave => "",
            AfterCreate::Start => "?start=true",
        };
        self.json(Method::POST, &format!("{}{query}", path::DCS), Some(spec), ACT_SECONDS).await
    }

    pub async fn delete_dc(&self, dc: &str, before: BeforeDelete, data: Data) -> Result<(), Error> {
        let path = format!(
            "{}?force={}&keep_data={}",
            named(path::DC, &[("dc", dc)]),
            before == BeforeDelete::Stop,
            data == Data::Keep
        );
        self.nothing(Method::DELETE, &path, NONE, ACT_SECONDS).await
    }

    pub async fn start_dc(&self, dc: &str) -> Result<Dc, Error> {
        self.json(Method::POST, &named(path::DC_START, &[("dc", dc)]), NONE, ACT_SECONDS).await
    }

    /// Its tree is what it was for a snapshot.
    pub async fn start_dc_as_it_was(&self, dc: &str, snapshot: &str) -> Result<Dc, Error> {
        let path = format!("{}?snapshot={}", named(path::DC_START, &[("dc", dc)]), escape(snapshot));
        self.json(Method::POST, &path, NONE, ACT_SECONDS).await
    }

    pub async fn stop_dc(&self, dc: &str, grace_ms: Option<u64>) -> Result<Dc, Error> {
        let query = grace_ms.map(|ms| format!("?grace_ms={ms}")).unwrap_or_default();
        let path = format!("{}{query}", named(path::DC_STOP, &[("dc", dc)]));
        self.json(Method::POST, &path, NONE, ACT_SECONDS).await
    }

    pub async fn pause_dc(&self, dc: &str) -> Result<Dc, Error> {
        self.json(Method::POST, &named(path::DC_PAUSE, &[("dc", dc)]), NONE, ACT_SECONDS).await
    }

    pub async fn unpause_dc(&self, dc: &str) -> Result<Dc, Error> {
        self.json(Method::POST, &named(path::DC_UNPAUSE, &[("dc", dc)]), NONE, ACT_SECONDS).await
    }

    pub async fn rename_dc(&self, dc: &str, name: &str) -> Result<Dc, Error> {
        let request = DcRename { name: name.to_owned() };
        self.json(Method::POST, &named(path::DC_RENAME, &[("dc", dc)]), Some(&request), ACT_SECONDS).await
    }

    pub async fn services(&self, dc: &str) -> Result<Vec<ServiceInfo>, Error> {
        self.json(Method::GET, &named(path::SERVICES, &[("dc", dc)]), NONE, ASK_SECONDS).await
    }

    pub async fn service(&self, dc: &str, service: &str) -> Result<ServiceInfo, Error> {
        let path = named(path::SERVICE, &[("dc", dc), ("service", service)]);
        self.json(Method::GET, &path, NONE, ASK_SECONDS).await
    }

    pub async fn add_service(&self, dc: &str, spec: &ServiceSpec) -> Result<ServiceInfo, Error> {
        self.json(Method::POST, &named(path::SERVICES, &[("dc", dc)]), Some(spec), ASK_SECONDS).await
    }

    /// Answers when nothing of it runs any more.
    pub async fn remove_service(&self, dc: &str, service: &str, after: AfterRemoval) -> Result<(), Error> {
        let replaced = if after == AfterRemoval::Added { "?replaced=true" } else { "" };
        let path = format!("{}{replaced}", named(path::SERVICE, &[("dc", dc), ("service", service)]));
        self.nothing(Method::DELETE, &path, NONE, STOP_SECONDS).await
    }

    pub async fn start_service(&self, dc: &str, service: &str) -> Result<ServiceInfo, Error> {
        let path = named(path::SERVICE_START, &[("dc", dc), ("service", service)]);
        self.json(Method::POST, &path, NONE, ASK_SECONDS).await
    }

    /// Answers when nothing of it runs any more.
    pub async fn stop_service(&self, dc: &str, service: &str) -> Result<ServiceInfo, Error> {
        let path = named(path::SERVICE_STOP, &[("dc", dc), ("service", service)]);
        self.json(Method::POST, &path, NONE, STOP_SECONDS).await
    }

    pub async fn restart_service(&self, dc: &str, service: &str) -> Result<ServiceInfo, Error> {
        let path = named(path::SERVICE_RESTART, &[("dc", dc), ("service", service)]);
        self.json(Method::POST, &path, NONE, ASK_SECONDS).await
    }

    /// Answers when it serves there.
    pub async fn move_server(&self, dc: &str, server: &str, node: &str) -> Result<Dc, Error> {
        let path = named(path::SERVER_MOVE, &[("dc", dc), ("server", server)]);
        let request = ServerMoveRequest { node: node.to_owned() };
        self.json(Method::POST, &path, Some(&request), ACT_SECONDS).await
    }

    /// Answers when it serves, if the container runs.
    pub async fn create_disk(&self, dc: &str, disk: &DiskSpec) -> Result<Dc, Error> {
        self.json(Method::POST, &named(path::DISKS, &[("dc", dc)]), Some(disk), ACT_SECONDS).await
    }

    /// Answers when its nodes have followed.
    pub async fn change_disk(&self, dc: &str, disk: &str, change: &DiskChange) -> Result<Dc, Error> {
        self.json(Method::PATCH, &named(path::DISK, &[("dc", dc), ("disk", disk)]), Some(change), ACT_SECONDS).await
    }

    /// Answers when it is gone. `force`: also where a node that has an image of it does not answer.
    pub async fn delete_disk(&self, dc: &str, disk: &str, force: bool) -> Result<Dc, Error> {
        let path = named(path::DISK, &[("dc", dc), ("disk", disk)]);
        self.json(Method::DELETE, &format!("{path}?force={force}"), NONE, ACT_SECONDS).await
    }

    /// Answers when the comparison of its copies has begun. What it finds tells [`Client::dc`].
    pub async fn verify_disk(&self, dc: &str, disk: &str, repair: bool) -> Result<Dc, Error> {
        let path = named(path::DISK_VERIFY, &[("dc", dc), ("disk", disk)]);
        self.json(Method::POST, &format!("{path}?repair={repair}"), NONE, ACT_SECONDS).await
    }

    /// Answers when it runs there.
    pub async fn add_replica(&self, dc: &str, disk: &str, node: &str) -> Result<Dc, Error> {
        let path = named(path::REPLICAS, &[("dc", dc), ("disk", disk)]);
        let request = DcNodeRequest { node: node.to_owned() };
        self.json(Method::POST, &path, Some(&request), ACT_SECONDS).await
    }

    /// Answers when it is gone.
    pub async fn remove_replica(&self, dc: &str, disk: &str, node: &str, force: bool) -> Result<Dc, Error> {
        let path = named(path::REPLICA, &[("dc", dc), ("disk", disk), ("node", node)]);
        self.json(Method::DELETE, &format!("{path}?force={force}"), NONE, ACT_SECONDS).await
    }

    /// Answers when the disk serves there.
    pub async fn promote_replica(&self, dc: &str, disk: &str, node: &str, force: bool) -> Result<Dc, Error> {
        let path = named(path::REPLICA_PROMOTE, &[("dc", dc), ("disk", disk), ("node", node)]);
        self.json(Method::POST, &format!("{path}?force={force}"), NONE, ACT_SECONDS).await
    }

    pub async fn move_service(&self, dc: &str, service: &str, request: &MoveRequest) -> Result<ServiceInfo, Error> {
        let path = named(path::SERVICE_MOVE, &[("dc", dc), ("service", service)]);
        self.json(Method::POST, &path, Some(request), ASK_SECONDS).await
    }

    pub async fn ports(&self, dc: &str) -> Result<Vec<PortInfo>, Error> {
        self.json(Method::GET, &named(path::PORTS, &[("dc", dc)]), NONE, ASK_SECONDS).await
    }

    /// Answers when its nodes listen.
    pub async fn add_port(&self, dc: &str, spec: &PortSpec) -> Result<PortInfo, Error> {
        self.json(Method::POST, &named(path::PORTS, &[("dc", dc)]), Some(spec), ACT_SECONDS).await
    }

    /// Answers when no node listens there any more.
    pub async fn remove_port(&self, dc: &str, port: &str) -> Result<(), Error> {
        self.nothing(Method::DELETE, &named(path::PORT, &[("dc", dc), ("port", port)]), NONE, ACT_SECONDS).await
    }

    /// Of all nodes that answer.
    pub async fn processes(&self, dc: &str) -> Result<Processes, Error> {
        let Noted { answer: processes, missing, notes } =
            self.json_with_notes(&named(path::PROCESSES, &[("dc", dc)])).await?;
        Ok(Processes { processes, missing, notes })
    }

    /// Of all nodes that answer; and which do not, with the reason.
    pub async fn usage(&self, dc: &str) -> Result<(Vec<NodeUsage>, Vec<String>), Error> {
        let Noted { answer, missing, .. } = self.json_with_notes(&named(path::DC_USAGE, &[("dc", dc)])).await?;
        Ok((answer, missing))
    }

    pub async fn process(&self, dc: &str, pid: u32) -> Result<Process, Error> {
        self.json(Method::GET, &of_process(path::PROCESS, dc, pid), NONE, ASK_SECONDS).await
    }

    /// Starts a program and leaves it alone.
    pub async fn run_detached(&self, dc: &str, run: &RunRequest) -> Result<RunResponse, Error> {
        self.json(Method::POST, &named(path::PROCESSES, &[("dc", dc)]), Some(run), ASK_SECONDS).await
    }

    /// Starts a program and stays connected to it.
    pub async fn run(&self, dc: &str, run: &RunRequest, session: Session) -> Result<Stream, Error> {
        self.upgrade(Method::POST, &session.asked(named(path::PROCESSES, &[("dc", dc)])), Some(run)).await
    }

    pub async fn exec_detached(&self, dc: &str, exec: &ExecRequest) -> Result<RunResponse, Error> {
        self.json(Method::POST, &named(path::DC_EXEC, &[("dc", dc)]), Some(exec), ASK_SECONDS).await
    }

    pub async fn exec(&self, dc: &str, exec: &ExecRequest, session: Session) -> Result<Stream, Error> {
        self.upgrade(Method::POST, &session.asked(named(path::DC_EXEC, &[("dc", dc)])), Some(exec)).await
    }

    pub async fn attach(&self, dc: &str, pid: u32, session: Session) -> Result<Stream, Error> {
        self.upgrade(Method::GET, &session.asked(of_process(path::PROCESS_ATTACH, dc, pid)), NONE).await
    }

    /// Goes on with a session whose connection broke, of which so many frames were heard here.
    pub async fn resume(&self, dc: &str, pid: u32, session: Session, heard: u64) -> Result<Stream, Error> {
        let path = format!("{}&heard={heard}", session.asked(of_process(path::PROCESS_ATTACH, dc, pid)));
        self.upgrade(Method::GET, &path, NONE).await
    }

    pub async fn signal(&self, dc: &str, pid: u32, signal: i32) -> Result<(), Error> {
        let path = of_process(path::PROCESS_SIGNAL, dc, pid);
        self.nothing(Method::POST, &path, Some(&SignalRequest { signal, by: None }), ASK_SECONDS).await
    }

    /// As [`mgmt_api::LogPiece`] in lines, where its node can tell it so ([`TextStream::media`]); `since_ms`: what was
    /// written then or later.
    pub async fn logs(&self, dc: &str, pid: u32, query: LogQuery, since_ms: Option<u64>) -> Result<TextStream, Error> {
        let tail = query.tail.map(|lines| format!("&tail={lines}")).unwrap_or_default();
        let since = since_ms.map(|since_ms| format!("&since={since_ms}")).unwrap_or_default();
        let path = of_process(path::PROCESS_LOGS, dc, pid);
        self.follow(&format!("{path}?form=pieces&follow={}{tail}{since}", query.follow)).await
    }

    pub async fn channels(&self, dc: &str) -> Result<Vec<ChannelInfo>, Error> {
        self.json(Method::GET, &named(path::DC_CHANNELS, &[("dc", dc)]), NONE, ASK_SECONDS).await
    }

    /// What is on a disk without a file tree comes out as output (`mgmt_api::content`).
    pub async fn read_disk(&self, dc: &str, disk: &str) -> Result<Stream, Error> {
        self.upgrade(Method::GET, &named(path::DISK_CONTENT, &[("dc", dc), ("disk", disk)]), NONE).await
    }

    /// It goes in as input, `Exit` comes out.
    pub async fn fill_disk(&self, dc: &str, disk: &str) -> Result<Stream, Error> {
        self.upgrade(Method::POST, &named(path::DISK_CONTENT, &[("dc", dc), ("disk", disk)]), NONE).await
    }

    /// A tar stream goes in as input, `Exit` comes out.
    pub async fn import(&self, dc: &str, destination: &str, how: &Unpacked<'_>) -> Result<Stream, Error> {
        let Unpacked { node, top, mine } = how;
        let node = node.map(|name| format!("&node={}", escape(name))).unwrap_or_default();
        let top = top.map(|name| format!("&top={}", escape(name))).unwrap_or_default();
        let mine = if *mine { "&mine=true" } else { "" };
        let path = format!("{}?path={}{node}{top}{mine}", named(path::DC_IMPORT, &[("dc", dc)]), escape(destination));
        self.upgrade(Method::POST, &path, NONE).await
    }

    /// A tar stream of one file or directory, which is called `top` in it, comes out as output.
    pub async fn export(&self, dc: &str, source: &str, top: &str, node: Option<&str>) -> Result<Stream, Error> {
        let node = node.map(|name| format!("&node={}", escape(name))).unwrap_or_default();
        let route = named(path::DC_EXPORT, &[("dc", dc)]);
        let path = format!("{route}?path={}&top={}{node}", escape(source), escape(top));
        self.upgrade(Method::GET, &path, NONE).await
    }
}

fn named(template: &str, names: &[(&str, &str)]) -> String {
    let escaped: Vec<(&str, String)> = names.iter().map(|(key, value)| (*key, escape(value))).collect();
    let borrowed: Vec<(&str, &str)> = escaped.iter().map(|(key, value)| (*key, value.as_str())).collect();
    fill(template, &borrowed)
}

fn of_process(template: &str, dc: &str, pid: u32) -> String {
    named(template, &[("dc", dc), ("pid", &pid.to_string())])
}

/// Percent-encodes everything but RFC 3986's unreserved characters, so that a name cannot become another path.
fn escape(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => out.push(char::from(byte)),
            // A dot is unreserved too, but `..` is a path of its own.
            _ => out.push_str(&format!("%{byte:02X}")),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_typed_by_a_person_cannot_reach_another_path() {
        assert_eq!(named(path::DC, &[("dc", "../nodes?x")]), "/v1/dcs/%2E%2E%2Fnodes%3Fx");
    }
}
