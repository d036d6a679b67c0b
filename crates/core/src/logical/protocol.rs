//! What federates and the RTI tell each other (Kwok, section IV-A).
//!
//! | here | in the paper and in Lingua Franca |
//! | --- | --- |
//! | [`Up::NextEvent`] | NET, next event tag; with `is_bound`, a null message |
//! | [`Up::Completed`] | LTC, logical tag complete |
//! | [`Down::Grant`], [`Down::Provisional`] | TAG, PTAG: (provisional) tag advance grant |
//! | [`Down::Awaited`] | DNET, downstream next event tag, plus one: the first that matters |
//! | [`Message`] without a value | absent message |
//!
//! Each direction of each link must deliver in order and without loss, as a stream does, for as long as the link lasts.
//! Between links, everything may come in any order. Values are whatever the driver wants routed: small values, or
//! references to payloads that travel elsewhere.
//!
//! **Messages outlive an RTI.** The sender numbers its messages to each receiver and keeps them until the receiver has
//! them. The receiver counts what its link delivered, and says so in each [`Envelope`]. With that count, the RTI knows
//! exactly which messages a next event tag accounts for.
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
    /// Counts the messages from this sender to this receiver, from 1.
    pub number: u64,
    /// The receiver's input.
    pub input: ElementId,
    /// The tag at the receiver. On a physical connection, the tag at the sender.
    pub tag: Tag,
    /// The value. `None` says that the input stays absent at this tag.
    pub value: Option<V>,
}

/// Everything that an RTI has to know of a federate. Answers [`Down::Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Report<V> {
    /// The federate's time. Before the start, it wants to start then at the earliest.
    pub now: Instant,
    /// When the program started. `None` if this federate has not started.
    pub start: Option<Instant>,
    /// The tag up to which all is done and sent.
    pub completed: Tag,
    /// The tag up to which it was granted, under whichever RTI.
    pub granted: Tag,
    /// The latest tag that it was granted provisionally.
    pub provisional: Tag,
    /// As in [`Up::NextEvent`].
    pub next: Tag,
    /// As in [`Up::NextEvent`].
    pub is_bound: bool,
    /// Per sender, the number of its latest message here.
    pub received: Vec<(FederateId, u64)>,
    /// The federates that it was told are dead.
    pub gone: Vec<FederateId>,
    /// Its own messages that may not have arrived.
    pub retained: Vec<Message<V>>,
    /// The earliest last tag that it would accept, if it was asked or asked itself.
    pub stop_proposal: Option<Tag>,
    /// The last tag, if it was told.
    pub stop: Option<Tag>,
    /// Whether it has resigned.
    pub has_ended: bool,
}

/// From a federate to the RTI.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Up<V> {
    /// The answer to [`Down::Hello`].
    Report(Box<Report<V>>),
    /// Its next event has this tag, unless it receives a message. All messages with an earlier tag are sent.
    NextEvent {
        /// The tag. [`Tag::FOREVER`] if it waits for messages only.
        tag: Tag,
        /// There is no event at this tag, but a physical action could still get it.
        is_bound: bool,
    },
    /// Everything up to this tag is done and sent.
    Completed(Tag),
    /// To another federate.
    Message(Message<V>),
    /// The program has to end, at this tag at the earliest. This federate opens no later tag until it is told.
    StopRequest(Tag),
    /// The same, as an answer to [`Down::StopRequest`].
    StopReply(Tag),
    /// Only the envelope's count is new.
    Received,
    /// The last tag is complete, and nothing follows. The federate stays reachable until [`Down::Over`].
    Resign,
}

/// From the RTI to a federate.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Down<V> {
    /// A new RTI, with a new epoch. Report to it.
    Hello,
    /// The program starts, or has started.
    Start {
        /// When tags begin to count.
        at: Instant,
        /// This federate's first tag. [`Tag::START`], unless it joins later.
        first: Tag,
        /// Per receiver, the number of the last message that this federate sent in an earlier life.
        sent: Vec<(FederateId, u64)>,
    },
    /// Nothing was started: these federates did not report in time.
    StartFailed {
        /// The missing federates.
        missing: Vec<FederateId>,
    },
    /// This federate counts as dead, and others have gone on. It has to start anew.
    Expelled,
    /// All messages up to this tag have been delivered.
    Grant(Tag),
    /// All messages before this tag have been delivered, and at this tag those from outside of its zero-delay cycle.
    Provisional(Tag),
    /// Nobody downstream waits for a next event before this tag. What that spares the federate it need not tell, until it
    /// sends a message or is told another tag.
    Awaited(Tag),
    /// From another federate.
    Message(Message<V>),
    /// Within a zero-delay cycle: no more messages from `federate` up to this tag.
    Settled {
        /// The sender.
        federate: FederateId,
        /// The tag.
        through: Tag,
    },
    /// A federate died. All that arrived from it has been delivered.
    Gone(FederateId),
    /// A dead federate takes part again, from this tag on.
    Back {
        /// The federate.
        federate: FederateId,
        /// Its first tag.
        first: Tag,
    },
    /// Another federate wants the program to end. Hold, and reply.
    StopRequest,
    /// The program's last tag.
    Stop(Tag),
    /// Everybody has completed the last tag, or died.
    Over,
    /// `to` has all messages up to this number, or will never need them.
    Delivered {
        /// The receiver.
        to: FederateId,
        /// The number.
        number: u64,
    },
}

/// What travels on a link.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Envelope<T> {
    /// The RTI that it is from or for. Greater than that of any earlier RTI.
    pub epoch: Epoch,
    /// To the RTI: how many messages of other federates this link has delivered. Otherwise zero.
    pub received: u64,
    /// The content.
    pub body: T,
}
