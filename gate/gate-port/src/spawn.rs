//! How port gates begin: `dvs gate ports` and `dvs gate egress`, started by the node daemon.
//!
//! Descriptors of the first: `net` (the container's network namespace on this node), `control` (over it come listening
//! sockets and who the nodes are). It enters the namespace first, and gives up its privileges then: what it can reach
//! is what a program of the container can, and what it listens at was given to it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::process::ExitCode;

use sys::harden::{Identity, give_up_privileges, restrict_system_calls};
use sys::ns::Kinds;
use vos_rt::{Failure, Spawn, SpawnError};

use crate::egress::{Allowed, Insider, Policy};
use crate::gate::{OutEars, PortGate, PortGateEnd, WayOut};

const CALLS: &[libc::c_long] = &[
    libc::SYS_accept4,
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_ioctl,
    libc::SYS_pipe2,
    libc::SYS_splice,
];

/// Runs `dvs gate ports`.
pub fn main_from_spawn() -> ExitCode {
    run("ports", serve)
}

/// Runs `dvs gate egress`: in the network namespace of the node, where it stays, with the sockets on which programs of
/// the container are heard (`stream`, `datagrams`, and of IPv6 `stream6`, `datagrams6` where there is a way out for
/// it), and one thread that is inside and makes sockets there (`net`). Options: `allowed` (of each network address,
/// prefix and port, 0 for all), `resolver`. A file `never` has addresses.
pub fn main_of_egress() -> ExitCode {
    run("egress", let_out)
}

fn run(name: &str, gate: fn() -> Result<PortGateEnd, Failure>) -> ExitCode {
    vos_rt::log::begin(name);
    match gate() {
        Ok(end) => {
            tracing::info!(?end, "ended");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            vos_rt::log::failure(name, &*failure);
            ExitCode::FAILURE
        }
    }
}

fn let_out() -> Result<PortGateEnd, Failure> {
    let mut spawn = Spawn::from_env()?;
    let mut policy = policy_of(&spawn)?;
    let mut take = |name: &'static str| spawn.take_fd(name).ok_or(SpawnError::Missing(name));
    let (net, control) = (take("net")?, take("control")?);
    policy.never = never_of(File::from(take("never")?))?;
    let mut ears = vec![OutEars { stream: take("stream")?, datagrams: take("datagrams")? }];
    let of_ipv6 = spawn.take_fd("stream6").zip(spawn.take_fd("datagrams6"));
    ears.extend(of_ipv6.map(|(stream, datagrams)| OutEars { stream, datagrams }));
    let stop = sys::signals::open(&[libc::SIGTERM, libc::SIGINT])?;
    let insider = Insider::start(net)?;
    give_up_privileges(Identity { uid: spawn.uid, gid: spawn.gid })?;
    insider.settle()?;
    let gate = PortGate::new(control, stop)?.with_way_out(WayOut { ears, policy, insider })?;
    restrict_system_calls(&[CALLS, &[libc::SYS_bind]].concat())?;
    spawn.ready();
    tracing::info!(dc = spawn.dc, dc_name = spawn.dc_name, "serving");
    Ok(gate.run()?)
}

fn policy_of(spawn: &Spawn) -> Result<Policy, SpawnError> {
    let bad = |name: &str| SpawnError::BadOption(name.to_owned());
    let list = |name: &str| spawn.options.get(name).and_then(|value| value.as_array()).ok_or_else(|| bad(name));
    let address = |value: &serde_json::Value| value.as_str().and_then(|address| address.parse().ok());
    let allowed = list("allowed")?.iter().map(|rule| {
        let number = |at: usize| rule.get(at).and_then(|value| value.as_u64());
        Ok(Allowed {
            network: rule.get(0).and_then(address).ok_or_else(|| bad("allowed"))?,
            prefix_bits: number(1).and_then(|bits| u8::try_from(bits).ok()).ok_or_else(|| bad("allowed"))?,
            port: number(2)
                .and_then(|port| u16::try_from(port).ok())
                .map(|port| Some(port).filter(|port| *port != 0))
                .ok_or_else(|| bad("allowed"))?,
        })
    });
    let resolver = spawn.option_str("resolver")?.map(str::parse).transpose().map_err(|_| bad("resolver"))?;
    Ok(Policy { allowed: allowed.collect::<Result<_, _>>()?, never: BTreeSet::new(), resolver })
}

/// An address in a line: more than an option may have.
fn never_of(mut file: File) -> Result<BTreeSet<IpAddr>, Failure> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    text.lines().map(|line| Ok(line.parse()?)).collect()
}

fn serve() -> Result<PortGateEnd, Failure> {
    let mut spawn = Spawn::from_env()?;
    let mut take = |name: &'static str| spawn.take_fd(name).ok_or(SpawnError::Missing(name));
    let (net, control) = (take("net")?, take("control")?);
    let stop = sys::signals::open(&[libc::SIGTERM, libc::SIGINT])?;
    sys::ns::join(net, Kinds::NET)?;
    give_up_privileges(Identity { uid: spawn.uid, gid: spawn.gid })?;
    let gate = PortGate::new(control, stop)?;
    restrict_system_calls(CALLS)?;
    spawn.ready();
    tracing::info!(dc = spawn.dc, dc_name = spawn.dc_name, "serving");
    Ok(gate.run()?)
}
