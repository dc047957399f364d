//! What this machine can do of what containers need, found out by doing it and taking it back. Nothing is left behind.

use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, memfd_create, open};
use rustix::mount::{MountFlags, MountPropagationFlags, OpenTreeFlags, mount, mount_change, open_tree};
use rustix::process::{PidfdFlags, Resource, getrlimit, pidfd_open};
use serde::Serialize;
use sys::child::ForkError;
use sys::mount::{Access, Attributes, Reach, set_attributes};
use sys::ns::Kinds;
use sys::without::{Feature, without};

use crate::cgroup::{Cgroup, Controller, Hierarchy};
use crate::helper::{HelperError, chain, in_child};
use crate::links::{Links, Vxlan};
use crate::{filter, netns, overlay, userns};

/// Descriptors a busy node needs: four per channel while it is made.
const OPEN_FILES: u64 = 20_000;
/// A range for a moment; no container of a real cluster lies there by default.
const PROBE_UID_BASE: u32 = 4_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ok,
    /// Works without it, less well.
    Degraded,
    Missing,
}

/// One thing the machine should be able to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub state: State,
    pub why_needed: &'static str,
    /// What was seen, when it was not what it should be.
    pub found: String,
    /// Empty when nothing needs doing.
    pub what_to_do: &'static str,
}

/// How bad it is when a probe fails.
#[derive(Clone, Copy)]
enum Weight {
    Needed,
    Useful,
}

type Probe = fn() -> Result<(), Box<dyn Error>>;

struct Item {
    name: &'static str,
    weight: Weight,
    why: &'static str,
    fix: &'static str,
    probe: Probe,
}

/// Tries everything. The process should have one thread: some probes fork and say so when they cannot.
pub fn checks() -> Vec<Check> {
    ITEMS.iter().map(check).collect()
}

fn check(item: &Item) -> Check {
    let (state, found) = match (item.probe)() {
        Ok(()) => (State::Ok, String::new()),
        Err(error) => {
            let untried = matches!(error.downcast_ref::<HelperError>(), Some(HelperError::Fork(ForkError::Threads)))
                || matches!(
                    error.downcast_ref::<userns::UsernsError>(),
                    Some(userns::UsernsError::Fork(ForkError::Threads))
                );
            let state = match item.weight {
                Weight::Needed if !untried => State::Missing,
                _ => State::Degraded,
            };
            (state, chain(error.as_ref()))
        }
    };
    let what_to_do = match state {
        State::Ok => "",
        // Nobody should change a kernel because of a probe that was not permitted.
        _ if root().is_err() => "sudo dvs doctor",
        _ => item.fix,
    };
    Check { name: item.name, state, why_needed: item.why, found, what_to_do }
}

const ITEMS: [Item; 18] = [
    Item {
        name: "root",
        weight: Weight::Needed,
        why: "the node daemon makes namespaces, mounts and interfaces",
        fix: "run it as root",
        probe: root,
    },
    Item {
        name: "user namespaces",
        weight: Weight::Needed,
        why: "root inside a container must be nobody outside",
        fix: "raise user.max_user_namespaces; on Debian set kernel.unprivileged_userns_clone=1",
        probe: user_namespace,
    },
    Item {
        name: "shifted owners",
        weight: Weight::Useful,
        why: "the host's system directories show their right owners inside (idmapped mounts)",
        fix: "keep /usr on ext4, xfs, btrfs or tmpfs; Linux 5.12, or 6.6 for overlayfs",
        probe: shifted_owners,
    },
    Item {
        name: "views",
        weight: Weight::Useful,
        why: "of the node's system directories containers read only what everybody may read, and reach no socket there (overlayfs)",
        fix: "Linux 5.19 with overlayfs (modprobe overlay)",
        probe: views,
    },
    Item {
        name: "fuse",
        weight: Weight::Needed,
        why: "the file tree of a container is a FUSE mount",
        fix: "modprobe fuse",
        probe: || device("/dev/fuse"),
    },
    Item {
        name: "fuse resend",
        weight: Weight::Useful,
        why: "requests survive the death of a file gate (FUSE_NOTIFY_RESEND)",
        fix: "Linux 6.9; before, requests in flight fail when a gate dies",
        probe: || not_switched_off(Feature::FuseResend).and_then(|()| kernel_at_least(6, 9)),
    },
    Item {
        name: "overlay network",
        weight: Weight::Needed,
        why: "VXLAN, bridge, veth and the source filter make a container's network",
        fix: "modprobe vxlan bridge veth cls_bpf sch_ingress; Linux 5.18",
        probe: overlay_network,
    },
    Item {
        name: "IPv6",
        weight: Weight::Useful,
        why: "containers have addresses of IPv6 beside those of IPv4",
        fix: "set net.ipv6.conf.all.disable_ipv6=0 and net.ipv6.conf.default.disable_ipv6=0; without, IPv4 goes on alone",
        probe: || Ok(overlay::ipv6_is_on()?),
    },
    Item {
        name: "control groups",
        weight: Weight::Needed,
        why: "limits and accounts of containers",
        fix: "mount cgroup2 at /sys/fs/cgroup with the controllers cpu, cpuset, memory and pids",
        probe: control_groups,
    },
    Item {
        name: "PIDs per namespace",
        weight: Weight::Useful,
        why: "PIDs of a node cannot leave its range, however busy the machine is",
        fix: "Linux 6.14; before, set kernel.pid_max=4194304",
        probe: pid_max_per_namespace,
    },
    Item {
        name: "ns_last_pid",
        weight: Weight::Needed,
        why: "every node gives out PIDs of a range of its own",
        fix: "a kernel with CONFIG_CHECKPOINT_RESTORE",
        probe: || exists("/proc/sys/kernel/ns_last_pid"),
    },
    Item {
        name: "sealed memory",
        weight: Weight::Needed,
        why: "channels are memory that nobody can shrink under a reader",
        fix: "Linux 5.1",
        probe: sealed_memory,
    },
    Item { name: "pidfd", weight: Weight::Needed, why: "deaths are the kernel's word", fix: "Linux 5.3", probe: pidfd },
    Item {
        name: "futex_waitv",
        weight: Weight::Needed,
        why: "a waiter sleeps on its channel and on the death of its peer at once",
        fix: "Linux 5.16",
        probe: || kernel_at_least(5, 16),
    },
    Item {
        name: "seccomp",
        weight: Weight::Needed,
        why: "programs of a container do not get the calls that are the host's alone",
        fix: "a kernel with CONFIG_SECCOMP_FILTER",
        probe: seccomp,
    },
    Item {
        name: "refused descriptors",
        weight: Weight::Useful,
        why: "programs cannot send the broker descriptors that take long to close (SO_PASSRIGHTS)",
        fix: "Linux 6.16; before, threads of their own close them, and a container that sends many loses its connections",
        probe: refused_descriptors,
    },
    Item {
        name: "open files",
        weight: Weight::Useful,
        why: "channels take descriptors",
        fix: "raise the limit of open files to 20000 or more (LimitNOFILE)",
        probe: open_files,
    },
    Item {
        name: "open files of all",
        weight: Weight::Useful,
        why: "memory, which is limited for each container, ends before the machine's number of open files, which is not",
        fix: "sysctl -w fs.file-max=9223372036854775807, as systemd does when it starts",
        probe: open_files_of_all,
    },
];

fn root() -> Result<(), Box<dyn Error>> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err("this process is not root".into()) }
}

fn user_namespace() -> Result<(), Box<dyn Error>> {
    userns::create(PROBE_UID_BASE)?;
    Ok(())
}

fn shifted_owners() -> Result<(), Box<dyn Error>> {
    let owners = userns::create(PROBE_UID_BASE)?;
    in_child(None, || {
        sys::ns::unshare(Kinds::MOUNT)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, "/usr", flags)?;
        let wanted = Attributes { access: Access::ReadOnly, owners: Some(owners.as_fd()), ..Attributes::default() };
        set_attributes(tree.as_fd(), wanted, Reach::One)?;
        Ok((Vec::new(), String::new()))
    })?;
    Ok(())
}

fn device(path: &str) -> Result<(), Box<dyn Error>> {
    open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
        .map_err(|cause| format!("could not open {path}: {cause}"))?;
    Ok(())
}

fn exists(path: &str) -> Result<(), Box<dyn Error>> {
    if Path::new(path).exists() { Ok(()) } else { Err(format!("there is no {path}").into()) }
}

fn not_switched_off(feature: Feature) -> Result<(), Box<dyn Error>> {
    if without(feature) { Err(format!("switched off by {}", sys::without::VARIABLE).into()) } else { Ok(()) }
}

fn kernel_at_least(major: u32, minor: u32) -> Result<(), Box<dyn Error>> {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let have = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if have >= (major, minor) { Ok(()) } else { Err(format!("this is Linux {release}").into()) }
}

/// In a namespace that vanishes with its descriptor.
fn overlay_network() -> Result<(), Box<dyn Error>> {
    let (node, inside) = (netns::create_anonymous()?, netns::create_anonymous()?);
    let mut links = Links::within(&node)?;
    let bridge = links.ensure_bridge("dvsprobe")?;
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let vxlan = links.ensure_vxlan("dvsprobex", &Vxlan { vni: 1, local, port: overlay::PORT })?;
    links.set_port(&vxlan, &bridge, crate::links::PortTrust::Open)?;
    let veth = links.ensure_veth("dvsprobev", "eth0", &inside)?;
    let (mac, address) = (overlay::mac(1, 0), Ipv4Addr::LOCALHOST);
    filter::ensure(
        &mut links,
        &veth,
        &filter::Bounds { mac, address, subnet: "127.0.0.0/8".parse()?, address_ipv6: None },
    )?;
    links.set_port(&veth, &bridge, crate::links::PortTrust::Locked)?;
    Ok(())
}

fn control_groups() -> Result<(), Box<dyn Error>> {
    let hierarchy = Hierarchy::detect()?;
    if let Hierarchy::V1(mounts) = &hierarchy {
        for controller in [Controller::Cpu, Controller::Cpuset, Controller::Memory, Controller::Pids] {
            if !mounts.contains_key(&controller) {
                return Err(format!("the controller '{controller}' is not mounted").into());
            }
        }
    }
    let name = format!("doctor-{}", std::process::id());
    Cgroup::ensure_in(hierarchy, &name, &mgmt_api::Limits::default())?.remove()?;
    Ok(())
}

/// Inside a user namespace, where a kernel with one limit for all refuses to change it.
fn pid_max_per_namespace() -> Result<(), Box<dyn Error>> {
    not_switched_off(Feature::PidMaxOfNamespace)?;
    let owner = userns::create(PROBE_UID_BASE)?;
    in_child(None, || {
        sys::ns::join(&owner, Kinds::USER)?;
        sys::ns::unshare(Kinds::PID | Kinds::MOUNT)?;
        // The first child is the namespace's init; what it does is all there is of it.
        in_child(None, || {
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
            mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?;
            std::fs::write("/proc/sys/kernel/pid_max", "4194303")?;
            Ok((Vec::new(), String::new()))
        })?;
        Ok((Vec::new(), String::new()))
    })?;
    Ok(())
}

fn sealed_memory() -> Result<(), Box<dyn Error>> {
    let memory: OwnedFd = memfd_create("dvs-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
    Ok(())
}

fn pidfd() -> Result<(), Box<dyn Error>> {
    pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    Ok(())
}

fn seccomp() -> Result<(), Box<dyn Error>> {
    let actions = std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail")?;
    if actions.split_whitespace().any(|action| action == "errno") {
        return Ok(());
    }
    Err("the kernel does not list the action errno".into())
}

fn views() -> Result<(), Box<dyn Error>> {
    kernel_at_least(5, 19)?;
    let known = std::fs::read_to_string("/proc/filesystems")?;
    if known.lines().any(|line| line.trim_start_matches("nodev").trim() == "overlay") {
        return Ok(());
    }
    Err("this kernel has no overlayfs, or not yet".into())
}

/// The kernel keeps a quarter of a kibibyte for an open file at least, and charges it to who opened it.
fn open_files_of_all() -> Result<(), Box<dyn Error>> {
    const BYTES_MIN: u64 = 256;
    let most: u64 = std::fs::read_to_string("/proc/sys/fs/file-max")?.trim().parse()?;
    let enough = crate::cgroup::Capacity::of_this_node().memory_bytes / BYTES_MIN;
    if most >= enough {
        return Ok(());
    }
    Err(format!("fs.file-max is {most}: one container with enough memory can take all of them").into())
}

fn refused_descriptors() -> Result<(), Box<dyn Error>> {
    not_switched_off(Feature::PassRights)?;
    if sys::seqpacket::can_refuse_descriptors() { Ok(()) } else { Err("the kernel has no SO_PASSRIGHTS".into()) }
}

fn open_files() -> Result<(), Box<dyn Error>> {
    match getrlimit(Resource::Nofile).maximum {
        Some(maximum) if maximum < OPEN_FILES => Err(io::Error::other(format!("the limit is {maximum}")).into()),
        _ => Ok(()),
    }
}
