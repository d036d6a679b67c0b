//! How QUIC carries control.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::{Controller, ControllerFactory};
use quinn::{AckFrequencyConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};

pub(super) const PROTOCOL: &[u8] = b"coorp-control/1";
/// An end that says nothing for so long is gone.
const IDLE_MS: u32 = 3_000;
/// Whoever opened a link keeps it.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Before the first round trip is known: a lost first datagram of a handshake is sent again after three of these.
const ROUND_TRIP_FIRST: Duration = Duration::from_millis(50);
/// Large messages that are taken at once over a link. [`RECEIVE_BYTES`] bounds what they have in memory; more of them are
/// allowed, in a frame of its own, whenever an eighth has come.
const STREAMS_MAX: u32 = 64;
/// An acknowledgement is a frame on the air that control may have to wait for. So the receiver is asked for one after so
/// many datagrams, or so long after the first: where control goes both ways 30 times a second or more often, it rides on
/// what goes back anyway. A datagram that is missing between others is told of at once. quinn asks for
/// no more than the round trip, or 25 ms where that is shorter.
const ACKNOWLEDGE_EVERY: u32 = 64;
const ACKNOWLEDGE_WITHIN: Duration = Duration::from_millis(50);
/// What is under way on one link at most.
const WINDOW_BYTES: u64 = 1 << 20;
const RECEIVE_BYTES: u32 = 32 << 20;
/// Datagrams that wait to be sent, and to be taken; older ones make room.
const DATAGRAMS_BYTES: usize = 256 << 10;

/// How a link is set up by who `opens` it or by the other one, with datagrams of these lengths.
pub(super) fn transport(opens: bool, lengths: MtuDiscoveryConfig) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_MS))))
        .keep_alive_interval(opens.then_some(KEEP_ALIVE))
        .initial_rtt(ROUND_TRIP_FIRST)
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(STREAMS_MAX))
        .stream_receive_window(VarInt::from_u32(RECEIVE_BYTES))
        .receive_window(VarInt::from_u32(RECEIVE_BYTES))
        .send_window(u64::from(RECEIVE_BYTES))
        .datagram_receive_buffer_size(Some(DATAGRAMS_BYTES))
        .datagram_send_buffer_size(DATAGRAMS_BYTES)
        .mtu_discovery_config(Some(lengths))
        .congestion_controller_factory(Arc::new(SteadyConfig));
    let mut acknowledgements = AckFrequencyConfig::default();
    acknowledgements
        .ack_eliciting_threshold(VarInt::from_u32(ACKNOWLEDGE_EVERY))
        .max_ack_delay(Some(ACKNOWLEDGE_WITHIN));
    transport.ack_frequency_config(Some(acknowledgements));
    Arc::new(transport)
}

/// Always the same window.
#[derive(Clone, Debug)]
struct Steady;

struct SteadyConfig;

impl ControllerFactory for SteadyConfig {
    fn build(self: Arc<Self>, _: Instant, _: u16) -> Box<dyn Controller> {
        Box::new(Steady)
    }
}

impl Controller for Steady {
    fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: u64) {}

    fn on_mtu_update(&mut self, _: u16) {}

    fn window(&self) -> u64 {
        WINDOW_BYTES
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Steady)
    }

    fn initial_window(&self) -> u64 {
        WINDOW_BYTES
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
