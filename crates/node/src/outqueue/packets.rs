//! The send queue of raw sockets under `coorp emu`: shows which of the agent's packets the emulator's card has freed.
//!
//! The emulator names each by its IPv4 identification and its total length; the records are described in `coorp-emu`'s
//! `outqueue.rs`.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;

use super::emulated::{Freed, RECORD_BYTES, VARIABLE};

/// The number of records read at once.
const READ_MAX: usize = 1_024;
/// The maximum number of awaited packets; more than a card and its queue hold.
const AWAITED_MAX: usize = 16_384;

/// The packets of several raw sockets that the emulator's card has freed.
#[derive(Debug)]
pub(crate) struct EmulatedPackets {
    stream: UnixStream,
    sockets: Vec<Arc<Freed>>,
    /// The number of each socket's packets that wait for their records, by name.
    awaited: BTreeMap<(u16, u16, usize), u32>,
    buffer: Vec<u8>,
    filled: usize,
}

impl EmulatedPackets {
    /// Connects to an interface, for this many sockets; `None` without emulation.
    ///
    /// # Errors
    /// If the emulator does not answer.
    pub fn connect(interface: &str, sockets: usize) -> io::Result<Option<EmulatedPackets>> {
        let emulated = std::env::var(VARIABLE).unwrap_or_default();
        if !emulated.split_whitespace().any(|name| name == interface) {
            return Ok(None);
        }
        let address = SocketAddr::from_abstract_name(format!("coorp-outqueue/{interface}/ip"))?;
        EmulatedPackets::new(UnixStream::connect_addr(&address)?, sockets).map(Some)
    }

    fn new(stream: UnixStream, sockets: usize) -> io::Result<EmulatedPackets> {
        stream.set_nonblocking(true)?;
        Ok(EmulatedPackets {
            stream,
            sockets: (0..sockets).map(|_| Arc::default()).collect(),
            awaited: BTreeMap::new(),
            buffer: vec![0; READ_MAX * RECORD_BYTES],
            filled: 0,
        })
    }

    /// Returns the count of freed bytes of one socket.
    pub fn freed(&self, socket: usize) -> Arc<Freed> {
        self.sockets[socket].clone()
    }

    /// Expects the record of a packet that one of the sockets is about to send.
    pub fn expect(&mut self, (identification, length): (u16, u16), socket: usize) {
        if self.awaited.len() >= AWAITED_MAX {
            // The kernel dropped these before the TAP, so their records will not come.
            self.awaited.clear();
        }
        *self.awaited.entry((identification, length, socket)).or_default() += 1;
    }

    /// Reads the records that have arrived.
    pub fn read(&mut self) {
        loop {
            match self.stream.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return self.sockets.iter().for_each(|freed| freed.end()),
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.sockets.iter().for_each(|freed| freed.end()),
            }
            let whole = self.filled - self.filled % RECORD_BYTES;
            for at in (0..whole).step_by(RECORD_BYTES) {
                let word = |at: usize| u16::from_be_bytes([self.buffer[at], self.buffer[at + 1]]);
                self.on_freed(word(at), word(at + 2));
            }
            self.buffer.copy_within(whole..self.filled, 0);
            self.filled -= whole;
        }
    }

    fn on_freed(&mut self, identification: u16, length: u16) {
        let places = (identification, length, 0)..=(identification, length, usize::MAX);
        let Some((name, count)) = self.awaited.range_mut(places).next() else {
            return;
        };
        let name = *name;
        *count -= 1;
        if *count == 0 {
            self.awaited.remove(&name);
        }
        self.sockets[name.2].add(u64::from(length));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn each_socket_gets_its_own_packets_and_others_are_nobodys() {
        let (mut emulator, stream) = UnixStream::pair().unwrap();
        let mut packets = EmulatedPackets::new(stream, 2).unwrap();
        packets.expect((7, 100), 0);
        packets.expect((7, 100), 1);
        packets.expect((8, 60), 1);
        let record = |identification: u16, length: u16| [identification.to_be_bytes(), length.to_be_bytes()].concat();
        let records = [
            record(7, 100),
            record(9, 60),
            record(8, 61),
            record(7, 100),
            record(8, 60),
            record(8, 60),
        ]
        .concat();
        for piece in records.chunks(5) {
            emulator.write_all(piece).unwrap();
            packets.read();
        }
        assert_eq!((packets.freed(0).bytes(), packets.freed(1).bytes()), (100, 160));
        assert!(packets.awaited.is_empty());
        drop(emulator);
        packets.read();
        assert_eq!(packets.freed(1).bytes(), u64::MAX);
    }
}
