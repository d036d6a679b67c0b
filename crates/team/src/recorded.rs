//! Recorded messages that drive a flow: plain data that the reader of a recording adds to a team.
//!
//! Left out: reading recordings, which is I/O and does not belong here. The team file cannot express them, because a
//! recording belongs to a run.

use coorp_core::Duration;

/// The times and sizes of a flow's messages. After the last message the recording repeats, so that it can drive a run
/// of any length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The messages, sorted by time since the start of the recording, with sizes in bytes. Never empty.
    messages: Vec<(Duration, u64)>,
    /// The period of the repetition, longer than the last message's time.
    length: Duration,
}

impl Recorded {
    /// Creates a recording from the messages of one flow in any order. Each has its time since the start of the
    /// recording and its size in bytes. `length` is the period after which they repeat. Flows of one recording keep
    /// their relative phases if they share the start and `length`.
    ///
    /// # Errors
    /// If there is no message, a message is empty, or a message is not before `length`.
    pub fn new(mut messages: Vec<(Duration, u64)>, length: Duration) -> Result<Recorded, String> {
        messages.sort_unstable();
        let last = messages.last().ok_or("the recording has no message")?;
        if last.0 >= length {
            return Err(format!("a message at {} is not within the recorded {length}", last.0));
        }
        if messages.iter().any(|(_, bytes)| *bytes == 0) {
            return Err("a recorded message is empty".to_owned());
        }
        Ok(Recorded { messages, length })
    }

    /// Returns the time of message `number` since the start of the flow, and its size in bytes.
    pub fn message(&self, number: u64) -> (Duration, u64) {
        let count = self.messages.len() as u64;
        let (at, bytes) = self.messages[(number % count) as usize];
        (self.length * (number / count) + at, bytes)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_recording_begins_anew_after_its_length() {
        let recorded = Recorded::new(vec![(MS * 7, 20), (MS * 2, 10)], MS * 10).unwrap();
        let all: Vec<_> = (0..5).map(|number| recorded.message(number)).collect();
        assert_eq!(
            all,
            [(MS * 2, 10), (MS * 7, 20), (MS * 12, 10), (MS * 17, 20), (MS * 22, 10)]
        );
    }

    #[test]
    fn what_cannot_be_sent_is_refused() {
        assert!(Recorded::new(Vec::new(), MS).unwrap_err().contains("no message"));
        assert!(Recorded::new(vec![(MS, 1)], MS)
            .unwrap_err()
            .contains("not within the recorded 1ms"));
        assert!(Recorded::new(vec![(MS, 0)], MS * 2).unwrap_err().contains("empty"));
    }
}
