//! A copy of what the engine holds, for who keeps it elsewhere.

use std::convert::Infallible;
use std::io::{self, BufWriter, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use hyper::body::{Bytes, Frame};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::failure::{Failure, failure};
use super::{Api, blocking};
use crate::recovery::{self, DumpError};

/// Of one piece of the answer.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces that wait for a slow reader.
const PIECES_MAX: usize = 4;

pub async fn take(State(api): State<Arc<Api>>) -> Result<Response, Failure> {
    let dump = blocking(move || {
        let context = &api.context;
        let by = format!("dvs {}, node {}", env!("CARGO_PKG_VERSION"), context.config.node);
        recovery::take(&*context.engine, by).map_err(|error| match error {
            DumpError::Engine(error) => error.into(),
            error => failure(mgmt_api::ErrorKind::Internal, error.to_string(), "the daemon's log"),
        })
    })
    .await?;
    let (pieces, received) = channel(PIECES_MAX);
    tokio::task::spawn_blocking(move || {
        let mut out = BufWriter::with_capacity(PIECE_BYTES, Pieces(pieces));
        // Who does not get the last line knows that it is not all.
        if let Err(error) = dump.write(&mut out).and_then(|()| Ok(out.flush()?)) {
            tracing::debug!(%error, "a backup was not read to its end");
        }
    });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::new(Copy(received))).into_response())
}

struct Pieces(Sender<Bytes>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        self.0.blocking_send(Bytes::copy_from_slice(bytes)).map_err(|_| gone())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Copy(Receiver<Bytes>);

impl hyper::body::Body for Copy {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
