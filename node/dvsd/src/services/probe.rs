//! Asks a program of a container whether it is well, over the container's network on this node. Whatever it answers,
//! and however slowly, costs a bounded time and a few bytes.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use mgmt_api::HealthProbe;
use sys::ns::{Kinds, join};
use vos_api::ports::NodeAddress;

/// Of an answer: what comes after its status says nothing.
const STATUS_BYTES: usize = 64;

/// On a thread that ends with it: it stays in the container's network.
pub fn ask(probe: &HealthProbe, addresses: NodeAddress, network: &OwnedFd, until: Instant) -> bool {
    if join(network, Kinds::NET).is_err() {
        return false;
    }
    match probe {
        HealthProbe::Tcp(port) => connect(addresses, *port, until).is_some(),
        HealthProbe::Http { port, path } => {
            connect(addresses, *port, until).and_then(|(stream, at)| get(stream, at, path, until)).is_some_and(is_well)
        }
        // Those the keeper runs.
        HealthProbe::Command(_) => false,
    }
}

/// At the container's addresses there, or at those of the node alone; and at which.
fn connect(addresses: NodeAddress, port: u16, until: Instant) -> Option<(TcpStream, IpAddr)> {
    let own: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    addresses.all().chain(own).find_map(|address| {
        let stream = TcpStream::connect_timeout(&SocketAddr::new(address, port), left(until)?).ok()?;
        Some((stream, address))
    })
}

fn left(until: Instant) -> Option<Duration> {
    Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
}

/// The beginning of the answer.
fn get(mut stream: TcpStream, host: IpAddr, path: &str, until: Instant) -> Option<Vec<u8>> {
    stream.set_write_timeout(left(until)).ok()?;
    let host = SocketAddr::new(host, 0).to_string();
    let host = host.trim_end_matches(":0");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: dvs\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    let mut buffer = [0; STATUS_BYTES];
    while answer.len() < STATUS_BYTES && !answer.contains(&b'\n') {
        stream.set_read_timeout(Some(left(until)?)).ok()?;
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(bytes) => answer.extend_from_slice(buffer.get(..bytes)?),
        }
    }
    Some(answer)
}

/// `HTTP/1.1 204 No Content`: 200 to 399.
fn is_well(answer: Vec<u8>) -> bool {
    let text = String::from_utf8_lossy(&answer);
    let mut words = text.split(' ');
    let is_http = words.next().is_some_and(|word| word.starts_with("HTTP/1."));
    let status = words.next().and_then(|word| word.trim_end().parse::<u16>().ok());
    is_http && status.is_some_and(|status| (200..400).contains(&status))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn answer_is_well_by_its_status_alone() {
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\n", true),
            ("HTTP/1.0 399 x", true),
            ("HTTP/1.1 204\r\n", true),
            ("HTTP/1.1 503 Service Unavailable\r\n", false),
            ("HTTP/1.1 199 x\r\n", false),
            ("HTTP/1.1 2000 x\r\n", false),
            ("SSH-2.0-OpenSSH 200\r\n", false),
            ("HTTP/1.1\r\n", false),
            ("", false),
        ] {
            assert_eq!(is_well(answer.as_bytes().to_vec()), expected, "{answer:?}");
        }
    }

    #[test]
    fn who_answers_slowly_or_without_end_takes_its_time_and_no_more() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let talker = std::thread::spawn(move || {
            // The first says nothing, the second never a line.
            let first = listener.accept().unwrap();
            let (mut second, _) = listener.accept().unwrap();
            while second.write_all(&[b'x'; 1000]).is_ok() {}
            drop(first);
        });
        for _ in 0..2 {
            let (begun, until) = (Instant::now(), Instant::now() + Duration::from_millis(200));
            let (stream, at) = connect(Ipv4Addr::LOCALHOST.into(), port, until).unwrap();
            let answer = get(stream, at, "/", until).unwrap_or_default();
            assert!(!is_well(answer.clone()) && answer.len() <= STATUS_BYTES * 2, "{answer:?}");
            assert!(begun.elapsed() < Duration::from_secs(2));
        }
        talker.join().unwrap();
        assert!(connect(Ipv4Addr::LOCALHOST.into(), port, Instant::now() + Duration::from_millis(200)).is_none());
    }
}
