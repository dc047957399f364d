//! gRPC by tonic: one unary method with 64 bytes each way, over a Unix socket, or over TCP between nodes.
//!
//! What `tonic-build` would write from the interface is written by hand, so that nothing but Rust is needed to build
//! it. A process keeps to one thread, which has the lower latency of tokio's two runtimes; many callers share one
//! connection, as tonic's documentation recommends.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tonic::body::Body;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream::wrappers::UnixListenerStream;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{NamedService, UnaryService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::{Caller, Crowd, FRAME_BYTES, STOP, Site, frame, number_of};
use crate::Outcome;
use crate::role::{Latencies, new_latencies};

const METHOD: &str = "/bench.Echo/Echo";

#[derive(Clone, PartialEq, prost::Message)]
struct Payload {
    #[prost(bytes = "vec", tag = "1")]
    bytes: Vec<u8>,
}

impl Payload {
    fn of(number: u64) -> Payload {
        Payload { bytes: frame(number).to_vec() }
    }

    fn number(&self) -> u64 {
        let mut frame = [0; FRAME_BYTES];
        let bytes = self.bytes.len().min(FRAME_BYTES);
        frame[..bytes].copy_from_slice(&self.bytes[..bytes]);
        number_of(&frame)
    }
}

/// The service; tells when it answered the last call.
#[derive(Clone)]
struct Echo {
    stopped: Arc<Notify>,
}

impl NamedService for Echo {
    const NAME: &'static str = "bench.Echo";
}

impl UnaryService<Payload> for Echo {
    type Response = Payload;
    type Future = std::future::Ready<Result<Response<Payload>, Status>>;

    fn call(&mut self, request: Request<Payload>) -> Self::Future {
        let payload = request.into_inner();
        if payload.number() == STOP {
            self.stopped.notify_one();
        }
        std::future::ready(Ok(Response::new(payload)))
    }
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = self.clone();
        Box::pin(async move {
            let codec = ProstCodec::<Payload, Payload>::default();
            Ok(tonic::server::Grpc::new(codec).unary(method, request).await)
        })
    }
}

fn runtime() -> Outcome<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

pub fn serve(site: &Site, ready: impl FnOnce(&str) -> Outcome<()>) -> Outcome<()> {
    runtime()?.block_on(async {
        let stopped = Arc::new(Notify::new());
        let server = Server::builder().add_service(Echo { stopped: stopped.clone() });
        let is_over = async move { stopped.notified().await };
        match site.host {
            None => {
                let path = site.own_path("grpc");
                let listener = UnixListener::bind(&path)?;
                ready(&format!("unix://{}", path.display()))?;
                server.serve_with_incoming_shutdown(UnixListenerStream::new(listener), is_over).await?;
            }
            Some(host) => {
                let listener = TcpListener::bind(SocketAddr::new(host, 0)).await?;
                ready(&format!("http://{}", listener.local_addr()?))?;
                let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
                server.serve_with_incoming_shutdown(incoming, is_over).await?;
            }
        }
        Ok(())
    })
}

/// A caller, or many of them: they share the connection.
pub struct Callers {
    grpc: tonic::client::Grpc<Channel>,
    clients: u32,
    runtime: Runtime,
}

pub fn connect(address: &str, clients: u32) -> Outcome<Callers> {
    let runtime = runtime()?;
    let channel = runtime.block_on(Endpoint::from_shared(address.to_owned())?.connect())?;
    Ok(Callers { grpc: tonic::client::Grpc::new(channel), clients, runtime })
}

async fn call(grpc: &mut tonic::client::Grpc<Channel>, number: u64) -> Outcome<u64> {
    grpc.ready().await?;
    let codec = ProstCodec::<Payload, Payload>::default();
    let answer = grpc.unary(Request::new(Payload::of(number)), PathAndQuery::from_static(METHOD), codec).await?;
    Ok(answer.into_inner().number())
}

impl Caller for Callers {
    fn call(&mut self, number: u64) -> Outcome<u64> {
        self.runtime.block_on(call(&mut self.grpc, number))
    }
}

impl Crowd for Callers {
    fn all_call(&mut self, for_how_long: Duration) -> Outcome<Latencies> {
        let limit = Instant::now() + for_how_long;
        let tasks = Vec::from_iter((0..self.clients).map(|_| self.runtime.spawn(call_until(self.grpc.clone(), limit))));
        let mut all = new_latencies()?;
        for task in tasks {
            all.add(self.runtime.block_on(task)??)?;
        }
        Ok(all)
    }

    fn stop(&mut self) -> Outcome<()> {
        Caller::call(self, STOP).map(drop)
    }
}

async fn call_until(mut grpc: tonic::client::Grpc<Channel>, limit: Instant) -> Outcome<Latencies> {
    let mut latencies = new_latencies()?;
    let mut last = Instant::now();
    for number in 0.. {
        if call(&mut grpc, number).await? != number {
            return Err("an answer of another call".into());
        }
        let now = Instant::now();
        latencies.saturating_record(now.duration_since(last).as_nanos().max(1) as u64);
        if now >= limit {
            break;
        }
        last = now;
    }
    Ok(latencies)
}
