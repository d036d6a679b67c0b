//! Decides which receiver bulk goes to: with several, one at a time (decision 15).
//!
//! A PPDU goes to one station. If packets for several receivers alternate, each PPDU has only the few for one of them.
//! An access point that sends to four robots at once moves a fifth less than to one. So on each path, one receiver has
//! the *turn* for [`TURN`], or until nothing more is sent to it. The others wait, as without a permit.
//!
//! Left out: unequal shares.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{Action, Robot};
use crate::{Duration, Instant, RobotId};

/// Duration of a receiver's turn while others wait.
const TURN: Duration = Duration::from_millis(250);
/// Time without sending after which a turn is over. A window of the gate is hardly longer.
const IDLE_MAX: Duration = Duration::from_millis(10);

/// The receivers of this robot's bulk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Turns {
    /// The queues, one for each path; none if the policy has no turns.
    paths: Vec<Queue>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Queue {
    /// The receivers. The first has the turn.
    receivers: VecDeque<RobotId>,
    began: Instant,
    sent_at: Instant,
    /// When to check whether the turn is over.
    look_at: Option<Instant>,
}

impl Queue {
    fn begin(&mut self, now: Instant) {
        (self.began, self.sent_at) = (now, now);
        self.look_later();
    }

    fn look_later(&mut self) {
        let over = (self.began + TURN).min(self.sent_at + IDLE_MAX);
        self.look_at = (self.receivers.len() > 1).then_some(over);
    }

    /// Checks whether the turn is over, and then begins the next. Returns whether another receiver has the turn now.
    fn look(&mut self, now: Instant) -> bool {
        if self.look_at.is_none_or(|at| now < at) {
            return false;
        }
        let over = now >= self.began + TURN || now >= self.sent_at + IDLE_MAX;
        if over {
            self.receivers.rotate_left(1);
            self.begin(now);
        } else {
            self.look_later();
        }
        over
    }
}

impl Turns {
    pub fn new(paths: usize) -> Self {
        Turns {
            paths: vec![Queue::default(); paths],
        }
    }

    fn first(&self, path: usize) -> Option<RobotId> {
        self.paths.get(path)?.receivers.front().copied()
    }

    /// Sets whether bulk to a robot waits for a path. Returns whether the path's turn has changed, or must be announced
    /// again because its receiver joined again.
    fn set(&mut self, to: RobotId, path: usize, waits: bool, now: Instant) -> bool {
        let Some(queue) = self.paths.get_mut(path) else {
            return false;
        };
        let before = queue.receivers.front().copied();
        if waits && !queue.receivers.contains(&to) {
            queue.receivers.push_back(to);
            queue.look_later();
        } else if !waits {
            queue.receivers.retain(|receiver| *receiver != to);
        }
        let changed = queue.receivers.front().copied() != before;
        if changed {
            queue.begin(now);
        }
        changed || waits && before == Some(to)
    }

    /// Returns whether turns allow bulk to a robot to be sent over a path.
    fn has(&self, path: usize, to: RobotId) -> bool {
        self.first(path).is_none_or(|first| first == to)
    }

    fn on_sent(&mut self, path: usize, to: RobotId, now: Instant) {
        if let Some(queue) = self.paths.get_mut(path) {
            if queue.receivers.front() == Some(&to) {
                queue.sent_at = queue.sent_at.max(now);
            }
        }
    }

    /// Returns when to call [`Robot::on_deadline`].
    pub fn next_deadline(&self) -> Instant {
        let looks = self.paths.iter().filter_map(|queue| queue.look_at);
        looks.min().unwrap_or(Instant::FAR_FUTURE)
    }

    fn look(&mut self, now: Instant) -> Vec<usize> {
        let queues = self.paths.iter_mut().enumerate();
        queues
            .filter_map(|(path, queue)| queue.look(now).then_some(path))
            .collect()
    }

    /// Lets no turn end for now, because this robot may not send.
    fn pause(&mut self) {
        self.paths.iter_mut().for_each(|queue| queue.look_at = None);
    }

    /// Restarts the turns, because this robot may send from now on.
    pub fn restart(&mut self, now: Instant) {
        self.paths.iter_mut().for_each(|queue| queue.begin(now));
    }
}

impl Robot {
    /// Sets whether bulk to a robot goes over a path, or waits for it, from now on.
    pub fn on_bulk(&mut self, to: RobotId, path: usize, waits: bool, now: Instant) {
        self.peers.set_bulk(to, path, waits);
        let changed = self.turns.set(to, path, waits, now);
        if !self.is_permitted(now) {
            self.turns.pause();
        }
        self.tell_turns(changed.then_some(path).into_iter().collect());
    }

    /// Records that a bulk packet to a robot was made. Calling this once every few milliseconds is enough.
    pub fn on_bulk_sent(&mut self, to: RobotId, path: usize, now: Instant) {
        self.turns.on_sent(path, to, now);
    }

    /// Returns whether turns allow bulk to a robot to be sent over a path.
    pub fn has_turn(&self, to: RobotId, path: usize) -> bool {
        self.turns.has(path, to)
    }

    /// Checks whether turns are over. Without a permit nothing is sent, but that ends no turn. Turns restart with the
    /// next permit.
    pub(super) fn take_turns(&mut self, now: Instant) {
        if now < self.turns.next_deadline() {
            return;
        }
        if self.is_permitted(now) {
            let changed = self.turns.look(now);
            self.tell_turns(changed);
        } else {
            self.turns.pause();
        }
    }

    fn tell_turns(&mut self, paths: Vec<usize>) {
        let turns = paths
            .into_iter()
            .filter_map(|path| Some((path, self.turns.first(path)?)));
        let actions = turns.map(|(path, to)| Action::Turn { path, to });
        self.actions.extend(actions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn turns(receivers: u16) -> Turns {
        let mut turns = Turns::new(1);
        for receiver in 1..=receivers {
            assert_eq!(turns.set(RobotId(receiver), 0, true, at(0)), receiver == 1);
        }
        turns
    }

    #[test]
    fn each_has_the_path_to_itself_for_as_long() {
        let mut turns = turns(3);
        let mut order = Vec::new();
        for ms in 0..1_300 {
            let first = turns.first(0).unwrap();
            let having = (1..=3).filter(|receiver| turns.has(0, RobotId(*receiver)));
            assert_eq!(having.collect::<Vec<_>>(), [first.0]);
            turns.on_sent(0, first, at(ms));
            if !turns.look(at(ms)).is_empty() {
                order.push((ms, turns.first(0).unwrap().0));
            }
        }
        assert_eq!(order, [(250, 2), (500, 3), (750, 1), (1_000, 2), (1_250, 3)]);
    }

    #[test]
    fn who_sends_nothing_makes_room_and_who_is_alone_keeps_it() {
        let mut turns = turns(2);
        assert_eq!(turns.next_deadline(), at(10));
        assert_eq!((turns.look(at(9)), turns.look(at(10))), (vec![], vec![0]));
        assert!(turns.has(0, RobotId(2)));
        turns.on_sent(0, RobotId(1), at(15));
        assert!(!turns.set(RobotId(1), 0, false, at(16)));
        assert_eq!(turns.next_deadline(), at(20), "it looks once more");
        assert!(turns.set(RobotId(2), 0, false, at(17)));
        assert!(turns.has(0, RobotId(1)) && turns.has(0, RobotId(7)), "nobody waits");
    }

    #[test]
    fn who_leaves_or_changes_its_path_hands_on() {
        let mut turns = turns(3);
        assert!(!turns.set(RobotId(1), 1, true, at(1)), "there is no path 1");
        assert!(turns.set(RobotId(1), 0, false, at(1)));
        assert_eq!(turns.first(0), Some(RobotId(2)));
        let mut two = Turns::new(2);
        for receiver in [1, 2] {
            two.set(RobotId(receiver), 0, true, at(0));
        }
        assert!(two.set(RobotId(1), 1, true, at(1)), "it has both");
        assert!(two.has(0, RobotId(1)) && two.has(1, RobotId(1)) && !two.has(1, RobotId(2)));
        assert!(two.set(RobotId(1), 0, false, at(1)));
        assert!(two.has(0, RobotId(2)) && two.has(1, RobotId(1)));
    }

    proptest! {
        #[test]
        fn one_of_those_who_wait_has_the_turn_and_it_goes_round(
            steps in prop::collection::vec((0..4u16, any::<bool>(), 0..20u64), 1..200)
        ) {
            let mut turns = Turns::new(1);
            let (mut now, mut waiting) = (0, Vec::new());
            for (robot, joins, wait_ms) in steps {
                now += wait_ms;
                let had = turns.first(0);
                let changed = turns.set(RobotId(robot), 0, joins, at(now));
                waiting.retain(|other| *other != robot);
                waiting.extend(joins.then_some(robot));
                let again = joins && had == Some(RobotId(robot));
                prop_assert_eq!(changed, turns.first(0) != had || again);
                prop_assert_eq!(turns.first(0).is_some(), !waiting.is_empty());
                prop_assert!(turns.first(0).is_none_or(|first| waiting.contains(&first.0)));
                if waiting.len() > 1 {
                    let due = turns.next_deadline();
                    prop_assert!(due <= at(now) + TURN);
                    let before = turns.first(0);
                    now = now.max(due.as_nanos() / 1_000_000 + 1);
                    prop_assert_eq!(turns.look(at(now)), vec![0]);
                    prop_assert!(turns.first(0) != before);
                }
            }
        }
    }
}
