//! Stands in, on every other robot, for the RTI, whose office and inbox are here too.

use super::frame::{Frame, Held};
use super::payloads::Payloads;
use super::pipe::Pipe;
use super::{Place, BURST, LOOK_PERIOD};
use crate::run::coordinator::{federate_channel, RTI_CHANNEL};
use crate::run::frames::{inbox, Outbound};
use crate::run::Failure;
use crate::{Domain, Receiver};
use coorp_core::logical::{FederateId, Graph};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

/// A federate here.
#[derive(Debug)]
struct Local {
    outbound: Outbound,
    is_here: bool,
    /// The number of times that it joined.
    life: u32,
    /// The life in which the RTI's robot knows it to be here.
    told: Option<u32>,
    /// The message that waits for a payload, and everything after it.
    waiting: VecDeque<Held>,
}

#[derive(Debug)]
pub(super) struct Spoke {
    inbox: Receiver,
    locals: BTreeMap<FederateId, Local>,
    /// The federates that are dead.
    gone: BTreeSet<FederateId>,
    looked: Option<Instant>,
}

impl Spoke {
    pub fn open(graph: &Graph, place: &Place, domain: &Domain) -> Result<Self, Failure> {
        let here = graph.federate_ids().filter(|id| place.of(*id) == place.here);
        let locals = here.map(|id| {
            let local = Local {
                outbound: Outbound::open(domain, &federate_channel(id))?,
                is_here: false,
                life: 0,
                told: None,
                waiting: VecDeque::new(),
            };
            Ok((id, local))
        });
        Ok(Spoke {
            locals: locals.collect::<Result<_, Failure>>()?,
            inbox: inbox(domain, RTI_CHANNEL)?,
            gone: BTreeSet::new(),
            looked: None,
        })
    }

    pub fn receivers(&mut self) -> impl Iterator<Item = &mut Receiver> {
        std::iter::once(&mut self.inbox)
    }

    /// Returns whether all federates here have joined and left.
    pub fn is_over(&self) -> bool {
        let mut locals = self.locals.values();
        locals.all(|local| local.life > 0 && !local.is_here && local.told.is_none())
    }

    pub fn is_waiting(&self) -> bool {
        self.locals.values().any(|local| !local.waiting.is_empty())
    }

    pub fn on_frame(&mut self, frame: Frame, payloads: &mut Payloads) {
        match frame {
            Frame::Run(run) => payloads.run = Some(run),
            Frame::Down {
                federate,
                life,
                message,
            } => {
                let local = self.locals.get_mut(&federate);
                let local = local.filter(|local| local.is_here && local.life == life);
                let Some((local, (gone, held))) = local.zip(Held::down(message)) else {
                    return;
                };
                local.waiting.push_back(held);
                self.gone.extend(gone);
            }
            // These are only for the RTI's robot.
            Frame::Here { .. } | Frame::Away { .. } | Frame::Up(_) => {}
        }
    }

    /// Passes on messages in both directions, and reports which federates joined and left.
    pub fn act(&mut self, hub: &mut Pipe, payloads: &Payloads) -> Result<(), Failure> {
        for local in self.locals.values_mut() {
            while let Some(held) = local.waiting.pop_front() {
                let held = if !held.is_waiting(payloads) {
                    held
                } else if held.sender().is_some_and(|sender| self.gone.contains(&sender)) {
                    held.without_value()?
                } else {
                    local.waiting.push_front(held);
                    break;
                };
                local.outbound.send_bytes(held.bytes)?;
            }
            local.outbound.flush()?;
        }
        let at = Instant::now();
        let is_due = self.looked.is_none_or(|looked| at >= looked + LOOK_PERIOD);
        if is_due {
            self.looked = Some(at);
            for local in self.locals.values_mut() {
                let was_here = std::mem::replace(&mut local.is_here, local.outbound.is_connected());
                local.life += u32::from(local.is_here && !was_here);
            }
        }
        if !hub.is_up() {
            return Ok(());
        }
        self.read(hub)?;
        self.tell(hub)
    }

    fn read(&mut self, hub: &mut Pipe) -> Result<(), Failure> {
        for _ in 0..BURST {
            if !hub.has_room() {
                break;
            }
            let Some(payload) = self.inbox.try_recv()? else { break };
            if let Some(bytes) = payload.part(0) {
                hub.send(&Frame::Up(bytes.to_vec()).encode()?);
            }
        }
        Ok(())
    }

    /// Reports federates that joined, and federates that are gone once all their messages are sent.
    fn tell(&mut self, hub: &mut Pipe) -> Result<(), Failure> {
        let is_read = !self.inbox.has_payload();
        for (federate, local) in &mut self.locals {
            let federate = *federate;
            let life = local.is_here.then_some(local.life);
            if local.told.is_some() && local.told != life && is_read {
                local.told = None;
                local.waiting.clear();
                hub.send(&Frame::Away { federate }.encode()?);
            }
            if let (None, Some(life)) = (local.told, life) {
                local.told = Some(life);
                hub.send(&Frame::Here { federate, life }.encode()?);
            }
        }
        Ok(())
    }
}
