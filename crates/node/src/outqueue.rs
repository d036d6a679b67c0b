//! The send queue of a UDP socket: shows which datagrams the card has freed. This works with every driver.
//!
//! `ioctl(SIOCOUTQ)` returns the bytes of a socket that the kernel still holds. A frame leaves that count when its
//! driver frees it: over PCIe once it was on the air, over USB once the dongle has it. Reading needs no privilege and
//! changes nothing. The count measures memory (`truesize`), not payload. The cost of a send is learnt by reading the
//! count before and after it. Frames freed in between make the cost look smaller, so the largest value for sends of one
//! shape is used. Several datagrams in one call are segmented on their way down, which adds to the count, so they have
//! their own shape.
//!
//! Freed bytes are attributed to sends in order. A card that sends to several receivers may use another order. A send
//! then seems to leave a little early or late, but the amount below is always right. Whenever the count is 0,
//! everything has left, so no error lasts.
//!
//! Under `coorp emu`, a TAP frees frames at once. There the emulator reports what its card has freed (`emulated.rs`),
//! and the same count is derived from these reports.

mod departures;
mod emulated;
mod packets;

use std::collections::BTreeMap;
use std::io;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub(crate) use self::departures::{Departures, Handed, Target};
pub(crate) use self::emulated::{Emulated, Freed};
pub(crate) use self::packets::EmulatedPackets;

/// The maximum number of shapes whose cost is remembered. QUIC's datagrams have few lengths.
const SHAPES_MAX: usize = 512;
/// The resolution of lengths, bytes: the kernel allocates memory in such steps.
const LENGTH_STEP: usize = 64;

/// The shape of a send: the length of a datagram in steps, and the number of datagrams.
type Shape = (usize, usize);

/// The datagrams that a socket has handed over, and how much of them the card still holds.
#[derive(Debug)]
pub(crate) struct OutQueue {
    count: Count,
    costs: BTreeMap<Shape, u64>,
    /// The cost of all sends so far.
    entered: u64,
    /// The part of this cost that has left.
    left: u64,
}

/// The source of the count.
#[derive(Debug)]
enum Count {
    Kernel(OwnedFd),
    /// The emulator's count of freed payload; `sent` is the payload passed to it.
    Emulated {
        freed: Arc<Freed>,
        sent: u64,
    },
    /// The socket has been released.
    Closed,
}

impl OutQueue {
    /// Returns the queue of a socket, by the kernel's count or by the emulator's for its port.
    ///
    /// # Errors
    /// If the kernel does not count.
    pub fn of(socket: &impl AsFd, emulated: Option<Arc<Freed>>) -> io::Result<OutQueue> {
        held(socket.as_fd())?;
        if let Some(freed) = emulated {
            return Ok(OutQueue::by(freed));
        }
        Ok(OutQueue {
            count: Count::Kernel(socket.as_fd().try_clone_to_owned()?),
            costs: BTreeMap::new(),
            entered: 0,
            left: 0,
        })
    }

    /// Returns a queue that uses a count of freed bytes, for a socket that is not the kernel's.
    pub fn by(freed: Arc<Freed>) -> OutQueue {
        OutQueue {
            count: Count::Emulated { freed, sent: 0 },
            costs: BTreeMap::new(),
            entered: 0,
            left: 0,
        }
    }

    /// Sends `datagrams` datagrams, `bytes` in total, through `hand_over`. Returns the mark that [`OutQueue::left`]
    /// reaches once they have left.
    pub fn send(
        &mut self,
        bytes: usize,
        datagrams: usize,
        hand_over: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<u64> {
        let before = self.held();
        hand_over()?;
        if let Count::Emulated { sent, .. } = &mut self.count {
            *sent = sent.saturating_add(bytes as u64);
        }
        let after = self.held();
        let seen = after.saturating_sub(before);
        let shape = (bytes.div_ceil(datagrams.max(1)).div_ceil(LENGTH_STEP), datagrams);
        if self.costs.len() >= SHAPES_MAX && !self.costs.contains_key(&shape) {
            self.costs.clear();
        }
        let cost = self.costs.entry(shape).or_default();
        *cost = seen.max(*cost);
        self.entered += *cost;
        self.on_held(after);
        Ok(self.entered)
    }

    /// Returns the mark that is reached once everything sent so far has left.
    pub fn entered(&self) -> u64 {
        self.entered
    }

    /// Returns the mark up to which everything has left.
    pub fn left(&mut self) -> u64 {
        if let Count::Emulated { freed, sent } = &mut self.count {
            // More may be freed than was counted, if something that was given up did reach the card.
            *sent = freed.bytes().max(*sent);
        }
        self.on_held(self.held());
        self.left
    }

    /// Returns the same without reading the count anew.
    fn left_at_last(&self) -> u64 {
        self.left
    }

    fn on_held(&mut self, held: u64) {
        let left = match held {
            0 => self.entered,
            held => self.entered.saturating_sub(held),
        };
        self.left = self.left.max(left);
    }

    /// Writes off this many bytes of payload, which presumably never reached the card. The kernel's own count needs no
    /// correction.
    pub fn give_up(&mut self, bytes: u64) {
        if let Count::Emulated { freed, .. } = &self.count {
            freed.add(bytes);
        }
    }

    /// Releases the socket, so that its port is free once its owner has released it too. From then on, nothing counts
    /// as held.
    pub fn close(&mut self) {
        self.count = Count::Closed;
    }

    fn held(&self) -> u64 {
        match &self.count {
            Count::Closed => 0,
            // The kernel has counted before, so this cannot fail.
            Count::Kernel(socket) => held(socket.as_fd()).unwrap_or(0),
            Count::Emulated { freed, sent } => sent.saturating_sub(freed.bytes()),
        }
    }
}

/// Returns the bytes of a socket that the kernel holds and has not sent yet.
///
/// # Errors
/// If the kernel does not count, for example for sockets of another kind.
#[allow(unsafe_code)]
pub fn held(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel writes one live `c_int`. SIOCOUTQ is
    // TIOCOUTQ.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) } {
        0 => Ok(u64::try_from(bytes).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    /// Returns a queue with the emulator's count, which the test frees by hand.
    pub fn by_hand() -> (OutQueue, Arc<Freed>) {
        let freed = Arc::new(Freed::default());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        (OutQueue::of(&socket, Some(freed.clone())).unwrap(), freed)
    }

    fn send(queue: &mut OutQueue, bytes: usize) -> u64 {
        queue.send(bytes, 1, || Ok(())).unwrap()
    }

    #[test]
    fn loopback_holds_nothing() {
        let (from, to) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        let mut queue = OutQueue::of(&from, None).unwrap();
        let to = to.local_addr().unwrap();
        for bytes in [100, 1_000, 1_000] {
            let mark = queue.send(bytes, 1, || from.send_to(&vec![0; bytes], to).map(drop));
            assert!(mark.unwrap() <= queue.left());
        }
        assert_eq!(held(from.as_fd()).unwrap(), 0);
    }

    #[test]
    fn a_queue_that_was_closed_keeps_no_port() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let mut queue = OutQueue::of(&socket, None).unwrap();
        drop(socket);
        assert!(UdpSocket::bind(address).is_err(), "it looks at it still");
        queue.close();
        assert!(UdpSocket::bind(address).is_ok());
        assert_eq!(queue.left(), 0);
    }

    #[test]
    fn sends_leave_in_their_order_as_the_count_falls() {
        let (mut queue, freed) = by_hand();
        let marks = [1_000, 200, 1_000].map(|bytes| send(&mut queue, bytes));
        assert!(marks.is_sorted() && queue.left() < marks[0]);
        freed.add(999);
        assert!(queue.left() < marks[0], "not all of the first");
        freed.add(1);
        assert_eq!(queue.left(), marks[0]);
        freed.add(200);
        assert_eq!(queue.left(), marks[1]);
        freed.add(1_000);
        assert_eq!(queue.left(), marks[2]);
    }

    #[test]
    fn what_is_freed_while_a_send_goes_in_does_not_make_it_cheap() {
        let (mut queue, freed) = by_hand();
        let first = send(&mut queue, 1_000);
        let second = queue.send(1_000, 1, || {
            freed.add(1_000);
            Ok(())
        });
        assert_eq!(queue.left(), first);
        assert_eq!(second.unwrap(), 2 * first);
        freed.add(1_000);
        assert_eq!(queue.left(), 2 * first);
    }

    #[test]
    fn an_empty_queue_mends_every_error() {
        let (mut queue, freed) = by_hand();
        send(&mut queue, 1_000);
        // First more is freed than was sent, and then a send is lost on its way to the card.
        freed.add(1_500);
        assert_eq!(queue.left(), queue.entered);
        let lost = send(&mut queue, 1_000);
        queue.give_up(1_000);
        assert_eq!(queue.left(), lost);
    }

    #[test]
    fn a_send_that_fails_costs_nothing() {
        let (mut queue, _) = by_hand();
        let failed = queue.send(1_000, 1, || Err(io::ErrorKind::WouldBlock.into()));
        assert!(failed.is_err());
        assert_eq!((queue.entered, queue.left()), (0, 0));
    }
}
