//! One HTTP exchange over a connection of its own, and what its answer means.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::http::Method;
use hyper::http::header;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use mgmt_api::{AccessFile, ErrorBody, ErrorKind, JoinAnswer, JoinRequest, stream};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

use crate::Error;
use crate::far::{Far, Unusable};
use crate::frames::Stream;
use crate::wire::Wire;

/// Longest answer that is read into memory: the processes of a thousand containers fit.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Questions are answered from memory; a daemon that needs longer hangs.
pub(crate) const ASK_SECONDS: u64 = 30;
/// Starting and stopping waits for other nodes, grace periods and disks.
pub(crate) const ACT_SECONDS: u64 = 600;
/// Meanwhile the daemon is asked whether it lives.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Talks to one daemon of this machine, or to a cluster elsewhere.
#[derive(Clone, Debug)]
pub struct Client(Way);

#[derive(Clone, Debug)]
enum Way {
    Socket(PathBuf),
    Far(Arc<Far>),
}

impl Client {
    pub fn new(socket: impl Into<PathBuf>) -> Client {
        Client(Way::Socket(socket.into()))
    }

    /// A cluster elsewhere, with what its administrator gave. Any of its nodes will do.
    pub fn far(access: &AccessFile) -> Result<Client, pki::PkiError> {
        Ok(Client(Way::Far(Arc::new(Far::new(access)?))))
    }

    /// Of a daemon of this machine.
    pub fn socket(&self) -> Option<&Path> {
        match &self.0 {
            Way::Socket(socket) => Some(socket),
            Way::Far(_) => None,
        }
    }

    /// Sends and reads a JSON answer.
    pub(crate) async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        seconds: u64,
    ) -> Result<T, Error> {
        let bytes = self.bytes(method, path, body, seconds).await?;
        serde_json::from_slice(&bytes)
            .map_err(|cause| Error::Foreign(format!("{path} answered something else: {cause}")))
    }

    /// Sends and reads the answer, whatever it is.
    pub(crate) async fn bytes(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        seconds: u64,
    ) -> Result<Bytes, Error> {
        let asked = OnceLock::new();
        let exchange = async {
            let request = request(method, path, body)?;
            let (wire, whom) = self.connect().await?;
            let _ = asked.set(whom);
            read_body(refuse_errors(self.send_over(wire, request).await?).await?).await
        };
        let answer = within(seconds, exchange);
        if seconds <= ASK_SECONDS {
            return answer.await;
        }
        unless_silent(answer, LOOK_EVERY, async || match asked.get() {
            Some(whom) => self.lives(*whom).await,
            // Dialling has a limit of its own.
            None => true,
        })
        .await
    }

    /// The one that was asked. Whatever it answers, or that nobody is there, it is not one that hangs: a node that is
    /// gone is noticed by the connection.
    async fn lives(&self, whom: usize) -> bool {
        let asked = async {
            let wire = match &self.0 {
                Way::Socket(_) => self.connect().await?.0,
                Way::Far(far) => match far.dial_again(whom).await {
                    Ok(wire) => wire,
                    Err(Unusable::Silent) => return Ok(false),
                    Err(Unusable::Away(_) | Unusable::Untrusted(_)) => return Ok(true),
                },
            };
            let request = request(Method::GET, mgmt_api::path::LIVEZ, None::<&()>)?;
            self.send_over(wire, request).await.map(|_| true)
        };
        match within(ASK_SECONDS, asked).await {
            Ok(lives) => lives,
            Err(error) => !matches!(error, Error::TimedOut { .. }),
        }
    }

    /// Sends what is answered with nothing. Somebody else's server would answer with something.
    pub(crate) async fn nothing(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        seconds: u64,
    ) -> Result<(), Error> {
        match self.bytes(method, path, body, seconds).await?.is_empty() {
            true => Ok(()),
            false => Err(Error::Foreign(format!("{path} answered something else"))),
        }
    }

    /// The same as [`Client::json`], but 503 carries the resource as well: the health questions.
    pub(crate) async fn json_even_unavailable<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        let exchange = async {
            let response = self.send(request(Method::GET, path, None::<&()>)?).await?;
            let status = response.status();
            let bytes = read_body(response).await?;
            match serde_json::from_slice(&bytes) {
                Ok(answer) => Ok(answer),
                Err(_) if status.is_success() => Err(Error::Foreign(format!("{path} answered something else"))),
                Err(_) => Err(refusal(status, &bytes)),
            }
        };
        within(ASK_SECONDS, exchange).await
    }

    /// A list, and which nodes are missing in it.
    pub(crate) async fn json_with_notes<T: DeserializeOwned>(&self, path: &str) -> Result<Noted<T>, Error> {
        let exchange = async {
            let response = refuse_errors(self.send(request(Method::GET, path, None::<&()>)?).await?).await?;
            let missing = texts(&response, mgmt_api::path::MISSING);
            let notes = texts(&response, mgmt_api::path::NOTE);
            let bytes = read_body(response).await?;
            let answer = serde_json::from_slice(&bytes);
            let answer = answer.map_err(|_| Error::Foreign(format!("{path} answered something else")))?;
            Ok(Noted { answer, missing, notes })
        };
        within(ASK_SECONDS, exchange).await
    }

    /// A body that goes on: logs that are followed.
    pub(crate) async fn follow(&self, path: &str) -> Result<TextStream, Error> {
        let exchange = async { refuse_errors(self.send(request(Method::GET, path, None::<&()>)?).await?).await };
        let response = within(ASK_SECONDS, exchange).await?;
        let media = texts(&response, header::CONTENT_TYPE.as_str());
        let media =
            if media.iter().any(|media| media == "application/x-ndjson") { Media::JsonLines } else { Media::Text };
        Ok(TextStream { body: response.into_body(), media })
    }

    /// Asks for the `dvs-stream` upgrade.
    pub(crate) async fn upgrade(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Stream, Error> {
        let mut request = request(method, path, body)?;
        let headers = request.headers_mut();
        headers.insert(header::CONNECTION, header::HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, header::HeaderValue::from_static(stream::PROTOCOL));
        let exchange = async {
            let response = self.send(request).await?;
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                let response = refuse_errors(response).await?;
                return Err(Error::Foreign(format!("{path} answered {} instead of a stream", response.status())));
            }
            let notes = texts(&response, mgmt_api::path::NOTE);
            let upgraded = hyper::upgrade::on(response).await.map_err(Error::broken)?;
            let parts = upgraded
                .downcast::<TokioIo<Wire>>()
                .map_err(|_| Error::Foreign("the upgraded connection is not a socket".to_owned()))?;
            Ok(Stream { notes, ..Stream::over(parts.io.into_inner(), &parts.read_buf) })
        };
        within(ASK_SECONDS, exchange).await
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Error> {
        let (wire, _) = self.connect().await?;
        self.send_over(wire, request).await
    }

    /// And to which of several.
    async fn connect(&self) -> Result<(Wire, usize), Error> {
        match &self.0 {
            Way::Socket(socket) => {
                let connected = UnixStream::connect(socket).await;
                Ok((Wire::Unix(connected.map_err(|source| no_connection(socket.clone(), source))?), 0))
            }
            Way::Far(far) => far.dial().await,
        }
    }

    async fn send_over(&self, wire: Wire, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Error> {
        if let Way::Far(far) = &self.0 {
            far.sign(request.headers_mut());
        }
        send_over(wire, request).await
    }
}

fn no_connection(socket: PathBuf, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::PermissionDenied => Error::NotPermitted { socket, source },
        _ => Error::NoDaemon { socket, source },
    }
}

async fn send_over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, Error> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(Error::broken)?;
    // The connection ends by itself with the answer's body; its own error reaches us through the sender.
    tokio::spawn(connection.with_upgrades());
    sender.send_request(request).await.map_err(Error::broken)
}

/// Asks a node of the cluster to become one, over a connection on which nobody has said who he is. May be repeated with
/// the same request.
pub async fn join(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    asked: &JoinRequest,
) -> Result<JoinAnswer, Error> {
    let exchange = async {
        let request = request(Method::POST, mgmt_api::path::JOIN, Some(asked))?;
        let bytes = read_body(refuse_errors(send_over(stream, request).await?).await?).await?;
        serde_json::from_slice(&bytes)
            .map_err(|cause| Error::Foreign(format!("the node answered something else: {cause}")))
    };
    within(ASK_SECONDS, exchange).await
}

/// An answer with what its headers say beside it.
pub(crate) struct Noted<T> {
    pub answer: T,
    pub missing: Vec<String>,
    pub notes: Vec<String>,
}

fn texts(response: &Response<Incoming>, header: &str) -> Vec<String> {
    let values = response.headers().get_all(header).iter();
    values.filter_map(|value| Some(value.to_str().ok()?.to_owned())).collect()
}

/// Bytes of a log as they come.
pub struct TextStream {
    body: Incoming,
    media: Media,
}

/// What bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Media {
    Text,
    /// An object in each line.
    JsonLines,
}

impl TextStream {
    pub fn media(&self) -> Media {
        self.media
    }

    /// None: the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame.map_err(Error::broken)?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}

fn request(method: Method, path: &str, body: Option<&impl Serialize>) -> Result<Request<Full<Bytes>>, Error> {
    let builder = Request::builder().method(method).uri(path).header(header::HOST, "dvs");
    let request = match body {
        None => builder.body(Full::default()),
        Some(body) => {
            let json = serde_json::to_vec(body).map_err(|cause| Error::Foreign(format!("request: {cause}")))?;
            builder.header(header::CONTENT_TYPE, "application/json").body(Full::from(json))
        }
    };
    request.map_err(Error::Unsendable)
}

/// The answer, unless who should give it does not say either that it lives: a daemon that is stopped or hangs.
async fn unless_silent<T>(
    answer: impl Future<Output = Result<T, Error>>,
    every: Duration,
    lives: impl AsyncFn() -> bool,
) -> Result<T, Error> {
    let silence = async {
        loop {
            tokio::time::sleep(every).await;
            if !lives().await {
                return;
            }
        }
    };
    tokio::select! {
        answer = answer => answer,
        () = silence => Err(Error::Silent),
    }
}

async fn within<T>(seconds: u64, exchange: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::time::timeout(Duration::from_secs(seconds), exchange).await.unwrap_or(Err(Error::TimedOut { seconds }))
}

async fn refuse_errors(response: Response<Incoming>) -> Result<Response<Incoming>, Error> {
    let status = response.status();
    if status.is_client_error() || status.is_server_error() {
        let bytes = read_body(response).await?;
        return Err(refusal(status, &bytes));
    }
    Ok(response)
}

/// A proxy or an older daemon may answer with plain text; it is shown, not parsed.
fn refusal(status: StatusCode, bytes: &[u8]) -> Error {
    Error::Refused(serde_json::from_slice(bytes).unwrap_or_else(|_| {
        let kind = match status.as_u16() {
            401 => ErrorKind::Unauthenticated,
            403 => ErrorKind::Forbidden,
            404 => ErrorKind::NotFound,
            429 => ErrorKind::TooMany,
            400..500 => ErrorKind::BadRequest,
            503 => ErrorKind::Unavailable,
            _ => ErrorKind::Internal,
        };
        let text: String = String::from_utf8_lossy(bytes).chars().take(200).collect();
        let body = ErrorBody::new(kind, format!("the daemon answered {status}"));
        if text.trim().is_empty() { body } else { body.because(text.trim()) }
    }))
}

async fn read_body(response: Response<Incoming>) -> Result<Bytes, Error> {
    match Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(cause) if cause.is::<LengthLimitError>() => Err(Error::TooLong { limit_bytes: ANSWER_BYTES_MAX }),
        Err(cause) => Err(Error::Broken(cause)),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const EVERY: Duration = Duration::from_millis(1);

    fn outcome<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
    }

    #[test]
    fn daemon_that_hangs_is_given_up_long_before_what_it_was_asked_for_would_be() {
        let asked = Cell::new(0);
        let hangs = || async {
            asked.set(asked.get() + 1);
            asked.get() < 3
        };
        let answer = std::future::pending::<Result<(), Error>>();
        assert!(matches!(outcome(unless_silent(answer, EVERY, hangs)), Err(Error::Silent)));
        assert_eq!(asked.get(), 3);
    }

    #[test]
    fn answer_that_takes_long_is_waited_for_as_long_as_the_daemon_lives() {
        let looked = Cell::new(0);
        let lives = || async {
            looked.set(looked.get() + 1);
            true
        };
        let answer = async {
            while looked.get() < 5 {
                tokio::task::yield_now().await;
            }
            Ok(7)
        };
        assert!(matches!(outcome(unless_silent(answer, EVERY, lives)), Ok(7)));
    }
}
