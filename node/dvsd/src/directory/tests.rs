//! What the broker is told of names, while its own word and news of the engine come in any order.

use std::time::Instant;

use broker::BrokerConfig;
use cluster::local::{LocalConfig, LocalEngine};

use super::*;
use crate::records;

const DC: DcId = DcId(7);
const ONE: Endpoint = Endpoint::FS;

struct World {
    directory: EndpointDirectory,
    side: BrokerSide,
    broker: Arc<Broker>,
    engine: Arc<dyn Engine>,
    _dir: tempfile::TempDir,
}

impl World {
    /// Of node 1.
    fn new() -> World {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        let engine: Arc<dyn Engine> = Arc::new(LocalEngine::open(config).unwrap());
        let (directory, side) = EndpointDirectory::start(&engine, NodeId(1)).unwrap();
        let broker = Arc::new(Broker::start(BrokerConfig::local()).unwrap());
        directory.attach(&broker);
        World { directory, side, broker, engine, _dir: dir }
    }

    fn record(&self) -> Option<EndpointRecord> {
        records::read(&*self.engine, &records::endpoint_key(DC.0, ONE.number())).unwrap().map(|(record, _)| record)
    }

    fn until(&mut self, what: &str, holds: impl Fn(&mut World) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < Duration::from_secs(10), "{what}");
            std::thread::yield_now();
        }
    }

    fn bind_and_name(&mut self, epoch: u64) {
        self.side.bound(DC, ONE, 0, Epoch(epoch));
        assert_eq!(self.side.claim(DC, ONE, Epoch(epoch), name("a"), None), Ok(Claim::UnderWay));
        self.until("the claim is decided", |world| world.side.named(DC, name("a")) == Some(ONE));
        assert_eq!(self.record().and_then(|record| record.name), Some(name("a")));
    }

    fn learn(&self, record: EndpointRecord) {
        self.directory.learned(&self.broker, (DC.0, ONE.number()), record);
    }
}

fn name(text: &str) -> EndpointName {
    EndpointName::new(text.as_bytes()).unwrap()
}

#[test]
fn name_ends_with_the_brokers_word_whatever_comes_late() {
    let mut world = World::new();
    world.bind_and_name(1);
    assert_eq!(world.side.claim(DC, ONE, Epoch(1), name("a"), None), Ok(Claim::Granted));
    assert_eq!(world.side.claim(DC, ONE, Epoch(1), name("b"), None), Err(IpcError::TableFull));
    assert_eq!(world.side.claim(DC, Endpoint::DS, Epoch(1), name("a"), None), Err(IpcError::EndpointInUse));
    let written = world.record().unwrap();
    world.side.unbound(DC, ONE, Epoch(1));
    assert_eq!(world.side.named(DC, name("a")), None);
    // The number has another owner before anybody wrote that; then the follower tells old news.
    world.side.bound(DC, ONE, 0, Epoch(2));
    world.learn(written);
    assert_eq!((world.side.named(DC, name("a")), world.side.name_of(DC, ONE)), (None, None));
    let later = Some(EndpointRecord { epoch: 2, name: None, ..written });
    world.until("the later owner has no name", |world| world.record() == later);
}

#[test]
fn name_is_known_at_every_moment_of_a_handover_there_and_back() {
    let mut world = World::new();
    world.bind_and_name(1);
    let there = EndpointRecord { node: 2, epoch: 2, pid: 0, name: Some(name("a")) };
    let key = records::endpoint_key(DC.0, ONE.number());
    world.engine.transact(&[], &[cluster::Op::put(&*key, records::encode(&there))]).unwrap();
    assert_eq!(world.side.named(DC, name("a")), Some(ONE));
    world.learn(there);
    assert_eq!(world.side.named(DC, name("a")), Some(ONE));
    // A successor here: no `unbound` came before.
    world.side.bound(DC, ONE, 0, Epoch(3));
    assert_eq!(world.side.named(DC, name("a")), Some(ONE));
    let back = EndpointRecord { node: 1, epoch: 3, pid: 0, name: Some(name("a")) };
    world.until("the successor is written with the name", |world| world.record() == Some(back));
    world.learn(back);
    assert_eq!(world.side.named(DC, name("a")), Some(ONE));
    world.side.unbound(DC, ONE, Epoch(3));
    assert_eq!(world.side.named(DC, name("a")), None);
    world.until("it is gone", |world| world.record().is_none());
    assert!(world.engine.list(records::NAMES).unwrap().entries.is_empty());
}

#[test]
fn name_of_another_node_goes_with_its_record() {
    let mut world = World::new();
    world.learn(EndpointRecord { node: 2, epoch: 1, pid: 0, name: None });
    assert_eq!(world.side.named(DC, name("a")), None);
    world.learn(EndpointRecord { node: 2, epoch: 1, pid: 0, name: Some(name("a")) });
    assert_eq!((world.side.named(DC, name("a")), world.side.name_of(DC, ONE)), (Some(ONE), Some(name("a"))));
    world.directory.forgot(&world.broker, (DC.0, ONE.number()));
    assert_eq!(world.side.named(DC, name("a")), None);
}

#[test]
fn owner_that_dies_fenced_leaves_the_name_to_its_successor() {
    let mut world = World::new();
    world.bind_and_name(1);
    world.learn(EndpointRecord { node: 2, epoch: 5, pid: 0, name: Some(name("a")) });
    // The broker has not heard of it.
    world.side.unbound(DC, ONE, Epoch(1));
    assert_eq!(world.side.named(DC, name("a")), Some(ONE));
}

#[test]
fn nobody_waits_longer_for_the_writer_because_others_ask_again_and_again() {
    let mut pending = Pending { broker: Some(Weak::new()), ..Pending::default() };
    let wish = Wish { epoch: Epoch(1), name: name("a"), lost: None };
    let (early, late): (Key, Key) = ((1, 300), (2, 300));
    let (mut written, mut decided) = (0, 0);
    pending.writes.insert(late, Write::Unbound(Epoch(1)));
    pending.wishes.insert((2, 301), wish);
    for _ in 0..6 {
        // Whoever was served is back at once.
        for endpoint in [300, 301] {
            pending.writes.insert((1, endpoint), Write::Unbound(Epoch(1)));
            pending.wishes.insert((1, endpoint + 10), wish);
        }
        match pending.next_work().unwrap() {
            Work::Write(key, _) => written += u32::from(key == late),
            Work::Decide(key, _) => decided += u32::from(key == (2, 301)),
        }
    }
    assert_eq!((written, decided), (1, 1));
    // A wish waits for the write of its own endpoint.
    let mut pending = Pending { broker: Some(Weak::new()), ..Pending::default() };
    pending.wishes.insert(early, wish);
    pending.writes.insert(early, Write::Unbound(Epoch(1)));
    assert!(matches!(pending.next_work(), Some(Work::Write(..))));
    assert!(matches!(pending.next_work(), Some(Work::Decide(..))));
    assert!(pending.next_work().is_none());
}
