//! Measurements during a run, and the results computed from them.
//!
//! Latencies go into high-dynamic-range histograms of three significant digits, so memory does not grow with the run.

use coorp_air::{MacCounters, Outcome, Transmission};
use coorp_core::{Duration, Instant, RobotId};
use hdrhistogram::Histogram;

use crate::results::{AirtimeShare, MacResult, Quantiles, Span, SpanKind, Timeline, WnicAhead};
use crate::setup;

/// Longest latency that is distinguished: an hour. Longer ones count as this.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;
/// Maximum number of points of a CDF in the report.
const CDF_POINTS: usize = 400;
/// Maximum number of spans kept of the recorded second: a limit on memory, far above the number that 200 robots
/// produce.
const SPANS_MAX: usize = 200_000;

/// A latency's distribution.
#[derive(Debug)]
pub(crate) struct Latency {
    /// Created with the first sample, because a team may have thousands of flows, and most of a histogram is empty.
    histogram: Option<Box<Histogram<u64>>>,
}

impl Latency {
    pub fn new() -> Self {
        Latency { histogram: None }
    }

    pub fn record(&mut self, latency: Duration) {
        if self.histogram.is_none() {
            // From a microsecond to an hour in three digits: constant bounds, which the crate accepts.
            self.histogram = Histogram::new_with_bounds(1_000, LATENCY_NS_MAX, 3).ok().map(Box::new);
        }
        if let Some(histogram) = &mut self.histogram {
            histogram.saturating_record(latency.as_nanos().clamp(1_000, LATENCY_NS_MAX));
        }
    }

    pub fn quantiles_ms(&self) -> Option<Quantiles> {
        let histogram = self.histogram.as_ref()?;
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e6;
        Some(Quantiles {
            p10: at(0.10),
            p50: at(0.50),
            p90: at(0.90),
            p99: at(0.99),
            p999: at(0.999),
            mean: histogram.mean() / 1e6,
        })
    }

    /// Returns the CDF as (ms, share at or below), evenly spaced in share.
    pub fn cdf_ms(&self) -> Vec<(f64, f64)> {
        let Some(histogram) = &self.histogram else {
            return Vec::new();
        };
        let point = |i: usize| {
            let share = i as f64 / CDF_POINTS as f64;
            (histogram.value_at_quantile(share) as f64 / 1e6, share)
        };
        (0..=CDF_POINTS).map(point).collect()
    }
}

/// Bulk packets ahead of control packets: exact counts up to a depth that no WNIC has.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    counts: Vec<u64>,
}

impl Ahead {
    pub fn record(&mut self, packets: u32) {
        let place = packets.min(65_535) as usize;
        if self.counts.len() <= place {
            self.counts.resize(place + 1, 0);
        }
        self.counts[place] += 1;
    }

    pub fn result(&self) -> Option<WnicAhead> {
        let total: u64 = self.counts.iter().sum();
        if total == 0 {
            return None;
        }
        let sum: f64 = self
            .counts
            .iter()
            .enumerate()
            .map(|(packets, count)| packets as f64 * *count as f64)
            .sum();
        let mut seen = 0;
        let p99 = self.counts.iter().position(|count| {
            seen += count;
            seen as f64 >= 0.99 * total as f64
        });
        Some(WnicAhead {
            none: self.counts[0] as f64 / total as f64,
            mean: sum / total as f64,
            p99: p99.unwrap_or(0) as f64,
        })
    }
}

/// How long a condition has held.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stopwatch {
    since: Option<Instant>,
    total: Duration,
}

impl Stopwatch {
    pub fn set(&mut self, holds: bool, now: Instant) {
        match (self.since, holds) {
            (Some(since), false) => {
                self.total += now.since(since);
                self.since = None;
            }
            (None, true) => self.since = Some(now),
            _ => {}
        }
    }

    pub fn total(&self, now: Instant) -> Duration {
        self.total + self.since.map_or(Duration::ZERO, |since| now.since(since))
    }
}

/// The second that the report shows in detail.
#[derive(Debug)]
pub(crate) struct Recorder {
    start: Instant,
    spans: Vec<Span>,
    /// Open spans: permits, windows and holds that have begun and not ended.
    open: Vec<(RobotId, SpanKind, Instant)>,
    recording: bool,
}

impl Recorder {
    pub fn new() -> Self {
        Recorder {
            start: Instant::ZERO,
            spans: Vec::new(),
            open: Vec::new(),
            recording: false,
        }
    }

    /// The length of the recording.
    pub const LENGTH: Duration = Duration::from_secs(1);

    pub fn start(&mut self, now: Instant) {
        self.start = now;
        self.recording = true;
    }

    /// Closes open spans and stops.
    pub fn stop(&mut self, now: Instant) {
        for (robot, kind, since) in std::mem::take(&mut self.open) {
            self.span(robot, kind, since, now, 0);
        }
        self.recording = false;
    }

    /// Records that a state of `robot` begins or ends. Also called while nothing is recorded, so that the recorded
    /// second opens with the states at its start.
    pub fn state(&mut self, robot: RobotId, kind: SpanKind, holds: bool, now: Instant) {
        let open = self
            .open
            .iter()
            .position(|(other, what, _)| *other == robot && *what == kind);
        match (open, holds) {
            (None, true) => self.open.push((robot, kind, now)),
            (Some(place), false) => {
                let (_, _, since) = self.open.swap_remove(place);
                self.span(robot, kind, since, now, 0);
            }
            _ => {}
        }
    }

    pub fn span(&mut self, robot: RobotId, kind: SpanKind, from: Instant, to: Instant, frames: u16) {
        if !self.recording || to <= self.start || self.spans.len() >= SPANS_MAX {
            return;
        }
        let ms = |at: Instant| at.since(self.start).as_millis_f64();
        self.spans.push(Span {
            robot: robot.0,
            kind,
            start_ms: ms(from),
            end_ms: ms(to),
            frames,
        });
    }

    pub fn transmission(&mut self, transmission: &Transmission, control: bool) {
        let kind = match (transmission.outcome, control) {
            (Outcome::Collided, _) => SpanKind::Collision,
            (_, true) => SpanKind::Control,
            (_, false) => SpanKind::Bulk,
        };
        let Transmission {
            from,
            start,
            end,
            frames,
            ..
        } = *transmission;
        self.span(setup::robot(from), kind, start, end, frames);
    }

    pub fn timeline(&self, robots: Vec<String>) -> Timeline {
        let mut spans = self.spans.clone();
        spans.sort_by(|a, b| a.start_ms.total_cmp(&b.start_ms));
        Timeline {
            start_s: self.start.as_secs_f64(),
            length_s: Self::LENGTH.as_secs_f64(),
            robots,
            spans,
        }
    }
}

/// Returns the MAC's counters as results, over a run that lasted `whole`.
pub(crate) fn mac_result(counters: &MacCounters, whole: Duration) -> MacResult {
    let whole_s = whole.as_secs_f64().max(f64::MIN_POSITIVE);
    let data = (counters.data.as_secs_f64() / whole_s).min(1.0);
    let control = (counters.control.as_secs_f64() / whole_s).min(1.0 - data);
    MacResult {
        collisions: counters.collisions,
        retries: counters.retries,
        airtime_share: AirtimeShare {
            data,
            control,
            idle: 1.0 - data - control,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let mut latency = Latency::new();
        assert!(latency.quantiles_ms().is_none());
        (1..=1000).for_each(|ms| latency.record(Duration::from_millis(ms)));
        let quantiles = latency.quantiles_ms().expect("recorded");
        assert!(
            (quantiles.p50 - 500.0).abs() < 1.0 && (quantiles.p99 - 990.0).abs() < 2.0,
            "{quantiles:?}"
        );
        assert!(latency.cdf_ms().windows(2).all(|pair| pair[0] <= pair[1]));
    }

    #[test]
    fn packets_ahead_are_counted_exactly() {
        let mut ahead = Ahead::default();
        assert!(ahead.result().is_none());
        (0..99).for_each(|_| ahead.record(0));
        ahead.record(50);
        let result = ahead.result().expect("recorded");
        assert_eq!((result.none, result.mean, result.p99), (0.99, 0.5, 0.0));
    }

    #[test]
    fn the_recorded_second_shows_what_held_before_it() {
        let mut recorder = Recorder::new();
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        recorder.state(RobotId(1), SpanKind::Permit, true, at(5));
        recorder.state(RobotId(2), SpanKind::Hold, true, at(6));
        recorder.state(RobotId(2), SpanKind::Hold, false, at(7));
        recorder.start(at(10));
        recorder.stop(at(1010));
        let timeline = recorder.timeline(vec![]);
        assert_eq!(timeline.spans.len(), 1);
        assert_eq!((timeline.spans[0].start_ms, timeline.spans[0].end_ms), (0.0, 1000.0));
    }
}
