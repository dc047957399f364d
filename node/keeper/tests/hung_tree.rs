//! A file tree whose gate took a request and never answers: nobody who waits for it can be killed, and still the keeper
//! answers, programs are given up, and everything ends when it is to end.

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use keeper::{FuseOptions, KeeperError, StreamEnd};
use mgmt_api::{ErrorKind, RunRequest};
use support::{Keeper, is_root, request};

const INIT: u32 = 26;
/// What a launch may take here.
const LAUNCH_LIMIT: Duration = Duration::from_secs(4);

/// A gate that greets the kernel, takes the first request of a program, and says no more. Gives its descriptor, which stays open.
fn take_one(fuse: OwnedFd) -> File {
    let mut fuse = File::from(fuse);
    let mut request = vec![0; 1 << 20];
    loop {
        support::wait_for(&[&fuse.try_clone().expect("clone").into()]);
        let got = fuse.read(&mut request).expect("request");
        assert!(got >= 40);
        let opcode = u32::from_ne_bytes(request[4..8].try_into().expect("word"));
        if opcode != INIT {
            return fuse;
        }
        // Version 7.31, no features, writes of 4 KiB.
        let body = [7_u32, 31, 4 << 20, 0, 0, 4096, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut answer = [80_u32.to_ne_bytes(), 0_u32.to_ne_bytes()].concat();
        answer.extend_from_slice(&request[8..16]);
        answer.extend(body.iter().flat_map(|word| word.to_ne_bytes()));
        fuse.write_all(&answer).expect("greeting");
    }
}

/// The connection is gone: nobody gets requests from it any more.
fn is_cut_off(mut gate: &File) -> bool {
    matches!(gate.read(&mut vec![0; 1 << 20]), Err(error) if error.raw_os_error() == Some(libc::ENODEV))
}

fn patient_keeper() -> Keeper {
    Keeper::start_with(|options| options.launch_limit_ms = Some(LAUNCH_LIMIT.as_millis() as u64))
}

/// Starts `run` on a connection of its own.
fn launch(keeper: &Keeper, run: RunRequest) -> std::thread::JoinHandle<Result<u32, KeeperError>> {
    let client = keeper.connect();
    std::thread::spawn(move || client.run(&run, None))
}

/// The one process of the container, which is on its way to exec; who made it may not have ended yet.
fn launching(keeper: &Keeper) -> u32 {
    let begun = Instant::now();
    loop {
        let members = keeper.cgroup.members().expect("members");
        if let [launching] = members[..] {
            return launching;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{members:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn keeper_answers_while_a_launch_hangs_and_gives_it_up_in_time() {
    if !is_root() {
        return;
    }
    let keeper = patient_keeper();
    let fuse = keeper.client.mount_fuse(&FuseOptions::default()).expect("mount");
    let run = launch(&keeper, request(&["true"]));
    let gate = take_one(fuse);
    keeper.client.status().expect("status");
    keeper.client.list().expect("list");
    let mut elsewhere = request(&["true"]);
    elsewhere.workdir = Some("/".into());
    keeper.client.run(&elsewhere, None).expect("run");
    assert!(!run.is_finished(), "all that happened while the launch was hanging");
    match run.join().expect("thread") {
        Err(KeeperError::Refused(body)) => assert_eq!(body.kind, ErrorKind::Unavailable, "{body:?}"),
        other => panic!("{other:?}"),
    }
    assert!(!is_cut_off(&gate), "giving one launch up does no harm to others");
    keeper.client.stop(Duration::ZERO).expect("stop");
    assert!(is_cut_off(&gate));
    assert_eq!(keeper.cgroup.members().expect("members"), Vec::<u32>::new());
}

#[test]
fn program_being_launched_holds_nothing_of_the_keeper_and_goes_with_it() {
    if !is_root() {
        return;
    }
    let mut keeper = Keeper::start();
    let fuse = keeper.client.mount_fuse(&FuseOptions::default()).expect("mount");
    let run = launch(&keeper, request(&["true"]));
    let gate = take_one(fuse);
    let pid = launching(&keeper);
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors");
    let fds: Vec<(String, String)> = fds
        .map(|entry| entry.expect("entry"))
        .map(|entry| {
            let target = std::fs::read_link(entry.path()).expect("target");
            (entry.file_name().to_string_lossy().into_owned(), target.to_string_lossy().into_owned())
        })
        .collect();
    let others: Vec<_> = fds.iter().filter(|(number, _)| !["0", "1", "2"].contains(&number.as_str())).collect();
    assert!(matches!(others.as_slice(), [(_, report)] if report.starts_with("pipe:")), "{fds:?}");
    let program = sys::pidfd::open(pid as i32).expect("pidfd");
    keeper.child.kill().expect("kill");
    drop(gate);
    support::wait_for(&[&program]);
    assert!(run.join().expect("thread").is_err());
}

#[test]
fn unmounting_frees_who_waits_for_a_gate_that_does_not_answer() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let fuse = keeper.client.mount_fuse(&FuseOptions::default()).expect("mount");
    let mut run = request(&["sh", "-c", "stat /dc/x 2>/dev/null || echo freed"]);
    run.workdir = Some("/".into());
    let client = keeper.connect();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("pair");
    client.run(&run, Some(&StreamEnd::of(std::os::fd::AsFd::as_fd(&theirs)))).expect("run");
    drop(theirs);
    let gate = take_one(fuse);
    keeper.client.unmount_fuse().expect("unmount");
    assert!(is_cut_off(&gate));
    assert_eq!(support::Watcher::new(ours).into_end().text(), "freed");
    assert!(!keeper.client.status().expect("status").fuse_mounted);
}
