//! How a gate process begins: `dvs gate nbd`, started by the node daemon.
//!
//! Descriptors: `listener` (a socket at which clients connect), and where they encrypt `authority`, `certificate` and
//! `key`, files as `TlsSettings` reads them. Options: `exports`, as `NAME=ENDPOINT` of disks with commas between,
//! `:ro` behind those that clients only read.

use std::error::Error;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;

use abi::Endpoint;
use ipc::Port;
use libvos::SharedPort;
use sys::harden::{Identity, give_up_privileges, restrict_system_calls};
use sys::spawn::{Spawn, SpawnError};

use crate::disk::DiskStore;
use crate::server::Exporter;
use crate::stream::NbdListener;
use crate::tls::TlsSettings;

const NAME: &str = "nbd";
/// Beyond those of every process of ours.
const SYSTEM_CALLS: &[libc::c_long] = &[libc::SYS_accept4, libc::SYS_setsockopt];

/// Runs a gate process to its end: 0 when it was asked to stop.
pub fn main_from_spawn() -> ExitCode {
    to_its_end(NAME, run)
}

/// Runs a process of this crate, and logs why it failed.
pub(crate) fn to_its_end(name: &'static str, run: fn() -> Result<(), Box<dyn Error + Send + Sync>>) -> ExitCode {
    vos_rt::log::begin(name);
    sys::log::end_on_panic();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            vos_rt::log::failure(name, &*error);
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut spawn = Spawn::from_env()?;
    let number = spawn.endpoint.ok_or(SpawnError::Missing("endpoint"))?;
    let endpoint = Endpoint::new(number).ok_or_else(|| SpawnError::BadOption("endpoint".to_owned()))?;
    let exports = spawn.option_str("exports")?.ok_or(SpawnError::Missing("exports"))?.to_owned();
    let exports = parse(&exports).ok_or_else(|| SpawnError::BadOption("exports".to_owned()))?;
    let listener = spawn.take_fd("listener").ok_or(SpawnError::Missing("listener"))?;
    let listener = NbdListener::Tcp(TcpListener::from(listener));
    let tls = match ["authority", "certificate", "key"].map(|file| spawn.take_fd(file)) {
        [Some(authority), Some(certificate), Some(key)] => {
            Some(TlsSettings::read(authority.into(), certificate.into(), key.into())?)
        }
        [None, None, None] => None,
        _ => return Err(SpawnError::Missing("a file for encryption").into()),
    };
    let broker = spawn.take_broker()?;
    // Before there are threads, which inherit what is blocked.
    let stop = sys::signals::open(&[libc::SIGTERM, libc::SIGINT])?;
    give_up_privileges(Identity { uid: spawn.uid, gid: spawn.gid })?;
    let port = SharedPort::new(Port::from_socket(broker, Some(endpoint))?);
    let mut exporter = Exporter::default();
    for export in &exports {
        let store = DiskStore::open(port.clone(), export.disk, spawn.placement_epoch, export.is_read_only)?;
        let description = format!("disk {} of container {}", export.name, spawn.dc_name);
        exporter.export(export.name, &description, Box::new(store));
    }
    if let Some(settings) = tls {
        exporter.demand_tls(settings);
    }
    let names: Vec<&str> = exports.iter().map(|export| export.name).collect();
    tracing::info!(dc = spawn.dc, dc_name = spawn.dc_name, %endpoint, ?names, "serving");
    spawn.ready();
    restrict_system_calls(SYSTEM_CALLS)?;
    Arc::new(exporter).run(&listener, stop.as_fd())?;
    tracing::info!("ended: asked to");
    Ok(())
}

#[derive(PartialEq, Eq, Debug)]
struct ExportOption<'a> {
    name: &'a str,
    disk: Endpoint,
    is_read_only: bool,
}

fn parse(text: &str) -> Option<Vec<ExportOption<'_>>> {
    let one = |text| -> Option<ExportOption<'_>> {
        let (name, rest) = str::split_once(text, '=')?;
        let number = rest.strip_suffix(":ro");
        let disk = Endpoint::new(number.unwrap_or(rest).parse().ok()?)?;
        Some(ExportOption { name, disk, is_read_only: number.is_some() })
    };
    text.split(',').map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_are_told_with_names_endpoints_and_whether_they_are_only_read() {
        let number = |number| Endpoint::new(number).unwrap();
        let expected = [
            ExportOption { name: "data", disk: number(17), is_read_only: false },
            ExportOption { name: "root", disk: number(16), is_read_only: true },
        ];
        assert_eq!(parse("data=17,root=16:ro").as_deref(), Some(&expected[..]));
        for bad in ["", "data", "data=", "data=x", "data=17,", "data=99999"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
