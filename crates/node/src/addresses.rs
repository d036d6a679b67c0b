//! Where the other robots are: their addresses in the team file, or else what was learnt about them at run time.
//!
//! What was learnt proves nothing: a robot is one only once its certificate was seen there. An address where that has
//! happened is tried before those that somebody merely announced ([`Addresses::hint`]). Both are bounded.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use coorp_core::RobotId;
use coorp_team::Team;
use tokio::sync::futures::Notified;
use tokio::sync::Notify;

use crate::sync::lock;

/// The number of announced addresses that are kept of one robot on one path; the newest stay.
const HINTS_MAX: usize = 4;

/// The addresses of all robots of a team, by robot and path.
#[derive(Debug)]
pub(crate) struct Addresses {
    fixed: Vec<Vec<IpAddr>>,
    learnt: Mutex<BTreeMap<(RobotId, usize), Learnt>>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Learnt {
    /// Where its certificate was last seen.
    seen: Option<IpAddr>,
    /// The newest first.
    hints: VecDeque<IpAddr>,
}

impl Addresses {
    pub fn of(team: &Team) -> Arc<Self> {
        Arc::new(Addresses {
            fixed: team.robots.iter().map(|robot| robot.addresses.clone()).collect(),
            learnt: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// The address of a robot on a path, as far as it is known.
    pub fn known(&self, robot: RobotId, path: usize) -> Option<IpAddr> {
        self.fixed(robot, path)
            .or_else(|| lock(&self.learnt).get(&(robot, path))?.seen)
    }

    /// The addresses at which to try a robot on a path, the likeliest first.
    pub fn candidates(&self, robot: RobotId, path: usize) -> Vec<IpAddr> {
        if let Some(fixed) = self.fixed(robot, path) {
            return vec![fixed];
        }
        let learnt = lock(&self.learnt);
        let Some(learnt) = learnt.get(&(robot, path)) else {
            return Vec::new();
        };
        let hints = learnt.hints.iter().filter(|hint| Some(**hint) != learnt.seen);
        learnt.seen.iter().chain(hints).copied().collect()
    }

    /// Somebody announces that a robot has this address on a path.
    #[cfg_attr(not(test), expect(dead_code, reason = "discovery calls it"))]
    pub fn hint(&self, robot: RobotId, path: usize, address: IpAddr) {
        let mut learnt = lock(&self.learnt);
        let hints = &mut learnt.entry((robot, path)).or_default().hints;
        hints.retain(|hint| *hint != address);
        hints.push_front(address);
        hints.truncate(HINTS_MAX);
        drop(learnt);
        self.changed.notify_waiters();
    }

    /// The certificate of a robot was seen at this address on a path.
    pub fn saw(&self, robot: RobotId, path: usize, address: IpAddr) {
        lock(&self.learnt).entry((robot, path)).or_default().seen = Some(address.to_canonical());
        self.changed.notify_waiters();
    }

    /// Waits for the next change after this call.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    fn fixed(&self, robot: RobotId, path: usize) -> Option<IpAddr> {
        self.fixed.get(usize::from(robot.0))?.get(path).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn at(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn the_file_counts_and_then_what_was_seen_and_then_what_was_announced() {
        let text = "[[robot]]\nname = \"a\"\nleader = true\naddresses = [\"10.0.0.1\"]\n[[robot]]\nname = \"b\"\n";
        let addresses = Addresses::of(&coorp_team::parse(text, "t.toml", Path::new("")).unwrap());
        let (a, b) = (RobotId(0), RobotId(1));
        addresses.hint(a, 0, at(9));
        assert_eq!(addresses.candidates(a, 0), [at(1)]);
        assert!(addresses.candidates(b, 0).is_empty());
        for last in 2..20 {
            addresses.hint(b, 0, at(last));
        }
        assert_eq!(addresses.candidates(b, 0), [19, 18, 17, 16].map(at));
        assert_eq!(addresses.known(b, 0), None, "nobody has seen it");
        addresses.saw(b, 0, at(17));
        assert_eq!(addresses.candidates(b, 0), [17, 19, 18, 16].map(at));
        assert_eq!(addresses.known(b, 0), Some(at(17)));
        assert!(addresses.candidates(b, 1).is_empty());
    }
}
