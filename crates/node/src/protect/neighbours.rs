//! Knows which receivers on an interface's network have a known hardware address, and the addresses. Packets to other
//! receivers wait in the kernel for seconds, and then get lost.
//!
//! The source is `/proc/net/arp`, which takes some 0.1 ms to read. So it is usually read between packets while there is
//! traffic. It is read before a packet only if the receiver is unknown, or was known too long ago.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use coorp_core::{Duration, Instant};
use pnet_datalink::MacAddr;

use super::routes::Outlet;
use super::segments::Hardware;

/// Time for which what was read is valid: for a known receiver, until it is read again between packets, and before a
/// packet; and for an unknown receiver, which may be found at any moment.
const FRESH_FOR: Duration = Duration::from_millis(200);
const KNOWN_FOR: Duration = Duration::from_secs(1);
const UNKNOWN_FOR: Duration = Duration::from_millis(10);
/// The maximum number of lines read from the table.
const LINES_MAX: usize = 4_096;
/// `ATF_COM`: the entry is complete.
const COMPLETE: u32 = 0x02;

/// The neighbours over one interface.
#[derive(Debug)]
pub(super) struct Neighbours {
    interface: String,
    /// The interface's network, as its address and the mask, and the router to others, if there is one.
    network: (u32, u32),
    router: Option<Ipv4Addr>,
    /// Whether the interface has neighbours; otherwise, no packet has to wait.
    any: bool,
    /// The known receivers; `None` if the hardware address is not an Ethernet address.
    known: BTreeMap<Ipv4Addr, Option<Hardware>>,
    read_at: Option<Instant>,
    /// Whether packets were sent since then.
    is_asked: bool,
}

impl Neighbours {
    pub fn of(outlet: &Outlet) -> Neighbours {
        Neighbours {
            interface: outlet.interface.clone(),
            network: (outlet.address.to_bits(), outlet.mask()),
            router: outlet.router,
            any: outlet.has_neighbours,
            known: BTreeMap::new(),
            read_at: None,
            is_asked: false,
        }
    }

    /// Returns the neighbour that takes packets to a receiver.
    fn next(&self, receiver: Ipv4Addr) -> Ipv4Addr {
        let (own, mask) = self.network;
        let is_here = (receiver.to_bits() ^ own) & mask == 0;
        self.router.filter(|_| !is_here).unwrap_or(receiver)
    }

    /// Returns whether the hardware address of a receiver, or of the router to it, is known, or is not needed.
    pub fn knows(&mut self, receiver: Ipv4Addr, now: Instant) -> bool {
        if !self.any {
            return true;
        }
        let receiver = self.next(receiver);
        let holds_for = if self.known.contains_key(&receiver) {
            KNOWN_FOR
        } else {
            UNKNOWN_FOR
        };
        if self.is_older(holds_for, now) {
            self.read(now);
        }
        self.is_asked = true;
        !self.any || self.known.contains_key(&receiver)
    }

    /// Reads the table again if it was used and is no longer fresh. For times at which no packet is urgent.
    pub fn refresh(&mut self, now: Instant) {
        if self.any && self.is_asked && self.is_older(FRESH_FOR, now) {
            self.read(now);
        }
    }

    fn is_older(&self, than: Duration, now: Instant) -> bool {
        self.read_at.is_none_or(|at| now.since(at) >= than)
    }

    fn read(&mut self, now: Instant) {
        (self.read_at, self.is_asked) = (Some(now), false);
        match std::fs::read_to_string("/proc/net/arp") {
            Ok(table) => self.known = complete(&table, &self.interface),
            // Without the table, it is better that no packet waits than that all do.
            Err(_) => self.any = false,
        }
    }

    /// Returns the hardware address of a receiver, or of the router to it, if it is known.
    pub fn hardware(&mut self, receiver: Ipv4Addr, now: Instant) -> Option<Hardware> {
        if !self.knows(receiver, now) {
            return None;
        }
        self.known.get(&self.next(receiver)).copied().flatten()
    }
}

/// Returns the complete entries of an interface: address, type, flags, hardware address, mask, device.
fn complete(table: &str, interface: &str) -> BTreeMap<Ipv4Addr, Option<Hardware>> {
    let entry = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [address, _, flags, hardware, .., device] = fields.as_slice() else {
            return None;
        };
        let flags = u32::from_str_radix(flags.strip_prefix("0x")?, 16).ok()?;
        let address = address.parse().ok()?;
        let hardware = hardware.parse::<MacAddr>().ok().map(|found| found.octets());
        (*device == interface && flags & COMPLETE != 0).then_some((address, hardware))
    };
    table.lines().skip(1).take(LINES_MAX).filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_entries_of_the_interface_are_known() {
        let table = "\
IP address       HW type     Flags       HW address            Mask     Device
10.77.0.1        0x1         0x2         02:63:6f:00:00:00     *        wlan0
10.77.0.2        0x1         0x6         02:63:6f:00:00:01     *        wlan0
10.77.0.3        0x20        0x2         80:00:00:48:fe:80:00:00:00:00:00:00 *  wlan0
10.77.0.4        0x1         0x0         00:00:00:00:00:00     *        wlan0
10.78.0.1        0x1         0x2         02:63:6f:00:01:00     *        wlan1
nonsense
";
        let known: Vec<_> = complete(table, "wlan0").into_iter().collect();
        let robot = |last| (Ipv4Addr::new(10, 77, 0, last), Some([2, 0x63, 0x6f, 0, 0, last - 1]));
        assert_eq!(known, [robot(1), robot(2), (Ipv4Addr::new(10, 77, 0, 3), None)]);
    }
}
