//! Clients of NBD, which others have made.

use std::path::Path;
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// Whether this program can be used; says which package has it.
pub fn has(program: &str, package: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        eprintln!("SKIPPED: there is no {program} (Debian: {package})");
    }
    there
}

/// A directory as programs that speak NBD want it: an authority, and a certificate by it for each of these files.
pub fn certificates(dir: &Path, names: &[&str]) {
    let key = || KeyPair::generate().expect("a key");
    let params = |subject: &str, hosts: &[&str]| {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("names");
        params.distinguished_name.push(DnType::CommonName, subject);
        params
    };
    let (mut authority, ca_key) = (params("authority", &[]), key());
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let text = authority.self_signed(&ca_key).expect("signed").pem();
    let issuer = Issuer::new(authority, ca_key);
    std::fs::create_dir(dir).expect("made");
    let write = |name: String, text: String| std::fs::write(dir.join(name), text).expect("written");
    write("ca-cert.pem".to_owned(), text);
    for name in names {
        let key = key();
        let signed = params(name, &["127.0.0.1", "localhost"]).signed_by(&key, &issuer).expect("signed");
        write(format!("{name}-cert.pem"), signed.pem());
        write(format!("{name}-key.pem"), key.serialize_pem());
    }
}
