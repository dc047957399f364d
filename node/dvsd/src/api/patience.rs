//! The connection of a program of a container, whose answers are read or given up.
//!
//! What is answered lies in this daemon's memory until it is read. So a connection ends when nothing of an answer can
//! be written for [`WRITE_LIMIT`]. This does not hold for an answer that goes on (events, `logs --follow`): people may
//! look at it for as long as they like, and little of it lies here. Nor does it hold for a stream:
//! [`Patient::into_inner`] takes the socket out when a request has become one (`stream.rs`).
//!
//! Answers that may be large are handed on in [`Portions`], so that whoever counts them counts them until they are
//! nearly read.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// For the first byte that can be written again.
const WRITE_LIMIT: Duration = Duration::from_secs(30);
/// Of an answer that is counted: less than the buffer of a connection.
const PORTION_BYTES: usize = 32 << 10;

/// Set while the answer on a connection is one that goes on.
pub type GoesOn = Arc<AtomicBool>;

pub struct Patient<S> {
    stream: S,
    goes_on: GoesOn,
    limit: Duration,
    /// Since a write had to wait.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub fn new(stream: S, goes_on: GoesOn) -> Patient<S> {
        Patient { stream, goes_on, limit: WRITE_LIMIT, stalled: None }
    }

    /// Without a limit from now on.
    pub fn into_inner(self) -> S {
        self.stream
    }

    fn judge<T>(&mut self, task: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() || self.goes_on.load(Ordering::Relaxed) {
            self.stalled = None;
            return written;
        }
        let limit = self.limit;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(stalled.as_mut().poll(task));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the answer is not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, task: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(task, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(task, bytes);
        self.judge(task, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(task, parts);
        self.judge(task, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(task);
        self.judge(task, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(task)
    }
}

/// An answer in pieces, of which the connection takes the next one when it has room. `held` is dropped with it.
pub struct Portions<T> {
    body: Body,
    rest: Bytes,
    _held: T,
}

impl<T> Portions<T> {
    pub fn new(body: Body, held: T) -> Portions<T> {
        Portions { body, rest: Bytes::new(), _held: held }
    }
}

impl<T: Unpin> hyper::body::Body for Portions<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(task)).map(|next| next.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.rest = data,
                // Trailers.
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let portion = self.rest.len().min(PORTION_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(portion)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (of_body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(of_body.lower().saturating_add(rest));
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use hyper::body::Body as _;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const SOON: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn answer_that_nobody_reads_ends_and_one_that_goes_on_does_not() {
        let (ours, mut theirs) = tokio::io::duplex(8);
        let goes_on = GoesOn::default();
        let mut patient = Patient { limit: SOON, ..Patient::new(ours, Arc::clone(&goes_on)) };
        goes_on.store(true, Ordering::Relaxed);
        assert!(tokio::time::timeout(SOON * 5, patient.write_all(&[0; 16])).await.is_err());
        goes_on.store(false, Ordering::Relaxed);
        assert_eq!(patient.write_all(&[0; 16]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        // Whoever reads on is told on.
        theirs.read_exact(&mut [0; 8]).await.unwrap();
        patient.write_all(&[0; 8]).await.unwrap();
        assert!(patient.stalled.is_none());
    }

    #[tokio::test]
    async fn large_answer_is_counted_until_its_last_portion_is_taken() {
        let held = Arc::new(());
        let mut body = Portions::new(Body::from(vec![7; PORTION_BYTES + 1]), Arc::clone(&held));
        assert_eq!(body.size_hint().exact(), Some(PORTION_BYTES as u64 + 1));
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!((first.len(), body.size_hint().exact(), body.is_end_stream()), (PORTION_BYTES, Some(1), false));
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), 1);
        assert!(body.frame().await.is_none());
        assert_eq!(Arc::strong_count(&held), 2);
        drop(body);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
