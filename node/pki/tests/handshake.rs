//! Who is let in and who is not, shown by whole handshakes in memory.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use pki::{Authority, NodeRequest, PkiError, Validity};
use rustls::{CertificateError, ClientConnection, Connection, Error, ServerConnection};

/// One trip there and back carries a TLS 1.3 handshake; a few more are room for alerts.
const TRIPS_MAX: usize = 10;

fn request(node: &str) -> NodeRequest<'_> {
    NodeRequest { node, addresses: &[], valid: Validity::of_a_node() }
}

/// Client and server with the files of their directories, the client expecting `expected`.
fn handshake(client: &Path, server: &Path, expected: &str) -> (Result<(), Error>, Result<(), Error>, Connection) {
    let name = pki::server_name(expected, "c1").expect("a good name");
    let config = pki::client_config(client).expect("client settings");
    let mut client = Connection::from(ClientConnection::new(config, name).expect("client"));
    let config = pki::server_config(server).expect("server settings");
    let mut server = Connection::from(ServerConnection::new(config).expect("server"));
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
    assert!(matches!(pki::server_config(&a), Err(PkiError::KeyExposed { mode: 0o640, .. })));
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
    let error = pki::client_config(dir.path()).expect_err("no files");
    assert!(error.to_string().contains("ca.crt"), "{error}");
    let a = dir.path().join("a");
    Authority::create(&dir.path().join("ca"), "c1").expect("authority").issue_node(&request("n1"), &a).expect("n1");
    std::fs::write(a.join(pki::NODE_CERT), "nonsense").expect("write");
    let error = pki::client_config(&a).expect_err("broken file");
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
