//! `dvs disk`: disks of containers, and their copies.

use std::io;
use std::time::Duration;

use clap::{Args, Subcommand};
use client::Client;
use mgmt_api::{Dc, DcChange, DiskChange, DiskCopyState, DiskSpec, DiskStore, DiskVerification, NbdSpec, ServerKind};
use serde::Serialize;

use super::dc::view;
use super::{Outcome, block_on, daemon, names, now_ms, print, say};
use crate::cli::Global;
use crate::errors::Failure;
use crate::output::{self, Row, Table};
use crate::units::parse_bytes;

/// Between two looks at how far a copy is.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Disks of containers, and their copies
#[derive(Subcommand, Debug)]
#[command(
    visible_alias = "disks",
    after_help = "\
A disk belongs to a container; the first one holds its file tree. dvs dc create makes that, and dvs dc delete removes it. \
In a container of two nodes or more a disk has copies on two of them, unless --replicas says another number. Further disks \
are for clients of NBD.

Examples:
  dvs disk ls
  dvs disk inspect shop root
  dvs disk replica add shop root n3       one copy more, on n3
  dvs disk verify shop                    whether its copies have the same
  dvs disk create shop data --size 10G    with copies on two nodes
  dvs disk export shop data               for clients of NBD, at 127.0.0.1:10809 of the disk's node"
)]
pub enum Command {
    /// List disks, where they stand and how many copies have everything.
    #[command(visible_alias = "list")]
    Ls {
        /// Of this container alone.
        #[arg(add = names::containers())]
        dc: Option<String>,
    },
    /// Show a disk and the state of each of its copies.
    Inspect {
        /// Container.
        #[arg(add = names::containers())]
        dc: String,
        /// Disk, as dvs disk ls names it: root.
        #[arg(default_value = "root", add = names::disks())]
        disk: String,
    },
    Create(CreateOptions),
    Resize(ResizeOptions),
    #[command(visible_alias = "rm")]
    Delete(DeleteOptions),
    Verify(VerifyOptions),
    #[command(subcommand)]
    Replica(ReplicaCommand),
    Export(ExportOptions),
    Mount(MountOptions),
    /// Serve no disk of a container over NBD any more; who is connected is cut off.
    Unexport {
        /// Container.
        #[arg(add = names::containers())]
        dc: String,
    },
}

/// Give a container one more disk, also while it runs
#[derive(Args, Debug)]
#[command(after_help = "\
It is empty, and for clients of NBD: dvs disk export. What is served already stays what it is. The file tree of the \
container is on its first disk, which dvs dc create makes.

Examples:
  dvs disk create shop data --size 10G
  dvs disk create shop data --size 10G --node n2
  dvs disk create shop once --size 10G --replicas 1     one copy, which is lost with its node
  dvs disk create shop scratch --size 100G --sparse     takes space as it is used")]
pub struct CreateOptions {
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Its name: a-z, 0-9 and -, beginning with a letter, at most 32.
    disk: String,
    /// At least 16M.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    size: u64,
    /// Node of the container where it stands; one with room, and few servers.
    #[arg(long, add = names::nodes())]
    node: Option<String>,
    /// Copies of it, each on another node: the loss of a node loses nothing. Each takes the space of the disk, and a
    /// write waits for the slowest of them [default: 2; 1 on one node].
    #[arg(long, value_name = "COUNT")]
    replicas: Option<u8>,
    /// It takes space as it is used: the node may run out of it.
    #[arg(long)]
    sparse: bool,
}

/// Make a disk larger, also while it is used
#[derive(Args, Debug)]
#[command(after_help = "\
What is on it stays. Whoever is connected over NBD is cut off, and sees the later end after connecting again. The file \
tree grows with its disk, up to fifteen times: programs that use it wait for a second or two. A disk is never made smaller.

Examples:
  dvs disk resize shop root 40G
  dvs disk resize shop data 20G")]
pub struct ResizeOptions {
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Disk, as dvs disk ls names it.
    #[arg(add = names::disks())]
    disk: String,
    /// As it is to be: 20G.
    #[arg(value_name = "SIZE", value_parser = parse_bytes)]
    size: u64,
}

/// Remove a disk of a container, and what is on it
#[derive(Args, Debug)]
#[command(after_help = "\
With all of its copies, at once, for good. Refused for the one of the file tree, and for one that is served over NBD.

Examples:
  dvs disk delete shop data")]
pub struct DeleteOptions {
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Disk, as dvs disk ls names it.
    #[arg(add = names::disks())]
    disk: String,
    /// Also where a node that has an image of it does not answer: that image stays there until the container is
    /// deleted.
    #[arg(long)]
    force: bool,
}

/// Compare the copies of a disk with one another, while it is used
#[derive(Args, Debug)]
#[command(after_help = "\
Each block is read from the medium of every copy that is current, one piece after the other; while programs use the disk \
that takes half of the time at most. A block of which the copies have different things was spoiled on one of them: by a \
medium that forgets, or by somebody who wrote to an image. Which one is right a disk cannot know, so nothing is changed, \
and the exit status is 1. With --repair what the primary has is what there is from then on: the others get it again. To \
take another copy for right, have the disk stand there first (dvs disk replica promote).

The file tree knows what it wrote: a block of a file that is spoiled on one copy is read from another one, and mended, \
when a program reads it.

Interrupted, this command leaves the comparison going on; dvs disk inspect shows what it found.

Examples:
  dvs disk verify shop
  dvs disk verify shop data --repair
  dvs disk verify shop --no-wait && dvs disk inspect shop")]
pub struct VerifyOptions {
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Disk, as dvs disk ls names it.
    #[arg(default_value = "root", add = names::disks())]
    disk: String,
    /// What differs becomes what the primary has.
    #[arg(long)]
    repair: bool,
    /// Answer when it has begun.
    #[arg(long)]
    no_wait: bool,
}

/// Serve disks of a container over NBD, to any client of that protocol
#[derive(Args, Debug)]
#[command(after_help = "\
A gate of the container on one node serves them until dvs disk unexport, also after restarts, and replaces what was \
exported before. Clients ask for a disk by its name; what was flushed, or written with FUA, survives as on any disk, and \
they wait while the disk begins anew or moves to another copy. The first disk of a container holds its file tree, and is \
only read: while programs write, what is read is of several moments.

Without --tls whoever reaches the address reads and writes. With it clients show a certificate; ca-cert.pem, \
server-cert.pem and server-key.pem lie in the directory nbd of the node's state directory (/var/lib/dvs/nbd), as other \
servers of NBD have them.

Examples:
  dvs disk export shop data                              at 127.0.0.1:10809 of the node where the disk stands
  dvs disk export shop --node n2 --listen 192.0.2.7:10809 --tls
  nbdinfo --list nbd://127.0.0.1:10809
  nbdcopy nbd://127.0.0.1:10809/data data.img
  dvs disk unexport shop")]
pub struct ExportOptions {
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Disks, as dvs disk ls names them; all but the one of the file tree, or that one if it is the only one.
    disks: Vec<String>,
    /// Where clients connect; an address of the node.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:10809")]
    listen: std::net::SocketAddr,
    /// Node of the container where they connect; the one where the first disk stands.
    #[arg(long, add = names::nodes())]
    node: Option<String>,
    /// Encrypt, and let in only clients with a certificate that is known there.
    #[arg(long)]
    tls: bool,
    /// Nothing can be changed.
    #[arg(long)]
    read_only: bool,
}

/// Show a disk of a container as a file here, until it is unmounted, or until Ctrl-C or SIGTERM
#[derive(Args, Debug)]
#[command(after_help = "\
The disk is served over NBD before (dvs disk export), and this machine reaches that address. MOUNTPOINT/disk has its bytes. A \
loop device on it is a block device, for kernels without a client of NBD: losetup, mkfs, mount. fsync of the file is a flush \
of the disk. Of the disk of the file tree nobody changes anything. When the gate ends, this command ends, and who uses the \
file has an error; what was flushed is there. While something uses it, it is not unmounted; a second Ctrl-C takes it away all \
the same.

Who is not root needs fusermount3 (Debian: fuse3), and then only that user sees the file.

Examples:
  dvs disk export shop data
  dvs disk mount shop data /mnt/data
  losetup --find --show /mnt/data/disk")]
pub struct MountOptions {
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Disk, as dvs disk ls names it.
    #[arg(add = names::disks())]
    disk: String,
    /// A directory; what is in it is hidden meanwhile.
    mountpoint: std::path::PathBuf,
    /// Nothing can be changed.
    #[arg(long)]
    read_only: bool,
}

/// Copies of a disk: one more, one less, another primary
#[derive(Subcommand, Debug)]
#[command(
    visible_alias = "replicas",
    after_help = "\
All that is written is on each copy that is current before it is done. One of them is the primary, beside which the disk \
stands; when its node is lost the disk goes on beside another one.

Examples:
  dvs disk replica add shop root n3 --wait
  dvs disk replica remove shop root n2
  dvs disk replica promote shop root n3"
)]
pub enum ReplicaCommand {
    Add(AddOptions),
    Remove(RemoveOptions),
    Promote(PromoteOptions),
}

/// Have one copy more, on another node of the container
#[derive(Args, Debug)]
#[command(after_help = "\
Also of a disk that has no copies: what it is becomes the first one. Programs go on meanwhile; writes take as long as the \
slower of the nodes from then on. The node needs as much space as the disk is large.

Examples:
  dvs disk replica add shop root n3
  dvs disk replica add shop root n3 --wait     answers when it has everything")]
pub struct AddOptions {
    #[command(flatten)]
    meant: Meant,
    /// Until it has everything, however long that takes.
    #[arg(long)]
    wait: bool,
}

/// Have one copy less
#[derive(Args, Debug)]
#[command(after_help = "\
What is on its node of it is removed. Refused for the copy beside which the disk stands: dvs server move first.

Examples:
  dvs disk replica remove shop root n2
  dvs disk replica remove --force shop root n2     n2 has everything, and the others never come back")]
pub struct RemoveOptions {
    #[command(flatten)]
    meant: Meant,
    /// Also when it may be the only one that has everything.
    #[arg(long)]
    force: bool,
}

/// Have a disk stand beside another one of its copies
#[derive(Args, Debug)]
#[command(after_help = "\
Without --force the copy has everything, and programs notice a pause of about a second. With --force it is one that \
misses something, where no node is there whose copy has everything: what it misses is lost for good, also when one of \
those nodes comes back; its copy is refused then (remove it, and add it anew).

Examples:
  dvs disk replica promote shop root n2
  dvs disk replica promote --force shop root n2     n1 burnt down; what n2 had is what there is")]
pub struct PromoteOptions {
    #[command(flatten)]
    meant: Meant,
    /// Give up what the copy misses.
    #[arg(long)]
    force: bool,
}

#[derive(Args, Debug)]
struct Meant {
    /// Container.
    #[arg(add = names::containers())]
    dc: String,
    /// Disk, as dvs disk ls names it: root.
    #[arg(add = names::disks())]
    disk: String,
    /// Node.
    #[arg(add = names::nodes())]
    node: String,
}

/// A disk, as people see it.
#[derive(Clone, PartialEq, Serialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DiskView {
    pub dc: String,
    pub disk: String,
    pub bytes: u64,
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::disk_store"))]
    pub store: DiskStore,
    /// Where it stands.
    pub node: String,
    /// Raised with each start of a disk that has copies, and when it stands elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u32>,
    /// Raised when a copy begins or ceases to have everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    pub copies: Vec<CopyView>,
    /// The last time that they were compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::disk_verification"))]
    pub verification: Option<DiskVerification>,
}

#[derive(Clone, PartialEq, Serialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CopyView {
    pub node: String,
    /// Absent: not known, because the container was never started, or the disk has not heard of it yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::disk_copy_state"))]
    pub state: Option<DiskCopyState>,
}

pub fn disks_of(dc: &Dc) -> Vec<DiskView> {
    let disks = dc.placement.instances.iter().filter(|one| one.kind == ServerKind::DISK);
    let described = disks.filter_map(|disk| {
        let volume = disk.volume.as_ref()?;
        let is_copy = |one: &&mgmt_api::Instance| {
            one.kind != ServerKind::DISK && one.volume.as_ref().is_some_and(|it| it.name == volume.name)
        };
        let set = dc.copies.iter().find(|set| set.disk == volume.name);
        let state = |node: &str| Some(set?.copies.iter().find(|copy| copy.node == node)?.state);
        let copies = dc.placement.instances.iter().filter(is_copy);
        let copies = copies.map(|copy| CopyView { node: copy.node.clone(), state: state(&copy.node) });
        Some(DiskView {
            dc: dc.spec.name.clone(),
            disk: volume.name.clone(),
            bytes: volume.bytes,
            store: volume.store.clone(),
            node: disk.node.clone(),
            epoch: set.map(|set| set.epoch),
            generation: set.map(|set| set.generation),
            copies: copies.collect(),
            verification: set.and_then(|set| set.verification.clone()),
        })
    });
    described.collect()
}

pub fn execute(global: &Global, command: &Command) -> Outcome {
    match command {
        Command::Ls { dc } => {
            let disks = block_on(list(&daemon(global)?, dc.as_deref()))??;
            print(|out| output::list(out, global.output, &disks))
        }
        Command::Inspect { dc, disk } => {
            let shown = one(&block_on(daemon(global)?.dc(dc))??, disk)?;
            print(|out| output::one(out, global.output, &shown, show))
        }
        Command::Create(CreateOptions { dc, disk, size, node, replicas, sparse }) => {
            let store = if *sparse { DiskStore::Sparse } else { DiskStore::Image };
            let wanted = DiskSpec { name: disk.clone(), node: node.clone(), bytes: *size, store, replicas: *replicas };
            let now = block_on(daemon(global)?.create_disk(dc, &wanted))??;
            let node = one(&now, disk)?.node;
            say(&format!(
                "container '{dc}' has disk '{disk}', on {node}; for clients of NBD: dvs disk export {dc} {disk}"
            ));
            let cost = view::cost_of_copies(&now, disk).filter(|_| replicas.is_none());
            cost.iter().for_each(|line| say(line));
            print(|out| view::changed(out, global.output, &now))
        }
        Command::Resize(ResizeOptions { dc, disk, size }) => {
            let now = block_on(daemon(global)?.change_disk(dc, disk, &DiskChange { bytes: *size }))??;
            say(&format!("disk '{disk}' of container '{dc}' has {}", output::bytes(*size)));
            print(|out| view::changed(out, global.output, &now))
        }
        Command::Delete(DeleteOptions { dc, disk, force }) => {
            let now = block_on(daemon(global)?.delete_disk(dc, disk, *force))??;
            say(&format!("container '{dc}' has no disk '{disk}' any more"));
            print(|out| view::changed(out, global.output, &now))
        }
        Command::Export(options) => export(global, options),
        Command::Unexport { dc } => {
            let change = DcChange { nbd: Some(None), ..DcChange::default() };
            let now = block_on(daemon(global)?.change_dc(dc, &change))??;
            say(&format!("no disk of container '{dc}' is served over NBD"));
            print(|out| view::changed(out, global.output, &now))
        }
        Command::Mount(options) => mount(global, options),
        Command::Verify(options) => verify(global, options),
        Command::Replica(ReplicaCommand::Add(options)) => add(global, options),
        Command::Replica(ReplicaCommand::Remove(RemoveOptions { meant: Meant { dc, disk, node }, force })) => {
            let now = block_on(daemon(global)?.remove_replica(dc, disk, node, *force))??;
            say(&format!("disk '{disk}' of container '{dc}' has no copy on {node} any more"));
            print(|out| view::changed(out, global.output, &now))
        }
        Command::Replica(ReplicaCommand::Promote(PromoteOptions { meant: Meant { dc, disk, node }, force })) => {
            let now = block_on(daemon(global)?.promote_replica(dc, disk, node, *force))??;
            say(&format!("disk '{disk}' of container '{dc}' stands on {node}"));
            print(|out| view::changed(out, global.output, &now))
        }
    }
}

fn export(global: &Global, options: &ExportOptions) -> Outcome {
    let ExportOptions { dc, disks, listen, node, tls, read_only } = options;
    let nbd = NbdSpec { listen: *listen, node: node.clone(), disks: disks.clone(), tls: *tls, read_only: *read_only };
    let change = DcChange { nbd: Some(Some(nbd)), ..DcChange::default() };
    let now = block_on(daemon(global)?.change_dc(dc, &change))??;
    let (scheme, only) = (if *tls { "nbds" } else { "nbd" }, if *read_only { ", read-only" } else { "" });
    let gate = now.placement.first(&ServerKind::NBD);
    let node = gate.map_or("-", |gate| gate.node.as_str());
    say(&format!("disks of container '{dc}' are served at {scheme}://{listen} of {node}{only}"));
    print(|out| view::changed(out, global.output, &now))
}

#[cfg(not(feature = "machinery"))]
fn mount(_: &Global, _: &MountOptions) -> Outcome {
    Err(Failure::new("this dvs was built without servers").hint("the dvs of a node"))
}

#[cfg(feature = "machinery")]
fn mount(global: &Global, options: &MountOptions) -> Outcome {
    use super::alone::file::mount_what;
    use super::alone::volume::{self, Changes};

    let changes = if options.read_only { Changes::Never } else { Changes::Unless };
    mount_what(global, &options.mountpoint, || {
        let uri = where_served(global, options)?;
        volume::open(std::path::Path::new(&uri), None, changes)
    })
}

#[cfg(feature = "machinery")]
fn where_served(global: &Global, MountOptions { dc, disk, .. }: &MountOptions) -> Result<String, Failure> {
    let daemon = daemon(global)?;
    let now = block_on(daemon.dc(dc))??;
    // It says whether there is such a disk.
    one(&now, disk)?;
    let nbd = now.spec.nbd.as_ref();
    let export = format!("dvs disk export {dc} {disk}");
    let Some(nbd) = nbd.filter(|nbd| nbd.disks.is_empty() || nbd.disks.contains(disk)) else {
        return Err(Failure::new(format!("disk '{disk}' of container '{dc}' is not served over NBD")).hint(export));
    };
    if nbd.tls {
        let what = format!("disk '{disk}' of container '{dc}' is served encrypted, which a mount does not understand");
        return Err(Failure::new(what).hint(format!("{export}, at an address that is safe")));
    }
    let mut host = nbd.listen.ip().to_string();
    if nbd.listen.ip().is_unspecified()
        && let Some(gate) = now.placement.first(&ServerKind::NBD)
    {
        host = block_on(daemon.node(&gate.node))??.address;
    }
    let place = nbd::NbdPlace::Tcp(host, nbd.listen.port());
    Ok(nbd::NbdUri { place, export: disk.clone() }.to_string())
}

fn add(global: &Global, options: &AddOptions) -> Outcome {
    let Meant { dc, disk, node } = &options.meant;
    let daemon = daemon(global)?;
    let mut now = block_on(daemon.add_replica(dc, disk, node))??;
    if disks_of(&now).iter().any(|one| one.disk == *disk && one.copies.is_empty()) {
        say(&format!("disk '{disk}' of container '{dc}' is on {node} already, and has no copies"));
        return print(|out| view::changed(out, global.output, &now));
    }
    let is_whole = |now: &Dc| {
        let disks = disks_of(now).into_iter().filter(|one| one.disk == *disk);
        disks.flat_map(|one| one.copies).any(|copy| copy.node == *node && has_all(&copy))
    };
    while options.wait && !is_whole(&now) {
        std::thread::sleep(LOOK_AGAIN);
        now = block_on(daemon.dc(dc))??;
    }
    match is_whole(&now) {
        true => say(&format!("disk '{disk}' of container '{dc}' has a copy on {node}, with everything")),
        false => {
            say(&format!(
                "disk '{disk}' of container '{dc}' has a copy on {node}; until it has everything: dvs disk ls"
            ));
        }
    }
    print(|out| view::changed(out, global.output, &now))
}

fn verify(global: &Global, options: &VerifyOptions) -> Outcome {
    let VerifyOptions { dc, disk, repair, no_wait } = options;
    let daemon = daemon(global)?;
    let mut now = one(&block_on(daemon.verify_disk(dc, disk, *repair))??, disk)?;
    let asked_s = now.verification.as_ref().map(|it| it.asked_s);
    // Whoever is asked next may not have heard of it.
    let is_over = |it: &DiskVerification| it.found.is_some() && Some(it.asked_s) == asked_s;
    let goes_on = |now: &DiskView| !now.verification.as_ref().is_some_and(is_over);
    if now.verification.as_ref().is_some_and(|it| it.repair != *repair) {
        say("a comparison that was asked for before goes on; this is it");
    }
    if *no_wait {
        say(&format!(
            "the copies of disk '{disk}' of container '{dc}' are being compared: dvs disk inspect {dc} {disk}"
        ));
        return print(|out| output::one(out, global.output, &now, show));
    }
    let mut is_told = false;
    while goes_on(&now) {
        let has_other = now.copies.iter().any(|copy| copy.state == Some(DiskCopyState::Current));
        if !has_other && !std::mem::replace(&mut is_told, true) {
            say(&format!("no other copy of disk '{disk}' has everything at the moment; waiting until one has"));
        }
        std::thread::sleep(LOOK_AGAIN);
        now = one(&block_on(daemon.dc(dc))??, disk)?;
    }
    let shown = print(|out| output::one(out, global.output, &now, show));
    let verification = now.verification.unwrap_or_default();
    let found = verification.found.unwrap_or_default();
    let unread = found.iter().any(|it| it.node == now.node && it.blocks > 0);
    let differ: Vec<&str> = found.iter().filter(|it| it.blocks > 0).map(|it| it.node.as_str()).collect();
    if found.is_empty() {
        let what = format!("no copy of disk '{disk}' of container '{dc}' was current all the time but its primary's");
        return Err(Failure::new(what).hint(format!("dvs disk inspect {dc} {disk}; again, when one is")));
    }
    if unread || !differ.is_empty() && !verification.repair {
        let what = format!("copies of disk '{disk}' of container '{dc}' differ: on {}", differ.join(", "));
        let hint = match unread {
            true => format!("the primary's cannot be read: dvs disk replica promote {dc} {disk} NODE, then --repair"),
            false => format!("dvs disk verify {dc} {disk} --repair: what is on {} counts", now.node),
        };
        return Err(Failure::new(what).hint(hint));
    }
    shown
}

/// How copies of a disk are is told of one container at a time.
async fn list(daemon: &Client, dc: Option<&str>) -> Result<Vec<DiskView>, Failure> {
    let names = match dc {
        Some(dc) => vec![dc.to_owned()],
        None => daemon.dcs().await?.into_iter().map(|dc| dc.spec.name).collect(),
    };
    let mut disks = Vec::new();
    for name in names {
        match daemon.dc(&name).await {
            Ok(whole) => disks.extend(disks_of(&whole)),
            Err(error) if dc.is_some() => return Err(error.into()),
            // It was deleted meanwhile.
            Err(_) => (),
        }
    }
    Ok(disks)
}

fn one(dc: &Dc, disk: &str) -> Result<DiskView, Failure> {
    let disks = disks_of(dc);
    let known: Vec<String> = disks.iter().map(|one| one.disk.clone()).collect();
    disks.into_iter().find(|one| one.disk == disk).ok_or_else(|| {
        Failure::new(format!("container '{}' has no disk '{disk}'", dc.spec.name))
            .hint(format!("one of {}", known.join(", ")))
    })
}

impl DiskView {
    /// In a few words.
    fn state(&self) -> String {
        if self.copies.is_empty() {
            return "-".to_owned();
        }
        let have_all = self.copies.iter().filter(|copy| has_all(copy)).count();
        let unknown = self.copies.iter().all(|copy| copy.state.is_none());
        match (have_all, self.copies.len()) {
            (have, all) if unknown || have == all => all.to_string(),
            (have, all) => format!("{all}, {have} with everything"),
        }
    }
}

fn has_all(copy: &CopyView) -> bool {
    matches!(copy.state, Some(DiskCopyState::Primary | DiskCopyState::Current))
}

fn store(store: &DiskStore) -> &'static str {
    match store {
        DiskStore::Image => "set aside",
        DiskStore::Sparse => "sparse",
    }
}

pub fn show(disk: &DiskView, out: &mut impl io::Write) -> io::Result<()> {
    let mut facts = Table::new(&["DISK", &disk.disk]);
    let mut fact = |name: &str, value: String| facts.push(vec![name.to_owned(), value]);
    fact("container", disk.dc.clone());
    fact("size", output::bytes(disk.bytes));
    fact("space", store(&disk.store).to_owned());
    fact("stands on", disk.node.clone());
    disk.epoch.iter().for_each(|epoch| fact("epoch", epoch.to_string()));
    disk.generation.iter().for_each(|generation| fact("generation", generation.to_string()));
    facts.print(out)?;
    if disk.copies.is_empty() {
        return writeln!(
            out,
            "\nno copies: it is lost with its node (dvs disk replica add {} {} NODE)",
            disk.dc, disk.disk
        );
    }
    writeln!(out)?;
    let mut copies = Table::new(&["COPY ON", "STATE"]);
    for copy in &disk.copies {
        copies.push(vec![copy.node.clone(), copy.state.map_or("-".to_owned(), |state| state.to_string())]);
    }
    copies.print(out)?;
    let Some(DiskVerification { found, offsets, repair, asked_s }) = &disk.verification else { return Ok(()) };
    let at = output::clock(asked_s.saturating_mul(1000), now_ms());
    let Some(found) = found else { return writeln!(out, "\nbeing compared since {at}") };
    let differ = found.iter().filter(|it| it.blocks > 0);
    let differ: Vec<String> = differ.map(|it| format!("{} on {}", it.blocks, it.node)).collect();
    if differ.is_empty() {
        return writeln!(out, "\ncompared {at}: {} equal", if found.is_empty() { "none" } else { "all" });
    }
    let offsets: Vec<String> = offsets.iter().map(u64::to_string).collect();
    let then = if *repair { "; they got what the primary has" } else { "" };
    writeln!(out, "\ncompared {at}: blocks that differed: {}; at {}{then}", differ.join(", "), offsets.join(", "))
}

impl Row for DiskView {
    const HEADINGS: &'static [&'static str] = &["DC", "DISK", "SIZE", "SPACE", "ON", "COPIES"];
    const MORE_HEADINGS: &'static [&'static str] = &["EPOCH", "GENERATION"];

    fn more_cells(&self) -> Vec<String> {
        let or_dash = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
        vec![
            or_dash(self.epoch.map(|epoch| epoch.to_string())),
            or_dash(self.generation.map(|generation| generation.to_string())),
        ]
    }

    fn cells(&self) -> Vec<String> {
        let copies = if self.copies.is_empty() {
            String::new()
        } else {
            let nodes: Vec<&str> = self.copies.iter().map(|copy| copy.node.as_str()).collect();
            format!(" ({})", nodes.join(","))
        };
        vec![
            self.dc.clone(),
            self.disk.clone(),
            output::bytes(self.bytes),
            store(&self.store).to_owned(),
            self.node.clone(),
            format!("{}{copies}", self.state()),
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}", self.dc, self.disk)
    }
}
