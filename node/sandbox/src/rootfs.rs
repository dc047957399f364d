//! The mount tree of a container on one node.
//!
//! ```text
//! /                 small tmpfs, read-only: mount points, /etc, /dev
//! /usr /bin /lib …  views of the host's system directories, read-only, owners shifted into the container's range
//! /opt              likewise, when it was asked for
//! /etc              copy of what everybody on the host may read, with the container's own hosts, hostname, resolv.conf
//! /proc /sys        the container's own; /sys read-only
//! /.proc            its /proc once more, where /proc will be covered by one over several nodes
//! /dev              null zero full random urandom tty, pts, shm, mqueue
//! /tmp /var /run /root /home /srv   one tmpfs of limited size, this node's alone
//! /run/dvs          directory of the M3-IPC socket
//! /dc               the container's file tree (mounted later, `fusemount`)
//! anywhere else     host volumes (`volumes`)
//! ```
//!
//! It is built twice. First in a mount namespace that belongs to the host, because only there may owners be shifted,
//! devices made and `/proc` mounted without a visible other one; the host's own root is then let go. Then it is copied
//! into a mount namespace that belongs to the container's user namespace: by that copy the kernel locks every mount, so
//! that root inside can neither write to what is read-only nor take a mount away to see what is below.
//!
//! `/etc` is a copy and not a clone because root inside may read what root may read: a clone would show it the host's
//! password hashes and keys.
//!
//! A system directory is seen through an overlay of its own, made by a user who owns nothing. The overlay looks at the
//! host's files as that user does: what not everybody on the host may read, root inside may not either, though its
//! owner seems to be root. And it has inodes of its own: sockets and FIFOs of the host lead nowhere, and locks and
//! watches concern only this container. What the host changes there is seen after [`View::refresh`].
//!
//! Not here: the file tree itself, who enters the tree (`keeper`).

use std::ffi::CString;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, makedev, mkdirat, mknodat, open, openat2,
    symlinkat,
};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen, fspick, mount, mount_bind, mount_bind_recursive, mount_change, move_mount, open_tree, unmount,
};
use rustix::process::{fchdir, pivot_root, umask};
use rustix::thread::set_thread_groups;
use sys::mount::{Access, Attributes, Devices, Reach, SetUid, as_user_of_files, set_attributes};
use sys::ns::Kinds;

use crate::etc;
use crate::helper::{HelperError, InPid, Place, in_child};
use crate::volumes::{VolumeError, VolumeMount, attach_again};

/// The host's directories that programs need to run.
const SYSTEM: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// What people put beside the system, often with secrets: only when asked for.
const OPT: &str = "opt";
/// Owns no file, because the ids of what it looks at are all in a container's range, which begins above.
const OWNER_OF_NOTHING: u32 = 65_534;
/// What `statfs` calls an overlay.
const OVERLAY_MAGIC: rustix::fs::FsWord = 0x794c_7630;
/// Where a view's layers are put together; it goes with the host's root.
const LAYERS: &str = "/tmp";
/// Directories of the writable tmpfs and their modes; `shm` is seen at /dev/shm.
const VOLATILE: [(&str, &str, u32); 7] = [
    ("tmp", "tmp", 0o1777),
    ("var", "var", 0o755),
    ("run", "run", 0o755),
    ("root", "root", 0o700),
    ("home", "home", 0o755),
    ("srv", "srv", 0o755),
    ("shm", "dev/shm", 0o1777),
];
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
/// What a program whose root is a directory of the file tree has of the container.
const ITS_OWN: [&str; 6] = ["proc", "dev", "sys", "tmp", "run", "dc"];
/// The group `tty` on every distribution.
const TTY_GID: u32 = 5;
/// Room for /etc and mount points.
const ROOT_BYTES: u64 = 128 << 20;
const VOLATILE_BYTES: u64 = 1 << 30;
/// Directories alone.
const LAYERS_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum RootFsError {
    #[error("could not build the container's mount tree")]
    Build(#[source] HelperError),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error("the builder of the mount tree answered without a descriptor")]
    NoDescriptor,
    #[error("'{0}' is no path inside the file tree")]
    BadPath(String),
    #[error("could not {what} for the root '{path}'")]
    Enter {
        what: &'static str,
        path: String,
        #[source]
        cause: io::Error,
    },
}

/// What the tree is made for.
#[derive(Debug)]
pub struct RootFs<'a> {
    pub user_namespace: BorrowedFd<'a>,
    pub uid_base: u32,
    pub hostname: &'a str,
    /// (name, address)
    pub hosts: &'a [(String, String)],
    pub ipc_dir: Option<&'a Path>,
    /// The program that starts jobs on other nodes. With `ipc_dir`, in which its place is.
    pub on: Option<&'a Path>,
    pub volatile_bytes: Option<u64>,
    /// The kernel's procfs is also seen at [`NATIVE_PROC`]: `/proc` will be covered.
    pub with_native_proc: bool,
    /// Pseudo-terminals at a time.
    pub terminals: u32,
    pub opt: Opt,
    /// Directories of this host.
    pub volumes: &'a [VolumeMount],
}

/// Whether the host's `/opt` is seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Opt {
    #[default]
    Hidden,
    Shown,
}

/// A tree that is ready to be entered.
#[derive(Debug)]
pub struct Built {
    pub mount_namespace: OwnedFd,
    /// What this host could not give.
    pub degraded: Vec<String>,
}

/// The reason of a step that failed, for the helper's one-line account.
fn step<E: Display>(what: impl Display) -> impl FnOnce(E) -> Box<dyn std::error::Error> {
    move |cause| format!("could not {what}: {cause}").into()
}

type Done<T = ()> = Result<T, Box<dyn std::error::Error>>;

impl RootFs<'_> {
    /// Builds the tree for the pid, network and IPC namespaces of `init` (a pidfd). The caller must be the host's root
    /// and have one thread.
    pub fn build(&self, init: BorrowedFd<'_>) -> Result<Built, RootFsError> {
        let maps: Vec<Option<OwnedFd>> =
            self.volumes.iter().map(|volume| volume.map(self.uid_base)).collect::<Result<_, _>>()?;
        let kinds = Kinds::PID | Kinds::NET | Kinds::IPC | Kinds::UTS;
        let place = Place { process: init, kinds, pid: InPid::Yes };
        let (fds, notes) = in_child(Some(place), || self.build_here(&maps)).map_err(RootFsError::Build)?;
        let mount_namespace = fds.into_iter().next().ok_or(RootFsError::NoDescriptor)?;
        Ok(Built { mount_namespace, degraded: notes.lines().map(str::to_owned).collect() })
    }

    fn build_here(&self, maps: &[Option<OwnedFd>]) -> Done<(Vec<OwnedFd>, String)> {
        umask(Mode::empty());
        sys::ns::unshare(Kinds::MOUNT).map_err(step("make a mount namespace"))?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .map_err(step("part from the host's mounts"))?;
        // What comes from the host is taken before anything of it is covered.
        let mut notes = Vec::new();
        let ipc = self.ipc_dir.map(|dir| clone(dir, OpenTreeFlags::empty())).transpose()?;
        let on = self.on.filter(|_| ipc.is_some()).and_then(|path| self.take_on(path, &mut notes));
        let names = if self.ipc_dir.is_some_and(|dir| dir.join(HOSTS).exists()) { Names::Node } else { Names::Own };
        let etc = etc::collect(Path::new("/etc"));
        let volumes = self.take_volumes(maps)?;
        let system = self.take_system(&mut notes)?;

        let root = self.new_root()?;
        fchdir(&root).map_err(step("enter the new root"))?;
        self.place_system(&system)?;
        self.make_dir("etc", 0o755)?;
        self.fill_etc(&etc, names)?;
        self.make_dir("dev", 0o755)?;
        self.fill_dev()?;
        self.place_volatile(ipc, on)?;
        for dir in ["dc", "mnt", "media"] {
            self.make_dir(dir, 0o755)?;
        }
        self.place_kernel_views()?;
        for (volume, tree) in self.volumes.iter().zip(&volumes) {
            volume.attach(tree, self.uid_base)?;
        }
        let read_only = Attributes { access: Access::ReadOnly, set_uid: SetUid::Ignored, ..Attributes::default() };
        set_attributes(root.as_fd(), read_only, Reach::One).map_err(step("make the root read-only"))?;
        become_root_of_all()?;
        self.hand_over().map(|namespace| (vec![namespace], notes.join("\n")))
    }

    /// Copies everything into a namespace of the container's own user namespace; locks every mount by doing so.
    fn hand_over(&self) -> Done<OwnedFd> {
        sys::ns::join(self.user_namespace, Kinds::USER).map_err(step("enter the user namespace"))?;
        sys::ns::unshare(Kinds::MOUNT).map_err(step("make the container's mount namespace"))?;
        open("/proc/self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(step("open the container's mount namespace"))
    }

    fn take_system(&self, notes: &mut Vec<String>) -> Done<Vec<(&'static str, Taken)>> {
        let mut taken = Vec::new();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").map_err(step("read the list of mounts"))?;
        let opt = (self.opt == Opt::Shown).then_some(OPT);
        for name in SYSTEM.into_iter().chain(opt) {
            let path = Path::new("/").join(name);
            match std::fs::symlink_metadata(&path) {
                Ok(kind) if kind.is_symlink() => {
                    let target = std::fs::read_link(&path).map_err(step(format!("read {}", path.display())))?;
                    taken.push((name, Taken::Link(target)));
                }
                Ok(kind) if kind.is_dir() => taken.push((name, Taken::Trees(self.clones(&path, &mounts, notes)?))),
                _ => (),
            }
        }
        // Everything was taken; now a place for layers may cover a directory.
        let layers = self.tmpfs(LAYERS_BYTES, MountAttrFlags::empty())?;
        attach(&layers, LAYERS)?;
        let mut number = 0;
        for tree in taken.iter_mut().filter_map(|(_, taken)| taken.trees()).flatten() {
            number += 1;
            if let Err(error) = self.view_of(tree, number) {
                notes.push(format!(
                    "{}: the container sees the directory itself and not a view of its own, so that its root reads files of the \
                     node's root there and reaches sockets ({error}; Linux 5.19 has views)",
                    tree.path.display()
                ));
            }
        }
        Ok(taken)
    }

    fn take_volumes(&self, maps: &[Option<OwnedFd>]) -> Done<Vec<OwnedFd>> {
        let both = self.volumes.iter().zip(maps);
        Ok(both.map(|(volume, map)| volume.take(map.as_ref().map(AsFd::as_fd))).collect::<Result<_, _>>()?)
    }

    fn take_on(&self, path: &Path, notes: &mut Vec<String>) -> Option<OwnedFd> {
        let only = Attributes { access: Access::ReadOnly, devices: Devices::Refused, ..Attributes::default() };
        let taken = clone(path, OpenTreeFlags::empty()).and_then(|tree| {
            set_attributes(tree.as_fd(), only, Reach::One)
                .map_err(step(format!("make {} read-only", path.display())))?;
            Ok(tree)
        });
        taken.inspect_err(|error| notes.push(format!("programs have no 'on' ({error}): no jobs on other nodes"))).ok()
    }

    /// A read-only clone of a directory and of each file system mounted below it, with shifted owners where the file
    /// system can.
    fn clones(&self, path: &Path, mounts: &str, notes: &mut Vec<String>) -> Done<Vec<Tree>> {
        let plain = Attributes { access: Access::ReadOnly, devices: Devices::Refused, ..Attributes::default() };
        let shifted = Attributes { owners: Some(self.user_namespace), ..plain };
        let mut trees = Vec::new();
        for place in std::iter::once(path.to_owned()).chain(mounted_below(path, mounts)) {
            let tree = match clone(&place, OpenTreeFlags::empty()) {
                Ok(tree) => tree,
                // What is mounted below need not be one that can be taken; the directory itself must.
                Err(error) if place != path => {
                    notes.push(format!("{}: not in the container ({error})", place.display()));
                    continue;
                }
                Err(error) => return Err(error),
            };
            if set_attributes(tree.as_fd(), shifted, Reach::One).is_err() {
                notes.push(format!(
                    "{}: its file system cannot shift owners, files there seem to belong to nobody",
                    place.display()
                ));
                set_attributes(tree.as_fd(), plain, Reach::One)
                    .map_err(step(format!("make {} read-only", place.display())))?;
            }
            trees.push(Tree { path: place, tree });
        }
        Ok(trees)
    }

    /// Puts an overlay of its own in a clone's place.
    fn view_of(&self, clone: &mut Tree, number: usize) -> Done {
        let (top, below) = (format!("{LAYERS}/top-{number}"), format!("{LAYERS}/below-{number}"));
        for dir in [&top, &below] {
            self.make_dir(dir, 0o755)?;
        }
        attach(&clone.tree, &below)?;
        if self.on.is_some() && clone.path == Path::new("/usr") {
            // Every PATH has it, also one that a login shell made.
            self.make_dir(format!("{top}/bin"), 0o755)?;
            self.make_link(Path::new(ON), format!("{top}/bin/on"))?;
        }
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).map_err(step("make an overlay"))?;
        // The empty layer on top is there because an overlay has two at least.
        fsconfig_set_string(context.as_fd(), "lowerdir", format!("{top}:{below}")).map_err(step("name its layers"))?;
        set_thread_groups(&[]).map_err(step("leave the groups"))?;
        as_user_of_files(OWNER_OF_NOTHING, || fsconfig_create(context.as_fd()))
            .map_err(step("become who owns nothing"))?
            .map_err(step("make an overlay"))?;
        let flags = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV;
        clone.tree =
            fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags).map_err(step("mount an overlay"))?;
        Ok(())
    }

    fn new_root(&self) -> Done<OwnedFd> {
        let root = self.tmpfs(ROOT_BYTES, MountAttrFlags::empty())?;
        // Any directory will do as the place; what is there was taken already and the host's root goes in a moment.
        attach(&root, "/tmp")?;
        Ok(root)
    }

    fn tmpfs(&self, bytes: u64, flags: MountAttrFlags) -> Done<OwnedFd> {
        let fail = || step("make a tmpfs");
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(fail())?;
        let owner = self.uid_base.to_string();
        let settings = [("size", bytes.to_string()), ("mode", "0755".into()), ("uid", owner.clone()), ("gid", owner)];
        for (key, value) in settings {
            fsconfig_set_string(context.as_fd(), key, value).map_err(fail())?;
        }
        fsconfig_create(context.as_fd()).map_err(fail())?;
        fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags).map_err(fail())
    }

    fn place_system(&self, system: &[(&'static str, Taken)]) -> Done {
        for (name, taken) in system {
            match taken {
                Taken::Link(target) => self.make_link(target, name)?,
                Taken::Trees(trees) => {
                    self.make_dir(name, 0o755)?;
                    for tree in trees {
                        attach(&tree.tree, tree.path.to_string_lossy().trim_start_matches('/'))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn fill_etc(&self, found: &etc::Collected, names: Names) -> Done {
        for entry in &found.entries {
            let path = Path::new("etc").join(&entry.path);
            // A file that cannot be written (a name too long for tmpfs) is no reason to have no container.
            let _ = match &entry.what {
                etc::What::Dir(mode) => self.make_dir(&path, *mode),
                etc::What::Link(target) => self.make_link(target, &path),
                etc::What::File(mode, content) => self.make_file(&path, *mode, content),
            };
        }
        if names == Names::Node {
            for (name, path) in [(HOSTS, "etc/hosts"), (RESOLV_CONF, "etc/resolv.conf")] {
                let _ = std::fs::remove_file(path);
                self.make_link(Path::new("../run/dvs").join(name).as_path(), path)?;
            }
        } else {
            self.replace_file("etc/hosts", hosts_text(self.hosts).as_bytes())?;
            self.replace_file("etc/resolv.conf", NO_RESOLVER.as_bytes())?;
        }
        self.replace_file("etc/hostname", format!("{}\n", self.hostname).as_bytes())?;
        let _ = std::fs::remove_file("etc/mtab");
        self.make_link(Path::new("../proc/self/mounts"), "etc/mtab")
    }

    fn fill_dev(&self) -> Done {
        for (name, major, minor) in DEVICES {
            let path = Path::new("dev").join(name);
            let mode = Mode::from_raw_mode(0o666);
            mknodat(CWD, &path, FileType::CharacterDevice, mode, makedev(major, minor))
                .map_err(step(format!("make /dev/{name}")))?;
            self.own(&path)?;
        }
        let links = [
            ("/proc/self/fd", "fd"),
            ("/proc/self/fd/0", "stdin"),
            ("/proc/self/fd/1", "stdout"),
            ("/proc/self/fd/2", "stderr"),
            ("pts/ptmx", "ptmx"),
        ];
        for (target, name) in links {
            self.make_link(Path::new(target), Path::new("dev").join(name))?;
        }
        for dir in ["dev/pts", "dev/shm", "dev/mqueue"] {
            self.make_dir(dir, 0o755)?;
        }
        let options =
            format!("newinstance,ptmxmode=0666,mode=0620,gid={},max={}", self.uid_base + TTY_GID, self.terminals);
        mount_with("devpts", "dev/pts", MountFlags::NOSUID | MountFlags::NOEXEC, &options)?;
        mount_with("mqueue", "dev/mqueue", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, "")
    }

    /// One file system for everything writable, so that one size limits it.
    fn place_volatile(&self, ipc: Option<OwnedFd>, on: Option<OwnedFd>) -> Done {
        let flags = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID;
        let all = self.tmpfs(self.volatile_bytes.unwrap_or(VOLATILE_BYTES), flags)?;
        self.make_dir("volatile", 0o700)?;
        attach(&all, "volatile")?;
        for (name, place, mode) in VOLATILE {
            let source = Path::new("volatile").join(name);
            self.make_dir(&source, mode)?;
            if name != "shm" {
                self.make_dir(place, 0o755)?;
            }
            mount_bind(&source, place).map_err(step(format!("mount /{place}")))?;
        }
        for (dir, mode) in [("var/tmp", 0o1777), ("var/lib", 0o755), ("var/cache", 0o755), ("var/log", 0o755)] {
            self.make_dir(dir, mode)?;
        }
        self.make_link(Path::new("../run"), "var/run")?;
        self.make_dir("run/lock", 0o1777)?;
        if let Some(ipc) = ipc {
            self.make_dir("run/dvs", 0o755)?;
            attach(&ipc, "run/dvs")?;
            on.map(|on| attach(&on, ON.trim_start_matches('/'))).transpose()?;
        }
        unmount("volatile", UnmountFlags::DETACH).map_err(step("put away the volatile tree"))?;
        std::fs::remove_dir("volatile").map_err(step("put away the volatile tree"))
    }

    fn place_kernel_views(&self) -> Done {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        self.make_dir("proc", 0o555)?;
        self.make_dir("sys", 0o555)?;
        mount_with("proc", "proc", flags, "")?;
        if self.with_native_proc {
            let place = NATIVE_PROC.trim_start_matches('/');
            self.make_dir(place, 0o555)?;
            mount_with("proc", place, flags, "")?;
        }
        mount_with("sysfs", "sys", flags | MountFlags::RDONLY, "")
    }

    fn make_dir(&self, path: impl AsRef<Path>, mode: u32) -> Done {
        let path = path.as_ref();
        mkdirat(CWD, path, Mode::from_raw_mode(mode)).map_err(step(format!("make /{}", path.display())))?;
        self.own(path)
    }

    fn make_link(&self, target: &Path, path: impl AsRef<Path>) -> Done {
        let path = path.as_ref();
        symlinkat(target, CWD, path).map_err(step(format!("make /{}", path.display())))?;
        self.own(path)
    }

    fn make_file(&self, path: &Path, mode: u32, content: &[u8]) -> Done {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::from_raw_mode(mode)).map_err(step(format!("make /{}", path.display())))?;
        io::Write::write_all(&mut std::fs::File::from(file), content)
            .map_err(step(format!("write /{}", path.display())))?;
        self.own(path)
    }

    fn replace_file(&self, path: &str, content: &[u8]) -> Done {
        let _ = std::fs::remove_file(path);
        self.make_file(Path::new(path), 0o644, content)
    }

    fn own(&self, path: &Path) -> Done {
        let (uid, gid) = (Uid::from_raw(self.uid_base), Gid::from_raw(self.uid_base));
        chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(step(format!("give /{} to the container", path.display())))
    }
}

/// Who has `/etc/hosts` and `/etc/resolv.conf`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    /// The node, which changes them when the container becomes another.
    Node,
    Own,
}

/// The kernel's procfs, where `/proc` is one over all nodes of the container.
pub const NATIVE_PROC: &str = "/.proc";
/// The program that starts jobs on other nodes, as programs see it. The directory of [`RootFs::ipc_dir`] has a file
/// there.
const ON: &str = "/run/dvs/bin/on";
/// File in the directory that programs see as `/run/dvs`, to which their `/etc/hosts` leads.
pub const HOSTS: &str = "hosts";
/// Likewise of `/etc/resolv.conf`.
pub const RESOLV_CONF: &str = "resolv.conf";
/// What that says where there is no name server.
pub const NO_RESOLVER: &str = "# This container has no name server; its members are in /etc/hosts.\n";

/// Lines of `/etc/hosts`.
pub fn hosts_text(hosts: &[(String, String)]) -> String {
    let lines = hosts.iter().map(|(name, address)| format!("{address}\t{name}\n"));
    std::iter::once("127.0.0.1\tlocalhost\n".to_owned()).chain(lines).collect()
}

/// What a system directory of the host is.
enum Taken {
    Link(PathBuf),
    /// The directory first, then what is mounted below it, outer before inner.
    Trees(Vec<Tree>),
}

impl Taken {
    fn trees(&mut self) -> Option<&mut Vec<Tree>> {
        match self {
            Taken::Link(_) => None,
            Taken::Trees(trees) => Some(trees),
        }
    }
}

/// A mount, and where it is to be seen.
struct Tree {
    path: PathBuf,
    tree: OwnedFd,
}

/// Directories below `path` on which something is mounted, by the kernel's list, each once.
fn mounted_below(path: &Path, mounts: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        // The kernel writes a space as \040; who mounts there has a directory that containers do not see.
        .filter(|place| !place.contains('\\'))
        .map(PathBuf::from)
        .filter(|place| place != path && place.starts_with(path) && place.is_dir())
        .collect();
    found.sort();
    found.dedup();
    found
}

/// The container's view of one of the host's directories.
#[derive(Debug)]
pub struct View(OwnedFd);

impl View {
    /// Those of the container whose root is `root`, as this host sees it.
    pub fn all(root: &Path) -> Vec<View> {
        let open_view = |name: &str| {
            let view = open(root.join(name), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).ok()?;
            (rustix::fs::fstatfs(&view).ok()?.f_type == OVERLAY_MAGIC).then_some(View(view))
        };
        SYSTEM.iter().copied().chain([OPT]).filter_map(open_view).collect()
    }

    /// Forgets what was looked up, so that what the host installed or removed since is seen, but for what is in use.
    pub fn refresh(&self) -> io::Result<()> {
        let context = fspick(&self.0, "", FsPickFlags::FSPICK_EMPTY_PATH | FsPickFlags::FSPICK_CLOEXEC)?;
        // What it is already; without the word an overlay that cannot be written is asked to become one that can.
        fsconfig_set_flag(context.as_fd(), "ro")?;
        Ok(fsconfig_reconfigure(context.as_fd())?)
    }
}

/// What becomes of symbolic links in a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Links {
    Followed,
    Refused,
}

/// Makes a directory of the file tree (`/dc/...`) the root of the calling process, in a mount namespace of its own,
/// with the container's /proc, /dev, /sys, /tmp, /run and /dc in it, and its host volumes. The caller is root inside
/// the container.
pub fn enter_tree(path: &str, links: Links, volumes: &[VolumeMount]) -> Result<(), RootFsError> {
    let root = Path::new(path);
    if !root.starts_with("/dc") || root.components().any(|part| part == Component::ParentDir) {
        return Err(RootFsError::BadPath(path.to_owned()));
    }
    let fail = |what| move |cause: io::Error| RootFsError::Enter { what, path: path.to_owned(), cause };
    let refused = |what| move |cause: rustix::io::Errno| fail(what)(cause.into());
    sys::ns::unshare(Kinds::MOUNT).map_err(fail("make a mount namespace"))?;
    let resolve = match links {
        Links::Followed => ResolveFlags::empty(),
        Links::Refused => ResolveFlags::NO_SYMLINKS,
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat2(CWD, root, flags, Mode::empty(), resolve).map_err(refused("find the directory"))?;
    // A mount of its own, as the change of root demands.
    let whole = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(&dir, "", whole | OpenTreeFlags::AT_EMPTY_PATH).map_err(refused("take the directory"))?;
    let onto = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&tree, "", &dir, "", onto).map_err(refused("mount the directory"))?;
    rustix::process::fchdir(&tree).map_err(refused("enter the directory"))?;
    for name in ITS_OWN {
        match mkdirat(CWD, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => (),
            Err(cause) => return Err(refused("make a mount point")(cause)),
        }
        let native = Path::new(NATIVE_PROC);
        // Links of the other one lead out of the image.
        let source = if name == "proc" && native.exists() { native.to_owned() } else { Path::new("/").join(name) };
        mount_bind_recursive(&source, name).map_err(refused("mount the container's own directories"))?;
    }
    // What lies in those of its own came with them.
    let is_elsewhere = |place: &&Path| !ITS_OWN.iter().any(|name| place.starts_with(Path::new("/").join(name)));
    for place in volumes.iter().map(|volume| volume.place.as_path()).filter(is_elsewhere) {
        attach_again(place).map_err(refused("mount a volume"))?;
    }
    for name in ["etc/hosts", "etc/hostname", "etc/resolv.conf"] {
        // Only where the image has such a file; a link would lead out of it.
        if std::fs::symlink_metadata(name).is_ok_and(|kind| kind.is_file()) {
            mount_bind(Path::new("/").join(name), name).map_err(refused("mount the container's own /etc files"))?;
        }
    }
    pivot().map_err(refused("change the root"))
}

fn become_root_of_all() -> Done {
    pivot().map_err(step("let the host's root go"))
}

/// Makes the current directory the root and lets the old one go, host paths and all.
fn pivot() -> rustix::io::Result<()> {
    // Both at one place: the old root comes to lie on top of the new one and is taken away from there.
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")
}

fn clone(path: &Path, flags: OpenTreeFlags) -> Done<OwnedFd> {
    open_tree(CWD, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | flags)
        .map_err(step(format!("take {}", path.display())))
}

fn attach(tree: &OwnedFd, place: &str) -> Done {
    move_mount(tree, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(step(format!("mount /{place}")))
}

fn mount_with(kind: &str, place: &str, flags: MountFlags, options: &str) -> Done {
    let options = CString::new(options).map_err(|error| error.to_string())?;
    mount(kind, place, kind, flags, options.as_c_str()).map_err(step(format!("mount /{place}")))
}
