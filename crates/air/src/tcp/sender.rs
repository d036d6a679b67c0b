//! The sending end: decides which segment goes to the host queue, and when.
//!
//! The timeout, the idle time and CUBIC's curve use a clock that stops while the sender is paused. A pause of any
//! length therefore neither causes a timeout nor ages the window. Nor does a pause of 2 ms every 33 ms postpone the
//! timeout forever. Acknowledgements are processed during a pause, and segments that they show as lost are
//! retransmitted after it.
//!
//! If the timeout expires while the lowest segment is still in the local stack (held by a gate, for example), the
//! timeout is doubled and restarted. Linux does not send a second copy of such a segment, and undoes the reduction at
//! the next acknowledgement because nothing was retransmitted.

use super::cubic::{Cubic, INITIAL_WINDOW};
use super::rtt::Rtt;
use super::scoreboard::Scoreboard;
use super::{Ack, Config, Segment};
use coorp_core::{Duration, Instant};

/// The share of a second's data at the pacing rate that a flow may have in the local stack: mac80211 sets a pacing
/// shift of 7.
const STACK_SHARE: f64 = 1.0 / 128.0;
/// Linux's tcp_limit_output_bytes.
const STACK_BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Lost segments are being retransmitted, at a rate proportional to arrivals (RFC 6937).
    Recovery(Reduction),
    /// Restarting after a timeout.
    Timeout,
}

/// Proportional rate reduction, in segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reduction {
    window_before: u32,
    delivered: u64,
    sent: u64,
}

/// The sending end of a connection.
#[derive(Clone, Debug)]
pub struct Sender {
    config: Config,
    segments_max: u64,
    board: Scoreboard,
    rtt: Rtt,
    cubic: Cubic,
    phase: Phase,
    /// The phase ends when everything below this segment is acknowledged.
    phase_end: u64,
    unsent_bytes: u64,
    endless: bool,
    usage: Usage,
    stack: Stack,
    /// When the current pause started, and the length of all pauses before it.
    paused_at: Option<Instant>,
    paused_for: Duration,
    /// When the last segment was sent, on the clock without pauses.
    last_sent: Option<Instant>,
    /// When the timeout expires, on the clock without pauses.
    timeout_at: Option<Instant>,
    look_again_at: Option<Instant>,
}

/// Whether the congestion window limits the flow: it grows only then (Linux's `is_cwnd_limited`).
#[derive(Clone, Copy, Debug)]
struct Usage {
    limited: bool,
    /// Maximum number of outstanding segments in this round trip.
    outstanding_max: u64,
    /// The round trip ends when this segment is acknowledged.
    round_end: u64,
}

/// The flow's data in the local stack, from the host queue to the WNIC.
#[derive(Clone, Copy, Debug)]
struct Stack {
    bytes: u64,
    bytes_max: u64,
    /// Whether the limit has to be recomputed. Acknowledgements arrive in bursts, and the limit is needed only after
    /// the last one.
    outdated: bool,
    /// Numbers of transmissions handed over and departed, wrapping. They depart in order.
    handed: u32,
    departed: u32,
}

impl Sender {
    /// Creates an established connection that has sent nothing yet. Values out of range are clamped.
    pub fn new(config: Config) -> Self {
        let config = config.bounded();
        Sender {
            config,
            segments_max: config.segments_max(),
            board: Scoreboard::new(),
            rtt: Rtt::default(),
            cubic: Cubic::new(config.segments_max()),
            phase: Phase::Open,
            phase_end: 0,
            unsent_bytes: 0,
            endless: false,
            usage: Usage {
                limited: false,
                outstanding_max: INITIAL_WINDOW as u64,
                round_end: 0,
            },
            stack: Stack {
                bytes: 0,
                bytes_max: STACK_BYTES_MAX,
                outdated: false,
                handed: 0,
                departed: 0,
            },
            paused_at: None,
            paused_for: Duration::ZERO,
            last_sent: None,
            timeout_at: None,
            look_again_at: None,
        }
    }

    /// Adds this many bytes written by the application.
    pub fn write(&mut self, bytes: u64) {
        self.unsent_bytes = self.unsent_bytes.saturating_add(bytes);
    }

    /// Makes the application always have more to send from now on.
    pub fn saturate(&mut self) {
        self.endless = true;
    }

    /// Pauses or resumes the sender (TCP_PAUSE). A paused sender sends neither new data nor retransmissions until it is
    /// resumed.
    pub fn set_paused(&mut self, paused: bool, now: Instant) {
        match (self.paused_at, paused) {
            (None, true) => self.paused_at = Some(now),
            (Some(since), false) => {
                self.paused_at = None;
                self.paused_for += now.since(since);
            }
            _ => {}
        }
    }

    /// Returns the next segment for the host queue. Call it until it returns `None` after a write, an acknowledgement,
    /// a departure, a deadline or a resumption.
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Segment> {
        if self.paused_at.is_some() {
            return None;
        }
        self.allow_stack();
        let again = self.board.next_to_resend();
        let fresh_bytes = match again {
            Some(_) => 0,
            None => self.fresh_bytes()?,
        };
        if self.board.is_empty() {
            self.wake(now);
        }
        if self.board.in_flight() >= self.cubic.window() {
            self.note_usage(true);
            return None;
        }
        if again.is_none() && !self.window_admits(fresh_bytes) {
            return None;
        }
        // Like Linux, always let a flow's first segment through.
        if self.stack.bytes > self.stack.bytes_max && self.board.len() > 1 {
            return None;
        }
        let segment = match again {
            Some(number) => self.send_again(number, now),
            None => self.send_fresh(fresh_bytes, now),
        };
        if let Phase::Recovery(reduction) = &mut self.phase {
            reduction.sent += 1;
        }
        self.stack.bytes += u64::from(segment.bytes);
        self.stack.handed = self.stack.handed.wrapping_add(1);
        self.last_sent = Some(self.running(now));
        Some(segment)
    }

    /// Records that a packet of this flow with this payload left the local stack. The WNIC completed it or gave it up,
    /// or the host queue dropped it. Call it once for each segment from [`Sender::poll_transmit`].
    pub fn on_departed(&mut self, payload_bytes: u16) {
        self.stack.bytes = self.stack.bytes.saturating_sub(u64::from(payload_bytes));
        self.stack.departed = self.stack.departed.wrapping_add(1);
    }

    /// Processes an acknowledgement. Segments never sent are ignored.
    pub fn on_ack(&mut self, ack: &Ack, now: Instant) {
        if ack.next > self.board.next() {
            return;
        }
        let news = self.board.on_ack(ack, self.rtt.least(), now);
        if news.delivered == 0 && !news.advanced {
            return;
        }
        if let Some(rtt) = news.rtt {
            self.rtt.sample(rtt);
            self.cubic
                .on_rtt(rtt, self.rtt.least(), self.board.first(), self.board.next());
        }
        if news.advanced {
            self.rtt.on_progress();
            self.arm_timeout(now);
        }
        let more_lost = self.detect_losses(now);
        self.end_phase();
        if self.phase == Phase::Open && self.board.lost() > 0 {
            self.begin_recovery();
        }
        if let Phase::Recovery(reduction) = &mut self.phase {
            reduction.delivered += u64::from(news.delivered);
            self.reduce(news.delivered, news.advanced && !more_lost);
        } else if news.advanced && self.is_window_limited() {
            let srtt = self.rtt.smoothed().unwrap_or_default();
            let running = self.running(now);
            self.cubic.on_acked(news.delivered, running, srtt);
        }
        self.stack.outdated = true;
    }

    /// Returns when to call [`Sender::on_deadline`]; never while paused.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.paused_at.is_some() {
            return None;
        }
        let timeout_at = self.timeout_at.map(|at| at + self.paused_for);
        match (timeout_at, self.look_again_at) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Handles the deadline of [`Sender::next_deadline`]. An early call does nothing.
    pub fn on_deadline(&mut self, now: Instant) {
        if self.paused_at.is_some() {
            return;
        }
        self.allow_stack();
        if self.look_again_at.is_some_and(|at| at <= now) {
            self.detect_losses(now);
            if self.phase == Phase::Open && self.board.lost() > 0 {
                self.begin_recovery();
                self.reduce(0, false);
            }
        }
        if self.timeout_at.is_some_and(|at| at <= self.running(now)) {
            self.on_timeout(now);
        }
    }

    /// Returns the number of bytes in flight.
    pub fn unacknowledged(&self) -> u64 {
        self.board.bytes()
    }

    /// Returns the number of bytes written and not yet sent; `u64::MAX` for a saturated sender.
    pub fn unsent(&self) -> u64 {
        if self.endless {
            u64::MAX
        } else {
            self.unsent_bytes
        }
    }

    /// Returns whether everything written has been acknowledged. Never true for a saturated sender.
    pub fn is_idle(&self) -> bool {
        self.unsent() == 0 && self.board.is_empty()
    }

    /// Returns the congestion window, in segments.
    pub fn cwnd(&self) -> u32 {
        self.cubic.window()
    }

    /// Returns the smoothed round-trip time, once there is a sample.
    pub fn srtt(&self) -> Option<Duration> {
        self.rtt.smoothed()
    }

    /// Returns the payload of this flow in the local stack, in bytes.
    pub fn in_stack(&self) -> u64 {
        self.stack.bytes
    }

    /// Returns the clock without pauses.
    fn running(&self, now: Instant) -> Instant {
        self.paused_at.unwrap_or(now) - self.paused_for
    }

    /// Returns the payload of the next new segment, if there is data.
    fn fresh_bytes(&self) -> Option<u16> {
        let bytes = self.unsent().min(u64::from(self.config.mss)) as u16;
        (bytes > 0).then_some(bytes)
    }

    /// Returns whether the receive window has room for this many bytes.
    fn window_admits(&self, bytes: u16) -> bool {
        self.board.bytes() + u64::from(bytes) <= u64::from(self.config.receive_window)
            && self.board.len() < self.segments_max
    }

    /// Resumes sending after everything was acknowledged.
    fn wake(&mut self, now: Instant) {
        let running = self.running(now);
        if let Some(last) = self.last_sent.replace(running) {
            self.cubic.on_idle(running.since(last), self.rtt.timeout());
        }
    }

    fn send_fresh(&mut self, bytes: u16, now: Instant) -> Segment {
        if !self.endless {
            self.unsent_bytes -= u64::from(bytes);
        }
        let number = self.board.send(bytes, self.stack.handed, now);
        self.note_usage(false);
        if self.timeout_at.is_none() {
            self.arm_timeout(now);
        }
        Segment {
            number,
            bytes,
            retransmit: false,
        }
    }

    fn send_again(&mut self, number: u64, now: Instant) -> Segment {
        let bytes = self.board.resend(number, self.stack.handed, now);
        if number == self.board.first() {
            self.arm_timeout(now);
        }
        Segment {
            number,
            bytes,
            retransmit: true,
        }
    }

    fn note_usage(&mut self, limited: bool) {
        let usage = &mut self.usage;
        let outstanding = self.board.len();
        let round_over = self.board.first() >= usage.round_end;
        if round_over || limited || (!usage.limited && outstanding > usage.outstanding_max) {
            *usage = Usage {
                limited,
                outstanding_max: outstanding,
                round_end: self.board.next(),
            };
        }
    }

    fn is_window_limited(&self) -> bool {
        if self.cubic.in_slow_start() && u64::from(self.cubic.window()) < 2 * self.usage.outstanding_max {
            return true;
        }
        self.usage.limited
    }

    fn arm_timeout(&mut self, now: Instant) {
        self.timeout_at = (!self.board.is_empty()).then(|| self.running(now) + self.rtt.timeout());
    }

    /// Marks lost segments. Returns whether more are lost than before.
    #[inline]
    fn detect_losses(&mut self, now: Instant) -> bool {
        let before = self.board.lost();
        let recovering = self.phase != Phase::Open;
        self.look_again_at = self.board.detect_losses(recovering, self.rtt.least(), now);
        self.board.lost() > before
    }

    fn end_phase(&mut self) {
        if self.phase == Phase::Open || self.board.first() < self.phase_end {
            return;
        }
        if matches!(self.phase, Phase::Recovery(_)) {
            self.cubic.set_window(self.cubic.threshold());
        }
        self.phase = Phase::Open;
    }

    fn begin_recovery(&mut self) {
        self.phase = Phase::Recovery(Reduction {
            window_before: self.cubic.window(),
            delivered: 0,
            sent: 0,
        });
        self.phase_end = self.board.next();
        self.cubic.on_loss();
    }

    /// Sets the window to the amount that a recovery may send now (RFC 6937, section 3). It is proportional to arrivals
    /// while more than the threshold is in flight. Then it rises back to the threshold, faster while nothing more is
    /// lost.
    fn reduce(&mut self, delivered: u32, only_good: bool) {
        let Phase::Recovery(reduction) = self.phase else { return };
        let threshold = u64::from(self.cubic.threshold());
        let in_flight = u64::from(self.board.in_flight());
        let share = if in_flight > threshold {
            let due = (reduction.delivered * threshold).div_ceil(u64::from(reduction.window_before));
            due.saturating_sub(reduction.sent)
        } else {
            let room = threshold - in_flight;
            let delivered = u64::from(delivered);
            let arrived = reduction.delivered.saturating_sub(reduction.sent).max(delivered);
            room.min(if only_good { arrived + 1 } else { delivered })
        };
        // The first lost segment is retransmitted at once.
        let share = share.max(u64::from(reduction.sent == 0));
        self.cubic.set_window((in_flight + share) as u32);
    }

    fn on_timeout(&mut self, now: Instant) {
        let Some(first) = self.board.first_transmission() else {
            self.timeout_at = None;
            return;
        };
        self.rtt.back_off();
        self.arm_timeout(now);
        // The difference of two wrapping counters is below half their range, or else the first is behind the second.
        if first.wrapping_sub(self.stack.departed) < u32::MAX / 2 {
            return;
        }
        if self.phase == Phase::Open {
            self.cubic.on_loss();
        }
        self.cubic.on_timeout();
        self.board.lose_all();
        self.phase = Phase::Timeout;
        self.phase_end = self.board.next();
        self.look_again_at = None;
    }

    /// Sets the limit for the local stack from the pacing rate, as of the last acknowledgement (TCP small queues).
    #[inline]
    fn allow_stack(&mut self) {
        if !std::mem::take(&mut self.stack.outdated) {
            return;
        }
        if let Some(srtt) = self.rtt.smoothed() {
            let rate = self.cubic.pacing_rate(self.config.mss, srtt);
            let least = 2 * u64::from(self.config.mss);
            self.stack.bytes_max = ((rate * STACK_SHARE) as u64).clamp(least, STACK_BYTES_MAX.max(least));
        }
    }
}
