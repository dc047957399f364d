//! A stream of 1 MiB after the other from the server to the client on another node: what a trip of these mechanisms is.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use ipc::{Arena, Direction, Endpoint, GrantId, Message, Place, Port, Wait};
use proxy_host::secure::Credentials;
use rustls::{ClientConnection, ServerConnection, StreamOwned};

use super::{Caller, STOP, Site, stream};
use crate::Outcome;
use crate::nodes::{CLUSTER, NAMES};

pub const BYTES: usize = 1 << 20;
/// What the plain senders write at a time.
const WRITE_BYTES: usize = 256 * 1024;

/// `vcopy` by the client from memory that the server lends.
pub mod vcopy {
    use super::*;

    pub struct Copier {
        port: Port,
        lent: Place,
        memory: Vec<u8>,
        asking: Asking,
    }

    /// When the next MiB is asked for.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub enum Asking {
        /// When the last has come.
        After,
        /// While the last comes.
        Ahead,
    }

    pub fn connect(site: &Site, address: &str, asking: Asking) -> Outcome<Copier> {
        let server = Endpoint::new(address.parse()?).ok_or("no such endpoint")?;
        let mut port = Port::connect(&site.broker(), None)?;
        let answer = port.sendrec(server, &Message::new(1), Wait::Forever)?;
        let lent = Place { owner: server, grant: GrantId::from_number(answer.word(0)), offset: 0 };
        Ok(Copier { port, lent, memory: vec![0; BYTES], asking })
    }

    impl Caller for Copier {
        fn call(&mut self, number: u64) -> Outcome<u64> {
            if number == STOP {
                self.port.sendrec(self.lent.owner, &Message::new(2), Wait::Forever)?;
            } else if self.asking == Asking::Ahead {
                self.port.copy_from_ahead(self.lent, &mut self.memory, self.lent, Wait::Forever)?;
            } else {
                self.port.copy_from(self.lent, &mut self.memory, Wait::Forever)?;
            }
            Ok(number)
        }
    }

    pub fn serve(site: &Site, ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
        let mut port = Port::connect(&site.broker(), None)?;
        ready(&port.endpoint().number().to_string())?;
        let memory = Arena::private(BYTES)?;
        memory.copy_in(0, &vec![7; BYTES])?;
        loop {
            let request = port.rcvrqst(Wait::Forever)?;
            let caller = request.source.ok_or("a request of nobody")?;
            if request.kind != 1 {
                return Ok(port.reply(caller, &request)?);
            }
            let grant = port.grant(caller, &memory, Direction::Read)?;
            port.reply(caller, &Message::new(1).with_word(0, grant.number()))?;
        }
    }
}

/// The client's end of a stream that the server fills as fast as it can.
pub struct Reader<S> {
    stream: S,
    memory: Vec<u8>,
}

impl<S: Read> Caller for Reader<S> {
    fn call(&mut self, number: u64) -> Outcome<u64> {
        // The server ends when its client does.
        if number != STOP {
            self.stream.read_exact(&mut self.memory)?;
        }
        Ok(number)
    }
}

fn fill(mut stream: impl Write) -> Outcome<()> {
    let data = vec![7; WRITE_BYTES];
    loop {
        match stream.write_all(&data) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn accept(site: &Site, ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<TcpStream> {
    let listener = TcpListener::bind(SocketAddr::new(site.address(), 0))?;
    ready(&listener.local_addr()?.to_string())?;
    let stream = listener.accept()?.0;
    stream.set_nodelay(true)?;
    Ok(stream)
}

pub fn serve_tcp(site: &Site, ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
    fill(accept(site, ready)?)
}

pub fn connect_tcp(address: &str) -> Outcome<Reader<TcpStream>> {
    Ok(Reader { stream: stream::dial_tcp(address)?, memory: vec![0; BYTES] })
}

/// With the settings that the links between nodes have.
pub fn serve_rustls(site: &Site, ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
    let config = Credentials::load(&site.certificates(), CLUSTER)?.server_config();
    let stream = accept(site, ready)?;
    fill(StreamOwned::new(ServerConnection::new(config)?, stream))
}

pub fn connect_rustls(site: &Site, address: &str) -> Outcome<Reader<StreamOwned<ClientConnection, TcpStream>>> {
    let config = Credentials::load(&site.certificates(), CLUSTER)?.client_config();
    let name = pki::server_name(NAMES[1], CLUSTER)?;
    let connection = ClientConnection::new(config, name)?;
    let stream = StreamOwned::new(connection, stream::dial_tcp(address)?);
    Ok(Reader { stream, memory: vec![0; BYTES] })
}
