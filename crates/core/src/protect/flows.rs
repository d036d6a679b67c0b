//! The flows that are known: found by their addresses, and forgotten once silent.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use super::nature::Nature;
use super::order::Order;
use super::{Class, Flow, Reason};
use crate::rtps::Guid;
use crate::{Duration, Instant};

/// The flow of all packets that found no room in the table.
pub(super) const SHARED: u32 = 0;
/// A flow is forgotten after this silence.
const FORGET: Duration = Duration::from_secs(60);
/// How many of the most silent flows are asked whether they can make room.
const ASKED_MAX: usize = 16;
/// Packets in a row with another DSCP that make it the flow's.
const DSCP_PROOF: u8 = 8;

/// One flow.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub flow: Flow,
    pub class: Class,
    pub reason: Reason,
    /// The rule that it falls under.
    pub rule: Option<usize>,
    pub dscp: u8,
    /// Another DSCP, and how many packets in a row had it.
    odd_dscp: (u8, u8),
    pub nature: Nature,
    pub packets: u64,
    pub bytes: u64,
    pub packet_at: Instant,
    /// When the last packet came that carried something.
    pub message_at: Option<Instant>,
    /// When it was last heard of, or asked.
    touched: Instant,
    /// The period that was told to the driver.
    pub told: Option<Duration>,
    /// Bulk only: since when it has had no backlog, without the time that it was held, and its messages since then.
    pub calm_from: Instant,
    pub calm_messages: u8,
    /// Whether it has sent large messages lately.
    pub large: bool,
    /// How many of its newest packets in a row carried nothing.
    pub empty: u8,
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
            packet_at: now,
            message_at: None,
            touched: now,
            told: None,
            calm_from: now,
            calm_messages: 0,
            large: false,
            empty: 0,
        }
    }

    /// A packet has this DSCP. Returns whether it is now the flow's, as a few in a row had it.
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
    /// Flows by their last packet; one list.
    silent: Order,
    /// The flow found last: packets come in bursts of one flow.
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

    /// The flow's number, if it is known.
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

    /// Adds a flow that is not known, if there is room.
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

    /// The flow has sent a packet, or something of it still waits.
    pub fn touch(&mut self, at: u32, now: Instant) {
        self.entries[at as usize].touched = now;
        if at != SHARED {
            self.silent.append(0, at);
        }
    }

    /// Forgets a flow; returns what it was.
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

    /// When the most silent flow is to be forgotten.
    pub fn forget_at(&self) -> Option<Instant> {
        let first = self.silent.first(0)?;
        Some(self.entries[first as usize].touched + FORGET)
    }

    /// The most silent flow, once it has been silent for long.
    pub fn silent(&self, now: Instant) -> Option<u32> {
        self.silent
            .first(0)
            .filter(|_| self.forget_at().is_some_and(|at| at <= now))
    }

    /// Some flows, the most silent first.
    pub fn most_silent(&self) -> impl Iterator<Item = u32> + '_ {
        self.silent.members(0).take(ASKED_MAX)
    }

    /// Whether there is room for one more.
    pub fn has_room(&self) -> bool {
        self.index.len() < self.flows_max
    }

    /// The flows of a DDS writer.
    pub fn of_writer(&self, writer: Guid) -> Vec<u32> {
        let all = self.index.iter();
        let of_it = all.filter(|(flow, _)| flow.writer == Some(writer));
        of_it.map(|(_, at)| *at).collect()
    }

    /// All flows that have sent something, in the order of their addresses.
    pub fn all(&self) -> impl Iterator<Item = (u32, &Entry)> {
        let shared = std::iter::once(SHARED);
        let all = shared.chain(self.index.values().copied());
        all.map(|at| (at, &self.entries[at as usize]))
            .filter(|(_, entry)| entry.packets > 0)
    }
}
