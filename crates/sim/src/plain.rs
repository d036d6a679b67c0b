//! Plain flows: the traffic that `[[flow]]` describes in addition to the control loop and learning.

use std::collections::VecDeque;

use coorp_air::{AccessCategory, Packet};
use coorp_core::{Duration, FlowId, Instant};
use coorp_team::{Flow, Traffic};
use rand::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::measure::Latency;
use crate::results::FlowResult;
use crate::setup;

/// Number of packets of a saturated UDP flow between its application and the air. It is enough for two full block-ack
/// windows of 802.11ax, so that no aggregate is ever short.
const SATURATED_OUTSTANDING: u32 = 640;
/// IPv4 and UDP headers, bytes.
const UDP_HEADERS: u16 = 28;

/// The transport of a flow's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// Messages over UDP, by index among the message flows.
    Messages(u32),
    /// As many UDP packets as the air takes.
    Saturated,
    /// A TCP connection, by index among the streams.
    Stream(u32),
}

/// A running `[[flow]]`.
#[derive(Debug)]
pub(crate) struct Plain {
    pub flow: Flow,
    pub id: FlowId,
    /// The flow's category under the policy.
    pub category: AccessCategory,
    pub carrier: Carrier,
    pub running: bool,
    /// Whether the flow may send, because its robot has a permit, or none is needed.
    pub permitted: bool,
    pub outstanding: u32,
    /// The number of packets that the host queue seems to have room for.
    outstanding_max: u32,
    pub sent: u64,
    pub delivered: u64,
    /// The number of messages delivered after the flow's bound.
    pub late: u64,
    pub delivered_bytes: u64,
    pub latency: Latency,
    /// When the messages that a stream still carries were made.
    pub made_at: VecDeque<Instant>,
    ticks: u64,
    rng: Xoshiro256PlusPlus,
}

impl Plain {
    pub fn new(flow: Flow, id: FlowId, category: AccessCategory, carrier: Carrier, permitted: bool, seed: u64) -> Self {
        let seed = seed ^ 0x666c_6f77_0000 ^ u64::from(id.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Plain {
            flow,
            id,
            category,
            carrier,
            running: false,
            permitted,
            outstanding: 0,
            outstanding_max: SATURATED_OUTSTANDING,
            sent: 0,
            delivered: 0,
            late: 0,
            delivered_bytes: 0,
            latency: Latency::new(),
            made_at: VecDeque::new(),
            ticks: 0,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
        }
    }

    /// Returns when the flow's next message is made; `None` for a saturated one.
    pub fn next_tick(&mut self) -> Option<Instant> {
        let Traffic::Periodic { period, jitter, .. } = self.flow.traffic else {
            return None;
        };
        if let Some(recorded) = &self.flow.recorded {
            let (at, _) = recorded.message(self.ticks);
            self.ticks += 1;
            return Some(Instant::ZERO + self.flow.start + at);
        }
        let nominal = Instant::ZERO + self.flow.start + period * self.ticks;
        self.ticks += 1;
        let normal: f64 = StandardNormal.sample(&mut self.rng);
        let off = Duration::from_secs_f64(normal.abs() * jitter.as_secs_f64());
        Some(if normal < 0.0 { nominal - off } else { nominal + off })
    }

    /// Returns the size of message `number` in bytes; zero for a saturated flow, which has no messages.
    pub fn message_bytes(&self, number: u64) -> u64 {
        match (&self.flow.recorded, self.flow.traffic) {
            (Some(recorded), _) => recorded.message(number).1,
            (None, Traffic::Periodic { size_bytes, .. }) => size_bytes,
            (None, Traffic::Saturated { .. }) => 0,
        }
    }

    /// Tops up a saturated UDP flow.
    pub fn fill(&mut self, now: Instant, out: &mut Vec<Packet>) {
        let Traffic::Saturated { packet_bytes } = self.flow.traffic else {
            return;
        };
        while self.running && self.permitted && self.outstanding < self.outstanding_max {
            out.push(Packet {
                flow: self.id,
                tag: self.sent,
                bytes: packet_bytes + UDP_HEADERS,
                from: setup::station(self.flow.from),
                to: setup::station(self.flow.to),
                category: self.category,
                sent_at: now,
            });
            self.sent += 1;
            self.outstanding += 1;
        }
    }

    /// Records that a packet of a saturated UDP flow has left its sender.
    pub fn on_left(&mut self) {
        self.outstanding -= 1;
        self.outstanding_max = (self.outstanding_max + 1).min(SATURATED_OUTSTANDING);
    }

    /// Records that a full host queue dropped a packet of a saturated UDP flow. Offering the next one at once would only
    /// drop another, so it waits until one has left. Returns whether none is left to wait for.
    pub fn on_overflow(&mut self) -> bool {
        self.outstanding -= 1;
        self.outstanding_max = self.outstanding.max(1);
        self.outstanding == 0
    }

    /// Counts payload towards the flow's throughput. Payload that arrives after the flow's end does not count.
    pub fn count_bytes(&mut self, bytes: u64, now: Instant) {
        if self.flow.stop.is_none_or(|stop| now <= Instant::ZERO + stop) {
            self.delivered_bytes += bytes;
        }
    }

    /// Records an arrived packet of a saturated UDP flow.
    pub fn on_packet(&mut self, packet: &Packet, now: Instant) {
        self.delivered += 1;
        self.count_bytes(u64::from(packet.bytes - UDP_HEADERS), now);
        self.latency.record(now.since(packet.sent_at));
    }

    /// Records that message `number` arrived after `latency`.
    pub fn on_message(&mut self, number: u64, latency: Duration, now: Instant) {
        self.delivered += 1;
        self.late += u64::from(self.flow.bound.is_some_and(|bound| latency > bound));
        self.count_bytes(self.message_bytes(number), now);
        self.latency.record(latency);
    }

    /// Returns the share of messages that arrived late or not at all.
    fn violation_rate(&self) -> Option<f64> {
        let in_time = self.delivered.saturating_sub(self.late);
        let judged = self.flow.bound.is_some() && self.sent > 0;
        judged.then(|| 1.0 - in_time.min(self.sent) as f64 / self.sent as f64)
    }

    /// Returns the flow's results at the `end` of the run.
    pub fn result(&self, end: Instant) -> FlowResult {
        let start = Instant::ZERO + self.flow.start;
        let stop = self.flow.stop.map_or(end, |stop| (Instant::ZERO + stop).min(end));
        let seconds = stop.since(start).as_secs_f64();
        FlowResult {
            name: self.flow.name.clone(),
            mbps: if seconds > 0.0 {
                self.delivered_bytes as f64 * 8e-6 / seconds
            } else {
                0.0
            },
            sent: self.sent,
            delivered: self.delivered,
            latency_ms: self.latency.quantiles_ms(),
            violation_rate: self.violation_rate(),
        }
    }
}
