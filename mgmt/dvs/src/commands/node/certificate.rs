//! `dvs node ca` and `dvs node cert`: certificates of a cluster of real machines. (`dvs dev up` makes its own.)
//!
//! No daemon is asked: the authority's key lies on the machine of whoever runs the cluster, and on no node.

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use pki::{Authority, NodeRequest, PkiError, Validity};
use serde::Serialize;

use crate::cli::Global;
use crate::commands::{Outcome, print};
use crate::errors::Failure;
use crate::output::{self, Row};

/// Make the certificate authority of a cluster, once
#[derive(Args, Debug)]
#[command(after_help = "\
Nodes let in only who has a certificate of their cluster's authority. Its key, DIR/ca.key, stays on your \
machine: no node needs it.

Examples:
  dvs node ca home --out ./ca")]
pub struct AuthorityOptions {
    /// Directory for ca.crt and ca.key; made when it is not there.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Name of the cluster, as in dvsd.toml.
    #[arg(value_name = "CLUSTER")]
    of: String,
}

/// Make the certificates of a node
#[derive(Args, Debug)]
#[command(after_help = "\
Writes node.crt, node.key and ca.crt. The node's dvsd.toml names the directory: tls_dir = \"DIR\". The certificate \
is good for two years; the same again renews it.

Examples:
  dvs node cert n1 --ca ./ca --out ./n1
  dvs node cert n1 --ca ./ca --out /var/lib/dvs/tls --address 192.0.2.11")]
pub struct NodeOptions {
    /// Directory of the authority, from `dvs node ca`.
    #[arg(long, value_name = "DIR")]
    ca: PathBuf,
    /// Directory for the files; made when it is not there.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// An address of the node, for clients that know no names; may be given several times.
    #[arg(long = "address", value_name = "ADDRESS")]
    addresses: Vec<IpAddr>,
    /// Name of the node, as in its dvsd.toml.
    node: String,
}

/// What was made.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "MadeCertificate"))]
pub struct Made {
    cluster: String,
    /// None: the authority.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    certificate: PathBuf,
    key: PathBuf,
}

pub fn make_authority(global: &Global, options: &AuthorityOptions) -> Outcome {
    let made = Authority::create(&options.out, &options.of);
    let authority = made.map_err(|error| failure(format!("cluster '{}' has no new authority", options.of), &error))?;
    let made = Made {
        cluster: authority.cluster().to_owned(),
        node: None,
        certificate: options.out.join(pki::CA_CERT),
        key: options.out.join(pki::CA_KEY),
    };
    print(|out| output::one(out, global.output, &made, view))
}

pub fn issue(global: &Global, options: &NodeOptions) -> Outcome {
    let NodeOptions { ca, out: directory, addresses, node } = options;
    let failed = |error: PkiError| failure(format!("node '{node}' has no new certificate"), &error);
    let authority = Authority::load(ca).map_err(|error| match &error {
        PkiError::Read { .. } => failed(error).hint("dvs node ca CLUSTER --out DIR makes an authority"),
        _ => failed(error),
    })?;
    let request = NodeRequest { node, addresses, valid: Validity::of_a_node() };
    let certificate = authority.issue_node(&request, directory).map_err(failed)?;
    let made = Made {
        cluster: authority.cluster().to_owned(),
        node: Some(node.clone()),
        certificate,
        key: directory.join(pki::NODE_KEY),
    };
    print(|out| output::one(out, global.output, &made, view))
}

fn failure(what: String, error: &PkiError) -> Failure {
    Failure::new(what).because(error).hint(error.hint())
}

impl Row for Made {
    const HEADINGS: &'static [&'static str] = &["CLUSTER", "NODE", "CERTIFICATE", "KEY"];

    fn cells(&self) -> Vec<String> {
        let node = self.node.clone().unwrap_or_else(|| "-".to_owned());
        vec![self.cluster.clone(), node, self.certificate.display().to_string(), self.key.display().to_string()]
    }

    fn name(&self) -> String {
        self.certificate.display().to_string()
    }
}

fn view<W: Write>(made: &Made, out: &mut W) -> io::Result<()> {
    output::list(out, output::Format::Table, std::slice::from_ref(made))
}
