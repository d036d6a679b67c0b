//! Classifies packets of programs that know nothing about Coorp, and decides when they may go. Control goes at once,
//! bulk by permit and gate, the rest as it arrives.
//!
//! [`Protect`] is in the path of all packets that a machine's programs send. Each flow has a [`Class`], by a [`Rule`] or
//! by what it sends (`class.rs`).
//!
//! Small packets of bulk go at once if no packet of their flow waits. Examples are requests, and acknowledgements of
//! traffic in the other direction under the same rule. If held, they would hold up a robot that has a permit. So do the
//! packets of a handshake, if the driver tells them from others ([`Head::opens`]). QUIC fills them up to 1,200 bytes, and
//! each of its answers would wait for a permit of its own. At most 32 in a row do: more are no handshake.
//!
//! TCP's flows whose packets have no payload acknowledge traffic in the other direction. They need no permit, but the
//! driver holds them too while control is due ([`Protect::may_acknowledge`]). A bare acknowledgement may have to wait for
//! another robot's bulk below the agent, and there control cannot overtake it. They also leave together, at most once
//! every [`ACKNOWLEDGE_EVERY`]: an exchange on the air takes nearly as long for one of them as for twenty, and the
//! sender of bulk waits for each.
//!
//! Ordinary packets go down only while few are below the driver, and bulk keeps more there for as long as it may leave. So
//! bulk gives way while an ordinary packet waits for room. If ordinary packets never stop waiting, because a rule makes
//! a sender of more than the channel carries ordinary, both send equally much ([`Protect::bulk_room`]). On a channel so slow
//! that those few packets exceed the gate's bound, bulk then gets less.
//!
//! No flow is ever reordered: as long as packets of a flow wait, the next one waits behind them, whatever the flow's
//! class is by then. Waiting packets change lanes with their flow. A flow becomes control only with the first packet of
//! a message. The driver lets the packets before it, which took another way, leave first.
//!
//! Everything is bounded. If the table of flows is full, the most silent flow without a waiting packet is forgotten. If
//! all flows have waiting packets, new flows share one queue until that is empty.
//!
//! A rule may name the program that sends. The driver finds it out ([`Protect::poll_unknown`]), which takes a while, and
//! until then such a rule covers nothing. It is asked from a flow's second packet on, because each refused connection is
//! a flow of one packet. Only sockets of TCP and UDP belong to a program.
//!
//! DDS sends all topics of two participants through one pair of ports. In DDS, each writer is a flow ([`crate::rtps`]).
//! Its topic is known once its announcement has passed ([`Protect::on_topic`]).
//!
//! Left out: overtaking below the agent, where categories have their own queues, and other flows inside a flow. IP
//! fragments after the first have no ports, so pass port 0 for all fragments of a packet. They form a separate flow,
//! which no rule with ports covers. Its period does not make it control, because it may belong to several programs.

mod class;
mod flows;
mod linger;
mod longest;
mod nature;
mod order;
mod queues;
mod rule;
mod show;
mod topics;

use std::collections::VecDeque;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::rtps::Guid;
use crate::{codel, Duration, Instant};
use class::{earned, LARGE_BYTES, URGENT};
pub use class::{Class, Reason};
use flows::{Entry, Flows, SHARED};
pub use linger::{Idle, Linger};
use nature::{Bounds, MESSAGE_GAP};
use queues::{Lane, Queues};
#[cfg(test)]
pub(crate) use rule::is_match;
pub use rule::{Program, Rule};
use topics::Topics;

/// Maximum number of rules that are read.
pub const RULES_MAX: usize = 256;
/// Maximum number of known flows, whatever the configuration says.
pub const FLOWS_MAX: usize = 65_536;
/// Maximum memory for waiting packets, whatever the configuration says.
pub const BYTES_MAX: u32 = 1 << 30;
/// Maximum number of flows that wait for [`Protect::poll_unknown`]. Others ask again with their next packet.
const UNKNOWN_MAX: usize = 256;
/// The time after which the driver is asked again if it has found no program.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// Maximum number of programs that are kept of one flow.
const PROGRAMS_MAX: usize = 8;
/// Maximum number of changes that wait for [`Protect::poll`]. Beyond it, flows keep their classes.
const CHANGES_MAX: usize = 1_024;
/// Maximum number of silent flows that are forgotten in one call.
const FORGOTTEN_MAX: usize = 64;

/// The length of a full packet with its Ethernet header.
const FULL_BYTES: u64 = 1_514;
/// Maximum number of consecutive packets of a handshake.
const OPENING_MAX: u8 = 32;
/// Packets of bulk up to this length, including headers, pass if no packet of their flow waits.
const SMALL_BYTES: u32 = 256;
/// This many consecutive packets without payload make a flow one of acknowledgements.
const EMPTY_MIN: u8 = 8;
/// The time between two departures of acknowledgements: several aggregates of bulk, so that most of those need no
/// exchange of their own in the other direction. TCP needs to have as much more under way.
pub const ACKNOWLEDGE_EVERY: Duration = Duration::from_millis(4);
/// Number of packets below the driver at which ordinary ones wait. Few, so that a sender of more than the channel carries
/// soon builds up a queue here; but enough for an aggregate, because others may be just behind.
pub const BELOW_ORDINARY_MAX: usize = 16;
const AHEAD_BYTES_MAX: u64 = BELOW_ORDINARY_MAX as u64 * FULL_BYTES;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// One direction of a conversation between two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Flow {
    /// The IP protocol's number (6 is TCP, 17 UDP).
    pub protocol: u8,
    /// The sender's address and port; port 0 if the protocol has none.
    pub from: (IpAddr, u16),
    /// The receiver's address and port; port 0 if the protocol has none.
    pub to: (IpAddr, u16),
    /// The writer, in DDS.
    pub writer: Option<Guid>,
}

/// The configuration of a [`Protect`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The rules. The first one that covers a flow applies; at most [`RULES_MAX`] are read.
    pub rules: Vec<Rule>,
    /// Rules of the agent itself, for flows that none of the above covers. Their control is bounded.
    pub own_rules: Vec<Rule>,
    /// The maximum number of known flows; 1 to [`FLOWS_MAX`].
    pub flows_max: usize,
    /// The maximum memory for one flow's waiting packets, each of which takes at least 256 bytes. One packet may always
    /// wait.
    pub flow_bytes_max: u32,
    /// The maximum memory for all waiting packets; at most [`BYTES_MAX`].
    pub bytes_max: u32,
    /// The maximum rate of control flows that no rule of the team file makes control, in bits per second.
    pub control_bps_max: u64,
    /// The same for flows that their program marks.
    pub marked_bps_max: u64,
    /// The longest control message that is recognised by its period, in bytes including headers.
    pub message_bytes_max: u32,
    /// The delays of waiting packets that are too long.
    pub codel: codel::Config,
}

impl Default for Config {
    /// Returns a configuration without rules. Its limits suit a robot with some hundred connections, and uncompressed
    /// images in datagrams, whose senders nothing slows down.
    fn default() -> Self {
        Config {
            rules: Vec::new(),
            own_rules: Vec::new(),
            flows_max: 4_096,
            flow_bytes_max: 8 << 20,
            bytes_max: 32 << 20,
            control_bps_max: 1_000_000,
            marked_bps_max: 4_000_000,
            message_bytes_max: 4_096,
            codel: codel::Config::default(),
        }
    }
}

/// The fields of a packet that decide its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The addresses.
    pub flow: Flow,
    /// The length, including the IP header.
    pub bytes: u32,
    /// The DSCP, 0 to 63.
    pub dscp: u8,
    /// The length of the message that the packet is part of, if its protocol states it; 0 for a packet without payload.
    pub message_bytes: Option<u32>,
    /// Whether the packet is part of a handshake, which precedes what the flow is for. A driver that would have to cut the
    /// packet must not say so, as it may go at once.
    pub opens: bool,
}

/// The decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<P> {
    /// Control: send now.
    Send {
        /// The packet.
        packet: P,
        /// The flow's number, as in [`Change`].
        number: u32,
        /// Whether the packet is the first of a message.
        begins: bool,
    },
    /// A packet of a bulk flow without waiting packets that needs no permit: send now, in the flow's category.
    Pass(P),
    /// The packet waits. Take it with [`Protect::next`].
    Queued,
    /// There was no room: too much of the flow waits.
    Dropped(P),
}

/// A change of a flow's class, or of control's period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The flow.
    pub flow: Flow,
    /// The flow's number: small, and unique as long as the flow is not ordinary.
    pub number: u32,
    /// The new class. Flows begin as ordinary, which is not reported.
    pub class: Class,
    /// The reason.
    pub reason: Reason,
    /// The time between two messages, for control, once known.
    pub period: Option<Duration>,
}

/// One flow as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The flow. Packets that found no room in the table are shown as protocol 255.
    pub flow: Flow,
    /// The topic, in DDS, if its announcement was seen.
    pub topic: Option<String>,
    /// The class.
    pub class: Class,
    /// The reason.
    pub reason: Reason,
    /// The time between two messages, if the flow is periodic.
    pub period: Option<Duration>,
    /// The DSCP that the program sets.
    pub dscp: u8,
    /// The number of packets so far.
    pub packets: u64,
    /// The bytes of these packets.
    pub bytes: u64,
    /// The rate over the last second, in bits per second.
    pub rate_bps: u64,
    /// The time since the last packet.
    pub silent: Duration,
    /// The longest time that a packet waited here, over the last second or two; for control, until it left the card.
    pub late: Duration,
    /// The number of waiting packets.
    pub waiting_packets: u32,
    /// The bytes of the waiting packets.
    pub waiting_bytes: u64,
    /// The number of dropped packets.
    pub dropped: u64,
}

/// Sorts packets into classes, and keeps those that have to wait. A packet that is dropped inside is dropped as a Rust
/// value.
#[derive(Clone, Debug)]
pub struct Protect<P> {
    /// The rules of the team file, followed by the agent's own.
    rules: Vec<Rule>,
    first_own: usize,
    /// The flows whose programs the driver has to find out.
    unknown: VecDeque<Flow>,
    /// The bounds for unmarked flows, and for marked ones.
    bounds: [Bounds; 2],
    flows: Flows,
    topics: Topics,
    queues: Queues<P>,
    /// Whether acknowledgements are held.
    holds_empty: bool,
    /// The time from which the next ones may leave.
    acknowledge_at: Instant,
    /// Whether packets that need a permit wait behind acknowledgements.
    bulk_follows: bool,
    /// The bytes of ordinary packets that bulk has given way to and that no bulk has made up for since. Not above
    /// [`AHEAD_BYTES_MAX`].
    ordinary_ahead: u64,
    changes: VecDeque<Change>,
}

impl<P> Protect<P> {
    /// Creates the state without flows, with bulk held. Limits out of range are clamped.
    pub fn new(config: Config) -> Self {
        let mut rules = config.rules;
        rules.truncate(RULES_MAX);
        let first_own = rules.len();
        rules.extend(config.own_rules.into_iter().take(RULES_MAX));
        Protect {
            unknown: VecDeque::new(),
            rules,
            first_own,
            bounds: [config.control_bps_max, config.marked_bps_max].map(|rate_bps_max| Bounds {
                message_bytes_max: config.message_bytes_max,
                rate_bps_max,
            }),
            flows: Flows::new(config.flows_max.clamp(1, FLOWS_MAX)),
            topics: Topics::default(),
            queues: {
                let mut queues = Queues::new(config.flow_bytes_max, config.bytes_max.min(BYTES_MAX), config.codel);
                queues.add(SHARED);
                queues
            },
            holds_empty: false,
            acknowledge_at: Instant::ZERO,
            bulk_follows: false,
            ordinary_ahead: 0,
            changes: VecDeque::new(),
        }
    }

    /// Handles a packet that a program sends.
    pub fn on_packet(&mut self, head: Head, packet: P, now: Instant) -> Verdict<P> {
        let at = self.place(&head, now);
        let begins = self.note(at, &head, now);
        let needs_no_permit = head.bytes <= SMALL_BYTES || (1..=OPENING_MAX).contains(&self.flows.get(at).opening);
        self.judge(at, begins, now);
        let class = self.flows.get(at).class;
        if class == Class::Control && self.queues.is_empty(at) {
            return Verdict::Send {
                packet,
                number: at,
                begins,
            };
        }
        let acknowledges = self.queues.lane(at) == Lane::Empty;
        if class == Class::Bulk && needs_no_permit && self.queues.is_empty(at) && !acknowledges {
            return Verdict::Pass(packet);
        }
        if acknowledges && head.bytes > SMALL_BYTES {
            // Bulk behind acknowledgements: it does not wait until more of them have come.
            (self.bulk_follows, self.acknowledge_at) = (true, now);
        }
        match self.queues.push(at, packet, head, now) {
            Ok(()) => Verdict::Queued,
            Err(packet) => Verdict::Dropped(packet),
        }
    }

    /// Records that a DDS program announces a writer and its topic.
    pub fn on_topic(&mut self, writer: Guid, topic: &str) {
        if self.topics.add(writer, topic) {
            for at in self.flows.of_writer(writer) {
                self.find_rule(at);
            }
        }
    }

    /// Returns the next flow whose programs the driver has to find out, until `None`. The flows of DDS writers share
    /// ports, and each is returned.
    pub fn poll_unknown(&mut self) -> Option<Flow> {
        self.unknown.pop_front()
    }

    /// Records the programs that hold the socket of a flow's sender; several, if they share it.
    pub fn on_programs(&mut self, flow: &Flow, mut programs: Vec<Program>) {
        if let Some(at) = self.flows.find(flow) {
            programs.truncate(PROGRAMS_MAX);
            self.flows.get_mut(at).programs = programs;
            self.find_rule(at);
        }
    }

    /// Returns whether packets of a class, ordinary or bulk, wait that are not held as acknowledgements. Control that
    /// had to queue waits with the ordinary ones, as do acknowledgements. Bulk that cannot be taken yet, because
    /// acknowledgements of its flow are held, counts too: it needs a permit.
    pub fn has(&self, class: Class) -> bool {
        let more = match class {
            Class::Control => false,
            Class::Ordinary => self.acknowledges(),
            Class::Bulk => self.bulk_follows && self.queues.waits(Lane::Empty),
        };
        more || lane(class).is_some_and(|lane| self.queues.waits(lane))
    }

    /// Returns whether the next ordinary packet is an acknowledgement, or leaves with some.
    pub fn acknowledges(&self) -> bool {
        !self.holds_empty && self.queues.waits(Lane::Empty)
    }

    /// Sets whether acknowledgements may leave now, as far as control is concerned. This holds until none waits; the next
    /// ones may leave [`ACKNOWLEDGE_EVERY`] later, if the driver says so again.
    pub fn may_acknowledge(&mut self, may: bool, now: Instant) {
        self.holds_empty = !may || now < self.acknowledge_at;
    }

    /// Returns the earliest time at which waiting acknowledgements may leave; `None` if none wait.
    pub fn acknowledge_at(&self) -> Option<Instant> {
        self.queues.waits(Lane::Empty).then_some(self.acknowledge_at)
    }

    /// Takes the next packet of ordinary flows, or of bulk. The driver has to know whether bulk may go now.
    pub fn next(&mut self, class: Class, now: Instant) -> Option<(Head, P)> {
        self.next_piece(class, now, |_, _| None)
    }

    /// Takes the next packet, or a piece of it. `cut` takes a piece off a packet that is too long, and returns it with
    /// its length in bytes. The rest is then the first of its flow, and only the piece counts for the flow's turn. With
    /// `true`, the piece is to be dropped, so `cut` must take none off a packet that is of no use without it.
    pub fn next_piece(
        &mut self,
        class: Class,
        now: Instant,
        mut cut: impl FnMut(&mut P, bool) -> Option<(P, u32)>,
    ) -> Option<(Head, P)> {
        loop {
            let lane = match lane(class)? {
                Lane::Ordinary if self.acknowledges() => Lane::Empty,
                lane => lane,
            };
            let at = self.queues.turn(lane)?;
            match lane {
                Lane::Ordinary => self.judge(at, false, now),
                Lane::Empty => self.part(at, now),
                Lane::Bulk => {}
            }
            if self.queues.lane(at) != lane {
                continue;
            }
            let taken = self.queues.take(at, now, &mut cut)?;
            if lane == Lane::Empty {
                self.part(at, now);
            }
            if let Some(held) = taken.emptied {
                self.flows.get_mut(at).calm_from += held;
            }
            if let Some(packet) = taken.packet {
                self.flows.get_mut(at).late.note(taken.waited, now);
                if lane == Lane::Ordinary {
                    let ahead = self.ordinary_ahead + u64::from(taken.head.bytes);
                    self.ordinary_ahead = ahead.min(AHEAD_BYTES_MAX);
                }
                return Some((taken.head, packet));
            }
        }
    }

    /// Returns whether a flow is bulk. What leaves of it beside acknowledgements is taken as [`Class::Ordinary`], but needs
    /// bulk's marks: with a higher one it would overtake its flow's bulk in the card.
    pub fn is_bulk(&mut self, flow: &Flow) -> bool {
        let found = self.flows.find(flow);
        found.is_some_and(|at| self.flows.get(at).class == Class::Bulk)
    }

    /// Returns whether the flow of this number had sent packets before its newest one.
    pub fn has_sent(&self, number: u32) -> bool {
        self.flows.get(number).packets > 1
    }

    /// Records how long a message of a control flow of this number took until it left the card.
    pub fn on_control_left(&mut self, number: u32, took: Duration, now: Instant) {
        self.flows.get_mut(number).late.note(took, now);
    }

    /// Decides how many packets of bulk may leave now, with `below` packets below the driver. Permit and gate have `room`
    /// for so many; `None` means that they hold bulk, which is recorded, as by [`Protect::set_open`]. `None` is also
    /// returned while bulk gives way to ordinary packets.
    pub fn bulk_room(&mut self, mut room: Option<usize>, below: usize, now: Instant) -> Option<usize> {
        // To give way is to stand in a queue, and not a hold.
        self.set_open(room.is_some(), now);
        let gives_way = below >= BELOW_ORDINARY_MAX && self.queues.waits(Lane::Ordinary);
        if gives_way {
            let most = (self.ordinary_ahead / FULL_BYTES) as usize;
            room = room.map(|room| room.min(most)).filter(|room| *room > 0);
            self.ordinary_ahead -= room.unwrap_or(0) as u64 * FULL_BYTES;
        } else {
            self.ordinary_ahead = 0;
        }
        room
    }

    /// Sets whether bulk may leave from now on. Packets are not dropped for the time during which they are held.
    pub fn set_open(&mut self, open: bool, now: Instant) {
        self.queues.set_open(open, now);
    }

    /// Returns when to call [`Protect::on_deadline`].
    pub fn next_deadline(&self) -> Option<Instant> {
        self.flows.forget_at()
    }

    /// Forgets flows that have been silent for long.
    pub fn on_deadline(&mut self, now: Instant) {
        for _ in 0..FORGOTTEN_MAX {
            match self.flows.silent(now) {
                Some(at) if self.queues.is_empty(at) && !self.is_unread() => self.forget(at),
                Some(at) => self.flows.touch(at, now),
                None => return,
            }
        }
    }

    /// Returns the next change of a flow's class, until `None`.
    pub fn poll(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// Returns all known flows.
    pub fn flows(&self, now: Instant) -> impl Iterator<Item = Status> + '_ {
        self.flows.all().map(move |(at, entry)| {
            let load = self.queues.load(at, now);
            Status {
                flow: entry.flow,
                topic: self.topics.of(&entry.flow).map(str::to_owned),
                class: entry.class,
                reason: entry.reason,
                period: entry.nature.period(),
                dscp: entry.dscp,
                packets: entry.packets,
                bytes: entry.bytes,
                rate_bps: entry.nature.rate_bps(now),
                silent: now.since(entry.packet_at),
                late: entry.late.get(now),
                waiting_packets: load.packets,
                waiting_bytes: load.bytes,
                dropped: self.queues.dropped_of(at),
            }
        })
    }

    /// Returns the number of packets dropped so far, over all flows.
    pub fn dropped(&self) -> u64 {
        self.queues.dropped()
    }

    /// Returns the number of the packet's flow, which is added if it is new.
    fn place(&mut self, head: &Head, now: Instant) -> u32 {
        if let Some(at) = self.flows.find(&head.flow) {
            return at;
        }
        // Packets of this flow may wait in the shared queue.
        if !self.queues.is_empty(SHARED) || self.is_unread() || !self.make_room() {
            return SHARED;
        }
        let at = self.flows.add(head.flow, head.dscp, now);
        self.queues.add(at);
        self.find_rule(at);
        at
    }

    fn make_room(&mut self) -> bool {
        if self.flows.has_room() {
            return true;
        }
        let idle = self.flows.most_silent().find(|at| self.queues.is_empty(*at));
        if let Some(at) = idle {
            self.forget(at);
        }
        idle.is_some()
    }

    fn forget(&mut self, at: u32) {
        let gone = self.flows.forget(at);
        if gone.class != Class::Ordinary {
            self.changes.push_back(Change {
                flow: gone.flow,
                number: at,
                class: Class::Ordinary,
                reason: Reason::Silent,
                period: None,
            });
        }
    }

    /// Returns whether the driver has not polled for long.
    fn is_unread(&self) -> bool {
        self.changes.len() >= CHANGES_MAX
    }

    /// Finds the rule that covers the flow from now on.
    fn find_rule(&mut self, at: u32) {
        let Entry {
            flow, dscp, programs, ..
        } = self.flows.get(at);
        let topic = self.topics.of(flow);
        let mut rules = self.rules.iter();
        let rule = rules.position(|rule| rule.covers(flow, *dscp, topic, programs));
        let before = &self.rules[..rule.unwrap_or(self.rules.len())];
        let mut by_program = before.iter().filter(|rule| rule.needs_program());
        let depends = programs.is_empty()
            && matches!(flow.protocol, TCP | UDP)
            && by_program.any(|rule| rule.covers_packets(flow, *dscp, topic));
        let entry = self.flows.get_mut(at);
        (entry.rule, entry.depends_on_program) = (rule, depends);
    }

    /// Lets the driver find out whose flow it is.
    fn ask_for_programs(&mut self, at: u32, now: Instant) {
        let has_room = self.unknown.len() < UNKNOWN_MAX;
        let entry = self.flows.get_mut(at);
        let is_due = entry.packets > 1 && entry.asked_at.is_none_or(|asked_at| now.since(asked_at) >= ASK_EVERY);
        if has_room && is_due && at != SHARED {
            entry.asked_at = Some(now);
            self.unknown.push_back(entry.flow);
        }
    }

    /// Records a packet. Returns whether it begins a message.
    fn note(&mut self, at: u32, head: &Head, now: Instant) -> bool {
        self.flows.touch(at, now);
        let entry = self.flows.get_mut(at);
        let carries = head.message_bytes != Some(0);
        let begins = carries && entry.message_at.is_none_or(|at| now.since(at) > MESSAGE_GAP);
        if carries {
            entry.message_at = Some(now);
        }
        entry.empty = if carries { 0 } else { entry.empty.saturating_add(1) };
        entry.opening = if head.opens { entry.opening.saturating_add(1) } else { 0 };
        entry.packet_at = now;
        entry.packets += 1;
        entry.bytes += u64::from(head.bytes);
        entry.calm_messages = entry.calm_messages.saturating_add(u8::from(begins));
        let bounds = self.bounds[usize::from(URGENT.contains(&head.dscp))];
        entry.nature.on_packet(head.bytes, head.message_bytes, bounds, now);
        if head.message_bytes.is_some_and(|bytes| bytes > LARGE_BYTES) {
            (entry.large, entry.calm_from, entry.calm_messages) = (true, now, 0);
        }
        if entry.has_new_dscp(head.dscp) && at != SHARED {
            self.find_rule(at);
        }
        if self.flows.get(at).depends_on_program {
            self.ask_for_programs(at, now);
        }
        begins
    }

    /// Assigns the flow its class and its lane.
    fn judge(&mut self, at: u32, begins: bool, now: Instant) {
        self.classify(at, begins, now);
        let entry = self.flows.get(at);
        let (is_empty_lane, waits) = (self.queues.lane(at) == Lane::Empty, !self.queues.is_empty(at));
        // Packets that wait for a permit do not go as acknowledgements. What follows acknowledgements waits for them:
        // otherwise they would wait for a permit too.
        let stays = is_empty_lane && waits && entry.class == Class::Bulk;
        let begins_as_such = entry.empty >= EMPTY_MIN && (is_empty_lane || !waits);
        let acknowledges = entry.flow.protocol == TCP && (stays || begins_as_such);
        let lane = match lane(entry.class) {
            Some(_) if acknowledges => Lane::Empty,
            lane => lane.unwrap_or(Lane::Ordinary),
        };
        self.queues.set_lane(at, lane);
    }

    /// Moves a flow from the acknowledgements to its own lane if its next packet needs a permit. Once no acknowledgement
    /// waits, the next ones are held.
    fn part(&mut self, at: u32, now: Instant) {
        if self.queues.first(at).is_some_and(|head| head.bytes > SMALL_BYTES) {
            let own = lane(self.flows.get(at).class);
            self.queues.set_lane(at, own.unwrap_or(Lane::Ordinary));
        }
        if !self.queues.waits(Lane::Empty) {
            (self.holds_empty, self.bulk_follows) = (true, false);
            self.acknowledge_at = now + ACKNOWLEDGE_EVERY;
        }
    }

    fn classify(&mut self, at: u32, begins: bool, now: Instant) {
        let load = self.queues.load(at, now);
        let unread = self.is_unread();
        let entry = self.flows.get_mut(at);
        let (class, reason) = match entry.rule {
            Some(rule) if rule >= self.first_own => match self.rules[rule].class {
                Class::Control if entry.nature.is_fast(now) => (Class::Ordinary, Reason::TooFast),
                class => (class, Reason::Own),
            },
            Some(rule) => (self.rules[rule].class, Reason::Rule(rule)),
            None => earned(entry, load, at == SHARED, now),
        };
        let changes = class != entry.class;
        if changes && (unread || class == Class::Control && !begins) {
            return;
        }
        if changes && class == Class::Bulk {
            (entry.calm_from, entry.calm_messages) = (now, 0);
        }
        let period = entry.nature.period().filter(|_| class == Class::Control);
        let retimed = begins && !unread && differs(entry.told, period);
        (entry.class, entry.reason) = (class, reason);
        if changes || retimed {
            entry.told = period;
            self.changes.push_back(Change {
                flow: entry.flow,
                number: at,
                class,
                reason,
                period,
            });
        }
    }
}

/// Returns the lane in which packets of a class wait. Control does not wait.
fn lane(class: Class) -> Option<Lane> {
    match class {
        Class::Control => None,
        Class::Ordinary => Some(Lane::Ordinary),
        Class::Bulk => Some(Lane::Bulk),
    }
}

/// Returns whether a period differs from the reported one, by more than an eighth.
fn differs(told: Option<Duration>, period: Option<Duration>) -> bool {
    match (told, period) {
        (Some(told), Some(period)) => told.as_nanos().abs_diff(period.as_nanos()) > told.as_nanos() / 8,
        _ => told.is_some() != period.is_some(),
    }
}

#[cfg(test)]
mod tests;
