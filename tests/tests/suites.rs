//! Test suites that others wrote for file systems, in a container over three nodes: `fs` is on n2, its disk is on n3.
//!
//! Two are built by `cargo install` from crates.io, in pinned versions, into the target directory. LTP must be
//! installed, the suite of PostgreSQL is fetched. What they may report is listed here and explained in
//! `docs/design/posix.md`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use end_to_end::{Cluster, dvs_binary, is_long_run};

/// No suite takes longer.
const SUITE_SECONDS: &str = "3600";

/// Builds a program of crates.io, unless it is there, and gives its directory.
fn install(name: &str, version: &str) -> PathBuf {
    let target = dvs_binary().ancestors().nth(3).expect("target/.../debug/dvs").join("suites").join(name);
    let done = Command::new("cargo")
        .args(["install", "--quiet", "--locked", "--version", version, name, "--root"])
        .arg(&target)
        .env("CARGO_TARGET_DIR", target.join("build"))
        // Neither the configuration of this workspace nor its flags.
        .env_remove("RUSTFLAGS")
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .expect("cargo starts");
    assert!(done.status.success(), "{name} {version} is not built: {}", text(&done));
    target.join("bin")
}

fn text(done: &Output) -> String {
    [&done.stdout[..], &done.stderr[..]].map(String::from_utf8_lossy).concat()
}

/// Three nodes, and the suite's programs in the tree.
fn cluster_with(programs: &Path) -> Cluster {
    let cluster = Cluster::up(3);
    cluster.container("shop", 3, &["--fs-node", "n2", "--disk-node", "n3"]);
    cluster.ok(&["import", "shop", programs.to_str().expect("UTF-8"), "/suite"]);
    cluster
}

/// A shell script that may take as long as a suite.
fn run_long(cluster: &Cluster, node: &str, script: &str) -> Output {
    run_as(cluster, node, &[], script)
}

fn run_as(cluster: &Cluster, node: &str, options: &[&str], script: &str) -> Output {
    run_in(cluster, &[&["shop", "--node", node], options].concat(), script)
}

/// `place`: the container, and options.
fn run_in(cluster: &Cluster, place: &[&str], script: &str) -> Output {
    let words = [&["run"], place, &["--", "bash", "-c", script]].concat();
    let dvs = cluster.command_without_limit(&words);
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", SUITE_SECONDS]).arg(dvs.get_program()).args(dvs.get_args());
    for (name, value) in dvs.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::null()).output().expect("dvs starts")
}

fn put(cluster: &Cluster, path: &str, content: &str) {
    let done = cluster.sh_with_input("shop", "n1", &format!("cat > {path}"), content.as_bytes());
    assert!(done.status.success(), "{}", text(&done));
}

const PJDFSTEST_TOML: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.01
allow_remount = false

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// What makes device nodes, which a container may not; and what empties a program that is being executed, of which it
/// depends on chance what is seen.
const PJDFSTEST_EXPECTED: [&str; 3] =
    ["mknod::changed_times_success::char", "mknod::device_files::char", "open::etxtbsy"];

fn is_expected(test: &str) -> bool {
    test.ends_with("::block") || PJDFSTEST_EXPECTED.contains(&test)
}

#[test]
#[ignore = "builds a program of crates.io and takes minutes"]
fn pjdfstest_finds_what_posix_says_but_for_what_is_listed() {
    let cluster = cluster_with(&install("pjdfstest", "0.2.2"));
    put(&cluster, "/dc/pjdfstest.toml", PJDFSTEST_TOML);
    for node in ["n1", "n3"] {
        let script =
            "mkdir -p /dc/work && chmod 755 /dc/work && /dc/suite/pjdfstest -c /dc/pjdfstest.toml -p /dc/work -s /tmp";
        let said = text(&run_long(&cluster, node, script));
        let outcomes = |wanted| {
            let lines = said.lines().filter_map(|line| line.split_once(' '));
            lines.filter(move |(_, outcome)| outcome.trim() == wanted).map(|(test, _)| test)
        };
        assert!(outcomes("ok").count() > 300, "on {node}: {said}");
        let failed: Vec<&str> = outcomes("FAILED").filter(|test| !is_expected(test)).collect();
        assert!(failed.is_empty(), "on {node}: {failed:?}\n{said}");
    }
}

const FSX_TOML: &str = r#"
flen = 1048576

# Of nothing at all it asks `posix_fallocate`, which is refused, and takes that for a file system that has none.
[opsize]
min = 1
max = 131072

[weights]
close_open = 1
invalidate = 1
fsync = 1
fdatasync = 1
posix_fallocate = 3
punch_hole = 3
sendfile = 3
posix_fadvise = 1
copy_file_range = 3
"#;

#[test]
#[ignore = "builds a program of crates.io and takes minutes"]
fn fsx_reads_what_it_wrote_on_one_node_on_three_and_in_turn_on_two() {
    let programs = install("fsx", "0.3.2");
    let cluster = cluster_with(&programs);
    put(&cluster, "/dc/fsx.toml", FSX_TOML);
    let fsx = |place: &[&str], operations: u32, seed: usize, file: &str| {
        let script = format!("cd /dc && ./suite/fsx -f fsx.toml -N {operations} -S {seed} -P /dc {file}");
        let done = run_in(&cluster, place, &script);
        assert!(done.status.success(), "{place:?}, seed {seed}: {}", text(&done));
    };
    std::thread::scope(|scope| {
        for (seed, node) in ["n1", "n2", "n3"].into_iter().enumerate() {
            let fsx = &fsx;
            scope.spawn(move || fsx(&["shop", "--node", node], 20_000, 1 + seed, &format!("file-{node}")));
        }
    });
    // Each has left the file to the other, with whatever it knew of it.
    (10..30).for_each(|seed| fsx(&["shop", "--node", ["n1", "n3"][seed % 2]], 2000, seed, "file"));
    if is_long_run() {
        cluster.container("alone", 1, &[]);
        cluster.ok(&["import", "alone", programs.to_str().expect("UTF-8"), "/suite"]);
        let done = cluster.sh_with_input("alone", "n1", "cat > /dc/fsx.toml", FSX_TOML.as_bytes());
        assert!(done.status.success(), "{}", text(&done));
        // A million. It keeps every mapping that it reads through, and the kernel lets it have 65,530.
        (1..=20).for_each(|seed| fsx(&["alone"], 50_000, seed, "file"));
    }
}

/// System calls whose tests of LTP are about files.
const LTP_CALLS: &str = "\
    access chmod chown close copy_file_range creat dup dup2 dup3 faccessat fallocate fchmod fchmodat fchown \
    fchownat fcntl fdatasync flock fstat fstatat fsync ftruncate getdents getxattr lchown lgetxattr link linkat \
    listxattr llistxattr llseek lremovexattr lseek lstat mkdir mkdirat mknod mknodat mmap msync open openat openat2 \
    pread preadv pwrite pwritev read readdir readlink readlinkat readv removexattr rename renameat renameat2 rmdir \
    sendfile setxattr lsetxattr stat statfs statx symlink symlinkat sync sync_file_range truncate unlink unlinkat \
    utime utimes utimensat write writev";

/// What a container does not let them do: change limits of the kernel, make device nodes, make files immutable.
const LTP_EXPECTED: [&str; 8] =
    ["fcntl33", "fcntl33_64", "fcntl35", "fcntl35_64", "open11", "setxattr02", "setxattr03", "statx01"];
/// Bits of the exit status: something is wrong, could not be tried, or was killed for its time. Of warnings each test
/// has one.
const LTP_BAD: i32 = 0x03 | 0x40 | 0x80;

/// Where an installed LTP lies.
fn ltp() -> Option<PathBuf> {
    let root = std::env::var_os("LTPROOT").map_or_else(|| PathBuf::from("/opt/ltp"), PathBuf::from);
    root.join("runtest/syscalls").exists().then_some(root)
}

/// Whether a test, or a program that helps it, is about files: its name begins with a system call and a number.
fn is_about_files(name: &str) -> bool {
    let call = name.split(|at: char| at.is_ascii_digit()).next().unwrap_or_default();
    LTP_CALLS.split_whitespace().any(|wanted| wanted == call)
}

/// Copies the programs, and gives the lines of LTP's list that name them: what the test is called, its command.
fn ltp_tests(root: &Path, into: &Path) -> Vec<String> {
    for program in std::fs::read_dir(root.join("testcases/bin")).expect("LTP's programs").flatten() {
        if is_about_files(&program.file_name().to_string_lossy()) {
            std::fs::copy(program.path(), into.join(program.file_name())).expect("copied");
        }
    }
    let list = std::fs::read_to_string(root.join("runtest/syscalls")).expect("LTP's list of tests");
    let is_there = |line: &&str| {
        let program = line.split_whitespace().nth(1).unwrap_or_default();
        is_about_files(line) && into.join(program).exists()
    };
    list.lines().filter(is_there).map(str::to_owned).collect()
}

/// Says of each test how it ended; what a test said only when it failed. 32: the machine lacks something, a free block
/// device with another file system for example.
const LTP_SCRIPT: &str = r#"
export PATH=/dc/suite:$PATH LTPROOT=/dc TMPDIR=/dc/tmp
mkdir -pm 1777 /dc/tmp && cd /dc/tmp
while read -r name command; do
    timeout -k 5 120 $command > /dc/said 2>&1 < /dev/null
    status=$?
    if grep -q "Failed to acquire device" /dc/said; then status=32; fi
    echo "$name $status"
    case $status in 0|4|32|36) ;; *) echo "--- $name"; tail -n 12 /dc/said ;; esac >&2
done < /dc/list
"#;

#[test]
#[ignore = "takes minutes and needs an installed LTP"]
fn ltp_finds_what_linux_says_but_for_what_is_listed() {
    let Some(root) = ltp() else {
        eprintln!("SKIPPED: no LTP in /opt/ltp or $LTPROOT");
        return;
    };
    let programs = tempfile::Builder::new().prefix("suite").tempdir().expect("a directory");
    let tests = ltp_tests(&root, programs.path());
    assert!(tests.len() > 50, "{} lists {} tests of files that are there", root.display(), tests.len());
    let cluster = cluster_with(programs.path());
    put(&cluster, "/dc/list", &(tests.join("\n") + "\n"));
    let done = run_long(&cluster, "n1", LTP_SCRIPT);
    assert!(done.status.success(), "{}", text(&done));
    let said = String::from_utf8_lossy(&done.stdout);
    let ends = said.lines().filter_map(|line| line.rsplit_once(' '));
    let statuses: Vec<(&str, i32)> = ends.map(|(name, status)| (name, status.parse().unwrap_or(LTP_BAD))).collect();
    assert_eq!(statuses.len(), tests.len(), "{}", text(&done));
    let skipped = statuses.iter().filter(|(_, status)| status & 32 != 0).count();
    eprintln!("LTP: {} tests, of which {skipped} are not for this machine", tests.len());
    let is_bad = |(name, status): &&(&str, i32)| status & LTP_BAD != 0 && !LTP_EXPECTED.contains(name);
    let failed: Vec<_> = statuses.iter().filter(is_bad).collect();
    assert!(failed.is_empty(), "{failed:?}\n{}", String::from_utf8_lossy(&done.stderr));
}

/// Its server, its data and what is compared are in the tree.
const POSTGRESQL_SCRIPT: &str = r#"
cd /dc/pg
export HOME=/dc/pg
/dc/suite/pg_regress --inputdir=/dc/suite --outputdir=/dc/pg --dlpath=/dc/suite --temp-instance=/dc/pg/instance \
    --bindir="$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)" --schedule=/dc/suite/parallel_schedule \
    --max-concurrent-tests=20 --no-locale --encoding=UTF8
status=$?
head -c 20000 regression.diffs 2> /dev/null
exit $status
"#;

#[test]
#[ignore = "fetches PostgreSQL's sources and takes minutes"]
fn postgresql_answers_as_its_regression_suite_says() {
    let suite = tempfile::Builder::new().prefix("suite").tempdir().expect("a directory");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/postgresql-suite.sh");
    let fetched = Command::new(script).arg(suite.path()).stdin(Stdio::null()).output().expect("a shell");
    assert!(fetched.status.success(), "{}", text(&fetched));
    let cluster = cluster_with(suite.path());
    let user = cluster.sh("shop", "n1", "echo $(id -u postgres):$(id -g postgres)");
    let user = user.trim();
    cluster.sh("shop", "n1", &format!("mkdir -m 700 /dc/pg && chown -R {user} /dc/pg /dc/suite"));
    let done = run_as(&cluster, "n1", &["--user", user], POSTGRESQL_SCRIPT);
    let said = text(&done);
    assert!(done.status.success() && said.contains("tests passed."), "{said}");
}

/// A project, a copy of it on another node that is built there, and an archive of that on a third.
#[test]
#[ignore = "takes its time: run by `make test-long`"]
fn git_and_tar_find_on_each_node_what_another_has_made() {
    const MAKE: &str = r#"
        mkdir /dc/project && cd /dc/project && git init -q . && git config user.email a@b && git config user.name a
        for i in $(seq 200); do echo "int f$i(int x) { return x * $i; }" > f$i.c; done
        { seq -f 'int f%g(int);' 200; echo 'int main(void) { int s = 0;'; seq -f 's += f%g(1);' 200; echo 'return s != 20100; }'; } > main.c
        printf 'program: $(patsubst %%.c,%%.o,$(wildcard *.c))\n\t$(CC) -o $@ $^\n' > Makefile
        printf '*.o\nprogram\n' > .gitignore
        git add . && git commit -qm 1
        for i in $(seq 2 30); do echo "/* $i */" >> f$i.c; git commit -qam $i; done
        git gc -q"#;
    const BUILD: &str = r#"
        git clone -q file:///dc/project /dc/copy && cd /dc/copy && make -sj4 && ./program
        git fsck --full --strict 2> /dev/null; git status --porcelain; git log --oneline | wc -l; tar c -C /dc copy | sha256sum"#;
    const PACK: &str = r#"
        mkdir /dc/back && tar c -C /dc copy | tar x -C /dc/back && cd /dc/back && tar c copy | sha256sum
        cd copy && ./program && git -c safe.directory='*' fsck --full --strict 2> /dev/null"#;
    let cluster = Cluster::up(3);
    cluster.container("shop", 3, &["--fs-node", "n2", "--disk-node", "n3"]);
    let sh = |node, script: &str| cluster.sh("shop", node, &format!("export HOME=/tmp; {script}"));
    sh("n1", MAKE);
    let built = sh("n3", BUILD);
    let (count, sum) = built.split_once('\n').expect("two lines");
    assert_eq!(count, "30");
    assert_eq!(sh("n2", PACK), sum);
}
