//! Facts of this node, and an examination of the cluster: every node is asked for its facts, and what they mean is said
//! in words (`diagnosis`).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::Method;
use mgmt_api::{CertificateFacts, Examination, MemberFacts, Node, NodeFacts, NodeState, SpaceFacts, path};
use tokio::task::JoinSet;

use super::failure::Failure;
use super::remote::Question;
use super::{Api, blocking, health, nodes, parse, read_body};
use crate::context::Context;
use crate::diagnosis::{self, Asked, ClockOff, Seen};
use crate::member;
use crate::quorum::EngineFile;
use crate::records;
use crate::space::Space;
use crate::state;

/// A node that needs longer has something to be found at once.
const FACTS_LIMIT: Duration = Duration::from_secs(15);

pub async fn facts(State(api): State<Arc<Api>>) -> Result<Json<NodeFacts>, Failure> {
    Ok(Json(blocking(move || Ok(own_facts(&api.context))).await?))
}

/// All nodes are asked at the same time: there are at most `NODES_PER_CLUSTER`.
pub async fn examine(State(api): State<Arc<Api>>) -> Result<Json<Examination>, Failure> {
    let also = Arc::clone(&api);
    let nodes = blocking(move || Ok(nodes::nodes(&also.context)?)).await?;
    let names = nodes.iter().map(|node| node.name.clone()).collect();
    let mut asking = JoinSet::new();
    for node in nodes {
        asking.spawn(look(Arc::clone(&api), node));
    }
    let mut seen = asking.join_all().await;
    seen.sort_by(|one, other| one.name.cmp(&other.name));
    let (own, cluster) = (api.context.config.node.clone(), api.context.config.cluster.clone());
    let troubles = diagnosis::troubles(&own, &seen, records::now_ms() / 1000);
    Ok(Json(Examination { cluster, seen_from: own, nodes: names, troubles }))
}

async fn look(api: Arc<Api>, node: Node) -> Seen {
    let asked = match node.state {
        _ if node.name == api.context.config.node => itself(&api).await,
        NodeState::Down | NodeState::Fenced => Asked::Not,
        _ => tokio::time::timeout(FACTS_LIMIT, ask(&api, &node.name))
            .await
            .unwrap_or_else(|_| Asked::NoAnswer(format!("no answer within {} s", FACTS_LIMIT.as_secs()))),
    };
    let address = format!("{}:{}", node.address, node.api_port);
    Seen { name: node.name, address, state: node.state, problems: node.problems, asked }
}

async fn itself(api: &Arc<Api>) -> Asked {
    let also = Arc::clone(api);
    match blocking(move || Ok(own_facts(&also.context))).await {
        Ok(facts) => Asked::Answered { facts, clock: ClockOff::NONE },
        Err(failure) => Asked::NoAnswer(failure.0.what),
    }
}

async fn ask(api: &Api, name: &str) -> Asked {
    let Some(member) = api.context.member(name) else { return Asked::NoAnswer("it is not known any more".to_owned()) };
    let question = Question { method: Method::GET, path: path::FACTS.to_owned(), body: Bytes::new(), is_stream: false };
    let asked_ms = records::now_ms();
    let answer = async {
        let answer = api.remote.forward(&member, &question).await?;
        let status = answer.status();
        let body = read_body(answer.into_body()).await?;
        Ok::<_, Failure>((status, body))
    };
    match answer.await {
        Ok((status, body)) if status.is_success() => match parse::<NodeFacts>(&body) {
            Ok(facts) => {
                let clock = ClockOff::between(asked_ms, facts.clock_ms, records::now_ms());
                Asked::Answered { facts, clock }
            }
            Err(_) => Asked::NoAnswer("it answered something else: another version?".to_owned()),
        },
        Ok((status, _)) => Asked::NoAnswer(format!("it answered {status}: another version?")),
        Err(Failure(body)) => Asked::NoAnswer(body.because.last().cloned().unwrap_or(body.what)),
    }
}

fn own_facts(context: &Context) -> NodeFacts {
    let config = &context.config;
    let (checks, log_dir) = (health::checks(context), config.state_dir.join("log"));
    let mut tls = vec![config.tls_dir.clone()];
    tls.extend(config.etcd.as_ref().and_then(|etcd| etcd.tls_dir.clone()).filter(|dir| *dir != config.tls_dir));
    let files = tls.iter().flat_map(|dir| [pki::NODE_CERT, pki::CA_CERT].map(|file| dir.join(file)));
    let certificates =
        files.map(|path| CertificateFacts { path: path.display().to_string(), expires_s: pki::expiry_s(&path).ok() });
    let mut space: Vec<SpaceFacts> = Vec::new();
    for path in [config.state_dir.as_path(), &config.run_dir, config.engine.parent().unwrap_or(Path::new("/"))] {
        let Ok(Space { free_bytes, whole_bytes }) = Space::at(path) else { continue };
        // Several of them are mostly one file system.
        if !space.iter().any(|one| (one.free_bytes, one.whole_bytes) == (free_bytes, whole_bytes)) {
            space.push(SpaceFacts { path: path.display().to_string(), free_bytes, whole_bytes });
        }
    }
    let runs_member = config.etcd.as_ref().is_some_and(|etcd| match etcd.managed {
        Some(_) => EngineFile::read(&config.state_dir).is_ok_and(|file| file.own.is_some()),
        None => etcd.serve.is_some(),
    });
    NodeFacts {
        node: config.node.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        checks,
        certificates: certificates.collect(),
        space,
        member: runs_member.then(|| member_facts(&config.run_dir, &log_dir)),
        log_dir: log_dir.display().to_string(),
        // Last, and so the nearest to the answer.
        clock_ms: records::now_ms(),
    }
}

fn member_facts(run_dir: &Path, log_dir: &Path) -> MemberFacts {
    let is_running =
        state::recorded(run_dir).iter().any(|child| child.role == member::NAME && state::is_running(child));
    let log = log_dir.join(format!("{}.log", member::NAME));
    MemberFacts { is_running, last_words: if is_running { None } else { member::last_words(&log) } }
}
