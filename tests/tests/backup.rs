//! A container in a file, and the container that is made of it.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

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
const LOOK: &str = "cd /dc; find . -mindepth 1 \\( -type d -printf '%P %m %U:%G d\\n' -o -printf '%P %m %U:%G %T@ %n %s %l\\n' \\) \
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
