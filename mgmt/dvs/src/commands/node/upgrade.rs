//! `dvs node upgrade`: another release on this node, while its programs go on.
//!
//! What may become of what is decided before anything is touched ([`Change::judge`], a pure function). Then the file
//! takes its place by a rename, the daemon begins in it within the same process, and its servers and gates follow, one
//! after the other. A daemon that does not come back gets its earlier file back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use client::Client;
use mgmt_api::{ClusterLevel, Node, NodeState, PendingServer, ServerState, UpgradeState, Version};
use serde::{Deserialize, Serialize};
use versions::{Release, Versions};

use crate::cli::Global;
use crate::commands::{Outcome, block_on, daemon, done, say};
use crate::errors::Failure;
use crate::output::Row;
use crate::units::parse_duration;

/// A program that does not say within this what it is, is none of ours.
const SAYS_WITHIN: Duration = Duration::from_secs(20);
/// What it says is a page.
const SAYS_BYTES_MAX: usize = 1 << 20;
/// A daemon takes over what runs in a second; it may have to wait for a leader of the engine.
const BEGINS_WITHIN: Duration = Duration::from_secs(120);
/// After its process has ended.
const GONE: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// Files beside the binary: the next one while it is copied, and the one before.
const NEXT: &str = "next";
const BEFORE: &str = "before";

/// Another release of dvs on this node, while its containers go on
#[derive(Args, Debug)]
#[command(after_help = "\
Run it on the node. The new binary is asked what it is; releases that follow one another may be in one cluster, so none is \
left out, and none is gone back to that cannot read what the cluster writes (dvs cluster level). The binary then takes the \
place of the one that the daemon was started from, the daemon begins in it, and servers and gates follow one after the other. \
Programs do not notice; keepers stay as they are until their container stops. A daemon that does not come back gets its \
earlier binary again.

Without --binary it is the file that is there: a package that was upgraded has put it there.

Node by node, for a whole cluster, on each of them in turn:
  apt-get install ./dvs_0.2.0_amd64.deb && dvs node upgrade && dvs node ls

Examples:
  dvs node upgrade
  dvs node upgrade --binary ./dvs
  dvs node upgrade --binary ./dvs -o json
  dvs node upgrade --force              although another node is down")]
pub struct Options {
    /// The binary of the other release.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Also when the cluster is not well.
    #[arg(long)]
    force: bool,
    /// How long servers and gates may take to follow; they go on by themselves.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_duration)]
    wait: Duration,
}

/// What a binary says of itself: `dvs version -o json`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
struct Facts {
    client: String,
    #[serde(default)]
    follows: String,
    #[serde(default)]
    speaks: BTreeMap<String, Versions>,
}

impl Facts {
    fn release(&self) -> Release {
        Release { release: self.client.clone(), follows: self.follows.clone() }
    }
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Upgraded {
    node: String,
    before: String,
    now: String,
    /// Servers and gates that were replaced.
    replaced: usize,
}

pub fn execute(global: &Global, options: &Options) -> Outcome {
    let daemon = daemon(global)?;
    let (running, level, nodes, state) = block_on(async {
        let (running, level) = (daemon.version().await?, daemon.level().await?);
        Ok::<_, client::Error>((running, level, daemon.nodes().await?, daemon.upgrade_state().await?))
    })??;
    let node = running.node.clone();
    let target = PathBuf::from(&running.binary);
    if !target.is_absolute() {
        return Err(Failure::new("the daemon does not say from which file it was started").hint("dvs version -o json"));
    }
    let file = options.binary.as_deref().unwrap_or(&target);
    let facts = ask(file)?;
    let change = Change { new: &facts, running: &running, level: &level, nodes: &nodes, state: &state };
    change.judge()?;
    if !options.force {
        change.demand_well()?;
    }
    let before = put_in_place(file, &target)?;
    if !is_executed_by(&target, state.pid) {
        say(&format!("node '{node}': the daemon begins in release {}", facts.client));
        if let Err(why) = block_on(begin(&daemon, &state, &facts))? {
            return Err(go_back(why, before.as_deref(), &target));
        }
    }
    let replaced = block_on(renew(&daemon, options.wait))??;
    say(&format!("node '{node}' is of release {}; containers went on", facts.client));
    done(global.output, &Upgraded { node, before: running.version, now: facts.client, replaced })
}

/// What the binary says of itself.
fn ask(file: &Path) -> Result<Facts, Failure> {
    let none = || {
        Failure::new(format!("{} is no dvs that could be run here", file.display()))
            .hint("--binary FILE: a dvs for this machine, as a package or a build has it")
    };
    // A path, never a name to be looked for.
    let path = fs::canonicalize(file).map_err(|error| none().because(&error).hint("--binary FILE"))?;
    let mut command = Command::new(path);
    command.args(["version", "-o", "json"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| none().because(&error).hint("a file that may be executed"))?;
    let out = child.stdout.take();
    let said = std::thread::spawn(move || {
        let mut said = Vec::new();
        out.map(|out| io::Read::read_to_end(&mut io::Read::take(out, SAYS_BYTES_MAX as u64), &mut said));
        said
    });
    let until = Instant::now() + SAYS_WITHIN;
    while child.try_wait().map_err(|error| none().because(&error))?.is_none() {
        if Instant::now() >= until {
            let _ = child.kill();
            let _ = child.wait();
            return Err(none().because_text(format!("it said nothing for {} s", SAYS_WITHIN.as_secs())));
        }
        std::thread::sleep(LOOK);
    }
    let said = said.join().unwrap_or_default();
    let facts: Facts = serde_json::from_slice(&said).map_err(|_| {
        none().because_text("it does not say what it is").hint(format!("{} version -o json", file.display()))
    })?;
    if facts.speaks.is_empty() {
        return Err(none().because_text(format!("version {} was before the first release", facts.client)));
    }
    Ok(facts)
}

/// All that is looked at before anything is touched.
struct Change<'a> {
    new: &'a Facts,
    running: &'a Version,
    level: &'a ClusterLevel,
    nodes: &'a [Node],
    state: &'a UpgradeState,
}

impl Change<'_> {
    /// Whether the new release may take the place of the one that runs, in this cluster.
    fn judge(&self) -> Result<(), Failure> {
        let Change { new, running, level, state, .. } = self;
        let refused = |why: String| {
            Failure::new(format!("release {} cannot take the place of {} here", new.client, running.version))
                .because_text(why)
        };
        let release = new.release();
        let own = Release { release: running.version.clone(), follows: running.follows.clone() };
        let others = level.releases.iter().filter(|(node, _)| **node != running.node);
        for (node, other) in std::iter::once((&running.node, &own)).chain(others) {
            release.talks_with(other).map_err(|why| {
                refused(format!("{why}, and node '{node}' is of release {other}"))
                    .hint("release by release, each on all nodes")
            })?;
        }
        let reads = new.speaks.get(versions::RECORDS.name).copied();
        if !reads.is_some_and(|reads| u8::try_from(level.level).is_ok_and(|level| reads.includes(level))) {
            let reads = reads.map_or("none".to_owned(), |reads| reads.to_string());
            return Err(refused(format!("the cluster's level is {}, and it reads {reads}", level.level))
                .hint("dvs cluster level; a level never falls, so there is no way back below it"));
        }
        // With what goes on: keepers, the shelf, programs with a library of their own.
        for (what, spoken) in &running.speaks {
            if new.speaks.get(what).is_some_and(|new| new.common(*spoken).is_none()) {
                let why = format!("it shares no version of '{what}' with what runs on this node");
                return Err(refused(why).hint("release by release, each on all nodes"));
            }
        }
        if release.series() != own.series() && state.pending.iter().any(|server| server.is_earlier) {
            return Err(refused("servers of a release before the daemon's still run on this node".to_owned())
                .hint("dvs node upgrade, without --binary, has them follow the daemon first"));
        }
        Ok(())
    }

    /// A node that is upgraded is missed for a moment, so no other one should be.
    fn demand_well(&self) -> Result<(), Failure> {
        let unwell = |node: &&Node| node.state != NodeState::Ready;
        let unwell: Vec<&str> = self.nodes.iter().filter(unwell).map(|node| node.name.as_str()).collect();
        if unwell.is_empty() {
            return Ok(());
        }
        Err(Failure::new("the cluster is not well")
            .because_text(format!("not ready: {}", unwell.join(", ")))
            .hint("dvs doctor; or --force"))
    }
}

/// The next file takes the place of the one there is, by a rename: whoever starts it gets one or the other. Answers
/// where the one before is.
fn put_in_place(file: &Path, target: &Path) -> Result<Option<PathBuf>, Failure> {
    let failed = |error: io::Error| {
        Failure::new(format!("{} cannot be put in the place of {}", file.display(), target.display()))
            .because(&error)
            .hint(crate::installed::what_to_try(&error))
    };
    if identity(file).map_err(failed)? == identity(target).map_err(failed)? {
        return Ok(None);
    }
    let beside = |what: &str| {
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{what}"));
        target.with_file_name(name)
    };
    let (next, before) = (beside(NEXT), beside(BEFORE));
    let _ = fs::remove_file(&next);
    let copied = || -> io::Result<()> {
        let mut to = OpenOptions::new().write(true).create_new(true).mode(0o700).open(&next)?;
        io::copy(&mut File::open(file)?, &mut to)?;
        to.set_permissions(fs::metadata(target)?.permissions())?;
        to.sync_all()?;
        // Only now: where there is no room, what was kept before is kept.
        let _ = fs::remove_file(&before);
        fs::hard_link(target, &before)?;
        fs::rename(&next, target)?;
        File::open(target.parent().unwrap_or(Path::new("/")))?.sync_all()
    };
    copied().map_err(|error| {
        let _ = fs::remove_file(&next);
        failed(error)
    })?;
    Ok(Some(before))
}

fn identity(file: &Path) -> io::Result<(u64, u64)> {
    let found = fs::metadata(file)?;
    if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no program"));
    }
    Ok((found.dev(), found.ino()))
}

/// Whether the process is of the file that is there now.
fn is_executed_by(target: &Path, pid: u32) -> bool {
    let executed = identity(Path::new(&format!("/proc/{pid}/exe")));
    matches!((executed, identity(target)), (Ok(executed), Ok(there)) if executed == there)
}

/// The daemon begins in what is there now.
async fn begin(daemon: &Client, before: &UpgradeState, facts: &Facts) -> Result<(), Failure> {
    daemon.upgrade_daemon().await?;
    let mut until = Instant::now() + BEGINS_WITHIN;
    let process = PathBuf::from(format!("/proc/{}", before.pid));
    loop {
        if !process.exists() {
            // Nobody comes back unless a service manager starts it, which takes a moment.
            until = until.min(Instant::now() + GONE);
        }
        if let Ok(state) = daemon.upgrade_state().await
            && state.epoch > before.epoch
        {
            if state.release == facts.client {
                return Ok(());
            }
            return Err(Failure::new("the daemon went on in the release before")
                .because_text(format!("{} could not be executed", facts.client))
                .hint("the daemon's log"));
        }
        if Instant::now() >= until {
            return Err(Failure::new(format!("the daemon does not serve in release {}", facts.client))
                .because_text("it ended, or did not answer in time")
                .hint("the daemon's log"));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The earlier file takes its place again; a service manager starts the daemon from it.
fn go_back(why: Failure, before: Option<&Path>, target: &Path) -> Failure {
    let Some(before) = before else { return why };
    match fs::rename(before, target) {
        Ok(()) => why
            .because_text(format!("{} is the earlier release again", target.display()))
            .hint("the daemon's log; systemctl restart dvsd, or dvs daemon, begins it in the earlier release"),
        Err(error) => why.because_text(format!("and the earlier release is not back at {}: {error}", target.display())),
    }
}

/// Has servers and gates follow. Answers how many did.
async fn renew(daemon: &Client, wait: Duration) -> Result<usize, Failure> {
    // Each that was seen to be of an earlier binary: they are counted before they go. A daemon that has just begun does
    // not know of all of them at once.
    let (mut earlier, mut told, mut asked) = (BTreeSet::new(), None, false);
    let until = Instant::now() + wait;
    loop {
        let state = daemon.upgrade_state().await?;
        let left: BTreeSet<_> = state.pending.iter().filter(|server| server.is_earlier).map(named).collect();
        earlier.extend(left.iter().cloned());
        if !asked && state.pending.iter().all(|server| server.state != ServerState::Unknown) {
            daemon.upgrade_servers().await?;
            asked = true;
        }
        if state.pending.is_empty() {
            return Ok(earlier.len());
        }
        let done = earlier.len() - left.len();
        if !earlier.is_empty() && told.replace((done, earlier.len())) != Some((done, earlier.len())) {
            say(&format!("{done} of {} servers and gates have followed", earlier.len()));
        }
        if Instant::now() >= until {
            let pending: Vec<String> = state.pending.iter().map(named).collect();
            return Err(Failure::new("not all servers and gates have followed the daemon yet")
                .because_text(pending.join(", "))
                .hint("they go on by themselves: dvs node upgrade looks again; dvs dc inspect says what is wrong"));
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn named(server: &PendingServer) -> String {
    format!("{} of container '{}'", server.name, server.dc)
}

impl Row for Upgraded {
    const HEADINGS: &'static [&'static str] = &["NODE", "BEFORE", "NOW", "REPLACED"];

    fn cells(&self) -> Vec<String> {
        vec![self.node.clone(), self.before.clone(), self.now.clone(), self.replaced.to_string()]
    }

    fn name(&self) -> String {
        self.node.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts((release, follows): (&str, &str), records: (u8, u8), keeper: (u8, u8)) -> Facts {
        let of = |(oldest, newest)| Versions { oldest, newest };
        let speaks = [("records", of(records)), ("keeper", of(keeper))];
        let speaks = speaks.map(|(name, versions)| (name.to_owned(), versions)).into();
        Facts { client: release.to_owned(), follows: follows.to_owned(), speaks }
    }

    const FIRST: (&str, &str) = ("0.1.0", "");
    const SECOND: (&str, &str) = ("0.2.0", "0.1");
    const THIRD: (&str, &str) = ("0.3.0", "0.2");

    /// n1 runs one release, n2 another, and n1 is to get a third one.
    fn judged(running: Facts, n2: (&str, &str), level: u64, new: Facts, left: &[&str]) -> Result<(), String> {
        let release = |(release, follows): (&str, &str)| Release { release: release.into(), follows: follows.into() };
        let version = Version {
            version: running.client.clone(),
            follows: running.follows.clone(),
            node: "n1".into(),
            cluster: "c".into(),
            speaks: running.speaks.clone(),
            binary: "/usr/bin/dvs".into(),
            pid: Some(1),
        };
        let releases = [("n1".to_owned(), running.release()), ("n2".to_owned(), release(n2))].into();
        let level = ClusterLevel { level, readable: level, newest: level, held_back_by: vec![], releases };
        let pending = left.iter().map(|name| PendingServer {
            dc: "shop".into(),
            name: (*name).into(),
            pid: Some(7),
            state: ServerState::Running,
            is_earlier: true,
        });
        let state = UpgradeState { release: running.client.clone(), pid: 1, epoch: 1, pending: pending.collect() };
        let change = Change { new: &new, running: &version, level: &level, nodes: &[], state: &state };
        change.judge().map_err(|failure| {
            let mut text = Vec::new();
            failure.print(&mut text).expect("memory");
            String::from_utf8(text).expect("text")
        })
    }

    #[test]
    fn release_follows_the_one_before_it_and_none_is_left_out() {
        let (first, second, third) =
            (facts(FIRST, (1, 2), (1, 2)), facts(SECOND, (1, 3), (2, 3)), facts(THIRD, (2, 4), (3, 4)));
        assert_eq!(judged(first.clone(), FIRST, 2, second.clone(), &[]), Ok(()));
        assert_eq!(judged(second.clone(), FIRST, 2, second.clone(), &["fs"]), Ok(()), "what is left follows");
        let jump = judged(first.clone(), FIRST, 2, third.clone(), &[]).unwrap_err();
        assert!(jump.contains("0.1.0 do not talk") || jump.contains("0.3.0"), "{jump}");
        let too_early = judged(second.clone(), FIRST, 2, third.clone(), &[]).unwrap_err();
        assert!(too_early.contains("node 'n2' is of release 0.1.0"), "{too_early}");
        let unfinished = judged(second, SECOND, 2, third, &["fs"]).unwrap_err();
        assert!(unfinished.contains("without --binary"), "{unfinished}");
    }

    #[test]
    fn way_back_ends_where_the_cluster_writes_what_the_earlier_release_cannot_read() {
        let (first, second) = (facts(FIRST, (1, 2), (1, 2)), facts(SECOND, (1, 3), (1, 3)));
        assert_eq!(judged(second.clone(), SECOND, 2, first.clone(), &[]), Ok(()));
        let below = judged(second, SECOND, 3, first, &[]).unwrap_err();
        assert!(below.contains("level is 3") && below.contains("versions 1 to 2"), "{below}");
    }

    #[test]
    fn release_that_cannot_talk_with_what_stays_on_the_node_is_refused() {
        let refused = judged(facts(FIRST, (1, 2), (1, 2)), FIRST, 2, facts(SECOND, (1, 3), (3, 4)), &[]).unwrap_err();
        assert!(refused.contains("'keeper'"), "{refused}");
    }

    /// A file as a binary is one.
    fn write(path: PathBuf, text: &str) -> PathBuf {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn file_takes_its_place_whole_and_the_one_before_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| write(dir.path().join(name), text);
        let (target, new) = (write("dvs", "one"), write("new", "two"));
        for round in 0..2 {
            let before = put_in_place(&new, &target).unwrap().expect("another file");
            assert_eq!(fs::read_to_string(&target).unwrap(), "two");
            assert_eq!(fs::read_to_string(&before).unwrap(), if round == 0 { "one" } else { "two" });
            assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o755);
        }
        assert_eq!(put_in_place(&target, &target).unwrap(), None, "it is there already");
        assert!(put_in_place(dir.path(), &target).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "nothing else is left");
    }

    #[test]
    fn file_for_which_there_is_no_room_changes_nothing_of_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| write(dir.path().join(name), text);
        let (target, new, before) = (write("dvs", "two"), write("new", "three"), write("dvs.before", "one"));
        // In the way of the copy.
        fs::create_dir(dir.path().join("dvs.next")).unwrap();
        let refused = put_in_place(&new, &target).unwrap_err();
        assert!(refused.hint.is_some(), "{refused:?}");
        assert_eq!(
            (fs::read_to_string(&target).unwrap(), fs::read_to_string(&before).unwrap()),
            ("two".into(), "one".into())
        );
    }

    #[test]
    fn what_does_not_say_that_it_is_dvs_is_not_put_anywhere() {
        for (file, word) in [("/bin/true", "does not say"), ("/nowhere", "No such file"), ("/etc/passwd", "ermission")]
        {
            let refused = ask(Path::new(file)).unwrap_err();
            let mut text = Vec::new();
            refused.print(&mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert!(text.contains(word), "{text}");
        }
    }
}
