//! Decides when QUIC makes packets of bulk: never without a permit and a turn, but for one a second.
//!
//! While stream data waits for the congestion window, quinn sends nothing else, not even acknowledgements. The other end
//! would take a sender that waits long for its permit for dead.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use coorp_core::robot::Input;
use coorp_core::RobotId;
use quinn::congestion::{Controller, ControllerFactory, Cubic, CubicConfig};

use super::socket::{GatedSocket, ALIVE_EVERY};
use super::turns::Turn;
use crate::shared_robot::SharedRobot;

/// CUBIC, except that next to nothing is sent without a permit and a turn, and that the gate learns of acknowledgements.
///
/// QUIC queries it several times per packet, so it reads the permit without locking the socket.
struct PermittedCubic {
    inner: Box<dyn Controller>,
    socket: Weak<GatedSocket>,
    permitted: Arc<AtomicBool>,
    robot: Arc<SharedRobot>,
    /// The receiver, and the path to it.
    to: RobotId,
    path: usize,
    turn: Arc<Turn>,
    /// The time at which the robot was last told that something is sent.
    told_at: Option<Instant>,
    /// Whether the other end has acknowledged something.
    heard: bool,
    /// When something was last sent.
    sent_at: coorp_core::Instant,
    mtu: u16,
}

/// Makes [`PermittedCubic`]s of one connection.
pub(super) struct PermittedCubicConfig {
    pub socket: Weak<GatedSocket>,
    pub robot: Arc<SharedRobot>,
    /// The receiver, and the path to it.
    pub to: RobotId,
    pub path: usize,
    pub turn: Arc<Turn>,
    pub coordinated: bool,
}

/// A connection's first flight before the first acknowledgement, if bulk is coordinated: few others send, and the gate
/// bounds what is below it.
const FIRST_WINDOW_BYTES: u64 = 256 << 10;
/// Minimum time between two reports to the robot that something is sent.
const TELL_SENT_EVERY: Duration = Duration::from_millis(3);

impl ControllerFactory for PermittedCubicConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        // A socket that no longer exists permits nothing.
        let permitted = self.socket.upgrade().map(|socket| socket.permitted());
        let mut cubic = CubicConfig::default();
        if self.coordinated {
            cubic.initial_window(FIRST_WINDOW_BYTES);
        }
        Box::new(PermittedCubic {
            inner: Box::new(Cubic::new(Arc::new(cubic), now, current_mtu)),
            socket: self.socket.clone(),
            permitted: permitted.unwrap_or_default(),
            robot: self.robot.clone(),
            to: self.to,
            path: self.path,
            turn: self.turn.clone(),
            told_at: None,
            heard: false,
            sent_at: self.robot.now(),
            mtu: current_mtu,
        })
    }
}

impl PermittedCubic {
    /// Reports that this many bytes have left the network; acknowledgements come with the shortest round trip.
    fn acknowledged(&self, bytes: u64, round_trip: Option<Duration>) {
        if let Some(socket) = self.socket.upgrade() {
            socket.on_acknowledged(bytes, round_trip);
        }
    }
}

impl Controller for PermittedCubic {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        if self
            .told_at
            .is_none_or(|at| now.saturating_duration_since(at) >= TELL_SENT_EVERY)
        {
            self.told_at = Some(now);
            let (to, path) = (self.to, self.path);
            self.robot
                .tell(|robot, now| robot.handle(Input::BulkSent { to, path }, now));
        }
        self.sent_at = self.robot.now();
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, limited: bool, rtt: &quinn_proto::RttEstimator) {
        self.acknowledged(bytes, Some(rtt.min()));
        self.inner.on_ack(now, sent, bytes, limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        // Not already in `on_ack`: QUIC also calls that for a Retry, after which the handshake begins again.
        self.heard = true;
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost_bytes: u64) {
        self.acknowledged(lost_bytes, None);
        self.inner.on_congestion_event(now, sent, persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu;
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        // Without any packet from the other end there is no connection yet, and nothing to wake when a permit arrives.
        if !self.heard || self.permitted.load(Ordering::Acquire) && self.turn.has() {
            self.inner.window()
        } else if self.robot.now().since(self.sent_at) >= ALIVE_EVERY {
            // One packet fits into it, and no second one.
            2 * u64::from(self.mtu) - 1
        } else {
            // No packet fits into it. Not 0, which quinn's pacing takes for a mistake if a permit is lost meanwhile.
            1
        }
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(PermittedCubic {
            inner: self.inner.clone_box(),
            socket: self.socket.clone(),
            permitted: self.permitted.clone(),
            robot: self.robot.clone(),
            to: self.to,
            path: self.path,
            turn: self.turn.clone(),
            told_at: self.told_at,
            heard: self.heard,
            sent_at: self.sent_at,
            mtu: self.mtu,
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use coorp_core::policy::Policy;
    use quinn::MtuDiscoveryConfig;
    use quinn_proto::{DatagramEvent, Endpoint, EndpointConfig};

    use super::super::transport::{sender, PROTOCOL};
    use super::*;
    use crate::ground::{Ground, Linux};
    use crate::keys::SERVER_NAME;
    use crate::quic::Credentials;

    /// Returns the configuration of a connection with neither permit nor turn.
    fn unpermitted() -> PermittedCubicConfig {
        let text = "[[robot]]\nname = \"base\"\nleader = true\n[[robot]]\nname = \"one\"\n";
        let team = coorp_team::parse(text, "t.toml", std::path::Path::new("")).unwrap();
        let config = team.robot_config(&Policy::named("coorp").unwrap(), RobotId(1), 1);
        let ground: Arc<dyn Ground> = Arc::new(Linux);
        PermittedCubicConfig {
            socket: Weak::new(),
            robot: SharedRobot::start(&ground, &team, config).unwrap(),
            to: RobotId(0),
            path: 0,
            turn: Arc::new(Turn::new(false)),
            coordinated: true,
        }
    }

    #[test]
    fn nothing_is_sent_without_a_permit_once_the_other_end_has_acknowledged() {
        let (now, config) = (Instant::now(), Arc::new(unpermitted()));
        let mut cubic = config.build(now, 1_200);
        assert!(cubic.window() > 1);
        cubic.on_end_acks(now, 0, false, Some(0));
        assert_eq!(cubic.window(), 1);
    }

    #[test]
    fn one_packet_a_second_goes_without_a_permit() {
        let (now, config) = (Instant::now(), Arc::new(unpermitted()));
        let mut cubic = config
            .build(now, 1_200)
            .into_any()
            .downcast::<PermittedCubic>()
            .unwrap();
        cubic.on_end_acks(now, 0, false, Some(0));
        cubic.sent_at = cubic.robot.now() - ALIVE_EVERY;
        assert_eq!(cubic.window(), 2_399);
        cubic.on_sent(now, 1_200, 1);
        assert_eq!(cubic.window(), 1);
    }

    #[test]
    fn a_handshake_goes_on_after_a_retry() {
        let endpoint = |server| Endpoint::new(Arc::new(EndpointConfig::default()), server, false, None);
        let server = Credentials::of_anybody("base").unwrap().server(PROTOCOL).unwrap();
        let (mut server, mut client) = (endpoint(Some(Arc::new(server))), endpoint(None));
        let mut config = Credentials::of_anybody("one").unwrap().client(PROTOCOL).unwrap();
        config.transport_config(sender(MtuDiscoveryConfig::default(), unpermitted(), None));
        let (base, one) = (([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into());
        let (now, mut sent, mut answer) = (Instant::now(), Vec::new(), Vec::new());
        let (_, mut connection) = client.connect(now, config, base, SERVER_NAME).unwrap();
        let size = connection.poll_transmit(now, 1, &mut sent).unwrap().size;
        let arrived = server.handle(now, one, None, None, BytesMut::from(&sent[..size]), &mut answer);
        let Some(DatagramEvent::NewConnection(incoming)) = arrived else {
            panic!("no attempt arrived");
        };
        assert!(!incoming.remote_address_validated());
        answer.clear();
        let size = server.retry(incoming, &mut answer).unwrap().size;
        let arrived = client.handle(now, base, None, None, BytesMut::from(&answer[..size]), &mut sent);
        let Some(DatagramEvent::ConnectionEvent(_, event)) = arrived else {
            panic!("no Retry arrived");
        };
        connection.handle_event(event);
        sent.clear();
        // It is sent at once, and not only when a timer has expired.
        let size = connection.poll_transmit(now, 1, &mut sent).unwrap().size;
        let arrived = server.handle(now, one, None, None, BytesMut::from(&sent[..size]), &mut answer);
        let Some(DatagramEvent::NewConnection(incoming)) = arrived else {
            panic!("no attempt arrived");
        };
        assert!(incoming.remote_address_validated());
        server.ignore(incoming);
    }
}
