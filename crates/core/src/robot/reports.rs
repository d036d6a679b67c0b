//! Decides which robots this one reports its published states to: one [`Reporter`] for each topic and robot that
//! gathers it (Dust, section IV-A).
//!
//! The transport says which robots gather which topic. A reporter pauses while the topic is not published, and is removed
//! once the topic is not gathered. The next reporter to that robot continues the numbers of earlier ones. A tracker
//! that has not noticed the pause would drop smaller numbers as late.

use serde::{Deserialize, Serialize};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::paths::{PathCopy, Sequence};
use crate::tracker::{Message, Reporter, ReporterAction, StateHeader, TopicId, TrackerConfig};
use crate::{Instant, RobotId};

/// The maximum number of topics that one robot gathers from this one. Further topics get no reports.
pub const REPORTS_MAX: usize = 1_024;
/// The maximum number of gathering sessions of one robot: one for each path, and twice as many while links are being
/// given up.
const SESSIONS_MAX: usize = 16;

/// A topic, and the robot that gathers it.
pub type Report = (String, RobotId);

/// A session of a robot that gathers: the robot's start, and the session's name.
pub type Session = (String, String);

/// A copy of a state for a robot that gathers it, over a path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateCopy {
    /// The topic and the receiver.
    pub report: Report,
    /// The receiver's id for the topic.
    pub topic: TopicId,
    /// The header.
    pub header: StateHeader,
    /// The path and number of this copy, if there is a choice of paths.
    pub copy: Option<PathCopy>,
}

/// An action for the driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ReportAction {
    /// Send this to the robot that gathers.
    Say(Report, Message),
    /// States go there from now on.
    Open(Report),
    /// States no longer go there.
    Close(Report),
}

/// The reports of this robot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reporters {
    incarnation: u32,
    /// The number of publishers of each topic.
    published: BTreeMap<String, usize>,
    reports: BTreeMap<Report, Reporting>,
    /// The state of each robot that has gathered.
    gatherers: BTreeMap<RobotId, Gatherer>,
    actions: VecDeque<ReportAction>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Gatherer {
    /// The number of reports to this robot.
    reports: usize,
    /// A number greater than those of all states that ended reports have sent to this robot.
    next: Sequence,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Reporting {
    reporter: Reporter,
    /// The sessions of the robot that gathers.
    sessions: BTreeSet<Session>,
    running: bool,
}

impl Reporters {
    /// Creates reporters that report nothing yet.
    pub fn new(incarnation: u32) -> Self {
        Reporters {
            incarnation,
            published: BTreeMap::new(),
            reports: BTreeMap::new(),
            gatherers: BTreeMap::new(),
            actions: VecDeque::new(),
        }
    }

    /// Adds a publisher of a topic.
    pub fn publish(&mut self, topic: &str, now: Instant) {
        *self.published.entry(topic.to_owned()).or_default() += 1;
        self.settle(topic, now);
    }

    /// Removes a publisher of a topic.
    pub fn unpublish(&mut self, topic: &str, now: Instant) {
        let left = self.published.get_mut(topic).map(|count| {
            *count -= 1;
            *count
        });
        if left == Some(0) {
            self.published.remove(topic);
        }
        self.settle(topic, now);
    }

    /// Records that a session of a robot starts to gather a topic, or stops.
    pub fn on_gatherer(&mut self, report: Report, session: Session, here: bool, now: Instant) {
        let entry = match self.reports.entry(report.clone()) {
            Entry::Vacant(_) if !here => return,
            Entry::Vacant(free) => {
                let gatherer = self.gatherers.entry(report.1).or_insert_with(|| Gatherer {
                    reports: 0,
                    next: Sequence::first(self.incarnation),
                });
                if gatherer.reports >= REPORTS_MAX {
                    return;
                }
                gatherer.reports += 1;
                free.insert(Reporting {
                    reporter: Reporter::new(TrackerConfig::default(), gatherer.next, now),
                    sessions: BTreeSet::new(),
                    running: false,
                })
            }
            Entry::Occupied(known) => known.into_mut(),
        };
        if !here {
            entry.sessions.remove(&session);
        } else if entry.sessions.len() < SESSIONS_MAX {
            // Another session of the same start is another path to the same tracker.
            let known = entry.sessions.iter().any(|(start, _)| *start == session.0);
            if !known && entry.running {
                entry.reporter.on_new_tracker(now);
            }
            entry.sessions.insert(session);
        }
        self.settle(&report.0, now);
        self.forget(&report);
    }

    /// Removes a report that no session gathers any more.
    fn forget(&mut self, report: &Report) {
        if self.reports.get(report).is_some_and(|entry| !entry.sessions.is_empty()) {
            return;
        }
        let (Some(ended), Some(gatherer)) = (self.reports.remove(report), self.gatherers.get_mut(&report.1)) else {
            return;
        };
        gatherer.reports -= 1;
        let next = ended.reporter.next_state();
        if next.number > gatherer.next.number {
            gatherer.next = next;
        }
    }

    /// Handles a message of the robot that gathers.
    pub fn on_message(&mut self, report: &Report, message: Message, now: Instant) {
        if let Some(entry) = self.reports.get_mut(report).filter(|entry| entry.running) {
            entry.reporter.on_message(message, now);
        }
        self.gather();
    }

    /// Records that a state was made. Returns its receivers, each with its topic id and header.
    pub fn on_state(&mut self, topic: &str, now: Instant) -> Vec<(Report, TopicId, StateHeader)> {
        if self.reports.is_empty() {
            return Vec::new();
        }
        let first = (topic.to_owned(), RobotId(0));
        let entries = self.reports.range_mut(first..);
        let entries = entries
            .take_while(|((of, _), _)| of == topic)
            .filter(|(_, entry)| entry.running);
        let states = entries.filter_map(|(report, entry)| {
            let (topic, header) = entry.reporter.on_state(now)?;
            Some((report.clone(), topic, header))
        });
        states.collect()
    }

    /// Handles the deadline of [`Reporters::next_deadline`].
    pub fn on_deadline(&mut self, now: Instant) {
        for entry in self.reports.values_mut().filter(|entry| entry.running) {
            entry.reporter.on_deadline(now);
        }
        self.gather();
    }

    /// Returns when to call [`Reporters::on_deadline`] next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let running = self.reports.values().filter(|entry| entry.running);
        running.filter_map(|entry| entry.reporter.next_deadline()).min()
    }

    /// Returns whether there is an action to take.
    #[inline]
    pub fn is_pressing(&self) -> bool {
        !self.actions.is_empty()
    }

    /// Returns the next action, until `None`.
    pub fn poll(&mut self) -> Option<ReportAction> {
        self.actions.pop_front()
    }

    /// Runs the reporters of a topic while it is published and gathered, and pauses them otherwise.
    fn settle(&mut self, topic: &str, now: Instant) {
        let published = self.published.contains_key(topic);
        for ((of, _), entry) in &mut self.reports {
            let run = published && !entry.sessions.is_empty();
            if of != topic || run == entry.running {
                continue;
            }
            // A reporter that has left sends nothing until it is asked to again.
            if run {
                entry.reporter.on_new_tracker(now);
            } else {
                entry.reporter.leave(now);
            }
            entry.running = run;
        }
        self.gather();
    }

    fn gather(&mut self) {
        for (report, entry) in &mut self.reports {
            while let Some(action) = entry.reporter.poll() {
                self.actions.push_back(match action {
                    ReporterAction::Send(message) => ReportAction::Say(report.clone(), message),
                    ReporterAction::Connected(_) => ReportAction::Open(report.clone()),
                    ReporterAction::Disconnected => ReportAction::Close(report.clone()),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracker::{Topics, Tracker, TrackerAction};

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// Exchanges all messages of both sides at once.
    fn talk(robot: &mut Reporters, tracker: &mut Tracker<u32>, now: Instant) -> Vec<ReportAction> {
        let mut others = Vec::new();
        robot.on_deadline(now);
        loop {
            let said: Vec<_> = std::iter::from_fn(|| robot.poll()).collect();
            if said.is_empty() {
                return others;
            }
            for action in said {
                match action {
                    ReportAction::Say((_, to), message) => {
                        assert_eq!(to, RobotId(4));
                        tracker.on_message(RobotId(1), message, now);
                    }
                    other => others.push(other),
                }
            }
            while let Some(action) = tracker.poll() {
                if let TrackerAction::Send { message, .. } = action {
                    robot.on_message(&report(), message, now);
                }
            }
        }
    }

    fn session(start: &str, name: &str) -> Session {
        (start.to_owned(), name.to_owned())
    }

    fn report() -> Report {
        ("pose".to_owned(), RobotId(4))
    }

    #[test]
    fn states_go_to_who_gathers_them_and_their_count_goes_on_over_every_pause() {
        let config = TrackerConfig {
            topics: Topics::ManyToOne,
            ..TrackerConfig::default()
        };
        let (mut robot, mut tracker) = (Reporters::new(7), Tracker::<u32>::new(config, at(0)));
        let (open, close) = (ReportAction::Open(report()), ReportAction::Close(report()));
        robot.publish("pose", at(1));
        assert_eq!(robot.on_state("pose", at(1)), [], "nobody gathers");
        robot.on_gatherer(report(), session("1", "a"), true, at(2));
        assert_eq!(talk(&mut robot, &mut tracker, at(2)), vec![open.clone()]);
        assert_eq!(robot.on_state("other", at(3)), []);
        let mut number = 0;
        let mut state = |robot: &mut Reporters, now| {
            let [(to, topic, header)] = &robot.on_state("pose", now)[..] else {
                panic!("one is to go")
            };
            assert_eq!((to, *topic, header.sequence.number), (&report(), TopicId(0), number));
            assert_eq!(header.created_at, Some(now), "both clocks show the same");
            number += 1;
        };
        state(&mut robot, at(3));
        // Its publisher ends and another starts; the tracker's process is replaced; its link is lost.
        robot.unpublish("pose", at(4));
        assert_eq!(talk(&mut robot, &mut tracker, at(4)), vec![close.clone()]);
        assert_eq!((robot.on_state("pose", at(4)), tracker.robots().count()), (vec![], 0));
        assert_eq!(robot.next_deadline(), None);
        robot.publish("pose", at(5));
        assert_eq!(talk(&mut robot, &mut tracker, at(5)), vec![open.clone()]);
        state(&mut robot, at(6));
        robot.on_gatherer(report(), session("1", "b"), true, at(6));
        assert_eq!(talk(&mut robot, &mut tracker, at(6)), [], "another path to the same");
        robot.on_gatherer(report(), session("2", "c"), true, at(7));
        assert_eq!(talk(&mut robot, &mut tracker, at(7)), [close.clone(), open.clone()]);
        robot.on_gatherer(report(), session("1", "a"), false, at(8));
        robot.on_gatherer(report(), session("1", "b"), false, at(8));
        state(&mut robot, at(8));
        robot.on_gatherer(report(), session("2", "c"), false, at(9));
        assert_eq!(talk(&mut robot, &mut tracker, at(9)), [close]);
        robot.on_gatherer(report(), session("2", "c"), true, at(10));
        assert_eq!(talk(&mut robot, &mut tracker, at(10)), [open]);
        state(&mut robot, at(11));
    }

    #[test]
    fn no_robot_takes_the_reports_of_another_and_none_that_left_keeps_any() {
        let mut robot = Reporters::new(7);
        let of = |topic: usize, to: u16| (topic.to_string(), RobotId(to));
        for topic in 0..2 * REPORTS_MAX {
            robot.on_gatherer(of(topic, 1), session("1", "a"), true, at(0));
        }
        assert_eq!(robot.reports.len(), REPORTS_MAX, "those of one robot");
        robot.on_gatherer(of(0, 2), session("1", "a"), true, at(1));
        assert!(robot.reports.contains_key(&of(0, 2)));
        for topic in 0..2 * REPORTS_MAX {
            robot.on_gatherer(of(topic, 1), session("1", "a"), false, at(2));
        }
        assert_eq!(robot.reports.keys().collect::<Vec<_>>(), [&of(0, 2)]);
        robot.on_gatherer(of(REPORTS_MAX, 1), session("1", "a"), true, at(3));
        assert_eq!(robot.reports.len(), 2, "there is room again");
    }
}
