//! Decides how long a robot keeps its permit once no bulk waits.
//!
//! A sender that waits for acknowledgements leaves its queue empty for a while. If TCP's slow start gave back the permit
//! each time, it would wait for all other robots once per round trip. If a DDS writer keeps the permit, the channel
//! falls silent after each image: the next one comes only once the last one has arrived. So the permit is normally
//! kept for [`LINGER`]. It goes back sooner, as soon as the card will be empty by the time the next robot begins, if
//! bulk typically stays away for longer than [`WORTH`], and other robots wait. If it is typically back within [`SOON`], the
//! next permit is asked for at once: then the request shares a frame with the release. If that permit comes before bulk
//! does, or bulk stays away for [`AHEAD`], it goes back.
//!
//! TCP needs more time: receivers hold its acknowledgements for some milliseconds ([`super::ACKNOWLEDGE_EVERY`]) after the
//! last packet has left the card. A connection that begins, or begins anew after a long hold, or measures the round trip
//! anew, as BBR does, sends only a few packets for each. If its robot gave back the permit, it would get one flight of
//! packets per permit. So for TCP, [`LINGER`] begins once the card is empty, and [`WORTH_TCP`] counts.
//!
//! Only the leader knows who waits. A robot concludes it from its last wait for a permit: nothing but other robots makes
//! that longer than [`LONG`].
//!
//! Left out: predicting when bulk comes.

use super::TCP;
use crate::{Duration, Instant};

/// The longest time for which a permit is kept without bulk: somewhat longer than handing it over takes, so that
/// neither waiting nor an early return costs much.
const LINGER: Duration = Duration::from_millis(8);
/// The typical absence above which handing over costs less than waiting.
const WORTH: Duration = Duration::from_millis(4);
const WORTH_TCP: Duration = Duration::from_millis(12);
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
/// How often to look whether a permit that was asked for without bulk has come.
const LOOK: Duration = Duration::from_millis(2);
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
#[derive(Clone, Copy, Debug, Default)]
pub struct Linger {
    /// The time since which no bulk waits; `None` while some does.
    empty_since: Option<Instant>,
    /// When the card will have sent the last packets.
    idle_at: Instant,
    /// Whether the last packets were TCP's.
    is_tcp: bool,
    /// How long bulk typically stays away: a moving average.
    absence: Duration,
    /// The time since which bulk has waited for a permit; `None` with one.
    waits_since: Option<Instant>,
    others_wait: bool,
    /// Until when to wait for a permit without bulk.
    ahead_until: Option<Instant>,
}

impl Linger {
    /// Records that bulk waits, with or without a permit.
    pub fn on_bulk(&mut self, permitted: bool, now: Instant) {
        self.ahead_until = None;
        if let Some(since) = self.empty_since.take() {
            let absence = now.since(since).min(ABSENCE_MAX);
            self.absence = (self.absence * (PARTS - 1) + absence) / PARTS;
        }
        if !permitted {
            self.waits_since.get_or_insert(now);
        } else if let Some(since) = self.waits_since.take() {
            self.others_wait = now.since(since) > LONG;
        }
    }

    /// Records that a packet of bulk leaves, of this IP protocol.
    pub fn on_sent(&mut self, protocol: u8) {
        self.is_tcp = protocol == TCP;
    }

    /// Records that no bulk waits, and that what is in the card leaves within `card`. Returns what to do, with a permit
    /// or without.
    pub fn on_empty(&mut self, permitted: bool, card: Duration, now: Instant) -> Idle {
        if let Some(until) = self.ahead_until {
            if permitted || now >= until {
                self.ahead_until = None;
                return Idle::End;
            }
            return Idle::Keep(LOOK.min(until.since(now)));
        }
        if self.empty_since.is_none() {
            self.idle_at = now + card.min(CARD_MAX);
        }
        let since = *self.empty_since.get_or_insert(now);
        self.waits_since = None;
        let (worth, from) = match self.is_tcp {
            true => (WORTH_TCP, self.idle_at),
            false => (WORTH, since),
        };
        if permitted && self.others_wait && self.absence > worth && card <= LINGER {
            if self.absence >= SOON {
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
    use super::*;

    const EMPTY: Duration = Duration::ZERO;

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
        assert_eq!(linger.on_empty(false, EMPTY, at(now)), Idle::Keep(LOOK));
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

    #[test]
    fn tcp_keeps_it_until_acknowledgements_can_have_come() {
        let (mut linger, now) = after(10, 90);
        linger.on_sent(TCP);
        assert_eq!(linger.on_empty(true, ms(6), at(now)), Idle::Keep(ms(14)));
        assert_eq!(linger.on_empty(true, EMPTY, at(now + 6)), Idle::Keep(ms(8)));
        assert_eq!(linger.on_empty(true, EMPTY, at(now + 14)), Idle::End);
        // Unless it usually takes longer.
        let (mut linger, now) = after(15, 90);
        linger.on_sent(TCP);
        assert_eq!(linger.on_empty(true, EMPTY, at(now)), Idle::End);
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
