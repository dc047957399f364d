//! `dvs alone fs`: a file tree that is mounted, for programs of this machine.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use end_to_end::dvs_binary;
use end_to_end::nbd::has;
use rustix::process::{Pid, Signal, kill_process};

use crate::{ok, run};

/// A tree that is mounted; unmounted when dropped, whatever became of its servers.
struct Tree {
    child: Child,
    place: PathBuf,
}

impl Tree {
    /// `as_user`: not as root.
    fn mount(image: &Path, place: &Path, as_user: Option<u32>, options: &[&str]) -> Tree {
        let mut command = match as_user {
            None => Command::new(dvs_binary()),
            Some(user) => {
                // Where the device is for everybody, as it is on most machines.
                let script = "mknod -m 666 $0/fuse c 10 229; mount --bind $0/fuse /dev/fuse; exec \"$@\"";
                let mut command = Command::new("unshare");
                command.args(["-m", "sh", "-ec", script]).arg(image.parent().expect("a directory"));
                command.args(["setpriv", &format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]);
                command.arg(dvs_binary());
                command
            }
        };
        command.args(["alone", "fs"]).args([image, place]).args(options).stdout(Stdio::piped());
        let mut child = command.spawn().expect("dvs starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
        let tree = Tree { child, place: place.to_owned() };
        assert!(line.contains("is mounted at"), "{line}");
        tree
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signalled");
    }

    fn end(mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.child.wait().expect("it ends").code()
    }

    /// Of one of its servers.
    fn server(&self, name: &str) -> Pid {
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = std::fs::read_to_string(children).expect("children");
        let named =
            |pid: &&str| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name);
        let pid = children.split_whitespace().find(named).unwrap_or_else(|| panic!("no {name} of {children}"));
        Pid::from_raw(pid.parse().expect("a number")).expect("a process")
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
        let _ = Command::new("umount").arg("-l").arg(&self.place).stderr(Stdio::null()).status();
    }
}

fn place(dir: &Path, name: &str) -> PathBuf {
    let place = dir.join(name);
    std::fs::create_dir(&place).expect("a directory");
    place
}

#[test]
fn image_that_is_only_looked_at_stays_as_it_is_also_when_it_was_not_closed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (image, at, also) = (dir.path().join("tree.img"), place(dir.path(), "tree"), place(dir.path(), "also"));
    let mut tree = Tree::mount(&image, &at, None, &["--size", "256M"]);
    ok("sh", &["-ec", "cd $0 && echo told > a && sync a", at.to_str().expect("text")]);
    tree.signal(Signal::KILL);
    tree.child.wait().expect("it ends");
    drop(tree);
    let before = std::fs::read(&image).expect("the image");
    let looks = [&at, &also].map(|place| Tree::mount(&image, place, None, &["--read-only"]));
    for place in [&at, &also] {
        assert_eq!(std::fs::read(place.join("a")).expect("read"), b"told\n");
        let refused = std::fs::write(place.join("b"), "not told").expect_err("nothing is changed");
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    }
    looks.into_iter().for_each(|tree| assert_eq!(tree.end(), Some(0)));
    assert!(std::fs::read(&image).expect("the image") == before);
    std::fs::write(&image, vec![0; 64 << 20]).expect("an image");
    let option = Path::new("--read-only");
    let (status, _) = refused_tree(&[&image, &at, option]);
    assert!(status == Some(1) && std::fs::read(&image).expect("the image").iter().all(|byte| *byte == 0));
}

#[test]
fn image_is_a_file_tree_that_stays_whichever_of_its_servers_is_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (image, at) = (dir.path().join("tree.img"), place(dir.path(), "tree"));
    let tree = Tree::mount(&image, &at, None, &["--size", "256M"]);
    let script = "cd $0 && mkdir -p a/b && for i in $(seq 300); do echo $i > a/b/$i; sync a/b/$i; done; \
                  ln -s b a/link; chmod 640 a/b/1; cat a/link/* | wc -l";
    let writer = Command::new("sh").args(["-ec", script]).arg(&at).stdout(Stdio::piped()).spawn().expect("sh starts");
    for name in ["dvs-server-fs", "dvs-gate-fuse", "dvs-server-disk"].iter().cycle().take(6) {
        std::thread::sleep(Duration::from_millis(150));
        kill_process(tree.server(name), Signal::KILL).expect("killed");
    }
    let done = writer.wait_with_output().expect("it ends");
    assert!(done.status.success() && done.stdout == b"300\n", "{done:?}");
    // Nobody takes it away from who uses it.
    let used = std::fs::File::open(at.join("a/b/1")).expect("open");
    tree.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(300));
    assert!(at.join("a/b/2").exists());
    drop(used);
    assert_eq!(tree.end(), Some(0));
    assert_eq!(std::fs::read_dir(&at).expect("a directory").count(), 0, "it is unmounted");

    // Everything is in the image; umount ends it as well.
    let mut tree = Tree::mount(&image, &at, None, &[]);
    assert_eq!(std::fs::read_dir(at.join("a/b")).expect("a directory").count(), 300);
    assert_eq!(std::fs::read_link(at.join("a/link")).expect("a link"), Path::new("b"));
    ok("umount", &[at.to_str().expect("text")]);
    assert_eq!(tree.child.wait().expect("it ends").code(), Some(0));
    drop(tree);
    // With its first process all end.
    let tree = Tree::mount(&image, &at, None, &[]);
    let servers = ["dvs-server-fs", "dvs-gate-fuse", "dvs-server-disk"].map(|name| tree.server(name));
    tree.signal(Signal::KILL);
    let began = Instant::now();
    while servers.iter().any(|pid| rustix::process::test_kill_process(*pid).is_ok()) {
        assert!(began.elapsed() < Duration::from_secs(10), "they stay");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (status, said) = refused_tree(&[&image, &at]);
    assert!(status == Some(1) && said.contains("umount -l"), "{said}");
}

fn refused_tree(arguments: &[&Path]) -> (Option<i32>, String) {
    let done = Command::new(dvs_binary()).args(["alone", "fs"]).args(arguments).output().expect("dvs starts");
    (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
}

#[test]
fn what_is_no_file_tree_is_left_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let (image, at) = (dir.path().join("other.img"), place(dir.path(), "tree"));
    std::fs::write(&image, vec![b'x'; 64 << 20]).expect("written");
    let (status, said) = refused_tree(&[&image, &at]);
    assert!(status == Some(1) && said.contains("does not begin"), "{said}");
    assert!(std::fs::read(&image).expect("read").iter().all(|byte| *byte == b'x'));
    let (status, said) = refused_tree(&[&dir.path().join("none.img"), &at]);
    assert!(status == Some(1) && said.contains("--size"), "{said}");
    let (status, said) = refused_tree(&[&image, &dir.path().join("nowhere")]);
    assert!(status == Some(1) && said.contains("mkdir"), "{said}");
    let (status, said) = refused_tree(&[&image, &image]);
    assert!(status == Some(1) && said.contains("a directory"), "{said}");
    let image = dir.path().join("tree.img");
    let tree = Tree::mount(&image, &at, None, &["--size", "64M"]);
    let (status, said) = refused_tree(&[&image, &place(dir.path(), "second")]);
    assert!(status == Some(1) && said.contains("is served already"), "{said}");
    assert_eq!(tree.end(), Some(0));
}

#[test]
fn who_is_not_root_has_a_tree_of_his_own() {
    // The helper wants a name in /etc/passwd: nobody.
    const USER: u32 = 65534;
    if !has("fusermount3", "fuse3") || !has("setpriv", "util-linux") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (image, at) = (dir.path().join("tree.img"), place(dir.path(), "tree"));
    for path in [dir.path(), &at] {
        std::os::unix::fs::chown(path, Some(USER), Some(USER)).expect("given away");
    }
    let tree = Tree::mount(&image, &at, Some(USER), &["--size", "64M"]);
    let pid = tree.child.id().to_string();
    let [user, group] = ["--reuid", "--regid"].map(|option| format!("{option}={USER}"));
    let inside = ["-t", &pid, "-m", "setpriv", "--clear-groups", &user, &group];
    let script = format!("cd {} && mkdir a && echo hello > a/b && cat a/b && stat -c %u a/b", at.display());
    let said = ok("nsenter", &[&inside[..], &["sh", "-ec", &script]].concat());
    assert_eq!(said, format!("hello\n{USER}\n"));
    // Root is another one.
    let looked = run("nsenter", &["-t", &pid, "-m", "ls", at.to_str().expect("text")]);
    assert!(!looked.status.success(), "{looked:?}");
    kill_process(tree.server("dvs-server-fs"), Signal::KILL).expect("killed");
    let said = ok("nsenter", &[&inside[..], &["cat", &format!("{}/a/b", at.display())]].concat());
    assert_eq!(said, "hello\n");
    assert_eq!(tree.end(), Some(0));
}
