//! `--watch`: a listing again and again, as long as somebody looks.
//!
//! What is printed in one round is a frame. On a terminal it takes the place of the one before; elsewhere it follows,
//! when it is another one. A round that fails is told, and the next one comes all the same: who watches wants to see
//! when it is back. The first one that fails is an error like any other.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use parking_lot::Mutex;

use super::{Outcome, access, cluster, dc, disk, node, port, service};
use crate::cli::{Cli, Command};
use crate::errors::Failure;

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(2);
/// Takes a terminal's cursor home and clears what is below.
pub const HOME: &str = "\x1b[H\x1b[J";

/// What this round has printed so far; nothing while nobody watches.
static FRAME: Mutex<Option<Vec<u8>>> = Mutex::new(None);

/// Whether what was printed goes into a frame, and not out.
pub fn takes(printed: &[u8]) -> bool {
    FRAME.lock().as_mut().map(|frame| frame.extend_from_slice(printed)).is_some()
}

/// What changes something is done once.
pub fn demand_listing(cli: &Cli) -> Result<(), Failure> {
    if cli.global.watch && !is_listing(&cli.command) {
        return Err(Failure::usage("this command has nothing to look at again").hint(
            "--watch is for dvs ps, dvs inspect, dvs info, ls and inspect of dc, node, service, port and disk; dvs stats, \
             dvs top and dvs events go on by themselves",
        ));
    }
    Ok(())
}

/// `again`: what was typed, once more.
pub fn execute(first: Cli, again: impl Fn() -> Result<Cli, Failure>) -> Outcome {
    let (mut cli, mut screen) = (first, Screen::default());
    loop {
        let is_for_people = cli.global.output.is_for_people();
        *FRAME.lock() = Some(Vec::new());
        let outcome = super::execute(&cli.global, cli.command);
        let frame = FRAME.lock().take().unwrap_or_default();
        match outcome {
            Ok(_) => screen.show(frame, is_for_people)?,
            Err(failure) if screen.shown.is_none() => return Err(failure),
            Err(failure) => screen.tell(&failure),
        }
        std::thread::sleep(PERIOD);
        cli = again()?;
    }
}

/// What shows something and changes nothing.
fn is_listing(command: &Command) -> bool {
    match command {
        Command::Ps(_) | Command::Inspect(_) | Command::Info(_) => true,
        Command::Dc(command) => matches!(command, dc::Command::Ls | dc::Command::Inspect { .. }),
        Command::Node(command) => matches!(command, node::Command::Ls | node::Command::Inspect { .. }),
        Command::Service(command) => matches!(command, service::Command::Ls { .. }),
        Command::Port(command) => matches!(command, port::Command::Ls { .. }),
        Command::Disk(command) => matches!(command, disk::Command::Ls { .. } | disk::Command::Inspect { .. }),
        Command::Access(command) => matches!(command, access::Command::Ls),
        Command::Cluster(command) => matches!(command, cluster::Command::Level),
        _ => false,
    }
}

#[derive(Default)]
struct Screen {
    shown: Option<Vec<u8>>,
    /// What is wrong, as long as it is.
    told: Option<Failure>,
}

impl Screen {
    fn show(&mut self, frame: Vec<u8>, is_for_people: bool) -> io::Result<()> {
        if self.told.take().is_none() && self.shown.as_ref() == Some(&frame) {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        if out.is_terminal() {
            out.write_all(HOME.as_bytes())?;
        } else if is_for_people && self.shown.is_some() {
            writeln!(out)?;
        }
        out.write_all(&frame)?;
        self.shown = Some(frame);
        out.flush()
    }

    fn tell(&mut self, failure: &Failure) {
        if self.told.as_ref() != Some(failure) {
            // When standard error is closed nobody wants to know.
            let _ = failure.print(&mut io::stderr().lock());
            self.told = Some(failure.clone());
        }
    }
}
