//! What must hold in a fault run, whatever went wrong, judged by what robots wrote down and what the emulator saw.
//!
//! 1. **Bulk whole and once.** What a sender was told is delivered was taken exactly once, by the robot it was for, with
//!    the hash that it had. Nothing is taken twice, and nothing that was not sent. What a sender that lived on began is
//!    told of, delivered or failed, before the run's end.
//! 2. **Control resumes.** Between any two robots that nothing stands between, no second passes without a control message
//!    that was made since: counted from the end of what stood between them, whatever befalls others. A path of
//!    two that dies stands between nobody.
//! 3. **No permit is stuck.** Once nothing goes wrong any more each robot with bulk to send has a permit within a bound
//!    ([`permit_within`]), and messages get through.
//! 4. **Never more holders than the limit.** At no instant do more robots know that they may send; and while as many as
//!    the limit do, no other robot's bulk reaches its card.
//!
//! Rules 1 and 4 hold on any machine, however slow; 2 and 3 are about time, and are judged where it kept up.
//!
//! A robot's word that it may send is taken for instants at which it was asked and said so, and for those between two
//! that are close. So a robot that is frozen does not hold while it stands still, though it may believe so: it cannot
//! send either, and looks at the time before it does. What was on its way into the kernel when it was stopped or put
//! aside leaves when it goes on: one send call, up to [`CAUGHT_MAX`] datagrams, which are counted and not held against it.

use std::collections::BTreeMap;

use coorp_core::failover::FailoverConfig;
use coorp_core::permits::PermitConfig;
use coorp_core::{Duration, RobotId};
use serde::{Deserialize, Serialize};

use super::record::Line;
use super::schedule::{Fault, Kind};

/// Control resumes within this.
pub const RESUME_MAX: Duration = Duration::from_secs(1);
/// Of all frames lost, from which on a channel stands between robots.
const LOST: f64 = 0.9;
/// A machine is too slow for rules about time on which a robot's process, or the emulator, stands still for longer than
/// this, or a robot's for a larger share of its time in pieces above 20 ms, or is not up so long before the first fault.
pub const STOOD_STILL_MAX_MS: f64 = 150.0;
const STOOD_STILL_SHARE_MAX: f64 = 0.1;
const UP_MAX_MS: f64 = 1_200.0;
/// Datagrams that go to the kernel at once at most.
const CAUGHT_MAX: usize = 8;
/// The way of a message about permits over the air, with what is lost repeated.
const DELAY_MAX: Duration = Duration::from_millis(50);

/// Within what a robot with bulk to send has a permit, once nothing goes wrong any more: those who start anew are up as
/// soon as control is, and vote after a lease; the next leader comes and grants; every other robot has its turn before.
pub fn permit_within(failover: &FailoverConfig, permits: &PermitConfig, robots: u16) -> Duration {
    let others = (failover.voters.len() as u16).saturating_sub(1);
    let turns = (permits.slice + permits.grace) * u64::from(robots);
    RESUME_MAX + failover.lease + failover.takeover_max(permits, others, DELAY_MAX) + turns
}

/// From when to when, on the machine's clock, nanoseconds.
pub type Span = (u64, u64);

/// All that is known of a run.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// When it began, when nothing went wrong any more, when control was last looked at, when it ended.
    pub origin: u64,
    pub healed: u64,
    pub judged_to: u64,
    pub end: u64,
    /// How many may hold permits.
    pub limit: usize,
    pub permit_within: Duration,
    /// Channels that all robots are on.
    pub channels: usize,
    /// Of each robot: what its starts wrote, each with when it was killed.
    pub lives: Vec<Vec<Life>>,
    /// Faults, with when they were.
    pub faults: Vec<(Fault, Span)>,
    /// Of each robot: when bulk of its reached its cards.
    pub sent: Vec<Vec<u64>>,
    /// Bulk messages that were taken.
    pub taken: Vec<Taken>,
}

/// One start of a robot.
#[derive(Clone, Debug, Default)]
pub struct Life {
    pub lines: Vec<Line>,
    pub killed: Option<u64>,
}

/// A bulk message as it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub by: u16,
    pub from: u16,
    pub name: String,
    pub hash: String,
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    /// Which, from 1.
    pub rule: u8,
    pub what: String,
}

impl Broken {
    /// Whether it counts on a machine that did not keep up.
    pub fn always_counts(&self) -> bool {
        matches!(self.rule, 1 | 4)
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Bulk messages that began.
    pub begun: usize,
    /// Of them: told to be delivered; reported failed; of a sender that died before it was told.
    pub delivered: usize,
    pub failed: usize,
    pub orphaned: usize,
    /// The longest that control took to resume, and the longest silence otherwise, milliseconds.
    pub resumed_ms: f64,
    pub silence_ms: f64,
    /// The longest wait for a permit once nothing went wrong any more, milliseconds.
    pub permit_ms: f64,
    /// Bulk datagrams, and those that a stop had caught on their way.
    pub datagrams: usize,
    pub caught: usize,
    /// When the last robot was up for the first time, milliseconds.
    pub up_ms: f64,
    /// The longest that a robot's process that was not frozen stood still, milliseconds, and the largest share of its time
    /// that one did.
    pub stood_still_ms: f64,
    pub stood_still_share: f64,
}

impl Figures {
    /// Whether robots had the machine's time when they wanted it, and were up when the first fault came.
    pub fn kept_up(&self) -> bool {
        self.stood_still_ms <= STOOD_STILL_MAX_MS
            && self.stood_still_share <= STOOD_STILL_SHARE_MAX
            && self.up_ms <= UP_MAX_MS
    }
}

struct Judge<'s> {
    seen: &'s Seen,
    broken: Vec<Broken>,
    figures: Figures,
}

/// Judges a run.
pub fn judge(seen: &Seen) -> (Vec<Broken>, Figures) {
    let mut judge = Judge {
        seen,
        broken: Vec::new(),
        figures: Figures::default(),
    };
    judge.bulk();
    judge.control();
    judge.permits();
    judge.holders();
    judge.machine();
    (judge.broken, judge.figures)
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

impl Judge<'_> {
    fn say(&mut self, rule: u8, what: String) {
        self.broken.push(Broken { rule, what });
    }

    /// A time as the schedule counts it.
    fn shown(&self, at: u64) -> String {
        format!("{:.3} s", (at as f64 - self.seen.origin as f64) / 1e9)
    }

    fn bulk(&mut self) {
        let seen = self.seen;
        let mut taken: BTreeMap<(u16, &str), Vec<&Taken>> = BTreeMap::new();
        for one in &seen.taken {
            taken.entry((one.from, one.name.as_str())).or_default().push(one);
        }
        for (robot, lives) in (0u16..).zip(&seen.lives) {
            for life in lives {
                for line in &life.lines {
                    let Line::Begin {
                        at,
                        name,
                        to,
                        bytes,
                        hash,
                    } = line
                    else {
                        continue;
                    };
                    let what = format!(
                        "\"{name}\" of robot {robot}, {bytes} bytes, begun at {}",
                        self.shown(*at)
                    );
                    let came = taken.remove(&(robot, name.as_str())).unwrap_or_default();
                    self.figures.begun += 1;
                    if came.len() > 1 {
                        self.say(1, format!("{what}, was taken {} times", came.len()));
                    }
                    if came.iter().any(|one| one.hash != *hash) {
                        self.say(1, format!("{what}, did not come whole"));
                    }
                    if came
                        .iter()
                        .any(|one| to.is_some_and(|to| to != one.by) || one.by == robot)
                    {
                        self.say(1, format!("{what}, came to another robot"));
                    }
                    match told(life, name) {
                        Some(None) => {
                            self.figures.delivered += 1;
                            if came.is_empty() {
                                self.say(1, format!("{what}, was told to be delivered and nobody took it"));
                            }
                        }
                        Some(Some(_)) => self.figures.failed += 1,
                        None if life.killed.is_some() => self.figures.orphaned += 1,
                        None => self.say(3, format!("{what}, did not get through, nor was it reported failed")),
                    }
                }
            }
        }
        for ((from, name), _) in taken {
            self.say(1, format!("\"{name}\" of robot {from} was taken, and it never began"));
        }
    }

    fn control(&mut self) {
        let robots = self.seen.lives.len() as u16;
        for from in 0..robots {
            for to in (0..robots).filter(|to| *to != from) {
                self.control_between(from, to);
            }
        }
    }

    fn control_between(&mut self, from: u16, to: u16) {
        let seen = self.seen;
        let heard: Vec<(u64, u64)> = lines(&seen.lives[usize::from(to)])
            .filter_map(|line| match line {
                Line::Heard { at, from: who, made_at } if *who == from => Some((*at, *made_at)),
                _ => None,
            })
            .collect();
        let apart = self.apart(RobotId(from), RobotId(to));
        let mut quiet_from = None;
        for (begins, ends) in apart.into_iter().chain([(seen.judged_to, seen.judged_to)]) {
            // Where nothing was between them yet the beginning of the run was, and it has time until the first fault.
            let since: u64 = quiet_from.unwrap_or(seen.origin);
            let arrivals = heard.iter().filter(|(at, made_at)| *made_at >= since && *at < begins);
            let mut last = since;
            let times = arrivals.map(|(at, _)| *at).chain([begins.max(since)]);
            for (number, at) in times.enumerate() {
                let silence = at.saturating_sub(last);
                let first = number == 0;
                let starts = first && quiet_from.is_none();
                if !starts && at != begins {
                    let figure = if first {
                        &mut self.figures.resumed_ms
                    } else {
                        &mut self.figures.silence_ms
                    };
                    *figure = figure.max(ms(silence));
                }
                if !starts && silence > RESUME_MAX.as_nanos() {
                    let what = if first { "did not resume" } else { "fell silent" };
                    self.say(
                        2,
                        format!(
                            "control from robot {from} to robot {to} {what} for {:.0} ms at {}, with nothing between them",
                            ms(silence),
                            self.shown(last)
                        ),
                    );
                }
                last = at;
            }
            quiet_from = Some(ends);
        }
    }

    /// When something stood between two robots, by its beginning, what overlaps made one.
    fn apart(&self, one: RobotId, other: RobotId) -> Vec<Span> {
        let stands = |fault: &Fault| match &fault.what {
            Kind::Partition(robots) => robots.contains(&one) != robots.contains(&other),
            Kind::PathLoss(..) => false,
            _ => [Some(one), Some(other)].contains(&fault.what.robot()),
        };
        let mut spans: Vec<Span> = (self.seen.faults.iter())
            .filter(|(fault, _)| stands(fault))
            .map(|(_, span)| *span)
            .collect();
        // All paths at once.
        let lost = |interface: usize| {
            let faults = self.seen.faults.iter();
            let lost = faults.filter(move |(fault, _)| {
                matches!(fault.what, Kind::PathLoss(lossy, loss) if lossy == interface && loss >= LOST)
            });
            merged(lost.map(|(_, span)| *span).collect())
        };
        let all = (1..self.seen.channels).fold(lost(0), |all, interface| both(&all, &lost(interface)));
        spans.extend(all);
        merged(spans)
    }

    fn permits(&mut self) {
        let seen = self.seen;
        for (robot, lives) in (0u16..).zip(&seen.lives) {
            let Some(life) = lives.last() else { continue };
            let held = held(life, seen.end);
            for line in &life.lines {
                let Line::Begin { at, name, .. } = line else { continue };
                let since = (*at).max(seen.healed);
                if told_at(life, name).is_some_and(|told| told <= since) {
                    continue;
                }
                let got = held
                    .iter()
                    .find(|(_, to)| *to >= since)
                    .map(|(from, _)| (*from).max(since));
                let waited = got.unwrap_or(seen.end).saturating_sub(since);
                self.figures.permit_ms = self.figures.permit_ms.max(ms(waited));
                if waited > seen.permit_within.as_nanos() {
                    self.say(
                        3,
                        format!(
                            "robot {robot} waited for a permit for {:.0} ms from {} on, and {} are the most",
                            ms(waited),
                            self.shown(since),
                            seen.permit_within
                        ),
                    );
                    break;
                }
            }
        }
    }

    fn holders(&mut self) {
        let seen = self.seen;
        let spans: Vec<Vec<Span>> = (seen.lives.iter())
            .map(|lives| lives.iter().flat_map(|life| held(life, seen.end)).collect())
            .collect();
        let at_once = |at: u64, but: Option<usize>| -> Vec<usize> {
            let holds = |spans: &Vec<Span>| spans.iter().any(|(from, to)| *from <= at && at <= *to);
            let all = spans.iter().enumerate().filter(|(robot, _)| Some(*robot) != but);
            all.filter(|(_, spans)| holds(spans)).map(|(robot, _)| robot).collect()
        };
        let mut said = false;
        for (from, _) in spans.iter().flatten() {
            // Where there are too many, there are at the beginning of one of them.
            let holders = at_once(*from, None);
            if holders.len() > seen.limit && !said {
                said = true;
                self.say(
                    4,
                    format!("robots {holders:?} all may send bulk at {}", self.shown(*from)),
                );
            }
        }
        for (robot, sent) in seen.sent.iter().enumerate() {
            self.figures.datagrams += sent.len();
            let beside = |at: &&u64| at_once(**at, Some(robot)).len() >= seen.limit;
            let wrong: Vec<u64> = sent.iter().filter(beside).copied().collect();
            let mut rest = wrong.as_slice();
            // By and by: what one hold of the others met.
            while let Some(first) = rest.first() {
                let others = at_once(*first, Some(robot));
                let until = (spans[others[0]].iter()).find(|(from, to)| from <= first && first <= to);
                let until = until.map_or(*first, |(_, to)| *to);
                let count = rest.iter().take_while(|at| **at <= until).count().max(1);
                self.figures.caught += count;
                if count > CAUGHT_MAX {
                    self.say(
                        4,
                        format!(
                            "robot {robot} sent {count} bulk datagrams from {} on, while robots {others:?} held all permits",
                            self.shown(*first)
                        ),
                    );
                }
                rest = &rest[count..];
            }
        }
    }

    fn machine(&mut self) {
        let seen = self.seen;
        for (robot, lives) in (0u16..).zip(&seen.lives) {
            let mut still = 0;
            for line in lines(lives) {
                let Line::Gap { from, to } = line else { continue };
                let frozen = seen.faults.iter().any(|(fault, span)| {
                    fault.what == Kind::Freeze(RobotId(robot)) && span.0 <= *to && *from <= span.1
                });
                if !frozen {
                    still += to - from;
                    self.figures.stood_still_ms = self.figures.stood_still_ms.max(ms(to - from));
                }
            }
            let share = still as f64 / seen.end.saturating_sub(seen.origin).max(1) as f64;
            self.figures.stood_still_share = self.figures.stood_still_share.max(share);
            let up = lives.first().and_then(|life| {
                life.lines.iter().find_map(|line| match line {
                    Line::Up { at } => Some(*at),
                    _ => None,
                })
            });
            let up = up.unwrap_or(seen.end).saturating_sub(seen.origin);
            self.figures.up_ms = self.figures.up_ms.max(ms(up));
        }
    }
}

fn lines(lives: &[Life]) -> impl Iterator<Item = &Line> {
    lives.iter().flat_map(|life| &life.lines)
}

/// What was told of a message, if it was.
fn told<'l>(life: &'l Life, message: &str) -> Option<&'l Option<String>> {
    life.lines.iter().find_map(|line| match line {
        Line::Told { name, why, .. } if name == message => Some(why),
        _ => None,
    })
}

fn told_at(life: &Life, message: &str) -> Option<u64> {
    life.lines.iter().find_map(|line| match line {
        Line::Told { name, at, .. } if name == message => Some(*at),
        _ => None,
    })
}

/// When a robot surely might send bulk in this life: from when a look had said so to when another began that did. What
/// comes after the last look of a process that was killed is not known: the permit may have gone to another by then.
fn held(life: &Life, end: u64) -> Vec<Span> {
    let end = life.killed.unwrap_or(end).min(end);
    let (mut spans, mut open): (Vec<Span>, Option<Span>) = (Vec::new(), None);
    for line in &life.lines {
        match line {
            Line::May { asked, at } => open = Some((open.map_or(*at, |(since, _)| since), *asked)),
            // Where nobody looked it may have gone and come back.
            Line::MayNot { .. } | Line::Gap { .. } => spans.extend(open.take()),
            _ => {}
        }
    }
    spans.extend(open);
    let known = |(from, to): Span| (from <= to.min(end)).then_some((from, to.min(end)));
    spans.into_iter().filter_map(known).collect()
}

/// Spans by their beginning, those that touch made one.
fn merged(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut merged: Vec<Span> = Vec::new();
    for (from, to) in spans {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

/// What is in both.
fn both(one: &[Span], other: &[Span]) -> Vec<Span> {
    let pairs = one
        .iter()
        .flat_map(|a| other.iter().map(move |b| (a.0.max(b.0), a.1.min(b.1))));
    pairs.filter(|(from, to)| from < to).collect()
}

#[cfg(test)]
mod tests;
