//! Which robots subscribe to which topics, according to their tokens on the fabric.
//!
//! A robot that vanishes may only be out of reach. Its tokens end with the link to it, and return seconds after it
//! does; control, whose links need no such time, has to resume at once. So a robot that vanished while it subscribed to
//! a topic counts as a subscriber for a while longer; one that only ends a subscription does not. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use coorp_core::{Duration, Instant, RobotId};

/// The maximum number of known topics; subscriptions to more are ignored.
const TOPICS_MAX: usize = 4_096;
/// The maximum number of a robot's subscriptions to one topic, each counted once per path.
const TOKENS_MAX: usize = 256;
/// A robot's tokens all vanish within this time.
const TOGETHER: Duration = Duration::from_millis(500);
/// How long an announcement over a link counts.
const TOLD: Duration = Duration::from_secs(5);
/// How long a vanished robot is still sent to.
const LINGER: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    topics: BTreeMap<String, BTreeMap<RobotId, Subscription>>,
    /// The robots that are away, since when.
    gone: BTreeMap<RobotId, Instant>,
}

#[derive(Debug)]
struct Subscription {
    tokens: BTreeSet<String>,
    /// When a token was last present.
    subscribed_at: Instant,
    /// When it was announced over a link.
    told_at: Option<Instant>,
}

impl Subscriptions {
    /// A token appears or vanishes: a robot subscribes to a topic, or no longer does.
    pub fn on_token(&mut self, robot: RobotId, topic: &str, token: &str, here: bool, now: Instant) {
        if !here {
            if let Some(subscription) = self.topics.get_mut(topic).and_then(|robots| robots.get_mut(&robot)) {
                if subscription.tokens.remove(token) {
                    subscription.subscribed_at = now;
                }
            }
            return;
        }
        if let Some(subscription) = self.subscription(robot, topic, now) {
            if subscription.tokens.len() < TOKENS_MAX {
                subscription.tokens.insert(token.to_owned());
            }
        }
    }

    /// A robot announces over a new link that it subscribes to a topic.
    pub fn on_told(&mut self, robot: RobotId, topic: &str, now: Instant) {
        if let Some(subscription) = self.subscription(robot, topic, now) {
            subscription.told_at = Some(now);
        }
    }

    fn subscription(&mut self, robot: RobotId, topic: &str, now: Instant) -> Option<&mut Subscription> {
        if !self.topics.contains_key(topic) && self.topics.len() >= TOPICS_MAX {
            self.forget(now);
            if self.topics.len() >= TOPICS_MAX {
                return None;
            }
        }
        let robots = self.topics.entry(topic.to_owned()).or_default();
        Some(robots.entry(robot).or_insert_with(|| Subscription {
            tokens: BTreeSet::new(),
            subscribed_at: now,
            told_at: None,
        }))
    }

    /// A robot has vanished.
    pub fn on_gone(&mut self, robot: RobotId, now: Instant) {
        self.gone.insert(robot, now);
    }

    /// A robot is present. Its earlier subscriptions count until its tokens can have arrived. Returns since when it was
    /// away.
    pub fn on_here(&mut self, robot: RobotId, now: Instant) -> Option<Instant> {
        let gone_at = self.gone.remove(&robot);
        let of_robot = self.topics.values_mut().filter_map(|robots| robots.get_mut(&robot));
        for subscription in of_robot.filter(|subscription| subscription.counts(gone_at, now)) {
            subscription.told_at = Some(now);
        }
        gone_at
    }

    /// The robots that a topic's messages go to.
    pub fn subscribers(&self, topic: &str, now: Instant) -> Vec<RobotId> {
        let robots = self.topics.get(topic).into_iter().flatten();
        let subscribers =
            robots.filter(|(robot, subscription)| subscription.counts(self.gone.get(robot).copied(), now));
        subscribers.map(|(robot, _)| *robot).collect()
    }

    fn forget(&mut self, now: Instant) {
        self.topics.retain(|_, robots| {
            robots.retain(|robot, subscription| subscription.counts(self.gone.get(robot).copied(), now));
            !robots.is_empty()
        });
    }
}

impl Subscription {
    /// Returns whether it counts, for a robot that is away since `gone_at`.
    fn counts(&self, gone_at: Option<Instant>, now: Instant) -> bool {
        let vanished = |gone_at| self.subscribed_at + TOGETHER >= gone_at && now < gone_at + LINGER;
        let told = self.told_at.is_some_and(|told_at| now < told_at + TOLD);
        told || !self.tokens.is_empty() || gone_at.is_some_and(vanished)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: RobotId = RobotId(1);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_subscription_ends_with_its_last_token() {
        let mut subscriptions = Subscriptions::default();
        subscriptions.on_token(ONE, "pose", "s.1", true, at(0));
        subscriptions.on_token(ONE, "pose", "s.2", true, at(0));
        subscriptions.on_token(RobotId(2), "plan", "t.1", true, at(0));
        assert_eq!(subscriptions.subscribers("pose", at(1)), [ONE]);
        subscriptions.on_token(ONE, "pose", "s.1", false, at(2));
        assert_eq!(subscriptions.subscribers("pose", at(2)), [ONE]);
        subscriptions.on_token(ONE, "pose", "s.2", false, at(3));
        assert_eq!(subscriptions.subscribers("pose", at(3)), []);
        assert_eq!(subscriptions.subscribers("none", at(3)), []);
    }

    #[test]
    fn who_vanishes_is_sent_to_for_a_while_and_who_unsubscribed_before_is_not() {
        // The tokens and the robot itself vanish in any order.
        for token_first in [true, false] {
            let mut subscriptions = Subscriptions::default();
            subscriptions.on_token(ONE, "pose", "s.1", true, at(0));
            subscriptions.on_token(ONE, "plan", "s.2", true, at(0));
            subscriptions.on_token(ONE, "plan", "s.2", false, at(1_000));
            if token_first {
                subscriptions.on_token(ONE, "pose", "s.1", false, at(9_990));
            }
            subscriptions.on_gone(ONE, at(10_000));
            if !token_first {
                subscriptions.on_token(ONE, "pose", "s.1", false, at(10_010));
            }
            assert_eq!(subscriptions.subscribers("pose", at(20_000)), [ONE]);
            assert_eq!(subscriptions.subscribers("plan", at(20_000)), []);
            assert_eq!(
                subscriptions.subscribers("pose", at(71_000)),
                [],
                "it does not come back"
            );
        }
    }

    #[test]
    fn who_comes_back_subscribes_to_what_it_says() {
        let mut subscriptions = Subscriptions::default();
        subscriptions.on_token(ONE, "pose", "s.1", true, at(0));
        subscriptions.on_gone(ONE, at(10));
        subscriptions.on_token(ONE, "pose", "s.1", false, at(11));
        assert_eq!(subscriptions.on_here(ONE, at(12)), Some(at(10)));
        assert_eq!(subscriptions.subscribers("pose", at(13)), [ONE]);
        assert_eq!(
            subscriptions.subscribers("pose", at(6_000)),
            [],
            "it does not say so again"
        );
        subscriptions.on_token(ONE, "plan", "u.1", true, at(6_001));
        assert_eq!(subscriptions.subscribers("plan", at(90_000)), [ONE]);
    }

    #[test]
    fn what_is_told_over_a_link_counts_until_tokens_can_have_come() {
        let mut subscriptions = Subscriptions::default();
        subscriptions.on_told(ONE, "pose", at(0));
        assert_eq!(subscriptions.subscribers("pose", at(4_000)), [ONE]);
        assert_eq!(subscriptions.subscribers("pose", at(5_000)), []);
        subscriptions.on_told(ONE, "pose", at(6_000));
        subscriptions.on_token(ONE, "pose", "s.1", true, at(7_000));
        assert_eq!(subscriptions.subscribers("pose", at(90_000)), [ONE]);
    }

    #[test]
    fn topics_are_bounded_and_those_without_subscribers_make_room() {
        let mut subscriptions = Subscriptions::default();
        for topic in 0..TOPICS_MAX + 2 {
            subscriptions.on_token(ONE, &format!("t{topic}"), "s", true, at(0));
        }
        assert_eq!(subscriptions.topics.len(), TOPICS_MAX);
        subscriptions.on_token(ONE, "t0", "s", false, at(1));
        subscriptions.on_token(ONE, "new", "s", true, at(2));
        assert_eq!(subscriptions.subscribers("new", at(2)), [ONE]);
    }
}
