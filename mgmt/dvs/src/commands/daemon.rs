//! `dvs daemon`: the node daemon, in the foreground.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

use super::Outcome;

/// Run the node daemon
#[derive(Args, Debug)]
#[command(after_help = "\
Settings come from the file, then from DVS_* variables (DVS_NODE, DVS_ADVERTISE …), then from \
these options; the last one wins. The daemon may be stopped and started again at any time: \
containers go on without it.

Examples:
  dvs daemon --config /etc/dvs/dvsd.toml
  dvs daemon --node n1 --advertise 192.0.2.11

dvsd.toml:
  node = \"n1\"
  cluster = \"home\"
  advertise = \"192.0.2.11\"
  state_dir = \"/var/lib/dvs\"
  run_dir = \"/run/dvs\"
  tls_dir = \"/var/lib/dvs/tls\"
  log_format = \"json\"              an object in each line of the log, not text
  transports = [\"unix\", \"tcp\"]    what links use, the preferred first: tcp, unix, eth, quic, tipc
  ethernet = \"eth0\"                interface for eth
  pairs = 2                        links with each other node, each with a proxy of its own
  volumes = [                      directories that containers may have as volumes
    { path = \"/srv/data\", owner = \"1000:1000\" },
    { path = \"/srv/docs\" } ]       without an owner, or with read_only = true, they only read
  proxy_program = \"/opt/shaped\"    a program in place of dvs proxy
  [proxy_options]                  what it is told besides
  rate = 1000000
  [links.n2]                       where the link with one node differs
  transports = [\"tcp\"]
  tls = false
  [names]                          names of containers for programs of this node, by DNS
  listen = \"127.0.0.54:53\"
  [etcd]                           the cluster engine is etcd, not a file of this machine
  members = [\"192.0.2.11:2379\", \"192.0.2.12:2379\", \"192.0.2.13:2379\"]
  tls_dir = \"/etc/dvs/etcd\"       ca.crt, node.crt, node.key, where they are not the cluster's
  user = \"dvs\"                    a user of etcd, where it has users
  password_file = \"/etc/dvs/etcd-password\"
  [etcd.serve]                     this node runs a member
  peers = { n1 = \"192.0.2.11:2380\", n2 = \"192.0.2.12:2380\", n3 = \"192.0.2.13:2380\" }")]
pub struct Options {
    /// Settings in TOML.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Name of this node [default: the host's name].
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Address at which other nodes reach this one.
    #[arg(long, value_name = "ADDRESS")]
    advertise: Option<IpAddr>,
    /// Address to listen on [default: all].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<IpAddr>,
    /// Links with each other node, as far as that has as many, each with a proxy of its own [default: 1].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=i64::from(mgmt_api::PAIRS_MAX)))]
    pairs: Option<u8>,
    /// Program that is the proxy in place of dvs proxy; an absolute path.
    #[arg(long, value_name = "PATH")]
    proxy_program: Option<PathBuf>,
    /// Sockets and records of running processes [default: /run/dvs].
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// What to log: error, warn, info, debug, or a filter such as dvsd=debug.
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
}

#[cfg(feature = "machinery")]
pub fn execute(options: Options) -> Outcome {
    let Options { config, node, advertise, listen, pairs, proxy_program, run_dir, log } = options;
    let closed = sys::child::close_inherited();
    closed.map_err(|cause| {
        crate::errors::Failure::new("cannot close inherited descriptors").because(&cause).hint("dvs doctor")
    })?;
    let flags = dvsd::Settings { node, advertise, listen, pairs, proxy_program, run_dir, log, ..Default::default() };
    Ok(dvsd::main(config.as_deref(), flags))
}

#[cfg(not(feature = "machinery"))]
pub fn execute(options: Options) -> Outcome {
    let Options { config: _, node: _, advertise: _, listen: _, pairs: _, proxy_program: _, run_dir: _, log: _ } =
        options;
    Err(crate::errors::Failure::new("this binary was built without the daemon"))
}
