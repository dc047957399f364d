//! One server with many clients over Unix SEQPACKET sockets, as servers on Linux are written: epoll, then a read and a
//! write for each that is ready.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::event::epoll;

use super::stream::Stream;
use super::{FRAME_BYTES, STOP, number_of};
use crate::Outcome;

const LISTENER: u64 = u64::MAX;
const EVENTS_MAX: usize = 64;

pub fn serve(path: &Path, clients: u32, ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
    let _ = std::fs::remove_file(path);
    let listener = sys::seqpacket::listen(path, clients as i32)?;
    let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    watch(&poller, &listener, LISTENER)?;
    ready(path.to_str().ok_or("a path that is no text")?)?;
    let mut connections: Vec<File> = Vec::new();
    let mut events =
        vec![epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; EVENTS_MAX];
    let mut left = clients;
    while left > 0 {
        let count = epoll::wait(&poller, &mut events[..], None)?;
        for event in &events[..count] {
            let token = event.data.u64();
            if token == LISTENER {
                let connection: File = sys::seqpacket::accept(&listener)?.into();
                watch(&poller, &connection, connections.len() as u64)?;
                connections.push(connection);
                continue;
            }
            let Some(connection) = connections.get_mut(token as usize) else { continue };
            let mut frame = [0; FRAME_BYTES];
            match connection.read(&mut frame)? {
                // It ended after its last frame.
                0 => epoll::delete(&poller, connection.as_fd())?,
                _ => {
                    connection.write_all(&frame)?;
                    left -= u32::from(number_of(&frame) == STOP);
                }
            }
        }
    }
    Ok(())
}

pub fn connect(path: &Path) -> Outcome<Stream<File, File>> {
    let socket: File = sys::seqpacket::connect(path)?.into();
    // A client has nothing else to wait for.
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(Stream { from: socket.try_clone()?, to: socket })
}

fn watch(poller: impl AsFd, fd: impl AsFd, token: u64) -> Outcome<()> {
    Ok(epoll::add(poller, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?)
}
