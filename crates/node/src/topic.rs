//! What control and gathering have in common: the names of topics, and how old what arrives on them is.

use coorp_core::clock::Offset;
use coorp_core::tracker::Stamps;
use coorp_core::{Duration, Instant};

use crate::Error;

/// Longest name of a topic, characters.
const TOPIC_CHARS_MAX: usize = 64;

/// How old a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    /// Since it was made.
    pub is: Duration,
    /// As this robot's clock is known; the sender's comes on top.
    pub within: Duration,
}

impl Age {
    /// Of what was made at a time of a clock of which the offset to this robot's is known.
    pub(crate) fn by(offset: Offset, made_at: Instant, now: Instant) -> Age {
        Age {
            is: offset.theirs(now).since(made_at),
            within: offset.within,
        }
    }

    /// Of a gathered state; `None` before the clocks were compared.
    pub(crate) fn of(stamps: &Stamps, now: Instant) -> Option<Age> {
        Some(Age {
            is: stamps.age(now)?,
            within: stamps.error,
        })
    }
}

/// The topic, or a bulk message's name, where it may be called so.
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
