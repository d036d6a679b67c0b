//! Transmit reports under `coorp emu`: its TAPs cannot give the kernel's, so it tells by sockets of its own, one an
//! interface, what a WiFi card would report of each UDP datagram.
//!
//! It names the interfaces in `COORP_STATUS`. What it writes, and where, is described in `coorp-emu`'s `status.rs`.

use std::io::{self, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use super::reports::{Report, Tail};

/// Set by `coorp emu`: the names of the robot's interfaces.
const VARIABLE: &str = "COORP_STATUS";
/// Interfaces at most; a robot has fewer.
const INTERFACES_MAX: usize = 8;
const TAIL_BYTES: usize = size_of::<Tail>();
const RECORD_BYTES: usize = TAIL_BYTES + 1;
/// Records read at once.
const READ_MAX: usize = 256;

/// Reports of all datagrams that this robot sends over one interface.
#[derive(Debug)]
pub(crate) struct Emulated {
    stream: UnixStream,
    buffer: Vec<u8>,
    filled: usize,
}

impl Emulated {
    /// One for each interface; none where this is no emulation. Reading waits for `timeout` at most.
    pub fn connect(timeout: Duration) -> Vec<Emulated> {
        let names = std::env::var(VARIABLE).unwrap_or_default();
        let connect = |interface: &str| {
            let address = SocketAddr::from_abstract_name(format!("coorp-status/{interface}"))?;
            let stream = UnixStream::connect_addr(&address)?;
            stream.set_read_timeout(Some(timeout))?;
            io::Result::Ok(Emulated::new(stream))
        };
        let names = names.split_whitespace().take(INTERFACES_MAX);
        names
            .filter_map(|interface| match connect(interface) {
                Ok(emulated) => Some(emulated),
                Err(error) => {
                    tracing::debug!("the emulator does not report what {interface} sends: {error}");
                    None
                }
            })
            .collect()
    }

    fn new(stream: UnixStream) -> Emulated {
        Emulated {
            stream,
            buffer: vec![0; READ_MAX * RECORD_BYTES],
            filled: 0,
        }
    }

    /// Reads what has come, or waits for it. False once no more comes.
    pub fn read(&mut self, reports: &mut Vec<Report>) -> bool {
        match self.stream.read(&mut self.buffer[self.filled..]) {
            Ok(0) => return false,
            Ok(read) => self.filled += read,
            Err(error) => {
                use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
                return matches!(error.kind(), Interrupted | TimedOut | WouldBlock);
            }
        }
        let whole = self.filled - self.filled % RECORD_BYTES;
        for record in self.buffer[..whole].chunks_exact(RECORD_BYTES) {
            if let Some((tail, [acknowledged])) = record.split_first_chunk::<TAIL_BYTES>() {
                reports.push(Report::OnAir {
                    tail: *tail,
                    acknowledged: *acknowledged != 0,
                });
            }
        }
        self.buffer.copy_within(whole..self.filled, 0);
        self.filled -= whole;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn records_are_read_whole_however_they_come() {
        let (mut emulator, stream) = UnixStream::pair().unwrap();
        let mut emulated = Emulated::new(stream);
        let records: Vec<u8> = (0..600u32)
            .flat_map(|number| {
                let mut record = vec![number as u8; RECORD_BYTES];
                record[TAIL_BYTES] = u8::from(number % 7 == 0);
                record
            })
            .collect();
        let mut reports = Vec::new();
        for piece in records.chunks(1_001) {
            emulator.write_all(piece).unwrap();
            assert!(emulated.read(&mut reports));
        }
        drop(emulator);
        while emulated.read(&mut reports) {}
        let expected = (0..600u32).map(|number| Report::OnAir {
            tail: [number as u8; TAIL_BYTES],
            acknowledged: number % 7 == 0,
        });
        assert!(reports.iter().copied().eq(expected));
    }
}
