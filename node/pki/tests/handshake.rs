//! Who is let in and who is not, shown by whole handshakes in memory.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pki::{
    Authority, CertificateSummary, Door, NodeCredentials, NodeFiles, NodeKey, NodeRequest, PkiError, Revoked, Validity,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{CertificateError, ClientConfig, ClientConnection, Connection, Error, ServerConfig, ServerConnection};

/// One trip there and back carries a TLS 1.3 handshake; a few more are room for alerts.
const TRIPS_MAX: usize = 10;

fn request(node: &str) -> NodeRequest<'_> {
    NodeRequest { node, addresses: &[], valid: Validity::of_a_node() }
}

/// Client and server with the files of their directories, the client expecting `expected`.
fn handshake(client: &Path, server: &Path, expected: &str) -> (Result<(), Error>, Result<(), Error>, Connection) {
    let loaded = |dir: &Path| NodeCredentials::load(dir).expect("credentials");
    shake_hands(&loaded(client), &loaded(server), expected)
}

type Shaken = (Result<(), Error>, Result<(), Error>, Connection);

fn shake_hands(client: &Arc<NodeCredentials>, server: &Arc<NodeCredentials>, expected: &str) -> Shaken {
    connect(
        client.client_config().expect("client settings"),
        server.server_config(Door::Nodes).expect("server settings"),
        expected,
    )
}

fn connect(client: Arc<ClientConfig>, server: Arc<ServerConfig>, expected: &str) -> Shaken {
    let name = pki::server_name(expected, "c1").expect("a good name");
    let mut client = Connection::from(ClientConnection::new(client, name).expect("client"));
    let mut server = Connection::from(ServerConnection::new(server).expect("server"));
    let (mut client_says, mut server_says) = (Ok(()), Ok(()));
    for _ in 0..TRIPS_MAX {
        server_says = server_says.and(carry(&mut client, &mut server));
        client_says = client_says.and(carry(&mut server, &mut client));
    }
    assert!(client_says.is_err() || server_says.is_err() || !client.is_handshaking() && !server.is_handshaking());
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

#[test]
fn nodes_of_one_cluster_accept_each_other_and_learn_the_names() {
    let dir = tempfile::tempdir().expect("directory");
    let (ca, a, b) = (dir.path().join("ca"), dir.path().join("a"), dir.path().join("b"));
    Authority::create(&ca, "c1").expect("authority").issue_node(&request("n1"), &a).expect("n1");
    Authority::load(&ca).expect("loaded").issue_node(&request("n2"), &b).expect("n2");
    let (client, server, connection) = handshake(&a, &b, "n2");
    assert_eq!((client, server), (Ok(()), Ok(())));
    let certificate = connection.peer_certificates().expect("client showed one")[0].clone();
    assert_eq!(pki::peer_node_name(&certificate, "c1").expect("name"), "n1");
    assert!(matches!(pki::peer_node_name(&certificate, "c2"), Err(PkiError::NotANode { .. })));
}

#[test]
fn node_under_a_foreign_authority_is_refused_by_both_sides() {
    let dir = tempfile::tempdir().expect("directory");
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    Authority::create(&dir.path().join("ca1"), "c1").expect("authority").issue_node(&request("n1"), &a).expect("n1");
    Authority::create(&dir.path().join("ca2"), "c1").expect("authority").issue_node(&request("n2"), &b).expect("n2");
    let (client, ..) = handshake(&a, &b, "n2");
    assert!(matches!(client, Err(Error::InvalidCertificate(_))), "client said {client:?}");

    // The server's own view: a client that trusts the server's authority but shows a foreign certificate.
    let mixed = dir.path().join("mixed");
    std::fs::create_dir(&mixed).expect("directory");
    for (from, name) in [(&b, pki::CA_CERT), (&a, pki::NODE_CERT), (&a, pki::NODE_KEY)] {
        std::fs::copy(from.join(name), mixed.join(name)).expect("copy");
    }
    let (_, server, _) = handshake(&mixed, &b, "n2");
    assert!(matches!(server, Err(Error::InvalidCertificate(_))), "server said {server:?}");
}

#[test]
fn other_node_of_the_same_cluster_at_the_dialled_address_is_refused() {
    let dir = tempfile::tempdir().expect("directory");
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let authority = Authority::create(&dir.path().join("ca"), "c1").expect("authority");
    authority.issue_node(&request("n1"), &a).expect("n1");
    authority.issue_node(&request("n2"), &b).expect("n2");
    let (client, ..) = handshake(&a, &b, "n3");
    let reason = matches!(
        client,
        Err(Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
        ))
    );
    assert!(reason, "client said {client:?}");
}

#[test]
fn expired_certificate_is_refused_by_both_sides() {
    let dir = tempfile::tempdir().expect("directory");
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let authority = Authority::create(&dir.path().join("ca"), "c1").expect("authority");
    let hour = Duration::from_secs(3600);
    let past = Validity { from: SystemTime::now() - 2 * hour, until: SystemTime::now() - hour };
    authority.issue_node(&request("n1"), &a).expect("n1");
    authority.issue_node(&NodeRequest { valid: past, ..request("n2") }, &b).expect("n2");
    let expired = |said: &Result<(), Error>| {
        matches!(
            said,
            Err(Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }))
        )
    };
    let (client, ..) = handshake(&a, &b, "n2");
    assert!(expired(&client), "client said {client:?}");
    let (_, server, _) = handshake(&b, &a, "n1");
    assert!(expired(&server), "server said {server:?}");
}

#[test]
fn keys_are_readable_by_their_owner_only_and_exposed_ones_are_refused() {
    let dir = tempfile::tempdir().expect("directory");
    let (ca, a) = (dir.path().join("ca"), dir.path().join("a"));
    Authority::create(&ca, "c1").expect("authority").issue_node(&request("n1"), &a).expect("n1");
    for key in [ca.join(pki::CA_KEY), a.join(pki::NODE_KEY)] {
        let mode = std::fs::metadata(&key).expect("status").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", key.display());
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).expect("chmod");
    }
    assert!(matches!(Authority::load(&ca), Err(PkiError::KeyExposed { mode: 0o640, .. })));
    assert!(matches!(NodeCredentials::load(&a), Err(PkiError::KeyExposed { mode: 0o640, .. })));
}

#[test]
fn authority_is_never_overwritten_and_belongs_to_one_cluster() {
    let dir = tempfile::tempdir().expect("directory");
    Authority::create(dir.path(), "c1").expect("authority");
    assert!(matches!(Authority::create(dir.path(), "c1"), Err(PkiError::AuthorityExists { .. })));
    assert!(matches!(Authority::load_or_create(dir.path(), "c2"), Err(PkiError::OtherCluster { .. })));
    assert_eq!(Authority::load_or_create(dir.path(), "c1").expect("the same").cluster(), "c1");
}

#[test]
fn error_says_which_file_is_missing_or_broken() {
    let dir = tempfile::tempdir().expect("directory");
    let error = NodeCredentials::load(dir.path()).expect_err("no files");
    assert!(error.to_string().contains("ca.crt"), "{error}");
    let a = dir.path().join("a");
    Authority::create(&dir.path().join("ca"), "c1").expect("authority").issue_node(&request("n1"), &a).expect("n1");
    std::fs::write(a.join(pki::NODE_CERT), "nonsense").expect("write");
    let error = NodeCredentials::load(&a).expect_err("broken file");
    assert!(matches!(&error, PkiError::Malformed { path, .. } if path.ends_with("node.crt")), "{error}");
}

#[test]
fn name_that_could_leave_its_place_is_refused() {
    let dir = tempfile::tempdir().expect("directory");
    let authority = Authority::create(&dir.path().join("ca"), "c1").expect("authority");
    for name in ["", "n1.c2", "N1", "1n", "../n1", "certificate-authority", "a-name-that-is-longer-than-thirty-two"] {
        let issued = authority.issue_node(&request(name), &dir.path().join("x"));
        assert!(matches!(issued, Err(PkiError::BadName { .. })), "{name:?}");
    }
}

/// Writes a node's files, with a certificate for a key that the node made itself.
fn enrol(authority: &Authority, node: &str, roots_pem: &str, dir: &Path) -> String {
    let key = NodeKey::generate().expect("a key");
    let issued = authority.sign(&key.request_pem().expect("a request"), &request(node)).expect("signed");
    let files = NodeFiles { certificate_pem: &issued.certificate_pem, key_pem: &key.pem(), roots_pem };
    pki::write_node_files(dir, &files).expect("written");
    issued.serial
}

#[test]
fn key_that_a_node_made_itself_is_certified_under_the_name_that_the_authority_chose() {
    let dir = tempfile::tempdir().expect("directory");
    let authority = Authority::generate("c1", 1).expect("authority");
    let serial = enrol(&authority, "n1", authority.certificate_pem(), dir.path());
    let (client, server, connection) = handshake(dir.path(), dir.path(), "n1");
    assert_eq!((client, server), (Ok(()), Ok(())));
    let shown = connection.peer_certificates().expect("client showed one")[0].clone();
    let facts = CertificateSummary::of(&shown).expect("a certificate");
    assert_eq!(facts.serial, serial);
    let left = facts.left(SystemTime::now());
    assert!(left > Duration::from_secs(700 * 24 * 3600) && left < Duration::from_secs(731 * 24 * 3600), "{left:?}");
    for bad in ["", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"] {
        assert!(matches!(authority.sign(bad, &request("n1")), Err(PkiError::BadRequest(_))));
    }
    // Somebody else's key, with a signature that is not of it.
    let text = NodeKey::generate().expect("a key").request_pem().expect("a request");
    let changed = text.replacen("A", "B", 1);
    assert!(matches!(authority.sign(&changed, &request("n1")), Err(PkiError::BadRequest(_))), "{text}");
}

#[test]
fn authority_that_was_written_down_signs_as_before() {
    let dir = tempfile::tempdir().expect("directory");
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let authority = Authority::generate("c1", 3).expect("authority");
    enrol(&authority, "n1", authority.certificate_pem(), &a);
    let again = Authority::from_pem(authority.certificate_pem(), &authority.key_pem()).expect("the same");
    enrol(&again, "n2", again.certificate_pem(), &b);
    let (client, server, _) = handshake(&a, &b, "n2");
    assert_eq!((client, server), (Ok(()), Ok(())));
}

#[test]
fn revoked_certificate_is_refused_by_both_sides_from_the_next_connection_on() {
    let dir = tempfile::tempdir().expect("directory");
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let authority = Authority::generate("c1", 1).expect("authority");
    enrol(&authority, "n1", authority.certificate_pem(), &a);
    let serial = enrol(&authority, "n2", authority.certificate_pem(), &b);
    let (first, second) = (NodeCredentials::load(&a).expect("n1"), NodeCredentials::load(&b).expect("n2"));
    assert!(matches!(shake_hands(&first, &second, "n2"), (Ok(()), Ok(()), _)));
    assert!(!first.reload().expect("nothing new"));
    let since = SystemTime::now();
    let list = authority.revocations(1, &[Revoked { serial, since }]).expect("a list");
    std::fs::write(a.join(pki::CA_CRL), list).expect("written");
    assert!(first.reload().expect("read again"));
    let shown = CertificateDer::from_pem_file(b.join(pki::NODE_CERT)).expect("a certificate");
    assert!(!first.admits(&shown) && second.admits(&shown), "who has let it in finds out, too");
    let revoked = Err(Error::InvalidCertificate(CertificateError::Revoked));
    assert_eq!(shake_hands(&first, &second, "n2").0, revoked);
    assert_eq!(shake_hands(&second, &first, "n1").1, revoked);
    // Another one of the same node is good.
    enrol(&authority, "n2", authority.certificate_pem(), &b);
    assert!(second.reload().expect("read again"));
    assert!(matches!(shake_hands(&first, &second, "n2"), (Ok(()), Ok(()), _)));
}

#[test]
fn two_roots_at_a_time_let_nodes_change_one_after_the_other() {
    let dir = tempfile::tempdir().expect("directory");
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let (old, new) = (Authority::generate("c1", 1).expect("old"), Authority::generate("c1", 2).expect("new"));
    let both = format!("{}{}", new.certificate_pem(), old.certificate_pem());
    enrol(&old, "n1", &both, &a);
    let serial = enrol(&new, "n2", &both, &b);
    assert!(matches!(handshake(&a, &b, "n2"), (Ok(()), Ok(()), _)));
    assert!(matches!(handshake(&b, &a, "n1"), (Ok(()), Ok(()), _)));
    // Each has a list of its own; one that is of the other root revokes nothing here.
    let since = SystemTime::now();
    let of =
        |authority: &Authority| authority.revocations(1, &[Revoked { serial: serial.clone(), since }]).expect("a list");
    std::fs::write(a.join(pki::CA_CRL), of(&old)).expect("written");
    assert!(matches!(handshake(&a, &b, "n2"), (Ok(()), Ok(()), _)));
    std::fs::write(a.join(pki::CA_CRL), format!("{}{}", of(&old), of(&new))).expect("written");
    assert_eq!(handshake(&a, &b, "n2").0, Err(Error::InvalidCertificate(CertificateError::Revoked)));
    // Once the old root is gone, what it signed is worth nothing.
    std::fs::write(b.join(pki::CA_CERT), new.certificate_pem()).expect("written");
    assert!(matches!(handshake(&b, &a, "n1").0, Err(Error::InvalidCertificate(_))));
}

#[test]
fn machine_without_a_certificate_knows_its_cluster_by_the_fingerprint_of_a_root() {
    let dir = tempfile::tempdir().expect("directory");
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let (ours, other) = (Authority::generate("c1", 1).expect("ours"), Authority::generate("c1", 1).expect("other"));
    enrol(&ours, "n1", ours.certificate_pem(), &a);
    enrol(&other, "n1", &format!("{}{}", other.certificate_pem(), ours.certificate_pem()), &b);
    let root = pki::fingerprint(ours.certificate_pem()).expect("a fingerprint");
    assert_eq!(root.to_string().parse::<pki::Fingerprint>().expect("as it was printed"), root);
    let introduce = |server: &Path, door| {
        let server = NodeCredentials::load(server).expect("credentials").server_config(door).expect("settings");
        connect(pki::introduction_config(root).expect("settings"), server, "whoever")
    };
    let (client, server, connection) = introduce(&a, Door::Anyone);
    assert_eq!((client, server), (Ok(()), Ok(())));
    assert!(connection.peer_certificates().is_none());
    // Nobody else lets it in; and it believes nobody who only shows our root.
    assert!(introduce(&a, Door::Nodes).1.is_err());
    assert!(matches!(introduce(&b, Door::Anyone).0, Err(Error::InvalidCertificate(_))));
    assert!("ab".parse::<pki::Fingerprint>().is_err() && "g".repeat(64).parse::<pki::Fingerprint>().is_err());
}

#[test]
fn files_of_a_writer_that_died_between_key_and_certificate_are_brought_to_the_newer_pair() {
    let dir = tempfile::tempdir().expect("directory");
    let authority = Authority::generate("c1", 1).expect("authority");
    enrol(&authority, "n1", authority.certificate_pem(), dir.path());
    let certificate = std::fs::read(dir.path().join(pki::NODE_CERT)).expect("read");
    let second = enrol(&authority, "n1", authority.certificate_pem(), dir.path());
    // As it was before the last of the files was written.
    std::fs::write(dir.path().join(pki::NODE_CERT), certificate).expect("written");
    let earlier =
        std::fs::metadata(dir.path().join(pki::NODE_PAIR)).and_then(|status| status.modified()).expect("time")
            - Duration::from_secs(1);
    let file = std::fs::File::options().write(true).open(dir.path().join(pki::NODE_CERT)).expect("open");
    file.set_modified(earlier).expect("time set");
    assert!(matches!(NodeCredentials::load(dir.path()), Err(PkiError::KeyMismatch { .. })));
    pki::mend_node_files(dir.path()).expect("mended");
    assert_eq!(NodeCredentials::load(dir.path()).expect("a pair").facts().serial, second);
    pki::mend_node_files(dir.path()).expect("nothing to do");
}
