//! Calls to etcd from threads that wait: each at most [`EtcdConfig::patience`].
//!
//! The thread of a runtime of its own does the talking, so that a caller may be any thread, one that serves async tasks
//! as well. [`Caller::repeat`] is for requests that may be carried out more than once; transactions have their own way
//! (`transaction.rs`).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use parking_lot::Mutex;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::connection::{Connection, DialError, Fault, LostCause, Open, Said, fault};
use super::messages::{Answer, AuthenticateRequest, AuthenticateResponse, ResponseHeader};
use super::{EtcdConfig, Member, PAGE_ENTRIES};
use crate::engine::{EngineError, VALUE_BYTES_MAX};

/// Between two attempts; a member that is about to be elected needs about a second.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MOST: Duration = Duration::from_millis(300);
/// Of one answer: a page of the largest entries.
const ANSWER_BYTES_MAX: usize = PAGE_ENTRIES * (VALUE_BYTES_MAX + 4096);

/// What etcd says when its quota is used up.
pub const NO_SPACE: &str = "etcdserver: mvcc: database space exceeded";

const AUTHENTICATE: Method = Method::one("/etcdserverpb.Auth/Authenticate");

/// A method of etcd's services.
#[derive(Clone, Copy)]
pub struct Method {
    path: &'static str,
    has: Has,
}

#[derive(Clone, Copy)]
enum Has {
    OneAnswer,
    /// Of which the first is wanted.
    StreamOfAnswers,
}

impl Method {
    pub const fn one(path: &'static str) -> Method {
        Method { path, has: Has::OneAnswer }
    }

    pub const fn first_of_stream(path: &'static str) -> Method {
        Method { path, has: Has::StreamOfAnswers }
    }
}

/// Shared by all that talk.
#[derive(Clone)]
pub struct Caller {
    pub config: Arc<EtcdConfig>,
    pub connection: Arc<Connection>,
    /// What a user's name and password were exchanged for.
    token: Arc<Mutex<Option<MetadataValue<Ascii>>>>,
    /// Which cluster of etcd answered first. 0: none yet.
    cluster: Arc<AtomicU64>,
    /// Of those who cannot wait for as long as an attempt lasts.
    hurry: Option<Duration>,
}

impl Caller {
    pub fn new(config: Arc<EtcdConfig>) -> Caller {
        let connection = Arc::new(Connection::new(Arc::clone(&config)));
        Caller { connection, config, token: Arc::default(), cluster: Arc::default(), hurry: None }
    }

    /// The same connection, with shorter attempts.
    pub fn hurried(&self, attempt: Duration) -> Caller {
        Caller { hurry: Some(attempt), ..self.clone() }
    }

    /// To members, since the start.
    pub fn connections(&self) -> u64 {
        self.connection.opened()
    }

    /// Until an answer comes or the time is over. For requests that may be carried out more than once.
    pub async fn repeat<M, A>(&self, method: Method, message: &M) -> Result<A, EngineError>
    where
        M: prost::Message + Clone + 'static,
        A: Answer,
    {
        self.repeat_within(Attempts::new(self), method, message).await
    }

    /// The same, as a part of something that has begun before.
    pub async fn repeat_within<M, A>(
        &self,
        mut attempts: Attempts,
        method: Method,
        message: &M,
    ) -> Result<A, EngineError>
    where
        M: prost::Message + Clone + 'static,
        A: Answer,
    {
        loop {
            match self.once(method, message.clone(), attempts.left()).await {
                Ok(answer) => return Ok(answer),
                Err(fault) if attempts.are_over(&fault) || !attempts.again().await => {
                    return Err(unreachable(attempts.reason(fault)));
                }
                Err(_) => (),
            }
        }
    }

    /// One attempt. A member that does not answer as it should is not asked again next time.
    pub async fn once<M, A>(&self, method: Method, message: M, left: Duration) -> Result<A, Fault>
    where
        M: prost::Message + Clone + 'static,
        A: Answer,
    {
        let opened = tokio::time::timeout(left, self.connection.open()).await;
        let open = opened.map_err(|_| Fault::Unsent(Arc::new(DialError::late())))?.map_err(Fault::Unsent)?;
        let patience = left.min(self.hurry.unwrap_or(self.config.attempt));
        let asking = self.ask_as_user::<M, A>(&open, method, message, patience);
        let lost = |cause| Err(Fault::Lost { member: open.member.clone(), cause });
        let asked = tokio::select! {
            asked = tokio::time::timeout(patience, asking) => asked.unwrap_or_else(|_| lost(LostCause::Late(patience))),
            // The others decide about a silent node within half a second, and do not wait for what it may say.
            () = open.is_silent() => lost(LostCause::Silent),
        };
        match asked {
            // It says nothing of the member, which may wait for a leader as any other one would.
            Err(fault @ Fault::Lost { cause: LostCause::Late(_), .. }) if self.hurry.is_some() => Err(fault),
            Err(fault @ (Fault::Lost { .. } | Fault::NoQuorum { .. } | Fault::Unsent(_))) => {
                self.connection.leave(open.number).await;
                Err(fault)
            }
            Ok(answer) if !self.is_of_the_same(answer.header()) => Err(Fault::Replaced(open.member.clone())),
            done => done,
        }
    }

    /// Whether this comes from the cluster that answered first. Another one, begun anew at the same address, has other
    /// revisions and leases: nothing that is known of the first one holds there.
    pub fn is_of_the_same(&self, header: Option<&ResponseHeader>) -> bool {
        let Some(number) = header.map(|header| header.cluster_id).filter(|number| *number != 0) else { return true };
        let first = self.cluster.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
        first.map_or_else(|first| first == number, |_| true)
    }

    /// What a stream of calls begins with.
    pub async fn stream(&self) -> Result<(Open, Grpc<tonic::transport::Channel>), Fault> {
        let open = self.connection.open().await.map_err(Fault::Unsent)?;
        if self.config.user.is_some() && self.token.lock().is_none() {
            self.authenticate(&open, self.config.attempt).await?;
        }
        let mut grpc = Grpc::new(open.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX);
        ready(&open, &mut grpc).await?;
        Ok((open, grpc))
    }

    /// With what every request says beside itself.
    pub fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        // A member without a leader answers so, rather than to let callers wait.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &*self.token.lock() {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    pub async fn leave(&self, open: &Open) {
        self.connection.leave(open.number).await;
    }

    /// The next call or stream asks for a new token.
    pub fn forget_token(&self) {
        *self.token.lock() = None;
    }

    async fn ask_as_user<M, A>(&self, open: &Open, method: Method, message: M, patience: Duration) -> Result<A, Fault>
    where
        M: prost::Message + Clone + 'static,
        A: Answer,
    {
        for _ in 0..2 {
            if self.config.user.is_some() && self.token.lock().is_none() {
                self.authenticate(open, patience).await?;
            }
            match ask(open, method, self.request(message.clone()), patience).await {
                // Tokens end after minutes, and with the member that gave them. The request was not looked at.
                Err(Fault::Refused(status)) if is_stale_token(&status) => self.forget_token(),
                done => return done,
            }
        }
        Err(Fault::Refused(Status::unauthenticated("etcd takes none of the tokens that it gives").into()))
    }

    async fn authenticate(&self, open: &Open, patience: Duration) -> Result<(), Fault> {
        let Some(user) = &self.config.user else { return Ok(()) };
        let asked = AuthenticateRequest { name: user.name.clone(), password: user.password.clone() };
        let given: AuthenticateResponse = ask(open, AUTHENTICATE, Request::new(asked), patience).await?;
        let token = given
            .token
            .parse()
            .map_err(|_| Fault::Refused(Status::unauthenticated("the token that etcd gave is not printable").into()))?;
        *self.token.lock() = Some(token);
        Ok(())
    }
}

/// Tokens of users end; the member then says so instead of looking at the request.
pub fn is_stale_token(said: &Said) -> bool {
    said.code() == Code::Unauthenticated && said.words().contains("invalid auth token")
        || said.words() == "etcdserver: revision of auth store is old"
}

async fn ready(open: &Open, grpc: &mut Grpc<tonic::transport::Channel>) -> Result<(), Fault> {
    grpc.ready().await.map_err(|error| fault(open, Status::from_error(error.into())))
}

async fn ask<M, A>(open: &Open, method: Method, request: Request<M>, patience: Duration) -> Result<A, Fault>
where
    M: prost::Message + 'static,
    A: Answer,
{
    let mut grpc = Grpc::new(open.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX);
    let call = async {
        ready(open, &mut grpc).await?;
        let (path, codec) = (PathAndQuery::from_static(method.path), ProstCodec::<M, A>::default());
        let answered = match method.has {
            Has::OneAnswer => grpc.unary(request, path, codec).await.map(Response::into_inner),
            Has::StreamOfAnswers => first(grpc.streaming(request.map(tokio_stream::once), path, codec).await).await,
        };
        answered.map_err(|status| fault(open, status))
    };
    match tokio::time::timeout(patience, call).await {
        Ok(done) => done,
        Err(_) => Err(Fault::Lost { member: open.member.clone(), cause: LostCause::Late(patience) }),
    }
}

async fn first<A>(begun: Result<Response<Streaming<A>>, Status>) -> Result<A, Status> {
    begun?.into_inner().message().await?.ok_or_else(|| Status::unavailable("the stream ended without an answer"))
}

/// How often and how long a request is sent again.
pub struct Attempts {
    until: Instant,
    pause: Duration,
    /// Members that were asked and did not take the certificate, or whose own was not taken.
    distrust: usize,
    members: usize,
    /// A member that was reached, and what it said of the cluster.
    no_quorum: Option<(Member, Said)>,
}

impl Attempts {
    pub fn new(caller: &Caller) -> Attempts {
        let (until, members) = (Instant::now() + caller.config.patience, caller.connection.members().len());
        Attempts { until, pause: PAUSE_FIRST, distrust: 0, members, no_quorum: None }
    }

    /// For what has to be asked besides: as long as one attempt at least.
    pub fn for_a_part(&self, config: &EtcdConfig) -> Attempts {
        let until = self.until.max(Instant::now() + config.attempt);
        Attempts { until, pause: PAUSE_FIRST, distrust: 0, members: self.members, no_quorum: None }
    }

    /// Whether sending it again would change nothing: it was refused, or no member trusts this node.
    pub fn are_over(&mut self, fault: &Fault) -> bool {
        self.distrust += usize::from(fault.is_about_certificates());
        if let Fault::NoQuorum { member, said } = fault {
            self.no_quorum = Some((member.clone(), said.clone()));
        }
        matches!(fault, Fault::Refused(_) | Fault::Replaced(_)) || self.distrust >= self.members
    }

    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// What is told at the end: that too few members are there, rather than that the last one tried was not.
    pub fn reason(&mut self, last: Fault) -> Fault {
        match (last, self.no_quorum.take()) {
            (Fault::Unsent(error), Some((member, said))) if !matches!(*error, DialError::Certificate { .. }) => {
                Fault::NoQuorum { member, said }
            }
            (last, _) => last,
        }
    }

    /// Pauses; false when the time is over.
    pub async fn again(&mut self) -> bool {
        if self.left() <= self.pause {
            return false;
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_MOST);
        true
    }
}

/// Runs `work` on the runtime while the calling thread waits.
pub fn wait<T: Send + 'static>(
    runtime: &tokio::runtime::Handle,
    work: impl Future<Output = Result<T, EngineError>> + Send + 'static,
) -> Result<T, EngineError> {
    let (done, is_done) = std::sync::mpsc::sync_channel(1);
    runtime.spawn(async move {
        // Nobody waits any more only when the waiting thread has ended.
        let _ = done.send(work.await);
    });
    is_done.recv().unwrap_or_else(|error| Err(EngineError::Unknown(Box::new(error))))
}

/// What a request that was certainly not carried out, or may be repeated, ended with.
pub fn unreachable(fault: Fault) -> EngineError {
    match fault {
        Fault::Unsent(error) if matches!(*error, DialError::Certificate { .. }) => {
            EngineError::Untrusted(Box::new(error))
        }
        Fault::NoQuorum { .. } => EngineError::NoQuorum(Box::new(fault)),
        // A member that has lost its leader lets requests time out until it has noticed.
        Fault::Lost { cause: LostCause::Said(said), .. } if said.words().starts_with("etcdserver: ") => {
            EngineError::NoQuorum(Box::new(said))
        }
        Fault::Refused(said) => refused(said),
        Fault::Replaced(_) => EngineError::Replaced,
        other => EngineError::Unreachable(Box::new(other)),
    }
}

/// What etcd answered instead of doing it.
pub fn refused(said: Said) -> EngineError {
    let words = said.words();
    match said.code() {
        Code::PermissionDenied | Code::Unauthenticated => EngineError::Denied(Box::new(said)),
        Code::InvalidArgument if words.contains("authentication failed") || words.contains("user name is empty") => {
            EngineError::Denied(Box::new(said))
        }
        _ if words == NO_SPACE => EngineError::Full(Box::new(said)),
        _ => EngineError::Storage(Box::new(said)),
    }
}
