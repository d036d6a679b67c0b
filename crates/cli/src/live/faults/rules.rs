//! The rules that must hold in a fault run, judged by the robots' records and by what the emulator saw.
//!
//! 1. **Bulk whole and once.** A message reported as delivered was taken exactly once, by its receiver, with its
//!    original hash. No message is taken twice, and none that was never sent.
//! 2. **Control resumes.** While nothing separates two robots, control messages arrive at most a second apart. After a
//!    separation the second starts at its end, and only messages created since then count. Faults of other robots do
//!    not matter. If one of two paths dies, that separates nobody. If all paths lose half or more after a separation, control may
//!    resume when that is over: one handshake in ten takes longer than a second there.
//! 3. **No permit is stuck.** After the last fault, each robot with bulk to send has a permit within a bound
//!    ([`permit_within`]). Each message of a sender that lives on is delivered or reported as failed before the run's
//!    end.
//! 4. **Never more holders than the limit.** At no instant do more robots know that they may send. While as many as the
//!    limit do, no other robot's bulk reaches its card.
//!
//! Rules 1 and 4 hold on any machine, however slow. Rules 2 and 3 are about time. Their bounds are a second or more, so
//! some milliseconds of lateness do not matter. If the machine was slower, a violation proves nothing, but a run
//! without violations still passes.
//!
//! A robot counts as a holder at each check that finds a permit, and between two of these checks that are close
//! together. So a frozen robot is not a holder, although it may believe that it is. It cannot send then, and it checks
//! the time before it sends again. If a stop interrupts a send call, its datagrams leave when the robot continues.
//! There are at most [`CAUGHT_MAX`] of them; they are counted, but break no rule.

use std::collections::BTreeMap;
use std::io;

use coorp_core::failover::FailoverConfig;
use coorp_core::permits::PermitConfig;
use coorp_core::{Duration, RobotId};
use coorp_node::bulk::BulkMessage;
use serde::{Deserialize, Serialize};

use super::record::Line;
use super::schedule::{Fault, Kind};

/// Maximum time for control to resume.
pub const RESUME_MAX: Duration = Duration::from_secs(1);
/// Minimum share of lost frames at which a channel counts as cut.
const LOST: f64 = 0.9;
/// Minimum share of lost frames at which a channel is too poor for control to resume in time.
const POOR: f64 = 0.5;
/// Maximum time for which a robot's process, or the emulator, may stand still. Above this limit, or one of the next
/// two, the machine is too slow for the rules about time.
pub const STOOD_STILL_MAX_MS: f64 = 150.0;
/// Maximum share of its time for which a robot's process may stand still, in pieces above 20 ms.
const STOOD_STILL_SHARE_MAX: f64 = 0.1;
/// Maximum time until all robots are up, so that this is before the first fault.
const UP_MAX_MS: f64 = 1_200.0;
/// Maximum number of datagrams in one send call.
const CAUGHT_MAX: usize = 8;
/// Maximum latency of a message about permits, including retransmissions.
const DELAY_MAX: Duration = Duration::from_millis(50);

/// Returns the maximum wait for a permit after the last fault. Restarted robots are up as soon as control has resumed,
/// and vote after a lease. Then the next leader takes over and grants, and every other robot has its turn first.
pub fn permit_within(failover: &FailoverConfig, permits: &PermitConfig, robots: u16) -> Duration {
    let others = (failover.voters.len() as u16).saturating_sub(1);
    let turns = (permits.slice + permits.grace) * u64::from(robots);
    RESUME_MAX + failover.lease + failover.takeover_max(permits, others, DELAY_MAX) + turns
}

/// Start and end on the machine's clock, in nanoseconds.
pub type Span = (u64, u64);

/// The findings of a run.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The start of the run.
    pub origin: u64,
    /// The end of the last fault.
    pub healed: u64,
    /// The end of the time in which control is judged.
    pub judged_to: u64,
    /// The end of the run.
    pub end: u64,
    /// Maximum number of permit holders.
    pub limit: usize,
    pub permit_within: Duration,
    /// Number of channels; every robot is on all of them.
    pub channels: usize,
    /// For each robot, its starts.
    pub lives: Vec<Vec<Life>>,
    /// The faults, with their times.
    pub faults: Vec<(Fault, Span)>,
    /// For each robot, the times at which its bulk reached its cards.
    pub sent: Vec<Vec<u64>>,
    /// The bulk messages that were taken.
    pub taken: Vec<Taken>,
}

/// One start of a robot, with the time of its kill, if any.
#[derive(Clone, Debug, Default)]
pub struct Life {
    pub lines: Vec<Line>,
    pub killed: Option<u64>,
}

/// A bulk message that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub by: u16,
    pub from: u16,
    pub name: String,
    pub hash: String,
}

impl Taken {
    /// The file's name contains the start that took the message, a sequence number, the sender's place in the team and the
    /// message's name.
    pub fn file(start: u32, number: u32, message: &BulkMessage) -> String {
        format!("{start}+{number}+{}+{}", message.from.0, message.name)
    }

    /// Returns the message in a robot's file, with its hash.
    ///
    /// # Errors
    /// It is not such a file.
    pub fn of(by: u16, file: &str, hash: String) -> io::Result<Taken> {
        let mut parts = file.splitn(4, '+').skip(2);
        let from = parts.next().and_then(|from| from.parse().ok());
        let (Some(from), Some(name)) = (from, parts.next()) else {
            return Err(io::Error::other(format!("{file} is not a bulk message")));
        };
        let name = name.to_owned();
        Ok(Taken { by, from, name, hash })
    }
}

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    /// The rule's number from 1, or 0 for a program that failed.
    pub rule: u8,
    pub what: String,
}

impl Broken {
    /// Returns whether it is about time, so that it counts only if the machine kept up.
    fn is_about_time(&self) -> bool {
        matches!(self.rule, 2 | 3)
    }
}

/// The figures of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Number of bulk messages started.
    pub begun: usize,
    /// Number of messages reported as delivered.
    pub delivered: usize,
    /// Number of messages reported as failed.
    pub failed: usize,
    /// Number of messages whose sender died before it knew the outcome.
    pub orphaned: usize,
    /// The longest time that control took to resume, in milliseconds.
    pub resumed_ms: f64,
    /// The longest silence of control otherwise, in milliseconds.
    pub silence_ms: f64,
    /// The longest wait for a permit after the last fault, in milliseconds.
    pub permit_ms: f64,
    /// Number of bulk datagrams.
    pub datagrams: usize,
    /// Number of bulk datagrams whose send call a stop had interrupted.
    pub caught: usize,
    /// Time until every robot had been up once, in milliseconds.
    pub up_ms: f64,
    /// The longest time for which a robot's process stood still without being frozen, in milliseconds.
    pub stood_still_ms: f64,
    /// The largest share of its time for which a robot's process stood still.
    pub stood_still_share: f64,
}

impl Figures {
    /// Returns whether the machine ran the robots without long pauses, and they were up before the first fault.
    pub fn kept_up(&self) -> bool {
        self.stood_still_ms <= STOOD_STILL_MAX_MS
            && self.stood_still_share <= STOOD_STILL_SHARE_MAX
            && self.up_ms <= UP_MAX_MS
    }
}

/// Returns the violations that count, and whether the run proves anything. A violation of a rule about time does not
/// count on a slow machine. It leaves the run without a verdict, as do robots that were not up before the first fault.
pub fn count(broken: Vec<Broken>, figures: &Figures, kept_up: bool) -> (Vec<Broken>, bool) {
    let (count, open): (Vec<Broken>, Vec<Broken>) = broken
        .into_iter()
        .partition(|broken| kept_up || !broken.is_about_time());
    let judged = !count.is_empty() || (open.is_empty() && figures.up_ms <= UP_MAX_MS);
    (count, judged)
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

    /// Returns a time relative to the start of the run, as in the schedule.
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
                        "\"{name}\" of robot {robot}, {bytes} bytes, started at {}",
                        self.shown(*at)
                    );
                    let came = taken.remove(&(robot, name.as_str())).unwrap_or_default();
                    self.figures.begun += 1;
                    if came.len() > 1 {
                        self.say(1, format!("{what}, was taken {} times", came.len()));
                    }
                    if came.iter().any(|one| one.hash != *hash) {
                        self.say(1, format!("{what}, did not arrive whole"));
                    }
                    if came
                        .iter()
                        .any(|one| to.is_some_and(|to| to != one.by) || one.by == robot)
                    {
                        self.say(1, format!("{what}, arrived at another robot"));
                    }
                    match told(life, name) {
                        Some(None) => {
                            self.figures.delivered += 1;
                            if came.is_empty() {
                                self.say(1, format!("{what}, was reported as delivered, but nobody took it"));
                            }
                        }
                        Some(Some(_)) => self.figures.failed += 1,
                        None if life.killed.is_some() => self.figures.orphaned += 1,
                        None => self.say(3, format!("{what}, was neither delivered nor reported as failed")),
                    }
                }
            }
        }
        for ((from, name), _) in taken {
            self.say(1, format!("\"{name}\" of robot {from} was taken, but never started"));
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
            // Before any separation, count from the start of the run; the first message then has no time limit.
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
                            "control from robot {from} to robot {to} {what} for {:.0} ms at {} without any separation",
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

    /// Returns the times at which something separated two robots, by start; overlapping ones are merged.
    fn apart(&self, one: RobotId, other: RobotId) -> Vec<Span> {
        let stands = |fault: &Fault| match &fault.what {
            Kind::Partition(robots) => robots.contains(&one) != robots.contains(&other),
            // A robot's links continue without a disk and without new files.
            Kind::PathLoss(..) | Kind::FullDisk(..) | Kind::NoDescriptors(_) => false,
            _ => [Some(one), Some(other)].contains(&fault.what.robot()),
        };
        let mut spans: Vec<Span> = (self.seen.faults.iter())
            .filter(|(fault, _)| stands(fault))
            .map(|(_, span)| *span)
            .collect();
        // A loss separates robots only if it affects all paths at once.
        let lost = |interface: usize, least: f64| {
            let faults = self.seen.faults.iter();
            let lost = faults.filter(move |(fault, _)| {
                matches!(fault.what, Kind::PathLoss(lossy, loss) if lossy == interface && loss >= least)
            });
            merged(lost.map(|(_, span)| *span).collect())
        };
        let all = |least: f64| {
            let others = 1..self.seen.channels;
            others.fold(lost(0, least), |all, interface| both(&all, &lost(interface, least)))
        };
        spans.extend(all(LOST));
        for (from, to) in all(POOR) {
            let resumes = |end: u64| end < to && from <= end + RESUME_MAX.as_nanos();
            let longer = spans.iter_mut().filter(|span| resumes(span.1));
            longer.for_each(|span| span.1 = to);
        }
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
                            "robot {robot} waited for a permit for {:.0} ms from {} on; the limit is {}",
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
            // The number of holders rises only at the start of a span, so check only there.
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
            // Group the datagrams by the other holders' span in which they were sent.
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
                            "robot {robot} sent {count} bulk datagrams from {} on; robots {others:?} held all permits",
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

/// Returns the reported outcome of a message, if there is one.
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

/// Returns the times at which a robot certainly was allowed to send bulk in this life. Each lasts from the end of the
/// first positive check in a row to the start of the last one. The time after the last check of a killed process is
/// unknown, because the permit may have gone to another robot by then.
fn held(life: &Life, end: u64) -> Vec<Span> {
    let end = life.killed.unwrap_or(end).min(end);
    let (mut spans, mut open): (Vec<Span>, Option<Span>) = (Vec::new(), None);
    for line in &life.lines {
        match line {
            Line::May { asked, at } => open = Some((open.map_or(*at, |(since, _)| since), *asked)),
            // Without checks, the permit may have been lost and regained.
            Line::MayNot { .. } | Line::Gap { .. } => spans.extend(open.take()),
            _ => {}
        }
    }
    spans.extend(open);
    let known = |(from, to): Span| (from <= to.min(end)).then_some((from, to.min(end)));
    spans.into_iter().filter_map(known).collect()
}

/// Returns the spans by start; those that touch are merged.
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

/// Returns the intersection of both.
fn both(one: &[Span], other: &[Span]) -> Vec<Span> {
    let pairs = one
        .iter()
        .flat_map(|a| other.iter().map(move |b| (a.0.max(b.0), a.1.min(b.1))));
    pairs.filter(|(from, to)| from < to).collect()
}

#[cfg(test)]
mod tests;
