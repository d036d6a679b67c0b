//! The known flows: found by their addresses, and forgotten once silent.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use super::longest::Longest;
use super::nature::Nature;
use super::order::Order;
use super::{Class, Flow, Program, Reason};
use crate::rtps::Guid;
use crate::{Duration, Instant};

/// The flow of all packets for which there was no room in the table.
pub(super) const SHARED: u32 = 0;
/// Silence after which a flow is forgotten.
const FORGET: Duration = Duration::from_secs(60);
/// Number of the most silent flows that are considered for making room.
const ASKED_MAX: usize = 16;
/// Number of consecutive packets with another DSCP after which it becomes the flow's.
const DSCP_PROOF: u8 = 8;

/// One flow.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub flow: Flow,
    pub class: Class,
    pub reason: Reason,
    /// The rule that covers the flow.
    pub rule: Option<usize>,
    pub dscp: u8,
    /// Another DSCP, and the number of consecutive packets that had it.
    odd_dscp: (u8, u8),
    pub nature: Nature,
    pub packets: u64,
    pub bytes: u64,
    pub late: Longest,
    pub packet_at: Instant,
    /// When the last packet with payload arrived.
    pub message_at: Option<Instant>,
    /// When the flow last had a packet, or a packet of it was seen waiting.
    touched: Instant,
    /// The period that was reported to the driver.
    pub told: Option<Duration>,
    /// Only for bulk, the time since which the flow has had no backlog, and its messages since then. Time in which it
    /// was held does not count.
    pub calm_from: Instant,
    pub calm_messages: u8,
    /// Whether the flow has sent large messages lately.
    pub large: bool,
    /// The number of newest consecutive packets without payload.
    pub empty: u8,
    /// The number of newest consecutive packets of a handshake.
    pub opening: u8,
    /// Whether it depends on the program that sends which rule covers the flow.
    pub depends_on_program: bool,
    /// When the driver was last asked for programs, and its answer.
    pub asked_at: Option<Instant>,
    pub programs: Vec<Program>,
}

impl Entry {
    fn new(flow: Flow, dscp: u8, now: Instant) -> Self {
        Entry {
            flow,
            class: Class::Ordinary,
            reason: Reason::Undecided,
            rule: None,
            dscp,
            odd_dscp: (dscp, 0),
            nature: Nature::default(),
            packets: 0,
            bytes: 0,
            late: Longest::default(),
            packet_at: now,
            message_at: None,
            touched: now,
            told: None,
            calm_from: now,
            calm_messages: 0,
            large: false,
            empty: 0,
            opening: 0,
            depends_on_program: false,
            asked_at: None,
            programs: Vec::new(),
        }
    }

    /// Records the DSCP of a packet. Returns whether it has become the flow's, because several consecutive packets had
    /// it.
    pub fn has_new_dscp(&mut self, dscp: u8) -> bool {
        self.odd_dscp = match self.odd_dscp {
            _ if dscp == self.dscp => (dscp, 0),
            (odd, count) if odd == dscp => (odd, count.saturating_add(1)),
            _ => (dscp, 1),
        };
        let new = self.odd_dscp.1 >= DSCP_PROOF;
        if new {
            (self.dscp, self.odd_dscp) = (dscp, (dscp, 0));
        }
        new
    }
}

/// All flows.
#[derive(Clone, Debug)]
pub(super) struct Flows {
    flows_max: usize,
    entries: Vec<Entry>,
    index: BTreeMap<Flow, u32>,
    free: Vec<u32>,
    /// Flows ordered by their last packet, in one list.
    silent: Order,
    /// The flow found last, because packets arrive in bursts of one flow.
    recent: Option<(Flow, u32)>,
}

impl Flows {
    pub fn new(flows_max: usize) -> Self {
        let nowhere = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        let shared = Flow {
            protocol: u8::MAX,
            from: nowhere,
            to: nowhere,
            writer: None,
        };
        Flows {
            flows_max,
            entries: vec![Entry::new(shared, 0, Instant::ZERO)],
            index: BTreeMap::new(),
            free: Vec::new(),
            silent: Order::new(1),
            recent: None,
        }
    }

    pub fn get(&self, at: u32) -> &Entry {
        &self.entries[at as usize]
    }

    pub fn get_mut(&mut self, at: u32) -> &mut Entry {
        &mut self.entries[at as usize]
    }

    /// Returns the flow's number, if it is known.
    pub fn find(&mut self, flow: &Flow) -> Option<u32> {
        if let Some((recent, at)) = &self.recent {
            if recent == flow {
                return Some(*at);
            }
        }
        let at = *self.index.get(flow)?;
        self.recent = Some((*flow, at));
        Some(at)
    }

    /// Adds a flow that is not yet known. Returns its number.
    pub fn add(&mut self, flow: Flow, dscp: u8, now: Instant) -> u32 {
        let entry = Entry::new(flow, dscp, now);
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.index.insert(flow, at);
        at
    }

    /// Records that the flow has sent a packet, or that a packet of it still waits.
    pub fn touch(&mut self, at: u32, now: Instant) {
        self.entries[at as usize].touched = now;
        if at != SHARED {
            self.silent.append(0, at);
        }
    }

    /// Forgets a flow. Returns its entry.
    pub fn forget(&mut self, at: u32) -> Entry {
        let place = &mut self.entries[at as usize];
        let gone = std::mem::replace(place, Entry::new(place.flow, 0, Instant::ZERO));
        if at != SHARED {
            self.index.remove(&gone.flow);
            self.silent.remove(at);
            self.free.push(at);
            self.recent = None;
        }
        gone
    }

    /// Returns when to forget the most silent flow.
    pub fn forget_at(&self) -> Option<Instant> {
        let first = self.silent.first(0)?;
        Some(self.entries[first as usize].touched + FORGET)
    }

    /// Returns the most silent flow, once it has been silent for long.
    pub fn silent(&self, now: Instant) -> Option<u32> {
        self.silent
            .first(0)
            .filter(|_| self.forget_at().is_some_and(|at| at <= now))
    }

    /// Returns some flows, the most silent first.
    pub fn most_silent(&self) -> impl Iterator<Item = u32> + '_ {
        self.silent.members(0).take(ASKED_MAX)
    }

    /// Returns whether there is room for one more flow.
    pub fn has_room(&self) -> bool {
        self.index.len() < self.flows_max
    }

    /// Returns the flows of a DDS writer.
    pub fn of_writer(&self, writer: Guid) -> Vec<u32> {
        let all = self.index.iter();
        let of_it = all.filter(|(flow, _)| flow.writer == Some(writer));
        of_it.map(|(_, at)| *at).collect()
    }

    /// Returns all flows that have sent something, in the order of their addresses.
    pub fn all(&self) -> impl Iterator<Item = (u32, &Entry)> {
        let shared = std::iter::once(SHARED);
        let all = shared.chain(self.index.values().copied());
        all.map(|at| (at, &self.entries[at as usize]))
            .filter(|(_, entry)| entry.packets > 0)
    }
}
