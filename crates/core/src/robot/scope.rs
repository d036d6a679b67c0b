//! What a robot does and notices, for whoever watches it: its newest decisions and observations, in a ring.
//!
//! Several watchers share one ring. Each asks for what came since its last look ([`Look::cursor`]), and is told how much was
//! overwritten meanwhile. The scope is off until somebody looks, and goes off by itself once nobody has looked for
//! [`WATCHED`], so that a robot that nobody watches pays for one comparison.
//!
//! Bulk is not shown packet by packet: packets that are on their way at the same time, or almost, are one [`Seen::Bulk`].
//!
//! Left out: what is said about permits, and states that are gathered.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{ClockId, Event, FLOWS_MAX};
use crate::paths::PATHS_MAX;
use crate::{Duration, Instant, RobotId};

/// The maximum number of events kept; the oldest make room.
const KEPT_MAX: usize = 4_096;
/// The maximum number of events of one look.
pub const LOOK_MAX: usize = 2_048;
/// For how long the scope stays on after a look.
pub const WATCHED: Duration = Duration::from_secs(5);
/// Bulk packets that follow each other within this time belong together.
const TOGETHER: Duration = Duration::from_micros(500);
/// Bulk that goes on and on is shown in pieces of this length.
const PIECE: Duration = Duration::from_millis(50);

/// Something that a robot did or noticed. Times are relative to the event's, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seen {
    /// Bulk may be sent from now on, or no longer.
    Permitted(bool),
    /// The leader from now on, as far as this robot knows.
    Led(Option<RobotId>),
    /// The window that bulk is kept out of from now on: its start (negative: it has begun) and its length.
    Window(Option<(i32, u32)>),
    /// The gate of a path holds bulk for a window from now on, or no longer.
    Gate {
        /// The path.
        path: u8,
        /// For how long it does, unless the window changes; `None`: not at all.
        held_us: Option<u32>,
    },
    /// A control message of this robot has left its card, so long after it was made.
    Control {
        /// Its flow.
        flow: u8,
        /// How long ago it was made.
        took_us: u32,
    },
    /// A control message arrived.
    Arrived {
        /// Its sender.
        from: RobotId,
        /// Its sender's flow.
        flow: u8,
        /// Its age, if the clocks were compared.
        age_us: Option<u32>,
    },
    /// A control loop of this robot ended: its reaction time.
    Loop {
        /// How long it took.
        took_us: u32,
    },
    /// Bulk was in the card, or on the air, until now.
    Bulk {
        /// The path.
        path: u8,
        /// For how long.
        took_us: u32,
        /// How many packets left.
        packets: u32,
    },
}

/// What a watcher sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// The robot's clock, which is another one after a new start.
    pub clock: ClockId,
    /// What that clock shows.
    pub now: Instant,
    /// The number of the first event of the next look: see [`Look::cursor`].
    pub next: u64,
    /// How many events since the last look were overwritten.
    pub lost: u64,
    /// The events, the oldest first, each with the microseconds between it and `now`; at most [`LOOK_MAX`].
    pub events: Vec<(u32, Seen)>,
}

/// Where the next look begins: events of this start of the robot, from this number on.
pub type Cursor = (ClockId, u64);

impl Look {
    /// Where the next look begins.
    pub fn cursor(&self) -> Cursor {
        (self.clock, self.next)
    }
}

/// Bulk on a path that goes on.
#[derive(Clone, Copy, Debug)]
struct Stay {
    since: Instant,
    until: Instant,
    packets: u32,
}

/// The ring.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// `None`: off.
    until: Option<Instant>,
    /// The number of the oldest event kept.
    first: u64,
    seen: VecDeque<(Instant, Seen)>,
    /// By flow, when the newest message was made that has not left.
    made: Vec<Option<Instant>>,
    bulk: [Option<Stay>; PATHS_MAX],
    /// By path, until when the gate holds bulk for a window.
    held: [Option<Instant>; PATHS_MAX],
}

impl Scope {
    /// Returns whether somebody watches.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// Somebody looks. Returns whether the scope was off until now, so that the current state has to be noted.
    pub fn watch(&mut self, now: Instant) -> bool {
        let begins = self.until.is_none_or(|until| now > until);
        if begins {
            self.end();
            self.made = vec![None; FLOWS_MAX];
        }
        self.until = Some(now + WATCHED);
        begins
    }

    /// Forgets what it holds; its numbers go on.
    fn end(&mut self) {
        *self = Scope {
            first: self.next(),
            ..Scope::default()
        };
    }

    fn next(&self) -> u64 {
        self.first + self.seen.len() as u64
    }

    /// The events from `since` on; all that are kept if that is of another start of the robot.
    pub fn look(&mut self, clock: ClockId, since: Option<Cursor>, now: Instant) -> Look {
        for path in 0..PATHS_MAX {
            self.end_stay(path, true);
        }
        let next = self.next();
        let known = since.filter(|(of, number)| *of == clock && *number <= next);
        let since = known.map_or(self.first, |(_, number)| number);
        let from = since.max(self.first);
        let skip = usize::try_from(from - self.first).unwrap_or(usize::MAX);
        let events: Vec<(u32, Seen)> = self
            .seen
            .iter()
            .skip(skip)
            .take(LOOK_MAX)
            .map(|(at, seen)| (micros(now.since(*at)), *seen))
            .collect();
        Look {
            clock,
            now,
            next: from + events.len() as u64,
            lost: from - since,
            events,
        }
    }

    /// Notes an event.
    pub fn note(&mut self, at: Instant, seen: Seen) {
        let Some(until) = self.until else { return };
        if at > until {
            return self.end();
        }
        if self.seen.len() >= KEPT_MAX {
            self.seen.pop_front();
            self.first += 1;
        }
        self.seen.push_back((at, seen));
    }

    /// Notes what the journal is told, where it is of use here.
    pub fn decided(&mut self, at: Instant, event: &Event) {
        if let Some(seen) = Seen::of(at, event) {
            self.note(at, seen);
        }
    }

    /// This robot made a control message.
    pub fn made(&mut self, flow: u8, now: Instant) {
        if let Some(made) = self.made.get_mut(usize::from(flow)) {
            *made = Some(now);
        }
    }

    /// A control message of this robot has left.
    pub fn left(&mut self, flow: u8, now: Instant) {
        let made = self.made.get_mut(usize::from(flow)).and_then(Option::take);
        if let Some(made) = made {
            let took_us = micros(now.since(made));
            self.note(now, Seen::Control { flow, took_us });
        }
    }

    /// The gate's answer about a bulk packet: until when it is held for a window, if so. Holds for the backlog are not shown: they
    /// come and go with each packet, and what is in the card shows them.
    #[inline]
    pub fn gate(&mut self, path: usize, held: Option<Instant>, now: Instant) {
        if self.is_on() {
            self.on_gate(path, held, now);
        }
    }

    fn on_gate(&mut self, path: usize, held: Option<Instant>, now: Instant) {
        let Some(known) = self.held.get_mut(path).filter(|known| **known != held) else {
            return;
        };
        *known = held;
        let path = u8::try_from(path).unwrap_or(u8::MAX);
        let held_us = held.map(|until| micros(until.since(now)));
        self.note(now, Seen::Gate { path, held_us });
    }

    /// A bulk packet that entered the card at `entered_at` left it at `left_at`.
    #[inline]
    pub fn bulk(&mut self, path: usize, entered_at: Instant, left_at: Instant) {
        if self.is_on() {
            self.on_bulk(path, entered_at, left_at);
        }
    }

    fn on_bulk(&mut self, path: usize, entered_at: Instant, left_at: Instant) {
        let goes_on = self.stay(path).is_some_and(|stay| entered_at <= stay.until + TOGETHER);
        if !goes_on {
            self.end_stay(path, false);
        }
        let Some(slot) = self.bulk.get_mut(path) else { return };
        let stay = slot.get_or_insert(Stay {
            since: entered_at,
            until: left_at,
            packets: 0,
        });
        stay.until = stay.until.max(left_at);
        stay.packets = stay.packets.saturating_add(1);
        if stay.until.since(stay.since) >= PIECE {
            self.end_stay(path, true);
        }
    }

    fn stay(&self, path: usize) -> Option<&Stay> {
        self.bulk.get(path).and_then(Option::as_ref)
    }

    /// Notes the bulk so far. What follows continues it, if it may.
    fn end_stay(&mut self, path: usize, may_continue: bool) {
        let Some(stay) = self.stay(path).copied() else { return };
        if stay.packets > 0 {
            let (took_us, packets) = (micros(stay.until.since(stay.since)), stay.packets);
            let path = u8::try_from(path).unwrap_or(u8::MAX);
            self.note(stay.until, Seen::Bulk { path, took_us, packets });
        }
        // Noting may have ended it all.
        let continued = may_continue && self.is_on();
        if let Some(slot) = self.bulk.get_mut(path) {
            *slot = continued.then_some(Stay {
                since: stay.until,
                until: stay.until,
                packets: 0,
            });
        }
    }
}

impl Seen {
    fn of(at: Instant, event: &Event) -> Option<Seen> {
        Some(match event {
            // `Scope::gate` is told of each answer.
            Event::Said { .. } | Event::Gate(_) => return None,
            Event::Permitted(permitted) => Seen::Permitted(*permitted),
            Event::Led(super::Led::Deposed, _) => Seen::Led(None),
            Event::Led(_, epoch) => Seen::Led(Some(epoch.robot)),
            Event::Window(None) => Seen::Window(None),
            Event::Window(Some(window)) => {
                let ahead = i64::from(micros(window.start.since(at))) - i64::from(micros(at.since(window.start)));
                let ahead = i32::try_from(ahead).unwrap_or(i32::MAX);
                Seen::Window(Some((ahead, micros(window.end.since(window.start)))))
            }
        })
    }
}

/// Whole microseconds, up to an hour's.
pub(super) fn micros(span: Duration) -> u32 {
    u32::try_from(span.as_nanos() / 1_000).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLOCK: ClockId = ClockId(7);

    fn at(us: u64) -> Instant {
        Instant::from_nanos(1_000_000_000 + us * 1_000)
    }

    fn on() -> Scope {
        let mut scope = Scope::default();
        assert!(scope.watch(at(0)));
        scope
    }

    #[test]
    fn nothing_is_kept_until_somebody_looks_and_after_nobody_does() {
        let mut scope = Scope::default();
        scope.note(at(0), Seen::Permitted(true));
        scope.bulk(0, at(0), at(1));
        scope.made(0, at(0));
        scope.left(0, at(1));
        assert!(scope.seen.is_empty() && !scope.is_on());
        assert!(scope.watch(at(2)) && !scope.watch(at(3)));
        scope.note(at(4), Seen::Permitted(true));
        assert_eq!(scope.seen.len(), 1);
        scope.note(at(5_000_004), Seen::Permitted(false));
        assert!(scope.seen.is_empty() && !scope.is_on(), "nobody has looked for 5 s");
        assert!(scope.watch(at(9_000_000)), "the state has to be noted anew");
        scope.note(at(9_000_000), Seen::Permitted(true));
        let look = scope.look(CLOCK, Some((CLOCK, 0)), at(9_000_000));
        assert_eq!((look.lost, look.next), (1, 2), "its numbers go on");
    }

    #[test]
    fn each_watcher_sees_each_event_once() {
        let mut scope = on();
        scope.note(at(10), Seen::Permitted(true));
        let first = scope.look(CLOCK, None, at(15));
        assert_eq!(first.events, [(5, Seen::Permitted(true))]);
        scope.note(at(20), Seen::Permitted(false));
        let second = scope.look(CLOCK, Some(first.cursor()), at(20));
        assert_eq!(
            (second.events.as_slice(), second.lost),
            (&[(0, Seen::Permitted(false))][..], 0)
        );
        assert_eq!(
            scope.look(CLOCK, None, at(20)).events.len(),
            2,
            "another one, from the start"
        );
        assert!(scope.look(CLOCK, Some(second.cursor()), at(20)).events.is_empty());
        let earlier_start = Some((ClockId(6), 2));
        assert_eq!(scope.look(CLOCK, earlier_start, at(20)).events.len(), 2);
    }

    #[test]
    fn control_is_seen_from_when_it_is_made_until_it_has_left() {
        let mut scope = on();
        scope.made(3, at(100));
        scope.left(3, at(350));
        scope.left(3, at(400));
        let events = scope.look(CLOCK, None, at(400)).events;
        assert_eq!(events, [(50, Seen::Control { flow: 3, took_us: 250 })]);
    }

    #[test]
    fn a_hold_is_seen_once_and_again_if_its_window_changes() {
        let mut scope = on();
        let (path, until) = (1, Some(at(500)));
        for held in [None, until, until, Some(at(700)), None, None] {
            scope.gate(1, held, at(100));
        }
        let held = scope
            .look(CLOCK, None, at(100))
            .events
            .into_iter()
            .map(|(_, seen)| seen);
        let expected = [Some(400), Some(600), None].map(|held_us| Seen::Gate { path, held_us });
        assert!(held.eq(expected));
    }

    #[test]
    fn bulk_is_seen_in_pieces_without_a_gap() {
        let mut scope = on();
        for us in (0..120_000).step_by(400) {
            scope.bulk(0, at(us), at(us + 300));
        }
        // The gate closes, and the card runs empty.
        scope.bulk(0, at(130_000), at(130_300));
        let events = scope.look(CLOCK, None, at(140_000)).events;
        let spans: Vec<(u64, u64, u32)> = events
            .iter()
            .map(|(ago, seen)| match seen {
                Seen::Bulk { took_us, packets, .. } => {
                    let end = 140_000 - u64::from(*ago);
                    (end - u64::from(*took_us), end, *packets)
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(spans.iter().map(|(_, _, packets)| packets).sum::<u32>(), 301);
        assert_eq!((spans[0].0, spans[spans.len() - 1]), (0, (130_000, 130_300, 1)));
        let joined = spans.windows(2).filter(|pair| pair[0].1 == pair[1].0).count();
        assert_eq!(joined, spans.len() - 2, "one gap: {spans:?}");
        assert!(spans.iter().all(|(start, end, _)| end - start <= 51_000), "{spans:?}");
    }

    proptest! {
        /// Whatever happens, a watcher that looks in time misses nothing, and no look is too long.
        #[test]
        fn what_is_not_seen_is_counted(bursts in proptest::collection::vec(0usize..6_000, 1..6)) {
            let mut scope = on();
            let (mut next, mut seen, mut lost, mut noted) = (None, 0, 0, 0);
            for burst in bursts {
                for _ in 0..burst {
                    scope.note(at(1), Seen::Permitted(true));
                }
                noted += burst as u64;
                loop {
                    let look = scope.look(CLOCK, next, at(1));
                    prop_assert!(look.events.len() <= LOOK_MAX);
                    // Without a number, nothing counts as lost.
                    lost += if next.is_none() { look.next - look.events.len() as u64 } else { look.lost };
                    seen += look.events.len() as u64;
                    next = Some(look.cursor());
                    if look.events.is_empty() {
                        break;
                    }
                }
                prop_assert!(scope.seen.len() <= KEPT_MAX);
            }
            prop_assert_eq!(seen + lost, noted);
        }
    }
}
