//! A container in a file, and the container that is made of it.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use end_to_end::nbd::has;
use end_to_end::{Cluster, dvs_binary, eventually};

const SOON: Duration = Duration::from_secs(30);
/// What a copy may lose: modes, owners, times, links of both kinds, holes, names that are long or no text.
const TREE: &str = "\
mkdir -p /dc/www/deep /dc/empty; cd /dc/www
echo page > page; chmod 4750 page; chown 33:44 page; touch -d '2001-02-03 04:05:06.789' page
ln page twin; ln -s ../no/where link; mkfifo pipe
head -c 3000000 /dev/zero | tr '\\0' x > deep/large
echo odd > \"$(printf 'n\\377me')\"; echo long > \"$(printf '%0200d' 7)\"
mkdir /dc/.dvs-backup-0000000000000000; echo {} > /dc/.dvs-backup-0000000000000000/end.json
chmod 1777 /dc/empty; touch -d '2001-01-01' /dc/empty";
/// Of all that, a line each.
const LOOK: &str = "cd /dc; find . -mindepth 1 \\( -type d -printf '%P %m %U:%G %T@ d\\n' -o -printf '%P %m %U:%G %T@ %n %s %l\\n' \\) \
    | cat -v | sort; find . -type f -exec sha256sum {} + | cat -v | sort";

#[test]
fn container_is_made_anew_of_its_backup_under_another_name_and_on_other_nodes() {
    let cluster = Cluster::up(3);
    cluster.container("shop", 2, &["--fs-node", "n2", "--disk-node", "n1", "--env", "COLOUR=red", "-p", "18443:8080"]);
    cluster.sh("shop", "n1", TREE);
    for (key, value) in [("config/a", "1"), ("config/b", "two\nlines"), ("odd", "\u{7f}ü")] {
        cluster.ok(&["ds", "put", "shop", key, value]);
    }
    cluster.ok(&["service", "add", "shop", "clock", "--", "sh", "-c", "echo $COLOUR >> /dc/clock; exec sleep 1000"]);
    eventually("the service runs", SOON, || {
        let services = cluster.json(&["service", "ls", "shop", "-o", "json"]);
        (services[0]["instances"][0]["pid"].as_u64()? > 0).then_some(())
    });
    eventually("it has written", SOON, || (cluster.sh("shop", "n2", "cat /dc/clock") == "red\n").then_some(()));
    let was = cluster.sh("shop", "n1", LOOK);
    let place = tempfile::tempdir().expect("a directory");
    let path = |name: &str| place.path().join(name).to_str().expect("text").to_owned();

    let file = path("shop.backup");
    let made = cluster.json(&["dc", "backup", "shop", &file, "-o", "json"]);
    assert_eq!((&made["keys"], &made["dc"]), (&3.into(), &"shop".into()), "{made}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&file).expect("a file").permissions());
    assert_eq!(mode & 0o777, 0o600);
    let checked = cluster.json(&["dc", "restore", "--check", &file, "-o", "json"]);
    assert_eq!((&checked["sha256"], &checked["entries"]), (&made["sha256"], &made["entries"]));

    // Beside the first one: its port is taken there, and the answer says so before anything is made.
    let (status, said) = cluster.fails(&["dc", "restore", &file, "--name", "copy"]);
    assert!(status == 1 && said.contains("18443"), "{said}");
    assert_eq!(names(&cluster), ["shop"]);
    cluster.ok(&["dc", "restore", &file, "--name", "copy", "--nodes", "n2,n3", "--no-ports"]);
    let without_clock =
        |text: String| text.lines().filter(|line| !line.contains("clock")).collect::<Vec<_>>().join("\n");
    assert_eq!(without_clock(cluster.sh("copy", "n3", LOOK)), without_clock(was.clone()));
    eventually("its service has begun", SOON, || {
        (cluster.sh("copy", "n2", "cat /dc/clock") == "red\nred\n").then_some(())
    });
    let values = |dc: &str| {
        let keys = cluster.json(&["ds", "ls", dc, "-o", "json"]);
        let keys = keys.as_array().expect("a list").clone();
        keys.into_iter().map(|entry| (entry["key"].clone(), entry["value"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(values("copy"), values("shop"));
    let spec = |dc: &str| cluster.json(&["dc", "inspect", dc, "-o", "json"])["spec"].clone();
    assert_eq!((&spec("copy")["nodes"], spec("copy")["ports"].as_array()), (&serde_json::json!(["n2", "n3"]), None));
    assert_eq!(spec("copy")["env"], spec("shop")["env"]);
    cluster.ok(&["dc", "delete", "--force", "copy"]);

    // Through pipes, under its own name, when the first one is gone.
    cluster.ok(&["dc", "delete", "--force", "shop"]);
    let dvs = dvs_binary().display().to_string();
    shell(&cluster, &format!("gzip -c {file} | gzip -dc | {dvs} dc restore -"));
    assert_eq!(without_clock(cluster.sh("shop", "n2", LOOK)), without_clock(was));
    assert_eq!(spec("shop")["ports"][0]["published"], 18443);
    shell(&cluster, &format!("{dvs} dc backup shop - | {dvs} dc restore --check -"));
}

#[test]
fn what_is_not_whole_or_is_interrupted_makes_no_container() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    cluster.sh("shop", "n1", "head -c 30000000 /dev/urandom > /dc/large; echo small > /dc/small");
    let place = tempfile::tempdir().expect("a directory");
    let path = |name: &str| place.path().join(name).to_str().expect("text").to_owned();
    let file = path("shop.backup");
    cluster.ok(&["dc", "backup", "shop", &file]);
    let whole = fs::read(&file).expect("a file");

    let cut = path("cut");
    fs::write(&cut, &whole[..whole.len() / 2]).expect("a file");
    let flipped = path("flipped");
    let mut bytes = whole.clone();
    bytes[whole.len() / 2] ^= 1;
    fs::write(&flipped, &bytes).expect("a file");
    for (file, why) in [(&cut, "ends before its end"), (&flipped, "damaged")] {
        let (status, said) = cluster.fails(&["dc", "restore", file, "--name", "copy"]);
        assert!(status == 1 && said.contains(why), "{said}");
        // Out of a pipe it is noticed when files are there already.
        let script = format!("cat {file} | {} dc restore - --name copy", dvs_binary().display());
        let done = bash(&cluster, &script).output().expect("bash starts");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(1) && said.contains(why), "{said}");
        assert_eq!(names(&cluster), ["shop"]);
    }
    let (status, said) = cluster.fails(&["dc", "backup", "shop", &file]);
    assert!(status == 1 && said.contains("there already"), "{said}");
    assert_eq!(fs::read(&file).expect("a file").len(), whole.len());

    // Who restores is ended in the middle: it waits for the rest of its input.
    let mut restorer = Command::new(dvs_binary());
    restorer.args(["dc", "restore", "-", "--name", "copy"]).env("DVS_STATE_DIR", cluster.state_dir());
    restorer.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut restorer = restorer.spawn().expect("dvs starts");
    let mut input = restorer.stdin.take().expect("a pipe");
    input.write_all(&whole[..whole.len() / 3]).expect("it reads");
    eventually("files are there", SOON, || {
        let looked = cluster.command(&["run", "copy", "--", "test", "-s", "/dc/large"]).output().ok()?;
        looked.status.success().then_some(())
    });
    let pid = rustix::process::Pid::from_child(&restorer);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is there");
    let ended = restorer.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.code() == Some(1) && said.contains("interrupted"), "{said}");
    assert_eq!(names(&cluster), ["shop"]);
    drop(input);
}

fn names(cluster: &Cluster) -> Vec<String> {
    let listed = cluster.json(&["dc", "ls", "-o", "json"]);
    let names = listed.as_array().expect("a list").iter();
    names.filter_map(|dc| dc["spec"]["name"].as_str().map(str::to_owned)).collect()
}

fn bash(cluster: &Cluster, script: &str) -> Command {
    let mut bash = Command::new("bash");
    bash.args(["-ec", &format!("set -o pipefail; {script}")]).env("DVS_STATE_DIR", cluster.state_dir());
    bash
}

fn shell(cluster: &Cluster, script: &str) {
    let done = bash(cluster, script).output().expect("bash starts");
    assert!(done.status.success(), "{done:?}");
}

/// Changes a tree at random: whatever a program can do to names and files.
const CHANGES: &str = r#"
import os, random, sys, shutil
random.seed(int(sys.argv[1]))
root = "/dc/work"
os.makedirs(root, exist_ok=True)
def places():
    found = [(root, [], [])]
    for at, directories, files in os.walk(root):
        found.append((at, directories, files))
    return found
def one():
    at, directories, files = random.choice(places())
    other = random.choice(places())[0]
    name = random.choice("abcdefgh") + random.choice(["", "", "x" * 120])
    path = os.path.join(at, name)
    pick = lambda names: os.path.join(at, random.choice(names))
    what = random.randrange(16)
    if what <= 3 and os.path.lexists(path) and not os.path.isfile(path): return
    if what <= 3:
        with open(path, "ab" if random.random() < .5 else "wb") as file:
            file.write(os.urandom(random.choice([0, 10, 5000, 200000])))
    elif what <= 5: os.mkdir(path)
    elif what == 6: os.symlink("to/%d" % random.randrange(99), path)
    elif what == 7: os.link(pick(files), os.path.join(other, name))
    elif what <= 9: os.rename(pick(files + directories), os.path.join(other, name))
    elif what == 10: os.unlink(pick(files))
    elif what == 11: shutil.rmtree(pick(directories))
    elif what == 12: os.chmod(pick(files + directories), random.randrange(0o10000) | 0o700)
    elif what == 13: os.mkfifo(path)
    elif what == 14: os.utime(pick(files), ns=(7, random.randrange(10 ** 18)))
    elif what == 15: os.rename(path, path) if os.path.exists(path) else os.replace(pick(directories), path)
for _ in range(int(sys.argv[2])):
    try: one()
    except (OSError, IndexError, shutil.Error): pass
"#;

#[test]
fn backups_of_what_changed_make_the_tree_that_was() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["--fs-node", "n1", "--disk-node", "n1"]);
    cluster.sh("shop", "n1", TREE);
    let place = tempfile::tempdir().expect("a directory");
    let path = |name: String| place.path().join(name).to_str().expect("text").to_owned();
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let change = |round: u64, count: &str| {
        let node = ["n1", "n2"][round as usize % 2];
        let seed = (round + seed * 1000_u64).to_string();
        cluster.ok(&["run", "shop", "--node", node, "--", "python3", "-c", CHANGES, &seed, count]);
    };
    change(0, "150");
    let (mut files, mut states) = (vec![path("whole".to_owned())], Vec::new());
    cluster.ok(&["dc", "backup", "shop", &files[0], "--keep"]);
    states.push(cluster.sh("shop", "n1", LOOK));
    for round in 1..5 {
        // In the last one nothing changed.
        if round < 4 {
            change(round, "60");
        }
        cluster.ok(&["ds", "put", "shop", "round", &round.to_string()]);
        let file = path(format!("since-{round}"));
        let last = files.last().expect("one").clone();
        cluster.ok(&["dc", "backup", "shop", &file, "--since", &last, "--keep"]);
        states.push(cluster.sh("shop", "n2", LOOK));
        files.push(file);
    }
    let listed = cluster.json(&["fs", "snapshot", "ls", "shop", "-o", "json"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "only the last one's stays: {listed}");
    let size = |file: &str| fs::metadata(file).expect("a file").len();
    assert!(size(&files[4]) < 32 << 10, "nothing changed: {} bytes", size(&files[4]));
    let listed = Command::new("tar").args(["--list", "--file", &files[1]]).output().expect("tar starts");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(!listed.contains("deep/large") && listed.contains("work/"), "what did not change is not in it: {listed}");

    for count in [2, 5] {
        let chain: Vec<&str> = files[..count].iter().map(String::as_str).collect();
        let name = format!("copy{count}");
        cluster.ok(&[&["dc", "restore"], &chain[..], &["--name", &name, "--nodes", "n2"]].concat());
        let found = cluster.sh(&name, "n2", LOOK);
        let (then, now) = (states[count - 1].lines(), found.lines());
        let differ: Vec<_> = then.zip(now).filter(|(then, now)| then != now).take(5).collect();
        assert!(found == states[count - 1], "after {count}: {differ:#?}");
        assert_eq!(cluster.ok(&["ds", "get", &name, "round"]), (count - 1).to_string());
    }
    let checked = cluster.json(&["dc", "restore", "--check", &files[0], &files[1], "-o", "json"]);
    assert_eq!(checked.as_array().map(Vec::len), Some(2));

    // Out of order, with one missing, without the first: nothing is made.
    let one = |at: usize| files[at].as_str();
    for wrong in [vec![one(1)], vec![one(0), one(2)], vec![one(1), one(0)], vec![one(0), one(0)]] {
        let (status, said) = cluster.fails(&[&["dc", "restore"], &wrong[..], &["--name", "wrong"]].concat());
        assert!(status == 1 && said.contains("is of no use"), "{wrong:?}: {said}");
    }
    // The snapshot of an earlier one is gone; one of another container is not of this tree; none is of no moment.
    let out = path("never".to_owned());
    for (since, why) in [(one(1), "no snapshot"), (one(0), "no snapshot")] {
        let (status, said) = cluster.fails(&["dc", "backup", "shop", &out, "--since", since]);
        assert!(status == 1 && said.contains(why), "{since}: {said}");
    }
    let live = path("live".to_owned());
    cluster.ok(&["dc", "backup", "shop", &live, "--live"]);
    let (status, said) = cluster.fails(&["dc", "backup", "shop", &out, "--since", &live]);
    assert!(status == 1 && said.contains("no moment"), "{said}");
    let (status, said) = cluster.fails(&["dc", "backup", "copy5", &out, "--since", one(4)]);
    assert!(status == 1 && said.contains("no snapshot"), "{said}");
    assert!(fs::metadata(&out).is_err());
    assert_eq!(cluster.json(&["fs", "snapshot", "ls", "shop", "-o", "json"]).as_array().map(Vec::len), Some(1));

    // What others make of it: GNU tar removes what is not there any more, too.
    let there = place.path().join("tar");
    fs::create_dir(&there).expect("a directory");
    for file in &files {
        let status = Command::new("tar")
            .args([
                "--extract",
                "--incremental",
                "--same-permissions",
                "--no-same-owner",
                "--file",
                file,
                "--directory",
            ])
            .arg(&there)
            .stderr(Stdio::null())
            .status()
            .expect("tar starts");
        assert!(status.success(), "{file}");
    }
    let names = |text: &str| -> Vec<String> {
        text.lines()
            .filter(|line| line.contains(" d") || line.contains('@') || line.contains(':'))
            .map(|line| line.split(' ').next().unwrap_or_default().to_owned())
            .collect()
    };
    let look = format!("cd {}; {}", there.display(), LOOK.strip_prefix("cd /dc; ").expect("it does"));
    let seen = Command::new("sh").args(["-c", &look]).output().expect("sh starts");
    let found: Vec<String> = names(&String::from_utf8_lossy(&seen.stdout))
        .into_iter()
        .filter(|name| !name.starts_with(".dvs-backup"))
        .collect();
    let then: Vec<String> = names(&states[4]).into_iter().filter(|name| !name.starts_with(".dvs-backup")).collect();
    assert_eq!(found, then);
}

const WITH_DISKS: &str = r#"
name = "shop"
nodes = ["n1", "n2"]

[[disks]]
name = "root"
bytes = 67108864
node = "n1"
replicas = 1

[[disks]]
name = "data"
bytes = 67108864
node = "n2"
replicas = 2

[[disks]]
name = "scratch"
bytes = 33554432
store = "sparse"
node = "n1"
replicas = 1
"#;

/// Of a program on a node's machine.
fn on(cluster: &Cluster, node: &str, words: &[&str]) {
    let done = cluster.output(&[&["dev", "exec", node, "--", "timeout", "60"], words].concat());
    assert!(done.status.success(), "{words:?} on {node}: {done:?}");
}

/// What is on a disk, as a client of NBD reads it.
fn image(cluster: &Cluster, dc: &str, disk: &str, port: u16) -> Vec<u8> {
    let (at, file) = (format!("127.0.0.1:{port}"), cluster.state_dir().join(format!("{dc}-{disk}.img")));
    cluster.ok(&["disk", "export", dc, disk, "--node", "n1", "--listen", &at, "--read-only"]);
    on(cluster, "n1", &["nbdcopy", &format!("nbd://{at}/{disk}"), file.to_str().expect("text")]);
    cluster.ok(&["disk", "unexport", dc]);
    fs::read(&file).expect("an image")
}

#[test]
fn further_disks_come_back_with_what_was_on_them() {
    if !has("nbdcopy", "libnbd-bin") || !has("qemu-io", "qemu-utils") {
        return;
    }
    let cluster = Cluster::up(2);
    let description = cluster.state_dir().join("dc.toml");
    fs::write(&description, WITH_DISKS).expect("written");
    cluster.ok(&["dc", "create", "-f", description.to_str().expect("text"), "--start"]);
    cluster.sh("shop", "n1", "echo page > /dc/page");
    let write = |steps: &[&str], disk: &str| {
        let at = "127.0.0.1:10819";
        cluster.ok(&["disk", "export", "shop", disk, "--node", "n1", "--listen", at]);
        let steps: Vec<&str> = steps.iter().flat_map(|step| ["-c", step]).collect();
        on(&cluster, "n1", &[&["qemu-io", "-f", "raw", &format!("nbd://{at}/{disk}")][..], &steps].concat());
        cluster.ok(&["disk", "unexport", "shop"]);
    };
    write(&["write -P 1 0 4k", "write -P 2 5M 3M", "write -P 3 67104768 4k", "flush"], "data");
    write(&["write -P 4 1M 1M", "flush"], "scratch");
    let (data, scratch) = (image(&cluster, "shop", "data", 10820), image(&cluster, "shop", "scratch", 10820));
    assert_eq!((data.len(), data[5 << 20], scratch[1 << 20]), (64 << 20, 2, 4));

    let place = tempfile::tempdir().expect("a directory");
    let path = |name: &str| place.path().join(name).to_str().expect("text").to_owned();
    let (whole, changed, without) = (path("whole"), path("changed"), path("without"));
    let made = cluster.json(&["dc", "backup", "shop", &whole, "--keep", "-o", "json"]);
    assert_eq!(made["disks"], 2);
    let bytes = fs::metadata(&whole).expect("a file").len();
    assert!((4 << 20..8 << 20).contains(&bytes), "zeros take no room: {bytes}");
    let checked = cluster.output(&["dc", "restore", "--check", &whole]).stderr;
    let checked = String::from_utf8_lossy(&checked);
    assert!(checked.contains("2 further disks"), "{checked}");

    // One extent becomes other, one zeros.
    write(&["write -P 9 5M 4k", "write -z -u 7M 1M", "flush"], "data");
    let later = image(&cluster, "shop", "data", 10820);
    assert_eq!((later[5 << 20], later[7 << 20], later[6 << 20]), (9, 0, 2));
    cluster.ok(&["dc", "backup", "shop", &changed, "--since", &whole, "--keep"]);
    let bytes = fs::metadata(&changed).expect("a file").len();
    assert!((1 << 20..2 << 20).contains(&bytes), "only the extent that differs: {bytes}");
    cluster.ok(&["dc", "backup", "shop", &without, "--no-disks"]);
    assert!(fs::metadata(&without).expect("a file").len() < 1 << 20);

    let restored = |files: &[&str]| {
        cluster.ok(&[&["dc", "restore"][..], files, &["--name", "copy"]].concat());
        assert_eq!(cluster.sh("copy", "n2", "cat /dc/page"), "page\n");
        let disks = cluster.json(&["disk", "ls", "copy", "-o", "json"]);
        let copies = |disk: usize| disks[disk]["copies"].as_array().map_or(0, Vec::len);
        assert_eq!((copies(1), copies(2)), (2, 0), "{disks}");
        let found = (image(&cluster, "copy", "data", 10821), image(&cluster, "copy", "scratch", 10821));
        cluster.ok(&["dc", "delete", "--force", "copy"]);
        found
    };
    assert!(restored(&[&whole]) == (data, scratch.clone()));
    assert!(restored(&[&whole, &changed]) == (later, scratch));
    let (empty, _) = restored(&[&without]);
    assert!(empty.iter().all(|byte| *byte == 0));

    // One bit of a disk's content, in a file and out of a pipe.
    let mut bytes = fs::read(&whole).expect("a file");
    let at = bytes.windows(4096).position(|block| block.iter().all(|byte| *byte == 2)).expect("it is there");
    bytes[at] ^= 1;
    let flipped = path("flipped");
    fs::write(&flipped, &bytes).expect("a file");
    for script in [
        format!("{} dc restore {flipped} --name copy", dvs_binary().display()),
        format!("cat {flipped} | {} dc restore - --name copy", dvs_binary().display()),
    ] {
        let done = bash(&cluster, &script).output().expect("bash starts");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(1) && said.contains("disk 'data'"), "{said}");
        assert_eq!(names(&cluster), ["shop"]);
    }
}

/// Writes a number to a block of each MiB of a disk, one after the other, round by round.
const NUMBERS: &str = r#"
import socket, struct, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def get(count):
    got = b""
    while len(got) < count:
        more = s.recv(count - len(got))
        if not more: sys.exit(0)
        got += more
    return got
get(18)
# No zeros behind the answer, and the export by its name.
s.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 1, len(sys.argv[2])) + sys.argv[2].encode())
get(10)
number = 0
while True:
    number += 1
    for mib in range(int(sys.argv[3])):
        s.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 1, 0, mib << 20, 4096) + struct.pack("<Q", number) * 512)
        get(16)
    if number == 3: open(sys.argv[4], "w").close()
"#;

#[test]
fn disk_is_in_a_backup_as_at_one_moment_while_a_client_writes() {
    if !has("nbdcopy", "libnbd-bin") {
        return;
    }
    let cluster = Cluster::up(2);
    let description = cluster.state_dir().join("dc.toml");
    fs::write(&description, WITH_DISKS).expect("written");
    cluster.ok(&["dc", "create", "-f", description.to_str().expect("text"), "--start"]);
    for (disk, mib) in [("data", 64), ("scratch", 32)] {
        let path = |name: &str| cluster.state_dir().join(format!("{disk}-{name}")).to_str().expect("text").to_owned();
        cluster.ok(&["disk", "export", "shop", disk, "--node", "n1", "--listen", "127.0.0.1:10829"]);
        let (begun, mib_text) = (path("begun"), mib.to_string());
        let words =
            ["dev", "exec", "n1", "--", "timeout", "60", "python3", "-c", NUMBERS, "10829", disk, &mib_text, &begun];
        let mut writer = cluster.command(&words).spawn().expect("it starts");
        eventually("it writes", SOON, || fs::exists(&begun).ok()?.then_some(()));
        let file = path("backup");
        cluster.ok(&["dc", "backup", "shop", &file]);
        // Cut off, it ends.
        cluster.ok(&["disk", "unexport", "shop"]);
        writer.wait().expect("it ends");
        cluster.ok(&["dc", "restore", &file, "--name", "copy", "--no-ports"]);
        let found = image(&cluster, "copy", disk, 10830);
        cluster.ok(&["dc", "delete", "--force", "copy"]);
        let numbers: Vec<u64> =
            found.chunks(1 << 20).map(|mib| u64::from_le_bytes(mib[..8].try_into().expect("8"))).collect();
        let (first, last) = (numbers[0], numbers[mib - 1]);
        assert!(numbers.is_sorted_by(|one, next| one >= next) && last > 0 && first - last <= 1, "{numbers:?}");
    }
}

const ATTRIBUTES: &str = r#"
import os
os.makedirs("/dc/a/b")
for path in ["/dc/a/file", "/dc/a/b"]:
    if path.endswith("file"): open(path, "w").write("content")
    os.setxattr(path, "user.note", b"plain")
    os.setxattr(path, "user.lines", b"x\n20 path=etc/passwd\n\0\xff")
capability = bytes([1, 0, 0, 2, 10, 0, 0, 0] + [0] * 12)
os.setxattr("/dc/a/file", "security.capability", capability)
with open("/dc/a/holes", "wb") as file:
    for at in [0, 5 << 20, 11 << 20]:
        file.seek(at); file.write(b"x" * 4096)
    file.truncate(20 << 20)
"#;
const ATTRIBUTES_SHOWN: &str = r#"
import os
for path in ["/dc/a/file", "/dc/a/b", "/dc/a/holes"]:
    print(path, [(name, os.getxattr(path, name)) for name in sorted(os.listxattr(path))])
print(os.stat("/dc/a/holes").st_size, os.stat("/dc/a/holes").st_blocks < 100)
"#;

#[test]
fn attributes_holes_and_quotas_come_back() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    let python = |dc: &str, text: &str| cluster.ok(&["run", dc, "--", "python3", "-c", text]);
    python("shop", ATTRIBUTES);
    cluster.ok(&["fs", "quota", "set", "shop", "a", "--bytes", "100M", "--inodes", "50"]);
    cluster.sh("shop", "n1", "mkdir /dc/c; head -c 600000 /dev/urandom > /dc/c/old");
    cluster.ok(&["fs", "quota", "set", "shop", "c", "--bytes", "1M"]);
    let quotas = |dc: &str| {
        let all = cluster.json(&["fs", "quota", "ls", dc, "-o", "json"]);
        let of = |quota: &serde_json::Value| [&quota["path"], &quota["bytes"], &quota["inodes"]].map(Clone::clone);
        all.as_array().expect("a list").iter().map(of).collect::<Vec<_>>()
    };
    let place = tempfile::tempdir().expect("a directory");
    let path = |name: &str| place.path().join(name).to_str().expect("text").to_owned();
    let (whole, changed) = (path("whole"), path("changed"));
    cluster.ok(&["dc", "backup", "shop", &whole, "--keep"]);
    assert!(fs::metadata(&whole).expect("a file").len() < 2 << 20, "holes take no room");
    let (was, limits) = (python("shop", ATTRIBUTES_SHOWN), quotas("shop"));
    assert!(was.contains("security.capability") && was.contains("True"), "{was}");

    // What goes with GNU tar.
    let tar = format!("mkdir {0}.d; tar --warning=no-unknown-keyword -xf {0} -C {0}.d", whole);
    shell(&cluster, &tar);
    assert_eq!(fs::read(format!("{whole}.d/a/file")).expect("a file"), b"content");

    cluster.sh("shop", "n1", "cd /dc; rm c/old; head -c 700000 /dev/urandom > c/new; mkdir d");
    let change = "import os; os.removexattr('/dc/a/b', 'user.note'); os.setxattr('/dc/a/file', 'user.note', b'other')";
    python("shop", change);
    cluster.ok(&["fs", "quota", "set", "shop", "c", "--bytes", "2M"]);
    cluster.ok(&["fs", "quota", "rm", "shop", "a"]);
    cluster.ok(&["fs", "quota", "set", "shop", "d", "--inodes", "9"]);
    cluster.ok(&["dc", "backup", "shop", &changed, "--since", &whole, "--keep"]);

    cluster.ok(&["dc", "restore", &whole, "--name", "copy"]);
    assert_eq!((python("copy", ATTRIBUTES_SHOWN), quotas("copy")), (was, limits));
    cluster.ok(&["dc", "delete", "--force", "copy"]);
    cluster.ok(&["dc", "restore", &whole, &changed, "--name", "copy"]);
    assert_eq!(python("copy", ATTRIBUTES_SHOWN), python("shop", ATTRIBUTES_SHOWN));
    let sorted = |mut all: Vec<[serde_json::Value; 3]>| {
        all.sort_by_key(|quota| quota[0].to_string());
        all
    };
    assert_eq!(sorted(quotas("copy")), sorted(quotas("shop")));
}
