//! How many robots fit: the analytical models (Deng 2022, section IV-D, eq. 1 to 3; its draft, section IV-D, properties
//! 1 and 2).
//!
//! N workers send perceptions to the leader and receive commands. The model assumes that each of these 2 N messages
//! contends once with the one robot that has the permit, and loses with probability p0. If it loses, a whole A-MPDU of
//! bulk goes first. The number of such losses is binomial (eq. 1), and the reaction time follows from it (eq. 2). Bulk
//! gets the bandwidth that the control messages leave (eq. 3).
//!
//! The models are deliberately rough, as the paper says. They over-estimate contention, and omit protocol overhead,
//! retransmissions, local congestion and the windows' cost. `coorp sim` includes all of these.

use crate::normal::normal_quantile;
use crate::Duration;

/// The maximum number of workers in the model.
pub const WORKERS_MAX: u32 = 65_535;
/// EDCA's initial contention windows of AC_VO and AC_BE.
pub const CW_DEFAULT: (u32, u32) = (3, 15);
/// Upper limit for contention windows.
const CW_MAX: u32 = 32_767;

/// Returns the probability that bulk transmits before control if both begin to contend at once, with contention windows
/// `cw_control` and `cw_bulk`. Either bulk draws the lower backoff, or both draw the same, collide, double their
/// windows, and bulk then draws the lower. The model counts at most one collision and assumes equal AIFS.
pub fn bulk_first_probability(cw_control: u32, cw_bulk: u32) -> f64 {
    let (control, bulk) = (
        f64::from(cw_control.min(CW_MAX)) + 1.0,
        f64::from(cw_bulk.min(CW_MAX)) + 1.0,
    );
    // Doubling keeps CW + 1 a power of two: 3 becomes 7, 15 becomes 31.
    lower(control, bulk) + equal(control, bulk) * lower(2.0 * control, 2.0 * bulk)
}

/// Returns the probability that bulk's draw is the lower one, for uniform draws from `control` and `bulk` values.
fn lower(control: f64, bulk: f64) -> f64 {
    // For control's draw c, min(c, bulk) values of bulk are lower: a triangle up to bulk, then a rectangle.
    let triangle = control.min(bulk);
    let rectangle = (control - bulk).max(0.0);
    (triangle * (triangle - 1.0) / 2.0 + rectangle * bulk) / (control * bulk)
}

fn equal(control: f64, bulk: f64) -> f64 {
    control.min(bulk) / (control * bulk)
}

/// The team's parameters in the model of Deng 2022.
#[derive(Clone, Debug, PartialEq)]
pub struct Capacity {
    /// B: the channel's bandwidth in bits per second.
    pub bandwidth_bps: f64,
    /// F: control loops per second.
    pub frequency_hz: f64,
    /// L_perc: size of a perception.
    pub perception_bytes: u64,
    /// L_act: size of a command.
    pub control_bytes: u64,
    /// L_ampdu: the most that bulk transmits at once.
    pub ampdu_bytes: u64,
    /// T_inf: the leader's inference time.
    pub inference: Duration,
    /// p0, from [`bulk_first_probability`]; 0 without bulk.
    pub bulk_first: f64,
}

impl Capacity {
    /// Returns the probability of each number of bulk transmissions, 0 to 2 N, during one loop with N = `workers` (eq.
    /// 1).
    pub fn bulk_transmissions(&self, workers: u32) -> Vec<f64> {
        let contentions = 2 * workers.min(WORKERS_MAX);
        let p = if self.bulk_first.is_nan() {
            0.0
        } else {
            self.bulk_first.clamp(0.0, 1.0)
        };
        let certain = |at: u32| (0..=contentions).map(|k| if k == at { 1.0 } else { 0.0 }).collect();
        if p == 0.0 {
            return certain(0);
        }
        if p == 1.0 {
            return certain(contentions);
        }
        // In logarithms, because with thousands of contentions the first terms underflow a float.
        let n = f64::from(contentions);
        let odds = (p / (1.0 - p)).ln();
        let mut log = n * (1.0 - p).ln();
        (0..=contentions)
            .map(|k| {
                let term = log.exp();
                let k = f64::from(k);
                log += ((n - k) / (k + 1.0)).ln() + odds;
                term
            })
            .collect()
    }

    /// Returns the reaction time of a loop with `workers` during which bulk went first `bulk_transmissions` times (eq.
    /// 2).
    pub fn reaction_time(&self, workers: u32, bulk_transmissions: u32) -> Duration {
        let control = u128::from(workers) * u128::from(self.loop_bytes());
        let bulk = u128::from(bulk_transmissions) * u128::from(self.ampdu_bytes);
        if !self.has_bandwidth() {
            return Duration::MAX;
        }
        self.inference + Duration::from_secs_f64((control + bulk) as f64 * 8.0 / self.bandwidth_bps)
    }

    /// Returns the reaction time that a share `quantile` of the loops does not exceed.
    pub fn reaction_quantile(&self, workers: u32, quantile: f64) -> Duration {
        let mut below = 0.0;
        let terms = self.bulk_transmissions(workers);
        let most = terms.len() - 1;
        // Rounding can leave the sum of all terms slightly below one.
        let count = terms.iter().position(|term| {
            below += term;
            below >= quantile - 1e-12
        });
        self.reaction_time(workers, count.unwrap_or(most) as u32)
    }

    /// Returns the share of loops that take no longer than `bound`.
    pub fn reaction_share(&self, workers: u32, bound: Duration) -> f64 {
        let terms = self.bulk_transmissions(workers);
        let within = |k: &(usize, &f64)| self.reaction_time(workers, k.0 as u32) <= bound;
        terms
            .iter()
            .enumerate()
            .take_while(within)
            .map(|(_, term)| term)
            .sum::<f64>()
            .min(1.0)
    }

    /// Returns the bandwidth left for bulk, in bits per second; zero if control needs all of it (eq. 3).
    pub fn bulk_bps(&self, workers: u32) -> f64 {
        let control = f64::from(workers) * self.frequency_hz * self.loop_bytes() as f64 * 8.0;
        (self.bandwidth_bps - control).max(0.0)
    }

    /// Returns the largest team, including the leader, in which a share `quantile` of the loops stays within `bound`
    /// and control fits the channel. `None` if not even one worker fits.
    pub fn robots_max(&self, bound: Duration, quantile: f64) -> Option<u32> {
        let fits = |workers| {
            self.has_bandwidth() && self.bulk_bps(workers) > 0.0 && self.reaction_quantile(workers, quantile) <= bound
        };
        // More workers never shorten a loop, so a binary search works.
        let (mut fit, mut too_many) = (0, WORKERS_MAX + 1);
        while fit + 1 < too_many {
            let workers = fit + (too_many - fit) / 2;
            if fits(workers) {
                fit = workers;
            } else {
                too_many = workers;
            }
        }
        (fit > 0).then_some(fit + 1)
    }

    fn loop_bytes(&self) -> u64 {
        self.perception_bytes.saturating_add(self.control_bytes)
    }

    fn has_bandwidth(&self) -> bool {
        self.bandwidth_bps > 0.0
    }
}

/// The situation of a robot's control message, by the cases of property 1 (draft of Deng 2022; LIMIT is 1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stage {
    /// No robot transmits bulk.
    Idle,
    /// Another robot transmits bulk.
    OtherTransmits,
    /// This robot transmits bulk, and a share of its messages falls into a protection window.
    SelfTransmits {
        /// The share of protected messages, from 0 to 1.
        protected: f64,
    },
}

/// Returns the probability that a control message takes at most `latency` (property 1). The inputs are latency
/// distributions: on an idle channel (`free`), against one bulk flow of another robot under EDCA (`edca`), and behind
/// the robot's own bulk (`congested`).
pub fn latency_share(
    stage: Stage,
    latency: Duration,
    free: impl Fn(Duration) -> f64,
    edca: impl Fn(Duration) -> f64,
    congested: impl Fn(Duration) -> f64,
) -> f64 {
    match stage {
        Stage::Idle => free(latency),
        Stage::OtherTransmits => edca(latency),
        Stage::SelfTransmits { protected } => protected * free(latency) + (1.0 - protected) * congested(latency),
    }
}

/// Returns the share of its permit that a robot can use for bulk (property 2). Control messages have the frequency
/// `frequency_hz`, deviate by `sigma`, and are protected at `accuracy`.
///
/// The published formula is 1 - 2 F norminv((1 + C) / 2), with norminv the inverse of N(0, sigma^2). With the standard
/// normal's inverse, as here, sigma becomes a factor: 1 - 2 F sigma z. Zero if windows take all the time.
pub fn utilisation(frequency_hz: f64, sigma: Duration, accuracy: f64) -> f64 {
    let window_s = 2.0 * sigma.as_secs_f64() * normal_quantile((1.0 + accuracy) / 2.0);
    (1.0 - frequency_hz * window_s).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn navigation() -> Capacity {
        Capacity {
            bandwidth_bps: 200e6,
            frequency_hz: 30.0,
            perception_bytes: 12 * 1024,
            control_bytes: 1024,
            ampdu_bytes: 65_535,
            inference: Duration::from_millis(5),
            bulk_first: bulk_first_probability(CW_DEFAULT.0, CW_DEFAULT.1),
        }
    }

    #[test]
    fn bulk_goes_first_one_time_in_ten_as_the_paper_derives() {
        let expected = 6.0 / 64.0 + 4.0 / 64.0 * 28.0 / 256.0;
        let p0 = bulk_first_probability(3, 15);
        assert!((p0 - expected).abs() < 1e-12 && (p0 - 0.1).abs() < 0.001, "{p0}");
        // Two flows of the same category go first equally often, minus the share of two collisions in a row.
        let alike = bulk_first_probability(15, 15);
        assert!(
            (alike - (0.5 - 1.0 / 32.0 + 1.0 / 16.0 * (0.5 - 1.0 / 64.0))).abs() < 1e-12,
            "{alike}"
        );
    }

    #[test]
    fn counting_the_draws_one_by_one_gives_the_same() {
        for (control, bulk) in [(4u32, 16u32), (16, 4), (8, 8), (1, 5), (5, 1)] {
            let count = (0..control)
                .flat_map(|c| (0..bulk).map(move |b| (b < c) as u32))
                .sum::<u32>();
            let share = f64::from(count) / f64::from(control * bulk);
            assert!(
                (lower(f64::from(control), f64::from(bulk)) - share).abs() < 1e-12,
                "{control} {bulk}"
            );
        }
    }

    #[test]
    fn the_reaction_time_follows_equation_two() {
        let c = navigation();
        // Four workers: 5 ms + 4 * 13 KiB at 200 Mbit/s = 2.13 ms; each A-MPDU adds 2.62 ms.
        assert_eq!(c.reaction_time(4, 0).as_nanos(), 5_000_000 + 2_129_920);
        assert_eq!(c.reaction_time(4, 3).as_nanos(), 5_000_000 + 2_129_920 + 7_864_200);
        let share = c.reaction_share(4, Duration::from_millis(8));
        assert!((share - (1.0 - c.bulk_first).powi(8)).abs() < 1e-9, "{share}");
    }

    #[test]
    fn bulk_gets_what_control_leaves() {
        let c = navigation();
        assert!((c.bulk_bps(4) - (200e6 - 4.0 * 30.0 * 13.0 * 1024.0 * 8.0)).abs() < 1.0);
        assert_eq!(c.bulk_bps(10_000), 0.0);
    }

    #[test]
    fn the_largest_team_fits_and_one_more_does_not() {
        let c = navigation();
        let bound = Duration::from_millis(33);
        let robots = c.robots_max(bound, 0.99).unwrap();
        assert!(robots > 5, "{robots}");
        assert!(c.reaction_quantile(robots - 1, 0.99) <= bound);
        assert!(c.reaction_quantile(robots, 0.99) > bound || c.bulk_bps(robots) == 0.0);
        assert_eq!(c.robots_max(Duration::from_millis(5), 0.99), None);
        assert_eq!(
            Capacity {
                bandwidth_bps: f64::NAN,
                ..c
            }
            .robots_max(bound, 0.99),
            None
        );
    }

    #[test]
    fn properties_one_and_two_of_the_draft() {
        let at = |x| move |_: Duration| x;
        let share = |stage| latency_share(stage, Duration::ZERO, at(0.9), at(0.6), at(0.1));
        assert_eq!(share(Stage::Idle), 0.9);
        assert_eq!(share(Stage::OtherTransmits), 0.6);
        assert!((share(Stage::SelfTransmits { protected: 0.75 }) - 0.7).abs() < 1e-12);
        // 30 Hz, 1 ms, 95 %: windows of 3.92 ms take 11.8 %.
        assert!((utilisation(30.0, Duration::from_millis(1), 0.95) - 0.8824).abs() < 1e-4);
        assert_eq!(utilisation(30.0, Duration::from_secs(1), 0.95), 0.0);
    }

    proptest! {
        /// The terms of the binomial sum to one and have its mean, for small and large counts.
        #[test]
        fn bulk_transmissions_are_a_distribution(workers in 0..3_000u32, p in 0.0..=1.0f64) {
            let c = Capacity { bulk_first: p, ..navigation() };
            let terms = c.bulk_transmissions(workers);
            let sum: f64 = terms.iter().sum();
            let mean: f64 = terms.iter().enumerate().map(|(k, t)| k as f64 * t).sum();
            prop_assert!((sum - 1.0).abs() < 1e-6, "{sum}");
            prop_assert!((mean - 2.0 * f64::from(workers) * p).abs() < 1e-3 * (1.0 + f64::from(workers)), "{mean}");
        }

        /// More workers never react sooner, and never leave more for bulk.
        #[test]
        fn more_workers_never_help(workers in 1..500u32, quantile in 0.0..1.0f64) {
            let c = navigation();
            prop_assert!(c.reaction_quantile(workers, quantile) <= c.reaction_quantile(workers + 1, quantile));
            prop_assert!(c.bulk_bps(workers) >= c.bulk_bps(workers + 1));
        }
    }
}
