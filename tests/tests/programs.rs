//! Unmodified programs of the distribution, on the tree of a container whose fs and disk are on other nodes.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use end_to_end::{Cluster, eventually, is_long_run};

/// One cluster for all: bringing it up costs more than most of these programs.
#[test]
fn programs_of_the_distribution_run_on_the_tree_of_other_nodes() {
    let cluster = Cluster::up(3);
    cluster.container("shop", 3, &["--fs-node", "n2", "--disk-node", "n3"]);
    for (name, script, expected) in PROGRAMS {
        let printed = cluster.sh("shop", "n1", script);
        assert_eq!(printed.trim(), *expected, "{name}");
    }
    sqlite_counts_what_two_nodes_write(&cluster);
    redis_answers_over_the_private_network(&cluster);
    postgresql_runs_as_a_user_of_the_container(&cluster);
    nginx_serves_the_tree_to_other_nodes(&cluster);
}

const PROGRAMS: &[(&str, &str, &str)] = &[
    (
        "bash pipeline",
        "seq 1 20000 | tee /dc/numbers | awk '{s+=$1} END {print s}'; wc -l < /dc/numbers",
        "200010000\n20000",
    ),
    (
        "python3",
        "cd /dc && /usr/bin/python3 -c \"import os, mmap\nos.makedirs('py/a')\nopen('py/a/f','wb').write(b'x'*100000)\nf=open('py/a/f','r+b')\nm=mmap.mmap(f.fileno(),0)\nm[5:8]=b'abc'\nm.flush()\nprint(open('py/a/f','rb').read()[4:9].decode(), len(os.listdir('py')))\"",
        "xabcx 1",
    ),
    (
        "git",
        "export HOME=/tmp; mkdir /dc/repo && cd /dc/repo && git init -q . && git config user.email a@b && git config user.name a \
         && for i in $(seq 50); do echo $i > f$i; done && git add . && git commit -qm first && git fsck 2>/dev/null && git log --oneline | wc -l && git status --porcelain | wc -l",
        "1\n0",
    ),
    (
        "sqlite3",
        "cd /dc && sqlite3 t.db 'create table t(a integer primary key, b text); begin; with recursive c(x) as (select 1 union all select x+1 from c where x<2000) insert into t select x, hex(randomblob(20)) from c; commit; select count(*), sum(a) from t; pragma integrity_check;'",
        "2000|2001000\nok",
    ),
    (
        "sqlite3 with a write-ahead log",
        "cd /dc && sqlite3 wal.db 'pragma journal_mode=wal; create table t(a); insert into t values(1);' && \
         for i in 1 2 3 4; do sqlite3 wal.db \".timeout 20000\" \"insert into t values($i)\" & done; wait; \
         sqlite3 wal.db 'select sum(a) from t; pragma integrity_check;'",
        "wal\n11\nok",
    ),
    (
        "make -j4 of a C program",
        "mkdir /dc/c && cd /dc/c && for i in $(seq 12); do echo \"int f$i(void){return $i;}\" > f$i.c; done && \
         { for i in $(seq 12); do echo \"int f$i(void);\"; done; echo '#include <stdio.h>'; echo 'int main(void){int s=0;'; for i in $(seq 12); do echo \"s+=f$i();\"; done; echo 'printf(\"%d\\n\",s);return 0;}'; } > main.c && \
         printf 'OBJ=%s\nprog: $(OBJ)\n\tcc -o prog $(OBJ)\n' \"$(echo main.o $(seq -f 'f%g.o' 12))\" > Makefile && make -s -j4 && ./prog",
        "78",
    ),
];

/// Each transaction reads what the one before has written, on whichever node.
fn sqlite_counts_what_two_nodes_write(cluster: &Cluster) {
    const EACH: u32 = 60;
    let writer = format!(
        "import sqlite3\n\
         db = sqlite3.connect('/dc/counted.db', timeout=60, isolation_level=None)\n\
         for _ in range({EACH}):\n \
         db.execute('begin immediate')\n \
         (count,) = db.execute('select n from counter').fetchone()\n \
         db.execute('update counter set n = ?', (count + 1,))\n \
         db.execute('insert into log values (?)', (count,))\n \
         db.execute('commit')"
    );
    let tables = "create table counter(n); insert into counter values (0); create table log(n unique)";
    cluster.sh("shop", "n2", &format!("sqlite3 /dc/counted.db '{tables}'"));
    std::thread::scope(|scope| {
        for node in ["n1", "n3"] {
            let writer = &writer;
            scope.spawn(move || cluster.ok(&["run", "shop", "--node", node, "--", "/usr/bin/python3", "-c", writer]));
        }
    });
    let look = "sqlite3 /dc/counted.db 'select n from counter; select count(*) from log; pragma integrity_check'";
    assert_eq!(cluster.sh("shop", "n2", look), format!("{0}\n{0}\nok\n", 2 * EACH));
}

fn redis_answers_over_the_private_network(cluster: &Cluster) {
    let serve = "mkdir -p /dc/redis && cd /dc/redis && exec redis-server --bind 0.0.0.0 --protected-mode no --appendonly yes --save ''";
    cluster.ok(&["run", "shop", "--node", "n1", "-d", "--", "bash", "-c", serve]);
    eventually("redis answers on n3", Duration::from_secs(20), || {
        let done =
            cluster.output(&["run", "shop", "--node", "n3", "--", "redis-cli", "-h", "10.1.0.1", "set", "k", "v"]);
        (String::from_utf8_lossy(&done.stdout).trim() == "OK").then_some(())
    });
    assert_eq!(cluster.sh("shop", "n2", "redis-cli -h 10.1.0.1 get k"), "v\n");
}

fn nginx_serves_the_tree_to_other_nodes(cluster: &Cluster) {
    const CONFIGURATION: &str = "daemon off; pid /tmp/nginx.pid; error_log stderr; events {}
        http { access_log off; sendfile on; client_body_temp_path /tmp/b; proxy_temp_path /tmp/p; fastcgi_temp_path /tmp/f; uwsgi_temp_path /tmp/u;
        scgi_temp_path /tmp/s; server { listen 8080; root /dc/site; autoindex on; } }";
    let make = "mkdir -p /dc/site/sub && cd /dc/site && head -c 5000000 /dev/urandom > big && for i in $(seq 50); do echo page $i > sub/$i; done && cat > /dc/nginx.conf";
    let made = cluster.sh_with_input("shop", "n2", make, CONFIGURATION.as_bytes());
    assert!(made.status.success(), "{made:?}");
    cluster.ok(&["run", "shop", "--node", "n1", "-d", "--", "nginx", "-c", "/dc/nginx.conf"]);
    eventually("nginx answers on n3", Duration::from_secs(20), || {
        let ask = ["run", "shop", "--node", "n3", "--", "curl", "-sf", "http://10.1.0.1:8080/sub/50"];
        (cluster.output(&ask).stdout == b"page 50\n").then_some(())
    });
    let compare = "cd /dc/site; for f in big sub/1 sub/49; do curl -s http://10.1.0.1:8080/$f | cmp - $f || exit 1; done; echo same";
    for node in ["n2", "n3"] {
        assert_eq!(cluster.sh("shop", node, compare), "same\n");
    }
    // The server is one process tree of the container: changes on another node are served at once.
    assert_eq!(cluster.sh("shop", "n3", "echo new > /dc/site/sub/1; curl -s http://10.1.0.1:8080/sub/1"), "new\n");
}

/// PostgreSQL refuses to run as root; its user is one of the host's, by number, and exists inside as well.
fn postgresql_runs_as_a_user_of_the_container(cluster: &Cluster) {
    let user = cluster.sh("shop", "n1", "echo $(id -u postgres):$(id -g postgres)");
    let user = user.trim();
    cluster.sh("shop", "n1", &format!("mkdir -m 700 /dc/pg && chown {user} /dc/pg"));
    let script = "B=$(ls -d /usr/lib/postgresql/*/bin); D=/dc/pg/data; exec 3>&1 >/dc/pg/out 2>&1; trap 'cat /dc/pg/out >&2' ERR
        $B/initdb -D $D -U postgres --no-sync
        $B/pg_ctl -D $D -w -o \"-k /tmp -c listen_addresses=''\" -l /dc/pg/log start
        $B/pgbench -h /tmp -U postgres -i -s 1 postgres
        $B/pgbench -h /tmp -U postgres -c 4 -j 2 -t 25 postgres
        $B/psql -h /tmp -U postgres -Atc 'select count(*) from pgbench_history; select count(*) from pgbench_accounts' postgres >&3
        $B/pg_ctl -D $D -w -m fast stop";
    let printed = cluster.ok(&["run", "shop", "--node", "n1", "--user", user, "--", "bash", "-eEc", script]);
    assert_eq!(printed, "100\n100000\n");
}

/// A whole Debian, made from the distribution's archive, whose own package manager installs a package. Long: it fetches
/// some 60 MB.
#[test]
fn debian_root_file_system_installs_a_package() {
    if !is_long_run() {
        eprintln!("SKIPPED: a Debian root file system is made only with DVS_TEST_LONG=1");
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let system = place.path().join("debian");
    let made = Command::new("debootstrap").args(["--variant=minbase", "bookworm"]).arg(&system).output();
    let made = made.expect("debootstrap is installed");
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stdout);
        eprintln!("SKIPPED: debootstrap made no Debian, is there a network?\n{said}");
        return;
    }
    let package = small_package(place.path());
    let cluster = Cluster::up(3);
    cluster.container("shop", 3, &["--fs-node", "n2", "--disk-node", "n3"]);
    cluster.ok(&["import", "shop", system.to_str().expect("UTF-8"), "/debian"]);
    cluster.ok(&["import", "shop", package.to_str().expect("UTF-8"), "/debian/root/new"]);
    let inside = |node: &str, script: &str| {
        cluster.ok(&["run", "shop", "--node", node, "--root", "/debian", "--", "/bin/sh", "-ec", script])
    };
    let install = "dpkg -i /root/new/hello-dvs.deb >&2; dpkg -s hello-dvs | grep ^Status; hello-dvs";
    assert_eq!(inside("n1", install), "Status: install ok installed\nhello from the tree\n");
    // Another node sees the same system, and takes the package away again.
    assert_eq!(inside("n3", "hello-dvs; dpkg --verify hello-dvs; dpkg -r hello-dvs >&2"), "hello from the tree\n");
    assert_eq!(inside("n2", "dpkg -s hello-dvs 2>/dev/null | grep ^Status || echo gone"), "gone\n");
    assert_eq!(
        inside("n2", "dpkg --audit; dpkg -l | grep -c ^ii").trim().parse::<u32>().map(|count| count > 50),
        Ok(true)
    );
}

/// Builds a package of one script; gives the directory with `hello-dvs.deb`.
fn small_package(place: &Path) -> std::path::PathBuf {
    let (tree, out) = (place.join("package"), place.join("packages"));
    let script = "mkdir -p \"$1/DEBIAN\" \"$1/usr/bin\" \"$2\"
printf 'Package: hello-dvs\\nVersion: 1.0\\nArchitecture: all\\nMaintainer: nobody <nobody@localhost>\\nDescription: says hello\\n' > \"$1/DEBIAN/control\"
printf '#!/bin/sh\\necho hello from the tree\\n' > \"$1/usr/bin/hello-dvs\"
chmod 755 \"$1/usr/bin/hello-dvs\"
dpkg-deb --root-owner-group --build \"$1\" \"$2/hello-dvs.deb\"";
    let built = Command::new("sh").args(["-ec", script, "sh"]).args([&tree, &out]).output().expect("sh");
    assert!(built.status.success(), "{built:?}");
    out
}
