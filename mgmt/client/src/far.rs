//! A cluster elsewhere: any of its nodes is dialled, proves by the cluster's roots to be one, and is told who asks.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderValue};
use mgmt_api::AccessFile;
use pki::{Distrust, PkiError, Shown, Trust};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::Error;
use crate::wire::Wire;

/// A node that does not answer within this is not there.
const DIAL_LIMIT: Duration = Duration::from_secs(5);
/// When one has not answered within this, the next is dialled as well.
const NEXT_AFTER: Duration = Duration::from_millis(300);
/// A node that vanished without a word is taken for lost by then, as between nodes.
const LOST_AFTER: Duration = Duration::from_secs(9);
const PROBE_AFTER: Duration = Duration::from_secs(3);
const PROBE_EVERY: Duration = Duration::from_secs(2);
const PROBES: u32 = 3;

pub struct Far {
    cluster: String,
    addresses: Vec<String>,
    connector: TlsConnector,
    /// `Bearer …`: secret.
    authorization: Option<HeaderValue>,
    /// The one that answered last.
    first: AtomicUsize,
}

/// Nothing secret is shown.
impl std::fmt::Debug for Far {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "cluster {} at {:?}", self.cluster, self.addresses)
    }
}

/// Why one address is none to talk to.
pub enum Unusable {
    Away(String),
    /// It takes the connection perhaps, and says nothing.
    Silent,
    Untrusted(Distrust),
}

impl Far {
    pub fn new(access: &AccessFile) -> Result<Far, PkiError> {
        let trust =
            Trust { cluster: &access.cluster, roots_pem: &access.roots_pem, revocations_pem: &access.revocations_pem };
        let shown = match (&access.certificate_pem, &access.key_pem) {
            (Some(certificate_pem), Some(key_pem)) => Some(Shown { certificate_pem, key_pem }),
            _ => None,
        };
        let authorization = access.token.as_ref().map(|token| {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        Ok(Far {
            cluster: access.cluster.clone(),
            addresses: access.addresses.clone(),
            connector: TlsConnector::from(pki::visitor_config(trust, shown)?),
            authorization: authorization.flatten(),
            first: AtomicUsize::new(0),
        })
    }

    /// Says who asks.
    pub fn sign(&self, headers: &mut HeaderMap) {
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
    }

    /// A connection to the first node that answers. They are dialled one after the other, the next as soon as one is
    /// slow; whoever answered last comes first. Says which one it is.
    pub async fn dial(&self) -> Result<(Wire, usize), Error> {
        let (count, first) = (self.addresses.len(), self.first.load(Ordering::Relaxed));
        let mut order = (0..count).map(|index| (first + index) % count);
        let (mut dialling, mut failed) = (JoinSet::new(), Vec::new());
        loop {
            let next = order.next();
            if let Some(index) = next {
                let (connector, address) = (self.connector.clone(), self.addresses[index].clone());
                dialling.spawn(async move { (index, dial(&connector, &address).await) });
            }
            let patience = async {
                match next {
                    Some(_) => tokio::time::sleep(NEXT_AFTER).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = patience => (),
                ended = dialling.join_next() => match ended {
                    Some(Ok((index, Ok(stream)))) => {
                        self.first.store(index, Ordering::Relaxed);
                        return Ok((Wire::Tls(Box::new(stream)), index));
                    }
                    Some(Ok((index, Err(why)))) => failed.push((self.addresses[index].clone(), why)),
                    Some(Err(_)) => (),
                    None => return Err(self.failure(failed)),
                },
            }
        }
    }

    /// Another connection to one that answered.
    pub async fn dial_again(&self, index: usize) -> Result<Wire, Unusable> {
        let Some(address) = self.addresses.get(index) else { return Err(Unusable::Away("no address".to_owned())) };
        Ok(Wire::Tls(Box::new(dial(&self.connector, address).await?)))
    }

    /// That somebody is not believed says more than that others are away.
    fn failure(&self, failed: Vec<(String, Unusable)>) -> Error {
        let mut tried = Vec::new();
        for (address, why) in failed {
            match why {
                Unusable::Away(why) => tried.push(format!("{address}: {why}")),
                Unusable::Silent => tried.push(format!("{address}: no answer within {} s", DIAL_LIMIT.as_secs())),
                Unusable::Untrusted(why) => return Error::Untrusted { cluster: self.cluster.clone(), address, why },
            }
        }
        Error::Unreachable { cluster: self.cluster.clone(), tried }
    }
}

async fn dial(connector: &TlsConnector, address: &str) -> Result<TlsStream<TcpStream>, Unusable> {
    let away = |why: &dyn std::fmt::Display| Unusable::Away(why.to_string());
    let connected = async {
        let stream = TcpStream::connect(address).await.map_err(|error| away(&error))?;
        tune(&stream);
        let peer = stream.peer_addr().map_err(|error| away(&error))?;
        // Which node it is does not matter: it proves to be of the cluster.
        let shaken = connector.connect(ServerName::from(peer.ip()), stream).await;
        shaken.map_err(|error| Distrust::of(&error).map_or_else(|| away(&error), Unusable::Untrusted))
    };
    let answered = tokio::time::timeout(DIAL_LIMIT, connected).await;
    answered.unwrap_or(Err(Unusable::Silent))
}

/// Keys of a terminal go at once, and a node that is gone is noticed. A socket that takes none of it works all the
/// same.
fn tune(stream: &TcpStream) {
    use rustix::net::sockopt;
    let socket = stream.as_fd();
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_tcp_keepidle(socket, PROBE_AFTER);
    let _ = sockopt::set_tcp_keepintvl(socket, PROBE_EVERY);
    let _ = sockopt::set_tcp_keepcnt(socket, PROBES);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_user_timeout(socket, LOST_AFTER.as_millis() as u32);
}
