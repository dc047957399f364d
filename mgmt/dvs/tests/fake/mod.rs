//! A daemon that is played by a test: answers requests on a Unix socket with what the test says. One request per
//! connection, as the client makes them.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use mgmt_api::stream::{Decoder, Kind, header};

#[derive(Clone, Debug)]
pub struct Request {
    pub line: String,
    pub body: String,
}

pub enum Answer {
    /// Status and body.
    Say(u16, String),
    /// Lines of JSON.
    #[allow(dead_code)] // As below.
    Lines(String),
    /// A body, and what is said beside it.
    Note(String, &'static str),
    /// 101, then the frames are the test's business.
    Upgrade(Box<dyn FnOnce(Frames) + Send>),
    /// The connection ends without an answer.
    HangUp,
}

pub struct FakeDaemon {
    pub socket: PathBuf,
    pub seen: Arc<Mutex<Vec<Request>>>,
    _directory: tempfile::TempDir,
}

impl FakeDaemon {
    /// `answer` is asked for every request. Threads end with the test's process.
    pub fn start(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> FakeDaemon {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("d.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (answer, heard) = (Arc::new(answer), seen.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, heard) = (answer.clone(), heard.clone());
                std::thread::spawn(move || serve(stream, &*answer, &heard));
            }
        });
        FakeDaemon { socket, seen, _directory: directory }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    #[allow(dead_code)] // One of the two test programs that share this file looks at it.
    pub fn lines(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|request| request.line.clone()).collect()
    }
}

fn serve(stream: UnixStream, answer: &(dyn Fn(&Request) -> Answer + Send + Sync), seen: &Mutex<Vec<Request>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let Some(request) = read_request(&mut reader) else { return };
    seen.lock().unwrap().push(request.clone());
    let mut stream = stream;
    match answer(&request) {
        Answer::Say(status, body) => say(&mut stream, status, "application/json", &body),
        Answer::Lines(body) => say(&mut stream, 200, "application/x-ndjson", &body),
        Answer::Note(body, note) => {
            let head = format!("HTTP/1.1 200 x\r\ndvs-note: {note}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            let _ = stream.write_all(head.as_bytes());
        }
        Answer::Upgrade(talk) => {
            let head = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: dvs-stream\r\n\r\n";
            stream.write_all(head.as_bytes()).unwrap();
            talk(Frames { reader, stream, decoder: Decoder::default() });
        }
        Answer::HangUp => {}
    }
}

fn say(stream: &mut UnixStream, status: u16, media: &str, body: &str) {
    let head = format!("HTTP/1.1 {status} x\r\ncontent-type: {media}\r\ncontent-length: {}\r\n\r\n", body.len());
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
}

fn read_request(reader: &mut BufReader<UnixStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let mut length = 0;
    loop {
        let mut field = String::new();
        reader.read_line(&mut field).ok()?;
        let field = field.trim().to_ascii_lowercase();
        if field.is_empty() {
            break;
        }
        if let Some(value) = field.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let line = line.trim().trim_end_matches(" HTTP/1.1").to_owned();
    Some(Request { line, body: String::from_utf8(body).ok()? })
}

/// The daemon's end of a stream.
pub struct Frames {
    reader: BufReader<UnixStream>,
    stream: UnixStream,
    decoder: Decoder,
}

impl Frames {
    pub fn say(&mut self, kind: Kind, payload: &[u8]) {
        let mut bytes = header(kind, payload.len()).to_vec();
        bytes.extend_from_slice(payload);
        // A client that left is part of some tests.
        let _ = self.stream.write_all(&bytes);
    }

    /// None: the client is gone.
    #[allow(dead_code)]
    pub fn hear(&mut self) -> Option<(Kind, Vec<u8>)> {
        loop {
            if let Some((kind, payload)) = self.decoder.pop().ok()? {
                return Some((kind, payload.to_vec()));
            }
            let mut chunk = [0; 4096];
            match self.reader.read(&mut chunk) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.decoder.push(&chunk[..count]),
            }
        }
    }
}
