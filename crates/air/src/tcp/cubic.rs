//! The congestion window: slow start and CUBIC (RFC 9438), in segments.
//!
//! After a reduction the window follows W(t) = C (t - K)^3 + W_max (equation 1). It never stays below the window that
//! Reno would have (equation 4, the Reno-friendly region). Includes fast convergence (4.7) and the delay half of
//! HyStart: slow start ends when a round trip's first samples are all well above the shortest one. Left out: HyStart's
//! other half, acknowledgement trains, and undoing a spurious reduction (4.9).

use coorp_core::{Duration, Instant};

/// The initial window of a connection, to which the window of an idle one also falls back (RFC 6928).
pub(super) const INITIAL_WINDOW: f64 = 10.0;
/// C of equation 1, in segments per second cubed.
const SCALE: f64 = 0.4;
/// The share of the window that remains after a loss.
const BETA: f64 = 0.7;
/// The growth per round trip that makes Reno with BETA as fast as Reno with one half (equation 4).
const RENO_ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// HyStart is active from this window on, and checks this many samples of each round trip (Linux's values).
const HYSTART_WINDOW: f64 = 16.0;
const HYSTART_SAMPLES: u32 = 8;
/// The increase over the shortest round trip that counts as too long: an eighth of it, within these bounds.
const HYSTART_RISE_MIN: Duration = Duration::from_millis(4);
const HYSTART_RISE_MAX: Duration = Duration::from_millis(16);
/// The minimum slow-start threshold.
const THRESHOLD_MIN: f64 = 2.0;

/// A phase of congestion avoidance between two reductions.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: Instant,
    /// The time after `start` at which the curve is flat.
    k_s: f64,
    /// The window at which the curve is flat.
    origin: f64,
    /// The window that Reno would have.
    reno: f64,
}

/// One round trip as seen by HyStart.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// The round ends when this segment is acknowledged.
    end: u64,
    samples: u32,
    least: Duration,
}

/// The window and its history.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cubic {
    window: f64,
    window_max: f64,
    threshold: f64,
    /// The window that the last reduction considered the path's limit.
    w_max: f64,
    /// The window before the last reduction.
    before: f64,
    epoch: Option<Epoch>,
    round: Round,
}

impl Cubic {
    /// Creates a window that may grow to `window_max` segments.
    pub(super) fn new(window_max: u64) -> Self {
        Cubic {
            window: INITIAL_WINDOW,
            window_max: window_max as f64,
            threshold: f64::MAX,
            w_max: 0.0,
            before: 0.0,
            epoch: None,
            round: Round {
                end: 0,
                samples: 0,
                least: Duration::MAX,
            },
        }
    }

    /// Returns the window in whole segments; at least 1.
    pub(super) fn window(&self) -> u32 {
        self.window.max(1.0) as u32
    }

    /// Returns the slow-start threshold in whole segments.
    pub(super) fn threshold(&self) -> u32 {
        self.threshold as u32
    }

    pub(super) fn in_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    /// Returns the bytes per second at which Linux would pace this flow. That is twice the window per round trip in the
    /// first half of slow start, and 1.2 times after it.
    pub(super) fn pacing_rate(&self, mss: u16, srtt: Duration) -> f64 {
        let ratio = if self.window < self.threshold / 2.0 { 2.0 } else { 1.2 };
        ratio * self.window * f64::from(mss) / srtt.as_secs_f64().max(1e-6)
    }

    /// Records that `segments` segments were acknowledged while the window limited the flow.
    pub(super) fn on_acked(&mut self, segments: u32, now: Instant, srtt: Duration) {
        let mut segments = f64::from(segments);
        if self.in_slow_start() {
            let grown = (self.window + segments).min(self.threshold);
            segments -= grown - self.window;
            self.window = grown.min(self.window_max);
            if segments <= 0.0 {
                return;
            }
        }
        let window = self.window;
        let epoch = self.epoch.get_or_insert_with(|| begin(window, self.w_max, now));
        let from_flat_s = (now.since(epoch.start) + srtt).as_secs_f64() - epoch.k_s;
        let curve = epoch.origin + SCALE * from_flat_s * from_flat_s * from_flat_s;
        let target = curve.clamp(window, 1.5 * window);
        let alpha = if epoch.reno < self.before { RENO_ALPHA } else { 1.0 };
        epoch.reno += alpha * segments / window;
        self.window = (window + (target - window) / window * segments)
            .max(epoch.reno)
            .min(self.window_max);
    }

    /// Records a round trip of `rtt`; the shortest so far took `least`. Ends slow start if the queue has begun to grow.
    /// `acked` is the cumulative acknowledgement and `next` the next new segment; they mark the end of a round trip.
    pub(super) fn on_rtt(&mut self, rtt: Duration, least: Duration, acked: u64, next: u64) {
        if !self.in_slow_start() {
            return;
        }
        if acked > self.round.end {
            self.round = Round {
                end: next,
                samples: 0,
                least: Duration::MAX,
            };
        }
        if self.round.samples < HYSTART_SAMPLES {
            self.round.samples += 1;
            self.round.least = self.round.least.min(rtt);
            return;
        }
        let rise = (least / 8).clamp(HYSTART_RISE_MIN, HYSTART_RISE_MAX);
        if self.window >= HYSTART_WINDOW && self.round.least > least + rise {
            self.threshold = self.window;
        }
    }

    /// Sets the threshold, because lost segments require a reduction. The recovery moves the window there.
    pub(super) fn on_loss(&mut self) {
        // Fast convergence: a flow reduced again below its old limit leaves room for a newcomer.
        self.w_max = if self.window < self.w_max {
            self.window * (1.0 + BETA) / 2.0
        } else {
            self.window
        };
        self.before = self.window;
        self.threshold = (self.window * BETA).max(THRESHOLD_MIN);
        self.epoch = None;
    }

    /// Restarts from one segment after a timeout, and forgets the old curve, as Linux and RFC 9438 (4.8) do.
    pub(super) fn on_timeout(&mut self) {
        self.window = 1.0;
        self.w_max = 0.0;
        self.epoch = None;
    }

    /// Sets the window, during a recovery.
    pub(super) fn set_window(&mut self, segments: u32) {
        self.window = f64::from(segments.max(1)).min(self.window_max);
    }

    /// Adjusts the window after nothing was in flight for `idle`. The curve pauses for that time, and for each
    /// `timeout` in it the window halves, down to the initial one (RFC 2861, as in Linux).
    pub(super) fn on_idle(&mut self, idle: Duration, timeout: Duration) {
        if let Some(epoch) = &mut self.epoch {
            epoch.start += idle;
        }
        if idle <= timeout {
            return;
        }
        self.threshold = self.threshold.max(self.window * 0.75);
        let mut left = idle.saturating_sub(timeout);
        while left > Duration::ZERO && self.window > INITIAL_WINDOW {
            self.window = (self.window / 2.0).max(INITIAL_WINDOW);
            left = left.saturating_sub(timeout);
        }
    }
}

fn begin(window: f64, w_max: f64, now: Instant) -> Epoch {
    Epoch {
        start: now,
        k_s: cube_root((w_max - window) / SCALE),
        origin: w_max.max(window),
        reno: window,
    }
}

/// Returns the cube root by Newton's method; zero for non-positive values. The platform's function may differ in the
/// last bit between machines, but a seed must give the same run on all of them.
fn cube_root(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    let mut root = x.max(1.0);
    for _ in 0..200 {
        let next = (2.0 * root + x / (root * root)) / 3.0;
        if next >= root {
            break;
        }
        root = next;
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_ms(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    /// Acknowledges one window per round trip for `ms`, starting at `from_ms`.
    fn run(cubic: &mut Cubic, from_ms: u64, ms: u64, rtt_ms: u64) {
        for at in (from_ms..from_ms + ms).step_by(rtt_ms as usize) {
            cubic.on_acked(cubic.window(), at_ms(at), Duration::from_millis(rtt_ms));
        }
    }

    #[test]
    fn cube_root_is_exact_enough() {
        for x in [1e-6, 0.3, 1.0, 8.0, 1000.0, 1e9] {
            assert!((cube_root(x).powi(3) / x - 1.0).abs() < 1e-12, "{x}");
        }
        assert_eq!(cube_root(-1.0), 0.0);
    }

    #[test]
    fn slow_start_doubles_each_round_trip() {
        let mut cubic = Cubic::new(100_000);
        run(&mut cubic, 0, 50, 10);
        assert_eq!(cubic.window(), 320);
    }

    #[test]
    fn slow_start_ends_when_round_trips_grow() {
        let mut cubic = Cubic::new(100_000);
        let least = Duration::from_millis(2);
        for (round, rtt_ms) in [2, 3, 5, 7].into_iter().enumerate() {
            assert!(cubic.in_slow_start());
            let first = 100 * round as u64;
            for sample in 1..=10 {
                // A single short sample shows that there is no standing queue; a single long one shows nothing.
                let rtt = if sample == 1 && round == 2 {
                    least
                } else {
                    Duration::from_millis(rtt_ms)
                };
                cubic.on_rtt(rtt, least, first + sample, first + 100);
                cubic.on_acked(1, at_ms(0), least);
            }
        }
        assert!(!cubic.in_slow_start());
    }

    #[test]
    fn the_window_is_back_at_its_limit_after_k() {
        let mut cubic = Cubic::new(100_000);
        cubic.set_window(1000);
        cubic.on_loss();
        cubic.set_window(cubic.threshold());
        assert_eq!(cubic.window(), 700);
        // K = cbrt(1000 * 0.3 / 0.4) = 9.09 s; long round trips keep Reno below the curve.
        run(&mut cubic, 0, 4_500, 100);
        assert!((920..970).contains(&cubic.window()), "{}", cubic.window());
        run(&mut cubic, 4_500, 4_600, 100);
        assert!((995..=1005).contains(&cubic.window()), "{}", cubic.window());
        run(&mut cubic, 9_100, 5_000, 100);
        assert!(cubic.window() > 1030, "{}", cubic.window());
    }

    #[test]
    fn short_round_trips_follow_reno() {
        let mut cubic = Cubic::new(100_000);
        cubic.set_window(40);
        cubic.on_loss();
        cubic.set_window(cubic.threshold());
        // 200 round trips of 5 ms in a second: Reno is back at 40 after 23, then grows by one each.
        run(&mut cubic, 0, 1_000, 5);
        assert!((180..=220).contains(&cubic.window()), "{}", cubic.window());
    }

    #[test]
    fn an_idle_flow_falls_back_by_halves_and_no_further_than_the_start() {
        let mut cubic = Cubic::new(100_000);
        cubic.set_window(100);
        let timeout = Duration::from_millis(200);
        cubic.on_idle(Duration::from_millis(150), timeout);
        assert_eq!(cubic.window(), 100);
        cubic.on_idle(Duration::from_millis(500), timeout);
        assert_eq!(cubic.window(), 25);
        cubic.on_idle(Duration::from_secs(60), timeout);
        assert_eq!(cubic.window(), 10);
    }

    #[test]
    fn the_curve_waits_while_a_flow_is_idle() {
        let mut cubic = Cubic::new(100_000);
        cubic.set_window(1000);
        cubic.on_loss();
        cubic.set_window(cubic.threshold());
        run(&mut cubic, 0, 1_000, 100);
        let mut idle = cubic;
        idle.on_idle(Duration::from_secs(8), Duration::from_secs(9));
        run(&mut cubic, 1_000, 500, 100);
        run(&mut idle, 9_000, 500, 100);
        assert_eq!(idle.window(), cubic.window());
    }

    #[test]
    fn a_timeout_starts_over_from_one() {
        let mut cubic = Cubic::new(100_000);
        cubic.set_window(100);
        cubic.on_loss();
        cubic.on_timeout();
        assert_eq!((cubic.window(), cubic.threshold()), (1, 70));
        assert!(cubic.in_slow_start());
    }
}
