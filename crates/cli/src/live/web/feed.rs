//! What goes to viewers: robots' answers become one batch, ten times a second. Browsers get it as one message, and streams
//! (`stream.rs`) as one message for each thing that happened.
//!
//! Everything is told on one clock, the page's: milliseconds since `coorp watch` began. Nothing waits for a viewer
//! (`hub.rs`), and what robots answer between two batches is bounded by what they may answer.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use coorp_core::alarms::Alarm;
use coorp_core::robot::{ClockId, WATCHED};
use coorp_core::{Instant, RobotId};
use coorp_node::status::{Status, Twins};
use coorp_node::watch::{Follower, Glance};
use coorp_team::Team;
use serde::Serialize;
use serde_json::{json, Value};

use super::lane::{rounded, Done, Lane};

/// Time between two messages to the page.
pub const TELL_EVERY: Duration = Duration::from_millis(100);
/// Time between two questions to a robot, and between the first ones of two robots: many robots are asked less often, since
/// questions and answers take airtime.
const ASK_EVERY: Duration = Duration::from_millis(200);
const ASK_APART: Duration = Duration::from_millis(10);
/// Time between two statuses of a robot.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// A robot that has not answered for so long counts as absent.
const ABSENT_AFTER: Duration = Duration::from_secs(2);
/// How many flows of unchanged programs are shown of each robot.
const FLOWS_MAX: usize = 16;

/// How often each robot is asked.
pub fn ask_every(robots: usize) -> Duration {
    let robots = u32::try_from(robots).unwrap_or(u32::MAX);
    ASK_EVERY.max(ASK_APART.saturating_mul(robots)).min(STATUS_EVERY)
}

/// How many questions of a robot make one for its status.
pub fn status_every(robots: usize) -> u32 {
    let every = STATUS_EVERY.as_millis() / ask_every(robots).as_millis().max(1);
    u32::try_from(every).unwrap_or(1).max(1)
}

/// How far behind viewers are, in milliseconds, to show what happens after all robots have answered.
pub fn behind_ms(robots: usize) -> f64 {
    millis(ask_every(robots) + 2 * TELL_EVERY)
}

/// Collects what robots answer.
pub struct Feed {
    team: Team,
    began: Instant,
    /// Whether anybody views.
    wanted: Box<dyn Fn() -> bool + Send + Sync>,
    robots: Mutex<Vec<Robot>>,
}

#[derive(Default)]
struct Robot {
    lane: Lane,
    clock: Option<ClockId>,
    /// When it last answered.
    heard: Option<f64>,
    within_ms: f64,
    lost: u64,
    /// Not told yet, with its time.
    status: Option<(f64, Box<Status>)>,
    /// Whether there is something to tell.
    fresh: bool,
}

/// The first message, sent once.
#[derive(Serialize)]
struct Hello<'a> {
    kind: &'static str,
    coorp: &'static str,
    team: &'a str,
    robots: Vec<&'a str>,
    /// The first so many belong to the team from the start; the others may join.
    founders: usize,
    bound_ms: Option<f64>,
    /// How far behind the page is to show what happens, so that all robots have answered.
    behind_ms: f64,
    /// The page's clock at its zero, as Unix time in milliseconds.
    began_unix_ms: f64,
}

/// News of all robots.
#[derive(Debug, Serialize)]
pub struct Batch<'a> {
    kind: &'static str,
    /// Gaps show a page what it was too slow for.
    number: u64,
    pub now: f64,
    pub robots: Vec<Update>,
    /// Robots that do not answer, and why if they say so.
    pub absent: Vec<(u16, Option<&'a str>)>,
}

/// News of one robot.
#[derive(Debug, Serialize)]
pub struct Update {
    pub robot: u16,
    pub until: f64,
    /// The error bound of its clock.
    pub within_ms: f64,
    #[serde(flatten)]
    pub done: Done,
    pub open: Vec<(&'static str, f64, Option<f64>)>,
    pub lost: u64,
    /// With its time, for streams.
    #[serde(skip)]
    pub status: Option<(f64, Box<Status>)>,
    #[serde(rename = "status", skip_serializing_if = "Option::is_none")]
    shown: Option<Value>,
}

impl Batch<'_> {
    /// The message to all pages.
    pub fn text(&self) -> String {
        text(self)
    }
}

impl Feed {
    /// `began` is the page's zero, on the operator's clock; robots are asked while they are `wanted`.
    pub fn new(team: &Team, began: Instant, wanted: impl Fn() -> bool + Send + Sync + 'static) -> Feed {
        Feed {
            team: team.clone(),
            began,
            wanted: Box::new(wanted),
            robots: Mutex::new(team.robots.iter().map(|_| Robot::default()).collect()),
        }
    }

    /// The first message to each page.
    pub fn hello(&self, unix: Duration) -> String {
        let team = &self.team;
        text(&Hello {
            kind: "hello",
            coorp: env!("CARGO_PKG_VERSION"),
            team: &team.name,
            robots: team.robots.iter().map(|robot| robot.name.as_str()).collect(),
            founders: team.founders(),
            bound_ms: team.control.as_ref().map(|control| control.bound.as_millis_f64()),
            behind_ms: behind_ms(team.robots.len()),
            began_unix_ms: (unix.as_secs_f64() * 1e3).round(),
        })
    }

    /// The next batch.
    pub fn batch<'a>(&self, number: u64, now: Instant, refusals: &[(RobotId, &'a str)]) -> Batch<'a> {
        let now = self.ms(now);
        let mut robots = lock(&self.robots);
        let mut updates = Vec::new();
        let mut absent = Vec::new();
        for (id, robot) in (0u16..).zip(robots.iter_mut()) {
            let silent = robot.heard.is_none_or(|heard| now - heard > millis(ABSENT_AFTER));
            if silent {
                let why = refusals.iter().find(|(refusing, _)| refusing.0 == id);
                absent.push((id, why.map(|(_, why)| *why)));
            }
            if std::mem::take(&mut robot.fresh) {
                updates.push(robot.update(id, &self.team));
            }
        }
        Batch {
            kind: "batch",
            number,
            now: rounded(now),
            robots: updates,
            absent,
        }
    }

    /// A time on the page's clock.
    fn ms(&self, at: Instant) -> f64 {
        at.since(self.began).as_millis_f64() - self.began.since(at).as_millis_f64()
    }
}

impl Follower for Feed {
    fn wants(&self) -> bool {
        (self.wanted)()
    }

    fn on_glance(&self, robot: RobotId, glance: Option<Glance>) {
        let mut robots = lock(&self.robots);
        let Some(robot) = robots.get_mut(usize::from(robot.0)) else {
            return;
        };
        let Some(Glance { look, offset, status }) = glance else {
            return;
        };
        let now = self.ms(offset.ours(look.now));
        let paused = robot.heard.is_some_and(|heard| now - heard > WATCHED.as_millis_f64());
        if paused || look.lost > 0 || robot.clock.is_some_and(|clock| clock != look.clock) {
            robot.lane.lose();
        }
        robot.clock = Some(look.clock);
        for (ago_us, seen) in &look.events {
            robot.lane.on_seen(now - f64::from(*ago_us) / 1e3, *seen);
        }
        robot.lane.on_until(now);
        robot.heard = Some(now);
        robot.within_ms = offset.within.as_millis_f64();
        robot.lost += look.lost;
        robot.status = status.map(|status| (now, status)).or(robot.status.take());
        robot.fresh = true;
    }
}

impl Robot {
    fn update(&mut self, id: u16, team: &Team) -> Update {
        let status = self.status.take();
        Update {
            robot: id,
            until: rounded(self.lane.until()),
            within_ms: rounded(self.within_ms),
            done: self.lane.take(),
            open: self
                .lane
                .open()
                .into_iter()
                .map(|(kind, start, end)| (kind, rounded(start), end.map(rounded)))
                .collect(),
            lost: self.lost,
            shown: status.as_ref().map(|(_, status)| shown(Status::clone(status), team)),
            status,
        }
    }
}

/// What an operator should look at on a robot, and what to do about it.
pub fn alarms(status: &Status, team: &Team) -> Vec<(String, &'static str)> {
    let mut alarms: Vec<(String, &str)> = status
        .alarms
        .iter()
        // Each such robot has a line of its own.
        .filter(|alarm| **alarm != Alarm::Twins)
        .map(|alarm| (alarm.to_string(), what_to_do(*alarm)))
        .collect();
    for twins in &status.twins {
        alarms.push((twins.told(name(team, twins)), ""));
    }
    if !status.secure {
        let without =
            "it runs without keys (--insecure): whoever reaches this network can read and speak for any robot";
        alarms.push((
            without.to_owned(),
            "Start it without --insecure; 'coorp keys init' makes the team's keys.",
        ));
    }
    alarms
}

/// A status as the page shows it: as recordings have it, with words for what has none.
fn shown(mut status: Status, team: &Team) -> Value {
    let flows = std::mem::take(&mut status.flows);
    let alarms = alarms(&status, team);
    let flows = flows.iter().take(FLOWS_MAX).map(|flow| {
        json!({
            "flow": flow.to_string(), "class": flow.class.to_string(), "reason": flow.reason.to_string(),
            "period_ms": flow.period.map(|period| rounded(period.as_millis_f64())),
            "rate_bps": flow.rate_bps, "late_ms": rounded(flow.late.as_millis_f64()), "waiting_bytes": flow.waiting_bytes, "dropped": flow.dropped,
        })
    });
    let flows: Vec<Value> = flows.collect();
    let completions = status.bulk.as_ref().map(|bulk| bulk.completions.to_string());
    // Nothing in it fails.
    let mut value = serde_json::to_value(&status).unwrap_or_default();
    value["alarms"] = json!(alarms);
    value["flows"] = json!(flows);
    value["completions"] = json!(completions);
    value["refused_frames"] = json!(status.refused.total());
    value
}

fn name<'t>(team: &'t Team, twins: &Twins) -> &'t str {
    let robot = team.robots.get(usize::from(twins.robot));
    robot.map_or("?", |robot| robot.name.as_str())
}

/// What an operator can do about an alarm.
fn what_to_do(alarm: Alarm) -> &'static str {
    match alarm {
        Alarm::Strangers => {
            "If it was a robot of this team, install its keys again ('coorp keys bundle'); otherwise find out who else is on \
             this network."
        }
        Alarm::OtherVersion => "Install the same version of Coorp on all robots; 'coorp --version' shows it.",
        Alarm::Twins => "Stop one of them, or give it keys of its own.",
        Alarm::LeaderChanges => {
            "Look at the leader's signal and power; if it moves far away, name another robot as leader in the team file."
        }
        Alarm::ClockJumped => "Let NTP slew the clock instead of setting it while robots run.",
        Alarm::DiskShort => "Free space on the disk of the robot's state folder; until then it takes no bulk.",
    }
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

fn text(value: &impl Serialize) -> String {
    // Nothing of ours fails.
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}

fn lock(robots: &Mutex<Vec<Robot>>) -> MutexGuard<'_, Vec<Robot>> {
    robots.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use coorp_core::clock::Offset;
    use coorp_core::robot::{Look, Seen};
    use coorp_node::status::Bulk;

    use super::*;

    const TEAM: &str = "[[robot]]\nname = \"base\"\nleader = true\n[[robot]]\nname = \"scout\"\n";

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(1_000_000_000_000 + ms * 1_000_000)
    }

    fn feed() -> Feed {
        let team = coorp_team::parse(TEAM, "fleet.toml", std::path::Path::new("")).unwrap();
        Feed::new(&team, at(0), || true)
    }

    /// A robot whose clock is 5 ms ahead sees something 2 ms before it answers at `now`.
    fn glance(now: u64, clock: u64, seen: Seen) -> Glance {
        Glance {
            look: Look {
                clock: ClockId(clock),
                now: at(now + 5),
                next: 1,
                lost: 0,
                events: vec![(2_000, seen)],
            },
            offset: Offset {
                ahead_ns: 5_000_000,
                within: coorp_core::Duration::from_micros(300),
            },
            status: None,
        }
    }

    fn batch(feed: &Feed, now: u64) -> Value {
        serde_json::from_str(&feed.batch(1, at(now), &[]).text()).unwrap()
    }

    #[test]
    fn what_robots_see_is_told_once_and_on_one_clock() {
        let feed = feed();
        feed.on_glance(RobotId(1), Some(glance(100, 7, Seen::Permitted(true))));
        let took_us = 4_000;
        feed.on_glance(RobotId(1), Some(glance(200, 7, Seen::Control { flow: 0, took_us })));
        feed.on_glance(RobotId(1), None);
        feed.on_glance(RobotId(9), None);
        let told = batch(&feed, 210);
        assert_eq!(told["absent"], json!([[0, null]]));
        let robot = &told["robots"][0];
        assert_eq!(
            (&robot["robot"], &robot["until"], &robot["within_ms"]),
            (&json!(1), &json!(200.0), &json!(0.3))
        );
        assert_eq!(robot["spans"], json!({"control": [194.0, 198.0, 1.0]}));
        assert_eq!(robot["open"], json!([["permit", 98.0, null]]));
        assert_eq!(batch(&feed, 300)["robots"], json!([]), "nothing new");
        let silent = batch(&feed, 2_300);
        assert_eq!(silent["absent"], json!([[0, null], [1, null]]));
    }

    #[test]
    fn what_was_open_ends_when_a_robot_starts_anew() {
        let feed = feed();
        feed.on_glance(RobotId(0), Some(glance(100, 7, Seen::Permitted(true))));
        feed.on_glance(RobotId(0), Some(glance(900, 8, Seen::Led(None))));
        let robot = batch(&feed, 900)["robots"][0].clone();
        assert_eq!(robot["spans"], json!({"permit": [98.0, 100.0, 0.0]}));
        assert_eq!(robot["open"], json!([]));
    }

    #[test]
    fn a_status_comes_with_what_to_do() {
        let feed = feed();
        let status = Status {
            alarms: vec![Alarm::DiskShort, Alarm::Twins],
            twins: vec![Twins {
                robot: 1,
                at: Vec::new(),
            }],
            bulk: Some(Bulk::default()),
            secure: true,
            ..Status::default()
        };
        let mut glance = glance(100, 7, Seen::Led(None));
        glance.status = Some(Box::new(status));
        feed.on_glance(RobotId(0), Some(glance));
        let told = batch(&feed, 100);
        let status = &told["robots"][0]["status"];
        assert_eq!(status["alarms"].as_array().unwrap().len(), 2);
        assert!(status["alarms"][0][1].as_str().unwrap().contains("Free space"));
        assert!(status["alarms"][1][0]
            .as_str()
            .unwrap()
            .contains("two processes run as scout"));
        assert_eq!(status["completions"], "nothing yet");
    }

    #[test]
    fn many_robots_are_asked_less_often_and_the_page_waits_for_them() {
        assert_eq!((ask_every(3), status_every(3)), (Duration::from_millis(200), 5));
        assert_eq!((ask_every(50), status_every(50)), (Duration::from_millis(500), 2));
        assert_eq!((ask_every(5_000), status_every(5_000)), (Duration::from_secs(1), 1));
        let hello: Value = serde_json::from_str(&feed().hello(Duration::from_secs(7))).unwrap();
        assert_eq!(
            (&hello["team"], &hello["behind_ms"]),
            (&json!(feed().team.name), &json!(400.0))
        );
        assert_eq!(
            (&hello["robots"][1], &hello["began_unix_ms"]),
            (&json!("scout"), &json!(7_000.0))
        );
    }
}
