//! Programs of a container: started, listed, signalled, attached to, on whichever node they are.

use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use axum::response::IntoResponse;
use hyper::body::Frame;
use keeper::{KeeperClient, KeeperError, LogPart, StreamEnd};
use mgmt_api::{
    DcPhase, ErrorBody, ErrorKind, ExecRequest, LogForm, Process, ProcessState, RunRequest, RunResponse, SignalRequest,
    path,
};
use serde::Deserialize;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::UnixStream;

use super::changes::{demand_goes_on, demand_known};
use super::failure::{Failure, failure};
use super::gate::{Caller, Holder};
use super::gather::{self, gather};
use super::remote::{Question, is_switching};
use super::words::{self, Asked};
use super::{Api, blocking, is_forwarded, parse, read_body, stream, wants_stream};
use crate::level;
use crate::reconcile::parts::{keeper_socket, programs_dir};
use crate::records::{DcView, Desired};
use crate::spec;

/// Bytes of a log passed on at a time.
const LOG_CHUNK: usize = 16 * 1024;
/// How long a program waits for its container's part on a node that comes back.
const PART_LIMIT: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long a program waits until the file tree is there: a node that comes back mounts it after its keeper began.
const TREE_LIMIT: Duration = Duration::from_secs(10);

/// Of a client that wants its stream to outlive its connections (`mgmt_api::stream::session`).
#[derive(Clone, Copy, Deserialize)]
pub struct SessionQuery {
    session: Option<u64>,
    /// It comes back, and has heard so many frames.
    heard: Option<u64>,
}

pub async fn run(
    State(api): State<Arc<Api>>,
    Path(dc): Path<String>,
    Query(wish): Query<SessionQuery>,
    request: Request,
) -> Result<Response<Body>, Failure> {
    let view = api.dc(&dc).await?;
    let incoming = Incoming::take(request).await?;
    let run: RunRequest = parse(&incoming.question.body)?;
    let node = chosen_node(&view, run.node.as_deref())?;
    answer_at(&api, &view, &node, incoming, Start::Run(run, wish.session)).await
}

pub async fn exec(
    State(api): State<Arc<Api>>,
    Path(dc): Path<String>,
    Query(wish): Query<SessionQuery>,
    request: Request,
) -> Result<Response<Body>, Failure> {
    let view = api.dc(&dc).await?;
    let incoming = Incoming::take(request).await?;
    let exec: ExecRequest = parse(&incoming.question.body)?;
    let node = node_of(&view, exec.pid)?;
    answer_at(&api, &view, &node, incoming, Start::Exec(exec, wish.session)).await
}

#[derive(Deserialize)]
pub struct ImportQuery {
    path: String,
    node: Option<String>,
    top: Option<String>,
    #[serde(default)]
    mine: bool,
}

#[derive(Deserialize)]
pub struct ExportQuery {
    path: String,
    node: Option<String>,
    top: Option<String>,
}

pub async fn import(
    State(api): State<Arc<Api>>,
    Path(dc): Path<String>,
    Query(query): Query<ImportQuery>,
    request: Request,
) -> Result<Response<Body>, Failure> {
    let view = api.dc(&dc).await?;
    let incoming = Incoming::take(request).await?;
    if incoming.client.is_none() {
        return Err(failure(ErrorKind::BadRequest, "an import is a stream", "the header 'Upgrade: dvs-stream'"));
    }
    let node = chosen_node(&view, query.node.as_deref())?;
    let mut options: Vec<&str> = query.top.iter().flat_map(|top| ["--top", top]).collect();
    options.extend(query.mine.then_some("--mine"));
    let run = helper("unpack", &[&[&*in_tree(&query.path)?], &*options].concat());
    answer_at(&api, &view, &node, incoming, Start::Run(run, None)).await
}

pub async fn export(
    State(api): State<Arc<Api>>,
    Path(dc): Path<String>,
    Query(query): Query<ExportQuery>,
    request: Request,
) -> Result<Response<Body>, Failure> {
    let view = api.dc(&dc).await?;
    let incoming = Incoming::take(request).await?;
    if incoming.client.is_none() {
        return Err(failure(ErrorKind::BadRequest, "an export is a stream", "the header 'Upgrade: dvs-stream'"));
    }
    let node = chosen_node(&view, query.node.as_deref())?;
    let path = in_tree(&query.path)?;
    let own = path.rsplit('/').next().unwrap_or_default();
    let run = RunRequest { unlogged: true, ..helper("pack", &[&path, query.top.as_deref().unwrap_or(own)]) };
    answer_at(&api, &view, &node, incoming, Start::Run(run, None)).await
}

pub async fn attach(
    State(api): State<Arc<Api>>,
    Path((dc, pid)): Path<(String, u32)>,
    Query(wish): Query<SessionQuery>,
    request: Request,
) -> Result<Response<Body>, Failure> {
    let view = api.dc(&dc).await?;
    let incoming = Incoming::take(request).await?;
    let node = node_of(&view, pid)?;
    if incoming.client.is_none() {
        return Err(failure(ErrorKind::BadRequest, "attaching is a stream", "the header 'Upgrade: dvs-stream'"));
    }
    let start = match wish {
        SessionQuery { session: Some(session), heard: Some(heard) } => Start::Resume { pid, session, heard },
        SessionQuery { session, .. } => Start::Attach(pid, session),
    };
    answer_at(&api, &view, &node, incoming, start).await
}

/// Of all nodes; those that do not answer are named in a header.
pub async fn list(
    State(api): State<Arc<Api>>,
    Path(dc): Path<String>,
    headers: HeaderMap,
) -> Result<Response<Body>, Failure> {
    let view = api.dc(&dc).await?;
    let mut found =
        gather(&api, &view, &headers, path::PROCESSES, |api, view| async move { local_processes(&api, &view).await })
            .await?;
    if is_forwarded(&headers) {
        return Ok(found.answer());
    }
    found.items.sort_by_key(|process| process.pid);
    let response = found.answer();
    let notes = api.notes(&view, &view.record.spec.nodes).await;
    Ok(with_notes(response, &notes))
}

pub async fn show(
    State(api): State<Arc<Api>>,
    Path((dc, pid)): Path<(String, u32)>,
    request: Request,
) -> Result<Response<Body>, Failure> {
    let view = api.dc(&dc).await?;
    let node = node_of(&view, pid)?;
    if node != api.context.config.node {
        return Incoming::take(request).await?.forward(&api, &view, &node).await;
    }
    let found = local_processes(&api, &view).await?.into_iter().find(|process| process.pid == pid);
    found.map(|process| Json(process).into_response()).ok_or_else(|| no_such_process(&dc, pid))
}

pub async fn signal(
    State(api): State<Arc<Api>>,
    Path((dc, pid)): Path<(String, u32)>,
    request: Request,
) -> Result<Response<Body>, Failure> {
    let view = api.dc(&dc).await?;
    let node = node_of(&view, pid)?;
    let by = request.extensions().get::<Caller>().and_then(Caller::own_name).map(str::to_owned);
    let mut incoming = Incoming::take(request).await?;
    let mut asked: SignalRequest = parse(&incoming.question.body)?;
    // What a node passes on says it already.
    if let Some(name) = by {
        asked.by = Some(name);
        incoming.question.body = crate::records::encode(&asked).into();
    }
    if node != api.context.config.node {
        return incoming.forward(&api, &view, &node).await;
    }
    let keeper = keeper(&api, &view).await?;
    blocking(move || keeper.signal(pid, asked.signal, asked.by).map_err(|error| about(&dc, error))).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[derive(Deserialize)]
pub struct LogsQuery {
    #[serde(default)]
    follow: bool,
    tail: Option<usize>,
    since: Option<u64>,
    #[serde(default)]
    form: LogForm,
}

impl LogsQuery {
    fn part(&self) -> LogPart {
        LogPart { tail_lines: self.tail, since_ms: self.since }
    }

    /// In which form a keeper tells it. One of an earlier release knows no times: its form is text.
    fn told_by(&self, keeper: &KeeperClient) -> Result<LogForm, Failure> {
        if self.form == LogForm::Text && self.since.is_none() || keeper.status()?.times_logs {
            return Ok(self.form);
        }
        match self.since {
            None => Ok(LogForm::Text),
            Some(_) => Err(failure(
                ErrorKind::Conflict,
                "the container runs since an earlier release, whose logs know no times",
                "without a time; or stop and start the container",
            )),
        }
    }
}

pub async fn logs(
    State(api): State<Arc<Api>>,
    Path((dc, pid)): Path<(String, u32)>,
    Query(query): Query<LogsQuery>,
    request: Request,
) -> Result<Response<Body>, Failure> {
    let view = api.dc(&dc).await?;
    let node = node_of(&view, pid)?;
    if node != api.context.config.node {
        return Incoming::take(request).await?.forward(&api, &view, &node).await;
    }
    let keeper = match keeper(&api, &view).await {
        Ok(keeper) => keeper,
        // What programs wrote is there also when nothing of the container runs.
        Err(stopped) => return kept_log(&api, &view, pid, &query).await?.ok_or(stopped),
    };
    let (part, follow) = (query.part(), query.follow);
    let (form, told) = blocking(move || {
        let form = query.told_by(&keeper)?;
        let told = if follow {
            keeper.follow(pid, part, form).map(Told::Going)
        } else {
            keeper.logs(pid, part, form).map(Told::Whole)
        };
        Ok((form, told.map_err(|error| about(&dc, error))?))
    })
    .await?;
    let cannot = |error| failure(ErrorKind::Internal, format!("the log cannot be followed: {error}"), "again");
    let body = match told {
        Told::Whole(text) => Body::from(text),
        Told::Going(descriptor) => Body::new(FollowBody::new(descriptor).map_err(cannot)?),
    };
    Ok(log_response(form, body))
}

enum Told {
    Whole(Vec<u8>),
    Going(OwnedFd),
}

fn log_response(form: LogForm, body: Body) -> Response<Body> {
    let media = match form {
        LogForm::Text => "text/plain; charset=utf-8",
        LogForm::Pieces => "application/x-ndjson",
    };
    ([(CONTENT_TYPE, media)], body).into_response()
}

// ---- where

/// How many programs run on one of its nodes.
pub async fn running_on(api: &Arc<Api>, view: &DcView, node: &str) -> Result<usize, Failure> {
    let found = if node == api.context.config.node {
        local_processes(api, view).await?
    } else {
        gather::ask::<Process>(api, view, node, path::PROCESSES).await?
    };
    let lives = |process: &&Process| !matches!(process.state, ProcessState::Exited | ProcessState::Zombie);
    Ok(found.iter().filter(lives).count())
}

fn chosen_node(view: &DcView, wished: Option<&str>) -> Result<String, Failure> {
    let spec = &view.record.spec;
    match wished {
        None => spec
            .nodes
            .first()
            .cloned()
            .ok_or_else(|| failure(ErrorKind::Internal, "the container has no node", "dvs dc inspect")),
        Some(node) if spec.nodes.iter().any(|one| one == node) => Ok(node.to_owned()),
        Some(node) => {
            let body =
                ErrorBody::new(ErrorKind::BadRequest, format!("container '{}' does not span node '{node}'", spec.name));
            Err(body.hint(format!("its nodes are {}", spec.nodes.join(", "))).into())
        }
    }
}

/// A PID says where it lives.
fn node_of(view: &DcView, pid: u32) -> Result<String, Failure> {
    let index = spec::index_of_pid(pid);
    let node = index.and_then(|index| view.record.node_on(index));
    node.cloned().ok_or_else(|| no_such_process(&view.record.spec.name, pid))
}

fn no_such_process(dc: &str, pid: u32) -> Failure {
    words::no_such_process(dc, pid).into()
}

/// What a keeper did not do, for a caller that asked about processes there are.
fn about(dc: &str, error: KeeperError) -> Failure {
    Asked { dc, run: None }.failed(error)
}

/// A request that may have to go on to another node.
pub(super) struct Incoming {
    question: Question,
    /// Of a client that wants a stream.
    pub client: Option<hyper::upgrade::OnUpgrade>,
    pub holder: Holder,
    forwarded: bool,
}

impl Incoming {
    pub async fn take(mut request: Request) -> Result<Incoming, Failure> {
        let is_stream = wants_stream(&request);
        let client = is_stream.then(|| hyper::upgrade::on(&mut request));
        let forwarded = is_forwarded(request.headers());
        let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        let method = request.method().clone();
        let holder = request.extensions().get::<Caller>().map_or(Holder::Nobody, Caller::holder);
        let body = read_body(request.into_body()).await?;
        Ok(Incoming { question: Question { method, path, body, is_stream }, client, holder, forwarded })
    }

    pub async fn forward(self, api: &Arc<Api>, view: &DcView, node: &str) -> Result<Response<Body>, Failure> {
        if self.forwarded {
            return Err(failure(
                ErrorKind::Unavailable,
                format!("two nodes disagree about what is on node {node}"),
                "again in a moment",
            ));
        }
        let record = api
            .context
            .member(node)
            .ok_or_else(|| failure(ErrorKind::Unavailable, format!("node {node} is not known"), "dvs node ls"))?;
        let Some(client) = self.client else { return api.remote.forward(&record, &self.question).await };
        let answer = api.remote.ask(&record, &self.question).await?;
        if !is_switching(&answer) {
            return Ok(answer.map(Body::new));
        }
        stream::join(client, self.holder, answer, view.record.spec.name.clone(), node.to_owned());
        Ok(stream::switching())
    }
}

// ---- here

/// Starts or attaches on a node, this one or another. A caller that waits is told for what.
async fn answer_at(
    api: &Arc<Api>,
    view: &DcView,
    node: &str,
    incoming: Incoming,
    start: Start,
) -> Result<Response<Body>, Failure> {
    if !incoming.forwarded && start.run().is_some_and(RunRequest::is_restrained) {
        let also = Arc::clone(api);
        blocking(move || Ok(demand_known(level::of(&*also.context.engine)?, "programs with limits of their own")?))
            .await?;
    }
    let notes = if incoming.forwarded { Vec::new() } else { api.notes(view, &[node.to_owned()]).await };
    let response = match node == api.context.config.node {
        true => begin(api, view, incoming, start).await?,
        false => incoming.forward(api, view, node).await?,
    };
    Ok(with_notes(response, &notes))
}

fn with_notes(mut response: Response<Body>, notes: &[String]) -> Response<Body> {
    for note in notes.iter().filter_map(|note| HeaderValue::from_str(note).ok()) {
        response.headers_mut().append(path::NOTE, note);
    }
    response
}

/// What is asked, and the session that the client names.
enum Start {
    Run(RunRequest, Option<u64>),
    Exec(ExecRequest, Option<u64>),
    Attach(u32, Option<u64>),
    /// A client is back with the frames it has heard.
    Resume {
        pid: u32,
        session: u64,
        heard: u64,
    },
}

impl Start {
    /// What is asked to be started has the container's variables, too; its own come last and win.
    fn in_environment(mut self, env: &[mgmt_api::Bytes]) -> Start {
        if let Start::Run(run, _) | Start::Exec(ExecRequest { run, .. }, _) = &mut self {
            run.env.splice(0..0, env.iter().cloned());
        }
        self
    }

    /// The program that begins.
    fn run(&self) -> Option<&RunRequest> {
        match self {
            Start::Run(run, _) => Some(run),
            Start::Exec(exec, _) => Some(&exec.run),
            Start::Attach(..) | Start::Resume { .. } => None,
        }
    }

    fn asked<'a>(&'a self, dc: &'a str) -> Asked<'a> {
        Asked { dc, run: self.run() }
    }

    /// Gives the client's socket to the keeper. One that reaches the keeper itself needs no session: it ends when its
    /// client does.
    fn hand(&self, keeper: &KeeperClient, client: &stream::HandedOver) -> Result<(), KeeperError> {
        let end = |session: &Option<u64>| StreamEnd {
            socket: client.socket.as_fd(),
            pending: &client.pending,
            session: session.filter(|_| client.way == stream::Way::Relayed),
        };
        match self {
            Start::Run(run, session) => keeper.run(run, Some(&end(session))).map(drop),
            Start::Exec(exec, session) => keeper.exec(exec, Some(&end(session))).map(drop),
            Start::Attach(pid, session) => keeper.attach(*pid, &end(session)),
            Start::Resume { pid, session, heard } => {
                keeper.resume(*pid, *session, *heard, client.socket.as_fd(), &client.pending)
            }
        }
    }
}

/// Starts or attaches on this node: as a stream when the client wants one, else detached.
async fn begin(api: &Arc<Api>, view: &DcView, incoming: Incoming, start: Start) -> Result<Response<Body>, Failure> {
    refuse_failed(view)?;
    if start.run().is_some() {
        demand_goes_on(&view.record)?;
    }
    let mut keeper = match start.run() {
        Some(_) if view.record.desired == Desired::Running => coming_keeper(api, view).await?,
        _ => keeper(api, view).await?,
    };
    if let Some(run) = start.run() {
        let (is_named, is_restrained) = (run.user.is_some(), run.is_restrained());
        keeper = blocking(move || match keeper.wait_for_tree(TREE_LIMIT)? {
            status if is_named && !status.names_users => Err(failure(
                ErrorKind::Conflict,
                "the container runs since an earlier release, which knows no users by name",
                "by number; or stop and start the container",
            )),
            status if is_restrained && !status.restrains => Err(failure(
                ErrorKind::Conflict,
                "the container runs since an earlier release, which knows no limits of single programs",
                "without them; or stop and start the container",
            )),
            _ => Ok(keeper),
        })
        .await?;
    }
    let start = start.in_environment(&view.record.spec.env);
    if let Some(client) = incoming.client {
        let dc = view.record.spec.name.clone();
        stream::hand_over(client, incoming.holder, move |client| match start.hand(&keeper, &client) {
            // One of version 1 told the client itself.
            Ok(()) | Err(KeeperError::Told(_)) => Ok(()),
            Err(error) => Err((client.socket, start.asked(&dc).failed(error))),
        });
        return Ok(stream::switching());
    }
    let dc = view.record.spec.name.clone();
    let pid = blocking(move || match &start {
        Start::Run(run, _) => keeper.run(run, None).map_err(|error| start.asked(&dc).failed(error)),
        Start::Exec(exec, _) => keeper.exec(exec, None).map_err(|error| start.asked(&dc).failed(error)),
        Start::Attach(..) | Start::Resume { .. } => {
            Err(failure(ErrorKind::BadRequest, "attaching is a stream", "the header 'Upgrade: dvs-stream'"))
        }
    })
    .await?;
    Ok(Json(RunResponse { pid, node: api.context.config.node.clone() }).into_response())
}

/// A program of a container that never came up would only wait for its file tree.
fn refuse_failed(view: &DcView) -> Result<(), Failure> {
    let Some(share) = view.shares.values().map(|record| &record.share).find(|share| share.phase == DcPhase::Failed)
    else {
        return Ok(());
    };
    let dc = &view.record.spec.name;
    let body = ErrorBody::new(ErrorKind::Unavailable, format!("container '{dc}' did not start on {}", share.node));
    let body = share.problems.iter().fold(body, |body, problem| body.because(problem));
    Err(body.hint(format!("dvs dc inspect {dc}")).into())
}

/// A connection to the container's keeper on this node.
/// Of a container that should run here: its part comes in a moment where the node is just back.
async fn coming_keeper(api: &Arc<Api>, view: &DcView) -> Result<KeeperClient, Failure> {
    let until = tokio::time::Instant::now() + PART_LIMIT;
    loop {
        match keeper(api, view).await {
            Err(Failure(error)) if error.kind == ErrorKind::Conflict && tokio::time::Instant::now() < until => {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            other => return other,
        }
    }
}

async fn keeper(api: &Arc<Api>, view: &DcView) -> Result<KeeperClient, Failure> {
    let socket = keeper_socket(&api.context.config.dc_run_dir(view.record.id));
    let (dc, node) = (view.record.spec.name.clone(), api.context.config.node.clone());
    blocking(move || {
        KeeperClient::connect(socket).map_err(|error| match error {
            KeeperError::NotThere { .. } => failure(
                ErrorKind::Conflict,
                format!("container '{dc}' is not running on {node}"),
                format!("dvs dc start {dc}"),
            ),
            other => other.into(),
        })
    })
    .await
}

/// The log of a program that the last keeper left.
async fn kept_log(
    api: &Arc<Api>,
    view: &DcView,
    pid: u32,
    query: &LogsQuery,
) -> Result<Option<Response<Body>>, Failure> {
    let dir = programs_dir(&api.context.config.dc_state_dir(view.record.id));
    let failed = |error| failure(ErrorKind::Internal, format!("the log cannot be read: {error}"), "again");
    let (part, form) = (query.part(), query.form);
    let text = blocking(move || keeper::kept::log(&dir, pid, part, form).map_err(failed)).await?;
    Ok(text.map(|text| log_response(form, Body::from(text))))
}

/// Those that ended alone when the container has no part running here.
async fn local_processes(api: &Arc<Api>, view: &DcView) -> Result<Vec<Process>, Failure> {
    let config = &api.context.config;
    let socket = keeper_socket(&config.dc_run_dir(view.record.id));
    let programs = programs_dir(&config.dc_state_dir(view.record.id));
    let share = view.shares.get(&config.node);
    let dc = view.record.spec.name.clone();
    let should_be_there = share.is_some_and(|share| share.share.phase == DcPhase::Running);
    blocking(move || match KeeperClient::connect(socket) {
        Ok(keeper) => keeper.list().map_err(|error| about(&dc, error)),
        // What it kept is not all, as long as it should be there.
        Err(KeeperError::NotThere { .. }) if !should_be_there => Ok(keeper::kept::processes(&programs)),
        Err(error) => Err(error.into()),
    })
    .await
}

fn in_tree(path: &str) -> Result<String, Failure> {
    mgmt_api::in_tree(path).ok_or_else(|| {
        let what = format!("{path:?} is not a path in the tree");
        failure(ErrorKind::BadRequest, what, "an absolute path without ..")
    })
}

/// A program that packs or unpacks inside the container: our own binary, which the keeper is before it becomes a
/// program.
fn helper(what: &str, arguments: &[&str]) -> RunRequest {
    let argv = ["/proc/self/exe", "internal", what].into_iter().chain(arguments.iter().copied());
    let argv = argv.map(mgmt_api::Bytes::from).collect();
    RunRequest {
        argv,
        node: None,
        env: Vec::new(),
        workdir: Some("/".into()),
        root: mgmt_api::RootFs::Host,
        uid: 0,
        gid: 0,
        terminal: None,
        interactive: true,
        detach: false,
        unlogged: false,
        user: None,
        ulimits: Vec::new(),
        cap_drop: Vec::new(),
    }
}

// ---- following a log

/// A response that goes on as long as a program writes.
struct FollowBody {
    source: UnixStream,
}

impl FollowBody {
    fn new(descriptor: OwnedFd) -> std::io::Result<FollowBody> {
        let stream = std::os::unix::net::UnixStream::from(descriptor);
        stream.set_nonblocking(true)?;
        Ok(FollowBody { source: UnixStream::from_std(stream)? })
    }
}

impl hyper::body::Body for FollowBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let mut chunk = vec![0; LOG_CHUNK];
        let mut buffer = ReadBuf::new(&mut chunk);
        match Pin::new(&mut self.source).poll_read(task, &mut buffer) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Some(Err(error))),
            Poll::Ready(Ok(())) => {
                let filled = Bytes::copy_from_slice(buffer.filled());
                Poll::Ready((!filled.is_empty()).then(|| Ok(Frame::data(filled))))
            }
        }
    }
}
