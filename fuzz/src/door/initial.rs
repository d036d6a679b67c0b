//! QUIC's Initial packets, which anybody who sees them can open and seal (RFC 9001, section 5.2).

use bytes::BytesMut;
use quinn_proto::crypto::{Keys, ServerConfig};
use quinn_proto::ConnectionId;

use super::Input;

const VERSION: u32 = 1;
const TAG_BYTES: usize = 16;
const ID_BYTES_MAX: usize = 20;
/// The minimum length to which a client pads.
const DATAGRAM_BYTES_MIN: usize = 1_200;

/// An opened packet.
#[derive(Clone)]
pub(super) struct Initial {
    pub to: Vec<u8>,
    pub from: Vec<u8>,
    pub token: Vec<u8>,
    pub number: u16,
    pub frames: Vec<u8>,
}

impl Initial {
    /// Opens the first packet of a client's datagram, if it is one.
    pub fn open(crypto: &dyn ServerConfig, datagram: &[u8]) -> Option<Initial> {
        let mut rest = Input(datagram);
        let first = rest.byte()?;
        if first & 0xf0 != 0xc0 || rest.take(4)? != VERSION.to_be_bytes() {
            return None;
        }
        let [to, from] = [rest.bytes()?, rest.bytes()?];
        let length = variable(&mut rest)?;
        let token = rest.take(length)?;
        let length = variable(&mut rest)?;
        let offset = datagram.len() - rest.0.len();
        let mut packet = datagram
            .get(..offset + length)
            .filter(|_| length >= 4 + TAG_BYTES)?
            .to_vec();
        let keys = keys(crypto, to)?;
        keys.header.remote.decrypt(offset, &mut packet);
        let digits = usize::from(packet[0] & 3) + 1;
        let number = packet[offset..offset + digits].iter();
        let number = number.fold(0, |number, byte| number << 8 | u64::from(*byte));
        let mut frames = BytesMut::from(&packet[offset + digits..]);
        let opened = keys
            .packet
            .remote
            .decrypt(number, &packet[..offset + digits], &mut frames);
        opened.ok()?;
        Some(Initial {
            to: to.to_vec(),
            from: from.to_vec(),
            token: token.to_vec(),
            number: u16::try_from(number).ok()?,
            frames: frames.to_vec(),
        })
    }

    /// Seals the packet into a datagram.
    pub fn seal(&self, crypto: &dyn ServerConfig) -> Option<Vec<u8>> {
        let mut packet = vec![0xc1];
        packet.extend(VERSION.to_be_bytes());
        for id in [&self.to, &self.from] {
            packet.push(u8::try_from(id.len()).ok()?);
            packet.extend(id);
        }
        packet.extend(two_bytes(self.token.len())?);
        packet.extend(&self.token);
        // Padding frames are zeros.
        let padding = DATAGRAM_BYTES_MIN.saturating_sub(packet.len() + 4 + self.frames.len() + TAG_BYTES);
        packet.extend(two_bytes(2 + self.frames.len() + padding + TAG_BYTES)?);
        let offset = packet.len();
        packet.extend(self.number.to_be_bytes());
        let header = packet.len();
        packet.extend(&self.frames);
        packet.resize(packet.len() + padding + TAG_BYTES, 0);
        let keys = keys(crypto, &self.to)?;
        keys.packet.remote.encrypt(self.number.into(), &mut packet, header);
        keys.header.remote.encrypt(offset, &mut packet);
        Some(packet)
    }
}

/// Returns the sender's ID and the token of a Retry packet.
pub(super) fn retry(datagram: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut rest = Input(datagram);
    if rest.byte()? & 0xf0 != 0xf0 || rest.take(4)? != VERSION.to_be_bytes() {
        return None;
    }
    let [_, from] = [rest.bytes()?, rest.bytes()?];
    let token = rest.0.len().checked_sub(TAG_BYTES)?;
    Some((from.to_vec(), rest.0[..token].to_vec()))
}

fn keys(crypto: &dyn ServerConfig, to: &[u8]) -> Option<Keys> {
    let id = (to.len() <= ID_BYTES_MAX).then(|| ConnectionId::new(to))?;
    crypto.initial_keys(VERSION, &id).ok()
}

/// Reads a number of variable length (RFC 9000, section 16).
fn variable(rest: &mut Input<'_>) -> Option<usize> {
    let first = rest.byte()?;
    let more = rest.take((1 << (first >> 6)) - 1)?;
    let number = more
        .iter()
        .fold(u64::from(first & 0x3f), |number, byte| number << 8 | u64::from(*byte));
    usize::try_from(number)
        .ok()
        .filter(|number| *number <= usize::from(u16::MAX))
}

fn two_bytes(number: usize) -> Option<[u8; 2]> {
    let number = u16::try_from(number).ok().filter(|number| *number < 0x4000)?;
    Some((number | 0x4000).to_be_bytes())
}
