//! Carries frames to and from one robot, in order and without loss, over packets that may be lost, duplicated and
//! reordered.
//!
//! A [`Pipe`] is one end. Control delivers only the newest message: one that is not taken in time is replaced by the
//! next. So each packet carries everything from the first unacknowledged piece on, as far as it fits. While little is
//! outstanding, each packet repeats all of it, and the next packet makes up for a lost one at once. When much is
//! outstanding, only one packet is under way at a time, until it is acknowledged or has to be sent again.
//!
//! - Frames are cut into pieces, and pieces are numbered. Acknowledgements are cumulative, and ride on pieces going back.
//! - Each end has a session. Packets for another session are ignored. Once its peer has another session, or is silent
//!   for too long, a pipe is over; the next pipe needs a new session.
//!
//! Left out: congestion. Control is sent at once, whatever the network does.

use coorp_core::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The maximum length of a frame: more than a federate may have outstanding to a receiver.
const FRAME_BYTES_MAX: usize = 256 << 20;
/// The maximum length of a piece, and the maximum that a packet carries.
const PIECE_BYTES: usize = 32 << 10;
const PACKET_BYTES: usize = 64 << 10;
/// While no more than this is outstanding, it fits into one datagram, and each packet repeats it.
const LITTLE_BYTES: usize = 1_000;
/// The overhead of a piece, bytes.
const PIECE_COST: usize = 4;
/// Above this, the pipe takes no more frames.
const QUEUE_BYTES_MAX: usize = 8 << 20;
/// The time for which an acknowledgement waits for something that goes back anyway.
const ACKNOWLEDGE_WITHIN: Duration = Duration::from_millis(3);
/// The assumed first round trip, and the shortest and the longest time before something is sent again.
const ROUND_TRIP_FIRST: Duration = Duration::from_millis(50);
const RESEND_MIN: Duration = Duration::from_millis(20);
const RESEND_MAX: Duration = Duration::from_secs(1);
/// The number of packets within the longest allowed silence.
const BEATS: u64 = 10;

#[derive(Debug, Serialize, Deserialize)]
struct Packet {
    session: u64,
    /// The session of the receiver, if known; otherwise zero.
    to: u64,
    /// The number of the packet.
    number: u64,
    /// The number of the other end's latest packet.
    echo: u64,
    /// The number of pieces that have arrived.
    received: u64,
    /// The number of the first piece in this packet.
    first: u64,
    pieces: Vec<Piece>,
    /// Whether the sender is leaving.
    is_end: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Piece {
    is_last: bool,
    bytes: Vec<u8>,
}

impl Piece {
    fn cost(&self) -> usize {
        self.bytes.len() + PIECE_COST
    }
}

/// An event at the other end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The other end hears this end, and is heard.
    Up,
    /// The other end sent this frame.
    Frame(Vec<u8>),
    /// The other end is gone. Nothing follows.
    Down,
}

/// One end of a pipe.
#[derive(Debug)]
pub(super) struct Pipe {
    session: u64,
    peer: Option<u64>,
    is_up: bool,
    is_over: bool,
    silence_max: Duration,
    heard: Instant,
    /// The pieces that are not acknowledged. The first has the number `first`; from `unsent` on, they were never sent.
    queue: VecDeque<Piece>,
    queue_bytes: usize,
    first: u64,
    unsent: u64,
    resend_at: Option<Instant>,
    resends: u32,
    round_trip: Duration,
    /// The number of the latest packet, and the time at which it left.
    sent: (u64, Instant),
    echo: u64,
    received: u64,
    partial: Vec<u8>,
    acknowledge_at: Option<Instant>,
    events: VecDeque<Event>,
}

impl Pipe {
    /// Returns a new end. A robot's session numbers must increase.
    pub fn new(session: u64, silence_max: Duration, now: Instant) -> Self {
        Pipe {
            session,
            peer: None,
            is_up: false,
            is_over: false,
            silence_max,
            heard: now,
            queue: VecDeque::new(),
            queue_bytes: 0,
            first: 1,
            unsent: 1,
            resend_at: None,
            resends: 0,
            round_trip: ROUND_TRIP_FIRST,
            sent: (0, Instant::ZERO),
            echo: 0,
            received: 0,
            partial: Vec::new(),
            acknowledge_at: Some(now),
            events: VecDeque::new(),
        }
    }

    pub fn is_up(&self) -> bool {
        self.is_up && !self.is_over
    }

    /// Returns whether everything sent is acknowledged.
    pub fn is_flushed(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns whether it takes more now.
    pub fn has_room(&self) -> bool {
        self.queue_bytes < QUEUE_BYTES_MAX
    }

    /// Sends a frame, or drops it if the pipe is not up.
    pub fn send(&mut self, frame: &[u8]) {
        if !self.is_up() {
            return;
        }
        let mut rest = frame;
        loop {
            let (bytes, later) = rest.split_at(rest.len().min(PIECE_BYTES));
            let piece = Piece {
                is_last: later.is_empty(),
                bytes: bytes.to_vec(),
            };
            self.queue_bytes += piece.cost();
            self.queue.push_back(piece);
            if later.is_empty() {
                return;
            }
            rest = later;
        }
    }

    /// Returns the next event; `None` if there are no more.
    pub fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the packet that says that this end leaves. Nothing follows.
    pub fn end(&mut self) -> Vec<u8> {
        self.is_over = true;
        self.packet(Vec::new(), Instant::ZERO, true)
    }

    /// Handles a packet from the other end.
    pub fn on_packet(&mut self, packet: &[u8], now: Instant) {
        let Ok(packet) = postcard::from_bytes::<Packet>(packet) else {
            return;
        };
        let is_earlier = self.peer.is_some_and(|peer| packet.session < peer);
        if self.is_over || is_earlier {
            return;
        }
        if self.peer.is_some_and(|peer| peer != packet.session) {
            return self.fall();
        }
        self.peer = Some(packet.session);
        self.heard = now;
        if packet.to != self.session {
            // The other end has not heard this end.
            self.acknowledge_at = Some(now);
            return;
        }
        if !self.is_up {
            self.is_up = true;
            self.events.push_back(Event::Up);
        }
        self.on_acknowledged(&packet, now);
        if !packet.pieces.is_empty() {
            let until = now + ACKNOWLEDGE_WITHIN;
            self.acknowledge_at = Some(self.acknowledge_at.map_or(until, |at| at.min(until)));
        }
        for (number, piece) in (packet.first..).zip(packet.pieces) {
            if number == self.received + 1 {
                self.on_piece(piece);
            }
        }
        if packet.is_end {
            self.fall();
        }
    }

    fn on_acknowledged(&mut self, packet: &Packet, now: Instant) {
        if packet.echo == self.sent.0 && packet.echo > 0 && packet.number > self.echo {
            let sample = now.since(self.sent.1);
            self.round_trip = (self.round_trip * 7 + sample) / 8;
        }
        self.echo = self.echo.max(packet.number);
        let mut has_progress = false;
        while self.first <= packet.received && self.first < self.unsent {
            let Some(piece) = self.queue.pop_front() else { break };
            self.queue_bytes -= piece.cost();
            self.first += 1;
            has_progress = true;
        }
        if has_progress {
            self.resends = 0;
            self.resend_at = (self.first < self.unsent).then(|| now + self.resend_after());
        }
    }

    fn on_piece(&mut self, piece: Piece) {
        self.received += 1;
        self.partial.extend_from_slice(&piece.bytes);
        if self.partial.len() > FRAME_BYTES_MAX {
            return self.fall();
        }
        if piece.is_last {
            self.events.push_back(Event::Frame(std::mem::take(&mut self.partial)));
        }
    }

    fn fall(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.events.push_back(Event::Down);
        }
    }

    /// Returns the next packet to send, if one is due. Also notices silence.
    pub fn poll_packet(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.peer.is_some() && now.since(self.heard) >= self.silence_max {
            self.fall();
        }
        if self.is_over {
            return None;
        }
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let is_resent = is_due(self.resend_at);
        let has_new = self.may_send_new();
        if !is_resent && !has_new && !is_due(self.acknowledge_at) && !is_due(Some(self.beat_at())) {
            return None;
        }
        if is_resent {
            self.resends += 1;
        }
        let mut pieces = Vec::new();
        if self.first < self.unsent || has_new {
            let mut bytes = 0;
            for piece in &self.queue {
                if bytes > 0 && bytes + piece.cost() > PACKET_BYTES {
                    break;
                }
                bytes += piece.cost();
                pieces.push(piece.clone());
            }
            self.unsent = self.unsent.max(self.first + pieces.len() as u64);
            self.resend_at = Some(now + self.resend_after());
        }
        Some(self.packet(pieces, now, false))
    }

    fn packet(&mut self, pieces: Vec<Piece>, now: Instant, is_end: bool) -> Vec<u8> {
        self.acknowledge_at = None;
        self.sent = (self.sent.0 + 1, now);
        let packet = Packet {
            session: self.session,
            to: self.peer.unwrap_or(0),
            number: self.sent.0,
            echo: self.echo,
            received: self.received,
            first: self.first,
            pieces,
            is_end,
        };
        // Encoding a packet cannot fail. If it did, the empty packet would count as lost.
        postcard::to_allocvec(&packet).unwrap_or_default()
    }

    fn may_send_new(&self) -> bool {
        let has_new = self.unsent < self.first + self.queue.len() as u64;
        has_new && (self.queue_bytes <= LITTLE_BYTES || self.first == self.unsent)
    }

    fn resend_after(&self) -> Duration {
        let after = (self.round_trip * 3).max(RESEND_MIN);
        (after * (1 << self.resends.min(6))).min(RESEND_MAX)
    }

    fn beat_at(&self) -> Instant {
        self.sent.1 + self.silence_max / BEATS
    }

    /// Returns the time by which to call [`Pipe::poll_packet`] next.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.is_over {
            return None;
        }
        let silent = self.peer.map(|_| self.heard + self.silence_max);
        [self.resend_at, self.acknowledge_at, Some(self.beat_at()), silent]
            .into_iter()
            .flatten()
            .min()
    }
}

#[cfg(test)]
mod tests;
