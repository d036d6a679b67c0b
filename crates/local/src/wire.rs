//! The messages by which processes get connected. Payloads never travel this way.
//!
//! A packet is `b"cpl"`, the protocol's version (16 bits, little endian) and a message in postcard. Descriptors travel
//! beside it.

use std::fmt;

use rustix::rand::{getrandom, GetRandomFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Error;

/// The version of the protocol, and of the layouts in shared memory.
pub(crate) const VERSION: u16 = 1;
/// The longest packet.
pub(crate) const PACKET_BYTES_MAX: usize = 512;
const MAGIC: &[u8] = b"cpl";

/// Identifies a sender or a receiver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EndpointId(u128);

impl EndpointId {
    pub(crate) fn random() -> Result<Self, Error> {
        let mut bytes = [0; 16];
        getrandom(&mut bytes, GetRandomFlags::empty()).map_err(Error::system("get random bytes"))?;
        Ok(Self(u128::from_le_bytes(bytes)))
    }

    #[cfg(test)]
    pub(crate) fn of(number: u128) -> Self {
        Self(number)
    }
}

impl fmt::Debug for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The role of an endpoint: one end of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    Sender,
    Receiver,
}

/// A message from a member to the host.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToHost {
    /// The first packet. Carries a pidfd.
    Hello,
    Open {
        endpoint: EndpointId,
        role: Role,
        channel: String,
    },
    Close {
        endpoint: EndpointId,
    },
}

/// A message from the host to a member.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromHost {
    Welcome,
    /// The domain already has the maximum number of members.
    Full,
    /// Introduces a peer of an endpoint. Carries a socket whose other end the peer gets.
    Introduce {
        endpoint: EndpointId,
        peer: EndpointId,
    },
    /// Follows the introductions to all existing peers.
    Opened {
        endpoint: EndpointId,
    },
    Refused {
        endpoint: EndpointId,
        what: Limit,
    },
}

/// A limit of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Limit {
    Endpoints,
    Peers,
}

/// A message between a sender and a receiver. Either end closes the socket to end the link.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OnLink {
    /// From the sender, with its arena, the ring, its bell and a pidfd.
    Offer { pid: u32 },
    /// From the receiver, with its bell and a pidfd.
    Accept { pid: u32 },
    /// From the sender: the next payload comes through the ring.
    Ready,
}

/// The reason why a packet was not understood.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Misunderstood {
    OtherVersion(u16),
    Garbled,
}

pub(crate) fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut packet = MAGIC.to_vec();
    packet.extend(VERSION.to_le_bytes());
    postcard::to_extend(message, packet).expect("messages have no maps of unknown length, which postcard refuses")
}

pub(crate) fn decode<T: DeserializeOwned>(packet: &[u8]) -> Result<T, Misunderstood> {
    let rest = packet.strip_prefix(MAGIC).ok_or(Misunderstood::Garbled)?;
    let (version, message) = rest.split_first_chunk().ok_or(Misunderstood::Garbled)?;
    match u16::from_le_bytes(*version) {
        VERSION => postcard::from_bytes(message).map_err(|_| Misunderstood::Garbled),
        other => Err(Misunderstood::OtherVersion(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_packet_fits_and_keeps_its_bytes() {
        let endpoint = EndpointId::of(u128::MAX);
        let longest = ToHost::Open {
            endpoint,
            role: Role::Receiver,
            channel: "c".repeat(crate::NAME_BYTES_MAX),
        };
        let packet = encode(&longest);
        assert!(packet.len() <= PACKET_BYTES_MAX);
        assert_eq!(decode(&packet), Ok(longest));
        // Another version must be able to read the magic and the version.
        assert_eq!(encode(&FromHost::Welcome), [b'c', b'p', b'l', 1, 0, 0]);
        assert_eq!(
            decode::<FromHost>(&[b'c', b'p', b'l', 7, 2, 9]),
            Err(Misunderstood::OtherVersion(519))
        );
        assert_eq!(decode::<FromHost>(b"GET / HTTP/1.1"), Err(Misunderstood::Garbled));
    }

    proptest! {
        #[test]
        fn no_packet_panics(mut packet in prop::collection::vec(any::<u8>(), 0..64), sound in any::<bool>()) {
            if sound {
                packet.splice(0..0, [b'c', b'p', b'l', 1, 0]);
            }
            let _ = (decode::<ToHost>(&packet), decode::<FromHost>(&packet), decode::<OnLink>(&packet));
        }
    }
}
