//! `dvs inspect`: whatever has a name or a number.

use clap::Args;
use client::Client;
use mgmt_api::{ErrorKind, Instance, PortInfo, Process, ServiceInfo, ServiceInstance};

use super::{Outcome, block_on, daemon, dc, disk, names, node, print, service};
use crate::cli::Global;
use crate::errors::Failure;
use crate::output::{self, Format, Row};
use crate::units::parse_pid;

/// Show a container, a node, or something of a container
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dvs inspect shop               a container: dvs dc inspect
  dvs inspect n1                 a node: dvs node inspect
  dvs inspect shop 65600         a process
  dvs inspect shop web           a service and its instances; web/0: one of them
  dvs inspect shop root          a disk; fs: a server; 8080: a port that it publishes
  dvs inspect shop -o json       likewise for programs")]
pub struct Options {
    /// Container or node; of both, the container.
    #[arg(id = "dc", value_name = "NAME", add = names::containers())]
    name: String,
    /// Process, service, instance of one, disk, server or published port of the container.
    #[arg(value_name = "PART", add = names::parts())]
    part: Option<String>,
}

pub fn execute(global: &Global, options: Options) -> Outcome {
    let Options { name, part } = options;
    let Some(part) = part else { return whole(global, name) };
    let daemon = daemon(global)?;
    let format = global.output;
    match block_on(part_of(&daemon, &name, &part))?? {
        Part::Process(process) => print(|out| output::list(out, format, &[process])),
        Part::Service(service) => print(|out| output::one(out, format, &*service, service::view)),
        Part::ServiceInstance(instance) => print(|out| output::one(out, format, &instance, row)),
        Part::Disk(disk) => print(|out| output::one(out, format, &disk, disk::show)),
        Part::Server(server) => print(|out| output::one(out, format, &server, row)),
        Part::Port(port) => print(|out| output::one(out, format, &port, row)),
    }
}

/// Something of a container.
enum Part {
    Process(Process),
    Service(Box<ServiceInfo>),
    ServiceInstance(ServiceInstance),
    Disk(disk::DiskView),
    Server(Instance),
    Port(PortInfo),
}

/// A number is a published port or a process, whose numbers begin above those of ports. Of the same name the service
/// comes first, then the disk.
async fn part_of(daemon: &Client, name: &str, part: &str) -> Result<Part, Failure> {
    if part.starts_with(|first: char| first.is_ascii_digit()) {
        // 8080, 8080/tcp, or as a listing has it.
        let is_it = |port: &PortInfo| {
            let (number, whole) = (port.spec.published.to_string(), port.spec.to_string());
            let protocol = whole.rsplit_once('/').map_or("", |(_, protocol)| protocol);
            part == number || part == whole || part.split_once('/') == Some((number.as_str(), protocol))
        };
        let is_no_pid = parse_pid(part).map_or(true, |pid| pid <= u32::from(u16::MAX));
        if let Some(port) = daemon.ports(name).await?.into_iter().find(is_it).filter(|_| is_no_pid) {
            return Ok(Part::Port(port));
        }
        let pid =
            parse_pid(part).map_err(|why| Failure::usage(why).hint(format!("dvs ps {name}, dvs port ls {name}")))?;
        return Ok(Part::Process(daemon.process(name, pid).await?));
    }
    let services = daemon.services(name).await?;
    let instances = services.iter().flat_map(|service| &service.instances);
    if let Some(instance) = instances.into_iter().find(|instance| instance.name == part) {
        return Ok(Part::ServiceInstance(instance.clone()));
    }
    if let Some(service) = services.into_iter().find(|service| service.spec.name == part) {
        return Ok(Part::Service(Box::new(service)));
    }
    let dc = daemon.dc(name).await?;
    if let Some(disk) = disk::disks_of(&dc).into_iter().find(|disk| disk.disk == part) {
        return Ok(Part::Disk(disk));
    }
    let servers = dc.placement.instances.into_iter();
    servers.filter(|server| server.name == part).map(Part::Server).next().ok_or_else(|| {
        Failure::new(format!("container '{name}' has no service '{part}', nor a disk or server of this name"))
            .hint(format!("dvs service ls {name}, dvs disk ls {name}, dvs dc inspect {name}"))
    })
}

/// A table of one row.
fn row<T: Row>(item: &T, out: &mut impl std::io::Write) -> std::io::Result<()> {
    output::list(out, Format::Wide, std::slice::from_ref(item))
}

impl Row for Instance {
    const HEADINGS: &'static [&'static str] = &["SERVER", "KIND", "NODE", "ENDPOINT", "EPOCH"];

    fn cells(&self) -> Vec<String> {
        let (endpoint, epoch) = (self.endpoint.to_string(), self.epoch.to_string());
        vec![self.name.clone(), self.kind.to_string(), self.node.clone(), endpoint, epoch]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

fn whole(global: &Global, name: String) -> Outcome {
    let daemon = daemon(global)?;
    if block_on(async { exists(daemon.dc(&name).await) })?? {
        return dc::execute(global, dc::Command::Inspect { dc: name });
    }
    if block_on(async { exists(daemon.node(&name).await) })?? {
        return node::execute(global, &node::Command::Inspect { node: name });
    }
    Err(Failure::new(format!("there is no container and no node '{name}'")).hint("dvs dc ls, dvs node ls"))
}

fn exists<T>(found: Result<T, client::Error>) -> Result<bool, Failure> {
    match found {
        Ok(_) => Ok(true),
        Err(client::Error::Refused(body)) if body.kind == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}
