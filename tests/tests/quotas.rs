//! Quotas of directories: counted for programs of all nodes, whatever these write before they tell, and whoever tries.

use end_to_end::Cluster;

const DC: &str = "shop";

fn quota(cluster: &Cluster, path: &str) -> (u64, u64, bool) {
    let listed = cluster.json(&["fs", "quota", "ls", DC, "-o", "json"]);
    let all = listed.as_array().expect("a list");
    let found = all.iter().find(|quota| quota["path"] == path).unwrap_or_else(|| panic!("{path} is not in {listed}"));
    let number = |name: &str| found[name].as_u64().expect("a number");
    (number("used_bytes"), number("used_inodes"), found["counted"] == true)
}

#[test]
fn directory_has_what_its_quota_allows_on_all_nodes() {
    let cluster = Cluster::up(2);
    cluster.container(DC, 2, &["--fs-node", "n1", "--disk-node", "n1"]);
    // From here on n2 changes names and files there before it tells.
    let fill =
        "mkdir -p /dc/srv/a/b; cd /dc/srv/a; for n in $(seq 300); do echo $n > b/$n; done; echo x > b/x; mkdir /dc/out";
    cluster.sh(DC, "n2", fill);
    cluster.ok(&["fs", "quota", "set", DC, "srv", "--bytes", "4M", "--inodes", "400"]);
    assert_eq!(quota(&cluster, "/dc/srv"), (301 * 4096, 304, true));
    cluster.sh(DC, "n2", "echo more > /dc/srv/a/b/more");
    assert_eq!(quota(&cluster, "/dc/srv"), (302 * 4096, 305, true));
    for node in ["n1", "n2"] {
        let write = format!("cd /dc/srv; for n in $(seq 200); do : > {node}-$n || exit 9; done");
        let (status, said) = cluster.fails(&["run", DC, "--node", node, "--", "sh", "-c", &write]);
        assert!(status != 0 && said.contains("quota exceeded"), "{node}: {status}, {said}");
        assert_eq!(quota(&cluster, "/dc/srv").1, 400, "{node}");
        let left =
            cluster.sh(DC, node, &format!("rm /dc/srv/{node}-*; df --output=itotal,iavail /dc/srv/a | tail -n 1"));
        assert_eq!(left.split_whitespace().collect::<Vec<_>>(), ["400", "95"], "{node}");
        let write = "dd if=/dev/zero of=/dc/srv/large bs=64K count=100 conv=fsync";
        let (status, said) = cluster.fails(&["run", DC, "--node", node, "--", "sh", "-c", write]);
        assert!(status != 0 && said.contains("quota exceeded"), "{node}: {status}, {said}");
        assert!(quota(&cluster, "/dc/srv").0 <= 4 << 20, "{node}");
        cluster.sh(DC, node, "rm /dc/srv/large");
    }
    // Of a sub-directory nothing gets out uncounted, and nothing in.
    cluster.sh(DC, "n2", "mv /dc/srv/a/b /dc/out/ && mv /dc/out/b /dc/srv/a/ && mv /dc/srv/a/b/x /dc/out/");
    assert_eq!(quota(&cluster, "/dc/srv"), (301 * 4096, 304, true));
    let (_, said) = cluster.fails(&["fs", "quota", "set", DC, "srv/a", "--bytes", "1M"]);
    assert!(said.contains("above or below"), "{said}");
    cluster.ok(&["fs", "quota", "set", DC, "srv", "--bytes", "none", "--inodes", "none"]);
    cluster.sh(
        DC,
        "n1",
        "dd if=/dev/zero of=/dc/srv/large bs=64K count=100 2>&1; for n in $(seq 200); do : > /dc/srv/$n; done",
    );
    // The next server knows it, too.
    let pid = cluster.server_pid(DC, "n1", "fs").expect("it serves");
    cluster.kill("n1", pid);
    cluster.sh(DC, "n2", "echo > /dc/srv/after");
    assert_eq!(quota(&cluster, "/dc/srv"), ((301 + 1600 + 1) * 4096, 506, true));
    cluster.ok(&["fs", "quota", "rm", DC, "/dc/srv"]);
    assert_eq!(cluster.json(&["fs", "quota", "ls", DC, "-o", "json"]), serde_json::json!([]));
    let (_, said) = cluster.fails(&["fs", "quota", "rm", DC, "srv"]);
    assert!(said.contains("no quota"), "{said}");
}

#[test]
fn tenant_of_a_directory_does_not_change_its_quota_or_fill_the_tree_past_it() {
    let cluster = Cluster::up(1);
    cluster.container(DC, 1, &[]);
    cluster.sh(DC, "n1", "mkdir /dc/his && chown 1000:1000 /dc/his");
    cluster.ok(&["fs", "quota", "set", DC, "his", "--bytes", "1M", "--inodes", "50"]);
    let tries = r#"
import os, errno
def fails(what, numbers, call):
    try:
        call()
    except OSError as error:
        assert error.errno in numbers, (what, error)
    else:
        raise AssertionError(what)
home, name = "/dc/his", "dvs.quota"
if os.fork() == 0:
    os.setgid(1000); os.setuid(1000)
    fails("a larger one", [errno.EPERM], lambda: os.setxattr(home, name, b"bytes=100000000"))
    fails("none", [errno.EPERM], lambda: os.removexattr(home, name))
    os.mkdir(home + "/sub")
    fails("one of his own", [errno.EPERM], lambda: os.setxattr(home + "/sub", name, b"bytes=1"))
    assert b"used_inodes" in os.getxattr(home, name)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
assert os.listxattr(home) == []
for bad in (b"bytes", b"bytes=1e9", b"bytes=-1", b"x=1", b"bytes=1 bytes=1", b"\xff", b"bytes=" + b"9" * 200):
    fails(bad, [errno.EINVAL], lambda: os.setxattr(home + "/sub", name, bad))
fails("another one", [errno.EOPNOTSUPP], lambda: os.setxattr(home, "dvs.other", b"1"))
fails("inside", [errno.EEXIST], lambda: os.setxattr(home + "/sub", name, b"bytes=1"))
# Whatever way bytes come, and whoever brings them.
source = os.open("/dc/source", os.O_RDWR | os.O_CREAT)
os.write(source, b"x" * (4 << 20))
target = os.open(home + "/f", os.O_RDWR | os.O_CREAT)
fails("fallocate", [errno.EDQUOT], lambda: os.posix_fallocate(target, 0, 4 << 20))
def copy():
    at = 0
    while at < 4 << 20:
        at += os.copy_file_range(source, target, 1 << 20, at, at)
fails("copy", [errno.EDQUOT], copy)
fails("move", [errno.EDQUOT], lambda: os.rename("/dc/source", home + "/source"))
os.ftruncate(target, 8 << 20)
def write():
    for at in range(0, 8 << 20, 65536):
        os.pwrite(target, b"y" * 65536, at)
    os.fsync(target)
fails("write", [errno.EDQUOT], write)
# An open file without a name counts, too.
os.unlink(home + "/f")
other = os.open(home + "/g", os.O_RDWR | os.O_CREAT)
def more():
    os.pwrite(other, b"z" * (1 << 20), 0)
    os.fsync(other)
fails("beside one without a name", [errno.EDQUOT], more)
os.close(target); os.close(other); os.unlink(home + "/g")
def many():
    for n in range(100):
        os.mkdir(home + "/sub/%d" % n) if n % 2 else os.symlink("x", home + "/sub/%d" % n)
fails("many", [errno.EDQUOT], many)
words = dict(word.split("=") for word in os.getxattr(home, name).decode().split())
assert int(words["used_inodes"]) == 50, words
assert int(words["used_bytes"]) <= 1 << 20, words
"#;
    cluster.ok(&["run", DC, "--", "python3", "-c", tries]);
    // More of them than there can be.
    let many = r#"
import os, errno
os.mkdir("/dc/many")
made = 0
try:
    for n in range(1100):
        os.mkdir("/dc/many/%d" % n)
        os.setxattr("/dc/many/%d" % n, "dvs.quota", b"inodes=5")
        made += 1
except OSError as error:
    assert error.errno == errno.ENOSPC, error
assert made == 1023, made
os.system("rm -r /dc/many")
"#;
    cluster.ok(&["run", DC, "--", "python3", "-c", many]);
    assert_eq!(quota(&cluster, "/dc/his").1, 50);
}
