//! Carries large values from the channels of outputs here to other robots, and from there into channels here.
//!
//! A value goes once to each robot that reads it. The name of the bulk message contains the run, the output, and the
//! value's number. Bulk of an earlier run may still arrive; it is dropped.

use super::{Link, Place};
use crate::run::outlets::output_channel;
use crate::run::{Failure, HEADER_RESERVED};
use crate::{Domain, Error, Payload, Receiver, ReceiverOptions, Sender, SenderOptions, WhenFull};
use coorp_core::logical::graph::Element;
use coorp_core::logical::{ElementId, Graph};
use coorp_core::RobotId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The prefix of the names of bulk messages.
pub(super) const NAME_PREFIX: &str = "run.";
/// The maximum number of parts of a value, and so of entries read from a message's table.
const PARTS_MAX: u32 = crate::PARTS_MAX as u32;

/// An output here that other robots read.
#[derive(Debug)]
struct Outgoing {
    output: ElementId,
    receiver: Receiver,
    /// Receivers whose payloads are ignored: the sender counts the federates that read it, so there is one receiver for
    /// each.
    others: Vec<Receiver>,
    robots: Vec<RobotId>,
}

/// An output elsewhere that federates here read.
#[derive(Debug)]
struct Incoming {
    robot: RobotId,
    sender: Sender,
    published: u64,
}

/// Bulk that arrived.
#[derive(Debug)]
struct Arrived {
    output: ElementId,
    number: u64,
    body: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Payloads {
    outgoing: Vec<Outgoing>,
    incoming: BTreeMap<ElementId, Incoming>,
    /// The payloads still to be sent to each robot.
    unsent: BTreeMap<RobotId, VecDeque<(ElementId, u64, Arc<Payload>)>>,
    /// Payloads that could not be published yet because the store was full.
    arrived: VecDeque<Arrived>,
    /// The run, once it is known.
    pub run: Option<u64>,
}

impl Payloads {
    pub fn open(graph: &Graph, place: &Place, domain: &Domain, store: SenderOptions) -> Result<Self, Failure> {
        let mut payloads = Payloads {
            outgoing: Vec::new(),
            incoming: BTreeMap::new(),
            unsent: BTreeMap::new(),
            arrived: VecDeque::new(),
            run: None,
        };
        for (output, element) in (0..).map(ElementId).zip(graph.elements()) {
            let (robot, readers) = (place.of(element.federate), readers(element, place));
            if robot != place.here && readers.contains(&place.here) {
                let options = SenderOptions {
                    when_full: WhenFull::Fail,
                    ..store
                };
                let sender = domain.sender(&output_channel(output), options)?;
                let published = 0;
                payloads.incoming.insert(
                    output,
                    Incoming {
                        robot,
                        sender,
                        published,
                    },
                );
            }
            let robots: Vec<_> = readers.into_iter().filter(|to| *to != place.here).collect();
            if robot == place.here && !robots.is_empty() {
                let options = ReceiverOptions { spin: Duration::ZERO };
                let open = || domain.receiver(&output_channel(output), options);
                let away = element.to.iter().map(|link| link.federate);
                let away: BTreeSet<_> = away.filter(|to| place.of(*to) != place.here).collect();
                payloads.outgoing.push(Outgoing {
                    output,
                    receiver: open()?,
                    others: away.iter().skip(1).map(|_| open()).collect::<Result<_, _>>()?,
                    robots,
                });
            }
        }
        Ok(payloads)
    }

    /// Returns the receivers to wait for.
    pub fn receivers(&mut self) -> impl Iterator<Item = &mut Receiver> {
        self.outgoing.iter_mut().map(|outgoing| &mut outgoing.receiver)
    }

    /// Returns whether something here waits for room.
    pub fn is_waiting(&self) -> bool {
        !self.arrived.is_empty() || self.unsent.values().any(|unsent| !unsent.is_empty())
    }

    /// Returns whether a message that refers to this payload may proceed. It need not wait for a payload of this robot,
    /// or of a channel that nobody here reads.
    pub fn is_published(&self, output: ElementId, number: u64) -> bool {
        let incoming = self.incoming.get(&output);
        incoming.is_none_or(|incoming| incoming.published >= number)
    }

    /// Handles bulk that arrived. Drops bulk of other runs.
    pub fn on_bulk(&mut self, from: RobotId, name: &str, body: Vec<u8>) {
        let Some((run, output, number)) = parse(name) else {
            return;
        };
        let is_expected = |incoming: &Incoming| incoming.robot == from && incoming.published < number;
        if self.run == Some(run) && self.incoming.get(&output).is_some_and(is_expected) {
            self.arrived.push_back(Arrived { output, number, body });
        }
    }

    /// Publishes the payloads that arrived, as far as there is room.
    pub fn publish(&mut self) -> Result<(), Failure> {
        while let Some(arrived) = self.arrived.pop_front() {
            let Some(incoming) = self.incoming.get_mut(&arrived.output) else {
                continue;
            };
            match incoming.publish(&arrived) {
                Ok(()) => {}
                Err(Error::Full { .. }) => {
                    self.arrived.push_front(arrived);
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes payloads that were sent here, and sends them on as far as the link accepts them.
    pub fn send(&mut self, link: &mut impl Link) -> Result<(), Failure> {
        for outgoing in &mut self.outgoing {
            for other in &mut outgoing.others {
                while other.try_recv()?.is_some() {}
            }
            while let Some(payload) = outgoing.receiver.try_recv()? {
                let payload = Arc::new(payload);
                let number = number_of(&payload);
                for robot in &outgoing.robots {
                    let unsent = self.unsent.entry(*robot).or_default();
                    unsent.push_back((outgoing.output, number, Arc::clone(&payload)));
                }
            }
        }
        let Some(run) = self.run else { return Ok(()) };
        for (robot, unsent) in &mut self.unsent {
            while let Some((output, number, payload)) = unsent.front() {
                let name = format!("{NAME_PREFIX}{run:016x}.{}.{number}", output.0);
                let table = table(payload);
                let slices: Vec<&[u8]> = [table.as_slice(), payload.header()]
                    .into_iter()
                    .chain(payload.parts())
                    .collect();
                if !link.send_bulk(*robot, &name, &slices).map_err(Failure::Bridge)? {
                    break;
                }
                unsent.pop_front();
            }
        }
        Ok(())
    }
}

impl Incoming {
    fn publish(&mut self, arrived: &Arrived) -> Result<(), Error> {
        let Some((header, parts)) = split(&arrived.body) else {
            return Ok(());
        };
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        let mut loan = self.sender.loan_parts(header.len(), &lengths)?;
        loan.header_mut().copy_from_slice(header);
        for (to, from) in loan.parts_mut().into_iter().zip(parts) {
            to.copy_from_slice(from);
        }
        self.sender.send(loan)?;
        self.published = arrived.number;
        Ok(())
    }
}

/// Returns the robots that read an output.
fn readers(element: &Element, place: &Place) -> BTreeSet<RobotId> {
    element.to.iter().map(|link| place.of(link.federate)).collect()
}

fn number_of(payload: &Payload) -> u64 {
    let reserved = payload.header().get(..HEADER_RESERVED);
    let reserved = reserved.and_then(|bytes| bytes.try_into().ok());
    reserved.map_or(0, u64::from_le_bytes)
}

/// Returns the run, the output and the number in a name.
fn parse(name: &str) -> Option<(u64, ElementId, u64)> {
    let mut fields = name.strip_prefix(NAME_PREFIX)?.split('.');
    let run = u64::from_str_radix(fields.next()?, 16).ok()?;
    let output = ElementId(fields.next()?.parse().ok()?);
    let number = fields.next()?.parse().ok()?;
    fields.next().is_none().then_some((run, output, number))
}

/// Returns the table that precedes a value: the number of parts, and the lengths of the header and of each part.
fn table(payload: &Payload) -> Vec<u8> {
    let mut table = (payload.len() as u32).to_le_bytes().to_vec();
    let lengths = [payload.header().len()].into_iter();
    for length in lengths.chain(payload.parts().map(<[u8]>::len)) {
        table.extend_from_slice(&(length as u64).to_le_bytes());
    }
    table
}

fn split(body: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (count, rest) = body.split_first_chunk()?;
    let count = u32::from_le_bytes(*count);
    if count > PARTS_MAX {
        return None;
    }
    let (table, mut rest) = rest.split_at_checked((count as usize + 1) * 8)?;
    let mut slices = Vec::with_capacity(count as usize + 1);
    for length in table.chunks_exact(8) {
        let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
        let (slice, after) = rest.split_at_checked(length)?;
        slices.push(slice);
        rest = after;
    }
    let header = slices.remove(0);
    rest.is_empty().then_some((header, slices))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_values() {
        assert_eq!(parse("run.00000000000000ff.12.7"), Some((255, ElementId(12), 7)));
        for other in ["run.", "run.x.1.2", "run.1.2", "run.1.2.3.4", "map", "run.1.-2.3"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn damaged_values_are_refused() {
        let mut body = 2_u32.to_le_bytes().to_vec();
        for length in [3_u64, 0, 2] {
            body.extend_from_slice(&length.to_le_bytes());
        }
        body.extend_from_slice(b"abcde");
        assert_eq!(split(&body), Some((b"abc".as_slice(), vec![b"".as_slice(), b"de"])));
        for bytes in 0..body.len() {
            assert_eq!(split(&body[..bytes]), None);
        }
        body.push(0);
        assert_eq!(split(&body), None);
        assert_eq!(split(&[0xff; 64]), None);
    }
}
