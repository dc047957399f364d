//! A proxy that runs, and the daemon's end of its control socket.

use std::os::fd::OwnedFd;
use std::process::Child;
use std::thread::JoinHandle;

use proxy_host::control::{FromProxy, LinkState, PeerAddress, ToProxy};

use super::PATIENCE;

/// The test below, in every binary that has this module.
pub(super) const PROXY_PROCESS: &str = "common::proxy::proxy_process";

/// Not a test: what a proxy in a process of its own runs. Started without a spawn record it does nothing.
#[test]
fn proxy_process() {
    if std::env::var_os("DVS_SPAWN").is_some() {
        let ended = proxy_host::main_from_spawn();
        assert_eq!(format!("{ended:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
    }
}

/// A proxy in a thread of this process, or in a process of its own.
pub enum RunningProxy {
    Thread { stop: OwnedFd, thread: Option<JoinHandle<()>> },
    Process(Child),
}

impl RunningProxy {
    /// SIGKILL; only a process can be killed.
    pub fn kill(&mut self) {
        let RunningProxy::Process(child) = self else { panic!("a thread cannot be killed") };
        child.kill().expect("killed");
        child.wait().expect("ended");
    }

    /// Ends the connection of a process with its broker, which lives.
    pub fn cut_from_broker(&self) {
        let RunningProxy::Process(child) = self else { panic!("a process") };
        let environment = std::fs::read(format!("/proc/{}/environ", child.id())).expect("the process is there");
        let mut variables = environment.split(|byte| *byte == 0);
        let record = variables.find_map(|text| text.strip_prefix(b"DVS_SPAWN=")).expect("a spawn record");
        let record: serde_json::Value = serde_json::from_slice(record).expect("JSON");
        let number = record["broker_fd"].as_i64().expect("a descriptor") as i32;
        let pid = rustix::process::Pid::from_child(child);
        let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).expect("the process");
        let flags = rustix::process::PidfdGetfdFlags::empty();
        let socket = rustix::process::pidfd_getfd(process, number, flags).expect("its descriptor");
        rustix::net::shutdown(socket, rustix::net::Shutdown::Both).expect("cut");
    }
}

impl Drop for RunningProxy {
    fn drop(&mut self) {
        match self {
            RunningProxy::Thread { stop, thread } => {
                sys::eventfd::signal(&*stop);
                if let Some(thread) = thread.take() {
                    let _ = thread.join();
                }
            }
            RunningProxy::Process(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// The daemon's end of a control socket.
pub struct Control {
    pub(super) socket: OwnedFd,
}

impl Control {
    pub fn set_peers(&self, peers: &[PeerAddress]) {
        self.tell(&ToProxy { peers: Some(peers.to_vec()), ..ToProxy::default() });
    }

    /// Asks for the states of links.
    pub fn ask(&self) {
        self.tell(&ToProxy::default());
    }

    fn tell(&self, message: &ToProxy) {
        let bytes = serde_json::to_vec(message).expect("json");
        sys::seqpacket::send(&self.socket, &bytes, &[] as &[OwnedFd]).expect("sent");
    }

    /// The next state that the proxy tells.
    pub fn next(&self) -> FromProxy {
        let poller = sys::eventfd::Poller::new().expect("epoll");
        poller.add(&self.socket, 1, sys::eventfd::Trigger::Level).expect("watched");
        let mut ready = Vec::new();
        poller.wait(&mut ready, Some(PATIENCE)).expect("epoll");
        assert!(!ready.is_empty(), "the proxy says nothing");
        let mut buffer = vec![0; proxy_host::control::MESSAGE_BYTES_MAX];
        let received = sys::seqpacket::receive(&self.socket, &mut buffer).expect("received");
        serde_json::from_slice(&buffer[..received.bytes]).expect("json")
    }

    /// The states as they are now: what was told before is passed over.
    pub fn latest(&self) -> FromProxy {
        let mut buffer = vec![0; proxy_host::control::MESSAGE_BYTES_MAX];
        while sys::seqpacket::receive(&self.socket, &mut buffer).is_ok_and(|received| received.bytes > 0) {}
        self.ask();
        self.next()
    }

    pub fn wait_until_up(&self) {
        self.wait_until(|status| status.links.iter().any(|link| link.state == LinkState::Up));
    }

    pub fn wait_until(&self, what: impl Fn(&FromProxy) -> bool) -> FromProxy {
        loop {
            let status = self.next();
            if what(&status) {
                return status;
            }
        }
    }
}
