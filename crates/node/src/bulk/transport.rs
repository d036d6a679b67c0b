//! QUIC's configuration for bulk.

use std::sync::Arc;
use std::time::Duration;

use quinn::{AckFrequencyConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};

use super::cubic::PermittedCubicConfig;
use crate::quic::Credentials;
use crate::Error;

pub(super) const PROTOCOL: &[u8] = b"coorp-bulk/1";
/// A peer that is silent for this long is gone.
const IDLE_MS: u32 = 3_000;
/// The assumed round trip before one is measured: a few times what a busy WiFi takes. A handshake over a path that is
/// down is repeated after three round trips, then after twice as long and so on.
const ROUND_TRIP_FIRST: Duration = Duration::from_millis(50);
/// The interval at which the receiver sends keep-alives: a sender without a permit may not.
const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// The acknowledgement delay of a datagram that nothing follows.
const ACKNOWLEDGE_WITHIN: Duration = Duration::from_millis(2);
/// An acknowledgement is a frame on the air, against the stream. If the gate does not need them, the receiver is asked
/// for one after the policy's number of datagrams, or this long after the first.
const ACKNOWLEDGE_THIN_WITHIN: Duration = Duration::from_millis(8);
/// The number of bytes that a receiver buffers ahead of its disk, and a sender keeps ready.
const WINDOW_BYTES: u32 = 8 << 20;

/// Returns the receiving configuration: accepts members of the team.
pub(crate) fn server(credentials: &Credentials) -> Result<quinn::ServerConfig, Error> {
    let mut config = credentials.server(PROTOCOL)?;
    let mut transport = transport();
    // A sender sends one message at a time.
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .keep_alive_interval(Some(KEEP_ALIVE));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// Returns the sending configuration of one connection: datagrams of these lengths, as its turns and permits allow.
/// They are acknowledged after `every` of them; `None`: as soon as possible.
pub(super) fn sender(
    lengths: MtuDiscoveryConfig,
    permitted: PermittedCubicConfig,
    every: Option<u32>,
) -> Arc<TransportConfig> {
    let mut transport = transport();
    let mut acknowledgements = AckFrequencyConfig::default();
    if let Some(every) = every {
        acknowledgements
            .ack_eliciting_threshold(VarInt::from_u32(every.saturating_sub(1)))
            .max_ack_delay(Some(ACKNOWLEDGE_THIN_WITHIN));
    } else {
        // An acknowledgement that the receiver delays looks to the gate like a datagram that has not left.
        acknowledgements.max_ack_delay(Some(ACKNOWLEDGE_WITHIN));
    }
    transport.ack_frequency_config(Some(acknowledgements));
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .mtu_discovery_config(Some(lengths))
        .congestion_controller_factory(Arc::new(permitted));
    Arc::new(transport)
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

/// Makes a connection check whether it may send.
pub(crate) fn wake(connection: &quinn::Connection) {
    connection.set_send_window(u64::from(WINDOW_BYTES));
}
