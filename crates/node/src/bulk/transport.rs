//! How QUIC carries bulk.

use std::sync::Arc;
use std::time::Duration;

use quinn::{AckFrequencyConfig, IdleTimeout, TransportConfig, VarInt};

use super::socket::PermittedCubicConfig;
use crate::quic::Credentials;
use crate::Error;

const PROTOCOL: &[u8] = b"coorp-bulk/1";
/// An end that says nothing for so long is gone.
const IDLE_MS: u32 = 3_000;
/// What a round trip is taken for before one was measured: a few of what WiFi takes when it is busy. A handshake that
/// meets a path that is cut off is repeated after three of them, then after twice as long and so on.
const ROUND_TRIP_FIRST: Duration = Duration::from_millis(50);
/// The receiver speaks up this often: a sender without a permit may not.
const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// A datagram that nothing follows is acknowledged after so long.
const ACKNOWLEDGE_WITHIN: Duration = Duration::from_millis(2);
/// What a receiver takes ahead of its disk, and a sender keeps ready.
const WINDOW_BYTES: u32 = 8 << 20;

/// How bulk is received: from whoever is of the team.
pub(crate) fn server(credentials: &Credentials) -> Result<quinn::ServerConfig, Error> {
    let mut config = credentials.server(PROTOCOL)?;
    let mut transport = transport();
    // One message at a time from one sender.
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .keep_alive_interval(Some(KEEP_ALIVE));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// How bulk is sent: as permits allow.
pub(crate) fn client(credentials: &Credentials, permitted: PermittedCubicConfig) -> Result<quinn::ClientConfig, Error> {
    let mut config = credentials.client(PROTOCOL)?;
    let mut transport = transport();
    // What the receiver keeps back looks to the gate as if it had not left.
    let mut acknowledgements = AckFrequencyConfig::default();
    acknowledgements.max_ack_delay(Some(ACKNOWLEDGE_WITHIN));
    transport.ack_frequency_config(Some(acknowledgements));
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .congestion_controller_factory(Arc::new(permitted));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

fn transport() -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_MS))))
        .initial_rtt(ROUND_TRIP_FIRST)
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(WINDOW_BYTES))
        .receive_window(VarInt::from_u32(WINDOW_BYTES))
        .send_window(u64::from(WINDOW_BYTES))
        .datagram_receive_buffer_size(None);
    transport
}

/// Lets a connection look whether it may send.
pub(crate) fn wake(connection: &quinn::Connection) {
    connection.set_send_window(u64::from(WINDOW_BYTES));
}
