//! Superdense time: the order of events, and the effect of delays on tags (Kwok, section III-B).
//!
//! A tag is a time and a microstep. Times count from the program's start, so two runs of a program have the same tags.
//! The infinities are separate variants: arithmetic on an infinity returns that infinity, and no arithmetic reaches
//! [`Tag::NEVER`].
//!
//! A connection without a delay keeps the tag. An action without a delay still advances one microstep, so that no
//! reaction causes itself. A delay in time drops the microsteps before it. **So adding delays is not commutative:** one
//! microstep and then 5 ms is 5 ms, but 5 ms and then one microstep is one microstep more. [`Delay::then`] adds in the
//! direction of the path, and is associative.
//!
//! Left out: clocks. The scheduler compares tags with physical time.

use crate::Duration;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A point of superdense time, or one of the two infinities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Tag {
    /// Before every event.
    Never,
    /// The time of an event.
    At {
        /// Time since the program's start.
        time: Duration,
        /// The step within that time, in which no time passes.
        microstep: u32,
    },
    /// After every event.
    Forever,
}

/// The sum of the delays along a path, by which a tag moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Delay {
    time: Duration,
    microstep: u32,
}

impl Tag {
    /// Before every event.
    pub const NEVER: Tag = Tag::Never;
    /// The first tag of a program, at which startup reactions run.
    pub const START: Tag = Tag::at(Duration::ZERO, 0);
    /// After every event.
    pub const FOREVER: Tag = Tag::Forever;

    /// Returns the tag `time` after the program's start, at `microstep`.
    pub const fn at(time: Duration, microstep: u32) -> Tag {
        Tag::At { time, microstep }
    }

    /// Returns the time since the program's start; `None` for the infinities.
    pub const fn time(self) -> Option<Duration> {
        match self {
            Tag::At { time, .. } => Some(time),
            Tag::Never | Tag::Forever => None,
        }
    }

    /// Returns the microstep; zero for the infinities.
    pub const fn microstep(self) -> u32 {
        match self {
            Tag::At { microstep, .. } => microstep,
            Tag::Never | Tag::Forever => 0,
        }
    }

    /// Returns the earliest tag after this one; an infinity returns itself.
    pub fn next(self) -> Tag {
        self + Delay::MICROSTEP
    }

    /// Returns the latest tag before this one; [`Tag::NEVER`] for the first tag. An infinity returns itself.
    pub fn before(self) -> Tag {
        let Tag::At { time, microstep } = self else { return self };
        if let Some(microstep) = microstep.checked_sub(1) {
            return Tag::at(time, microstep);
        }
        match time.as_nanos().checked_sub(1) {
            Some(ns) => Tag::at(Duration::from_nanos(ns), u32::MAX),
            None => Tag::NEVER,
        }
    }
}

impl Delay {
    /// No delay: keeps the tag.
    pub const NONE: Delay = Delay {
        time: Duration::ZERO,
        microstep: 0,
    };
    /// One microstep.
    pub const MICROSTEP: Delay = Delay {
        time: Duration::ZERO,
        microstep: 1,
    };

    /// Returns the delay of a connection. Zero keeps the tag.
    pub const fn of_connection(after: Duration) -> Delay {
        Delay {
            time: after,
            microstep: 0,
        }
    }

    /// Returns the delay of an action. Zero still advances one microstep.
    pub fn of_action(delay: Duration) -> Delay {
        if delay == Duration::ZERO {
            return Delay::MICROSTEP;
        }
        Delay::of_connection(delay)
    }

    /// Returns the earliest tag that this delay moves past `reached`; [`Tag::FOREVER`] if there is none.
    pub fn first_past(self, reached: Tag) -> Tag {
        let Tag::At { time, microstep } = reached else {
            return if reached == Tag::NEVER {
                Tag::START
            } else {
                Tag::FOREVER
            };
        };
        if self.time == Duration::ZERO {
            return match microstep.checked_sub(self.microstep) {
                Some(kept) => Tag::at(time, kept).next(),
                None => Tag::at(time, 0),
            };
        }
        let Some(ns) = time.as_nanos().checked_sub(self.time.as_nanos()) else {
            return Tag::START;
        };
        let lands_past = self.microstep > microstep;
        Tag::at(Duration::from_nanos(ns.saturating_add(u64::from(!lands_past))), 0)
    }

    /// Returns this delay followed by `later`.
    #[must_use]
    pub fn then(self, later: Delay) -> Delay {
        match Tag::at(self.time, self.microstep) + later {
            Tag::At { time, microstep } => Delay { time, microstep },
            Tag::Never | Tag::Forever => Delay {
                time: Duration::MAX,
                microstep: u32::MAX,
            },
        }
    }
}

impl std::ops::Add<Delay> for Tag {
    type Output = Tag;

    /// Returns the tag `delay` after this one. [`Tag::FOREVER`] follows the end of time.
    fn add(self, delay: Delay) -> Tag {
        let Tag::At { time, microstep } = self else { return self };
        let kept = if delay.time == Duration::ZERO { microstep } else { 0 };
        // A time with too many microsteps continues in the next nanosecond, which is the next tag.
        let (carry_ns, microstep) = match kept.checked_add(delay.microstep) {
            Some(sum) => (0, sum),
            None => (1, 0),
        };
        let sum = time.as_nanos().checked_add(delay.time.as_nanos());
        match sum.and_then(|ns| ns.checked_add(carry_ns)) {
            Some(ns) => Tag::at(Duration::from_nanos(ns), microstep),
            None => Tag::FOREVER,
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tag::Never => f.write_str("never"),
            Tag::At { time, microstep: 0 } => write!(f, "{time}"),
            Tag::At { time, microstep } => write!(f, "{time}+{microstep}"),
            Tag::Forever => f.write_str("forever"),
        }
    }
}

#[cfg(test)]
mod tests;
