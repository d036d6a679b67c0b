//! The send queue under `coorp emu`: a TAP frees each frame at once, so the emulator reports what its card has freed,
//! over a separate socket for each interface.
//!
//! The emulator names the interfaces in `COORP_OUTQUEUE`. The records are described in `coorp-emu`'s `outqueue.rs`.

use std::io::{self, Read};
use std::net::UdpSocket;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;

/// Set by `coorp emu`: the names of the robot's interfaces.
pub(super) const VARIABLE: &str = "COORP_OUTQUEUE";
/// The maximum number of interfaces; a robot has fewer.
const INTERFACES_MAX: usize = 8;
/// A source port and the length of a datagram's payload, both big-endian.
pub(super) const RECORD_BYTES: usize = 4;
/// The number of records read at once.
const READ_MAX: usize = 256;

/// The payload bytes of one socket that the emulator's card has freed.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    bytes: AtomicU64,
    /// Whether the reports have ended.
    over: AtomicBool,
}

impl Freed {
    pub fn bytes(&self) -> u64 {
        if self.over.load(Ordering::Acquire) {
            return u64::MAX;
        }
        self.bytes.load(Ordering::Acquire)
    }

    pub fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Counts everything as freed from now on.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
    }
}

/// Follows which bytes of one socket an interface's card frees.
#[derive(Debug)]
pub(crate) struct Emulated {
    stream: UnixStream,
    port: u16,
    freed: Arc<Freed>,
    buffer: Vec<u8>,
    filled: usize,
}

impl Emulated {
    /// Connects to each interface that the socket sends over; empty without emulation. Reads block for at most
    /// `timeout`.
    pub fn connect(socket: &UdpSocket, timeout: Duration) -> Vec<Emulated> {
        let names = std::env::var(VARIABLE).unwrap_or_default();
        let Ok(port) = socket.local_addr().map(|address| address.port()) else {
            return Vec::new();
        };
        let device = SockRef::from(socket).device().ok().flatten();
        let device = device.and_then(|name| String::from_utf8(name).ok());
        let freed = Arc::<Freed>::default();
        let connect = |interface: &str| {
            let address = SocketAddr::from_abstract_name(format!("coorp-outqueue/{interface}"))?;
            let stream = UnixStream::connect_addr(&address)?;
            stream.set_read_timeout(Some(timeout))?;
            io::Result::Ok(Emulated::new(stream, port, freed.clone()))
        };
        let names = names.split_whitespace().take(INTERFACES_MAX);
        names
            .filter(|name| device.as_ref().is_none_or(|device| device == name))
            .filter_map(|interface| match connect(interface) {
                Ok(emulated) => Some(emulated),
                Err(error) => {
                    tracing::debug!("the emulator does not report what {interface} has sent: {error}");
                    None
                }
            })
            .collect()
    }

    fn new(stream: UnixStream, port: u16, freed: Arc<Freed>) -> Emulated {
        Emulated {
            stream,
            port,
            freed,
            buffer: vec![0; READ_MAX * RECORD_BYTES],
            filled: 0,
        }
    }

    /// Returns the bytes of the socket that all interfaces' cards have freed.
    pub fn freed(&self) -> Arc<Freed> {
        self.freed.clone()
    }

    /// Reads the reports that have arrived, or waits for some. Returns whether anything of the socket was freed; `None`
    /// at the end.
    pub fn read(&mut self) -> Option<bool> {
        match self.stream.read(&mut self.buffer[self.filled..]) {
            Ok(0) => return None,
            Ok(read) => self.filled += read,
            Err(error) => {
                use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
                return matches!(error.kind(), Interrupted | TimedOut | WouldBlock).then_some(false);
            }
        }
        let whole = self.filled - self.filled % RECORD_BYTES;
        let mut bytes = 0;
        for record in self.buffer[..whole].chunks_exact(RECORD_BYTES) {
            if let [high, low, long, short] = *record {
                if u16::from_be_bytes([high, low]) == self.port {
                    bytes += u64::from(u16::from_be_bytes([long, short]));
                }
            }
        }
        self.buffer.copy_within(whole..self.filled, 0);
        self.filled -= whole;
        self.freed.add(bytes);
        Some(bytes > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn records_are_read_whole_however_they_come() {
        let (mut emulator, stream) = UnixStream::pair().unwrap();
        let freed = Arc::<Freed>::default();
        let mut emulated = Emulated::new(stream, 7_461, freed.clone());
        let record = |number: u16| {
            let port: u16 = if number.is_multiple_of(3) { 7_461 } else { 7_462 };
            [port.to_be_bytes(), number.to_be_bytes()].concat()
        };
        let records: Vec<u8> = (0..600).flat_map(record).collect();
        for piece in records.chunks(1_001) {
            emulator.write_all(piece).unwrap();
            assert!(emulated.read().is_some());
        }
        drop(emulator);
        while emulated.read().is_some() {}
        let own: u64 = (0..600).filter(|number| number % 3 == 0).sum();
        assert_eq!(freed.bytes(), own);
        freed.end();
        assert_eq!(freed.bytes(), u64::MAX);
    }
}
