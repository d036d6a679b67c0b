//! One emulated channel: carries frames of real stacks through the model of the air, without its own clock.
//!
//! The caller passes in each frame with its arrival time, and the time up to which to advance. The channel passes each
//! delivered frame to its [`Outlet`] with the modelled instant. The pump drives it by the wall clock, the tests by
//! virtual time.
//!
//! The air relays frames between stations through the access point. A frame to all goes from its sender to the access
//! point like any other. The access point sends it to everybody at once, at the basic rate, unacknowledged and in
//! AC_BE; without an access point the sender does that itself. Left out: association, encryption, and power save (so
//! nothing waits for a DTIM beacon).

use coorp_air::{AccessCategory, Air, Host, Load, MacCounters, Packet, StationId};
use coorp_core::{Duration, FlowId, Instant};
use coorp_scene::station;
use coorp_team::Team;
use serde::Serialize;

use crate::frame::{self, Destination, FRAME_BYTES_MAX, HEADER_BYTES};
use crate::timing::{Delays, Timing};

/// Number of a card's flow queues, as in mac80211; shared by all destinations.
const FLOWS: u32 = coorp_air::fq_codel::MAX_FLOWS as u32;
/// One byte more than the largest frame, to detect oversized ones.
const BUFFER_BYTES: usize = FRAME_BYTES_MAX + 1;

/// Marks the tag of a packet whose frame is group-addressed; the rest of the tag is the frame's slot. The tag has the
/// mark because the access point may finish with a frame, and free its slot, before the original sender's card does.
const TO_ALL: u64 = 1 << 32;

/// Receives delivered frames.
pub trait Outlet {
    /// Delivers `frame` to the stack of `to`, at the modelled instant `at`.
    fn deliver(&mut self, to: StationId, frame: &[u8], at: Instant);

    /// Reports that the driver of `from` has freed a frame to another station, as its card's profile says, or that its
    /// queue has dropped the frame.
    fn freed(&mut self, from: StationId, frame: &[u8]);
}

/// Figures of frames by access category: counts, if not said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct ByCategory<T = u64> {
    pub voice: T,
    pub video: T,
    pub best_effort: T,
    pub background: T,
}

impl<T: Copy> ByCategory<T> {
    /// Returns the figures with the categories' names, the most urgent first.
    pub(crate) fn named(&self) -> [(&'static str, T); 4] {
        [
            ("AC_VO", self.voice),
            ("AC_VI", self.video),
            ("AC_BE", self.best_effort),
            ("AC_BK", self.background),
        ]
    }
}

impl<T: Copy> From<[T; 4]> for ByCategory<T> {
    fn from(all: [T; 4]) -> Self {
        let of = |category: AccessCategory| all[category.index()];
        ByCategory {
            voice: of(AccessCategory::Voice),
            video: of(AccessCategory::Video),
            best_effort: of(AccessCategory::BestEffort),
            background: of(AccessCategory::Background),
        }
    }
}

/// Counts of the frames so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Frames that programs sent.
    pub sent: u64,
    /// The sent frames that a card accepted, by the access category of their DSCP.
    pub sent_as: ByCategory,
    /// Frames that arrived; a group-addressed frame counts once per robot that it reached.
    pub delivered: u64,
    /// Frames that the host queue dropped, by CoDel or because it was full.
    pub dropped_by_queue: u64,
    /// Frames that were lost on the air, with all their retries.
    pub given_up: u64,
    /// Frames that no card would send: with an unknown destination, a foreign sender address, or too long.
    pub refused: u64,
}

/// A frame in flight.
#[derive(Debug)]
struct Stored {
    bytes: [u8; BUFFER_BYTES],
    length: usize,
    origin: StationId,
    to_all: bool,
    /// Whether one of two events has happened: the frame's delivery, or the end of its handling by the sender's card.
    half_done: bool,
}

/// Frames in flight, by the tags of their packets. At most as many as the queues hold.
#[derive(Debug, Default)]
struct Store {
    // Boxed, so that growing the list copies no frames while others wait.
    #[allow(clippy::vec_box)]
    frames: Vec<Box<Stored>>,
    free: Vec<u32>,
}

impl Store {
    fn take(&mut self, origin: StationId) -> u32 {
        let tag = self.free.pop().unwrap_or_else(|| {
            self.frames.push(Box::new(Stored {
                bytes: [0; BUFFER_BYTES],
                length: 0,
                origin,
                to_all: false,
                half_done: false,
            }));
            self.frames.len() as u32 - 1
        });
        self.frames[tag as usize].origin = origin;
        tag
    }
}

/// The cards' side of the air: maps each packet to its frame.
struct Cards<O> {
    store: Store,
    outlet: O,
    access_point: Option<StationId>,
    /// Frames to all that have reached the access point.
    relays: Vec<Packet>,
    counters: Counters,
    /// By category, how long frames took from their card's queue to their receivers.
    transit: [Delays; 4],
}

/// One channel with its cards.
pub struct Channel<O> {
    interface: usize,
    stations: u16,
    flows_each: u32,
    air: Air,
    cards: Cards<O>,
}

impl<O: Outlet> Channel<O> {
    /// Returns the channel of `interface`; wlan0 is number 0. The seed determines losses and backoffs.
    pub fn new(team: &Team, interface: usize, seed: u64, outlet: O) -> Self {
        let air = team.channels().nth(interface).unwrap_or(&team.air);
        let config = coorp_scene::config(air, team.robots.len(), Duration::MAX);
        let stations = config.stations;
        Channel {
            interface,
            stations,
            flows_each: (FLOWS / u32::from(stations.max(1))).max(1),
            air: Air::new(config, seed),
            cards: Cards {
                store: Store::default(),
                outlet,
                access_point: air.access_point.map(station),
                relays: Vec::new(),
                counters: Counters::default(),
                transit: std::array::from_fn(|_| Delays::new()),
            },
        }
    }

    /// Returns the air, for changing its links.
    pub fn air(&mut self) -> &mut Air {
        &mut self.air
    }

    /// Returns the frame counts.
    pub fn counters(&self) -> Counters {
        self.cards.counters
    }

    /// Returns how long frames took from their card's queue to their receivers, by the model.
    pub fn transit(&self) -> ByCategory<Timing> {
        self.cards.transit.each_ref().map(Delays::timing).into()
    }

    /// Returns the counters of the MAC.
    pub fn mac(&self) -> &MacCounters {
        self.air.counters()
    }

    /// Returns the receiver of delivered frames.
    pub fn outlet(&mut self) -> &mut O {
        &mut self.cards.outlet
    }

    /// Returns the time at which [`Channel::advance`] next has something to do.
    pub fn next_deadline(&self) -> Instant {
        self.air.next_deadline()
    }

    /// Processes everything up to `now`.
    pub fn advance(&mut self, now: Instant) {
        while self.air.next_deadline() <= now {
            let at = self.air.next_deadline();
            self.air.on_deadline(&mut self.cards);
            while let Some(packet) = self.cards.relays.pop() {
                self.queue(packet, at);
                self.air.kick(packet.from, at, &mut self.cards);
            }
        }
    }

    /// Takes a frame that the stack of `from` sends; `read` writes it into the given buffer. The channel must have been
    /// advanced to `now`. Returns false if `read` returns no length, because there is no frame. After one or more
    /// calls, call [`Channel::kick`].
    pub fn take(&mut self, from: StationId, now: Instant, read: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
        let tag = self.cards.store.take(from);
        let stored = &mut self.cards.store.frames[tag as usize];
        let Some(length) = read(&mut stored.bytes) else {
            self.cards.store.free.push(tag);
            return false;
        };
        stored.length = length.min(BUFFER_BYTES);
        self.cards.counters.sent += 1;
        let header = frame::read(&stored.bytes[..stored.length], self.interface, from, self.stations);
        let to = header.and_then(|header| match header.to {
            Destination::Station(to) => Some(to),
            Destination::Group => {
                let point = self.cards.access_point.filter(|point| *point != from);
                Some(point.unwrap_or(StationId::GROUP))
            }
            Destination::Nobody => None,
        });
        let (Some(header), Some(to)) = (header, to) else {
            self.cards.counters.refused += 1;
            self.cards.store.free.push(tag);
            return true;
        };
        stored.to_all = header.to == Destination::Group;
        stored.half_done = false;
        let stored_to_all = stored.to_all;
        let sent_as = &mut self.cards.counters.sent_as;
        *match header.category {
            AccessCategory::Voice => &mut sent_as.voice,
            AccessCategory::Video => &mut sent_as.video,
            AccessCategory::BestEffort => &mut sent_as.best_effort,
            AccessCategory::Background => &mut sent_as.background,
        } += 1;
        let packet = Packet {
            flow: FlowId(header.flow % self.flows_each),
            tag: u64::from(tag) | if stored_to_all { TO_ALL } else { 0 },
            bytes: (stored.length - HEADER_BYTES) as u16,
            from,
            to,
            category: if to == StationId::GROUP {
                AccessCategory::BestEffort
            } else {
                header.category
            },
            sent_at: now,
        };
        self.queue(packet, now);
        true
    }

    /// Makes the driver of `from` process the frames passed to [`Channel::take`].
    pub fn kick(&mut self, from: StationId, now: Instant) {
        self.air.kick(from, now, &mut self.cards);
    }

    /// Switches a robot off: everything queued in its card is lost.
    pub fn switch_off(&mut self, station: StationId, now: Instant) {
        self.air.purge(station, now, &mut self.cards);
    }

    fn queue(&mut self, packet: Packet, now: Instant) {
        if let Some(dropped) = self.air.queue(packet, now) {
            self.cards.dropped(packet.from, &dropped, now);
        }
    }
}

impl<O: Outlet> Cards<O> {
    fn free(&mut self, packet: &Packet) {
        self.store.free.push(packet.tag as u32);
    }

    /// Handles the first or the second end event of a delivered frame.
    fn end(&mut self, packet: &Packet) {
        let stored = &mut self.store.frames[packet.tag as u32 as usize];
        if std::mem::replace(&mut stored.half_done, true) {
            self.free(packet);
        }
    }

    fn tell_freed(&mut self, packet: &Packet) {
        if packet.tag & TO_ALL == 0 {
            let stored = &self.store.frames[packet.tag as u32 as usize];
            self.outlet.freed(packet.from, &stored.bytes[..stored.length]);
        }
    }
}

impl<O: Outlet> Host for Cards<O> {
    fn may_dequeue(&mut self, _: StationId, _: AccessCategory, _: Load, most: u16, _: Instant) -> u16 {
        most
    }

    fn enqueued(&mut self, _: StationId, _: &Packet, _: Instant) {}

    fn released(&mut self, station: StationId, packet: &Packet, _: u16, _: Instant, _: Instant) {
        if station == packet.from {
            self.tell_freed(packet);
        }
    }

    fn completed(&mut self, station: StationId, packet: &Packet, _: Instant, acknowledged: bool, _: Instant) {
        self.counters.given_up += u64::from(!acknowledged);
        if station != packet.from {
            // If the access point's frame is acknowledged, its delivery has already counted as an end.
            if !acknowledged {
                self.end(packet);
            }
            return;
        }
        if !acknowledged || packet.to == StationId::GROUP {
            self.free(packet);
        } else if packet.tag & TO_ALL == 0 {
            self.end(packet);
        }
    }

    fn delivered(&mut self, packet: &Packet, now: Instant) {
        let stored = &self.store.frames[packet.tag as u32 as usize];
        let to_all = stored.to_all;
        // A station ignores its own frame when the access point relays it.
        if !(to_all && packet.to == stored.origin) {
            self.counters.delivered += 1;
            self.transit[packet.category.index()].record(now.since(packet.sent_at));
            self.outlet.deliver(packet.to, &stored.bytes[..stored.length], now);
        }
        if !to_all {
            self.end(packet);
        } else if let Some(point) = self.access_point.filter(|point| *point != packet.from) {
            self.relays.push(Packet {
                from: point,
                to: StationId::GROUP,
                category: AccessCategory::BestEffort,
                sent_at: now,
                ..*packet
            });
        }
    }

    fn dropped(&mut self, station: StationId, packet: &Packet, _: Instant) {
        self.counters.dropped_by_queue += 1;
        if station != packet.from {
            self.end(packet);
            return;
        }
        self.tell_freed(packet);
        self.free(packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::tests::udp;
    use crate::frame::{mac, Mac};
    use coorp_core::Duration;
    use coorp_scene::Scene;
    use proptest::prelude::*;

    /// Records arrivals: receiver, last byte and instant. Also records freed frames: sender, last byte, and the number of
    /// arrivals by then.
    #[derive(Default)]
    struct Arrivals(Vec<(u16, u8, Instant)>, Vec<(u16, u8, usize)>);

    impl Outlet for Arrivals {
        fn deliver(&mut self, to: StationId, frame: &[u8], at: Instant) {
            self.0.push((to.0, *frame.last().expect("a frame"), at));
        }

        fn freed(&mut self, from: StationId, frame: &[u8]) {
            self.1.push((from.0, *frame.last().expect("a frame"), self.0.len()));
        }
    }

    fn channel(air: &str) -> Channel<Arrivals> {
        let robots = "[[robot]]\nname = \"base\"\nleader = true\n[[robot]]\nname = \"a\"\n[[robot]]\nname = \"b\"\n";
        let team = coorp_team::parse(&format!("{robots}{air}"), "t.toml", std::path::Path::new(""));
        let team = team.expect("a valid team");
        let mut channel = Channel::new(&team, 0, 1, Arrivals::default());
        let all: Vec<_> = coorp_scene::robots(&team).collect();
        let pairs: Vec<_> = all
            .iter()
            .flat_map(|one| all.iter().map(|other| (*one, *other)))
            .collect();
        Scene::new(&team, 0).set_links(&team, &pairs, Instant::ZERO, channel.air());
        channel
    }

    fn send(channel: &mut Channel<Arrivals>, from: u16, to: Mac, dscp: u8, mark: u8, now: Instant) {
        let mut bytes = udp(from, to, dscp, u16::from(dscp), 1_000);
        bytes[999] = mark;
        let taken = channel.take(StationId(from), now, |buffer| {
            buffer[..bytes.len()].copy_from_slice(&bytes);
            Some(bytes.len())
        });
        assert!(taken);
    }

    fn to(station: u16) -> Mac {
        mac(0, StationId(station))
    }

    fn everything(channel: &mut Channel<Arrivals>) -> Vec<(u16, u8)> {
        channel.advance(Instant::ZERO + Duration::from_secs(10));
        assert_eq!(channel.next_deadline(), Instant::FAR_FUTURE);
        assert_eq!(
            channel.cards.store.free.len(),
            channel.cards.store.frames.len(),
            "no frame is kept"
        );
        channel
            .cards
            .outlet
            .0
            .iter()
            .map(|(to, mark, _)| (*to, *mark))
            .collect()
    }

    #[test]
    fn control_overtakes_bulk_of_the_same_robot() {
        let mut channel = channel("[air]\nmcs = 0\n");
        for mark in 0..200 {
            send(&mut channel, 1, to(2), 0, mark, Instant::ZERO);
        }
        channel.kick(StationId(1), Instant::ZERO);
        let now = Instant::ZERO + Duration::from_millis(20);
        channel.advance(now);
        send(&mut channel, 1, to(0), 46, 255, now);
        channel.kick(StationId(1), now);
        let arrived = everything(&mut channel);
        let place = arrived.iter().position(|(to, mark)| (*to, *mark) == (0, 255));
        assert!(place.is_some_and(|place| place < 150), "{place:?} of {}", arrived.len());
        let bulk: Vec<u8> = arrived
            .iter()
            .filter(|(to, _)| *to == 2)
            .map(|(_, mark)| *mark)
            .collect();
        assert!(bulk.is_sorted() && bulk.len() > 100);
    }

    #[test]
    fn the_channel_is_in_use_while_frames_are_on_it() {
        let used = |receiver, frames| {
            let mut channel = channel("[air]\nmcs = 0\n");
            for mark in 0..frames {
                send(&mut channel, 1, to(receiver), 0, mark, Instant::ZERO);
            }
            channel.kick(StationId(1), Instant::ZERO);
            everything(&mut channel);
            let last = channel.outlet().0.last().map_or(Instant::ZERO, |arrival| arrival.2);
            (channel.mac().used(), last.since(Instant::ZERO))
        };
        assert_eq!(used(0, 0).0, Duration::ZERO);
        // Nearly all of the time: long frames, and one card's backoff between them.
        let (direct, whole) = used(0, 200);
        assert!(
            direct * 10 > whole * 9 && direct < whole + Duration::from_millis(1),
            "{direct:?} of {whole:?}"
        );
        // Each frame goes to the access point first.
        assert!(used(2, 200).0 * 10 > direct * 19);
    }

    #[test]
    fn a_frame_to_all_goes_through_the_access_point_and_not_back() {
        let mut channel = channel("");
        send(&mut channel, 1, [0xff; 6], 46, 7, Instant::ZERO);
        channel.kick(StationId(1), Instant::ZERO);
        assert_eq!(everything(&mut channel), [(0, 7), (2, 7)]);
        let (first, second) = (channel.cards.outlet.0[0].2, channel.cards.outlet.0[1].2);
        // At 6 Mbit/s a kilobyte takes more than 1.3 ms.
        assert!(second.since(first) > Duration::from_micros(1_300));
        send(
            &mut channel,
            0,
            [0xff; 6],
            0,
            8,
            Instant::ZERO + Duration::from_secs(10),
        );
        channel.kick(StationId(0), Instant::ZERO + Duration::from_secs(10));
        channel.advance(Instant::ZERO + Duration::from_secs(20));
        let arrived: Vec<(u16, u8)> = channel.outlet().0.iter().map(|(to, mark, _)| (*to, *mark)).collect();
        assert_eq!(arrived[2..], [(1, 8), (2, 8)]);
    }

    #[test]
    fn a_frame_between_two_others_goes_through_the_access_point_unless_direct() {
        let arrives = |air: &str| {
            let mut channel = channel(air);
            send(&mut channel, 1, to(2), 46, 7, Instant::ZERO);
            channel.kick(StationId(1), Instant::ZERO);
            assert_eq!(everything(&mut channel), [(2, 7)]);
            assert_eq!(channel.outlet().1.len(), 1, "its sender's driver frees it once");
            channel.outlet().0[0].2.since(Instant::ZERO)
        };
        let direct = arrives("[air]\ndirect = true\n");
        assert_eq!(arrives("[air]\naccess_point = \"a\"\n"), direct);
        assert_eq!(arrives("[air]\naccess_point = \"b\"\n"), direct);
        assert!(arrives("") > direct * 2);
    }

    #[test]
    fn without_an_access_point_a_frame_to_all_goes_out_at_once() {
        let mut channel = channel("[air]\ndirect = true\n");
        send(&mut channel, 1, [0xff; 6], 46, 7, Instant::ZERO);
        channel.kick(StationId(1), Instant::ZERO);
        assert_eq!(everything(&mut channel), [(0, 7), (2, 7)]);
        let arrivals = &channel.outlet().0;
        assert_eq!(arrivals[0].2, arrivals[1].2);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// Every frame is delivered or counted as lost at some stage, and released, whatever is sent and whatever the
        /// losses.
        #[test]
        fn every_frame_ends_somewhere(
            loss in 0.0..0.9f64,
            wnic in prop::sample::select(vec!["ideal", "mt7612u"]),
            (off, direct) in (any::<bool>(), any::<bool>()),
            sends in prop::collection::vec((0u16..3, 0u16..5, 0u8..64, 0u64..3_000), 1..400),
        ) {
            let mut channel = channel(&format!("[air]\nmcs = 7\nloss = {loss:.3}\nwnic = \"{wnic}\"\ndirect = {direct}\n"));
            let mut now = Instant::ZERO;
            for (place, (from, receiver, dscp, wait_us)) in sends.iter().enumerate() {
                now += Duration::from_micros(*wait_us);
                channel.advance(now);
                let address = if *receiver == 4 { [0xff; 6] } else { to(*receiver) };
                send(&mut channel, *from, address, *dscp, place as u8, now);
                channel.kick(StationId(*from), now);
            }
            if off {
                channel.switch_off(StationId(1), now);
            }
            let delivered = everything(&mut channel).len() as u64;
            let counters = channel.counters();
            let channel = &mut channel;
            prop_assert_eq!((counters.sent, counters.delivered), (sends.len() as u64, delivered));
            let ByCategory { voice, video, best_effort, background } = counters.sent_as;
            prop_assert_eq!(voice + video + best_effort + background + counters.refused, counters.sent);
            let to_all = sends.iter().filter(|(_, receiver, ..)| *receiver == 4).count() as u64;
            // Frames to the sender itself and to nobody are refused.
            let freed = &channel.outlet().1;
            prop_assert_eq!(freed.len() as u64 + to_all + counters.refused, counters.sent);
            let ended = delivered + counters.dropped_by_queue + counters.given_up + counters.refused;
            // A frame to all ends at each of the two other stations, or on its way. If a frame arrived but its
            // acknowledgement was lost, its sender also gave it up.
            let most = sends.len() as u64 + 2 * to_all + counters.given_up;
            prop_assert!(ended >= sends.len() as u64 - to_all && ended <= most);
        }
    }

    #[test]
    fn a_driver_frees_frames_when_its_card_has_it_so() {
        let arrived_when_freed = |wnic: &str| {
            let mut channel = channel(&format!("[air]\nmcs = 0\nwnic = \"{wnic}\"\n"));
            for mark in 0..60 {
                send(&mut channel, 1, to(0), 0, mark, Instant::ZERO);
            }
            channel.kick(StationId(1), Instant::ZERO);
            assert_eq!(everything(&mut channel).len(), 60);
            let freed = &channel.outlet().1;
            assert!(freed.iter().map(|(_, mark, _)| *mark).eq(0..60), "in their order");
            // The number of arrivals when the first and the 20th frame were freed.
            [freed[0].2, freed[19].2]
        };
        // Over USB a frame is freed once the card has it, with room for 20; otherwise once it was on the air.
        assert_eq!(arrived_when_freed("mt7612u"), [0, 0]);
        let [_, twentieth] = arrived_when_freed("ideal");
        assert!(twentieth >= 10, "{twentieth}");
    }

    #[test]
    fn a_robot_that_is_off_sends_no_more() {
        let mut channel = channel("[air]\nmcs = 0\nwnic = \"mt7612u\"\n");
        for mark in 0..250 {
            send(&mut channel, 1, to(0), 0, mark, Instant::ZERO);
        }
        channel.kick(StationId(1), Instant::ZERO);
        channel.switch_off(StationId(1), Instant::ZERO);
        let arrived = everything(&mut channel).len();
        assert!(arrived < 250, "{arrived}");
        assert_eq!(channel.counters().dropped_by_queue as usize + arrived, 250);
    }

    #[test]
    fn no_frame_is_no_frame() {
        let mut channel = channel("");
        assert!(!channel.take(StationId(1), Instant::ZERO, |_| None));
        assert_eq!(channel.counters(), Counters::default());
        assert!(
            channel.take(StationId(1), Instant::ZERO, |_| Some(usize::MAX)),
            "a length beyond the buffer"
        );
        assert_eq!(channel.counters().refused, 1);
    }
}
