//! The channels of a federate's outputs, for its driver and for loans of their memory.

use super::carried::{Whole, Wire};
use super::{Encoded, Failure, HEADER_RESERVED};
use crate::sync::lock;
use crate::{Domain, Error, Loan, Sender, SenderOptions};
use coorp_core::logical::{ElementId, FederateId, Graph};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// The channel of an output that other federates read.
#[derive(Debug)]
struct Outlet {
    /// The output's name, for errors.
    name: String,
    sender: Sender,
    /// The number of federates that read it.
    readers: usize,
    sent: u64,
}

/// The channels of a federate's outputs that other federates read.
#[derive(Debug, Default)]
pub(super) struct Outlets {
    outlets: BTreeMap<ElementId, Mutex<Outlet>>,
}

impl Outlets {
    pub fn open(graph: &Graph, id: FederateId, domain: &Domain, options: SenderOptions) -> Result<Self, Error> {
        let elements = (0..).map(ElementId).zip(graph.elements());
        let left = elements
            .filter(|(_, element)| element.federate == id && element.to.iter().any(|link| link.federate != id))
            .map(|(output, element)| {
                let readers: BTreeSet<_> = element
                    .to
                    .iter()
                    .map(|link| link.federate)
                    .filter(|to| *to != id)
                    .collect();
                let outlet = Outlet {
                    name: element.name.clone(),
                    sender: domain.sender(&output_channel(output), options)?,
                    readers: readers.len(),
                    sent: 0,
                };
                Ok((output, Mutex::new(outlet)))
            });
        Ok(Outlets {
            outlets: left.collect::<Result<_, Error>>()?,
        })
    }

    /// Returns whether all federates that read an output are connected to it.
    pub fn are_connected(&self) -> bool {
        let mut outlets = self.outlets.values().map(lock);
        outlets.all(|outlet| outlet.sender.readers() >= outlet.readers)
    }

    /// Loans memory for a value of an output; `None` if no other federate reads the output.
    pub fn loan(&self, output: ElementId, header: usize, parts: &[usize]) -> Option<Result<Loan, Error>> {
        let mut outlet = lock(self.outlets.get(&output)?);
        let loan = outlet.sender.loan_parts(HEADER_RESERVED + header, parts);
        Some(loan.map_err(|error| error.on_channel(&outlet.name)))
    }

    /// Encodes a value of an output and sends it ahead of the message that refers to it, if it is large. Returns the
    /// content of the message, and the size; `None` if no other federate reads the output.
    pub fn send(
        &self,
        output: ElementId,
        encode: impl FnOnce(&mut Sender) -> Result<Encoded, String>,
    ) -> Result<Option<(Wire, usize)>, Failure> {
        let Some(outlet) = self.outlets.get(&output) else {
            return Ok(None);
        };
        let mut outlet = lock(outlet);
        let encoded = encode(&mut outlet.sender).map_err(Failure::Reaction)?;
        Ok(Some(outlet.put(output, encoded)?))
    }
}

impl Outlet {
    fn put(&mut self, output: ElementId, encoded: Encoded) -> Result<(Wire, usize), Error> {
        let mut loan = match encoded {
            Encoded::Inline(header, parts) => {
                let bytes = header.len() + parts.iter().map(Vec::len).sum::<usize>();
                let (header, parts) = (Whole(header), parts.into_iter().map(Whole).collect());
                return Ok((Wire::Inline { header, parts }, bytes));
            }
            Encoded::Loan(loan) => loan,
        };
        self.sent += 1;
        let number = self.sent;
        if let Some(reserved) = loan.header_mut().get_mut(..HEADER_RESERVED) {
            reserved.copy_from_slice(&number.to_le_bytes());
        }
        let bytes = loan.parts_mut().iter().map(|part| part.len()).sum();
        let sent = self.sender.send(loan);
        sent.map_err(|error| Error::from(error).on_channel(&self.name))?;
        Ok((Wire::Payload { output, number }, bytes))
    }
}

/// Returns the channel of an output's large values.
pub(super) fn output_channel(output: ElementId) -> String {
    format!("output/{}", output.0)
}
