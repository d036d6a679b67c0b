//! Bulk and plain flows in a run: streams, the DRLC's actions, `[[flow]]`s.

use super::{Cargo, Content, Delayed, Told, World};
use crate::drlc::{Drlc, DrlcAction};
use crate::plain::Carrier;
use crate::setup::robot;
use crate::timers::Timer;
use coorp_air::Packet;
use coorp_core::{Duration, RobotId};
use coorp_team::Traffic;

impl World {
    /// Marks a stream that may have something to send, or to finish.
    pub(super) fn mark(&mut self, place: u32) {
        let stream = &mut self.streams[place as usize];
        if !stream.dirty {
            stream.dirty = true;
            self.dirty.push(place);
        }
    }

    pub(super) fn pump(&mut self, place: u32) {
        let now = self.now;
        self.follow_pending(place);
        let stream = &mut self.streams[place as usize];
        stream.dirty = false;
        let before = self.outbox.len();
        stream.pump(now, &mut self.outbox);
        if stream.bulk && self.outbox.len() > before {
            self.agents[usize::from(stream.from.0)].on_bulk_sent(robot(stream.to), now);
        }
        if let Some(deadline) = stream.sender.next_deadline() {
            stream
                .sender_armed
                .arm(deadline.max(now), Timer::Sender(place), &mut self.timers);
        }
        self.follow_pending(place);
    }

    /// Updates the sender's robot on whether a stream has something left.
    fn follow_pending(&mut self, place: u32) {
        let stream = &self.streams[place as usize];
        let pending = stream.is_pending();
        if pending != self.stream_pending[place as usize] {
            self.stream_pending[place as usize] = pending;
            if stream.bulk {
                let ends = (robot(stream.from), robot(stream.to));
                self.count_pending(ends, pending);
            }
        }
    }

    /// Counts one more, or one less, stream or flow of bulk of a robot with something left to send.
    pub(super) fn count_pending(&mut self, (robot, to): (RobotId, RobotId), more: bool) {
        self.agents[usize::from(robot.0)].count_receiver(to, more, self.now);
        let pending = &mut self.bulk_pending[usize::from(robot.0)];
        *pending = if more { *pending + 1 } else { pending.saturating_sub(1) };
        let wants = *pending > 0;
        self.agents[usize::from(robot.0)].set_bulk(wants, self.now);
        let active = self.bulk_pending.iter().any(|pending| *pending > 0);
        self.counts.bulk_active.set(active, self.now);
        self.run_agent(robot);
        if self.policy.turns {
            // A new stream waits for its turn.
            let permitted = self.agents[usize::from(robot.0)].is_permitted();
            self.permit_streams(robot, permitted);
        }
    }

    pub(super) fn arm_receiver(&mut self, place: u32) {
        let stream = &mut self.streams[place as usize];
        if let Some(deadline) = stream.receiver.next_deadline() {
            stream
                .receiver_armed
                .arm(deadline.max(self.now), Timer::Receiver(place), &mut self.timers);
        }
    }

    #[inline]
    pub(super) fn on_stream_data(&mut self, place: u32, packet: &Packet) {
        let stream = &mut self.streams[place as usize];
        let (gained, completed) = stream.on_data(packet, self.now, &mut self.outbox);
        if stream.bulk {
            self.counts.bulk_bytes += gained;
        }
        self.arm_receiver(place);
        match self.cargo[place as usize] {
            Cargo::Plain(flow) => self.on_plain_stream(place, flow, gained, completed),
            Cargo::ToWorker(robot) => {
                (0..completed).for_each(|_| self.with_drlc(|drlc| drlc.on_arrived_at_worker(robot)));
            }
            Cargo::ToLeader(robot) => {
                (0..completed).for_each(|_| self.with_drlc(|drlc| drlc.on_arrived_at_leader(robot)));
            }
        }
    }

    pub(super) fn with_drlc(&mut self, tell: impl FnOnce(&mut Drlc)) {
        if let Some(drlc) = &mut self.drlc {
            tell(drlc);
            self.run_drlc();
        }
    }

    pub(super) fn run_drlc(&mut self) {
        while let Some(action) = self.drlc.as_mut().and_then(Drlc::poll) {
            match action {
                DrlcAction::ToWorker(robot, bytes) => self.transfer(Cargo::ToWorker(robot), bytes),
                DrlcAction::ToLeader(robot, bytes) => self.transfer(Cargo::ToLeader(robot), bytes),
                DrlcAction::Train(robot, time) => self.timers.set(self.now + time, Timer::Trained(robot)),
                DrlcAction::Collect => self.collect(),
                DrlcAction::Happened(kind, robot, number) => self.log(kind, robot, number),
                DrlcAction::EpochEnded => {
                    self.counts.epochs += 1;
                    self.counts.epoch_time += self.now.since(self.counts.epoch_started);
                    self.counts.epoch_started = self.now;
                }
            }
        }
    }

    /// Begins to collect a batch. Without a control loop, the batch fills as fast as a loop would have filled it.
    pub(super) fn collect(&mut self) {
        if self.mpc.is_some() {
            return;
        }
        let period = self.team.control.map_or(Duration::ZERO, |control| control.period);
        let loops = self.drlc.as_ref().map_or(0, Drlc::batch_loops);
        self.timers.set(self.now + period * u64::from(loops), Timer::BatchFull);
    }

    pub(super) fn transfer(&mut self, cargo: Cargo, bytes: u64) {
        if let Some(place) = self.cargo.iter().position(|other| *other == cargo) {
            self.streams[place].transfer(bytes);
            self.mark(place as u32);
        }
    }

    pub(super) fn on_flow_start(&mut self, place: u32) {
        let plain = &mut self.plains[place as usize];
        plain.running = true;
        let (ends, bulk) = ((plain.flow.from, plain.flow.to), plain.flow.bulk);
        let saturated = matches!(plain.flow.traffic, Traffic::Saturated { .. });
        match (plain.carrier, saturated) {
            (Carrier::Stream(stream), true) => {
                self.streams[stream as usize].sender.saturate();
                self.mark(stream);
            }
            (Carrier::Saturated, _) => {
                plain.fill(self.now, &mut self.outbox);
                if bulk {
                    self.count_pending(ends, true);
                }
            }
            _ => {
                if let Some(at) = plain.next_tick() {
                    self.timers.set(at.max(self.now), Timer::FlowTick(place));
                }
            }
        }
    }

    pub(super) fn on_flow_stop(&mut self, place: u32) {
        let plain = &mut self.plains[place as usize];
        plain.running = false;
        let (ends, bulk) = ((plain.flow.from, plain.flow.to), plain.flow.bulk);
        match plain.carrier {
            Carrier::Saturated if bulk => self.count_pending(ends, false),
            Carrier::Stream(stream) => {
                self.streams[stream as usize].stop(self.now);
                self.mark(stream);
            }
            _ => {}
        }
    }

    pub(super) fn on_flow_tick(&mut self, place: u32) {
        let plain = &mut self.plains[place as usize];
        if !plain.running {
            return;
        }
        if plain.carrier == Carrier::Saturated {
            return plain.fill(self.now, &mut self.outbox);
        }
        if let Some(at) = plain.next_tick() {
            self.timers.set(at.max(self.now), Timer::FlowTick(place));
        }
        let bytes = plain.message_bytes(plain.sent);
        plain.sent += 1;
        match plain.carrier {
            Carrier::Messages(channel) => {
                let control = !plain.flow.bulk;
                let told = if control { self.note_control_made(channel) } else { None };
                let message = Delayed {
                    channel,
                    bytes: bytes + told.as_ref().map_or(0, Told::bytes),
                    made_at: self.now,
                    content: told.map(Content::Plain),
                };
                if control {
                    self.hand_over(message, Duration::ZERO);
                } else {
                    self.send_message(message);
                }
            }
            Carrier::Stream(stream) => {
                plain.made_at.push_back(self.now);
                self.streams[stream as usize].transfer(bytes);
                self.mark(stream);
            }
            Carrier::Saturated => {}
        }
    }

    pub(super) fn on_plain_stream(&mut self, stream: u32, flow: u32, gained: u64, completed: usize) {
        let plain = &mut self.plains[flow as usize];
        if matches!(plain.flow.traffic, Traffic::Saturated { .. }) {
            plain.count_bytes(gained, self.now);
            plain.delivered = self.streams[stream as usize].segments_delivered;
            plain.sent = self.streams[stream as usize].segments_sent;
            return;
        }
        for _ in 0..completed {
            if let Some(made_at) = plain.made_at.pop_front() {
                // A stream loses nothing and keeps the order.
                let latency = self.now.since(made_at);
                plain.on_message(plain.delivered, latency, self.now);
                if !plain.flow.bulk {
                    self.counts.control_latency.record(latency);
                }
            }
        }
    }
}
