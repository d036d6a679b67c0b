//! Tracks the segments in flight, and decides which of them are lost: SACK (RFC 2018) and RACK (RFC 8985).
//!
//! RACK uses time instead of counts. A segment is lost if one sent after it has arrived, and a round trip plus a
//! reordering window has passed since it was sent. The window is zero as long as no reordering was seen and either
//! three segments are SACKed (the old threshold of duplicate acknowledgements) or a recovery is under way. Otherwise it
//! is a quarter of the shortest round trip. RACK also finds lost retransmissions.
//!
//! Left out: DSACK, and adapting the window with it; reneging receivers; the tail loss probe.
//!
//! Segments are stored in one ring. Originals were sent in order of their numbers, and retransmissions are in a queue
//! in the order of their sending. So both are judged from the front, and each is examined once.

use super::{Ack, SackRange};
use coorp_core::{Duration, Instant};
use std::collections::VecDeque;

/// Number of SACKed segments that makes a reordering window unnecessary (DupThresh of RFC 8985).
const DUPLICATE_THRESHOLD: u32 = 3;
const RING_MIN: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    InFlight,
    /// Considered lost and not yet retransmitted.
    Lost,
    /// Arrived out of order.
    Sacked,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    /// The time of the newest transmission.
    sent_at: Instant,
    /// The zero-based number of the newest transmission among all, wrapping.
    transmission: u32,
    bytes: u16,
    state: State,
    resent: bool,
}

const VACANT: Sent = Sent {
    sent_at: Instant::ZERO,
    transmission: 0,
    bytes: 0,
    state: State::Sacked,
    resent: false,
};

/// Among the segments that have arrived, the one sent last.
#[derive(Clone, Copy, Debug)]
struct Newest {
    sent_at: Instant,
    number: u64,
    rtt: Duration,
}

/// The effects of an acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct News {
    /// Number of segments newly known to have arrived.
    pub(super) delivered: u32,
    /// Whether the cumulative acknowledgement moved.
    pub(super) advanced: bool,
    /// A round-trip sample, from a segment that was sent once.
    pub(super) rtt: Option<Duration>,
}

/// The segments between the cumulative acknowledgement and the next new one.
#[derive(Clone, Debug)]
pub(super) struct Scoreboard {
    ring: Vec<Sent>,
    first: u64,
    next: u64,
    bytes: u64,
    in_flight: u32,
    lost: u32,
    sacked: u32,
    /// One past the highest segment known to have arrived.
    highest_arrived: u64,
    reordering_seen: bool,
    newest: Option<Newest>,
    /// The ranges of the last acknowledgement, which need not be processed again.
    known: [SackRange; 3],
    /// Originals below this one have been judged.
    judged: u64,
    /// Retransmissions yet to be judged: the segment and the time of its retransmission.
    resent: VecDeque<(u64, Instant)>,
    /// Segments to retransmit; those that have arrived in the meantime are skipped in turn.
    to_resend: VecDeque<u64>,
}

impl Scoreboard {
    pub(super) fn new() -> Self {
        Scoreboard {
            ring: vec![VACANT; RING_MIN],
            first: 0,
            next: 0,
            bytes: 0,
            in_flight: 0,
            lost: 0,
            sacked: 0,
            highest_arrived: 0,
            reordering_seen: false,
            newest: None,
            known: [SackRange::default(); 3],
            judged: 0,
            resent: VecDeque::new(),
            to_resend: VecDeque::new(),
        }
    }

    /// Returns the lowest unacknowledged segment.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the number of the next new segment.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the number of unacknowledged segments.
    pub(super) fn len(&self) -> u64 {
        self.next - self.first
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next == self.first
    }

    /// Returns the payload of unacknowledged segments, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of segments assumed to be in flight: not arrived, not lost.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns the number of segments considered lost and not yet retransmitted.
    pub(super) fn lost(&self) -> u32 {
        self.lost
    }

    /// Returns the first segment's newest transmission, by its number among all.
    pub(super) fn first_transmission(&self) -> Option<u32> {
        (!self.is_empty()).then(|| self.slot(self.first).transmission)
    }

    /// Records a new segment being sent.
    pub(super) fn send(&mut self, bytes: u16, transmission: u32, now: Instant) -> u64 {
        if self.len() as usize == self.ring.len() {
            self.widen();
        }
        let number = self.next;
        *self.slot_mut(number) = Sent {
            sent_at: now,
            transmission,
            bytes,
            state: State::InFlight,
            resent: false,
        };
        self.next += 1;
        self.bytes += u64::from(bytes);
        self.in_flight += 1;
        number
    }

    /// Returns the next segment to retransmit.
    #[inline]
    pub(super) fn next_to_resend(&mut self) -> Option<u64> {
        while let Some(&number) = self.to_resend.front() {
            if number >= self.first && self.slot(number).state == State::Lost {
                return Some(number);
            }
            self.to_resend.pop_front();
        }
        None
    }

    /// Records the retransmission of the segment returned by [`Scoreboard::next_to_resend`]. Returns its payload in
    /// bytes.
    pub(super) fn resend(&mut self, number: u64, transmission: u32, now: Instant) -> u16 {
        self.to_resend.pop_front();
        let sent = self.slot_mut(number);
        debug_assert_eq!(sent.state, State::Lost);
        *sent = Sent {
            sent_at: now,
            transmission,
            state: State::InFlight,
            resent: true,
            ..*sent
        };
        let bytes = sent.bytes;
        self.lost -= 1;
        self.in_flight += 1;
        self.resent.push_back((number, now));
        bytes
    }

    /// Processes an acknowledgement. Segments never sent are ignored.
    pub(super) fn on_ack(&mut self, ack: &Ack, rtt_least: Duration, now: Instant) -> News {
        let mut news = News::default();
        let highest_before = self.highest_arrived;
        let next = ack.next.min(self.next);
        let mut resent_acked = false;
        while self.first < next {
            let number = self.first;
            let sent = *self.slot(number);
            if sent.state == State::Sacked {
                self.sacked -= 1;
            } else {
                resent_acked |= sent.resent;
                self.arrive(number, sent, highest_before, rtt_least, now, &mut news);
            }
            self.bytes -= u64::from(sent.bytes);
            self.first += 1;
            news.advanced = true;
        }
        // If the first copy may have been the one that arrived, the round trip is ambiguous (Karn).
        if resent_acked {
            news.rtt = None;
        }
        if ack.sack.iter().all(|range| range.start >= range.end) {
            self.known = [SackRange::default(); 3];
            return news;
        }
        let mut known = [SackRange::default(); 3];
        for (range, kept) in ack.sack.iter().zip(&mut known) {
            *kept = SackRange {
                start: range.start.max(self.first),
                end: range.end.min(self.next),
            };
            self.sack(*kept, highest_before, rtt_least, now, &mut news);
        }
        self.known = known;
        news
    }

    fn sack(&mut self, range: SackRange, highest_before: u64, rtt_least: Duration, now: Instant, news: &mut News) {
        let mut number = range.start;
        while number < range.end {
            if let Some(known) = self
                .known
                .iter()
                .find(|known| known.start <= number && number < known.end)
            {
                number = known.end;
                continue;
            }
            let sent = *self.slot(number);
            if sent.state != State::Sacked {
                self.arrive(number, sent, highest_before, rtt_least, now, news);
                self.slot_mut(number).state = State::Sacked;
                self.sacked += 1;
            }
            number += 1;
        }
    }

    /// Records the arrival of a segment that was not known to have arrived.
    fn arrive(&mut self, number: u64, sent: Sent, highest: u64, rtt_least: Duration, now: Instant, news: &mut News) {
        match sent.state {
            State::InFlight => self.in_flight -= 1,
            State::Lost => self.lost -= 1,
            State::Sacked => return,
        }
        news.delivered += 1;
        self.highest_arrived = self.highest_arrived.max(number + 1);
        let rtt = now.since(sent.sent_at);
        if !sent.resent {
            news.rtt = news.rtt.or(Some(rtt));
            self.reordering_seen |= number < highest;
        } else if rtt < rtt_least {
            // Too early for the second copy: the first one arrived, which says nothing about later ones.
            return;
        }
        if self
            .newest
            .is_none_or(|newest| (newest.sent_at, newest.number) < (sent.sent_at, number))
        {
            self.newest = Some(Newest {
                sent_at: sent.sent_at,
                number,
                rtt,
            });
        }
    }

    /// Marks segments that are lost by now. Returns when to check again if a segment may only be late.
    pub(super) fn detect_losses(&mut self, recovering: bool, rtt_least: Duration, now: Instant) -> Option<Instant> {
        let newest = self.newest?;
        let in_order = !self.reordering_seen && (recovering || self.sacked >= DUPLICATE_THRESHOLD);
        let reordering = if in_order { Duration::ZERO } else { rtt_least / 4 };
        let patience = newest.rtt + reordering;
        let mut look_again = Instant::FAR_FUTURE;

        self.judged = self.judged.max(self.first);
        while self.judged < self.next {
            let number = self.judged;
            let sent = *self.slot(number);
            if sent.state == State::InFlight && !sent.resent {
                if (newest.sent_at, newest.number) <= (sent.sent_at, number) {
                    break;
                }
                let due = sent.sent_at + patience;
                if due > now {
                    look_again = due;
                    break;
                }
                self.lose(number);
            }
            self.judged += 1;
        }
        while let Some(&(number, sent_at)) = self.resent.front() {
            let outdated = number < self.first || {
                let sent = self.slot(number);
                sent.state != State::InFlight || sent.sent_at != sent_at
            };
            if !outdated {
                if (newest.sent_at, newest.number) <= (sent_at, number) {
                    break;
                }
                let due = sent_at + patience;
                if due > now {
                    look_again = look_again.min(due);
                    break;
                }
                self.lose(number);
            }
            self.resent.pop_front();
        }
        (look_again < Instant::FAR_FUTURE).then_some(look_again)
    }

    /// Marks everything that has not arrived as lost after a timeout, to be retransmitted, lowest first.
    pub(super) fn lose_all(&mut self) {
        self.to_resend.clear();
        self.resent.clear();
        for number in self.first..self.next {
            if self.slot(number).state != State::Sacked {
                self.slot_mut(number).state = State::Lost;
                self.to_resend.push_back(number);
            }
        }
        self.lost = self.to_resend.len() as u32;
        self.in_flight = 0;
        self.judged = self.next;
    }

    fn lose(&mut self, number: u64) {
        self.slot_mut(number).state = State::Lost;
        self.in_flight -= 1;
        self.lost += 1;
        self.to_resend.push_back(number);
    }

    fn slot(&self, number: u64) -> &Sent {
        &self.ring[number as usize & (self.ring.len() - 1)]
    }

    fn slot_mut(&mut self, number: u64) -> &mut Sent {
        let mask = self.ring.len() - 1;
        &mut self.ring[number as usize & mask]
    }

    /// Doubles the ring. Its length stays a power of two.
    fn widen(&mut self) {
        let mut ring = vec![VACANT; self.ring.len() * 2];
        for number in self.first..self.next {
            let mask = ring.len() - 1;
            ring[number as usize & mask] = *self.slot(number);
        }
        self.ring = ring;
    }
}
