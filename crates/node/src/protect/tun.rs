//! A TUN interface: what programs send into it is read from a file.

use std::ffi::{c_char, c_short};
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::zeroed;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

const DEVICE: &str = "/dev/net/tun";

/// Makes a TUN interface, which goes when the file is closed, however that happens. Each read returns one IP packet, with
/// its checksums in place, and does not block.
///
/// # Errors
/// No such device, no permission, or a name that is taken.
#[allow(unsafe_code)]
pub(super) fn open(name: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let tun = options
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(DEVICE)?;
    // SAFETY: all zeroes is a valid ifreq.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as c_short;
    // SAFETY: the call reads and writes the live ifreq, which ends with its name in zeroes.
    match unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } {
        0 => Ok(tun),
        _ => Err(io::Error::last_os_error()),
    }
}
