//! Wrappers for operations without a safe interface: attaching to a TAP, a thread's real-time priority, and a child
//! that dies with its parent.

use std::ffi::c_short;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::ioctl::{opcode, Opcode, Updater};
use rustix::process::Signal;

/// Size of an interface name, including its terminating zero.
const NAME_BYTES: usize = 16;
const IFF_TAP: c_short = 0x0002;
/// No additional header from the TUN driver on frames.
const IFF_NO_PI: c_short = 0x1000;
/// `_IOW('T', 202, int)`, although the driver reads and returns a `struct ifreq`.
const TUNSETIFF: Opcode = opcode::write::<i32>(b'T', 202);

/// `struct ifreq`, with the fields that the TUN driver uses, at its full size.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; NAME_BYTES],
    flags: c_short,
    rest: [u8; 22],
}

/// Creates a TAP interface in the network namespace of the calling thread. It disappears when the file is closed. Each
/// read or write is one frame and does not block.
///
/// # Errors
/// The device does not exist, permission is missing, or the name is taken.
pub fn open_tap(name: &str) -> io::Result<File> {
    let tap = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    let mut request = InterfaceRequest {
        name: [0; NAME_BYTES],
        flags: IFF_TAP | IFF_NO_PI,
        rest: [0; 22],
    };
    for (place, byte) in request.name.iter_mut().zip(name.bytes().take(NAME_BYTES - 1)) {
        *place = byte;
    }
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, which is 40 bytes on 64-bit and 32 on 32-bit machines and
    // begins with the name and the flags; `InterfaceRequest` is 40 bytes of that layout, initialised, and outlives the
    // call.
    unsafe { rustix::ioctl::ioctl(&tap, Updater::<TUNSETIFF, InterfaceRequest>::new(&mut request))? };
    Ok(tap)
}

/// Schedules the calling thread ahead of all normally scheduled threads. Its children are not affected.
///
/// # Errors
/// Permission is missing.
pub fn real_time() -> io::Result<()> {
    // An all-zero `sched_param` is valid on every libc, whatever further fields it has.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = 10;
    // SAFETY: 0 is the calling thread, and `parameters` outlives the call, which only reads it.
    let outcome = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &parameters) };
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Makes the kernel kill the command's process when the thread that starts it ends, for whatever reason.
pub fn die_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec only prctl is called, a bare system call that allocates nothing and takes no lock.
    unsafe {
        command
            .pre_exec(|| rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from));
    }
}
