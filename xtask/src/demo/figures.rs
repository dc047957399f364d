//! What the demo measures, and how it is shown.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::process::Command;
use std::time::Duration;

use super::Configuration;
use super::dvs::Dvs;
use super::plain;
use super::site::{ADDRESS, LARGE_FILES, Site};
use crate::run::{self, Outcome};

const WARM_TIMES: usize = 5;
/// Begins the names of the control groups that the machines of the demo's cluster are given.
const MACHINE_GROUP: &str = "dvs-dev-demo";

/// How long it took and what all processes of the cluster hold in memory.
pub fn cluster_is_up(dvs: &Dvs, ready: Duration) -> Outcome {
    print!("{}", indented(&dvs.output(&["node", "ls"])?));
    println!(
        "  ready after {:.2} s (to reach: 2 s); resident memory of all its processes {:.0} MB (to reach: 150 MB)",
        ready.as_secs_f64(),
        resident_mb()?
    );
    Ok(())
}

/// Sum over the processes of the demo's cluster; a page that several share counts once (Pss). They are its machines'
/// descendants.
fn resident_mb() -> Outcome<f64> {
    let processes = Processes::now()?;
    let machines = processes.all().filter(|&pid| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.split(|&byte| byte == 0).any(is_machine_group)
    });
    let kilobytes: u64 =
        machines.flat_map(|machine| processes.with_descendants(machine)).filter_map(pss_kilobytes).sum();
    match kilobytes {
        0 => Err("no process of the cluster was found".into()),
        _ => Ok(kilobytes as f64 / 1024.0),
    }
}

/// `dvs-dev-demo-n1`, or with a tag of the state directory `dvs-dev-demo.744b38ed-n1`.
fn is_machine_group(argument: &[u8]) -> bool {
    argument.strip_prefix(MACHINE_GROUP.as_bytes()).is_some_and(|rest| {
        rest.first().is_some_and(|byte| b".-".contains(byte)) && rest.iter().filter(|&&byte| byte == b'-').count() == 1
    })
}

/// `None` for a process that ended meanwhile.
fn pss_kilobytes(pid: u32) -> Option<u64> {
    let sums = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    sums.lines().find_map(|line| line.strip_prefix("Pss:")?.split_whitespace().next()?.parse().ok())
}

/// Who is whose child, at one moment.
struct Processes {
    parent_of: BTreeMap<u32, u32>,
}

impl Processes {
    fn now() -> Outcome<Processes> {
        let entries = fs::read_dir("/proc").map_err(|error| format!("cannot list processes: {error}"))?;
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let parent = |pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<u32>().ok())
        };
        Ok(Processes { parent_of: pids.filter_map(|pid| Some((pid, parent(pid)?))).collect() })
    }

    fn all(&self) -> impl Iterator<Item = u32> {
        self.parent_of.keys().copied()
    }

    fn with_descendants(&self, root: u32) -> Vec<u32> {
        let mut found = vec![root];
        let mut next = 0;
        while let Some(&parent) = found.get(next) {
            found.extend(self.parent_of.iter().filter(|&(_, &of)| of == parent).map(|(&pid, _)| pid));
            next += 1;
        }
        found
    }
}

/// The table of 100 MB transfers.
pub fn transfers(dvs: &Dvs, site: &Site, configurations: &[Configuration]) -> Outcome<String> {
    let n3 = dvs.json(&["node", "inspect", "n3", "-o", "json"])?;
    let address = n3["address"].as_str().ok_or("n3 has no address")?.to_owned();
    let tcp = Spread::of(plain::tcp_over_link(dvs, &address, WARM_TIMES)?);
    let host = Spread::of(plain::nginx_on_host(dvs, site, WARM_TIMES)?);
    let mut table = String::new();
    let _ =
        writeln!(table, "  MB/s, median (min to max); cold: first read on the web server's node, warm: again; TLS on");
    let _ = writeln!(table, "  {:<30} {:>22} {:>8} {:>22} {:>8} {:>8}", "", "cold", "x tcp", "warm", "x host", "paper");
    for configuration in configurations {
        let dc = configuration.dc;
        if dc != "f" {
            site.import(dvs, dc, "site/large")?;
            site.start_nginx(dvs, dc)?;
        }
        let cold = (0..LARGE_FILES)
            .map(|index| fetch(dvs, dc, &format!("large/{index}")))
            .collect::<Outcome<_>>()
            .map(Spread::of)?;
        let warm = (0..WARM_TIMES).map(|_| fetch(dvs, dc, "large/0")).collect::<Outcome<_>>().map(Spread::of)?;
        let _ = writeln!(
            table,
            "  {:<30} {:>22} {:>8.2} {:>22} {:>8.2} {:>8}",
            configuration.title,
            cold.shown(),
            cold.median / tcp.median,
            warm.shown(),
            warm.median / host.median,
            configuration.paper_mb_s
        );
    }
    let _ = writeln!(table, "  {:<30} {:>22} {:>8.2}", "plain TCP, n3 to n1", tcp.shown(), 1.0);
    let _ =
        writeln!(table, "  {:<30} {:>22} {:>8} {:>22} {:>8.2}", "same nginx on the host", "", "", host.shown(), 1.0);
    let _ = writeln!(
        table,
        "  to reach: F cold 0.12 x tcp, warm 0.5 x host. The paper's figures are of 1 Gb/s links and other machines."
    );
    Ok(table)
}

fn fetch(dvs: &Dvs, dc: &str, file: &str) -> Outcome<f64> {
    let script = format!("curl -sSf -o /dev/null -w '%{{time_total}}' http://{ADDRESS}/{file}");
    plain::rate(dvs.sh(dc, "n1", &script)?.trim())
}

/// Round trips beside a pipe pair, from the broker's example.
pub fn messages() -> Outcome {
    let own = std::env::current_exe().map_err(|error| format!("no path of this program: {error}"))?;
    print!("{}", indented(&run::output(&mut Command::new(own.with_file_name("examples").join("pingpong")))?));
    Ok(())
}

struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        Spread { median: at(values.len() / 2), min: at(0), max: at(values.len().saturating_sub(1)) }
    }

    fn shown(&self) -> String {
        format!("{:.0} ({:.0} to {:.0})", self.median, self.min, self.max)
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}
