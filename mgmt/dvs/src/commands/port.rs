//! `dvs port`: ports of the nodes that lead into a container.

use clap::{Args, Subcommand};
use mgmt_api::{PortInfo, PortSpec, PortState};

use super::{Gone, Outcome, block_on, daemon, done, names, print, say};
use crate::cli::Global;
use crate::errors::Failure;
use crate::output::{self, Row};

/// Ports of a range at most.
const RANGE_MAX: u16 = 64;

/// Publish ports of a container at its nodes
#[derive(Subcommand, Debug)]
#[command(
    visible_alias = "ports",
    after_help = "\
A connection to a published port of any of its nodes goes to the program of the container that listens, on whichever node \
it runs; when none does, the client is kept waiting for a second, and then its connection is reset. Ports can be published \
by dvs dc create -p and in dc.toml, too.

Examples:
  dvs port add shop 8080:80        what listens at port 80 inside is at http://NODE:8080/
  dvs port add shop 127.0.0.1:5432:5432 --nodes n1
  dvs port ls shop
  dvs port rm shop 8080"
)]
pub enum Command {
    Add(AddOptions),
    /// List published ports and whether the nodes listen there.
    #[command(visible_alias = "list")]
    Ls {
        /// Container.
        #[arg(add = names::containers())]
        dc: String,
    },
    /// Publish a port no more; what is connected goes on.
    #[command(visible_alias = "remove")]
    Rm {
        /// Container.
        #[arg(add = names::containers())]
        dc: String,
        /// As of `dvs port ls`: 8080, 5353/udp, or with an address 127.0.0.1:8080.
        #[arg(add = names::ports())]
        port: String,
    },
}

/// Publish a port
#[derive(Args, Debug)]
#[command(after_help = "\
It is answered when the nodes listen; where one cannot, nothing is changed. Programs see as their client an address of the \
container's own network; --proxy-protocol tells them the client's address, if they understand that protocol (nginx, \
HAProxy, Apache …).

Examples:
  dvs port add shop 8080:80
  dvs port add shop 53:5353/udp
  dvs port add shop 192.0.2.7:443:8443 --nodes n1 --proxy-protocol
  dvs port add shop 8000-8003:8000-8003")]
pub struct AddOptions {
    /// Nodes at which it is published [default: all of the container].
    #[arg(long, value_delimiter = ',', value_name = "NODE,…", add = names::nodes())]
    nodes: Vec<String>,
    /// Begin each connection with a header that says who the client is (PROXY protocol, version 2).
    #[arg(long)]
    proxy_protocol: bool,
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// At the nodes and inside; one number is both. UDP with /udp at the end.
    #[arg(value_name = "[ADDRESS:]PORT:PORT", value_parser = parse_ports)]
    port: PortList,
}

/// What one word says: a port, or a range of them.
#[derive(Clone, Debug)]
pub struct PortList(pub Vec<PortSpec>);

/// `8080:80`, or `8000-8003:9000-9003`.
pub fn parse_ports(text: &str) -> Result<PortList, String> {
    if !text.contains('-') {
        return text.parse().map(|port| PortList(vec![port])).map_err(|error: mgmt_api::NoPort| error.to_string());
    }
    ranges(text).ok_or_else(|| {
        format!("'{text}' is no range of ports: as many on both sides as in 8000-8003:9000-9003, at most {RANGE_MAX}")
    })
}

fn ranges(text: &str) -> Option<PortList> {
    let (rest, protocol) = text.split_once('/').map_or((text, ""), |(rest, protocol)| (rest, protocol));
    let (rest, inside) = rest.rsplit_once(':').unwrap_or((rest, rest));
    let (address, published) = match rest.rsplit_once(':') {
        Some((address, published)) => (format!("{address}:"), published),
        None => (String::new(), rest),
    };
    let range = |text: &str| {
        let (first, last) = text.split_once('-')?;
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last && last - first < RANGE_MAX).then_some(first..=last)
    };
    let (published, inside) = (range(published)?, range(inside)?);
    let is_even = published.len() == inside.len();
    let suffix = if protocol.is_empty() { String::new() } else { format!("/{protocol}") };
    let ports = published.zip(inside).map(|(outer, inner)| format!("{address}{outer}:{inner}{suffix}").parse().ok());
    let ports: Option<Vec<PortSpec>> = ports.collect();
    ports.filter(|_| is_even).map(PortList)
}

pub fn execute(global: &Global, command: Command) -> Outcome {
    match command {
        Command::Add(options) => add(global, options),
        Command::Ls { dc } => {
            let ports = block_on(daemon(global)?.ports(&dc))??;
            print(|out| output::list(out, global.output, &ports))
        }
        Command::Rm { dc, port } => {
            port.parse::<PortSpec>()
                .map_err(|error| Failure::usage(error.to_string()).hint(format!("dvs port ls {dc}")))?;
            block_on(daemon(global)?.remove_port(&dc, &port))??;
            say(&format!("port {port} is published no more"));
            done(global.output, &Gone::new(&port))
        }
    }
}

fn add(global: &Global, options: AddOptions) -> Outcome {
    let daemon = daemon(global)?;
    let AddOptions { nodes, proxy_protocol, dc, port: PortList(ports) } = options;
    let mut last = None;
    for port in ports {
        let port = PortSpec { nodes: nodes.clone(), proxy_protocol, ..port };
        let added = block_on(daemon.add_port(&dc, &port))??;
        let at: Vec<&str> = added.nodes.iter().map(|at| at.node.as_str()).collect();
        say(&format!("port {port} is published at {}", at.join(", ")));
        last = Some(added);
    }
    last.map_or(Ok(0.into()), |port| done(global.output, &port))
}

impl Row for PortInfo {
    const HEADINGS: &'static [&'static str] = &["PORT", "NODES", "PROBLEM"];

    fn cells(&self) -> Vec<String> {
        let state = |state: PortState| match state {
            PortState::Open => "",
            PortState::Closed => " (closed)",
            PortState::Failed => " (failed)",
            PortState::Unknown => " (unknown)",
        };
        let nodes: Vec<String> = self.nodes.iter().map(|at| format!("{}{}", at.node, state(at.state))).collect();
        let problems: Vec<&str> = self.nodes.iter().filter_map(|at| at.problem.as_deref()).collect();
        let note = if self.spec.proxy_protocol { " (proxy protocol)" } else { "" };
        vec![
            format!("{}{note}", self.spec),
            nodes.join(", "),
            if problems.is_empty() { "-".to_owned() } else { problems.join("; ") },
        ]
    }

    fn name(&self) -> String {
        self.spec.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_so_many_ports() {
        let ports = |text: &str| {
            parse_ports(text).map(|PortList(ports)| ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(ports("8080:80").as_deref(), Ok("8080:80/tcp"));
        assert_eq!(ports("8000-8001:9000-9001/udp").as_deref(), Ok("8000:9000/udp 8001:9001/udp"));
        assert_eq!(ports("127.0.0.1:8000-8001:80-81").as_deref(), Ok("127.0.0.1:8000:80/tcp 127.0.0.1:8001:81/tcp"));
        assert_eq!(ports("1-2").as_deref(), Ok("1:1/tcp 2:2/tcp"));
        for bad in ["8000-8001:80", "2-1:2-1", "1-65:1-65", "0-1:0-1", "-", "1-2:1-3", "a-b", "8080:80/sctp"] {
            assert!(parse_ports(bad).is_err(), "{bad}");
        }
    }
}
