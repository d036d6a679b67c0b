//! The records of the demo's robots, and the figures of `coorp sim` computed from them, by the same definitions.
//!
//! All robots of a run share one machine and thus one monotonic clock; times are its nanoseconds. As in the simulator,
//! a loop lasts from the creation of its first perception to the arrival of its last command. Left out: everything
//! below the sockets.

use std::collections::{BTreeMap, BTreeSet};

use coorp_core::Duration;
use coorp_sim::mpc::PATIENCE;
use coorp_sim::results::{AirtimeShare, MacResult, PolicyResult, Quantiles};
use serde::{Deserialize, Serialize};

/// The length of a bin of bulk.
pub const BIN_NS: u64 = 100_000_000;

/// One robot's record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// On the leader: rounds, each with the creation time of its oldest perception.
    pub rounds: Vec<(u64, u64)>,
    /// On another robot: rounds, each with the arrival of its command.
    pub arrivals: Vec<(u64, u64)>,
    /// Received control messages: arrival time and latency.
    pub latencies: Vec<(u64, u64)>,
    /// Bins of bulk.
    pub bins: Vec<Bin>,
    /// On the leader: the start of each epoch, including the first.
    pub epochs: Vec<u64>,
    /// The source of completions, if the robot sent any bulk.
    pub completions: Option<String>,
}

/// A tenth of a second of one robot's bulk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// The bin's start, in units of [`BIN_NS`].
    pub number: u64,
    /// Bytes received.
    pub received: u64,
    /// Whether messages were waiting for delivery.
    pub waiting: bool,
    /// Whether the gate held them back.
    pub held: bool,
}

/// The measured time: only records within it count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The start, inclusive.
    pub from_ns: u64,
    /// The end, exclusive.
    pub to_ns: u64,
}

impl Span {
    fn has(self, at_ns: u64) -> bool {
        (self.from_ns..self.to_ns).contains(&at_ns)
    }
}

/// Returns the result of a run, as a row of the table. `control` is the control loop's period and bound, if there was a
/// loop.
pub fn result(policy: &str, records: &[Record], span: Span, control: Option<(Duration, Duration)>) -> PolicyResult {
    let reactions = control.map(|(period, _)| reactions(records, span, period));
    let late = |(reactions, (_, bound)): (&Vec<f64>, (Duration, Duration))| {
        let late = reactions
            .iter()
            .filter(|reaction| **reaction > bound.as_millis_f64())
            .count();
        (!reactions.is_empty()).then(|| late as f64 / reactions.len() as f64)
    };
    let violation_rate = reactions.as_ref().zip(control).and_then(late);
    // The leader, which has the rounds, receives the perceptions; the other robots receive the commands.
    let latencies = |of: &dyn Fn(&Record) -> bool| {
        let latencies = records
            .iter()
            .filter(|record| of(record))
            .flat_map(|record| &record.latencies);
        let within = latencies.filter(|(at, _)| span.has(*at));
        quantiles(within.map(|(_, took)| *took as f64 / 1e6).collect())
    };
    let (bulk_mbps, window_share) = bulk(records, span);
    let epochs: Vec<u64> = records
        .iter()
        .flat_map(|record| record.epochs.iter().copied())
        .collect();
    let ended = epochs.len().saturating_sub(1);
    let lasted = epochs
        .last()
        .zip(epochs.first())
        .map(|(last, first)| (last - first) as f64 / 1e9);
    let span_s = (span.to_ns - span.from_ns) as f64 / 1e9;
    PolicyResult {
        policy: policy.to_owned(),
        violation_rate,
        loops: reactions.as_ref().map_or(0, |reactions| reactions.len() as u64),
        reaction_ms: reactions.and_then(quantiles),
        control_latency_ms: latencies(&|_| true),
        perception_latency_ms: latencies(&|record| !record.rounds.is_empty()),
        command_latency_ms: latencies(&|record| record.rounds.is_empty()),
        bulk_mbps,
        bulk_share: None,
        epochs: ended as u64,
        epoch_s: lasted.filter(|_| ended > 0).map(|lasted| lasted / ended as f64),
        wnic_ahead: None,
        window_share,
        virtual_s: span_s,
        wall_s: span_s,
        events: 0,
        flows: Vec::new(),
        mac: MacResult {
            collisions: 0,
            retries: 0,
            airtime_share: AirtimeShare {
                data: 0.0,
                control: 0.0,
                idle: 0.0,
            },
        },
    }
}

/// Returns the reaction time of each loop, in ms. A loop with missing commands counts as one that took until patience
/// ended.
fn reactions(records: &[Record], span: Span, period: Duration) -> Vec<f64> {
    let others = records.iter().filter(|record| record.rounds.is_empty()).count();
    let mut arrived: BTreeMap<u64, (usize, u64)> = BTreeMap::new();
    for (round, at) in records.iter().flat_map(|record| &record.arrivals) {
        let (count, last) = arrived.entry(*round).or_default();
        *count += 1;
        *last = (*last).max(*at);
    }
    let patience = (period * PATIENCE).as_nanos();
    // Ignore loops that may have been unfinished at the end of the run.
    let rounds = records.iter().flat_map(|record| &record.rounds);
    let rounds = rounds.filter(|(_, start)| span.has(*start) && span.has(start + patience));
    let took = |(round, start): &(u64, u64)| match arrived.get(round) {
        Some((count, last)) if *count >= others => last.saturating_sub(*start),
        other => patience.max(other.map_or(0, |(_, last)| last.saturating_sub(*start))),
    };
    rounds.map(|round| took(round) as f64 / 1e6).collect()
}

/// Bulk throughput in Mbit/s over the time in which any robot had bulk to send. Also the share of that time in which
/// the gates of the robots with bulk were closed.
fn bulk(records: &[Record], span: Span) -> (Option<f64>, f64) {
    let bins = records.iter().flat_map(|record| &record.bins);
    let bins: Vec<&Bin> = bins.filter(|bin| span.has(bin.number * BIN_NS)).collect();
    let busy: BTreeSet<u64> = bins.iter().filter(|bin| bin.waiting).map(|bin| bin.number).collect();
    let bytes: u64 = bins.iter().map(|bin| bin.received).sum();
    let seconds = busy.len() as f64 * BIN_NS as f64 / 1e9;
    let waiting = bins.iter().filter(|bin| bin.waiting).count();
    let held = bins.iter().filter(|bin| bin.waiting && bin.held).count();
    (
        (!busy.is_empty()).then(|| bytes as f64 * 8e-6 / seconds),
        held as f64 / waiting.max(1) as f64,
    )
}

fn quantiles(mut values: Vec<f64>) -> Option<Quantiles> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    let at = |share: f64| values[((last as f64 * share).round() as usize).min(last)];
    Some(Quantiles {
        p10: at(0.10),
        p50: at(0.50),
        p90: at(0.90),
        p99: at(0.99),
        p999: at(0.999),
        mean: values.iter().sum::<f64>() / values.len() as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn arrivals(of: &[(u64, u64)]) -> Record {
        Record {
            arrivals: of.iter().map(|(round, at)| (*round, at * MS)).collect(),
            ..Record::default()
        }
    }

    #[test]
    fn a_loop_ends_with_its_last_command_and_a_lost_one_with_patience() {
        let leader = Record {
            rounds: (0..5).map(|round| (round, 100 * round * MS)).collect(),
            ..Record::default()
        };
        let records = [
            leader,
            arrivals(&[(0, 30), (1, 120), (2, 240), (3, 340)]),
            arrivals(&[(0, 20), (1, 131), (3, 310)]),
        ];
        let span = Span {
            from_ns: 100 * MS,
            to_ns: 480 * MS,
        };
        let control = (Duration::from_millis(33), Duration::from_millis(33));
        let result = result("edca", &records, span, Some(control));
        // Round 0 is before the span, and 4 may go on after it; of round 2 a command is lost.
        assert_eq!(result.loops, 3);
        let reactions = result.reaction_ms.unwrap();
        assert_eq!((reactions.p10, reactions.p50), (31.0, 40.0));
        assert!((reactions.mean - (31.0 + 99.0 + 40.0) / 3.0).abs() < 1e-9);
        assert_eq!(result.violation_rate, Some(2.0 / 3.0));
        assert_eq!(result.bulk_mbps, None);
    }

    #[test]
    fn bulk_is_counted_over_the_time_that_anybody_had_some() {
        let bin = |number, received, waiting| Bin {
            number,
            received,
            waiting,
            held: number == 11,
        };
        let of = |bins: &[Bin]| Record {
            bins: bins.to_vec(),
            epochs: vec![],
            ..Record::default()
        };
        let records = [
            of(&[bin(9, 7_000_000, true), bin(10, 0, true), bin(11, 0, true)]),
            of(&[bin(10, 1_000_000, false), bin(11, 3_000_000, true), bin(12, 0, false)]),
        ];
        let span = Span {
            from_ns: 10 * BIN_NS,
            to_ns: 20 * BIN_NS,
        };
        let result = result("coorp", &records, span, None);
        assert_eq!(result.bulk_mbps, Some(160.0));
        assert!((result.window_share - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!((result.violation_rate, result.loops), (None, 0));
    }
}
