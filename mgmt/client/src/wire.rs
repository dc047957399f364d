//! What a conversation with a daemon goes over.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

pub enum Wire {
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, task: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Unix(socket) => Pin::new(socket).poll_read(task, buffer),
            Wire::Tls(socket) => Pin::new(socket).poll_read(task, buffer),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Wire::Unix(socket) => Pin::new(socket).poll_write(task, bytes),
            Wire::Tls(socket) => Pin::new(socket).poll_write(task, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Unix(socket) => Pin::new(socket).poll_flush(task),
            Wire::Tls(socket) => Pin::new(socket).poll_flush(task),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Unix(socket) => Pin::new(socket).poll_shutdown(task),
            Wire::Tls(socket) => Pin::new(socket).poll_shutdown(task),
        }
    }
}
