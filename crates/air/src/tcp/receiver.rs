//! The receiving end: decides what is delivered in order, and when to acknowledge (RFC 9293, 5681 and 2018).
//!
//! Segments in order are acknowledged at every second one, or after 40 ms. A segment that is out of order, fills a hole
//! or is a duplicate is acknowledged at once. The application reads at once, so the window never closes.
//!
//! If the sender requested fewer acknowledgements ([`Receiver::set_ack_every`]), only the first segment above a new
//! hole is acknowledged at once; the ones after it bring no new information.

use super::{Ack, Config, SackRange};
use coorp_core::{Duration, Instant};

/// Linux's TCP_DELACK_MIN.
const ACK_DELAY: Duration = Duration::from_millis(40);
/// Number of ranges kept: one more than an acknowledgement holds, so that one is available when two ranges merge.
const RANGES: usize = 4;
const RING_MIN: usize = 64;

/// The receiving end of a connection.
#[derive(Clone, Debug)]
pub struct Receiver {
    ack_every: u32,
    /// Whether the sender requested fewer acknowledgements, including for segments out of order.
    asked: bool,
    segments_max: u64,
    next: u64,
    delivered_bytes: u64,
    /// Payload of the segments held out of order, 0 if none; grows as the connection needs.
    ring: Vec<u16>,
    held: u32,
    /// Ranges held out of order, the one with the newest segment first, empty ones last.
    ranges: [SackRange; RANGES],
    /// Number of segments in order not yet acknowledged.
    unacknowledged: u32,
    ack_at: Option<Instant>,
}

impl Receiver {
    /// Creates a connection on which nothing has arrived yet. Values out of range are clamped.
    pub fn new(config: Config) -> Self {
        let config = config.bounded();
        Receiver {
            ack_every: config.ack_every,
            asked: false,
            segments_max: config.segments_max(),
            next: 0,
            delivered_bytes: 0,
            ring: vec![0; RING_MIN],
            held: 0,
            ranges: [SackRange::default(); RANGES],
            unacknowledged: 0,
            ack_at: None,
        }
    }

    /// Handles a segment with `bytes` of payload. Send the returned acknowledgement at once. Ignores a segment without
    /// payload or beyond the window.
    #[inline]
    pub fn on_segment(&mut self, number: u64, bytes: u16, now: Instant) -> Option<Ack> {
        if bytes == 0 {
            return None;
        }
        self.unacknowledged += 1;
        if number != self.next {
            let extends = self.hold(number, bytes);
            if !(self.asked && extends) {
                return Some(self.acknowledge());
            }
        } else {
            self.deliver(bytes);
            if self.held > 0 {
                self.deliver_held();
                return Some(self.acknowledge());
            }
        }
        if self.unacknowledged >= self.ack_every {
            return Some(self.acknowledge());
        }
        self.ack_at.get_or_insert(now + ACK_DELAY);
        None
    }

    /// Sets that every `segments` segments are acknowledged, as a QUIC sender requests with ACK_FREQUENCY. Its
    /// reordering threshold keeps segments out of order from being acknowledged one by one.
    pub fn set_ack_every(&mut self, segments: u32) {
        (self.ack_every, self.asked) = (segments.max(1), true);
    }

    /// Sends a delayed acknowledgement now (QUIC's IMMEDIATE_ACK).
    pub fn acknowledge_now(&mut self) -> Option<Ack> {
        self.ack_at.map(|_| self.acknowledge())
    }

    /// Returns when to call [`Receiver::on_deadline`].
    pub fn next_deadline(&self) -> Option<Instant> {
        self.ack_at
    }

    /// Handles the deadline of [`Receiver::next_deadline`]. Send the returned acknowledgement at once. An early call
    /// does nothing.
    pub fn on_deadline(&mut self, now: Instant) -> Option<Ack> {
        self.ack_at.filter(|at| *at <= now).map(|_| self.acknowledge())
    }

    /// Returns the number of bytes delivered to the application, in order, each once.
    pub fn delivered_bytes(&self) -> u64 {
        self.delivered_bytes
    }

    fn acknowledge(&mut self) -> Ack {
        self.unacknowledged = 0;
        self.ack_at = None;
        Ack {
            next: self.next,
            sack: [self.ranges[0], self.ranges[1], self.ranges[2]],
        }
    }

    fn deliver(&mut self, bytes: u16) {
        self.next += 1;
        self.delivered_bytes += u64::from(bytes);
    }

    fn deliver_held(&mut self) {
        while self.held > 0 {
            let mask = self.ring.len() - 1;
            let bytes = std::mem::take(&mut self.ring[self.next as usize & mask]);
            if bytes == 0 {
                break;
            }
            self.held -= 1;
            self.deliver(bytes);
        }
        let mut left = [SackRange::default(); RANGES];
        let above = self.ranges.iter().filter(|range| range.end > self.next);
        for (place, range) in left.iter_mut().zip(above) {
            *place = *range;
        }
        self.ranges = left;
    }

    /// Stores a segment until the ones before it arrive. Returns whether it is new and extends a stored range.
    fn hold(&mut self, number: u64, bytes: u16) -> bool {
        if number < self.next || number - self.next >= self.segments_max {
            return false;
        }
        while number - self.next >= self.ring.len() as u64 {
            self.widen();
        }
        let mask = self.ring.len() - 1;
        let place = &mut self.ring[number as usize & mask];
        if *place != 0 {
            return false;
        }
        *place = bytes;
        self.held += 1;
        self.join_range(number)
    }

    /// Adds the segment to its range and moves that range to the front. The oldest range is dropped if there are too
    /// many. Returns whether there was such a range.
    fn join_range(&mut self, number: u64) -> bool {
        let mut joined = SackRange {
            start: number,
            end: number + 1,
        };
        let mut rest = [SackRange::default(); RANGES];
        let mut count = 0;
        for range in self.ranges.into_iter().filter(|range| range.start < range.end) {
            if range.end == joined.start {
                joined.start = range.start;
            } else if range.start == joined.end {
                joined.end = range.end;
            } else {
                rest[count] = range;
                count += 1;
            }
        }
        self.ranges = [joined, rest[0], rest[1], rest[2]];
        joined.end - joined.start > 1
    }

    /// Doubles the ring. Its length stays a power of two.
    fn widen(&mut self) {
        let length = self.ring.len() as u64;
        let mut ring = vec![0; self.ring.len() * 2];
        for number in self.next..self.next + length {
            ring[(number & (2 * length - 1)) as usize] = self.ring[(number & (length - 1)) as usize];
        }
        self.ring = ring;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_ms(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn range(start: u64, end: u64) -> SackRange {
        SackRange { start, end }
    }

    #[test]
    fn every_second_segment_is_acknowledged_and_a_lone_one_after_40_ms() {
        let mut receiver = Receiver::new(Config::default());
        assert_eq!(receiver.on_segment(0, 100, at_ms(0)), None);
        assert_eq!(receiver.on_segment(1, 100, at_ms(1)).map(|ack| ack.next), Some(2));
        assert_eq!(receiver.next_deadline(), None);
        assert_eq!(receiver.on_segment(2, 100, at_ms(5)), None);
        assert_eq!(receiver.next_deadline(), Some(at_ms(45)));
        assert_eq!(receiver.on_deadline(at_ms(44)), None);
        assert_eq!(receiver.on_deadline(at_ms(45)).map(|ack| ack.next), Some(3));
        assert_eq!(receiver.on_deadline(at_ms(99)), None);
        assert_eq!(receiver.delivered_bytes(), 300);
    }

    #[test]
    fn holes_are_reported_newest_first_and_closed() {
        let mut receiver = Receiver::new(Config::default());
        for number in [2, 3, 7, 5] {
            receiver.on_segment(number, 10, at_ms(0));
        }
        let ack = receiver.on_segment(8, 10, at_ms(0)).expect("out of order");
        assert_eq!(
            ack,
            Ack {
                next: 0,
                sack: [range(7, 9), range(5, 6), range(2, 4)]
            }
        );
        let ack = receiver.on_segment(6, 10, at_ms(0)).expect("out of order");
        assert_eq!(ack.sack, [range(5, 9), range(2, 4), range(0, 0)]);
        assert_eq!(ack.packet_bytes(), HEADER_BYTES_WITH_TWO_RANGES);
        receiver.on_segment(0, 10, at_ms(0));
        let ack = receiver.on_segment(1, 10, at_ms(0)).expect("fills a hole");
        assert_eq!(
            ack,
            Ack {
                next: 4,
                sack: [range(5, 9), range(0, 0), range(0, 0)]
            }
        );
        let ack = receiver.on_segment(4, 10, at_ms(0)).expect("fills a hole");
        assert_eq!(
            ack,
            Ack {
                next: 9,
                ..Ack::default()
            }
        );
        assert_eq!(receiver.delivered_bytes(), 90);
    }

    #[test]
    fn asked_for_few_acknowledgements_it_tells_of_each_hole_once() {
        let mut receiver = Receiver::new(Config::default());
        receiver.set_ack_every(4);
        assert_eq!(receiver.on_segment(0, 10, at_ms(0)), None);
        let ack = receiver.on_segment(2, 10, at_ms(0)).expect("a new hole");
        assert_eq!((ack.next, ack.sack[0]), (1, range(2, 3)));
        for number in 3..6 {
            assert_eq!(receiver.on_segment(number, 10, at_ms(0)), None);
        }
        assert!(receiver.next_deadline().is_some(), "and later, if nothing follows");
        let ack = receiver.on_segment(6, 10, at_ms(0)).expect("the fourth since");
        assert_eq!(ack.sack[0], range(2, 7));
        assert_eq!(receiver.on_segment(1, 10, at_ms(0)).map(|ack| ack.next), Some(7));
        assert_eq!(receiver.delivered_bytes(), 70);
    }

    const HEADER_BYTES_WITH_TWO_RANGES: u16 = 52 + 4 + 16;

    #[test]
    fn copies_count_once_and_are_acknowledged_at_once() {
        let mut receiver = Receiver::new(Config::default());
        for number in [0, 1, 1, 0, 5, 5] {
            receiver.on_segment(number, 10, at_ms(0));
        }
        assert_eq!(receiver.on_segment(0, 10, at_ms(0)).map(|ack| ack.next), Some(2));
        for number in 2..6 {
            receiver.on_segment(number, 10, at_ms(0));
        }
        assert_eq!(receiver.delivered_bytes(), 60);
        assert_eq!(receiver.on_segment(6, 10, at_ms(0)), None, "nothing is held any more");
    }

    #[test]
    fn what_no_sender_sends_is_not_taken_in() {
        let mut receiver = Receiver::new(Config {
            mss: 0,
            receive_window: 0,
            ack_every: 0,
        });
        assert_eq!(receiver.on_segment(0, 0, at_ms(0)), None);
        assert_eq!(
            receiver.on_segment(u64::MAX, 10, at_ms(0)).map(|ack| ack.sack),
            Some(Ack::default().sack)
        );
        assert_eq!(receiver.delivered_bytes(), 0);
    }
}
