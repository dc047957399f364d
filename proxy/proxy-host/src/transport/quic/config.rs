//! Settings of the protocol: TLS 1.3 with the cluster's certificates at both ends, one stream, nothing that links do
//! not use.

use std::sync::Arc;

use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    ClientConfig, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, RandomConnectionIdGenerator, ServerConfig,
    TransportConfig, VarInt,
};

use super::limits;
use crate::ProxyError;
use crate::secure::Credentials;

/// What both ends say they speak (ALPN), so that no other use of QUIC takes us for its own.
const PROTOCOL: &[u8] = b"dvs-link";
/// Every connection begins with AES-128 (RFC 9001 section 5.2).
const CIPHER: ProxyError = ProxyError::Quic("TLS has no AES-128");

pub(super) struct Configs {
    pub(super) endpoint: Arc<EndpointConfig>,
    pub(super) client: ClientConfig,
    pub(super) server: Arc<ServerConfig>,
}

/// `port`: where the proxy listens, which its successor does too and no proxy beside it.
pub(super) fn configs(credentials: &Credentials, port: u16) -> Result<Configs, ProxyError> {
    let transport = Arc::new(transport());

    let mut tls = rustls::ClientConfig::clone(&credentials.client);
    tls.alpn_protocols = vec![PROTOCOL.to_vec()];
    let mut client = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).map_err(|_| CIPHER)?));
    client.transport_config(Arc::clone(&transport));

    let mut tls = rustls::ServerConfig::clone(&credentials.server);
    tls.alpn_protocols = vec![PROTOCOL.to_vec()];
    let crypto = Arc::new(QuicServerConfig::try_from(tls).map_err(|_| CIPHER)?);
    let mut server = ServerConfig::with_crypto(crypto);
    server.transport_config(transport);
    server.migration(false);
    server.max_incoming(limits::BACKLOG_MAX);

    // A successor with the same key can tell peers that the connections of its predecessor are gone (RFC 9000 section
    // 10.3). That asks for numbers of connections which do not depend on the process.
    let secret = credentials.secret(&format!("QUIC stateless reset of port {port}"));
    let reset = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret);
    let mut endpoint = EndpointConfig::new(Arc::new(reset));
    endpoint.cid_generator(|| Box::new(RandomConnectionIdGenerator::default()));
    endpoint
        .max_udp_payload_size(limits::DATAGRAM_BYTES_MAX)
        .map_err(|_| ProxyError::Quic("the longest datagram cannot be"))?;
    Ok(Configs { endpoint: Arc::new(endpoint), client, server: Arc::new(server) })
}

fn transport() -> TransportConfig {
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(limits::DATAGRAM_BYTES_MAX);
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .stream_receive_window(VarInt::from_u32(limits::WINDOW_BYTES))
        .receive_window(VarInt::from_u32(limits::WINDOW_BYTES))
        .send_window(limits::WINDOW_BYTES.into())
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(limits::FAILED_AFTER_MS))))
        .initial_rtt(limits::ROUND_TRIP_FIRST)
        .mtu_discovery_config(Some(discovery));
    transport
}
