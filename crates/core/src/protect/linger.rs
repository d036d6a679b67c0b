//! Decides how long a robot keeps its permit once no bulk waits.
//!
//! A sender that waits for acknowledgements leaves its queue empty for a while. If TCP's slow start gave back the permit
//! each time, it would wait for all other robots once per round trip. If a DDS writer keeps the permit, the channel
//! falls silent after each image: the next one comes only once the last one has arrived. So the permit is normally
//! kept for [`LINGER`]. It goes back sooner, as soon as the card will be empty by the time the next robot begins, if
//! bulk typically stays away for longer than [`WORTH`], and other robots wait. If it is typically back within [`SOON`], the
//! next permit is asked for at once, so that the request can share a frame with the release. If that permit comes before
//! bulk does, or bulk stays away for [`AHEAD`], it goes back.
//!
//! TCP needs more time: receivers hold its acknowledgements for some milliseconds ([`super::ACKNOWLEDGE_EVERY`])
//! after the last packet has left the card. A connection that begins, or begins anew after a long hold, or measures
//! the round trip anew, as BBR does, sends only a few packets for each. If its robot gave back the permit, it would
//! get one flight of packets per permit. So for TCP, [`LINGER`] begins once the card is empty. It does not pay if a
//! program has sent all it has to, and waits for an answer. The same holds for QUIC, and so for all of UDP except
//! DDS. So a robot learns how often bulk came back within that time, counting also what came after the permit had
//! gone. If it seldom does and others wait, the permit goes back when the card is almost empty.
//!
//! Only the leader knows who waits. A robot concludes it from its last wait for a permit: nothing but other robots makes
//! that longer than [`LONG`].
//!
//! Left out: asking in advance for TCP, whose bulk stays away for more varied times; and withdrawing a request at the
//! leader. One that is abandoned may still be granted, once for each burst of bulk, and that permit goes back at once.

use super::Flow;
use crate::{Duration, Instant};

/// The longest time for which a permit is kept without bulk: somewhat longer than handing it over takes, so that
/// neither waiting nor an early return costs much.
const LINGER: Duration = Duration::from_millis(8);
/// The typical absence above which handing over costs less than waiting.
const WORTH: Duration = Duration::from_millis(4);
/// For TCP, what the card may still have when a permit goes back early: somewhat less than handing it over takes.
const CARD_TCP: Duration = Duration::from_millis(2);
/// The share, of [`ALWAYS`], of TCP's bulk that comes back within [`LINGER`] of an empty card, below which no permit is
/// kept for it; and the weight of the newest time in that share, one part of this many.
const SELDOM: u64 = ALWAYS / 4;
const ALWAYS: u64 = 1 << 10;
const PARTS_TCP: u64 = 4;
/// The longest time that the card may take for the last packets.
const CARD_MAX: Duration = Duration::from_millis(40);
/// The longest absence that counts. Bulk that stays away for longer was over.
const ABSENCE_MAX: Duration = Duration::from_millis(16);
/// A wait for a permit for which other robots must have been the reason.
const LONG: Duration = Duration::from_millis(16);
/// The typical absence below which the next permit is asked for in advance.
const SOON: Duration = Duration::from_millis(12);
/// The longest time for which a permit is asked for without bulk.
const AHEAD: Duration = Duration::from_millis(32);
/// The weight of the newest absence in the average is one part of this many.
const PARTS: u64 = 8;

/// What becomes of the permit, or of the request for one, while no bulk waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// It is kept. Ask again after this time unless bulk comes.
    Keep(Duration),
    /// The permit goes back, and the next one is requested at once.
    Again,
    /// It goes back.
    End,
}

/// When to give back the permit.
#[derive(Clone, Copy, Debug)]
pub struct Linger {
    /// The time since which no bulk waits; `None` while some does.
    empty_since: Option<Instant>,
    /// When the card will have sent the last packets.
    idle_at: Instant,
    /// Whether the last packets were of a transport that waits for acknowledgements, and not DDS's.
    is_stream: bool,
    /// How long bulk typically stays away: a moving average.
    absence: Duration,
    /// How much of TCP's bulk comes back soon after the card is empty: a moving average.
    comes_back: u64,
    /// The time since which bulk has waited for a permit; `None` with one.
    waits_since: Option<Instant>,
    others_wait: bool,
    /// Until when to wait for a permit without bulk.
    ahead_until: Option<Instant>,
}

impl Default for Linger {
    fn default() -> Self {
        Linger {
            empty_since: None,
            idle_at: Instant::ZERO,
            is_stream: false,
            absence: Duration::ZERO,
            comes_back: ALWAYS,
            waits_since: None,
            others_wait: false,
            ahead_until: None,
        }
    }
}

impl Linger {
    /// Records that bulk waits, with or without a permit.
    pub fn on_bulk(&mut self, permitted: bool, now: Instant) {
        self.ahead_until = None;
        if let Some(since) = self.empty_since.take() {
            let absence = now.since(since).min(ABSENCE_MAX);
            self.absence = (self.absence * (PARTS - 1) + absence) / PARTS;
            if self.is_stream && now > self.idle_at {
                let came = ALWAYS * u64::from(now <= self.idle_at + LINGER);
                self.comes_back = (self.comes_back * (PARTS_TCP - 1) + came) / PARTS_TCP;
            }
        }
        if !permitted {
            self.waits_since.get_or_insert(now);
        } else if let Some(since) = self.waits_since.take() {
            self.others_wait = now.since(since) > LONG;
        }
    }

    /// Records that a packet of bulk leaves, of this flow.
    pub fn on_sent(&mut self, flow: &Flow) {
        self.is_stream = flow.writer.is_none();
    }

    /// Records that no bulk waits, and that what is in the card leaves within `card`. Returns what to do, with a permit
    /// or without.
    pub fn on_empty(&mut self, permitted: bool, card: Duration, now: Instant) -> Idle {
        if let Some(until) = self.ahead_until {
            if permitted || now >= until {
                self.ahead_until = None;
                return Idle::End;
            }
            return Idle::Keep(until.since(now));
        }
        if self.empty_since.is_none() {
            self.idle_at = now + card.min(CARD_MAX);
        }
        let since = *self.empty_since.get_or_insert(now);
        self.waits_since = None;
        let (is_futile, card_max, from) = match self.is_stream {
            true => (self.comes_back < SELDOM, CARD_TCP, self.idle_at),
            false => (self.absence > WORTH, LINGER, since),
        };
        if permitted && self.others_wait && is_futile && card <= card_max {
            if self.is_stream || self.absence >= SOON {
                return Idle::End;
            }
            self.ahead_until = Some(now + AHEAD);
            return Idle::Again;
        }
        match (from + LINGER).since(now) {
            Duration::ZERO => Idle::End,
            left => Idle::Keep(left),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    const EMPTY: Duration = Duration::ZERO;
    const STREAM: Flow = Flow {
        protocol: 17,
        from: (IpAddr::V4(Ipv4Addr::LOCALHOST), 1),
        to: (IpAddr::V4(Ipv4Addr::LOCALHOST), 2),
        writer: None,
    };

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A robot whose bulk stays away for `absence` each time, and then waits for a permit for `wait`.
    fn after(absence: u64, wait: u64) -> (Linger, u64) {
        let (mut linger, mut now) = (Linger::default(), 0);
        for _ in 0..40 {
            linger.on_bulk(false, at(now));
            now += wait;
            linger.on_bulk(true, at(now));
            now += 30;
            linger.on_bulk(true, at(now));
            linger.on_empty(true, EMPTY, at(now));
            now += absence;
        }
        linger.on_bulk(true, at(now));
        (linger, now)
    }

    #[test]
    fn a_permit_is_kept_for_acknowledgements_that_come_soon() {
        let (mut linger, now) = after(2, 90);
        assert_eq!(linger.on_empty(true, EMPTY, at(now)), Idle::Keep(ms(8)));
        assert_eq!(linger.on_empty(true, EMPTY, at(now + 5)), Idle::Keep(ms(3)));
        assert_eq!(linger.on_empty(true, EMPTY, at(now + 8)), Idle::End);
    }

    #[test]
    fn it_goes_to_others_that_wait_if_bulk_stays_away() {
        let (mut linger, now) = after(15, 90);
        assert_eq!(linger.on_empty(true, EMPTY, at(now)), Idle::End);
    }

    #[test]
    fn bulk_that_is_soon_back_is_asked_for_at_once() {
        let again = || {
            let (mut linger, now) = after(7, 90);
            assert_eq!(linger.on_empty(true, EMPTY, at(now)), Idle::Again);
            (linger, now)
        };
        // Bulk comes first, and then the permit.
        let (mut linger, now) = again();
        assert_eq!(linger.on_empty(false, EMPTY, at(now)), Idle::Keep(AHEAD));
        linger.on_bulk(false, at(now + 7));
        linger.on_bulk(true, at(now + 90));
        assert_eq!(linger.on_empty(true, EMPTY, at(now + 120)), Idle::Again);
        // The permit comes first, or neither does: it is not asked for once more.
        let (mut linger, now) = again();
        assert_eq!(linger.on_empty(false, EMPTY, at(now + 31)), Idle::Keep(ms(1)));
        assert_eq!(linger.on_empty(true, EMPTY, at(now + 31)), Idle::End);
        let (mut linger, now) = again();
        assert_eq!(linger.on_empty(false, EMPTY, at(now + 32)), Idle::End);
    }

    /// A robot whose bulk over TCP comes back this long after its card was empty, with other robots waiting.
    fn after_tcp(returns: &[u64]) -> (Linger, u64) {
        let (mut linger, mut now) = (Linger::default(), 0);
        for after in returns {
            linger.on_bulk(false, at(now));
            linger.on_bulk(true, at(now + 90));
            linger.on_sent(&STREAM);
            now += 120;
            linger.on_empty(true, ms(5), at(now));
            now += 5 + after;
        }
        linger.on_bulk(false, at(now));
        linger.on_bulk(true, at(now + 90));
        (linger, now + 120)
    }

    #[test]
    fn tcp_keeps_it_until_acknowledgements_can_have_come() {
        for (mut linger, now) in [after_tcp(&[6; 10]), after_tcp(&[20, 20])] {
            assert_eq!(linger.on_empty(true, ms(6), at(now)), Idle::Keep(ms(14)));
            assert_eq!(linger.on_empty(true, EMPTY, at(now + 6)), Idle::Keep(ms(8)));
            assert_eq!(linger.on_empty(true, EMPTY, at(now + 14)), Idle::End);
        }
    }

    #[test]
    fn tcp_gives_it_back_with_an_empty_card_if_none_came_in_time_lately() {
        let (mut linger, now) = after_tcp(&[20; 10]);
        assert_eq!(linger.on_empty(true, ms(6), at(now)), Idle::Keep(ms(14)));
        assert_eq!(linger.on_empty(true, ms(2), at(now + 4)), Idle::End);
        // Bulk that comes before the card is empty says nothing, and once is enough to keep it again.
        let (mut linger, now) = after_tcp(&[20; 10]);
        linger.on_empty(true, ms(6), at(now));
        linger.on_bulk(true, at(now + 3));
        assert_eq!(linger.on_empty(true, EMPTY, at(now + 10)), Idle::End);
        let (mut linger, now) = after_tcp(&[20, 20, 20, 20, 20, 20, 20, 20, 6]);
        assert_eq!(linger.on_empty(true, EMPTY, at(now)), Idle::Keep(ms(8)));
    }

    #[test]
    fn tcp_keeps_it_if_nobody_waits() {
        let (mut linger, mut now) = after_tcp(&[20; 10]);
        linger.on_empty(true, EMPTY, at(now));
        now += 20;
        linger.on_bulk(false, at(now));
        linger.on_bulk(true, at(now + 3));
        assert_eq!(linger.on_empty(true, EMPTY, at(now + 30)), Idle::Keep(ms(8)));
    }

    #[test]
    fn a_full_card_keeps_it_but_no_longer_than_otherwise() {
        let (mut linger, now) = after(7, 90);
        assert_eq!(linger.on_empty(true, ms(12), at(now)), Idle::Keep(ms(8)));
        assert_eq!(linger.on_empty(true, ms(8), at(now + 3)), Idle::Again);
        let (mut linger, now) = after(7, 90);
        assert_eq!(linger.on_empty(true, ms(40), at(now)), Idle::Keep(ms(8)));
        assert_eq!(linger.on_empty(true, ms(30), at(now + 8)), Idle::End);
    }

    #[test]
    fn a_robot_whose_permit_comes_at_once_keeps_it() {
        let (mut linger, now) = after(7, 3);
        assert_eq!(linger.on_empty(true, EMPTY, at(now)), Idle::Keep(ms(8)));
    }

    #[test]
    fn a_robot_learns_that_the_others_have_ended() {
        let (mut linger, now) = after(7, 90);
        linger.on_empty(true, EMPTY, at(now));
        linger.on_bulk(false, at(now + 7));
        linger.on_bulk(true, at(now + 9));
        assert_eq!(linger.on_empty(true, EMPTY, at(now + 40)), Idle::Keep(ms(8)));
    }

    #[test]
    fn a_robot_learns_that_bulk_comes_sooner() {
        let (mut linger, mut now) = after(7, 90);
        for _ in 0..10 {
            linger.on_empty(true, EMPTY, at(now));
            now += 1;
            linger.on_bulk(true, at(now));
        }
        assert_eq!(linger.on_empty(true, EMPTY, at(now)), Idle::Keep(ms(8)));
    }
}
