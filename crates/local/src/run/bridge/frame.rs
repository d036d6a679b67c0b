//! The frames that bridges exchange over a pipe.

use super::payloads::Payloads;
use crate::run::carried::{Carried, Wire};
use crate::run::coordinator::{ToFederate, ToRti};
use crate::run::frames::{decode_bytes, encode};
use crate::Error;
use coorp_core::logical::protocol::{Down, Message, Up};
use coorp_core::logical::{ElementId, FederateId};
use serde::{Deserialize, Serialize};

/// A frame to or from the RTI's robot.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Frame {
    /// From the RTI's robot: the name of this run.
    Run(u64),
    /// To it: a federate is there, in this life.
    Here { federate: FederateId, life: u32 },
    /// To it: the federate is gone, and all its messages have been sent.
    Away { federate: FederateId },
    /// To it: a message from a federate to the RTI.
    Up(Vec<u8>),
    /// From it: a message from the RTI to a federate in this life.
    Down {
        federate: FederateId,
        life: u32,
        message: Vec<u8>,
    },
}

impl Frame {
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        encode(self)
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        decode_bytes(bytes)
    }
}

/// A message on its way, and the payload that has to be here first.
#[derive(Debug)]
pub(super) struct Held {
    pub bytes: Vec<u8>,
    needs: Option<Needed>,
}

#[derive(Clone, Copy, Debug)]
struct Needed {
    sender: FederateId,
    receiver: FederateId,
    output: ElementId,
    number: u64,
}

impl Needed {
    fn of(message: &Message<Carried<()>>) -> Option<Self> {
        let Some(Carried::Away(wire)) = &message.value else {
            return None;
        };
        match **wire {
            Wire::Inline { .. } => None,
            Wire::Payload { output, number } => Some(Needed {
                sender: message.from,
                receiver: message.to,
                output,
                number,
            }),
        }
    }
}

impl Held {
    /// Returns a message to the RTI, and its claimed sender. If a receiver is `here`, the message's payload is needed
    /// here.
    pub fn up(bytes: Vec<u8>, here: impl Fn(FederateId) -> bool) -> Option<(FederateId, Self)> {
        let ToRti { from, envelope } = decode_bytes::<ToRti<Carried<()>>>(&bytes)?;
        let needs = match &envelope.body {
            Up::Message(message) => Needed::of(message).filter(|needed| here(needed.receiver)),
            _ => None,
        };
        Some((from, Held { bytes, needs }))
    }

    /// Returns a message from the RTI, and the federate that it reports dead, if any.
    pub fn down(bytes: Vec<u8>) -> Option<(Option<FederateId>, Self)> {
        let message = decode_bytes::<ToFederate<Carried<()>>>(&bytes)?;
        let (mut gone, mut needs) = (None, None);
        if let ToFederate::Rti(envelope) = &message {
            match &envelope.body {
                Down::Message(message) => needs = Needed::of(message),
                Down::Gone(federate) => gone = Some(*federate),
                _ => {}
            }
        }
        Some((gone, Held { bytes, needs }))
    }

    /// Returns whether it still waits for its payload.
    pub fn is_waiting(&self, payloads: &Payloads) -> bool {
        let needs = self.needs;
        needs.is_some_and(|needed| !payloads.is_published(needed.output, needed.number))
    }

    /// Returns the federate whose payload this message waits for.
    pub fn sender(&self) -> Option<FederateId> {
        self.needs.map(|needed| needed.sender)
    }

    /// Removes the value, because its sender died before the payload arrived: the input stays absent.
    pub fn without_value(mut self) -> Result<Self, Error> {
        self.needs = None;
        if let Some(ToFederate::Rti(mut envelope)) = decode_bytes::<ToFederate<Carried<()>>>(&self.bytes) {
            if let Down::Message(message) = &mut envelope.body {
                message.value = None;
            }
            self.bytes = encode(&ToFederate::Rti(envelope))?;
        }
        Ok(self)
    }
}
