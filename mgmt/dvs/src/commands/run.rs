//! `dvs run`: start a program in a container.

use std::ffi::{OsStr, OsString};

use clap::Args;
use mgmt_api::{Bytes, Capabilities, ProgramUser, RootFs, RunRequest, Ulimit};

use super::session::{self, Input, Manner, converse, opened};
use super::variables::Variables;
use super::{Outcome, block_on, daemon, names, ps};
use crate::cli::Global;
use crate::errors::{self, Failure};
use crate::inside::{self, ON};
use crate::units::parse_path_in_tree;

const NODES: &str = "/run/dvs/nodes";

/// Start a program in a container
#[derive(Args, Debug)]
#[command(after_help = "\
The program sees the node's own system read-only (/usr, /bin, /lib …) and the container's file \
tree at /dc, the same on all nodes. With --root it sees a directory of the tree as its whole \
system instead: an image that `dvs import` put there.

Without -i or -t the program's input is empty; -t needs a terminal here. Signals sent to this \
command go to the program, unless they were ignored when it began (nohup); the third TERM or INT \
within ten seconds ends the command without it. Signals of the same moment are one to the kernel.
Keys with -t: Ctrl-P Ctrl-Q leave the program running, as closing the window does; `dvs attach` \
comes back to it.
When a daemon on the way ends, this command waits up to 30 s for it to be started again, and \
goes on where it was.
Exit status: the program's; 128+N when signal N ended it; 125 dvs failed or could not write the \
output here, 126 cannot execute, 127 not found.

Examples:
  dvs run shop -- uname -a                           one command, on the container's first node
  dvs run -it shop --node n2 -- bash                 a shell on node n2
  tar c . | dvs run -i shop -- tar x -C /dc/src      data in through a pipe
  dvs run -d shop -- /dc/bin/server --port 80        in the background; prints its PID
  dvs run -dt shop -- top                            likewise, on a terminal: dvs attach shop PID
  dvs run -it shop --root /debian -- /bin/bash       inside an imported system
  dvs run --spread cc shop -w /dc/src -- make -j8    its compilers on all nodes")]
pub struct Options {
    #[command(flatten)]
    pub start: Start,
    /// Node of the container to run on [default: its first one].
    #[arg(short, long, add = names::nodes())]
    pub node: Option<String>,
    /// Directory of the container's tree that becomes the program's root.
    #[arg(long, value_name = "PATH-IN-TREE", value_parser = parse_path_in_tree())]
    pub root: Option<String>,
    /// Put programs of these names on other nodes when this one or its descendants start them:
    /// `cc,g++,*-gcc;load=1;most=8`.
    #[arg(
        long,
        value_name = "RULES",
        long_help = "\
Put programs of these names on other nodes when this one or its descendants start them, as \
`on least` does: names with * and ?, then optionally ;load=L (only while this node has L or more \
threads to run for each CPU [default: 1]) and ;most=N (on each other node at a time). A program \
stays when its directory is not in the tree (/dc), when its input is a pipe, when it is static or \
was started by execl. It needs what it reads and writes in the tree."
    )]
    pub spread: Option<spread::Rules>,
    /// Typed out of habit: volumes are a container's.
    #[arg(short, long, hide = true, value_name = "HOST-PATH:PATH[:ro]")]
    pub volume: Vec<String>,
    /// Container.
    #[arg(add = names::containers())]
    pub dc: String,
    /// Program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub argv: Vec<OsString>,
}

/// What `run` and `exec` share.
#[derive(Args, Debug)]
pub struct Start {
    /// Connect standard input to the program.
    #[arg(short, long)]
    pub interactive: bool,
    /// Give the program a terminal (and connect standard input).
    #[arg(short, long)]
    pub terminal: bool,
    /// Start it, print its PID and go. With -i and -t it has input, or a terminal, for whoever attaches.
    #[arg(short, long)]
    pub detach: bool,
    /// Keep nothing of its output for dvs logs.
    #[arg(long, alias = "rm")]
    pub no_log: bool,
    #[command(flatten)]
    pub variables: Variables,
    /// Directory to start in.
    #[arg(short, long, value_name = "DIR")]
    pub workdir: Option<OsString>,
    /// User and group inside the container, by number or by a name of its /etc/passwd [default: root].
    #[arg(short, long, value_name = "USER[:GROUP]")]
    pub user: Option<ProgramUser>,
    /// Limit of each of its processes, as of setrlimit(2): nofile=1024, core=0, stack=8388608:unlimited. What is to
    /// hold a hostile program is a limit of the container.
    #[arg(long, value_name = "NAME=SOFT[:HARD]")]
    pub ulimit: Vec<Ulimit>,
    /// Capability that neither it nor what it starts has: net_raw, sys_ptrace, all.
    #[arg(long, value_name = "CAPABILITY")]
    pub cap_drop: Vec<Capabilities>,
}

impl Start {
    pub fn manner(&self) -> Manner {
        match (self.terminal, self.interactive) {
            (true, _) => Manner::Terminal,
            (false, true) => Manner::Interactive(Input::Standard),
            (false, false) => Manner::Output,
        }
    }

    /// Here, unless somebody attaches later.
    pub fn demand_terminal(&self) -> Result<(), Failure> {
        if self.detach {
            return Ok(());
        }
        session::demand_terminal(&self.manner(), "without -t; -i alone connects standard input, whatever it is")
    }

    pub fn request(self, argv: Vec<OsString>, node: Option<String>, root: RootFs) -> RunRequest {
        let manner = self.manner();
        let (uid, gid, user) = self.user.unwrap_or_default().of_request();
        let mut env = self.variables.of_request();
        if let (Manner::Terminal, Ok(kind)) = (&manner, std::env::var("TERM")) {
            env.insert(0, format!("TERM={kind}").into());
        }
        RunRequest {
            argv: argv.into_iter().map(Bytes::from).collect(),
            node,
            env,
            workdir: self.workdir.map(Bytes::from),
            root,
            uid,
            gid,
            terminal: session::terminal_size(&manner),
            interactive: manner != Manner::Output,
            detach: self.detach,
            unlogged: self.no_log,
            user,
            ulimits: self.ulimit,
            cap_drop: self.cap_drop,
        }
    }
}

/// A program of the container, for which no daemon starts programs: another user's than root's, or of a node whose
/// daemon is away or of an earlier release.
fn is_inside(dc: &str) -> bool {
    inside::own_container().is_some_and(|own| own == dc) && !inside::daemon_starts_programs()
}

/// There it is a job, with this process in its place.
fn run_from_inside(options: Options) -> Outcome {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::process::CommandExt;
    let Options { start, node, root, spread, argv, .. } = options;
    let restrains = !(start.ulimit.is_empty() && start.cap_drop.is_empty());
    if start.detach || start.user.is_some() || root.is_some() || spread.is_some() || restrains {
        let what = "from inside a container --detach, --user, --root, --spread, --ulimit and --cap-drop need root of it \
                    and its node's daemon";
        return Err(Failure::new(what).status(errors::RUN_FAILED).hint("on NODE -- setpriv … PROGRAM &"));
    }
    let mut on = std::process::Command::new(ON);
    // As from outside: the container's first node. Each is a line: position and name.
    let nodes = std::fs::read_to_string(NODES).unwrap_or_default();
    let first = || nodes.split_whitespace().nth(1).unwrap_or("any").to_owned();
    on.arg(node.unwrap_or_else(first));
    if !(start.interactive || start.terminal) {
        on.arg("-n");
    }
    on.envs(start.variables.all().filter_map(|pair| {
        let (key, value) = pair.as_bytes().split_at(pair.as_bytes().iter().position(|byte| *byte == b'=')?);
        Some((OsStr::from_bytes(key).to_owned(), OsStr::from_bytes(value.get(1..)?).to_owned()))
    }));
    if let Some(directory) = &start.workdir {
        on.current_dir(directory);
    }
    let cause = on.arg("--").args(argv).exec();
    Err(Failure::new(format!("{ON} cannot be run")).because(&cause).status(errors::RUN_FAILED))
}

/// All programs of a container on a node see the same: a directory of the node is the container's.
fn volume_of_a_program(dc: &str, volume: &str) -> Failure {
    Failure::new("a program has the volumes of its container, and no others")
        .because_text(format!(
            "'{dc}' is there already: volumes are given when it is made, or hold from its next start on"
        ))
        .status(errors::RUN_FAILED)
        .hint(format!("dvs dc create DC -v {volume}; or dvs dc set {dc} -v {volume} and dvs restart {dc}"))
}

/// What makes programs and their descendants ask where to run.
fn spread_variables(rules: &spread::Rules) -> [OsString; 2] {
    let (library, name) = (spread::LIBRARY_INSIDE, spread::VARIABLE);
    [format!("LD_PRELOAD={library}").into(), format!("{name}={rules}").into()]
}

pub fn execute(global: &Global, options: Options) -> Outcome {
    if let Some(volume) = options.volume.first() {
        return Err(volume_of_a_program(&options.dc, volume));
    }
    if is_inside(&options.dc) {
        return run_from_inside(options);
    }
    let Options { mut start, node, root, spread, dc, argv, volume: _ } = options;
    start.variables.add(spread.iter().flat_map(spread_variables));
    let manner = start.manner();
    start.demand_terminal()?;
    let request = start.request(argv, node, root.map_or(RootFs::Host, RootFs::Tree));
    let daemon = daemon(global).map_err(|failure| failure.status(errors::RUN_FAILED))?;
    if request.detach {
        let started = block_on(daemon.run_detached(&dc, &request))?.map_err(errors::of_run)?;
        return ps::print_started(global.output, &started);
    }
    block_on(async {
        let session = session::new_session()?;
        let stream = opened(&daemon, &dc, daemon.run(&dc, &request, session)).await.map_err(errors::of_run)?;
        converse(&daemon, &dc, (stream, session), manner, None).await
    })
    .map_err(|failure: Failure| failure.status(errors::RUN_FAILED))?
}
