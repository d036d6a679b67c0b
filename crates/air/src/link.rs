//! The rate and losses of a link, fixed or derived from signal-to-noise ratio, distance and movement.
//!
//! SNR to rate: the fastest MCS with an MPDU error rate below 10 %. The error rate is a logistic curve around a
//! threshold for each MCS (the usual receiver sensitivities of 802.11, minus the thermal noise and a 7 dB noise
//! figure). Distance to SNR: log-distance path loss from 1 m at 5.2 GHz. Left out: fading, shadowing, and rate control
//! that has to learn the SNR; the sender is assumed to know it.

use crate::phy::{Rate, Standard};

/// SNR in dB at which an MCS loses a tenth of its 1500-byte MPDUs, with one stream.
const SNR_DB_AT_TENTH: [f64; 12] = [2.0, 5.0, 8.0, 11.0, 14.5, 18.5, 20.0, 21.5, 25.5, 27.5, 31.0, 33.5];
/// Steepness of the logistic curve: one dB changes the log-odds of a loss by this much (natural logarithm).
const LOG_ODDS_PER_DB: f64 = 2.0;
/// Free-space loss over the first metre at 5.2 GHz, in dB.
const LOSS_DB_AT_1_M: f64 = 46.8;

/// One direction between two stations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// The rate of data frames.
    pub rate: Rate,
    /// Share of MPDUs lost, 0 to 1.
    pub loss: f64,
}

/// Bytes of the MPDUs that a link's loss is the share of.
const LOSS_BYTES: f64 = 1500.0;

impl Link {
    /// Returns the share of frames of `bytes` that is lost, if every byte of an MPDU contributes equally to its loss.
    pub fn loss_of(&self, bytes: u32) -> f64 {
        if self.loss <= 0.0 {
            return 0.0;
        }
        1.0 - (1.0 - self.loss.min(1.0)).powf(f64::from(bytes) / LOSS_BYTES)
    }
}

/// Returns the fastest MCS of a standard.
pub const fn mcs_max(standard: Standard) -> u8 {
    match standard {
        Standard::N => 7,
        Standard::Ac => 9,
        Standard::Ax => 11,
    }
}

/// Returns whether a standard has an MCS at this width and number of streams. 802.11ac leaves some out (IEEE 802.11-2020,
/// 21.5).
fn exists(standard: Standard, width_mhz: u16, streams: u8, mcs: u8) -> bool {
    let hole = match (width_mhz, mcs) {
        (20, 9) => streams != 3,
        (80, 6) => streams == 3,
        _ => false,
    };
    mcs <= mcs_max(standard) && !(standard == Standard::Ac && hole)
}

/// Returns the link for a signal-to-noise ratio of `snr_db` (over the whole channel width) on `streams` streams.
/// Streams share the power, so each has 10 log10(streams) dB less.
pub fn from_snr(standard: Standard, width_mhz: u16, streams: u8, snr_db: f64) -> Link {
    let stream_db = snr_db - 10.0 * f64::from(streams.max(1)).log10();
    let fits = |mcs: &u8| exists(standard, width_mhz, streams, *mcs) && mpdu_loss(*mcs, stream_db) <= 0.1;
    let mcs = (0..=mcs_max(standard)).rev().find(fits).unwrap_or(0);
    Link {
        rate: Rate { mcs, streams },
        loss: mpdu_loss(mcs, stream_db),
    }
}

fn mpdu_loss(mcs: u8, snr_db: f64) -> f64 {
    let threshold = SNR_DB_AT_TENTH[usize::from(mcs).min(SNR_DB_AT_TENTH.len() - 1)];
    // The odds of a loss are 1:9 at the threshold.
    let log_odds = -(9.0_f64.ln()) - LOG_ODDS_PER_DB * (snr_db - threshold);
    1.0 / (1.0 + (-log_odds).exp())
}

/// Path loss: the parameters that give the strength of a signal at a distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathLoss {
    /// Transmit power in dBm.
    pub tx_power_dbm: f64,
    /// Noise over the channel's width, including the receiver's noise figure, in dBm.
    pub noise_dbm: f64,
    /// Path-loss exponent: 2 in free space, about 3 indoors.
    pub exponent: f64,
}

impl PathLoss {
    /// Returns the signal-to-noise ratio in dB at `distance_m` metres. Distances below 1 m count as 1 m.
    pub fn snr_db(&self, distance_m: f64) -> f64 {
        self.tx_power_dbm - LOSS_DB_AT_1_M - 10.0 * self.exponent * distance_m.max(1.0).log10() - self.noise_dbm
    }
}

/// A robot's position over time: along its waypoints and back to the first, at constant speed.
#[derive(Clone, Debug, PartialEq)]
pub struct Track {
    /// Corners of the route, in metres. With a single one, the robot does not move.
    waypoints_m: Vec<[f64; 2]>,
    /// Distance along the route from the first waypoint to each, and finally back to the first, in metres.
    way_m: Vec<f64>,
    speed_mps: f64,
}

impl Track {
    /// Creates a route through `waypoints_m` at `speed_mps`. Returns `None` without waypoints.
    pub fn new(waypoints_m: Vec<[f64; 2]>, speed_mps: f64) -> Option<Track> {
        let first = *waypoints_m.first()?;
        let mut way_m = vec![0.0];
        let mut total = 0.0;
        for (from, to) in waypoints_m.iter().zip(waypoints_m.iter().skip(1).chain([&first])) {
            total += distance_m(*from, *to);
            way_m.push(total);
        }
        Some(Track {
            waypoints_m,
            way_m,
            speed_mps,
        })
    }

    /// Returns whether the robot ever moves.
    pub fn moves(&self) -> bool {
        self.speed_mps > 0.0 && self.way_m.last().is_some_and(|length| *length > 0.0)
    }

    /// Returns the position `seconds` after the start, in metres.
    pub fn at(&self, seconds: f64) -> [f64; 2] {
        let length = self.way_m.last().copied().unwrap_or(0.0);
        if !self.moves() {
            return self.waypoints_m[0];
        }
        let way = (seconds * self.speed_mps).rem_euclid(length);
        let next = self
            .way_m
            .partition_point(|corner| *corner <= way)
            .clamp(1, self.waypoints_m.len());
        let (from, to) = (
            self.waypoints_m[next - 1],
            self.waypoints_m[next % self.waypoints_m.len()],
        );
        let leg = self.way_m[next] - self.way_m[next - 1];
        let share = if leg > 0.0 {
            (way - self.way_m[next - 1]) / leg
        } else {
            0.0
        };
        [from[0] + (to[0] - from[0]) * share, from[1] + (to[1] - from[1]) * share]
    }
}

/// Returns the Euclidean distance between two points, in metres.
pub fn distance_m(a: [f64; 2], b: [f64; 2]) -> f64 {
    (a[0] - b[0]).hypot(a[1] - b[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_signal_never_means_a_slower_rate() {
        let mut last = 0;
        for tenth_db in 0..450 {
            let link = from_snr(Standard::Ax, 20, 1, f64::from(tenth_db) / 10.0);
            assert!(link.rate.mcs >= last);
            assert!(link.rate.mcs == 0 || link.loss <= 0.1 + 1e-9);
            last = link.rate.mcs;
        }
        assert_eq!(last, 11);
    }

    #[test]
    fn a_link_far_below_the_lowest_rate_loses_everything() {
        let link = from_snr(Standard::Ac, 20, 2, -20.0);
        assert_eq!(link.rate.mcs, 0);
        assert!(link.loss > 0.999);
    }

    #[test]
    fn short_frames_are_lost_by_their_share_of_bytes_and_with_all() {
        let loss_of = |loss, bytes| {
            let rate = Rate { mcs: 7, streams: 1 };
            Link { rate, loss }.loss_of(bytes)
        };
        assert_eq!((loss_of(0.0, 1500), loss_of(1.0, 14)), (0.0, 1.0));
        assert!((loss_of(0.3, 1500) - 0.3).abs() < 1e-12);
        // Both halves of a frame survive as often as the frame.
        assert!(((1.0 - loss_of(0.3, 750)).powi(2) - 0.7).abs() < 1e-12);
    }

    #[test]
    fn distance_costs_signal() {
        let path = PathLoss {
            tx_power_dbm: 20.0,
            noise_dbm: -88.0,
            exponent: 3.0,
        };
        assert!((path.snr_db(10.0) - (path.snr_db(1.0) - 30.0)).abs() < 1e-9);
        assert_eq!(path.snr_db(0.0), path.snr_db(1.0));
    }

    #[test]
    fn a_track_goes_round_its_corners() {
        let square = vec![[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 2.0]];
        let track = Track::new(square, 1.0).expect("four corners");
        assert_eq!(track.at(0.0), [0.0, 0.0]);
        assert_eq!(track.at(3.0), [2.0, 1.0]);
        assert_eq!(track.at(7.0), [0.0, 1.0]);
        assert_eq!(track.at(8.0), [0.0, 0.0]);
        assert!(Track::new(vec![], 1.0).is_none());
        assert_eq!(
            Track::new(vec![[1.0, 1.0]], 5.0).expect("one point").at(9.0),
            [1.0, 1.0]
        );
    }
}
