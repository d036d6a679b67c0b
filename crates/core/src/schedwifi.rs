//! SchedWiFi's reserved windows, the global-planning baseline (001, section VI, eq. 4).
//!
//! [`st_window`] is the time reserved for one message of a control flow: room for every retransmission between
//! two guards. [`Schedule`] lays the windows of all flows one after another within the cycle in which their
//! periods repeat, each widened by the bound on clock skew on both sides, and pushes back those that would
//! overlap. A robot feeds its gate with these windows in place of predicted ones: that is time-aware shaping
//! on stock hardware, as 001 emulates it.
//!
//! Left out: distributing the schedule and keeping the clocks together, which the baseline takes as given.

use crate::windows::Window;
use crate::{Duration, FlowId, Instant};

/// The guard before and after each ST window.
const GUARD: Duration = Duration::from_micros(25);
/// Most windows in one cycle.
pub const SLOTS_MAX: usize = 65_536;

/// Eq. 4: the window for one message of `bytes` at `bandwidth_bps` bits a second, with `retries` retransmissions
/// of which each takes the message, two `sifs` and an acknowledgement of `tx_ack`. Without any bandwidth the
/// window is endless, and no schedule takes it.
pub fn st_window(bytes: u64, bandwidth_bps: f64, sifs: Duration, tx_ack: Duration, retries: u32) -> Duration {
    if bandwidth_bps.is_nan() || bandwidth_bps <= 0.0 {
        return Duration::MAX;
    }
    let transmission = Duration::from_secs_f64(bytes as f64 * 8.0 / bandwidth_bps) + sifs * 2 + tx_ack;
    GUARD * 2 + transmission * (u64::from(retries) + 1)
}

/// A control flow that needs a window each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledFlow {
    /// Which.
    pub flow: FlowId,
    /// Time between two messages.
    pub period: Duration,
    /// When its first message is due, from the schedule's origin.
    pub phase: Duration,
    /// How long a window one message needs, by [`st_window`].
    pub length: Duration,
}

/// A flow's window as laid, skew included, relative to the start of the cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Whose.
    pub flow: FlowId,
    /// When the window begins.
    pub start: Duration,
    /// How long it lasts; the last one may reach into the next cycle.
    pub length: Duration,
}

/// Why there is no schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleError {
    /// The windows leave no time for anything else.
    DoesNotFit {
        /// What the windows of one cycle take.
        needed: Duration,
        /// The cycle.
        cycle: Duration,
    },
    /// The periods repeat too seldom: a cycle would have more than [`SLOTS_MAX`] windows.
    TooManySlots,
    /// A flow has a period of zero.
    NoPeriod(FlowId),
}

impl std::fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ScheduleError::DoesNotFit { needed, cycle } => {
                write!(
                    f,
                    "ST windows take {needed} of each {cycle}: use fewer flows, longer periods or fewer retries"
                )
            }
            ScheduleError::TooManySlots => {
                write!(
                    f,
                    "the flows' periods repeat together too seldom: choose periods that divide one another"
                )
            }
            ScheduleError::NoPeriod(FlowId(flow)) => write!(f, "flow {flow} has a period of zero"),
        }
    }
}

impl std::error::Error for ScheduleError {}

/// The ST windows of a team, for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    origin: Instant,
    cycle: Duration,
    slots: Vec<Slot>,
    /// The slots with those that touch joined: disjoint, in order; the last may reach into the next cycle.
    spans: Vec<(Duration, Duration)>,
}

impl Schedule {
    /// Lays the windows of `flows`, whose phases count from `origin`, widened by `clock_skew` on both sides.
    /// No flows make an empty schedule.
    pub fn lay(flows: &[ScheduledFlow], clock_skew: Duration, origin: Instant) -> Result<Schedule, ScheduleError> {
        let cycle = common_cycle(flows)?;
        let mut slots = Vec::new();
        let mut needed = Duration::ZERO;
        for f in flows {
            let length = f.length + clock_skew * 2;
            let first = (f.phase.as_nanos() % f.period.as_nanos()) + cycle.as_nanos()
                - clock_skew.as_nanos() % cycle.as_nanos();
            for k in 0..cycle.as_nanos() / f.period.as_nanos() {
                needed += length;
                let start = Duration::from_nanos((first + k * f.period.as_nanos()) % cycle.as_nanos());
                slots.push(Slot {
                    flow: f.flow,
                    start,
                    length,
                });
            }
        }
        if !slots.is_empty() && needed >= cycle {
            return Err(ScheduleError::DoesNotFit { needed, cycle });
        }
        slots.sort_by_key(|s| (s.start, s.flow));
        push_back(&mut slots, cycle);
        let spans = join(&slots, cycle);
        Ok(Schedule {
            origin,
            cycle,
            slots,
            spans,
        })
    }

    /// The windows of one cycle, in the order of their start.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// After what time the windows repeat.
    pub fn cycle(&self) -> Duration {
        self.cycle
    }

    /// The share of time that is reserved.
    pub fn share(&self) -> f64 {
        let reserved = self.slots.iter().fold(Duration::ZERO, |sum, s| sum + s.length);
        if self.slots.is_empty() {
            0.0
        } else {
            reserved.as_secs_f64() / self.cycle.as_secs_f64()
        }
    }

    /// The window that `now` is in, or the next one; windows that touch are one. `None` without any flow.
    /// O(log n).
    pub fn window_at_or_after(&self, now: Instant) -> Option<Window> {
        let last = *self.spans.last()?;
        let cycle = self.cycle.as_nanos();
        let (cycle_start, within) = if now >= self.origin {
            let within = now.since(self.origin).as_nanos() % cycle;
            (now - Duration::from_nanos(within), Duration::from_nanos(within))
        } else {
            (self.origin, Duration::ZERO)
        };
        // The last window of the cycle before may still run, save before the schedule's own start.
        let overhang = (last.0 + last.1).saturating_sub(self.cycle);
        if within < overhang && now >= self.origin + self.cycle {
            let start = cycle_start - self.cycle.saturating_sub(last.0);
            return Some(Window {
                start,
                end: start + last.1,
            });
        }
        let next = self.spans.partition_point(|(start, length)| *start + *length <= within);
        let (start, length) = match self.spans.get(next) {
            Some((start, length)) => (cycle_start + *start, *length),
            None => (cycle_start + self.cycle + self.spans[0].0, self.spans[0].1),
        };
        Some(Window {
            start,
            end: start + length,
        })
    }
}

/// The least common multiple of the periods, while it holds few enough windows.
fn common_cycle(flows: &[ScheduledFlow]) -> Result<Duration, ScheduleError> {
    let mut cycle: u64 = 1;
    for f in flows {
        let period = f.period.as_nanos();
        if period == 0 {
            return Err(ScheduleError::NoPeriod(f.flow));
        }
        let (mut a, mut b) = (cycle, period);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        // Half the range of u64 leaves room for adding a phase within one cycle.
        cycle = (cycle / a)
            .checked_mul(period)
            .filter(|c| *c < u64::MAX / 4)
            .ok_or(ScheduleError::TooManySlots)?;
    }
    let slots: u128 = flows.iter().map(|f| u128::from(cycle / f.period.as_nanos())).sum();
    if slots > SLOTS_MAX as u128 {
        return Err(ScheduleError::TooManySlots);
    }
    Ok(Duration::from_nanos(cycle))
}

/// Pushes back each window that would begin before the one before it has ended, around the cycle: what the
/// cycle's end cannot take pushes at its beginning, so two rounds settle it.
fn push_back(slots: &mut [Slot], cycle: Duration) {
    let mut free_from = Duration::ZERO;
    for _ in 0..2 {
        for slot in slots.iter_mut() {
            slot.start = slot.start.max(free_from);
            free_from = slot.start + slot.length;
        }
        free_from = free_from.saturating_sub(cycle);
    }
    // A window pushed past the end begins in the next cycle, which is the same place in this one.
    for slot in slots.iter_mut().filter(|s| s.start >= cycle) {
        slot.start = slot.start.saturating_sub(cycle);
    }
    slots.sort_by_key(|s| (s.start, s.flow));
}

/// Joins windows that touch, also the last with the first of the next cycle.
fn join(slots: &[Slot], cycle: Duration) -> Vec<(Duration, Duration)> {
    let mut spans: Vec<(Duration, Duration)> = Vec::new();
    for slot in slots {
        match spans.last_mut() {
            Some((start, length)) if *start + *length >= slot.start => {
                *length = (slot.start + slot.length).saturating_sub(*start)
            }
            _ => spans.push((slot.start, slot.length)),
        }
    }
    if let (Some(first), Some(last)) = (spans.first().copied(), spans.last().copied()) {
        if spans.len() > 1 && last.0 + last.1 >= cycle + first.0 {
            spans.remove(0);
            if let Some(last) = spans.last_mut() {
                last.1 = (cycle + first.0 + first.1).saturating_sub(last.0);
            }
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1_000)
    }

    fn flow(id: u32, period: u64, phase: u64, length: u64) -> ScheduledFlow {
        ScheduledFlow {
            flow: FlowId(id),
            period: us(period),
            phase: us(phase),
            length: us(length),
        }
    }

    #[test]
    fn equation_four_is_met() {
        // 12 KiB at 200 Mbit/s: 50 us + (491.52 us + 32 us + 30 us) * 8.
        let window = st_window(12 * 1024, 200e6, us(16), us(30), 7);
        assert_eq!(window.as_nanos(), 50_000 + (491_520 + 62_000) * 8);
        assert_eq!(st_window(1, 0.0, us(16), us(30), 7), Duration::MAX);
    }

    #[test]
    fn windows_are_laid_one_after_another() {
        let s = Schedule::lay(
            &[flow(1, 100, 10, 20), flow(2, 100, 10, 20), flow(3, 100, 80, 10)],
            us(0),
            at(1_000),
        )
        .unwrap();
        let starts: Vec<_> = s.slots().iter().map(|slot| slot.start.as_nanos() / 1_000).collect();
        assert_eq!(starts, [10, 30, 80]);
        let window = |now| s.window_at_or_after(at(now)).unwrap();
        assert_eq!(
            window(0),
            Window {
                start: at(1_010),
                end: at(1_050)
            }
        );
        assert_eq!(
            window(1_049),
            Window {
                start: at(1_010),
                end: at(1_050)
            }
        );
        assert_eq!(
            window(1_050),
            Window {
                start: at(1_080),
                end: at(1_090)
            }
        );
        assert_eq!(
            window(1_095),
            Window {
                start: at(1_110),
                end: at(1_150)
            }
        );
        assert!((s.share() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn skew_widens_both_sides_and_may_wrap() {
        let s = Schedule::lay(&[flow(1, 100, 0, 20)], us(5), at(0)).unwrap();
        assert_eq!(
            s.slots(),
            [Slot {
                flow: FlowId(1),
                start: us(95),
                length: us(30)
            }]
        );
        assert_eq!(
            s.window_at_or_after(at(110)),
            Some(Window {
                start: at(95),
                end: at(125)
            })
        );
        assert_eq!(
            s.window_at_or_after(at(125)),
            Some(Window {
                start: at(195),
                end: at(225)
            })
        );
    }

    #[test]
    fn windows_pushed_past_the_end_begin_the_next_cycle() {
        let s = Schedule::lay(
            &[flow(1, 100, 80, 30), flow(2, 100, 85, 30), flow(3, 100, 5, 10)],
            us(0),
            at(0),
        )
        .unwrap();
        let slots: Vec<_> = s
            .slots()
            .iter()
            .map(|x| (x.flow.0, x.start.as_nanos() / 1_000))
            .collect();
        assert_eq!(slots, [(2, 10), (3, 40), (1, 80)]);
        assert_eq!(
            s.window_at_or_after(at(220)),
            Some(Window {
                start: at(180),
                end: at(250)
            })
        );
    }

    #[test]
    fn too_much_is_refused_with_what_it_would_need() {
        let error = Schedule::lay(&[flow(1, 100, 0, 60), flow(2, 100, 0, 40)], us(0), at(0)).unwrap_err();
        assert_eq!(
            error,
            ScheduleError::DoesNotFit {
                needed: us(100),
                cycle: us(100)
            }
        );
        let endless = ScheduledFlow {
            length: Duration::MAX,
            ..flow(1, 100, 0, 0)
        };
        assert!(Schedule::lay(&[endless], us(1), at(0)).is_err());
        assert_eq!(
            Schedule::lay(&[flow(4, 0, 0, 1)], us(0), at(0)),
            Err(ScheduleError::NoPeriod(FlowId(4)))
        );
        let odd = [flow(1, 33_331, 0, 1), flow(2, 33_333, 0, 1), flow(3, 33_334, 0, 1)];
        assert_eq!(Schedule::lay(&odd, us(0), at(0)), Err(ScheduleError::TooManySlots));
    }

    #[test]
    fn no_flows_reserve_nothing() {
        let s = Schedule::lay(&[], us(5), at(0)).unwrap();
        assert_eq!((s.window_at_or_after(at(7)), s.share()), (None, 0.0));
    }

    proptest! {
        /// Slots never overlap, around the cycle too; every flow has its share; windows found are never over,
        /// leave no slot out, and follow one another with a gap.
        #[test]
        fn slots_never_overlap_and_every_one_is_found(
            flows in prop::collection::vec((0..4usize, 0..1_000u64, 1..12u64), 1..10),
            skew in 0..3u64,
            origin in 0..5_000u64,
        ) {
            let flows: Vec<_> = flows.into_iter().enumerate()
                .map(|(i, (period, phase, length))| flow(i as u32, [50, 100, 200, 300][period], phase, length))
                .collect();
            let Ok(s) = Schedule::lay(&flows, us(skew), at(origin)) else { return Ok(()) };
            let cycle = s.cycle();
            for (i, slot) in s.slots().iter().enumerate() {
                let next = s.slots().get(i + 1).map_or(cycle + s.slots()[0].start, |n| n.start);
                prop_assert!(slot.start < cycle && slot.start + slot.length <= next, "{:?}", s.slots());
            }
            for f in &flows {
                let count = s.slots().iter().filter(|slot| slot.flow == f.flow).count() as u64;
                prop_assert_eq!(count, cycle.as_nanos() / f.period.as_nanos());
            }
            let begin = at(origin) + cycle;
            for slot in s.slots() {
                for inside in [begin + slot.start, begin + slot.start + slot.length - Duration::from_nanos(1)] {
                    let w = s.window_at_or_after(inside).unwrap();
                    prop_assert!(w.start <= inside && inside < w.end, "{slot:?} {w:?}");
                }
            }
            let mut now = begin;
            while now < begin + cycle * 2 {
                let w = s.window_at_or_after(now).unwrap();
                prop_assert!(w.end > now);
                let after = s.window_at_or_after(w.end).unwrap();
                prop_assert!(after.start > w.end);
                now = w.end;
            }
        }
    }
}
