//! Decides by a flow's packets whether they are small and periodic, and whether there are too many.
//!
//! A program that the scheduler keeps waiting sends late, and then nothing arrives one period after the last message.
//! But delays of a timer do not add up, while the times of a user or of a busy channel do: message k is about k periods
//! after the first, or it wanders off. So the distance of many messages from a line through them tells both apart
//! ([`Nature::is_steady`]), at jitters at which nothing about the next message can be predicted. Until a
//! flow has shown its rate, a message that is left out, or two that come together, hide it for [`STEADY`] messages: the
//! others are then off by one.

use std::collections::VecDeque;

use crate::arrival::{ArrivalConfig, ArrivalModel};
use crate::{Duration, Instant};

/// Packets that follow each other within this time are one message.
pub(super) const MESSAGE_GAP: Duration = Duration::from_millis(1);
/// The shortest and the longest period of control: 5 ms and 1 s, with some tolerance, because both are common. A flow
/// that is already control may exceed them by a quarter.
const PERIOD_MIN: Duration = Duration::from_micros(4_800);
const PERIOD_MAX: Duration = Duration::from_millis(1_050);
/// Numbers of messages that prove a flow periodic if it deviates by at most the first share of its period, and by at
/// most the second.
const PROOF: u32 = 8;
const PROOF_NOISY: u32 = 16;
const REGULAR: u64 = 25;
const REGULAR_NOISY: u64 = 12;
/// A message is on time if it arrives one period after the previous one, to within this share of the period. The first
/// two apply to proving a flow periodic, the last to staying so.
const ON_TIME_PROOF: u64 = 10;
const ON_TIME_NOISY: u64 = 5;
const ON_TIME: u64 = 3;
/// A periodic flow stays control while this many of its newest [`KEPT`] messages are on time, and this many are small.
const KEPT: u32 = 16;
const KEPT_ON_TIME_MIN: u32 = 6;
const KEPT_SMALL_MIN: u32 = 12;
/// This many small messages prove a flow steady if they are at most the first share of their mean gap off a line through
/// them (root mean square). It stays steady up to the second share. At random times, it is more than a whole gap; if each
/// gap deviates by a quarter, it is most often above a half.
const STEADY: usize = 128;
const STEADY_PROOF: f64 = 0.25;
const STEADY_KEPT: f64 = 0.5;
/// Number of samples in the arrival model: enough to see the deviation, few enough to have a model for each flow.
const SAMPLES: usize = 32;
/// The burst that a flow may send above the bound on its rate, as the time in which the bound allows it.
const BURST: Duration = Duration::from_millis(250);
/// A flow that was too fast counts as fast until it has kept below half of the bound for this time.
const FAST: Duration = Duration::from_secs(5);
const SECOND: Duration = Duration::from_secs(1);

/// The bounds on control.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub message_bytes_max: u32,
    pub rate_bps_max: u64,
}

/// The result of the arrival model.
#[derive(Clone, Copy, Debug)]
struct Fit {
    period: Duration,
    sigma: Duration,
    samples: u32,
}

/// One flow's history.
#[derive(Clone, Debug, Default)]
pub(super) struct Nature {
    /// When the newest packet was sent.
    packet_at: Option<Instant>,
    /// When the newest [`STEADY`] messages began, oldest first.
    began: VecDeque<Instant>,
    message_bytes: u32,
    /// One bit per message, newest lowest: whether it was small, and whether it was on time by the period known then.
    small: u32,
    on_time: u32,
    /// The number of newest consecutive small messages.
    small_in_row: usize,
    model: Option<Box<ArrivalModel>>,
    /// The last period that was known from enough messages.
    period: Option<Duration>,
    periodic: bool,
    steady: bool,
    /// When everything sent so far would have been sent at the bound on the rate.
    paid_until: Instant,
    fast_at: Option<Instant>,
    /// The start and the bytes of the current second, and the bytes of the previous one.
    second_at: Instant,
    second_bytes: u64,
    before_bytes: u64,
}

impl Nature {
    /// Records a packet. `message_bytes` is its message's length, if the protocol states it; 0 means no payload and no
    /// message.
    pub fn on_packet(&mut self, bytes: u32, message_bytes: Option<u32>, bounds: Bounds, now: Instant) {
        self.pay(bytes, bounds, now);
        if message_bytes == Some(0) {
            return;
        }
        let follows = self.packet_at.is_some_and(|at| now.since(at) <= MESSAGE_GAP);
        self.packet_at = Some(now);
        if !follows {
            self.begin(bounds, now);
            self.message_bytes = 0;
        }
        self.message_bytes = match message_bytes {
            Some(whole) => self.message_bytes.max(whole),
            None => self.message_bytes.saturating_add(bytes),
        };
    }

    /// Returns whether messages are small and periodic.
    pub fn is_periodic(&self) -> bool {
        self.periodic
    }

    /// Returns whether messages are small, and their delays do not add up.
    pub fn is_steady(&self) -> bool {
        self.steady
    }

    /// Returns whether the flow sends, or lately sent, more than control may.
    pub fn is_fast(&self, now: Instant) -> bool {
        self.fast_at.is_some_and(|at| now.since(at) < FAST)
    }

    /// Returns the time between two messages, if they are periodic.
    pub fn period(&self) -> Option<Duration> {
        self.period.filter(|_| self.periodic)
    }

    /// Returns the rate over the last second, in bits per second.
    pub fn rate_bps(&self, now: Instant) -> u64 {
        let into = now.since(self.second_at);
        let (whole, before) = match into {
            into if into < SECOND => (self.second_bytes, self.before_bytes),
            into if into < SECOND * 2 => (0, self.second_bytes),
            _ => return 0,
        };
        let left = 1.0 - (into.as_secs_f64() % 1.0);
        ((whole as f64 + before as f64 * left) * 8.0) as u64
    }

    fn begin(&mut self, bounds: Bounds, now: Instant) {
        let Some(before) = self.began.back() else {
            self.began.push_back(now);
            return;
        };
        let gap = now.since(*before);
        let small = self.message_bytes <= bounds.message_bytes_max;
        if self.began.len() == STEADY {
            self.began.pop_front();
        }
        self.began.push_back(now);
        self.small = self.small << 1 | u32::from(small);
        self.small_in_row = if small { self.small_in_row.saturating_add(1) } else { 0 };
        // A restarted model may mistake a fraction of the period for the period.
        let periods = [self.period, self.model.as_ref().and_then(|model| model.period())];
        let near = |period: Duration| is_near(gap.as_nanos(), period, ON_TIME);
        self.on_time = self.on_time << 1 | u32::from(periods.into_iter().flatten().any(near));
        if small {
            self.model().on_sample(now);
        }
        let fit = self.fit();
        self.period = fit
            .filter(|fit| fit.samples >= PROOF)
            .map(|fit| fit.period)
            .or(self.period);
        if self.periodic {
            self.periodic = self.stays_periodic();
        } else if fit.is_some_and(|fit| self.proves_periodic(fit)) {
            // All messages so far proved it, so unknown ones before them count as good.
            (self.periodic, self.small, self.on_time) = (true, u32::MAX, u32::MAX);
        }
        self.steady = self.proves_steady(now);
    }

    fn model(&mut self) -> &mut ArrivalModel {
        self.model.get_or_insert_with(|| {
            Box::new(ArrivalModel::new(ArrivalConfig {
                samples_max: SAMPLES,
                ..ArrivalConfig::default()
            }))
        })
    }

    fn fit(&self) -> Option<Fit> {
        let model = self.model.as_ref()?;
        let (sigma, samples) = model.deviation()?;
        Some(Fit {
            period: model.period()?,
            sigma,
            samples: samples as u32,
        })
    }

    fn proves_periodic(&self, fit: Fit) -> bool {
        let (needed, share) = match fit.sigma {
            sigma if sigma * REGULAR <= fit.period => (PROOF, ON_TIME_PROOF),
            sigma if sigma * REGULAR_NOISY <= fit.period => (PROOF_NOISY, ON_TIME_NOISY),
            _ => return false,
        };
        let pairs = self.began.iter().rev().zip(self.began.iter().rev().skip(1));
        let mut newest = pairs
            .take(needed as usize)
            .map(|(at, before)| at.since(*before).as_nanos());
        (PERIOD_MIN..=PERIOD_MAX).contains(&fit.period)
            && self.began.len() > needed as usize
            && fit.samples >= needed
            && self.small.trailing_ones() >= needed
            && newest.all(|gap| is_near(gap, fit.period, share))
    }

    fn stays_periodic(&self) -> bool {
        let period = self.period.unwrap_or_default();
        may_keep(period) && newest(self.small) >= KEPT_SMALL_MIN && newest(self.on_time) >= KEPT_ON_TIME_MIN
    }

    fn proves_steady(&self, now: Instant) -> bool {
        if self.began.len() < STEADY {
            return false;
        }
        let mean = now.since(self.began[0]) / (STEADY as u64 - 1);
        let (may, share_max) = match self.steady {
            false => {
                let may = (PERIOD_MIN..=PERIOD_MAX).contains(&mean) && self.small_in_row >= STEADY;
                (may, STEADY_PROOF)
            }
            true => (may_keep(mean) && newest(self.small) >= KEPT_SMALL_MIN, STEADY_KEPT),
        };
        may && self.share_off_line(mean) <= share_max
    }

    /// Fits a line to the times of the newest messages by least squares. Returns the root of their mean square distance
    /// from it, as a share of their mean gap.
    fn share_off_line(&self, mean: Duration) -> f64 {
        let first = self.began[0];
        let count = self.began.len() as f64;
        let middle = (count - 1.0) / 2.0;
        let (mut y, mut yy, mut xy) = (0.0, 0.0, 0.0);
        for (number, at) in self.began.iter().enumerate() {
            let time = at.since(first).as_nanos() as f64;
            y += time;
            yy += time * time;
            xy += (number as f64 - middle) * time;
        }
        let xx = count * (count * count - 1.0) / 12.0;
        let square = (yy - y * y / count - xy * xy / xx).max(0.0);
        (square / count).sqrt() / mean.as_nanos() as f64
    }

    fn pay(&mut self, bytes: u32, bounds: Bounds, now: Instant) {
        let takes = u64::from(bytes).saturating_mul(8_000_000_000) / bounds.rate_bps_max.max(1);
        let until = self.paid_until.max(now) + Duration::from_nanos(takes);
        let most = now + BURST;
        if until > most {
            self.fast_at = Some(now);
        }
        self.paid_until = until.min(most);
        if now.since(self.second_at) >= SECOND {
            let recent = now.since(self.second_at) < SECOND * 2;
            self.before_bytes = if recent { self.second_bytes } else { 0 };
            if self.before_bytes.saturating_mul(16) > bounds.rate_bps_max && self.is_fast(now) {
                self.fast_at = Some(now);
            }
            self.second_at = if recent { self.second_at + SECOND } else { now };
            self.second_bytes = 0;
        }
        self.second_bytes = self.second_bytes.saturating_add(u64::from(bytes));
    }
}

/// Returns the number of bits that are set for the newest [`KEPT`] messages.
fn newest(bits: u32) -> u32 {
    (bits & ((1 << KEPT) - 1)).count_ones()
}

/// Returns whether a flow with this period may stay control.
fn may_keep(period: Duration) -> bool {
    (PERIOD_MIN * 3 / 4..=PERIOD_MAX * 5 / 4).contains(&period)
}

/// Returns whether a time between two messages is one period, to within a period divided by `share`.
fn is_near(gap_ns: u64, period: Duration, share: u64) -> bool {
    gap_ns.abs_diff(period.as_nanos()) <= period.as_nanos() / share
}
