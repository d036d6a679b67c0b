//! The medium: decides when each station transmits, for how long, and which frames arrive. EDCA of IEEE 802.11-2020,
//! 10.23.2.
//!
//! All stations hear each other, so the medium is busy or idle for all at once, and slots are aligned. Each access
//! category has a *slot clock* that counts the idle slots after its AIFS. A backoff is a point on that clock. So a
//! backoff that freezes and resumes costs no computation. The next transmission is the smallest of four heap heads:
//! O(log n) in contending stations.
//!
//! After a collision, bystanders wait EIFS (10.3.2.3.7). A station that took part in it has received nothing. All of
//! its functions wait for the ACK timeout of its own frame (10.23.2.4 c). So a station with a shorter frame than the
//! others is ahead of everybody. The slots of all three stay aligned here: 60 and 45 us are rounded to 7 and 5 slots.
//!
//! If stations request a missed block ack ([`Config::block_ack_request`]), a function sends a BlockAckReq in its next
//! turn, and the data only once that is answered. Otherwise it sends the data again at once.
//!
//! On a link with losses, RTS, CTS and answers are lost too. Data whose answer is lost is sent again, and the receiver
//! recognises it by its sequence number.
//!
//! With an access point, packets between other stations go to it first. There they wait in the host queue of their
//! category, and contend once more. The hooks of its driver apply to these packets too. A frame to all is broadcast
//! directly by its sender.
//!
//! Simplifications: a BlockAckReq after frames that were given up takes no airtime. A frame that arrived counts as
//! acknowledged even if it is given up because none of its answers arrived. If no answer comes, the medium is busy
//! until the answer would have ended.

mod links;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use coorp_core::{Duration, Instant};
use rand::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::channel::links::Links;
use crate::config::{Config, Edca};
use crate::fq_codel::Node;
use crate::link::Link;
use crate::packet::{AccessCategory, Packet, StationId};
use crate::phy::{block_ack_bytes, ControlRate, Standard, ACK_BYTES, BLOCK_ACK_REQUEST_BYTES, CTS_BYTES, RTS_BYTES};
use crate::phy::{PPDU_MAX, SIFS, SLOT};
use crate::wnic::{Aggregate, AggregateLimit, Dequeued, Ended, Load, Queues};

/// Calls from the air to the layer above: the driver's three hooks (Deng 2022, section V), and arrivals. [`Air`]'s
/// methods make these calls; responses go through [`Air::send`] afterwards. The driver's hooks name the driver's
/// station: the packet's sender, or the access point that relays it.
pub trait Host {
    /// Decides how many packets of `category` the driver may take from the host queue, at most `most`. `load` is the
    /// load of that category in the WNIC. The driver asks again after this number; zero holds the packets until
    /// [`Air::kick`].
    fn may_dequeue(&mut self, station: StationId, category: AccessCategory, load: Load, most: u16, now: Instant)
        -> u16;
    /// Reports that the driver handed `packet` to the WNIC.
    fn enqueued(&mut self, station: StationId, packet: &Packet, now: Instant);
    /// Reports that the driver counts `packet`, which the WNIC got at `queued_at` behind `ahead` others, as complete
    /// (the completion hook). Over USB, that is before the packet was on the air.
    fn released(&mut self, station: StationId, packet: &Packet, ahead: u16, queued_at: Instant, now: Instant);
    /// Reports the transmit status of `packet`, which the WNIC got at `queued_at`: acknowledged, or given up. If the
    /// access point gives up a packet, its sender does not learn of that.
    fn completed(&mut self, station: StationId, packet: &Packet, queued_at: Instant, acknowledged: bool, now: Instant);
    /// Reports that `packet` reached the stack of its receiver. A group-addressed packet reaches several, with one call
    /// for each and the receiver in `to`. Its transmit status follows, and is always an acknowledgement except after a
    /// collision.
    fn delivered(&mut self, packet: &Packet, now: Instant);
    /// Reports that the host queue dropped `packet`.
    fn dropped(&mut self, station: StationId, packet: &Packet, now: Instant);
    /// Reports a transmission that was on the air, for drawing. Does nothing by default.
    fn transmitted(&mut self, _transmission: &Transmission) {}
}

/// The outcome of a transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// At least one MPDU arrived.
    Received,
    /// Nothing arrived: every MPDU was lost to noise.
    Lost,
    /// Two or more stations sent at once.
    Collided,
}

/// A PPDU, or the RTS in its place, on the air.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmission {
    /// The sender.
    pub from: StationId,
    /// The receiver, or all.
    pub to: StationId,
    /// The category.
    pub category: AccessCategory,
    /// The number of MPDUs.
    pub frames: u16,
    /// The first bit of the PPDU, or of the RTS if that collided.
    pub start: Instant,
    /// The last bit.
    pub end: Instant,
    /// The outcome.
    pub outcome: Outcome,
}

/// Counters of the MAC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MacCounters {
    /// The number of times that two or more stations sent at once.
    pub collisions: u64,
    /// The number of MPDUs that had to be sent again.
    pub retries: u64,
    /// Airtime of data PPDUs, including collided ones.
    pub data: Duration,
    /// Airtime of RTS, CTS, acknowledgements and the SIFS between them.
    pub control: Duration,
    /// The number of data PPDUs that did not collide, by category.
    pub ppdus: [u64; 4],
    /// The number of MPDUs in them, repeated ones included.
    pub mpdus: [u64; 4],
}

impl MacCounters {
    /// Returns how long the channel was in use: data, acknowledgements, and the gaps inside an exchange.
    pub fn used(&self) -> Duration {
        self.data + self.control
    }
}

/// Draws whether an MPDU is lost. A link without losses draws nothing.
fn is_lost(loss: f64, rng: &mut Xoshiro256PlusPlus) -> bool {
    loss > 0.0 && ((rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64) < loss
}

/// Returns whether a packet that has reached the station `at` has to go further.
fn is_relayed(packet: &Packet, at: StationId) -> bool {
    at != StationId::GROUP && packet.to != at
}

/// Converts a span to slots, rounded, because all slots are assumed to be aligned.
fn slots(span: Duration) -> u64 {
    (span.as_nanos() + SLOT.as_nanos() / 2) / SLOT.as_nanos()
}

/// One EDCA function.
#[derive(Clone, Copy, Debug)]
struct Contender {
    cw: u16,
    /// The end of the backoff on the category's slot clock.
    backoff_end: u64,
    /// Whether the function waits for its turn (in `waiting`, unless its station is among the `colliders`) or is
    /// sending.
    engaged: bool,
    /// The number of times that a BlockAckReq was sent in vain, if the next turn sends one.
    request: Option<u8>,
}

/// A station that took part in the last collision.
#[derive(Clone, Copy, Debug)]
struct Collider {
    station: StationId,
    /// Slots from the collision's end to the start of its functions' AIFS.
    late: u64,
}

#[derive(Clone, Copy, Debug)]
struct Exchange {
    station: StationId,
    category: AccessCategory,
    aggregate: Aggregate,
    /// Start of the PPDU.
    start: Instant,
    /// End of the transmission opportunity; `None` for a single PPDU.
    txop_end: Option<Instant>,
}

impl Exchange {
    /// Returns the record of the PPDU, or of the RTS before it, which ended at `end`.
    fn transmission(&self, end: Instant, outcome: Outcome) -> Transmission {
        Transmission {
            from: self.station,
            to: self.aggregate.to,
            category: self.category,
            frames: self.aggregate.frames,
            start: self.start,
            end,
            outcome,
        }
    }
}

/// A sender's view of the end of its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// No CTS after the RTS, so the sender does not send the data.
    NoCts,
    /// No acknowledgement of the data.
    Missed,
    /// The answer arrived, or none is needed.
    Heard,
}

/// One of several functions that send at once.
#[derive(Clone, Copy, Debug)]
struct Party {
    station: StationId,
    category: AccessCategory,
    aggregate: Aggregate,
    /// Whether the frame is sent again after a collision: if it is to one station, not to all.
    retried: bool,
    /// Whether only the RTS was on the air.
    announced: bool,
    /// When this party's frame ends.
    end: Instant,
}

#[derive(Clone, Debug)]
enum Medium {
    /// Idle since, or from, this instant.
    Idle(Instant),
    /// A PPDU is on the air until the deadline.
    Ppdu(Exchange),
    /// A PPDU, or the RTS before it, has ended and is being answered.
    Answer(Exchange, Answer),
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
    /// Contenders of each category by the end of their backoff. Every contending function has one entry, except those
    /// of `colliders`.
    waiting: [BinaryHeap<Reverse<(u64, u16)>>; 4],
    /// Slots from when the medium became idle to the start of a bystander's AIFS: none, or after a collision EIFS -
    /// AIFS.
    late: u64,
    /// Stations whose functions have their own lateness, until the next contention is decided.
    colliders: Vec<Collider>,
    medium: Medium,
    deadline: Instant,
    links: Links,
    /// Packets that the access point has received and not relayed yet.
    to_relay: Vec<Packet>,
    /// Buffers kept between contentions to reuse their memory.
    winners: Vec<(StationId, AccessCategory)>,
    sending: Vec<(StationId, AccessCategory, Aggregate)>,
    rng: Xoshiro256PlusPlus,
    counters: MacCounters,
}

impl Air {
    /// Creates a channel on which nothing has happened yet. The same seed and calls give the same events.
    pub fn new(config: Config, seed: u64) -> Air {
        let count = usize::from(config.stations);
        let contenders = [0, 1, 2, 3].map(|i: usize| {
            let cw = config.edca[i].cw_min;
            Contender {
                cw,
                backoff_end: 0,
                engaged: false,
                request: None,
            }
        });
        Air {
            stations: (0..config.stations)
                .map(|station| {
                    let hop = config.access_point.filter(|point| *point != StationId(station));
                    Queues::new(config.wnic, hop)
                })
                .collect(),
            contenders: vec![contenders; count],
            slot_clock: [0; 4],
            waiting: Default::default(),
            late: 0,
            colliders: Vec::new(),
            medium: Medium::Idle(Instant::ZERO),
            deadline: Instant::FAR_FUTURE,
            links: Links::new(&config),
            to_relay: Vec::new(),
            winners: Vec::new(),
            sending: Vec::new(),
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            counters: MacCounters::default(),
            config,
        }
    }

    /// Sets the link in one direction between two stations, instead of the default link, or changes it as they move.
    pub fn set_link(&mut self, from: StationId, to: StationId, link: Link) {
        self.links.set(from, to, link);
    }

    /// Empties the host queue of `station`, which is switched off. Packets that its WNIC has already taken still go
    /// out.
    pub fn purge<H: Host>(&mut self, station: StationId, now: Instant, host: &mut H) {
        self.stations[usize::from(station.0)].purge(&mut |dropped| host.dropped(station, &dropped, now));
    }

    /// Returns the MAC's counters so far.
    pub fn counters(&self) -> &MacCounters {
        &self.counters
    }

    /// Sends a packet from the stack of `packet.from`. `now` must not be earlier than in any call before.
    pub fn send<H: Host>(&mut self, packet: Packet, now: Instant, host: &mut H) {
        if let Some(dropped) = self.queue(packet, now) {
            host.dropped(packet.from, &dropped, now);
        }
        self.kick(packet.from, now, host);
    }

    /// Puts `packet` into its sender's host queue without waking the driver: for many packets at once, followed by
    /// one [`Air::kick`]. Returns the packet that the queue dropped to make room, if any.
    #[inline]
    pub fn queue(&mut self, packet: Packet, now: Instant) -> Option<Packet> {
        self.stations[usize::from(packet.from.0)].push(packet, now)
    }

    /// Lets the driver of `station` ask for packets again, because a gate opened or packets were queued.
    pub fn kick<H: Host>(&mut self, station: StationId, now: Instant, host: &mut H) {
        self.pull(station, now, host);
        self.contend_for_ready(station, now);
        self.plan();
    }

    /// Returns when to call [`Air::on_deadline`]; [`Instant::FAR_FUTURE`] while no station has anything to send.
    pub fn next_deadline(&self) -> Instant {
        self.deadline
    }

    /// Processes everything that is due at the deadline.
    pub fn on_deadline<H: Host>(&mut self, host: &mut H) {
        let now = self.deadline;
        match std::mem::replace(&mut self.medium, Medium::Idle(now)) {
            Medium::Idle(since) => self.on_contention_end(since, now, host),
            Medium::Ppdu(exchange) => self.on_ppdu_end(exchange, now, host),
            Medium::Answer(exchange, answer) => self.on_exchange_end(exchange, answer, now, host),
            Medium::Collision(parties) => self.on_collision_end(&parties, now, host),
        }
    }

    /// Takes the packets for which the WNIC has room and that the gate lets pass, highest category first.
    fn pull<H: Host>(&mut self, station: StationId, now: Instant, host: &mut H) {
        let queues = &mut self.stations[usize::from(station.0)];
        loop {
            for category in AccessCategory::ALL {
                loop {
                    let wanted = queues.wanted(category);
                    if wanted == 0 {
                        break;
                    }
                    let may = host.may_dequeue(station, category, queues.in_wnic[category.index()], wanted, now);
                    let taken = queues.take(category, may.min(wanted), now, &mut |dequeued| match dequeued {
                        Dequeued::Enqueued(packet) => host.enqueued(station, packet, now),
                        Dequeued::Dropped(packet) => host.dropped(station, &packet, now),
                    });
                    if taken == 0 || taken < may {
                        break;
                    }
                }
            }
            // Frames that move to the commit stage make room for more.
            if !queues.commit(|node| host.released(station, &node.packet, node.frame.ahead, node.queued_at, now)) {
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

    /// Lets a function contend, because it has something to send. It continues its backoff, or draws one if the medium
    /// is busy. If the medium has been idle for AIFS, it sends at the next slot boundary (10.23.2.2).
    fn contend(&mut self, station: StationId, category: AccessCategory, now: Instant) {
        let clock = self.slot_clock[category.index()];
        let aifsn = u64::from(self.config.edca[category.index()].aifsn);
        let drawn = self.draw_backoff(station, category);
        let late = self.lateness(station);
        let function = &mut self.contenders[usize::from(station.0)][category.index()];
        match self.medium {
            Medium::Idle(since) => {
                let boundary = now.since(since + SIFS).as_nanos().div_ceil(SLOT.as_nanos());
                let passed = boundary.saturating_sub(late + aifsn);
                function.backoff_end = function.backoff_end.max(clock + passed);
            }
            _ if function.backoff_end <= clock => function.backoff_end = clock + drawn,
            _ => {}
        }
        function.engaged = true;
        self.wait(station, category);
    }

    /// Lets a function wait for the end of its backoff.
    fn wait(&mut self, station: StationId, category: AccessCategory) {
        if !self.colliders.iter().any(|collider| collider.station == station) {
            let backoff_end = self.contenders[usize::from(station.0)][category.index()].backoff_end;
            self.waiting[category.index()].push(Reverse((backoff_end, station.0)));
        }
    }

    /// Returns the slots from when the medium became idle to the start of a station's AIFS.
    fn lateness(&self, station: StationId) -> u64 {
        let collider = self.colliders.iter().find(|collider| collider.station == station);
        collider.map_or(self.late, |collider| collider.late)
    }

    /// Draws a backoff in slots, uniform over [0, CW].
    fn draw_backoff(&mut self, station: StationId, category: AccessCategory) -> u64 {
        let cw = self.contenders[usize::from(station.0)][category.index()].cw;
        (u64::from(self.rng.next_u32()) * (u64::from(cw) + 1)) >> 32
    }

    /// Returns the first slot boundary, counted from SIFS, at which some function of this category sends.
    fn boundary(&self, category: AccessCategory) -> Option<u64> {
        let Reverse((backoff_end, _)) = self.waiting[category.index()].peek()?;
        Some(self.boundary_of(category, *backoff_end, self.late))
    }

    /// Returns the boundary at which a backoff that counts only from `late` slots on has ended.
    fn boundary_of(&self, category: AccessCategory, backoff_end: u64, late: u64) -> u64 {
        late + self.aifsn(category) + backoff_end.saturating_sub(self.slot_clock[category.index()])
    }

    fn aifsn(&self, category: AccessCategory) -> u64 {
        u64::from(self.config.edca[category.index()].aifsn)
    }

    /// Returns the contending functions of the last collision's stations, with the boundary at which each sends.
    fn collider_boundaries(&self) -> impl Iterator<Item = (StationId, AccessCategory, u64)> + '_ {
        self.colliders.iter().flat_map(move |Collider { station, late }| {
            let functions = &self.contenders[usize::from(station.0)];
            let engaged = AccessCategory::ALL
                .into_iter()
                .filter(|category| functions[category.index()].engaged);
            engaged.map(move |category| {
                let backoff_end = functions[category.index()].backoff_end;
                (*station, category, self.boundary_of(category, backoff_end, *late))
            })
        })
    }

    /// Sets the deadline while the medium is idle: the earliest slot boundary at which a station sends.
    fn plan(&mut self) {
        if let Medium::Idle(since) = self.medium {
            let everybody = AccessCategory::ALL
                .iter()
                .filter_map(|category| self.boundary(*category));
            let colliders = self.collider_boundaries().map(|(.., boundary)| boundary);
            let boundary = everybody.chain(colliders).min();
            self.deadline = boundary.map_or(Instant::FAR_FUTURE, |slots| since + SIFS + SLOT * slots);
        }
    }

    fn on_contention_end<H: Host>(&mut self, since: Instant, now: Instant, host: &mut H) {
        let boundary = now.since(since + SIFS).as_nanos() / SLOT.as_nanos();
        let mut winners = std::mem::take(&mut self.winners);
        for category in AccessCategory::ALL {
            while self.boundary(category) == Some(boundary) {
                let Some(Reverse((_, station))) = self.waiting[category.index()].pop() else {
                    break;
                };
                winners.push((StationId(station), category));
            }
        }
        let ahead = self.collider_boundaries().filter(|(.., at)| *at == boundary);
        winners.extend(ahead.map(|(station, category, _)| (station, category)));
        self.count_down(boundary, &winners);
        winners.sort_unstable_by_key(|(station, category)| (category.index(), *station));
        let mut sending = std::mem::take(&mut self.sending);
        for (station, category) in winners.drain(..) {
            let internal = sending.iter().any(|(other, ..)| *other == station);
            if internal {
                // A lower category of a station that sends anyway is treated as after a collision (10.23.2.4).
                self.fail(station, category);
                self.back_off(station, category);
            } else if let Some(aggregate) = self.aggregate(station, category, self.first_limit(station, category)) {
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
        sending.clear();
        (self.winners, self.sending) = (winners, sending);
    }

    /// Advances backoffs to this boundary, at which a station sends. Backoffs count down at every boundary from AIFS
    /// on, including this one, at which the winners send instead (10.23.2.4). Those of the last collision's stations
    /// count from their own start on.
    fn count_down(&mut self, boundary: u64, winners: &[(StationId, AccessCategory)]) {
        let before = self.slot_clock;
        for (clock, edca) in self.slot_clock.iter_mut().zip(&self.config.edca) {
            *clock += (boundary + 1).saturating_sub(self.late + u64::from(edca.aifsn));
        }
        self.late = 0;
        for Collider { station, late } in std::mem::take(&mut self.colliders) {
            for category in AccessCategory::ALL {
                let place = category.index();
                let counted = (boundary + 1).saturating_sub(late + self.aifsn(category));
                let function = &mut self.contenders[usize::from(station.0)][place];
                let left = function.backoff_end.saturating_sub(before[place] + counted);
                function.backoff_end = self.slot_clock[place] + left;
                if function.engaged && !winners.contains(&(station, category)) {
                    self.wait(station, category);
                }
            }
        }
    }

    /// Returns the airtime of RTS and CTS with the gaps after them, if they precede a PPDU of this duration.
    fn rts_cts(&self, control: ControlRate, ppdu: Duration) -> Duration {
        if ppdu > self.config.rts_over {
            control.rts() + SIFS + control.cts() + SIFS
        } else {
            Duration::ZERO
        }
    }

    /// Returns the airtime before a PPDU of this duration. A frame to all has no RTS, since no single station could
    /// answer it. Neither has a BlockAckReq.
    fn opening(&self, station: StationId, aggregate: &Aggregate, ppdu: Duration) -> Duration {
        match aggregate {
            Aggregate {
                to: StationId::GROUP, ..
            }
            | Aggregate { frames: 0, .. } => Duration::ZERO,
            _ => self.rts_cts(self.links.get(station, aggregate.to).control, ppdu),
        }
    }

    /// Returns how long the first PPDU of a function's transmission opportunity may last.
    fn first_limit(&self, station: StationId, category: AccessCategory) -> Duration {
        let txop = self.config.edca[category.index()].txop;
        let to = self.stations[usize::from(station.0)].destination(category);
        let Some(to) = to.filter(|_| txop > Duration::ZERO) else {
            return PPDU_MAX;
        };
        let control = self.links.get(station, to).control;
        txop.saturating_sub(self.rts_cts(control, txop) + SIFS + self.block_ack(control))
            .min(PPDU_MAX)
    }

    fn block_ack(&self, control: ControlRate) -> Duration {
        control.block_ack(self.config.block_ack_frames)
    }

    /// Returns how long the acknowledgement of a PPDU lasts, and its size in bytes.
    fn acknowledgement(&self, station: StationId, aggregate: &Aggregate) -> (Duration, u32) {
        let control = self.links.get(station, aggregate.to).control;
        if aggregate.frames == 1 {
            (control.ack(), ACK_BYTES)
        } else {
            (self.block_ack(control), block_ack_bytes(self.config.block_ack_frames))
        }
    }

    /// Returns how long a PPDU lasts.
    fn ppdu(&self, station: StationId, aggregate: &Aggregate) -> Duration {
        match aggregate.frames {
            0 => self.links.get(station, aggregate.to).control.block_ack_request(),
            _ => self.links.timing(station, aggregate.to).ppdu(aggregate.bytes),
        }
    }

    /// Returns the contents of a function's next PPDU of at most `limit`; no frames for a BlockAckReq. A single frame
    /// may take longer.
    fn aggregate(&self, station: StationId, category: AccessCategory, limit: Duration) -> Option<Aggregate> {
        let queues = &self.stations[usize::from(station.0)];
        let edca: &Edca = &self.config.edca[category.index()];
        let to = queues.destination(category)?;
        let function = &self.contenders[usize::from(station.0)][category.index()];
        if function.request.is_some() {
            let (frames, bytes) = (0, 0);
            return Some(Aggregate { to, frames, bytes });
        }
        let timing = self.links.timing(station, to);
        let spacing_s = self.config.wnic.mpdu_spacing.as_secs_f64();
        let limit = AggregateLimit {
            // No station could acknowledge an A-MPDU to all (10.12.4).
            frames: if to == StationId::GROUP { 1 } else { edca.ampdu_frames },
            bytes: edca.ampdu_bytes.min(timing.bytes_within(limit)),
            window: self.config.block_ack_frames,
            subframe_bytes_min: (spacing_s * timing.bits_per_second() / 8.0) as u32,
            lone_delimiter: self.config.phy.standard != Standard::N && to != StationId::GROUP,
        };
        queues.aggregate(category, &limit)
    }

    fn send_ppdu(&mut self, mut exchange: Exchange, opens: bool) {
        let Exchange { station, aggregate, .. } = exchange;
        let duration = self.ppdu(station, &aggregate);
        if opens {
            let opening = self.opening(station, &aggregate, duration);
            self.counters.control += opening;
            if opening > Duration::ZERO && !self.hears_cts(station, aggregate.to) {
                self.deadline = exchange.start + opening.saturating_sub(SIFS);
                self.medium = Medium::Answer(exchange, Answer::NoCts);
                return;
            }
            exchange.start += opening;
        }
        *self.airtime(&aggregate) += duration;
        let place = exchange.category.index();
        self.counters.ppdus[place] += u64::from(aggregate.frames > 0);
        self.counters.mpdus[place] += u64::from(aggregate.frames);
        self.deadline = exchange.start + duration;
        self.medium = Medium::Ppdu(exchange);
    }

    /// Draws whether an RTS and the CTS after it survive.
    fn hears_cts(&mut self, station: StationId, to: StationId) -> bool {
        self.survives(station, to, RTS_BYTES) && self.survives(to, station, CTS_BYTES)
    }

    /// Draws whether a control frame survives its link.
    fn survives(&mut self, from: StationId, to: StationId, bytes: u32) -> bool {
        let loss = self.links.get(from, to).link.loss_of(bytes);
        !is_lost(loss, &mut self.rng)
    }

    /// Returns the counter for a PPDU's airtime.
    fn airtime(&mut self, aggregate: &Aggregate) -> &mut Duration {
        match aggregate.frames {
            0 => &mut self.counters.control,
            _ => &mut self.counters.data,
        }
    }

    fn on_ppdu_end<H: Host>(&mut self, exchange: Exchange, now: Instant, host: &mut H) {
        let Exchange {
            station,
            category,
            aggregate,
            ..
        } = exchange;
        let survivors = if aggregate.to == StationId::GROUP {
            self.reach_all(station, category, now, host)
        } else if aggregate.frames == 0 {
            u16::from(self.survives(station, aggregate.to, BLOCK_ACK_REQUEST_BYTES))
        } else {
            let loss = self.links.get(station, aggregate.to).link.loss;
            let (rng, to_relay) = (&mut self.rng, &mut self.to_relay);
            let queues = &mut self.stations[usize::from(station.0)];
            queues.deliver(
                category,
                aggregate.frames,
                || !is_lost(loss, rng),
                |packet| match is_relayed(packet, aggregate.to) {
                    true => to_relay.push(*packet),
                    false => host.delivered(packet, now),
                },
            )
        };
        let outcome = if survivors > 0 {
            Outcome::Received
        } else {
            Outcome::Lost
        };
        host.transmitted(&exchange.transmission(now, outcome));
        let (airtime, answer) = self.answer(station, &aggregate, survivors);
        self.counters.control += airtime;
        self.deadline = now + airtime;
        self.medium = Medium::Answer(exchange, answer);
        self.relay(now, host);
    }

    /// Queues, at the access point, the packets that it has received to relay.
    fn relay<H: Host>(&mut self, now: Instant, host: &mut H) {
        let Some(point) = self.config.access_point.filter(|_| !self.to_relay.is_empty()) else {
            return;
        };
        let mut packets = std::mem::take(&mut self.to_relay);
        for packet in packets.drain(..) {
            if let Some(dropped) = self.stations[usize::from(point.0)].push(packet, now) {
                host.dropped(point, &dropped, now);
            }
        }
        self.to_relay = packets;
        self.pull(point, now, host);
        self.contend_for_ready(point, now);
    }

    /// Draws the answer to a PPDU as its sender hears it, and returns how long it takes.
    fn answer(&mut self, station: StationId, aggregate: &Aggregate, survivors: u16) -> (Duration, Answer) {
        if aggregate.to == StationId::GROUP {
            return (Duration::ZERO, Answer::Heard);
        }
        let (lasts, bytes) = self.acknowledgement(station, aggregate);
        if survivors > 0 && self.survives(aggregate.to, station, bytes) {
            (SIFS + lasts, Answer::Heard)
        } else {
            (SIFS + lasts, Answer::Missed)
        }
    }

    /// Delivers a group-addressed frame to every station whose link does not lose it. No station acknowledges it, so
    /// for the sender it has arrived.
    fn reach_all<H: Host>(&mut self, station: StationId, category: AccessCategory, now: Instant, host: &mut H) -> u16 {
        let (links, rng) = (&self.links, &mut self.rng);
        let others = (0..self.config.stations)
            .map(StationId)
            .filter(|other| *other != station);
        let survives = |to: &StationId| !is_lost(links.get(station, *to).link.loss, rng);
        let reached: Vec<StationId> = others.filter(survives).collect();
        let up = |packet: &Packet| {
            for to in &reached {
                host.delivered(&Packet { to: *to, ..*packet }, now);
            }
        };
        self.stations[usize::from(station.0)].deliver(category, 1, || true, up)
    }

    fn on_exchange_end<H: Host>(&mut self, exchange: Exchange, answer: Answer, now: Instant, host: &mut H) {
        let Exchange {
            station,
            category,
            aggregate,
            ..
        } = exchange;
        // The medium counts as busy until the next PPDU or idle time is settled.
        self.medium = Medium::Answer(exchange, answer);
        if answer == Answer::NoCts {
            let end = exchange.start + self.links.get(station, aggregate.to).control.rts();
            host.transmitted(&exchange.transmission(end, Outcome::Lost));
        }
        let queues = &self.stations[usize::from(station.0)];
        let frames = match aggregate.frames {
            // The answer to a BlockAckReq covers all frames that may have been sent.
            0 if answer == Answer::Heard => queues.sent_before(category),
            frames => frames,
        };
        let mut again = 0;
        if frames > 0 {
            let tried = aggregate.frames > 0;
            let ended = Ended {
                answered: answer == Answer::Heard,
                retries_max: tried.then_some(self.config.retries_max),
            };
            again = self.settle(station, category, frames, ended, now, host);
            self.counters.retries += again * u64::from(tried && answer != Answer::NoCts);
        }
        match answer {
            Answer::Heard => {
                let function = &mut self.contenders[usize::from(station.0)][category.index()];
                function.cw = self.config.edca[category.index()].cw_min;
                function.request = None;
            }
            Answer::Missed => {
                self.fail(station, category);
                self.request_next(station, category, &aggregate, again);
            }
            Answer::NoCts => self.fail(station, category),
        }
        self.pull(station, now, host);
        if answer == Answer::Heard && self.continue_txop(&exchange, now) {
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
        let to = self.stations[usize::from(station.0)].destination(category);
        let Some(to) = to else { return false };
        let answer = SIFS + self.block_ack(self.links.get(station, to).control);
        let left = end.since(start).saturating_sub(answer).min(PPDU_MAX);
        let Some(aggregate) = self.aggregate(station, category, left) else {
            return false;
        };
        if self.ppdu(station, &aggregate) > left {
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

    /// Decides, after an unanswered PPDU with `again` frames left, whether the function's next one is a BlockAckReq. A
    /// block ack is requested as often as a frame is retried.
    fn request_next(&mut self, station: StationId, category: AccessCategory, unanswered: &Aggregate, again: u64) {
        let function = &mut self.contenders[usize::from(station.0)][category.index()];
        function.request = match function.request {
            Some(tries) => Some(tries + 1).filter(|tries| *tries <= self.config.retries_max),
            None => (self.config.block_ack_request && unanswered.frames > 1 && again > 0).then_some(0),
        };
    }

    /// Draws a backoff after a transmission, whether or not more packets wait (post-backoff), and contends if they do.
    fn back_off(&mut self, station: StationId, category: AccessCategory) {
        let backoff_end = self.slot_clock[category.index()] + self.draw_backoff(station, category);
        let engaged = self.stations[usize::from(station.0)].ready(category);
        let function = &mut self.contenders[usize::from(station.0)][category.index()];
        function.backoff_end = backoff_end;
        function.engaged = engaged;
        if engaged {
            self.wait(station, category);
        }
    }

    fn collide<H: Host>(&mut self, sending: &[(StationId, AccessCategory, Aggregate)], now: Instant, host: &mut H) {
        self.counters.collisions += 1;
        let (mut longest, mut data) = (Duration::ZERO, Duration::ZERO);
        let mut parties = Vec::with_capacity(sending.len());
        for (station, category, aggregate) in sending {
            let ppdu = self.ppdu(*station, aggregate);
            let announced = self.opening(*station, aggregate, ppdu) > Duration::ZERO;
            let duration = if announced {
                self.links.get(*station, aggregate.to).control.rts()
            } else {
                ppdu
            };
            parties.push(Party {
                station: *station,
                category: *category,
                aggregate: *aggregate,
                retried: aggregate.to != StationId::GROUP,
                announced,
                end: now + duration,
            });
            longest = longest.max(duration);
            let is_data = !announced && aggregate.frames > 0;
            data = data.max(if is_data { ppdu } else { Duration::ZERO });
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
        // Busy until all parties are handled.
        self.medium = Medium::Collision(Vec::new());
        self.part(parties, now);
        for Party {
            station,
            category,
            aggregate,
            retried,
            announced,
            ..
        } in parties
        {
            let ended = Ended {
                answered: false,
                retries_max: Some(if *retried { self.config.retries_max } else { 0 }),
            };
            let again = match aggregate.frames {
                0 => 0,
                frames => self.settle(*station, *category, frames, ended, now, host),
            };
            if !announced {
                self.counters.retries += again;
                self.request_next(*station, *category, aggregate, again);
            }
            // Without acknowledgements, a sender to all does not notice a collision.
            if *retried {
                self.fail(*station, *category);
            }
            self.pull(*station, now, host);
            self.back_off(*station, *category);
            self.contend_for_ready(*station, now);
        }
        if self.config.eifs {
            self.late = slots(self.config.phy.eifs_extra());
        }
        self.idle_from(now);
    }

    /// Removes the functions of the collision's stations from the common waiting lists. They wait from the ACK timeout
    /// of their station's frame, or from when the medium became idle if no station had to acknowledge that frame.
    fn part(&mut self, parties: &[Party], now: Instant) {
        let timeout = |party: &Party| match party.retried {
            true => slots((party.end + self.config.phy.ack_timeout()).since(now)),
            false => 0,
        };
        let colliders = parties.iter().map(|party| Collider {
            station: party.station,
            late: timeout(party),
        });
        self.colliders = colliders.collect();
        let engaged = |party: &Party| {
            self.contenders[usize::from(party.station.0)]
                .iter()
                .filter(|function| function.engaged)
                .count()
        };
        // The function that has sent counts as engaged and is in no list.
        if parties.iter().any(|party| engaged(party) > 1) {
            for waiting in &mut self.waiting {
                waiting.retain(|Reverse((_, station))| !parties.iter().any(|party| party.station.0 == *station));
            }
        }
    }

    /// Settles an exchange's frames. Returns how many MPDUs have to be sent again.
    fn settle<H: Host>(
        &mut self,
        station: StationId,
        category: AccessCategory,
        frames: u16,
        ended: Ended,
        now: Instant,
        host: &mut H,
    ) -> u64 {
        // Passed up only after all completions are reported, because both need the host.
        let hop = self.stations[usize::from(station.0)].destination(category);
        let mut in_sequence: Vec<Packet> = Vec::new();
        let on_air = self.stations[usize::from(station.0)].completes_on_air();
        let retried = self.stations[usize::from(station.0)].settle(
            category,
            frames,
            ended,
            |node| {
                let Node {
                    packet,
                    queued_at,
                    frame,
                    ..
                } = node;
                if on_air {
                    host.released(station, packet, frame.ahead, *queued_at, now);
                }
                host.completed(station, packet, *queued_at, frame.acknowledged, now);
            },
            |packet| in_sequence.push(*packet),
        );
        for packet in &in_sequence {
            match hop.is_some_and(|hop| is_relayed(packet, hop)) {
                true => self.to_relay.push(*packet),
                false => host.delivered(packet, now),
            }
        }
        self.relay(now, host);
        u64::from(retried)
    }
}

#[cfg(test)]
mod tests;
