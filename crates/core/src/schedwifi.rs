//! SchedWiFi's reserved windows, the global-planning baseline (Deng 2022, section VI, eq. 4).
//!
//! [`st_window`] is the time reserved for one message of a control flow: room for every retransmission between two
//! guards. [`Schedule`] places the windows of all flows one after another within the cycle in which their periods
//! repeat. It widens each window on both sides by the bound on clock skew, and delays those that would overlap. A
//! robot's gate uses these windows instead of predicted ones. This is time-aware shaping on stock hardware, as Deng
//! 2022 emulates it.
//!
//! Left out: distributing the schedule and synchronising the clocks, which the baseline takes as given.

use crate::windows::Window;
use crate::{Duration, FlowId, Instant};
use serde::{Deserialize, Serialize};

/// The guard before and after each ST window.
const GUARD: Duration = Duration::from_micros(25);
/// The maximum number of windows in a cycle.
pub const SLOTS_MAX: usize = 65_536;

/// Returns the window for one message of `bytes` at `bandwidth_bps` bits per second (eq. 4). It covers `retries`
/// retransmissions, each of which takes the message, two `sifs` and an acknowledgement of `tx_ack`. With zero bandwidth
/// the window is infinite, and no schedule accepts it.
pub fn st_window(bytes: u64, bandwidth_bps: f64, sifs: Duration, tx_ack: Duration, retries: u32) -> Duration {
    if bandwidth_bps.is_nan() || bandwidth_bps <= 0.0 {
        return Duration::MAX;
    }
    let transmission = Duration::from_secs_f64(bytes as f64 * 8.0 / bandwidth_bps) + sifs * 2 + tx_ack;
    GUARD * 2 + transmission * (u64::from(retries) + 1)
}

/// A control flow that needs a window in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledFlow {
    /// The flow.
    pub flow: FlowId,
    /// Time between two messages.
    pub period: Duration,
    /// When the first message is due, relative to the schedule's origin.
    pub phase: Duration,
    /// The window that one message needs, from [`st_window`].
    pub length: Duration,
}

/// A flow's window as placed, including skew, relative to the start of the cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// The flow.
    pub flow: FlowId,
    /// When the window begins.
    pub start: Duration,
    /// The length. The last window may extend into the next cycle.
    pub length: Duration,
}

/// The reason why a schedule is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleError {
    /// The windows leave no time for anything else.
    DoesNotFit {
        /// The total length of the windows in one cycle.
        needed: Duration,
        /// The length of the cycle.
        cycle: Duration,
    },
    /// The common cycle of the periods is too long: it would have more than [`SLOTS_MAX`] windows.
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
                    "the flows' common cycle is too long: choose periods that divide each other"
                )
            }
            ScheduleError::NoPeriod(FlowId(flow)) => write!(f, "flow {flow} has a period of zero"),
        }
    }
}

impl std::error::Error for ScheduleError {}

/// The ST windows of a team, repeated forever.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    origin: Instant,
    cycle: Duration,
    slots: Vec<Slot>,
    /// The slots, with adjacent ones joined: disjoint and in order; the last may extend into the next cycle.
    spans: Vec<(Duration, Duration)>,
}

impl Schedule {
    /// Places the windows of `flows`, whose phases are relative to `origin`, widened by `clock_skew` on both sides.
    /// Without flows the schedule is empty.
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

    /// Returns the windows of one cycle, ordered by start.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Returns the same plan on another clock, which shows `origin` when the plan's own clock shows the plan's origin.
    #[must_use]
    pub fn with_origin(self, origin: Instant) -> Self {
        Schedule { origin, ..self }
    }

    /// Returns the period after which the windows repeat.
    pub fn cycle(&self) -> Duration {
        self.cycle
    }

    /// Returns the reserved share of time.
    pub fn share(&self) -> f64 {
        let reserved = self.slots.iter().fold(Duration::ZERO, |sum, s| sum + s.length);
        if self.slots.is_empty() {
            0.0
        } else {
            reserved.as_secs_f64() / self.cycle.as_secs_f64()
        }
    }

    /// Returns the window that contains `now`, or the next one; adjacent windows count as one. `None` without flows.
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
        // The last window of the previous cycle may still be open, except before the schedule's own start.
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

/// Returns the least common multiple of the periods, if its number of windows is within the limit.
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
        // Half the range of u64 leaves room to add a phase within one cycle.
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

/// Delays each window that would begin before the previous one has ended, cyclically. Windows that do not fit at the
/// cycle's end delay windows at its beginning, so two rounds are enough.
fn push_back(slots: &mut [Slot], cycle: Duration) {
    let mut free_from = Duration::ZERO;
    for _ in 0..2 {
        for slot in slots.iter_mut() {
            slot.start = slot.start.max(free_from);
            free_from = slot.start + slot.length;
        }
        free_from = free_from.saturating_sub(cycle);
    }
    // A window pushed past the end starts in the next cycle, at the same place as in this one.
    for slot in slots.iter_mut().filter(|s| s.start >= cycle) {
        slot.start = slot.start.saturating_sub(cycle);
    }
    slots.sort_by_key(|s| (s.start, s.flow));
}

/// Joins adjacent windows, including the last with the first of the next cycle.
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
mod tests;
