//! Shared by control and gathering: topic names, and the age of what arrives.

use coorp_core::clock::Offset;
use coorp_core::tracker::Stamps;
use coorp_core::{Duration, Instant};

use crate::Error;

/// The longest topic name, characters.
const TOPIC_CHARS_MAX: usize = 64;

/// The age of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    /// The time since it was made.
    pub is: Duration,
    /// The error bound of this robot's clock, to which the sender's must be added.
    pub within: Duration,
}

impl Age {
    /// Returns the age of something made at `made_at`, on a clock with a known offset to this robot's.
    pub(crate) fn by(offset: Offset, made_at: Instant, now: Instant) -> Age {
        Age {
            is: offset.theirs(now).since(made_at),
            within: offset.within,
        }
    }

    /// Returns the age of a gathered state; `None` before the clocks were compared.
    pub(crate) fn of(stamps: &Stamps, now: Instant) -> Option<Age> {
        Some(Age {
            is: stamps.age(now)?,
            within: stamps.error,
        })
    }
}

/// Returns the name of a topic or bulk message, if it is valid.
pub(crate) fn checked(topic: &str) -> Result<&str, Error> {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    if topic.is_empty() || topic.chars().count() > TOPIC_CHARS_MAX || !topic.chars().all(fits) {
        return Err(Error::Name(format!(
            "\"{}\" cannot be a name: use 1 to {TOPIC_CHARS_MAX} letters, digits, `-`, `_` and `.`",
            topic.chars().take(TOPIC_CHARS_MAX).collect::<String>().escape_debug()
        )));
    }
    Ok(topic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_a_name() {
        assert!(checked("pose.2").is_ok());
        for topic in ["", "a/b", "*", "\u{7}", &"x".repeat(65)] {
            assert!(checked(topic).is_err(), "{topic:?}");
        }
    }
}
