//! What the RTI knows of one federate.

use super::super::program::FederateId;
use super::super::protocol::{Message, Report};
use super::super::Tag;
use super::{Numbers, DELIVERED_EVERY};
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Status {
    /// Does not take part yet, or is dead.
    Absent,
    /// Takes part.
    Present,
    /// Has completed the last tag.
    Resigned,
}

/// A message that may not have reached its receiver.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct InTransit {
    from: FederateId,
    number: u64,
    /// `None` if its arrival is no event.
    tag: Option<Tag>,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Node<V> {
    pub status: Status,
    /// Its link ended, and no new one has come.
    pub is_gone: bool,
    /// The tag from which on it takes part.
    pub first: Tag,
    pub completed: Tag,
    pub granted: Tag,
    pub provisional: Tag,
    /// The first next event of it that somebody waits for, as it was told.
    pub awaited: Tag,
    /// The first one that somebody waited for lately, and how many messages in a row have not changed that.
    pub unneeded: (Tag, u32),
    /// Its next event, lowered by everything forwarded since it was told.
    next: Tag,
    /// Whether `next` is not known to be an event.
    is_bound: bool,
    /// The program's last tag; [`Tag::FOREVER`] until it is decided.
    last: Tag,
    in_transit: VecDeque<InTransit>,
    /// How many messages of this link are acknowledged.
    acknowledged: u64,
    /// Per sender, the number of the last message that was forwarded or dropped.
    pub last_from: Numbers,
    /// Per sender, the last number acknowledged, and the last one that the sender was told.
    delivered: BTreeMap<FederateId, (u64, u64)>,
    /// Per sender, up to where it was told that nothing more comes.
    pub settled: BTreeMap<FederateId, Tag>,
    /// The latest tag of a message that was dropped.
    pub dropped: Tag,
    /// Messages to it that wait until all have reported.
    pub held: Vec<Message<V>>,
    /// Until all have reported.
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

    /// The earliest event that it can have by itself, and whether that is not known to be one.
    pub fn event(&self) -> (Tag, bool) {
        if self.status != Status::Present {
            return (Tag::FOREVER, true);
        }
        // At the last tag everybody has an event, even those who have not heard of it.
        if self.completed < self.last && self.last <= self.next {
            return (self.last, false);
        }
        (self.next, self.is_bound)
    }

    /// The tag of [`Node::event`].
    pub fn next(&self) -> Tag {
        self.event().0
    }

    /// The earliest tag for which it may still want a grant.
    pub fn wants(&self) -> Tag {
        self.next().max(self.granted.next())
    }

    /// A link is there. Its counts begin anew.
    pub fn connect(&mut self) {
        self.is_gone = false;
        self.acknowledged = 0;
    }

    /// It takes part from `first` on.
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

    /// It goes on as it reported.
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
        // A message that is not acknowledged may still have been taken into account, and be done.
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

    /// It has received `count` messages. Returns what their senders should be told.
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
        // It has agreed to hold before this tag. When it was granted, nobody had an event here.
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

    /// Returns, by sender, the last message that it may not have received, and will not need.
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
