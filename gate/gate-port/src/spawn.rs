//! How port gates begin: `dvs gate ports` and `dvs gate egress`, started by the node daemon.
//!
//! Descriptors of the first: `net` (the container's network namespace on this node), `control` (over it come listening
//! sockets and who the nodes are). It enters the namespace first, and gives up its privileges then: what it can reach
//! is what a program of the container can, and what it listens at was given to it.

use std::net::Ipv4Addr;
use std::process::ExitCode;

use sys::harden::{Identity, give_up_privileges, restrict_system_calls};
use sys::ns::Kinds;
use vos_rt::{Failure, Spawn, SpawnError};

use crate::egress::{Allowed, Insider, Policy};
use crate::gate::{PortGate, PortGateEnd, WayOut};

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
/// the container are heard (`stream`, `datagrams`), and one thread that is inside and makes sockets there (`net`).
/// Options: `allowed` (of each network address, prefix and port, 0 for all), `never` (addresses), `resolver`.
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
    let policy = policy_of(&spawn)?;
    let mut take = |name: &'static str| spawn.take_fd(name).ok_or(SpawnError::Missing(name));
    let (net, control) = (take("net")?, take("control")?);
    let (stream, datagrams) = (take("stream")?, take("datagrams")?);
    let stop = sys::signals::open(&[libc::SIGTERM, libc::SIGINT])?;
    let insider = Insider::start(net)?;
    give_up_privileges(Identity { uid: spawn.uid, gid: spawn.gid })?;
    insider.settle()?;
    let gate = PortGate::new(control, stop)?.with_way_out(WayOut { stream, datagrams, policy, insider })?;
    restrict_system_calls(&[CALLS, &[libc::SYS_bind]].concat())?;
    spawn.ready();
    tracing::info!(dc = spawn.dc, dc_name = spawn.dc_name, "serving");
    Ok(gate.run()?)
}

fn policy_of(spawn: &Spawn) -> Result<Policy, SpawnError> {
    let bad = |name: &str| SpawnError::BadOption(name.to_owned());
    let list = |name: &str| spawn.options.get(name).and_then(|value| value.as_array()).ok_or_else(|| bad(name));
    let number = |value: &serde_json::Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    let allowed = list("allowed")?.iter().map(|rule| {
        let mut words = rule.as_array().into_iter().flatten().map(number);
        let mut word = || words.next().flatten().ok_or_else(|| bad("allowed"));
        let (network, prefix_bits, port) = (word()?, word()?, word()?);
        Ok(Allowed {
            network: Ipv4Addr::from(network),
            prefix_bits: u8::try_from(prefix_bits).map_err(|_| bad("allowed"))?,
            port: Some(u16::try_from(port).map_err(|_| bad("allowed"))?).filter(|port| *port != 0),
        })
    });
    let never = list("never")?.iter().map(|address| number(address).map(Ipv4Addr::from).ok_or_else(|| bad("never")));
    let resolver = spawn.option_str("resolver")?.map(str::parse).transpose().map_err(|_| bad("resolver"))?;
    Ok(Policy { allowed: allowed.collect::<Result<_, _>>()?, never: never.collect::<Result<_, _>>()?, resolver })
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
