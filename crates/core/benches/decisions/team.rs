//! Five robots in virtual time, in steady state, so that their inputs are a robot's usual inputs.
//!
//! Robot 0 leads. Every other robot sends a perception in each period and gets a command back, and always has bulk, so one of
//! them holds the permit. Windows are on at all times. Every message arrives a little later; none is lost.

use std::collections::BTreeMap;
use std::hint::black_box;

use coorp_core::paths::PathId;
use coorp_core::policy::Policy;
use coorp_core::robot::{Action, Answer, ControlLoop, Input, Message, Robot, RobotConfig};
use coorp_core::{Duration, FlowId, Instant, RobotId};

const ROBOTS: u16 = 5;
const LEADER: RobotId = RobotId(0);
const PERIOD: Duration = Duration::from_nanos(33_333_333);
const INFERENCE: Duration = Duration::from_millis(20);
/// Latency of a message.
const AIR: Duration = Duration::from_micros(500);
/// Maximum number of bulk packets in an aggregate, and the time per packet.
const AGGREGATE: u64 = 32;
const PACKET: Duration = Duration::from_micros(60);
/// Virtual time in which models, clocks and completion times are learnt.
const SETTLED: Duration = Duration::from_secs(20);

/// The kinds of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ask,
    BulkLeft,
    ControlMade,
    ControlArrived,
    Word,
    Time,
    Other,
}

impl Kind {
    fn of(input: &Input) -> Kind {
        match input {
            Input::MayPass { .. } => Kind::Ask,
            Input::Left { .. } => Kind::BulkLeft,
            Input::Control(_) => Kind::ControlMade,
            Input::Arrived { .. } => Kind::ControlArrived,
            Input::Message { .. } => Kind::Word,
            Input::Deadline => Kind::Time,
            _ => Kind::Other,
        }
    }
}

enum Event {
    Tell(RobotId, Input),
    /// A robot makes a perception.
    Perceive(RobotId),
    /// The leader makes its commands.
    Command,
    /// A robot's bulk asks the gate.
    Ask(RobotId),
    /// This number of packets, which entered together at that time, leave together.
    Leave(RobotId, u64, Instant),
}

pub struct Team {
    robots: Vec<Robot>,
    now: Instant,
    events: BTreeMap<(Instant, u64), Event>,
    events_made: u64,
    perceptions: u16,
    /// Number of bulk packets that have left each robot.
    left: Vec<u64>,
    random: u64,
    watched: Kind,
    times: u64,
    spent: std::time::Duration,
}

impl Team {
    pub fn new() -> Self {
        let mut policy = Policy::named("coorp").expect("a preset");
        if let Some(local) = &mut policy.local {
            // Windows stay on although no loop is late.
            local.protection_percentile_max = None;
        }
        let now = Instant::ZERO + Duration::from_secs(1);
        let robot = |me| {
            let mut config = RobotConfig::new(&policy, RobotId(me), ROBOTS, LEADER, 1);
            config.control = Some(ControlLoop {
                period: PERIOD,
                bound: Duration::from_millis(33),
            });
            Robot::new(config, now).expect("a valid configuration")
        };
        let mut team = Team {
            robots: (0..ROBOTS).map(robot).collect(),
            now,
            events: BTreeMap::new(),
            events_made: 0,
            perceptions: 0,
            left: vec![0; usize::from(ROBOTS)],
            random: 1,
            watched: Kind::Other,
            times: 0,
            spent: std::time::Duration::ZERO,
        };
        for robot in (1..ROBOTS).map(RobotId) {
            team.tell(LEADER, Input::AddFlow(None));
            team.tell(robot, Input::AddFlow(Some(PERIOD)));
            team.tell(robot, Input::WantBulk(true));
            team.after(PERIOD, Event::Perceive(robot));
            team.after(PERIOD, Event::Ask(robot));
        }
        while team.now < now + SETTLED {
            team.step();
        }
        assert!(
            team.robots.iter().any(|robot| robot.window().start > now),
            "windows are on"
        );
        assert!(team.left.iter().sum::<u64>() > 10_000, "bulk is sent");
        team
    }

    /// Returns how long robots take to process `times` inputs of a kind, with all actions that follow.
    pub fn measure(&mut self, kind: Kind, times: u64) -> std::time::Duration {
        (self.watched, self.times, self.spent) = (kind, 0, std::time::Duration::ZERO);
        while self.times < times {
            self.step();
        }
        self.spent.mul_f64(times as f64 / self.times as f64)
    }

    fn after(&mut self, span: Duration, event: Event) {
        self.events_made += 1;
        self.events.insert((self.now + span, self.events_made), event);
    }

    fn tell(&mut self, robot: RobotId, input: Input) -> Answer {
        self.tell_all(robot, std::iter::once(input))
    }

    /// Passes inputs of one kind to a robot, one after the other, and carries out the resulting actions. Returns the
    /// last answer.
    fn tell_all(&mut self, robot: RobotId, inputs: impl Iterator<Item = Input>) -> Answer {
        let it = &mut self.robots[usize::from(robot.0)];
        let mut inputs = inputs.peekable();
        let watched = inputs.peek().is_some_and(|input| Kind::of(input) == self.watched);
        let (mut answer, mut actions, mut times) = (Answer::Done, Vec::new(), 0);
        let started = std::time::Instant::now();
        for input in inputs {
            answer = black_box(it.handle(input, self.now));
            actions.extend(std::iter::from_fn(|| it.poll()));
            times += 1;
        }
        if watched {
            self.spent += started.elapsed();
            self.times += times;
        }
        if let Answer::Actions(due) = answer {
            actions.extend(due);
            answer = Answer::Done;
        }
        for action in actions {
            match action {
                Action::Send(to, _, message) => self.send(robot, to, message),
                Action::Broadcast(message) => {
                    for to in (0..ROBOTS).map(RobotId).filter(|to| *to != robot) {
                        self.send(robot, to, message.clone());
                    }
                }
                _ => {}
            }
        }
        answer
    }

    fn send(&mut self, from: RobotId, to: RobotId, message: Message) {
        let path = None;
        self.after(AIR, Event::Tell(to, Input::Message { from, path, message }));
    }

    /// Advances to the next deadline of a robot, or to the next event, whichever is earlier.
    fn step(&mut self) {
        let deadlines = (0..).map(RobotId).zip(self.robots.iter().map(Robot::next_deadline));
        let (robot, deadline) = deadlines.min_by_key(|(_, at)| *at).expect("some robots");
        let Some(next) = self.events.first_entry().filter(|event| event.key().0 <= deadline) else {
            self.now = self.now.max(deadline);
            self.tell(robot, Input::Deadline);
            return;
        };
        self.now = next.key().0;
        match next.remove() {
            Event::Tell(robot, input) => {
                let perceived = robot == LEADER && matches!(input, Input::Arrived { .. });
                self.tell(robot, input);
                self.perceptions += u16::from(perceived);
                if self.perceptions == ROBOTS - 1 {
                    self.perceptions = 0;
                    self.after(INFERENCE, Event::Command);
                }
            }
            Event::Perceive(robot) => {
                self.make(robot, LEADER, FlowId(0));
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                let jitter = Duration::from_nanos(self.random % 300_000);
                let since = self.now.as_nanos() % PERIOD.as_nanos();
                self.after(
                    Duration::from_nanos(PERIOD.as_nanos() - since) + jitter,
                    Event::Perceive(robot),
                );
            }
            Event::Command => {
                for robot in 1..ROBOTS {
                    self.make(LEADER, RobotId(robot), FlowId(u32::from(robot) - 1));
                }
            }
            Event::Ask(robot) => self.ask(robot),
            Event::Leave(robot, packets, entered_at) => {
                let before = self.left[usize::from(robot.0)];
                let left_at = self.now;
                let leaves = (1..=packets).map(|n| Input::Left {
                    path: 0,
                    left: (before, before + n),
                    entered_at,
                    left_at,
                });
                self.tell_all(robot, leaves);
                self.left[usize::from(robot.0)] += packets;
                self.after(PACKET, Event::Ask(robot));
            }
        }
    }

    /// Sends a control message from robot to robot, with the coordination messages that wait for one.
    fn make(&mut self, from: RobotId, to: RobotId, flow: FlowId) {
        let stamp = self.tell(from, Input::Control(flow)).stamp();
        let riders = self.tell(from, Input::Riders(to)).riders();
        self.after(AIR, Event::Tell(from, Input::ControlLeft(flow)));
        self.after(AIR, Event::Tell(to, Input::Arrived { from, stamp }));
        for message in riders {
            let path = Some(PathId(0));
            self.after(AIR, Event::Tell(to, Input::Message { from, path, message }));
        }
    }

    /// Asks the gate about one bulk packet after the other, and sends those that may pass.
    fn ask(&mut self, robot: RobotId) {
        let it = &self.robots[usize::from(robot.0)];
        if !it.is_permitted(self.now) {
            return self.after(Duration::from_millis(10), Event::Ask(robot));
        }
        let room = it.room(0, 0, AGGREGATE as usize, self.now) as u64;
        let asks = (0..room).map(|n| Input::MayPass { path: 0, n: n as usize });
        if self.tell_all(robot, asks) == Answer::Yes {
            let entered_at = self.now;
            self.after(PACKET * room, Event::Leave(robot, room, entered_at));
        } else {
            self.after(Duration::from_millis(1), Event::Ask(robot));
        }
    }
}
