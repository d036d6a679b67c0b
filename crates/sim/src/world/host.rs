//! Calls from the air: the driver's hooks, arrivals, drops.

use super::control::control_flow;
use super::{Slot, Way, World};
use crate::messages::MessageFlow;
use crate::results::SpanKind;
use crate::setup::robot;
use crate::timers::Timer;
use coorp_air::tcp;
use coorp_air::{AccessCategory, Host, Load, Packet, StationId, Transmission};
use coorp_core::{Duration, Instant};

/// When a saturated flow offers a packet again if a full host queue has dropped all that it had there.
const OFFER_AGAIN: Duration = Duration::from_millis(1);

impl Host for World {
    fn may_dequeue(
        &mut self,
        station: StationId,
        category: AccessCategory,
        load: Load,
        most: u16,
        now: Instant,
    ) -> u16 {
        if category < AccessCategory::BestEffort {
            return most;
        }
        let robot = robot(station);
        let agent = &mut self.agents[usize::from(robot.0)];
        let (may, changed) = agent.may_dequeue(load, most, now);
        if changed {
            self.arm_agent(robot);
            if let Some(recorder) = &mut self.recorder {
                recorder.state(robot, SpanKind::Hold, may == 0, now);
            }
        }
        may
    }

    #[inline]
    fn enqueued(&mut self, station: StationId, packet: &Packet, now: Instant) {
        let place = usize::from(station.0);
        let slot = self.slot(packet);
        if packet.category >= AccessCategory::BestEffort {
            let segment = match slot.leads_to {
                Way::Data(stream) if station == packet.from => Some((stream, packet.tag)),
                _ => None,
            };
            self.agents[place].on_enqueued(segment, now);
        }
        self.bulk_in_wnic[place] += u32::from(slot.bulk);
        if matches!(slot.leads_to, Way::Message(_)) && !slot.bulk && MessageFlow::is_first(packet) {
            self.counts.ahead.record(self.bulk_in_wnic[place]);
        }
    }

    #[inline]
    fn released(&mut self, station: StationId, packet: &Packet, ahead: u16, queued_at: Instant, now: Instant) {
        if packet.category >= AccessCategory::BestEffort {
            if self.agents[usize::from(station.0)].on_released(ahead, queued_at, now) {
                self.arm_agent(robot(station));
            }
        } else if station == packet.from {
            self.on_freed(packet);
        }
    }

    #[inline]
    fn completed(
        &mut self,
        station: StationId,
        packet: &Packet,
        _queued_at: Instant,
        acknowledged: bool,
        now: Instant,
    ) {
        let place = usize::from(station.0);
        if packet.category >= AccessCategory::BestEffort {
            self.agents[place].on_status(now);
        }
        self.bulk_in_wnic[place] -= u32::from(self.slot(packet).bulk);
        if station == packet.from {
            self.on_left(packet, acknowledged);
        } else if !acknowledged {
            self.on_lost_underway(packet);
        }
    }

    #[inline]
    fn delivered(&mut self, packet: &Packet, now: Instant) {
        match self.slot(packet).leads_to {
            Way::Message(channel) => {
                let fate = self.channels[channel as usize].flow.on_delivered(packet, now);
                if let Some((number, fate)) = fate {
                    self.on_message_fate(channel, number, fate);
                }
            }
            Way::Data(stream) => self.on_stream_data(stream, packet),
            Way::Acks(place) => {
                let stream = &mut self.streams[place as usize];
                if let Some(ack) = stream.on_ack(packet, now) {
                    let sender = stream.from;
                    self.agents[usize::from(sender.0)].on_acknowledged(place, &ack, now);
                    self.run_agent(robot(sender));
                }
                self.mark(place);
            }
            Way::Saturated(plain) => {
                let plain = &mut self.plains[plain as usize];
                plain.on_packet(packet, now);
                if plain.flow.bulk {
                    self.counts.bulk_bytes += u64::from(packet.bytes) - 28;
                }
            }
        }
    }

    fn dropped(&mut self, station: StationId, packet: &Packet, _now: Instant) {
        if station == packet.from {
            self.on_freed(packet);
            self.on_left(packet, false);
        } else {
            self.on_lost_underway(packet);
        }
    }

    fn transmitted(&mut self, transmission: &Transmission) {
        if let Some(recorder) = &mut self.recorder {
            recorder.transmission(transmission, transmission.category < AccessCategory::BestEffort);
        }
    }
}

impl World {
    /// Records that the host queue of `station` was full and dropped a packet.
    pub(super) fn on_overflow(&mut self, station: StationId, packet: &Packet) {
        let now = self.now;
        match self.slot(packet).leads_to {
            Way::Saturated(plain) if station == packet.from => {
                if self.plains[plain as usize].on_overflow() {
                    self.timers.set(now + OFFER_AGAIN, Timer::FlowTick(plain));
                }
            }
            _ => self.dropped(station, packet, now),
        }
    }

    /// Records that the kernel of a control packet's sender has freed it, because the driver counts it as complete, or
    /// the host queue dropped it.
    fn on_freed(&mut self, packet: &Packet) {
        let Way::Message(channel) = self.slot(packet).leads_to else {
            return;
        };
        let state = &mut self.channels[channel as usize];
        if let (true, Some(control)) = (state.flow.on_freed(packet), control_flow(state.role)) {
            self.agents[usize::from(packet.from.0)].on_control_freed(control, self.now);
            self.run_agent(robot(packet.from));
        }
    }

    /// Records that a packet has left its sender, because the WNIC has finished it, or the host queue dropped it.
    #[inline(always)]
    fn on_left(&mut self, packet: &Packet, acknowledged: bool) {
        let now = self.now;
        match self.slot(packet).leads_to {
            Way::Message(channel) => self.on_message_left(channel, packet, acknowledged),
            Way::Data(stream) => {
                let payload = packet.bytes - tcp::HEADER_BYTES;
                self.streams[stream as usize].sender.on_departed(payload);
                self.mark(stream);
            }
            Way::Acks(_) => {}
            Way::Saturated(plain) => {
                let plain = &mut self.plains[plain as usize];
                plain.on_left();
                plain.fill(now, &mut self.outbox);
                if plain.permitted {
                    self.agents[usize::from(plain.flow.from.0)].on_bulk_sent(plain.flow.to, now);
                }
            }
        }
    }

    fn on_message_left(&mut self, channel: u32, packet: &Packet, acknowledged: bool) {
        let flow = &mut self.channels[channel as usize].flow;
        if let Some((number, fate)) = flow.on_left(packet, acknowledged, self.now) {
            self.on_message_fate(channel, number, fate);
        }
    }

    /// Records that the access point lost a packet that it should have relayed. Its sender believes that it has
    /// arrived.
    fn on_lost_underway(&mut self, packet: &Packet) {
        if let Way::Message(channel) = self.slot(packet).leads_to {
            let fate = self.channels[channel as usize].flow.on_lost_underway(packet, self.now);
            if let Some((number, fate)) = fate {
                self.on_message_fate(channel, number, fate);
            }
        }
    }

    fn slot(&self, packet: &Packet) -> Slot {
        self.slots[packet.flow.0 as usize]
    }
}
