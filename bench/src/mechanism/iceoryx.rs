//! iceoryx2, request-response of its shared-memory service: polling, and with its events as the wake-up.
//!
//! As its documentation has it: payloads are written into loaned memory; the event of each direction is a service of
//! its own.

use std::time::{Duration, Instant};

use iceoryx2::port::client::Client;
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::prelude::*;

use super::{Caller, Frame, STOP, Site, frame, number_of};
use crate::Outcome;

type Local = ipc::Service;

/// How long the server waits for its last answer to be taken.
const LAST_ANSWER: Duration = Duration::from_secs(5);
const SHARED_MEMORY: &str = "/dev/shm";

/// How a side learns that something came.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WakeUp {
    Polling,
    Event,
}

/// A side's ends of the two events.
struct Bells {
    own: Listener<Local>,
    peer: Notifier<Local>,
}

pub struct Requester {
    client: Client<Local, Frame, (), Frame, ()>,
    bells: Option<Bells>,
    _node: Node<Local>,
}

/// Everything of this run has its name: two runs do not meet, and what a killed one left can be told.
fn prefix(directory: &std::path::Path) -> String {
    let name = directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    format!("{name}-")
}

fn node(site: &Site) -> Outcome<Node<Local>> {
    set_log_level(LogLevel::Error);
    let mut config = Config::default();
    config.global.set_root_path(&Path::new(site.directory.join("iceoryx2").as_os_str().as_encoded_bytes())?);
    config.global.prefix = FileName::new(prefix(&site.directory).as_bytes())?;
    // Signals are the orchestrator's.
    Ok(NodeBuilder::new().config(&config).signal_handling_mode(SignalHandlingMode::Disabled).create::<Local>()?)
}

/// Takes away the shared memory that killed processes of this run left.
pub fn clean(directory: &std::path::Path) {
    let prefix = prefix(directory);
    for entry in std::fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

impl Bells {
    fn new(node: &Node<Local>, own: &str, peer: &str) -> Outcome<Bells> {
        let own = node.service_builder(&own.try_into()?).event().open_or_create()?.listener_builder().create()?;
        let peer = node.service_builder(&peer.try_into()?).event().open_or_create()?.notifier_builder().create()?;
        Ok(Bells { own, peer })
    }
}

fn names(address: &str) -> [String; 3] {
    ["requests", "there", "back"].map(|name| format!("{address}/{name}"))
}

pub fn serve(site: &Site, wake_up: WakeUp, ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
    let node = node(site)?;
    let address = std::process::id().to_string();
    let [requests, there, back] = names(&address);
    let service =
        node.service_builder(&requests.as_str().try_into()?).request_response::<Frame, Frame>().open_or_create()?;
    let server = service.server_builder().create()?;
    let bells = (wake_up == WakeUp::Event).then(|| Bells::new(&node, &there, &back)).transpose()?;
    ready(&address)?;
    loop {
        let Some(request) = server.receive()? else {
            match &bells {
                Some(bells) => drop(bells.own.blocking_wait_one()?),
                None => std::hint::spin_loop(),
            }
            continue;
        };
        let frame = *request;
        request.loan_uninit()?.write_payload(frame).send()?;
        if let Some(bells) = &bells {
            bells.peer.notify()?;
        }
        if number_of(&frame) == STOP {
            let limit = Instant::now() + LAST_ANSWER;
            while request.is_connected() && Instant::now() < limit {
                std::thread::yield_now();
            }
            return Ok(());
        }
    }
}

pub fn connect(site: &Site, address: &str, wake_up: WakeUp) -> Outcome<Requester> {
    let node = node(site)?;
    let [requests, there, back] = names(address);
    let service = node.service_builder(&requests.as_str().try_into()?).request_response::<Frame, Frame>().open()?;
    let client = service.client_builder().create()?;
    let bells = (wake_up == WakeUp::Event).then(|| Bells::new(&node, &back, &there)).transpose()?;
    Ok(Requester { client, bells, _node: node })
}

impl Caller for Requester {
    fn call(&mut self, number: u64) -> Outcome<u64> {
        let pending = self.client.loan_uninit()?.write_payload(frame(number)).send()?;
        if let Some(bells) = &self.bells {
            bells.peer.notify()?;
        }
        loop {
            if let Some(response) = pending.receive()? {
                return Ok(number_of(&response));
            }
            match &self.bells {
                Some(bells) => drop(bells.own.blocking_wait_one()?),
                None => std::hint::spin_loop(),
            }
        }
    }
}
