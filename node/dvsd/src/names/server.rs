//! The socket of names: datagrams, one question and one answer each, on a thread of its own.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use dns::{MESSAGE_BYTES_MAX, NameQuestion, NoQuestion};
use parking_lot::Mutex;
use serde::Deserialize;

use super::known;
use crate::context::Context;

/// How often it is looked whether the daemon ends.
const LOOK: Duration = Duration::from_millis(500);
/// Until the next attempt, when somebody else has the port.
const RETRY: Duration = Duration::from_secs(5);

/// `[names]` in the daemon's settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Where programs of this machine ask for names: an address of its loopback interface, and a port.
    pub listen: SocketAddr,
}

pub struct NameServer {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NameServer {
    /// Where the settings ask for one.
    pub fn start(context: &Arc<Context>) -> io::Result<Option<NameServer>> {
        let Some(Settings { listen }) = context.config.names else { return Ok(None) };
        let is_over = Arc::new(AtomicBool::new(false));
        let (also, context) = (Arc::clone(&is_over), Arc::clone(context));
        let thread =
            std::thread::Builder::new().name("names".to_owned()).spawn(move || run(&context, listen, &also))?;
        Ok(Some(NameServer { is_over, thread: Some(thread) }))
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn run(context: &Context, listen: SocketAddr, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        let ended = bind(listen).and_then(|socket| {
            *context.names_problem.lock() = None;
            serve(&socket, context, is_over)
        });
        if let Err(error) = ended {
            let problem = format!("names: nobody can ask at {listen}: {error}");
            if context.names_problem.lock().replace(problem.clone()).as_ref() != Some(&problem) {
                tracing::warn!(problem);
            }
            std::thread::park_timeout(RETRY);
        }
    }
}

fn bind(listen: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(listen)?;
    socket.set_read_timeout(Some(LOOK))?;
    Ok(socket)
}

fn serve(socket: &UdpSocket, context: &Context, is_over: &AtomicBool) -> io::Result<()> {
    let mut message = [0; MESSAGE_BYTES_MAX];
    while !is_over.load(Ordering::Relaxed) {
        let (bytes, whom) = match socket.recv_from(&mut message) {
            Ok(received) => received,
            // Also what the kernel tells of an answer before: whoever asked is gone.
            Err(error) if is_passing(&error) => continue,
            Err(error) => return Err(error),
        };
        let asked = message.get(..bytes).unwrap_or_default();
        if let Some(answer) = answer(asked, |labels| known(context, labels)) {
            // Who does not hear it asks again.
            let _ = socket.send_to(&answer, whom);
        }
    }
    Ok(())
}

fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), ConnectionRefused | ConnectionReset | Interrupted | TimedOut | WouldBlock)
}

fn answer(asked: &[u8], known: impl FnOnce(&[&str]) -> dns::Resolution) -> Option<Vec<u8>> {
    match NameQuestion::read(asked) {
        Ok(question) => Some(question.answer(&known(&question.labels().collect::<Vec<_>>()))),
        Err(NoQuestion::Refusal(answer)) => Some(answer),
        Err(NoQuestion::Silence) => None,
    }
}

/// Nothing while there is none.
pub type NamesProblem = Mutex<Option<String>>;
