//! Conditions that an operator should look at. Each alarm stands for a while after its cause was last seen.
//!
//! Once a second, a driver reports what it sees ([`Sight`]). Counters that have risen, a clock that has moved against
//! the robot's own and a disk without its reserve raise an alarm, which stands for [`STANDS`]. So do [`LEADERS_MAX`]
//! changes of the leader within [`STANDS`]; fewer do not.
//!
//! Left out: what to do about an alarm. No decision depends on one.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use crate::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// How long an alarm stands after its cause was last seen.
pub const STANDS: Duration = Duration::from_secs(60);
/// The number of changes of the leader within [`STANDS`] that raises an alarm.
pub const LEADERS_MAX: usize = 4;
/// The deviation between two reports beyond which a clock has jumped, in nanoseconds.
const JUMP_NS: u64 = 1_000_000_000;

/// A condition that an operator should look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Alarm {
    /// Connections were refused for their certificates.
    Strangers,
    /// Frames of another version arrived.
    OtherVersion,
    /// Two robots run under one name.
    Twins,
    /// The leader changes often.
    LeaderChanges,
    /// This machine's clock was set.
    ClockJumped,
    /// The disk has less than its reserve free.
    DiskShort,
}

impl Alarm {
    /// All alarms.
    pub const ALL: [Alarm; 6] = {
        use Alarm::*;
        [Strangers, OtherVersion, Twins, LeaderChanges, ClockJumped, DiskShort]
    };

    /// Returns the alarm's name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Alarm::Strangers => "strangers",
            Alarm::OtherVersion => "other-version",
            Alarm::Twins => "twins",
            Alarm::LeaderChanges => "leader-changes",
            Alarm::ClockJumped => "clock-jumped",
            Alarm::DiskShort => "disk-short",
        }
    }
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Alarm::Strangers => "strangers were refused",
            Alarm::OtherVersion => "a peer runs another version of Coorp",
            Alarm::Twins => "two robots run under one name",
            Alarm::LeaderChanges => "the leader changes often",
            Alarm::ClockJumped => "this machine's clock was set",
            Alarm::DiskShort => "the disk has less than its reserve free",
        })
    }
}

/// What a driver sees: counts since the start, Unix time and the disk.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Sight {
    pub strangers: u64,
    pub other_version: u64,
    pub twins: u64,
    pub leader_changes: u64,
    pub unix_ns: u64,
    pub disk_short: bool,
}

/// A robot's alarms.
#[derive(Clone, Debug, Default)]
pub struct Alarms {
    before: Option<(Sight, Instant)>,
    /// When each cause was last seen.
    seen: BTreeMap<Alarm, Instant>,
    /// The last changes of the leader, at most [`LEADERS_MAX`].
    leaders: VecDeque<Instant>,
}

impl Alarms {
    /// Records what the driver sees. Returns the alarms that it raises.
    pub fn on_sight(&mut self, sight: Sight, now: Instant) -> Vec<Alarm> {
        let (before, at) = self.before.replace((sight, now)).unwrap_or((
            Sight {
                unix_ns: sight.unix_ns,
                ..Sight::default()
            },
            now,
        ));
        for _ in before.leader_changes..sight.leader_changes.min(before.leader_changes + LEADERS_MAX as u64) {
            self.leaders.push_back(now);
        }
        while self.leaders.len() > LEADERS_MAX {
            self.leaders.pop_front();
        }
        self.leaders.retain(|changed| now.since(*changed) < STANDS);
        let expected = before.unix_ns.saturating_add(now.since(at).as_nanos());
        let mut raised = Vec::new();
        for alarm in Alarm::ALL {
            let seen = match alarm {
                Alarm::Strangers => sight.strangers > before.strangers,
                Alarm::OtherVersion => sight.other_version > before.other_version,
                Alarm::Twins => sight.twins > before.twins,
                Alarm::LeaderChanges => self.leaders.len() >= LEADERS_MAX,
                Alarm::ClockJumped => sight.unix_ns.abs_diff(expected) > JUMP_NS,
                Alarm::DiskShort => sight.disk_short,
            };
            if seen && !self.is_standing(alarm, now) {
                raised.push(alarm);
            }
            if seen {
                self.seen.insert(alarm, now);
            }
        }
        raised
    }

    /// Returns the alarms that stand now.
    pub fn standing(&self, now: Instant) -> Vec<Alarm> {
        let standing = Alarm::ALL.into_iter().filter(|alarm| self.is_standing(*alarm, now));
        standing.collect()
    }

    fn is_standing(&self, alarm: Alarm, now: Instant) -> bool {
        self.seen.get(&alarm).is_some_and(|seen| now.since(*seen) < STANDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(1_000 + seconds)
    }

    fn quiet(seconds: u64) -> Sight {
        Sight {
            unix_ns: (5_000 + seconds) * 1_000_000_000,
            ..Sight::default()
        }
    }

    #[test]
    fn each_cause_is_raised_once_and_stands_for_a_while() {
        let mut it = Alarms::default();
        assert!(it.on_sight(quiet(0), at(0)).is_empty());
        let everything = Sight {
            strangers: 1,
            other_version: 1,
            twins: 1,
            leader_changes: 1_000_000,
            unix_ns: 1,
            disk_short: true,
        };
        assert_eq!(it.on_sight(everything, at(1)), Alarm::ALL);
        assert!(it
            .on_sight(
                Sight {
                    unix_ns: 1_000_000_001,
                    ..everything
                },
                at(2)
            )
            .is_empty());
        assert_eq!(it.standing(at(60)), Alarm::ALL);
        assert_eq!(it.standing(at(61)), [Alarm::LeaderChanges, Alarm::DiskShort]);
        assert!(it.standing(at(62)).is_empty());
    }

    #[test]
    fn a_leader_now_and_then_is_no_alarm() {
        let mut it = Alarms::default();
        for changes in 0..20 {
            let now = changes * 21;
            let sight = Sight {
                leader_changes: changes,
                ..quiet(now)
            };
            assert!(it.on_sight(sight, at(now)).is_empty());
        }
    }

    proptest! {
        /// A clock that NTP slews raises no alarm; a clock that is set raises one, in either direction.
        #[test]
        fn a_clock_that_is_set_is_noticed(by_s in -4_000i64..4_000, slew_ppm in 0u64..500) {
            let mut it = Alarms::default();
            it.on_sight(quiet(0), at(0));
            let mut sight = quiet(10);
            sight.unix_ns += 10 * slew_ppm * 1_000;
            prop_assert!(it.on_sight(sight, at(10)).is_empty());
            sight.unix_ns = (sight.unix_ns + 1_000_000_000).saturating_add_signed(by_s * 1_000_000_000);
            let raised = it.on_sight(sight, at(11));
            prop_assert_eq!(raised.contains(&Alarm::ClockJumped), by_s.abs() > 1);
        }
    }
}
