//! An echo server, and a client that asks it: `echo serve`, which prints its endpoint, and `echo call ENDPOINT TEXT`.

use std::path::Path;
use std::time::Duration;

use ipc::{Endpoint, IpcError, Message, Port, Wait};

/// Where a program of a container finds its broker.
const BROKER: &str = "/run/dvs/broker";
const SOON: Wait = Wait::For(Duration::from_secs(10));

/// Answers every request with what came in it, until one has the kind 0.
fn serve() -> Result<(), IpcError> {
    let mut port = Port::connect(Path::new(BROKER), None)?;
    println!("endpoint {}", port.endpoint());
    loop {
        let request = port.rcvrqst(Wait::Forever)?;
        let data = port.inline().to_vec();
        let Some(caller) = request.source else { continue };
        match port.reply_inline(caller, &request, &data) {
            // The caller gave up or died: that is its own affair.
            Err(IpcError::NotWaiting | IpcError::SourceDied | IpcError::DestinationDied) => {}
            result => result?,
        }
        if request.kind == 0 {
            return port.unbind();
        }
    }
}

/// Sends a text and returns what came back.
fn call(server: Endpoint, text: &str) -> Result<String, IpcError> {
    let mut port = Port::connect(Path::new(BROKER), None)?;
    port.wait4bind(server, SOON)?;
    port.sendrec_inline(server, &Message::new(1), text.as_bytes(), SOON)?;
    Ok(String::from_utf8_lossy(port.inline()).into_owned())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["serve"] => serve()?,
        ["call", number, text] => {
            let server = number.parse().ok().and_then(Endpoint::new).ok_or("no endpoint has this number")?;
            println!("{}", call(server, text)?);
        }
        _ => return Err("usage: echo serve | echo call ENDPOINT TEXT".into()),
    }
    Ok(())
}
