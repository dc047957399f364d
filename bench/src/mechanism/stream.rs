//! Pipes and sockets: a frame is written, a frame is read.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};

use super::{Caller, Echo, FRAME_BYTES, Handed, STOP, Site, frame, number_of, standard};
use crate::Outcome;

/// Two ends of bytes. A packet socket gives a whole frame at a time, as it was written.
pub struct Stream<R, W> {
    pub from: R,
    pub to: W,
}

impl<R: Read, W: Write> Caller for Stream<R, W> {
    fn call(&mut self, number: u64) -> Outcome<u64> {
        self.to.write_all(&frame(number))?;
        let mut answer = [0; FRAME_BYTES];
        self.from.read_exact(&mut answer)?;
        Ok(number_of(&answer))
    }
}

impl<R: Read, W: Write> Echo for Stream<R, W> {
    fn serve(&mut self) -> Outcome<()> {
        let mut frame = [0; FRAME_BYTES];
        loop {
            self.from.read_exact(&mut frame)?;
            self.to.write_all(&frame)?;
            if number_of(&frame) == STOP {
                return Ok(());
            }
        }
    }
}

pub fn pipes() -> Outcome<Handed> {
    let (there, back) = (pipe_with(PipeFlags::CLOEXEC)?, pipe_with(PipeFlags::CLOEXEC)?);
    Ok(Handed { client: [Some(back.0), Some(there.1)], server: [Some(there.0), Some(back.1)] })
}

pub fn sockets(kind: SocketType) -> Outcome<Handed> {
    let (client, server) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    Ok(Handed { client: [Some(client.try_clone()?), Some(client)], server: [Some(server.try_clone()?), Some(server)] })
}

pub fn inherited() -> Outcome<Stream<File, File>> {
    let [from, to] = standard()?;
    Ok(Stream { from: from.into(), to: to.into() })
}

pub fn serve_tcp(site: &Site, ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
    duplex(accept_tcp(site, ready)?)?.serve()
}

pub fn connect_tcp(address: &str) -> Outcome<Stream<TcpStream, TcpStream>> {
    duplex(dial_tcp(address)?)
}

pub fn serve_tcp_spinning(site: &Site, ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
    spinning(accept_tcp(site, ready)?)?.serve()
}

pub fn connect_tcp_spinning(address: &str) -> Outcome<Stream<Spinning, Spinning>> {
    spinning(dial_tcp(address)?)
}

pub fn dial_tcp(address: &str) -> Outcome<TcpStream> {
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

fn accept_tcp(site: &Site, ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<TcpStream> {
    let listener = TcpListener::bind(SocketAddr::new(site.address(), 0))?;
    ready(&listener.local_addr()?.to_string())?;
    let socket = listener.accept()?.0;
    socket.set_nodelay(true)?;
    Ok(socket)
}

fn duplex(socket: TcpStream) -> Outcome<Stream<TcpStream, TcpStream>> {
    Ok(Stream { from: socket.try_clone()?, to: socket })
}

/// A socket that is asked again until there is something.
pub struct Spinning(TcpStream);

fn spinning(socket: TcpStream) -> Outcome<Stream<Spinning, Spinning>> {
    socket.set_nonblocking(true)?;
    Ok(Stream { from: Spinning(socket.try_clone()?), to: Spinning(socket) })
}

fn until_done<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            done => return done,
        }
    }
}

impl Read for Spinning {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        until_done(|| self.0.read(buffer))
    }
}

impl Write for Spinning {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        until_done(|| self.0.write(buffer))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
