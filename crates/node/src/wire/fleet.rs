//! What goes between robots that publish states and robots that gather them: see `coorp_core::tracker`.

use coorp_core::paths::Sequence;
use coorp_core::tracker::{Answer, Message, StateHeader, TopicId};
use coorp_core::{Duration, Instant};
use serde::{Deserialize, Serialize};

use super::Frame;

/// The times of an answer, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As in `coorp_core::tracker::Answer`.
pub struct Times {
    pub echo: u64,
    pub received_at: u64,
    pub sent_at: u64,
}

/// What robots say about being gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As in `coorp_core::tracker::Message`; times in nanoseconds.
pub enum Fleet {
    Connect { incarnation: u32, sent_at: u64 },
    Accept { incarnation: u32, topic: u32, times: Times },
    Refuse { incarnation: u32 },
    Sync { incarnation: u32, sent_at: u64 },
    Synced { incarnation: u32, times: Times },
    Unknown { incarnation: u32 },
    Leave { incarnation: u32 },
}

impl Frame for Fleet {
    const KIND: u8 = 20;
    const BYTES_MAX: usize = 64;
}

impl Fleet {
    /// Whether it is said to a robot that gathers, and not by one.
    pub(crate) fn is_for_gatherer(&self) -> bool {
        matches!(self, Fleet::Connect { .. } | Fleet::Sync { .. } | Fleet::Leave { .. })
    }
}

/// What a state carries beside its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// What its receiver calls the topic for this sender.
    pub topic: u32,
    /// When its sender started; a later one starts its count anew.
    pub incarnation: u32,
    /// The how manieth to this receiver; wraps.
    pub number: u32,
    /// When it was made, on the receiver's clock, nanoseconds, where the sender knows that.
    pub created_at: Option<u64>,
    /// By how much that may be off, nanoseconds.
    pub error: u64,
    /// The number of this copy on its path, where there is a choice of paths.
    pub copy: Option<u32>,
}

impl From<Answer> for Times {
    fn from(answer: Answer) -> Self {
        Times {
            echo: answer.echo.as_nanos(),
            received_at: answer.received_at.as_nanos(),
            sent_at: answer.sent_at.as_nanos(),
        }
    }
}

impl From<Times> for Answer {
    fn from(times: Times) -> Self {
        Answer {
            echo: Instant::from_nanos(times.echo),
            received_at: Instant::from_nanos(times.received_at),
            sent_at: Instant::from_nanos(times.sent_at),
        }
    }
}

impl From<Message> for Fleet {
    fn from(message: Message) -> Self {
        match message {
            Message::Connect { incarnation, sent_at } => Fleet::Connect {
                incarnation,
                sent_at: sent_at.as_nanos(),
            },
            Message::Accept {
                incarnation,
                topic,
                answer,
            } => Fleet::Accept {
                incarnation,
                topic: topic.0,
                times: answer.into(),
            },
            Message::Refuse { incarnation } => Fleet::Refuse { incarnation },
            Message::Sync { incarnation, sent_at } => Fleet::Sync {
                incarnation,
                sent_at: sent_at.as_nanos(),
            },
            Message::Synced { incarnation, answer } => Fleet::Synced {
                incarnation,
                times: answer.into(),
            },
            Message::Unknown { incarnation } => Fleet::Unknown { incarnation },
            Message::Leave { incarnation } => Fleet::Leave { incarnation },
        }
    }
}

impl From<Fleet> for Message {
    fn from(said: Fleet) -> Self {
        match said {
            Fleet::Connect { incarnation, sent_at } => Message::Connect {
                incarnation,
                sent_at: Instant::from_nanos(sent_at),
            },
            Fleet::Accept {
                incarnation,
                topic,
                times,
            } => Message::Accept {
                incarnation,
                topic: TopicId(topic),
                answer: times.into(),
            },
            Fleet::Refuse { incarnation } => Message::Refuse { incarnation },
            Fleet::Sync { incarnation, sent_at } => Message::Sync {
                incarnation,
                sent_at: Instant::from_nanos(sent_at),
            },
            Fleet::Synced { incarnation, times } => Message::Synced {
                incarnation,
                answer: times.into(),
            },
            Fleet::Unknown { incarnation } => Message::Unknown { incarnation },
            Fleet::Leave { incarnation } => Message::Leave { incarnation },
        }
    }
}

impl State {
    /// The state with this header on a topic, as one copy or, where there is no choice of paths, none.
    pub(crate) fn new(topic: TopicId, header: StateHeader, copy: Option<u32>) -> Self {
        State {
            topic: topic.0,
            incarnation: header.sequence.incarnation,
            number: header.sequence.number,
            created_at: header.created_at.map(Instant::as_nanos),
            error: header.error.as_nanos(),
            copy,
        }
    }
}

impl From<State> for StateHeader {
    fn from(state: State) -> Self {
        StateHeader {
            sequence: Sequence {
                incarnation: state.incarnation,
                number: state.number,
            },
            created_at: state.created_at.map(Instant::from_nanos),
            error: Duration::from_nanos(state.error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{decode, encode, Parcel};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_longest_of_each_fits_and_comes_back_the_same() {
        let (incarnation, all) = (u32::MAX, u64::MAX);
        let times = Times {
            echo: all,
            received_at: all,
            sent_at: all,
        };
        let said = [
            Fleet::Connect {
                incarnation,
                sent_at: all,
            },
            Fleet::Accept {
                incarnation,
                topic: u32::MAX,
                times,
            },
            Fleet::Refuse { incarnation },
            Fleet::Sync {
                incarnation,
                sent_at: all,
            },
            Fleet::Synced { incarnation, times },
            Fleet::Unknown { incarnation },
            Fleet::Leave { incarnation },
        ];
        for said in said {
            assert_eq!(decode(&encode(&said)), Ok(said));
            assert_eq!(Fleet::from(Message::from(said)), said);
        }
        let header = State {
            topic: u32::MAX,
            incarnation,
            number: u32::MAX,
            created_at: Some(all),
            error: all,
            copy: Some(u32::MAX),
        };
        let state = Parcel::State {
            topic: "\u{10ffff}".repeat(64),
            header,
        };
        assert_eq!(decode(&encode(&state)), Ok(state));
        assert_eq!(State::new(TopicId(u32::MAX), header.into(), header.copy), header);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let frame = [b"Co", [super::super::VERSION, Fleet::KIND].as_slice(), &bytes].concat();
            if let Ok(said) = decode::<Fleet>(&frame) {
                prop_assert_eq!(decode(&encode(&said)), Ok(said));
            }
        }
    }
}
