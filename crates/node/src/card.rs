//! The card behind an interface: its driver, and the source by which that driver shows what has left.
//!
//! Every driver frees what it has sent, so the count of the socket's send queue ([`crate::outqueue`]) works with every
//! card. Transmit status (`SO_WIFI_STATUS`) tells more, each frame's fate on the air, but requesting it changes how
//! many of the drivers handle the frame. Only drivers in `STATUS_IS_HARMLESS` are asked. A TUN or TAP frees a frame
//! before it has gone anywhere, so neither source works there.
//!
//! Left out: the network that a frame takes behind an access point, and drivers that free frames before the air has
//! them (USB).

use std::ffi::c_char;
use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

use nix::ifaddrs::getifaddrs;
use socket2::{Domain, Protocol, Socket, Type};

use crate::links::TOS_VOICE;
use crate::outqueue;
use crate::status::Completions;

/// Drivers whose source shows that a frame whose status is requested is sent like any other, each with the finding.
///
/// mac80211 itself already treats such a frame differently: it skips the fast path (`ieee80211_xmit_fast` in
/// `net/mac80211/tx.c`), and with it A-MSDUs. Not in the list, because of their own sources:
/// - mt76x02 (mt76x0, mt76x2): with a status, a frame of an A-MPDU goes to the management queue
///   (`mt76x02u_tx_prepare_skb`: `MT_QSEL_MGMT`), so it is no longer aggregated.
/// - any driver whose source nobody has read.
const STATUS_IS_HARMLESS: [(&str, &str); 1] = [(
    "mac80211_hwsim",
    "mac80211_hwsim_tx reports the status of every frame, asked for or not, and builds no A-MSDUs",
)];

/// The driver names of TUNs and TAPs.
const TUN: &str = "tun";
/// The longest interface name, including its final zero.
const NAME_BYTES: usize = libc::IFNAMSIZ;

/// Returns why requesting transmit status from this driver is known to be harmless; `None` if it is not.
pub fn status_is_harmless(driver: &str) -> Option<&'static str> {
    let known = STATUS_IS_HARMLESS.iter().find(|(name, _)| *name == driver);
    known.map(|(_, why)| *why)
}

/// Returns the source of completions over an interface with this driver. `None`: the driver has no name.
pub fn source(driver: Option<&str>) -> Completions {
    match driver {
        Some(TUN) => Completions::Acknowledgements,
        Some(driver) if status_is_harmless(driver).is_some() => Completions::WifiStatus,
        _ => Completions::OutQueue,
    }
}

/// Returns the name of an interface's driver, from ethtool. `None` for loopback and for interfaces that do not exist.
#[allow(unsafe_code)]
pub fn driver(interface: &str) -> Option<String> {
    /// `struct ethtool_drvinfo` of linux/ethtool.h, which libc lacks.
    #[repr(C)]
    struct DriverInfo {
        command: u32,
        driver: [u8; 32],
        rest: [u8; 160],
    }
    const ETHTOOL_GDRVINFO: u32 = 3;
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).ok()?;
    let mut info = DriverInfo {
        command: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        rest: [0; 160],
    };
    // SAFETY: all zeroes is a valid ifreq.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if interface.len() >= NAME_BYTES {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut info).cast::<c_char>();
    // SAFETY: the call reads the name in the live request and writes to what that points to, which is as long as the
    // kernel assumes.
    let told = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    let name = info.driver.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(name).into_owned();
    (told == 0 && !name.is_empty()).then_some(name)
}

/// Checks whether the kernel counts the bytes of a socket that have not been sent (`SIOCOUTQ`).
///
/// # Errors
/// The kernel's error if it does not.
pub fn counts_sends() -> io::Result<()> {
    outqueue::held(UdpSocket::bind("127.0.0.1:0")?.as_fd()).map(drop)
}

/// Checks whether datagrams may be marked for AC_VO.
///
/// # Errors
/// The kernel's error if they may not.
pub fn may_mark() -> io::Result<()> {
    Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?.set_tos_v4(TOS_VOICE.into())
}

/// Returns the interface on the way to an address, from a socket bound to `from` and perhaps to a device. Sends
/// nothing.
pub(crate) fn towards(to: SocketAddr, from: IpAddr, device: Option<String>) -> io::Result<String> {
    if let Some(device) = device {
        return Ok(device);
    }
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    socket.connect(&to.into())?;
    let own = socket.local_addr()?.as_socket().map(|address| address.ip());
    let mut interfaces = getifaddrs()?;
    let found = interfaces.find(|interface| {
        let address = interface.address.as_ref();
        let four = address.and_then(|address| address.as_sockaddr_in().map(|four| IpAddr::from(four.ip())));
        let six = address.and_then(|address| address.as_sockaddr_in6().map(|six| IpAddr::from(six.ip())));
        four.or(six).is_some_and(|address| Some(address) == own)
    });
    let found = found.map(|interface| interface.interface_name);
    found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_and_has_no_driver_of_its_own() {
        let here = IpAddr::from([127, 0, 0, 1]);
        let name = towards(SocketAddr::new(here, 9), IpAddr::from([0, 0, 0, 0]), None).unwrap();
        assert_eq!(name, "lo");
        assert_eq!(source(driver(&name).as_deref()), Completions::OutQueue);
        assert_eq!(driver("there-is-no-such-interface"), None);
        let named = towards(SocketAddr::new(here, 9), here, Some("wlan7".to_owned()));
        assert_eq!(named.unwrap(), "wlan7");
    }

    #[test]
    fn only_a_driver_that_was_read_is_asked_for_status() {
        assert_eq!(source(Some("mac80211_hwsim")), Completions::WifiStatus);
        for driver in ["mt76x2u", "mt76x2e", "iwlwifi", "ath9k", "virtio_net"] {
            assert_eq!(status_is_harmless(driver), None);
            assert_eq!(source(Some(driver)), Completions::OutQueue);
        }
        assert_eq!(source(Some("tun")), Completions::Acknowledgements);
    }
}
