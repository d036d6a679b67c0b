//! QUIC's configuration for control.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::{Controller, ControllerFactory};
use quinn::{AckFrequencyConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};

pub(crate) const PROTOCOL: &[u8] = b"coorp-control/1";
/// The shortest interval at which the end that opened a link keeps it alive.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// A robot has a link to every other one. On teams of more than ten, this much for each robot, so that keeping links
/// alive takes each robot about ten frames a second at most, and the team's share of the air grows with its size only,
/// not with the square.
const KEEP_ALIVE_PER_ROBOT: Duration = Duration::from_millis(100);
/// A peer that is silent for this many intervals is gone.
const SILENT_INTERVALS: u32 = 3;
/// The assumed first round trip: a lost first datagram of a handshake is sent again after three of these.
const ROUND_TRIP_FIRST: Duration = Duration::from_millis(50);
/// The number of large messages received at once over a link. [`RECEIVE_BYTES`] bounds their memory. Whenever an eighth
/// has arrived, a separate frame allows more.
const STREAMS_MAX: u32 = 64;
/// An acknowledgement is a frame on the air that control may have to wait for. So the receiver is asked for one after
/// this many datagrams, or this long after the first. If control goes both ways at least 30 times a second, the
/// acknowledgement rides on the traffic going back. A missing datagram between others is reported at once. quinn
/// requests no longer delay than the round trip, or 25 ms if that is shorter.
const ACKNOWLEDGE_EVERY: u32 = 64;
const ACKNOWLEDGE_WITHIN: Duration = Duration::from_millis(50);
/// The maximum number of bytes in flight on one link.
const WINDOW_BYTES: u64 = 1 << 20;
const RECEIVE_BYTES: u32 = 32 << 20;
/// The size of the queues of datagrams to send and to receive; older ones make room.
const DATAGRAMS_BYTES: usize = 256 << 10;

/// Returns the interval at which links are kept alive in a team of this many robots.
pub(crate) fn keep_alive(robots: usize) -> Duration {
    let robots = u32::try_from(robots).unwrap_or(u32::MAX);
    KEEP_ALIVE.max(KEEP_ALIVE_PER_ROBOT.saturating_mul(robots))
}

/// Returns the configuration of a link, for the end that `opens` it or the other one, kept alive at this interval, with
/// datagrams of these lengths.
pub(crate) fn transport(opens: bool, keep_alive: Duration, lengths: MtuDiscoveryConfig) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    let silent = IdleTimeout::try_from(keep_alive.saturating_mul(SILENT_INTERVALS)).unwrap_or(VarInt::MAX.into());
    transport
        .max_idle_timeout(Some(silent))
        .keep_alive_interval(opens.then_some(keep_alive))
        .initial_rtt(ROUND_TRIP_FIRST)
        // Coordination's stream is opened by the end that opened the link.
        .max_concurrent_bidi_streams(VarInt::from_u32(u32::from(!opens)))
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

/// Congestion control with a constant window.
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

#[cfg(test)]
mod tests {
    use super::{keep_alive, KEEP_ALIVE};

    /// What a robot sends to keep its links alive does not grow with the team.
    #[test]
    fn keeping_links_alive_takes_each_robot_ten_frames_a_second_at_most() {
        for robots in 2..=1_000 {
            let links = f64::from(robots - 1);
            assert!(
                links / keep_alive(robots as usize).as_secs_f64() <= 10.0,
                "{robots} robots"
            );
        }
        assert_eq!(keep_alive(10), KEEP_ALIVE);
        assert_eq!(keep_alive(50), 5 * KEEP_ALIVE);
    }
}
