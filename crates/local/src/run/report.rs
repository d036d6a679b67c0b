//! What a federate counted.

use super::trace::Trace;
use coorp_core::logical::{ElementId, Tag};
use coorp_core::Duration;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// What a federate did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The last tag that was complete.
    pub completed: Option<Tag>,
    /// Per reaction of the program, in order of their ids.
    pub reactions: Vec<Spent>,
    /// How far behind its tag a reaction began, at most.
    pub lag_max: Duration,
    /// Per input from another federate. Empty with `fast`.
    pub arrivals: BTreeMap<ElementId, Arrivals>,
    /// Per input, the values that came after their tag. Only under decentralised coordination.
    pub violations: BTreeMap<ElementId, Violations>,
    /// The federates that died.
    pub gone: Vec<String>,
    /// Everything that happened, if it was asked for.
    pub trace: Option<Trace>,
}

impl Report {
    /// Returns how many reactions ran, late ones among them.
    pub fn reactions(&self) -> u64 {
        self.reactions.iter().map(|spent| spent.count).sum()
    }
}

/// How many values of an input came after their tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Violations {
    /// All.
    pub count: u64,
    /// Those that went to reactions that handle late values. The others are not used.
    pub handled: u64,
}

/// The time that a reaction took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// How often it ran.
    pub count: u64,
    /// How often its deadline had passed.
    pub late: u64,
    /// In total.
    pub total: Duration,
    /// At most.
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

/// How long after its sender's tag each value of a connection arrived: E + L of Kwok, section IV-A, in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrivals(Histogram<u64>);

impl Default for Arrivals {
    fn default() -> Self {
        // Two digits; it grows with its values.
        let histogram = Histogram::new(2);
        Arrivals(histogram.unwrap_or_else(|_| unreachable!("two digits are valid")))
    }
}

impl Arrivals {
    pub(super) fn add(&mut self, lag: Duration) {
        // It grows with its values, and only lengths beyond memory are refused.
        let _ = self.0.record(lag.as_nanos().div_ceil(1000));
    }

    /// Returns how many values came.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the time, to two digits, within which this share of the values came, between 0 and 1.
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
