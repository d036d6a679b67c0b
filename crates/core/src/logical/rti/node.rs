//! What the RTI knows about one federate.

use super::super::program::FederateId;
use super::super::protocol::{Message, Report};
use super::super::Tag;
use super::{Numbers, DELIVERED_EVERY};
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Status {
    /// The federate does not take part yet, or is dead.
    Absent,
    /// The federate takes part.
    Present,
    /// The federate has completed the last tag.
    Resigned,
}

/// A message that may not have reached its receiver.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct InTransit {
    from: FederateId,
    number: u64,
    /// The tag; `None` if the arrival is not an event.
    tag: Option<Tag>,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Node<V> {
    pub status: Status,
    /// Whether the link ended and there is no new one.
    pub is_gone: bool,
    /// The first tag at which the federate takes part.
    pub first: Tag,
    pub completed: Tag,
    pub granted: Tag,
    pub provisional: Tag,
    /// The first awaited next event of this federate, as reported to it.
    pub awaited: Tag,
    /// The first next event that was lately awaited, and the number of consecutive messages that have not changed it.
    pub unneeded: (Tag, u32),
    /// The next event, lowered by messages forwarded since it was reported.
    next: Tag,
    /// Whether `next` is only a bound, not certainly an event.
    is_bound: bool,
    /// The program's last tag; [`Tag::FOREVER`] until it is decided.
    last: Tag,
    in_transit: VecDeque<InTransit>,
    /// The number of messages of this link that are acknowledged.
    acknowledged: u64,
    /// Per sender, the number of the last message that was forwarded or dropped.
    pub last_from: Numbers,
    /// Per sender, the last number acknowledged, and the last number reported to the sender.
    delivered: BTreeMap<FederateId, (u64, u64)>,
    /// Per sender, the tag up to which this federate was told that no more messages will arrive.
    pub settled: BTreeMap<FederateId, Tag>,
    /// The latest tag of a message that was dropped.
    pub dropped: Tag,
    /// Messages to this federate that are held until all have reported.
    pub held: Vec<Message<V>>,
    /// The report, until all have reported.
    pub report: Option<Box<Report<V>>>,
}

impl<V> Node<V> {
    pub fn new() -> Self {
        Node {
            status: Status::Absent,
            is_gone: false,
            first: Tag::START,
            completed: Tag::NEVER,
            granted: Tag::NEVER,
            provisional: Tag::NEVER,
            awaited: Tag::NEVER,
            unneeded: (Tag::NEVER, 0),
            next: Tag::START,
            is_bound: true,
            last: Tag::FOREVER,
            in_transit: VecDeque::new(),
            acknowledged: 0,
            last_from: Numbers::new(),
            delivered: BTreeMap::new(),
            settled: BTreeMap::new(),
            dropped: Tag::NEVER,
            held: Vec::new(),
            report: None,
        }
    }

    /// Returns the tag of the earliest event that the federate can have by itself, and whether that is only a bound.
    pub fn event(&self) -> (Tag, bool) {
        if self.status != Status::Present {
            return (Tag::FOREVER, true);
        }
        // At the last tag every federate has an event, even if it does not know that tag yet.
        if self.completed < self.last && self.last <= self.next {
            return (self.last, false);
        }
        (self.next, self.is_bound)
    }

    /// Returns the tag of [`Node::event`].
    pub fn next(&self) -> Tag {
        self.event().0
    }

    /// Returns the earliest tag for which the federate may still want a grant.
    pub fn wants(&self) -> Tag {
        self.next().max(self.granted.next())
    }

    /// Records a new link, whose counts begin at zero.
    pub fn connect(&mut self) {
        self.is_gone = false;
        self.acknowledged = 0;
    }

    /// Lets the federate take part from `first` on.
    pub fn join(&mut self, first: Tag) {
        self.status = Status::Present;
        self.first = first;
        self.completed = first.before();
        self.granted = Tag::NEVER;
        self.provisional = Tag::NEVER;
        self.awaited = Tag::NEVER;
        self.next = first;
        self.is_bound = true;
        self.settled.clear();
    }

    /// Lets the federate continue from its report.
    pub fn resume(&mut self, report: &Report<V>) {
        self.completed = report.completed;
        self.granted = report.granted;
        self.provisional = report.provisional;
        self.on_next(report.next, report.is_bound);
        self.status = if report.has_ended {
            Status::Resigned
        } else {
            Status::Present
        };
    }

    pub fn on_next(&mut self, tag: Tag, is_bound: bool) {
        // A message that is not acknowledged may already have been taken into account and be done.
        let coming = self.in_transit.iter().filter_map(|message| message.tag);
        let coming = coming.filter(|tag| *tag > self.completed).min().unwrap_or(Tag::FOREVER);
        self.is_bound = is_bound && tag < coming;
        self.next = tag.min(coming);
    }

    pub fn on_completed(&mut self, tag: Tag) {
        self.completed = tag.max(self.completed);
        if self.next <= self.completed {
            self.next = self.completed.next();
            self.is_bound = true;
        }
    }

    pub fn on_forwarded(&mut self, from: FederateId, number: u64, tag: Option<Tag>) {
        self.in_transit.push_back(InTransit { from, number, tag });
        if let Some(tag) = tag.filter(|tag| *tag <= self.next) {
            self.next = tag;
            self.is_bound = false;
        }
    }

    /// Records that the federate has received `count` messages. Returns the numbers to report to their senders.
    pub fn acknowledge(&mut self, count: u64) -> Vec<(FederateId, u64)> {
        let mut news = Vec::new();
        while self.acknowledged < count {
            let Some(message) = self.in_transit.pop_front() else {
                break;
            };
            self.acknowledged += 1;
            let (last, told) = self.delivered.entry(message.from).or_default();
            *last = message.number;
            if *last >= *told + DELIVERED_EVERY {
                *told = *last;
                news.push((message.from, message.number));
            }
        }
        news
    }

    pub fn stop_at(&mut self, tag: Tag) {
        self.last = tag;
        self.unneeded = (Tag::NEVER, 0);
        // The federate has agreed to hold before this tag. When a later tag was granted, no federate had an event here.
        if self.completed < tag {
            self.granted = self.granted.min(tag.before());
            if self.provisional >= tag {
                self.provisional = Tag::NEVER;
            }
        }
        for settled in self.settled.values_mut() {
            *settled = tag.before().min(*settled);
        }
    }

    pub fn drop_message(&mut self, tag: Tag) {
        self.dropped = tag.max(self.dropped);
    }

    /// Records the federate's death. Returns, by sender, the last message that it may not have received and will not
    /// need.
    pub fn die(&mut self) -> Numbers {
        self.status = Status::Absent;
        self.is_gone = true;
        self.report = None;
        let tags = self.in_transit.iter().filter_map(|message| message.tag);
        self.dropped = tags.max().unwrap_or(Tag::NEVER).max(self.dropped);
        self.in_transit
            .drain(..)
            .map(|message| (message.from, message.number))
            .collect()
    }
}
