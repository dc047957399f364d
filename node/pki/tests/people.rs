//! People and nodes are never taken for each other, shown by whole handshakes in memory.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pki::{
    Authority, Door, NodeCredentials, NodeFiles, NodeKey, NodeRequest, PersonCertificate, PkiError, Revoked, Shown,
    Trust, Validity,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{CertificateError, ClientConfig, ClientConnection, Connection, Error, ServerConfig, ServerConnection};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// What each side says of the handshake.
fn connect(client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> (Result<(), Error>, Result<(), Error>, Connection) {
    let name = "192.0.2.11".try_into().expect("an address");
    let mut client = Connection::from(ClientConnection::new(client, name).expect("client"));
    let mut server = Connection::from(ServerConnection::new(server).expect("server"));
    let (mut client_says, mut server_says) = (Ok(()), Ok(()));
    for _ in 0..10 {
        server_says = server_says.and(carry(&mut client, &mut server));
        client_says = client_says.and(carry(&mut server, &mut client));
    }
    (client_says, server_says, server)
}

fn carry(from: &mut Connection, to: &mut Connection) -> Result<(), Error> {
    let mut bytes = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut bytes).expect("memory does not fail");
    }
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        to.read_tls(&mut rest).expect("memory does not fail");
        to.process_new_packets()?;
    }
    Ok(())
}

/// A node's certificate and key, in PEM form; its files in `dir`.
fn enrol(authority: &Authority, valid: Validity, dir: &Path) -> (String, String, String) {
    let key = NodeKey::generate().expect("a key");
    let request = NodeRequest { node: "n1", addresses: &[], valid };
    let issued = authority.sign(&key.request_pem().expect("a request"), &request).expect("signed");
    let files = NodeFiles {
        certificate_pem: &issued.certificate_pem,
        key_pem: &key.pem(),
        roots_pem: authority.certificate_pem(),
    };
    pki::write_node_files(dir, &files).expect("written");
    (issued.certificate_pem, key.pem(), issued.serial)
}

fn server(dir: &Path, door: Door) -> Arc<ServerConfig> {
    NodeCredentials::load(dir).expect("credentials").server_config(door).expect("settings")
}

fn trust<'a>(authority: &'a Authority, cluster: &'a str) -> Trust<'a> {
    Trust { cluster, roots_pem: authority.certificate_pem(), revocations_pem: "" }
}

fn visitor(authority: &Authority, certificate_pem: &str, key_pem: &str) -> Arc<ClientConfig> {
    pki::visitor_config(trust(authority, "c1"), Some(Shown { certificate_pem, key_pem })).expect("settings")
}

#[test]
fn person_comes_to_the_door_of_people_and_to_no_other() {
    let dir = tempfile::tempdir().expect("directory");
    let authority = Authority::generate("c1", 1).expect("authority");
    enrol(&authority, Validity::of_a_node(), dir.path());
    let (certificate, key) = pki::make_person("ada", DAY).expect("a person");
    let (client, said, connection) = connect(visitor(&authority, &certificate, &key), server(dir.path(), Door::Anyone));
    assert_eq!((client, said), (Ok(()), Ok(())));
    let shown = connection.peer_certificates().expect("shown").first().expect("one").clone();
    let person = PersonCertificate::of_pem(&certificate).expect("a person's");
    assert_eq!(pki::Fingerprint::of(&shown), person.fingerprint);
    assert!(!NodeCredentials::load(dir.path()).expect("credentials").admits(&shown), "it is no node");
    assert!(pki::peer_node_name(&shown, "c1").is_err());
    // Where only nodes come, as at links, it does not.
    assert!(connect(visitor(&authority, &certificate, &key), server(dir.path(), Door::Nodes)).1.is_err());
    // Whoever has the certificate and not the key is nobody.
    let (_, other_key) = pki::make_person("ada", DAY).expect("a person");
    assert!(
        pki::visitor_config(
            trust(&authority, "c1"),
            Some(Shown { certificate_pem: &certificate, key_pem: &other_key })
        )
        .is_err()
    );
}

#[test]
fn certificate_that_names_a_node_is_a_nodes_or_nobodys() {
    let dir = tempfile::tempdir().expect("directory");
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let (ours, other) = (Authority::generate("c1", 1).expect("ours"), Authority::generate("c1", 1).expect("other"));
    let (certificate, key, serial) = enrol(&ours, Validity::of_a_node(), &a);
    assert!(matches!(PersonCertificate::of_pem(&certificate), Err(PkiError::NamesANode)));
    assert_eq!(connect(visitor(&ours, &certificate, &key), server(&a, Door::Anyone)).1, Ok(()));
    // One of another authority, a revoked one, one that is over: refused at this door too.
    let (foreign, foreign_key, _) = enrol(&other, Validity::of_a_node(), &b);
    assert!(connect(visitor(&ours, &foreign, &foreign_key), server(&a, Door::Anyone)).1.is_err());
    let hour = Duration::from_secs(3600);
    let past = Validity { from: SystemTime::now() - 2 * hour, until: SystemTime::now() - hour };
    let (over, over_key, _) = enrol(&ours, past, &b);
    assert!(connect(visitor(&ours, &over, &over_key), server(&a, Door::Anyone)).1.is_err());
    let list = ours.revocations(2, &[Revoked { serial, since: SystemTime::now() }]).expect("a list");
    std::fs::write(a.join(pki::CA_CRL), list).expect("written");
    let said = connect(visitor(&ours, &certificate, &key), server(&a, Door::Anyone)).1;
    assert_eq!(said, Err(Error::InvalidCertificate(CertificateError::Revoked)));
    // Names of nodes are known in any spelling.
    for (name, is_of_a_node) in
        [("n1.c1.DVS", true), ("dvs", true), ("n1.c1.dvs.example", false), ("ada.example", false)]
    {
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let made = params.self_signed(&rcgen::KeyPair::generate().expect("a key")).expect("signed");
        assert_eq!(pki::names_a_node(made.der()), is_of_a_node, "{name}");
    }
    let root = CertificateDer::from_pem_slice(ours.certificate_pem().as_bytes()).expect("a root");
    assert!(pki::names_a_node(&root), "the authority's own");
    assert!(pki::names_a_node(&CertificateDer::from(vec![1, 2, 3])), "what cannot be read");
}

#[test]
fn visitor_believes_any_node_of_its_cluster_and_nobody_else() {
    let dir = tempfile::tempdir().expect("directory");
    let ours = Authority::generate("c1", 1).expect("ours");
    enrol(&ours, Validity::of_a_node(), dir.path());
    let visit = |root: &Authority, cluster: &str| {
        let config = pki::visitor_config(trust(root, cluster), None).expect("settings");
        connect(config, server(dir.path(), Door::Anyone))
    };
    let (client, said, connection) = visit(&ours, "c1");
    assert_eq!((client, said), (Ok(()), Ok(())));
    assert!(connection.peer_certificates().is_none());
    let other = Authority::generate("c1", 1).expect("other");
    assert!(matches!(
        visit(&other, "c1").0,
        Err(Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature))
    ));
    assert!(matches!(visit(&ours, "c2").0, Err(Error::InvalidCertificate(CertificateError::NotValidForName))));
    let hour = Duration::from_secs(3600);
    let now = SystemTime::now();
    enrol(&ours, Validity { from: now - 2 * hour, until: now - hour }, dir.path());
    let expired = visit(&ours, "c1").0;
    assert!(matches!(expired, Err(Error::InvalidCertificate(CertificateError::ExpiredContext { .. }))), "{expired:?}");
    enrol(&ours, Validity { from: now + hour, until: now + 2 * hour }, dir.path());
    let early = visit(&ours, "c1").0;
    assert!(matches!(early, Err(Error::InvalidCertificate(CertificateError::NotValidYetContext { .. }))), "{early:?}");
    let (_, _, serial) = enrol(&ours, Validity::of_a_node(), dir.path());
    let list = ours.revocations(2, &[Revoked { serial, since: SystemTime::now() }]).expect("a list");
    let knows = Trust { revocations_pem: &list, ..trust(&ours, "c1") };
    let config = pki::visitor_config(knows, None).expect("settings");
    let said = connect(config, server(dir.path(), Door::Anyone)).0;
    assert_eq!(said, Err(Error::InvalidCertificate(CertificateError::Revoked)), "a node that was taken out");
    assert!(pki::visitor_config(Trust { roots_pem: "", ..trust(&ours, "c1") }, None).is_err(), "no root");
}
