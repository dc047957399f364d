//! A file tree whose gate took a request and never answers: nobody who waits for it can be killed, and still the keeper
//! answers, programs are given up, and everything ends when it is to end.

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use keeper::{FuseOptions, KeeperError, Refusal, StreamEnd};
use mgmt_api::RunRequest;
use support::{Keeper, is_root, request};

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const INIT: u32 = 26;
/// What a launch may take here.
const LAUNCH_LIMIT: Duration = Duration::from_secs(4);

/// Version 7.31, no features, writes of 4 KiB.
const GREETING: [u32; 16] = [7, 31, 4 << 20, 0, 0, 4096, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A gate that greets the kernel, takes the first request of a program, and says no more. Gives its descriptor, which
/// stays open.
fn take_one(fuse: OwnedFd) -> File {
    serve_while(fuse, |opcode, _| (opcode == INIT).then(|| Ok(words(&GREETING))))
}

/// A gate of one file that takes everything but a write. Gives its descriptor when the first write was taken.
fn take_a_write(fuse: OwnedFd) -> File {
    const ROOT: u64 = 1;
    const FILE: u64 = 2;
    let attributes = |node: u64| {
        let mode = if node == ROOT { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 };
        // Number, size, blocks, times, modes, one name, owner root, blocks of 4 KiB.
        let numbers = [node, 4096, 8, 0, 0, 0];
        [numbers.map(u64::to_ne_bytes).concat(), words(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0])].concat()
    };
    serve_while(fuse, |opcode, node| match opcode {
        INIT => Some(Ok(words(&GREETING))),
        LOOKUP => {
            let valid: Vec<u8> = [FILE, 1, 60, 60].iter().flat_map(|it| it.to_ne_bytes()).collect();
            Some(Ok([valid, words(&[0, 0]), attributes(FILE)].concat()))
        }
        GETATTR | SETATTR => Some(Ok([words(&[60, 0, 0, 0]), attributes(node)].concat())),
        OPEN => Some(Ok(vec![0; 16])),
        READ => Some(Ok(vec![0; 4096])),
        WRITE => None,
        _ => Some(Err(libc::ENOSYS)),
    })
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Answers requests, known by their operation and their node, until `answer` has none; that one stays unanswered.
fn serve_while(fuse: OwnedFd, answer: impl Fn(u32, u64) -> Option<Result<Vec<u8>, i32>>) -> File {
    let mut fuse = File::from(fuse);
    let mut request = vec![0; 1 << 20];
    loop {
        support::wait_for(&[&fuse.try_clone().expect("clone").into()]);
        let got = fuse.read(&mut request).expect("request");
        assert!(got >= 40);
        let opcode = u32::from_ne_bytes(request[4..8].try_into().expect("word"));
        let node = u64::from_ne_bytes(request[16..24].try_into().expect("words"));
        let Some(outcome) = answer(opcode, node) else { return fuse };
        let (error, body) = outcome.map_or_else(|errno| (-errno, Vec::new()), |body| (0, body));
        let mut reply = [(16 + body.len() as u32).to_ne_bytes(), error.to_ne_bytes()].concat();
        reply.extend_from_slice(&request[8..16]);
        reply.extend_from_slice(&body);
        fuse.write_all(&reply).expect("answer");
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
        Err(KeeperError::Refused(refusal)) => assert!(matches!(refusal, Refusal::LaunchLate { .. }), "{refusal:?}"),
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

/// Puts another mapping in place of one that has to be written: the kernel writes it first, and meanwhile nobody reads
/// what the program's memory says, such as its command line.
const HOLDS_ITS_MEMORY: &str = r#"
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
file = os.open("/dc/x", os.O_RDWR)
page = libc.mmap(None, 4096, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
ctypes.memset(page, 1, 4096)
libc.mmap(page, 4096, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10, -1, 0)
"#;

#[test]
fn process_table_that_cannot_be_read_is_refused_in_time_and_the_keeper_has_room_for_others() {
    if !is_root() {
        return;
    }
    let keeper = Keeper::start();
    let fuse = keeper.client.mount_fuse(&FuseOptions::default()).expect("mount");
    let mut run = request(&["/usr/bin/python3", "-c", HOLDS_ITS_MEMORY]);
    run.workdir = Some("/".into());
    keeper.connect().run(&run, None).expect("run");
    let gate = take_a_write(fuse);
    std::thread::scope(|scope| {
        // More than the keeper talks with at a time.
        let askers: Vec<_> = (0..80).map(|_| scope.spawn(|| keeper.connect().list())).collect();
        for asker in askers {
            match asker.join().expect("thread") {
                Err(KeeperError::Refused(refusal)) => assert_eq!(refusal, Refusal::ListLate),
                other => panic!("{other:?}"),
            }
        }
        keeper.connect().status().expect("status");
    });
    assert!(!is_cut_off(&gate), "that a table is not shown does no harm to the tree");
    keeper.client.stop(Duration::ZERO).expect("stop");
    assert!(is_cut_off(&gate));
}
