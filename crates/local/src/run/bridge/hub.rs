//! Stands in, on the RTI's robot, for each federate of another robot. The federate's inbox is here while the federate
//! is connected there.

use super::frame::{Frame, Held};
use super::payloads::Payloads;
use super::pipe::Pipe;
use super::{Place, BURST};
use crate::run::coordinator::{federate_channel, RTI_CHANNEL};
use crate::run::frames::{inbox, Outbound};
use crate::run::Failure;
use crate::{Domain, EndpointId, Payload, Receiver};
use coorp_core::logical::{FederateId, Graph};
use coorp_core::RobotId;
use std::collections::{BTreeMap, VecDeque};

/// A report from a federate's robot, in order.
#[derive(Debug)]
enum Told {
    Here(u32),
    Message(Held),
    Away,
}

/// Stands in for a federate.
#[derive(Debug)]
struct StandIn {
    robot: RobotId,
    /// The federate's inbox, while the federate is there, and the life that it is for.
    inbox: Option<(u32, Receiver)>,
    /// Messages that wait for a payload, and everything after them.
    waiting: VecDeque<Told>,
    has_come: bool,
    /// The RTI that sent the last message.
    rti: Option<EndpointId>,
}

#[derive(Debug)]
pub(super) struct Hub {
    domain: Domain,
    here: RobotId,
    rti: Outbound,
    stand_ins: BTreeMap<FederateId, StandIn>,
    robots: Vec<RobotId>,
}

impl Hub {
    pub fn open(graph: &Graph, place: &Place, domain: Domain) -> Result<Self, Failure> {
        let others = graph.federate_ids().filter(|id| place.of(*id) != place.here);
        let stand_ins = others.map(|id| {
            let stand_in = StandIn {
                robot: place.of(id),
                inbox: None,
                waiting: VecDeque::new(),
                has_come: false,
                rti: None,
            };
            (id, stand_in)
        });
        Ok(Hub {
            rti: Outbound::open(&domain, RTI_CHANNEL)?,
            domain,
            here: place.here,
            stand_ins: stand_ins.collect(),
            robots: place.robots.clone(),
        })
    }

    pub fn receivers(&mut self) -> impl Iterator<Item = &mut Receiver> {
        let stand_ins = self.stand_ins.values_mut();
        stand_ins.filter_map(|stand_in| stand_in.inbox.as_mut().map(|(_, inbox)| inbox))
    }

    /// Returns whether all federates of other robots have joined and left.
    pub fn is_over(&self) -> bool {
        let mut stand_ins = self.stand_ins.values();
        stand_ins.all(|stand_in| stand_in.has_come && stand_in.inbox.is_none() && stand_in.waiting.is_empty())
    }

    pub fn is_waiting(&self) -> bool {
        self.stand_ins.values().any(|stand_in| !stand_in.waiting.is_empty())
    }

    pub fn on_frame(&mut self, from: RobotId, frame: Frame) {
        let (federate, told) = match frame {
            Frame::Here { federate, life } => (federate, Told::Here(life)),
            Frame::Away { federate } => (federate, Told::Away),
            Frame::Up(message) => {
                let is_here = |receiver: FederateId| self.robots.get(usize::from(receiver.0)) == Some(&self.here);
                let Some((federate, held)) = Held::up(message, is_here) else {
                    return;
                };
                (federate, Told::Message(held))
            }
            // These are only for other robots.
            Frame::Run(_) | Frame::Down { .. } => return,
        };
        // A robot may speak only for its own federates.
        let stand_in = self
            .stand_ins
            .get_mut(&federate)
            .filter(|stand_in| stand_in.robot == from);
        if let Some(stand_in) = stand_in {
            stand_in.waiting.push_back(told);
        }
    }

    /// Handles a robot that is gone, and its federates with it, as if they had died before sending what still waits for
    /// a payload.
    pub fn on_down(&mut self, robot: RobotId, payloads: &Payloads) -> Result<(), Failure> {
        self.act(payloads)?;
        for stand_in in self.stand_ins.values_mut().filter(|stand_in| stand_in.robot == robot) {
            let is_lost = |told: &Told| matches!(told, Told::Message(held) if held.is_waiting(payloads));
            if stand_in.waiting.front().is_some_and(is_lost) {
                stand_in.waiting.clear();
            }
            stand_in.waiting.push_back(Told::Away);
        }
        Ok(())
    }

    /// Acts on the other robots' reports, as far as payloads are here.
    pub fn act(&mut self, payloads: &Payloads) -> Result<(), Failure> {
        let mut is_flushed = self.rti.flush()?;
        for (federate, stand_in) in &mut self.stand_ins {
            while let Some(told) = stand_in.waiting.pop_front() {
                match told {
                    Told::Here(life) => {
                        stand_in.inbox = Some((life, inbox(&self.domain, &federate_channel(*federate))?));
                        stand_in.has_come = true;
                    }
                    Told::Message(held) if held.is_waiting(payloads) => {
                        stand_in.waiting.push_front(Told::Message(held));
                        break;
                    }
                    Told::Message(held) => {
                        self.rti.send_bytes(held.bytes)?;
                        is_flushed = self.rti.flush()?;
                    }
                    // The RTI has to have all earlier messages.
                    Told::Away if !is_flushed && self.rti.is_connected() => {
                        stand_in.waiting.push_front(Told::Away);
                        break;
                    }
                    Told::Away => stand_in.inbox = None,
                }
            }
        }
        Ok(())
    }

    /// Passes on the RTI's messages to the federates of other robots.
    pub fn read(&mut self, pipes: &mut BTreeMap<RobotId, Pipe>) -> Result<(), Failure> {
        for (federate, stand_in) in &mut self.stand_ins {
            let Some((life, inbox)) = &mut stand_in.inbox else {
                continue;
            };
            let Some(pipe) = pipes.get_mut(&stand_in.robot) else {
                continue;
            };
            if !pipe.has_room() {
                continue;
            }
            let mut burst = Vec::new();
            while burst.len() < BURST {
                let Some(payload) = inbox.try_recv()? else { break };
                burst.push(payload);
            }
            // A new RTI must not overtake the end announced by the previous one.
            burst.sort_by_key(|payload| Some(payload.sender()) != stand_in.rti);
            stand_in.rti = burst.last().map(Payload::sender).or(stand_in.rti);
            for payload in burst {
                let (federate, life) = (*federate, *life);
                let message = payload.part(0).unwrap_or_default().to_vec();
                let frame = Frame::Down {
                    federate,
                    life,
                    message,
                };
                pipe.send(&frame.encode()?);
            }
        }
        Ok(())
    }
}
