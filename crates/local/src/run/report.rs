//! The counts of a federate.

use super::trace::Trace;
use coorp_core::logical::{ElementId, Tag};
use coorp_core::Duration;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// The report of a federate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The last tag that was complete.
    pub completed: Option<Tag>,
    /// The time of each reaction of the program, in order of their ids.
    pub reactions: Vec<Spent>,
    /// The maximum lag of a reaction's start behind its tag.
    pub lag_max: Duration,
    /// The latencies of each input from another federate. Empty with `fast`.
    pub arrivals: BTreeMap<ElementId, Arrivals>,
    /// The counts of values that came after their tag, by input. Only under decentralised coordination.
    pub violations: BTreeMap<ElementId, Violations>,
    /// The federates that died.
    pub gone: Vec<String>,
    /// Everything that happened, if it was requested.
    pub trace: Option<Trace>,
}

impl Report {
    /// Returns the number of reactions that ran, including late ones.
    pub fn reactions(&self) -> u64 {
        self.reactions.iter().map(|spent| spent.count).sum()
    }
}

/// Counts of an input's values that came after their tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Violations {
    /// The number of all these values.
    pub count: u64,
    /// The number of these that went to reactions that handle late values. The others are not used.
    pub handled: u64,
}

/// The time that a reaction took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// The number of runs.
    pub count: u64,
    /// The number of runs after its deadline.
    pub late: u64,
    /// The total time.
    pub total: Duration,
    /// The longest time.
    pub longest: Duration,
}

impl Spent {
    pub(super) fn add(&mut self, took: Duration, late: bool) {
        self.count += 1;
        self.late += u64::from(late);
        self.total += took;
        self.longest = self.longest.max(took);
    }
}

/// The times from the sender's tag to the arrival of a connection's values: E + L in Kwok, section IV-A, in
/// microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrivals(Histogram<u64>);

impl Default for Arrivals {
    fn default() -> Self {
        // Two digits; the histogram grows with its values.
        let histogram = Histogram::new(2);
        Arrivals(histogram.unwrap_or_else(|_| unreachable!("two digits are valid")))
    }
}

impl Arrivals {
    pub(super) fn add(&mut self, lag: Duration) {
        // The histogram grows with its values, and refuses only lengths beyond memory.
        let _ = self.0.record(lag.as_nanos().div_ceil(1000));
    }

    /// Returns the number of values that arrived.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the time, to two digits, within which this share of the values arrived, between 0 and 1.
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_micros(self.0.value_at_quantile(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_arrivals_cover_seconds() {
        let mut arrivals = Arrivals::default();
        for ms in 1..=1000 {
            arrivals.add(Duration::from_millis(ms));
        }
        assert_eq!(arrivals.count(), 1000);
        for (share, ms) in [(0.5, 500), (0.99, 990), (1.0, 1000)] {
            let quantile = arrivals.quantile(share).as_nanos() as f64 / 1e6;
            assert!((quantile / f64::from(ms) - 1.0).abs() < 0.01, "{share}: {quantile} ms");
        }
    }
}
