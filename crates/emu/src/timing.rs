//! Summarises delays: how late the emulator was, which is the time between a frame's modelled arrival and its delivery
//! to the robot's stack, and how long frames took by the model.
//!
//! The lateness of fetching frames from the stacks is not visible, because a TAP does not time-stamp them. The same
//! thread does both, so the figures indicate that lateness too.

use coorp_core::Duration;
use hdrhistogram::Histogram;
use serde::Serialize;

/// Maximum lateness of 99 of 100 deliveries for a run to count.
pub const P99_MAX: Duration = Duration::from_micros(500);

/// The delays so far.
#[derive(Debug)]
pub struct Delays(Option<Histogram<u64>>);

/// A summary of delays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timing {
    /// Number of frames delivered.
    pub deliveries: u64,
    /// Median in microseconds.
    pub p50_us: f64,
    /// Delay that 99 of 100 deliveries do not exceed, in microseconds.
    pub p99_us: f64,
    /// Maximum in microseconds.
    pub max_us: f64,
}

impl Delays {
    pub fn new() -> Self {
        // Three significant digits are valid, so this never fails.
        let mut histogram = Histogram::new(3).ok();
        histogram.iter_mut().for_each(|histogram| histogram.auto(true));
        Delays(histogram)
    }

    pub fn record(&mut self, delay: Duration) {
        if let Some(histogram) = &mut self.0 {
            // The histogram resizes itself, so it accepts every value.
            let _ = histogram.record(delay.as_nanos());
        }
    }

    pub fn add(&mut self, other: &Delays) {
        if let (Some(all), Some(other)) = (&mut self.0, &other.0) {
            // It resizes itself here too.
            let _ = all.add(other);
        }
    }

    pub fn timing(&self) -> Timing {
        let at = |share| {
            let histogram = self.0.as_ref().filter(|histogram| !histogram.is_empty());
            histogram.map_or(0.0, |histogram| histogram.value_at_quantile(share) as f64 / 1e3)
        };
        Timing {
            deliveries: self.0.as_ref().map_or(0, Histogram::len),
            p50_us: at(0.5),
            p99_us: at(0.99),
            max_us: at(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_over_all_that_was_added() {
        let (mut one, mut other) = (Delays::new(), Delays::new());
        assert_eq!(one.timing(), Timing::default());
        (1..=980).for_each(|us| one.record(Duration::from_micros(us)));
        (1..=20).for_each(|_| other.record(Duration::from_secs(2)));
        one.add(&other);
        let timing = one.timing();
        assert_eq!(timing.deliveries, 1_000);
        let near = |value: f64, wanted: f64| (value - wanted).abs() < wanted / 100.0;
        assert!(
            near(timing.p50_us, 500.0) && near(timing.p99_us, 2e6) && near(timing.max_us, 2e6),
            "{timing:?}"
        );
    }
}
