//! Counts under a lock, and talks in a group, on as many nodes as you like: `dvs run -d shop --node n1 --
//! /dc/coordination n1`.

use std::path::Path;
use std::time::Duration;

use libvos::{CsClient, GroupEvent};
use rustix::io::Errno;
use vos_api::cs::{ANY, Level};

const LONG: Duration = Duration::from_secs(3600);

/// One more, by who has the lock alone.
fn count(client: &CsClient) -> Result<u64, Errno> {
    let token = client.lock("counter", LONG)?;
    let before = match client.get(b"counter") {
        Ok((value, _)) => String::from_utf8_lossy(&value).parse().unwrap_or(0),
        Err(Errno::NOENT) => 0,
        Err(error) => return Err(error),
    };
    let next: u64 = before + 1;
    client.put(b"counter", next.to_string().as_bytes(), ANY)?;
    client.unlock("counter", token)?;
    Ok(next)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "somebody".to_owned());
    let client = CsClient::connect(Path::new("/run/dvs/broker"))?;
    let group = client.join("example", &name, LONG)?;
    for _ in 0..3 {
        let text = format!("{name} counts {}", count(&client)?);
        group.send(Level::Safe, text.as_bytes())?;
    }
    loop {
        for event in group.receive(LONG)? {
            match event {
                GroupEvent::View { number, members, .. } => {
                    let names: Vec<String> = members.into_iter().map(|member| member.name).collect();
                    println!("view {number}: {}", names.join(" "));
                }
                GroupEvent::Message { bytes, .. } => println!("{}", String::from_utf8_lossy(&bytes)),
            }
        }
    }
}
