//! A TUN interface: packets that programs send into it are read from a file.
//!
//! Each packet comes after a header that says what work the kernel has left ([`Offer`]). The header costs nothing as
//! long as no offload is requested. With [`Tun::take_segments`], TCP hands over many segments in one read, with its
//! checksum only begun, as to a network card that cuts them itself.

use std::ffi::{c_char, c_short};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read};
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use super::segments::Offer;

const DEVICE: &str = "/dev/net/tun";

/// A TUN interface, which disappears when the last clone is dropped or the process ends.
#[derive(Clone, Debug)]
pub(super) struct Tun(Arc<File>);

impl Tun {
    /// Creates a TUN interface. Reading does not block.
    ///
    /// # Errors
    /// The device does not exist, permission is missing, or the name is taken.
    #[allow(unsafe_code)]
    pub fn open(name: &str) -> io::Result<Tun> {
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
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as c_short;
        // SAFETY: the call reads and writes the live ifreq, which ends with its name in zeroes.
        match unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } {
            0 => Ok(Tun(Arc::new(tun))),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sets whether TCP's segments may come together from now on.
    ///
    /// # Errors
    /// If the kernel cannot do that. Segments then come one by one.
    #[allow(unsafe_code)]
    pub fn take_segments(&self, take: bool) -> io::Result<()> {
        let offers = if take { libc::TUN_F_CSUM | libc::TUN_F_TSO4 } else { 0 };
        // SAFETY: the call takes a number, and the descriptor is open.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(offers)) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Reads one packet into a buffer. Returns the work left to do, and the packet; `None` if the kernel's header is
    /// cut off.
    pub fn read<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<(Offer, &'b mut [u8])>> {
        let read = (&*self.0).read(buffer)?;
        let Some((header, packet)) = buffer[..read].split_first_chunk_mut() else {
            return Ok(None);
        };
        Ok(Some((Offer::read(header), packet)))
    }

    /// Gives the kernel a complete packet, as if it had arrived.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        let complete = [0; Offer::BYTES];
        rustix::io::writev(&self.0, &[IoSlice::new(&complete), IoSlice::new(packet)])?;
        Ok(())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
