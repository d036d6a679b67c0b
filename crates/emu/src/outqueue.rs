//! The send queue of a robot's card as visible to programs: which UDP datagrams the card's driver has freed.
//!
//! For a real card the kernel counts how much of a socket's data the driver still holds (`SIOCOUTQ`). For a TAP it
//! cannot, because it frees a frame once the emulator may fetch it. Instead, a program connects to the abstract Unix
//! socket [`name`] in the robot's namespace. It reads one record per datagram that the driver frees, according to the
//! card's profile, or that the card's queue drops. A record is the source port and the payload length, two bytes each,
//! big-endian. With `completes_on_transfer` the driver frees a frame when the card takes it, before it is on the air.
//! Left out: frames to all, and fragments after the first, which have no ports.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use crate::frame;

/// Maximum number of reading programs.
const READERS_MAX: usize = 16;
/// Maximum amount of records waiting for a slow reader, in bytes; beyond it, the reader is disconnected.
const WAITING_MAX: usize = 256 << 10;

/// The abstract Unix socket of an interface.
fn name(interface: &str) -> String {
    format!("coorp-outqueue/{interface}")
}

/// The readers of one interface of one robot.
#[derive(Debug)]
pub struct OutQueue {
    listener: UnixListener,
    readers: Vec<Reader>,
    /// Records since the last [`OutQueue::flush`].
    fresh: Vec<u8>,
}

#[derive(Debug)]
struct Reader {
    stream: UnixStream,
    waiting: Vec<u8>,
}

impl OutQueue {
    /// Listens in the namespace of this thread.
    pub fn listen(interface: &str) -> io::Result<Self> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name(interface))?)?;
        listener.set_nonblocking(true)?;
        Ok(OutQueue {
            listener,
            readers: Vec::new(),
            fresh: Vec::new(),
        })
    }

    /// Readable while a program wants to connect.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Accepts all pending connections.
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

    /// The driver has freed a frame.
    pub fn freed(&mut self, frame: &[u8]) {
        if self.readers.is_empty() {
            return;
        }
        if let Some((port, length)) = frame::datagram(frame) {
            self.fresh.extend(port.to_be_bytes());
            self.fresh.extend(length.to_be_bytes());
        }
    }

    /// Sends the records since the last call.
    pub fn flush(&mut self) {
        if self.fresh.is_empty() {
            return;
        }
        self.readers.retain_mut(|reader| reader.tell(&self.fresh));
        self.fresh.clear();
    }
}

impl Reader {
    /// Returns false once the reader no longer reads.
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

    const RECORD_BYTES: usize = 4;

    #[test]
    fn readers_are_told_each_datagram_and_one_that_does_not_read_is_left() {
        let interface = format!("test{}", std::process::id());
        let mut queue = OutQueue::listen(&interface).unwrap();
        let address = SocketAddr::from_abstract_name(name(&interface)).unwrap();
        let mut one = UnixStream::connect_addr(&address).unwrap();
        let _idle = UnixStream::connect_addr(&address).unwrap();
        queue.accept();
        for round in 0..200_000u32 {
            let port = round as u16;
            queue.freed(&udp(1, mac(0, StationId(0)), 0, port, 1_000));
            queue.flush();
            let mut read = [0; RECORD_BYTES];
            one.read_exact(&mut read).unwrap();
            assert_eq!(read[..2], port.to_be_bytes());
            assert_eq!(read[2..], (1_000u16 - 14 - 20 - 8).to_be_bytes());
        }
        assert_eq!(queue.readers.len(), 1);
        drop(one);
        queue.freed(&udp(1, mac(0, StationId(0)), 0, 7461, 1_000));
        queue.flush();
        assert_eq!(queue.readers.len(), 0);
    }

    #[test]
    fn only_datagrams_are_told() {
        let mut queue = OutQueue::listen(&format!("only{}", std::process::id())).unwrap();
        let mut frame = udp(1, mac(0, StationId(0)), 0, 7461, 1_000);
        queue.freed(&frame);
        assert!(queue.fresh.is_empty(), "nobody listens");
        let (stream, _other) = UnixStream::pair().unwrap();
        queue.readers.push(Reader {
            stream,
            waiting: Vec::new(),
        });
        queue.freed(&frame);
        assert_eq!(queue.fresh.len(), RECORD_BYTES);
        frame[23] = 6;
        queue.freed(&frame);
        queue.freed(&frame[..14]);
        queue.freed(&[]);
        assert_eq!(queue.fresh.len(), RECORD_BYTES);
    }
}
