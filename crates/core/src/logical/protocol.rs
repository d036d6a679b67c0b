//! The messages between federates and the RTI (Kwok, section IV-A).
//!
//! | here | in Kwok and in Lingua Franca |
//! | --- | --- |
//! | [`Up::NextEvent`] | NET, next event tag; with `is_bound`, a null message |
//! | [`Up::Completed`] | LTC, logical tag complete |
//! | [`Down::Grant`], [`Down::Provisional`] | TAG, PTAG: (provisional) tag advance grant |
//! | [`Down::Awaited`] | DNET, downstream next event tag, plus one: the first that matters |
//! | [`Message`] without a value | absent message |
//!
//! Each direction of each link must deliver in order and without loss, as a stream does, for as long as the link lasts.
//! Messages of different links may arrive in any order. Values are whatever the driver wants to route: small values, or
//! references to payloads that travel elsewhere.
//!
//! **Messages outlive an RTI.** The sender numbers its messages to each receiver and keeps them until the receiver has
//! them. The receiver counts the messages that its link delivered, and reports the count in each [`Envelope`]. With
//! that count, the RTI knows exactly which messages a next event tag accounts for.
//!
//! Left out: encoding and authentication. Members are trusted.

use super::graph::ElementId;
use super::program::FederateId;
use super::Tag;
use crate::failover::Epoch;
use crate::Instant;
use serde::{Deserialize, Serialize};

/// A value on its way from one federate to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message<V> {
    /// The sender.
    pub from: FederateId,
    /// The receiver.
    pub to: FederateId,
    /// The number of this message from this sender to this receiver, from 1.
    pub number: u64,
    /// The receiver's input.
    pub input: ElementId,
    /// The tag at the receiver. On a physical connection, the tag at the sender.
    pub tag: Tag,
    /// The value. `None` says that the input stays absent at this tag.
    pub value: Option<V>,
}

/// All that an RTI has to know about a federate. Answers [`Down::Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Report<V> {
    /// The federate's time. Before the start, the earliest start that the federate accepts.
    pub now: Instant,
    /// When the program started. `None` if this federate has not started.
    pub start: Option<Instant>,
    /// The tag up to which everything is done and sent.
    pub completed: Tag,
    /// The tag up to which the federate was granted, by any RTI.
    pub granted: Tag,
    /// The latest tag that the federate was granted provisionally.
    pub provisional: Tag,
    /// As in [`Up::NextEvent`].
    pub next: Tag,
    /// As in [`Up::NextEvent`].
    pub is_bound: bool,
    /// Per sender, the number of its latest message received here.
    pub received: Vec<(FederateId, u64)>,
    /// The federates reported dead to this one.
    pub gone: Vec<FederateId>,
    /// The federate's own messages that may not have arrived.
    pub retained: Vec<Message<V>>,
    /// The earliest last tag that the federate would accept, if it requested the end or was asked about it.
    pub stop_proposal: Option<Tag>,
    /// The last tag, if the federate knows it.
    pub stop: Option<Tag>,
    /// Whether the federate has resigned.
    pub has_ended: bool,
}

/// A message from a federate to the RTI.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Up<V> {
    /// The answer to [`Down::Hello`].
    Report(Box<Report<V>>),
    /// The federate's next event has this tag, unless it receives a message. All messages with an earlier tag are sent.
    NextEvent {
        /// The tag. [`Tag::FOREVER`] if the federate waits only for messages.
        tag: Tag,
        /// Whether there is no event at this tag, but a physical action could still get it.
        is_bound: bool,
    },
    /// Everything up to this tag is done and sent.
    Completed(Tag),
    /// A message to another federate.
    Message(Message<V>),
    /// The program has to end, at this tag at the earliest. This federate opens no later tag until it knows the last
    /// one.
    StopRequest(Tag),
    /// The same, as an answer to [`Down::StopRequest`].
    StopReply(Tag),
    /// No news except the envelope's count.
    Received,
    /// The last tag is complete, and nothing follows. The federate stays reachable until [`Down::Over`].
    Resign,
}

/// A message from the RTI to a federate.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Down<V> {
    /// A new RTI, with a new epoch. Report to it.
    Hello,
    /// The program starts, or has started.
    Start {
        /// The time from which tags count.
        at: Instant,
        /// This federate's first tag: [`Tag::START`], unless it joins later.
        first: Tag,
        /// Per receiver, the number of the last message that this federate sent in an earlier life.
        sent: Vec<(FederateId, u64)>,
    },
    /// Nothing was started: these federates did not report in time.
    StartFailed {
        /// The missing federates.
        missing: Vec<FederateId>,
    },
    /// This federate counts as dead, and others have continued. It has to restart.
    Expelled,
    /// All messages up to this tag have been delivered.
    Grant(Tag),
    /// All messages before this tag have been delivered, and at this tag those from outside the receiver's zero-delay
    /// cycle.
    Provisional(Tag),
    /// No federate downstream waits for a next event before this tag. The receiver may leave out the reports that this
    /// makes unnecessary, until it sends a message or receives another tag.
    Awaited(Tag),
    /// A message from another federate.
    Message(Message<V>),
    /// Within a zero-delay cycle: no more messages from `federate` up to this tag.
    Settled {
        /// The sender.
        federate: FederateId,
        /// The tag.
        through: Tag,
    },
    /// A federate died. All messages that arrived from it have been delivered.
    Gone(FederateId),
    /// A dead federate takes part again, from this tag on.
    Back {
        /// The federate.
        federate: FederateId,
        /// The first tag of that federate.
        first: Tag,
    },
    /// Another federate wants the program to end. Hold, and reply.
    StopRequest,
    /// The program's last tag.
    Stop(Tag),
    /// Every federate has completed the last tag or died.
    Over,
    /// `to` has all messages up to this number, or will never need them.
    Delivered {
        /// The receiver.
        to: FederateId,
        /// The number.
        number: u64,
    },
}

/// The frame of every message on a link.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Envelope<T> {
    /// The epoch of the RTI at one end. Greater than the epochs of earlier RTIs.
    pub epoch: Epoch,
    /// Towards the RTI, the number of messages of other federates that this link has delivered. Otherwise zero.
    pub received: u64,
    /// The content.
    pub body: T,
}
