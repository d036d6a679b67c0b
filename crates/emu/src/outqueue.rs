//! The send queue of a robot's card as visible to programs: shows which datagrams and packets the card's driver has
//! freed.
//!
//! For a real card the kernel counts how much of a socket's data the driver still holds (`SIOCOUTQ`). For a TAP it
//! cannot, because it frees a frame as soon as the emulator may fetch it. Instead, a program connects to one of two
//! abstract Unix sockets in the robot's namespace and reads a record for each frame that the driver frees, according to
//! the card's profile, or that the card's queue drops. With `completes_on_transfer` the driver frees a frame when the
//! card takes it, before it is on the air. A record consists of two numbers of two bytes each, big-endian:
//!
//! - `coorp-outqueue/wlan0`: the source port and the payload length of each UDP datagram;
//! - `coorp-outqueue/wlan0/ip`: the identification and the total length of each IPv4 packet, including fragments.
//!
//! Left out: frames to all; on the first, fragments after the first, which have no ports; on the second, IPv6, which
//! has no identification.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use crate::frame;

/// Maximum number of programs that read from each socket.
const READERS_MAX: usize = 16;
/// Maximum amount of records waiting for a slow reader, in bytes; beyond it, the reader is disconnected.
const WAITING_MAX: usize = 256 << 10;

/// Both sockets of one interface of one robot.
#[derive(Debug)]
pub struct OutQueue {
    datagrams: Served,
    packets: Served,
}

/// A socket with its readers.
#[derive(Debug)]
struct Served {
    listener: UnixListener,
    readers: Vec<Reader>,
    /// Returns the record of a frame, if it has one.
    record: fn(&[u8]) -> Option<(u16, u16)>,
    /// Records since the last [`Served::flush`].
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
        let name = format!("coorp-outqueue/{interface}");
        Ok(OutQueue {
            packets: Served::listen(&format!("{name}/ip"), frame::packet)?,
            datagrams: Served::listen(&name, frame::datagram)?,
        })
    }

    /// Returns the descriptors that are readable while a program wants to connect.
    pub fn as_fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.datagrams.listener.as_fd(), self.packets.listener.as_fd()]
    }

    fn both(&mut self) -> [&mut Served; 2] {
        [&mut self.datagrams, &mut self.packets]
    }

    /// Accepts all pending connections.
    pub fn accept(&mut self) {
        self.both().into_iter().for_each(Served::accept);
    }

    /// Records a frame that the driver has freed.
    pub fn freed(&mut self, frame: &[u8]) {
        self.both().into_iter().for_each(|served| served.freed(frame));
    }

    /// Sends the records since the last call.
    pub fn flush(&mut self) {
        self.both().into_iter().for_each(Served::flush);
    }
}

impl Served {
    fn listen(name: &str, record: fn(&[u8]) -> Option<(u16, u16)>) -> io::Result<Self> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Served {
            listener,
            readers: Vec::new(),
            record,
            fresh: Vec::new(),
        })
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.readers.len() < READERS_MAX && stream.set_nonblocking(true).is_ok() {
                self.readers.push(Reader {
                    stream,
                    waiting: Vec::new(),
                });
            }
        }
    }

    fn freed(&mut self, frame: &[u8]) {
        if self.readers.is_empty() {
            return;
        }
        if let Some((one, other)) = (self.record)(frame) {
            self.fresh.extend(one.to_be_bytes());
            self.fresh.extend(other.to_be_bytes());
        }
    }

    fn flush(&mut self) {
        if self.fresh.is_empty() {
            return;
        }
        self.readers.retain_mut(|reader| reader.tell(&self.fresh));
        self.fresh.clear();
    }
}

impl Reader {
    /// Sends records to a reader. Returns false once the reader no longer reads.
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
    use crate::frame::tests::{ipv4, udp};
    use coorp_air::StationId;
    use std::io::Read;

    const RECORD_BYTES: usize = 4;

    fn connect(name: &str) -> UnixStream {
        let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        stream
            .set_read_timeout(Some(std::time::Duration::from_secs(10)))
            .unwrap();
        stream
    }

    /// Returns the next record.
    fn record(stream: &mut UnixStream) -> (u16, u16) {
        let mut read = [0; RECORD_BYTES];
        stream.read_exact(&mut read).unwrap();
        let [a, b, c, d] = read;
        (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
    }

    #[test]
    fn readers_are_told_each_datagram_and_one_that_does_not_read_is_left() {
        let interface = format!("test{}", std::process::id());
        let mut queue = OutQueue::listen(&interface).unwrap();
        let mut one = connect(&format!("coorp-outqueue/{interface}"));
        let _idle = connect(&format!("coorp-outqueue/{interface}"));
        queue.accept();
        for round in 0..200_000u32 {
            let port = round as u16;
            queue.freed(&udp(1, mac(0, StationId(0)), 0, port, 1_000));
            queue.flush();
            assert_eq!(record(&mut one), (port, 1_000 - 14 - 20 - 8));
        }
        assert_eq!(queue.datagrams.readers.len(), 1);
        drop(one);
        queue.freed(&udp(1, mac(0, StationId(0)), 0, 7461, 1_000));
        queue.flush();
        assert_eq!(queue.datagrams.readers.len(), 0);
    }

    #[test]
    fn datagrams_and_packets_are_told_to_their_readers() {
        let interface = format!("both{}", std::process::id());
        let mut queue = OutQueue::listen(&interface).unwrap();
        let frame = udp(1, mac(0, StationId(0)), 0, 7461, 1_000);
        queue.freed(&frame);
        assert!(
            queue.datagrams.fresh.is_empty() && queue.packets.fresh.is_empty(),
            "nobody reads"
        );
        let mut datagrams = connect(&format!("coorp-outqueue/{interface}"));
        let mut packets = connect(&format!("coorp-outqueue/{interface}/ip"));
        queue.accept();
        queue.freed(&ipv4(frame.clone(), 17, 1, 0));
        queue.freed(&ipv4(frame.clone(), 6, 2, 0));
        queue.freed(&ipv4(frame.clone(), 17, 3, 0x2000));
        queue.freed(&ipv4(frame.clone(), 17, 3, 0x00b9));
        queue.freed(&frame[..14]);
        queue.freed(&[]);
        queue.freed(&ipv4(frame, 1, u16::MAX, 0));
        queue.flush();
        let (payload, total) = (1_000 - 14 - 20 - 8, 1_000 - 14);
        assert_eq!([(); 2].map(|()| record(&mut datagrams)), [(7461, payload); 2]);
        let identifications = [1, 2, 3, 3, u16::MAX];
        assert_eq!(
            [(); 5].map(|()| record(&mut packets)),
            identifications.map(|identification| (identification, total))
        );
        drop(queue);
        let ends = [datagrams, packets].map(|mut stream| stream.read(&mut [0; 1]).unwrap());
        assert_eq!(ends, [0, 0], "nothing else");
    }
}
