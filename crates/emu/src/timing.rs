//! How late the emulator was: the time between a frame's modelled arrival and its handing over to the robot's stack.
//!
//! What it cannot see is how late frames were fetched from the stacks, as a TAP does not stamp them; the same thread
//! does both, so the figures speak for that too.

use coorp_core::Duration;
use hdrhistogram::Histogram;
use serde::Serialize;

/// How late 99 of 100 deliveries may be at most for a run to count.
pub const P99_MAX: Duration = Duration::from_micros(500);

/// Lateness so far.
#[derive(Debug)]
pub struct Lateness(Option<Histogram<u64>>);

/// What the lateness came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timing {
    /// Frames handed over.
    pub deliveries: u64,
    /// Half of them were at most so late, microseconds.
    pub p50_us: f64,
    /// 99 of 100 were, microseconds.
    pub p99_us: f64,
    /// All were, microseconds.
    pub max_us: f64,
}

impl Lateness {
    pub fn new() -> Self {
        // Three digits is a precision that it has, so it is never refused.
        let mut histogram = Histogram::new(3).ok();
        histogram.iter_mut().for_each(|histogram| histogram.auto(true));
        Lateness(histogram)
    }

    pub fn record(&mut self, late: Duration) {
        if let Some(histogram) = &mut self.0 {
            // It grows with its values, so it refuses none.
            let _ = histogram.record(late.as_nanos());
        }
    }

    pub fn add(&mut self, other: &Lateness) {
        if let (Some(all), Some(other)) = (&mut self.0, &other.0) {
            // It grows as well.
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
        let (mut one, mut other) = (Lateness::new(), Lateness::new());
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
