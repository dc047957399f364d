//! Programs of others that use a directory: a database, and a stress test of a file system's calls.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::Outcome;

/// Of stress-ng, so many of its operations a second. What a file system refuses is not among them.
pub type Classes = BTreeMap<String, f64>;

const METRIC: &str = "bogo-ops-per-second-real-time:";

/// Its own user, which it insists on. `Mapped`: who is root outside has that number inside of a user namespace, for a
/// file system to which everybody is who serves it, as libfuse's example is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum User {
    Own,
    Mapped,
}

const USER: &str = "postgres";

/// The data are where `$1` says, its socket is not.
const DATABASE: &str = r#"
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
sockets=$(mktemp -d /tmp/bench-XXXXXX)
$bin/initdb -D "$1/data" -U bench --auth=trust --no-sync >/dev/null
trap '$bin/pg_ctl -D "$1/data" -m immediate -s stop; rm -rf "$sockets"' EXIT
$bin/pg_ctl -D "$1/data" -l "$1/log" -w -s -o "-k $sockets -h ''" start
$bin/pgbench -h "$sockets" -U bench -i -q -s 1 postgres 2>/dev/null
$bin/pgbench -h "$sockets" -U bench -n -c 1 -T "$2" postgres 2>/dev/null | sed -n 's/^tps = \([0-9.]*\).*/\1/p'
"#;

/// Transactions a second of one client.
pub fn database(directory: &Path, seconds: u32, user: User) -> Outcome<f64> {
    fs::create_dir(directory)?;
    let mut command = match user {
        User::Own => {
            run(Command::new("chown").args([USER, "--"]).arg(directory))?;
            let mut command = Command::new("setpriv");
            command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]);
            command
        }
        User::Mapped => {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-user", USER, "--map-group", USER]);
            command
        }
    };
    let command = command.args(["sh", "-ec", DATABASE, "sh"]).arg(directory).arg(seconds.to_string());
    let done = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    fs::remove_dir_all(directory)?;
    let said = String::from_utf8(done.stdout)?;
    Ok(said.trim().parse().map_err(|_| format!("pgbench says no rate ({}): {said}", done.status))?)
}

pub fn classes(directory: &Path, wanted: &[String]) -> Outcome<Classes> {
    fs::create_dir(directory)?;
    let told = directory.join("told");
    let mut classes = Classes::new();
    for class in wanted {
        let mut command = Command::new("stress-ng");
        command.args([&format!("--{class}"), "1", "-t", "1s", "--quiet", "--metrics", "--temp-path"]).arg(directory);
        run(command.arg("--yaml").arg(&told))?;
        let rate = fs::read_to_string(&told)?;
        let rate = rate.lines().find_map(|line| line.trim().strip_prefix(METRIC)?.trim().parse().ok());
        classes.extend(rate.filter(|rate| *rate > 0.0).map(|rate: f64| (class.clone(), rate)));
    }
    fs::remove_dir_all(directory)?;
    Ok(classes)
}

fn run(command: &mut Command) -> Outcome<()> {
    let done = command.stdin(Stdio::null()).output()?;
    let why = String::from_utf8_lossy(&done.stderr);
    if done.status.success() { Ok(()) } else { Err(format!("{command:?} ({}): {}", done.status, why.trim()).into()) }
}
