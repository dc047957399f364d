//! Answers that go on.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Bytes;
use hyper::body::Frame;
use tokio::sync::mpsc;

/// Goes on as long as somebody listens.
pub struct Following(pub mpsc::Receiver<Bytes>);

impl hyper::body::Body for Following {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(task).map(|next| next.map(|line| Ok(Frame::data(line))))
    }
}
