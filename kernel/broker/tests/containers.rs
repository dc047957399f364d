//! As many containers as a cluster may have, all on one broker.

use std::path::{Path, PathBuf};
use std::time::Duration;

use abi::limits::DCS_PER_CLUSTER;
use broker::{Broker, BrokerConfig, BrokerError, DcOptions, Privileges};
use ipc::{DcId, Message, Port, Source, Wait};

const SOON: Wait = Wait::For(Duration::from_secs(20));
/// Of the broker for one container: its listening socket.
const DESCRIPTORS_EACH: usize = 1;
/// What it keeps of a container without members is some empty tables.
const BYTES_EACH_MAX: usize = 16 << 10;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Resident, of this process, which plays the broker.
fn memory_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

struct Dcs {
    broker: Broker,
    directory: tempfile::TempDir,
}

impl Dcs {
    fn socket(&self, dc: u32) -> PathBuf {
        self.directory.path().join(dc.to_string())
    }

    fn add(&self, dc: u32) -> Result<(), BrokerError> {
        let program_privileges = Privileges { calls: Privileges::program().calls, ..Privileges::server() };
        let options = DcOptions { listen: Some(self.socket(dc)), program_privileges, ..DcOptions::default() };
        self.broker.add_dc(DcId(dc), options)
    }
}

fn port(socket: &Path) -> Port {
    Port::connect(socket, None).unwrap()
}

fn talk(client: &mut Port, server: &mut Port, kind: i32) {
    let to = server.endpoint();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = server.receive(Source::Any, SOON).unwrap();
            server.reply(request.source.unwrap(), &Message::new(request.kind + 1)).unwrap();
        });
        assert_eq!(client.sendrec(to, &Message::new(kind), SOON).unwrap().kind, kind + 1);
    });
}

#[test]
fn a_thousand_and_some_containers_fit_on_a_broker_and_the_next_is_refused() {
    let dcs = Dcs { broker: Broker::start(BrokerConfig::local()).unwrap(), directory: tempfile::tempdir().unwrap() };
    let before = (descriptors(), memory_bytes());
    (1..=DCS_PER_CLUSTER).for_each(|dc| dcs.add(dc).unwrap());
    let count = DCS_PER_CLUSTER as usize;
    assert_eq!(descriptors() - before.0, count * DESCRIPTORS_EACH);
    let each = memory_bytes().saturating_sub(before.1) / count;
    assert!(each <= BYTES_EACH_MAX, "{each} bytes a container");

    // The same number in each of them, and each hears of its own.
    let mut pairs = [1, 2, DCS_PER_CLUSTER].map(|dc| (port(&dcs.socket(dc)), port(&dcs.socket(dc))));
    let numbers: Vec<_> = pairs.iter().map(|(client, server)| (client.endpoint(), server.endpoint())).collect();
    assert!(numbers.iter().all(|pair| *pair == numbers[0]), "{numbers:?}");
    for (kind, (client, server)) in pairs.iter_mut().enumerate() {
        talk(client, server, kind as i32 * 10);
    }

    let next = DCS_PER_CLUSTER + 1;
    assert!(matches!(dcs.add(next), Err(BrokerError::TooManyDcs(DcId(dc))) if dc == next));
    assert!(!dcs.socket(next).exists());
    assert!(matches!(dcs.add(1), Err(BrokerError::DcExists(DcId(1)))));
    dcs.broker.remove_dc(DcId(2)).unwrap();
    dcs.add(next).unwrap();
    let mut newcomers = (port(&dcs.socket(next)), port(&dcs.socket(next)));
    talk(&mut newcomers.0, &mut newcomers.1, 5);
    let [(client, server), .., (last_client, last_server)] = &mut pairs;
    talk(client, server, 1);
    talk(last_client, last_server, 2);
}
