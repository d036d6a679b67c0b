//! Tracks which robots subscribe to which topics, as they announce it. No I/O.
//!
//! A robot that vanishes may only be out of reach, and its control has to resume at once. So its subscriptions stay
//! valid for a while longer. When it is back, its announcement replaces them.

use std::collections::{BTreeMap, BTreeSet};

use coorp_core::{Duration, Instant, RobotId};

/// Time for which a vanished robot is still sent messages.
const LINGER: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Subscriptions(BTreeMap<RobotId, Subscribed>);

#[derive(Debug)]
struct Subscribed {
    topics: BTreeSet<String>,
    /// The time since which the robot is away.
    gone_at: Option<Instant>,
}

impl Subscriptions {
    /// Records the announcement of all topics that a present robot subscribes to.
    pub fn on_announced(&mut self, robot: RobotId, topics: BTreeSet<String>) {
        let gone_at = None;
        self.0.insert(robot, Subscribed { topics, gone_at });
    }

    /// Records that a robot has vanished.
    pub fn on_gone(&mut self, robot: RobotId, now: Instant) {
        if let Some(subscribed) = self.0.get_mut(&robot) {
            subscribed.gone_at = Some(now);
        }
    }

    /// Returns the robots that a topic's messages go to.
    pub fn subscribers(&self, topic: &str, now: Instant) -> Vec<RobotId> {
        let counts = |of: &Subscribed| of.topics.contains(topic) && of.gone_at.is_none_or(|gone| now < gone + LINGER);
        let subscribers = self.0.iter().filter(|(_, of)| counts(of));
        subscribers.map(|(robot, _)| *robot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: RobotId = RobotId(1);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn topics(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_newest_announcement_counts() {
        let mut subscriptions = Subscriptions::default();
        subscriptions.on_announced(ONE, topics(&["pose", "plan"]));
        subscriptions.on_announced(RobotId(2), topics(&["plan"]));
        assert_eq!(subscriptions.subscribers("plan", at(1)), [ONE, RobotId(2)]);
        subscriptions.on_announced(ONE, topics(&["pose"]));
        assert_eq!(subscriptions.subscribers("plan", at(1)), [RobotId(2)]);
        assert_eq!(subscriptions.subscribers("pose", at(1)), [ONE]);
        assert_eq!(subscriptions.subscribers("none", at(1)), []);
    }

    #[test]
    fn who_vanishes_is_sent_to_for_a_while_and_who_unsubscribed_before_is_not() {
        let mut subscriptions = Subscriptions::default();
        subscriptions.on_announced(ONE, topics(&["pose", "plan"]));
        subscriptions.on_announced(ONE, topics(&["pose"]));
        subscriptions.on_gone(ONE, at(10_000));
        assert_eq!(subscriptions.subscribers("pose", at(69_000)), [ONE]);
        assert_eq!(subscriptions.subscribers("plan", at(20_000)), []);
        assert_eq!(
            subscriptions.subscribers("pose", at(71_000)),
            [],
            "it does not come back"
        );
        subscriptions.on_announced(ONE, topics(&["plan"]));
        assert_eq!(subscriptions.subscribers("pose", at(20_000)), []);
        assert_eq!(subscriptions.subscribers("plan", at(90_000)), [ONE]);
    }
}
