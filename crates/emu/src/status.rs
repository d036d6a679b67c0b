//! Transmit status: what became of the UDP datagrams that a robot's programs sent over one of its interfaces.
//!
//! On a WiFi card mac80211 tells that on the socket's error queue (`SO_WIFI_STATUS`). A TAP cannot: the kernel is done
//! with a frame once the emulator may fetch it. So whoever wants to know connects to an abstract Unix socket in the
//! robot's namespace, [`name`], and reads a record a datagram, as soon as the card is done with it: its last
//! [`TAIL_BYTES`] bytes, then 1 if it was acknowledged, or 0 if the air gave it up or the card's queue dropped it. Records
//! come in the order of these ends. Left out: that a real card may report late, in another order, or not at all.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use crate::frame;

/// The part of a datagram that tells it from others.
const TAIL_BYTES: usize = 16;
/// Programs that are told, at most.
const READERS_MAX: usize = 16;
/// Records that wait for a reader that takes none, bytes; then it is told no more.
const WAITING_MAX: usize = 256 << 10;

/// The abstract Unix socket of an interface.
fn name(interface: &str) -> String {
    format!("coorp-status/{interface}")
}

/// Those who are told, of one interface of one robot.
#[derive(Debug)]
pub struct Status {
    listener: UnixListener,
    readers: Vec<Reader>,
    /// Records since the last [`Status::flush`].
    fresh: Vec<u8>,
}

#[derive(Debug)]
struct Reader {
    stream: UnixStream,
    waiting: Vec<u8>,
}

impl Status {
    /// Listens in the namespace of this thread.
    pub fn listen(interface: &str) -> io::Result<Self> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name(interface))?)?;
        listener.set_nonblocking(true)?;
        Ok(Status {
            listener,
            readers: Vec::new(),
            fresh: Vec::new(),
        })
    }

    /// Readable while somebody wants to be told.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Takes whoever wants to be told.
    pub fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.readers.len() < READERS_MAX && stream.set_nonblocking(true).is_ok() {
                self.readers.push(Reader {
                    stream,
                    waiting: Vec::new(),
                });
            }
        }
    }

    /// The card is done with a frame.
    pub fn done(&mut self, frame: &[u8], acknowledged: bool) {
        if self.readers.is_empty() || !frame::is_udp(frame) {
            return;
        }
        if let Some(tail) = frame.last_chunk::<TAIL_BYTES>() {
            self.fresh.extend_from_slice(tail);
            self.fresh.push(u8::from(acknowledged));
        }
    }

    /// Tells what has been done since.
    pub fn flush(&mut self) {
        if self.fresh.is_empty() {
            return;
        }
        self.readers.retain_mut(|reader| reader.tell(&self.fresh));
        self.fresh.clear();
    }
}

impl Reader {
    /// False once it reads no more.
    fn tell(&mut self, records: &[u8]) -> bool {
        self.waiting.extend_from_slice(records);
        loop {
            match self.stream.write(&self.waiting) {
                Ok(0) => return self.waiting.is_empty(),
                Ok(written) => drop(self.waiting.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return error.kind() == io::ErrorKind::WouldBlock && self.waiting.len() <= WAITING_MAX;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::mac;
    use crate::frame::tests::udp;
    use coorp_air::StationId;
    use std::io::Read;

    #[test]
    fn readers_are_told_each_datagram_and_one_that_does_not_read_is_left() {
        let interface = format!("test{}", std::process::id());
        let mut status = Status::listen(&interface).unwrap();
        let address = SocketAddr::from_abstract_name(name(&interface)).unwrap();
        let mut one = UnixStream::connect_addr(&address).unwrap();
        let _idle = UnixStream::connect_addr(&address).unwrap();
        status.accept();
        let mut frame = udp(1, mac(0, StationId(0)), 0, 7461, 1_000);
        let mut read = [0; TAIL_BYTES + 1];
        for round in 0..100_000u32 {
            let end = frame.len() - 4;
            frame[end..].copy_from_slice(&round.to_be_bytes());
            status.done(&frame, round % 3 != 0);
            status.flush();
            one.read_exact(&mut read).unwrap();
            assert_eq!(read[TAIL_BYTES - 4..TAIL_BYTES], round.to_be_bytes());
            assert_eq!(read[TAIL_BYTES], u8::from(round % 3 != 0));
        }
        assert_eq!(status.readers.len(), 1);
        drop(one);
        status.done(&frame, true);
        status.flush();
        assert_eq!(status.readers.len(), 0);
    }

    #[test]
    fn only_datagrams_are_reported() {
        let mut status = Status::listen(&format!("only{}", std::process::id())).unwrap();
        let mut frame = udp(1, mac(0, StationId(0)), 0, 7461, 1_000);
        status.done(&frame, true);
        assert!(status.fresh.is_empty(), "nobody listens");
        let (stream, _other) = UnixStream::pair().unwrap();
        status.readers.push(Reader {
            stream,
            waiting: Vec::new(),
        });
        status.done(&frame, true);
        assert_eq!(status.fresh.len(), TAIL_BYTES + 1);
        frame[23] = 6;
        status.done(&frame, true);
        status.done(&frame[..14], true);
        status.done(&[], true);
        assert_eq!(status.fresh.len(), TAIL_BYTES + 1);
    }
}
