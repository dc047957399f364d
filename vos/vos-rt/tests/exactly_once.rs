//! Sessions over cuts of their server: nothing lost, nothing twice, no error.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use abi::{Endpoint, Message};
use ipc::{Port, Wait};
use libvos::{Armed, BlockingSession, Op, Session, Size, SubmitError, Token};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use sessions::{Begun, Opening, Place, Record, Reply, Standing, Step, Table};
use vos_rt::testkit::World;
use vos_rt::{ClientId, Hello, HelloReply, Request, Service, WorkerPool, answer_all};

const APPEND: u16 = 16;
const ECHO: u16 = 17;
const SIZE: Size = Size { entries: 64, arena_bytes: 4 << 20 };

/// What outlives the server: effects and the sessions' records, changed in one step.
#[derive(Default)]
struct Durable {
    appended: Vec<(u64, u64)>,
    replies: BTreeMap<(u64, Place), Vec<u8>>,
}

impl Step for Durable {
    type Error = Infallible;

    fn put_standing(&mut self, _session: u64, _standing: Standing) -> Result<(), Infallible> {
        Ok(())
    }

    fn drop_standing(&mut self, _session: u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn put_reply(&mut self, session: u64, place: Place, reply: &[u8]) -> Result<(), Infallible> {
        self.replies.insert((session, place), reply.to_vec());
        Ok(())
    }

    fn drop_reply(&mut self, session: u64, place: Place) -> Result<(), Infallible> {
        self.replies.remove(&(session, place));
        Ok(())
    }
}

impl Record for Durable {
    type Error = Infallible;

    fn standings(&self) -> Result<Vec<(u64, Standing)>, Infallible> {
        let sessions: BTreeSet<u64> = self.replies.keys().map(|(session, _)| *session).collect();
        Ok(sessions.into_iter().map(|session| (session, Standing::Live)).collect())
    }

    fn places(&self, session: u64) -> Result<Vec<Place>, Infallible> {
        Ok(self.replies.keys().filter(|(of, _)| *of == session).map(|(_, place)| *place).collect())
    }

    fn reply(&self, session: u64, place: Place) -> Result<Option<Reply>, Infallible> {
        Ok(self.replies.get(&(session, place)).and_then(|bytes| Reply::from_bytes(bytes)))
    }
}

/// Appends numbers to a list, by a pool of threads.
struct Appender {
    durable: Arc<Mutex<Durable>>,
    table: Arc<Mutex<Table<Request>>>,
    pool: WorkerPool,
}

impl Appender {
    fn new(durable: Arc<Mutex<Durable>>) -> Appender {
        let table = Table::load(&*durable.lock().expect("lock"), 0).expect("memory");
        Appender { durable, table: Arc::new(Mutex::new(table)), pool: WorkerPool::new("append", 3).expect("threads") }
    }
}

impl Service for Appender {
    fn opened(&mut self, _client: ClientId, _from: Endpoint, hello: &Hello) -> HelloReply {
        let opening = Opening { session: hello.session, progress: hello.progress, now_ms: 0 };
        match self.table.lock().expect("lock").open(opening) {
            Ok(opened) => HelloReply::Welcome { highest: opened.highest, in_flight: 0, service: 0 },
            Err(_) => HelloReply::Refused(Errno::STALE),
        }
    }

    fn submit(&mut self, request: Request) {
        if request.op() == ECHO {
            let data = request.data();
            return match request.put(0, &data) {
                Ok(()) => request.reply([data.len() as u64, 0, 0, 0], data.len() as u32),
                Err(errno) => request.fail(errno),
            };
        }
        let mark = request.mark().expect("the test's operations are part of a session");
        let begun = self.table.lock().expect("lock").begin(mark, request);
        let request = match begun {
            Begun::Execute(request) => request,
            Begun::Joined => return,
            Begun::Refused(request, _) => return request.fail(Errno::STALE),
            Begun::Executed(request, place) => {
                let reply = self.durable.lock().expect("lock").reply(mark.session, place).expect("memory");
                return request.answer(&reply.expect("recorded"));
            }
        };
        let (durable, table) = (Arc::clone(&self.durable), Arc::clone(&self.table));
        let work = move || {
            let mut durable = durable.lock().expect("lock");
            durable.appended.push((mark.session, request.args()[0]));
            let order = durable.appended.len() as u64;
            let reply = Reply::done([order, 0, 0, 0]);
            let entry = table.lock().expect("lock").record(mark, order).expect("the session is there");
            entry.put(&mut *durable, &reply.to_bytes()).expect("memory");
            // Answered before the next one is recorded.
            let others = table.lock().expect("lock").finish(mark);
            answer_all(request, others, &reply);
        };
        self.pool.run(work).expect("room");
    }

    fn closed(&mut self, _client: ClientId) {}
}

fn append(session: &BlockingSession, number: u64) -> Result<u64, Errno> {
    Ok(session.call(Op::new(APPEND, [number, 0, 0]).sequenced())?.results[0])
}

#[test]
fn answer_carries_results_and_the_bytes_that_were_put() {
    let world = World::new();
    let _server = world.serve(Endpoint::FS, |_| Appender::new(Arc::default()));
    let session = world.blocking(Endpoint::FS, SIZE);
    for bytes in [0_usize, 1, 4096, 100_000, 1 << 20] {
        let data: Vec<u8> = (0..bytes).map(|index| index as u8).collect();
        let answer = session.call(Op::new(ECHO, [0; 3]).out(&data).room(bytes as u32)).expect("echo");
        assert_eq!((answer.results[0], answer.data == data), (bytes as u64, true));
    }
    assert_eq!(session.call(Op::new(ECHO, [0; 3]).out(b"no room")), Err(Errno::RANGE));
    assert_eq!(session.call(Op::new(ECHO, [0; 3]).out(&vec![0; (1 << 20) + 1])), Err(Errno::INVAL));
}

#[test]
fn who_asks_by_a_message_is_told_that_a_server_takes_none() {
    let world = World::new();
    let _server = world.serve(Endpoint::FS, |_| Appender::new(Arc::default()));
    let ask = |port: &mut Port| port.sendrec(Endpoint::FS, &Message::new(1), Wait::For(Duration::from_secs(20)));
    let answer = world.client_port().turn(ask).expect("an answer");
    assert_eq!(answer.kind, -Errno::NOSYS.raw_os_error());
}

#[test]
fn operations_of_many_threads_happen_once_over_thirty_cuts() {
    const CUTS: usize = 30;
    let (world, durable) = (World::new(), Arc::new(Mutex::new(Durable::default())));
    let serve = |durable: &Arc<Mutex<Durable>>| {
        let durable = Arc::clone(durable);
        world.serve(Endpoint::FS, move |_| Appender::new(durable))
    };
    let first_server = serve(&durable);
    let session = world.blocking(Endpoint::FS, SIZE);
    let (progress, seen) = std::sync::mpsc::channel();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (counts, server) = std::thread::scope(|scope| {
        let mut server = first_server;
        let threads: Vec<_> = (0..4_u64)
            .map(|thread| {
                let (session, progress, stop) = (session.clone(), progress.clone(), &stop);
                scope.spawn(move || {
                    let mut count = 0;
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        append(&session, thread << 32 | count).expect("no error, whatever happens to the server");
                        count += 1;
                        let _ = progress.send(());
                    }
                    count
                })
            })
            .collect();
        drop(progress);
        for cut in 0..CUTS {
            for _ in 0..cut % 7 + 1 {
                seen.recv().expect("progress");
            }
            server.cut();
            server = serve(&durable);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let counts: Vec<u64> = threads.into_iter().map(|thread| thread.join().expect("thread")).collect();
        (counts, server)
    });
    let mut times: HashMap<u64, u64> = HashMap::new();
    for (_, number) in &durable.lock().expect("lock").appended {
        *times.entry(*number).or_default() += 1;
    }
    for (thread, count) in counts.iter().enumerate() {
        for index in 0..*count {
            assert_eq!(times.remove(&((thread as u64) << 32 | index)), Some(1), "thread {thread} operation {index}");
        }
    }
    assert!(times.is_empty(), "operations nobody asked for: {times:?}");
    assert!(session.restarts() >= 1);
    drop(server);
}

/// What an event loop does.
fn drive(session: &mut Session, until: usize) -> Vec<(Token, Option<Errno>, u64)> {
    let mut done = Vec::new();
    while done.len() < until {
        while done.len() < until
            && let Some(completion) = session.complete()
        {
            done.push((completion.token, completion.error, completion.results[0]));
        }
        if done.len() < until && session.arm() == Armed::Sleep {
            poll(&mut [PollFd::new(&session.fd(), PollFlags::IN)], None).expect("poll");
        }
        session.on_ready();
    }
    done
}

#[test]
fn event_loop_submits_before_there_is_a_server_and_over_its_end() {
    let (world, durable) = (World::new(), Arc::new(Mutex::new(Durable::default())));
    let mut session = world.session(Endpoint::FS, SIZE);
    let mut tokens = Vec::new();
    for number in 0..40 {
        tokens.push(session.submit(Op::new(APPEND, [number, 0, 0]).sequenced()).expect("room"));
    }
    let serve = |durable: &Arc<Mutex<Durable>>| {
        let durable = Arc::clone(durable);
        world.serve(Endpoint::FS, move |_| Appender::new(durable))
    };
    let server = serve(&durable);
    let first = drive(&mut session, 10);
    server.cut();
    let server = serve(&durable);
    let rest = drive(&mut session, 30);
    let mut answered: Vec<Token> = first.iter().chain(&rest).map(|(token, ..)| *token).collect();
    answered.sort();
    assert_eq!(answered, tokens);
    assert!(first.iter().chain(&rest).all(|(_, error, _)| error.is_none()));
    let mut appended: Vec<u64> = durable.lock().expect("lock").appended.iter().map(|(_, number)| *number).collect();
    appended.sort_unstable();
    assert_eq!(appended, (0..40).collect::<Vec<_>>());
    drop(server);
}

#[test]
fn full_ring_is_said_and_goes_on_after_completions() {
    let world = World::new();
    let mut session = world.session(Endpoint::FS, Size { entries: 4, arena_bytes: 64 << 10 });
    for _ in 0..4 {
        session.submit(Op::new(ECHO, [0; 3])).expect("room");
    }
    assert_eq!(session.submit(Op::new(ECHO, [0; 3])).err(), Some(SubmitError::Full));
    let _server = world.serve(Endpoint::FS, |_| Appender::new(Arc::default()));
    assert_eq!(drive(&mut session, 4).len(), 4);
    session.submit(Op::new(ECHO, [0; 3])).expect("room again");
    assert_eq!(drive(&mut session, 1).len(), 1);
}

#[test]
fn session_that_the_server_forgot_answers_stale_until_it_is_renewed() {
    let world = World::new();
    let server = world.serve(Endpoint::FS, |_| Appender::new(Arc::default()));
    let session = world.blocking(Endpoint::FS, SIZE);
    append(&session, 1).expect("append");
    server.cut();
    // The new one has an empty store.
    let _server = world.serve(Endpoint::FS, |_| Appender::new(Arc::default()));
    assert_eq!(append(&session, 2), Err(Errno::STALE));
    assert_eq!(append(&session, 3), Err(Errno::STALE));
    session.renew().expect("renew");
    assert_eq!(append(&session, 4), Ok(1));
}
