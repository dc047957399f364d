//! One connection to one of the members, for everything that this node asks of etcd: HTTP/2 carries calls and watches
//! beside each other.
//!
//! A connection is `Absent` or `Open`; an `Open` one has a number. Whoever meets a fault of a connection reports its
//! number, and only if that one is still open it is dropped and the next call tries the next member: many calls that
//! fail together cost one change of member.
//!
//! What a call may meet is a [`Fault`]; it says whether the request can have been carried out. Not here: whether a call
//! is repeated (`caller.rs`).

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::{EtcdConfig, Member};

/// Members end connections that ask more often than every 5 s whether anybody is there.
const ALIVE_EVERY: Duration = Duration::from_millis(5500);
/// A member that does not answer that within this has lost its connection.
const ALIVE_LIMIT: Duration = Duration::from_millis(2500);
/// Whoever asks within this after all members failed is told the same: many callers cost one round of attempts.
const FAILED_FOR: Duration = Duration::from_millis(300);
/// To connect, and to shake hands.
const DIAL: Duration = Duration::from_secs(1);

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The request was not sent.
    #[error("no member can be reached")]
    Unsent(#[source] Arc<DialError>),
    /// Whether the request was carried out is not known, or it was not and may be sent again.
    #[error("the connection to {member} failed, or no answer came in time")]
    Lost {
        member: Member,
        #[source]
        cause: LostCause,
    },
    /// The member, or its cluster, does not serve for now.
    #[error("the member {member} cannot serve")]
    NoQuorum {
        member: Member,
        #[source]
        said: Said,
    },
    /// An answer: repeating the request changes nothing.
    #[error("etcd refuses")]
    Refused(#[source] Said),
    /// The member is one of another cluster than the one that answered before.
    #[error("the member {0} is of another cluster of etcd than before")]
    Replaced(Member),
}

impl Fault {
    /// One of the two sides does not take the other one's certificate.
    pub fn is_about_certificates(&self) -> bool {
        matches!(self, Fault::Unsent(error) if matches!(**error, DialError::Certificate { .. }))
    }
}

/// How a member answers what it does not do, told in its own words alone.
#[derive(Clone, Debug)]
pub struct Said(Box<Status>);

impl Said {
    pub fn code(&self) -> Code {
        self.0.code()
    }

    pub fn words(&self) -> &str {
        self.0.message()
    }
}

impl From<Status> for Said {
    fn from(status: Status) -> Said {
        Said(Box::new(status))
    }
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.words())
    }
}

impl std::error::Error for Said {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LostCause {
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("nothing is heard of its host")]
    Silent,
    #[error(transparent)]
    Said(Said),
}

#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("{member} cannot be reached")]
    Network {
        member: Member,
        #[source]
        cause: std::io::Error,
    },
    #[error("{member} and this node do not accept each other's certificates")]
    Certificate {
        member: Member,
        #[source]
        cause: rustls::Error,
    },
    #[error("{member} does not speak as etcd does")]
    Protocol {
        member: Member,
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl DialError {
    /// Others were trying members for so long.
    pub fn late() -> DialError {
        let member = Member { host: "etcd".to_owned(), port: 0 };
        DialError::Network { member, cause: std::io::ErrorKind::TimedOut.into() }
    }
}

/// What is open, as calls use it.
#[derive(Clone)]
pub struct Open {
    pub number: u64,
    pub member: Member,
    pub channel: Channel,
    refusal: Refusal,
    /// Closed when somebody met a fault of the connection.
    left: watch::Receiver<()>,
    /// Before it is closed because nothing is heard of the member's host.
    is_silent: Arc<AtomicBool>,
}

impl Open {
    /// Waits until the connection is no good any more for somebody.
    pub async fn is_left(&self) {
        let mut left = self.left.clone();
        while left.changed().await.is_ok() {}
    }

    /// Waits until nothing is heard of the member's host. A fault that another call met says nothing of this one.
    pub async fn is_silent(&self) {
        self.is_left().await;
        if !self.is_silent.load(Ordering::Acquire) {
            std::future::pending::<()>().await;
        }
    }
}

pub struct Connection {
    config: Arc<EtcdConfig>,
    /// Those of `config` until others are said.
    members: parking_lot::RwLock<Arc<[Member]>>,
    /// Hosts of which nothing is heard: their members are tried when no other one answers.
    silent: parking_lot::RwLock<BTreeSet<String>>,
    state: tokio::sync::Mutex<State>,
    /// As many as were opened.
    opened: AtomicU64,
}

struct State {
    /// With what closes `Open::left` when it is dropped.
    open: Option<(Open, watch::Sender<()>)>,
    next: usize,
    number: u64,
    failed: Option<(Instant, Arc<DialError>)>,
}

impl Connection {
    pub fn new(config: Arc<EtcdConfig>) -> Connection {
        // Nodes begin with different members, so that no member serves them all.
        let next = config.first_member;
        let members = parking_lot::RwLock::new(config.members.clone().into());
        let state = tokio::sync::Mutex::new(State { open: None, next, number: 0, failed: None });
        Connection { config, members, silent: Default::default(), state, opened: AtomicU64::new(0) }
    }

    pub fn members(&self) -> Arc<[Member]> {
        Arc::clone(&self.members.read())
    }

    /// From now on these are tried, and what is open to another one is left.
    pub async fn set_members(&self, members: Vec<Member>) {
        let mut state = self.state.lock().await;
        if state.open.as_ref().is_some_and(|(open, _)| !members.contains(&open.member)) {
            state.open = None;
        }
        *self.members.write() = members.into();
    }

    /// What is open, or the first member from the next one on that answers.
    pub async fn open(&self) -> Result<Open, Arc<DialError>> {
        let mut state = self.state.lock().await;
        if let Some((open, _)) = &state.open {
            return Ok(open.clone());
        }
        if let Some((_, error)) = state.failed.as_ref().filter(|(since, _)| since.elapsed() < FAILED_FOR) {
            return Err(Arc::clone(error));
        }
        let members = self.members();
        let mut failure = None;
        for place in self.order(&members, state.next) {
            let Some(member) = members.get(place) else { break };
            match dial(member, &self.config).await {
                Ok((channel, refusal)) => {
                    state.number += 1;
                    self.opened.store(state.number, Ordering::Relaxed);
                    let (leaving, left) = watch::channel(());
                    let (number, member) = (state.number, member.clone());
                    let open = Open { number, member, channel, refusal, left, is_silent: Arc::default() };
                    tracing::debug!(member = %open.member, "connected to etcd");
                    state.next = place;
                    state.open = Some((open.clone(), leaving));
                    return Ok(open);
                }
                Err(error) => {
                    state.next = place.wrapping_add(1);
                    // A certificate that is refused is the news; that another member is down beside it is not.
                    if !matches!(failure, Some(DialError::Certificate { .. })) {
                        failure = Some(error);
                    }
                }
            }
        }
        let failure = failure.unwrap_or_else(|| DialError::Network {
            member: Member { host: "etcd".to_owned(), port: 0 },
            cause: std::io::Error::other("it has no members"),
        });
        let failure = Arc::new(failure);
        state.failed = Some((Instant::now(), Arc::clone(&failure)));
        Err(failure)
    }

    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// All members' places from one on, counted round; those on silent hosts last, where connecting takes its whole
    /// time.
    fn order(&self, members: &[Member], first: usize) -> Vec<usize> {
        let silent = self.silent.read();
        let mut order: Vec<usize> = (0..members.len()).map(|n| (first % members.len() + n) % members.len()).collect();
        order.sort_by_key(|place| members.get(*place).is_some_and(|member| silent.contains(&member.host)));
        order
    }

    /// Of these hosts nothing is heard, of all others something is.
    pub fn set_silent(&self, hosts: BTreeSet<String>) {
        *self.silent.write() = hosts;
    }

    /// What is open to a silent host is left at once: calls under way there end, and the next ones use another member.
    pub async fn leave_silent(&self) {
        let mut state = self.state.lock().await;
        let (silent, members) = (self.silent.read().clone(), self.members());
        let is_there = |(open, _): &&(Open, watch::Sender<()>)| silent.contains(&open.member.host);
        if let Some((open, _)) = state.open.as_ref().filter(is_there).filter(|_| members.len() > 1) {
            open.is_silent.store(true, Ordering::Release);
            state.open = None;
            state.next = state.next.wrapping_add(1);
        }
    }

    /// The connection of this number is no good: the next call uses another member.
    pub async fn leave(&self, number: u64) {
        let mut state = self.state.lock().await;
        if state.open.as_ref().is_some_and(|(open, _)| open.number == number) {
            state.open = None;
            state.next = state.next.wrapping_add(1);
        }
    }
}

async fn dial(member: &Member, config: &EtcdConfig) -> Result<(Channel, Refusal), DialError> {
    let network = |cause| DialError::Network { member: member.clone(), cause };
    let stream = match &config.translated {
        Some((host, own)) if *host == member.host => within(TcpStream::connect((*own, member.port))).await,
        _ => within(TcpStream::connect((member.host.as_str(), member.port))).await,
    };
    let stream = stream.map_err(network)?;
    stream.set_nodelay(true).map_err(network)?;
    let Some(tls) = &config.tls else { return Ok((speak(member, stream).await?, Refusal::default())) };
    let certificate = |cause: std::io::Error| match refusal_in(&cause) {
        Some(refusal) => refused_by(member, &refusal),
        None => network(cause),
    };
    let name = ServerName::try_from(member.host.clone()).map_err(|error| network(std::io::Error::other(error)))?;
    let connector = TlsConnector::from(Arc::clone(tls));
    let stream = within(connector.connect(name, stream)).await.map_err(certificate)?;
    let refusal = Refusal::default();
    let channel = speak(member, Witness { stream, refusal: Arc::clone(&refusal) }).await;
    match refusal.get() {
        Some(error) => Err(refused_by(member, error)),
        None => channel.map(|channel| (channel, refusal)),
    }
}

async fn within<T>(attempt: impl Future<Output = std::io::Result<T>>) -> std::io::Result<T> {
    tokio::time::timeout(DIAL, attempt).await.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
}

/// HTTP/2 over a stream that is there. The channel has this stream alone: when it ends, the channel does.
async fn speak<S>(member: &Member, stream: S) -> Result<Channel, DialError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let failed =
        |cause: Box<dyn std::error::Error + Send + Sync>| DialError::Protocol { member: member.clone(), cause };
    let endpoint = Endpoint::from_shared(format!("http://{member}"))
        .map_err(|error| failed(error.into()))?
        .http2_keep_alive_interval(ALIVE_EVERY)
        .keep_alive_timeout(ALIVE_LIMIT)
        .keep_alive_while_idle(true);
    let mut only = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_: http::Uri| {
        std::future::ready(only.take().ok_or_else(|| std::io::Error::other("the connection has ended")))
    });
    let spoken = tokio::time::timeout(DIAL, endpoint.connect_with_connector(connector)).await;
    match spoken {
        Ok(channel) => channel.map_err(|error| failed(error.into())),
        Err(_) => Err(failed("no answer in time".into())),
    }
}

/// Why a member does not take this node's certificate, once it has said so.
type Refusal = Arc<OnceLock<rustls::Error>>;

/// A stream over TLS that remembers a refusal. With TLS 1.3 this side begins to write before the member has looked at
/// its certificate: a member that refuses it says so, closes, and the next write fails of a closed connection. What it
/// said can still be read then. HTTP/2 makes a text of it.
struct Witness {
    stream: TlsStream<TcpStream>,
    refusal: Refusal,
}

impl Witness {
    fn remember(&self, error: &std::io::Error) {
        if let Some(refusal) = refusal_in(error) {
            let _ = self.refusal.set(refusal);
        }
    }

    fn look_after_failure<T>(&mut self, done: &Poll<std::io::Result<T>>, context: &mut Context<'_>) {
        let mut space = [0; 256];
        if let Poll::Ready(Err(error)) = done {
            self.remember(error);
            let read = Pin::new(&mut self.stream).poll_read(context, &mut ReadBuf::new(&mut space));
            if let Poll::Ready(Err(error)) = read {
                self.remember(&error);
            }
        }
    }
}

impl AsyncRead for Witness {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(Err(error)) = &done {
            self.remember(error);
        }
        done
    }
}

impl AsyncWrite for Witness {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.look_after_failure(&done, context);
        done
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_flush(context);
        self.look_after_failure(&done, context);
        done
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

fn refused_by(member: &Member, error: &rustls::Error) -> DialError {
    DialError::Certificate { member: member.clone(), cause: error.clone() }
}

fn refusal_in(error: &std::io::Error) -> Option<rustls::Error> {
    let tls = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    is_about_certificates(tls).then(|| tls.clone())
}

fn is_about_certificates(error: &rustls::Error) -> bool {
    use rustls::AlertDescription as Alert;
    match error {
        rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => true,
        rustls::Error::AlertReceived(alert) => matches!(
            alert,
            Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
                | Alert::CertificateRequired
        ),
        _ => false,
    }
}

/// What a status that a call ended with says about the request. The texts are those of etcd's `rpctypes/error.go`.
pub fn fault(open: &Open, status: Status) -> Fault {
    if let Some(refusal) = open.refusal.get() {
        return Fault::Unsent(Arc::new(refused_by(&open.member, refusal)));
    }
    let (member, said) = (open.member.clone(), status.message());
    match status.code() {
        // Before anything is proposed, by the member's own look at whether it has a leader.
        Code::Unavailable if said == "etcdserver: no leader" => Fault::NoQuorum { member, said: status.into() },
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown | Code::Internal => {
            Fault::Lost { member, cause: LostCause::Said(Said::from(status)) }
        }
        // Not etcd's own words: of the connection, or of HTTP/2.
        Code::ResourceExhausted if !said.starts_with("etcdserver: ") => {
            Fault::Lost { member, cause: LostCause::Said(Said::from(status)) }
        }
        Code::ResourceExhausted if said == "etcdserver: too many requests" => {
            Fault::NoQuorum { member, said: status.into() }
        }
        _ => Fault::Refused(status.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_on_silent_hosts_are_tried_last() {
        let members: Vec<Member> = ["a:1", "b:1", "c:1"].iter().map(|text| text.parse().unwrap()).collect();
        let connection = Connection::new(Arc::new(EtcdConfig::new(members.clone(), "dvs/test")));
        assert_eq!(connection.order(&members, 4), [1, 2, 0]);
        connection.set_silent(["b".to_owned(), "nobody".to_owned()].into());
        assert_eq!(connection.order(&members, 1), [2, 0, 1]);
        assert_eq!(connection.order(&members, usize::MAX), [0, 2, 1]);
        assert!(connection.order(&[], 1).is_empty());
    }

    #[tokio::test]
    async fn member_whose_address_is_translated_on_the_way_is_dialled_where_it_listens() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        // Of a documentation (RFC 5737): nobody has it.
        let member = Member { host: "192.0.2.1".to_owned(), port };
        let mut config = EtcdConfig::new(vec![member.clone()], "dvs/test");
        config.translated = Some(("192.0.2.1".to_owned(), [127, 0, 0, 1].into()));
        let dialling = tokio::spawn(async move { dial(&member, &config).await.map(drop) });
        let accepted = tokio::time::timeout(DIAL, listener.accept()).await;
        assert!(accepted.is_ok_and(|accepted| accepted.is_ok()), "it comes here");
        dialling.abort();
    }
}
