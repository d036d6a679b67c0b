//! What robots say to each other, in bytes: versioned, bounded, and never a reason to panic.
//!
//! A frame is two letters, the version, the kind, and a postcard body of that kind and nothing behind it. Whoever reads
//! a frame names the kind that it expects, and gets the value or a [`Refusal`]. Versions are not mixed: a team runs one.
//!
//! Left out: who sent it. Links are authenticated: over the fabric its keys name the sender, over others its certificate.

pub mod fleet;

use coorp_core::failover;
use coorp_core::paths;
use coorp_core::permits::{Message, RequestId, Token};
use coorp_core::{Duration, Instant, RobotId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of all frames.
pub const VERSION: u8 = 1;

const MAGIC: [u8; 2] = *b"Co";
const HEADER_BYTES: usize = 4;

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is longer than anything of its kind.
    Oversized,
    /// It is of another version.
    Version(u8),
    /// It is no frame of the expected kind.
    Malformed,
}

/// A value that goes over the wire as a frame of its own.
pub trait Frame: Serialize + DeserializeOwned {
    /// Tells the kinds apart; unique.
    const KIND: u8;
    /// The longest frame of this kind, bytes.
    const BYTES_MAX: usize;
}

/// The frame of a value. Empty where the value is longer than its kind allows, which no value of ours is.
pub fn encode<F: Frame>(value: &F) -> Vec<u8> {
    let mut bytes = vec![MAGIC[0], MAGIC[1], VERSION, F::KIND];
    match postcard::to_extend(value, std::mem::take(&mut bytes)) {
        Ok(frame) if frame.len() <= F::BYTES_MAX => frame,
        _ => Vec::new(),
    }
}

/// The value of a frame.
///
/// # Errors
/// For every frame that `encode` does not make of an `F`.
pub fn decode<F: Frame>(frame: &[u8]) -> Result<F, Refusal> {
    if frame.len() > F::BYTES_MAX {
        return Err(Refusal::Oversized);
    }
    let (header, body) = frame.split_at_checked(HEADER_BYTES).ok_or(Refusal::Malformed)?;
    match header {
        [m0, m1, VERSION, kind] if [*m0, *m1] == MAGIC && *kind == F::KIND => {}
        [m0, m1, version, _] if [*m0, *m1] == MAGIC && *version != VERSION => return Err(Refusal::Version(*version)),
        _ => return Err(Refusal::Malformed),
    }
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        _ => Err(Refusal::Malformed),
    }
}

/// A message about permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As in `coorp_core::permits::Message`; times in nanoseconds.
pub enum Permit {
    Request {
        robot: u16,
        request: u64,
        sent_at: u64,
    },
    Grant {
        request: u64,
        token: u64,
        slice: u64,
        echo: u64,
    },
    Release {
        token: u64,
    },
    Renew {
        token: u64,
        sent_at: u64,
    },
    Refuse {
        request: u64,
        retry_after: u64,
    },
}

impl From<Message> for Permit {
    fn from(message: Message) -> Self {
        match message {
            Message::Request {
                robot,
                request,
                sent_at,
            } => Permit::Request {
                robot: robot.0,
                request: request.0,
                sent_at: sent_at.as_nanos(),
            },
            Message::Grant {
                request,
                token,
                slice,
                echo,
            } => Permit::Grant {
                request: request.0,
                token: token.0,
                slice: slice.as_nanos(),
                echo: echo.as_nanos(),
            },
            Message::Release { token } => Permit::Release { token: token.0 },
            Message::Renew { token, sent_at } => Permit::Renew {
                token: token.0,
                sent_at: sent_at.as_nanos(),
            },
            Message::Refuse { request, retry_after } => Permit::Refuse {
                request: request.0,
                retry_after: retry_after.as_nanos(),
            },
        }
    }
}

impl From<Permit> for Message {
    fn from(permit: Permit) -> Self {
        match permit {
            Permit::Request {
                robot,
                request,
                sent_at,
            } => Message::Request {
                robot: RobotId(robot),
                request: RequestId(request),
                sent_at: Instant::from_nanos(sent_at),
            },
            Permit::Grant {
                request,
                token,
                slice,
                echo,
            } => Message::Grant {
                request: RequestId(request),
                token: Token(token),
                slice: Duration::from_nanos(slice),
                echo: Instant::from_nanos(echo),
            },
            Permit::Release { token } => Message::Release { token: Token(token) },
            Permit::Renew { token, sent_at } => Message::Renew {
                token: Token(token),
                sent_at: Instant::from_nanos(sent_at),
            },
            Permit::Refuse { request, retry_after } => Message::Refuse {
                request: RequestId(request),
                retry_after: Duration::from_nanos(retry_after),
            },
        }
    }
}

/// A leadership: see `coorp_core::failover::Epoch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Epoch {
    pub round: u64,
    pub robot: u16,
    pub incarnation: u32,
}

/// What robots say about who leads, and about permits under which leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As in `coorp_core::failover::Message`; times in nanoseconds.
pub enum Coordination {
    Beat { epoch: Epoch, sent_at: u64 },
    Ask { epoch: Epoch, sent_at: u64 },
    Promise { epoch: Epoch, echo: u64 },
    Deny { epoch: Epoch, elected: bool },
    Resign { epoch: Epoch },
    Permit { epoch: Epoch, permit: Permit },
}

impl Frame for Coordination {
    const KIND: u8 = 1;
    const BYTES_MAX: usize = 96;
}

impl From<failover::Epoch> for Epoch {
    fn from(epoch: failover::Epoch) -> Self {
        Epoch {
            round: epoch.round,
            robot: epoch.robot.0,
            incarnation: epoch.incarnation,
        }
    }
}

impl From<Epoch> for failover::Epoch {
    fn from(epoch: Epoch) -> Self {
        failover::Epoch {
            round: epoch.round,
            robot: RobotId(epoch.robot),
            incarnation: epoch.incarnation,
        }
    }
}

impl From<failover::Message> for Coordination {
    fn from(message: failover::Message) -> Self {
        match message {
            failover::Message::Beat { epoch, sent_at } => Coordination::Beat {
                epoch: epoch.into(),
                sent_at: sent_at.as_nanos(),
            },
            failover::Message::Ask { epoch, sent_at } => Coordination::Ask {
                epoch: epoch.into(),
                sent_at: sent_at.as_nanos(),
            },
            failover::Message::Promise { epoch, echo } => Coordination::Promise {
                epoch: epoch.into(),
                echo: echo.as_nanos(),
            },
            failover::Message::Deny { epoch, elected } => Coordination::Deny {
                epoch: epoch.into(),
                elected,
            },
            failover::Message::Resign { epoch } => Coordination::Resign { epoch: epoch.into() },
            failover::Message::Permit { epoch, message } => Coordination::Permit {
                epoch: epoch.into(),
                permit: message.into(),
            },
        }
    }
}

impl From<Coordination> for failover::Message {
    fn from(said: Coordination) -> Self {
        match said {
            Coordination::Beat { epoch, sent_at } => failover::Message::Beat {
                epoch: epoch.into(),
                sent_at: Instant::from_nanos(sent_at),
            },
            Coordination::Ask { epoch, sent_at } => failover::Message::Ask {
                epoch: epoch.into(),
                sent_at: Instant::from_nanos(sent_at),
            },
            Coordination::Promise { epoch, echo } => failover::Message::Promise {
                epoch: epoch.into(),
                echo: Instant::from_nanos(echo),
            },
            Coordination::Deny { epoch, elected } => failover::Message::Deny {
                epoch: epoch.into(),
                elected,
            },
            Coordination::Resign { epoch } => failover::Message::Resign { epoch: epoch.into() },
            Coordination::Permit { epoch, permit } => failover::Message::Permit {
                epoch: epoch.into(),
                message: permit.into(),
            },
        }
    }
}

/// What a control message carries beside its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlHeader {
    /// When its sender started; a later one starts its count anew.
    pub incarnation: u32,
    /// The how manieth of its topic, from 0.
    pub sequence: u64,
    /// The topic's number with its sender, as in [`Model`].
    pub flow: u8,
    /// When it was made, on the sender's clock, nanoseconds.
    pub made_at: u64,
    /// The same on the leader's clock, where the sender knew that: which leader's, and nanoseconds.
    pub made_at_leaders: Option<(u64, u64)>,
    /// Where there is a choice of paths: the number of this copy on its path to this receiver.
    pub copy: Option<u32>,
}

/// What goes over a link ahead of a message's content: see `links`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Parcel {
    /// A control message.
    Control {
        /// Its topic.
        topic: String,
        /// All else about it.
        header: ControlHeader,
    },
    /// A state for the robot that gathers it.
    State {
        /// Its topic.
        topic: String,
        /// All else about it.
        header: fleet::State,
    },
    /// Is this path there? No content.
    Probe(Probe),
    /// It is. No content.
    Echo(Echo),
    /// What the sender hears: the content is topics, one a line. Said when a link is new, by both ends.
    Hears,
    /// The leader tells who may send bulk which control has come to it. No content.
    Heard(Heard),
}

/// Control messages that have come to the leader: nobody need keep bulk off the air for them any longer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// Which leader's clock the times are of.
    pub clock: u64,
    /// [`HEARD_MAX`] at most.
    pub messages: Vec<HeardMessage>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeardMessage {
    /// Its sender.
    pub robot: u16,
    /// The topic's number with its sender.
    pub flow: u8,
    /// When it was made, nanoseconds.
    pub made_at: u64,
}

/// The longest content of a [`Parcel::Hears`], bytes: it fits into a datagram.
pub const HEARS_BYTES_MAX: usize = 1_000;
/// Messages that one notice tells of.
pub const HEARD_MAX: usize = 24;

impl Frame for Parcel {
    const KIND: u8 = 12;
    const BYTES_MAX: usize = 512;
}

/// The longest head of a message on a link, bytes.
pub const PARCEL_BYTES_MAX: usize = Parcel::BYTES_MAX + LENGTH_BYTES;
const LENGTH_BYTES: usize = 2;

/// What stands ahead of a message's content on a link: a frame, and its length before it, little end first.
pub fn pack(parcel: &Parcel) -> Vec<u8> {
    let frame = encode(parcel);
    let length = u16::try_from(frame.len()).unwrap_or(0);
    [length.to_le_bytes().as_slice(), &frame].concat()
}

/// What a message on a link is, and where its content begins.
///
/// # Errors
/// For all that [`pack`] does not make.
pub fn unpack(message: &[u8]) -> Result<(Parcel, usize), Refusal> {
    let (length, rest) = message.split_first_chunk::<LENGTH_BYTES>().ok_or(Refusal::Malformed)?;
    let length = usize::from(u16::from_le_bytes(*length));
    let frame = rest.get(..length).ok_or(Refusal::Malformed)?;
    Ok((decode(frame)?, LENGTH_BYTES + length))
}

/// What time is it: asked of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeQuery {
    /// When this was sent, on the asker's clock, nanoseconds.
    pub sent_at: u64,
}

impl Frame for TimeQuery {
    const KIND: u8 = 3;
    const BYTES_MAX: usize = 32;
}

/// The leader's answer to a [`TimeQuery`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeReply {
    /// Which clock it is: another one after the leader has started anew.
    pub clock: u64,
    /// The query's `sent_at`.
    pub echo: u64,
    /// When the query came, on the leader's clock, nanoseconds.
    pub received_at: u64,
    /// When this was sent, on the leader's clock, nanoseconds.
    pub sent_at: u64,
}

impl Frame for TimeReply {
    const KIND: u8 = 4;
    const BYTES_MAX: usize = 64;
}

/// When a robot's control messages are due, on the leader's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Models {
    /// Which leader's clock it is.
    pub clock: u64,
    /// One a topic; topics that are not here are due at no known time.
    pub models: Vec<Model>,
}

/// One topic's time model; times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As in `coorp_core::arrival::TimeModel`.
pub struct Model {
    /// The topic's number with its robot.
    pub topic: u8,
    pub period: u64,
    pub phase: u64,
    pub sigma: u64,
    pub early: u64,
    pub late: u64,
}

impl Frame for Models {
    const KIND: u8 = 6;
    const BYTES_MAX: usize = 4_096;
}

/// A sender offers a bulk message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// Tells the starts of senders apart.
    pub lineage: u64,
    /// The how manieth message of this sender to this receiver.
    pub sequence: u64,
    /// What the sender calls it.
    pub name: String,
    /// Bytes.
    pub length: u64,
    /// BLAKE3 of all bytes.
    pub hash: [u8; 32],
}

impl Frame for Begin {
    const KIND: u8 = 7;
    const BYTES_MAX: usize = 384;
}

/// A receiver's word on a bulk message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// So much of it is here already.
    Here {
        /// Bytes.
        length: u64,
        /// BLAKE3 of these.
        hash: [u8; 32],
    },
    /// It is whole, on disk, and will be handed out once.
    Whole,
    /// What came does not have the hash that was announced.
    Garbled,
    /// Too many messages wait to be taken; later, perhaps.
    Full,
    /// It cannot be written down.
    Disk,
}

impl Frame for Answer {
    const KIND: u8 = 8;
    const BYTES_MAX: usize = 64;
}

/// From where on a sender sends: what is here, or nothing of it where it is not the message's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Bytes that the receiver keeps.
    pub offset: u64,
}

impl Frame for Start {
    const KIND: u8 = 9;
    const BYTES_MAX: usize = 16;
}

/// Whether a path is there: see `coorp_core::paths::Probe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Probe {
    pub path: u8,
    pub incarnation: u32,
    pub number: u32,
    /// On the sender's clock, nanoseconds.
    pub sent_at: u64,
}

/// The answer to a [`Probe`]: see `coorp_core::paths::Echo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Echo {
    pub probe: Probe,
    pub newest: u32,
    pub seen: u64,
}

impl From<paths::Probe> for Probe {
    fn from(probe: paths::Probe) -> Self {
        Probe {
            path: probe.path.0,
            incarnation: probe.incarnation,
            number: probe.number,
            sent_at: probe.sent_at.as_nanos(),
        }
    }
}

impl From<Probe> for paths::Probe {
    fn from(probe: Probe) -> Self {
        paths::Probe {
            path: paths::PathId(probe.path),
            incarnation: probe.incarnation,
            number: probe.number,
            sent_at: Instant::from_nanos(probe.sent_at),
        }
    }
}

impl From<paths::Echo> for Echo {
    fn from(echo: paths::Echo) -> Self {
        Echo {
            probe: echo.probe.into(),
            newest: echo.newest,
            seen: echo.seen,
        }
    }
}

impl From<Echo> for paths::Echo {
    fn from(echo: Echo) -> Self {
        paths::Echo {
            probe: echo.probe.into(),
            newest: echo.newest,
            seen: echo.seen,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::status::Status;
    use proptest::prelude::*;

    #[test]
    fn what_is_not_a_frame_is_refused_for_what_it_is() {
        let query = TimeQuery { sent_at: 7 };
        let frame = encode(&query);
        assert_eq!(decode::<TimeQuery>(&frame), Ok(query));
        assert_eq!(decode::<Start>(&frame), Err(Refusal::Malformed), "of another kind");
        assert_eq!(
            decode::<TimeQuery>(&frame[..frame.len() - 1]),
            Err(Refusal::Malformed),
            "cut"
        );
        let longer = [frame.as_slice(), &[0]].concat();
        assert_eq!(
            decode::<TimeQuery>(&longer),
            Err(Refusal::Malformed),
            "something behind it"
        );
        let mut newer = frame.clone();
        newer[2] = 9;
        assert_eq!(decode::<TimeQuery>(&newer), Err(Refusal::Version(9)));
        assert_eq!(decode::<TimeQuery>(&[0; 65]), Err(Refusal::Oversized));
        assert_eq!(decode::<TimeQuery>(b"GE"), Err(Refusal::Malformed));
    }

    #[test]
    fn the_longest_of_each_small_kind_fits() {
        let all = u64::MAX;
        let epoch = Epoch {
            round: all,
            robot: u16::MAX,
            incarnation: u32::MAX,
        };
        let permits = [
            Permit::Request {
                robot: u16::MAX,
                request: all,
                sent_at: all,
            },
            Permit::Grant {
                request: all,
                token: all,
                slice: all,
                echo: all,
            },
            Permit::Release { token: all },
            Permit::Renew {
                token: all,
                sent_at: all,
            },
            Permit::Refuse {
                request: all,
                retry_after: all,
            },
        ];
        let others = [
            Coordination::Beat { epoch, sent_at: all },
            Coordination::Ask { epoch, sent_at: all },
            Coordination::Promise { epoch, echo: all },
            Coordination::Deny { epoch, elected: true },
            Coordination::Resign { epoch },
        ];
        let permits = permits.map(|permit| Coordination::Permit { epoch, permit });
        for said in others.into_iter().chain(permits) {
            assert_eq!(decode(&encode(&said)), Ok(said));
            assert_eq!(Coordination::from(failover::Message::from(said)), said);
        }
        let header = ControlHeader {
            incarnation: u32::MAX,
            sequence: all,
            flow: u8::MAX,
            made_at: all,
            made_at_leaders: Some((all, all)),
            copy: Some(u32::MAX),
        };
        let control = Parcel::Control {
            topic: "\u{10ffff}".repeat(64),
            header,
        };
        assert_eq!(unpack(&pack(&control)), Ok((control.clone(), pack(&control).len())));
        let probe = Probe {
            path: u8::MAX,
            incarnation: u32::MAX,
            number: u32::MAX,
            sent_at: all,
        };
        let echo = Echo {
            probe,
            newest: u32::MAX,
            seen: all,
        };
        let message = HeardMessage {
            robot: u16::MAX,
            flow: u8::MAX,
            made_at: all,
        };
        let heard = Heard {
            clock: all,
            messages: vec![message; HEARD_MAX],
        };
        for parcel in [Parcel::Probe(probe), Parcel::Echo(echo), Parcel::Heard(heard)] {
            assert_eq!(decode(&encode(&parcel)), Ok(parcel));
        }
        assert_eq!(Echo::from(paths::Echo::from(echo)), echo);
        let model = Model {
            topic: u8::MAX,
            period: all,
            phase: all,
            sigma: all,
            early: all,
            late: all,
        };
        let models = Models {
            clock: all,
            models: vec![model; crate::brain::TOPICS_MAX],
        };
        assert_eq!(decode(&encode(&models)), Ok(models));
        let reply = TimeReply {
            clock: all,
            echo: all,
            received_at: all,
            sent_at: all,
        };
        assert_eq!(decode(&encode(&reply)), Ok(reply));
        assert_eq!(
            decode(&encode(&TimeQuery { sent_at: all })),
            Ok(TimeQuery { sent_at: all })
        );
    }

    #[test]
    fn a_message_on_a_link_is_read_as_it_was_written() {
        let parcel = Parcel::Probe(Probe {
            path: 1,
            incarnation: 2,
            number: 3,
            sent_at: 4,
        });
        let head = pack(&parcel);
        let whole = [head.as_slice(), b"content"].concat();
        assert_eq!(unpack(&whole), Ok((parcel, head.len())));
        for cut in 0..head.len() {
            assert_eq!(unpack(&head[..cut]), Err(Refusal::Malformed), "{cut}");
        }
        let mut newer = whole;
        newer[4] = 9;
        assert_eq!(unpack(&newer), Err(Refusal::Version(9)));
        assert_eq!(unpack(&[0xff; 700]), Err(Refusal::Malformed));
        let long = [600u16.to_le_bytes().as_slice(), &[0; 600]].concat();
        assert_eq!(unpack(&long), Err(Refusal::Oversized));
    }

    /// What reads frames of one kind: the kind's name and number, and how.
    type Reader = (&'static str, u8, fn(&[u8]));

    fn reader<F: Frame>() -> Reader {
        let name = std::any::type_name::<F>().rsplit("::").next().unwrap();
        (name, F::KIND, |bytes| {
            let _ = decode::<F>(bytes);
        })
    }

    /// All kinds.
    fn readers() -> [Reader; 10] {
        [
            reader::<Coordination>(),
            reader::<TimeQuery>(),
            reader::<TimeReply>(),
            reader::<Status>(),
            reader::<Models>(),
            reader::<Begin>(),
            reader::<Answer>(),
            reader::<Start>(),
            reader::<Parcel>(),
            reader::<fleet::Fleet>(),
        ]
    }

    #[test]
    fn no_kind_is_left_out_here_or_in_the_fuzzer_and_each_has_a_number_of_its_own() {
        fn kinds_below(folder: &Path, kinds: &mut BTreeSet<String>) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    kinds_below(&path, kinds);
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap();
                let of = text.lines().filter_map(|line| line.strip_prefix("impl Frame for "));
                kinds.extend(of.map(|rest| rest.trim_end_matches(" {").to_owned()));
            }
        }
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut kinds = BTreeSet::new();
        kinds_below(&package.join("src"), &mut kinds);
        let names = readers().map(|(name, ..)| name.to_owned());
        assert_eq!(kinds, BTreeSet::from(names));
        let numbers = BTreeSet::from(readers().map(|(_, kind, _)| kind));
        assert_eq!(numbers.len(), kinds.len());
        let fuzzer = std::fs::read_to_string(package.join("../../fuzz/fuzz_targets/wire.rs")).unwrap();
        for kind in kinds {
            assert!(
                fuzzer.contains(&format!("read::<{kind}>(body)")),
                "{kind} is not fuzzed"
            );
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            for (_, kind, read) in readers() {
                read(&bytes);
                read(&[&[b'C', b'o', VERSION, kind], bytes.as_slice()].concat());
            }
            let _ = unpack(&bytes);
        }
    }
}
