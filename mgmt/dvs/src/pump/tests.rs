//! The pump against a keeper that is played by the test over a socket pair.

use std::sync::{Arc, Mutex};

use mgmt_api::stream::{Decoder, Kind, header};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::*;

/// Remembers signals that did not go through the stream.
#[derive(Default)]
struct Posted(Mutex<Vec<(u32, u8)>>);

impl Post for Posted {
    async fn signal(&self, pid: u32, signal: u8) -> bool {
        self.0.lock().unwrap().push((pid, signal));
        true
    }
}

/// A place where an output thread leaves its bytes.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Keeper {
    socket: UnixStream,
    decoder: Decoder,
}

impl Keeper {
    async fn say(&mut self, kind: Kind, payload: &[u8]) {
        self.socket.write_all(&header(kind, payload.len())).await.unwrap();
        self.socket.write_all(payload).await.unwrap();
    }

    async fn hear(&mut self) -> Option<(Kind, Vec<u8>)> {
        let mut chunk = vec![0; 65_536];
        loop {
            if let Some((kind, payload)) = self.decoder.pop().unwrap() {
                return Some((kind, payload.to_vec()));
            }
            match self.socket.read(&mut chunk).await.unwrap() {
                0 => return None,
                count => self.decoder.push(&chunk[..count]),
            }
        }
    }
}

struct World {
    stream: Stream,
    keeper: Keeper,
    ends: Ends,
    events: mpsc::Sender<Event>,
    stdout: Sink,
}

fn world(input: Option<mpsc::Receiver<Vec<u8>>>, detach_keys: DetachKeys) -> World {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (events_in, events) = event_queue();
    let stdout = Sink::default();
    let ends = Ends {
        input,
        events,
        events_in: events_in.clone(),
        closed_output: Event::Signal(SIGPIPE),
        stdout: Output::to(stdout.clone()),
        stderr: Output::to(Sink::default()),
        detach_keys,
    };
    let keeper = Keeper { socket: theirs, decoder: Decoder::default() };
    World { stream: Stream::new(ours, b""), keeper, ends, events: events_in, stdout }
}

/// Runs the pump beside a program; gives back how it ended, the PID it learned, and what the program gives back.
async fn with_program<T>(
    stream: Stream,
    ends: Ends,
    posted: &Posted,
    program: impl Future<Output = T>,
) -> (Ended, Option<u32>, T) {
    let pid = Cell::new(None);
    let (ended, heard) = tokio::join!(run(stream, ends, &pid, posted), program);
    (ended.unwrap(), pid.get(), heard)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn output_is_complete_before_the_exit_status_is_believed() {
    block_on(async {
        let World { stream, mut keeper, ends, stdout, .. } = world(None, DetachKeys::Passed);
        let program = async move {
            keeper.say(Kind::Started, &65_540_u32.to_le_bytes()).await;
            for _ in 0..1000 {
                keeper.say(Kind::Stdout, &[b'x'; 1000]).await;
            }
            keeper.say(Kind::Exit, &[3]).await;
        };
        let (ended, pid, ()) = with_program(stream, ends, &Posted::default(), program).await;
        assert_eq!((ended, pid), (Ended::Exit(3), Some(65_540)));
        assert_eq!(stdout.0.lock().unwrap().len(), 1_000_000);
    });
}

#[test]
fn megabytes_through_a_filter_do_not_deadlock() {
    const BYTES: usize = 8 << 20;
    block_on(async {
        let source = io::Cursor::new((0..BYTES).map(|position| (position % 251) as u8).collect::<Vec<u8>>());
        let World { stream, mut keeper, ends, stdout, .. } = world(Some(input_from(source)), DetachKeys::Passed);
        let program = async move {
            keeper.say(Kind::Started, &1_u32.to_le_bytes()).await;
            while let Some((kind, payload)) = keeper.hear().await {
                assert_eq!(kind, Kind::Stdin);
                if payload.is_empty() {
                    break;
                }
                keeper.say(Kind::Stdout, &payload).await;
            }
            keeper.say(Kind::Exit, &[0]).await;
        };
        let (ended, _, ()) = with_program(stream, ends, &Posted::default(), program).await;
        assert_eq!(ended, Ended::Exit(0));
        let got = stdout.0.lock().unwrap();
        assert_eq!(got.len(), BYTES);
        assert!(got.iter().enumerate().all(|(position, byte)| *byte == (position % 251) as u8));
    });
}

#[test]
fn signal_goes_through_the_stream_while_no_input_was_sent() {
    block_on(async {
        let World { stream, mut keeper, ends, events, .. } = world(None, DetachKeys::Passed);
        let program = async move {
            keeper.say(Kind::Started, &7_u32.to_le_bytes()).await;
            events.send(Event::Signal(15)).await.unwrap();
            let heard = keeper.hear().await;
            keeper.say(Kind::Exit, &[143]).await;
            heard
        };
        let posted = Posted::default();
        let (ended, _, heard) = with_program(stream, ends, &posted, program).await;
        assert_eq!(ended, Ended::Exit(143));
        assert_eq!(heard, Some((Kind::Signal, vec![15])));
        assert!(posted.0.lock().unwrap().is_empty());
    });
}

#[test]
fn signal_overtakes_input_that_the_program_does_not_read() {
    block_on(async {
        let World { stream, mut keeper, ends, events, .. } =
            world(Some(input_from(io::repeat(b'x'))), DetachKeys::Passed);
        let posted = Posted::default();
        let program = async {
            keeper.say(Kind::Started, &7_u32.to_le_bytes()).await;
            // One frame heard: input is under way; from here on nothing is read.
            keeper.hear().await;
            events.send(Event::Signal(2)).await.unwrap();
            while posted.0.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            keeper.say(Kind::Exit, &[130]).await;
        };
        let (ended, _, ()) = with_program(stream, ends, &posted, program).await;
        assert_eq!(ended, Ended::Exit(130));
        assert_eq!(*posted.0.lock().unwrap(), [(7, 2)]);
    });
}

#[test]
fn program_hears_of_an_output_that_nobody_reads() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    block_on(async {
        let World { stream, mut keeper, mut ends, .. } = world(None, DetachKeys::Passed);
        ends.stdout = Output::to(Closed);
        let program = async move {
            loop {
                tokio::select! {
                    heard = keeper.hear() => {
                        assert_eq!(heard, Some((Kind::Signal, vec![SIGPIPE])));
                        break;
                    }
                    () = tokio::task::yield_now() => {}
                }
                keeper.say(Kind::Stdout, b"y\n").await;
            }
            keeper.say(Kind::Exit, &[141]).await;
        };
        let (ended, _, ()) = with_program(stream, ends, &Posted::default(), program).await;
        assert_eq!(ended, Ended::Exit(141));
    });
}

#[test]
fn two_keys_leave_the_program_and_a_lone_one_reaches_it() {
    block_on(async {
        let (keys, input) = mpsc::channel(4);
        let World { stream, mut keeper, ends, .. } = world(Some(input), DetachKeys::Heeded);
        for chunk in [&b"a\x10b"[..], b"\x10", b"\x11"] {
            keys.send(chunk.to_vec()).await.unwrap();
        }
        let ended = run(stream, ends, &Cell::new(None), &Posted::default()).await.unwrap();
        assert_eq!(ended, Ended::Detached);
        assert_eq!(keeper.hear().await, Some((Kind::Stdin, b"a\x10b".to_vec())));
    });
}

#[test]
fn terminal_that_was_hung_up_leaves_the_program_and_does_not_end_its_input() {
    block_on(async {
        let (hung_up, input) = mpsc::channel(1);
        drop(hung_up);
        let World { stream, mut keeper, ends, .. } = world(Some(input), DetachKeys::Heeded);
        let ended = run(stream, ends, &Cell::new(None), &Posted::default()).await.unwrap();
        assert_eq!((ended, keeper.hear().await), (Ended::Detached, None));
    });
}

#[test]
fn leaving_closes_both_directions_at_once() {
    block_on(async {
        let World { stream, keeper, ends, events, .. } = world(None, DetachKeys::Heeded);
        events.send(Event::Detach).await.unwrap();
        assert_eq!(run(stream, ends, &Cell::new(None), &Posted::default()).await.unwrap(), Ended::Detached);
        // A keeper that could still write would take what it reads for the end of input.
        let refused = keeper.socket.try_write(b"x").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::BrokenPipe);
    });
}

/// Gives the pump one more connection each time, whose other end the test has.
struct Reconnecting {
    connections: RefCell<Vec<Stream>>,
    heard: RefCell<Vec<u64>>,
}

impl Post for Reconnecting {
    async fn signal(&self, _: u32, _: u8) -> bool {
        false
    }

    async fn resume(&self, _: u32, heard: u64, broke: client::Error) -> Result<Stream, client::Error> {
        self.heard.borrow_mut().push(heard);
        self.connections.borrow_mut().pop().ok_or(broke)
    }
}

fn connections(count: usize) -> (Reconnecting, Vec<Keeper>) {
    let pairs = (0..count).map(|_| UnixStream::pair().unwrap());
    let (streams, keepers): (Vec<_>, Vec<_>) = pairs
        .map(|(ours, theirs)| (Stream::new(ours, b""), Keeper { socket: theirs, decoder: Decoder::default() }))
        .unzip();
    (Reconnecting { connections: RefCell::new(streams), heard: RefCell::default() }, keepers)
}

#[test]
fn after_a_break_input_goes_on_behind_what_the_keeper_heard() {
    block_on(async {
        let (keys, input) = mpsc::channel(4);
        let World { stream, mut keeper, ends, stdout, .. } = world(Some(input), DetachKeys::Passed);
        let (post, mut next) = connections(1);
        let program = async {
            keeper.say(Kind::Session, &0_u64.to_le_bytes()).await;
            keeper.say(Kind::Started, &7_u32.to_le_bytes()).await;
            keeper.say(Kind::Stdout, b"first ").await;
            for word in ["one", "two", "three"] {
                keys.send(word.as_bytes().to_vec()).await.unwrap();
                assert_eq!(keeper.hear().await, Some((Kind::Stdin, word.as_bytes().to_vec())));
            }
            // Two of them were heard; the connection ends in the midst of a frame.
            keeper.socket.write_all(&header(Kind::Stdout, 9)).await.unwrap();
            drop(keeper);
            let mut keeper = next.pop().unwrap();
            // Nothing is said before it is known what was heard.
            tokio::task::yield_now().await;
            assert!(keeper.socket.try_read(&mut [0]).is_err());
            keeper.say(Kind::Session, &2_u64.to_le_bytes()).await;
            assert_eq!(keeper.hear().await, Some((Kind::Stdin, b"three".to_vec())));
            keeper.say(Kind::Stdout, b"second").await;
            keeper.say(Kind::Exit, &[4]).await;
            // Frames: Started, Stdout, Stdout, Exit.
            assert_eq!(keeper.hear().await, Some((Kind::Heard, 4_u64.to_le_bytes().to_vec())));
        };
        let pid = Cell::new(None);
        let (ended, ()) = tokio::join!(run(stream, ends, &pid, &post), program);
        assert_eq!(ended.unwrap(), Ended::Exit(4));
        assert_eq!(*stdout.0.lock().unwrap(), b"first second");
        assert_eq!(*post.heard.borrow(), [2]);
    });
}

/// It reads as much as may be said before its first frame, and then says that there is no session.
#[test]
fn input_goes_on_when_a_keeper_without_sessions_says_its_first_word_late() {
    block_on(async {
        let (keys, input) = mpsc::channel(4);
        let World { stream, mut keeper, ends, .. } = world(Some(input), DetachKeys::Passed);
        let chunk = vec![b'x'; PAYLOAD_BYTES_MAX];
        let chunks = 2 * WINDOW_BYTES / PAYLOAD_BYTES_MAX;
        let feeding = async {
            for _ in 0..chunks {
                keys.send(chunk.clone()).await.unwrap();
            }
        };
        let program = async {
            let mut heard = 0;
            while heard < WINDOW_BYTES {
                heard += keeper.hear().await.unwrap().1.len();
            }
            // The pump has nothing left to do, and waits.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            keeper.say(Kind::Started, &7_u32.to_le_bytes()).await;
            while heard < chunks * PAYLOAD_BYTES_MAX {
                heard += keeper.hear().await.unwrap().1.len();
            }
            keeper.say(Kind::Exit, &[0]).await;
        };
        let pid = Cell::new(None);
        let post = Posted::default();
        let all = async { tokio::join!(run(stream, ends, &pid, &post), feeding, program).0 };
        let ended = tokio::time::timeout(Duration::from_secs(20), all).await.expect("input goes on");
        assert_eq!(ended.unwrap(), Ended::Exit(0));
    });
}

#[test]
fn stream_without_a_session_is_not_resumed() {
    block_on(async {
        let World { stream, mut keeper, ends, .. } = world(None, DetachKeys::Passed);
        let (post, _next) = connections(1);
        keeper.say(Kind::Started, &7_u32.to_le_bytes()).await;
        drop(keeper);
        assert!(run(stream, ends, &Cell::new(None), &post).await.is_err());
        assert!(post.heard.borrow().is_empty());
    });
}

#[test]
fn stream_that_ends_without_a_status_is_an_error() {
    block_on(async {
        let World { stream, keeper, ends, .. } = world(None, DetachKeys::Passed);
        drop(keeper);
        assert!(run(stream, ends, &Cell::new(None), &Posted::default()).await.is_err());
    });
}
