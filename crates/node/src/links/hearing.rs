//! Which robots hear which topics, as their tokens on the fabric say.
//!
//! A robot that vanishes may only be out of reach. Its tokens end with the link to it, and come back seconds after it
//! does; control, whose links need no such time, is to go on at once. So who vanished while it heard a topic counts as
//! hearing it for a while longer; who only ends a subscription does not. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use coorp_core::{Duration, Instant, RobotId};

/// Topics that are known at most; nobody is heard to hear any more.
const TOPICS_MAX: usize = 4_096;
/// Subscriptions of a robot to one topic, each once a path.
const TOKENS_MAX: usize = 256;
/// A robot's tokens vanish within so long of each other.
const TOGETHER: Duration = Duration::from_millis(500);
/// What was told over a link counts for so long.
const TOLD: Duration = Duration::from_secs(5);
/// Who vanished is sent to for so long.
const LINGER: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Hearing {
    topics: BTreeMap<String, BTreeMap<RobotId, Hearer>>,
    /// Robots that are not there, since when.
    gone: BTreeMap<RobotId, Instant>,
}

#[derive(Debug)]
struct Hearer {
    tokens: BTreeSet<String>,
    /// When there was last a token.
    heard_at: Instant,
    /// When it was told over a link.
    told_at: Option<Instant>,
}

impl Hearing {
    /// A token says that a robot hears a topic, or no longer does.
    pub fn on_token(&mut self, robot: RobotId, topic: &str, token: &str, here: bool, now: Instant) {
        if !here {
            if let Some(hearer) = self.topics.get_mut(topic).and_then(|robots| robots.get_mut(&robot)) {
                if hearer.tokens.remove(token) {
                    hearer.heard_at = now;
                }
            }
            return;
        }
        if let Some(hearer) = self.hearer(robot, topic, now) {
            if hearer.tokens.len() < TOKENS_MAX {
                hearer.tokens.insert(token.to_owned());
            }
        }
    }

    /// A robot tells over a new link that it hears a topic.
    pub fn on_told(&mut self, robot: RobotId, topic: &str, now: Instant) {
        if let Some(hearer) = self.hearer(robot, topic, now) {
            hearer.told_at = Some(now);
        }
    }

    fn hearer(&mut self, robot: RobotId, topic: &str, now: Instant) -> Option<&mut Hearer> {
        if !self.topics.contains_key(topic) && self.topics.len() >= TOPICS_MAX {
            self.forget(now);
            if self.topics.len() >= TOPICS_MAX {
                return None;
            }
        }
        let robots = self.topics.entry(topic.to_owned()).or_default();
        Some(robots.entry(robot).or_insert_with(|| Hearer {
            tokens: BTreeSet::new(),
            heard_at: now,
            told_at: None,
        }))
    }

    /// A robot has vanished.
    pub fn on_gone(&mut self, robot: RobotId, now: Instant) {
        self.gone.insert(robot, now);
    }

    /// A robot is there. What it heard before counts until its tokens can have come. Answers since when it was away.
    pub fn on_here(&mut self, robot: RobotId, now: Instant) -> Option<Instant> {
        let mut topics = std::mem::take(&mut self.topics);
        for robots in topics.values_mut() {
            if let Some(hearer) = robots.get_mut(&robot) {
                let hears = self.hears(robot, hearer, now);
                hearer.told_at = if hears { Some(now) } else { hearer.told_at };
            }
        }
        self.topics = topics;
        self.gone.remove(&robot)
    }

    /// The robots that a topic's messages go to.
    pub fn hearers(&self, topic: &str, now: Instant) -> Vec<RobotId> {
        let robots = self.topics.get(topic).into_iter().flatten();
        let hearers = robots.filter(|(robot, hearer)| self.hears(**robot, hearer, now));
        hearers.map(|(robot, _)| *robot).collect()
    }

    fn hears(&self, robot: RobotId, hearer: &Hearer, now: Instant) -> bool {
        let vanished = |gone_at: &Instant| hearer.heard_at + TOGETHER >= *gone_at && now < *gone_at + LINGER;
        let told = hearer.told_at.is_some_and(|told_at| now < told_at + TOLD);
        told || !hearer.tokens.is_empty() || self.gone.get(&robot).is_some_and(vanished)
    }

    fn forget(&mut self, now: Instant) {
        let mut topics = std::mem::take(&mut self.topics);
        topics.retain(|_, robots| {
            robots.retain(|robot, hearer| self.hears(*robot, hearer, now));
            !robots.is_empty()
        });
        self.topics = topics;
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
    fn who_subscribes_hears_until_the_last_token_is_gone() {
        let mut hearing = Hearing::default();
        hearing.on_token(ONE, "pose", "s.1", true, at(0));
        hearing.on_token(ONE, "pose", "s.2", true, at(0));
        hearing.on_token(RobotId(2), "plan", "t.1", true, at(0));
        assert_eq!(hearing.hearers("pose", at(1)), [ONE]);
        hearing.on_token(ONE, "pose", "s.1", false, at(2));
        assert_eq!(hearing.hearers("pose", at(2)), [ONE]);
        hearing.on_token(ONE, "pose", "s.2", false, at(3));
        assert_eq!(hearing.hearers("pose", at(3)), []);
        assert_eq!(hearing.hearers("none", at(3)), []);
    }

    #[test]
    fn who_vanishes_is_sent_to_for_a_while_and_who_unsubscribed_before_is_not() {
        // Tokens and the robot itself vanish in any order.
        for token_first in [true, false] {
            let mut hearing = Hearing::default();
            hearing.on_token(ONE, "pose", "s.1", true, at(0));
            hearing.on_token(ONE, "plan", "s.2", true, at(0));
            hearing.on_token(ONE, "plan", "s.2", false, at(1_000));
            if token_first {
                hearing.on_token(ONE, "pose", "s.1", false, at(9_990));
            }
            hearing.on_gone(ONE, at(10_000));
            if !token_first {
                hearing.on_token(ONE, "pose", "s.1", false, at(10_010));
            }
            assert_eq!(hearing.hearers("pose", at(20_000)), [ONE]);
            assert_eq!(hearing.hearers("plan", at(20_000)), []);
            assert_eq!(hearing.hearers("pose", at(71_000)), [], "it does not come back");
        }
    }

    #[test]
    fn who_comes_back_hears_what_it_says_it_hears() {
        let mut hearing = Hearing::default();
        hearing.on_token(ONE, "pose", "s.1", true, at(0));
        hearing.on_gone(ONE, at(10));
        hearing.on_token(ONE, "pose", "s.1", false, at(11));
        assert_eq!(hearing.on_here(ONE, at(12)), Some(at(10)));
        assert_eq!(hearing.hearers("pose", at(13)), [ONE]);
        assert_eq!(hearing.hearers("pose", at(6_000)), [], "it does not say so again");
        hearing.on_token(ONE, "plan", "u.1", true, at(6_001));
        assert_eq!(hearing.hearers("plan", at(90_000)), [ONE]);
    }

    #[test]
    fn what_is_told_over_a_link_counts_until_tokens_can_have_come() {
        let mut hearing = Hearing::default();
        hearing.on_told(ONE, "pose", at(0));
        assert_eq!(hearing.hearers("pose", at(4_000)), [ONE]);
        assert_eq!(hearing.hearers("pose", at(5_000)), []);
        hearing.on_told(ONE, "pose", at(6_000));
        hearing.on_token(ONE, "pose", "s.1", true, at(7_000));
        assert_eq!(hearing.hearers("pose", at(90_000)), [ONE]);
    }

    #[test]
    fn topics_are_bounded_and_those_that_nobody_hears_make_room() {
        let mut hearing = Hearing::default();
        for topic in 0..TOPICS_MAX + 2 {
            hearing.on_token(ONE, &format!("t{topic}"), "s", true, at(0));
        }
        assert_eq!(hearing.topics.len(), TOPICS_MAX);
        hearing.on_token(ONE, "t0", "s", false, at(1));
        hearing.on_token(ONE, "new", "s", true, at(2));
        assert_eq!(hearing.hearers("new", at(2)), [ONE]);
    }
}
