//! Two relays with a connection in TLS between them, as a client on one node and a program on another have; the test
//! plays both.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream as Blocking;
use std::thread;

use mgmt_api::ErrorKind;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;

fn frame(kind: Kind, payload: &[u8]) -> Vec<u8> {
    [&header(kind, payload.len()), payload].concat()
}

fn tokio_end(socket: Blocking) -> UnixStream {
    socket.set_nonblocking(true).unwrap();
    UnixStream::from_std(socket).unwrap()
}

fn lost(pid: Option<u32>, cause: &str) -> ErrorBody {
    ErrorBody::new(ErrorKind::Unavailable, format!("lost {pid:?}")).because(cause)
}

fn tls() -> (TlsAcceptor, TlsConnector) {
    let dir = tempfile::tempdir().unwrap();
    let authority = pki::Authority::create(&dir.path().join("ca"), "test").unwrap();
    let request = pki::NodeRequest { node: "n1", addresses: &[], valid: pki::Validity::of_a_node() };
    let node = dir.path().join("node");
    authority.issue_node(&request, &node).unwrap();
    let credentials = pki::NodeCredentials::load(&node).unwrap();
    (credentials.server_config(pki::Door::Nodes).unwrap().into(), credentials.client_config().unwrap().into())
}

/// The client's end and the program's end of a path over two nodes, and the tasks between.
async fn path() -> (Blocking, Blocking, [tokio::task::JoinHandle<()>; 2]) {
    let (client, near) = Blocking::pair().unwrap();
    let (far, program) = Blocking::pair().unwrap();
    let (near, far) = (tokio_end(near), tokio_end(far));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (out, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (out, (accepted, _)) = (out.unwrap(), accepted.unwrap());
    let ((acceptor, connector), name) = (tls(), pki::server_name("n1", "test").unwrap());
    let (out, accepted) = tokio::join!(connector.connect(name, out), acceptor.accept(accepted));
    let (out, accepted) = (out.unwrap(), accepted.unwrap());
    let near = tokio::spawn(async move { relay(Client::of_this_node(near, b""), out, Far::Daemon, lost).await });
    let far = tokio::spawn(async move { relay(Client::of_another_node(accepted), far, Far::Keeper, lost).await });
    (client, program, [near, far])
}

/// What a client reads to the end; its last frame apart.
fn read_all(mut client: &Blocking) -> (usize, Option<(Kind, Vec<u8>)>) {
    let (mut decoder, mut chunk, mut output, mut last) = (Decoder::default(), vec![0; 65_536], 0, None);
    while let Ok(got) = client.read(&mut chunk) {
        if got == 0 {
            break;
        }
        decoder.push(&chunk[..got]);
        while let Some((kind, payload)) = decoder.pop().unwrap() {
            output += if kind == Kind::Stdout { payload.len() } else { 0 };
            last = Some((kind, payload.to_vec()));
        }
    }
    (output, last)
}

/// `read_all`, and then the client ends.
fn hear_and_go(client: &Blocking) -> (usize, Option<(Kind, Vec<u8>)>) {
    let heard = read_all(client);
    client.shutdown(Shutdown::Both).unwrap();
    heard
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test)
}

#[test]
fn output_and_status_arrive_whatever_the_program_leaves_unread() {
    const OUTPUT: usize = 200_000;
    run(async {
        for round in 0..40 {
            let (client, mut program, tasks) = path().await;
            let mut input = client.try_clone().unwrap();
            // More than all buffers hold; it ends with the connection.
            let writer = thread::spawn(move || while input.write_all(&frame(Kind::Stdin, &[b'x'; 30_000])).is_ok() {});
            let ending = thread::spawn(move || {
                program.read_exact(&mut [0; 4]).unwrap();
                program.write_all(&frame(Kind::Started, &7_u32.to_le_bytes())).unwrap();
                for _ in 0..OUTPUT / 20_000 {
                    program.write_all(&frame(Kind::Stdout, &[b'y'; 20_000])).unwrap();
                }
                program.write_all(&frame(Kind::Exit, &[3])).unwrap();
                program.shutdown(Shutdown::Write).unwrap();
            });
            let heard = tokio::task::spawn_blocking(move || hear_and_go(&client)).await.unwrap();
            assert_eq!(heard, (OUTPUT, Some((Kind::Exit, vec![3]))), "round {round}");
            ending.join().unwrap();
            writer.join().unwrap();
            for task in tasks {
                task.await.unwrap();
            }
        }
    });
}

#[test]
fn output_that_comes_after_the_program_closed_its_input_arrives() {
    run(async {
        let (client, mut program, tasks) = path().await;
        let mut input = client.try_clone().unwrap();
        let ending = thread::spawn(move || {
            program.shutdown(Shutdown::Read).unwrap();
            // The client's next words find nobody who would take them; only then the program speaks.
            thread::spawn(move || while input.write_all(&frame(Kind::Stdin, &[b'x'; 30_000])).is_ok() {});
            for _ in 0..100 {
                program.write_all(&frame(Kind::Stdout, &[b'y'; 20_000])).unwrap();
            }
            program.write_all(&frame(Kind::Exit, &[0])).unwrap();
        });
        let heard = tokio::task::spawn_blocking(move || hear_and_go(&client));
        assert_eq!(heard.await.unwrap(), (2_000_000, Some((Kind::Exit, vec![0]))));
        ending.join().unwrap();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn client_that_closed_its_direction_hears_the_rest() {
    run(async {
        let (mut client, mut program, _tasks) = path().await;
        client.write_all(&frame(Kind::Stdin, b"all")).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let ending = thread::spawn(move || {
            let mut heard = Vec::new();
            program.read_to_end(&mut heard).unwrap();
            program.write_all(&frame(Kind::Exit, &[heard.len() as u8])).unwrap();
        });
        let heard = tokio::task::spawn_blocking(move || read_all(&client)).await.unwrap();
        assert_eq!(heard, (0, Some((Kind::Exit, vec![4 + 3]))));
        ending.join().unwrap();
    });
}

#[test]
fn program_of_another_node_learns_that_its_client_went_away() {
    run(async {
        let (client, program, tasks) = path().await;
        drop(client);
        // Not only what a client says ended: nobody listens, as poll has it.
        let gone = tokio::task::spawn_blocking(move || {
            let mut polled = [rustix::event::PollFd::new(&program, rustix::event::PollFlags::empty())];
            rustix::event::poll(&mut polled, None).unwrap();
            polled[0].revents()
        });
        assert!(gone.await.unwrap().contains(rustix::event::PollFlags::HUP));
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn in_a_session_a_client_that_dies_says_farewell() {
    run(async {
        let (mut client, mut program, tasks) = path().await;
        program.write_all(&frame(Kind::Session, &0_u64.to_le_bytes())).unwrap();
        let heard = tokio::task::spawn_blocking(move || {
            // It dies in the midst of a frame, with output unread.
            client.read_exact(&mut [0; 12]).unwrap();
            client.write_all(&frame(Kind::Stdin, b"half")[..6]).unwrap();
            program.write_all(&frame(Kind::Stdout, &[b'y'; 20_000])).unwrap();
            drop(client);
            let mut heard = Vec::new();
            program.read_to_end(&mut heard).unwrap();
            heard
        });
        assert_eq!(heard.await.unwrap(), frame(Kind::Leave, b""));
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn in_a_session_the_client_hears_that_the_way_broke() {
    run(async {
        let (client, near) = Blocking::pair().unwrap();
        let (far, mut program) = Blocking::pair().unwrap();
        let (near, far) = (tokio_end(near), tokio_end(far));
        let task = tokio::spawn(relay(Client::of_this_node(near, b""), far, Far::Daemon, lost));
        program.write_all(&frame(Kind::Session, &0_u64.to_le_bytes())).unwrap();
        drop(program);
        let (_, last) = tokio::task::spawn_blocking(move || read_all(&client)).await.unwrap();
        assert_eq!(last.unwrap().0, Kind::Broken);
        task.await.unwrap();
    });
}

#[test]
fn stream_that_breaks_ends_with_a_word_about_it() {
    run(async {
        let (client, mut program, _tasks) = path().await;
        program.write_all(&frame(Kind::Started, &65_600_u32.to_le_bytes())).unwrap();
        // Half a frame, then nothing: what was begun is not passed on.
        program.write_all(&frame(Kind::Stdout, b"whole")).unwrap();
        program.write_all(&frame(Kind::Stdout, b"broken")[..6]).unwrap();
        drop(program);
        let (output, last) = tokio::task::spawn_blocking(move || read_all(&client)).await.unwrap();
        let (kind, text) = last.unwrap();
        let body: ErrorBody = serde_json::from_slice(&text).unwrap();
        assert_eq!((output, kind, body.what.as_str()), (5, Kind::Error, "lost Some(65600)"));
    });
}

#[test]
fn error_of_the_far_node_reaches_its_client_in_other_words_and_output_as_it_was() {
    let words: Words = |body| ErrorBody::new(body.kind, body.what);
    let body = ErrorBody::new(ErrorKind::Internal, "could not start");
    let said = last_word(Kind::Error, &body.clone().because("/srv/secret"));
    let mut frames = Frames { words: Some(words), ..Frames::default() };
    let output = frame(Kind::Stdout, b"/srv/secret");
    let (first, second) = said.split_at(9);
    assert_eq!(frames.take(&[&output, first].concat()).unwrap(), output);
    assert_eq!(frames.take(second).unwrap(), last_word(Kind::Error, &body));
    assert!(frames.ended);
    let passed = frames.take(&frame(Kind::Broken, b"/srv/secret")).unwrap();
    assert_eq!(passed, last_word(Kind::Broken, &words(unreadable())));
}
