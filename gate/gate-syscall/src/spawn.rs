//! How a call gate begins: `dvs gate calls`, started by the node daemon.
//!
//! Descriptors: `keeper` (over it come listeners), `journal`, `init`, `memory` (over it the keeper is asked for what
//! calls point at), `job_door` (programs ask there), `job_starter` (over it the keeper is asked), and where `/proc`
//! shows all nodes `proc_fuse` (its mount), `proc_native` (the kernel's procfs) and `looks` (over it the keeper is
//! asked for who looks into processes). Options: `node_index`, `seats` (bits: all nodes of the container), `lost`
//! (likewise, of those that are lost), `uid_base` (first host uid of the container).

use std::process::ExitCode;
use std::sync::Arc;

use proc_core::caller::Uids;
use proc_core::order::LifeNumber;
use proc_core::range::{Seat, Seats};
use vos_rt::{Boot, Failure, Kind, SpawnError, run};

use crate::calls::{CallStates, News, Setting};
use crate::doorway::Doorway;
use crate::init::InitSocket;
use crate::jobs::{JobDoor, JobNodes, Starter};
use crate::links::Rings;
use crate::listeners::Listeners;
use crate::lookers::Lookers;
use crate::memory::KeptMemory;
use crate::service::{Further, Orders};
use crate::table::{self, Whose};

/// Answering and receiving calls are commands to their listeners; who calls is read below `/proc`.
const KIND: Kind = Kind {
    name: "calls",
    system_calls: &[
        libc::SYS_ioctl,
        libc::SYS_openat,
        libc::SYS_accept4,
        libc::SYS_setsockopt,
        // What is shown of processes.
        libc::SYS_getdents64,
        libc::SYS_readlinkat,
        libc::SYS_statx,
        libc::SYS_pread64,
        libc::SYS_fstatfs,
        libc::SYS_pipe2,
    ],
};

/// Runs `dvs gate calls`.
pub fn main_from_spawn() -> ExitCode {
    run(&KIND, open, |orders| {
        drop(orders);
        Ok(())
    })
}

fn open(boot: &mut Boot) -> Result<Orders, Failure> {
    let mut take = |name: &'static str| boot.spawn.take_fd(name).ok_or(SpawnError::Missing(name));
    let (keeper, journal, init) = (take("keeper")?, take("journal")?, InitSocket::new(take("init")?));
    let memory_of_callers = take("memory")?;
    let option = |name: &'static str| boot.spawn.option_u64(name)?.ok_or(SpawnError::Missing(name));
    let own = Seat::new(usize::try_from(option("node_index")?)?).ok_or("there is no such seat")?;
    let others = Seats::from_bits(option("seats")?).without(own);
    let uids = Uids { base: u32::try_from(option("uid_base")?)?, count: abi::limits::UIDS_PER_DC };

    // This process's epoch is larger than that of any call gate before it: good for a life that begins with it.
    let memory = KeptMemory::map(&journal)?;
    let begun = memory.journal(LifeNumber(boot.spawn.epoch)).life();
    let life = init.begin(begun, others)?;
    let listeners = Listeners::default();
    let mut doorway = Doorway::new(keeper);
    doorway.fetch_all(&listeners)?;

    let lost = Seats::from_bits(boot.spawn.option_u64("lost")?.unwrap_or(0));

    let jobs = boot.spawn.take_fd("job_door").zip(boot.spawn.take_fd("job_starter"));
    let starter = match jobs {
        Some((door, starter)) => {
            let nodes = JobNodes::new(own, others, lost, boot.port.clone());
            let door = Arc::new(JobDoor::new(door, uids, nodes));
            thread("jobs", move || {
                if let Err(cause) = door.run() {
                    tracing::error!(%cause, "programs cannot ask for jobs any more");
                }
            })?;
            Some(Starter::new(starter)?)
        }
        None => None,
    };

    let shown = boot.spawn.take_fd("proc_fuse").zip(boot.spawn.take_fd("proc_native")).zip(boot.spawn.take_fd("looks"));
    let lives = shown.is_some().then(|| table::lives(&boot.port));
    let answerer = shown.map(|((fuse, native), looks)| {
        let whose = Whose { own, others, uids };
        table::serve(fuse, native, Arc::new(Lookers::new(looks)), &whose, &boot.port)
    });
    let further = Further { starter, answerer: answerer.transpose()? };

    let setting = Setting { own, others, lost, uids, life: begun };
    let port = boot.port.clone();
    let rings = |news, wake| Rings::open(others, &port, &news, &wake);
    let (calls, receiver, news) =
        CallStates::new(setting, &memory, listeners.clone(), memory_of_callers, lives, rings)?;
    let wake = calls.wake().clone();
    let handle = boot.handle.clone();
    thread("calls", move || calls.run())?;
    let stop = handle.clone();
    thread("receiver", move || {
        if let Err(cause) = receiver.run() {
            tracing::error!(%cause, "calls cannot be received any more");
        }
        // The next call gate receives them.
        stop.stop();
    })?;
    let stop = handle.clone();
    thread("doorway", move || {
        while doorway.fetch_further(&listeners).is_ok() {
            wake.look_again();
        }
        // The keeper is gone, or another call gate is there.
        let _ = news.send(News::Stop);
        stop.stop();
    })?;
    Ok(Orders::new(init, life, others, further, move || handle.stop())?)
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}
