//! Host volumes: directories of nodes in containers, where the administrator allows them, and nowhere else.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use end_to_end::{Cluster, eventually};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(30);
/// Of the machine, as whose files containers have what they write.
const OWNER: u32 = 41_000;

/// On the machine, `data` (writable), `docs` (not) and `private` (not allowed), the same on all nodes until somebody
/// mounts another there.
struct Directories(tempfile::TempDir);

impl Directories {
    fn new() -> Directories {
        let all = Directories(tempfile::Builder::new().prefix("dvs-v").tempdir_in("/var/tmp").expect("a directory"));
        fs::set_permissions(all.0.path(), Permissions::from_mode(0o755)).expect("a mode");
        for name in ["data", "docs", "private"] {
            fs::create_dir(all.path(name)).expect("a directory");
        }
        std::os::unix::fs::chown(all.path("data"), Some(OWNER), Some(OWNER)).expect("an owner");
        fs::write(all.path("docs").join("page"), "page\n").expect("a file");
        fs::write(all.path("private").join("secret"), "secret\n").expect("a file");
        all
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("text").to_owned()
    }

    /// As `-v` has it.
    fn volume(&self, name: &str, place: &str) -> String {
        format!("{}:{place}", self.text(name))
    }

    fn cluster(&self, nodes: usize) -> Cluster {
        let data = format!("{}={OWNER}", self.text("data"));
        Cluster::up_with(nodes, &["--volume", &data, "--volume", &self.text("docs")])
    }
}

fn names(cluster: &Cluster) -> String {
    cluster.ok(&["dc", "ls", "-o", "name"])
}

/// What the nodes' daemons allow from their next start on.
fn allow(cluster: &Cluster, volumes: Value) {
    let place = cluster.state_dir().join("run/dev/dev/cluster.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&place).expect("a record")).expect("JSON");
    record["volumes"] = volumes;
    fs::write(place, record.to_string()).expect("written");
}

fn restart_daemon(cluster: &Cluster, node: &str, witness: &str) {
    cluster.lose_daemon(node, witness);
    cluster.ok(&["dev", "restart", node]);
}

#[test]
fn programs_of_all_kinds_see_the_directory_of_their_own_node() {
    let dirs = Directories::new();
    let cluster = dirs.cluster(2);
    // Another machine has other files under the same name.
    let others = dirs.path("others");
    fs::create_dir(&others).expect("a directory");
    std::os::unix::fs::chown(&others, Some(OWNER), Some(OWNER)).expect("an owner");
    let (others, data) = (dirs.text("others"), dirs.text("data"));
    cluster.ok(&["dev", "exec", "n2", "--", "mount", "--bind", &others, &data]);
    let (data, docs) = (dirs.volume("data", "/srv/data"), dirs.volume("docs", "/docs"));
    cluster.container("shop", 2, &["-v", &data, "-v", &docs]);

    for node in ["n1", "n2"] {
        let own =
            format!("echo {node} > /srv/data/of-root; install -d -o 99 -g 99 /srv/data/db; stat -c %u /srv/data/*");
        assert_eq!(cluster.sh("shop", node, &own), "99\n0\n");
        let other = "echo x > /srv/data/db/file; id -u";
        assert_eq!(cluster.ok(&["run", "shop", "-n", node, "-u", "99:99", "--", "sh", "-c", other]), "99\n");
        assert_eq!(cluster.sh("shop", node, "cat /docs/page; ! touch /docs/x 2> /dev/null"), "page\n");
    }
    let read = |name: &str| fs::read_to_string(dirs.path(name)).expect("it is there");
    assert_eq!((read("data/of-root"), read("others/of-root")), ("n1\n".to_owned(), "n2\n".to_owned()));
    // Root inside is whom the administrator says; others have numbers of the container's own.
    let owner = |name: &str| fs::metadata(dirs.path(name)).expect("it is there").uid();
    assert_eq!(owner("data/of-root"), OWNER);
    assert!(owner("data/db/file") > 1 << 28 && owner("data/db/file") % 65_536 == 99, "{}", owner("data/db/file"));

    // From elsewhere, beside a program, as a service, and with a root of its own.
    assert_eq!(cluster.sh("shop", "n1", "on n2 cat /srv/data/of-root"), "n2\n");
    assert_eq!(cluster.ok(&["exec", "shop", "--", "cat", "/srv/data/of-root"]), "n1\n");
    let script = "cat /srv/data/of-root; exec sleep 1000";
    cluster.ok(&["service", "add", "shop", "reader", "--node", "n2", "--", "sh", "-c", script]);
    eventually("the service has read", SOON, || {
        (cluster.output(&["service", "logs", "shop", "reader"]).stdout == b"n2\n").then_some(())
    });
    assert!(Path::new("/bin/busybox").exists(), "busybox-static is installed");
    fs::copy("/bin/busybox", dirs.path("docs/busybox")).expect("a copy");
    cluster.sh(
        "shop",
        "n1",
        "mkdir -p /dc/img/bin /dc/img/var/srv; cp /docs/busybox /dc/img/bin; ln -s var/srv /dc/img/srv",
    );
    for node in ["n1", "n2"] {
        let look = "/bin/busybox cat /srv/data/of-root /docs/page; echo w > /srv/data/of-an-image; ! echo w > /docs/w";
        let said = cluster.ok(&["run", "shop", "-n", node, "--root", "/img", "--", "/bin/busybox", "sh", "-c", look]);
        assert_eq!(said, format!("{node}\npage\n"));
    }
    assert_eq!(owner("others/of-an-image"), OWNER);

    // It is described as it was asked for, and stays with the node when the container goes.
    let whole = cluster.ok(&["dc", "inspect", "shop"]);
    assert!(whole.contains(&format!("{docs} of each node")), "{whole}");
    let file = cluster.state_dir().join("shop.toml");
    let described = cluster.ok(&["dc", "export", "shop"]);
    assert!(described.contains("[[volumes]]"), "{described}");
    fs::write(&file, &described).expect("written");
    let file = file.to_str().expect("text");
    assert_eq!(cluster.ok(&["plan", "-f", file]), "shop: as described\n");
    cluster.ok(&["dc", "stop", "shop"]);
    cluster.ok(&["dc", "delete", "shop"]);
    assert_eq!(read("data/of-root"), "n1\n");
    cluster.ok(&["apply", "-f", file]);
    assert_eq!(cluster.sh("shop", "n2", "cat /srv/data/of-root"), "n2\n");

    // What becomes other holds from the next start on.
    let (status, said) = cluster.fails(&["dc", "set", "shop", "-v", &format!("{docs}:ro")]);
    assert!(status == 0 && said.contains("next start"), "{said}");
    assert_eq!(cluster.sh("shop", "n1", "cat /srv/data/of-root"), "n1\n");
    cluster.ok(&["restart", "shop"]);
    assert_eq!(cluster.sh("shop", "n1", "cat /docs/page; ls /srv"), "page\n");
    fs::write(file, described.replace("[[volumes]]", "[[volumes]]\nnodes = [\"n2\"]")).expect("written");
    cluster.ok(&["apply", "-f", file]);
    cluster.ok(&["restart", "shop"]);
    assert_eq!(cluster.sh("shop", "n1", "ls /srv; ls -d /docs || echo none"), "none\n");
    assert_eq!(cluster.sh("shop", "n2", "cat /srv/data/of-root"), "n2\n");
}

#[test]
fn directory_that_a_node_does_not_allow_is_refused_and_nothing_is_made() {
    let dirs = Directories::new();
    let cluster = dirs.cluster(2);
    let (data, private) = (dirs.volume("data", "/data"), dirs.text("private"));
    let create = |volume: &str| cluster.fails(&["dc", "create", "shop", "--nodes", "n1,n2", "--start", "-v", volume]);
    for (volume, why) in [
        (dirs.volume("private", "/x"), private.as_str()),
        (dirs.volume("data-not", "/x"), "data-not"),
        ("/:/x".to_owned(), "n1"),
        ("/etc:/x".to_owned(), "/etc"),
        (dirs.volume("data/../private", "/x"), "data/../private"),
        (dirs.volume("data", "/dc/x"), "/dc/x"),
        (dirs.volume("data", "/usr/x"), "/usr/x"),
        (dirs.volume("data/none", "/x"), "data/none"),
    ] {
        let (status, said) = create(&volume);
        assert!(status == 1 && said.contains(why) && said.contains("try:"), "{volume}: {said}");
        assert_eq!(names(&cluster), "", "{volume}");
    }
    let (_, said) = create(&dirs.volume("private", "/x"));
    for word in ["node n1", "setting 'volumes'", "dvsd.toml", "its administrator allows", &dirs.text("docs")] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let (status, said) = cluster.fails(&["run", "-v", &data, "shop", "--", "true"]);
    assert!(status == 125 && said.contains("dvs dc create") && said.contains(&data), "{said}");

    // The same by a description, a change, and a node that comes.
    let file = cluster.state_dir().join("dc.toml");
    let text = format!("name = 'shop'\nnodes = ['n1']\n[[volumes]]\nhost = '{private}'\npath = '/x'\n");
    fs::write(&file, text).expect("written");
    let file = file.to_str().expect("text");
    for command in ["plan", "apply"] {
        let done = cluster.output(&[command, "-f", file]);
        let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        assert!(done.status.code() == Some(1) && said.contains("node n1 does not allow"), "{command}: {said}");
    }
    assert_eq!(names(&cluster), "");
    cluster.container("shop", 1, &["-v", &data]);
    let (status, said) = cluster.fails(&["dc", "set", "shop", "-v", &format!("{private}:/x")]);
    assert!(status == 1 && said.contains(&private), "{said}");
    assert!(cluster.ok(&["dc", "inspect", "shop"]).contains(&data));

    // The administrator of one node takes it back: what runs goes on, and nothing begins there any more.
    let shown = cluster.ok(&["node", "inspect", "n2"]);
    assert!(shown.contains(&dirs.text("docs")) && shown.contains("read-only"), "{shown}");
    allow(&cluster, serde_json::json!([]));
    restart_daemon(&cluster, "n2", "n1");
    let (status, said) = cluster.fails(&["dc", "add-node", "shop", "n2"]);
    assert!(status == 1 && said.contains("node n2 does not allow") && said.contains("nothing"), "{said}");
    assert_eq!(cluster.sh("shop", "n1", "echo x > /data/x; cat /data/x"), "x\n");
    restart_daemon(&cluster, "n1", "n2");
    assert_eq!(cluster.sh("shop", "n1", "cat /data/x"), "x\n");
    // Of other changes it is no matter.
    cluster.ok(&["dc", "set", "shop", "--pids", "1000"]);
    let keeper = cluster.ok(&["dev", "exec", "n1", "--", "pgrep", "-o", "-f", "^dvs keeper"]);
    cluster.kill("n1", keeper.trim().parse().expect("a PID"));
    eventually("its part says why it does not start", SOON, || {
        let said = cluster.ok(&["dc", "inspect", "shop"]);
        (said.contains("node n1 does not allow") && said.contains("setting 'volumes'")).then_some(())
    });
    assert_ne!(cluster.fails(&["run", "shop", "--", "true"]).0, 0);
    cluster.ok(&["dc", "stop", "shop"]);
    let (status, said) = cluster.fails(&["dc", "start", "shop"]);
    assert!(status == 1 && said.contains("node n1 does not allow"), "{said}");
    cluster.ok(&["dc", "set", "shop", "--no-volumes"]);
    cluster.ok(&["dc", "start", "shop"]);
    assert_eq!(cluster.sh("shop", "n1", "ls -d /data 2> /dev/null || echo none"), "none\n");
}

/// What root of a container can do to the inside of a volume leads nowhere, however the next container is described.
#[test]
fn what_a_container_puts_into_a_volume_leads_no_other_out_of_it() {
    let dirs = Directories::new();
    let cluster = dirs.cluster(1);
    cluster.container("evil", 1, &["--disk", "32M", "-v", &dirs.volume("data", "/data")]);
    let private = dirs.text("private");
    let attack = format!(
        "cd /data; ln -s {private} link; ln -s / root; mkdir sub; ln -s ../../private sub/up; \
         ! mknod disk b 8 0 2> /dev/null; ! mount -o remount,bind,suid,dev none /data 2> /dev/null; \
         ! umount /data 2> /dev/null; ! umount -l /data 2> /dev/null; cp /bin/sh sh; chmod 6755 sh; ls"
    );
    assert_eq!(cluster.sh("evil", "n1", &attack), "link\nroot\nsh\nsub\n");
    let shell = fs::metadata(dirs.path("data/sh")).expect("it is there");
    assert_eq!((shell.uid(), shell.gid()), (OWNER, OWNER), "no program of the machine's root");
    assert!(
        cluster.sh("evil", "n1", "cat /data/root/etc/hostname").contains("n1"),
        "a link leads within the container"
    );
    for below in ["data/link", "data/root", "data/root/etc", "data/sub/up", "data/sh"] {
        let volume = dirs.volume(below, "/x");
        let (status, said) =
            cluster.fails(&["dc", "create", "next", "--nodes", "n1", "--disk", "32M", "--start", "-v", &volume]);
        assert!(status == 1 && said.contains("without symbolic links"), "{below}: {said}");
        assert_eq!(names(&cluster), "evil\n", "{below}");
    }

    // Somebody swaps a directory for a link all the time.
    let (swapped, aside) = (dirs.path("data/swapped"), dirs.path("data/aside"));
    fs::create_dir(&swapped).expect("a directory");
    fs::write(swapped.join("mine"), "").expect("a file");
    symlink(dirs.path("private"), &aside).expect("a link");
    cluster.ok(&["dc", "create", "next", "--nodes", "n1", "--disk", "32M", "-v", &dirs.volume("data/swapped", "/x")]);
    let done = AtomicBool::new(false);
    let mut started = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                let _ = rustix::fs::renameat_with(rustix::fs::CWD, &swapped, rustix::fs::CWD, &aside, flags);
            }
        });
        for _ in 0..6 {
            if cluster.output(&["dc", "start", "next"]).status.success() {
                started += 1;
                let seen = cluster.output(&["run", "next", "--", "ls", "/x"]);
                if seen.stdout != b"mine\n" {
                    done.store(true, Ordering::Relaxed);
                }
                assert_eq!(String::from_utf8_lossy(&seen.stdout), "mine\n");
                cluster.ok(&["dc", "stop", "next"]);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    println!("{started} of 6 starts met the directory");
}
