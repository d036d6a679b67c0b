//! What streams carry, to Foxglove and to Rerun: one message for each thing that happened, in the order of time.
//!
//! The channels of a robot's recording are the same here (`coorp_node::recording`), with the robot's name in each message.
//! Beside them are those that only a look at the whole team can fill. Messages come as far behind as the page is, so that
//! those of all robots are in order; one that comes later than that is still told.
//!
//! A viewer that begins, or falls behind, first needs what is so: of each state, the newest message ([`Block::before`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coorp_core::robot::WATCHED;
use coorp_core::RobotId;
use coorp_node::recording::Kind;
use coorp_node::status::{Permit, Status};
use coorp_team::Team;
use serde_json::{json, Value};

use super::feed::{alarms, behind_ms, Batch, Update};
use super::lane::{rounded, Edge, BULK, CONTROL, LOOP};

/// Robots have so long to answer before they count as absent.
const GRACE_MS: f64 = 3_000.0;

/// What a channel carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Channel {
    /// As in recordings.
    Recorded(Kind),
    /// Control loops that ended.
    Loops,
    /// Control that arrived.
    Ages,
    /// Control and bulk that was in the card or on the air.
    Air,
    /// How much bulk moves.
    Bulk,
    /// What an operator should look at.
    Alarms,
}

impl Channel {
    /// All of them, in this order.
    pub fn all() -> impl Iterator<Item = Channel> {
        use Channel::*;
        Kind::ALL
            .into_iter()
            .map(Recorded)
            .chain([Loops, Ages, Air, Bulk, Alarms])
    }

    pub fn topic(self) -> String {
        match self {
            Channel::Recorded(kind) => kind.topic(),
            other => format!("/coorp/{other:?}").to_lowercase(),
        }
    }

    /// The name of its schema: Foxglove knows some.
    pub fn schema_name(self) -> String {
        match self {
            Channel::Alarms => "foxglove.Log".to_owned(),
            other => other.topic(),
        }
    }

    /// The JSON schema of its messages.
    pub fn schema(self) -> Value {
        let (text, number, truth) = (
            json!({"type": "string"}),
            json!({"type": "number"}),
            json!({"type": "boolean"}),
        );
        let (about, properties) = match self {
            Channel::Recorded(kind) => {
                let mut schema = kind.schema();
                schema["properties"]["robot"] = text;
                if kind == Kind::Window {
                    schema["properties"]["open"] = truth;
                }
                return schema;
            }
            Channel::Alarms => return log_schema(),
            Channel::Loops => (
                "The reaction time of a control loop of this robot that ended, and its bound",
                json!({"robot": text, "reaction_ms": number, "bound_ms": number, "late": truth}),
            ),
            Channel::Ages => (
                "The age of a control message when it arrived at this robot, if the clocks were compared",
                json!({"robot": text, "from": text, "age_ms": number}),
            ),
            Channel::Air => (
                "Control or bulk of this robot that was in its card or on the air until now",
                json!({"robot": text, "what": {"type": "string", "enum": [CONTROL, BULK]}, "took_ms": number, "packets": number}),
            ),
            Channel::Bulk => (
                "Bulk of this robot over the second before: rates, and what waits",
                json!({
                    "robot": text, "sent_mbps": number, "received_mbps": number, "waiting": number, "in_flight": number,
                    "held": truth,
                }),
            ),
        };
        json!({"title": self.topic(), "description": about, "type": "object", "properties": properties})
    }
}

/// Foxglove's well-known schema of a log.
fn log_schema() -> Value {
    let levels = ["UNKNOWN", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"];
    let levels: Vec<Value> = levels
        .iter()
        .zip(0..)
        .map(|(title, level)| json!({"title": title, "const": level}))
        .collect();
    let number = json!({"type": "integer", "minimum": 0});
    let text = json!({"type": "string"});
    json!({
        "title": "foxglove.Log", "description": "A log message", "type": "object", "properties": {
            "timestamp": {"type": "object", "title": "time", "properties": {"sec": number, "nsec": number}},
            "level": {"title": "foxglove.LogLevel", "oneOf": levels},
            "message": text, "name": text, "file": text, "line": number,
        }
    })
}

/// Levels of `foxglove.Log`.
#[derive(Clone, Copy)]
enum Level {
    Info,
    Warning,
    Error,
    /// Information that something is over.
    Over,
}

impl Level {
    fn number(self) -> u8 {
        match self {
            Level::Info | Level::Over => 2,
            Level::Warning => 3,
            Level::Error => 4,
        }
    }
}

/// A message of a channel.
#[derive(Debug)]
pub struct Message {
    pub channel: Channel,
    /// Unix time in nanoseconds.
    pub at_ns: u64,
    /// JSON.
    pub text: String,
    /// What it says the state of.
    key: Option<String>,
    /// That state is over, and of no interest to who begins to view.
    ends: bool,
}

/// The newest message of each state.
pub type Latest = BTreeMap<(Channel, String), Arc<Message>>;

/// The messages that are sent at once.
#[derive(Debug)]
pub struct Block {
    /// The state before the messages.
    pub before: Arc<Latest>,
    pub messages: Vec<Arc<Message>>,
    /// Until when everything is told, Unix time in nanoseconds.
    pub until_ns: u64,
}

impl Block {
    /// What it takes.
    pub fn bytes(&self) -> usize {
        let each = self.messages.iter();
        each.map(|message| message.text.len() + size_of::<Message>()).sum()
    }
}

/// From batches to messages.
pub struct Stream {
    team: Team,
    /// The page's zero, as Unix time in nanoseconds.
    began_ns: u64,
    behind_ms: f64,
    robots: Vec<Known>,
    /// Not told yet, in the order of time.
    pending: Vec<Message>,
    latest: Arc<Latest>,
    /// Since when, and until when robots were asked without a pause that makes them forget.
    asked: (f64, f64),
    led: bool,
}

/// The newest messages about a robot.
#[derive(Default)]
struct Known {
    status: Option<Box<Status>>,
    /// Whether it may send bulk, and who leads, as last told.
    permitted: Option<bool>,
    leader: Option<RobotId>,
    alarms: BTreeSet<String>,
    absent: bool,
}

impl Stream {
    pub fn new(team: &Team, began_ns: u64) -> Stream {
        Stream {
            team: team.clone(),
            began_ns,
            behind_ms: behind_ms(team.robots.len()),
            robots: team.robots.iter().map(|_| Known::default()).collect(),
            pending: Vec::new(),
            latest: Arc::default(),
            asked: (f64::NEG_INFINITY, f64::NEG_INFINITY),
            led: true,
        }
    }

    /// Takes a batch, and returns what is to be told now.
    pub fn on_batch(&mut self, batch: &Batch) -> Arc<Block> {
        let now = batch.now;
        if now - self.asked.1 > WATCHED.as_millis_f64() {
            // Nobody viewed: what was so may not be so any more, and robots tell it again.
            *self = Stream::new(&self.team, self.began_ns);
            self.asked.0 = now;
        }
        self.asked.1 = now;
        for update in &batch.robots {
            self.on_update(update, now);
        }
        if now - self.asked.0 > GRACE_MS {
            self.on_absent(batch);
        }
        self.pending.sort_by_key(|message| message.at_ns);
        let until_ns = self.unix_ns(now - self.behind_ms);
        let told = self.pending.partition_point(|message| message.at_ns <= until_ns);
        let before = self.latest.clone();
        let messages: Vec<Arc<Message>> = self.pending.drain(..told).map(Arc::new).collect();
        for message in &messages {
            if let Some(key) = &message.key {
                let key = (message.channel, key.clone());
                let latest = Arc::make_mut(&mut self.latest);
                if message.ends {
                    latest.remove(&key);
                } else {
                    latest.insert(key, message.clone());
                }
            }
        }
        Arc::new(Block {
            before,
            messages,
            until_ns,
        })
    }

    fn on_update(&mut self, update: &Update, now: f64) {
        let id = usize::from(update.robot);
        // Clocks are known to within some error: nothing is from the future.
        let told = |at: f64| at.min(now);
        // The status first, because it names the paths.
        if let Some((at, status)) = &update.status {
            self.on_status(id, told(*at), status);
        }
        for (at, edge) in &update.done.edges {
            self.on_edge(id, told(*at), *edge);
        }
        // Later watchers of a robot get changes alone.
        if let Some((at, status)) = &update.status {
            let leader = status.leader.map(RobotId);
            if self.robots[id].leader != leader {
                self.on_edge(id, told(*at), Edge::Led(leader));
            }
            if self.robots[id].permitted.is_none() && status.permit != Permit::NotNeeded {
                self.on_edge(id, told(*at), Edge::Permit(status.permit == Permit::Holding));
            }
        }
        for (kind, spans) in &update.done.spans {
            for (start, end, packets) in spans {
                let (at, took_ms) = (told(*end), rounded(end - start));
                match *kind {
                    CONTROL | BULK => {
                        let value = json!({"what": kind, "took_ms": took_ms, "packets": packets});
                        self.tell(Channel::Air, id, at, value, None);
                    }
                    LOOP => self.on_loop(id, at, took_ms),
                    // Edges say the same.
                    _ => {}
                }
            }
        }
        for (at, age_ms, from) in &update.done.ages {
            let value = json!({"from": self.name(*from), "age_ms": rounded(*age_ms)});
            self.tell(Channel::Ages, id, told(*at), value, None);
        }
    }

    fn on_loop(&mut self, id: usize, at: f64, reaction_ms: f64) {
        let mut value = json!({"reaction_ms": reaction_ms});
        let bound = self.team.control.as_ref().map(|control| control.bound.as_millis_f64());
        if let Some(bound_ms) = bound {
            value["bound_ms"] = bound_ms.into();
            value["late"] = (reaction_ms > bound_ms).into();
        }
        self.tell(Channel::Loops, id, at, value, None);
    }

    fn on_edge(&mut self, id: usize, at: f64, edge: Edge) {
        let me = self.name_of(id).to_owned();
        match edge {
            Edge::Permit(permitted) => self.robots[id].permitted = Some(permitted),
            Edge::Led(leader) => self.robots[id].leader = leader,
            _ => {}
        }
        let (kind, value, key) = match edge {
            Edge::Permit(permitted) => {
                let event = if permitted { "permitted" } else { "not-permitted" };
                (Kind::Permits, json!({"event": event, "from": me}), String::new())
            }
            Edge::Led(None) => (Kind::Leader, json!({"event": "deposed", "leader": ""}), String::new()),
            Edge::Led(Some(leader)) => {
                let leads = usize::from(leader.0) == id;
                if leads {
                    let team = self.team.name.clone();
                    self.log(&team, at, Level::Info, "leader", &format!("{me} leads"));
                }
                let event = if leads { "leads" } else { "follows" };
                let value = json!({"event": event, "leader": self.name(leader.0)});
                (Kind::Leader, value, String::new())
            }
            Edge::Window(None) => (Kind::Window, json!({"open": false}), String::new()),
            Edge::Window(Some(length_ms)) => {
                let length_us = (length_ms * 1e3).round();
                let value = json!({"open": true, "starts_in_us": 0, "length_us": length_us});
                (Kind::Window, value, String::new())
            }
            Edge::Hold { path, holds } => {
                let name = self.path(id, path.into());
                let mut value = json!({"path": name, "open": !holds});
                if holds {
                    value["why"] = "window".into();
                }
                (Kind::Gate, value, name)
            }
        };
        self.tell(Channel::Recorded(kind), id, at, value, Some(key));
    }

    fn on_status(&mut self, id: usize, at: f64, status: &Status) {
        // Nothing in it fails.
        let value = serde_json::to_value(status).unwrap_or_default();
        self.tell(Channel::Recorded(Kind::Status), id, at, value, Some(String::new()));
        let before = self.robots[id].status.replace(Box::new(status.clone()));
        for path in &status.choices {
            let known = before.iter().flat_map(|before| &before.choices);
            if known.into_iter().any(|known| known.is_like(path)) {
                continue;
            }
            let (to, name) = (self.name(path.to).to_owned(), self.path(id, path.path));
            let (value, key) = (path.recorded(&to, &name), format!("{to} {name}"));
            self.tell(Channel::Recorded(Kind::Paths), id, at, value, Some(key));
        }
        if let Some(value) = before.and_then(|before| rates(&before, status)) {
            self.tell(Channel::Bulk, id, at, value, None);
        }
        let now: BTreeSet<String> = alarms(status, &self.team)
            .into_iter()
            .map(|(alarm, what_to_do)| {
                if what_to_do.is_empty() {
                    alarm
                } else {
                    format!("{alarm}. {what_to_do}")
                }
            })
            .collect();
        let before = std::mem::replace(&mut self.robots[id].alarms, now.clone());
        let me = self.name_of(id).to_owned();
        for alarm in now.difference(&before) {
            self.log(&me, at, Level::Warning, alarm, alarm);
        }
        for alarm in before.difference(&now) {
            self.log(&me, at, Level::Over, alarm, &format!("over: {alarm}"));
        }
    }

    /// Robots that went, robots that came back, and whether anybody leads.
    fn on_absent(&mut self, batch: &Batch) {
        let now = batch.now;
        for id in 0..self.robots.len() {
            let absent = batch.absent.iter().find(|(robot, _)| usize::from(*robot) == id);
            let was = std::mem::replace(&mut self.robots[id].absent, absent.is_some());
            let me = self.name_of(id).to_owned();
            match absent {
                // A place that nobody has taken.
                Some(_) if self.team.robots[id].may_join && self.robots[id].status.is_none() => {}
                Some((_, why)) if !was => {
                    let advice = "Is 'coorp up' running there, and is the robot in range?";
                    let why = why.map_or_else(|| format!(". {advice}"), |why| format!(": {why}"));
                    self.log(&me, now, Level::Error, "answers", &format!("{me} does not answer{why}"));
                }
                None if was => self.log(&me, now, Level::Over, "answers", &format!("{me} answers again")),
                _ => {}
            }
        }
        let mut here = self.robots.iter().filter(|robot| !robot.absent).peekable();
        if here.peek().is_none() {
            return;
        }
        let leads = |robot: &Known| robot.status.as_ref().is_some_and(|status| status.leads);
        let led = here.any(leads);
        let team = self.team.name.clone();
        match (std::mem::replace(&mut self.led, led), led) {
            (true, false) => self.log(
                &team,
                now,
                Level::Warning,
                "leads",
                "nobody leads, so nobody gets a permit",
            ),
            (false, true) => self.log(&team, now, Level::Over, "leads", "somebody leads again"),
            _ => {}
        }
    }

    /// Adds what an operator should look at, or that it is over.
    fn log(&mut self, name: &str, at: f64, level: Level, about: &str, message: &str) {
        const SECOND_NS: u64 = 1_000_000_000;
        let at_ns = self.unix_ns(at);
        let value = json!({
            "timestamp": {"sec": at_ns / SECOND_NS, "nsec": at_ns % SECOND_NS}, "level": level.number(), "message": message,
            "name": name, "file": "", "line": 0,
        });
        self.pending.push(Message {
            channel: Channel::Alarms,
            at_ns,
            text: value.to_string(),
            key: Some(format!("{name} {about}")),
            ends: matches!(level, Level::Over),
        });
    }

    /// Adds a robot's message. The key says what it is the state of, apart from the robot.
    fn tell(&mut self, channel: Channel, id: usize, at: f64, mut value: Value, key: Option<String>) {
        let me = self.name_of(id);
        let key = key.map(|key| format!("{me} {key}"));
        value["robot"] = me.into();
        self.pending.push(Message {
            channel,
            at_ns: self.unix_ns(at),
            text: value.to_string(),
            key,
            ends: false,
        });
    }

    fn unix_ns(&self, ms: f64) -> u64 {
        let since_ns = (ms * 1e6) as i64;
        self.began_ns.saturating_add_signed(since_ns)
    }

    fn name(&self, robot: u16) -> &str {
        self.name_of(robot.into())
    }

    fn name_of(&self, id: usize) -> &str {
        self.team.robots.get(id).map_or("?", |robot| robot.name.as_str())
    }

    /// The name of a path, as the robot tells it.
    fn path(&self, id: usize, path: u64) -> String {
        let status = self.robots.get(id).and_then(|robot| robot.status.as_ref());
        let place = usize::try_from(path).unwrap_or(usize::MAX);
        let name = status.and_then(|status| status.paths.get(place));
        name.cloned().unwrap_or_else(|| path.to_string())
    }
}

/// How much bulk moved between two statuses; `None` if the robot started between them, or has none.
fn rates(before: &Status, now: &Status) -> Option<Value> {
    let (old, new) = (before.bulk.as_ref()?, now.bulk.as_ref()?);
    let spent_ms = now.up_ms.checked_sub(before.up_ms).filter(|spent_ms| *spent_ms > 0)?;
    let mbps = |old: u64, new: u64| Some(rounded(new.checked_sub(old)? as f64 * 8.0 / spent_ms as f64 / 1e3));
    Some(json!({
        "sent_mbps": mbps(old.sent_bytes, new.sent_bytes)?,
        "received_mbps": mbps(old.received_bytes, new.received_bytes)?,
        "waiting": new.waiting, "in_flight": new.in_flight, "held": new.held,
    }))
}

#[cfg(test)]
mod tests {
    use coorp_core::alarms::Alarm;
    use coorp_core::clock::Offset;
    use coorp_core::robot::{ClockId, Look, Seen};
    use coorp_core::{Duration, Instant, RobotId};
    use coorp_node::status::Bulk as Moved;
    use coorp_node::watch::{Follower, Glance};

    use super::super::feed::Feed;
    use super::*;

    const TEAM: &str =
        "[[robot]]\nname = \"base\"\nleader = true\n[[robot]]\nname = \"scout\"\n[control]\nbound = \"33ms\"\n";
    const BEGAN_NS: u64 = 1_000_000_000_000_000_000;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(1_000_000_000_000 + ms * 1_000_000)
    }

    struct Both(Feed, Stream);

    impl Both {
        fn new() -> Both {
            let team = coorp_team::parse(TEAM, "fleet.toml", std::path::Path::new("")).unwrap();
            Both(Feed::new(&team, at(0), || true), Stream::new(&team, BEGAN_NS))
        }

        /// A robot answers at `now`, and tells what it saw some milliseconds ago.
        fn look(&self, robot: u16, now: u64, seen: &[(u32, Seen)], status: Option<Status>) {
            let glance = Glance {
                look: Look {
                    clock: ClockId(7),
                    now: at(now),
                    next: 1,
                    lost: 0,
                    events: seen.iter().map(|(ago_ms, seen)| (ago_ms * 1_000, *seen)).collect(),
                },
                offset: Offset {
                    ahead_ns: 0,
                    within: Duration::from_micros(1),
                },
                status: status.map(Box::new),
            };
            self.0.on_glance(RobotId(robot), Some(glance));
        }

        fn block(&mut self, now: u64) -> Arc<Block> {
            self.1.on_batch(&self.0.batch(1, at(now), &[]))
        }

        /// Topics, milliseconds and messages.
        fn told(&mut self, now: u64) -> Vec<(String, u64, Value)> {
            let block = self.block(now);
            let of = |message: &Arc<Message>| {
                let ms = (message.at_ns - BEGAN_NS) / 1_000_000;
                (
                    message.channel.topic(),
                    ms,
                    serde_json::from_str(&message.text).unwrap(),
                )
            };
            block.messages.iter().map(of).collect()
        }
    }

    #[test]
    fn messages_of_all_robots_come_in_order_once_all_had_time_to_answer() {
        let mut both = Both::new();
        let arrived = Seen::Arrived {
            from: RobotId(0),
            flow: 0,
            age_us: Some(4_000),
        };
        both.look(1, 100, &[(20, arrived), (10, Seen::Permitted(true))], None);
        assert_eq!(both.told(110), []);
        both.look(0, 190, &[(105, Seen::Loop { took_us: 40_000 })], None);
        assert_eq!(both.told(400), []);
        let expected = [
            (
                "/coorp/ages".to_owned(),
                80,
                json!({"robot": "scout", "from": "base", "age_ms": 4.0}),
            ),
            (
                "/coorp/loops".to_owned(),
                85,
                json!({"robot": "base", "reaction_ms": 40.0, "bound_ms": 33.0, "late": true}),
            ),
            (
                "/coorp/permits".to_owned(),
                90,
                json!({"robot": "scout", "event": "permitted", "from": "scout"}),
            ),
        ];
        assert_eq!(both.told(590), expected);
        assert_eq!(both.told(600), []);
        // Later than that, but not left out.
        both.look(0, 700, &[(500, Seen::Led(Some(RobotId(0))))], None);
        let led = json!({"robot": "base", "event": "leads", "leader": "base"});
        let told = both.told(710);
        assert_eq!(told[1], ("/coorp/leader".to_owned(), 200, led));
        assert_eq!((told.len(), &told[0].2["message"]), (2, &json!("base leads")));
    }

    #[test]
    fn who_begins_to_view_gets_what_is_so() {
        let mut both = Both::new();
        both.look(
            1,
            100,
            &[(10, Seen::Permitted(true)), (5, Seen::Loop { took_us: 9_000 })],
            None,
        );
        both.look(0, 100, &[(9, Seen::Permitted(false))], None);
        let first = both.block(1_000);
        assert!(first.before.is_empty() && first.messages.len() == 3);
        both.look(1, 1_050, &[(10, Seen::Permitted(false))], None);
        both.look(0, 1_050, &[], None);
        let second = both.block(2_000);
        // The state before the messages; what only happened is not there.
        let before: Vec<&str> = second.before.values().map(|message| message.text.as_str()).collect();
        assert_eq!(before.len(), 2);
        assert!(before[0].contains("\"not-permitted\"") && before[0].contains("base"));
        assert!(before[1].contains("\"permitted\"") && before[1].contains("scout"));
        assert_eq!(both.block(2_100).before.len(), 2);
        // Nobody viewed for a while.
        assert_eq!(both.block(9_000).before.len(), 0);
    }

    #[test]
    fn a_status_gives_rates_paths_and_alarms_that_begin_and_end() {
        let mut both = Both::new();
        let status = |up_ms: u64, sent_bytes: u64, alarms: Vec<Alarm>| Status {
            robot: "scout".to_owned(),
            up_ms,
            alarms,
            secure: true,
            leads: true,
            paths: vec!["wlan0".to_owned(), "wlan1".to_owned()],
            choices: vec![coorp_node::status::Path {
                path: 1,
                ..Default::default()
            }],
            bulk: Some(Moved {
                sent_bytes,
                ..Moved::default()
            }),
            ..Status::default()
        };
        both.look(1, 1_000, &[], Some(status(5_000, 1_000_000, vec![Alarm::DiskShort])));
        let told = both.told(2_000);
        let topics: Vec<&str> = told.iter().map(|(topic, ..)| topic.as_str()).collect();
        assert_eq!(topics, ["/coorp/status", "/coorp/paths", "/coorp/alarms"]);
        assert_eq!(
            (&told[0].2["robot"], &told[0].2["up_ms"]),
            (&json!("scout"), &json!(5_000))
        );
        assert_eq!(
            (&told[1].2["to"], &told[1].2["path"]),
            (&json!("base"), &json!("wlan1"))
        );
        assert_eq!((&told[2].2["level"], &told[2].2["name"]), (&json!(3), &json!("scout")));
        assert!(told[2].2["message"].as_str().unwrap().contains("Free space"));
        assert_eq!(told[2].2["timestamp"]["sec"], 1_000_000_001u64);
        // 2.5 MB in a second; the path is the same; the alarm is over.
        both.look(1, 2_000, &[], Some(status(6_000, 3_500_000, Vec::new())));
        let told = both.told(3_000);
        assert_eq!(told[1].0, "/coorp/bulk");
        assert_eq!(told[1].2["sent_mbps"], 20.0);
        assert_eq!((told.len(), &told[2].2["level"]), (3, &json!(2)));
        let before = both.block(3_100).before.clone();
        assert!(
            before.keys().all(|(channel, _)| *channel != Channel::Alarms),
            "nothing to look at"
        );
        // Another viewer had looked before, so that who leads and may send is in no event.
        let second = Status {
            leader: Some(0),
            permit: Permit::Holding,
            ..status(7_000, 3_500_000, Vec::new())
        };
        both.look(1, 2_500, &[], Some(second.clone()));
        let told = both.told(3_500);
        let said: Vec<&Value> = told.iter().map(|(_, _, value)| &value["event"]).collect();
        assert_eq!(said[2..], ["follows", "permitted"]);
        both.look(1, 2_600, &[], Some(second));
        assert_eq!(both.told(3_600).len(), 1);
        // It started again: no rate from before, and no leader yet.
        both.look(1, 3_000, &[], Some(status(100, 50, Vec::new())));
        let topics: Vec<String> = both.told(4_000).into_iter().map(|(topic, ..)| topic).collect();
        assert_eq!(topics, ["/coorp/status", "/coorp/leader"]);
    }

    #[test]
    fn robots_that_go_and_return_are_told_once() {
        let mut both = Both::new();
        let leads = Status {
            secure: true,
            leads: true,
            ..Status::default()
        };
        let mut told = Vec::new();
        for now in (0..12_000).step_by(100) {
            both.look(0, now, &[], (now % 1_000 == 0).then(|| leads.clone()));
            if now > 8_000 {
                both.look(1, now, &[], None);
            }
            let logs = both
                .told(now)
                .into_iter()
                .filter(|(topic, ..)| topic == "/coorp/alarms");
            told.extend(logs.map(|(_, _, log)| (log["level"].clone(), log["message"].as_str().unwrap().to_owned())));
        }
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].0 == 4 && told[0].1.starts_with("scout does not answer. Is 'coorp up'"));
        assert!(told[1].0 == 2 && told[1].1 == "scout answers again");
    }

    #[test]
    fn schemas_have_what_foxglove_reads() {
        for channel in Channel::all() {
            let schema = channel.schema();
            assert!(channel.topic().starts_with("/coorp/") && schema["title"] == json!(channel.schema_name()));
            assert_eq!(schema["type"], "object");
            for (name, property) in schema["properties"].as_object().unwrap() {
                let known = ["string", "number", "boolean", "integer", "object"].map(Value::from);
                let is_one = known.contains(&property["type"]) || property["oneOf"].is_array();
                assert!(is_one, "{name} of {}", channel.topic());
            }
        }
    }
}
