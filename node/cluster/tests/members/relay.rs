//! A wire to a member that can keep what is sent for a while: the request arrives after its sender has given it up.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cluster::etcd::Member;

/// What comes later than this after the first bytes that are kept is lost: the request is kept, its withdrawal is not.
const KEPT: Duration = Duration::from_millis(150);

#[derive(Clone)]
pub struct Relay {
    pub address: Member,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    keeps: bool,
    /// Bytes for a member, with the connection that they go over.
    kept: Vec<(TcpStream, Vec<u8>)>,
}

impl Relay {
    /// Threads end with the connections, the listening one with the test.
    pub fn start(to: &Member) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Member { host: "127.0.0.1".to_owned(), port: listener.local_addr().unwrap().port() };
        let relay = Relay { address, state: Arc::default() };
        let (state, to) = (Arc::clone(&relay.state), (to.host.clone(), to.port));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(member) = TcpStream::connect((to.0.as_str(), to.1)) else { continue };
                let (back_from, back_to) = (member.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || copy(back_from, &back_to));
                let state = Arc::clone(&state);
                std::thread::spawn(move || carry(client, member, &state));
            }
        });
        relay
    }

    /// From now on requests are kept.
    pub fn keep(&self) {
        self.state.lock().unwrap().keeps = true;
    }

    /// Lets go what was kept, and passes on what comes. How many connections had something is the answer.
    pub fn let_go(&self) -> usize {
        let mut state = self.state.lock().unwrap();
        state.keeps = false;
        let kept = std::mem::take(&mut state.kept);
        kept.iter().for_each(|(member, bytes)| (&*member).write_all(bytes).unwrap());
        kept.iter().filter(|(_, bytes)| !bytes.is_empty()).count()
    }
}

fn carry(mut client: TcpStream, member: TcpStream, state: &Mutex<State>) {
    let mut bytes = [0; 65_536];
    let mut since: Option<(Instant, usize)> = None;
    loop {
        let count = client.read(&mut bytes).unwrap_or(0);
        let mut state = state.lock().unwrap();
        if since.is_none() && state.keeps {
            state.kept.push((member.try_clone().unwrap(), Vec::new()));
            since = Some((Instant::now(), state.kept.len() - 1));
        }
        match since {
            // The member does not learn that the sender has left.
            Some(_) if count == 0 => return,
            Some((began, place)) if began.elapsed() < KEPT => {
                if let Some((_, kept)) = state.kept.get_mut(place) {
                    kept.extend_from_slice(&bytes[..count]);
                }
            }
            Some(_) => (),
            None if count == 0 || (&member).write_all(&bytes[..count]).is_err() => {
                let _ = member.shutdown(Shutdown::Both);
                return;
            }
            None => (),
        }
    }
}

fn copy(mut from: TcpStream, mut to: &TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}
