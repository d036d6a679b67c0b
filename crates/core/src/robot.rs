//! One robot: assembles the other modules of this crate into everything that a robot decides.
//!
//! [`Robot`] is driven as the crate's documentation says: by real sockets in `coorp-node`, in virtual time in
//! `coorp-sim`. Its times are on the robot's own clock. Times in messages to others are on the leader's clock, once
//! that is known. This file has the state, the actions and the interface for drivers. The decisions are under `robot/`:
//!
//! | module | decides |
//! | --- | --- |
//! | `global` | whether this robot may send bulk at all: permits and their leader |
//! | `local` | whether a bulk packet may go over a path now: windows and gates |
//! | `ends` | when a loop's commands are at risk |
//! | `control` | what follows from each control message, made or arrived |
//! | `models` | which arrival models robots send each other |
//! | `lead` | on the leader: how careful bulk has to be, and sensors' phases |
//! | `clocks` | the offsets of the leaders' clocks |
//! | `riders` | which coordination messages wait for control |
//! | `repeats` | which repetitions wait for another message, beside unchanged programs |
//! | `turns` | which receiver bulk goes to |
//! | `peers` | which paths carry control and bulk |
//! | `reports` | which states go to the robots that gather them |
//!
//! Left out: resending control that the air lost, because a stock kernel does not report the loss.

mod clocks;
mod config;
mod control;
mod ends;
mod flow;
mod global;
mod input;
mod journal;
mod judge;
mod lead;
mod local;
mod message;
mod models;
mod peers;
mod repeats;
mod reports;
mod riders;
mod scope;
mod turns;

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

pub use config::{ControlLoop, RobotConfig, Windows, LOOK_HELD, LOOK_OPEN, ROBOTS_MAX};
pub use flow::{FlowKey, FLOWS_MAX};
pub use global::PermitState;
pub use input::{Answer, Input};
pub use journal::{Event, GateChange, Journal, Led, Taken};
pub use judge::Judged;
pub use local::Hold;
pub use message::{Arrived, ClockId, Message, Stamp, ARRIVED_MAX};
pub use peers::{Carries, PathState, PathStatus};
pub use reports::{Report, ReportAction, Reporters, Session, StateCopy};
pub use riders::RIDERS_MAX;
use scope::Scope;
pub use scope::{Cursor, Look, Seen, LOOK_MAX, WATCHED};

use crate::failover::Coordinator;
use crate::gate::Caution;
use crate::paths::{PathAction, PathCopy, PathId};
use crate::{Duration, FlowId, Instant, RobotId};
use clocks::Clocks;
use control::Notices;
use flow::OwnFlow;
use judge::Judge;
use lead::Lead;
use local::Local;
use models::Told;
use peers::Peers;
use repeats::Repeats;
use riders::Riders;
use turns::Turns;

/// The route of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Route {
    /// Over every path: coordination.
    Any,
    /// Over this path.
    Path(PathId),
}

/// An action for the driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Action {
    /// Send to one robot.
    Send(RobotId, Route, Message),
    /// Send to all other robots, over every path.
    Broadcast(Message),
    /// Whether bulk may be sent from now on.
    Permitted(bool),
    /// From now on, send bulk over this path to this receiver only.
    Turn {
        /// The path's index.
        path: usize,
        /// The receiver.
        to: RobotId,
    },
    /// The gate has opened: ask [`Robot::may_pass`] again.
    Resume,
    /// This robot leads from now on.
    Led(RobotId),
    /// A path to a robot is alive again, or dead.
    PathAlive(RobotId, PathId, bool),
    /// From now on, make the messages of one of this robot's flows later by this much.
    Shift(FlowId, Duration),
    /// An action about the states that this robot reports.
    Report(ReportAction),
    /// A grant arrived that this robot had not requested or no longer wanted. To be counted.
    StaleGrant(RobotId),
}

/// One robot. See the module's documentation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Robot {
    me: RobotId,
    /// The number of robots in the team.
    robots: u16,
    /// The leader of the team file.
    leader: RobotId,
    clock: ClockId,
    /// The coordinator; `None` if the policy has no permits. Then the team file's leader is the only one.
    coordinator: Option<Coordinator>,
    /// The coordinator's deadline, which changes only with its inputs.
    coordinator_due: Instant,
    local: Local,
    /// The decisions as the leader; set if the team has a control loop and the policy shares windows.
    lead: Option<Lead>,
    /// The caution that the team's loops ask for. `local` may have more.
    caution: Caution,
    /// When the leader last sent the level of caution; at first, when this robot started.
    caution_told_at: Instant,
    /// When this robot made the message that began its newest loop, until the leader's command arrives; and below, how
    /// long the previous loop took.
    loop_began: Option<Instant>,
    last_loop: Option<Duration>,
    /// When the previous loop ended.
    loop_ended: Option<Instant>,
    /// The number of control messages that this robot made as the leader and that have not left yet.
    commands_waiting: u32,
    notices: Notices,
    /// The messages with a bound that have not been reported to the leader.
    judge: Judge,
    peers: Peers,
    riders: Riders,
    repeats: Repeats,
    /// The reporters of this robot's states to the robots that gather them.
    pub reporters: Reporters,
    /// The decisions made, for a recording and for whoever watches.
    #[serde(skip)]
    pub journal: Journal,
    wants_bulk: bool,
    /// When a leader was last known; at first, when this robot started.
    led_at: Instant,
    /// Whether this robot protects other programs.
    protects: bool,
    turns: Turns,
    /// This robot's control flows, by number.
    flows: Vec<OwnFlow>,
    told: Told,
    clocks: Clocks,
    actions: VecDeque<Action>,
}

impl Robot {
    /// # Errors
    /// If values of the configuration are inconsistent; the text says which.
    pub fn new(config: RobotConfig, now: Instant) -> Result<Self, String> {
        if config.robots > ROBOTS_MAX {
            return Err(format!("a team has at most {ROBOTS_MAX} robots"));
        }
        let (me, incarnation) = (config.me, config.incarnation);
        let local = Local::new(&config, now);
        let control = config.control.filter(|_| local.shares());
        let moves = local
            .policy()
            .is_some_and(|policy| policy.protection_percentile_max.is_some());
        let lead = local
            .shares()
            .then(|| Lead::new(control, moves.then(|| local.caution()), now));
        let caution = local.caution();
        let voters = config.permits.as_ref().map(|(failover, _)| failover.voters.as_slice());
        let riders = Riders::new(&config.paths_to, voters.unwrap_or_default());
        let permits = config.permits.as_ref().map(|(_, permits)| permits.clone());
        let repeats = Repeats::new(&permits.unwrap_or_default());
        let coordinator = config
            .permits
            .map(|(failover, permits)| Coordinator::new(failover, permits, me, incarnation, now));
        let coordinator = coordinator.transpose().map_err(|error| error.to_string())?;
        let due = coordinator.as_ref().and_then(Coordinator::next_deadline);
        Ok(Robot {
            me,
            robots: config.robots,
            leader: config.leader,
            clock: ClockId::of(me, incarnation),
            coordinator,
            coordinator_due: due.unwrap_or(Instant::FAR_FUTURE),
            local,
            lead,
            caution,
            caution_told_at: now,
            loop_began: None,
            last_loop: None,
            loop_ended: None,
            commands_waiting: 0,
            judge: Judge::new(),
            notices: Notices::new(now),
            peers: Peers::new(me, &config.paths_to, &config.path, incarnation, now)?,
            riders,
            repeats,
            reporters: Reporters::new(incarnation),
            journal: Journal::default(),
            wants_bulk: false,
            led_at: now,
            protects: false,
            turns: Turns::new(if config.turns { config.paths } else { 0 }),
            flows: vec![OwnFlow::default(); FLOWS_MAX],
            told: Told::new(now),
            clocks: Clocks::new(if config.team_time { now } else { Instant::FAR_FUTURE }),
            actions: VecDeque::new(),
        })
    }

    /// Handles a message that the transport proves to be `from` that robot. `path` is the path that it arrived over, if
    /// the transport knows it. A message that arrived with control has the control's path.
    pub fn on_message(&mut self, from: RobotId, path: Option<PathId>, message: Message, now: Instant) {
        match message {
            Message::Coordination(message) => {
                self.riders.on_word(from, &message, path.is_some());
                self.repeats.on_word(&message);
                self.on_coordination(from, message, now);
            }
            Message::TimeQuery { sent_at } => {
                let reply = self.time_reply(sent_at, now);
                let route = path.map_or(Route::Any, Route::Path);
                self.actions.push_back(Action::Send(from, route, reply));
            }
            Message::TimeReply {
                clock,
                echo,
                received_at,
                sent_at,
            } => self.on_time_reply(from, clock, [echo, received_at, sent_at, now]),
            Message::Models { clock, models } => {
                // If that clock is not known yet, it soon will be, and models are sent again to newcomers.
                let Some(offset) = self.clock(clock, now) else { return };
                self.on_models(from, &models, offset, now);
            }
            Message::Arrived {
                clock,
                messages,
                caution,
            } => {
                let Some(offset) = self.clock(clock, now) else { return };
                if self.leader(now) == Some(from) {
                    self.on_notice(&messages, caution, offset, now);
                }
            }
            Message::Shift { flow, later } if self.leader(now) == Some(from) => self.on_shift(flow, later),
            Message::Judged(judged) if self.leader(now) == Some(self.me) => self.on_judged_elsewhere(judged, now),
            // Only the leader may send a shift, and only the leader handles counts.
            Message::Shift { .. } | Message::Judged(_) => {}
            Message::Probe(probe) if path.is_none_or(|path| path == probe.path) => {
                let echo = self.peers.on_probe(from, probe);
                let echo = echo.map(|echo| Action::Send(from, Route::Path(probe.path), Message::Echo(echo)));
                self.actions.extend(echo);
            }
            Message::Echo(echo) if path.is_none_or(|path| path == echo.probe.path) => {
                self.peers.on_echo(from, echo, now)
            }
            // An answer over a different path from its probe's says nothing about either path.
            Message::Probe(_) | Message::Echo(_) => {}
        }
        self.gather();
    }

    /// Returns the messages that go with a control message to a robot. Call it after [`Robot::on_control`]. The
    /// receiver handles them as separate messages.
    pub fn riders(&mut self, to: RobotId, now: Instant) -> Vec<Message> {
        self.riders.take(to, now)
    }

    // --- paths ------------------------------------------------------------------------------------------------

    /// Returns the copies of a control message to a robot; none if there is no choice of paths to it.
    pub fn assign(&mut self, to: RobotId, now: Instant) -> Vec<PathCopy> {
        let copies = self.peers.assign(to, now);
        self.gather();
        copies
    }

    /// Records that a numbered copy of a control message arrived, whether or not it was the first.
    pub fn on_copy(&mut self, from: RobotId, path: PathId, incarnation: u32, number: u32) {
        self.peers.on_copy(from, path, incarnation, number);
    }

    /// Returns the paths for bulk to a robot, the best one first: all live ones; if none is live, all of them, as any
    /// may come back. Ask repeatedly while bulk is sent, which keeps the paths probed. One permit allows bulk over all
    /// of them: the limit is the number of robots that send, on each channel (decision 36).
    pub fn bulk_paths(&mut self, to: RobotId, now: Instant) -> Vec<usize> {
        let paths = self.peers.bulk_paths(to, now);
        self.gather();
        paths
    }

    /// Returns whether a path to a robot is answered. A robot's only path always counts as answered.
    pub fn is_alive(&self, to: RobotId, path: PathId) -> bool {
        self.peers.is_alive(to, path)
    }

    /// Returns the paths to robots that are reachable over several.
    pub fn paths(&self, now: Instant) -> Vec<PathStatus> {
        self.peers.status(now)
    }

    /// Records that this robot made a state. Returns the copies for the robots that gather it.
    pub fn state_copies(&mut self, topic: &str, now: Instant) -> Vec<StateCopy> {
        let mut states = Vec::new();
        for (report, topic, header) in self.reporters.on_state(topic, now) {
            let chosen = self.assign(report.1, now);
            let copies = chosen.iter().copied().map(Some);
            let alone = chosen.is_empty().then_some(None);
            states.extend(copies.chain(alone).map(|copy| StateCopy {
                report: report.clone(),
                topic,
                header,
                copy,
            }));
        }
        states
    }

    // --- being recorded ---------------------------------------------------------------------------------------

    /// Starts to note decisions. Returns `false` if they are already being noted.
    pub fn begin_journal(&mut self) -> bool {
        let begins = !self.journal.records();
        if begins {
            self.journal.set(true);
        }
        begins
    }

    /// Stops noting decisions.
    pub fn end_journal(&mut self) {
        self.journal.set(false);
    }

    /// What this robot did and noticed since a look ([`Look::cursor`]); at first, its current state. Whoever watches calls this
    /// at least every [`WATCHED`]. No decision depends on it.
    pub fn look(&mut self, since: Option<Cursor>, now: Instant) -> Look {
        self.journal.at(now);
        if self.journal.scope.watch(now) {
            self.note_state(now);
        }
        self.journal.scope.look(self.clock, since, now)
    }

    /// Notes for who begins to watch what was decided before.
    fn note_state(&mut self, now: Instant) {
        let permitted = self
            .coordinator
            .is_some()
            .then(|| Seen::Permitted(self.is_permitted(now)));
        let window = Event::Window(Some(self.window()).filter(|window| window.end > now));
        let state = [Some(Seen::Led(self.leader(now))), permitted];
        for seen in state.into_iter().flatten() {
            self.journal.scope.note(now, seen);
        }
        self.journal.scope.decided(now, &window);
    }

    /// The decisions made since the last call.
    pub fn take_journal(&mut self) -> Taken {
        self.journal.take()
    }

    // --- being driven -----------------------------------------------------------------------------------------

    /// Handles the deadline of [`Robot::next_deadline`]. Harmless at any other time.
    pub fn on_deadline(&mut self, now: Instant) {
        self.journal.at(now);
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.on_deadline(now);
        }
        if self.leader(now).is_some() {
            self.led_at = now;
        }
        self.local.on_deadline(now, &mut self.journal);
        self.peers.on_deadline(now);
        let overdue = self.riders.on_deadline(now);
        let overdue = overdue.into_iter().map(|(to, word)| Action::Send(to, Route::Any, word));
        self.actions.extend(overdue);
        if let Some((to, word)) = self.repeats.on_deadline(now) {
            self.repeat(to, word);
        }
        self.reporters.on_deadline(now);
        if now >= self.told.next_deadline() {
            self.tell_models(now);
        }
        if now >= self.notices.next_deadline() {
            self.tell_arrived(now);
        }
        self.tell_judged(now);
        self.take_turns(now);
        if self.clocks.on_deadline(now) {
            if let Some(leader) = self.leader(now).filter(|leader| *leader != self.me) {
                // The query goes as control does: the longer it waits, the less it says about the clock, and the wider
                // shared windows become.
                let route = Route::Path(self.peers.best(leader, now));
                let query = Message::TimeQuery { sent_at: now };
                self.actions.push_back(Action::Send(leader, route, query));
            }
        }
        self.gather_words(now);
    }

    /// Returns when to call [`Robot::on_deadline`] next.
    pub fn next_deadline(&self) -> Instant {
        // A recording or a watcher needs each window; otherwise the gate only needs to know until when it holds bulk.
        let deadlines = [
            self.local.window_deadline().filter(|_| self.journal.is_on()),
            self.local.gates_deadline(),
            self.reporters.next_deadline(),
        ];
        let own = self
            .coordinator_due
            .min(self.clocks.next_deadline())
            .min(self.told.next_deadline())
            .min(self.notices.next_deadline())
            .min(self.judge.next_deadline())
            .min(self.peers.next_deadline())
            .min(self.riders.next_deadline())
            .min(self.repeats.next_deadline())
            .min(self.turns.next_deadline());
        deadlines.into_iter().flatten().fold(own, Instant::min)
    }

    /// Returns the next action, until `None`.
    pub fn poll(&mut self) -> Option<Action> {
        let report = || Some(Action::Report(self.reporters.poll()?));
        self.actions.pop_front().or_else(report)
    }

    /// Returns whether there is an action to take.
    #[inline]
    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty() || self.reporters.is_pressing()
    }

    /// Returns whether there is an action to take, or a deadline before `at`.
    pub fn is_pressing(&self, at: Instant) -> bool {
        self.has_actions() || self.next_deadline() < at
    }

    /// Collects the actions of all parts except the coordinator.
    fn gather(&mut self) {
        let opened = self.local.settle(&mut self.journal);
        while let Some((robot, action)) = self.peers.poll() {
            self.actions.push_back(match action {
                PathAction::Probe(probe) => Action::Send(robot, Route::Path(probe.path), Message::Probe(probe)),
                PathAction::Died(path) => Action::PathAlive(robot, path, false),
                PathAction::Revived(path) => Action::PathAlive(robot, path, true),
            });
        }
        if opened {
            self.actions.push_back(Action::Resume);
        }
    }
}

#[cfg(test)]
mod tests;
