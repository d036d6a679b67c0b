//! The sender's half: decides which paths are alive and good, and which of them carry a message.

use super::{ahead, plan, Duplicate, Echo, InterfaceId, PathConfig, PathError, PathId, Probe, PATHS_MAX};
use crate::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The maximum number of copies on one path whose fate is still open; beyond it the oldest is not judged.
const OPEN_MAX: usize = 256;
/// A number overtaken by this many is lost.
const OVERTAKEN_MAX: i32 = 8;
/// The number of numbers before the newest that an echo covers.
const ECHOED: i32 = u64::BITS as i32;
/// The weights of one copy in the failure rate, and of one round trip in the mean (as in TCP) and in the deviation.
const FAILURE_GAIN: f64 = 1.0 / 32.0;
const MEAN_GAIN: f64 = 0.125;
const DEVIATION_GAIN: f64 = 0.25;
/// The loss rate assumed for an unknown path: enough to duplicate at first.
const FAILURES_UNKNOWN: f64 = 0.1;
/// A path displaces the one in use if its expected delay is below this share of the other's.
const DISPLACES: f64 = 0.8;
/// Duplication ends only when the failure rate has fallen below this share of the allowed one.
const RELENTS: f64 = 0.5;
/// The shortest time after which an unanswered probe is lost.
const TIMEOUT_MIN: Duration = Duration::from_millis(20);
const TIMEOUT_MAX: Duration = Duration::from_secs(1);
const PROBE_MIN: Duration = Duration::from_millis(1);
/// A path that never fails cannot be distinguished from one that seldom does.
const FAILURES_FLOOR: f64 = 1e-9;

/// The kind of message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Small and urgent: duplicated as configured.
    Control,
    /// Never duplicated.
    Bulk,
}

/// One copy of a message: send it over `path` with `number` in its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathCopy {
    /// The path.
    pub path: PathId,
    /// The copy's number on that path. `None` for bulk, whose transport knows what was lost.
    pub number: Option<u32>,
}

/// An action for the sender's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathAction {
    /// Send this over its path, as control.
    Probe(Probe),
    /// This path is no longer answered.
    Died(PathId),
    /// This path is answered again.
    Revived(PathId),
}

/// The health of a path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// Whether probes are answered.
    pub alive: bool,
    /// The smoothed round trip, once one has been measured.
    pub round_trip: Option<Duration>,
    /// The share of copies that is lost or late, smoothed.
    pub failures: f64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Open {
    number: u32,
    sent_at: Instant,
    probe: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Path {
    interface: InterfaceId,
    number_next: u32,
    open: VecDeque<Open>,
    /// The newest probe that was answered.
    answered: Option<u32>,
    /// Smoothed round trip and its mean deviation, in nanoseconds.
    round_trip: Option<(f64, f64)>,
    /// The share of copies that is lost, and the share of answered probes that is late, because copies are not timed.
    losses: f64,
    late: f64,
    alive: bool,
    misses: u32,
    answers: u32,
}

/// Chooses paths to one peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sender {
    config: PathConfig,
    incarnation: u32,
    paths: Vec<Path>,
    probe_at: Instant,
    /// When something was last sent to the peer.
    used_at: Instant,
    clock: Instant,
    /// The path in use.
    first: usize,
    /// The number of copies of the last control message, and the paths that they went over.
    copies: usize,
    carriers: Vec<PathId>,
    outbox: VecDeque<PathAction>,
}

impl Sender {
    /// A limit above the number of actions that one call can cause.
    const OUTBOX_MAX: usize = 4 * PATHS_MAX;

    /// Creates a sender with a path over each of `interfaces`; an interface may occur more than once. `incarnation`
    /// must differ from those of all other starts of this robot.
    ///
    /// # Errors
    /// If there is no path or too many, or if a share is not between 0 and 1.
    pub fn new(
        config: PathConfig,
        interfaces: &[InterfaceId],
        incarnation: u32,
        now: Instant,
    ) -> Result<Self, PathError> {
        if !(1..=PATHS_MAX).contains(&interfaces.len()) {
            return Err(PathError::Count);
        }
        if !(config.failures_max > 0.0 && config.failures_max < 1.0) {
            return Err(PathError::FailuresMax);
        }
        let path = |interface: &InterfaceId| Path {
            interface: *interface,
            number_next: 0,
            open: VecDeque::new(),
            answered: None,
            round_trip: None,
            losses: FAILURES_UNKNOWN,
            late: 0.0,
            alive: true,
            misses: 0,
            answers: 0,
        };
        Ok(Sender {
            config,
            incarnation,
            paths: interfaces.iter().map(path).collect(),
            probe_at: now,
            used_at: now,
            clock: now,
            first: 0,
            copies: 1,
            carriers: Vec::new(),
            outbox: VecDeque::new(),
        })
    }

    /// Chooses the paths for a message to be sent, the original's first. Never empty, even if all paths seem dead.
    pub fn assign(&mut self, class: Class, now: Instant) -> Vec<PathCopy> {
        self.follow_clock(now);
        self.wake(now);
        let order = self.order();
        if class == Class::Bulk {
            let path = PathId(order[0] as u8);
            return vec![PathCopy { path, number: None }];
        }
        self.copies = match self.config.duplicate {
            Duplicate::Always => 2,
            Duplicate::Never => 1,
            Duplicate::Adaptive => self.copies_needed(&order),
        };
        let copies = order.into_iter().take(self.copies).map(|at| PathCopy {
            path: PathId(at as u8),
            number: Some(self.paths[at].number(now, false)),
        });
        let copies: Vec<PathCopy> = copies.collect();
        self.carriers.clear();
        self.carriers.extend(copies.iter().map(|copy| copy.path));
        copies
    }

    /// Handles the answer to a probe.
    pub fn on_echo(&mut self, echo: Echo, now: Instant) {
        self.follow_clock(now);
        let Probe {
            path: id,
            incarnation,
            number,
            sent_at,
        } = echo.probe;
        let Some(path) = self.paths.get_mut(usize::from(id.0)) else {
            return;
        };
        // The echo answers an earlier start, or something that was never sent.
        if incarnation != self.incarnation || sent_at > now || ahead(echo.newest, path.number_next) >= 0 {
            return;
        }
        let round_trip = now.since(sent_at);
        let late = round_trip > self.config.target * 2;
        let open = path
            .open
            .iter()
            .position(|open| open.number == number && open.sent_at == sent_at && open.probe);
        if let Some(at) = open {
            path.open.remove(at);
            path.count(false);
        } else if path.answered.is_some_and(|newest| ahead(number, newest) <= 0) {
            return; // A duplicate.
        }
        // Even the answer to an abandoned probe shows that the path is alive, and its round trip.
        path.measure(round_trip, late);
        path.answered = path
            .answered
            .filter(|newest| ahead(number, *newest) < 0)
            .or(Some(number));
        path.settle(echo);
        path.misses = 0;
        path.answers = path.answers.saturating_add(1);
        if !path.alive && path.answers >= self.config.answers_min {
            path.alive = true;
            self.push(PathAction::Revived(id));
        }
    }

    /// Handles the deadline of [`Sender::next_deadline`]. Harmless at any other time.
    pub fn on_deadline(&mut self, now: Instant) {
        self.follow_clock(now);
        for at in 0..self.paths.len() {
            let path = &mut self.paths[at];
            let missed = path.expire(self.config.probe, now);
            if missed > 0 {
                path.misses = path.misses.saturating_add(missed);
                path.answers = 0;
                if path.alive && path.misses >= self.config.misses_max {
                    path.alive = false;
                    self.push(PathAction::Died(PathId(at as u8)));
                }
            }
        }
        if now >= self.probe_at && !self.is_resting(now) {
            self.probe_at = now + self.config.probe.max(PROBE_MIN);
            for at in 0..self.paths.len() {
                let probe = Probe {
                    path: PathId(at as u8),
                    incarnation: self.incarnation,
                    number: self.paths[at].number(now, true),
                    sent_at: now,
                };
                self.push(PathAction::Probe(probe));
            }
        }
    }

    /// Returns when to call [`Sender::on_deadline`] next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let expiries = self.paths.iter().filter_map(|path| path.expires_at(self.config.probe));
        let probe_at = (!self.is_resting(self.probe_at)).then_some(self.probe_at);
        expiries.chain(probe_at).min()
    }

    /// Returns the next action, until `None`.
    pub fn poll(&mut self) -> Option<PathAction> {
        self.outbox.pop_front()
    }

    /// Returns the health of `path`, if there is one.
    pub fn health(&self, path: PathId) -> Option<Health> {
        self.paths.get(usize::from(path.0)).map(|path| Health {
            alive: path.alive,
            round_trip: path.round_trip.map(|(mean, _)| Duration::from_nanos(mean as u64)),
            failures: path.failures(),
        })
    }

    /// Returns the paths of the last control message, the original's first. Empty before the first message.
    pub fn carriers(&self) -> &[PathId] {
        &self.carriers
    }

    /// Returns whether paths are not probed because nothing has been sent for long.
    pub fn is_resting(&self, now: Instant) -> bool {
        now.since(self.used_at) >= self.config.rest_after
    }

    /// Records that something is sent. After a rest, the paths may have changed.
    fn wake(&mut self, now: Instant) {
        if self.is_resting(now) {
            self.probe_at = now;
            for path in &mut self.paths {
                path.losses = path.losses.max(FAILURES_UNKNOWN);
            }
        }
        self.used_at = now;
    }

    /// Returns the path in use first, then the best one on each other interface, living ones before dead ones.
    fn order(&mut self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.paths.len()).collect();
        order.sort_by(|a, b| self.paths[*a].rank().total_cmp(&self.paths[*b].rank()));
        let (best, used) = (order[0], self.first);
        if self.paths[best].rank() < self.paths[used].rank() * DISPLACES {
            self.first = best;
        }
        let first = self.first;
        order.retain(|at| *at != first);
        order.insert(0, first);
        let mut taken: Vec<InterfaceId> = Vec::with_capacity(order.len());
        order.retain(|at| {
            let interface = self.paths[*at].interface;
            let free = !taken.contains(&interface);
            taken.push(interface);
            free
        });
        order
    }

    /// Returns the number of copies at which the product of their failure rates is small enough (eq. 11, 12 and 16).
    fn copies_needed(&self, order: &[usize]) -> usize {
        let delay = self.paths[order[0]].delay() / (self.config.target.as_nanos() as f64).max(1.0);
        let mean_allows = plan::failures_allowed(delay, 0.0);
        let allowed = self.config.failures_max.min(mean_allows).max(FAILURES_FLOOR);
        let failures = order.iter().map(|at| self.paths[*at].failures().max(FAILURES_FLOOR));
        // Dropping a copy takes a better failure rate than continuing without it.
        let enough = |copies| {
            if copies < self.copies {
                allowed * RELENTS
            } else {
                allowed
            }
        };
        plan::fewest(failures, enough).unwrap_or(order.len())
    }

    /// Moves times along with a clock that steps back, so that open copies do not last longer.
    fn follow_clock(&mut self, now: Instant) {
        let back = self.clock.since(now);
        self.clock = now;
        if back == Duration::ZERO {
            return;
        }
        self.probe_at = self.probe_at - back;
        self.used_at = self.used_at - back;
        for open in self.paths.iter_mut().flat_map(|path| &mut path.open) {
            // A probe's answer then no longer matches, so the probe counts as lost. Its round trip would be wrong.
            open.sent_at = open.sent_at - back;
        }
    }

    fn push(&mut self, action: PathAction) {
        if self.outbox.len() >= Self::OUTBOX_MAX {
            self.outbox.pop_front();
        }
        self.outbox.push_back(action);
    }
}

impl Path {
    /// Takes the next number for a copy that is sent now.
    fn number(&mut self, now: Instant, probe: bool) -> u32 {
        let number = self.number_next;
        self.number_next = number.wrapping_add(1);
        if self.open.len() >= OPEN_MAX {
            self.open.pop_front();
        }
        self.open.push_back(Open {
            number,
            sent_at: now,
            probe,
        });
        number
    }

    fn count(&mut self, lost: bool) {
        self.losses += FAILURE_GAIN * (f64::from(u8::from(lost)) - self.losses);
    }

    /// Returns the share of copies that is lost or late.
    fn failures(&self) -> f64 {
        1.0 - (1.0 - self.losses) * (1.0 - self.late)
    }

    fn measure(&mut self, round_trip: Duration, late: bool) {
        self.late += FAILURE_GAIN * (f64::from(u8::from(late)) - self.late);
        let sample = round_trip.as_nanos() as f64;
        let (mean, deviation) = self.round_trip.unwrap_or((sample, sample / 2.0));
        self.round_trip = Some((
            mean + MEAN_GAIN * (sample - mean),
            deviation + DEVIATION_GAIN * ((sample - mean).abs() - deviation),
        ));
    }

    /// Counts the copies that the echo reports as arrived, and those overtaken by too many. Copies too far back for the echo
    /// are not judged: the others are a fair sample, and probing more often costs air.
    fn settle(&mut self, echo: Echo) {
        let (mut came, mut lost) = (0u32, 0u32);
        self.open.retain(|open| {
            let behind = ahead(echo.newest, open.number);
            let seen = match behind {
                0 => true,
                1..=ECHOED => echo.seen >> (behind - 1) & 1 == 1,
                _ => false,
            };
            let untold = behind > ECHOED;
            let overtaken = !seen && !untold && behind > OVERTAKEN_MAX;
            // A probe counts by its own answer, which says more.
            came += u32::from(seen && !open.probe);
            lost += u32::from(overtaken && !open.probe);
            open.probe || !(seen || overtaken || untold)
        });
        (0..came).for_each(|_| self.count(false));
        (0..lost).for_each(|_| self.count(true));
    }

    /// Counts copies that have been open for too long as lost. Returns how many of these were probes.
    fn expire(&mut self, probe: Duration, now: Instant) -> u32 {
        let timeout = self.timeout();
        let (mut lost, mut probes) = (0u32, 0u32);
        self.open.retain(|open| {
            let over = now >= open.expires_at(timeout, probe);
            lost += u32::from(over);
            probes += u32::from(over && open.probe);
            !over
        });
        (0..lost).for_each(|_| self.count(true));
        probes
    }

    fn expires_at(&self, probe: Duration) -> Option<Instant> {
        let timeout = self.timeout();
        self.open.iter().map(|open| open.expires_at(timeout, probe)).min()
    }

    fn timeout(&self) -> Duration {
        match self.round_trip {
            Some((mean, deviation)) => {
                Duration::from_nanos((mean + 4.0 * deviation) as u64).clamp(TIMEOUT_MIN, TIMEOUT_MAX)
            }
            None => TIMEOUT_MAX / 2,
        }
    }

    /// Returns d of eq. 10: half the round trip, in nanoseconds.
    fn delay(&self) -> f64 {
        self.round_trip.map_or(0.0, |(mean, _)| mean / 2.0)
    }

    /// Returns the expected delay (eq. 10). Unmeasured paths rank after measured ones, dead paths after all living
    /// ones.
    fn rank(&self) -> f64 {
        const UNKNOWN_NS: f64 = 1e10;
        const DEAD: f64 = 1e6;
        let delay = self.round_trip.map_or(UNKNOWN_NS, |(mean, _)| mean.max(1.0));
        let rank = delay / (1.0 - self.losses).max(1e-3);
        if self.alive {
            rank
        } else {
            rank * DEAD
        }
    }
}

impl Open {
    /// Returns when the copy counts as lost. A probe is answered at once; the fate of other copies is known with the
    /// next probe's answer.
    fn expires_at(&self, timeout: Duration, probe: Duration) -> Instant {
        let wait = if self.probe { timeout } else { timeout + probe * 2 };
        self.sent_at + wait
    }
}
