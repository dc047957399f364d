//! ZeroMQ: REQ and REP over its Unix socket, or over TCP between nodes.

use super::{Caller, FRAME_BYTES, STOP, Site, frame, number_of};
use crate::Outcome;

pub struct Request {
    socket: zmq::Socket,
    _context: zmq::Context,
}

pub fn serve(site: &Site, ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
    let context = zmq::Context::new();
    let socket = context.socket(zmq::REP)?;
    match site.host {
        None => socket.bind(&format!("ipc://{}", site.own_path("zmq").display()))?,
        Some(host) => socket.bind(&format!("tcp://{host}:*"))?,
    }
    let address = socket.get_last_endpoint()?.map_err(|_| "an address that is no text")?;
    ready(&address)?;
    let mut frame = [0; FRAME_BYTES];
    while number_of(&frame) != STOP {
        socket.recv_into(&mut frame, 0)?;
        socket.send(&frame[..], 0)?;
    }
    Ok(())
}

pub fn connect(address: &str) -> Outcome<Request> {
    let context = zmq::Context::new();
    let socket = context.socket(zmq::REQ)?;
    socket.connect(address)?;
    Ok(Request { socket, _context: context })
}

impl Caller for Request {
    fn call(&mut self, number: u64) -> Outcome<u64> {
        self.socket.send(&frame(number)[..], 0)?;
        let mut answer = [0; FRAME_BYTES];
        self.socket.recv_into(&mut answer, 0)?;
        Ok(number_of(&answer))
    }
}
