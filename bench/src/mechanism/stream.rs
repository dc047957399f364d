//! Pipes and sockets: a frame is written, a frame is read.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};

use super::{Caller, Echo, FRAME_BYTES, Handed, STOP, frame, number_of, standard};
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

pub fn serve_tcp(ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    ready(&listener.local_addr()?.to_string())?;
    tcp(listener.accept()?.0)?.serve()
}

pub fn connect_tcp(address: &str) -> Outcome<Stream<TcpStream, TcpStream>> {
    tcp(TcpStream::connect(address)?)
}

fn tcp(socket: TcpStream) -> Outcome<Stream<TcpStream, TcpStream>> {
    socket.set_nodelay(true)?;
    Ok(Stream { from: socket.try_clone()?, to: socket })
}
