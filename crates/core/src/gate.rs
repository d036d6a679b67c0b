//! Decides whether a bulk packet may enter the WNIC: the virtual-preemption layer (Deng 2022, section IV-C, algorithm
//! 2).
//!
//! [`CompletionTable`] is the completion time table (CTT): for n packets found in the WNIC, how long it took until n +
//! 1 had left. It keeps the newest samples and reads them at a percentile. [`Gate`] holds every packet that would not
//! have left before the protection window begins, and every packet inside the window.
//!
//! Beyond the algorithm:
//!
//! - The time for an n that was never seen is inferred. Between two neighbours it is interpolated linearly, and above
//!   the highest it is in proportion to the number of packets. Below the lowest it is the lowest itself, because fewer
//!   packets cannot take longer.
//! - A window excludes its end, so that a packet asked about at the end passes. A window that is over, or that ends
//!   before it begins, holds nothing.
//! - The distance that bulk keeps from a window may depend on its effect on the loops ([`Caution`]). Most loops
//!   tolerate that bulk sometimes runs into a window, some do not.
//! - `backlog_max` keeps the WNIC shallow at all times, so that an unpredicted message waits little.
//! - Until the first completion, only a few packets enter the WNIC, with or without a bound. Sending blindly would
//!   flood it, and a slow card keeps its queue for seconds.
//! - The table can lock itself in. If samples say that not even one packet fits between two windows, none passes, so no
//!   new sample ever corrects them. After [`FRUITLESS_HOLDS_MAX`] windows with an empty WNIC in which nothing passed,
//!   the table is cleared. If samples of a bad moment say that n packets take forever, n is never reached again. So a
//!   depth is forgotten if it had no sample for as long as the policy says while other depths had some.
//!
//! Left out: counting the packets in the WNIC and timestamping them at enqueue. The driver's own hooks do that.

use crate::windows::Window;
use crate::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// Number of consecutive holds with an empty WNIC and nothing passed, after which the table is cleared.
pub const FRUITLESS_HOLDS_MAX: u32 = 8;
/// Longest gap between completions that counts in full as time with completions.
const COMPLETIONS_APART_MAX: Duration = Duration::from_millis(100);
/// Maximum number of packets in the WNIC while nothing is known about it.
const UNKNOWN_MAX: usize = 8;
/// Longest hold for a full WNIC while nothing is known about it.
const UNKNOWN_HOLD_MAX: Duration = Duration::from_millis(100);
/// Factor by which the backlog may be longer while no loop is late, because cards then fill longer aggregates.
const CALM_BACKLOGS: u64 = 4;
/// Greatest depth of a WNIC queue for which the table keeps samples; greater depths are extrapolated.
pub const DEPTH_MAX: usize = 1024;
/// Maximum number of samples kept for one depth.
pub const SAMPLES_MAX: usize = 256;

/// The time that the WNIC takes to send n + 1 packets, learnt from completions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CompletionTable {
    depth: usize,
    samples_max: usize,
    percentile: f64,
    /// The zero-based rank that is read for a depth with `samples_max` samples.
    rank_full: usize,
    /// For each n, its samples in order of arrival, in a ring of `samples_max` places. In nanoseconds: 32 bits hold 4.3
    /// s, and longer times count as that. The smaller the table, the more of it stays in the cache.
    rings: Vec<u32>,
    /// For each n, the same samples in ascending order.
    sorted: Vec<u32>,
    rows: Vec<Row>,
    /// One bit per n: whether it has samples.
    seen: Vec<u64>,
    /// One more than the greatest n that has samples; 0 if none has.
    seen_end: usize,
    /// Total time with completions; the time of the newest; `busy` at the last search for stale depths.
    busy: Duration,
    newest_at: Option<Instant>,
    swept: Duration,
    stale_after: Duration,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Row {
    /// `busy` when the newest sample arrived.
    newest: Duration,
    len: u16,
    next: u16,
}

impl CompletionTable {
    /// Creates a table for up to `depth` packets (clamped to 1 to [`DEPTH_MAX`]). It keeps `samples_max` samples for
    /// each depth (N_samp, clamped to 1 to [`SAMPLES_MAX`]) and reads them at `percentile` (p_prot, from 0 to 1).
    pub fn new(depth: usize, samples_max: usize, percentile: f64) -> Self {
        let depth = depth.clamp(1, DEPTH_MAX);
        let samples_max = samples_max.clamp(1, SAMPLES_MAX);
        let percentile = bounded(percentile);
        CompletionTable {
            depth,
            samples_max,
            percentile,
            rank_full: rank(percentile, samples_max),
            rings: vec![0; depth * samples_max],
            sorted: vec![0; depth * samples_max],
            rows: vec![Row::default(); depth],
            seen: vec![0; depth.div_ceil(64)],
            seen_end: 0,
            busy: Duration::ZERO,
            newest_at: None,
            swept: Duration::ZERO,
            stale_after: Duration::MAX,
        }
    }

    /// Returns the table, set to forget the samples of a depth without a new one for `stale_after`. Times without any
    /// completion do not count.
    pub fn forgetting(mut self, stale_after: Duration) -> Self {
        self.stale_after = stale_after;
        self
    }

    /// Records that a packet that had found `n` before it left at `now`, `took` after it was enqueued. O(N_samp).
    pub fn record(&mut self, n: usize, took: Duration, now: Instant) {
        if n >= self.depth {
            return;
        }
        let apart = now.since(self.newest_at.replace(now).unwrap_or(now));
        self.busy += apart.min(COMPLETIONS_APART_MAX);
        if self.busy.saturating_sub(self.swept) >= self.stale_after / 4 {
            self.forget_stale();
        }
        let row = &mut self.rows[n];
        let first = n * self.samples_max;
        let ring = &mut self.rings[first..first + self.samples_max];
        let sorted = &mut self.sorted[first..first + self.samples_max];
        let value = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
        let (next, len) = (usize::from(row.next), usize::from(row.len));
        // The place that becomes free: the oldest sample's, or the next one while there is room. Samples between it and
        // the new sample's place move by one.
        let free = if len == self.samples_max {
            sorted.partition_point(|s| *s < ring[next])
        } else {
            row.len += 1;
            len
        };
        let mut place = sorted[..len].partition_point(|s| *s <= value);
        if place > free {
            place -= 1;
            sorted.copy_within(free + 1..=place, free);
        } else {
            sorted.copy_within(place..free, place + 1);
        }
        (sorted[place], ring[next]) = (value, value);
        row.next = if next + 1 == self.samples_max { 0 } else { row.next + 1 };
        row.newest = self.busy;
        if len == 0 {
            self.seen[n / 64] |= 1 << (n % 64);
            self.seen_end = self.seen_end.max(n + 1);
        }
    }

    /// Returns how long `n + 1` packets take, or zero if the table is empty.
    #[inline]
    pub fn time(&self, n: usize) -> Duration {
        match self.rows.get(n) {
            Some(row) if row.len > 0 => Duration::from_nanos(self.read(n, row.len)),
            _ => self.infer(n),
        }
    }

    /// Returns whether the table has no samples.
    pub fn is_empty(&self) -> bool {
        self.seen_end == 0
    }

    /// Sets the percentile at which samples are read from now on.
    pub fn set_percentile(&mut self, percentile: f64) {
        self.percentile = bounded(percentile);
        self.rank_full = rank(self.percentile, self.samples_max);
    }

    /// Returns the nearest-rank percentile of depth `n`, which has `len` samples: the smallest sample that the
    /// percentile's share of the samples does not exceed.
    #[inline]
    fn read(&self, n: usize, len: u16) -> u64 {
        let len = usize::from(len);
        let rank = if len == self.samples_max {
            self.rank_full
        } else {
            rank(self.percentile, len)
        };
        u64::from(self.sorted[n * self.samples_max + rank])
    }

    /// Forgets all samples.
    pub fn clear(&mut self) {
        self.rows.fill(Row::default());
        self.seen.fill(0);
        self.seen_end = 0;
    }

    #[cold]
    fn forget_stale(&mut self) {
        self.swept = self.busy;
        for n in 0..self.seen_end {
            if self.rows[n].len > 0 && self.busy.saturating_sub(self.rows[n].newest) > self.stale_after {
                self.rows[n] = Row::default();
                self.seen[n / 64] &= !(1 << (n % 64));
            }
        }
        self.seen_end = self.rows[..self.seen_end]
            .iter()
            .rposition(|row| row.len > 0)
            .map_or(0, |n| n + 1);
    }

    #[cold]
    fn infer(&self, n: usize) -> Duration {
        let Some(highest) = self.seen_end.checked_sub(1) else {
            return Duration::ZERO;
        };
        let read = |n: usize| self.read(n, self.rows[n].len);
        let ns = if n > highest {
            // u128, because the product of a depth from outside and a sample may exceed 64 bits.
            let scaled = u128::from(read(highest)) * (n as u128 + 1) / (highest as u128 + 1);
            u64::try_from(scaled).unwrap_or(u64::MAX)
        } else {
            let above = self.seen_from(n).unwrap_or(highest);
            match self.seen_before(n) {
                None => read(above),
                Some(below) => {
                    let rise = read(above).saturating_sub(read(below));
                    let part = u128::from(rise) * (n - below) as u128 / (above - below) as u128;
                    read(below).saturating_add(u64::try_from(part).unwrap_or(rise))
                }
            }
        };
        Duration::from_nanos(ns)
    }

    /// Returns the lowest n at or above `n` that has samples.
    fn seen_from(&self, n: usize) -> Option<usize> {
        let (mut word, mut mask) = (n / 64, u64::MAX << (n % 64));
        while word < self.seen.len() {
            let bits = self.seen[word] & mask;
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
            (word, mask) = (word + 1, u64::MAX);
        }
        None
    }

    /// Returns the highest n below `n` that has samples.
    fn seen_before(&self, n: usize) -> Option<usize> {
        let (mut word, mut mask) = (n / 64, (1u64 << (n % 64)) - 1);
        loop {
            let bits = self.seen[word] & mask;
            if bits != 0 {
                return Some(word * 64 + 63 - bits.leading_zeros() as usize);
            }
            (word, mask) = (word.checked_sub(1)?, u64::MAX);
        }
    }
}

/// Returns the zero-based nearest rank among `len` samples.
fn rank(percentile: f64, len: usize) -> usize {
    ((percentile * len as f64).ceil() as usize).clamp(1, len) - 1
}

fn bounded(percentile: f64) -> f64 {
    if percentile.is_nan() {
        1.0
    } else {
        percentile.clamp(0.0, 1.0)
    }
}

/// How careful the gate is. The level rises quickly with each loop that bulk made late and falls slowly with each other
/// loop. So it settles at the level at which bulk makes one loop in 130 late, or at its minimum or maximum.
///
/// First p_prot rises, from the policy's minimum to its maximum. Then bulk also keeps a distance from the window that
/// the longest PPDU does not bridge. If fewer loops than that are late without any caution, windows hold no bulk at all
/// (first do no harm).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Caution {
    percentile_low: f64,
    percentile_high: f64,
    /// From 0 to 1 the percentile rises, from 1 to 2 the distance. At [`Caution::CALM`], below 0, windows are off.
    level: f64,
}

impl Caution {
    /// The level for control whose lateness no one reports: the highest percentile.
    pub const UNJUDGED: f64 = 1.0;

    const UP: f64 = 0.04;
    const DOWN: f64 = 0.000_3;
    /// Steps below level 0. Windows are off after at most 250 loops in time, and a late loop brings them back for 125.
    const UP_CALM: f64 = 0.25;
    const DOWN_CALM: f64 = 0.002;
    const CALM: f64 = -0.5;
    const DISTANCE_MAX: Duration = Duration::from_millis(2);

    /// Returns the lowest caution with windows on. Loops do not change it if the higher percentile is not above the
    /// lower.
    pub fn new(percentile_low: f64, percentile_high: f64) -> Self {
        let percentile_low = bounded(percentile_low);
        Caution {
            percentile_low,
            percentile_high: bounded(percentile_high).max(percentile_low),
            level: 0.0,
        }
    }

    /// Returns this caution with windows off until bulk makes a loop late; unchanged if loops do not change it.
    pub fn calm(self) -> Self {
        let level = if self.percentile_high > self.percentile_low {
            Self::CALM
        } else {
            self.level
        };
        Caution { level, ..self }
    }

    /// Adjusts the level at the end of a loop.
    pub fn on_loop(&mut self, late_by_bulk: bool) {
        if self.percentile_high <= self.percentile_low {
            return;
        }
        let moved = match (late_by_bulk, self.level > 0.0) {
            (true, true) => self.level + Self::UP,
            (true, false) => (self.level + Self::UP_CALM).min(Self::UP),
            (false, true) => self.level - Self::DOWN,
            (false, false) => self.level - Self::DOWN_CALM,
        };
        self.level = moved.clamp(Self::CALM, 2.0);
    }

    /// Returns whether windows are off, because no loop has been late for long.
    pub fn is_calm(&self) -> bool {
        self.level <= Self::CALM
    }

    /// Returns the level, from -0.5, at which windows are off, to 2.
    pub fn level(&self) -> f64 {
        self.level
    }

    /// Returns this caution at another level.
    pub fn at_level(self, level: f64) -> Self {
        let level = if level.is_nan() {
            0.0
        } else {
            level.clamp(Self::CALM, 2.0)
        };
        Caution { level, ..self }
    }

    /// Returns p_prot, from 0 to 1.
    pub fn percentile(&self) -> f64 {
        self.percentile_low + (self.percentile_high - self.percentile_low) * self.level.clamp(0.0, 1.0)
    }

    /// Returns how long before a window the last packet should have left.
    pub fn distance(&self) -> Duration {
        Duration::from_secs_f64(Self::DISTANCE_MAX.as_secs_f64() * (self.level - 1.0).max(0.0))
    }
}

/// The gate's decision about a bulk packet that the driver wants to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Let the driver take it.
    Pass,
    /// Leave it in the queue and pause the queue.
    Hold {
        /// When to ask again; `None` means at the next completion.
        until: Option<Instant>,
    },
}

/// An action for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateAction {
    /// Resume the bulk queue.
    Resume,
}

/// Decides about every bulk packet of one WNIC queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Gate {
    window: Window,
    /// The policy's bound on the backlog, and the one in force.
    backlog_usual: Duration,
    backlog_max: Duration,
    distance: Duration,
    table: CompletionTable,
    /// While the queue is paused, the time at which it resumes without further input.
    paused_until: Option<Instant>,
    resume: bool,
    fruitless_holds: u32,
}

impl Gate {
    /// Creates a gate without a window. A packet is held whenever it and the packets before it would take longer than
    /// `backlog_max`, window or not. An empty WNIC takes one packet in any case.
    pub fn new(table: CompletionTable, backlog_max: Option<Duration>) -> Self {
        let backlog_max = backlog_max.unwrap_or(Duration::MAX);
        Gate {
            window: Window::NONE,
            backlog_usual: backlog_max,
            backlog_max,
            distance: Duration::ZERO,
            table,
            paused_until: None,
            resume: false,
            fruitless_holds: 0,
        }
    }

    /// Decides about a bulk packet that the driver wants to take while `n` are in the WNIC.
    #[inline]
    pub fn on_dequeue(&mut self, n: usize, now: Instant) -> Verdict {
        let time = self.table.time(n);
        // The common case: the packet keeps clear of the window, and the backlog is within its bound.
        let clear_of_window =
            now >= self.window.end || (now < self.window.start && self.window.start.since(now) > time + self.distance);
        if clear_of_window && (n == 0 || self.is_within_backlog(n, time)) {
            self.fruitless_holds = 0;
            return Verdict::Pass;
        }
        self.hold(n, now, clear_of_window)
    }

    /// Returns how long `n` packets in the WNIC take to leave, by the completion time table; zero if it is empty.
    pub fn time_below(&self, n: usize) -> Duration {
        n.checked_sub(1)
            .map_or(Duration::ZERO, |others| self.table.time(others))
    }

    /// Returns how many packets, from one to `most`, would pass together while `n` are in the WNIC. Changes nothing.
    pub fn room(&self, n: usize, most: usize, now: Instant) -> usize {
        let clear = |more: &usize| {
            let time = self.table.time(n + more);
            let window = now >= self.window.end
                || (now < self.window.start && self.window.start.since(now) > time + self.distance);
            window && self.is_within_backlog(n + more, time)
        };
        // More packets take longer, so the search ends at the first that does not fit.
        1 + (1..most).take_while(clear).count()
    }

    /// Records that a bulk packet has left. It had found `n_at_enqueue` before it at `enqueued_at`.
    #[inline]
    pub fn on_complete(&mut self, n_at_enqueue: usize, enqueued_at: Instant, now: Instant) {
        // After a backward step of the clock, the sample would say that packets take no time.
        if now >= enqueued_at {
            self.table.record(n_at_enqueue, now.since(enqueued_at), now);
        }
        self.on_left(now);
    }

    /// Records that something has left the WNIC, whether or not it gives a sample. A hold that is only for the backlog
    /// ends.
    #[inline]
    pub fn on_left(&mut self, now: Instant) {
        if self.paused_until.is_some() && !self.window_holds(now) {
            self.resume();
        }
    }

    /// Sets a new window, then resumes the queue, so that the next packet is judged by that window.
    pub fn on_window(&mut self, window: Window) {
        self.window = window;
        self.resume();
    }

    /// Sets the caution from now on.
    pub fn set_caution(&mut self, caution: Caution) {
        self.table.set_percentile(caution.percentile());
        self.distance = caution.distance();
        let times = if caution.is_calm() { CALM_BACKLOGS } else { 1 };
        self.backlog_max = self.backlog_usual * times;
    }

    /// Handles the deadline of [`Gate::next_deadline`]. Harmless at any other time.
    pub fn on_deadline(&mut self, now: Instant) {
        if self.paused_until.is_some_and(|until| now >= until) {
            self.resume();
        }
    }

    /// Returns when the queue resumes even without a new window; `None` while it is not paused.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Returns the next action, until `None`.
    #[inline]
    pub fn poll(&mut self) -> Option<GateAction> {
        std::mem::take(&mut self.resume).then_some(GateAction::Resume)
    }

    /// Returns whether the queue is paused.
    pub fn is_paused(&self) -> bool {
        self.paused_until.is_some()
    }

    /// Returns the window that is kept clear.
    #[inline]
    pub fn window(&self) -> Window {
        self.window
    }

    /// Returns whether a packet behind `n` others would leave before the window. Changes nothing.
    pub fn is_clear_of_window(&self, n: usize, now: Instant) -> bool {
        let needs = self.table.time(n) + self.distance;
        now >= self.window.end || (now < self.window.start && self.window.start.since(now) > needs)
    }

    /// Returns whether a packet behind `n` others is held for the backlog, window or not.
    pub fn is_held_for_backlog(&self, n: usize) -> bool {
        n > 0 && !self.is_within_backlog(n, self.table.time(n))
    }

    /// Returns how long a packet behind `n` others would take, and the bound on that time.
    pub fn backlog(&self, n: usize) -> (Duration, Duration) {
        (self.table.time(n), self.backlog_max)
    }

    /// Returns the completion times learnt so far.
    pub fn table(&self) -> &CompletionTable {
        &self.table
    }

    #[inline]
    fn is_within_backlog(&self, n: usize, time: Duration) -> bool {
        time <= self.backlog_max && (n < UNKNOWN_MAX || !self.table.is_empty())
    }

    fn window_holds(&self, now: Instant) -> bool {
        self.window.start <= now && now < self.window.end
    }

    #[cold]
    fn hold(&mut self, n: usize, now: Instant, clear_of_window: bool) -> Verdict {
        if clear_of_window {
            // Only the backlog holds the packet. If completions are never reported, the gate opens after a time.
            let most = if self.table.is_empty() {
                UNKNOWN_HOLD_MAX
            } else {
                Duration::MAX
            };
            self.paused_until = Some(now + self.backlog_max.max(self.table.time(n)).min(most));
            return Verdict::Hold { until: None };
        }
        let first_of_pause = self.paused_until.is_none();
        if n == 0 && first_of_pause && !self.window_holds(now) {
            self.fruitless_holds += 1;
            if self.fruitless_holds > FRUITLESS_HOLDS_MAX {
                self.fruitless_holds = 0;
                self.table.clear();
                return Verdict::Pass;
            }
        }
        self.paused_until = Some(self.window.end);
        Verdict::Hold {
            until: Some(self.window.end),
        }
    }

    fn resume(&mut self) {
        if self.paused_until.take().is_some() {
            self.resume = true;
        }
    }
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

    fn window(start: u64, end: u64) -> Window {
        Window {
            start: at(start),
            end: at(end),
        }
    }

    fn table(times: &[(usize, u64)]) -> CompletionTable {
        let mut table = CompletionTable::new(256, 16, 0.95);
        for (n, took) in times {
            table.record(*n, us(*took), at(0));
        }
        table
    }

    #[test]
    fn a_wnic_of_which_nothing_is_known_is_not_flooded() {
        let mut gate = Gate::new(CompletionTable::new(64, 8, 0.5), Some(us(1_000)));
        assert_eq!(gate.room(0, 64, at(0)), UNKNOWN_MAX);
        assert_eq!(gate.on_dequeue(UNKNOWN_MAX - 1, at(0)), Verdict::Pass);
        assert_eq!(gate.on_dequeue(UNKNOWN_MAX, at(0)), Verdict::Hold { until: None });
        gate.on_complete(7, at(0), at(200));
        assert_eq!(gate.on_dequeue(UNKNOWN_MAX, at(200)), Verdict::Pass);
    }

    #[test]
    fn the_table_reads_the_newest_samples_at_the_percentile() {
        let mut t = CompletionTable::new(4, 10, 0.9);
        for took in 1..=100 {
            t.record(2, us(took), at(took));
        }
        // The newest ten are 91 to 100; nine tenths of them are at most 99.
        assert_eq!(t.time(2), us(99));
        t.clear();
        assert_eq!(t.time(2), Duration::ZERO);
    }

    #[test]
    fn caution_rises_with_late_loops_and_settles() {
        let mut caution = Caution::new(0.5, 0.95);
        let loops = |caution: &mut Caution, count: usize, late_every: usize| {
            (1..=count).for_each(|k| caution.on_loop(k % late_every == 0));
            (caution.percentile(), caution.distance())
        };
        assert_eq!(loops(&mut caution, 9, 10), (0.5, Duration::ZERO));
        assert!(!caution.is_calm());
        let (percentile, distance) = loops(&mut caution, 5, 1);
        assert!(percentile > 0.55 && percentile < 0.7 && distance == Duration::ZERO);
        let (percentile, distance) = loops(&mut caution, 25, 1);
        assert!(
            percentile == 0.95 && distance > us(200) && distance < us(800),
            "{distance:?}"
        );
        assert!(loops(&mut caution, 1_000, 250).1 < distance, "fewer than one in 130");
        assert_eq!(loops(&mut caution, 100, 1).1, us(2_000));
        assert_eq!(loops(&mut caution, 8_000, 8_001), (0.5, Duration::ZERO));
        assert!(caution.is_calm(), "nobody is late");
        caution.on_loop(true);
        loops(&mut caution, 124, 125);
        assert!(!caution.is_calm(), "windows are there for 125 loops");
        loops(&mut caution, 2, 3);
        assert!(caution.is_calm(), "one in more is no reason for them");
        loops(&mut caution, 5, 1);
        assert!(caution.level() > 0.0);
        let mut none = Caution::new(0.9, 0.5).calm();
        assert!(!none.is_calm());
        assert_eq!(loops(&mut none, 100, 1), (0.9, Duration::ZERO));
    }

    #[test]
    fn caution_keeps_packets_off_the_window() {
        let mut g = Gate::new(table(&[(0, 300)]), None);
        g.on_window(window(5_000, 6_000));
        assert_eq!(g.on_dequeue(0, at(4_600)), Verdict::Pass);
        let mut caution = Caution::new(0.5, 0.95);
        (0..60).for_each(|_| caution.on_loop(true));
        g.set_caution(caution);
        assert_eq!(g.on_dequeue(0, at(2_600)), Verdict::Pass);
        assert!(matches!(g.on_dequeue(0, at(2_800)), Verdict::Hold { .. }));
    }

    #[test]
    fn depths_never_seen_are_inferred_from_their_neighbours() {
        let t = table(&[(9, 1_000), (19, 3_000)]);
        assert_eq!(t.time(0), us(1_000));
        assert_eq!(t.time(14), us(2_000));
        assert_eq!(t.time(39), us(6_000));
        assert_eq!(t.time(1_000_000).as_nanos(), 3_000_000 / 20 * 1_000_001);
        // Noise may make the greater depth faster. The inferred time still does not fall below its lower neighbour's.
        assert_eq!(table(&[(5, 900), (70, 800)]).time(66), us(900));
    }

    #[test]
    fn a_depth_that_is_reached_no_more_is_forgotten_once_others_have_shown_it_stale() {
        let mut t = table(&[(0, 300), (8, 900_000)]).forgetting(Duration::from_secs(4));
        for ms in 0..3_900 {
            t.record(0, us(300), at(ms * 1_000));
        }
        // An hour without bulk says nothing about either depth.
        t.record(0, us(300), at(3_600_000_000));
        assert_eq!(t.time(8), us(900_000));
        for ms in 0..1_500 {
            t.record(0, us(300), at(3_600_000_000 + ms * 1_000));
        }
        assert_eq!((t.time(8), t.time(0)), (us(2_700), us(300)));
    }

    #[test]
    fn a_packet_is_held_when_it_would_not_be_through_before_the_window() {
        let mut g = Gate::new(table(&[(0, 300), (9, 1_000)]), None);
        g.on_window(window(5_000, 6_000));
        assert_eq!(g.on_dequeue(9, at(3_999)), Verdict::Pass);
        assert_eq!(g.on_dequeue(9, at(4_000)), Verdict::Hold { until: Some(at(6_000)) });
        assert_eq!(g.on_dequeue(0, at(4_600)), Verdict::Pass);
        assert_eq!(g.on_dequeue(0, at(5_000)), Verdict::Hold { until: Some(at(6_000)) });
        assert_eq!(g.on_dequeue(0, at(5_999)), Verdict::Hold { until: Some(at(6_000)) });
        assert_eq!(g.on_dequeue(0, at(6_000)), Verdict::Pass);
    }

    #[test]
    fn a_new_window_is_in_force_before_the_queue_resumes() {
        let mut g = Gate::new(table(&[(0, 300)]), None);
        g.on_window(window(0, 1_000));
        assert!(matches!(g.on_dequeue(0, at(500)), Verdict::Hold { .. }));
        assert_eq!(g.poll(), None);
        g.on_window(window(1_200, 2_000));
        assert_eq!(g.poll(), Some(GateAction::Resume));
        assert_eq!(g.poll(), None);
        assert_eq!(g.on_dequeue(0, at(1_000)), Verdict::Hold { until: Some(at(2_000)) });
    }

    #[test]
    fn the_backlog_is_kept_short_and_opens_with_a_completion() {
        let mut g = Gate::new(table(&[(0, 300), (9, 3_000)]), Some(us(1_000)));
        assert_eq!(g.on_dequeue(9, at(0)), Verdict::Hold { until: None });
        assert!(g.next_deadline().is_some());
        g.on_complete(0, at(0), at(300));
        assert_eq!(g.poll(), Some(GateAction::Resume));
        assert_eq!(g.on_dequeue(1, at(300)), Verdict::Pass);
    }

    #[test]
    fn a_card_of_which_nothing_is_known_gets_a_few_packets() {
        for backlog_max in [None, Some(us(8_000))] {
            let mut g = Gate::new(table(&[]), backlog_max);
            let passed = (0..100)
                .take_while(|n| g.on_dequeue(*n, at(0)) == Verdict::Pass)
                .count();
            assert_eq!(passed, UNKNOWN_MAX);
            assert!(g
                .next_deadline()
                .is_some_and(|at| at <= Instant::ZERO + UNKNOWN_HOLD_MAX));
            g.on_complete(0, at(0), at(300));
            assert_eq!(g.poll(), Some(GateAction::Resume));
            assert_eq!(g.on_dequeue(UNKNOWN_MAX - 1, at(300)), Verdict::Pass);
        }
        let mut unbounded = Gate::new(table(&[(0, 300)]), None);
        assert_eq!(unbounded.on_dequeue(1_000, at(0)), Verdict::Pass);
    }

    #[test]
    fn a_completion_inside_a_window_does_not_resume() {
        let mut g = Gate::new(table(&[(0, 300)]), None);
        g.on_window(window(1_000, 2_000));
        assert!(matches!(g.on_dequeue(1, at(1_100)), Verdict::Hold { .. }));
        g.on_complete(0, at(900), at(1_200));
        assert_eq!(g.poll(), None);
    }

    #[test]
    fn a_table_that_lets_nothing_pass_is_forgotten() {
        let mut g = Gate::new(table(&[(0, 30_000_000)]), None);
        let mut passed = 0;
        for period in 0..20 {
            let start = period * 33_000;
            g.on_window(window(start + 30_000, start + 33_000));
            if g.on_dequeue(0, at(start + 100)) == Verdict::Pass {
                passed += 1;
                g.on_complete(0, at(start + 100), at(start + 400));
            }
        }
        assert_eq!(passed, 20 - u64::from(FRUITLESS_HOLDS_MAX));
    }

    #[test]
    fn as_many_go_together_as_are_through_before_the_window() {
        let mut gate = Gate::new(CompletionTable::new(16, 4, 0.95), None);
        for n in 0..16 {
            gate.on_complete(n, Instant::ZERO, Instant::from_nanos(1_000_000 * (n as u64 + 1)));
        }
        let (start, end) = (Instant::from_nanos(10_500_000), Instant::from_nanos(12_000_000));
        gate.on_window(Window { start, end });
        assert_eq!(gate.room(0, 16, Instant::ZERO), 10);
        assert_eq!(gate.room(4, 16, Instant::ZERO), 6);
        assert_eq!(gate.room(0, 3, Instant::ZERO), 3);
        assert_eq!(gate.room(0, 16, start), 1, "one is asked about in any case");
        assert_eq!(gate.room(0, 16, end), 16);
    }

    proptest! {
        /// The gate always opens again. After any events, a paused queue has a deadline and resumes at it, and a packet
        /// for an empty WNIC passes once the window is over.
        #[test]
        fn the_gate_always_opens_again(
            events in prop::collection::vec((0..3u8, 0..300usize, 0..50_000u64, 0..50_000u64), 1..200),
            backlog_max in prop::option::of(0..5_000u64),
        ) {
            let mut g = Gate::new(CompletionTable::new(256, 8, 0.95), backlog_max.map(us));
            let mut now = Instant::ZERO;
            for (kind, n, a, b) in events {
                match kind {
                    0 => g.on_window(Window { start: now + us(a), end: now + us(b) }),
                    1 => g.on_complete(n, now, now + us(a)),
                    _ => now += us(a / 10),
                }
                let verdict = g.on_dequeue(n, now);
                prop_assert_eq!(g.is_paused(), g.next_deadline().is_some());
                if let Verdict::Hold { until } = verdict {
                    prop_assert!(g.is_paused());
                    prop_assert!(until.is_none_or(|until| until > now));
                    let mut later = g.clone();
                    while later.poll().is_some() {}
                    let deadline = later.next_deadline().unwrap();
                    later.on_deadline(deadline);
                    prop_assert!(!later.is_paused());
                    prop_assert_eq!(later.poll(), Some(GateAction::Resume));
                    let end = deadline.max(later.window().end);
                    prop_assert_eq!(later.on_dequeue(0, end), Verdict::Pass);
                }
            }
        }

        /// The table returns the same sample that sorting the samples again would find.
        #[test]
        fn the_percentile_kept_ready_is_the_one_of_the_newest_samples(
            samples in prop::collection::vec(0..1_000u64, 1..100),
            percentile in 0.0..=1.0f64,
        ) {
            let mut t = CompletionTable::new(1, 16, percentile);
            for s in &samples {
                t.record(0, Duration::from_nanos(*s), Instant::ZERO);
            }
            let mut newest: Vec<u64> = samples.iter().rev().take(16).copied().collect();
            newest.sort_unstable();
            let rank = ((percentile * newest.len() as f64).ceil() as usize).clamp(1, newest.len());
            prop_assert_eq!(t.time(0).as_nanos(), newest[rank - 1]);
        }

        /// If the seen times rise with the number of packets, so do the times inferred above and between them.
        #[test]
        fn inferred_times_rise_with_the_packets(mut seen in prop::collection::btree_map(0..200usize, 1..10_000u64, 1..8)) {
            let mut highest = 0;
            for took in seen.values_mut() {
                highest = highest.max(*took);
                *took = highest;
            }
            let t = table(&seen.into_iter().collect::<Vec<_>>());
            for n in 0..400 {
                prop_assert!(t.time(n) <= t.time(n + 1), "{n}");
            }
        }
    }
}
