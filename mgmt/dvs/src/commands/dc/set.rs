//! `dvs dc set`: what becomes other of a container while it runs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use mgmt_api::{Bytes, DcChange, DcPhase, EgressRule, EgressSpec, HostVolume};
use serde_json::Value;

use super::super::port::{PortList, parse_ports};
use super::super::{Outcome, block_on, daemon, names, print, say};
use super::create::{parse_egress_rule, parse_volume};
use super::view;
use crate::cli::Global;
use crate::errors::Failure;
use crate::units::{parse_bytes, parse_env};

/// Change a container while it runs
#[derive(Args, Debug)]
#[command(after_help = "\
Limits hold at once, for what runs already too, but open files and terminals: these hold from the next start of the container \
on. Variables hold for programs that start from now on; what dvs run --env says wins. A limit can be 'default'. Volumes hold from the next start \
of the container on. One port comes or \
goes by dvs port, nodes by dvs dc add-node, services by dvs service. When a node cannot follow, nothing is changed.

Examples:
  dvs dc set shop --memory 2G --cpus 1.5
  dvs dc set shop --cpus default
  dvs dc set shop --env LANG=de_DE.UTF-8 --unset DEBUG
  dvs dc set shop --egress-allow 198.51.100.0/24:443      its programs reach this and no more
  dvs dc set shop --no-egress
  dvs dc set shop -p 8080:80 -p 8443:443    these ports and no others
  dvs dc set shop -v /srv/data:/data:ro     this directory of the nodes and no other")]
pub struct Options {
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Memory of its programs on each node.
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| or_default(text, parse_bytes))]
    memory: Option<Limit>,
    /// CPU time on each node, in CPUs, e.g. 1.5.
    #[arg(long, value_name = "CPUS", value_parser = |text: &str| or_default(text, parse_fraction))]
    cpus: Option<Limit>,
    /// CPUs it may use on each node, e.g. 0-1,3.
    #[arg(long, value_name = "LIST", value_parser = |text: &str| or_default(text, |list| Ok(list.to_owned())))]
    cpu_list: Option<Limit>,
    /// Share of CPU time among containers, 1 to 10000.
    #[arg(long, value_name = "WEIGHT", value_parser = |text: &str| or_default(text, parse_count))]
    cpu_weight: Option<Limit>,
    /// Processes and threads of its programs on each node.
    #[arg(long, value_name = "COUNT", value_parser = |text: &str| or_default(text, parse_count))]
    pids: Option<Limit>,
    /// Files that each of its processes may open.
    #[arg(long, value_name = "COUNT", value_parser = |text: &str| or_default(text, parse_count))]
    open_files: Option<Limit>,
    /// Pseudo-terminals on each node.
    #[arg(long, value_name = "COUNT", value_parser = |text: &str| or_default(text, parse_count))]
    terminals: Option<Limit>,
    /// A variable for its programs; may be repeated.
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = parse_env())]
    env: Vec<OsString>,
    /// No such variable any more; may be repeated.
    #[arg(long, value_name = "NAME")]
    unset: Vec<String>,
    /// Let its programs connect to everything outside but the cluster's nodes.
    #[arg(long, conflicts_with_all = ["no_egress", "egress_allow"])]
    egress: bool,
    /// Let them reach these networks and no others, as in 10.0.0.0/8, 192.0.2.7:443 or [2001:db8::]/32:443; may be
    /// repeated.
    #[arg(long, value_name = "NETWORK[:PORT]", value_parser = parse_egress_rule)]
    egress_allow: Vec<EgressRule>,
    /// Let them reach nothing outside.
    #[arg(long, conflicts_with = "egress_allow")]
    no_egress: bool,
    /// Publish these ports at its nodes and no others, as in 8080:80; may be repeated. See dvs port add --help.
    #[arg(short, long, value_name = "[ADDRESS:]PORT:PORT", value_parser = parse_ports)]
    publish: Vec<PortList>,
    /// Publish none.
    #[arg(long, conflicts_with = "publish")]
    no_ports: bool,
    /// Show its programs these directories of their nodes and no others; may be repeated.
    #[arg(short, long, value_name = "HOST-PATH:PATH[:ro]", value_parser = parse_volume)]
    volume: Vec<HostVolume>,
    /// Show them none.
    #[arg(long, conflicts_with = "volume")]
    no_volumes: bool,
}

/// As in `DcChange`; null: as usual.
#[derive(Clone, PartialEq, Debug)]
struct Limit(Value);

fn or_default<T: Into<Value>>(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Limit, String> {
    if text == "default" {
        return Ok(Limit(Value::Null));
    }
    parse(text).map(|value| Limit(value.into())).map_err(|why| format!("{why}, or 'default'"))
}

fn parse_count(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "a number".to_owned())
}

fn parse_fraction(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|cpus: &f64| cpus.is_finite()).ok_or_else(|| "CPUs' worth of time, e.g. 1.5".to_owned())
}

pub fn execute(global: &Global, options: Options) -> Outcome {
    let dc = options.dc.clone();
    let change = change(options)?;
    let daemon = daemon(global)?;
    let changed = block_on(daemon.change_dc(&dc, &change))??;
    let waits: Vec<&str> = [("open_files", "open files"), ("terminals", "terminals")]
        .into_iter()
        .filter_map(|(limit, name)| change.limits.contains_key(limit).then_some(name))
        .chain(change.volumes.is_some().then_some("volumes"))
        .collect();
    say(&format!("container '{dc}' is changed"));
    if !waits.is_empty() && changed.phase != DcPhase::Stopped {
        say(&format!("{}: from its next start on", waits.join(", ")));
    }
    print(|out| view::changed(out, global.output, &changed))
}

fn change(options: Options) -> Result<DcChange, Failure> {
    let limits = [
        ("memory_bytes", options.memory),
        ("cpu_max", options.cpus),
        ("cpus", options.cpu_list),
        ("cpu_weight", options.cpu_weight),
        ("pids", options.pids),
        ("open_files", options.open_files),
        ("terminals", options.terminals),
    ];
    let limits = limits.into_iter().filter_map(|(name, limit)| Some((name.to_owned(), limit?.0)));
    let mut env: BTreeMap<String, Option<Bytes>> = options.unset.into_iter().map(|name| (name, None)).collect();
    for pair in options.env {
        let (name, value) = variable(&pair)?;
        if env.insert(name.clone(), Some(value)).is_some() {
            return Err(Failure::usage(format!("the variable '{name}' is named twice")).hint("dvs dc set --help"));
        }
    }
    let egress = match (options.no_egress, options.egress, options.egress_allow.as_slice()) {
        (true, ..) => Some(None),
        (_, false, []) => None,
        (.., rules) => Some(Some(EgressSpec { allow: rules.iter().map(ToString::to_string).collect() })),
    };
    let ports = (options.no_ports || !options.publish.is_empty())
        .then(|| options.publish.into_iter().flat_map(|PortList(ports)| ports).collect());
    let volumes = (options.no_volumes || !options.volume.is_empty()).then_some(options.volume);
    let limits = limits.collect();
    let change = DcChange { generation: None, limits, env, egress, ports, volumes, ..DcChange::default() };
    if change == DcChange::default() {
        return Err(Failure::usage("nothing is to be changed").hint("dvs dc set --help"));
    }
    Ok(change)
}

fn variable(pair: &OsString) -> Result<(String, Bytes), Failure> {
    let bytes = pair.as_bytes();
    let split = bytes.iter().position(|byte| *byte == b'=').unwrap_or(bytes.len());
    let (name, value) = (bytes.get(..split).unwrap_or_default(), bytes.get(split + 1..).unwrap_or_default());
    let name = String::from_utf8(name.to_vec())
        .map_err(|_| Failure::usage("the name of a variable is no text").hint("dvs dc set --help"))?;
    Ok((name, value.to_vec().into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::json;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        options: Options,
    }

    fn asked(line: &str) -> Result<Value, String> {
        let only = Only::try_parse_from(["set", "shop"].into_iter().chain(line.split_whitespace()));
        let change = change(only.map_err(|error| error.to_string())?.options).map_err(|failure| failure.what)?;
        Ok(serde_json::to_value(change).unwrap())
    }

    #[test]
    fn options_say_what_becomes_other() {
        let all = asked("--memory 2G --cpus 1.5 --pids default --env A=b=c --unset D --egress-allow 10.0.0.0/8:443");
        let expected = json!({
            "limits": { "memory_bytes": 2_u64 << 30, "cpu_max": 1.5, "pids": null },
            "env": { "A": "b=c", "D": null }, "egress": { "allow": ["10.0.0.0/8:443"] },
        });
        assert_eq!(all, Ok(expected));
        assert_eq!(asked("--no-egress"), Ok(json!({ "egress": null })));
        assert_eq!(asked("--egress"), Ok(json!({ "egress": {} })));
        let volumes =
            json!({ "volumes": [{ "host": "/a", "path": "/b" }, { "host": "/c", "path": "/d", "read_only": true }] });
        assert_eq!(asked("-v /a:/b -v /c:/d:ro"), Ok(volumes));
        assert_eq!(asked("--no-volumes"), Ok(json!({ "volumes": [] })));
        let ports = asked("-p 8080:80 -p 9000-9001:9000-9001").map(|change| change["ports"].as_array().map(Vec::len));
        assert_eq!(ports, Ok(Some(3)));
        assert_eq!(asked("--no-ports"), Ok(json!({ "ports": [] })));
    }

    #[test]
    fn senseless_ones_are_refused() {
        for bad in [
            "",
            "--memory much",
            "--cpus nan",
            "--env A=1 --unset A",
            "--egress --no-egress",
            "-v a:/b",
            "-v /a:/b --no-volumes",
            "-p 80:80 --no-ports",
            "-p many",
            "--env A",
        ] {
            assert!(asked(bad).is_err(), "{bad}");
        }
    }
}
