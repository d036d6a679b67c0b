//! One federate's part in decentralised coordination (Kwok, section IV-B).
//!
//! Federates send to each other directly, and none grants anything. [`Decentralised`] opens a tag as soon as all inputs
//! are known up to it, or the clock has passed it by the *safe-to-process offset*. So if inputs are unknown by then, it
//! assumes that no message will arrive. A message that does arrive is a **violation**, and is reported with its
//! intended tag. The value goes to the reactions that handle late values of that input, at the next tag that is still
//! free. Without such reactions, it has no effect. Without violations, the result equals the result of centralised
//! coordination.
//!
//! - By default there is no offset: a federate waits until its inputs are known, forever if necessary. With an offset,
//!   it stops waiting as soon as they are known.
//! - An input becomes known by a message or by a promise of its sender. A promise follows from the sender's next event,
//!   its own inputs and its clock. The sender repeats it with each tag, as soon as more is known about the near future,
//!   and at an interval while it waits.
//! - An input with a delay is known for that long from the start. At an open tag, inputs without a delay may still be
//!   unknown. Then their level waits, up to the offset plus the offset within a tag.
//! - A link that ends before its federate has resigned is a fault. The fault is reported, and the inputs from that
//!   federate stay absent.
//!
//! - No federate can foresee the last tag, at which every federate has an event. So promises about that tag are void
//!   once it is decided, but messages already sent for it count.
//!
//! In a zero-delay cycle no member can promise anything, so its members need an offset. [`Federate`](super::Federate)
//! agrees on the start and the last tag over the RTI. Left out: negative offsets, because logical time is never ahead
//! of the clock.

use super::graph::{ElementId, Graph, Link, ReactionId};
use super::program::FederateId;
use super::scheduler::{Effects, Ready, Refused, Scheduler, SchedulerConfig, Step, Value, Waits};
use super::{Delay, Tag};
use crate::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

/// A promise up to this many null-message intervals ahead is sent as soon as more is known.
const NEAR_INTERVALS: u64 = 10;

/// The settings of a federate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DecentralisedConfig {
    /// The settings of the scheduler.
    pub scheduler: SchedulerConfig,
    /// The time after a tag by which all messages for it have arrived. It must exceed the sum of message delays, clock
    /// errors and durations of reactions upstream. `None` to wait until all inputs are known.
    pub offset: Option<Duration>,
    /// How much longer to wait at an open tag for inputs without a delay. In a zero-delay cycle, members may open a tag
    /// only at their offsets, and then send to each other at that tag. So use more than one round of messages.
    pub offset_within_tag: Duration,
    /// The minimum time between two promises about one input while no tag completes and no more is known about the near
    /// future.
    pub null_interval: Duration,
    /// The maximum number of messages kept before the start.
    pub early_max: usize,
}

impl Default for DecentralisedConfig {
    fn default() -> Self {
        DecentralisedConfig {
            scheduler: SchedulerConfig::default(),
            offset: None,
            offset_within_tag: Duration::ZERO,
            null_interval: Duration::from_millis(10),
            early_max: 4096,
        }
    }
}

/// A federate of a zero-delay cycle has no offset, so it would wait forever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeedsOffset {
    /// The name of the federate.
    pub federate: String,
}

impl fmt::Display for NeedsOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.federate;
        write!(
            f,
            "{name} is part of a zero-delay cycle: give it an offset, or a connection of the cycle a delay"
        )
    }
}

impl std::error::Error for NeedsOffset {}

/// A message from one federate to another, for one of the receiver's inputs. Must be delivered in order and without
/// loss.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PeerMessage<V> {
    /// A value.
    Value {
        /// The input.
        input: ElementId,
        /// The tag at the receiver. On a physical connection, the tag at the sender.
        tag: Tag,
        /// The value.
        value: V,
    },
    /// No more values with a tag up to this one. From a federate that has ended, this is [`Tag::FOREVER`].
    Absent {
        /// The input.
        input: ElementId,
        /// The tag.
        tag: Tag,
    },
    /// A promise: no more values up to this tag, as far as the sender can foresee. It cannot foresee the last tag.
    Known {
        /// The input.
        input: ElementId,
        /// The tag.
        through: Tag,
    },
}

/// An action for the driver.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DecentralisedAction<V> {
    /// Send to another federate.
    Send {
        /// The receiver.
        to: FederateId,
        /// The message.
        message: PeerMessage<V>,
    },
    /// Run these reactions, and pass the effects of each to [`Decentralised::finish`].
    Run {
        /// The tag of the reactions.
        tag: Tag,
        /// How far the clock is ahead of the tag.
        lag: Duration,
        /// The reactions.
        reactions: Vec<Ready>,
    },
    /// A message arrived after its tag.
    Violation {
        /// The input.
        input: ElementId,
        /// The intended tag of the message.
        meant: Tag,
        /// The tag that had been reached.
        reached: Tag,
        /// When the reactions that handle late values see the message. `None` if there are none, or if the program ends
        /// before.
        handled: Option<Tag>,
    },
    /// A reaction wants the program to end, at this tag at the earliest.
    StopRequested(Tag),
    /// The link to a federate ended before that federate resigned. Its outputs stay absent from now on.
    Gone(FederateId),
    /// The result no longer follows from the program.
    Fault(Refused),
    /// The last tag is complete and has been announced.
    Ended,
}

/// Knowledge about an input from another federate, over a logical connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Known {
    from: FederateId,
    is_direct: bool,
    /// The tag up to which the sender's messages, or its death, make the input known.
    told: Tag,
    /// The tag up to which no more messages arrive, by the sender's messages and promises.
    through: Tag,
}

/// A scheduler under decentralised coordination.
#[derive(Clone, Debug, Hash)]
pub struct Decentralised<V> {
    graph: Arc<Graph>,
    id: FederateId,
    config: DecentralisedConfig,
    scheduler: Scheduler<V>,
    known: BTreeMap<ElementId, Known>,
    /// Per input of another federate, the tag of the latest promise.
    promised: BTreeMap<ElementId, Tag>,
    promised_at: Instant,
    /// Whether more has become known about the inputs since the last promise.
    knows_more: bool,
    early: Vec<PeerMessage<V>>,
    outbox: VecDeque<DecentralisedAction<V>>,
}

impl<V: Value> Decentralised<V> {
    /// Creates a federate of a program.
    ///
    /// # Errors
    /// If it would wait forever.
    pub fn new(graph: Arc<Graph>, id: FederateId, config: DecentralisedConfig) -> Result<Self, NeedsOffset> {
        let info = graph.federate(id);
        if let Some(info) = info.filter(|info| info.cycle.is_some() && config.offset.is_none()) {
            let federate = info.name.clone();
            return Err(NeedsOffset { federate });
        }
        let scheduler = Scheduler::new(Arc::clone(&graph), id, Waits::OnAll, config.scheduler.clone());
        let inputs = info.map_or(&[][..], |info| &info.inputs).iter().filter_map(|input| {
            let link = graph.element(*input)?.from?;
            // Nothing is sent before the start, so nothing arrives before the delay.
            let through = (Tag::START + link.delay()).before();
            let (from, is_direct) = (link.federate, link.is_direct());
            Some((
                *input,
                Known {
                    from,
                    is_direct,
                    told: Tag::NEVER,
                    through,
                },
            ))
        });
        Ok(Decentralised {
            known: inputs.collect(),
            id,
            config,
            scheduler,
            promised: BTreeMap::new(),
            promised_at: Instant::ZERO,
            knows_more: false,
            early: Vec::new(),
            outbox: VecDeque::new(),
            graph,
        })
    }

    /// Returns the scheduler, for reading ports, tags and the clock.
    pub fn scheduler(&self) -> &Scheduler<V> {
        &self.scheduler
    }

    /// Returns whether all federates that send to this one have ended or died, and all their messages have arrived.
    pub fn has_heard_all(&self) -> bool {
        self.known.values().all(|known| known.told == Tag::FOREVER)
    }

    /// Opens neither `tag` nor any later one until a stop is decided.
    pub fn hold(&mut self, tag: Tag) {
        self.scheduler.hold(tag);
    }

    /// Returns whether nothing more can happen here: no event is left, no message can arrive, and no clock can cause an
    /// event.
    pub fn is_done(&self) -> bool {
        self.scheduler.is_starved() && self.known.values().all(|known| known.through == Tag::FOREVER)
    }

    /// Starts the program. Tags count from `start`.
    pub fn start(&mut self, start: Instant, now: Instant) {
        self.scheduler.start(start, Tag::START);
        for message in std::mem::take(&mut self.early) {
            self.on_message(message, now);
        }
    }

    /// Sets the program's last tag.
    ///
    /// # Errors
    /// As in [`Scheduler::stop_at`].
    pub fn stop_at(&mut self, tag: Tag) -> Result<(), Refused> {
        if self.scheduler.stop() == tag {
            return Ok(());
        }
        self.scheduler.stop_at(tag)?;
        self.scheduler.revoke_from(tag);
        // A sender that promised more did not know that every federate has an event at the last tag.
        for known in self.known.values_mut().filter(|known| known.is_direct) {
            known.through = tag.before().min(known.through).max(known.told);
        }
        for promised in self.promised.values_mut() {
            *promised = tag.before().min(*promised);
        }
        Ok(())
    }

    /// Handles a message of another federate. Before the start, the message is kept.
    pub fn on_message(&mut self, message: PeerMessage<V>, now: Instant) {
        if self.scheduler.started_at().is_none() {
            if self.early.len() < self.config.early_max {
                self.early.push(message);
            } else {
                self.outbox.push_back(DecentralisedAction::Fault(Refused::NotStarted));
            }
            return;
        }
        match message {
            PeerMessage::Value { input, tag, value } => {
                match self.scheduler.on_message(input, tag, value.clone(), now) {
                    Ok(()) | Err(Refused::Stopped) => {}
                    Err(Refused::Tardy { input, meant, reached }) => {
                        self.outbox
                            .push_back(match self.scheduler.on_tardy(input, meant, value) {
                                Ok(handled) => DecentralisedAction::Violation {
                                    input,
                                    meant,
                                    reached,
                                    handled,
                                },
                                Err(refused) => DecentralisedAction::Fault(refused),
                            });
                    }
                    Err(refused) => self.outbox.push_back(DecentralisedAction::Fault(refused)),
                }
                // Over a delay, several microsteps of the sender arrive at one tag.
                let is_direct = self.known.get(&input).is_some_and(|known| known.is_direct);
                self.note_told(input, if is_direct { tag } else { tag.before() });
            }
            PeerMessage::Absent { input, tag } => self.note_told(input, tag),
            PeerMessage::Known { input, through } => self.note_known(input, through),
        }
    }

    /// Records that a federate died, or that the link to it ended. Has no effect if that federate has ended.
    pub fn on_gone(&mut self, federate: FederateId) {
        let from_it = self.known.iter().filter(|(_, known)| known.from == federate);
        let unknown: Vec<_> = from_it
            .filter(|(_, known)| known.told < Tag::FOREVER)
            .map(|(input, _)| *input)
            .collect();
        if unknown.is_empty() {
            return;
        }
        self.outbox.push_back(DecentralisedAction::Gone(federate));
        for input in unknown {
            self.note_told(input, Tag::FOREVER);
        }
    }

    /// Schedules a physical action. Returns its tag.
    ///
    /// # Errors
    /// If there is no such action, the program does not run, or the queue is full.
    pub fn on_physical(&mut self, action: ElementId, value: Option<V>, now: Instant) -> Result<Tag, Refused> {
        self.scheduler.on_physical(action, value, now)
    }

    /// Records the effects of a reaction or of its late handler.
    ///
    /// # Errors
    /// As in [`Scheduler::finish`].
    pub fn finish(&mut self, reaction: ReactionId, effects: Effects<V>, now: Instant) -> Result<(), Refused> {
        self.scheduler.finish(reaction, effects, now)
    }

    /// Returns the next action at `now`, until `None`.
    pub fn poll(&mut self, now: Instant) -> Option<DecentralisedAction<V>> {
        loop {
            if let Some(action) = self.outbox.pop_front() {
                return Some(action);
            }
            self.permit(now);
            match self.scheduler.poll(now) {
                Some(Step::Run { tag, lag, reactions }) => {
                    return Some(DecentralisedAction::Run { tag, lag, reactions })
                }
                Some(Step::Send { to, input, tag, value }) => {
                    let message = match value {
                        Some(value) => PeerMessage::Value { input, tag, value },
                        None => PeerMessage::Absent { input, tag },
                    };
                    return Some(DecentralisedAction::Send { to, message });
                }
                Some(Step::StopRequested(tag)) => return Some(DecentralisedAction::StopRequested(tag)),
                Some(Step::Completed(_)) => self.promise(now),
                Some(Step::Ended) => {
                    let links: Vec<_> = self.links().collect();
                    for link in links {
                        let (to, input, tag) = (link.federate, link.other, Tag::FOREVER);
                        self.promised.insert(input, tag);
                        let message = PeerMessage::Absent { input, tag };
                        self.outbox.push_back(DecentralisedAction::Send { to, message });
                    }
                    self.outbox.push_back(DecentralisedAction::Ended);
                }
                Some(Step::Fault(refused)) => return Some(DecentralisedAction::Fault(refused)),
                None => {
                    let is_due = now >= self.promised_at + self.config.null_interval;
                    if is_due || self.knows_more && self.is_near(now) {
                        self.promise(now);
                    }
                    return self.outbox.pop_front();
                }
            }
        }
    }

    /// Returns when to call [`Decentralised::poll`] again, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        let start = self.scheduler.started_at()?;
        let next = self.scheduler.next_tag();
        let (granted, provisional) = self.scheduler.grants();
        let waits = next.time().filter(|_| granted < next).zip(self.config.offset);
        let more = if provisional < next {
            Duration::ZERO
        } else {
            self.config.offset_within_tag
        };
        let expires = waits.map(|(time, offset)| start + (time + offset + more));
        let promise = self
            .would_promise()
            .then(|| self.promised_at + self.config.null_interval);
        expires
            .into_iter()
            .chain(self.scheduler.next_deadline())
            .chain(promise)
            .min()
    }

    fn note_told(&mut self, input: ElementId, through: Tag) {
        if let Some(known) = self.known.get_mut(&input) {
            self.knows_more |= through > known.through;
            known.told = known.told.max(through);
            known.through = known.through.max(through);
            // Errors only for an input that this federate does not have. Those are ignored.
            let _ = self.scheduler.on_absent(input, through);
        }
    }

    fn note_known(&mut self, input: ElementId, through: Tag) {
        let Some(known) = self.known.get_mut(&input) else {
            return;
        };
        // A promise of the last tag or a later one is older than the decision.
        let stop = self.scheduler.stop();
        let is_old = known.is_direct && stop <= through;
        let through = known.through.max(if is_old { stop.before() } else { through });
        self.knows_more |= through > known.through;
        known.through = through;
        // A finite tag, because the scheduler revokes all promises except infinite ones.
        let through = known.through.min(Tag::at(Duration::MAX, u32::MAX));
        self.scheduler.on_promise(input, through);
    }

    /// Lets the scheduler advance as far as is known or assumed.
    fn permit(&mut self, now: Instant) {
        let next = self.scheduler.next_tag();
        let (Some(time), Some(elapsed)) = (next.time(), self.scheduler.elapsed(now)) else {
            return;
        };
        let waited = |more: Duration| self.config.offset.is_some_and(|offset| elapsed >= time + offset + more);
        let known = |by: fn(&Known) -> bool, through: Tag| {
            let inputs = self.known.values().filter(|known| by(known));
            inputs.map(|known| known.through).all(|known| known >= through)
        };
        if known(|_| true, next) || waited(self.config.offset_within_tag) {
            self.scheduler.advance_to(next);
        } else if known(|k| k.is_direct, next.before()) && known(|k| !k.is_direct, next) || waited(Duration::ZERO) {
            self.scheduler.advance_provisionally(next);
        }
    }

    /// Returns the earliest tag at which this federate may still do anything.
    fn earliest(&self, now: Instant) -> Tag {
        let inputs = self
            .known
            .values()
            .map(|known| known.through.next())
            .min()
            .unwrap_or(Tag::FOREVER);
        let physical = self
            .graph
            .federate(self.id)
            .and_then(|federate| federate.physical_delay);
        let elapsed = self.scheduler.elapsed(now).unwrap_or(Duration::ZERO);
        let physical = physical.map_or(Tag::FOREVER, |delay| Tag::at(elapsed, 0) + Delay::of_connection(delay));
        let reached = self.scheduler.reached();
        self.scheduler
            .next_tag()
            .min(inputs.max(reached.next()))
            .min(physical.max(reached.next()))
    }

    fn promise(&mut self, now: Instant) {
        if self.scheduler.started_at().is_some() {
            let earliest = self.earliest(now);
            self.scheduler.promise(earliest);
            self.promise_up_to(earliest, now);
        }
    }

    /// Returns whether a promise would concern the near future. Then it is sent as soon as more is known, because
    /// others may wait for it. In a loop of short delays, each promise has to travel around the whole loop. Far ahead,
    /// promises would only chase each other.
    fn is_near(&self, now: Instant) -> bool {
        let elapsed = self.scheduler.elapsed(now).unwrap_or(Duration::ZERO);
        let horizon = elapsed + self.config.null_interval * NEAR_INTERVALS;
        self.earliest(now) <= Tag::at(horizon, 0)
    }

    /// Returns whether the passage of time, or what has arrived, would allow a further promise.
    fn would_promise(&self) -> bool {
        let has_clock = self
            .graph
            .federate(self.id)
            .is_some_and(|federate| federate.physical_delay.is_some());
        let earliest = self.earliest(Instant::ZERO);
        let mut links = self.links();
        links.any(|link| has_clock || self.promise_to(&link, earliest).is_some())
    }

    /// Returns the logical connections to other federates.
    fn links(&self) -> impl Iterator<Item = Link> + '_ {
        let outputs = self
            .graph
            .federate(self.id)
            .map_or(&[][..], |federate| &federate.outputs);
        let elements = outputs.iter().filter_map(|output| self.graph.element(*output));
        let links = elements.flat_map(|element| element.to.iter().copied());
        links.filter(|link| !link.physical && link.federate != self.id)
    }

    /// Returns what can be promised over a connection, if that is more than before.
    fn promise_to(&self, link: &Link, earliest: Tag) -> Option<Tag> {
        let through = (earliest + link.delay()).before();
        let before = self
            .promised
            .get(&link.other)
            .copied()
            .unwrap_or((Tag::START + link.delay()).before());
        (through > before && before < Tag::FOREVER).then_some(through)
    }

    fn promise_up_to(&mut self, earliest: Tag, now: Instant) {
        self.promised_at = now;
        self.knows_more = false;
        let links: Vec<_> = self.links().collect();
        for link in links {
            if let Some(through) = self.promise_to(&link, earliest) {
                self.promised.insert(link.other, through);
                let (to, input) = (link.federate, link.other);
                let message = PeerMessage::Known { input, through };
                self.outbox.push_back(DecentralisedAction::Send { to, message });
            }
        }
    }
}

#[cfg(test)]
mod tests;
