//! What the terminal shows: of each robot the newest status, and the last minute of loops, ages and bulk.
//!
//! Robots are followed as for the page (`web/feed.rs`): their answers are on one clock, in milliseconds since
//! `coorp watch` began. Everything kept is bounded: a minute of seconds with a limit on their values, half a second of spans,
//! and a minute of ages of each control topic and sender.

use std::collections::{BTreeMap, VecDeque};

use coorp_node::status::{Heard, Status};
use coorp_team::Team;

use crate::live::web::feed::{self, Batch, Update};
use crate::live::web::lane::LOOP;

/// The seconds kept.
pub const MINUTE: i64 = 60;
/// The seconds over which medians and shares are taken.
pub const RECENT: i64 = 10;
/// Values of one second kept, of each robot and kind.
const VALUES_MAX: usize = 1_000;
/// How long spans are kept, and how many of each robot.
const SPANS_MS: f64 = 500.0;
const SPANS_MAX: usize = 8_192;
/// Topics and senders of each robot whose ages are kept.
const TOPICS_MAX: usize = 512;
/// Robots have so long to answer at first.
const GRACE_MS: f64 = 3_000.0;

/// One second of a robot.
#[derive(Clone, Debug, Default)]
pub struct Second {
    /// Reaction times of loops that ended, and ages of control that arrived, in milliseconds.
    pub took: Vec<f64>,
    pub aged: Vec<f64>,
    /// Bulk sent, in Mbit/s.
    pub sent: Option<f64>,
}

/// The last minute of a robot.
#[derive(Clone, Debug, Default)]
pub struct Minute(BTreeMap<i64, Second>);

impl Minute {
    fn at(&mut self, ms: f64) -> &mut Second {
        while self.0.len() > MINUTE as usize {
            self.0.pop_first();
        }
        self.0.entry(second(ms)).or_default()
    }

    /// One figure of each of the last seconds, the oldest first; `None` where there is none.
    pub fn line(&self, now: f64, figure: impl Fn(&Second) -> Option<f64>) -> Vec<Option<f64>> {
        let last = second(now);
        (last - MINUTE + 1..=last)
            .map(|second| self.0.get(&second).and_then(&figure))
            .collect()
    }

    /// The values of the last seconds.
    pub fn recent<'m>(&'m self, now: f64, values: impl Fn(&'m Second) -> &'m [f64]) -> Vec<f64> {
        let last = second(now);
        let seconds = self.0.range(last - RECENT..=last);
        seconds.flat_map(|(_, second)| values(second)).copied().collect()
    }
}

/// One control topic that a robot receives from one sender.
#[derive(Clone, Debug, Default)]
pub struct Topic {
    /// The newest counts, the oldest first.
    heard: VecDeque<Heard>,
    /// The mean age between two counts, in milliseconds, the oldest first.
    pub ages: VecDeque<Option<f64>>,
}

impl Topic {
    fn add(&mut self, heard: &Heard) {
        if self.heard.back().is_some_and(|before| before.aged > heard.aged) {
            // The robot started anew.
            self.heard.clear();
        }
        let mean = self.heard.back().map(|before| mean_age(before, heard));
        push(&mut self.ages, mean.flatten(), MINUTE as usize);
        push(&mut self.heard, heard.clone(), RECENT as usize + 1);
    }

    /// The newest counts, with ages and late messages of the last seconds alone.
    pub fn recent(&self) -> Option<Heard> {
        let mut heard = self.heard.back()?.clone();
        if let Some(first) = self.heard.front().filter(|_| self.heard.len() > 1) {
            heard.aged = heard.aged.saturating_sub(first.aged);
            heard.ages_us = heard.ages_us.saturating_sub(first.ages_us);
            heard.late = heard.late.saturating_sub(first.late);
        }
        Some(heard)
    }
}

fn mean_age(before: &Heard, after: &Heard) -> Option<f64> {
    let aged = after.aged.saturating_sub(before.aged);
    let sum_us = after.ages_us.saturating_sub(before.ages_us);
    (aged > 0).then(|| sum_us as f64 / aged as f64 / 1e3)
}

/// A span of a robot's last moment: what, from when, until when.
pub type Span = (&'static str, f64, f64);

/// One robot.
#[derive(Clone, Debug, Default)]
pub struct Robot {
    /// The newest status, also of one that is absent now.
    pub status: Option<Box<Status>>,
    pub absent: bool,
    /// Why it refuses the operator, if it does.
    pub why: Option<String>,
    /// The error bound of its clock.
    pub within_ms: f64,
    /// How many events were overwritten before they were asked for.
    pub lost: u64,
    /// Until when it is known what it did.
    pub until: f64,
    pub minute: Minute,
    pub spans: VecDeque<Span>,
    /// Spans that are not over, until when that is planned.
    pub open: Vec<(&'static str, f64, Option<f64>)>,
    /// Bulk sent and received, in Mbit/s.
    pub rates: Option<(f64, f64)>,
    pub topics: BTreeMap<(u16, String), Topic>,
}

impl Robot {
    /// The status, if it is here.
    pub fn here(&self) -> Option<&Status> {
        self.status.as_deref().filter(|_| !self.absent)
    }

    fn take(&mut self, update: Update) {
        (self.until, self.open) = (update.until, update.open);
        (self.within_ms, self.lost) = (update.within_ms, update.lost);
        for (kind, spans) in update.done.spans {
            for (start, end, _) in spans {
                if kind == LOOP {
                    limited(&mut self.minute.at(end).took, end - start);
                }
                push(&mut self.spans, (kind, start, end), SPANS_MAX);
            }
        }
        let from = self.until - SPANS_MS;
        self.spans.retain(|(_, _, end)| *end >= from);
        for (at, age, _) in update.done.ages {
            limited(&mut self.minute.at(at).aged, age);
        }
        if let Some((_, status)) = update.status {
            self.on_status(status);
        }
    }

    fn on_status(&mut self, status: Box<Status>) {
        let before = self
            .status
            .as_deref()
            .and_then(|before| Some((before.up_ms, before.bulk?)));
        if let (Some((before_ms, before)), Some(bulk)) = (before, &status.bulk) {
            let spent = status.up_ms.saturating_sub(before_ms) as f64;
            // One that started anew counts from zero.
            if spent > 0.0 && bulk.sent_bytes >= before.sent_bytes {
                let mbps = |now: u64, before: u64| now.saturating_sub(before) as f64 * 8e-3 / spent;
                let sent = mbps(bulk.sent_bytes, before.sent_bytes);
                self.rates = Some((sent, mbps(bulk.received_bytes, before.received_bytes)));
                self.minute.at(self.until).sent = Some(sent);
            }
        }
        let mut known = std::mem::take(&mut self.topics);
        for heard in status.heard.iter().take(TOPICS_MAX) {
            let key = (heard.from, heard.topic.clone());
            let mut topic = known.remove(&key).unwrap_or_default();
            topic.add(heard);
            self.topics.insert(key, topic);
        }
        self.status = Some(status);
    }
}

/// The team.
#[derive(Clone, Debug)]
pub struct Model {
    pub team: Team,
    pub robots: Vec<Robot>,
    /// Milliseconds since `coorp watch` began.
    pub now: f64,
}

impl Model {
    pub fn new(team: &Team) -> Model {
        Model {
            team: team.clone(),
            robots: team.robots.iter().map(|_| Robot::default()).collect(),
            now: 0.0,
        }
    }

    /// Takes what robots have answered since the last time.
    pub fn update(&mut self, batch: Batch<'_>) {
        self.now = batch.now;
        for update in batch.robots {
            if let Some(robot) = self.robots.get_mut(usize::from(update.robot)) {
                robot.take(update);
            }
        }
        for (id, robot) in (0u16..).zip(&mut self.robots) {
            let absent = batch.absent.iter().find(|(absent, _)| *absent == id);
            robot.absent = absent.is_some();
            robot.why = absent.and_then(|(_, why)| *why).map(str::to_owned);
        }
    }

    /// The robots, in the team's order, but for places that nobody has taken.
    pub fn shown(&self) -> impl Iterator<Item = (&coorp_team::Robot, &Robot)> {
        let all = self.team.robots.iter().zip(&self.robots);
        all.filter(|(of, robot)| !of.may_join || robot.status.is_some())
    }

    /// The bound of reaction times, in milliseconds.
    pub fn bound_ms(&self) -> Option<f64> {
        self.team.control.as_ref().map(|control| control.bound.as_millis_f64())
    }

    pub fn name(&self, place: u16) -> &str {
        let robot = self.team.robots.get(usize::from(place));
        robot.map_or("?", |robot| robot.name.as_str())
    }

    /// The statuses of robots that are here, with ages and late messages of the last seconds alone.
    pub fn here(&self) -> Vec<Status> {
        let of = |robot: &Robot| {
            let mut status = robot.here()?.clone();
            for heard in &mut status.heard {
                let topic = robot.topics.get(&(heard.from, heard.topic.clone()));
                if let Some(recent) = topic.and_then(Topic::recent) {
                    *heard = recent;
                }
            }
            Some(status)
        };
        self.robots.iter().filter_map(of).collect()
    }

    /// Whether robots may not have answered yet.
    pub fn is_early(&self) -> bool {
        self.now < GRACE_MS
    }

    /// What an operator should look at, and what to do about it.
    pub fn alarms(&self) -> Vec<(String, &'static str)> {
        let mut alarms = Vec::new();
        let named = || self.shown().map(|(of, robot)| (of.name.as_str(), robot));
        if !self.is_early() {
            let silent = || named().filter(|(_, robot)| robot.absent);
            for (name, robot) in silent() {
                let why = robot.why.as_ref();
                alarms.extend(why.map(|why| (format!("{name} does not answer: {why}"), "")));
            }
            let unheard: Vec<&str> = silent()
                .filter(|(_, robot)| robot.why.is_none())
                .map(|(name, _)| name)
                .collect();
            if !unheard.is_empty() {
                alarms.push((
                    format!("{} not answer", some_do(&unheard)),
                    "Is 'coorp up' running there, and is the robot in range? 'coorp doctor' on the robot shows what its \
                     card says.",
                ));
            }
        }
        let mut here = named()
            .filter_map(|(name, robot)| Some((name, robot.here()?)))
            .peekable();
        if here.peek().is_some() && !self.robots.iter().filter_map(Robot::here).any(|status| status.leads) {
            alarms.push((
                "nobody leads, so nobody gets a permit".to_owned(),
                "A leader needs links to most of the robots that may lead: see how many each of them hears.",
            ));
        }
        for (name, status) in here {
            let of = feed::alarms(status, &self.team);
            alarms.extend(of.into_iter().map(|(says, todo)| (format!("{name}: {says}"), todo)));
        }
        alarms
    }
}

/// 'a does', 'a, b do', 'a, b, c, d, e and 3 more do'.
fn some_do(names: &[&str]) -> String {
    const NAMED: usize = 5;
    match names {
        [one] => format!("{one} does"),
        names if names.len() <= NAMED + 1 => format!("{} do", names.join(", ")),
        names => format!("{} and {} more do", names[..NAMED].join(", "), names.len() - NAMED),
    }
}

/// The value that this share of the values does not exceed.
pub fn quantile(mut values: Vec<f64>, share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let place = (values.len() as f64 * share) as usize;
    values.get(place.min(values.len().saturating_sub(1))).copied()
}

fn second(ms: f64) -> i64 {
    (ms / 1e3).floor() as i64
}

fn limited(values: &mut Vec<f64>, value: f64) {
    if values.len() < VALUES_MAX {
        values.push(value);
    }
}

fn push<T>(kept: &mut VecDeque<T>, value: T, max: usize) {
    if kept.len() >= max {
        kept.pop_front();
    }
    kept.push_back(value);
}
