//! The store against a model: seeded changes, repeated and interrupted by openings of the file.

use std::collections::{BTreeMap, HashMap};

use ds::{Catalog, Change, FileStore, Limits, Order, Outcome, Store};
use parking_lot::Mutex;
use rustix::io::Errno;
use sessions::{Begun, Mark, Opening, Record, Reply, Table};
use vos_api::ds::{ABSENT, ANY};
use vos_api::session::Progress;

/// A small generator, so that a seed is enough to repeat a run.
struct Seeded(u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn file() -> FileStore {
    FileStore::new(tempfile::tempfile().expect("temporary file").into())
}

/// The sessions of a store, with those open that the tests use.
fn table(store: &Store) -> Mutex<Table<()>> {
    let mut table = Table::load(store, 0).expect("load");
    for session in 1..=3 {
        table.open(Opening { session, progress: Progress::default(), now_ms: 0 }).expect("a session");
    }
    Mutex::new(table)
}

fn stored(store: &Store, table: &Mutex<Table<()>>, session: u64, sequence: u64) -> Option<Reply> {
    let place = table.lock().executed(Mark { session, sequence })?;
    store.reply(session, place).expect("readable")
}

#[derive(Default)]
struct Model {
    values: BTreeMap<Vec<u8>, (u64, Vec<u8>)>,
    revision: u64,
}

impl Model {
    fn carry_out(&mut self, change: &Change) -> Reply {
        let failed = |errno: Errno| Reply::failed(errno.raw_os_error() as u32);
        match change {
            Change::Put { key, value, condition } => match (self.values.get(key), *condition) {
                (Some(_), ABSENT) => failed(Errno::EXIST),
                (None, revision) if revision != ABSENT && revision != ANY => failed(Errno::NOENT),
                (Some((is, _)), wanted) if wanted != ANY && wanted != *is => failed(Errno::STALE),
                _ => {
                    self.revision += 1;
                    self.values.insert(key.clone(), (self.revision, value.clone()));
                    Reply::done([self.revision, 0, 0, 0])
                }
            },
            Change::Delete { key, condition } => match (self.values.get(key), *condition) {
                (None, _) => failed(Errno::NOENT),
                (Some((is, _)), wanted) if wanted != ANY && wanted != *is => failed(Errno::STALE),
                _ => {
                    self.revision += 1;
                    self.values.remove(key);
                    Reply::done([self.revision, 0, 0, 0])
                }
            },
            Change::Publish { .. } => {
                self.revision += 1;
                Reply::done([0; 4])
            }
            other => panic!("not part of this test: {other:?}"),
        }
    }
}

fn change(seeded: &mut Seeded, revision: u64) -> Change {
    let key = format!("k{}", seeded.below(20)).into_bytes();
    let value = vec![seeded.below(256) as u8; seeded.below(100) as usize];
    let condition = match seeded.below(4) {
        0 => ABSENT,
        1 => seeded.below(revision + 1).max(1),
        _ => ANY,
    };
    match seeded.below(5) {
        0 => Change::Delete { key, condition: if condition == ABSENT { ANY } else { condition } },
        1 => Change::Publish { topic: key, value },
        _ => Change::Put { key, value, condition },
    }
}

fn listing(store: &Store) -> BTreeMap<Vec<u8>, (u64, Vec<u8>)> {
    let (mut all, mut after) = (BTreeMap::new(), Vec::new());
    loop {
        // Little room, so that a listing needs many calls.
        let (bytes, count, has_more) = store.list(b"", &after, 300).expect("list");
        let mut rest = bytes.as_slice();
        for _ in 0..count {
            let (head, tail) = rest.split_at(14);
            let key_bytes = usize::from(u16::from_le_bytes([head[0], head[1]]));
            let value_bytes = u32::from_le_bytes(head[2..6].try_into().expect("four bytes")) as usize;
            let revision = u64::from_le_bytes(head[6..14].try_into().expect("eight bytes"));
            let (key, tail) = tail.split_at(key_bytes);
            let (value, tail) = tail.split_at(value_bytes);
            after = key.to_vec();
            all.insert(key.to_vec(), (revision, value.to_vec()));
            rest = tail;
        }
        if !has_more {
            return all;
        }
    }
}

fn take_in(catalog: &mut Catalog, orders: &[Order], outcomes: &[Outcome]) {
    for (order, outcome) in orders.iter().zip(outcomes) {
        catalog.take_in(order, outcome);
    }
}

#[test]
fn store_equals_its_model_over_many_openings_and_remembers_every_reply() {
    for seed in 1..=8_u64 {
        run_model(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

fn run_model(seed: u64) {
    let (mut seeded, file, mut model) = (Seeded(seed), file(), Model::default());
    let mut store = Store::open(file.clone(), Limits::default()).expect("open");
    let (mut catalog, mut table) = (store.load().expect("load"), table(&store));
    let mut sequences: HashMap<u64, u64> = HashMap::new();
    let mut replies: HashMap<(u64, u64), Reply> = HashMap::new();
    for _ in 0..30 {
        let batch: Vec<Order> = (0..1 + seeded.below(20))
            .map(|_| {
                let session = 1 + seeded.below(3);
                let sequence = sequences.entry(session).or_default();
                *sequence += 1;
                Order { session, sequence: *sequence, change: change(&mut seeded, model.revision) }
            })
            .collect();
        let outcomes = store.apply(&batch, &catalog, &table).expect("apply");
        take_in(&mut catalog, &batch, &outcomes);
        for (order, outcome) in batch.iter().zip(&outcomes) {
            assert_eq!(outcome.reply, model.carry_out(&order.change), "seed {seed:x}: {order:?}");
            replies.insert((order.session, order.sequence), outcome.reply.clone());
        }
        if seeded.below(4) == 0 {
            drop(store);
            store = Store::open(file.clone(), Limits::default()).expect("open again");
            (catalog, table) = (store.load().expect("load"), self::table(&store));
            for ((session, sequence), reply) in &replies {
                let stored = stored(&store, &table, *session, *sequence);
                assert_eq!(stored.as_ref(), Some(reply), "seed {seed:x}");
            }
            assert_eq!(catalog.history.len() as u64, model.revision, "seed {seed:x}");
        }
        assert_eq!(listing(&store), model.values, "seed {seed:x}");
    }
}

#[test]
fn transaction_that_was_never_committed_leaves_nothing() {
    let (first, second) =
        (tempfile::NamedTempFile::new().expect("file"), tempfile::NamedTempFile::new().expect("file"));
    let store = Store::open(FileStore::new(first.reopen().expect("open").into()), Limits::default()).expect("open");
    let put = |sequence: u64, value: u8| Order {
        session: 1,
        sequence,
        change: Change::Put { key: b"k".to_vec(), value: vec![value], condition: ANY },
    };
    let (catalog, table) = (store.load().expect("load"), table(&store));
    store.apply(&[put(1, 1)], &catalog, &table).expect("apply");
    // The file as a kill at this moment leaves it: the store is open and never closed.
    std::fs::copy(first.path(), second.path()).expect("copy");
    store.apply(&[put(2, 2)], &catalog, &table).expect("apply");
    let copy = Store::open(FileStore::new(second.reopen().expect("open").into()), Limits::default()).expect("recover");
    assert_eq!(copy.get(b"k").expect("get"), Some((1, vec![1])));
    let table = self::table(&copy);
    assert_eq!(stored(&copy, &table, 1, 1).map(|reply| reply.status), Some(0));
    let mut table = table.into_inner();
    assert_eq!(table.begin(Mark { session: 1, sequence: 2 }, ()), Begun::Execute(()));
}

#[test]
fn full_store_refuses_new_bytes_and_takes_them_after_a_removal() {
    let store = Store::open(file(), Limits { keys: 2, bytes: 100 }).expect("open");
    let (catalog, table) = (store.load().expect("load"), table(&store));
    let mut sequence = 0;
    let mut carry_out = |change: Change| {
        sequence += 1;
        let order = [Order { session: 1, sequence, change }];
        store.apply(&order, &catalog, &table).expect("apply").remove(0).reply.status
    };
    let put = |key: &[u8], bytes: usize| Change::Put { key: key.to_vec(), value: vec![0; bytes], condition: ANY };
    let full = Errno::NOSPC.raw_os_error() as u32;
    assert_eq!(carry_out(put(b"a", 49)), 0);
    assert_eq!(carry_out(put(b"b", 50)), full);
    assert_eq!(carry_out(put(b"b", 49)), 0);
    assert_eq!(carry_out(put(b"c", 0)), full);
    assert_eq!(carry_out(put(b"a", 10)), 0);
    assert_eq!(carry_out(Change::Delete { key: b"b".to_vec(), condition: ANY }), 0);
    assert_eq!(carry_out(put(b"c", 80)), 0);
}
