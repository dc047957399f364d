//! `dvs node join`: makes this machine a node of a cluster, with a token. Asks no daemon of its own: there is none yet.

use std::fs;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use mgmt_api::{EngineAnswer, JoinAnswer, JoinRequest, JoinToken};
use pki::{NodeFiles, NodeKey, PkiError};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::cli::Global;
use crate::commands::{Outcome, block_on, done, say};
use crate::errors::Failure;
use crate::installed::{self, API_PORT, Before, EngineFile, EtcdTable, NewNode, SettingsFile, Where};

/// A node that does not answer within this is not there.
const CONNECT: Duration = Duration::from_secs(10);
/// The key of a join that was begun, so that one that is repeated is the same.
const KEY: &str = "join.key";

/// Make this machine a node of a cluster
#[derive(Args, Debug)]
#[command(after_help = "\
The token is from dvs node token, on a node of the cluster, and lets one machine in, once. The key of this node is made \
here and never leaves it. If the command fails on the way, it may be repeated.

Examples:
  dvs node join 4f2a….9b1c….e3b0…@192.0.2.11
  dvs node join TOKEN@192.0.2.11 --node n2 --advertise 192.0.2.12
  dvs node join TOKEN@192.0.2.11 --again        this machine was a node and was taken out")]
pub struct Options {
    /// The token, and the address of a node of the cluster.
    #[arg(value_name = "TOKEN@ADDRESS")]
    invitation: Invitation,
    #[command(flatten)]
    place: Where,
    /// Replace what is left of a node that was taken out of its cluster.
    #[arg(long)]
    again: bool,
}

/// A token, and who takes it.
#[derive(Clone, Debug)]
struct Invitation {
    token: JoinToken,
    host: String,
    port: u16,
}

impl FromStr for Invitation {
    type Err = String;

    fn from_str(text: &str) -> Result<Invitation, String> {
        let (token, address) = text.split_once('@').ok_or("it is TOKEN@ADDRESS, as dvs node token prints it")?;
        let token = token.parse().map_err(|error: mgmt_api::NoToken| error.to_string())?;
        let bare = |host: &str| Invitation { token, host: host.to_owned(), port: API_PORT };
        if address.parse::<IpAddr>().is_ok() {
            return Ok(bare(address));
        }
        match address.rsplit_once(':') {
            None if !address.is_empty() => Ok(bare(address)),
            Some((host, port)) if !host.is_empty() => {
                let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
                let port = port.parse().map_err(|_| format!("'{port}' is no port"))?;
                Ok(Invitation { port, ..bare(host) })
            }
            _ => Err("after the @ comes the address of a node of the cluster".to_owned()),
        }
    }
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    let place = &options.place;
    let node = place.name()?;
    place.demand_fresh(if options.again { Before::Replaced } else { Before::Nothing })?;
    let remote = resolve(&options.invitation)?;
    let address = place.advertise.or_else(|| installed::address_towards(remote.ip())).ok_or_else(|| {
        Failure::usage("other nodes cannot reach this machine")
            .hint("an address of it (ip addr): --advertise 192.0.2.12")
    })?;
    place.demand_own(address)?;
    // What is left of the node that it was makes room for the new one's.
    if !options.again {
        place.demand_free_for_daemon()?;
    }
    let failed = |error: PkiError| Failure::new("this machine has no key").because(&error).hint(error.hint());
    // For the key, which is kept for the same again.
    place.make_data_dir()?;
    let key_path = place.data.join(KEY);
    let key = key(&key_path)?;
    let asked = JoinRequest {
        id: options.invitation.token.id.clone(),
        secret: options.invitation.token.secret.clone(),
        node: node.clone(),
        address: address.to_string(),
        request_pem: request(&place.data.join("join.csr"), &key)?,
        version: versions::Release::own().release,
        follows: versions::Release::own().follows,
        records: Some(versions::RECORDS.speaks),
    };
    let answer = block_on(ask(&options.invitation, remote, &asked))??;
    // Nothing is written yet: the same again, once it is free.
    if matches!(answer.engine, EngineAnswer::Managed { .. }) && installed::has_etcd() {
        place.demand_free_for_member(address)?;
    }
    // Only now that the cluster takes it: whoever mistyped loses nothing.
    if options.again {
        place.put_aside()?;
    }

    let files =
        NodeFiles { certificate_pem: &answer.certificate_pem, key_pem: &key.pem(), roots_pem: &answer.roots_pem };
    pki::write_node_files(&place.tls_dir(), &files).map_err(failed)?;
    pki::write_public(&place.tls_dir().join(pki::CA_CRL), &answer.revocations_pem).map_err(failed)?;
    let (etcd, notes) = engine(place, &answer)?;
    let settings = SettingsFile {
        node: &node,
        cluster: &answer.cluster,
        advertise: address,
        listen: place.listen,
        state_dir: &place.data,
        run_dir: &place.run,
        etcd: Some(etcd),
    };
    place.write_settings(&settings, "dvs node join")?;
    // Without it nobody can repeat this; with the settings nobody needs to.
    let _ = fs::remove_file(&key_path);
    let _ = fs::remove_file(place.data.join("join.csr"));
    say(&format!(
        "this machine is node '{node}' of cluster '{}' at {address}{notes}\nnow: {}",
        answer.cluster,
        place.next()
    ));
    done(global.output, &NewNode { cluster: answer.cluster, node, address, config: place.config.clone() })
}

/// Where the engine is, and what people have to do about it.
fn engine(place: &Where, answer: &JoinAnswer) -> Result<(EtcdTable, String), Failure> {
    match &answer.engine {
        EngineAnswer::Managed { members } => {
            place.write_engine(&EngineFile { members: members.clone(), own: None })?;
            Ok((EtcdTable { managed: true, ..EtcdTable::default() }, String::new()))
        }
        EngineAnswer::Etcd { members, root, has_user } => {
            let table = EtcdTable { members: members.clone(), root: Some(root.clone()), ..EtcdTable::default() };
            let note = format!(
                "\nthe cluster's etcd has a user: add user and password_file to [etcd] in {} first",
                place.config.display()
            );
            Ok((table, if *has_user { note } else { String::new() }))
        }
    }
}

/// The key of a try before, or a new one.
fn key(path: &Path) -> Result<NodeKey, Failure> {
    let failed = |error: PkiError| Failure::new("this machine has no key").because(&error).hint(error.hint());
    if let Ok(pem) = fs::read_to_string(path)
        && let Ok(key) = NodeKey::from_pem(&pem)
    {
        return Ok(key);
    }
    let key = NodeKey::generate().map_err(failed)?;
    installed::write(path, &key.pem(), 0o600)?;
    Ok(key)
}

/// Each request of a key has a signature of its own: one that is repeated is the same text.
fn request(path: &Path, key: &NodeKey) -> Result<String, Failure> {
    let is_of = |text: &String| pki::is_request_of(text, key);
    if let Some(text) = fs::read_to_string(path).ok().filter(is_of) {
        return Ok(text);
    }
    let text = key.request_pem().map_err(|error| Failure::new("no request for a certificate").because(&error))?;
    installed::write(path, &text, 0o600)?;
    Ok(text)
}

fn resolve(at: &Invitation) -> Result<SocketAddr, Failure> {
    let unknown = || Failure::new(format!("there is no host '{}'", at.host)).hint("an address: TOKEN@192.0.2.11");
    let mut found = (at.host.as_str(), at.port).to_socket_addrs().map_err(|error| unknown().because(&error))?;
    found.next().ok_or_else(unknown)
}

async fn ask(at: &Invitation, remote: SocketAddr, asked: &JoinRequest) -> Result<JoinAnswer, Failure> {
    let nobody = || {
        Failure::new(format!("no node answers at {remote}")).hint(
            "the address of a node whose daemon runs (dvs node ls there), and port 7420 open between the machines",
        )
    };
    let stream = match tokio::time::timeout(CONNECT, TcpStream::connect(remote)).await {
        Ok(stream) => stream.map_err(|error| nobody().because(&error))?,
        Err(_) => return Err(nobody().because_text(format!("no connection within {} s", CONNECT.as_secs()))),
    };
    let root = at.token.fingerprint.parse().map_err(|error: PkiError| Failure::usage(error.to_string()))?;
    let config = pki::introduction_config(root).map_err(|error| Failure::new("no TLS").because(&error))?;
    let connector = TlsConnector::from(Arc::clone(&config));
    let other = |error: std::io::Error| {
        Failure::new(format!("whoever answers at {remote} is not of the cluster that made the token"))
            .because(&error)
            .hint("dvs node token on a node of the cluster, whose authority may be another one now")
    };
    // Which node it is does not matter: it proves to be of the cluster.
    let name = remote.ip().into();
    let shaken = tokio::time::timeout(CONNECT, connector.connect(name, stream)).await;
    let stream = shaken.map_err(|_| nobody().because_text("no handshake in time"))?.map_err(other)?;
    client::join(stream, asked).await.map_err(Failure::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invitation_is_a_token_and_an_address_with_or_without_a_port() {
        let token = format!("{}.{}.{}", "0a".repeat(4), "5e".repeat(16), "ff".repeat(32));
        let parse = |address: &str| {
            format!("{token}@{address}").parse::<Invitation>().map(|invitation| (invitation.host, invitation.port))
        };
        assert_eq!(parse("192.0.2.1"), Ok(("192.0.2.1".to_owned(), API_PORT)));
        assert_eq!(parse("192.0.2.1:99"), Ok(("192.0.2.1".to_owned(), 99)));
        assert_eq!(parse("fd00::1"), Ok(("fd00::1".to_owned(), API_PORT)));
        assert_eq!(parse("[fd00::1]:99"), Ok(("fd00::1".to_owned(), 99)));
        assert_eq!(parse("n1.example"), Ok(("n1.example".to_owned(), API_PORT)));
        assert!(parse("").is_err() && parse("n1:").is_err() && parse(":99").is_err());
        assert!(token.parse::<Invitation>().is_err() && "x@n1".parse::<Invitation>().is_err());
    }
}
