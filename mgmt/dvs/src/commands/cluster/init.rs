//! `dvs cluster init`: makes this machine the first node of a new cluster. Asks no daemon: there is none yet.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use mgmt_api::MemberAddress;
use pki::{Authority, NodeFiles, NodeKey, NodeRequest, PkiError, Validity};

use crate::cli::Global;
use crate::commands::{Outcome, done, say};
use crate::errors::Failure;
use crate::installed::{
    self, Before, ETCD_CLIENT_PORT, ETCD_PEER_PORT, EngineFile, EtcdTable, NewNode, OwnMember, SettingsFile, Where,
};
use crate::units::parse_duration;

/// Shorter ones would be renewed all the time.
const LIFETIME_MIN: Duration = Duration::from_secs(10);

/// Make this machine the first node of a new cluster
#[derive(Args, Debug)]
#[command(after_help = "\
The cluster's decisions lie in etcd, which the daemons run: on this node now, on three once there are three nodes, on \
five once there are five. It has to be installed (Debian: apt-get install etcd-server); or say where an etcd is that \
you look after yourself.

Certificates renew themselves. Whoever else shall be let in needs a token: dvs node token.

Examples:
  dvs cluster init home
  dvs cluster init home --node n1 --advertise 192.0.2.11
  dvs cluster init home --advertise 192.0.2.11 --listen 10.0.0.5     the first is translated to the second
  dvs cluster init home --engine local         one machine, without etcd
  dvs cluster init home --etcd 192.0.2.1:2379,192.0.2.2:2379 --etcd-tls /etc/dvs/etcd")]
pub struct Options {
    /// Name of the cluster.
    #[arg(default_value = "dvs")]
    name: String,
    #[command(flatten)]
    place: Where,
    /// Where the cluster's decisions lie: etcd, or a file of this machine; then nobody else can join, until they are
    /// moved to etcd (dvs cluster move-engine).
    #[arg(long, value_enum, default_value_t = Kind::Etcd)]
    engine: Kind,
    /// Members of an etcd that somebody else looks after.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    etcd: Vec<String>,
    /// ca.crt, node.crt and node.key for that etcd.
    #[arg(long, value_name = "DIR", requires = "etcd")]
    etcd_tls: Option<PathBuf>,
    /// A user of that etcd.
    #[arg(long, value_name = "NAME", requires = "etcd", requires = "etcd_password_file")]
    etcd_user: Option<String>,
    /// File with the user's password.
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,
    /// How long certificates of nodes last; they are renewed when a third of it is left.
    #[arg(long, value_name = "TIME", default_value = "365d", value_parser = parse_duration)]
    certificate_lifetime: Duration,
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Etcd,
    Local,
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    let place = &options.place;
    let failed = |error: PkiError| Failure::new("the cluster has no certificates").because(&error).hint(error.hint());
    let node = place.name()?;
    if !mgmt_api::valid_name(&options.name) {
        return Err(Failure::usage(format!("'{}' cannot be a cluster's name", options.name))
            .hint("1 to 32 of a-z, 0-9 and -, beginning with a letter"));
    }
    if options.certificate_lifetime < LIFETIME_MIN {
        return Err(Failure::usage("certificates last at least 10 s").hint("--certificate-lifetime 365d"));
    }
    let address = address(place)?;
    place.demand_fresh(Before::Nothing)?;
    let is_managed = options.engine == Kind::Etcd && options.etcd.is_empty();
    if options.engine == Kind::Local && !options.etcd.is_empty() {
        return Err(Failure::usage("the engine is either a file or etcd").hint("--engine local, or --etcd HOST:PORT"));
    }
    if is_managed {
        installed::demand_etcd()?;
    }
    place.demand_own(address)?;
    place.demand_free_for_daemon()?;
    if is_managed {
        place.demand_free_for_member(address)?;
    }
    place.make_data_dir()?;

    let authority_dir = place.data.join("authority");
    // One that a try before left behind was used by nobody: there were no settings.
    let authority = Authority::load_or_create(&authority_dir, &options.name).map_err(failed)?;
    let lifetime = options.certificate_lifetime.as_secs();
    installed::write(&authority_dir.join("lifetime"), &format!("{lifetime}\n"), 0o644)?;
    certify(&authority, place, &node, address, options.certificate_lifetime).map_err(failed)?;
    let etcd = if options.engine == Kind::Local {
        None
    } else if is_managed {
        place.write_engine(&first_member(&node, address))?;
        Some(EtcdTable { managed: true, ..EtcdTable::default() })
    } else {
        Some(EtcdTable {
            members: options.etcd.clone(),
            tls_dir: options.etcd_tls.clone(),
            user: options.etcd_user.clone(),
            password_file: options.etcd_password_file.clone(),
            ..EtcdTable::default()
        })
    };
    let settings = SettingsFile {
        node: &node,
        cluster: &options.name,
        advertise: address,
        listen: place.listen,
        state_dir: &place.data,
        run_dir: &place.run,
        etcd,
    };
    place.write_settings(&settings, "dvs cluster init")?;
    let then = match options.engine {
        Kind::Etcd => "then, for each further machine: dvs node token",
        Kind::Local => "it stays on this machine, until its engine is moved: dvs cluster move-engine",
    };
    say(&format!(
        "cluster '{}' begins with node '{node}' at {address}\nnow, here: {}\n{then}",
        options.name,
        place.next()
    ));
    let now = NewNode { cluster: options.name.clone(), node, address, config: place.config.clone() };
    done(global.output, &now)
}

fn address(place: &Where) -> Result<IpAddr, Failure> {
    let address = place.advertise.or_else(installed::own_address);
    address.filter(|address| !address.is_unspecified() && !address.is_loopback()).ok_or_else(|| {
        Failure::usage("other machines cannot reach this one")
            .hint("an address of this machine (ip addr): --advertise 192.0.2.11")
    })
}

fn certify(
    authority: &Authority,
    place: &Where,
    node: &str,
    address: IpAddr,
    lifetime: Duration,
) -> Result<(), PkiError> {
    let key = NodeKey::generate()?;
    let addresses = [address];
    let request = NodeRequest { node, addresses: &addresses, valid: Validity::lasting(lifetime) };
    let issued = authority.sign(&key.request_pem()?, &request)?;
    let files = NodeFiles {
        certificate_pem: &issued.certificate_pem,
        key_pem: &key.pem(),
        roots_pem: authority.certificate_pem(),
    };
    pki::write_node_files(&place.tls_dir(), &files)?;
    // Its number is that of the authority's record as it begins.
    pki::write_public(&place.tls_dir().join(pki::CA_CRL), &authority.revocations(1, &[])?)
}

fn first_member(node: &str, address: IpAddr) -> EngineFile {
    let at = |port| std::net::SocketAddr::new(address, port).to_string();
    let own = MemberAddress { client: at(ETCD_CLIENT_PORT), peer: at(ETCD_PEER_PORT) };
    let initial = BTreeMap::from([(node.to_owned(), own.peer.clone())]);
    EngineFile { members: BTreeMap::from([(node.to_owned(), own)]), own: Some(OwnMember { initial, is_first: true }) }
}
