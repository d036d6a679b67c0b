//! Decides by a flow's packets whether they are small and periodic, and whether there are too many.

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
    /// The times of the newest packet and of the newest message's first packet.
    packet_at: Option<Instant>,
    began_at: Instant,
    message_bytes: u32,
    /// The newest times between messages, in nanoseconds, in a ring, and the number of messages so far.
    gaps: [u64; KEPT as usize],
    messages: u32,
    /// One bit per message, newest lowest: whether it was small, and whether it was on time by the period known then.
    small: u32,
    on_time: u32,
    model: Option<Box<ArrivalModel>>,
    /// The last period that was known from enough messages.
    period: Option<Duration>,
    periodic: bool,
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
        if self.messages == 0 {
            (self.messages, self.began_at) = (1, now);
            return;
        }
        let gap = now.since(self.began_at);
        let small = self.message_bytes <= bounds.message_bytes_max;
        self.began_at = now;
        self.gaps[(self.messages % KEPT) as usize] = gap.as_nanos();
        self.messages = self.messages.wrapping_add(1).max(1);
        self.small = self.small << 1 | u32::from(small);
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
        let mut newest = (1..=needed).map(|back| self.gaps[(self.messages.wrapping_sub(back) % KEPT) as usize]);
        (PERIOD_MIN..=PERIOD_MAX).contains(&fit.period)
            && self.messages > needed
            && fit.samples >= needed
            && self.small.trailing_ones() >= needed
            && newest.all(|gap| is_near(gap, fit.period, share))
    }

    fn stays_periodic(&self) -> bool {
        let newest = |bits: u32| (bits & ((1 << KEPT) - 1)).count_ones();
        let period = self.period.unwrap_or_default();
        (PERIOD_MIN * 3 / 4..=PERIOD_MAX * 5 / 4).contains(&period)
            && newest(self.small) >= KEPT_SMALL_MIN
            && newest(self.on_time) >= KEPT_ON_TIME_MIN
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

/// Returns whether a time between two messages is one period, to within a period divided by `share`.
fn is_near(gap_ns: u64, period: Duration, share: u64) -> bool {
    gap_ns.abs_diff(period.as_nanos()) <= period.as_nanos() / share
}
