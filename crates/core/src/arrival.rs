//! Predicts when the next control message of a flow arrives: the time model {p, q, sigma} (Deng 2022, section IV-B).
//!
//! Message k of a flow is expected at q + p k, with a normal deviation of sigma. [`ArrivalModel`] learns the three by
//! linear regression over a sliding window of samples. It fits again when a message misses by more than 2 sigma or when
//! an interval has passed. [`TimeModel`] is the learnt model, to be sent to others.
//!
//! A sample is only a time. Its k is the nearest whole number of periods, which bridges lost messages and drops
//! duplicates. Samples that miss by far more than is usual for the flow mean a new period or a clock that stepped.
//! After a few of them the model starts again from only these.
//!
//! The sums of the regression are exact integers over the residuals to a reference line, which moves with the
//! window, so nothing cancels and nothing drifts. A sample costs O(1), amortised with quantiles, whose residuals are
//! selected only when the model is fitted. With few samples, the interval is widened by Student's factor and by the
//! uncertainty of the line itself. Deng 2022 has neither; with a full window both vanish.
//!
//! If a flow has a declared period and its interval is wider than half of that, it gets the middle half of a period. At
//! a deviation of a quarter, this still catches two messages in three. If it has caught little more than half of the
//! newest messages, as chance would, there is no interval. A model that predicts nothing starts again after fewer
//! misfits, since it may have mistaken a fraction of the period for the period.
//!
//! Left out: flows whose message k is not the nearest one. They get no prediction, and neither do flows that fell
//! silent.

use crate::normal::{normal_quantile, student_from_normal};
use crate::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// Minimum number of samples for a first fit.
const FIT_MIN: usize = 4;
/// Number of raw times kept for a restart.
const RECENT_MAX: usize = 8;
/// Numbers of misfits among the last eight samples that mean that the flow has changed, or that a model without
/// predictions is wrong.
const MISFITS_MAX: u32 = 4;
const MISFITS_USELESS_MAX: u32 = 2;
/// A sample is a misfit if it misses by this many times the usual width (about 2 sigma, more while samples are few).
const MISFIT_WIDTHS: f64 = 2.5;
/// A run of this many misses beyond the usual width on one side is a change too.
const ONE_SIDED_MAX: i32 = 6;
/// If this many samples in a row are the same number of periods (above one) apart, the period is longer.
const SAME_STRIDE_MAX: u32 = 8;
/// Quantiles are read again once a quarter of the window is new, because they cost a pass over it and move slowly.
const QUANTILE_SHARE: usize = 4;
/// The normal quantile of an accuracy of 95 %.
const Z_95: f64 = 1.96;
/// Below this deviation (1 us) differences come from clocks and rounding, not from the flow.
const SIGMA_FLOOR_NS: f64 = 1e3;
/// Maximum width of an interval, as a share of the period. Without a declared period, an interval wider than the second
/// share is of no use.
const WIDTH_MAX: f64 = 1.0 / 2.0;
const WIDTH_UNDECLARED_MAX: f64 = 1.0 / 8.0;
/// An interval that was cut to [`WIDTH_MAX`] is of use if it catches the first constant's share of the newest messages.
/// The second is the number of messages from which this is judged.
const CAUGHT_MIN: f64 = 0.56;
const CAUGHT_OF_MIN: u32 = 32;
/// A flow is irregular if it deviates by more than the first share of its period. Its fitted period stays within the second
/// share of the declared one, because with few samples any period would seem to fit.
const IRREGULAR: f64 = 1.0 / 16.0;
const DECLARED_OFF_MAX: f64 = 0.02;
/// A flow that was silent for this many periods is not predicted.
const SILENT_PERIODS_MAX: u64 = 16;
/// After a gap of this many periods the phase is no longer trusted.
const GAP_PERIODS_MAX: i64 = 1_000;
/// Maximum number of samples in the window.
pub const SAMPLES_MAX: usize = 1_024;
/// The shortest period that is predicted.
pub const PERIOD_MIN: Duration = Duration::from_micros(10);
/// The longest period that is predicted.
pub const PERIOD_MAX: Duration = Duration::from_secs(3_600);

/// How the width of the interval is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deviation {
    /// From sigma, assuming a normal distribution: the same width early and late, as in Deng 2022.
    Normal,
    /// From the quantiles of the residuals: as early and as late as the flow really is.
    Quantile,
}

/// How much to learn from, and how wide to predict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArrivalConfig {
    /// The share of messages that arrive within the predicted interval (C).
    pub accuracy: f64,
    /// How the interval's width is computed.
    pub deviation: Deviation,
    /// The time after which the model is fitted again.
    pub refit_interval: Duration,
    /// The number of samples in the window, at most [`SAMPLES_MAX`].
    pub samples_max: usize,
    /// The period, if the flow's owner declares one. Then it need not be learnt, and samples correct it.
    pub period: Option<Duration>,
}

impl Default for ArrivalConfig {
    /// Returns the accuracy of 95 % of Deng 2022, with a normal deviation.
    fn default() -> Self {
        ArrivalConfig {
            accuracy: 0.95,
            deviation: Deviation::Normal,
            refit_interval: Duration::from_secs(1),
            samples_max: 128,
            period: None,
        }
    }
}

/// An expected message: it should arrive within `[expected - early, expected + late]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// The ideal time.
    pub expected: Instant,
    /// How much earlier the message may arrive.
    pub early: Duration,
    /// How much later the message may arrive.
    pub late: Duration,
}

impl Arrival {
    /// Returns the earliest time at which the message may arrive.
    pub fn start(&self) -> Instant {
        self.expected - self.early
    }

    /// Returns the latest time at which the message may arrive.
    pub fn end(&self) -> Instant {
        self.expected + self.late
    }
}

/// The parameters of a fitted model, as one robot reports them to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeModel {
    /// Time between two messages (p).
    pub period: Duration,
    /// When one message is expected (q), preferably the next.
    pub phase: Instant,
    /// The standard deviation (sigma).
    pub sigma: Duration,
    /// How much earlier than expected a message may arrive.
    pub early: Duration,
    /// How much later than expected a message may arrive.
    pub late: Duration,
}

impl TimeModel {
    /// Returns whether the model can be of use: its period is within the limits, and bulk has time between two
    /// intervals.
    pub fn is_usable(&self) -> bool {
        (PERIOD_MIN..=PERIOD_MAX).contains(&self.period) && self.early + self.late <= self.period
    }

    /// Returns the first message, from `phase` on, whose interval ends after `after`; `None` without a period.
    pub fn next_after(&self, after: Instant) -> Option<Arrival> {
        if self.period == Duration::ZERO {
            return None;
        }
        let first_end = self.phase + self.late;
        let periods = if first_end > after {
            0
        } else {
            after.since(first_end).as_nanos() / self.period.as_nanos() + 1
        };
        Some(Arrival {
            expected: self.phase + self.period * periods,
            early: self.early,
            late: self.late,
        })
    }

    /// Returns whether `other` predicts messages as this model does. Times must agree to within `tolerance`, and
    /// intervals to within `tolerance` or a quarter.
    pub fn agrees_with(&self, other: &TimeModel, tolerance: Duration) -> bool {
        let near = |a: Duration, b: Duration, by: Duration| a.as_nanos().abs_diff(b.as_nanos()) <= by.as_nanos();
        if self.period == Duration::ZERO || other.period == Duration::ZERO || self.phase < other.phase {
            return self == other;
        }
        let off = Duration::from_nanos(self.phase.since(other.phase).as_nanos() % other.period.as_nanos());
        near(off.min(other.period.saturating_sub(off)), Duration::ZERO, tolerance)
            && near(self.early, other.early, tolerance.max(other.early / 4))
            && near(self.late, other.late, tolerance.max(other.late / 4))
    }

    /// Returns the end of the interval of the message made at `made_at`; `made_at` itself for a message before `phase`.
    pub fn end_of(&self, made_at: Instant) -> Instant {
        let middle = made_at + self.period / 2;
        if self.period == Duration::ZERO || middle < self.phase {
            return made_at;
        }
        let periods = middle.since(self.phase).as_nanos() / self.period.as_nanos();
        self.phase + self.period * periods + self.late
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Sample {
    k: i64,
    at: Instant,
}

/// Exact sums over the window, of x = k - k0 and of y, the residual to the reference line in nanoseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Sums {
    x: i128,
    y: i128,
    xx: i128,
    xy: i128,
    yy: i128,
}

impl Sums {
    #[inline]
    fn add(&mut self, x: i64, y: i64) {
        let (x, y) = (i128::from(x), i128::from(y));
        self.x += x;
        self.y += y;
        self.xx += x * x;
        self.xy += x * y;
        self.yy += y * y;
    }

    #[inline]
    fn remove(&mut self, x: i64, y: i64) {
        let (x, y) = (i128::from(x), i128::from(y));
        self.x -= x;
        self.y -= y;
        self.xx -= x * x;
        self.xy -= x * y;
        self.yy -= y * y;
    }
}

/// The line at + period * (k - k0), in whole nanoseconds, from which residuals are measured.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Reference {
    k0: i64,
    at: Instant,
    period_ns: i64,
}

impl Reference {
    /// Returns the residual of a sample, in nanoseconds.
    #[inline]
    fn residual(&self, s: Sample) -> i64 {
        signed_ns(s.at, self.at).saturating_sub((s.k - self.k0).saturating_mul(self.period_ns))
    }
}

/// The fitted line, relative to the reference: residual = offset + slope * (k - k0), in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Fit {
    offset: f64,
    slope: f64,
    sigma: f64,
    /// The usual deviation: 95 % of the messages arrive within it.
    usual: f64,
    early: f64,
    late: f64,
    at: Instant,
}

/// Learns the arrival times of one flow and predicts the next.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ArrivalModel {
    config: ArrivalConfig,
    z: f64,
    window: Vec<Sample>,
    /// Index of the oldest sample once the window is full.
    oldest: usize,
    since_rebase: usize,
    /// Number of samples since quantiles were read; the window's capacity if they never were.
    since_quantiles: usize,
    sums: Sums,
    reference: Reference,
    fit: Option<Fit>,
    last: Option<Sample>,
    /// The newest raw times, oldest first.
    recent: [Instant; RECENT_MAX],
    recent_len: usize,
    /// One bit per sample, newest lowest: whether it was a misfit.
    misfits: u8,
    /// One bit per sample, newest lowest: whether its interval, cut to [`WIDTH_MAX`], caught it; and the number of
    /// valid bits. Kept across restarts, because it describes the flow.
    caught: u64,
    caught_of: u32,
    /// The number of misses in a row, signed by their side.
    one_sided: i32,
    /// The last step of k, and the number of consecutive equal steps above one.
    stride: (i64, u32),
    scratch: Vec<i64>,
}

impl ArrivalModel {
    /// Creates a model without samples.
    pub fn new(config: ArrivalConfig) -> Self {
        let samples_max = config.samples_max.clamp(RECENT_MAX, SAMPLES_MAX);
        let accuracy = if config.accuracy.is_nan() {
            0.95
        } else {
            config.accuracy.clamp(0.0, 1.0)
        };
        ArrivalModel {
            z: normal_quantile((1.0 + accuracy) / 2.0),
            window: Vec::with_capacity(samples_max),
            oldest: 0,
            since_rebase: 0,
            since_quantiles: samples_max,
            sums: Sums::default(),
            reference: Reference::default(),
            fit: None,
            last: None,
            recent: [Instant::ZERO; RECENT_MAX],
            recent_len: 0,
            misfits: 0,
            caught: 0,
            caught_of: 0,
            one_sided: 0,
            stride: (1, 0),
            scratch: Vec::with_capacity(samples_max),
            config: ArrivalConfig {
                samples_max,
                accuracy,
                ..config
            },
        }
    }

    /// Records that the flow sent a message at `now`.
    pub fn on_sample(&mut self, now: Instant) {
        let (Some(last), Some(fit)) = (self.last, self.fit) else {
            return self.learn(now);
        };
        let newest = self.recent[self.recent_len.saturating_sub(1)];
        let period = self.reference.period_ns as f64 + fit.slope;
        if now < newest {
            return self.restart(now, 0); // The clock stepped back: only the period still holds.
        }
        if (now.since(newest).as_nanos() as f64) < period / 8.0 {
            return; // The same message again, or another piece of it.
        }
        let along = (signed_ns(now, self.reference.at) as f64 - fit.offset) / period;
        let k = self.reference.k0.saturating_add(along.round() as i64);
        if k.saturating_sub(last.k) > GAP_PERIODS_MAX {
            return self.restart(now, 0);
        }
        let residual = (along - along.round()) * period;
        self.remember(now);
        if self.has_changed(k.saturating_sub(last.k), residual, &fit, period) {
            return self.restart(now, FIT_MIN);
        }
        if k <= last.k || residual.abs() > self.residual_max(&fit, period) {
            return; // Its k is ambiguous, so it counts only as a misfit.
        }
        self.insert(Sample { k, at: now });
        let miss = residual.abs() > 2.0 * fit.sigma;
        let warming_up = self.window.len() < 2 * RECENT_MAX;
        if miss || warming_up || now.since(fit.at) >= self.config.refit_interval {
            self.refit(now);
        }
    }

    /// Records that the flow sent a message at `now` that had to wait for something else, such as the end of a late
    /// loop. It says nothing about when other messages are due.
    pub fn on_put_off(&mut self, now: Instant) {
        let (Some(last), Some(fit)) = (self.last, self.fit) else {
            return self.learn(now);
        };
        let period = self.reference.period_ns as f64 + fit.slope;
        let along = (signed_ns(now, self.reference.at) as f64 - fit.offset) / period;
        let k = self.reference.k0.saturating_add(along.round() as i64);
        if now >= last.at && k > last.k {
            self.last = Some(Sample { k, at: now });
        }
    }

    /// Returns the next message that has not arrived yet and whose interval ends after `after`.
    ///
    /// Returns `None` while too little is known, once the flow has fallen silent, and if it is too irregular for an
    /// interval to be of use. Without a declared period, too irregular means an interval of an eighth of the period or
    /// more. Messages that follow from something else, as commands follow from an inference, arrive at times that
    /// resemble a period. Their windows cost more than they are worth.
    pub fn predict(&self, after: Instant) -> Option<Arrival> {
        let (last, fit) = (self.last?, self.fit?);
        let period = self.reference.period_ns as f64 + fit.slope;
        let silent_from = last.at + Duration::from_nanos(period as u64) * SILENT_PERIODS_MAX;
        if after > silent_from {
            return None;
        }
        let (early, late) = self.useful(&fit, period)?;
        let k = (signed_ns(after, self.reference.at) as f64 - fit.offset - late) / period;
        let k = (k.floor() as i64 + 1).max(last.k - self.reference.k0 + 1);
        let offset = fit.offset + k as f64 * period;
        let expected = offset_by(self.reference.at, offset.round() as i64);
        Some(Arrival {
            expected,
            early: nanos(early),
            late: nanos(late),
        })
    }

    /// Returns how early and how late messages are expected, in nanoseconds; `None` if an interval is of no use.
    fn useful(&self, fit: &Fit, period: f64) -> Option<(f64, f64)> {
        let (width, most) = (fit.early + fit.late, period * WIDTH_MAX);
        if self.config.period.is_none() {
            return (width < period * WIDTH_UNDECLARED_MAX).then_some((fit.early, fit.late));
        }
        let caught = f64::from(self.caught.count_ones());
        if width > most && self.caught_of >= CAUGHT_OF_MIN && caught < CAUGHT_MIN * f64::from(self.caught_of) {
            return None;
        }
        Some(cut(fit, period))
    }

    /// Returns the largest residual that still identifies the message. It is a quarter of the period, or half if the
    /// period is declared and the flow usually is that irregular.
    fn residual_max(&self, fit: &Fit, period: f64) -> f64 {
        let wide = self.config.period.is_some() && MISFIT_WIDTHS * fit.usual > period / 4.0;
        period / if wide { 2.0 } else { 4.0 }
    }

    /// Returns the time between two messages, once known.
    pub fn period(&self) -> Option<Duration> {
        let fit = self.fit?;
        Some(nanos(self.reference.period_ns as f64 + fit.slope))
    }

    /// Returns the deviation of messages from the model (sigma), and the number of messages that the model was fitted
    /// to. Available even if messages are too irregular to be predicted.
    pub fn deviation(&self) -> Option<(Duration, usize)> {
        Some((nanos(self.fit?.sigma), self.window.len()))
    }

    /// Returns the model to send to other robots. Its phase is the next message's expected time.
    pub fn time_model(&self) -> Option<TimeModel> {
        let (last, fit) = (self.last?, self.fit?);
        let next = self.predict(last.at)?;
        Some(TimeModel {
            period: nanos(self.reference.period_ns as f64 + fit.slope),
            phase: next.expected,
            sigma: nanos(fit.sigma),
            early: next.early,
            late: next.late,
        })
    }

    /// Counts misfits. Returns whether there are more than chance explains.
    #[inline]
    fn has_changed(&mut self, step: i64, residual: f64, fit: &Fit, period: f64) -> bool {
        let usual = fit.usual;
        // A model that predicts nothing may have a wrong phase or period.
        let (most, misfits_max) = match self.useful(fit, period) {
            Some(_) => (self.residual_max(fit, period), MISFITS_MAX),
            None => (period / 4.0, MISFITS_USELESS_MAX),
        };
        let misfit = step <= 0 || residual.abs() > (MISFIT_WIDTHS * usual).min(most);
        self.misfits = self.misfits << 1 | u8::from(misfit);
        let side = if residual > 0.0 { 1 } else { -1 };
        self.one_sided = match (residual.abs() > usual, self.one_sided * side > 0) {
            (false, _) => 0,
            (true, true) => self.one_sided + side,
            (true, false) => side,
        };
        let alike = step > 1 && step == self.stride.0;
        self.stride = (step, if alike { self.stride.1 + 1 } else { 0 });
        let (early, late) = cut(fit, period);
        let caught = step > 0 && -early <= residual && residual <= late;
        self.caught = self.caught << 1 | u64::from(caught);
        self.caught_of = (self.caught_of + 1).min(u64::BITS);
        self.misfits.count_ones() >= misfits_max
            || self.one_sided.abs() >= ONE_SIDED_MAX
            // A declared period is kept, because its owner may leave out messages.
            || (self.stride.1 >= SAME_STRIDE_MAX && self.config.period.is_none())
    }

    fn remember(&mut self, now: Instant) {
        if self.recent_len == RECENT_MAX {
            self.recent.copy_within(1.., 0);
            self.recent_len -= 1;
        }
        self.recent[self.recent_len] = now;
        self.recent_len += 1;
    }

    /// Forgets everything except the newest `keep` raw times and the period, which becomes a hint.
    #[cold]
    fn restart(&mut self, now: Instant, keep: usize) {
        self.window.clear();
        (self.oldest, self.since_rebase, self.since_quantiles) = (0, 0, self.config.samples_max);
        self.sums = Sums::default();
        (self.fit, self.last) = (None, None);
        (self.misfits, self.one_sided, self.stride) = (0, 0, (1, 0));
        let keep = keep.min(self.recent_len);
        self.recent.copy_within(self.recent_len - keep..self.recent_len, 0);
        self.recent_len = keep;
        if keep == 0 {
            self.remember(now);
        } else {
            self.seed(now);
        }
    }

    /// Collects times, while there is no model, until they lie on a line.
    #[cold]
    fn learn(&mut self, now: Instant) {
        if let Some(newest) = self.recent_len.checked_sub(1).map(|i| self.recent[i]) {
            let hint = self
                .config
                .period
                .or((self.reference.period_ns > 0).then(|| nanos(self.reference.period_ns as f64)));
            if now < newest {
                self.recent_len = 0; // The clock stepped back: these times are useless.
            } else if now == newest || hint.is_some_and(|p| now.since(newest) < p / 16) {
                return;
            }
        }
        self.remember(now);
        self.seed(now);
    }

    /// Starts the window from the newest raw times, if they agree on a period.
    fn seed(&mut self, now: Instant) {
        let times = self.recent;
        let times = &times[..self.recent_len];
        if times.len() < FIT_MIN {
            return;
        }
        let mut gaps = [0u64; RECENT_MAX];
        let gaps = &mut gaps[..times.len() - 1];
        for (gap, pair) in gaps.iter_mut().zip(times.windows(2)) {
            *gap = pair[1].since(pair[0]).as_nanos();
        }
        let learnt = {
            let mut sorted = [u64::MAX; RECENT_MAX];
            sorted[..gaps.len()].copy_from_slice(gaps);
            sorted[..gaps.len()].sort_unstable();
            sorted[(gaps.len() - 1) / 2]
        };
        // The samples' own period, then the declared one, then the last one known.
        let declared = self.config.period.map(Duration::as_nanos);
        let known = u64::try_from(self.reference.period_ns).ok();
        let fits = |period: &u64| {
            // Only a regular flow overrides its declared period.
            let part = if declared.is_some_and(|declared| declared != *period) {
                16
            } else {
                4
            };
            (PERIOD_MIN.as_nanos()..=PERIOD_MAX.as_nanos()).contains(period)
                && gaps.iter().all(|gap| is_multiple(*gap, *period, part))
        };
        let Some(period) = [declared, Some(learnt), known].into_iter().flatten().find(fits) else {
            // More samples will not agree better.
            if let Some(declared) = declared.filter(|_| times.len() == RECENT_MAX) {
                self.seed_irregular(declared, now);
            }
            return;
        };
        let mut k = 0;
        self.reference = Reference {
            k0: 0,
            at: times[0],
            period_ns: period as i64,
        };
        self.insert(Sample { k, at: times[0] });
        for (gap, at) in gaps.iter().zip(&times[1..]) {
            k += ((*gap + period / 2) / period) as i64;
            self.insert(Sample { k, at: *at });
        }
        self.refit(now);
    }

    /// Starts the window like [`ArrivalModel::seed`] if messages are too irregular to tell how many periods each gap
    /// has. Uses the declared period, and their circular mean as the phase.
    #[cold]
    fn seed_irregular(&mut self, period_ns: u64, now: Instant) {
        if !(PERIOD_MIN.as_nanos()..=PERIOD_MAX.as_nanos()).contains(&period_ns) {
            return;
        }
        let (times, period) = (self.recent, period_ns as f64);
        let turn = std::f64::consts::TAU;
        let angles = times.iter().map(|at| at.since(times[0]).as_nanos() % period_ns);
        let (sine, cosine) = angles.fold((0.0, 0.0), |(sine, cosine), ns| {
            let angle = turn * ns as f64 / period;
            (sine + angle.sin(), cosine + angle.cos())
        });
        let phase = sine.atan2(cosine) / turn * period;
        self.reference = Reference {
            k0: 0,
            at: offset_by(times[0], phase as i64),
            period_ns: period_ns as i64,
        };
        for at in times {
            let k = (signed_ns(at, self.reference.at) as f64 / period).round() as i64;
            if self.last.is_none_or(|last| k > last.k) {
                self.insert(Sample { k, at });
            }
        }
        self.refit(now);
    }

    #[inline]
    fn insert(&mut self, sample: Sample) {
        self.last = Some(sample);
        if self.window.len() < self.config.samples_max {
            self.window.push(sample);
        } else {
            let old = std::mem::replace(&mut self.window[self.oldest], sample);
            self.sums
                .remove(old.k - self.reference.k0, self.reference.residual(old));
            self.oldest = if self.oldest + 1 == self.window.len() {
                0
            } else {
                self.oldest + 1
            };
        }
        self.sums
            .add(sample.k - self.reference.k0, self.reference.residual(sample));
        self.since_rebase += 1;
        self.since_quantiles = self.since_quantiles.saturating_add(1);
        if self.since_rebase >= self.config.samples_max {
            self.rebase(sample.at);
        }
    }

    /// Moves the reference line to the current window. Runs once per window length, so it costs O(1) per sample.
    #[cold]
    fn rebase(&mut self, now: Instant) {
        self.since_rebase = 0;
        self.refit(now);
        let (Some(fit), Some(last)) = (self.fit, self.last) else {
            return;
        };
        let period_ns = self.reference.period_ns + fit.slope.round() as i64;
        let moved = Reference {
            k0: last.k,
            at: last.at,
            period_ns,
        };
        self.sums = Sums::default();
        for s in &self.window {
            self.sums.add(s.k - moved.k0, moved.residual(*s));
        }
        self.reference = moved;
        self.refit(now);
    }

    #[cold]
    fn refit(&mut self, now: Instant) {
        let n = self.window.len() as i128;
        let s = &self.sums;
        let spread = (n * s.xx - s.x * s.x) as f64;
        if n < FIT_MIN as i128 || spread <= 0.0 {
            return;
        }
        let count = n as f64;
        let (cross, square) = ((n * s.xy - s.x * s.y) as f64, (n * s.yy - s.y * s.y) as f64);
        let slope = cross / spread;
        let variance = ((square - cross * slope) / count).max(0.0) / (count - 2.0);
        let sigma = variance.sqrt().max(SIGMA_FLOOR_NS);
        let slope = self.believable(slope, sigma);
        let offset = (s.y as f64 - slope * s.x as f64) / count;
        // The next x lies off the window's middle: there the line itself is uncertain too.
        let next_x = self.last.map_or(0, |last| last.k - self.reference.k0 + 1) as f64;
        let lever = next_x - s.x as f64 / count;
        let line = (1.0 + 1.0 / count + lever * lever * count / spread).sqrt();
        let width = student_from_normal(self.z, count - 2.0) * sigma * line;
        let usual = student_from_normal(Z_95, count - 2.0) * sigma * line;
        let (early, late) = match self.config.deviation {
            Deviation::Normal => (width, width),
            Deviation::Quantile => match self.fit {
                Some(fit) if self.since_quantiles < self.config.samples_max / QUANTILE_SHARE => (fit.early, fit.late),
                _ => self.quantiles(offset, slope).unwrap_or((width, width)),
            },
        };
        self.fit = Some(Fit {
            offset,
            slope,
            sigma,
            usual,
            early,
            late,
            at: now,
        });
    }

    /// Returns the slope, limited by the declared period if the flow is irregular.
    fn believable(&self, slope: f64, sigma: f64) -> f64 {
        let declared = self.config.period.map(|period| period.as_nanos() as f64);
        let Some(declared) = declared.filter(|declared| sigma > declared * IRREGULAR) else {
            return slope;
        };
        let known = self.reference.period_ns as f64;
        let off = declared * DECLARED_OFF_MAX;
        // The flow may have an entirely different period from the declared one.
        if (known - declared).abs() > off {
            return slope;
        }
        slope.clamp(declared - off - known, declared + off - known)
    }

    /// Returns how early and how late the residuals are at the configured accuracy; `None` while there are too few.
    fn quantiles(&mut self, offset: f64, slope: f64) -> Option<(f64, f64)> {
        let tail = (1.0 - self.config.accuracy) / 2.0;
        let beyond = (tail * self.window.len() as f64) as usize;
        if beyond == 0 {
            return None;
        }
        self.since_quantiles = 0;
        let reference = self.reference;
        self.scratch.clear();
        self.scratch.extend(self.window.iter().map(|s| {
            let x = (s.k - reference.k0) as f64;
            reference.residual(*s) - (offset + slope * x).round() as i64
        }));
        // The sample at this rank bounds the tail: one sample fewer than the tail allows lies beyond it.
        let (rank, last) = (beyond - 1, self.scratch.len() - 1);
        let early = -*self.scratch.select_nth_unstable(rank).1;
        let late = *self.scratch.select_nth_unstable(last - rank).1;
        Some(((early as f64).max(SIGMA_FLOOR_NS), (late as f64).max(SIGMA_FLOOR_NS)))
    }
}

/// Returns the interval of a fit, in nanoseconds early and late, cut to [`WIDTH_MAX`].
fn cut(fit: &Fit, period: f64) -> (f64, f64) {
    let part = (period * WIDTH_MAX / (fit.early + fit.late)).min(1.0);
    (fit.early * part, fit.late * part)
}

/// Returns whether a gap is a whole number of periods, at least one, to within 1 / `part` of a period.
fn is_multiple(gap: u64, period: u64, part: u64) -> bool {
    let periods = gap.saturating_add(period / 2) / period;
    periods >= 1 && periods <= GAP_PERIODS_MAX as u64 && gap.abs_diff(periods * period) <= period / part
}

/// Returns `a - b` in nanoseconds. Differences between times since one origin fit 63 bits.
fn signed_ns(a: Instant, b: Instant) -> i64 {
    let span = |d: Duration| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX);
    if a >= b {
        span(a.since(b))
    } else {
        -span(b.since(a))
    }
}

fn offset_by(at: Instant, ns: i64) -> Instant {
    let span = Duration::from_nanos(ns.unsigned_abs());
    if ns >= 0 {
        at + span
    } else {
        at - span
    }
}

/// Converts nanoseconds to a span; negative values and NaN become zero.
fn nanos(ns: f64) -> Duration {
    Duration::from_nanos(ns.round() as u64)
}

#[cfg(test)]
mod tests;
