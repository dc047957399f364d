//! The demo: three nodes, one container across them, an unmodified web server that serves files of another node,
//! one process table, and storage that outlives its node.
//!
//! Everything it says it measured in this run; nothing is compared with a figure from elsewhere except the column of
//! the paper, which is labelled so. It takes down what it made, also after a failure, unless asked to keep it.

mod act_three;
mod act_two;
mod dvs;
mod figures;
mod plain;
mod site;

use std::time::{Duration, Instant};

use crate::run::Outcome;
use dvs::Dvs;

pub use plain::{tcp_fetch, tcp_serve};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum After {
    TakeDown,
    Keep,
}

/// Where fs and disk live, as the paper numbers its configurations (figures D, E, F of its web server over two nodes).
const CONFIGURATIONS: &[Configuration] = &[
    Configuration { dc: "one", title: "all on one node", fs: "n1", disk: "n1", paper_mb_s: "92.3" },
    Configuration { dc: "d", title: "D: fs local, disk remote", fs: "n1", disk: "n2", paper_mb_s: "4.3" },
    Configuration { dc: "e", title: "E: fs and its disk remote", fs: "n2", disk: "n2", paper_mb_s: "3.8" },
    Configuration { dc: "f", title: "F: fs remote, disk elsewhere", fs: "n2", disk: "n3", paper_mb_s: "3.6" },
];

pub struct Configuration {
    pub dc: &'static str,
    pub title: &'static str,
    pub fs: &'static str,
    pub disk: &'static str,
    pub paper_mb_s: &'static str,
}

pub fn demo(after: After) -> Outcome {
    let start = Instant::now();
    let dvs = Dvs::new()?;
    dvs.down_quietly();
    let outcome = show(&dvs);
    match (&outcome, after) {
        (Ok(()), After::Keep) => dvs.say_what_to_try(),
        _ => {
            let down = dvs.run(&["dev", "down", "--name", "demo"]);
            outcome?;
            down?;
            heading(&format!("Everything is taken down again. The demo took {:.0} s.", start.elapsed().as_secs_f64()));
            return Ok(());
        }
    }
    outcome
}

fn show(dvs: &Dvs) -> Outcome {
    heading("Three nodes on this machine, each in namespaces of its own");
    let ready = timed(|| dvs.run(&["dev", "up", "--nodes", "3", "--name", "demo"]))?;
    figures::cluster_is_up(dvs, ready)?;

    heading(
        "Four containers over all three nodes, same network and same endpoint numbers; they differ in where fs and disk run, \
         of which there is one each",
    );
    for configuration in CONFIGURATIONS {
        let (fs, disk) = (configuration.fs, configuration.disk);
        let started = timed(|| {
            let arguments = [
                "dc",
                "create",
                configuration.dc,
                "--nodes",
                "n1,n2,n3",
                "--fs-node",
                fs,
                "--disk-node",
                disk,
                "--replicas",
                "1",
                "--start",
            ];
            dvs.run(&arguments)
        })?;
        println!("  {:<4} fs on {fs}, disk on {disk}: running after {:.2} s", configuration.dc, started.as_secs_f64());
    }

    let site = site::Site::collect()?;
    heading(&format!("{} files, {} MB, into the tree of container f", site.files, site.bytes / 1_000_000));
    site.import_and_compare(dvs, "f")?;

    heading("100 MB from nginx on n1, in the container and outside");
    let table = figures::transfers(dvs, &site, CONFIGURATIONS)?;
    print!("{table}");

    heading("kill -9 of the fs server in the middle of a transfer");
    site.transfer_survives_kill(dvs, "f", "n2")?;

    heading("One process table: programs of n1, n2 and n3 in one line, one list, one build");
    act_two::one_process_table(dvs, "f")?;

    heading("A service whose node is switched off");
    act_two::service_moves(dvs, "one", "n3")?;

    heading("The node of fs and disk is switched off in the middle of a transfer");
    act_three::transfer_survives_node(dvs, &site)?;

    heading("Messages: one pair of processes, not pinned");
    figures::messages()
}

fn timed(work: impl FnOnce() -> Outcome) -> Outcome<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

fn heading(text: &str) {
    println!("\n== {text}");
}
