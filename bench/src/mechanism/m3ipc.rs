//! `sendrec` and `reply` between two programs of one container.

use std::path::Path;

use ipc::{Endpoint, Message, Port, Wait, WaitMode};

use super::{Caller, STOP};
use crate::Outcome;

pub struct M3ipc {
    port: Port,
    server: Endpoint,
}

impl Caller for M3ipc {
    fn call(&mut self, number: u64) -> Outcome<u64> {
        let mut message = Message::new(1);
        message.set_word(0, number);
        Ok(self.port.sendrec(self.server, &message, Wait::Forever)?.word(0))
    }
}

pub fn connect(broker: &Path, address: &str, mode: WaitMode) -> Outcome<M3ipc> {
    let server = Endpoint::new(address.parse()?).ok_or("no such endpoint")?;
    let mut port = Port::connect(broker, None)?;
    port.set_wait_mode(mode);
    Ok(M3ipc { port, server })
}

/// Until so many clients have stopped.
pub fn serve(broker: &Path, mode: WaitMode, clients: u32, ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
    let mut port = Port::connect(broker, None)?;
    port.set_wait_mode(mode);
    ready(&port.endpoint().number().to_string())?;
    let mut left = clients;
    while left > 0 {
        let request = port.rcvrqst(Wait::Forever)?;
        let caller = request.source.ok_or("a request of nobody")?;
        port.reply(caller, &request)?;
        left -= u32::from(request.word(0) == STOP);
    }
    Ok(())
}
