//! Snapshots of a container's tree: of one moment on all nodes, whatever dies; looked into, gone back to, kept.

use std::process::{Child, Stdio};
use std::time::Duration;

use end_to_end::{Cluster, eventually};

const DC: &str = "shop";
const SOON: Duration = Duration::from_secs(60);

/// Each node writes down how far the one before it had got: what it writes is later than what it has read.
const CHAIN: [(&str, &str); 3] = [
    ("n1", "n=0; while :; do n=$((n+1)); echo $n >> /dc/first; done"),
    ("n2", "while :; do n=$(wc -l < /dc/first); echo $n >> /dc/second; done"),
    ("n3", "while :; do n=$(tail -n 1 /dc/second); echo ${n:-0} >> /dc/third; done"),
];

/// Programs that end with the test.
struct Programs(Vec<Child>);

impl Programs {
    fn begin(cluster: &Cluster) -> Programs {
        cluster.sh(DC, "n1", "touch /dc/first /dc/second /dc/third");
        let begin = |(node, script): (&str, &str)| {
            let mut command = cluster.command_without_limit(&["run", DC, "--node", node, "--", "sh", "-c", script]);
            command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().expect("dvs starts")
        };
        Programs(CHAIN.into_iter().map(begin).collect())
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// How far each of the chain is, below a directory.
fn progress(cluster: &Cluster, node: &str, below: &str) -> [u64; 3] {
    let last = |file: &str| format!("tail -n 1 {below}/{file} | grep . || echo 0");
    let script = format!("wc -l < {below}/first; {}; {}", last("second"), last("third"));
    let said = cluster.sh(DC, node, &script);
    let numbers: Vec<u64> = said.lines().map(|line| line.trim().parse().expect("a number")).collect();
    numbers.try_into().expect("three of them")
}

fn names(cluster: &Cluster) -> Vec<String> {
    let listed = cluster.json(&["fs", "snapshot", "ls", DC, "-o", "json"]);
    let all = listed.as_array().expect("a list");
    all.iter().map(|one| one["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn snapshot_is_of_one_moment_on_all_nodes_also_when_the_file_server_dies() {
    let cluster = Cluster::up(3);
    cluster.container(DC, 3, &["--fs-node", "n2", "--disk-node", "n2"]);
    let programs = Programs::begin(&cluster);
    eventually("all write", SOON, || (progress(&cluster, "n1", "/dc")[2] > 0).then_some(()));
    let mut before = [0; 3];
    for round in 0..10 {
        let node = CHAIN[round % 3].0;
        let seen = progress(&cluster, node, "/dc");
        let name = format!("s{round}");
        let killed = (round % 4 == 2).then(|| {
            let pid = cluster.server_pid(DC, "n2", "fs").expect("it serves");
            std::thread::scope(|scope| {
                let taking = scope.spawn(|| cluster.ok(&["fs", "snapshot", "create", DC, &name]));
                cluster.kill("n2", pid);
                taking.join().expect("it is taken");
            });
        });
        if killed.is_none() {
            cluster.ok(&["fs", "snapshot", "create", DC, &name]);
        }
        let found = progress(&cluster, node, &format!("/dc/.snapshots/{name}"));
        let [first, second, third] = found;
        assert!(second <= first && third <= second, "{name} is not of one moment: {found:?}");
        assert!(found.iter().zip(seen).all(|(found, seen)| *found >= seen), "{name}: {found:?}, and {seen:?} was seen");
        assert!(found.iter().zip(before).all(|(found, before)| *found >= before), "{name}: {found:?} after {before:?}");
        before = found;
    }
    drop(programs);
    // They stay what they were, on every node.
    let last = |node: &str| progress(&cluster, node, "/dc/.snapshots/s9");
    assert_eq!([last("n1"), last("n2"), last("n3")], [before; 3]);
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("backup").to_str().expect("text").to_owned();
    cluster.ok(&["dc", "backup", DC, &file, "--snapshot", "s3"]);
    let listed = names(&cluster);
    assert_eq!(listed, (0..10).map(|round| format!("s{round}")).collect::<Vec<_>>(), "a backup leaves nothing");

    for name in &listed {
        cluster.ok(&["fs", "snapshot", "rm", DC, name]);
    }
    eventually("nothing is only of snapshots", SOON, || {
        let space = cluster.json(&["fs", "df", DC, "-o", "json"]);
        (space[0]["snapshots"] == 0 && space[0]["snapshot_bytes"] == 0).then_some(())
    });
    let (status, said) = cluster.fails(&["run", DC, "--", "ls", "/dc/.snapshots/s9"]);
    assert!(status == 2 && said.contains("No such file"), "{said}");
}

#[test]
fn what_differs_from_a_snapshot_is_told_by_name() {
    let cluster = Cluster::up(2);
    cluster.container(DC, 2, &["--fs-node", "n2", "--disk-node", "n2"]);
    let (status, said) = cluster.fails(&["diff", DC]);
    assert!(
        status == 1 && said.contains("no snapshot to compare with") && said.contains("try: dvs fs snapshot"),
        "{said}"
    );
    let first = "cd /dc; mkdir -p a/b gone/below moved; for f in a/b/file a/same gone/below/file moved/file other mode \
        replaced; do echo one > $f; done; ln -s a link; ln a/same hard";
    cluster.sh(DC, "n1", first);
    cluster.ok(&["fs", "snapshot", "create", DC, "first"]);
    assert_eq!(cluster.ok(&["diff", DC]), "", "nothing yet");
    // From the other node, whose changes the file server may not have been told of.
    let then = "cd /dc; echo two >> a/b/file; rm -r gone; mv moved a/moved; chmod 600 mode; touch new; \
        echo two > draft; mv draft replaced; rm link; mkdir link; echo x > link/file; cat a/same > /dev/null";
    cluster.sh(DC, "n2", then);
    let expected = "\
        C /dc/a\nC /dc/a/b/file\nA /dc/a/moved\nA /dc/a/moved/file\nD /dc/gone\nC /dc/link\nA /dc/link/file\n\
        C /dc/mode\nD /dc/moved\nA /dc/new\nC /dc/replaced\n";
    assert_eq!(cluster.ok(&["diff", DC]), expected);
    cluster.ok(&["fs", "snapshot", "create", DC, "second"]);
    assert_eq!(cluster.ok(&["fs", "diff", DC, "first", "second"]), expected);
    assert_eq!(cluster.ok(&["diff", DC]), "", "since the last one");
    assert_eq!(cluster.ok(&["fs", "diff", DC, "second", "second"]), "");
    let told = cluster.json(&["fs", "diff", DC, "first", "-o", "json"]);
    let of = |path: &str| told.as_array().expect("a list").iter().find(|one| one["path"] == path).expect("it is there");
    let (gone, link) = (of("/dc/gone"), of("/dc/link"));
    assert_eq!(
        (&gone["change"], &gone["kind"], &link["kind"]),
        (&"removed".into(), &"directory".into(), &"directory".into())
    );
    // A program of the container may, too.
    assert_eq!(cluster.sh(DC, "n1", "rm /dc/other; dvs diff"), "D /dc/other\n");
    for (snapshots, part) in [
        (&["second", "first"][..], "taken after"),
        (&["none"], "none of this name"),
        (&["first", "none"], "none of this name"),
    ] {
        let (status, said) = cluster.fails(&[&["fs", "diff", DC], snapshots].concat());
        assert!(status == 1 && said.contains(part) && said.contains("  try: "), "{said}");
    }
    assert_eq!(names(&cluster), ["first", "second"], "nothing is left of it");
}

#[test]
fn tree_goes_back_as_a_whole_or_not_at_all() {
    let cluster = Cluster::up(2);
    cluster.container(DC, 2, &["--fs-node", "n1", "--disk-node", "n1"]);
    cluster.sh(DC, "n2", "mkdir /dc/d; echo one > /dc/d/file; ln /dc/d/file /dc/link; echo gone > /dc/gone");
    cluster.ok(&["fs", "snapshot", "create", DC, "before"]);
    let (status, said) = cluster.fails(&["fs", "snapshot", "create", DC, "before"]);
    assert!(status == 1 && said.contains("there is one of this name"), "{said}");
    cluster.sh(DC, "n1", "echo two > /dc/d/file; rm /dc/gone; mkdir /dc/new");
    cluster.ok(&["fs", "snapshot", "create", DC, "after"]);
    // Somebody has it open, and is ended.
    cluster.ok(&["run", "-d", DC, "--node", "n2", "--", "sh", "-c", "exec 3>>/dc/open; rm /dc/open; exec sleep 1000"]);

    let (status, said) = cluster.fails(&["fs", "snapshot", "restore", DC, "never"]);
    assert!(status == 1 && said.contains("there is none of this name"), "{said}");
    assert_eq!(cluster.sh(DC, "n2", "cat /dc/d/file"), "two\n", "and nobody was stopped");
    cluster.ok(&["fs", "snapshot", "restore", DC, "before", "--time", "1"]);
    let look = "cat /dc/d/file /dc/link /dc/gone; ls /dc; stat -c %h /dc/link";
    assert_eq!(cluster.sh(DC, "n2", look), "one\none\ngone\nd\ngone\nlink\n2\n");
    assert_eq!(cluster.sh(DC, "n1", "cat /dc/.snapshots/after/d/file; ls /dc/.snapshots/after"), "two\nd\nlink\nnew\n");
    assert_eq!(names(&cluster), ["before", "after"]);

    // Once: what was done since stays, whoever starts again.
    cluster.sh(DC, "n2", "echo three > /dc/d/file; sync");
    let pid = cluster.server_pid(DC, "n1", "fs").expect("it serves");
    cluster.kill("n1", pid);
    assert_eq!(cluster.sh(DC, "n2", "cat /dc/d/file"), "three\n");
    cluster.ok(&["restart", DC]);
    assert_eq!(cluster.sh(DC, "n2", "cat /dc/d/file"), "three\n");

    // Of a container that is stopped nobody knows the snapshots before its file server looks.
    cluster.ok(&["stop", DC]);
    let (status, said) = cluster.fails(&["fs", "snapshot", "restore", DC, "never"]);
    assert!(status == 1 && said.contains("has no snapshot 'never'"), "{said}");
    let listed = cluster.json(&["dc", "inspect", DC, "-o", "json"]);
    assert_eq!(listed["phase"], "stopped", "as it was");
    cluster.ok(&["fs", "snapshot", "restore", DC, "after"]);
    assert_eq!(cluster.sh(DC, "n2", "cat /dc/d/file; ls /dc"), "two\nd\nlink\nnew\n");
}

#[test]
fn tenant_changes_nothing_of_a_snapshot_and_takes_no_more_than_its_tree_has() {
    let cluster = Cluster::up(2);
    cluster.container(DC, 2, &["--disk", "128M"]);
    cluster.sh(DC, "n1", "echo kept > /dc/file; chmod 600 /dc/file; mkdir /dc/shared; chmod 777 /dc/shared");
    cluster.ok(&["fs", "snapshot", "create", DC, "kept"]);
    let as_nobody = |script: &str| cluster.fails(&["run", DC, "-u", "65534", "--", "sh", "-c", script]);
    for script in ["mkdir /dc/.snapshots/mine", "rmdir /dc/.snapshots/kept", "cat /dc/.snapshots/kept/file"] {
        let (_, said) = as_nobody(script);
        assert!(said.contains("Permission denied"), "{script}: {said}");
    }
    let attacks = "cd /dc/.snapshots/kept
        echo x > file; echo x >> file; truncate -s 0 file; rm -f file; mv file ../../stolen; ln file ../../link; ln /dc/file new
        touch new; mkdir new; chmod 777 file .; chown 5 file; setfattr -n user.a -v b file; dd if=/dev/zero of=file conv=notrunc count=1
        mv /dc/.snapshots/kept /dc/.snapshots/other; mv /dc/.snapshots /dc/other; rm -rf /dc/.snapshots; mount -o remount,rw /dc
        python3 -c 'import mmap,os; f=os.open(\"file\",os.O_RDWR); m=mmap.mmap(f,4); m[0:1]=b\"X\"'";
    cluster.sh(DC, "n2", &format!("set +e; ({attacks}) >/dev/null 2>&1; true"));
    let look = "cat /dc/.snapshots/kept/file; ls -A /dc/.snapshots/kept; stat -c '%a %u' /dc/.snapshots/kept/file";
    assert_eq!(cluster.sh(DC, "n1", look), "kept\nfile\nshared\n600 0\n");
    // All of its own tree in snapshots: whoever writes more hears so, and room comes back.
    let fill = "i=0; while head -c 8000000 /dev/urandom > /dc/big && mkdir /dc/.snapshots/s$i && [ $i -lt 70 ]; do i=$((i+1)); done";
    let (_, said) = cluster.fails(&["run", DC, "--", "sh", "-c", &format!("{fill}; exit 1")]);
    assert!(said.contains("No space left on device"), "{said}");
    cluster.sh(DC, "n2", "rmdir /dc/.snapshots/s*; ls /dc/.snapshots");
    eventually("there is room again", SOON, || {
        let written = cluster.command(&["run", DC, "--", "dd", "if=/dev/zero", "of=/dc/big", "bs=1M", "count=60"]);
        { written }.output().ok()?.status.success().then_some(())
    });
    cluster.sh(DC, "n1", "i=0; while mkdir /dc/.snapshots/n$i 2>/dev/null; do i=$((i+1)); done; rm /dc/big");
    assert_eq!(names(&cluster).len(), 64);
    let (status, said) = cluster.fails(&["fs", "snapshot", "create", DC, "more"]);
    assert!(status == 1 && said.contains("as many as there can be"), "{said}");
    assert_eq!(cluster.sh(DC, "n1", look), "kept\nfile\nshared\n600 0\n");
}

#[test]
fn damaged_file_is_found_by_who_reads_all_of_the_tree_and_by_who_looks_at_the_image() {
    let cluster = Cluster::up(1);
    cluster.container(DC, 1, &["--disk", "128M"]);
    cluster.sh(
        DC,
        "n1",
        "mkdir /dc/d; yes 'a line of its own' | head -c 1000000 > /dc/d/file; echo whole > /dc/whole; sync",
    );
    let scrubbed = cluster.json(&["fs", "scrub", DC, "-o", "json"]);
    assert_eq!((&scrubbed[0]["damaged"], &scrubbed[0]["files"]), (&0.into(), &3.into()), "{scrubbed}");
    assert!(names(&cluster).is_empty(), "nothing is left of it");
    cluster.ok(&["stop", DC]);
    let image = cluster.path_of("n1", "state_dir").join("dcs/1/images/root.img");
    let image = image.to_str().expect("text");
    assert!(cluster.ok(&["alone", "check", "--data", image]).contains("is sound"));

    let bytes = std::fs::read(image).expect("an image");
    let found = bytes.windows(18).rposition(|bytes| bytes == b"a line of its own\n").expect("it is there");
    let file = std::fs::OpenOptions::new().write(true).open(image).expect("an image");
    std::os::unix::fs::FileExt::write_all_at(&file, b"X", found as u64).expect("it is written");
    drop(file);
    let looked = cluster.output(&["alone", "check", "--data", image]);
    let said = String::from_utf8_lossy(&looked.stdout).into_owned();
    assert!(looked.status.code() == Some(1) && said.contains("wrong checksum") && said.contains("1 finding"), "{said}");
    assert!(cluster.ok(&["alone", "check", image]).contains("is sound"), "its metadata are");
    assert!(std::fs::read(image).expect("an image").len() == bytes.len());

    cluster.ok(&["start", DC]);
    let looked = cluster.output(&["fs", "scrub", DC, "-o", "json"]);
    let told: serde_json::Value = serde_json::from_slice(&looked.stdout).expect("JSON");
    assert_eq!(looked.status.code(), Some(1), "{told}");
    assert_eq!((&told[0]["damaged"], &told[0]["paths"]), (&1.into(), &serde_json::json!(["d/file"])));
    assert!(names(&cluster).is_empty(), "nothing is left of it");
}
