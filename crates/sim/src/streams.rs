//! Bulk over TCP: a connection between two robots, and the transfers on it.

use std::collections::VecDeque;

use coorp_air::tcp::{self, Ack, Receiver, Sender};
use coorp_air::{AccessCategory, Packet, StationId};
use coorp_core::{FlowId, Instant};

use crate::timers::Armed;

/// Maximum number of acknowledgements under way. Older ones are forgotten, because cumulative ones replace them.
const ACKS_UNDER_WAY_MAX: usize = 1 << 16;

/// Number of segments that TCP acknowledges together.
const ACK_EVERY_OF_TCP: u32 = 2;

/// One direction of bulk from one robot to another.
#[derive(Debug)]
pub(crate) struct Stream {
    pub from: StationId,
    pub to: StationId,
    pub category: AccessCategory,
    /// Whether the content counts as bulk.
    pub bulk: bool,
    data: FlowId,
    acks: FlowId,
    mss: u64,
    ack_every: u32,
    pub sender: Sender,
    pub receiver: Receiver,
    /// The index of the first acknowledgement on the air, and below, the acknowledgements.
    acks_base: u64,
    acks_under_way: VecDeque<Ack>,
    /// Ends of the transfers under way, as bytes of the stream.
    transfers: VecDeque<u64>,
    written: u64,
    pub sender_armed: Armed,
    pub receiver_armed: Armed,
    /// Whether the stream is on the list of those that may have something to send.
    pub dirty: bool,
    stopped: bool,
    pub segments_sent: u64,
    pub segments_delivered: u64,
}

impl Stream {
    pub fn new(
        data: FlowId,
        (from, to): (StationId, StationId),
        category: AccessCategory,
        bulk: bool,
        config: tcp::Config,
    ) -> Self {
        Stream {
            from,
            to,
            category,
            bulk,
            data,
            acks: FlowId(data.0 + 1),
            mss: u64::from(config.mss),
            ack_every: config.ack_every,
            sender: Sender::new(config),
            receiver: Receiver::new(config),
            acks_base: 0,
            acks_under_way: VecDeque::new(),
            transfers: VecDeque::new(),
            written: 0,
            sender_armed: Armed::default(),
            receiver_armed: Armed::default(),
            dirty: false,
            stopped: false,
            segments_sent: 0,
            segments_delivered: 0,
        }
    }

    /// Starts a transfer of `bytes` after those already under way.
    pub fn transfer(&mut self, bytes: u64) {
        self.written += bytes;
        self.transfers.push_back(self.written);
        self.sender.write(bytes);
    }

    /// Sets whether the stream may send. A stopped stream never sends again.
    pub fn set_permitted(&mut self, permitted: bool, now: Instant) {
        self.sender.set_paused(self.stopped || !permitted, now);
    }

    /// Ends the stream at its current position. Nothing more is sent.
    pub fn stop(&mut self, now: Instant) {
        self.stopped = true;
        self.sender.set_paused(true, now);
    }

    /// Returns whether anything is unsent or unacknowledged.
    pub fn is_pending(&self) -> bool {
        !self.stopped && !self.sender.is_idle()
    }

    /// Checks that no byte is delivered that was not written, and that none is missing once everything is acknowledged.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn check(&self) -> Result<(), String> {
        let delivered = self.receiver.delivered_bytes();
        if self.transfers.is_empty() && self.written == 0 {
            return Ok(());
        }
        if delivered > self.written {
            return Err(format!(
                "no bulk byte duplicated: {delivered} delivered of {} written",
                self.written
            ));
        }
        if self.sender.is_idle() && delivered < self.written {
            return Err(format!(
                "no bulk byte lost: {delivered} delivered of {} acknowledged",
                self.written
            ));
        }
        Ok(())
    }

    /// Appends the packets that TCP may send to `out`.
    pub fn pump(&mut self, now: Instant, out: &mut Vec<Packet>) {
        while let Some(segment) = self.sender.poll_transmit(now) {
            self.segments_sent += u64::from(!segment.retransmit);
            out.push(Packet {
                flow: self.data,
                tag: segment.number,
                bytes: segment.bytes + tcp::HEADER_BYTES,
                from: self.from,
                to: self.to,
                category: self.category,
                sent_at: now,
            });
        }
    }

    /// Handles a data packet, and sends acknowledgements that are due. Returns how many bytes are new in order, and how
    /// many transfers they completed.
    ///
    /// If acknowledgements should be few, the sender requests at least four per window, so that the window keeps
    /// growing. It also requests one at once at the end of a transfer. QUIC has both as an extension.
    pub fn on_data(&mut self, packet: &Packet, now: Instant, out: &mut Vec<Packet>) -> (u64, usize) {
        let payload = packet.bytes.saturating_sub(tcp::HEADER_BYTES);
        let before = self.receiver.delivered_bytes();
        let few = self.ack_every > ACK_EVERY_OF_TCP;
        if few {
            self.receiver
                .set_ack_every((self.sender.cwnd() / 4).clamp(ACK_EVERY_OF_TCP, self.ack_every));
        }
        if let Some(ack) = self.receiver.on_segment(packet.tag, payload, now) {
            self.acknowledge(ack, now, out);
        }
        let delivered = self.receiver.delivered_bytes();
        let gained = delivered - before;
        self.segments_delivered += match gained {
            0 => 0,
            one if one <= self.mss => 1,
            more => more.div_ceil(self.mss),
        };
        let mut completed = 0;
        while self.transfers.front().is_some_and(|end| *end <= delivered) {
            self.transfers.pop_front();
            completed += 1;
        }
        if few && completed > 0 {
            if let Some(ack) = self.receiver.acknowledge_now() {
                self.acknowledge(ack, now, out);
            }
        }
        (gained, completed)
    }

    /// Sends the receiver's delayed acknowledgement, which is due.
    pub fn on_receiver_deadline(&mut self, now: Instant, out: &mut Vec<Packet>) {
        if let Some(ack) = self.receiver.on_deadline(now) {
            self.acknowledge(ack, now, out);
        }
    }

    fn acknowledge(&mut self, ack: Ack, now: Instant, out: &mut Vec<Packet>) {
        if self.acks_under_way.len() == ACKS_UNDER_WAY_MAX {
            self.acks_under_way.pop_front();
            self.acks_base += 1;
        }
        let tag = self.acks_base + self.acks_under_way.len() as u64;
        self.acks_under_way.push_back(ack);
        out.push(Packet {
            flow: self.acks,
            tag,
            bytes: ack.packet_bytes(),
            from: self.to,
            to: self.from,
            category: self.category,
            sent_at: now,
        });
    }

    /// Handles an acknowledgement. Those before it that have not arrived are lost. Returns its content, unless a newer
    /// one arrived before.
    pub fn on_ack(&mut self, packet: &Packet, now: Instant) -> Option<Ack> {
        while self.acks_base <= packet.tag {
            let ack = self.acks_under_way.pop_front()?;
            self.acks_base += 1;
            if self.acks_base > packet.tag {
                self.sender.on_ack(&ack, now);
                return Some(ack);
            }
        }
        None
    }
}
