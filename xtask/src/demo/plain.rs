//! Peers of the comparison: plain TCP on the link of the nodes, and the same nginx outside any container.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::dvs::Dvs;
use super::site::{LARGE_BYTES, Site, nginx_conf};
use crate::run::Outcome;

const TCP_PORT: u16 = 7_100;
const NGINX_PORT: u16 = 7_180;
const START_TRIES: u32 = 200;

/// Sends `LARGE_BYTES` to each of `connections` clients, then ends.
pub fn tcp_serve(connections: usize) -> Outcome {
    let listener = TcpListener::bind(("0.0.0.0", TCP_PORT)).map_err(|error| format!("port {TCP_PORT}: {error}"))?;
    let block = vec![7u8; 1 << 20];
    for _ in 0..connections {
        let (mut stream, _) = listener.accept().map_err(|error| error.to_string())?;
        let mut left = LARGE_BYTES;
        while left > 0 {
            let bytes = left.min(block.len());
            stream.write_all(&block[..bytes]).map_err(|error| error.to_string())?;
            left -= bytes;
        }
    }
    Ok(())
}

/// Receives `LARGE_BYTES` and prints the seconds it took.
pub fn tcp_fetch(address: &str) -> Outcome {
    let mut stream = connect(address)?;
    let start = Instant::now();
    let mut block = vec![0u8; 1 << 20];
    let mut bytes = 0;
    loop {
        match stream.read(&mut block).map_err(|error| error.to_string())? {
            0 => break,
            count => bytes += count,
        }
    }
    if bytes != LARGE_BYTES {
        return Err(format!("only {bytes} bytes came"));
    }
    println!("{}", start.elapsed().as_secs_f64());
    Ok(())
}

fn connect(address: &str) -> Outcome<TcpStream> {
    let mut tries = 0;
    loop {
        match TcpStream::connect((address, TCP_PORT)) {
            Ok(stream) => return Ok(stream),
            Err(error) if tries == START_TRIES => return Err(format!("{address}: {error}")),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
        tries += 1;
    }
}

/// MB/s of plain TCP from n3 to n1, `times` transfers.
pub fn tcp_over_link(dvs: &Dvs, n3_address: &str, times: usize) -> Outcome<Vec<f64>> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?.display().to_string();
    let count = times.to_string();
    let mut server = Running(
        dvs.command(&["dev", "exec", "n3", "--", &own, "tcp-serve", &count])
            .spawn()
            .map_err(|error| error.to_string())?,
    );
    let mut rates = Vec::new();
    for _ in 0..times {
        let seconds = dvs.output(&["dev", "exec", "n1", "--", &own, "tcp-fetch", n3_address])?;
        rates.push(rate(seconds.trim())?);
    }
    server.0.wait().map_err(|error| error.to_string())?;
    Ok(rates)
}

/// MB/s of the same nginx and the same file on n1 outside any container, warm.
pub fn nginx_on_host(dvs: &Dvs, site: &Site, times: usize) -> Outcome<Vec<f64>> {
    let conf = site.directory().join("host-nginx.conf");
    let root = site.directory().join("site");
    std::fs::write(&conf, nginx_conf(NGINX_PORT, &root.display().to_string())).map_err(|error| error.to_string())?;
    let mut command = dvs.command(&["dev", "exec", "n1", "--", "nginx", "-c", &conf.display().to_string()]);
    let mut server = Running(command.stderr(Stdio::null()).spawn().map_err(|error| error.to_string())?);
    let url = format!("http://127.0.0.1:{NGINX_PORT}/large/0");
    let fetch = |dvs: &Dvs| {
        dvs.output(&[
            "dev",
            "exec",
            "n1",
            "--",
            "curl",
            "-sSf",
            "--retry",
            "20",
            "--retry-connrefused",
            "--retry-delay",
            "1",
            "-o",
            "/dev/null",
            "-w",
            "%{time_total}",
            &url,
        ])
    };
    std::thread::sleep(Duration::from_millis(300));
    let mut rates = Vec::new();
    fetch(dvs)?;
    for _ in 0..times {
        rates.push(rate(fetch(dvs)?.trim())?);
    }
    // SIGTERM to the command is passed on to nginx, which ends at once.
    let pid = server.0.id().to_string();
    let _ = Command::new("kill").arg(pid).status();
    let _ = server.0.wait();
    Ok(rates)
}

/// MB/s from the seconds that 100 MB took.
pub fn rate(seconds: &str) -> Outcome<f64> {
    let seconds: f64 = seconds.parse().map_err(|_| format!("not a time: '{seconds}'"))?;
    Ok(LARGE_BYTES as f64 / 1e6 / seconds)
}

/// Ends with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
