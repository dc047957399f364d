//! The streams of programs on other nodes: what a program wrote, and how it ended, reaches its client, whatever happens to its input.

use std::io::Write;
use std::process::{Output, Stdio};

use end_to_end::Cluster;

/// So many times in a row: these were races.
const ROUNDS: usize = 100;

#[test]
fn output_and_status_arrive_when_input_is_left_unread() {
    let cluster = Cluster::up(3);
    cluster.container("shop", 3, &["--fs-node", "n2", "--disk-node", "n3"]);
    let numbers: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    for round in 0..ROUNDS {
        let done = fed(&cluster, &["run", "-i", "shop", "-n", "n3", "--", "head", "-1"], numbers.as_bytes());
        assert_eq!((done.status.code(), done.stdout.as_slice()), (Some(0), &b"1\n"[..]), "round {round}: {done:?}");
    }
    for round in 0..ROUNDS / 10 {
        let suicide = ["run", "-i", "shop", "-n", "n3", "--", "sh", "-c", "kill -9 $$"];
        let done = fed(&cluster, &suicide, numbers.as_bytes());
        assert_eq!(done.status.code(), Some(137), "round {round}: {done:?}");
    }
    // tar ends at the archive's end, and leaves what it is padded with.
    let mut archive = tar_of_one_file();
    archive.resize(archive.len() + 3_000_000, 0);
    for round in 0..ROUNDS / 5 {
        let done = fed(&cluster, &["import", "-n", "n3", "shop", "-", &format!("/round{round}")], &archive);
        assert!(done.status.success(), "round {round}: {done:?}");
    }
}

/// Runs the command with this on its standard input.
fn fed(cluster: &Cluster, arguments: &[&str], input: &[u8]) -> Output {
    let mut command = cluster.command(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("dvs starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    std::thread::scope(|scope| {
        // A program that does not read its input closes the pipe: that is its right.
        scope.spawn(move || stdin.write_all(input).is_ok());
        child.wait_with_output().expect("dvs ends")
    })
}

fn tar_of_one_file() -> Vec<u8> {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("file"), vec![b'x'; 300_000]).expect("a file");
    let done = std::process::Command::new("tar").args(["-c", "-C"]).arg(directory.path()).arg("file").output();
    done.expect("tar starts").stdout
}
