//! The simulation's timers, in order of time; within an instant, first come, first served.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use coorp_core::{Instant, RobotId};

/// The purpose of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A robot's sensor samples.
    Sense(RobotId),
    /// A message, by its index among the delayed ones, has passed its sender's stack and reaches the host queue.
    Stack(u32),
    /// The leader's inference ends.
    Inference,
    /// The leader has waited long enough for perceptions.
    Leader,
    /// A robot's training ends.
    Trained(RobotId),
    /// The batch of training data is full (only if no control loop fills it).
    BatchFull,
    /// The deadline of a TCP connection's sender, or below, of its receiver.
    Sender(u32),
    Receiver(u32),
    /// The deadline of a robot's permits, windows or gate.
    Agent(RobotId),
    /// A plain flow sends its next message, starts or stops.
    FlowTick(u32),
    FlowStart(u32),
    FlowStop(u32),
    /// Robots have moved, so links are recomputed.
    Move,
    /// The team file's script changes links.
    Script,
    /// A second has passed, so throughput is sampled.
    Second,
    /// The recorded second starts or ends.
    RecordStart,
    RecordEnd,
    /// The next injected fault.
    Fault,
}

impl Timer {
    /// Returns whether the timer only records what happens.
    pub fn only_records(self) -> bool {
        matches!(self, Timer::Second | Timer::RecordStart | Timer::RecordEnd)
    }
}

/// Alarms by time.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u64, Timer)>>,
    set: u64,
}

impl Timers {
    /// Sets `timer` to `at`.
    pub fn set(&mut self, at: Instant, timer: Timer) {
        self.heap.push(Reverse((at, self.set, timer)));
        self.set += 1;
    }

    /// Returns when the next alarm is due.
    pub fn next(&self) -> Instant {
        self.heap.peek().map_or(Instant::FAR_FUTURE, |Reverse((at, ..))| *at)
    }

    /// Takes the next alarm.
    pub fn pop(&mut self) -> Option<Timer> {
        self.heap.pop().map(|Reverse((.., timer))| timer)
    }
}

/// The earliest alarm set for an object that keeps moving its deadline, so that alarms are not set twice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Armed(Instant);

impl Default for Armed {
    fn default() -> Self {
        Armed(Instant::FAR_FUTURE)
    }
}

impl Armed {
    /// Makes sure that `timer` goes off by `deadline`. A later deadline than the one set needs no alarm, because the
    /// early alarm finds nothing due and arms again.
    pub fn arm(&mut self, deadline: Instant, timer: Timer, timers: &mut Timers) {
        if deadline < self.0 {
            self.0 = deadline;
            timers.set(deadline, timer);
        }
    }

    /// Handles an alarm that went off. Returns whether it is the armed one, so that its object must be examined.
    pub fn went_off(&mut self, now: Instant) -> bool {
        let current = self.0 <= now;
        if current {
            self.0 = Instant::FAR_FUTURE;
        }
        current
    }
}
