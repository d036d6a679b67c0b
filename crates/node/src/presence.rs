//! Tracks which robots are present, over which links, and what each announces. No I/O.
//!
//! A robot is present while it has a link over which its announcement has arrived. An announcement lists everything
//! that a robot subscribes to and gathers. The newest of a start counts, whichever path brought it. An announcement of
//! another start means that the earlier process has ended, and its links with it. A late announcement of an ended start
//! changes nothing, and its link is over. If these late announcements continue, two processes run as one robot.

use std::collections::{BTreeMap, BTreeSet};

use coorp_core::starts::{Start, Starts, Twins};
use coorp_core::{Instant, RobotId};

use crate::links::LinkId;
use crate::wire::Hello;

/// All robots that are present, apart from this one.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    present: BTreeMap<RobotId, Present>,
    /// The starts seen of each robot, also of robots that are gone: their last messages may still be on their way.
    starts: BTreeMap<RobotId, (Starts, Twins)>,
}

#[derive(Debug)]
struct Present {
    links: BTreeSet<LinkId>,
    incarnation: u32,
    number: u64,
    gathers: BTreeSet<(String, u32)>,
}

/// A topic that a robot gathers: its name, and the numbers of the robot's start and of this gathering.
pub(crate) type Gathers = (String, (u32, u32));

/// The changes due to an announcement.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// Whether the robot was not present before.
    pub appeared: bool,
    /// Whether the earlier process has ended.
    pub restarted: bool,
    /// Whether an earlier process still runs.
    pub has_twin: bool,
    /// Whether this link was unknown before.
    pub new_link: bool,
    /// Links of an earlier start, which are over.
    pub stale: Vec<LinkId>,
    /// The topics that the robot subscribes to, if the announcement is the newest.
    pub subscribes: Option<BTreeSet<String>>,
    /// Whether its agent unwraps, if the announcement is the newest.
    pub unwraps: Option<bool>,
    /// The topics that it no longer gathers.
    pub ungathers: Vec<Gathers>,
    /// The topics that it gathers from now on.
    pub gathers: Vec<Gathers>,
}

impl Presence {
    /// Returns the robots that are present.
    pub fn robots(&self) -> impl Iterator<Item = RobotId> + '_ {
        self.present.keys().copied()
    }

    /// Handles an announcement, and returns what it changes.
    pub fn on_hello(&mut self, from: RobotId, link: LinkId, hello: Hello, now: Instant) -> Change {
        let mut change = Change::default();
        let (starts, twins) = self.starts.entry(from).or_default();
        let start = starts.on_heard(hello.incarnation);
        change.has_twin = twins.on_heard(start, now);
        if start == Start::Over {
            change.stale.push(link);
            return change;
        }
        let known = self.present.entry(from).or_insert_with(|| {
            change.appeared = true;
            Present {
                links: BTreeSet::new(),
                incarnation: hello.incarnation,
                number: 0,
                gathers: BTreeSet::new(),
            }
        });
        if known.incarnation != hello.incarnation {
            change.restarted = true;
            known.links.remove(&link);
            change.stale = std::mem::take(&mut known.links).into_iter().collect();
            change.ungathers = known.end_gathering();
            (known.incarnation, known.number) = (hello.incarnation, 0);
        }
        change.new_link = known.links.insert(link);
        if hello.number < known.number {
            return change;
        }
        known.number = hello.number;
        change.subscribes = Some(hello.subscribes.into_iter().collect());
        change.unwraps = Some(hello.unwraps);
        let gathers: BTreeSet<_> = hello.gathers.into_iter().collect();
        let start = known.incarnation;
        let named = |(topic, number): &(String, u32)| (topic.clone(), (start, *number));
        change.ungathers.extend(known.gathers.difference(&gathers).map(named));
        change.gathers.extend(gathers.difference(&known.gathers).map(named));
        known.gathers = gathers;
        change
    }

    /// Handles the end of a link. If it was the robot's last one, the robot is gone: returns what it gathered.
    pub fn on_ended(&mut self, from: RobotId, link: LinkId) -> Option<Vec<Gathers>> {
        let known = self.present.get_mut(&from)?;
        if !known.links.remove(&link) || !known.links.is_empty() {
            return None;
        }
        let gathered = known.end_gathering();
        self.present.remove(&from);
        Some(gathered)
    }
}

impl Present {
    fn end_gathering(&mut self) -> Vec<Gathers> {
        let gathered = std::mem::take(&mut self.gathers).into_iter();
        gathered
            .map(|(topic, number)| (topic, (self.incarnation, number)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Instant = Instant::from_nanos(1);
    const ONE: RobotId = RobotId(1);
    const LINKS: [LinkId; 3] = [LinkId(1), LinkId(2), LinkId(3)];

    fn hello(incarnation: u32, number: u64, subscribes: &[&str], gathers: &[(&str, u32)]) -> Hello {
        Hello {
            incarnation,
            number,
            subscribes: subscribes.iter().map(|topic| (*topic).to_owned()).collect(),
            gathers: gathers.iter().map(|(topic, of)| ((*topic).to_owned(), *of)).collect(),
            unwraps: number % 2 == 1,
        }
    }

    fn topics(topics: &[&str]) -> Option<BTreeSet<String>> {
        Some(topics.iter().map(|topic| (*topic).to_owned()).collect())
    }

    #[test]
    fn a_robot_is_present_until_its_last_link_ends() {
        let mut presence = Presence::default();
        let first = presence.on_hello(ONE, LINKS[0], hello(7, 1, &[], &[("pose", 1)]), AT);
        assert!(first.appeared && first.new_link);
        let second = presence.on_hello(ONE, LINKS[1], hello(7, 1, &[], &[("pose", 1)]), AT);
        assert!(!second.appeared && second.new_link && second.gathers.is_empty());
        assert_eq!(presence.on_ended(ONE, LINKS[0]), None);
        assert_eq!(presence.on_ended(ONE, LINKS[0]), None, "known already");
        assert_eq!(presence.robots().collect::<Vec<_>>(), [ONE]);
        assert_eq!(
            presence.on_ended(ONE, LINKS[1]),
            Some(vec![("pose".to_owned(), (7, 1))])
        );
        assert_eq!(presence.robots().count(), 0);
    }

    #[test]
    fn the_newest_announcement_counts_whichever_path_it_takes() {
        let mut presence = Presence::default();
        presence.on_hello(ONE, LINKS[0], hello(7, 1, &["plan"], &[("pose", 1)]), AT);
        let newer = presence.on_hello(ONE, LINKS[1], hello(7, 3, &[], &[("pose", 2)]), AT);
        assert_eq!((newer.subscribes, newer.unwraps), (topics(&[]), Some(true)));
        // The topic is gathered again, so the earlier gathering ends first.
        assert_eq!(newer.ungathers, [("pose".to_owned(), (7, 1))]);
        assert_eq!(newer.gathers, [("pose".to_owned(), (7, 2))]);
        let late = presence.on_hello(ONE, LINKS[0], hello(7, 2, &["plan", "map"], &[]), AT);
        assert_eq!(late, Change::default());
    }

    #[test]
    fn another_start_ends_what_the_earlier_one_had() {
        let mut presence = Presence::default();
        presence.on_hello(ONE, LINKS[0], hello(7, 9, &["plan"], &[("pose", 1)]), AT);
        presence.on_hello(ONE, LINKS[1], hello(7, 9, &["plan"], &[("pose", 1)]), AT);
        let anew = presence.on_hello(ONE, LINKS[2], hello(8, 0, &["map"], &[]), AT);
        assert_eq!(anew.stale, LINKS[..2]);
        assert_eq!(anew.subscribes, topics(&["map"]));
        assert_eq!(anew.ungathers, [("pose".to_owned(), (7, 1))]);
        assert!(!anew.appeared && anew.restarted);
        assert_eq!(presence.on_ended(ONE, LINKS[0]), None);
        // Announcements of the earlier start may come late, over any link, even when the later start is gone.
        let late = Change {
            stale: vec![LINKS[1]],
            ..Change::default()
        };
        assert_eq!(presence.on_hello(ONE, LINKS[1], hello(7, 10, &["plan"], &[]), AT), late);
        assert!(presence.on_ended(ONE, LINKS[2]).is_some());
        assert_eq!(presence.on_hello(ONE, LINKS[1], hello(7, 10, &["plan"], &[]), AT), late);
        assert_eq!(presence.robots().count(), 0);
    }

    #[test]
    fn an_earlier_start_that_goes_on_is_a_twin_and_never_takes_the_robots_place() {
        let mut presence = Presence::default();
        let at = |s| AT + coorp_core::Duration::from_secs(s);
        presence.on_hello(ONE, LINKS[0], hello(7, 1, &[], &[]), at(0));
        presence.on_hello(ONE, LINKS[1], hello(8, 1, &[], &[]), at(1));
        for second in [2, 7, 12] {
            let twin = presence.on_hello(ONE, LINKS[2], hello(7, 1, &[], &[]), at(second));
            assert_eq!((twin.has_twin, &twin.stale[..]), (second > 6, &LINKS[2..]));
            assert!(!twin.restarted && !twin.appeared);
        }
        assert!(presence.on_ended(ONE, LINKS[1]).is_some(), "the later one was here");
    }
}
