//! The medium: who transmits when, for how long, and what arrives. EDCA of IEEE 802.11-2020, 10.23.2.
//!
//! All stations hear one another, so the medium is busy or idle for everybody at once and slots line up. Each access
//! category has a *slot clock* that counts the idle slots after its AIFS; a backoff is a point on that clock. So a
//! backoff that freezes and resumes needs no work at all, and the next transmission is the smallest of four heap
//! heads: O(log n) in contending stations.
//!
//! After a collision bystanders wait EIFS, and each collider its own ACK timeout, so that one whose frame was shorter
//! than the others' is ahead of everybody (10.3.2.3.7). Slots of the three stay aligned here: 60 and 45 us are rounded
//! to 7 and 5 slots.
//!
//! Simplifications: acknowledgements and CTS are never lost; a BlockAckReq after frames that were given up takes no
//! airtime.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use coorp_core::{Duration, Instant};
use rand::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::config::{Config, Edca};
use crate::link::Link;
use crate::packet::{AccessCategory, Packet, StationId};
use crate::phy::{Standard, Timing, PPDU_MAX, SIFS, SLOT};
use crate::wnic::{Aggregate, AggregateLimit, Load, Queues};

/// What the air tells the layer above, and asks of it: the driver's three hooks (001, section V), and arrivals.
/// Called from within [`Air`]'s methods; answers to them go through [`Air::send`] afterwards.
pub trait Host {
    /// The driver is about to take a packet of `category` from the host queue, with `load` of it in the WNIC. False
    /// holds it until [`Air::kick`].
    fn may_dequeue(&mut self, station: StationId, category: AccessCategory, load: Load, now: Instant) -> bool;
    /// The driver handed `packet` to the WNIC.
    fn enqueued(&mut self, packet: &Packet, now: Instant);
    /// The driver's completion hook: it counts `packet`, which the WNIC got at `queued_at` behind `ahead` others, as
    /// complete. Over USB that is before it was on the air.
    fn released(&mut self, packet: &Packet, ahead: u16, queued_at: Instant, now: Instant);
    /// The transmit status of `packet`, which the WNIC got at `queued_at`: acknowledged, or given up.
    fn completed(&mut self, packet: &Packet, queued_at: Instant, acknowledged: bool, now: Instant);
    /// `packet` reached the stack of its receiver. A group addressed one reaches several, one call each, with the
    /// receiver in `to`; its transmit status comes after them and is always an acknowledgement but after a collision.
    fn delivered(&mut self, packet: &Packet, now: Instant);
    /// The host queue dropped `packet`.
    fn dropped(&mut self, packet: &Packet, now: Instant);
    /// Something was on the air. For drawing it; by default nobody looks.
    fn transmitted(&mut self, _transmission: &Transmission) {}
}

/// How a transmission ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// At least one MPDU arrived.
    Received,
    /// Nothing arrived: every MPDU was lost to noise.
    Lost,
    /// Two or more stations sent at once.
    Collided,
}

/// A PPDU, or the RTS that stood for it, on the air.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmission {
    /// Who sent.
    pub from: StationId,
    /// To whom.
    pub to: StationId,
    /// In which category.
    pub category: AccessCategory,
    /// MPDUs in it.
    pub frames: u16,
    /// First bit of the PPDU (of the RTS, where that collided).
    pub start: Instant,
    /// Last bit.
    pub end: Instant,
    /// How it ended.
    pub outcome: Outcome,
}

/// What the MAC did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MacCounters {
    /// Times that two or more stations sent at once.
    pub collisions: u64,
    /// MPDUs that had to be sent again.
    pub retries: u64,
    /// Airtime of data PPDUs, collided ones included.
    pub data: Duration,
    /// Airtime of RTS, CTS, acknowledgements and the SIFS between them.
    pub control: Duration,
}

/// Draws whether an MPDU is lost. A link without losses draws nothing.
fn is_lost(loss: f64, rng: &mut Xoshiro256PlusPlus) -> bool {
    loss > 0.0 && ((rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64) < loss
}

/// A span in slots, rounded: everybody's slots are taken to line up.
fn slots(span: Duration) -> u64 {
    (span.as_nanos() + SLOT.as_nanos() / 2) / SLOT.as_nanos()
}

/// One EDCA function.
#[derive(Clone, Copy, Debug)]
struct Contender {
    cw: u16,
    /// Where its backoff ends on its category's slot clock.
    backoff_end: u64,
    /// It waits for its turn (and has an entry in `waiting`) or is sending.
    engaged: bool,
}

/// A function that was part of the last collision and goes on contending.
#[derive(Clone, Copy, Debug)]
struct Collider {
    station: StationId,
    category: AccessCategory,
    /// Slots from the collision's end to the start of its AIFS.
    late: u64,
    /// Its backoff, slots.
    backoff: u64,
}

#[derive(Clone, Copy, Debug)]
struct Exchange {
    station: StationId,
    category: AccessCategory,
    aggregate: Aggregate,
    /// Start of the PPDU.
    start: Instant,
    /// End of the transmission opportunity; None where one PPDU is all.
    txop_end: Option<Instant>,
}

/// One of several that send at once.
#[derive(Clone, Copy, Debug)]
struct Party {
    station: StationId,
    category: AccessCategory,
    frames: u16,
    /// It is sent again if it meets others: to one station, not to all.
    retried: bool,
    /// Only its RTS was on the air.
    announced: bool,
    /// When its own frame ends.
    end: Instant,
}

#[derive(Clone, Debug)]
enum Medium {
    /// Idle since, or from, this instant.
    Idle(Instant),
    /// A PPDU is on the air until the deadline.
    Ppdu(Exchange),
    /// It ended and is being acknowledged; so many MPDUs survived.
    Acknowledge(Exchange, u16),
    /// Stations collide until the deadline.
    Collision(Vec<Party>),
}

/// One channel with its stations.
#[derive(Debug)]
pub struct Air {
    config: Config,
    stations: Vec<Queues>,
    contenders: Vec<[Contender; 4]>,
    slot_clock: [u64; 4],
    /// Contenders of each category by the end of their backoff. Every contending function has one entry.
    waiting: [BinaryHeap<Reverse<(u64, u16)>>; 4],
    /// Slots from the medium's idling to the start of everybody's AIFS: none, or after a collision EIFS - AIFS.
    late: u64,
    /// Contending functions that are not that late, and not in `waiting`, until the next contention is decided.
    colliders: Vec<Collider>,
    medium: Medium,
    deadline: Instant,
    links: Links,
    rng: Xoshiro256PlusPlus,
    counters: MacCounters,
}

/// Links by sender and receiver, with their timing.
#[derive(Debug)]
struct Links {
    default: (Link, Timing),
    /// What group addressed frames are sent at.
    group: Timing,
    /// Row a sender; empty where it has no link of its own.
    rows: Vec<Vec<Option<(Link, Timing)>>>,
}

impl Links {
    fn get(&self, from: StationId, to: StationId) -> &(Link, Timing) {
        let own = self.rows[usize::from(from.0)].get(usize::from(to.0));
        own.and_then(Option::as_ref).unwrap_or(&self.default)
    }

    fn timing(&self, from: StationId, to: StationId) -> &Timing {
        match to {
            StationId::GROUP => &self.group,
            _ => &self.get(from, to).1,
        }
    }
}

impl Air {
    /// A channel where nothing has happened yet. The same seed and calls give the same events.
    pub fn new(config: Config, seed: u64) -> Air {
        let count = usize::from(config.stations);
        let contenders = [0, 1, 2, 3].map(|i: usize| {
            let cw = config.edca[i].cw_min;
            Contender {
                cw,
                backoff_end: 0,
                engaged: false,
            }
        });
        Air {
            stations: (0..count).map(|_| Queues::new(config.wnic)).collect(),
            contenders: vec![contenders; count],
            slot_clock: [0; 4],
            waiting: Default::default(),
            late: 0,
            colliders: Vec::new(),
            medium: Medium::Idle(Instant::ZERO),
            deadline: Instant::FAR_FUTURE,
            links: Links {
                default: (config.link, config.phy.timing(config.link.rate)),
                group: config.phy.basic_timing(),
                rows: vec![Vec::new(); count],
            },
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            counters: MacCounters::default(),
            config,
        }
    }

    /// Sets one direction between two stations apart from the default link, or changes it as they move.
    pub fn set_link(&mut self, from: StationId, to: StationId, link: Link) {
        let row = &mut self.links.rows[usize::from(from.0)];
        let place = usize::from(to.0);
        if row.len() <= place {
            row.resize(place + 1, None);
        }
        row[place] = Some((link, self.config.phy.timing(link.rate)));
    }

    /// `station` is switched off: what waits in its host queue is gone. What its WNIC has already taken still goes out.
    pub fn purge<H: Host>(&mut self, station: StationId, now: Instant, host: &mut H) {
        self.stations[usize::from(station.0)].purge(&mut |dropped| host.dropped(&dropped, now));
    }

    /// What the MAC did so far.
    pub fn counters(&self) -> &MacCounters {
        &self.counters
    }

    /// The stack of `packet.from` sends. Call with `now` no earlier than any call before.
    pub fn send<H: Host>(&mut self, packet: Packet, now: Instant, host: &mut H) {
        if let Some(dropped) = self.queue(packet, now) {
            host.dropped(&dropped, now);
        }
        self.kick(packet.from, now, host);
    }

    /// Puts `packet` into its sender's host queue without waking the driver: for many packets at once, followed by
    /// one [`Air::kick`]. Gives back the packet that the queue dropped for it, if any.
    pub fn queue(&mut self, packet: Packet, now: Instant) -> Option<Packet> {
        self.stations[usize::from(packet.from.0)].push(packet, now)
    }

    /// A gate of `station` opened, or packets were queued: its driver asks for packets again.
    pub fn kick<H: Host>(&mut self, station: StationId, now: Instant, host: &mut H) {
        self.pull(station, now, host);
        self.contend_for_ready(station, now);
        self.plan();
    }

    /// When [`Air::on_deadline`] wants to be called; [`Instant::FAR_FUTURE`] while nobody has anything to send.
    pub fn next_deadline(&self) -> Instant {
        self.deadline
    }

    /// Does what is due at the deadline.
    pub fn on_deadline<H: Host>(&mut self, host: &mut H) {
        let now = self.deadline;
        match std::mem::replace(&mut self.medium, Medium::Idle(now)) {
            Medium::Idle(since) => self.on_contention_end(since, now, host),
            Medium::Ppdu(exchange) => self.on_ppdu_end(exchange, now, host),
            Medium::Acknowledge(exchange, survivors) => self.on_exchange_end(exchange, survivors, now, host),
            Medium::Collision(parties) => self.on_collision_end(&parties, now, host),
        }
    }

    /// The driver takes what the WNIC has room for and the gate lets pass, highest category first.
    fn pull<H: Host>(&mut self, station: StationId, now: Instant, host: &mut H) {
        let queues = &mut self.stations[usize::from(station.0)];
        loop {
            for category in AccessCategory::ALL {
                while queues.wants(category) {
                    if !host.may_dequeue(station, category, queues.in_wnic[category.index()], now) {
                        break;
                    }
                    let taken = queues.take(category, now, &mut |dropped| host.dropped(&dropped, now));
                    let Some(packet) = taken else { break };
                    host.enqueued(&packet, now);
                }
            }
            // What the commit stage takes may make room for more.
            if !queues.commit(|frame| host.released(&frame.packet, frame.ahead, frame.queued_at, now)) {
                return;
            }
        }
    }

    fn contend_for_ready(&mut self, station: StationId, now: Instant) {
        for category in AccessCategory::ALL {
            let engaged = self.contenders[usize::from(station.0)][category.index()].engaged;
            if !engaged && self.stations[usize::from(station.0)].ready(category) {
                self.contend(station, category, now);
            }
        }
    }

    /// A function has something to send: it goes on with its backoff, draws one if the medium is busy, or sends at
    /// the next slot boundary if the medium has been idle for AIFS (10.23.2.2).
    fn contend(&mut self, station: StationId, category: AccessCategory, now: Instant) {
        let clock = self.slot_clock[category.index()];
        let aifsn = u64::from(self.config.edca[category.index()].aifsn);
        let drawn = self.draw_backoff(station, category);
        let function = &mut self.contenders[usize::from(station.0)][category.index()];
        match self.medium {
            Medium::Idle(since) => {
                let boundary = now.since(since + SIFS).as_nanos().div_ceil(SLOT.as_nanos());
                let passed = boundary.saturating_sub(self.late + aifsn);
                function.backoff_end = function.backoff_end.max(clock + passed);
            }
            _ if function.backoff_end <= clock => function.backoff_end = clock + drawn,
            _ => {}
        }
        function.engaged = true;
        self.waiting[category.index()].push(Reverse((function.backoff_end, station.0)));
    }

    /// A backoff in slots, uniform over [0, CW].
    fn draw_backoff(&mut self, station: StationId, category: AccessCategory) -> u64 {
        let cw = self.contenders[usize::from(station.0)][category.index()].cw;
        (u64::from(self.rng.next_u32()) * (u64::from(cw) + 1)) >> 32
    }

    /// First slot boundary after SIFS, counted from it, at which some function of this category sends.
    fn boundary(&self, category: AccessCategory) -> Option<u64> {
        let Reverse((backoff_end, _)) = self.waiting[category.index()].peek()?;
        let slots = backoff_end.saturating_sub(self.slot_clock[category.index()]);
        Some(self.late + self.aifsn(category) + slots)
    }

    fn aifsn(&self, category: AccessCategory) -> u64 {
        u64::from(self.config.edca[category.index()].aifsn)
    }

    /// The boundary at which a collider of the last collision sends.
    fn collider_boundary(&self, collider: &Collider) -> u64 {
        collider.late + self.aifsn(collider.category) + collider.backoff
    }

    /// Sets the deadline while the medium is idle: the earliest slot boundary at which somebody sends.
    fn plan(&mut self) {
        if let Medium::Idle(since) = self.medium {
            let everybody = AccessCategory::ALL
                .iter()
                .filter_map(|category| self.boundary(*category));
            let colliders = self.colliders.iter().map(|collider| self.collider_boundary(collider));
            let boundary = everybody.chain(colliders).min();
            self.deadline = boundary.map_or(Instant::FAR_FUTURE, |slots| since + SIFS + SLOT * slots);
        }
    }

    fn on_contention_end<H: Host>(&mut self, since: Instant, now: Instant, host: &mut H) {
        let boundary = now.since(since + SIFS).as_nanos() / SLOT.as_nanos();
        let mut winners: Vec<(StationId, AccessCategory)> = Vec::new();
        for category in AccessCategory::ALL {
            while self.boundary(category) == Some(boundary) {
                let Some(Reverse((_, station))) = self.waiting[category.index()].pop() else {
                    break;
                };
                winners.push((StationId(station), category));
            }
        }
        // A backoff counts down at every boundary from AIFS on, this one included, at which the winners send instead
        // (10.23.2.4).
        for (clock, edca) in self.slot_clock.iter_mut().zip(&self.config.edca) {
            *clock += (boundary + 1).saturating_sub(self.late + u64::from(edca.aifsn));
        }
        self.late = 0;
        for collider in std::mem::take(&mut self.colliders) {
            let (station, category) = (collider.station, collider.category);
            if self.collider_boundary(&collider) == boundary {
                winners.push((station, category));
                continue;
            }
            let counted = (boundary + 1).saturating_sub(collider.late + self.aifsn(category));
            let backoff_end = self.slot_clock[category.index()] + collider.backoff.saturating_sub(counted);
            self.contenders[usize::from(station.0)][category.index()].backoff_end = backoff_end;
            self.waiting[category.index()].push(Reverse((backoff_end, station.0)));
        }
        winners.sort_unstable_by_key(|(station, category)| (category.index(), *station));
        let mut sending: Vec<(StationId, AccessCategory, Aggregate)> = Vec::with_capacity(winners.len());
        for (station, category) in winners {
            let internal = sending.iter().any(|(other, ..)| *other == station);
            if internal {
                // A lower category of a station that sends anyway: as after a collision (10.23.2.4).
                self.fail(station, category);
                self.back_off(station, category);
            } else if let Some(aggregate) = self.aggregate(station, category, self.first_limit(category)) {
                sending.push((station, category, aggregate));
            } else {
                self.contenders[usize::from(station.0)][category.index()].engaged = false;
            }
        }
        match sending[..] {
            [] => self.idle_from(now),
            [(station, category, aggregate)] => {
                let txop = self.config.edca[category.index()].txop;
                let txop_end = (txop > Duration::ZERO).then(|| now + txop);
                self.send_ppdu(
                    Exchange {
                        station,
                        category,
                        aggregate,
                        start: now,
                        txop_end,
                    },
                    true,
                );
            }
            _ => self.collide(&sending, now, host),
        }
    }

    /// Airtime of RTS and CTS with the gaps after them, where they open a PPDU of this duration.
    fn rts_cts(&self, ppdu: Duration) -> Duration {
        if ppdu > self.config.rts_over {
            self.config.phy.rts() + SIFS + self.config.phy.cts() + SIFS
        } else {
            Duration::ZERO
        }
    }

    /// What precedes a PPDU of this duration: nobody could answer an RTS to all.
    fn opening(&self, to: StationId, ppdu: Duration) -> Duration {
        match to {
            StationId::GROUP => Duration::ZERO,
            _ => self.rts_cts(ppdu),
        }
    }

    fn first_limit(&self, category: AccessCategory) -> Duration {
        match self.config.edca[category.index()].txop {
            Duration::ZERO => PPDU_MAX,
            txop => txop
                .saturating_sub(self.rts_cts(txop) + SIFS + self.block_ack())
                .min(PPDU_MAX),
        }
    }

    fn block_ack(&self) -> Duration {
        self.config.phy.block_ack(self.config.block_ack_frames)
    }

    fn acknowledgement(&self, aggregate: &Aggregate) -> Duration {
        if aggregate.frames > 1 {
            self.block_ack()
        } else {
            self.config.phy.ack()
        }
    }

    /// What the next PPDU of a function holds if it may last `limit`. One frame goes however long it takes.
    fn aggregate(&self, station: StationId, category: AccessCategory, limit: Duration) -> Option<Aggregate> {
        let queues = &self.stations[usize::from(station.0)];
        let edca: &Edca = &self.config.edca[category.index()];
        let to = queues.destination(category)?;
        let timing = self.links.timing(station, to);
        let spacing_s = self.config.wnic.mpdu_spacing.as_secs_f64();
        let limit = AggregateLimit {
            // Nobody could acknowledge an A-MPDU to all (10.12.4).
            frames: if to == StationId::GROUP { 1 } else { edca.ampdu_frames },
            bytes: edca.ampdu_bytes.min(timing.bytes_within(limit)),
            window: self.config.block_ack_frames,
            subframe_bytes_min: (spacing_s * timing.bits_per_second() / 8.0) as u32,
            lone_delimiter: self.config.phy.standard != Standard::N && to != StationId::GROUP,
        };
        queues.aggregate(category, &limit)
    }

    fn send_ppdu(&mut self, mut exchange: Exchange, opens: bool) {
        let timing = self.links.timing(exchange.station, exchange.aggregate.to);
        let duration = timing.ppdu(exchange.aggregate.bytes);
        if opens {
            let opening = self.opening(exchange.aggregate.to, duration);
            self.counters.control += opening;
            exchange.start += opening;
        }
        self.counters.data += duration;
        self.deadline = exchange.start + duration;
        self.medium = Medium::Ppdu(exchange);
    }

    fn on_ppdu_end<H: Host>(&mut self, exchange: Exchange, now: Instant, host: &mut H) {
        let Exchange {
            station,
            category,
            aggregate,
            start,
            ..
        } = exchange;
        let survivors = if aggregate.to == StationId::GROUP {
            self.reach_all(station, category, now, host)
        } else {
            let loss = self.links.get(station, aggregate.to).0.loss;
            let rng = &mut self.rng;
            let queues = &mut self.stations[usize::from(station.0)];
            queues.deliver(
                category,
                aggregate.frames,
                || !is_lost(loss, rng),
                |packet| host.delivered(packet, now),
            )
        };
        host.transmitted(&Transmission {
            from: station,
            to: aggregate.to,
            category,
            frames: aggregate.frames,
            start,
            end: now,
            outcome: if survivors > 0 {
                Outcome::Received
            } else {
                Outcome::Lost
            },
        });
        let answer = match aggregate.to {
            StationId::GROUP => Duration::ZERO,
            _ => SIFS + self.acknowledgement(&aggregate),
        };
        self.counters.control += answer;
        self.deadline = now + answer;
        self.medium = Medium::Acknowledge(exchange, survivors);
    }

    /// Delivers a group addressed frame to every station whose link does not lose it. Nobody acknowledges, so for the
    /// sender it has arrived.
    fn reach_all<H: Host>(&mut self, station: StationId, category: AccessCategory, now: Instant, host: &mut H) -> u16 {
        let (links, rng) = (&self.links, &mut self.rng);
        let others = (0..self.config.stations)
            .map(StationId)
            .filter(|other| *other != station);
        let survives = |to: &StationId| !is_lost(links.get(station, *to).0.loss, rng);
        let reached: Vec<StationId> = others.filter(survives).collect();
        let up = |packet: &Packet| {
            for to in &reached {
                host.delivered(&Packet { to: *to, ..*packet }, now);
            }
        };
        self.stations[usize::from(station.0)].deliver(category, 1, || true, up)
    }

    fn on_exchange_end<H: Host>(&mut self, exchange: Exchange, survivors: u16, now: Instant, host: &mut H) {
        let Exchange {
            station,
            category,
            aggregate,
            ..
        } = exchange;
        // Until the next PPDU or idle time is settled the medium counts as busy.
        self.medium = Medium::Acknowledge(exchange, survivors);
        self.counters.retries += self.settle(station, category, aggregate.frames, self.config.retries_max, now, host);
        if survivors == 0 {
            self.fail(station, category);
        } else {
            self.contenders[usize::from(station.0)][category.index()].cw = self.config.edca[category.index()].cw_min;
        }
        self.pull(station, now, host);
        if survivors > 0 && self.continue_txop(&exchange, now) {
            return;
        }
        self.back_off(station, category);
        self.contend_for_ready(station, now);
        self.idle_from(now);
    }

    /// Sends another PPDU within the transmission opportunity, if one fits (10.23.2.8).
    fn continue_txop(&mut self, exchange: &Exchange, now: Instant) -> bool {
        let Exchange {
            station,
            category,
            txop_end,
            ..
        } = *exchange;
        let Some(end) = txop_end else { return false };
        let start = now + SIFS;
        let left = end.since(start).saturating_sub(SIFS + self.block_ack()).min(PPDU_MAX);
        let Some(aggregate) = self.aggregate(station, category, left) else {
            return false;
        };
        let duration = self.links.timing(station, aggregate.to).ppdu(aggregate.bytes);
        if duration > left {
            return false;
        }
        self.counters.control += SIFS;
        self.send_ppdu(
            Exchange {
                aggregate,
                start,
                ..*exchange
            },
            false,
        );
        true
    }

    fn idle_from(&mut self, since: Instant) {
        self.medium = Medium::Idle(since);
        self.plan();
    }

    /// Doubles the contention window (10.23.2.2).
    fn fail(&mut self, station: StationId, category: AccessCategory) {
        let edca = &self.config.edca[category.index()];
        let function = &mut self.contenders[usize::from(station.0)][category.index()];
        function.cw = (2 * function.cw.min(u16::MAX / 2 - 1) + 1).min(edca.cw_max);
    }

    /// Draws a backoff after a transmission, whether or not more waits (post-backoff), and contends if it does.
    fn back_off(&mut self, station: StationId, category: AccessCategory) {
        let backoff_end = self.slot_clock[category.index()] + self.draw_backoff(station, category);
        let engaged = self.stations[usize::from(station.0)].ready(category);
        let function = &mut self.contenders[usize::from(station.0)][category.index()];
        function.backoff_end = backoff_end;
        function.engaged = engaged;
        if engaged {
            self.waiting[category.index()].push(Reverse((backoff_end, station.0)));
        }
    }

    fn collide<H: Host>(&mut self, sending: &[(StationId, AccessCategory, Aggregate)], now: Instant, host: &mut H) {
        self.counters.collisions += 1;
        let (mut longest, mut data) = (Duration::ZERO, Duration::ZERO);
        let mut parties = Vec::with_capacity(sending.len());
        for (station, category, aggregate) in sending {
            let ppdu = self.links.timing(*station, aggregate.to).ppdu(aggregate.bytes);
            let announced = self.opening(aggregate.to, ppdu) > Duration::ZERO;
            let duration = if announced { self.config.phy.rts() } else { ppdu };
            parties.push(Party {
                station: *station,
                category: *category,
                frames: aggregate.frames,
                retried: aggregate.to != StationId::GROUP,
                announced,
                end: now + duration,
            });
            longest = longest.max(duration);
            data = data.max(if announced { Duration::ZERO } else { ppdu });
            host.transmitted(&Transmission {
                from: *station,
                to: aggregate.to,
                category: *category,
                frames: aggregate.frames,
                start: now,
                end: now + duration,
                outcome: Outcome::Collided,
            });
        }
        self.counters.data += data;
        self.counters.control += longest.saturating_sub(data);
        self.deadline = now + longest;
        self.medium = Medium::Collision(parties);
    }

    fn on_collision_end<H: Host>(&mut self, parties: &[Party], now: Instant, host: &mut H) {
        // Busy until all parties are dealt with.
        self.medium = Medium::Collision(Vec::new());
        for Party {
            station,
            category,
            frames,
            retried,
            announced,
            end,
        } in parties
        {
            let retries_max = if *retried { self.config.retries_max } else { 0 };
            let again = self.settle(*station, *category, *frames, retries_max, now, host);
            if !announced {
                self.counters.retries += again;
            }
            // Without acknowledgements a sender to all does not know that it met others.
            if *retried {
                self.fail(*station, *category);
            }
            self.pull(*station, now, host);
            if self.stations[usize::from(station.0)].ready(*category) {
                let backoff = self.draw_backoff(*station, *category);
                self.contenders[usize::from(station.0)][category.index()].engaged = true;
                self.colliders.push(Collider {
                    station: *station,
                    category: *category,
                    late: slots((*end + self.config.phy.ack_timeout()).since(now)),
                    backoff,
                });
            } else {
                self.back_off(*station, *category);
            }
            self.contend_for_ready(*station, now);
        }
        self.late = slots(self.config.phy.eifs_extra());
        self.idle_from(now);
    }

    /// Settles an exchange's frames. Returns how many MPDUs have to be sent again.
    fn settle<H: Host>(
        &mut self,
        station: StationId,
        category: AccessCategory,
        frames: u16,
        retries_max: u8,
        now: Instant,
        host: &mut H,
    ) -> u64 {
        // Passed up only after all completions are told: both need the host.
        let mut in_sequence: Vec<Packet> = Vec::new();
        let on_air = self.stations[usize::from(station.0)].completes_on_air();
        let retried = self.stations[usize::from(station.0)].settle(
            category,
            frames,
            retries_max,
            |frame| {
                if on_air {
                    host.released(&frame.packet, frame.ahead, frame.queued_at, now);
                }
                host.completed(&frame.packet, frame.queued_at, frame.acknowledged, now);
            },
            |packet| in_sequence.push(*packet),
        );
        for packet in &in_sequence {
            host.delivered(packet, now);
        }
        u64::from(retried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Wnic;
    use crate::link::Link;
    use crate::phy::{Phy, Rate};
    use coorp_core::FlowId;
    use proptest::prelude::*;

    /// Remembers what it is told and lets everything pass.
    #[derive(Default)]
    struct Recorder {
        delivered: Vec<Packet>,
        completed: Vec<(Packet, bool)>,
        released: usize,
        dropped: Vec<Packet>,
        on_air: Vec<Transmission>,
        hold: bool,
    }

    impl Host for Recorder {
        fn may_dequeue(&mut self, _: StationId, category: AccessCategory, _: Load, _: Instant) -> bool {
            !self.hold || category == AccessCategory::Voice
        }
        fn enqueued(&mut self, _: &Packet, _: Instant) {}
        fn released(&mut self, _: &Packet, _: u16, _: Instant, _: Instant) {
            self.released += 1;
        }
        fn completed(&mut self, packet: &Packet, _: Instant, acknowledged: bool, _: Instant) {
            self.completed.push((*packet, acknowledged));
        }
        fn delivered(&mut self, packet: &Packet, _: Instant) {
            self.delivered.push(*packet);
        }
        fn dropped(&mut self, packet: &Packet, _: Instant) {
            self.dropped.push(*packet);
        }
        fn transmitted(&mut self, transmission: &Transmission) {
            self.on_air.push(*transmission);
        }
    }

    fn edca(aifsn: u8, cw_min: u16, cw_max: u16) -> Edca {
        Edca {
            aifsn,
            cw_min,
            cw_max,
            txop: Duration::ZERO,
            ampdu_frames: 64,
            ampdu_bytes: 65_535,
        }
    }

    fn config(stations: u16, commit_frames: Option<u16>, loss: f64) -> Config {
        Config {
            phy: Phy {
                standard: Standard::Ac,
                width_mhz: 20,
                guard_interval_ns: 800,
                control_rate_mbps: 24,
            },
            edca: [edca(2, 3, 7), edca(2, 7, 15), edca(3, 15, 1023), edca(7, 15, 1023)],
            rts_over: Duration::MAX,
            retries_max: 7,
            block_ack_frames: 64,
            stations,
            wnic: Wnic {
                queue_frames: 64,
                burst_frames: 16,
                commit_frames,
                completes_on_transfer: false,
                host_queue_packets: 100_000,
                codel: false,
                mpdu_spacing: Duration::ZERO,
            },
            link: Link {
                rate: Rate { mcs: 8, streams: 1 },
                loss,
            },
        }
    }

    fn packet(from: u16, to: u16, category: AccessCategory, tag: u64, now: Instant) -> Packet {
        let flow = FlowId(u32::from(from) * 1000 + u32::from(to) * 10 + category.index() as u32);
        Packet {
            flow,
            tag,
            bytes: 1500,
            from: StationId(from),
            to: StationId(to),
            category,
            sent_at: now,
        }
    }

    fn run(air: &mut Air, host: &mut Recorder) -> Instant {
        let mut now = Instant::ZERO;
        while air.next_deadline() < Instant::FAR_FUTURE {
            now = air.next_deadline();
            air.on_deadline(host);
        }
        now
    }

    #[test]
    fn a_lone_packet_takes_difs_preamble_symbols_sifs_and_ack() {
        let (mut air, mut host) = (Air::new(config(2, None, 0.0), 1), Recorder::default());
        air.send(
            packet(1, 0, AccessCategory::Voice, 0, Instant::ZERO),
            Instant::ZERO,
            &mut host,
        );
        let end = run(&mut air, &mut host);
        // AIFS 34 us; 1542 bytes at 78 Mbit/s (312 bits a symbol): 40 symbols and 40 us of preamble; SIFS; ACK 28 us.
        assert_eq!(end.as_nanos(), (34 + 40 + 40 * 4 + 16 + 28) * 1_000);
        assert_eq!(host.delivered.len(), 1);
        assert_eq!(host.on_air[0].end.as_nanos(), (34 + 40 + 160) * 1_000);
    }

    #[test]
    fn stations_of_one_slot_collide_and_recover() {
        let (mut air, mut host) = (Air::new(config(3, None, 0.0), 1), Recorder::default());
        for from in [1, 2] {
            air.send(
                packet(from, 0, AccessCategory::Voice, 0, Instant::ZERO),
                Instant::ZERO,
                &mut host,
            );
        }
        run(&mut air, &mut host);
        assert!(air.counters().collisions >= 1);
        assert_eq!(host.on_air[0].outcome, Outcome::Collided);
        assert_eq!(host.delivered.len(), 2);
    }

    #[test]
    fn a_collider_with_a_short_frame_is_ahead_of_everybody() {
        // AC_VO of one station meets a long AC_BE aggregate of another in the first slot; a third waits.
        let mut config = config(4, None, 0.0);
        config.edca[2] = edca(2, 0, 15);
        config.edca[0] = edca(2, 0, 0);
        let (mut air, mut host) = (Air::new(config, 1), Recorder::default());
        for (from, category) in [(1, AccessCategory::Voice), (2, AccessCategory::BestEffort)] {
            for tag in 0..if category == AccessCategory::Voice { 1 } else { 40 } {
                air.send(packet(from, 0, category, tag, Instant::ZERO), Instant::ZERO, &mut host);
            }
        }
        air.on_deadline(&mut host);
        let collision_end = air.next_deadline();
        let busy = collision_end - Duration::from_micros(1);
        air.send(packet(3, 0, AccessCategory::Voice, 0, busy), busy, &mut host);
        run(&mut air, &mut host);
        assert_eq!(host.on_air[0].outcome, Outcome::Collided);
        let next = &host.on_air[2];
        assert_eq!((next.from, next.category), (StationId(1), AccessCategory::Voice));
        // SIFS and AIFSN slots after the longer frame, without EIFS or an ACK timeout.
        assert_eq!(next.start.since(collision_end), SIFS + SLOT * 2);
    }

    #[test]
    fn voice_overtakes_best_effort_unless_the_baseband_has_it() {
        let overtaken = |commit_frames| {
            let (mut air, mut host) = (Air::new(config(2, commit_frames, 0.0), 1), Recorder::default());
            for tag in 0..64 {
                air.send(
                    packet(1, 0, AccessCategory::BestEffort, tag, Instant::ZERO),
                    Instant::ZERO,
                    &mut host,
                );
            }
            air.on_deadline(&mut host);
            let now = air.next_deadline();
            air.send(packet(1, 0, AccessCategory::Voice, 0, now), now, &mut host);
            run(&mut air, &mut host);
            let place = host
                .delivered
                .iter()
                .position(|packet| packet.category == AccessCategory::Voice);
            place.expect("the voice packet arrives")
        };
        let (ideal, shallow, deep) = (overtaken(None), overtaken(Some(8)), overtaken(Some(60)));
        assert!(ideal < 64, "{ideal}");
        assert_eq!(shallow, 8);
        assert_eq!(deep, 60);
    }

    #[test]
    fn a_txop_carries_several_ppdus_and_ends_within_its_limit() {
        let mut config = config(2, None, 0.0);
        config.edca[2].txop = Duration::from_micros(3_008);
        config.edca[2].ampdu_frames = 4;
        let (mut air, mut host) = (Air::new(config, 1), Recorder::default());
        for tag in 0..20 {
            air.send(
                packet(1, 0, AccessCategory::BestEffort, tag, Instant::ZERO),
                Instant::ZERO,
                &mut host,
            );
        }
        run(&mut air, &mut host);
        let gaps: Vec<u64> = host
            .on_air
            .windows(2)
            .map(|pair| pair[1].start.since(pair[0].end).as_nanos() / 1_000)
            .collect();
        // SIFS + block ack + SIFS within the opportunity.
        assert_eq!(gaps[..2], [16 + 32 + 16, 16 + 32 + 16]);
        let opportunity = host.on_air[2].end.since(host.on_air[0].start) + SIFS + Duration::from_micros(32);
        assert!(opportunity <= Duration::from_micros(3_008), "{opportunity}");
        assert!(gaps[2] > 64 || gaps[3] > 64, "the opportunity ended: {gaps:?}");
    }

    #[test]
    fn a_held_gate_keeps_bulk_in_the_host_queue_until_kicked() {
        let (mut air, mut host) = (
            Air::new(config(2, Some(32), 0.0), 1),
            Recorder {
                hold: true,
                ..Default::default()
            },
        );
        air.send(
            packet(1, 0, AccessCategory::BestEffort, 0, Instant::ZERO),
            Instant::ZERO,
            &mut host,
        );
        assert_eq!(air.next_deadline(), Instant::FAR_FUTURE);
        host.hold = false;
        air.kick(StationId(1), Instant::from_nanos(5_000_000), &mut host);
        run(&mut air, &mut host);
        assert_eq!(host.delivered.len(), 1);
    }

    #[test]
    fn a_group_frame_goes_once_at_the_basic_rate_to_all_and_nobody_answers() {
        let (mut air, mut host) = (Air::new(config(4, None, 0.0), 1), Recorder::default());
        air.config.rts_over = Duration::ZERO;
        let lost = Link {
            rate: Rate { mcs: 8, streams: 1 },
            loss: 1.0,
        };
        air.set_link(StationId(0), StationId(3), lost);
        for tag in 0..2 {
            let mut packet = packet(0, 1, AccessCategory::BestEffort, tag, Instant::ZERO);
            packet.to = StationId::GROUP;
            air.send(packet, Instant::ZERO, &mut host);
        }
        run(&mut air, &mut host);
        let receivers: Vec<(u64, u16)> = host.delivered.iter().map(|packet| (packet.tag, packet.to.0)).collect();
        assert_eq!(receivers, [(0, 1), (0, 2), (1, 1), (1, 2)]);
        // 1538 bytes of MPDU at 24 bits a symbol of 4 us, behind 20 us of preamble: one a PPDU, no RTS before it.
        let lasts = Duration::from_micros(20 + 4 * (16 + 8 * 1538_u64 + 6).div_ceil(24));
        assert_eq!(
            host.on_air
                .iter()
                .map(|sent| sent.end.since(sent.start))
                .collect::<Vec<_>>(),
            [lasts; 2]
        );
        assert_eq!(host.on_air[0].start, Instant::ZERO + SIFS + SLOT * 3);
        assert_eq!(
            host.completed.iter().filter(|(_, acknowledged)| *acknowledged).count(),
            2
        );
    }

    #[test]
    fn a_station_that_is_switched_off_loses_what_waits() {
        let (mut air, mut host) = (Air::new(config(2, Some(4), 0.0), 1), Recorder::default());
        for tag in 0..2_000 {
            air.queue(
                packet(1, 0, AccessCategory::BestEffort, tag, Instant::ZERO),
                Instant::ZERO,
            );
        }
        air.kick(StationId(1), Instant::ZERO, &mut host);
        air.purge(StationId(1), Instant::ZERO, &mut host);
        let lost = host.dropped.len();
        assert!(lost > 0);
        air.send(
            packet(1, 0, AccessCategory::BestEffort, 9_999, Instant::ZERO),
            Instant::ZERO,
            &mut host,
        );
        run(&mut air, &mut host);
        assert_eq!(host.delivered.len() + lost, 2_001);
        assert_eq!(host.delivered.last().map(|packet| packet.tag), Some(9_999));
    }

    proptest! {
        /// Whatever is sent is delivered once and in order of its flow, or reported given up; nothing stays behind.
        #[test]
        fn packets_are_conserved(
            seed: u64,
            loss in 0.0..0.6f64,
            commit in prop::option::of(1u16..80),
            rts_over_us in 0u64..6_000,
            on_transfer: bool,
            txop_us in 0u64..4_000,
            sends in prop::collection::vec((0u16..5, 0u16..6, 0usize..4, 0u64..3_000), 1..300),
        ) {
            let mut config = config(5, commit, loss);
            config.rts_over = Duration::from_micros(rts_over_us);
            config.wnic.completes_on_transfer = on_transfer;
            config.edca.iter_mut().for_each(|edca| edca.txop = Duration::from_micros(txop_us));
            let (mut air, mut host) = (Air::new(config, seed), Recorder::default());
            let mut now = Instant::ZERO;
            let mut sent = 0;
            for (tag, (from, to, category, wait_us)) in sends.iter().enumerate() {
                let at = now + Duration::from_micros(*wait_us);
                while air.next_deadline() <= at {
                    air.on_deadline(&mut host);
                }
                now = at;
                if from != to {
                    let category = AccessCategory::ALL[*category];
                    let mut packet = packet(*from, *to, category, tag as u64, now);
                    if *to == 5 {
                        packet.to = StationId::GROUP;
                    }
                    air.send(packet, now, &mut host);
                    sent += 1;
                }
            }
            run(&mut air, &mut host);
            prop_assert_eq!((host.completed.len(), host.released), (sent, sent));
            let to_all = |packet: &Packet| packet.flow.0 % 1000 / 10 == 5;
            let to_one = host.completed.iter().filter(|(packet, _)| !to_all(packet));
            let acknowledged = to_one.filter(|(_, acknowledged)| *acknowledged).count();
            prop_assert_eq!(host.delivered.iter().filter(|packet| !to_all(packet)).count(), acknowledged);
            let mut last = std::collections::HashMap::new();
            for packet in &host.delivered {
                let before = last.insert((packet.flow, packet.to), packet.tag);
                prop_assert!(before.is_none_or(|tag| tag < packet.tag), "{:?} after {:?}", packet, before);
            }
            // The medium is never used twice at once, collisions aside.
            for pair in host.on_air.windows(2) {
                let together = pair[0].outcome == Outcome::Collided && pair[0].start == pair[1].start;
                prop_assert!(together || pair[1].start >= pair[0].end, "{:?}", pair);
            }
        }
    }
}
